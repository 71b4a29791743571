"""What the heads that learn from training pairs have in common: requests move theta, the seal makes everything anew.

Such a head keeps no sums that rows could be taken out of exactly. Between a request and the next seal theta, the
learned map and whatever else it keeps still depend on the rows that left, so the state is `due`. The seal trains the
model on the rows that stay, from where every training starts (not from the present theta, whose last bits remember),
draws new pairs from these rows and learns the map from them. What is kept then is a function of the rows that stay, of
their numbers, and, for an MLP, of mu and of the local optimum that its anchor is in (see `secant`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.tables import Table, in_memory
from l2ul_fast.unlearner.fit import Fitted, Laps
from l2ul_fast.unlearner.heads import base
from l2ul_fast.unlearner.heads.base import Arrays, CannotLearn, Head, Ids, Report, Rows, Vector
from l2ul_fast.unlearner.heads.secant import anchored_model, is_anchored, moved_anchor
from l2ul_fast.unlearner.pairs.make import Pairs, full_pairs, subset_pairs
from l2ul_fast.unlearner.state import CellState
from l2ul_fast.workers import Workers

#: What a head keeps of the unlearner's parameters: all that training it anew takes.
OPTIONS = (
    *("model", "lam", "penalty", "m", "s", "robust", "psi", "t", "hidden", "activation"),
    *("anchor", "anchor_rows", "random_state"),
)
#: Rows per subset pair unless said otherwise: for logistic regression, whose rho falls like 1/s while the cost grows
#: like s; and for the MLP, as in the paper.
SUBSET_LR, SUBSET_MLP = 10_000, 3000
#: Full pairs are trained on at most this many rows.
PAIR_ROWS = 100_000
#: The anchored MLP's full pairs for each parameter, at least: its gradients fill as many directions.
PAIRS_PER_PARAMETER = 2.5
#: Gradient that a plain MLP is trained down to; the seed of the weights it starts from, which are those of its pairs.
PLAIN_TOL, START = 1e-6, 0


# Train ---------------------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """Contents of every such head: theta (p,) of the rows that stay, rows of each class counts (C,), cells if any."""

    model: Any
    options: dict[str, Any]
    theta: Vector
    counts: NDArray[np.int64]
    cells: Any = None


class Trained(NamedTuple):
    """A model with theta (p,) at its optimum over some rows; hessian (p, p) of the mean loss, for two classes."""

    model: Any
    theta: Vector
    hessian: NDArray[np.float64] | None
    facts: dict[str, Any]


def untrained(options: dict[str, Any], d: int, n_classes: int) -> Any:
    """Logistic regression, or the MLP without anchor."""
    if options["model"] == "lr":
        return LogisticModel(d, n_classes, options["lam"])
    return MLPModel(d, n_classes, options["hidden"], options["activation"], options["lam"])


def train(model: Any, table: Table, options: dict[str, Any]) -> Trained:
    """Train from the model's own start (an MLP's anchor, else a drawn one): equal rows give equal bits.

    Logistic regression goes on until rounding stops it.
    """
    near = None
    if model.name == "lr":
        near = model.fit(table)
        found = model.fit(table, start=near.theta, tol=0.0)
    elif model.anchor is not None:
        found = model.fit(table)
        if not found.converged:
            raise UserError("the MLP does not converge on these rows: raise lam, or use anchor_rows=0")
    else:
        found = model.fit(table, seed=START, tol=PLAIN_TOL)
    steps = found.steps + (0 if near is None else near.steps)
    return Trained(model, found.theta, found.hessian, {"gradient_norm": found.gradient_norm, "steps": steps})


def train_first(table: Table, options: dict[str, Any], report: Report, anchored: bool) -> Trained:
    """Train on all of D; `anchored`: an MLP of two classes gets the anchor that all heads share."""
    if options["penalty"] != "mean":
        raise UserError(f'heads that learn from training pairs have penalty="mean" only, got {options["penalty"]!r}')
    report("train the model", 0, 1)
    model = untrained(options, table.d, len(table.classes))
    if model.name == "lr" or not anchored or not is_anchored(options, model.n_classes):
        return train(model, table, options)
    model, found, rows = anchored_model(options, table, report)
    facts = {"gradient_norm": found.gradient_norm, "steps": found.steps, "anchor_rows": int(rows.size), "mu": model.mu}
    return Trained(model, found.theta, found.hessian, facts)


def train_again(model: Any, table: Table, options: dict[str, Any]) -> Trained:
    """Train on the rows of table, of those that `model` was trained on; an anchor goes where its training takes it."""
    moved = 0
    if getattr(model, "anchor", None) is not None and isinstance(options["anchor"], str):
        model, moved = moved_anchor(options, model, table)
    trained = train(model, table, options)
    return trained._replace(facts=trained.facts | {"anchor_moved": moved})


def labels_of(table: Table) -> NDArray[np.uint8]:
    """Class indices of the visible rows in order."""
    return np.asarray(table.y)[table.ids()]


def counts_of(table: Table) -> NDArray[np.int64]:
    """(C,) visible rows of each class."""
    return np.bincount(labels_of(table), minlength=len(table.classes)).astype(np.int64)


def subset_size(options: dict[str, Any], n: int, again: bool = False) -> int:
    """Rows per subset pair: as asked, or a default that leaves half of D out of each pair.

    again: rows have left since it was asked for, so half of those that stay will do.
    """
    default = SUBSET_LR if options["model"] == "lr" else SUBSET_MLP
    s = options["s"] if options["s"] is not None else min(default, n // 2)
    if s > n:
        if not again:
            raise UserError(f"pairs of s={s} rows cannot be drawn from {n} rows")
        s = n // 2
    if s < 20:
        raise UserError(f"{n} rows are too few to learn from: 40 are the least")
    return int(s)


def make_pairs(
    trained: Trained,
    table: Table,
    options: dict[str, Any],
    report: Report,
    workers: Workers | None = None,
    again: bool = False,
) -> Pairs:
    """Training pairs from the rows of table: on subsets, or on all rows (a sample of them) for an anchored MLP."""
    streams = np.random.SeedSequence(options["random_state"]).spawn(2)
    rng = np.random.default_rng(streams[0 if options["model"] == "lr" else 1])

    def progress(done: int, total: int) -> None:
        report("train pairs", done, total)

    model = trained.model
    if getattr(model, "anchor", None) is None:
        what = model, table, labels_of(table), options["m"], subset_size(options, table.n, again), rng
        return subset_pairs(*what, robust=options["robust"], progress=progress, executor=workers)
    ids, base = table.ids(), trained
    if table.n > PAIR_ROWS:
        ids = np.sort(rng.choice(ids, PAIR_ROWS, replace=False))
        X, y = table.take(ids)
        found = model.fit((X, y), start=trained.theta)
        base = Trained(model, found.theta, found.hessian, {})
    else:
        rows = in_memory(table)
        X, y = rows.X, rows.y
    m = max(options["m"], int(PAIRS_PER_PARAMETER * model.size) + 1)
    return full_pairs(model, X, y, ids, base, m, rng, progress, workers)


# Head ----------------------------------------------------------------------------------------------------------------


class SealedHead(Head):
    """theta of the rows that stay, moved by a learned map, and what it takes to make all of it anew.

    A subclass fills in how theta moves (`forget`), how everything is learned (`of`), and what is saved.
    """

    #: Whether an MLP of two classes has an anchor; whether the cells of all rows are kept.
    anchored: ClassVar[bool] = True
    embeds: ClassVar[bool] = False
    #: What theta's answers are made of.
    instant: ClassVar[str]
    #: What the state shows of forgotten rows where it cannot be made anew.
    reveals: ClassVar[str]

    def __init__(self, kept: Kept) -> None:
        self.model, self.cells = kept.model, kept.cells
        self.options = {name: kept.options[name] for name in OPTIONS}
        self._theta, self._counts = np.array(kept.theta, np.float64), np.array(kept.counts, np.int64)
        # since the last seal; and since theta was last at an optimum: rows that left, and where theta was
        self._unsealed = self._moved = 0
        self._optimum = self._theta.copy()
        self.tier = self.instant

    @classmethod
    def fit(
        cls, params: dict[str, Any], table: Table, size: int, report: Report, workers: Workers | None = None
    ) -> Fitted:
        """Train the model, embed the rows if need be, make pairs and learn from them; workers make the
        pairs. `size` is the largest row number + 1."""
        lap, cells = Laps(), None
        trained = train_first(table, params, report, cls.anchored)
        lap("train")
        if cls.embeds:
            report("embed the rows", 0, 1)
            cells = CellState.build(table, size, params["t"], params["psi"], params["random_state"])
            lap("embed")
        pairs = make_pairs(trained, table, params, report, workers)
        lap("pairs")
        head, facts = cls.taught(trained, pairs, table, cells, params, report)
        lap("head")
        head.compile(table)
        report("done", 1, 1)
        return Fitted(head, {"seconds": lap.seconds} | facts)

    @classmethod
    def taught(
        cls, trained: Trained, pairs: Pairs, table: Table, cells: Any, options: dict[str, Any], report: Report
    ) -> tuple[Self, dict[str, Any]]:
        """(The head that the pairs teach, what training, the pairs and it found.)"""
        head, facts = cls.of(Kept(trained.model, options, trained.theta, counts_of(table), cells), pairs, table, report)
        made = {"m": len(pairs), "rejected": pairs.rejected, "pair_rows": int(pairs.n[0])}
        return head, trained.facts | made | facts

    @classmethod
    @abstractmethod
    def of(cls, kept: Kept, pairs: Pairs, table: Table, report: Report) -> tuple[Self, dict[str, Any]]:
        """(the head that these pairs teach, what was found); the cells kept are those of table's rows."""

    def compile(self, table: Table) -> None:
        """Compile what the first request would have to wait for."""
        if self.cells is not None:
            self.cells.revert(np.empty(0, np.uint8), np.empty(0, np.int64))

    @property
    def n(self) -> int:
        """Rows that stay."""
        return int(self._counts.sum())

    @property
    def least_rows(self) -> int:
        """Rows below which nothing can be learned anew (see subset_size)."""
        return min(40, self.options["s"] or 40)

    @property
    def error(self) -> float | None:
        """Also since theta was last at the optimum of its rows."""
        return self._estimate() if self._moved else 0.0

    @property
    def due(self) -> str | None:
        if self._moved:
            return base.NOT_AT_OPTIMUM
        return "what was learned on rows that left is still there" if self._unsealed else None

    # Requests --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _estimate(self) -> float | None:
        """`error` where rows have left."""

    def _leave(self, rows: Rows, theta: Vector) -> None:
        """Note that these rows have left and theta is the answer."""
        self._theta, self.tier = theta, self.instant
        self._counts = self._counts - np.bincount(rows.y, minlength=self._counts.size)
        self._unsealed += len(rows.X)
        self._moved += len(rows.X)

    def learn(self, rows: Rows) -> None:
        """Never: what is learned from pairs is how rows leave."""
        raise CannotLearn(f'the head "{self.kind}" can only forget: use head="expansion" to add rows, or fit again')

    def refine(self, table: Table, rtol: float) -> None:
        """Train theta on the rows that stay, from where it is, if the error is not known to be at most rtol."""
        if self.error is not None and self.error <= rtol:
            return
        options = {} if self.model.name == "lr" or self.model.anchor is not None else {"tol": PLAIN_TOL}
        self._theta = self.model.fit(table, start=self._theta, **options).theta
        self._optimum, self._moved, self.tier = self._theta.copy(), 0, "trained on the rows that stay"

    # Seal ------------------------------------------------------------------------------------------------------------

    def refresh(
        self, table: Table | None, forgotten: Ids, report: Report, workers: Workers | None = None
    ) -> dict[str, Any]:
        if not self._unsealed:
            return {"sealed": False, "pairs": 0, "partitions": 0}
        if table is None:
            raise UserError(
                f"the rows are not kept (store_rows=False), so the state cannot be made anew without those that left, "
                f"and {self.reveals}: fit again, or save with defer=True and keep the directory to yourself"
            )
        report("train on the rows that stay", 0, 1)
        trained = train_again(self.model, table, self.options)
        pairs = make_pairs(trained, table, self.options, report, again=True)
        cells, partitions = self.cells, 0
        if cells is not None and cells.seeds_among(forgotten).size:
            report("replace seeds", 0, 1)
            cells, seed = cells.copy(), [self.options["random_state"], 6, table.n]
            partitions = cells.replace_seeds(forgotten, table, np.random.default_rng(seed))
        fresh, facts = self.taught(trained, pairs, table, cells, self.options, report)
        self.__dict__.update(fresh.__dict__)
        return {"sealed": True, "pairs": len(pairs), "partitions": partitions, "report": facts}

    # Keep ------------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        mu = getattr(self.model, "mu", None)
        return {"options": self.options, "mu": mu, "unsealed": self._unsealed, "moved": self._moved}

    def arrays(self) -> Arrays:
        out = {"head.theta": self._theta, "head.class_counts": self._counts}
        if self._moved:
            out["head.optimum"] = self._optimum
        if getattr(self.model, "anchor", None) is not None:
            out["head.anchor"] = np.asarray(self.model.anchor)
        return out | ({} if self.cells is None else self.cells.arrays())

    @classmethod
    def from_arrays(cls, model: Any, facts: dict[str, Any], arrays: Arrays) -> Self:
        theta = base.checked("head.theta", arrays, (model.size,))
        counts = base.checked_counts("head.class_counts", arrays, model.n_classes)
        cells = CellState.from_arrays(arrays, model.d) if cls.embeds else None
        if cells is not None and not np.array_equal(cells.class_counts, counts):
            raise ValueError("the cells of the rows, which are those of other rows")
        if facts["mu"] is not None:
            model = model.with_anchor(base.checked("head.anchor", arrays, (model.size,)), float(facts["mu"]))
        kept = Kept(model, facts["options"], theta, counts, cells)
        head = cls(kept, *cls._saved(kept, facts, arrays))
        head._unsealed, head._moved = int(facts["unsealed"]), int(facts["moved"])
        if head._moved:
            head._optimum = base.checked("head.optimum", arrays, (model.size,))
        if not 0 <= head._moved <= head._unsealed:
            raise ValueError("how many rows have left")
        return head

    @classmethod
    @abstractmethod
    def _saved(cls, kept: Kept, facts: dict[str, Any], arrays: Arrays) -> tuple[Any, ...]:
        """What `__init__` takes besides, of a saved state; ValueError if it does not fit."""
