"""Exit codes, signals and streams: how a command ends that something outside of it fails."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from l2ul_fast import extras
from l2ul_fast.errors import UserError

#: What helps where numba finds no folder for its cache.
CACHE = "name one that can be written with NUMBA_CACHE_DIR, or set L2UL_CACHE=0"


class Terminated(KeyboardInterrupt):
    """SIGTERM: cleans up as Ctrl-C does."""

    number = signal.SIGTERM


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """In the block SIGTERM raises Terminated; only the main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: Any) -> None:
    raise Terminated


def open_streams() -> None:
    """Give a process without standard output or error one: a file that it opens later must not take their numbers.

    What is printed there fails as it would on a full disk, instead of vanishing.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def exit_code(stop: KeyboardInterrupt) -> int:
    """128 and the signal's number, as shells have it."""
    return 128 + getattr(stop, "number", signal.SIGINT)


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """End the process with one sentence on standard error and an exit code, where the block fails."""
    try:
        yield
        sys.stdout.flush()
        return
    except UserError as error:
        sentence, code = f"error: {error}", getattr(error, "exit_code", 1)
    except RuntimeError as error:
        if "cannot cache function" not in str(error):  # numba's words
            raise
        sentence, code = "error: there is no folder to cache compiled kernels in: " + CACHE, 1
    except ImportError as error:
        known = (error.name or "").split(".")[0] in extras.EXTRAS
        sentence, code = f"error: {extras.sentence(error.name or '') if known else error}", 1
    except MemoryError:
        sentence, code = "error: there is not enough memory", 1
    except KeyboardInterrupt as stop:
        sentence, code = "interrupted: nothing half-written was kept", exit_code(stop)
    except OSError as error:
        sentence, code = f"error: cannot use {error.filename}: {error.strerror}", 1
        if error.filename is None:  # standard output; a reader that has gone, as in `| head`, needs no sentence
            sentence = "" if error.errno == errno.EPIPE else f"error: cannot write to standard output: {error.strerror}"
            _forget_output()
    if sentence:
        with contextlib.suppress(OSError):
            print(sentence, file=sys.stderr)
    raise SystemExit(code)


def _forget_output() -> None:
    """Lose what is still in the buffer, which would fail once more when the process ends."""
    with contextlib.suppress(OSError, ValueError):  # a test's stream has no number
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
