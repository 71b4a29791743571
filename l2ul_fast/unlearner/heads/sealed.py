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
from l2ul_fast.unlearner.heads.base import (
    NOT_AT_OPTIMUM,
    Arrays,
    CannotLearn,
    Head,
    Ids,
    Report,
    Rows,
    Vector,
    checked,
    checked_counts,
)
from l2ul_fast.unlearner.heads.secant import anchored_model, is_anchored, moved_anchor
from l2ul_fast.unlearner.pairs.make import Pairs, full_pairs, subset_pairs
from l2ul_fast.unlearner.state import CellState
from l2ul_fast.workers import Workers

#: What a head keeps of the unlearner's parameters: all that training it anew takes.
OPTIONS = (
    "model",
    "lam",
    "penalty",
    "m",
    "s",
    "robust",
    "psi",
    "t",
    "hidden",
    "activation",
    "anchor",
    "anchor_rows",
    "random_state",
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
    steps = 0
    if model.name == "lr":
        near = model.fit(table)
        found, steps = model.fit(table, start=near.theta, tol=0.0), near.steps
    elif model.anchor is not None:
        found = model.fit(table)
        if not found.converged:
            raise UserError("the MLP does not converge on these rows: raise lam, or use anchor_rows=0")
    else:
        found = model.fit(table, seed=START, tol=PLAIN_TOL)
    return Trained(
        model, found.theta, found.hessian, {"gradient_norm": found.gradient_norm, "steps": steps + found.steps}
    )


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


def _generator(options: dict[str, Any], k: int) -> np.random.Generator:
    """Number k of the streams of random numbers that follow from random_state."""
    return np.random.default_rng(np.random.SeedSequence(options["random_state"]).spawn(k + 1)[k])


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
    rng = _generator(options, 0 if options["model"] == "lr" else 1)

    def progress(done: int, total: int) -> None:
        report("train pairs", done, total)

    model = trained.model
    if getattr(model, "anchor", None) is None:
        s = subset_size(options, table.n, again)
        return subset_pairs(
            model,
            table,
            labels_of(table),
            options["m"],
            s,
            rng,
            robust=options["robust"],
            progress=progress,
            executor=workers,
        )
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

    def __init__(
        self,
        model: Any,
        options: dict[str, Any],
        theta: Vector,
        class_counts: NDArray[np.int64],
        cells: CellState | None,
    ) -> None:
        self.model, self.options = model, {name: options[name] for name in OPTIONS}
        self._theta, self._counts = np.array(theta, np.float64), np.array(class_counts, np.int64)
        self._cells = cells
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
        head, facts = cls.of(trained, pairs, table, cells, params, report)
        lap("head")
        head.compile(table)
        report("done", 1, 1)
        return Fitted(head, {"seconds": lap.seconds} | trained.facts | facts)

    @classmethod
    @abstractmethod
    def of(
        cls,
        trained: Trained,
        pairs: Pairs,
        table: Table,
        cells: Any,
        options: dict[str, Any],
        report: Report | None = None,
    ) -> tuple[Self, dict[str, Any]]:
        """(the head that these pairs teach, what was found); cells are those of table's rows, if any are kept."""

    def compile(self, table: Table) -> None:
        """Compile what the first request would have to wait for."""
        if self._cells is not None:
            self._cells.revert(np.empty(0, np.uint8), np.empty(0, np.int64))

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
        """Estimated rho of everything forgotten since theta was last at the optimum of its rows."""
        return self._estimate() if self._moved else 0.0

    @property
    def due(self) -> str | None:
        """Why `refresh` should make a pass over the rows, or None."""
        if self._moved:
            return NOT_AT_OPTIMUM
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
        """Make everything anew from the rows of table, where any row has left. Returns what was done."""
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
        cells, partitions = self._cells, 0
        if cells is not None and cells.seeds_among(forgotten).size:
            report("replace seeds", 0, 1)
            cells, seed = cells.copy(), [self.options["random_state"], 6, table.n]
            partitions = cells.replace_seeds(forgotten, table, np.random.default_rng(seed))
        fresh, facts = self.of(trained, pairs, table, cells, self.options, report)
        self.__dict__.update(fresh.__dict__)
        return {"sealed": True, "pairs": len(pairs), "partitions": partitions, "report": trained.facts | facts}

    # Keep ------------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """JSON values that `from_arrays` needs."""
        return {
            "options": self.options,
            "mu": getattr(self.model, "mu", None),
            "unsealed": self._unsealed,
            "moved": self._moved,
        }

    def arrays(self) -> Arrays:
        """What is saved, besides facts: functions of the rows that stay unless `due`."""
        out = {"head.theta": self._theta, "head.class_counts": self._counts}
        if self._moved:
            out["head.optimum"] = self._optimum
        if getattr(self.model, "anchor", None) is not None:
            out["head.anchor"] = np.asarray(self.model.anchor)
        return out | ({} if self._cells is None else self._cells.arrays())

    @classmethod
    def from_arrays(cls, model: Any, facts: dict[str, Any], arrays: Arrays) -> Self:
        """The head that `facts` and `arrays` were taken from; ValueError if they do not fit each other."""
        theta = checked("head.theta", arrays, (model.size,))
        counts = checked_counts("head.class_counts", arrays, model.n_classes)
        cells = CellState.from_arrays(arrays, model.d) if cls.embeds else None
        if cells is not None and not np.array_equal(cells.class_counts, counts):
            raise ValueError("the cells of the rows, which are those of other rows")
        if facts["mu"] is not None:
            model = model.with_anchor(checked("head.anchor", arrays, (model.size,)), float(facts["mu"]))
        head = cls(model, facts["options"], theta, counts, cells, *cls._saved(model, cells, facts, arrays))
        head._unsealed, head._moved = int(facts["unsealed"]), int(facts["moved"])
        if head._moved:
            head._optimum = checked("head.optimum", arrays, (model.size,))
        if not 0 <= head._moved <= head._unsealed:
            raise ValueError("how many rows have left")
        return head

    @classmethod
    @abstractmethod
    def _saved(cls, model: Any, cells: Any, facts: dict[str, Any], arrays: Arrays) -> tuple[Any, ...]:
        """What `__init__` takes behind the cells, of a saved state; ValueError if it does not fit."""
