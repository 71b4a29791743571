"""A client with workers that behave: one numba thread each, kernels compiled once per host, errors as one sentence."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numba

from l2ul_fast.errors import UserError
from l2ul_kernels import available_cores, warmup

#: Read by a library when it is loaded, so they must be there before a worker's process starts.
ONE_THREAD: dict[str, str | None] = dict.fromkeys(
    ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
#: Seconds to wait for the first worker of a scheduler.
WAIT = 60


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
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C: a terminal sends it to all, and this process ends its workers itself."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
        if scheduler is None:
            if workers is None or workers < 1:
                raise UserError(f"the number of workers must be at least 1, got {workers}")
            if workers > available_cores():
                note = f"note: {workers} workers share {available_cores()} core(s): they take turns"
                print(note, file=sys.stderr)
            target = stack.enter_context(_local_cluster(distributed, workers))
        else:
            target = scheduler
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

    from l2ul_fast.distributed.worker import LocalWorker  # here: it needs Dask

    class Nanny(distributed.Nanny):
        """Dask's own leaves a new worker's variables in this process, also when it replaces one that died."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, worker_class=LocalWorker, **options)

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
        "distributed.worker.profile.enabled": False,  # it looks at every thread 100 times a second
        # how often every process looks after itself: 50 times and twice a second took two workers 6 % of a core
        "distributed.admin.tick.interval": "1s",
        "distributed.admin.system-monitor.interval": "10s",
        # a worker gets its next task when it has finished one: a task that waits with a slow worker keeps all waiting
        "distributed.scheduler.worker-saturation": 1.0,
    }
    with dask.config.set(config):
        # Dask lets what is set in this environment win over its configuration
        with _environment(ONE_THREAD), _deaf_to_interrupts():
            cluster = distributed.LocalCluster(
                dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL, **options
            )
        with cluster:
            yield cluster


def worker_count(client: Any) -> int:
    """How many tasks the workers run at a time."""
    return _slots(_workers(client)).all


class Slots(NamedTuple):
    """How many tasks workers run at a time: all of them, and at most those of one host."""

    all: int
    of_host: int


def _slots(workers: dict[str, Any]) -> Slots:
    by_host: Counter[str] = Counter()
    for facts in workers.values():
        by_host[facts["host"]] += facts["nthreads"]
    return Slots(max(1, by_host.total()), max(by_host.values(), default=1))


def _workers(client: Any) -> dict[str, Any]:
    return dict(client.scheduler_info(n_workers=-1)["workers"])


def once_per_host(client: Any, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """function(*args) on one worker of every host, then on all others; what each returned, by address.

    Meant for loading kernels: the first on a host compiles, the others find its cache. Processes that compile the same
    kernels at once can damage that cache.
    """
    hosts: dict[str, list[str]] = {}
    for address, facts in sorted(_workers(client).items()):
        hosts.setdefault(facts["host"], []).append(address)
    found: dict[str, Any] = {}
    for group in ([all_[0] for all_ in hosts.values()], [a for all_ in hosts.values() for a in all_[1:]]):
        if group:
            found |= client.run(function, *args, workers=group, on_error="return")
    for address, result in found.items():
        if isinstance(result, ImportError):
            raise UserError(
                f"the worker at {address} cannot load the package {result.name}: install the same versions there"
            )
        if isinstance(result, UserError):
            raise result
        if isinstance(result, Exception) and not isinstance(result, OSError):  # OSError: it died; others go on
            raise UserError(f"the worker at {address} failed: {result}")
    return found


_ready: weakref.WeakKeyDictionary[Any, set[tuple[str, str]]] = weakref.WeakKeyDictionary()


def prepare(client: Any, warm: Callable[..., Any] = warmup, *args: Any) -> Slots:
    """Check that all workers have this program's versions, then let them load the kernels by warm(*args).

    Done once for the same workers; they are asked again when one has joined. Returns how many tasks they run at a time.
    """
    done, workers = _ready.setdefault(client, set()), _workers(client)
    wanted = {(address, f"{warm.__module__}.{warm.__qualname__}{args!r:.300}") for address in workers}
    if wanted <= done:
        return _slots(workers)
    ours = _versions()
    for address, theirs in once_per_host(client, _versions).items():
        if theirs != ours and not isinstance(theirs, Exception):
            names = ", ".join(f"{k} {theirs[k]} (here {ours[k]})" for k in ours if theirs[k] != ours[k])
            raise UserError(f"the worker at {address} has {names}: results could differ, install the same versions")
    once_per_host(client, _warm, warm, args)
    done |= wanted
    return _slots(workers)


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("l2ul-fast", "numpy", "numba")}


def _warm(warm: Callable[..., Any], args: tuple[Any, ...]) -> None:
    numba.core.config.reload_config()  # a script's own imports may have loaded numba before its variables were set
    warm(*args)


def token() -> str:
    """A name for one computation's tasks: results of an earlier one must not be taken for it."""
    return uuid.uuid4().hex[:12]


@contextlib.contextmanager
def cancelled_on_error(futures: Sequence[Any]) -> Iterator[None]:
    """Cancel what is not done when the block ends early (an error, Ctrl-C); say in one sentence what went wrong.

    By letting go of the futures: the scheduler drops tasks that nobody wants. `Client.cancel` would trip over tasks
    that depend on each other (an assertion in the scheduler ends the client's connection).
    """
    from distributed import CancelledError, KilledWorker

    try:
        yield
    except BaseException as error:
        for future in futures:
            with contextlib.suppress(Exception):
                future.release()
        if isinstance(error, KilledWorker):
            raise UserError(
                "several workers died one after the other in the same task: look at their logs (out of memory?)"
            ) from None
        if isinstance(error, CancelledError):
            raise UserError("the scheduler dropped the work: were all workers lost at once?") from None
        raise


def map_jobs(
    client: Any, function: Callable[[Any], Any], items: Iterable[Any], warm: Callable[..., Any] | None = warmup
) -> Iterator[tuple[int, Any]]:
    """(number of the item, function(item)) for all items as they are done, each computed by one worker on one thread.

    `function` must be importable on the workers and depend on its item only: a worker that dies has its jobs repeated
    elsewhere. Leaving the loop early cancels the rest. `warm` loads the kernels on every host before the first job.
    """
    from distributed import as_completed

    todo, name = list(items), token()
    if not todo:
        return
    if warm is not None:
        prepare(client, warm)
    futures = client.map(
        _alone, todo, function=function, key=[f"l2ul-job-{name}-{i}" for i in range(len(todo))], pure=False
    )
    numbers = {future.key: i for i, future in enumerate(futures)}
    with cancelled_on_error(futures):
        for future in as_completed(futures, client.loop):
            result = future.result()
            future.release()
            yield numbers[future.key], result


def _alone(item: Any, function: Callable[[Any], Any]) -> Any:
    """function(item) with one thread for numba and all pools."""
    from l2ul_kernels import threads

    with threads(1):
        return function(item)
