"""L2UL: fit a model and what it takes to unlearn from it; then take rows out, one request after the other."""

from __future__ import annotations

import operator
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable, FileTable, Table, check_rows, class_indices
from l2ul_fast.unlearner import fitting, fitting_mlp, saving
from l2ul_fast.unlearner.cellstate import CellState
from l2ul_fast.unlearner.learned import Learned
from l2ul_fast.unlearner.ledger import entry
from l2ul_fast.unlearner.notes import Notes
from l2ul_fast.unlearner.requests import MANY, brought, checked_ids, refuse, rows_like
from l2ul_fast.unlearner.result import RetrainInstead, Unfitted, Unlearned, finite
from l2ul_fast.unlearner.steps import AnchoredStep, Step, let_go
from l2ul_fast.unlearner.store import ArrayStore, FileStore, NoStore
from l2ul_kernels.request import (
    DONE,
    EMPTY,
    FOREIGN,
    OTHERWISE,
    PRESENT,
    claim,
    claim_labelled,
    leave_classes,
    release,
    unclaim,
)

Progress = Callable[[str, int, int], None]

HEADS = ("influence", "direct")
PRIORS = ("newton", "none")


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as an int from low to high; UserError otherwise."""
    try:
        found = operator.index(value)
    except TypeError:
        raise UserError(f"{name} must be a whole number, got {value!r}") from None
    if found < low or (high is not None and found > high):
        raise UserError(f"{name} must be at least {low}{'' if high is None else f' and at most {high}'}, got {found}")
    return found


class L2UL:
    """A classifier that rows can be taken out of.

    Parameters
    ----------
    model : "lr" (logistic regression) or "mlp" (one hidden layer of `hidden` units).
    head : "influence" (theta moves by a linear map of the forgotten rows' gradient) or "direct" (the paper's network).
    prior : of the influence head: "newton" (the inverse Hessian, plus a learned correction where held-out pairs say it
        helps) or "none" (purely learned).
    lam : penalty, in units of the mean loss. psi, t : cells per partition, partitions.
    m, s : training pairs and rows per pair; s=None chooses by the size of D.
    network : also try a correction network on top of the influence head (kept only if held-out pairs say so).
    robust : train on large and structured forget sets too (for contaminated data).
    hidden, activation, anchor_rows : of the MLP; anchor_rows=0 trains without an anchor.
    store_rows : keep a private copy of the rows when fitted from arrays; else each request brings its rows.
    random_state : an int: equal seeds give equal results for every number of threads; None draws a seed.

    Attributes after fit: theta (p,), n (rows the model stands for), classes_, forget_log, report_ (what fit found out).
    """

    store: ArrayStore | FileStore | NoStore
    gone: NDArray[np.uint8]
    notes: Notes
    cells: CellState
    step: Step
    learned: Learned
    model: Any

    def __init__(
        self,
        model: str = "lr",
        *,
        head: str = "influence",
        prior: str = "newton",
        lam: float = 1e-3,
        psi: int = 4,
        t: int = 100,
        m: int = 1000,
        s: int | None = None,
        network: bool = False,
        robust: bool = False,
        hidden: int = 10,
        activation: str = "tanh",
        anchor_rows: int | None = None,
        store_rows: bool = True,
        random_state: int | None = 0,
    ) -> None:
        if model not in ("lr", "mlp"):
            raise UserError(f'model must be "lr" or "mlp", got {model!r}')
        if head not in HEADS or prior not in PRIORS:
            raise UserError(f"head must be one of {HEADS} and prior one of {PRIORS}, got {head!r} and {prior!r}")
        if not 0 < lam < np.inf:
            raise UserError(f"lam must be positive, got {lam}")
        if activation not in ("tanh", "relu"):
            raise UserError(f'activation must be "tanh" or "relu", got {activation!r}')
        if random_state is None:  # a fresh seed, kept: all later draws follow from it
            random_state = int(np.random.SeedSequence().generate_state(1)[0])
        psi, t, m = whole("psi", psi, 2, 4096), whole("t", t, 1), whole("m", m, 1)
        hidden, random_state = whole("hidden", hidden, 1), whole("random_state", random_state, 0)
        s = None if s is None else whole("s", s, 20)
        anchor_rows = None if anchor_rows is None else whole("anchor_rows", anchor_rows, 0)
        self.params: dict[str, Any] = {
            "model": model, "head": head, "prior": prior, "lam": lam, "psi": psi, "t": t, "m": m, "s": s,
            "network": network, "robust": robust, "hidden": hidden, "activation": activation,
            "anchor_rows": anchor_rows, "store_rows": store_rows, "random_state": random_state,
        }  # fmt: skip
        # not found by __getattr__, which would make every other attribute slow, and requests read many
        self.notes = self.step = self.store = self.cells = self.model = self.learned = cast(Any, Unfitted())
        self.gone = cast(Any, self.notes)
        self._log: list[dict[str, Any]] = []
        self.entries: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self.saved_to: Path | None = None
        self.generation: int | None = None

    # Fit -------------------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        part: str = "train",
        progress: Progress | None = None,
        client: Any = None,
    ) -> L2UL:
        """Train on rows X (n, d) with labels y (n,), or on the `part` ("train", "test", "all") of a dataset file X.

        `client`: of dask.distributed; its workers make the training pairs (the same ones).
        """
        report = progress or (lambda what, done, total: None)
        if y is None:
            file = FileTable(X, part)
            table: ArrayTable | FileTable = file
            store: ArrayStore | FileStore | NoStore = FileStore(file)
            size = file.shards.n
        else:
            rows = check_rows(X)
            classes, labels = class_indices(y)
            if len(rows) != len(labels):
                raise UserError(f"X has {len(rows)} rows but y has {len(labels)} labels")
            rows, labels = rows.copy(), labels.copy()  # ours: forgetting overwrites them
            table = ArrayTable(rows, labels, classes)
            keep = self.params["store_rows"]
            store = ArrayStore(rows, labels) if keep else NoStore.of(rows, labels, self.params["random_state"])
            size = len(rows)
        if len(table.classes) < 2:
            raise UserError(f"the labels have only one class ({table.classes}): nothing can be learned")
        if table.n < self.params["psi"]:
            raise UserError(f"psi={self.params['psi']} seeds cannot be drawn from {table.n} rows")
        held = np.bincount(table.y[table.ids()], minlength=len(table.classes))
        if not held.all():
            raise UserError(f"there is no row of class {table.classes[int(held.argmin())]} to train on")
        start = time.perf_counter()
        fitted = fitting.fit(self.params, table, size, report, client)
        # only now: a fit that fails leaves the object as it was
        self.store = store
        if isinstance(fitted.step, AnchoredStep):
            fitted.step.fetch = store.fetch
        self.gone = np.full(size, FOREIGN, np.uint8)
        self.gone[table.ids()] = PRESENT
        self.classes_, self.n, self.d, self.label = table.classes, table.n, table.d, table.label
        self.notes = Notes(fitted.theta)
        self.model, self.cells, self.step = fitted.model, fitted.cells, fitted.step
        self.learned, self.report_ = fitted.learned, finite(fitted.report)
        self.class_counts = self.cells.counts[:, 0].sum(axis=1)
        self.report_["fit_seconds"] = time.perf_counter() - start
        self._log = []
        # entries: what the ledger does not have yet; history: what it has; saved_to, generation: where, and which state
        self.entries, self.history = [entry("fit", n=self.n, theta=self.theta)], []
        self.saved_to, self.generation = None, None
        return self

    @property
    def theta(self) -> NDArray[np.float64]:
        """(p,), as it is now."""
        return self.notes.theta

    @theta.setter
    def theta(self, theta: NDArray[np.float64]) -> None:
        self._flush_log()
        self.notes = Notes(theta)

    # Unlearn ---------------------------------------------------------------------------------------------------------

    def unlearn(self, rows: ArrayLike | None = None, X: Any = None, y: ArrayLike | None = None) -> Unlearned:
        """Take rows out of the model: numbers of rows of D, or the rows themselves (X, y), or both.

        theta, n, counts and all that depends on them change here and now; `save` makes it durable.
        """
        code, ids = OTHERWISE, None
        if X is None and type(rows) is list and len(rows) == 1 and type(rows[0]) is int and 0 <= rows[0] < MANY:
            code = self.step.request(self, rows[0])  # what users do most
            if code >= 0:
                self._refuse(code, np.array(rows))
        if code == DONE:
            r = 1
            self.notes.used += 1
        else:
            ids = self._take_out(rows, X, y)
            r = len(ids)
        notes, n, largest = self.notes, self.n, self.learned.largest
        self.n = left = n - r
        if r > largest * n:
            warnings.warn(RetrainInstead(r, n, largest), stacklevel=2)
        return Unlearned(self, notes.block, notes.used - 1, left, ids)

    def _take_out(self, rows: ArrayLike | None, X: Any, y: ArrayLike | None) -> NDArray[np.int64]:
        """All of `unlearn` but n, for any request; the numbers of the rows, ascending."""
        step = self.step
        if rows is None:
            rows, X = rows_like(self, X, y), None if isinstance(self.store, ArrayStore | FileStore) else X
        ids = checked_ids(rows)
        if ids.size == 1 and X is None:
            code = step.request(self, ids.item())
            if code >= 0:
                self._refuse(code, ids)
            if code == DONE:
                self.notes.used += 1
                return ids
        if ids.size:
            theta = self._without_stored(ids) if X is None else self._without_brought(rows, ids, X, y)
            self.notes.add(ids, time.time(), theta, step.total)
            self.model = step.model  # an anchor may have moved
        return ids

    def _without_stored(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """theta without rows that are stored here; nothing that is held of them stays."""
        store = self.store
        refusal = claim_labelled(ids, self.gone, store.y, self.class_counts)
        if refusal >= 0:
            self._refuse(refusal, ids)
        try:
            theta = self.step.move_stored(store, ids, self.theta, self.n)
        except BaseException:
            unclaim(ids, self.gone, store.y, self.class_counts)
            raise
        self.cells.forget(ids, store.y, ids, store)
        return theta

    def _without_brought(self, rows: Any, ids: NDArray[np.int64], X: Any, y: Any) -> NDArray[np.float64]:
        """The same for rows that come with the request."""
        refusal = claim(ids, self.gone)
        if refusal >= 0:
            self._refuse(refusal, ids)
        try:
            forgotten, labels = brought(self, rows, ids, X, y)
            at = np.arange(ids.size)
            empty = leave_classes(labels, at, self.class_counts)
            if empty >= 0:
                self._refuse(8 * empty + EMPTY, ids)
            try:
                theta = self.step.move(forgotten, labels, ids, self.theta, self.n)
            except BaseException:
                np.add.at(self.class_counts, labels, 1)
                raise
        except BaseException:
            release(ids, self.gone)
            raise
        self.cells.forget(ids, labels, at, self.store)
        return theta

    def _refuse(self, code: int, ids: NDArray[np.int64]) -> NoReturn:
        """Raise what a claim found; a model needs rows of every class."""
        if code % 8 != EMPTY:
            refuse(code, ids)
        if self.n == ids.size:
            raise UserError("the request takes out all rows: delete the model instead")
        name = self.classes_[code // 8]
        raise UserError(f"the request takes out all rows of class {name}: retrain without that class")

    # Look at the rows that stay --------------------------------------------------------------------------------------

    def retained(self) -> Table:
        """The rows the model stands for now."""
        return self.store.table(self.classes_, self.gone != PRESENT)

    def residual(self, theta: NDArray[np.float64] | None = None) -> float:
        """Largest entry of the retained objective's gradient at theta (p,), the model's own if None (one pass over the
        data); 0 if retrained."""
        table, at = self.retained(), self.theta if theta is None else theta
        total = np.zeros(at.size)
        for X, y in table.blocks():
            total += len(X) * self.model.data_gradient(at, X, y)
        return float(np.abs(total / table.n + self.model.penalty_gradient(at)).max())

    def noise_floor(self) -> float:
        """Share of the rows that one more training from another start answers otherwise; 0 where training is a
        function of the data (logistic regression, the anchored MLP). Unlearning cannot be judged below it."""
        if self.params["model"] == "lr" or isinstance(self.step, AnchoredStep):
            return 0.0
        return fitting_mlp.noise_floor(self)

    def refresh(self, reanchor: bool = False, progress: Progress | None = None) -> dict[str, Any]:
        """Remove what U still knows of forgotten rows: training pairs, partition seeds, the head made from them.

        reanchor: also train theta to the optimum of the rows that stay (a warm retrain). Returns what was done.
        """
        done = fitting.refresh(self, reanchor, progress or (lambda what, done, total: None))
        self._flush_log()
        self.entries.append(entry("refresh", n=self.n, theta=self.theta, refreshed=done))
        return done

    @property
    def forget_log(self) -> list[dict[str, Any]]:
        """The requests since `fit`: rows (r,), n (rows left), time (seconds since 1970)."""
        self._flush_log()
        return self._log

    def _flush_log(self) -> None:
        """Put the latest requests into the log, and into entries for the ledger; their notes go."""
        latest, theta = self.notes.all(), self.theta
        left = self.n + sum(len(note.rows) for note in latest)
        for note in latest:
            left -= len(note.rows)
            self._log.append({"rows": note.rows, "n": left, "time": note.time})
            self.entries.append(
                entry("unlearn", n=left, rows=note.rows, time=note.time, theta=note.after, theta_before=note.before)
            )
        if latest:
            self.notes = Notes(theta)
            let_go(self.step)

    # Model -----------------------------------------------------------------------------------------------------------

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities (n, C) of rows as the model sees them (rows of a file: standardised)."""
        return self.model.predict_proba(self.theta, check_rows(X, self.d))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The likeliest class of each row of X (n, d)."""
        index = self.model.predict(self.theta, check_rows(X, self.d))
        return np.asarray(self.classes_)[index]

    # Disk ------------------------------------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write the state and the ledger to `directory`: all of it or nothing."""
        self._flush_log()
        saving.save(self, Path(directory))

    @classmethod
    def load(cls, directory: str | Path, data: str | Path | None = None) -> L2UL:
        """Read a saved state; `data` names the dataset file if it has moved."""
        return saving.load(cls, Path(directory), data)

    def __sklearn_is_fitted__(self) -> bool:
        return not isinstance(self.notes, Unfitted)
