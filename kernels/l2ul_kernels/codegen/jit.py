"""How every kernel is compiled: one decorator, one switch for the on-disk cache, one lock around first compiles.

- ``L2UL_CACHE=0`` turns on-disk caching off.
- numba keys its cache by the file a kernel stands in, not by the files that kernel calls into. Here every file of the
  package counts, and every file of the package that uses the decorator: editing any of them recompiles its kernels.
- Processes that compile the same kernels at the same moment can corrupt numba's index (two signatures, one file name).
  `ensure_compiled` lets one process at a time through.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba

CACHE = os.environ.get("L2UL_CACHE", "1") not in ("0", "false", "no", "off")

_ready: set[Any] = set()
_thread_lock = threading.RLock()


_ROOT = Path(__file__).parents[1]


@lru_cache
def _stamp(*folders: Path) -> tuple[int, int]:
    """(newest change, total size) of the sources below these folders, in the form of numba's own per-file stamp."""
    stats = [file.stat() for folder in folders for file in sorted(folder.rglob("*.py"))]
    return max(s.st_mtime_ns for s in stats), sum(s.st_size for s in stats)


def _stamp_of(function: Callable[..., Any]) -> tuple[int, int]:
    """The stamp of this package, and of the one that `function` belongs to, if that is another."""
    module = sys.modules.get(function.__module__.partition(".")[0])
    folder = (
        Path(module.__file__).parent
        if module is not None and getattr(module, "__path__", None) and module.__file__
        else _ROOT
    )
    return _stamp(_ROOT) if folder == _ROOT else _stamp(_ROOT, folder)


#: The fast-math flags a kernel may ask for: sums in another order, fused multiply-adds; NaN and infinities stay right.
FAST = frozenset({"contract", "reassoc", "nsz", "arcp"})


def kernel(
    parallel: bool = False, fastmath: Collection[str] = (), inline: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of all kernels: releases the GIL, exact floating point unless `fastmath` names flags (a subset of
    FAST; division by zero is then an infinity, not an exception), lazy signatures, cached on disk. `inline` saves the
    compilation of a kernel with a single caller, which would be optimised again there."""
    if not set(fastmath) <= FAST:
        raise ValueError(f"fastmath flags must be among {sorted(FAST)}, got {sorted(fastmath)}")

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(
            nogil=True,
            parallel=parallel,
            cache=CACHE,
            fastmath=set(fastmath) or False,
            error_model="numpy" if fastmath else "python",
            inline="always" if inline else "never",
        )(function)
        with contextlib.suppress(AttributeError):  # numba's internals may move; then its own stamp applies
            file, stamp = dispatcher._cache._cache_file, _stamp_of(function)
            file._source_stamp = stamp
            # compared before the index is unpickled, which fails where it names a NamedTuple that is no longer there
            file._version = f"{numba.__version__} {stamp}"
            save = dispatcher._cache.save_overload

            def save_where_possible(signature: Any, compiled: Any) -> None:
                with contextlib.suppress(OSError):  # a full disk: the next process compiles once more
                    save(signature, compiled)

            dispatcher._cache.save_overload = save_where_possible
        return dispatcher

    return decorate


def cache_folder(dispatcher: Any) -> Path | None:
    """Where this kernel is cached, or None when caching or compilation is off."""
    path = dispatcher._cache.cache_path if CACHE and hasattr(dispatcher, "_cache") else None
    return Path(path) if path else None


@contextlib.contextmanager
def _process_lock(folder: Path | None) -> Iterator[None]:
    try:
        import fcntl  # not on Windows, where first compiles are simply not serialised
    except ImportError:
        folder = None
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / "l2ul_kernels.lock", "w")  # noqa: SIM115 - closed below, after the lock's scope
    except OSError:  # a folder that cannot be written is one that numba does not write to either
        yield
        return
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@kernel()
def _nothing():  # type: ignore[no-untyped-def]  # its cache folder is where the lock of all kernels is
    return None


def cache_place() -> str:
    """Folder of the on-disk cache of this room's kernels, or "off"."""
    found = cache_folder(_nothing)
    return str(found) if found else "off"


def ensure_compiled(key: Any, call_on_nothing: Callable[[], Any]) -> None:
    """The first time `key` is seen here, compile by a call on empty data, alone among threads and processes.

    One lock for all folders: kernels of one folder compile kernels of others, which they call.
    """
    if key in _ready:
        return
    with _thread_lock, _process_lock(cache_folder(_nothing)):
        call_on_nothing()
        _ready.add(key)
