"""L2UL: fit a model and what it takes to unlearn from it; then take rows out, one request after the other."""

from __future__ import annotations

import copy
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable, Table, check_rows, class_indices, first_line, refuse_mask
from l2ul_fast.unlearner import fit as fitting
from l2ul_fast.unlearner.artifact import saving
from l2ul_fast.unlearner.artifact.ledger import entry
from l2ul_fast.unlearner.heads.base import OutOfScale, Report, Rows
from l2ul_fast.unlearner.options import NUMBERS, Options, current_head
from l2ul_fast.unlearner.requests import refuse, resolve_rows, rows_of
from l2ul_fast.unlearner.result import UNTRUSTED, RetrainInstead, Unlearned, class_probabilities, finite, predictions
from l2ul_fast.unlearner.rows import RowLabels, columns_of, in_order, paired
from l2ul_fast.unlearner.store import ArrayStore, FileStore, NoStore, Store
from l2ul_fast.workers import workers_of
from l2ul_kernels.request.claims import DONE, EMPTY, FOREIGN, FORGOTTEN, PRESENT, claim, release

if TYPE_CHECKING:
    from l2ul_fast.datasets.file.table import FileTable

Progress = Callable[[str, int, int], None]


class NotFitted(UserError, AttributeError):
    """Asked for something that only a fitted unlearner has."""


class _SetByFit:
    """An attribute that `fit` and `load` set. Those of the object come first, so this is found where there is no fit;
    a `__getattr__` of the class would make every other attribute slow, and requests read many."""

    def __get__(self, u: Any, owner: Any) -> Any:
        if u is None:
            return self
        raise NotFitted("this unlearner is not fitted yet: call fit, or load a saved one")


set_by_fit: Any = _SetByFit()


class L2UL:
    """A model that rows can be taken out of.

    Safe to use from several threads: one request, look or save at a time.

    Parameters
    ----------
    model : "lr" (logistic regression), "mlp" (one hidden layer of `hidden` units), "squared" or "poisson" (regression).
    head : "expansion" (derivatives of the loss, exact integer sums where possible), "learned" (a linear map that is
        learned from training pairs), "kme" (the paper's embeddings per class, scaled residual), "paper" (its network).
    order : of the expansion, 3 or 2 (Newton's step).
    anchor : where to expand: "grid" (the optimum on a coarse grid, which a single row rarely moves), "optimum", or
        parameters (p,) that the user gives, such as last year's model.
    penalty : "mean" (lam times the sum of the rows' weights: lam stays in units of the mean loss when rows leave) or
        "sum" (lam times the weights at the fit, which then stays as it is, as scikit-learn's C does).
    lam : penalty, in units of the mean loss. psi, t : cells per partition, partitions (kme, paper).
    m, s : training pairs and rows per pair (learned, kme, paper); s=None chooses by the size of D.
    robust : train on large and structured forget sets too (for contaminated data).
    hidden, activation, anchor_rows : of the MLP; anchor_rows=0 trains without an anchor.
    store_rows : keep a private copy of the rows when fitted from arrays; else each request brings its rows.
    random_state : an int: equal seeds give equal results for every number of threads; None draws a seed.

    Attributes after fit: theta (p,), n (rows the model stands for), classes_, due, forget_log, report_.

    Examples
    --------
    >>> import numpy as np
    >>> from l2ul_fast import L2UL
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> u = L2UL("lr").fit(X, X[:, 0] > 0)
    >>> u.unlearn([7]).n
    499
    """

    head: Any = set_by_fit  # a heads.base.Head
    store: Store = set_by_fit
    status: NDArray[np.uint8]
    n: int
    d: int
    label: str
    classes_: list[Any]
    report_: dict[str, Any]
    #: Names of the columns, and labels of the rows, of the frame it was fitted on.
    columns: tuple[str, ...] | None = None
    labels: RowLabels | None = None

    def __init__(
        self,
        model: str = "lr",
        *,
        head: str = "expansion",
        order: int = 3,
        anchor: str | ArrayLike = "grid",
        penalty: str = "mean",
        lam: float = 1e-3,
        psi: int | None = None,
        t: int = 100,
        m: int = 1000,
        s: int | None = None,
        robust: bool = False,
        hidden: int = 10,
        activation: str = "tanh",
        anchor_rows: int | None = None,
        store_rows: bool = True,
        random_state: int | None = 0,
        prior: str | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "prior")}
        self.params: dict[str, Any] = asdict(Options(**given | {"head": current_head(head, prior)}))
        self._lock = threading.RLock()
        self._log: list[tuple[NDArray[np.int64] | int, int, float]] = []  # requests not in `entries` yet
        self.entries: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self.saved_to: Path | None = None
        self.generation: int | None = None
        self.fit_id: str | None = None  # drawn at each fit: tells two models in one directory apart

    def __repr__(self) -> str:
        p = self.params
        about = f"L2UL({p['model']!r}, head={p['head']!r}, lam={p['lam']:g})"
        if not self.__sklearn_is_fitted__():
            return f"<{about}, not fitted>"
        with self._lock:
            return self._describe(about)

    def _describe(self, about: str) -> str:
        error = "" if self.head.error is None else f", error {self.head.error:.1e}"
        due = f", due: {self.due}" if self.due else ""
        gone = int((self.status == FORGOTTEN).sum())
        return f"<{about}: {self.n} rows x {self.d}, {gone} forgotten{error}{due}>"

    # Fit -------------------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        part: str = "train",
        progress: Progress | None = None,
        client: Any = None,
    ) -> L2UL:
        """Train on rows X (n, d) with labels y (n,), or on the `part` ("train", "test", "all") of a dataset file X.

        Parameters
        ----------
        X : array, frame or path
            The columns of a frame (pandas, polars) are known by their names afterwards, wherever rows are given, and
            the rows of a pandas frame by the labels of its index.
        sample_weight : (n,) array, optional
            Weights of the rows, at least 0; a row of weight 0 counts as one that is not there.
        progress : callable, optional
            Called with (what, done, total).
        client : dask.distributed.Client, optional
            Its workers sum the shards of a file, or make the training pairs; the result is the same.
        """
        report = progress or (lambda what, done, total: None)
        with self._lock:
            columns, labels = (None, None) if y is None else (columns_of(X), RowLabels.of(X))
            paired(X, y=y, sample_weight=sample_weight)
            table, store, size = self._open(X, y, sample_weight, part)
            start = time.perf_counter()
            fitted = fitting.fit(self.params, table, size, report, workers_of(client))
            # only now: a fit that fails leaves the object as it was
            self.store, self.head, self.columns, self.labels = store, fitted.head, columns, labels
            self.status = np.full(size, FOREIGN, np.uint8)
            self.status[table.ids()] = PRESENT
            self.classes_, self.n, self.d, self.label = table.classes, table.n, table.d, table.label
            self.report_ = finite(fitted.report) | {"fit_seconds": time.perf_counter() - start}
            self._log = []
            self.head.warm(store, self.status)
            # entries: what the ledger does not have yet; history: what it has; saved_to, generation: where, which state
            self.entries, self.history = [entry("fit", n=self.n, theta=self.theta)], []
            self.saved_to, self.generation, self.fit_id = None, None, os.urandom(8).hex()
            return self

    def _open(
        self, X: Any, y: ArrayLike | None, sample_weight: ArrayLike | None, part: str
    ) -> tuple[Table, Store, int]:
        """(the rows to train on, where requests find them, largest row number + 1)."""
        p = self.params
        table: ArrayTable | FileTable
        store: Store
        if y is None:
            if p["model"] in NUMBERS or sample_weight is not None:
                raise UserError("a dataset file holds classes without weights: give X, y as arrays")
            from l2ul_fast.tables import FileTable  # here: arrays need no h5py

            file = FileTable(X, part, coarse=True)
            table, store, size = file, FileStore(file), file.shards.n
        else:
            rows = check_rows(X).copy()  # ours: forgetting overwrites it
            classes, labels = self._labels(y)
            if len(rows) != len(labels):
                raise UserError(f"X has {len(rows)} rows but y has {len(labels)} labels")
            weights = _checked_weights(sample_weight, len(rows))
            if weights is not None and p["head"] != "expansion":
                raise UserError(f'rows have weights with the head "expansion" only, not {p["head"]!r}')
            hidden = None if weights is None or weights.all() else weights == 0
            if hidden is not None:  # rows of weight 0 are not there
                rows[hidden] = 0
                labels[hidden] = 0
            table, size = ArrayTable(rows, labels, classes, hidden, weights), len(rows)
            if p["store_rows"]:
                store = ArrayStore(rows, labels, weights)
            else:
                store = NoStore.of(rows, labels, weights, p["random_state"])
        if p["model"] not in NUMBERS:
            if len(table.classes) < 2:
                raise UserError(f"the labels have only one class ({table.classes}): nothing can be learned")
            held = np.bincount(table.y[table.ids()], minlength=len(table.classes))
            if not held.all():
                raise UserError(f"there is no row of class {table.classes[int(held.argmin())]} to train on")
        if table.n < 2:
            raise UserError("a model needs two rows at least")
        if p["head"] in ("paper", "kme") and table.n < p["psi"]:
            raise UserError(f"psi={p['psi']} seeds cannot be drawn from {table.n} rows")
        return table, store, size

    def _labels(self, y: ArrayLike, classes: list[Any] | None = None) -> tuple[list[Any], NDArray[Any]]:
        """(classes, class indices), or ([], targets) for models of numbers; always our own copy."""
        if self.params["model"] not in NUMBERS:
            found, labels = class_indices(y, classes)
            return found, labels.copy()
        refuse_mask("y", y)
        try:
            targets = np.array(y, np.float64)
        except Exception as error:
            raise UserError(f"y must hold numbers: {first_line(error)}") from None
        if targets.ndim != 1 or not np.isfinite(targets).all():
            raise UserError("y must be a list of finite numbers")
        if self.params["model"] == "poisson" and (targets < 0).any():
            raise UserError("the targets of a Poisson regression are counts: none may be negative")
        return [], targets

    @property
    def theta(self) -> NDArray[np.float64]:
        """(p,), the parameters as they are now; read-only."""
        with self._lock:
            theta = self.head.theta
        theta.flags.writeable = False
        return theta

    @property
    def model(self) -> Any:
        """The model: its objective and predictions at any theta."""
        return self.head.model

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """(C,) rows of each class that stay, a copy."""
        with self._lock:
            return np.array(self.head.class_counts)

    @property
    def due(self) -> str | None:
        """Why `refresh` should make a pass over the rows that stay, or None."""
        with self._lock:
            found: str | None = self.head.due
            return found

    # Requests --------------------------------------------------------------------------------------------------------

    def unlearn(
        self,
        rows: Any = None,
        X: Any = None,
        y: ArrayLike | None = None,
        *,
        labels: Any = None,
        rtol: float | None = None,
    ) -> Unlearned:
        """Take rows out of the model: numbers or labels of rows of D, or the rows themselves (X, y), or both.

        theta, n, sums and all that depends on them change here and now; `save` makes it durable.

        Parameters
        ----------
        rows : (r,) row numbers, or a mask, optional
            Whole numbers are positions in what was fitted; as many truth values as rows are a mask. A pandas Index or
            Series names labels of the fitted frame's index; a boolean one is a mask by its own labels.
        X, y : (r, d) and (r,) arrays, optional
            The rows themselves; needed with `store_rows=False`.
        labels : (r,) labels of the fitted frame's index, optional
            Instead of rows. A label of several rows means all of them, with a warning.
        rtol : float, optional
            Largest estimated error that is accepted; what it takes is done, a pass over the data or a new expansion.
            None never leaves the instant answer.

        Raises
        ------
        UserError
            For rows that do not exist, are forgotten, are named twice, or would leave a class without rows. Nothing has
            changed then.
        """
        if rtol is not None:
            rtol = self._checked_rtol(rtol)
        with self._lock:
            head, store, known = self.head, self.store, self.labels
            plain = X is None and y is None and labels is None and store.in_memory and head.exact_sums
            row = _single(rows) if plain and (known is None or not known.unsure) else None
            if row is None:
                ids = self._take_out(rows, X, y, labels)
                if ids.size:
                    self.n -= ids.size
                    self._log.append((ids, self.n, time.time()))
                return self._answer(ids, rtol)
            # what users do most: one compiled call
            code, theta, error, due = head.forget_row(row, store, self.status)
            if code != DONE:
                self._refuse(code, np.array([row]))
            if known is not None:
                known.erase(row)
            self.n -= 1
            self._log.append((row, self.n, time.time()))
            if rtol is not None or (error is not None and error > UNTRUSTED):
                return self._answer(np.array([row]), rtol)
            theta.flags.writeable = False
            return Unlearned(theta, row, self.n, error, head.tier, due, head.model, self.classes_, self.columns)

    def _answer(self, ids: NDArray[np.int64], rtol: float | None) -> Unlearned:
        """Refine a request that was done, if asked to, and describe it."""
        head = self.head
        error = head.error
        rtol = head.passes_until if rtol is None else rtol
        table = None if rtol is None or not ids.size or (error is not None and error <= rtol) else self.retained()
        if rtol is not None and table is not None:
            try:
                head.refine(table, rtol)
            except UserError as reason:  # the rows have left all the same
                warnings.warn(
                    RetrainInstead(f"the rows are forgotten, but the answer is not refined: {reason}"), stacklevel=3
                )
            error = head.error
        if error is not None and error > UNTRUSTED:
            distance = f"estimated distance to a retrained model is {error:.2g} times what retraining changes"
            warnings.warn(RetrainInstead(f"the answer's {distance}: {head.advice}"), stacklevel=3)
        return Unlearned(self.theta, ids, self.n, error, head.tier, head.due, head.model, self.classes_, self.columns)

    def _checked_rtol(self, rtol: Any) -> float:
        """A tolerance that can be asked for, before any row has left."""
        if not self.store.keeps_rows:
            raise UserError("this unlearner keeps no rows (store_rows=False), so it cannot refine its answer to rtol")
        if isinstance(rtol, int | float | np.number) and not isinstance(rtol, bool) and rtol >= 0:
            return float(rtol)
        raise UserError(f"rtol must be a number of at least 0, got {rtol!r}")

    def _take_out(self, rows: Any, X: Any, y: ArrayLike | None, labels: Any) -> NDArray[np.int64]:
        """Any request but its note: the numbers of the rows, ascending."""
        request = resolve_rows(self, rows, X, y, labels)
        ids = request.ids
        if not ids.size:
            return ids
        refusal = claim(ids, self.status)
        if refusal >= 0:
            self._refuse(refusal, ids)
        try:
            given = rows_of(self, request)
            self._keep_classes(given.y, ids)
            self.head.forget(given)
        except ArithmeticError as error:  # numbers that no fit gives, from a directory that somebody made
            release(ids, self.status)
            raise UserError(f"the state of this unlearner cannot be right ({error}): fit again") from error
        except BaseException:
            release(ids, self.status)
            raise
        self.store.erase(ids)
        if self.labels is not None:
            self.labels.erase(ids)
        return ids

    def _keep_classes(self, y: NDArray[Any], ids: NDArray[np.int64]) -> None:
        least = self.head.least_rows
        if least > self.n - ids.size > 0:
            raise UserError(
                f"the request leaves {self.n - ids.size} rows, and this head needs {least} to be learned again: "
                "fit again on those that stay"
            )
        counts = self.head.class_counts
        if counts.size:
            left = counts - np.bincount(y, minlength=counts.size)
            if (left <= 0).any():
                self._refuse(8 * int(left.argmin()) + EMPTY, ids)
        elif ids.size >= self.n:
            self._refuse(EMPTY, ids)

    def _refuse(self, code: int, ids: NDArray[np.int64]) -> NoReturn:
        """Raise what a claim found; a model needs rows of every class."""
        if code % 8 != EMPTY:
            refuse(code, ids)
        if self.n == ids.size or not self.classes_:
            raise UserError("the request takes out all rows: delete the model instead")
        name = self.classes_[code // 8]
        raise UserError(f"the request takes out all rows of class {name}: retrain without that class")

    def learn(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> NDArray[np.int64]:
        """Add rows X (r, d) with labels y (r,): `unlearn` with the other sign.

        Returns
        -------
        (r,) int64 array
            Numbers of the new rows.

        Raises
        ------
        UserError
            For a class that was not there at the fit, rows of another width, an unlearner fitted on a file, or a head
            that cannot learn. Nothing has changed then.
        """
        with self._lock:
            if not self.store.can_grow:
                raise UserError("rows cannot be added to a model that was fitted on a file: fit again")
            rows = self.checked(X)  # says so where there is no fit
            paired(X, y=y, sample_weight=sample_weight)
            _, labels = self._labels(y, self.classes_)
            weights = _checked_weights(sample_weight, len(rows))
            if len(rows) != len(labels):
                raise UserError(f"X has {len(rows)} rows but y has {len(labels)} labels")
            weighted = self.store.weights.size > 0
            if (weights is not None) != weighted and len(rows):
                raise UserError("rows have weights either all or none: give sample_weight as at the fit")
            if weights is not None and not weights.all():
                raise UserError("a row of weight 0 counts as one that is not there: leave it out")
            ids = np.arange(self.status.size, self.status.size + len(rows))
            if not ids.size:
                return ids
            with np.errstate(over="ignore"):
                rows = rows.astype(self.store.dtype)
            if not np.isfinite(rows).all():
                raise UserError(f"X holds values beyond {self.store.dtype}, the type of the rows at the fit")
            self.store.append(rows, labels, weights)
            before = self.status
            self.status = np.concatenate([before, np.full(len(rows), PRESENT, np.uint8)])
            try:
                try:
                    self.head.learn(Rows(rows, labels, weights, ids))
                except OutOfScale as error:
                    table = self.retained()
                    if table is None:
                        raise UserError(f"{error}, and the rows are not kept (store_rows=False): fit again") from None
                    self.head.expand_anew(table)
            except BaseException:
                self.status = before
                self.store.cut(before.size)
                raise
            if self.labels is not None:
                self.labels = self.labels.extended(X, before.size, len(rows))
            self.n += len(rows)
            self._log.append((-1 - ids, self.n, time.time()))
            table = self.retained()
            if self.head.passes_until is not None and table is not None:
                self.head.refine(table, self.head.passes_until)
            return ids

    # Look at the rows that stay --------------------------------------------------------------------------------------

    def retained(self) -> Table | None:
        """The rows the model stands for now, None where they are not kept."""
        return self.store.table(self.classes_, self.status != PRESENT)

    def residual(self, theta: NDArray[np.float64] | None = None) -> float:
        """Largest entry of the retained objective's gradient at theta (p,), the model's own if None; 0 if retrained."""
        with self._lock:
            table = self.retained()
            if table is None:
                raise UserError("this unlearner keeps no rows (store_rows=False): it cannot look at those that stay")
            return fitting.residual(self.head, table, self.theta if theta is None else self._parameters(theta))

    def _parameters(self, theta: Any) -> NDArray[np.float64]:
        """Parameters that somebody gives."""
        try:
            found = np.asarray(theta, np.float64)
        except (TypeError, ValueError, OverflowError):
            found = np.empty(0)
        if found.shape != self.theta.shape or not np.isfinite(found).all():
            raise UserError(f"theta must be {self.theta.size} finite numbers, as the model's own")
        return found

    def noise_floor(self) -> float:
        """Share of the rows that one more training from another start answers otherwise; 0 where training is a
        function of the data (linear models, the anchored MLP). Unlearning cannot be judged below it."""
        with self._lock:
            return fitting.noise_floor(self)

    def refresh(
        self, reanchor: bool | None = None, progress: Progress | None = None, client: Any = None
    ) -> dict[str, Any]:
        """Make everything that is kept a function of the rows that stay: a new expansion where one is due; for heads
        without integer sums the optimum of these rows, and new pairs, seeds and maps where they held forgotten rows.

        client: of dask.distributed, whose workers make the passes of a new expansion over a file; the result is the
        same. Returns what was done.
        """
        if reanchor is not None:
            warnings.warn(
                "`reanchor` has no effect any more: refresh always does what it takes", DeprecationWarning, stacklevel=2
            )
        report: Report = progress or (lambda what, done, total: None)
        with self._lock:
            table, forgotten = self.retained(), np.flatnonzero(self.status == FORGOTTEN)
            done = self.head.refresh(table, forgotten, report, workers_of(client))
            self._flush_log()
            # figures only: words such as the reason tell something of the rows that left
            simple = {k: v for k, v in done.items() if isinstance(v, bool | int | float)}
            self.entries.append(entry("refresh", n=self.n, theta=self.theta, refreshed=simple))
            return done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None and self.due:
            self.refresh()

    @property
    def forget_log(self) -> list[dict[str, Any]]:
        """The requests since `fit`: rows (r,), n (rows left), time (seconds since 1970)."""
        with self._lock:
            self._flush_log()
            return list(self._done)

    @property
    def _done(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for e in [*self.history, *self.entries]:
            if e["action"] == "fit":
                found = []
            elif e["action"] == "unlearn":
                found.append(saving.request_of(e, self.status.size))
        return found

    def _flush_log(self) -> None:
        """Put the latest requests into entries for the ledger."""
        for named, left, when in self._log:
            ids = np.atleast_1d(np.asarray(named, np.int64))
            if ids.size and ids[0] < 0:
                self.entries.append(entry("learn", n=left, rows=-1 - ids, time=when))
            else:
                self.entries.append(entry("unlearn", n=left, rows=ids, time=when))
        self._log = []

    def standardise(self, X: ArrayLike) -> NDArray[Any]:
        """Rows X (k, d) in the units of the data, as the model sees them: `predict` and requests by value want those.

        A model that was fitted on a file sees them standardised, one that was fitted on arrays as they are.
        """
        return self.store.standardise(self.checked(X))

    def checked(self, X: Any) -> NDArray[Any]:
        """Rows X (k, d) as finite numbers, the columns of a frame in the order of the fit."""
        return check_rows(in_order(X, self.columns), self.model.d)

    # Model -----------------------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities (n, C) of rows as the model sees them (rows of a file: standardised)."""
        model, _, theta, rows = self._seen(X)
        return class_probabilities(model, theta, rows)

    def _seen(self, X: Any) -> tuple[Any, list[Any], NDArray[np.float64], Any]:
        """(model, classes, theta) of one moment, and X with its columns in the order of the fit."""
        with self._lock:
            model, classes, theta, columns = self.model, self.classes_, self.theta, self.columns
        return model, classes, theta, in_order(X, columns)

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class, or the expected target, of each row of X (n, d)."""
        return predictions(*self._seen(X))

    # Disk and copies -------------------------------------------------------------------------------------------------

    def save(self, directory: str | Path, *, defer: bool = False, request_id: str | None = None) -> None:
        """Write the state and the ledger to `directory`: all of it or nothing.

        What is due is done first, so that nothing that is saved gives a forgotten row back. defer=True leaves that for
        later, and into the directory this was loaded from or saved to writes only the latest requests (a journal).
        """
        with self._lock:
            saving.save(self, _path(directory), defer=defer, request_id=request_id)

    @classmethod
    def load(cls, directory: str | Path, data: str | Path | None = None) -> L2UL:
        """Read a saved state; `data` names the dataset file if it has moved."""
        return saving.load(cls, _path(directory), data)

    def copy(self) -> L2UL:
        """An independent unlearner in the same state."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> L2UL:
        made = object.__new__(type(self))
        with self._lock:
            made.__setstate__({k: copy.deepcopy(v, memo) for k, v in self.__dict__.items() if k != "_lock"})
        return made

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            state = {key: value for key, value in self.__dict__.items() if key != "_lock"}
            return copy.deepcopy(state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def __sklearn_is_fitted__(self) -> bool:
        return "head" in self.__dict__


def _path(directory: Any) -> Path:
    if not isinstance(directory, str | Path) or "\0" in str(directory):
        raise UserError(f"a directory must be a path, got {directory!r}")
    return Path(directory)


def _single(rows: Any) -> int | None:
    """The number of the only row that is named by a list of one plain int, else None."""
    if type(rows) is list and len(rows) == 1 and type(rows[0]) is int and -1 <= rows[0] < 2**62:
        return rows[0]
    return None


def _checked_weights(weights: ArrayLike | None, n: int) -> NDArray[np.float64] | None:
    """(n,) float64, finite and at least 0, one of them positive; our own copy."""
    if weights is None:
        return None
    refuse_mask("sample_weight", weights)
    try:
        found = np.array(weights, np.float64)
    except Exception as error:
        raise UserError(f"sample_weight must hold numbers: {first_line(error)}") from None
    if found.shape != (n,):
        raise UserError(f"sample_weight must have {n} numbers, one for each row, got shape {found.shape}")
    if not np.isfinite(found).all() or (found < 0).any():
        raise UserError("sample_weight must be finite and at least 0")
    if n and not found.any():
        raise UserError("all rows have weight 0: there is nothing to train on")
    return found
