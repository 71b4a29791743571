"""Stop a program at every change it makes to a directory, and look for bytes that should be gone.

`crash_points(folder, setup, action, check)` runs `action` again and again on a fresh copy of what `setup` made and
stops it at the first, second, third ... change below the directory; `check` then looks at what is left.

- A stop is a `Crash` (a BaseException) raised instead of the call; from then on every further change raises it again,
  so no `finally` and no `except` can tidy up what a killed process could not. A write is stopped half-way.
- `power_loss=k` also drops, in k different ways, what was not yet synced: file contents since their last fsync,
  and the newest creations, renames and deletions since the last fsync of the directory.
- `error_points` lets calls fail with an errno (a full disk), or interrupts them (Ctrl-C): there the program goes on and
  tidies up.
- `signal_at` sends a true SIGKILL or SIGTERM to another process.

A change is a call of os.* that opens a file for writing, writes, syncs, cuts, renames, deletes, links or makes a
folder. An audit hook refuses all other ways that Python tells of, so that nothing slips past.
"""

import contextlib
import errno
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st

BY_PATH = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "truncate", "link", "symlink")
BY_DESCRIPTOR = ("write", "pwrite", "writev", "fsync", "fdatasync", "ftruncate")
CHANGES = ("open", *BY_PATH, *BY_DESCRIPTOR)
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["l2ul_fast.unlearner.l2ul", "l2ul_fast.cli.app"])
_REAL = {name: getattr(os, name) for name in CHANGES} | {name: lambda fd: None for name in ("fsync", "fdatasync")}


class Crash(BaseException):
    """The program was stopped here."""


@dataclass
class Node:
    """One file: what of it is surely on the disk, and what it held when its last name went away."""

    synced: bytes = b""
    last: bytes | None = None


@dataclass
class Faults:
    """A context in which the `stop_at`-th change below `directory` crashes, gets a `signal` or fails with an `error`.

    `calls` lists all changes seen so far, `places` which functions of the program made them. Errors hit the
    `stop_at`-th call and all later ones that are named in `failing`; with no names that call alone.
    """

    directory: Path
    stop_at: int | None = None
    signal: int | None = None
    error: int | None = None
    failing: tuple[str, ...] = ("open", "write", "mkdir", "ftruncate", "fsync")
    calls: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)
    crashed: bool = False
    inside: bool = False

    def __enter__(self):
        global _active
        assert _active is None, "one set of faults at a time"
        _install_hook()
        self.live = {p.name: Node(p.read_bytes()) for p in _files(self.directory)}  # flat: artifacts have no folders
        self.durable, self.pending = dict(self.live), []
        self._stack = contextlib.ExitStack()
        for name in CHANGES:
            self._stack.enter_context(mock.patch.object(os, name, self._wrapped(name)))
        _active = self
        return self

    def __exit__(self, *exception):
        global _active
        _active = None
        self._stack.close()

    def run(self, action) -> bool:
        """Whether `action(directory)` came to its end."""
        with self:
            try:
                action(self.directory)
            except Crash:
                return False
        assert not self.crashed, "the crash was swallowed: some code catches BaseException and goes on"
        return True

    def _wrapped(self, name):
        real = _REAL[name]

        def call(*args, **kwargs):
            path = self._path(name, args)
            if path is None or (name == "open" and not _for_writing(args, kwargs) and not self.crashed):
                return real(*args, **kwargs)
            if self.crashed:
                raise Crash
            self.calls.append(name)
            self.places.add(f"{name} in {sys._getframe(1).f_code.co_name}")
            if self.stop_at is not None and len(self.calls) >= self.stop_at:
                if self.error is None and self.signal is None:
                    self._half(name, real, args)
                    self.crashed = True
                    raise Crash
                if self.signal is not None and len(self.calls) == self.stop_at:
                    done = self._half(name, real, args)
                    os.kill(os.getpid(), self.signal)  # Python's own handler raises KeyboardInterrupt here
                    if done:
                        return done
                if self.error is not None and (
                    name in self.failing or (not self.failing and len(self.calls) == self.stop_at)
                ):
                    raise OSError(self.error, os.strerror(self.error), str(path))
            existed, before = path.exists(), self._content(name, path)
            self.inside = True
            try:
                done = real(*args, **kwargs)
            finally:
                self.inside = False
            self._remember(name, path, args, existed, before)
            return done

        return call

    def _half(self, name, real, args) -> int:
        """Write the first half of what a call writes; how much that was."""
        return real(args[0], args[1][: len(args[1]) // 2], *args[2:]) if name in ("write", "pwrite") else 0

    def _path(self, name, args) -> Path | None:
        """The file below the directory (or the directory) that a call changes, or None."""
        if name in BY_DESCRIPTOR:
            path = Path(os.readlink(f"/proc/self/fd/{args[0]}").removesuffix(" (deleted)"))
        elif isinstance(args[0], int):
            return None
        else:
            path = Path(os.path.abspath(os.fsdecode(args[0])))
        return path if path == self.directory or self.directory in path.parents else None

    def _content(self, name, path) -> bytes | None:
        return path.read_bytes() if name in ("unlink", "remove") and path.is_file() else None

    def _remember(self, name, path, args, existed, before) -> None:
        """Keep the books of what would survive a loss of power."""
        if name == "open" and not existed:
            self.live[path.name] = Node()
            self.pending.append((path.name, self.live[path.name]))
        elif name in ("replace", "rename"):
            node, target = self.live.pop(path.name), Path(args[1]).name
            self.live[target] = node
            self.pending.append((target, node, path.name))
        elif name in ("unlink", "remove"):
            self.live.pop(path.name).last = before
            self.pending.append((path.name, None))
        elif name in ("fsync", "fdatasync") and path == self.directory:
            self.durable, self.pending = dict(self.live), []
        elif name in ("fsync", "fdatasync") and path.name in self.live:
            self.live[path.name].synced = path.read_bytes()

    def lose_power(self, seed: int) -> None:
        """Leave on disk only what was synced, and of the rest what chance lets through."""
        chance = random.Random(seed)
        written = {id(node): (self.directory / name).read_bytes() for name, node in self.live.items()}
        left = dict(self.durable)
        for name, node, *source in self.pending[: chance.choice([0, len(self.pending), chance.randint(0, 99)])]:
            left.pop(source[0] if source else name, None)
            if node is not None:
                left[name] = node
        for path in _files(self.directory):
            path.unlink()
        for name, node in left.items():
            now = written.get(id(node), node.last if node.last is not None else node.synced)
            if now.startswith(node.synced):  # new or appended to: the size may be there without the data
                tail = now[len(node.synced) :]
                content = node.synced + chance.choice([b"", tail[: len(tail) // 2], bytes(len(tail)), tail])
            else:  # changed in place, which the disk does in pieces
                cut = chance.randint(0, len(now))
                mixed = now[:cut] + node.synced[cut:], node.synced[:cut] + now[cut:]
                content = chance.choice([node.synced, now, *mixed])
            (self.directory / name).write_bytes(content)


_active: Faults | None = None
_hooked = False


def _install_hook() -> None:
    """Audit hooks cannot be taken out again: one for the whole process, idle when no faults are active."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_refuse_other_writes)
        _hooked = True


#: What Python tells of changes of files, beside "open".
_TOLD = {f"os.{name}" for name in ("rename", "remove", "mkdir", "rmdir", "truncate", "link", "symlink")}


def _refuse_other_writes(event, args) -> None:
    if _active is None or _active.inside or not (event == "open" or event in _TOLD):
        return
    if event == "open":
        mode, flags = args[1:]
        writes = set(mode) & set("wax+") if isinstance(mode, str) else flags & _WRITING
        if not writes or isinstance(args[0], int):
            return
    if isinstance(args[0], int) or _active._path("open", args) is not None:
        raise RuntimeError(f"{args[0]} is changed past the fault injection ({event}): use os.open, os.write, ...")


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _for_writing(args, kwargs) -> bool:
    return bool((args[1] if len(args) > 1 else kwargs["flags"]) & _WRITING)


def _files(directory: Path) -> list[Path]:
    return [p for p in directory.iterdir() if p.is_file()] if directory.is_dir() else []


def _fresh(template: Path, work: Path) -> Path:
    shutil.rmtree(work, ignore_errors=True)
    if template.exists():
        shutil.copytree(template, work)
    return work


def crash_points(folder: Path, setup, action, check, power_loss: int = 0) -> int:
    """Stop `action(directory)` at each of its changes; returns how many there are.

    setup(directory) makes the old state (or nothing at all). check(directory, finished) must raise when what it finds
    is neither the old nor the new state; it may load, save again, count files. finished: the action came to its end.
    """
    template, work = folder / "template", folder / "work"
    setup(template)
    for stop_at in itertools.count(1):
        for seed in range(max(1, power_loss)):
            faults = Faults(_fresh(template, work), stop_at)
            finished = faults.run(action)
            if power_loss:
                faults.lose_power(seed)
            try:
                check(work, finished)
            except Exception as error:
                error.add_note(f"after a stop at change {stop_at} ({', '.join(faults.calls)}), power loss {seed}")
                raise
        if finished:
            assert len(faults.calls) == stop_at - 1, "the action changes from run to run"
            return stop_at - 1


def error_points(
    folder: Path, setup, action, check, error: int | None = errno.ENOSPC, failing=Faults.failing, signum=None
) -> int:
    """Let calls from the k-th change on fail, or interrupt the k-th, for each k; check(directory, raised or None)."""
    template, work = folder / "template", folder / "work"
    setup(template)
    for stop_at in itertools.count(1):
        faults = Faults(_fresh(template, work), stop_at, signal=signum, error=error, failing=failing)
        raised = None
        with faults:
            try:
                action(work)
            except (Exception, KeyboardInterrupt) as failure:
                raised = failure
        try:
            check(work, raised)
        except Exception as problem:
            problem.add_note(f"after change {stop_at} ({', '.join(faults.calls)}) went wrong, raising {raised!r}")
            raise
        if raised is None and len(faults.calls) < stop_at:
            return stop_at - 1


def start(function, *args) -> Any:
    """Run a function of the tests in a process of its own: a fork of one that has imported the library and no more."""
    process = PROCESSES.Process(target=function, args=args)
    process.start()
    return process


def signal_at(action, directory: Path, stop_at: int, signum: int = signal.SIGKILL) -> bool:
    """Run `action(directory)` in a process of its own, which gets a signal at a change; did it finish?"""
    process = start(_signalled, action, directory, stop_at, signum)
    process.join(120)
    assert process.exitcode in (0, -signum)
    return process.exitcode == 0


def _signalled(action, directory: Path, stop_at: int, signum: int) -> None:
    with Faults(directory, stop_at, signal=signum):
        action(directory)


@contextlib.contextmanager
def read_only(directory: Path) -> Any:
    """Nobody may write there in the block, not even root."""
    user = os.geteuid()
    directory.chmod(0o555)
    try:
        os.seteuid(65534 if user == 0 else user)
        yield
    finally:
        os.seteuid(user)
        directory.chmod(0o755)


def damage(path: Path, data) -> None:
    """Change some bytes of a file as hypothesis' `data` draws it: a bit, a byte, the end, or more bytes."""
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(["flip", "byte", "cut", "insert"]))
    if kind == "flip":
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "byte":
        content[place] = data.draw(st.integers(0, 255))
    elif kind == "cut":
        del content[place:]
    else:
        content[place:place] = data.draw(st.binary(min_size=1, max_size=9))
    path.write_bytes(content)


def row_patterns(row, packed=None, values: bool = True) -> dict[str, bytes]:
    """How a row (d,) may lie in a file: whole as float32 and float64, value by value (transposed), as packed cells.

    values: look for single values too. Four bytes turn up by chance once in 4 GB: leave this out for large artifacts.
    Values that are multiples of 1/4 are left out, being too common to mean anything.
    """
    given = np.asarray(row, dtype=np.float64)
    found = {f"row as {name}": given.astype(name).tobytes() for name in ("float32", "float64")}
    for i in np.flatnonzero(given % 0.25) if values else ():
        found |= {f"value {i} as {name}": given[i].astype(name).tobytes() for name in ("float32", "float64")}
    if packed is not None:
        found["packed cells"] = np.ascontiguousarray(packed).tobytes()
    return found


def traces(directory: Path, row, packed=None, values: bool = True) -> list[str]:
    """What of a row is still in the directory, in words; empty when nothing is."""
    held = [(path.name, path.read_bytes()) for path in sorted(Path(directory).rglob("*")) if path.is_file()]
    return [
        f"{kind} in {name}"
        for kind, needle in row_patterns(row, packed, values).items()
        for name, content in held
        if needle in content
    ]
