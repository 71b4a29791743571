"""A = the small MLP: one hidden layer, one flat theta, log-loss plus an L2 penalty around zero or around an anchor.

theta = [W1 (h, d), b1 (h), W2 (o, h), b2 (o)], o = 1 logit for two classes, else C. Objective: mean log-loss +
lam / 2 |theta|^2 over all entries or, anchored, mu / 2 |theta - anchor|^2: the anchor makes retraining a function of
the data (the same point from any start nearby), see `fit_anchored`. An anchor lies on a coarse grid: it is a number
like mu, chosen on some rows, that one row seldom changes, and no gradient of a row can be read off it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.checks import Finite, Labels, NotNegative, Number0, Whole, Within, all_finite, checked, parameters, plain
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.models.fit import Fit, check_training, chord, finite_scores, softmax_rows, weighted
from l2ul_fast.models.scaled import ScaledRows, far_apart
from l2ul_fast.models.trust_region import trust_newton
from l2ul_kernels.mlp.adam import PairFits, mlp_fit_pairs, mlp_train
from l2ul_kernels.mlp.anchored import AnchoredPairs, mlp_anchored_pairs
from l2ul_kernels.mlp.hessian import mlp_hessian, mlp_hvp
from l2ul_kernels.mlp.model import layout, mlp_gradient, mlp_logits, mlp_size, mlp_sums
from l2ul_kernels.validate import check_matrix

Vector = NDArray[np.float64]
Progress = Callable[[int, float], None]

#: Strengths of the anchor, tried in this order by `fit_anchored`. A fourth of the first would give .1 to .2 points of
#: accuracy more, but then one Newton step is two to three times further from a retrained model.
STRENGTHS = (2e-2, 4e-2)
#: Width of the anchor's grid, about 30 times what a typical row of 4000 moves a coordinate by; costs up to .3 points.
ANCHOR_WIDTH = 0.125
#: Tried after them where none will do (rare features, few rows for many features): they cost a little accuracy. On
#: covtype (20,000 rows) cold and warm retrains met in 3 of 10 requests with a curvature of .46 mu, in all with .74.
STRONG = (8e-2, 0.16, 0.32, 0.64, 1.28)
#: Rows that Adam sees before Newton takes over on all of them.
ADAM_ROWS = 20_000


def blocks_of(rows: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Blocks (X, y) of one pass over `rows`: a tuple (X, y), or an object with `blocks()`."""
    return iter([rows]) if isinstance(rows, tuple) else rows.blocks()


class MLPModel:
    """The MLP of d features: sizes and penalty, no parameters. Methods take theta (p,) float64."""

    name = "mlp"

    @checked
    def __init__(
        self,
        d: Number0,
        n_classes: Annotated[int, Whole(2, 256)] = 2,
        h: Annotated[int, Whole(0, 10**7)] = 10,
        activation: str = "tanh",
        lam: Finite = 1e-3,
        anchor: ArrayLike | None = None,
        mu: Finite | None = None,
    ) -> None:
        if not isinstance(activation, str):
            raise UserError(f"activation must be a word, got {type(activation).__name__}")
        layout(d, h, n_classes, activation)  # refuses bad sizes
        self.d, self.n_classes, self.h, self.activation, self.lam = d, n_classes, h, activation, lam
        self.size = mlp_size(d, h, n_classes)
        if (anchor is None) != (mu is None):
            raise UserError("an anchored MLP needs both anchor and mu")
        if min(lam, lam if mu is None else mu) < 0:
            raise UserError(f"the strength of the penalty must not be negative, got lam={lam}, mu={mu}")
        self.anchor = None if anchor is None else parameters("the anchor", anchor, self.size).copy()
        if self.anchor is not None and not np.isfinite(self.anchor).all():
            raise UserError("the anchor must be finite")
        self.mu = mu

    def __repr__(self) -> str:
        penalty = f"lam={self.lam}" if self.mu is None else f"mu={self.mu}, anchored"
        return f"MLPModel({self.d}-{self.h}-{self.n_classes}, {self.activation}, {penalty})"

    def with_anchor(self, anchor: ArrayLike | None, mu: float | None) -> MLPModel:
        """The same MLP with another penalty."""
        return MLPModel(self.d, self.n_classes, self.h, self.activation, self.lam, anchor, mu)

    @property
    def _kind(self) -> dict[str, Any]:
        return {"h": self.h, "activation": self.activation, "n_classes": self.n_classes}

    @property
    def strength(self) -> float:
        return self.lam if self.mu is None else self.mu

    # ------------------------------------------------------------------------------------------ loss and derivatives

    def penalty_gradient(self, theta: Vector) -> Vector:
        theta = parameters("theta", theta, self.size)
        return self.strength * (theta if self.anchor is None else theta - self.anchor)

    def penalty(self, theta: Vector) -> float:
        away = theta if self.anchor is None else theta - self.anchor
        return 0.5 * self.strength * float(away @ away)

    def data_gradient(self, theta: Vector, X: ArrayLike, y: ArrayLike) -> Vector:
        """(p,) mean gradient of the rows' losses, without the penalty."""
        return mlp_gradient(plain("X", X), plain("y", y), parameters("theta", theta, self.size), **self._kind)

    def gradient(self, theta: Vector, X: ArrayLike, y: ArrayLike) -> Vector:
        return self.evaluate(parameters("theta", theta, self.size), (plain("X", X), plain("y", y)))[1]

    def loss(self, theta: Vector, X: ArrayLike, y: ArrayLike) -> float:
        """Mean loss with the penalty."""
        return self.evaluate(parameters("theta", theta, self.size), (finite_rows(X), plain("y", y)))[0]

    def evaluate(self, theta: Vector, rows: Any) -> tuple[float, Vector]:
        """(loss, gradient (p,)) with the penalty in one pass over `rows`."""
        n, loss, gradient = 0, 0.0, np.zeros(self.size)
        for X, y, weights in weighted(rows):
            loss += mlp_sums(X, y, theta, weights=weights, gradient_out=gradient, **self._kind)[0]
            n += len(X) if weights is None else int(weights.sum())
        if n == 0:
            raise UserError("the MLP needs at least one row")
        return loss / n + self.penalty(theta), gradient / n + self.strength * (
            theta if self.anchor is None else theta - self.anchor
        )

    def hessian(self, theta: Vector, X: ArrayLike, y: ArrayLike) -> Vector:
        """(p, p) of the mean loss with the penalty."""
        return self.hessian_of(parameters("theta", theta, self.size), (plain("X", X), plain("y", y)))

    def hessian_of(self, theta: Vector, rows: Any) -> Vector:
        """The same in one pass over `rows` (two classes; more go through p Hessian-vector products)."""
        n, H = 0, np.zeros((self.size, self.size))
        for X, y, weights in weighted(rows):
            if self.n_classes == 2:
                H += mlp_hessian(X, y, theta, self.h, self.activation, weights)
            else:
                each = np.eye(self.size)
                columns = np.stack([mlp_hvp(X, y, theta, v, weights=weights, **self._kind) for v in each])
                H += 0.5 * (columns + columns.T)
            n += len(X) if weights is None else int(weights.sum())
        return H / n + self.strength * np.eye(self.size)

    def hvp(self, theta: Vector, X: ArrayLike, y: ArrayLike, v: Vector) -> Vector:
        """Hessian of the mean loss with the penalty, times v."""
        X, y, v = plain("X", X), plain("y", y), parameters("v", v, self.size)
        at = parameters("theta", theta, self.size)
        return mlp_hvp(X, y, at, v, **self._kind) / max(len(y), 1) + self.strength * v

    # ---------------------------------------------------------------------------------------------------- prediction

    def logits(self, theta: Vector, X: ArrayLike) -> Vector:
        """(n,) for two classes, positive means class 1; else (n, C)."""
        z = mlp_logits(finite_rows(X), parameters("theta", theta, self.size), **self._kind)
        return z[:, 0] if self.n_classes == 2 else z

    def predict_proba(self, theta: Vector, X: ArrayLike) -> Vector:
        """(n, C) probabilities."""
        return softmax_rows(self.logits(theta, X))

    def predict(self, theta: Vector, X: ArrayLike) -> NDArray[np.int64]:
        """(n,) class indices; a tie goes to the lower one."""
        z = finite_scores(self.logits(theta, X))
        return (z > 0).astype(np.int64) if self.n_classes == 2 else z.argmax(axis=1)

    # ------------------------------------------------------------------------------------------------------- fitting

    @checked
    def start(self, seed: Number0 = 0) -> Vector:
        """Random start: W1 ~ N(0, 1/d), W2 ~ N(0, 1/h), biases 0."""
        rng = np.random.default_rng(seed)
        o = 1 if self.n_classes == 2 else self.n_classes
        W1, W2 = rng.normal(size=self.h * self.d) / self.d**0.5, rng.normal(size=o * self.h) / self.h**0.5
        return np.concatenate([W1, np.zeros(self.h), W2, np.zeros(o)])

    def fit(
        self,
        rows: Any,
        start: ArrayLike | None = None,
        tol: float = 1e-10,
        seed: int = 0,
        progress: Progress | None = None,
        max_steps: int = 200,
        metric: Vector | None = None,
        curvature: bool = True,
    ) -> Fit:
        """Minimise the objective over `rows` (see `blocks_of`) to a gradient norm of tol.

        Newton starts from `start`, else from the anchor, else from Adam and L-BFGS on at most ADAM_ROWS rows. With a
        `metric` (p, p), the Hessian near the optimum, gradients are enough as long as each step halves them.
        curvature=False leaves the Hessian at the solution out.
        """
        rows, tol = check_training(rows, self.d, self.n_classes, "the MLP"), Within(0.0)("tol", tol)
        if far_apart(rows):
            return self._fit_scaled(rows, start, tol, seed, progress, max_steps, curvature)
        if start is None:
            start = self.anchor if self.anchor is not None else self._adam(*_sample(rows), [seed])[0]
        begin, passes = parameters("start", start, self.size), 0
        if metric is not None:  # entries are at most the norm
            begin, _, passes = chord(
                lambda t: self.evaluate(t, rows)[1], begin, metric, tol / self.size**0.5, progress=progress
            )
        found = self._minimise(rows, begin, tol, max_steps, progress)
        found.steps += passes
        found.hessian = self.hessian_of(found.theta, rows) if curvature and self.n_classes == 2 else None
        return found

    def _minimise(self, rows: Any, start: Vector, tol: float, max_steps: int, progress: Progress | None) -> Fit:
        def evaluate(theta: Vector) -> tuple[float, Vector]:
            return self.evaluate(theta, rows)

        return self._descend(evaluate, lambda t: self.hessian_of(t, rows), start, tol, max_steps, progress)

    def _fit_scaled(
        self,
        rows: Any,
        start: ArrayLike | None,
        tol: float,
        seed: int,
        progress: Progress | None,
        max_steps: int,
        curvature: bool,
    ) -> Fit:
        """The same objective minimised on columns of one size; its gradient norm is in their units."""
        scaled, hd = ScaledRows(rows, self.d), self.h * self.d
        back = np.eye(self.size)  # theta = back @ (theta of the scaled rows)
        for k in range(self.h):
            at = np.arange(k * self.d, (k + 1) * self.d)
            back[at, at], back[hd + k, at] = 1 / scaled.scale, -scaled.centre / scaled.scale
        data = self.with_anchor(np.zeros(self.size), 0.0)  # the loss alone

        def evaluate(theta: Vector) -> tuple[float, Vector]:
            loss, gradient = data.evaluate(theta, scaled)
            at = back @ theta
            away = at if self.anchor is None else at - self.anchor
            return loss + self.penalty(at), gradient + self.strength * (back.T @ away)

        def hessian(theta: Vector) -> Vector:
            return data.hessian_of(theta, scaled) + self.strength * back.T @ back

        if start is None and self.anchor is None:
            X, y = _sample(rows)
            begin = self._adam((X - scaled.centre) / scaled.scale, y, [seed])[0]
        else:
            first: Any = self.anchor if start is None else parameters("start", start, self.size)
            begin = np.asarray(np.linalg.solve(back, first))
        found = self._descend(evaluate, hessian, begin, tol, max_steps, progress)
        found.theta = back @ found.theta
        found.hessian = self.hessian_of(found.theta, rows) if curvature and self.n_classes == 2 else None
        return found

    def _descend(
        self, evaluate: Any, hessian: Any, start: Vector, tol: float, max_steps: int, progress: Progress | None
    ) -> Fit:
        if self.n_classes == 2:
            return trust_newton(evaluate, hessian, start, tol, max_steps, progress)
        from scipy.optimize import minimize  # p passes per exact Hessian would be too many

        options = {"maxiter": 20 * max_steps, "maxfun": 40 * max_steps, "gtol": 0.0, "ftol": 0.0, "maxcor": 30}
        theta = minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options).x
        loss, gradient = evaluate(theta)
        norm = float(np.linalg.norm(gradient))
        return Fit(theta, norm, max_steps, norm <= tol, None, loss)

    def _adam(self, X: NDArray[Any], y: NDArray[Any], seeds: list[int]) -> Vector:
        """(len(seeds), p) from random starts: Adam, then L-BFGS, which spares Newton some 30 steps."""
        starts = np.stack([self.start(s) for s in seeds])
        return mlp_train(X, y, starts, lam=self.lam, seed=seeds[0], tol=1e-6, max_steps=1000, **self._kind)

    def fit_pairs(
        self, X: ArrayLike, y: ArrayLike, ids: ArrayLike, n_forget: ArrayLike, seed: int = 0, **options: Any
    ) -> PairFits:
        """Subset pairs from one shared start (see l2ul_kernels.mlp.adam.mlp_fit_pairs); unanchored only."""
        if self.anchor is not None:
            raise UserError("subset pairs are for the unanchored MLP; use anchored_pairs")
        X, y = check_matrix(plain("X", X), self.d, "the model"), plain("y", y)
        ids, n_forget = Labels(False, 2)("ids", ids), Labels(False)("n_forget", n_forget)
        start = self.start(seed)
        return mlp_fit_pairs(X, y, ids, n_forget, start, lam=self.lam, seed=seed, **self._kind, **options)

    # ---------------------------------------------------------------------------------------------- anchored protocol

    @checked
    def train_anchor(
        self,
        X: ArrayLike,
        y: ArrayLike,
        seed: Number0 = 0,
        seeds: Annotated[int, Whole(1, 1000)] = 5,
        tol: NotNegative = 1e-8,
        near: ArrayLike | None = None,
    ) -> Vector:
        """Anchor (p,): the best of `seeds` Adam runs on these rows with L2 lam, each polished to tol, on the grid.

        With an earlier anchor `near`, the optimum that training reaches from there, where it reaches one: then the
        result depends on the rows, and on `near` only in which of their local optima it is.
        """
        free, (X, y) = self.with_anchor(None, None), check_training((X, y), self.d, self.n_classes, "the MLP")
        data: Any = (X, y)
        widths = self.anchor_widths(data[0])
        if near is not None:
            found = free._minimise(data, parameters("near", near, self.size), tol, 200, None)
            if found.converged:
                return np.asarray(np.round(found.theta / widths) * widths + 0.0)
        starts = free._adam(data[0], data[1], [seed * seeds + i for i in range(seeds)])
        fits = [free._minimise(data, start, tol, 200, None) for start in starts]
        best = min(fits, key=lambda fit: (not fit.converged, fit.loss)).theta
        return np.asarray(np.round(best / widths) * widths + 0.0)  # no -0.0

    def anchor_widths(self, X: NDArray[Any]) -> Vector:
        """(p,) widths of the anchor's grid: ANCHOR_WIDTH, over a power of two for the first-layer weights of columns
        with rare large values (on covtype one width for all would cost .7 points)."""
        reach = np.sqrt(np.mean(np.asarray(X, np.float64) ** 4, axis=0))  # 1.7 if normal, 1 / sqrt(q) for a rare 0/1
        finer = 2.0 ** np.maximum(0.0, np.round(np.log2(np.maximum(reach, 1.0) / 2)))
        widths = np.full(self.size, ANCHOR_WIDTH)
        widths[: self.h * self.d] /= np.tile(finer, self.h)
        return widths

    def choose_mu(
        self, rows: Any, anchor: ArrayLike, tol: float = 1e-10, strengths: Sequence[float] = STRENGTHS
    ) -> tuple[float, Fit]:
        """(mu, fit with it): the first of `strengths` whose Hessian at the solution has no eigenvalue below .7 mu.

        If there is none (rare features), the first of STRONG that will do, or else the one with the largest such share
        above .3; else the fit is not converged.
        """
        tried = []
        for mu in (*strengths, *STRONG):
            fit = self.with_anchor(anchor, mu).fit(rows, tol=tol)
            share = np.linalg.eigvalsh(fit.hessian)[0] / mu if fit.hessian is not None else -np.inf
            if share >= 0.7:
                return mu, fit
            tried.append((share, mu, fit))
        share, mu, fit = max(tried, key=lambda item: item[0])
        return mu, fit if share > 0.3 else replace(fit, converged=False)  # not a well-defined target: say so

    def fit_anchored(
        self, rows: Any, anchor: ArrayLike, tol: float = 1e-10, strengths: Sequence[float] = STRENGTHS
    ) -> tuple[MLPModel, Fit]:
        """(model anchored at `anchor` with a suitable mu, its fit on `rows`); not converged if no mu will do."""
        if self.n_classes != 2:
            raise UserError("the anchored protocol needs the exact Hessian, which exists for two classes only")
        mu, fit = self.choose_mu(rows, anchor, tol, strengths)
        return self.with_anchor(anchor, mu), fit

    def anchored_pairs(
        self,
        X: ArrayLike,
        y: ArrayLike,
        forget_ids: ArrayLike,
        forget_starts: ArrayLike,
        fit: Fit,
        tol: float = 1e-8,
        fallback: bool = True,
        **options: Any,
    ) -> AnchoredPairs:
        """Retrained parameters of many requests on the full data (see l2ul_kernels.mlp.anchored).

        Pairs that do not get there by steps with the fixed Hessian are retrained by Newton from theta, if `fallback`.
        """
        X, y, tol = check_matrix(plain("X", X), self.d, "the model"), plain("y", y), Within(0.0)("tol", tol)
        forget_ids = Labels(False)("forget_ids", forget_ids)
        forget_starts = Labels(False)("forget_starts", forget_starts)
        hessian: Any = getattr(fit, "hessian", None)
        if self.anchor is None or self.mu is None or hessian is None:
            raise UserError("anchored pairs need an anchored model and a fit with its Hessian")
        inverse = np.linalg.inv(hessian)
        inverse = 0.5 * (inverse + inverse.T)
        options = {**self._kind, **options, "tol": tol}
        pairs = mlp_anchored_pairs(
            X, y, forget_ids, forget_starts, fit.theta, self.anchor, self.mu, inverse_hessian=inverse, **options
        )
        X, y, ids, starts = np.asarray(X), np.asarray(y), np.asarray(forget_ids), np.asarray(forget_starts)
        for i in np.flatnonzero(~(pairs.gradient_norm <= tol)) if fallback else []:
            rest = np.delete(np.arange(len(X)), ids[starts[i] : starts[i + 1]])
            again = self.fit((X[rest], y[rest]), fit.theta, tol)
            pairs.theta_r[i], pairs.gradient_norm[i] = again.theta, again.gradient_norm
            pairs.steps[i] += again.steps
        return pairs


def finite_rows(X: ArrayLike) -> NDArray[Any]:
    """X; DataError where it is not finite: an infinity would only switch hidden units off or on."""
    X = plain("X", X)
    if not all_finite(X):
        raise DataError("X must be finite, but has a NaN or an infinity")
    return X


def _sample(rows: Any, limit: int = ADAM_ROWS) -> tuple[NDArray[Any], NDArray[Any]]:
    """At most `limit` rows, evenly spaced over one pass."""
    n = len(rows[0]) if isinstance(rows, tuple) else rows.n
    stride, seen, parts = max(1, -(-n // limit)), 0, []
    for X, y in blocks_of(rows):
        X, y = np.asarray(X), np.asarray(y)
        parts.append((X[-seen % stride :: stride].copy(), y[-seen % stride :: stride].copy()))
        seen += len(X)
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])
