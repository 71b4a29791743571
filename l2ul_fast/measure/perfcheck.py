"""Did HEAD get slower than BASE? Both run side by side, in turns of milliseconds, over the smoke cells of the cases.

A launch is a fresh process of each side; which addresses it gets can make it a few per cent faster or slower for as
long as it lives, so a launch is one observation: the median, over rounds, of HEAD's time over BASE's. Cells that look
slower by more than `minimum` after the first launches are suspects, and are measured again in launches of their own. On
those alone stands the verdict: a one-sided t-test of the log ratios against `minimum`, corrected for the number of
suspects (Holm). So noise has to fool both passes, and a real slowdown is confirmed on data that did not select it. A
call that takes less than `least` seconds more is let pass, whatever share of its time that is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from l2ul_fast.cases import CASES, PROFILES
from l2ul_fast.errors import UserError

Cell = tuple[str, dict[str, Any]]
#: (seconds of BASE, HEAD's time over BASE's) of every launch, by cell.
Launches = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Plan:
    """How much is measured. turn: seconds of one side's turn; a call that takes longer is made three times."""

    rounds: int = 15
    launches: int = 3
    confirm: int = 8
    turn: float = 0.003
    minimum: float = 0.03
    least: float = 1e-6
    alpha: float = 0.01


@dataclass
class Finding:
    """A suspect after its confirmation: ratio (geometric mean over launches), seconds more than BASE's, p-value
    (corrected), the verdict."""

    cell: str
    ratio: float
    seconds: float
    p: float
    slower: bool


def label(cell: Cell) -> str:
    """cell_counts[higgs, threads=1, psi=4]"""
    name, values = cell
    rest = [f"{key}={value}" for key, value in values.items() if key != "dataset"]
    return f"{name}[{', '.join([values['dataset'], *rest])}]"


def judge(confirmed: Launches, plan: Plan) -> list[Finding]:
    """Findings, worst first, of suspects."""
    from scipy.stats import ttest_1samp

    raw, floor = {}, math.log1p(plan.minimum)
    for cell, launches in confirmed.items():
        logs = np.log([ratio for _, ratio in launches])
        if np.ptp(logs) == 0:  # no noise at all: nothing to test
            raw[cell] = 0.0 if logs[0] > floor else 1.0
        else:
            raw[cell] = float(ttest_1samp(logs, floor, alternative="greater").pvalue)
    findings, highest = [], 0.0
    for rank, cell in enumerate(sorted(raw, key=raw.__getitem__)):
        highest = max(highest, min(1.0, raw[cell] * (len(raw) - rank)))
        base, ratios = np.transpose(confirmed[cell])
        ratio = float(np.exp(np.mean(np.log(ratios))))
        more = float(np.median(base)) * (ratio - 1)
        findings.append(Finding(cell, ratio, more, highest, highest < plan.alpha and more > plan.least))
    return sorted(findings, key=lambda f: -f.ratio)


def tree_of(what: str, role: str, work: Path) -> Path:
    """A folder with sources itself, or a worktree of a commit below `work`, one for each role ("base", "head").

    Commits get the case table of the running package, so that both sides do the same work.
    """
    if os.path.isdir(what):
        tree = Path(what).resolve()
        if not (tree / "kernels" / "l2ul_kernels").is_dir():
            raise UserError(f"{what} has no sources: l2ul_fast and kernels are looked for there")
        return tree
    try:
        order = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", what + "^{commit}"]
        sha = subprocess.run(order, capture_output=True, check=True, text=True).stdout.strip()
        tree = work.resolve() / f"{role}-{sha[:12]}"
        if not tree.exists():
            order = ["git", "worktree", "add", "--force", "--detach", str(tree), sha]
            subprocess.run(order, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise UserError(f"{what!r} is neither a commit of this repository nor a folder") from None
    shutil.rmtree(tree / "l2ul_fast" / "cases", ignore_errors=True)
    cases = Path(__file__).parents[1] / "cases"
    shutil.copytree(cases, tree / "l2ul_fast" / "cases", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


class Side:
    """A worker process running from one tree."""

    def __init__(self, tree: Path, cores: set[int]) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "kernels")]),
            "OMP_WAIT_POLICY": "passive",  # the other side's turn comes at once: no thread may spin into it
            "OPENBLAS_THREAD_TIMEOUT": "4",
        }
        pin = hasattr(os, "sched_setaffinity")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "l2ul_fast.cases.worker", "smoke"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
            cwd=tree,
            preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if pin else None,
        )
        found = Path(self._read()["kernels"])
        if not found.is_relative_to(tree):
            self.close()
            raise UserError(f"{tree} was to be measured, but Python took l2ul_kernels from {found.parent}")

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise UserError(f"a measuring process ended early (exit status {self.process.wait()}): see its messages")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(base: Side, head: Side, cell: Cell, rounds: int, turn: float) -> tuple[float, float] | str:
    """(base's seconds, head's over base's), medians over rounds, or why there are none."""
    try:
        for side, name in ((head, "HEAD"), (base, "BASE")):
            answer = side.ask(open=cell[0], cell=cell[1])
            if "skip" in answer:
                return f"skipped: {answer['skip']}"
            if "error" in answer:
                return f"fails in {name}: {answer['error']}"
        found = []
        for k in range(rounds):
            seconds = {}
            for side in (base, head) if k % 2 else (head, base):
                seconds[side] = side.ask(turn=turn)["seconds"]
            found.append((seconds[base], seconds[head] / seconds[base]))
        middle = np.median(found, axis=0)
        return float(middle[0]), float(middle[1])
    finally:
        base.ask(close=1)
        head.ask(close=1)


class Check:
    """One comparison of two trees."""

    def __init__(self, base: Path, head: Path, plan: Plan) -> None:
        self.trees, self.plan, self.notes = (base, head), plan, dict[str, str]()

    def launch(self, cells: list[Cell], number: int, launches: Launches) -> None:
        """Adds one launch of each cell. One thread: both sides share one core, another one at every launch."""
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        for k in sorted({cell[1]["threads"] for cell in cells}):
            cores = {allowed[number % len(allowed)]} if k == 1 else set(allowed)
            order = self.trees if number % 2 else self.trees[::-1]
            sides = {tree: Side(tree, cores) for tree in order}
            try:
                for cell in (c for c in cells if c[1]["threads"] == k and label(c) not in self.notes):
                    base, head = (sides[tree] for tree in self.trees)
                    found = measure(base, head, cell, self.plan.rounds, self.plan.turn)
                    if isinstance(found, str):
                        self.notes[label(cell)] = found
                    else:
                        launches.setdefault(label(cell), []).append(found)
            finally:
                for side in sides.values():
                    side.close()

    def run(self, cells: list[Cell]) -> tuple[dict[str, float], list[Finding]]:
        """(median ratios of the first launches, findings about the suspects)."""
        first: Launches = {}
        for number in range(self.plan.launches):
            say(f"launch {number + 1} of {self.plan.launches}: {len(cells)} cells")
            self.launch(cells, number, first)
        ratios = {cell: float(np.median([ratio for _, ratio in launches])) for cell, launches in first.items()}
        suspects = [c for c in cells if ratios.get(label(c), 0.0) > 1 + self.plan.minimum]
        again: Launches = {}
        for number in range(self.plan.confirm if suspects else 0):
            say(f"confirm {number + 1} of {self.plan.confirm}: {', '.join(map(label, suspects))}")
            self.launch(suspects, number, again)
        return ratios, judge(again, self.plan)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def smoke_cells(pattern: str = "") -> list[Cell]:
    """Cells of the smoke profile whose label matches."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--only must be a regular expression: {error}") from None
    cells = [(case.name, cell) for case in CASES.values() for cell in case.cells(PROFILES["smoke"])]
    found = [cell for cell in cells if wanted.search(label(cell))]
    if not found:
        raise UserError(f"no cell matches {pattern!r}; for example: {label(cells[0])}")
    return found


def report(check: Check, ratios: dict[str, float], findings: list[Finding]) -> bool:
    """Prints the outcome; whether HEAD may pass."""
    for cell, note in check.notes.items():
        if not note.startswith("skipped"):
            print(f"not compared   {cell}: {note}")
    for cell, ratio in sorted(ratios.items(), key=lambda item: item[1]):
        if ratio < 1 - check.plan.minimum:
            print(f"maybe faster   {cell}: {ratio:.3f} of BASE's time (not confirmed)")
    for f in findings:
        word = "SLOWER" if f.slower else "not confirmed"
        print(f"{word:14} {f.cell}: {f.ratio:.3f} times BASE's time, {1e6 * f.seconds:+.3g} us, p = {f.p:.2g}")
    slower = [f for f in findings if f.slower]
    broken = [cell for cell, note in check.notes.items() if note.startswith("fails in HEAD")]
    print(
        f"{len(ratios)} cells compared: {len(slower)} slower than BASE by more than {check.plan.minimum:.0%} "
        f"and {1e6 * check.plan.least:g} us beyond noise, {len(broken)} broken"
    )
    return not slower and not broken


def parser() -> argparse.ArgumentParser:
    plan, text = Plan(), __doc__.split("\n")[0]
    p = argparse.ArgumentParser(prog="python -m l2ul_fast.measure.perfcheck", description=text)
    p.add_argument("--base", default="HEAD~1", help="commit to compare with, or a folder with its sources")
    p.add_argument("--head", default=".", help="commit or folder to judge (default: the files here as they are)")
    p.add_argument("--only", default="", metavar="REGEX", help='cells to run, such as "cell_counts.*threads=1"')
    p.add_argument("--rounds", type=int, default=plan.rounds, help="rounds per launch (default %(default)s)")
    p.add_argument("--launches", type=int, default=plan.launches, help="first launches (default %(default)s)")
    p.add_argument("--confirm", type=int, default=plan.confirm, help="launches for suspects (default %(default)s)")
    p.add_argument("--minimum", type=float, default=plan.minimum, help="slowdown that does not matter (%(default)s)")
    p.add_argument("--least", type=float, default=plan.least, help="seconds that do not matter (default %(default)s)")
    p.add_argument("--alpha", type=float, default=plan.alpha, help="chance of a false alarm (default %(default)s)")
    p.add_argument("--work", type=Path, default=Path(".asv/perfcheck"), help="folder of commits' trees (%(default)s)")
    return p


def main(arguments: list[str] | None = None) -> int:
    """0: no slowdown beyond noise; 1: something slowed down or broke; 2: cannot compare."""
    a = parser().parse_args(arguments)
    try:
        shares = 0 <= a.minimum < 1 and 0 < a.alpha < 1 and a.least >= 0
        if min(a.rounds, a.launches) < 1 or a.confirm < 3 or not shares:
            raise UserError("at least 1 round, 1 launch and 3 to confirm are needed; minimum and alpha lie below 1")
        cells = smoke_cells(a.only)
        plan = Plan(a.rounds, a.launches, a.confirm, minimum=a.minimum, least=a.least, alpha=a.alpha)
        head, base = tree_of(a.head, "head", a.work), tree_of(a.base, "base", a.work)
        say(f"BASE {base}, HEAD {head}; kernels are compiled in the first launch, which takes minutes")
        check = Check(base, head, plan)
        ratios, findings = check.run(cells)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if report(check, ratios, findings) else 1


if __name__ == "__main__":
    sys.exit(main())
