"""Hostile cases, each in a worker process with bounded memory and time: it must end well, or in one sentence.

    python tests/fuzz/engine.py --seconds 60                 every target, a fresh seed, which is printed
    python tests/fuzz/engine.py --seed 7 --cases 500 --targets json,cli

A target is a module target_NAME.py with `cases()`, a hypothesis strategy of JSON values, and `run(case, folder)`, which
raises `Lie` for what should not have been accepted; `prepare()` loads and makes what cases share, MODULES are the files
of the package whose line coverage is told.
A finding is a crash, a hang, memory beyond the limit, a Lie, or any error but a ValueError or TypeError (those of the
package among them) of one sentence. Findings are kept in cases/, one of each kind, and replayed by test_fuzz.py.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import io
import json
import multiprocessing
import os
import re
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CASES = HERE / "cases"
TARGETS = ("hdf5", "artifact", "json", "text", "archive", "cli", "api", "kernels")
#: Bytes above what the worker holds before its first case, and seconds of a case: of CPU, or three times as many in
#: all, so that other work on the machine makes no findings.
MEMORY, SECONDS = 2 << 30, 10
TIMERS = ((signal.ITIMER_PROF, signal.SIGPROF, 1), (signal.ITIMER_REAL, signal.SIGALRM, 3))
#: Cases after which a worker is replaced: what they left behind is no finding.
RENEWED = 1000
ENVIRONMENT = {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


class Lie(Exception):
    """What should have been refused was accepted, or came out wrong."""


class Verdict(NamedTuple):
    """kind: "ok", "refused" (in one sentence), or what sort of finding it is."""

    kind: str
    text: str = ""

    @property
    def finding(self) -> bool:
        return self.kind not in ("ok", "refused")

    @property
    def key(self) -> str:
        """The same for findings of one cause, as far as their text says."""
        return f"{self.kind}: {re.sub(r'0x[0-9a-f]+|[0-9]+|/[^ ,;:]*', '#', self.text)[:200]}"


def target(name: str) -> Any:
    """The module of a target."""
    return importlib.import_module(f"target_{name}")


def judged(name: str, case: Any) -> Verdict:
    """Run one case here and say how it ended."""
    said = io.StringIO()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            target(name).run(case, Path(folder))
    except Lie as error:
        return Verdict("lie", str(error))
    except (ValueError, TypeError) as error:
        text = str(error)
        if text.strip() and "\n" not in text.strip() and len(text) < 2000:
            return Verdict("refused", text)
        return Verdict("no sentence", f"{type(error).__name__}: {text[:300]!r}")
    except MemoryError as error:
        return Verdict("memory", f"{error} at {_place(error)}")
    except BaseException as error:
        return Verdict(type(error).__name__, f"{str(error)[:300]} at {_place(error)}")
    return Verdict("ok")


def _place(error: BaseException) -> str:
    """The last line of the package that the error went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "l2ul" in f.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "no line of the package"


def serve(pipe: Any, names: tuple[str, ...], lines: str | None, seconds: int) -> None:
    """A worker: cases in, verdicts out. lines: file for what coverage counts."""
    os.environ |= ENVIRONMENT
    os.fsync = os.fdatasync = lambda fd: None  # no case is about a loss of power
    meter = None
    if lines is not None:
        import coverage

        watched = [str(ROOT / path.partition(":")[0]) for name in names for path in target(name).MODULES]
        meter = coverage.Coverage(data_file=lines, data_suffix=True, include=watched, config_file=False)
        meter.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            target(name).prepare()
    with open("/proc/self/statm") as statm:
        held = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe.send("ready")
    for name, case in iter(pipe.recv, None):
        for timer, stop, most in TIMERS:
            signal.signal(stop, signal.SIG_DFL)  # ends the process even inside compiled code
            signal.setitimer(timer, most * seconds)
        verdict = judged(name, case)
        for timer, _, _ in TIMERS:
            signal.setitimer(timer, 0)
        pipe.send(verdict)
    if meter is not None:
        meter.stop()
        meter.save()
    pipe.send("done")


class Worker:
    """A process that runs cases, replaced when it dies, and now and then."""

    def __init__(self, names: tuple[str, ...] = TARGETS, lines: str | None = None, seconds: int = SECONDS) -> None:
        self.given = names, lines, seconds
        self._process: Any = None
        self._count = 0

    def start(self) -> None:
        """Start the process, if there is none."""
        if self._process is not None:
            return
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        os.environ |= ENVIRONMENT
        self._process = context.Process(target=serve, args=(there, *self.given), daemon=True)
        self._process.start()
        there.close()
        self._count = 0
        try:
            self._pipe.recv()
        except EOFError:
            raise RuntimeError("the worker of the fuzzer did not start: its error stands above") from None

    def run(self, name: str, case: Any) -> Verdict:
        """How the case ended."""
        if self._count >= RENEWED:
            self.close()
        self.start()
        self._count += 1
        try:
            self._pipe.send((name, case))
            return self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code, self._process = self._process.exitcode, None
            if code in (-signal.SIGALRM, -signal.SIGPROF):
                return Verdict("hang", f"more than {self.given[2]} s")
            return Verdict("crash", f"the process ended with {code}")

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(EOFError, ConnectionError):  # it died after its last case
                self._pipe.send(None)
                self._pipe.recv()
            self._process.kill()  # threads of libraries may take long to end
            self._process.join()
            self._process = None


class Tally:
    """What a target's cases came to."""

    def __init__(self, name: str) -> None:
        self.name, self.cases, self.ok, self.seconds = name, 0, 0, 0.0
        self.findings: dict[str, tuple[int, Path]] = {}

    def add(self, case: Any, verdict: Verdict) -> None:
        self.cases += 1
        self.ok += verdict.kind == "ok"
        if verdict.finding:
            count, path = self.findings.get(verdict.key, (0, None))
            self.findings[verdict.key] = count + 1, path or save(self.name, case, verdict)


def save(name: str, case: Any, verdict: Verdict) -> Path:
    """Keep a case that was a finding."""
    path = CASES / f"{name}-{hashlib.sha256(verdict.key.encode()).hexdigest()[:10]}.json"
    if not path.exists():
        path.write_text(
            json.dumps({"target": name, "found": f"{verdict.kind}: {verdict.text}", "case": case}, indent=1) + "\n"
        )
    return path


def fuzz(name: str, worker: Worker, seed: int, cases: int | None = None, seconds: float | None = None) -> Tally:
    """Cases of one target until there are so many, or the time is over."""
    import hypothesis

    tally, begin, batch = Tally(name), time.monotonic(), 0
    quiet = {"database": None, "deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}

    def over() -> bool:
        late = seconds is not None and time.monotonic() - begin > seconds
        return late or (cases is not None and tally.cases >= cases)

    worker.start()
    while not over():
        size = 100 if cases is None else min(100, cases - tally.cases)

        @hypothesis.seed(seed + batch)
        @hypothesis.settings(max_examples=size, phases=(hypothesis.Phase.generate,), **quiet)
        @hypothesis.given(target(name).cases())
        def one(case: Any) -> None:
            if not over():
                tally.add(case, worker.run(name, case))

        before = tally.cases
        one()
        batch += 1
        if tally.cases == before:
            break
    tally.seconds = time.monotonic() - begin
    return tally


def main(arguments: list[str] | None = None) -> int:
    """Fuzz; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=None, help="of all targets together, on all cores")
    parser.add_argument("--cases", type=int, default=None, help="of each target")
    parser.add_argument("--seed", type=int, default=None, help="a fresh one by default")
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    chosen = parser.parse_args(arguments)
    names = tuple(chosen.targets.split(","))
    seed = secrets.randbits(31) if chosen.seed is None else chosen.seed
    if chosen.seconds is None and chosen.cases is None:
        chosen.seconds = 60.0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if len(names) == 1:
        return _one(names[0], seed, chosen)
    print(f"seed {seed}", flush=True)
    each = [] if chosen.seconds is None else ["--seconds", str(chosen.seconds * min(cores, len(names)) / len(names))]
    each += [] if chosen.cases is None else ["--cases", str(chosen.cases)]
    waiting, running, worst = list(names), [], 0
    while waiting or running:
        while waiting and len(running) < cores:
            order = [sys.executable, str(Path(__file__)), "--targets", waiting.pop(0), "--seed", str(seed), *each]
            running.append(subprocess.Popen(order))
        ended = [process for process in running if process.poll() is not None]
        running = [process for process in running if process not in ended]
        worst = max([worst, *(int(process.returncode != 0) for process in ended)])
        time.sleep(0.1)
    return worst


def _one(name: str, seed: int, chosen: argparse.Namespace) -> int:
    """Fuzz one target and print its line."""
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker((name,), str(Path(folder) / "lines"))
        tally = fuzz(name, worker, seed, chosen.cases, chosen.seconds)
        worker.close()
        reached = _reached(name, folder)
    found = sum(count for count, _ in tally.findings.values())
    rate = tally.cases / max(tally.seconds, 1e-9)
    counts = f"{tally.cases:6} cases {rate:7.1f}/s  {tally.ok:6} accepted  {found:4} findings"
    print(f"{name:9} seed {seed:<11} {counts}  lines {reached}")
    for key, (count, path) in tally.findings.items():
        print(f"          {count} x {key}  [{path.name}]")
    sys.stdout.flush()
    return int(bool(found))


def _lines_of(path: Path, names: list[str]) -> set[int]:
    """Lines of these functions and classes of a file."""
    tree = ast.parse(path.read_text())
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names]
    if missing := set(names) - {node.name for node in found}:
        print(f"{path.name} has no {', '.join(sorted(missing))} any more")
    return {line for node in found for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def _reached(name: str, folder: str) -> str:
    """Share of the lines of the target's modules that its cases ran."""
    import coverage

    whole = coverage.Coverage(data_file=str(Path(folder) / "lines"), config_file=False)
    with contextlib.suppress(coverage.exceptions.NoDataError):
        whole.combine([folder])
    parts, lines, missed = [], 0, 0
    for path in target(name).MODULES:
        path, _, some = path.partition(":")
        _, statements, _, missing, _ = whole.analysis2(str(ROOT / path))
        counted = _lines_of(ROOT / path, some.split(",")) if some else set(statements)
        own, left = counted & set(statements), counted & set(missing)
        lines, missed = lines + len(own), missed + len(left)
        parts.append(f"{Path(path).name} {1 - len(left) / max(len(own), 1):.0%}")
    return f"{1 - missed / max(lines, 1):.0%} ({', '.join(parts)})"


if __name__ == "__main__":
    import engine  # under its own name, which workers and targets know it by

    sys.exit(engine.main())
