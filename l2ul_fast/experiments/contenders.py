"""Everybody who takes part in a comparison, under the same verbs: the baselines, and L2UL with each of its heads.

`prepare` is untimed and reported; `answer` gives the model without some rows and leaves the contender as it was;
`time_requests` times what a user would call. For L2UL that is `unlearn` itself, which changes the unlearner, so it runs
on a second copy, each time with other rows.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines import METHODS, Answer, Baseline
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.result import RetrainInstead
from l2ul_fast.unlearner.steps import DirectStep

Ids = NDArray[np.int64]
Vector = NDArray[np.float64]

#: L2UL's rows in a table -> its arguments.
HEADS: dict[str, dict[str, Any]] = {
    "l2ul": {},
    "l2ul-learned": {"prior": "none"},
    "l2ul-paper": {"head": "direct"},
}
#: Everybody, in the order of a table: the two references first, L2UL last.
EVERYBODY = (*METHODS, *HEADS)
#: Rows per training pair of the paper's head for logistic regression.
PAPER_ROWS = 1000
#: Rows below which a quarter of them are the MLP's anchor rows.
SMALL = 16_000
#: Requests shorter than this (seconds) are repeated, at most so often, for at most so long.
SHORT, REPEATS, LONGEST = 0.005, 10, 0.01


class Trained:
    """A model whose fit of one whole table, from its own start, is done once for all who ask for it.

    `spared` counts the seconds that later askers did not have to wait: they belong to their preparation.
    """

    def __init__(self, model: Any, table: ArrayTable) -> None:
        self._model, self._table = model, table
        self._kept: dict[float, tuple[Any, float]] = {}
        self.spared = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def fit(self, rows: Any, start: Any = None, tol: float = 1e-10, **options: Any) -> Any:
        if rows is not self._table or start is not None or "metric" in options:
            return self._model.fit(rows, start=start, tol=tol, **options)
        if tol in self._kept:
            found, seconds = self._kept[tol]
            self.spared += seconds
            return found
        begin = time.perf_counter()
        found = self._model.fit(rows, tol=tol)
        self._kept[tol] = found, time.perf_counter() - begin
        return found


class Contender:
    """A baseline under its name in METHODS."""

    exact = False
    theta: Vector | None
    prepare_seconds: float

    def __init__(self, name: str) -> None:
        self.name = name
        self.method: Baseline = METHODS[name]()
        self.exact = self.method.exact

    def prepare(self, table: ArrayTable, model: Any, seed: int) -> None:
        if self.name == "deltagrad":
            # published for large tables: 20 epochs of one batch would leave a small one untrained
            batch = min(16384, max(256, table.n // 20))
            self.method = METHODS[self.name](batch=batch, epochs=20 if 20 * table.n >= 1000 * batch else 50)
        before = getattr(model, "spared", 0.0)
        self.method.prepare(table, model, seed)
        self.theta = self.method.theta
        self.prepare_seconds = self.method.prepare_seconds + getattr(model, "spared", 0.0) - before

    def answer(self, ids: Ids) -> Answer:
        return self.method.unlearn(ids)

    def time_requests(self, ids: Ids, fresh: Callable[[], Ids], known: float) -> list[float]:
        """Seconds of requests like `ids`; `known` is what `answer` took."""
        return [known] if known > SHORT else _repeat(lambda: self.method.unlearn(ids))

    def reference(self, ids: Ids) -> tuple[Vector, Vector] | None:
        """(before, retrained) of its own training pipeline where that is not A's: rho is measured against these."""
        own = getattr(self.method, "retrained", None)
        if own is None or self.theta is None or self.method.trains_like_A:
            return None
        return self.theta, own(ids)

    def state_bytes(self) -> int:
        return self.method.state_bytes()


class Unlearner(Contender):
    """L2UL with one of its heads. Its own fit gives the model A that the others use too (`u.model`)."""

    def __init__(self, name: str, m: int | None = None) -> None:
        self.name, self._m = name, m

    def prepare(self, table: ArrayTable, model: Any, seed: int) -> None:
        """Fit on the table. model: a name, or A itself, of which only the kind and the penalty count."""
        kind = model if isinstance(model, str) else model.name
        options = dict(HEADS[self.name])
        if self._m is not None:
            options["m"] = self._m
        if self.name == "l2ul-paper" and kind == "lr":
            options["s"] = min(PAPER_ROWS, table.n // 2)
        if kind == "mlp" and table.n < SMALL:  # its own choice would leave too few rows outside the anchor
            options["anchor_rows"] = table.n // 4
        start = time.perf_counter()
        self.u = L2UL(kind, random_state=seed, **options).fit(table.X, table.y)
        self.prepare_seconds = time.perf_counter() - start
        self.theta, self.table = self.u.theta, table
        with tempfile.TemporaryDirectory() as folder:  # the second copy, through what users would do
            self.u.save(folder)
            self._bytes = sum(
                f.stat().st_size for f in Path(folder).rglob("*") if not f.name.endswith("-rows.safetensors")
            )
            self._spent = L2UL.load(folder)
        self._metric: Vector | None = None

    def answer(self, ids: Ids) -> Answer:
        u = self.u
        if isinstance(u.step, DirectStep):
            theta, model = u.step.peek(np.sort(ids)), u.model
        else:
            X, y = u.store.fetch(np.sort(ids))
            step = u.step.copy()
            theta = step.move(X, y, ids, u.theta, u.n)
            model = step.model
        return Answer(theta, lambda X: model.predict_proba(theta, X))

    def time_requests(self, ids: Ids, fresh: Callable[[], Ids], known: float) -> list[float]:
        """Real requests one after the other, no row twice; fewer when they would take out a twentieth of the rows."""
        u, r = self._spent, len(ids)
        _wake(u.store.X, u.store.y, u.cells.packed, u.gone)  # type: ignore[union-attr] # fitted from arrays
        count = int(min(REPEATS, max(1, u.n / 20 / r)))
        seconds: list[float] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RetrainInstead)  # a large request is what was asked for
            for _ in range(count):
                rows = fresh()
                rows = rows[u.gone[rows] == 0]
                if rows.size:
                    start = time.perf_counter()
                    u.unlearn(rows)
                    seconds.append(time.perf_counter() - start)
        return seconds or [known]

    def reference(self, ids: Ids) -> tuple[Vector, Vector] | None:
        """The paper's head on an MLP trains without an anchor: it is measured against that model's warm retrain."""
        u = self.u
        if not isinstance(u.step, DirectStep) or u.model.name == "lr":
            return None
        if self._metric is None:
            self._metric = u.model.hessian_of(u.theta, self.table)
        found = u.model.fit(
            self.table.without(ids), start=u.theta, tol=1e-7, max_steps=8, metric=self._metric, curvature=False
        )  # fmt: skip
        return u.theta, found.theta

    def state_bytes(self) -> int:
        return self._bytes


def contender(name: str, m: int | None = None) -> Contender:
    """By its name in a table. m: training pairs of L2UL."""
    return Unlearner(name, m) if name in HEADS else Contender(name)


def _wake(*arrays: NDArray[Any]) -> None:
    """Read one number of every page.

    Nobody but these requests uses the second copy: in a run at 8.8 M rows each took 150 us, and 21 in one that read
    the pages first. Probably a virtual machine takes unused memory away.
    """
    for array in arrays:
        array.reshape(-1).view(np.uint8)[::4096].sum()


def _repeat(call: Callable[[], object]) -> list[float]:
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < REPEATS and time.perf_counter() - begin < LONGEST:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds
