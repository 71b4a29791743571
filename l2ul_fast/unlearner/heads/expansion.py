"""The default head: a third-order expansion of the data at one coarse point, held as integer sums.

At an anchor g the sums G, H, T of the rows' first, second and third derivatives are kept, each row's term rounded to
fixed point once. Without a row all three lose its term, exactly. The model is g + delta, where delta solves

    G + n lam P (g + delta) + H delta + T[delta, delta] / 2 = 0        (P: 1 on coefficients, 0 on the intercept)

So the answer depends on the set of rows that stay, not on how they were forgotten, and the state after a request equals
that of somebody who never had the rows, byte for byte, as long as both expand at the same g. That is why g is coarse:
the optimum rounded to a grid, which a single row rarely moves. When it does move, the answer is still given, and the
state is `due`: one pass over the rows that stay expands at the new g.

What depends on the data besides the sums is coarse as well: powers of two above each column's largest value, and near
its root mean square, read from counts and integer sums, so that a request knows when they change.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.models.fit import Fit
from l2ul_fast.tables import Table
from l2ul_fast.unlearner.heads.base import Arrays, Head, OutOfScale, Report, Rows
from l2ul_fast.unlearner.passes import NO_WEIGHTS, Columns, LocalPasses, Passes, Terms
from l2ul_fast.workers import Workers
from l2ul_kernels.codegen.jit import ensure_compiled
from l2ul_kernels.linear import integer_sums as ints
from l2ul_kernels.linear.losses import LOGISTIC, LOGISTIC_BOUNDS, NAMES, SQUARED
from l2ul_kernels.request import expansion as kernels
from l2ul_kernels.request.claims import DONE

Vector = NDArray[np.float64]
Ids = NDArray[np.int64]

#: Widths of the grid are WIDTH / (n^(1/3) p^(1/2)) over a column's root mean square, with at least FEWEST for p, and
#: narrower where the column's largest value is more than 2^REACH_BITS times that. rho of one row is a constant times
#: n h^3, hence the cube root; the constants keep it below .004 on seven data sets (`l2ul bench unlearn`).
WIDTH, FEWEST, REACH_BITS = 2.0, 16, 4
#: The error of the root, relative to delta, is about v / 8 + a / 4 (see `nonlinearity`): truth is at most 5 times it in
#: 99 % of 626 requests of nine kinds. Where there is no root, it is NO_ROOT_ERROR at least.
V_SHARE, A_SHARE, NO_ROOT_ERROR = 1 / 8, 1 / 4, 0.3
#: delta moves this share of its length before the error is judged anew.
NEAR = 0.25
#: The optimum is this many times as uncertain where its distance from the root was never known, as after loading.
UNKNOWN = 4.0
#: How much more curved other directions than delta's are taken to be.
OTHER_DIRECTIONS = 2.0
#: Bits by which the grid is narrower than that rule where its point is too far from the optimum.
FINER = (0, 3, 6, 12, 24, 48)
#: An expansion is at the optimum if it is as near as this, as a share of its length.
FOUND = 1e-8
#: A distance from the reference, as a share of its length, that is rounding.
ROUNDING = 1e-12
#: Columns beyond 2 to the plus or minus this cannot be scaled.
LARGEST_EXPONENT = 300
#: Parameters up to which the Hessian is kept, and bytes of T, as a share of the rows' bytes, up to which T is.
MOST_PARAMETERS, THIRD_SHARE = 2000, 1.0
#: Parameters up to which T is kept whatever the number of rows (1.4 MB).
SMALL_PARAMETERS = 100

_REASONS = {
    kernels.CELL: "the optimum left its cell of the grid",
    kernels.SCALE_CHANGED: "the last row in the upper half of a column's scale left",
    kernels.WIDTH_CHANGED: "the grid has another width for the rows that stay",
    kernels.NO_ROOT: "the expansion does not reach the optimum of the rows that stay",
}


class Setup(NamedTuple):
    """The choices of an expansion.

    penalty: its weight is penalty[0] + penalty[1] * sum of weights. classes: 0 for models of numbers. where: how the
    anchor was chosen, "grid", "given" or "optimum". weighted: whether rows have weights.
    """

    model: Any
    order: int
    classes: int
    penalty: tuple[float, float]
    where: str
    weighted: bool

    @property
    def loss(self) -> int:
        """Its number among the kernels'."""
        return NAMES.index(self.model.loss_name)

    @property
    def bounded(self) -> bool:
        """Whether the loss itself bounds the derivatives of a row."""
        return self.loss == LOGISTIC and not self.weighted


class Expansion(Head):
    """Integer sums of a linear model (binary logistic, squared or Poisson loss) at an anchor, and the root delta.

    `sums` (int64), `anchor` (p,) and `exponents` (p + 5,) are the whole state: functions of the rows that stay.
    """

    kind: ClassVar[str] = "expansion"
    exact_sums: ClassVar[bool] = True
    penalty: tuple[float, float]

    def __init__(
        self, setup: Setup, anchor: Vector, exponents: NDArray[np.int64], sums: NDArray[np.int64] | None = None
    ) -> None:
        """sums: those of no rows if None."""
        self.model, order, self.classes, self.penalty, self.where, self.weighted = setup
        self.setup, self.loss, self.order, self.exponents = setup, setup.loss, order, exponents
        size = ints.sums_size(anchor.size, self.classes, order)
        self.sums = np.zeros(size, np.int64) if sums is None else sums
        self._first_error: float | None = None  # of the root at the expansion, where the optimum is known
        # error of the answer that the expansion itself gave, and how far the model had moved then
        self._answered: float | None = None
        self._moved = 0.0
        self.finer, self.for_rtol = 0, False
        self.tier = self._instant = f"order {order}"
        self.knows_error = order == 3 or self.loss == SQUARED
        p = self.p = anchor.size
        self.state = kernels.new_state(p, order)
        self.work = np.zeros((kernels.WORK + p, kernels.width_of(p)))
        facts = self.state[kernels.FACTS]
        scales = _scales(exponents, self.weighted)
        facts[: ints.SCALES] = scales
        facts[kernels.LOSS], facts[kernels.ORDER], facts[kernels.CLASSES] = self.loss, order, self.classes
        facts[kernels.COUNTED] = not setup.bounded
        facts[kernels.CONSTANT], facts[kernels.PER_WEIGHT] = self.penalty
        facts[kernels.UNIT] = 1.0 / scales[ints.WEIGHT]
        self.state[kernels.ANCHOR, :p] = anchor
        self.state[kernels.STRENGTH, : p - 1] = 1.0
        self.state[kernels.SCALE, :p] = np.ldexp(1.0, exponents[:p])
        self.state[kernels.INVERSE_SCALE, :p] = np.ldexp(1.0, -exponents[:p])

    # Make ------------------------------------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        model: Any,
        table: Table,
        theta: Vector,
        *,
        order: int = 3,
        anchor: str | Vector = "grid",
        penalty: tuple[float, float] | None = None,
        report: Report | None = None,
        passes: Passes | None = None,
        enough: float = np.inf,
        uncertain: float = 0.0,
    ) -> Expansion:
        """Expand at the grid point of the optimum `theta` of model over the rows of table, at theta itself ("optimum")
        or at a given anchor (p,). penalty: see Setup, lam times the sum of weights if None.

        The grid is made finer where the polynomial at its point has no root, or one that is farther than `enough` from
        theta. uncertain: how far theta may be from the optimum; where that decides between two grid points, theta is
        found by integer sums, so that all who have these rows take the same.
        """
        report = report or (lambda what, done, total: None)
        p = model.size
        refuse_many(p)
        passes = LocalPasses(table) if passes is None else passes
        report("scale the columns", 0, 3)
        found = passes.columns()
        rows, weighted = found.rows, getattr(table, "weights", None) is not None
        exponents = _column_exponents(found, weighted)
        report("scale the columns", 1, 3)
        where = anchor if isinstance(anchor, str) else "given"
        classes = len(table.classes) if model.loss_name == NAMES[LOGISTIC] else 0
        setup = Setup(model, order, classes, (0.0, model.lam) if penalty is None else penalty, where, weighted)
        if where != "grid":
            point = np.array(theta if where == "optimum" else anchor, np.float64)
            if point.shape != (p,) or not np.isfinite(point).all():
                raise UserError(f"the anchor must have {p} finite numbers, got shape {point.shape}")
            report("sum the derivatives", 2, 3)
            made = cls.at(setup, point, exponents, passes)
            made.settle(theta)
            return made
        moments = passes.moments(np.ldexp(1.0, -exponents[:p]), float(np.ldexp(1.0, int(exponents[-1]))))
        report("sum the derivatives", 2, 3)
        weight = float(rows) if not weighted else total_weight_of(table)
        exact: Vector | None = None
        for finer in FINER:
            widths = np.ldexp(1.0, _width_exponents(moments, rows, exponents) - finer)
            near = np.abs(theta / widths - np.floor(theta / widths) - 0.5) * widths <= uncertain
            if exact is None and near.any():
                exact = theta = _by_sums(setup, passes, weight, theta)
            point = np.rint(theta / widths) * widths + 0.0  # no -0.0, which would tell the sign of theta
            made = cls.at(setup, point, exponents.copy(), passes)
            made.finer = finer
            made.settle(theta)
            if not made.rootless and made.offset <= enough:
                return made
        facts = made.state[kernels.FACTS]  # no pass would do better
        facts[kernels.DUE] = int(facts[kernels.DUE]) & ~kernels.NO_ROOT
        return made

    @classmethod
    def at(cls, setup: Setup, point: Vector, exponents: NDArray[np.int64], passes: Passes) -> Expansion:
        """Sum all rows at a point; those exponents that depend on it are filled in. delta is not solved for yet."""
        exponents[-5:-2] = LOGISTIC_BOUNDS
        if not setup.bounded:
            exponents[-5:-2] = _exponents_of(passes.derivatives(setup.loss, point))
        made = cls(setup, point, exponents)
        made.sums = passes.sums(made.terms)
        return made

    @property
    def terms(self) -> Terms:
        """What one row adds to the sums."""
        p, state, counted = self.p, self.state, not self.setup.bounded
        point, inverse_scale = state[kernels.ANCHOR, :p], state[kernels.INVERSE_SCALE, :p]
        scales = state[kernels.FACTS, : ints.SCALES]
        return Terms(self.loss, self.order, counted, point, inverse_scale, scales, self.classes)

    def add(self, X: NDArray[Any], y: NDArray[Any], weights: Vector | None = None) -> None:
        """Add the terms of rows X (n, d), y (n,) to the sums; delta stays as it was."""
        self._accumulate(X, y, weights, 1)

    def revert(self, X: NDArray[Any], y: NDArray[Any], weights: Vector | None = None) -> None:
        """Take the terms of rows that were added out of the sums; delta stays as it was."""
        self._accumulate(X, y, weights, -1)

    def merge(self, other: Expansion) -> None:
        """Add the sums of other rows, made at the same anchor and scales; UserError for another anchor, and where the
        scales have no room for so many rows. Constant penalties add up."""
        same = self.kind == other.kind and self.loss == other.loss and self.sums.shape == other.sums.shape
        if not same or not np.array_equal(self.anchor, other.anchor) or self.penalty[1] != other.penalty[1]:
            raise UserError("only expansions of one loss, order, penalty and anchor can be merged: give both the same")
        if not np.array_equal(self.exponents, other.exponents) or self.weighted != other.weighted:
            raise UserError("only expansions with equal scales can be merged: sum all rows in one expansion")
        rows = int(self.sums[0]) + int(other.sums[0])
        if rows >= 1 << (62 - int(self.exponents[-1])):
            raise UserError(f"the scales have no room for {rows} rows: sum all rows in one expansion")
        changed = int(self.state[kernels.FACTS, kernels.DUE]) | int(other.state[kernels.FACTS, kernels.DUE])
        self.sums += other.sums
        self.penalty = (self.penalty[0] + other.penalty[0], self.penalty[1])
        self.setup = self.setup._replace(penalty=self.penalty)
        self.state[kernels.FACTS, kernels.CONSTANT] = self.penalty[0]
        self.settle()
        self._mark(changed & kernels.SCALE_CHANGED)

    def _accumulate(self, X: NDArray[Any], y: NDArray[Any], weights: Vector | None, sign: int) -> None:
        before = self._tops.copy() if sign < 0 else None
        ints.add_all_rows(X, y, weights, sign, self.terms, self.sums)
        if before is not None and ((before > 0) & (self._tops == 0)).any():
            self._mark(kernels.SCALE_CHANGED)

    @property
    def _tops(self) -> NDArray[np.int64]:
        at = ints.tops_at(self.classes)
        return self.sums[at : at + self.p + 4]

    def _mark(self, reason: int) -> None:
        facts = self.state[kernels.FACTS]
        facts[kernels.DUE] = int(facts[kernels.DUE]) | reason

    def settle(self, optimum: Vector | None = None) -> None:
        """Solve from the integers, and take the present model as the reference of distances and cells.

        optimum (p,): the true one of these rows, where it is known: then a request knows how far the root lies from it.
        """
        facts, p = self.state[kernels.FACTS], self.p
        facts[kernels.DUE] = 0.0
        self._set_bounds()
        self._first_error = None
        self._find_root()
        theta = self.theta
        self.state[kernels.REFERENCE, :p] = theta
        facts[kernels.NEAREST] = ROUNDING * float(np.linalg.norm(theta))
        shift = np.zeros(p) if optimum is None else optimum - theta
        if optimum is not None:
            self._first_error = float(np.linalg.norm(shift))
            if self._first_error <= FOUND * float(np.linalg.norm(optimum)):  # whatever rounding did to the root
                facts[kernels.DUE] = int(facts[kernels.DUE]) & ~kernels.NO_ROOT
        self._estimate()
        half = np.full(p, np.inf)
        if self.where == "grid" and not self.finer:  # else every request makes a new expansion due
            half = 0.5 * np.ldexp(1.0, self._widths())
        self.state[kernels.LOW, :p], self.state[kernels.HIGH, :p] = -half - shift, half - shift
        self._judge()
        if ints.fixed_point_bits(int(self.sums[0])) != self.exponents[-1]:
            self._mark(kernels.WIDTH_CHANGED)

    def _widths(self) -> NDArray[np.int64]:
        at = ints.moments_at(self.p, self.classes)
        return _width_exponents(self.sums[at : at + self.p], int(self.sums[0]), self.exponents)

    def _set_bounds(self) -> None:
        """Between which means of the columns' squares, and numbers of rows, scales and widths stay as they are."""
        p, rows, facts = self.p, int(self.sums[0]), self.state[kernels.FACTS]
        at = ints.moments_at(p, self.classes)
        scale = facts[ints.MOMENT]
        roots = _root_exponents(self.sums[at : at + p], rows, int(self.exponents[-1]))
        low, high = scale * np.exp2(2.0 * roots - 1), scale * np.exp2(2.0 * roots + 1)
        empty = self.sums[at : at + p] == 0
        low[empty], high[empty] = 0.0, np.inf
        bits = rows.bit_length()
        fewest, most = 1 << (bits - 1), (1 << bits) - 1  # for which `fixed_point_bits` is the same
        if ints.fixed_point_bits(rows) == ints.TERM_BITS:
            fewest, most = 1, (1 << (62 - ints.TERM_BITS)) - 1
        if self.where == "grid":
            k = _base_exponent(rows, p)
            unit = _unit(p)
            fewest = max(fewest, int(np.floor(unit * 2.0 ** (-3 * (k + 1)))) + 1)
            most = min(most, int(np.floor(unit * 2.0 ** (-3 * k))))
        else:
            low[:], high[:] = 0.0, np.inf
        self.state[kernels.MOMENT_LOW, :p], self.state[kernels.MOMENT_HIGH, :p] = low, high
        facts[kernels.FEWEST], facts[kernels.MOST] = fewest, most

    # Look ------------------------------------------------------------------------------------------------------------

    @property
    def anchor(self) -> Vector:
        """(p,), the point of the expansion."""
        return self.state[kernels.ANCHOR, : self.p].copy()

    @property
    def theta(self) -> Vector:
        """(p,), the model of the rows that stay."""
        return self.state[kernels.ANCHOR, : self.p] + self.state[kernels.DELTA, : self.p]

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """(C,) rows of each class; none for the losses of numbers."""
        return self.sums[2 : 2 + self.classes]

    @property
    def weight(self) -> float:
        """Sum of the rows' weights."""
        return float(self.sums[1] * self.state[kernels.FACTS, kernels.UNIT])

    @property
    def inverse(self) -> NDArray[np.float64]:
        """(p, p), of the Jacobian."""
        return self.state[kernels.INVERSE : kernels.INVERSE + self.p, : self.p]

    @property
    def due(self) -> str | None:
        """Why one pass over the rows should make a new expansion, or None."""
        facts = self.state[kernels.FACTS]
        if self.for_rtol:
            return "the point of the expansion is nearer to the optimum than usual, for an rtol"
        if (self.where == "optimum" or self.finer) and facts[kernels.DISTANCE] > 0.0:
            return "the point of the expansion is the optimum of rows of which some have left"
        bits = int(facts[kernels.DUE])
        return "; ".join(text for bit, text in _REASONS.items() if bits & bit) or None

    @property
    def rootless(self) -> bool:
        """Whether the polynomial has no root near the optimum."""
        return bool(int(self.state[kernels.FACTS, kernels.DUE]) & kernels.NO_ROOT)

    @property
    def offset(self) -> float:
        """Distance of the root from the optimum of the rows at the expansion; 0 where that is not known."""
        return self._first_error or 0.0

    @property
    def error(self) -> float | None:
        """Estimated rho of everything forgotten since the expansion: distance to the retrained model, in units of what
        retraining changes. None for order 2, which cannot know.

        If nothing was forgotten since: that of the answer which the expansion itself gave, where its optimum was known;
        0 after a fit, None after loading.
        """
        facts = self.state[kernels.FACTS]
        if facts[kernels.DISTANCE] <= facts[kernels.NEAREST]:
            return self._answered
        if not self.knows_error:
            return None
        return float((facts[kernels.BIAS] + facts[kernels.DRIFT]) / facts[kernels.DISTANCE])

    # Request ---------------------------------------------------------------------------------------------------------

    def forget_row(
        self, row: int, store: Any, status: NDArray[np.uint8]
    ) -> tuple[int, Vector, float | None, str | None]:
        """Take row number `row` of a store in memory out, compiled: (DONE or why it is refused, theta, error, due)."""
        theta, self.tier = np.empty(self.p), self._instant
        code, error, due = kernels.forget_row(
            row, store.X, store.y, store.weights, status, self.sums, self.state, theta
        )
        if code == kernels.POLISH:
            self._resolve()
            return DONE, self.theta, self.error, self.due
        known = error if self.knows_error else None
        if due or self.where == "optimum":
            return code, theta, known, self.due
        return code, theta, known, None

    @property
    def advice(self) -> str:
        return "fit again with a nearer anchor, or without one" if self.where == "given" else super().advice

    def warm(self, store: Any, status: NDArray[np.uint8]) -> None:
        """Compile, or load, what a request for rows of `store` calls; nothing changes."""
        if store.in_memory:
            ensure_compiled(("request", store.dtype, store.y.dtype), lambda: self.forget_row(-1, store, status))
        else:  # what is the same for the rows of a file and those that come with a request
            labels = np.empty(0, np.uint8 if self.classes else np.float64)
            self.revert(np.empty((0, self.p - 1), store.dtype), labels, np.empty(0) if self.weighted else None)
        state = self.state.copy()
        ensure_compiled("polish", lambda: kernels.polish(self.sums, state, self.p, self.work))

    def forget(self, rows: Rows) -> None:
        """Take these rows out, which were added before: the very same numbers."""
        self.revert(rows.X, rows.y, rows.weights)
        facts = self.state[kernels.FACTS]
        gone = float(len(rows.X) if rows.weights is None else rows.weights.sum())
        facts[kernels.LAG] += facts[kernels.PER_WEIGHT] * gone
        self.tier = self._instant
        self._resolve()

    def learn(self, rows: Rows) -> None:
        """Add rows; OutOfScale, and nothing has changed, if a term lies beyond the scale of the sums."""
        X, y, weights = rows.X, rows.y, rows.weights
        if (np.abs(X * self.state[kernels.INVERSE_SCALE, : self.p - 1]) >= 1.0).any():
            raise OutOfScale("a value lies beyond its column's scale")
        if np.any(X != 0, axis=0, where=self._tops[: self.p - 1] == 0).any():
            raise OutOfScale("a column has no scale yet")
        if not self.setup.bounded:
            largest, given = np.zeros(3), NO_WEIGHTS if weights is None else weights
            ints.derivative_extremes(X, y, given, self.loss, self.anchor, largest)
            heaviest = np.append(largest, given.max(initial=0.0))
            if (heaviest >= np.ldexp(1.0, self.exponents[-5:-1]))[: 4 if self.weighted else 3].any():
                raise OutOfScale("a derivative lies beyond its scale")
        if int(self.sums[0]) + len(X) > self.state[kernels.FACTS, kernels.MOST]:
            raise OutOfScale("the sums have no room for so many rows")
        self.add(X, y, weights)
        self._resolve()

    def refine(self, table: Any, rtol: float) -> None:
        """A new expansion at the optimum of the rows that stay, if the error is not known to be at most rtol.

        Where that of the usual grid is not, on a finer one; the state is then due.
        """
        if self.error is None or self.error > rtol:
            self.expand_anew(table, rtol=rtol)

    def refresh(self, table: Any, forgotten: Ids, report: Report, workers: Workers | None = None) -> dict[str, Any]:
        """theta as a function of the integers alone; where a new expansion is due, that is made first."""
        due = self.due
        if due is None:
            self.seal()
            return {"expanded": False, "why": None}
        if table is None:
            raise UserError(f"a new expansion is due ({due}), but the rows are not kept (store_rows=False): fit again")
        report("expand at the rows that stay", 0, 1)
        self.expand_anew(table, None if workers is None else workers.passes(table))
        return {"expanded": True, "why": due}

    def expand_anew(self, table: Any, passes: Passes | None = None, rtol: float | None = None) -> None:
        """Take over the expansion of the rows of `table`; a given anchor is kept.

        passes: who makes them, this process if None; with others the fit is made of integer sums too. rtol: the largest
        error of the new answer.
        """
        model = model_of_weight(self.model, self.penalty, table)
        if passes is not None:
            found = fit_by_sums(model, passes, len(table.classes), self.weighted)
        else:
            far = self.rootless or (self.error or 0.0) > NEAR
            found = _fit_from(model, table, (None, self.theta) if far else (self.theta, None))
        if self.where == "optimum":
            found = polished(model, table, found)
        anchor: str | Vector = self.anchor if self.where == "given" else self.where
        facts, moved = self.state[kernels.FACTS], self._moved
        if facts[kernels.DISTANCE] > facts[kernels.NEAREST]:
            moved = float(np.linalg.norm(found.theta - self.state[kernels.REFERENCE, : self.p]))

        def build(enough: float) -> Expansion:
            how: dict[str, Any] = {"order": self.order, "anchor": anchor, "penalty": self.penalty, "passes": passes}
            far = uncertainty(found, model)
            return Expansion.build(self.model, table, found.theta, enough=enough, uncertain=far, **how)

        fresh = build(np.inf)
        if rtol is not None and fresh.where == "grid" and fresh.offset > rtol * moved > 0.0:
            fresh = build(rtol * moved)
            fresh.for_rtol = True
        fresh._moved = moved
        fresh._answered = fresh.offset / moved if moved > 0.0 else 0.0
        self.__dict__.update(fresh.__dict__)
        self.tier = "new expansion"

    def _resolve(self) -> None:
        """Bring delta to the root of the present sums."""
        if not kernels.polish(self.sums, self.state, self.p, self.work):
            self._find_root()
        self._estimate()
        self._judge()

    def _find_root(self) -> None:
        """delta from the integers alone."""
        if not kernels.solve(self.sums, self.state, self.p, self.work):
            self._mark(kernels.NO_ROOT)

    def _estimate(self) -> None:
        """How wrong the root is as an answer, from the integers and delta, and from its error at the expansion."""
        facts, p = self.state[kernels.FACTS], self.p
        v, a, curved = kernels.nonlinearity(self.sums, self.state, p, self.work)
        share = 0.0 if self.loss == SQUARED else V_SHARE * v + A_SHARE * a
        if not v >= 0.0 or not np.isfinite(share) or self._is_rounding():
            share = np.inf
            self._mark(kernels.NO_ROOT)
        if int(facts[kernels.DUE]) & kernels.NO_ROOT:
            share = max(share, NO_ROOT_ERROR)
        delta = float(np.linalg.norm(self.state[kernels.DELTA, :p]))
        moved = float(np.linalg.norm(self.theta - self.state[kernels.REFERENCE, :p]))
        # where the error of the expansion itself is known, only what came since is estimated
        facts[kernels.BIAS] = share * delta if self._first_error is None else self._first_error + share * moved
        # how uncertain the optimum is now, and until the error is judged anew
        if self.order == 2 and self.loss != SQUARED:
            share = max(share, 0.5 * v**0.5)
        self._uncertain = UNKNOWN * share * delta if self._first_error is None else share * moved
        facts[kernels.MARGIN] = max(self._uncertain, share * NEAR * delta)
        facts[kernels.FARTHEST] = max(2 * moved, NEAR * delta)
        facts[kernels.CURVATURE] = OTHER_DIRECTIONS * curved / 2

    def _is_rounding(self) -> bool:
        """Whether the curvature that is left is no more than what rounding the rows' terms may have made."""
        at = ints.moments_at(self.p, self.classes) + 2 * self.p + ints.pairs_of(self.p) - 1
        return bool(self.sums[at] <= int(self.sums[0]))

    def _judge(self) -> None:
        """Whether a new expansion is due, right after `_estimate`: an optimum that has not moved is in its cell."""
        facts = self.state[kernels.FACTS]
        margin, facts[kernels.MARGIN] = facts[kernels.MARGIN], self._uncertain
        kernels.judge(self.sums, self.state, self.p)
        facts[kernels.MARGIN] = margin

    def canonical(self) -> Vector:
        """theta as a function of the integers alone; delta is set to it. What is due was decided by the requests."""
        self._find_root()
        self._estimate()
        return self.theta

    def seal(self) -> None:
        """`canonical`, and nothing in memory tells any more of rows that left. Only for a state that is not due."""
        self.settle()
        facts = self.state[kernels.FACTS]  # that nothing is due was known better before
        facts[kernels.DUE] = 0.0
        for scratch in (kernels.ROW, kernels.FACTORS, kernels.STEP, kernels.PRODUCT):
            self.state[scratch] = 0.0
        self.state[kernels.INVERSE + self.p :] = 0.0
        self.work[:] = 0.0
        self._answered, self._moved = None, 0.0

    # Keep ------------------------------------------------------------------------------------------------------------

    def arrays(self) -> Arrays:
        return {"expansion.sums": self.sums, "expansion.anchor": self.anchor, "expansion.exponents": self.exponents}

    def facts(self) -> dict[str, Any]:
        return {
            "order": self.order,
            "classes": self.classes,
            "where": self.where,
            "penalty": list(self.penalty),
            "weighted": self.weighted,
            "finer": self.finer,
            "for_rtol": self.for_rtol,
            "due": int(self.state[kernels.FACTS, kernels.DUE]),
        }

    @classmethod
    def from_arrays(cls, model: Any, facts: dict[str, Any], arrays: Arrays) -> Expansion:
        anchor, sums = np.array(arrays["expansion.anchor"]), np.array(arrays["expansion.sums"])
        exponents = np.array(arrays["expansion.exponents"])
        p, order, classes = model.size, int(facts["order"]), int(facts["classes"])
        fits = order in (2, 3) and facts["where"] in ("grid", "given", "optimum") and classes in (0, model.n_classes)
        fits = fits and sums.dtype == np.int64 and sums.shape == (ints.sums_size(p, classes, order),)
        fits = fits and anchor.shape == (p,) and bool(np.isfinite(anchor).all())
        fits = fits and exponents.dtype == np.int64 and exponents.shape == (p + 5,)
        if not fits or np.abs(exponents).max() > LARGEST_EXPONENT or not 1 <= exponents[-1] <= ints.TERM_BITS:
            raise ValueError("the sums of the expansion, which do not fit each other")
        if sums[0] < 1 or (classes and sums[2 : 2 + classes].sum() != sums[0]):
            raise ValueError("the sums of the expansion, whose rows do not add up")
        penalty = (float(facts["penalty"][0]), float(facts["penalty"][1]))
        setup = Setup(model, order, classes, penalty, facts["where"], bool(facts["weighted"]))
        made = cls(setup, anchor, exponents, sums)
        made.finer, made.for_rtol = int(facts.get("finer", 0)), bool(facts.get("for_rtol", False))
        if made.finer not in FINER:
            raise ValueError("the grid of the expansion, which is none of the known ones")
        made.settle()
        # whether the optimum is in its cell, and how far the root is from it, was known better when this was saved
        known = kernels.CELL | kernels.NO_ROOT
        made.state[kernels.FACTS, kernels.DUE] = int(made.state[kernels.FACTS, kernels.DUE]) & ~known
        made._mark(int(facts["due"]) & 15)
        if facts.get("saved_due") and made.where == "optimum":  # distances count from there, so that it stays due
            made.state[kernels.REFERENCE, :p] = made.anchor
            kernels.judge(made.sums, made.state, p)
        return made


def _fit_from(model: Any, table: Any, starts: tuple[Vector | None, Vector | None]) -> Fit:
    """The fit from the first start, and from the second where that does not get there; None: from the beginning."""
    try:
        found: Fit = model.fit(table, start=starts[0])
    except UserError:
        found = model.fit(table, start=starts[1])
    return found


def uncertainty(found: Fit, model: Any) -> float:
    """How far the parameters of a fit may be from the optimum, from its gradient and the least curvature."""
    least = model.lam if found.hessian is None else max(float(np.linalg.eigvalsh(found.hessian)[0]), 1e-300)
    return 2.0 * found.gradient_norm * found.theta.size**0.5 / least


def _by_sums(setup: Setup, passes: Passes, weight: float, theta: Vector) -> Vector:
    """The optimum by integer sums, or theta where they do not lead there."""
    changed = copy.copy(setup.model)
    changed.lam = setup.penalty[0] / weight + setup.penalty[1]
    try:
        return fit_by_sums(changed, passes, setup.classes, setup.weighted).theta
    except UserError:
        return theta


def total_weight_of(table: Any) -> float:
    """Sum of the weights of the visible rows."""
    weights = getattr(table, "weights", None)
    return float(table.n if weights is None else weights[table.ids()].sum())


def model_of_weight(model: Any, penalty: tuple[float, float], table: Any) -> Any:
    """The model whose penalty, in units of the mean loss over the rows of table, is the one asked for."""
    if penalty[0] == 0.0:
        return model
    changed = copy.copy(model)
    changed.lam = penalty[0] / total_weight_of(table) + penalty[1]
    return changed


def polished(model: Any, table: Any, found: Any) -> Any:
    """A fit iterated until its gradient stops falling: the optimum down to rounding."""
    return model.fit(table, start=found.theta, tol=0.0)


def refuse_many(p: int) -> None:
    """UserError where not even the Hessian can be kept."""
    if p > MOST_PARAMETERS:
        raise UserError(
            f"{p} parameters: order=2 and a given anchor keep integer sums, of {MOST_PARAMETERS} parameters at most: "
            "leave `order` and `anchor` out"
        )


def third_fits(p: int, table: Table) -> bool:
    """Whether T takes less memory than the rows, or little anyway."""
    row_bytes = table.n * table.d * table.dtype.itemsize
    return p <= SMALL_PARAMETERS or 8 * p * (p + 1) * (p + 2) // 6 <= THIRD_SHARE * row_bytes


def _exponents_of(largest: NDArray[np.float64]) -> NDArray[np.int64]:
    """e with |value| < 2^e, as small as possible; 0 for zeros."""
    if not np.isfinite(largest).all():
        raise UserError("values of the data are too large for the expansion's fixed point: standardise the columns")
    exponents = np.frexp(largest)[1].astype(np.int64)
    if np.abs(exponents).max(initial=0) > LARGEST_EXPONENT:
        raise UserError(
            f"values of {largest.max():.1e} or {largest[largest > 0].min():.1e} are beyond the fixed point of the "
            "expansion: standardise the columns"
        )
    return exponents


def _column_exponents(found: Columns, weighted: bool) -> NDArray[np.int64]:
    """(p + 5,): columns, e, w, c (not known yet), weights, and the bits behind the binary point of the sums."""
    d = found.largest.size
    exponents = np.zeros(d + 6, np.int64)
    exponents[:d] = _exponents_of(found.largest)
    exponents[d] = 1  # the intercept's 1 is below 2^1
    if weighted:
        exponents[-2] = _exponents_of(np.array([found.heaviest]))[0]
    exponents[-1] = ints.fixed_point_bits(found.rows)
    return exponents


def _scales(exponents: NDArray[np.int64], weighted: bool) -> Vector:
    """The factors that make integers of terms."""
    first, second, cubic, weight, bits = (int(e) for e in exponents[-5:])
    third = min(ints.THIRD_BITS, bits)
    columns = third // 2
    scales = np.zeros(ints.SCALES)
    scales[ints.MOMENT] = np.ldexp(1.0, bits)
    scales[ints.FIRST], scales[ints.SECOND] = np.ldexp(1.0, bits - first), np.ldexp(1.0, bits - second)
    scales[ints.THIRD], scales[ints.COLUMN] = np.ldexp(1.0, third - columns - cubic), np.ldexp(1.0, columns)
    scales[ints.HALF_THIRD] = np.ldexp(0.5, third - columns)
    scales[ints.WEIGHT] = np.ldexp(1.0, bits - weight) if weighted else 1.0
    return scales


def fit_by_sums(model: Any, passes: Passes, classes: int, weighted: bool = False, tol: float = 1e-10) -> Fit:
    """The minimiser, by Newton's method on integer sums of order 2: whoever adds them up, and in whatever order, gets
    the same bits. Steps are halved until the gradient falls."""
    exponents, p = _column_exponents(passes.columns(), weighted), model.size
    classes = classes if model.loss_name == NAMES[LOGISTIC] else 0
    setup = Setup(model, 2, classes, (0.0, model.lam), "given", weighted)
    theta, step, before = np.zeros(p), np.zeros(p), np.inf
    for k in range(100):
        at = Expansion.at(setup, theta, exponents.copy(), passes)
        gradient = np.zeros(p)
        kernels.residual(at.sums, at.state, p, 2, gradient)
        norm = float(np.abs(gradient).max()) / at.weight
        if not norm < before and np.abs(step).max() > 1e-12 * np.abs(theta).max():
            step /= 2
            theta = theta - step
            continue
        before = norm
        if norm <= tol:
            return Fit(theta, norm, k, True, None, float("nan"))
        at._find_root()
        step = at.theta - theta
        theta = at.theta
    raise UserError(
        f"the model did not converge: the gradient norm is {before:.1e}; standardise the features or raise lam"
    )


def _root_exponents(moments: NDArray[np.int64], rows: int, bits: int) -> NDArray[np.int64]:
    """(p,) of the columns' root mean squares in units of their scales, rounded: in [2^(k - 1/2), 2^(k + 1/2))."""
    mean = moments / max(rows, 1) / 2.0**bits
    _, exponent = np.frexp(2.0 * np.where(moments > 0, mean, 0.5))  # 2 mean in [2^(2k), 2^(2k + 2))
    return (exponent.astype(np.int64) - 1) // 2


def _unit(p: int) -> float:
    """The cube of WIDTH / p^(1/2)."""
    return float((WIDTH / np.sqrt(max(p, FEWEST))) ** 3)


def _base_exponent(rows: int, p: int) -> int:
    """Of WIDTH / (rows^(1/3) p^(1/2)), rounded down: k with 2^k <= it < 2^(k + 1)."""
    unit = _unit(p)
    k = int(np.floor(np.log2(unit / rows) / 3))
    while rows * 2.0 ** (3 * k) > unit:
        k -= 1
    while rows * 2.0 ** (3 * (k + 1)) <= unit:
        k += 1
    return k


def _width_exponents(moments: NDArray[np.int64], rows: int, exponents: NDArray[np.int64]) -> NDArray[np.int64]:
    """(p,): widths of the grid are 2 to these."""
    p = moments.size
    roots = _root_exponents(moments, rows, int(exponents[-1])) + exponents[:p]
    return _base_exponent(rows, p) + np.minimum(-roots, REACH_BITS - exponents[:p])
