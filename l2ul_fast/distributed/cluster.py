"""A client with workers that behave (one thread each, this program's versions), and lists of tasks for them."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from l2ul_fast.errors import UserError
from l2ul_fast.workers import deaf_to_interrupts
from l2ul_kernels import available_cores, warmup
from l2ul_kernels.codegen.jit import ensure_compiled

#: Read by a library when it is loaded, so they must be there before a worker's process starts.
ONE_THREAD: dict[str, str | None] = dict.fromkeys(
    ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
#: Seconds to wait for the first worker of a scheduler.
WAIT = 60


# Clusters ------------------------------------------------------------------------------------------------------------


def dask_distributed() -> Any:
    """The module dask.distributed; UserError if the extra is not installed."""
    try:
        import distributed
    except ImportError:
        raise UserError("working on several processes or machines needs Dask: pip install 'l2ul-fast[dask]'") from None
    return distributed


@contextlib.contextmanager
def _environment(values: dict[str, str | None]) -> Iterator[None]:
    """These variables inside the block (None: as they are), and what they were before after it."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def connect(scheduler: str | None = None, workers: int | None = None) -> Iterator[Any]:
    """A client of the scheduler at that address, or of `workers` new one-thread processes on this machine.

    New processes are spawned (never forked: OpenMP does not survive it) and end with the block; a scheduler that was
    there before keeps running, and what this client still had to do is cancelled.
    """
    distributed = dask_distributed()
    if (scheduler is None) == (workers is None):
        raise UserError("name either the address of a scheduler or a number of local workers")
    with contextlib.ExitStack() as stack:
        target: Any = scheduler
        if workers is not None:
            if workers < 1:
                raise UserError(f"the number of workers must be at least 1, got {workers}")
            if workers > available_cores():
                note = f"note: {workers} workers share {available_cores()} core(s): they take turns"
                print(note, file=sys.stderr)
            target = stack.enter_context(_local_cluster(distributed, workers))
        # results of local workers need not go through the scheduler; others may be out of this process's reach
        direct = {"direct_to_workers": True} if scheduler is None else {}
        try:
            client = stack.enter_context(distributed.Client(target, timeout=WAIT, set_as_default=False, **direct))
        except (OSError, ValueError) as error:
            raise UserError(f"no Dask scheduler answers at {scheduler}: {error}") from None
        try:
            client.wait_for_workers(1, timeout=WAIT)
        except TimeoutError:
            raise UserError(f"the scheduler at {scheduler} has no workers: start some with `dask worker`") from None
        yield client


@contextlib.contextmanager
def _local_cluster(distributed: Any, workers: int) -> Iterator[Any]:
    import dask

    class Nanny(distributed.Nanny):
        """Dask's own leaves a new worker's variables in this process, also when it replaces one that died."""

        async def instantiate(self) -> Any:
            with _environment({name: os.environ.get(name) for name in self.pre_spawn_env}):
                return await super().instantiate()

    # The memory limit is off: pages of mapped files count as a worker's memory, and it would pause for nothing.
    options: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "processes": True, "memory_limit": 0}
    # env is what replacements get, after they have started: numba would refuse to compile here with another number of
    # threads in this process's environment, so it must not be there for a moment once work has begun.
    options |= {"worker_class": Nanny, "env": ONE_THREAD}
    config = {
        "distributed.worker.multiprocessing-method": "spawn",
        "distributed.worker.daemon": True,
        # a worker gets its next task when it has finished one: a task that waits with a slow worker keeps all waiting
        "distributed.scheduler.worker-saturation": 1.0,
        # Dask dismisses for good a worker that is down 15 s after it died: it may have come back and died once more
        "distributed.deploy.lost-worker-timeout": "1 day",
    }
    with dask.config.set(config):
        # Dask lets what is set in this environment win over its configuration
        with _environment(ONE_THREAD), deaf_to_interrupts():
            cluster = distributed.LocalCluster(
                dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL, **options
            )
        with cluster:
            yield cluster


def _workers(client: Any) -> dict[str, Any]:
    return dict(client.scheduler_info(n_workers=-1)["workers"])


def worker_count(client: Any) -> int:
    """Number of tasks that the workers run at a time."""
    return max(1, sum(facts["nthreads"] for facts in _workers(client).values()))


_ready: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def prepare(client: Any) -> int:
    """Check that all workers have this program's versions and let them load its kernels; how many tasks they run.

    Once for the same workers; all are asked again when one has joined.
    """
    done, workers = _ready.setdefault(client, set()), set(_workers(client))
    if not workers <= done:
        ours = _versions()
        for address, theirs in client.run(_load, on_error="return").items():
            if isinstance(theirs, ImportError):
                raise UserError(
                    f"the worker at {address} lacks the package {theirs.name}: install the same versions there"
                )
            if isinstance(theirs, OSError):  # it died; others go on
                continue
            if isinstance(theirs, Exception):
                raise UserError(f"the worker at {address} failed: {theirs}")
            if theirs != ours:
                names = ", ".join(f"{k} {theirs[k]} (here {ours[k]})" for k in ours if theirs[k] != ours[k])
                raise UserError(f"the worker at {address} has {names}: results could differ, install the same versions")
        done |= workers
    return worker_count(client)


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("l2ul-fast", "numpy", "numba")}


def _load() -> dict[str, str]:
    """Compile or load the kernels of counting and reading, one process of a host after the other; this worker's
    versions."""
    import numba

    numba.core.config.reload_config()  # a script's own imports may have loaded numba before its variables were set
    warmup(float64=False)
    ensure_compiled("rows of files", _read_nothing)
    return _versions()


def _read_nothing() -> None:
    from l2ul_fast.datasets.file import gather
    from l2ul_fast.datasets.file.chunks import fletcher32

    gather.load(1)
    fletcher32(np.zeros(8, np.uint8))
    X, one = np.zeros((1, 1), np.float32), np.ones(1)
    gather.standardise_rows(X, one, one, np.ones(1, bool), X)


# Tasks ---------------------------------------------------------------------------------------------------------------


def run_tasks(
    client: Any, function: Callable[..., Any], items: Iterable[Any], held: Any = None
) -> Iterator[tuple[int, Any]]:
    """(number of the item, function(item) or function(item, held)) of all items as they are done.

    Each is computed by one worker on one thread; what all have in common, `held` (a value, or a future of one), goes to
    a worker once. `function` must be importable there and depend on its arguments only: what a dead worker had not
    handed on is computed again elsewhere. Leaving the loop early cancels the rest.
    """
    from distributed import CancelledError, Future, KilledWorker, as_completed

    todo, name = list(items), uuid.uuid4().hex[:12]  # a name: earlier results must not be taken for these
    if held is not None and not isinstance(held, Future):
        # a task, not scattered data: should every worker that has it die, the scheduler makes it again
        held = client.submit(_same, held, key=f"l2ul-held-{name}", pure=False)
    keys = [f"l2ul-{name}-{i}" for i in range(len(todo))]
    futures = client.map(_alone, todo, function=function, held=held, key=keys, pure=False)
    numbers = {key: i for i, key in enumerate(keys)}
    try:
        for future in as_completed(futures, client.loop):
            result = future.result()
            future.release()
            yield numbers[future.key], result
    except KilledWorker:
        raise UserError(
            "several workers died one after the other in the same task: look at their logs (out of memory?)"
        ) from None
    except CancelledError:
        raise UserError("the scheduler dropped the work: were all workers lost at once?") from None
    finally:
        # the scheduler drops tasks that nobody wants; `Client.cancel` would trip over tasks that depend on each other
        for future in (*futures, held):
            with contextlib.suppress(Exception):
                future.release()


def _same(held: Any) -> Any:
    return held


def _alone(item: Any, function: Callable[..., Any], held: Any) -> Any:
    """The function's value with one thread for numba and all pools."""
    from l2ul_kernels import threads

    with threads(1):
        try:
            return function(item) if held is None else function(item, held)
        except UserError as error:
            sentence = type(error)(*error.args)
    raise sentence  # without its frames: a worker keeps it for a while, and with it files would stay open


def map_jobs(
    client: Any, function: Callable[[Any], Any], items: Iterable[Any], warm: bool = True
) -> Iterator[tuple[int, Any]]:
    """(number of the item, function(item)) for all items as they are done, each computed by one worker on one thread.

    `function` must be importable on the workers and depend on its item only: a worker that dies has its jobs repeated
    elsewhere. Leaving the loop early cancels the rest. `warm`: let all workers load the kernels before the first job.
    """
    todo = list(items)
    if todo and warm:
        prepare(client)
    yield from run_tasks(client, function, todo)
