"""What a saved directory gives away of a row that was forgotten: attacks on it, and how near each comes to the row.

The attacker holds one saved directory (or two, before and after), every row that stayed, the code and the format. Each
function here is one attack: it looks for a place where the row may have left a trace and turns the trace into an
estimate of the row's features. Most traces are differences: what was saved minus what the rows that stay give by
themselves. A sum that still has the row's term gives it back at once; parameters that were brought to the optimum of
the rows that stay by too few steps give it back through the map of those steps, inverted.

The error of an estimate is its distance from the true row over the length of the row, features only. It is compared
with `chance`: the mean of the rows that stay, or one of them.

What comes out is of one of these kinds:

    row       an estimate from the directory and the rows that stay: this is what must fail
    confirms  recognises the row among given candidates, but cannot compute it
    inherent  an estimate from the states before and after: nothing deterministic can hide this
    outside   an estimate from the user's own data file
    chance    a guess that uses no trace
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import copy
import filecmp
import hashlib
import json
import mmap
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import DataError, UserError
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.artifact.directory import load_artifact, read_header
from l2ul_fast.unlearner.artifact.format import BLOCK, HEADER
from l2ul_fast.unlearner.artifact.ledger import theta_digest
from l2ul_fast.unlearner.artifact.tensors import encode, layout_of
from l2ul_fast.unlearner.heads.expansion import Expansion
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_kernels import Partitions, assign_cells, counts_from_cells, unpack_cells
from l2ul_kernels.linear import integer_sums as ints
from l2ul_kernels.linear.losses import LOGISTIC, NAMES, SQUARED
from l2ul_kernels.request.claims import FORGOTTEN, PRESENT

Vector = NDArray[np.float64]

ROW, CONFIRMS, INHERENT, OUTSIDE, CHANCE = "row", "confirms", "inherent", "outside", "chance"

#: Parameters up to which the inverted Newton steps are tried: they need all third derivatives at once.
MOST_PARAMETERS = 150
#: Rows that starting points are taken from, points that are followed, steps along each, and solutions that are refined.
STARTS, FOLLOWED, STEPS, REFINED = 400, 40, 40, 6
#: Rows that the errors of random guesses are taken from.
GUESSES = 1000
#: Facts that are the user's own, and digests.
_NO_NUMBERS = (
    "params",
    "options",
    "previous",
    "theta_after",
    "theta_before",
    "sha256",
    "fingerprint",
    "head",
    "digests",
)
#: Files of an artifact (opening one deletes those of them that it does not need).
_KNOWN = re.compile(r"artifact\.json|ledger\.jsonl|journal\.jsonl|\.lock|state-.+")
_NUMBER = re.compile(rb"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
#: Rows that share most cells with the forgotten one, whose mean is the estimate.
NEIGHBOURS = 5
#: Training pairs that are looked at; Hessians that differ by more than this share are not near.
PAIRS, NEAR = 5000, 0.1
#: Bytes of a file that are searched for something that looks like a row.
SEARCHED = 1 << 20


class Attack(NamedTuple):
    """One attack and what came of it.

    Attributes
    ----------
    name : str
    row : (d,) array or None
        Its estimate of the features of a forgotten row, as the model sees them; None if it found no trace.
    error : float or None
        Distance of the estimate from the nearest true row over that row's length; None without an estimate or truth.
    used : str
        The trace it used, or why there is none.
    kind : str
        "row", "confirms", "inherent", "outside" or "chance".
    """

    name: str
    row: Vector | None
    error: float | None
    used: str
    kind: str = ROW


class Verdict(NamedTuple):
    """chance: the error of the best guess. best: the nearest attack of kind "row", None if none has an error."""

    chance: float | None
    best: Attack | None

    @property
    def leaks(self) -> bool | None:
        """Whether an attack is nearer than half of chance; None if that was not measured."""
        if self.chance is None:
            return None
        return self.best is not None and self.best.error is not None and self.best.error < 0.5 * self.chance


def verdict(attacks: list[Attack]) -> Verdict:
    """The best attack on one directory beside the best guess."""
    guesses = [a.error for a in attacks if a.kind == CHANCE and a.error is not None]
    measured = [a for a in attacks if a.kind == ROW and a.error is not None]
    best = min(measured, key=lambda a: a.error or 0.0, default=None)
    return Verdict(min(guesses, default=None), best)


def reconstruct(
    directory: str | Path,
    before: str | Path | None = None,
    truth: tuple[ArrayLike, Any] | None = None,
    data: Any = None,
    candidates: tuple[ArrayLike, Any] | None = None,
) -> list[Attack]:
    """Attack a saved directory for the rows that were forgotten; nothing in it changes.

    Parameters
    ----------
    directory : path
        A directory that `L2UL.save` wrote.
    before : path, optional
        An earlier copy of it, from before the request.
    truth : (X, y), optional
        The forgotten rows, (d,) or (k, d), with a label or (k,) labels: errors are measured against them. Features as
        the model sees them (rows of a file: standardised). Found in the data file where the model was fitted on one.
    data : path or (X, y) or (X, y, weights), optional
        The dataset file, if it has moved. With `store_rows=False`, which keeps no rows: all rows by their numbers
        (those of the forgotten ones are not looked at).
    candidates : (X, y), optional
        Rows among which the forgotten one may be, for attacks that can only confirm. If None: the truth and rows near.

    Returns
    -------
    list of Attack
    """
    with tempfile.TemporaryDirectory() as scratch:
        evidence = _open(Path(directory), Path(scratch) / "after", data)
        if not evidence.forgotten.size:
            raise UserError(f"no row was forgotten in {directory}")
        if before is not None:
            evidence.before = _open(Path(before), Path(scratch) / "before", data)
        evidence.truth = _truth_of(evidence, truth)
        evidence.candidates = _candidates_of(evidence, candidates)
        found = [attack for function in ATTACKS for attack in function(evidence)]
        found = [_measured(attack, evidence.truth) for attack in found]
        found += [_measured(guess, evidence.truth) for guess in _guesses(evidence, found)]
        return found


# What the attacker holds ---------------------------------------------------------------------------------------------


class Labelled(NamedTuple):
    """Rows X (k, d) float64 and class indices or targets y (k,); y is None where labels are not known."""

    X: Vector
    y: NDArray[Any] | None


@dataclass
class Evidence:
    """A directory as it was found, the unlearner in it, and the rows that stay: X (n, d), y (n,), weights (n,)."""

    directory: Path
    opened: Path  # a copy, as opening it has left it
    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    u: L2UL
    X: Vector | None
    y: NDArray[Any] | None
    weights: Vector | None
    forgotten: NDArray[np.int64]
    truth: Labelled | None = None
    candidates: Labelled | None = None
    before: Evidence | None = None

    @property
    def theta(self) -> Vector:
        """(p,), the one that is given to users; a deferred save keeps none, then that of its integers."""
        return np.asarray(self.arrays.get("theta", self.u.theta), np.float64)

    @property
    def d(self) -> int:
        return int(self.u.d)

    @property
    def sums(self) -> Any:
        """The expansion, of which integer sums are saved; None for other heads."""
        return self.u.head if self.u.head.exact_sums else None

    @property
    def lost(self) -> float:
        """Weight of the forgotten rows: known where all weigh 1 or from a state before, else taken as mean weights."""
        if self.before is not None and self.before.sums is not None:
            return float(self.before.sums.weight - self.sums.weight)
        return float(self.forgotten.size) * (1.0 if self.weights is None else float(self.weights.mean()))

    def plausible(self, values: Vector) -> bool:
        """Whether numbers are of the size of the rows that stay, or of their sums."""
        largest = np.abs(self.theta).max() if self.X is None else np.abs(self.X).max()
        return bool(np.isfinite(values).all()) and float(np.abs(values).max()) <= 1e3 * (1 + self.u.n * float(largest))


def _open(directory: Path, scratch: Path, data: Any) -> Evidence:
    """Read a directory through a copy of it: loading deletes what a killed save left behind, which is evidence."""
    read_header(directory)
    try:
        shutil.copytree(directory, scratch)
    except (OSError, shutil.Error) as error:
        raise DataError(f"cannot read {directory}: {error}") from None
    facts, arrays = load_artifact(scratch)
    given = data if isinstance(data, tuple) else None
    u = L2UL.load(scratch, None if given is not None else data)
    X, y, weights = _retained(u, given)
    return Evidence(directory, scratch, facts, arrays, u, X, y, weights, np.flatnonzero(u.status == FORGOTTEN))


def _retained(u: L2UL, given: Any) -> tuple[Vector | None, NDArray[Any] | None, Vector | None]:
    here, store = np.flatnonzero(u.status == PRESENT), u.store
    if store.keeps_rows:
        table = u.retained()
        assert table is not None
        X, y = table.take(here)
        return X.astype(np.float64), y, store.weights_of(here)
    if given is None:
        return None, None, None
    X, y = np.asarray(given[0], store.dtype), np.asarray(given[1])
    if X.shape != (u.status.size, u.d) or y.shape != X.shape[:1]:
        raise UserError(f"the data must be all {u.status.size} rows of {u.d} features by number, got {X.shape}")
    y = np.searchsorted(u.classes_, y).astype(np.uint8) if u.classes_ else y.astype(np.float64)
    return X[here].astype(np.float64), y[here], store.weights_of(here)


def _truth_of(e: Evidence, truth: tuple[ArrayLike, Any] | None) -> Labelled | None:
    if truth is not None:
        return _labelled(e, truth, "the truth")
    if not e.u.store.can_grow:  # the user's file still has it
        nothing_hidden: Any = e.u.store.table(e.u.classes_, np.zeros(e.u.status.size, bool))
        X, y = nothing_hidden.take(e.forgotten)
        return Labelled(X.astype(np.float64), y)
    return None


def _labelled(e: Evidence, rows: tuple[ArrayLike, Any], what: str) -> Labelled:
    try:
        X = np.atleast_2d(np.asarray(rows[0], np.float64))
        y = None if rows[1] is None else np.atleast_1d(np.asarray(rows[1]))
    except (TypeError, ValueError, IndexError):
        raise UserError(f"{what} must be rows of numbers and their labels") from None
    if X.ndim != 2 or X.shape[1] != e.d or not np.isfinite(X).all() or (y is not None and y.shape != X.shape[:1]):
        raise UserError(f"{what} must be rows of {e.d} finite features, each with a label")
    if y is not None and e.u.classes_:
        if not np.isin(y, e.u.classes_).all():
            raise UserError(f"{what} has a label that is not one of the classes {e.u.classes_}")
        y = np.searchsorted(e.u.classes_, y).astype(np.uint8)
    elif y is not None:
        y = y.astype(np.float64)
    return Labelled(X, y)


def _candidates_of(e: Evidence, given: tuple[ArrayLike, Any] | None) -> Labelled | None:
    """Given ones; or the truth, and rows that differ from it in one feature by a hundredth."""
    if given is not None:
        return _labelled(e, given, "a candidate")
    if e.truth is None or e.truth.y is None:
        return None
    x = e.truth.X[:1]
    near = np.repeat(x, min(e.d, 4), axis=0)
    near[np.arange(len(near)), np.arange(len(near))] += 0.01 * (1.0 + np.abs(near).max())
    return Labelled(np.concatenate([near, x]), np.repeat(e.truth.y[:1], len(near) + 1))


def _measured(attack: Attack, truth: Labelled | None) -> Attack:
    if attack.row is None or attack.error is not None or truth is None:
        return attack
    if not np.isfinite(attack.row).all():
        return attack._replace(row=None, used=attack.used + "; gives no finite row")
    return attack._replace(error=_error(attack.row, truth))


def _error(row: Vector, truth: Labelled) -> float:
    lengths = np.maximum(np.linalg.norm(truth.X, axis=1), np.finfo(float).tiny)
    return float((np.linalg.norm(truth.X - row, axis=1) / lengths).min())


def _guesses(e: Evidence, attacks: list[Attack]) -> Iterator[Attack]:
    """The mean of the rows that stay, and the best of some of them: as many as the attacks have estimates, since the
    best of those is what it is compared with."""
    if e.X is None:
        return
    yield Attack("the mean row", e.X.mean(axis=0), None, "no trace at all", CHANCE)
    some = e.X[np.random.default_rng(0).permutation(len(e.X))[:GUESSES]]
    tries = max(1, sum(a.kind == ROW and a.error is not None for a in attacks))
    error = None
    if e.truth is not None:  # the median of the smallest of `tries` errors
        error = float(np.quantile([_error(row, e.truth) for row in some], 1 - 0.5 ** (1 / tries)))
    used = f"no trace at all (the best of {tries} guesses, median over {len(some)} rows)"
    yield Attack("random rows", some[0], error, used, CHANCE)


# Objectives ----------------------------------------------------------------------------------------------------------


class Objective(NamedTuple):
    """The sum of losses that theta should minimise, over the rows that stay: derivatives at theta (p,).

    third(theta) is (p, p, p). `penalty` is what the gradient of the penalty gains with each unit of weight.
    """

    gradient: Callable[[Vector], Vector]
    hessian: Callable[[Vector], Vector]
    third: Callable[[Vector], Vector]
    penalty: Callable[[Vector], Vector]


def _derivatives(loss: int, z: Vector, y: NDArray[Any]) -> tuple[Vector, Vector, Vector]:
    if loss == SQUARED:
        return z - y, np.ones_like(z), np.zeros_like(z)
    if loss == LOGISTIC:
        s = 1.0 / (1.0 + np.exp(-np.clip(z, -500, 500)))
        return s - y, s * (1 - s), s * (1 - s) * (1 - 2 * s)
    mean = np.exp(z)
    return mean - y, mean, mean


def _penalty_of(u: L2UL) -> tuple[float, float]:
    """The penalty's strength: a constant, and what each unit of weight adds."""
    if u.head.penalty is not None:
        return float(u.head.penalty[0]), float(u.head.penalty[1])
    return 0.0, float(getattr(u.model, "strength", getattr(u.model, "lam", 0.0)))


def _is_linear(u: L2UL) -> bool:
    return u.model.name != "mlp" and u.model.size == u.d + 1


def _objective(e: Evidence) -> Objective | None:
    """Of the rows that stay, computed here and not by the code under attack where the model is linear."""
    if e.X is None or e.y is None:
        return None
    constant, per_weight = _penalty_of(e.u)
    model, X, y = e.u.model, e.X, e.y
    weights = np.ones(len(X)) if e.weights is None else e.weights
    strength = constant + per_weight * float(weights.sum())

    if not _is_linear(e.u):
        n = float(len(X))
        gauge = _gauge(model)

        def gradient(theta: Vector) -> Vector:
            return n * (model.data_gradient(theta, X, y) + model.penalty_gradient(theta))

        def hessian(theta: Vector) -> Vector:
            return n * (np.asarray(model.hessian(theta, X, y)) + gauge)

        def third(theta: Vector) -> Vector:
            h = 1e-4
            steps = h * np.eye(theta.size)
            return np.stack([(hessian(theta + s) - hessian(theta - s)) / (2 * h) for s in steps])

        return Objective(gradient, hessian, third, model.penalty_gradient)

    loss = NAMES.index(model.loss_name)
    wide = np.hstack([X, np.ones((len(X), 1))])
    penalised = np.arange(model.size) < e.d

    def linear(theta: Vector, which: int) -> Vector:
        return weights * _derivatives(loss, wide @ theta, y)[which]

    return Objective(
        lambda theta: wide.T @ linear(theta, 0) + strength * penalised * theta,
        lambda theta: (wide.T * linear(theta, 1)) @ wide + strength * np.diag(penalised.astype(float)),
        lambda theta: np.stack([(wide.T * (linear(theta, 2) * column)) @ wide for column in wide.T]),
        lambda theta: per_weight * penalised * theta,
    )


def _polynomial(head: Expansion) -> Objective | None:
    """The system that the integers of a head stand for; its root is what should have been saved."""
    if head.p > MOST_PARAMETERS:
        return None
    G, H, T = _unpacked(head, head.sums)
    strength = head.penalty[0] + head.penalty[1] * head.weight
    penalised, g = np.arange(head.p) < head.p - 1, head.anchor
    return Objective(
        lambda theta: G + (H + 0.5 * (T @ (theta - g))) @ (theta - g) + strength * penalised * theta,
        lambda theta: H + T @ (theta - g) + strength * np.diag(penalised.astype(float)),
        lambda theta: T,
        lambda theta: head.penalty[1] * penalised * theta,
    )


def _unpacked(head: Expansion, sums: NDArray[np.int64]) -> tuple[Vector, Vector, Vector]:
    """G (p,), H (p, p), T (p, p, p) of integer sums; T is zero for order 2."""
    p, scales, size = head.p, head.terms.scales, 1.0 / head.terms.inverse_scale
    at = ints.moments_at(p, head.classes) + p
    G = sums[at : at + p] / scales[ints.FIRST] * size
    j, k = np.triu_indices(p)
    H = np.zeros((p, p))
    H[j, k] = H[k, j] = sums[at + p : at + p + j.size] / scales[ints.SECOND] * size[j] * size[k]
    T = np.zeros((p, p, p) if head.order == 3 else (1, 1, 1))
    if head.order == 3:
        triples = np.array([(a, b, c) for a in range(p) for b in range(a, p) for c in range(b, p)]).T
        a, b, c = triples
        found = sums[at + p + j.size :] / (scales[ints.THIRD] * scales[ints.COLUMN]) * size[a] * size[b] * size[c]
        for x, y, z in ((a, b, c), (a, c, b), (b, a, c), (b, c, a), (c, a, b), (c, b, a)):
            T[x, y, z] = found
    return G, H, (T if head.order == 3 else np.zeros((p, p, p)))


def _row_in(u: L2UL, v: Vector) -> Vector | None:
    """The row x (d,) of a gradient v (p,): every weight's entry is that of its intercept times x_j."""
    d = u.d
    if u.model.name == "mlp":
        h = u.model.h
        coefficients, intercepts = v[: h * d].reshape(h, d), v[h * d : h * d + h]
    else:
        outputs = u.model.size // (d + 1)
        coefficients, intercepts = v[: outputs * d].reshape(outputs, d), v[outputs * d :]
    size = float(intercepts @ intercepts)
    return None if size == 0.0 else intercepts @ coefficients / size


# Attacks -------------------------------------------------------------------------------------------------------------


def _due(e: Evidence) -> Iterator[Attack]:
    """Whether the directory says itself that it is not finished."""
    if e.facts.get("due"):
        yield Attack("due", None, None, f"the directory is not finished: {e.facts['due']}")


def _stored_rows(e: Evidence) -> Iterator[Attack]:
    """The forgotten rows' places in what is kept row by row: features, label, weight, digest."""
    ids, where = e.forgotten, "its place in the stored rows"
    if "X" in e.arrays:
        left = np.asarray(e.arrays["X"])[ids]
        used = np.flatnonzero(left.any(axis=1))
        row = left[used[0]].astype(np.float64) if used.size else None
        yield Attack("stored row", row, None, f"{where} is {'not ' if used.size else ''}overwritten")
    for name, what in (("y", "label"), ("weights", "weight"), ("digests", "digest")):
        if name in e.arrays and np.asarray(e.arrays[name])[ids].any():
            yield Attack(f"stored {what}", None, None, f"the {what} is still there, {where} is not overwritten")
    yield from _digests(e)


def _digests(e: Evidence) -> Iterator[Attack]:
    """`store_rows=False`: a digest that is still there recognises the row."""
    store: Any = e.u.store
    if store.keeps_rows:
        return
    left = np.asarray(e.arrays["digests"])[e.forgotten]
    left = left[left != 0]
    if not left.size or e.candidates is None or e.candidates.y is None:
        what = "no digest is left" if not left.size else "needs candidates"
        yield Attack("digest", None, None, what, CONFIRMS)
        return
    same = np.isin(store.digest(e.candidates.X.astype(store.dtype), e.candidates.y), left)
    yield _confirmed(e, "digest", same, "the digest of the row, still there")


def _sums(e: Evidence) -> Iterator[Attack]:
    """Saved integer sums minus those of the rows that stay, at the saved anchor with the saved scales."""
    if e.sums is not None:
        if e.X is None:
            yield Attack("sums", None, None, "the rows that stay are not known: give them as data")
        else:
            yield from _differences(e, e.sums, "sums", ROW)


def _differences(e: Evidence, saved: Expansion, name: str, kind: str) -> Iterator[Attack]:
    X, y = e.X, e.y
    assert X is not None
    assert y is not None
    left = copy.deepcopy(saved)
    left.revert(_as_stored(e), y, e.weights)
    p, d, sums = left.p, e.d, left.sums
    if not sums.any():
        yield Attack(name, None, None, "equal those of the rows that stay in every bit", kind)
        return
    size, at = 1.0 / left.terms.inverse_scale, ints.moments_at(p, left.classes)
    parts: dict[str, Vector] = {"moments": sums[at : at + p].astype(np.float64)}
    if p <= MOST_PARAMETERS:
        G, H, T = _unpacked(left, sums)
        parts |= {"G": G, "H": H, "T": T.reshape(p, -1)}
    label = np.flatnonzero(sums[2 : 2 + left.classes])
    told = f" (and the class {e.u.classes_[label[0]]})" if label.size else ""
    for part, difference in parts.items():
        if not difference.any():
            continue
        if part == "moments":
            sign = np.where(X.mean(axis=0) < 0, -1.0, 1.0)
            v = np.sqrt(np.abs(difference)) * size
            v[:d] *= sign
        elif part == "G":
            v = difference
        else:  # c x x' and c x x x: the leading singular vector
            v = np.linalg.svd(difference)[0][:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            yield Attack(f"{name}: {part}", v[:d] / v[d], None, f"differ from those of the rows that stay{told}", kind)
    if not any(difference.any() for difference in parts.values()):
        yield Attack(name, None, None, f"the counts differ from those of the rows that stay{told}", kind)


def _as_stored(e: Evidence) -> NDArray[Any]:
    assert e.X is not None
    return e.X.astype(e.u.store.dtype)


def _gradient(e: Evidence) -> Iterator[Attack]:
    """The gradient of the rows that stay at every saved point: at the optimum with the row, it is minus the row's."""
    objective = _objective(e)
    if objective is None:
        yield Attack("gradient", None, None, "the rows that stay are not known: give them as data")
        return
    for name, point in _points(e).items():
        left = objective.gradient(point)
        v = -left - e.lost * objective.penalty(point)
        size = float(np.abs(left).max()) / max(e.u.n, 1)
        used = f"the gradient of the rows that stay there, at most {size:.1e} a row"
        yield Attack(f"gradient at {name}", _row_in(e.u, v), None, used)


def _points(e: Evidence) -> dict[str, Vector]:
    """Saved arrays that may be parameters."""
    p = e.theta.size
    found = {"theta": e.theta}
    for name, array in e.arrays.items():
        if array.shape == (p,) and array.dtype == np.float64 and name != "theta" and array.any():
            found[name.rsplit(".", 1)[-1]] = np.asarray(array)
    return found


def _last_bits(e: Evidence) -> Iterator[Attack]:
    """The saved theta against the one that the saved integers give by themselves."""
    head = e.sums
    if head is None:
        return
    if "theta" not in e.arrays:
        yield Attack("last bits of theta", None, None, "theta is not saved")
        return
    fresh = Expansion.from_arrays(head.model, e.facts["head_facts"], e.arrays)
    away = e.theta - fresh.canonical()
    if not away.any():
        yield Attack("last bits of theta", None, None, "theta is what the saved integers give, in every bit")
        return
    system = _polynomial(head)
    if system is None:
        yield Attack("last bits of theta", None, None, "theta is not what the saved integers give")
        return
    v = -system.gradient(e.theta) - e.lost * system.penalty(e.theta)
    yield Attack("last bits of theta", _row_in(e.u, v), None, f"theta is {np.linalg.norm(away):.1e} off its integers")
    yield from _inverted(e, system, "Newton inverted (integers)")


def _newton(e: Evidence) -> Iterator[Attack]:
    """theta as the last of one or two Newton steps from the optimum with the row, inverted."""
    objective = _objective(e)
    if objective is not None and e.theta.size <= MOST_PARAMETERS:
        yield from _inverted(e, objective, "Newton inverted")


def _inverted(e: Evidence, objective: Objective, name: str) -> Iterator[Attack]:
    """Undo Newton's last steps on `objective`.

    A step e onto theta leaves the gradient T[e, e] / 2 there, so the next one would be B(e) = -J^-1 T[e, e] / 2. Of the
    solutions e of B(e) = that step, or B(B(e)), the one counts that some row can have caused.
    """
    theta = e.theta
    J, T = objective.hessian(theta), objective.third(theta)
    try:
        inverse = np.asarray(np.linalg.inv(J), np.float64)
    except np.linalg.LinAlgError:
        return
    gradient = objective.gradient(theta)
    after = -inverse @ gradient
    if not after.any() or not T.any():
        yield Attack(name, None, None, "the steps end exactly" if T.any() else "Newton's step is exact for this loss")
        return
    bend = np.tensordot(inverse, T, 1)  # J^-1 T

    def follow(v: Vector) -> Vector:
        return -0.5 * (bend @ v) @ v

    for depth in (1, 2):
        found: list[tuple[float, Vector, Vector]] = []
        for start in _starts(e, inverse, follow, after, depth):
            step = _solve(bend, follow, after, start, depth)
            if step is None or any(np.linalg.norm(step - other) < 1e-3 * np.linalg.norm(step) for _, other, _ in found):
                continue
            away = step + follow(step) if depth == 2 else step
            v = J @ away - gradient - 0.5 * (T @ away) @ away - e.lost * objective.penalty(theta - away)
            row = _row_in(e.u, v)
            if row is not None and np.isfinite(row).all():
                found.append((_implausible(e, theta - away, v, row), step, row))
        found.sort(key=lambda candidate: candidate[0])
        if depth == 1:
            found = [
                _refined(e, objective, theta, step, T, inverse) or (miss, step, row)
                for miss, step, row in found[:REFINED]
            ]
            found.sort(key=lambda candidate: candidate[0])
        used = f"the next step would be {np.linalg.norm(after):.1e}; "
        used += f"the row found misses its own gradient by {found[0][0]:.1e}" if found else "no row explains it"
        times = "one step" if depth == 1 else "two steps"
        yield Attack(f"{name}, {times}", found[0][2] if found else None, None, used)


def _starts(
    e: Evidence, inverse: Vector, follow: Callable[[Vector], Vector], after: Vector, depth: int
) -> list[Vector]:
    """Steps that rows like those that stay would have caused, scaled to fit `after`; the best ones."""
    assert e.X is not None
    rng = np.random.default_rng(0)
    scored: list[tuple[float, int, Vector]] = []
    for i in rng.permutation(len(e.X))[:STARTS]:
        for v in _gradients_of(e, e.theta, e.X[i]):
            step = inverse @ v
            end = step
            for _ in range(depth):
                end = follow(end)
            size = float(end @ end)
            share = float(end @ after) / size if size > 0 else 0.0
            if share <= 0.0:
                continue
            miss = float(np.linalg.norm(share * end - after))
            scored.append((miss, len(scored), share ** (0.5**depth) * step))
    scored.sort(key=lambda s: s[:2])
    near = [step for _, _, step in scored[: FOLLOWED // 2]]
    return near + ([-step for step in near] if depth == 1 else [])


def _gradients_of(e: Evidence, theta: Vector, x: Vector) -> list[Vector]:
    """The gradient of the row x with each label at theta; for models of numbers that of residual 1 and -1."""
    model = e.u.model
    if not e.u.classes_:
        wide = np.append(x, 1.0)
        return [wide, -wide]
    if _is_linear(e.u):
        wide = np.append(x, 1.0)
        s = 1.0 / (1.0 + np.exp(-np.clip(wide @ theta, -500, 500)))
        return [s * wide, (s - 1.0) * wide]
    return [model.data_gradient(theta, x[None], np.array([c], np.uint8)) for c in range(len(e.u.classes_))]


def _solve(bend: Vector, follow: Callable[[Vector], Vector], after: Vector, start: Vector, depth: int) -> Vector | None:
    """B(step) = after (depth 1) or B(B(step)) = after near `start`, by Levenberg's method."""
    goal = float(np.linalg.norm(after))
    step, damping, p = start, 1e-3, start.size

    def value(v: Vector) -> Vector:
        for _ in range(depth):
            v = follow(v)
        return v - after

    miss = value(step)
    size = float(np.linalg.norm(miss))
    for _ in range(STEPS):
        if size <= 1e-12 * goal:
            break
        slope, v = np.eye(p), step
        for _ in range(depth):
            slope, v = -(bend @ v) @ slope, follow(v)
        normal = slope.T @ slope
        better = False
        while damping < 1e8:
            move = np.linalg.solve(normal + damping * np.trace(normal) / p * np.eye(p), slope.T @ miss)
            trial = value(step - move)
            if float(np.linalg.norm(trial)) < size:
                step, miss, size, better = step - move, trial, float(np.linalg.norm(trial)), True
                damping = max(damping / 10, 1e-15)
                break
            damping *= 10
        if not better:
            break
    return step if size <= 1e-3 * goal else None


def _refined(
    e: Evidence, objective: Objective, theta: Vector, step: Vector, T: Vector, inverse: Vector
) -> tuple[float, Vector, Vector] | None:
    """(misfit, step, row) of the Newton step that ends at theta exactly and comes from a row's gradient, with its best
    label, by Gauss and Newton. Where the map of steps folds, only the second condition tells them apart."""
    goal = float(np.linalg.norm(inverse @ objective.gradient(theta)))
    labels = max(len(e.u.classes_), 1)
    best: tuple[float, Vector, Vector] | None = None

    def own(back: Vector, v: Vector, label: int) -> Vector:
        row = _row_in(e.u, v)
        if not e.u.classes_ or row is None:
            return np.zeros(0)
        return (v - _gradients_of(e, back, row)[label]) / float(np.linalg.norm(v))

    for label in range(labels):
        at, damping = step, 1e-6
        before: tuple[float, Vector] | None = None
        while damping < 1e6:
            back = theta - at
            gradient, hessian = objective.gradient(back), objective.hessian(back)
            v = -gradient - e.lost * objective.penalty(back)
            miss = np.concatenate([inverse @ (gradient + hessian @ at) / goal, own(back, v, label)])
            size = float(np.linalg.norm(miss))
            row = _row_in(e.u, v)
            if before is not None and not size < before[0]:
                at, damping = before[1], damping * 10
            else:
                if row is not None and (best is None or size < best[0]):
                    best = (size, at, row)
                if before is not None and size > 0.999 * before[0]:
                    break
                before, damping = (size, at), max(damping / 10, 1e-15)
                h = 1e-6 * hessian * float(np.linalg.norm(at))
                second = np.stack([own(back, v + column, label) for column in h], axis=1) - own(back, v, label)[:, None]
                slope = np.vstack([-inverse @ (T @ at) / goal, second / (1e-6 * float(np.linalg.norm(at)))])
                normal, right = slope.T @ slope, slope.T @ miss
            try:
                at = at - np.linalg.solve(normal + damping * np.trace(normal) / at.size * np.eye(at.size), right)
            except np.linalg.LinAlgError:
                break
    if best is None or not np.isfinite(best[2]).all():
        return None
    return best[0] + _beyond(e, best[2]), best[1], best[2]


def _implausible(e: Evidence, theta: Vector, v: Vector, x: Vector) -> float:
    """How far v is from the gradient of the row x with some label, relative to its length; more for x far out."""
    miss = 0.0
    if e.u.classes_:
        miss = min(float(np.linalg.norm(v - g)) for g in _gradients_of(e, theta, x)) / float(np.linalg.norm(v))
    return miss + _beyond(e, x)


def _beyond(e: Evidence, x: Vector) -> float:
    """How far x lies outside the range of the rows that stay, in units of it."""
    assert e.X is not None
    low, high = e.X.min(axis=0), e.X.max(axis=0)
    room = np.maximum(high - low, np.finfo(float).tiny)
    return float((np.maximum(low - x, x - high) / room).clip(0).max())


def _cell(e: Evidence) -> Iterator[Attack]:
    """The saved grid point and scales against those of the rows that stay: which rows would have caused the others?"""
    head, objective = e.sums, _objective(e)
    if head is None or objective is None or e.X is None or e.y is None:
        return
    table = ArrayTable(_as_stored(e), e.y, e.u.classes_, None, e.weights)
    optimum = _minimum(objective, e.theta)
    where: Any = "grid" if head.where == "grid" else head.anchor
    fresh = Expansion.build(head.model, table, optimum, order=head.order, anchor=where, penalty=head.penalty)
    wider = np.flatnonzero(fresh.exponents[: head.p - 1] != head.exponents[: head.p - 1])
    other = np.flatnonzero(fresh.exponents[head.p :] != head.exponents[head.p :])
    if wider.size:
        x = e.X.mean(axis=0)
        x[wider] = np.where(x[wider] < 0, -0.75, 0.75) * np.exp2(head.exponents[wider].astype(float))
        yield Attack("scales", x, None, f"{wider.size} column(s) have a scale that only the row can have set")
    else:
        told = "are those of the rows that stay"
        if other.size:
            told = "of the derivatives or weights are not those of the rows that stay: only the row can have set them"
        yield Attack("scales", None, None, told)
    if head.where != "grid" or wider.size:
        return
    moved = np.flatnonzero(fresh.anchor != head.anchor)
    if not moved.size:
        yield Attack("grid point", None, None, "is that of the rows that stay")
        return
    gradients = [g for x in e.X[:GUESSES] for g in _gradients_of(e, optimum, x)]
    each = len(gradients) // len(e.X[:GUESSES])
    ends = optimum - np.array(gradients) @ np.linalg.inv(objective.hessian(optimum))
    fits = (np.abs(ends - head.anchor) <= np.abs(ends - fresh.anchor))[:, moved].sum(axis=1)
    likely = np.flatnonzero(fits == fits.max()) // each
    used = f"differs in {moved.size} coordinate(s) from that of the rows that stay; mean of rows that could do this"
    yield Attack("grid point", e.X[likely].mean(axis=0), None, used)


def _minimum(objective: Objective, start: Vector) -> Vector:
    """Newton's method from nearby, until the gradient stops falling."""
    theta, left = start, objective.gradient(start)
    for _ in range(30):
        trial = theta - np.linalg.solve(objective.hessian(theta), left)
        after = objective.gradient(trial)
        if not np.abs(after).max() < np.abs(left).max():
            break
        theta, left = trial, after
    return theta


def _facts(e: Evidence) -> Iterator[Attack]:
    """Lists of numbers in artifact.json, the ledger and the journal: a row, a mean over D, a gradient."""
    d, p, any_list = e.d, e.theta.size, False
    for where, values in _lists(e):
        if values.size not in (d, p):
            continue
        any_list = True
        if values.size == d:
            yield Attack(f"numbers in {where}", values, None, "taken as the row")
            if e.X is not None:
                D = len(e.X) + e.forgotten.size
                yield Attack(f"numbers in {where}", D * values - e.X.sum(axis=0), None, "taken as the mean of all rows")
                yield Attack(f"numbers in {where}", values - e.X.sum(axis=0), None, "taken as the sum of all rows")
        if values.size == p:
            yield Attack(f"numbers in {where}", _row_in(e.u, values), None, "taken as a gradient")
    if not any_list:
        yield Attack("numbers in the facts", None, None, "no list is as long as a row or as theta")
    constant, _ = _penalty_of(e.u)
    if constant and e.X is not None:
        staying = float(len(e.X) if e.weights is None else e.weights.sum())
        lost = constant / e.u.model.lam - staying
        yield Attack("penalty", None, None, f"was chosen at the fit: the forgotten rows weigh {lost:.6g}")


def _lists(e: Evidence) -> Iterator[tuple[str, Vector]]:
    """Every list of numbers in the text files, also in base64 or hexadecimal form."""

    def walk(value: Any, where: str) -> Iterator[tuple[str, Vector]]:
        if isinstance(value, dict):
            for key, item in value.items():
                if key not in _NO_NUMBERS:
                    yield from walk(item, f"{where}: {key}")
        elif isinstance(value, list):
            if value and all(type(item) in (int, float) for item in value):
                yield where, np.array(value, np.float64)
            for item in value:
                if isinstance(item, dict | list | str):
                    yield from walk(item, where)
        elif isinstance(value, str):
            for content in _decoded(value):
                for dtype in ("<f4", "<f8"):
                    if len(content) == e.d * np.dtype(dtype).itemsize:
                        values = np.frombuffer(content, dtype)
                        if np.isfinite(values).all() and e.plausible(values.astype(np.float64)):
                            yield where, values.astype(np.float64)

    yield from walk(e.facts, HEADER)
    for path in _files(e):
        if path.suffix == ".jsonl" or (path.suffix == ".json" and path.name != HEADER):
            for line in path.read_bytes().splitlines():
                try:
                    yield from walk(json.loads(line), path.name)
                except (ValueError, RecursionError):
                    continue


def _decoded(text: str) -> Iterator[bytes]:
    with contextlib.suppress(binascii.Error, ValueError):
        yield base64.b64decode(text, validate=True)
    with contextlib.suppress(ValueError):
        yield bytes.fromhex(text)


def _files(e: Evidence) -> list[Path]:
    return sorted(path for path in e.directory.rglob("*") if path.is_file())


def _leftovers(e: Evidence) -> Iterator[Attack]:
    """Bytes that the present state does not need: what opening the directory deletes, overwrites or does not know."""
    pieces: dict[str, bytes] = {}
    for path in _files(e):
        name = path.relative_to(e.directory)
        kept = e.opened / name
        if not kept.is_file():
            pieces[str(name)] = path.read_bytes()
        elif not filecmp.cmp(path, kept, shallow=False):
            pieces[str(name)] = _changed(path.read_bytes(), kept.read_bytes())
        elif not _KNOWN.fullmatch(str(name)):
            pieces[str(name)] = path.read_bytes()
    if not any(pieces.values()):
        yield Attack("leftover bytes", None, None, "there are none")
    for file, content in pieces.items():
        if content:
            row = _row_in_arrays(e, content)
            row = _row_in_bytes(e, content) if row is None else row
            yield Attack(f"leftover bytes in {file}", row, None, f"{len(content)} bytes that the state does not need")


def _changed(found: bytes, kept: bytes) -> bytes:
    """The part of `found` that opening has changed or cut off, in whole words."""
    shared = min(len(found), len(kept))
    differing = np.flatnonzero(np.frombuffer(found[:shared], np.uint8) != np.frombuffer(kept[:shared], np.uint8))
    first = int(differing[0]) // 8 * 8 if differing.size else shared
    last = len(found) if len(found) > len(kept) else -(-(int(differing[-1]) + 1) // 8) * 8 if differing.size else first
    return found[first:last]


def _row_in_arrays(e: Evidence, content: bytes) -> Vector | None:
    """The forgotten row in a whole file of arrays."""
    try:
        length = int.from_bytes(content[:8], "little")
        layout = layout_of(content[8 : 8 + length], len(content) - 8 - length)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    for _, dtype, shape, start in layout:
        if dtype.kind == "f" and len(shape) == 2 and shape[1] == e.d and shape[0] > e.forgotten[0]:
            rows = np.ndarray(shape, dtype, content, 8 + length + start)
            found = np.asarray(rows[e.forgotten[0]], np.float64)
            if found.any():
                return found
    return None


def _row_in_bytes(e: Evidence, content: bytes) -> Vector | None:
    """The first d numbers side by side that could be a row of D and are none of those that stay."""
    if e.X is None:
        return None
    largest, known = 4 * np.abs(e.X).max(axis=0) + np.finfo(float).tiny, {row.tobytes() for row in e.X}
    for values in _numbers_in(content[:SEARCHED]):
        if values.size < e.d:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(values, e.d)
        with np.errstate(invalid="ignore"):
            large = (np.abs(windows) > 1e-6 * largest).sum(axis=1)
            fits = (np.abs(windows) <= largest).all(axis=1) & (2 * large > e.d)
        for i in np.flatnonzero(fits)[:100]:
            if windows[i].tobytes() not in known:
                return windows[i].copy()
    return None


def _numbers_in(content: bytes) -> Iterator[Vector]:
    """Bytes read as text, as float64 and as float32, from each offset."""
    yield np.array([float(number) for number in _NUMBER.findall(content)])
    for dtype in ("<f8", "<f4"):
        width = np.dtype(dtype).itemsize
        for offset in range(width):
            part = content[offset:]
            with np.errstate(invalid="ignore"):
                yield np.frombuffer(part[: len(part) // width * width], dtype).astype(np.float64)


def _verbatim(e: Evidence) -> Iterator[Attack]:
    """The bytes of the true row anywhere in the directory (its own bytes, or those of most of its numbers)."""
    if e.truth is None:
        return
    for x in e.truth.X:
        for dtype in ("<f4", "<f8", ">f4", ">f8"):
            pattern = x.astype(dtype).tobytes()
            if not x.any() or (e.X is not None and (x == e.X).all(axis=1).any()):
                continue  # zeros, or a row that stays too
            for path in _files(e):
                at = _find(path, pattern)
                if at >= 0:
                    yield Attack("verbatim", x, None, f"the row's bytes are in {path.name} at {at}")
                    return
    yield Attack("verbatim", None, None, "the row's bytes are in no file")


def _find(path: Path, pattern: bytes) -> int:
    with open(path, "rb") as file:
        if path.stat().st_size < len(pattern):
            return -1
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return mapped.find(pattern)


def _cells(e: Evidence) -> Iterator[Attack]:
    """The row's cells, in its own place or in the counts, and seeds that are rows nobody has any more."""
    if e.X is None or e.y is None or "cells.seeds" not in e.arrays:
        return
    seeds, packed, counts = (np.asarray(e.arrays[f"cells.{name}"]) for name in ("seeds", "packed", "counts"))
    t, psi, d = seeds.shape
    own = assign_cells(_as_stored(e), Partitions.from_seeds(np.ascontiguousarray(seeds)))
    left = packed[e.forgotten]
    left = left[left.any(axis=1)]
    row = _row_near(e, own, unpack_cells(left[:1], t, psi)[0]) if len(left) else None
    yield Attack(
        "stored cells", row, None, "are still there: the rows nearest by cells" if len(left) else "are overwritten"
    )
    difference = (counts - counts_from_cells(own, psi, e.y, len(counts))).sum(axis=0)
    row = _row_near(e, own, difference.argmax(axis=1)) if difference.any() else None
    used = "count another row: the rows nearest by cells" if difference.any() else "are those of the rows that stay"
    yield Attack("cell counts", row, None, used)
    known = {x.tobytes() for x in e.X.astype(seeds.dtype)}
    foreign = [x for x in seeds.reshape(-1, d) if x.tobytes() not in known]
    row = foreign[0].astype(np.float64) if foreign else None
    held = int(np.isin(np.asarray(e.arrays["cells.seed_rows"]), e.forgotten).sum())
    yield Attack("seeds", row, None, f"{len(foreign)} are no rows that stay, {held} have a forgotten row's number")


def _row_near(e: Evidence, cells: NDArray[Any], wanted: NDArray[Any]) -> Vector:
    """Mean of the rows that stay which share most of the wanted cells (t,)."""
    assert e.X is not None
    shared = (cells == wanted).sum(axis=1)
    return np.asarray(e.X[np.argsort(-shared, kind="stable")[:NEIGHBOURS]].mean(axis=0))


def _pairs(e: Evidence) -> Iterator[Attack]:
    """Inputs and targets of training pairs: those of a pair that forgot the row alone are its gradient, scaled."""
    p = e.theta.size
    if e.X is None:
        return
    any_pair = False
    for name, array in e.arrays.items():
        if array.ndim != 2 or array.shape[1] != p or array.shape[0] in (0, p) or array.dtype.kind != "f":
            continue
        any_pair = True
        best: tuple[float, Vector | None] = (np.inf, None)
        penalty = e.u.model.penalty_gradient(e.theta)
        for z in np.asarray(array[:PAIRS], np.float64):
            for v in (z - penalty, z):
                row = _row_in(e.u, v)
                if row is None or not np.isfinite(row).all() or _stays(e, row):
                    continue
                miss = _implausible(e, e.theta, v, row)
                if miss < best[0]:
                    best = (miss, row)
        yield Attack(f"pairs: {name}", best[1], None, f"the row found misses its own gradient by {best[0]:.1e}")
    if not any_pair:
        yield Attack("pairs", None, None, "there are none")


def _stays(e: Evidence, row: Vector) -> bool:
    assert e.X is not None
    return bool((np.abs(e.X - row).max(axis=1) < 1e-3 * (np.abs(row).max() + 1e-300)).any())


def _kept_sums(e: Evidence) -> Iterator[Attack]:
    """Sums of gradients and Hessians (or their inverse), minus those of the rows that stay, at each saved point."""
    objective, X, y, p = _objective(e), e.X, e.y, e.theta.size
    if objective is None or X is None or y is None or e.sums is not None:
        return
    n, points, model = float(len(X)), _points(e), e.u.model
    given = () if e.weights is None else (e.weights,)
    gradients = {where: n * model.data_gradient(q, X, y, *given) for where, q in points.items()}
    largest = 2 * e.forgotten.size * (1 + np.abs(X).max())  # that rows could have added
    for name, found in points.items():
        for where, own in gradients.items():
            away = found - own
            if where != name and np.abs(away).max() < largest:
                yield Attack(f"{name} - gradients at {where}", _row_in(e.u, away), None, _differ(away, own))
    if p > MOST_PARAMETERS:
        return
    fixed = n * _fixed_curvature(model)
    hessians = {where: objective.hessian(q) for where, q in points.items()}
    for name, array in e.arrays.items():
        matrix = _square(np.asarray(array), p)
        if matrix is None:
            continue
        inverse = _inverse(matrix)
        for where, own in hessians.items():
            likely = [(matrix, own - fixed), (matrix, own)]
            likely += [] if inverse is None else [((n + k) * inverse, own) for k in (0, e.forgotten.size)]
            for found, expected in likely:
                away = found - expected
                if np.abs(away).max() < NEAR * np.abs(expected).max():
                    values, vectors = np.linalg.eigh(away)
                    row = _row_in(e.u, vectors[:, np.abs(values).argmax()]) if values.any() else None
                    short = name.rsplit(".", 1)[-1]
                    yield Attack(f"{short} - Hessians at {where}", row, None, _differ(away, expected))


def _differ(away: Vector, own: Vector) -> str:
    return f"differ by {np.abs(away).max() / np.abs(own).max():.1e} from those of the rows that stay"


def _square(array: NDArray[Any], p: int) -> Vector | None:
    """A symmetric (p, p) matrix, saved whole or as its lower triangle."""
    if array.dtype.kind != "f":
        return None
    if array.shape == (p * (p + 1) // 2,):
        whole = np.zeros((p, p))
        lower = np.tril_indices(p)
        whole[lower] = array
        whole.T[lower] = array
        return whole
    return np.asarray(0.5 * (array + array.T), np.float64) if array.shape == (p, p) else None


def _inverse(matrix: Vector) -> Vector | None:
    try:
        return np.asarray(np.linalg.inv(matrix), np.float64)
    except np.linalg.LinAlgError:
        return None


def _fixed_curvature(model: Any) -> Vector:
    """(p, p) what the penalty adds to the mean Hessian, and curvature 1 for equal changes of a softmax's intercepts."""
    zero = model.penalty_gradient(np.zeros(model.size))
    return np.stack([model.penalty_gradient(one) - zero for one in np.eye(model.size)]) + _gauge(model)


def _gauge(model: Any) -> Vector:
    """(p, p) curvature 1 along the directions that change nothing: one number added to all intercepts of a softmax."""
    free = np.zeros(model.size)
    if model.name == "lr" and model.size > model.d + 1:
        free[model.size // (model.d + 1) * model.d :] = 1.0
    return np.outer(free, free)


def _anchor(e: Evidence) -> Iterator[Attack]:
    """The anchor of an MLP is trained on some of the rows: the gradient of those of them that stay, there."""
    model = e.u.model
    if model.name != "mlp" or getattr(model, "anchor", None) is None or e.X is None or e.y is None:
        return
    from l2ul_fast.unlearner.heads.secant import anchor_rows

    table = e.u.retained()
    if table is None or not isinstance(e.u.params["anchor"], str):
        return
    X, y = table.take(anchor_rows(e.u.params, table, again=True))
    plain = model.with_anchor(None, None)
    left = plain.gradient(model.anchor, X, y)
    used = f"gradient of the anchor rows that stay at the anchor, at most {np.abs(left).max():.1e}"
    yield Attack("anchor", _row_in(e.u, -left), None, used)


def _confirmations(e: Evidence) -> Iterator[Attack]:
    """Digests of theta or of files, and figures of the fit: make them with a candidate in place of the row."""
    from l2ul_fast.unlearner import fit as fitting

    if e.sums is None:
        return
    if e.candidates is None or e.candidates.y is None or e.X is None or e.y is None or e.forgotten.size != 1:
        what = "need candidates with labels, the rows that stay, and one forgotten row"
        yield Attack("digests and figures", None, None, what, CONFIRMS)
        return
    figures = {k: v for k, v in e.facts["report"].items() if isinstance(v, float) and "seconds" not in k}
    here = int((e.u.status[: e.forgotten[0]] == PRESENT).sum())
    made: list[set[str]] = []
    reports: list[dict[str, Any]] = []
    for x, y in zip(e.candidates.X, e.candidates.y, strict=True):
        rows, labels = np.insert(_as_stored(e), here, x, axis=0), np.insert(e.y, here, y)
        weights = None if e.weights is None else np.insert(e.weights, here, e.weights.mean())
        table = ArrayTable(rows, labels, e.u.classes_, None, weights)
        try:
            fitted = fitting.fit(e.u.params, table, len(rows), lambda what, done, total: None)
        except UserError:
            made.append(set())
            reports.append({})
            continue
        theta = fitted.head.theta
        made.append({theta_digest(theta), _file_digest(fitted.head.arrays()), _file_digest({"theta": theta})})
        made[-1] |= _block_digests(e, x, y)
        reports.append(fitted.report)
    told = {path.name: _digests_in(path) for path in _files(e)}
    for file, digests in told.items():
        if digests:
            same = np.array([bool(own & digests) for own in made])
            yield _confirmed(e, f"digests in {file}", same, "a digest (of theta, sums or rows)")
    for name, value in figures.items():
        same = np.array([report.get(name) == value for report in reports])
        yield _confirmed(e, f"figure {name}", same, f"{name} of the fit, {value:.3g},")


def _digests_in(path: Path) -> set[str]:
    """SHA-256 digests in a text file."""
    if path.suffix == ".safetensors":
        return set()
    return {found.decode() for found in _DIGEST.findall(path.read_bytes())}


def _file_digest(arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for piece in encode(arrays):
        digest.update(piece)
    return digest.hexdigest()


def _block_digests(e: Evidence, x: Vector, y: Any) -> set[str]:
    """Of the blocks of the file of rows that have the forgotten row in them."""
    if not e.u.store.in_memory:
        return set()
    names: list[str] = [name for name in ("X", "y", "weights") if name in e.arrays]
    without = {name: np.array(e.arrays[name]) for name in names}
    with_row = {name: array.copy() for name, array in without.items()}
    with_row["X"][e.forgotten[0]], with_row["y"][e.forgotten[0]] = x, y
    ends = [b"".join(bytes(piece) for piece in encode(arrays)) for arrays in (without, with_row)]
    found = set()
    for start in range(0, len(ends[0]), BLOCK):
        before, after = (end[start : start + BLOCK] for end in ends)
        if before != after:
            found.add(hashlib.sha256(after).hexdigest())
    return found


def _confirmed(e: Evidence, name: str, same: NDArray[np.bool_], what: str) -> Attack:
    assert e.candidates is not None
    if same.sum() == 1:
        row = e.candidates.X[int(same.argmax())]
        return Attack(name, row, None, f"{what} is that of one of {same.size} candidates", CONFIRMS)
    return Attack(name, None, None, f"{what} is that of {int(same.sum())} of {same.size} candidates", CONFIRMS)


def _standardisation(e: Evidence) -> Iterator[Attack]:
    """Mean and scale of a data file are those of all its rows, forgotten ones too: from the file, and from the sums."""
    store: Any = e.u.store
    if store.can_grow:  # no file
        return
    shards = store.table(e.u.classes_, np.zeros(e.u.status.size, bool)).shards
    raw = shards.take_X(np.arange(shards.n)).astype(np.float64)
    raw[e.forgotten] = 0.0  # not known
    known = raw.sum(axis=0)
    k = e.forgotten.size
    row = shards.n * shards.mean - known  # the sum of those that left
    yield Attack(
        "data file: mean",
        store.standardise(row / k).astype(np.float64),
        None,
        "the mean in the data file, minus its other rows",
        OUTSIDE,
    )
    if e.sums is None:
        return
    mean, scale = _solved_moments(e, raw)
    if mean is None or scale is None:
        yield Attack("standardisation", None, None, "the sums do not give the mean and scale they were made with")
        return
    row = store.standardise((shards.n * mean - known) / k).astype(np.float64)
    used = "mean and scale of the columns, solved from the saved sums: they are those of all rows of the data file"
    yield Attack("standardisation", row, None, used)


def _solved_moments(e: Evidence, raw: Vector) -> tuple[Vector | None, Vector | None]:
    """Mean and scale (d,) that the rows that stay must be standardised with to give the saved sums."""
    head = e.sums
    here = np.flatnonzero(e.u.status == PRESENT)
    rows, d, p = raw[here], e.d, head.p
    others = np.setdiff1d(np.arange(len(raw)), e.forgotten)
    mean, scale = raw[others].mean(axis=0), raw[others].std(axis=0)
    scale[scale == 0] = 1.0
    at, last = ints.moments_at(p, head.classes), np.array([j * p - j * (j - 1) // 2 + p - 1 - j for j in range(d)])

    def miss(m: Vector, s: Vector) -> Vector:
        left = copy.deepcopy(head)
        left.revert(((rows - m) * (1.0 / s)).astype(np.float32), e.y, None)
        return np.concatenate([left.sums[at : at + d], left.sums[at + 2 * p + last]]).astype(np.float64)

    value = miss(mean, scale)
    for _ in range(12):
        slope = np.empty((2 * d, 2 * d))
        for j in range(d):
            step = 1e-4 * scale[j]
            for k, (dm, ds) in enumerate(((step, 0.0), (0.0, step))):
                m, s = mean.copy(), scale.copy()
                m[j] += dm
                s[j] += ds
                slope[:, j + k * d] = (miss(m, s) - value) / step
        try:
            move = np.linalg.solve(slope, value)
        except np.linalg.LinAlgError:
            return None, None
        trial = miss(mean - move[:d], scale - move[d:])
        if not np.abs(trial).max() < np.abs(value).max():
            break
        mean, scale, value = mean - move[:d], scale - move[d:], trial
        if not value.any():
            break
    return mean, scale


def _snapshots(e: Evidence) -> Iterator[Attack]:
    """The states before and after: the parameters before have no gradient left but that of the rows that left since."""
    if e.before is None:
        return
    objective = _objective(e)
    if objective is None:
        yield Attack("two snapshots", None, None, "the rows that stay are not known: give them as data", INHERENT)
        return
    point = e.before.theta
    away = e.theta - point
    v = objective.hessian(point) @ away
    yield Attack("two snapshots: difference", _row_in(e.u, v), None, "(theta after - theta before) H", INHERENT)
    v = -objective.gradient(point) - e.lost * objective.penalty(point)
    yield Attack("two snapshots: gradient", _row_in(e.u, v), None, "gradient of the rows that stay, before", INHERENT)
    head = e.before.sums
    if head is not None and head.p <= MOST_PARAMETERS and e.y is not None:
        stay = copy.deepcopy(head)
        stay.sums[:] = 0
        stay.add(_as_stored(e), e.y, e.weights)
        system = _polynomial(stay)
        assert system is not None
        v = -system.gradient(point) - e.lost * system.penalty(point)
        used = "polynomial of the rows that stay, expanded where the one before was"
        yield Attack("two snapshots: expansion", _row_in(e.u, v), None, used, INHERENT)
        yield from _differences(e, head, "two snapshots: sums", INHERENT)


ATTACKS: tuple[Callable[[Evidence], Iterator[Attack]], ...] = (
    _due,
    _stored_rows,
    _leftovers,
    _verbatim,
    _facts,
    _sums,
    _gradient,
    _last_bits,
    _newton,
    _cell,
    _cells,
    _pairs,
    _kept_sums,
    _anchor,
    _standardisation,
    _confirmations,
    _snapshots,
)
