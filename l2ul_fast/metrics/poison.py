"""Poison recovery: wrong labels go in, unlearning takes them out; and the control that shows who cheats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.checks import (
    ClassIndices,
    Features,
    Finite,
    Labels,
    ModelLike,
    Number0,
    RowNumbers,
    RowSet,
    Whole,
    checked,
    known_classes,
)
from l2ul_fast.errors import UserError
from l2ul_fast.metrics.predictions import accuracy_on
from l2ul_fast.metrics.value import Ids, Number, Unlearn, Value, degenerate, first_degenerate, measured, number

TwoOrMore = Annotated[int, Whole(2)]
#: Accuracy that the poison must cost before its recovery means anything.
MIN_EFFECT = 0.01


class Recovery(NamedTuple):
    """Share of the lost accuracy that came back: by unlearning the poison, and by unlearning as many clean rows."""

    recovery: Value
    null: Value

    @property
    def forgot_its_model(self) -> bool | None:
        """Whether the control recovers too: then the gain has nothing to do with the rows that were asked for."""
        if self.null.value is None or self.null.target is None:
            return None
        return self.null.value > 0.5 * (1.0 + self.null.target)


@checked
def recovery(original: Number, unlearned: Number, retrained: Number, min_effect: Finite = MIN_EFFECT) -> Value:
    """(accuracy of theta' - original's) / (Retrain's - original's), on clean test rows. Target 1; doing nothing 0.

    `original` was trained on the poison. Degenerate when the poison cost less than min_effect: there is nothing to
    recover.
    """
    if reason := first_degenerate(original, unlearned, retrained):
        return degenerate(reason, 1.0, 0.0)
    o, u, r = number(original), number(unlearned), number(retrained)
    if o is None or u is None or r is None:
        raise UserError("recovery needs the accuracies of all three models")
    if r - o < min_effect:
        return degenerate(f"the poison cost {r - o:.4f} accuracy, less than {min_effect:g}", 1.0, 0.0)
    return measured((u - o) / (r - o), 1.0, 0.0)


@checked
def poison_labels(
    y: ArrayLike, ids: RowNumbers, n_classes: TwoOrMore, seed: Number0 = 0, swap: tuple[int, int] | None = None
) -> NDArray[Any]:
    """A copy of y (n,) with wrong labels in rows ids: any other class, or the two classes of `swap` exchanged."""
    known, y = Labels()("y", y), np.array(y)
    if ids.size and ids.max() >= y.size:
        raise UserError(f"row {ids.max()} does not exist: y has {y.size} rows")
    known_classes(known, n_classes)
    old = known[ids]
    if swap is None:
        new = (old + np.random.default_rng(seed).integers(1, n_classes, len(ids))) % n_classes
    else:
        if swap[0] == swap[1] or not np.isin(old, swap).all():
            raise UserError(f"rows to confuse must be of the two classes {swap[0]} and {swap[1]}")
        new = np.where(old == swap[0], swap[1], swap[0])
    y[ids] = new
    return y


@checked
def poison_experiment(
    model: ModelLike,
    X: Features,
    y: ClassIndices,
    test: RowSet,
    prepare: Callable[[NDArray[Any], NDArray[Any]], Unlearn],
    poison: RowNumbers,
    seed: Number0 = 0,
    swap: tuple[int, int] | None = None,
    min_effect: Finite = MIN_EFFECT,
) -> Recovery:
    """Recovery of a method and its null control. X (n, d), y (n,) clean; `poison` (r,) are the rows to mislabel.

    prepare(X, poisoned y) -> unlearn(theta, forget ids, all ids). The control asks the same unlearner for r clean rows
    drawn at random; its target is what Retrain without those rows recovers, about 0.
    """
    poison = np.unique(np.asarray(poison, np.int64))
    clean, everything = np.setdiff1d(np.arange(len(X)), poison), np.arange(len(X))
    if len(clean) <= len(poison):
        raise UserError(f"{len(poison)} of {len(X)} rows are poison: the control needs more clean rows than that")
    control = np.sort(np.random.default_rng([seed, 17]).choice(clean, len(poison), replace=False))
    dirty = poison_labels(y, poison, model.n_classes, seed, swap)
    theta = model.fit((X, dirty)).theta

    def score(at: Any) -> Value:
        return accuracy_on(model, at, test)

    def without(ids: Ids) -> Value:
        rest = np.setdiff1d(everything, ids)
        return score(model.fit((X[rest], dirty[rest]), start=theta).theta)

    before, retrained = score(theta), without(poison)
    unlearn = prepare(X, dirty)
    found = recovery(before, score(unlearn(theta.copy(), poison, everything)), retrained, min_effect)
    null = recovery(before, score(unlearn(theta.copy(), control, everything)), retrained, min_effect)
    goal = recovery(before, without(control), retrained, min_effect).value
    return Recovery(found, Value(null.value, goal, null.degenerate, nothing=0.0))
