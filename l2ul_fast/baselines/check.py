"""Rules that every unlearning method must obey, built in or a plug-in, as checks that its author can run.

from l2ul_fast.baselines.check import check_method

assert check_method(Method) == []
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.baselines.base import Answer, Ids, Vector
from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import ArrayTable, Block

#: Largest difference of predictions that may be rounding, and that solvers of one objective may leave.
ROUNDING, SOLVED = 1e-10, 1e-8
#: A number that no other row has, to find copies of a row by.
MARK = 1.23456789
NOTHING = np.empty(0, np.int64)


def check_method(
    make: Callable[[], Any],
    table: ArrayTable | None = None,
    model: Any = None,
    forget: ArrayLike | None = None,
    seed: int = 0,
) -> list[str]:
    """Findings about an unlearning method, one sentence each; an empty list means that it obeys every rule.

    Parameters
    ----------
    make : callable
        Returns a new, unprepared method: its class, or a `functools.partial` of it with quick options.
    table : ArrayTable, optional
        Training rows, float32 or float64, none hidden; 200 rows of two classes if left out.
    model : optional
        The model A that is trained; logistic regression on the features of the table if left out.
    forget : array_like of int, optional
        At least four row numbers in no particular order, of which some rows of every class are no part.
    seed : int
        Passed to `prepare`.

    Returns
    -------
    list of str
        "<rule>: <what the method did instead>".
    """
    table = _blobs() if table is None else table
    model = LogisticModel(table.d, len(table.classes)) if model is None else model
    ids = np.asarray(np.linspace(table.n - 1, 0, 8) if forget is None else forget, np.int64)
    case, findings = _Case(make, table, model, ids, seed), []
    for rule in RULES:
        name = (rule.__doc__ or "").rstrip(".")
        try:
            findings += [f"{name}: {finding}" for finding in rule(case)]
        except Exception as error:  # the next rule may still have something to say
            findings.append(f"{name}: {type(error).__name__}: {error}")
    return findings


@dataclasses.dataclass
class _Case:
    """A method to make, the problem it is checked on, and a prepared one that is only asked."""

    make: Callable[[], Any]
    table: ArrayTable
    model: Any
    forget: Ids
    seed: int

    def prepared(self, table: Any = None) -> Any:
        method = self.make()
        method.prepare(self.table if table is None else table, self.model, self.seed)
        return method

    @cached_property
    def asked(self) -> Any:
        return self.prepared()

    @cached_property
    def answer(self) -> NDArray[np.float64]:
        """Predictions of the answer to the request."""
        return self.predict(self.asked.unlearn(self.forget))

    @cached_property
    def others(self) -> Ids:
        """Two rows that the request does not name."""
        return np.setdiff1d(self.table.ids(), self.forget)[-2:]

    def predict(self, answer: Answer) -> NDArray[np.float64]:
        return np.array(answer.predict_proba(self.table.X))

    def copy(self) -> ArrayTable:
        return ArrayTable(self.table.X.copy(), self.table.y.copy(), self.table.classes)


def _refused(call: Callable[[], Any], what: str) -> Iterator[str]:
    """A finding unless the call raises a UserError."""
    try:
        call()
    except UserError:
        return
    except Exception as error:
        yield f"{what} ends with {type(error).__name__} ({error}), not with a UserError"
    else:
        yield f"{what} is not refused"


def verbs(case: _Case) -> Iterator[str]:
    """A method has a name and refuses requests before it is prepared."""
    method = case.make()
    if not (isinstance(method.name, str) and method.name.strip("?")):
        yield f"the name is {method.name!r}"
    yield from _refused(lambda: method.unlearn([0]), "a request before prepare")


def answers(case: _Case) -> Iterator[str]:
    """An answer has theta, or None for an ensemble, and probabilities (n, C) of any rows."""
    for rows in (NOTHING, case.forget):
        answer = case.asked.unlearn(rows)
        if answer.theta is not None and np.shape(answer.theta) != (case.model.size,):
            yield f"theta has shape {np.shape(answer.theta)}, not {(case.model.size,)}"
        p = case.predict(answer)
        if p.shape != (len(case.table.X), len(case.table.classes)):
            yield f"probabilities have shape {p.shape}"
        elif not (np.isfinite(p).all() and (p >= 0).all() and np.abs(p.sum(axis=1) - 1).max() < 1e-9):
            yield "probabilities do not sum to 1"


def empty_request(case: _Case) -> Iterator[str]:
    """An empty request is answered with the model of all rows, also after another request was asked."""
    method = case.prepared()
    before = case.predict(method.unlearn(NOTHING))
    method.unlearn(case.forget)
    for rows in (NOTHING, NOTHING.tolist()):
        answer = method.unlearn(rows, commit=True)
        if not np.array_equal(case.predict(answer), before):
            yield "the answer changed"
        if answer.theta is not None and not np.array_equal(answer.theta, getattr(method, "theta", answer.theta)):
            yield "the answer's theta is not the method's"


def order_of_rows(case: _Case) -> Iterator[str]:
    """The order and the kind of the row numbers do not matter."""
    for rows in (case.forget[::-1], np.sort(case.forget).astype(np.uint16), case.forget.tolist()):
        far = np.abs(case.predict(case.asked.unlearn(rows)) - case.answer).max()
        if not far <= ROUNDING:
            yield f"predictions differ by {far:.1e}"


def refusals(case: _Case) -> Iterator[str]:
    """Requests that make no sense are refused with a UserError."""
    n = len(case.table.X)
    for rows, what in (
        ([3, 3], "a row asked for twice"),
        ([n], "an unknown row"),
        ([-1], "a negative row number"),
        (np.arange(n), "a request for all rows"),
        ([0.5], "a fraction"),
        ([[1, 2]], "a matrix"),
    ):
        yield from _refused(lambda rows=rows: case.asked.unlearn(rows), what)  # type: ignore[misc]
    hidden = case.prepared(case.table.without(case.forget))
    yield from _refused(lambda: hidden.unlearn(case.forget[:1]), "a row hidden in the table")


def copies(case: _Case) -> Iterator[str]:
    """Writing into an answer does not reach the method."""
    method = case.prepared()
    for commit in (False, True):
        for rows in (NOTHING, case.forget):
            answer = method.unlearn(rows, commit=commit)
            if answer.theta is not None:
                answer.theta[:] = np.nan
    if not np.isfinite(case.predict(method.unlearn(NOTHING))).all():
        yield "theta of the answer is the method's own array"


def seeds(case: _Case) -> Iterator[str]:
    """Prepared again with the same seed, it gives the same answer."""
    if not np.array_equal(case.predict(case.prepared().unlearn(case.forget)), case.answer):
        yield "predictions differ"


def commits(case: _Case) -> Iterator[str]:
    """A committed answer is the one that was asked for, and its rows are gone."""
    method = case.prepared()
    committed = case.predict(method.unlearn(case.forget, commit=True))
    if not np.array_equal(committed, case.answer):
        yield "the committed answer is another one"
    yield from _refused(lambda: method.unlearn(case.forget[:1]), "a row that left")
    if getattr(method, "n", left := case.table.n - len(case.forget)) != left:
        yield f"n is {method.n} when {left} rows are left"
    size = method.state_bytes()
    if not (isinstance(size, int) and size > 0):
        yield f"state_bytes() is {size!r}"


def reads_no_forgotten_row(case: _Case) -> Iterator[str]:
    """Forgotten rows may hold anything once they have left."""
    table = case.copy()
    method = case.prepared(table)
    method.unlearn(case.forget, commit=True)
    before = case.predict(method.unlearn(case.others))
    table.X[case.forget] = 1e6
    if not np.array_equal(case.predict(method.unlearn(case.others)), before):
        yield "a later answer depends on them"


def keeps_no_forgotten_row(case: _Case) -> Iterator[str]:
    """No array that is kept holds a copy of a forgotten row."""
    table, row = case.copy(), case.forget[0]
    table.X[row, -1] = MARK
    method = case.prepared(table)
    method.unlearn(case.forget, commit=True)
    mark = table.X[row, -1]
    for name, value in vars(method).items():
        if any((array == mark).any() for array in kept_arrays(value, type(method)) if array is not table.X):
            yield f"{name} does"


def exactness(case: _Case) -> Iterator[str]:
    """A method that calls itself exact answers as if it had never seen the rows, at once or in turn."""
    if not getattr(case.asked, "exact", False):
        return
    fresh = case.predict(case.prepared(case.table.without(case.forget)).unlearn(NOTHING))
    turns = case.prepared()
    turns.unlearn(case.forget[:3], commit=True)
    in_turn = case.predict(turns.unlearn(case.forget[3:], commit=True))
    for what, found in (("an answer", case.answer), ("a second answer", in_turn)):
        far = np.abs(found - fresh).max()
        if not far <= SOLVED:
            yield f"predictions of {what} differ by {far:.1e} from training without the rows"


def streams(case: _Case) -> Iterator[str]:
    """Rows are read from any table, block by block, or the method says in_memory and refuses other tables."""
    table = _Streamed(case.table)
    if getattr(case.make(), "in_memory", False):
        yield from _refused(lambda: case.prepared(table), "a table that is not in memory")
        return
    method = case.prepared(table)
    far = np.abs(case.predict(method.unlearn(case.forget, commit=True)) - case.answer).max()
    if not far <= SOLVED:
        yield f"predictions differ by {far:.1e} from those of rows in memory"
    case.predict(method.unlearn(case.others))


RULES: tuple[Callable[[_Case], Iterator[str]], ...] = (
    verbs,
    answers,
    empty_request,
    order_of_rows,
    refusals,
    copies,
    seeds,
    commits,
    reads_no_forgotten_row,
    keeps_no_forgotten_row,
    exactness,
    streams,
)


def kept_arrays(thing: Any, owner: type, seen: set[int] | None = None) -> Iterator[NDArray[Any]]:
    """Arrays within reach, through containers and objects of l2ul_fast, l2ul_kernels or the owner's package."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    homes = ("l2ul_fast", "l2ul_kernels", owner.__module__.split(".")[0])
    parts: list[Any] = []
    if isinstance(thing, np.ndarray):
        yield thing
    elif isinstance(thing, dict):
        parts = list(thing.values())
    elif isinstance(thing, list | tuple | set):
        parts = list(thing)
    elif dataclasses.is_dataclass(thing):
        parts = [getattr(thing, field.name) for field in dataclasses.fields(thing)]
    elif hasattr(thing, "__dict__") and type(thing).__module__.split(".")[0] in homes:
        parts = list(vars(thing).values())
    for part in parts:
        yield from kept_arrays(part, owner, seen)


class _Streamed:
    """A table that is not an ArrayTable: rows come in blocks that are overwritten, as from a file."""

    def __init__(self, table: Any) -> None:
        self._table, self.y, self.label, self.dtype = table, table.y, "streamed", table.X.dtype
        self.n, self.d, self.classes = table.n, table.d, table.classes

    def blocks(self) -> Iterator[Block]:
        rows = self.ids()
        for part in np.array_split(rows, -(-len(rows) // 64)):
            X, y = self._table.take(part)
            block = np.array(X)
            yield block, np.array(y)
            block[:] = np.nan

    def take(self, ids: Ids, out: NDArray[Any] | None = None) -> Block:
        return self._table.take(ids, out)  # type: ignore[no-any-return]

    def ids(self) -> Ids:
        return np.asarray(self._table.ids())

    def without(self, ids: Ids) -> _Streamed:
        return _Streamed(self._table.without(ids))


def _blobs() -> ArrayTable:
    """200 rows of two overlapping classes, three features."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(200, dtype=np.uint8) % 2)
    X: Vector = rng.normal(size=(200, 3)) + y[:, None]
    return ArrayTable(X.astype(np.float32), y, [0, 1])
