"""Byte identity of the state after requests, and what an attacker with the saved directory computes from it.

Identity, experiment "unlearn-identity": rows are forgotten one by one and in groups, in random order. The integer sums
must then equal, bit for bit,
  without    sums made without these rows, from scratch, at the same anchor and scales
  refit      what a fit on the rows that stay saves: the file of sums and theta
  replaced   those of a twin in whose data other rows stood in their place before the fit
The sums in memory are compared where both sides expand at the same point; the saved file and theta always, because
`save` expands anew where that is due. "nothing" is the control: sums from which no row was taken differ from those
without the rows.

Reconstruction, experiment "unlearn-reconstruction": `l2ul_fast.unlearner.reconstruct` attacks the directory that a head
saved after one row was forgotten:
  saved             what a user leaves behind
  deferred          defer=True: what is due is not done yet
  before and after  the attacker also holds the directory of before: no deterministic method can hide the row
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines.base import Ids
from l2ul_fast.baselines.l2ul import DEFAULT, quiet, request
from l2ul_fast.datasets.registry import get_info
from l2ul_fast.errors import UserError
from l2ul_fast.experiments.inputs import dataset_file, some_rows, tables, train_size
from l2ul_fast.experiments.quality.heads import expansion_of, sums_without
from l2ul_fast.experiments.registry import Cell, Context, Job
from l2ul_fast.measure.records import Record
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.artifact.directory import read_header
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_kernels.request.claims import PRESENT

IDENTITY, RECONSTRUCTION = "unlearn-identity", "unlearn-reconstruction"
CHECKS = ("nothing", "without", "refit", "replaced")
#: Rows that a case forgets: single ones mostly, whose twin has the same anchor more often than not.
SIZES = (1, 1, 10, 1, 100)
#: Rows of a group at most.
GROUP = 12
#: Numbers of a table above which only a quarter of the cases are run: each saves two directories.
LARGE = 10_000_000


def schedule(ids: Ids, rng: np.random.Generator) -> list[Ids]:
    """The requests of a case: half of the rows one by one, the others in groups, all in random order."""
    order = rng.permutation(ids)
    single, rest, parts = order[: -(-ids.size // 2)], order[-(-ids.size // 2) :], []
    while rest.size:
        k = int(rng.integers(1, GROUP + 1))
        parts.append(rest[:k])
        rest = rest[k:]
    parts += [single[i : i + 1] for i in range(single.size)]
    return [parts[i] for i in rng.permutation(len(parts))]


def fit(X: NDArray[Any], y: NDArray[Any], seed: int) -> L2UL:
    """The unlearner whose identity is looked at."""
    return L2UL("lr", random_state=seed).fit(X, y)


def forget(u: L2UL, parts: list[Ids]) -> L2UL:
    """u after these requests, one after the other."""
    for ids in parts:
        request(u, ids)
    return u


def sums_digest(directory: Path) -> str:
    """SHA-256 of the file of sums in a saved directory."""
    return hashlib.sha256((directory / read_header(directory).files["sums"].file).read_bytes()).hexdigest()


def saved(u: L2UL, scratch: Path) -> tuple[str, bytes]:
    """(SHA-256 of the file of sums, theta as it is loaded) after u is saved."""
    with TemporaryDirectory(dir=scratch) as folder:
        u.save(Path(folder) / "saved")
        return sums_digest(Path(folder) / "saved"), L2UL.load(Path(folder) / "saved").theta.tobytes()


def identity_jobs(context: Context) -> Iterator[Job]:
    """Every dataset: sequences of requests, each with every check."""
    numbers = context.numbers
    for dataset in context.datasets:
        n = train_size(context, dataset, numbers["rows"])
        cases = numbers["cases"] if n * get_info(dataset).d <= LARGE else -(-numbers["cases"] // 4)
        base = {"experiment": IDENTITY, "dataset": dataset, "n": n, "model": "lr", "seed": context.seed}
        cells = tuple(
            {
                **base,
                "r": min(SIZES[case % len(SIZES)], n // 20),
                "repeat": case,
                "check": check,
                "method": "nothing" if check == "nothing" else DEFAULT,
            }
            for case in range(cases)
            for check in CHECKS
        )
        yield Job(dataset, cells, partial(measure_identity, context, dataset), seconds=3.0)


def measure_identity(context: Context, dataset: str, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Every case starts from the same unlearner."""
    label, train, test = tables(context, dataset, context.numbers["rows"])
    u = fit(train.X, train.y, context.seed)
    for cell in cells:
        rng, check = np.random.default_rng([context.seed, 81, cell["repeat"]]), cell["check"]
        ids = np.sort(rng.choice(train.n, cell["r"], replace=False))
        parts = schedule(ids, rng)
        mine = u.copy() if check == "nothing" else forget(u.copy(), parts)
        record: Record = {"source": label, "d": train.d, "requests": len(parts), "due": mine.due is not None}
        if check in ("nothing", "without"):
            other = sums_without(expansion_of(mine), train.without(ids))
            record["sums_equal"] = bool(expansion_of(mine).sums.tobytes() == other.sums.tobytes())
            yield {**cell, **record, "same_point": True}
            continue
        if check == "refit":
            rest = np.delete(np.arange(train.n), ids)
            twin = fit(train.X[rest], train.y[rest], context.seed)
        else:
            X, y = train.X.copy(), train.y.copy()
            chosen = rng.integers(0, test.n, ids.size)
            X[ids], y[ids] = test.X[chosen], test.y[chosen]
            twin = fit(X, y, context.seed)
        points = [(expansion_of(u).anchor.tobytes(), expansion_of(u).exponents.tobytes()) for u in (mine, twin)]
        if check == "replaced":
            forget(twin, parts)
        same = points[0] == points[1]
        equal = bool(expansion_of(mine).sums.tobytes() == expansion_of(twin).sums.tobytes()) if same else None
        record |= {"same_point": same, "sums_equal": equal}
        with TemporaryDirectory(dir=context.folder) as scratch:
            (digest, theta), (other_digest, other_theta) = saved(mine, Path(scratch)), saved(twin, Path(scratch))
        record |= {"file_equal": digest == other_digest, "theta_equal": theta == other_theta}
        yield {**cell, **record, "sha256": digest, "other_sha256": other_digest}


# Reconstruction ------------------------------------------------------------------------------------------------------


class Subject(NamedTuple):
    """An unlearner that is attacked: how it is made, and whether its rows lie in arrays or in a file."""

    how: str
    model: str
    method: str
    options: dict[str, Any]
    file: bool = False
    cli: bool = False  #: the request goes through `l2ul unlearn`


SUBJECTS = (
    Subject("order 3", "lr", DEFAULT, {}),
    Subject("order 2", "lr", DEFAULT, {"order": 2}),
    Subject("anchor at the optimum", "lr", DEFAULT, {"anchor": "optimum"}),
    Subject("store_rows=False", "lr", DEFAULT, {"store_rows": False}),
    Subject("file", "lr", DEFAULT, {}, file=True),
    Subject("file, command line", "lr", DEFAULT, {}, file=True, cli=True),
    Subject("arrays", "lr", "l2ul-learned", {"head": "learned"}),
    Subject("arrays", "lr", "l2ul-kme", {"head": "kme"}),
    Subject("arrays", "lr", "l2ul-paper", {"head": "paper"}),
    Subject("arrays", "mlp", DEFAULT, {}),
    Subject("arrays", "mlp", "l2ul-learned", {"head": "learned"}),
    Subject("arrays", "mlp", "l2ul-paper", {"head": "paper"}),
)
SAVED, DEFERRED, BOTH = SCENES = ("saved", "deferred", "before and after")


def reconstruction_jobs(context: Context) -> Iterator[Job]:
    """Every subject, on the first dataset."""
    numbers, dataset = context.numbers, context.datasets[0]
    for subject in (subject for subject in SUBJECTS if subject.model in numbers["attacked_models"]):
        base: Record = {
            "experiment": RECONSTRUCTION,
            "dataset": dataset,
            "model": subject.model,
            "method": subject.method,
        }
        base |= {"how": subject.how, "r": 1, "seed": context.seed}
        if not subject.file:  # a whole file is fitted as it is
            base["n"] = min(train_size(context, dataset, numbers["rows"]), numbers["attacked"])
        cells = tuple(
            {**base, "scene": scene, "repeat": draw}
            for draw in range(numbers["attacks"])
            for scene in ((SAVED,) if subject.cli else numbers["scenes"])
        )
        title = f"{subject.model} {subject.method} {subject.how}"
        measure = partial(measure_reconstruction, context, subject)
        yield Job(title, cells, measure, seconds=3.0 if subject.model == "lr" else 15.0)


def measure_reconstruction(context: Context, subject: Subject, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """One row is forgotten, the directory saved, and every attack tried on it."""
    from l2ul_fast.unlearner.reconstruct import INHERENT, reconstruct, verdict

    numbers, dataset = context.numbers, cells[0]["dataset"]
    label, train, _ = tables(context, dataset, numbers["rows"])
    train = some_rows(train, numbers["attacked"])
    with TemporaryDirectory(dir=context.folder) as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        u = L2UL(subject.model, random_state=context.seed, m=numbers["m"], **subject.options)
        if subject.file:
            u.fit(dataset_file(dataset, numbers["rows"], context.raw_dir, context.data_dir))
        else:
            u.fit(train.X, train.y)
        u.save(before)
        present = np.flatnonzero(u.status == PRESENT)
        data = None if subject.options.get("store_rows", True) else (train.X, train.y)
        for cell in cells:
            rng, scene = np.random.default_rng([context.seed, 84, cell["repeat"]]), cell["scene"]
            row = int(rng.choice(present))
            if data is not None and scene != DEFERRED:
                row = _row_not_due(before, train, rng.permutation(present))
            shutil.copytree(before, after)
            _forget_saved(subject, after, row, train, scene == DEFERRED)
            truth = None if subject.file else (train.X[row], int(train.y[row]))
            found = reconstruct(after, before if scene == BOTH else None, truth, data)
            shutil.rmtree(after)
            said = verdict(found)
            best = said.best
            if scene == BOTH:
                known = [a for a in found if a.kind == INHERENT and a.error is not None]
                best = min(known, key=lambda a: a.error or 0.0, default=best)
            error = None if best is None else best.error
            yield {
                **cell,
                "source": label,
                "n": u.n,
                "d": u.d,
                "attack": None if best is None else best.name,
                "error": error,
                "chance": said.chance,
                "attacks": len(found),
                "ratio": error / said.chance if error is not None and said.chance else None,
            }


def _row_not_due(directory: Path, train: ArrayTable, order: NDArray[np.int64]) -> int:
    """The first row of `order` whose request leaves nothing due: without rows, `save` refuses what is due."""
    u = L2UL.load(directory)
    for row in order:
        tried = u.copy()
        with quiet():
            tried.unlearn([row], train.X[[row]], train.y[[row]])
        tried.head.canonical()
        if not tried.due:
            return int(row)
    raise UserError("every single request leaves a pass due, which is refused without rows")


def _forget_saved(subject: Subject, directory: Path, row: int, train: ArrayTable, defer: bool) -> None:
    """Take one row out of the unlearner in a directory, as a user would."""
    if subject.cli:
        run = [sys.executable, "-m", "l2ul_fast.cli", "unlearn", str(directory), "--rows", str(row)]
        ended = subprocess.run(run, capture_output=True, text=True)
        if ended.returncode:
            raise UserError(f"`l2ul unlearn` failed: {ended.stderr.strip()[-300:]}")
        return
    u = L2UL.load(directory)
    with quiet():
        if subject.options.get("store_rows", True):
            u.unlearn([row])
        else:
            u.unlearn([row], train.X[[row]], train.y[[row]])
    u.save(directory, defer=defer)
