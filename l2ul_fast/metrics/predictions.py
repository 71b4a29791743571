"""Accuracy, F1, disagreement with Retrain, churn, Tug-of-War. Doing nothing scores well on most of these."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from l2ul_fast.checks import AnyLabels, Having, ModelLike, Numbers1, OneOf, RowSet, checked
from l2ul_fast.metrics.value import Number, Value, degenerate, first_degenerate, measured, number, same_length
from l2ul_fast.models.mlp import blocks_of

Average = Annotated[str, OneOf(("binary", "macro"))]


@checked
def accuracy(predicted: AnyLabels, y: AnyLabels, target: Number = None, nothing: Number = None) -> Value:
    """Share of predicted (n,) equal to y (n,). Target: Retrain's on the same rows, not 1 (nor 0 on D_f)."""
    if same_length(predicted, y) == 0:
        return degenerate("no rows", target, nothing)
    return measured(float((np.asarray(predicted) == np.asarray(y)).mean()), target, nothing)


@checked
def accuracy_on(
    model: ModelLike, theta: Numbers1, rows: RowSet, target: Number = None, nothing: Number = None
) -> Value:
    """Accuracy of theta (p,) on rows: arrays (X, y) or a table, block by block. Target: Retrain's on the same rows."""
    hits = n = 0
    for X, y in blocks_of(rows):
        hits += int((model.predict(theta, X) == y).sum())
        n += len(y)
    return measured(hits / n, target, nothing) if n else degenerate("no rows", target, nothing)


@checked
def f1(
    predicted: AnyLabels, y: AnyLabels, average: Average = "binary", target: Number = None, nothing: Number = None
) -> Value:
    """F1 of class 1 ("binary") or the mean F1 of all classes that occur ("macro"). Target: Retrain's F1.

    Degenerate when y has one class only (a constant prediction would score 1) or no row is or is called positive (0/0).
    """
    if same_length(predicted, y) == 0:
        return degenerate("no rows", target, nothing)
    predicted, y = np.asarray(predicted), np.asarray(y)
    if len(np.unique(y)) < 2:
        return degenerate("all rows are of one class", target, nothing)
    scores = []
    for c in [1] if average == "binary" else np.union1d(y, predicted):
        both = int(((predicted == c) & (y == c)).sum())
        either = int((predicted == c).sum() + (y == c).sum())
        if either == 0:
            return degenerate("class 1 neither occurs nor is predicted", target, nothing)
        scores.append(2 * both / either)
    return measured(float(np.mean(scores)), target, nothing)


@checked
def disagreement(predicted: AnyLabels, retrained: AnyLabels, original: AnyLabels | None = None) -> Value:
    """Share of rows (n,) that theta' and Retrain classify differently. Target 0; with `original`, doing nothing's."""
    if same_length(predicted, retrained) == 0:
        return degenerate("no rows", 0.0)
    retrained = np.asarray(retrained)
    same_length(retrained, retrained if original is None else original)
    nothing = None if original is None else float((np.asarray(original) != retrained).mean())
    return measured(float((np.asarray(predicted) != retrained).mean()), 0.0, nothing)


@checked
def churn(predicted: AnyLabels, original: AnyLabels, retrained: AnyLabels) -> Value:
    """Share of rows (n,) whose prediction unlearning changed. Target: the share that Retrain changed; nothing: 0.

    Far above the target means harm to other people's predictions; equal shares need not be the same rows, which
    `disagreement` tells.
    """
    if same_length(predicted, original, retrained) == 0:
        return degenerate("no rows", None, 0.0)
    before = np.asarray(original)
    return measured(
        float((np.asarray(predicted) != before).mean()), float((np.asarray(retrained) != before).mean()), 0.0
    )


@checked
def paired_difference(values: Numbers1, targets: Numbers1) -> Value:
    """Mean of values (k,) - targets (k,) over k runs or requests, with Student's 95 % interval. Target 0.

    Degenerate below 2 runs. When every difference is the same the interval has length 0.
    """
    if (k := same_length(values, targets)) < 2:
        return degenerate(f"{k} run(s): an interval needs at least 2, and 10 to be of use", 0.0)
    from scipy.stats import t

    difference = np.asarray(values, np.float64) - np.asarray(targets, np.float64)
    mean, error = float(difference.mean()), float(difference.std(ddof=1)) / k**0.5
    half = float(t.ppf(0.975, k - 1)) * error
    return measured(mean, 0.0, interval=(mean - half, mean + half))


class Accuracies(NamedTuple):
    """Accuracy of one model on the forgotten, retained and test rows."""

    forget: Number
    retain: Number
    test: Number


Three = Annotated[Accuracies, Having(("forget", "retain", "test"), "Accuracies")]


@checked
def accuracies(model: ModelLike, theta: Numbers1, forget: RowSet, retain: RowSet, test: RowSet) -> Accuracies:
    """Accuracy of theta (p,) on the three parts, each arrays (X, y) or a table."""
    return Accuracies(*(accuracy_on(model, theta, part) for part in (forget, retain, test)))


@checked
def tow(unlearned: Three, retrained: Three, original: Three) -> Value:
    """Tug-of-War: product over forget, retain, test of 1 - |accuracy - Retrain's|. Target 1.

    `nothing` is the ToW of the original model and is often above 0.99: quote it whenever you quote ToW.
    """
    if reason := first_degenerate(*unlearned, *retrained, *original):
        return degenerate(reason, 1.0)
    return measured(_product(unlearned, retrained), 1.0, _product(original, retrained))


@checked
def tow_mia(unlearned: Three, retrained: Three, original: Three, mia_u: Number, mia_r: Number, mia_o: Number) -> Value:
    """ToW whose forget factor compares a membership attack's values (u, r, original) instead. Target 1."""
    return tow(unlearned._replace(forget=mia_u), retrained._replace(forget=mia_r), original._replace(forget=mia_o))


def _product(a: Accuracies, b: Accuracies) -> float:
    pairs = [(number(x), number(z)) for x, z in zip(a, b, strict=True)]
    if any(x is None or z is None or not (0 <= x <= 1 and 0 <= z <= 1) for x, z in pairs):
        raise ValueError("accuracies must be numbers from 0 to 1")
    return float(np.prod([1 - abs(x - z) for x, z in pairs if x is not None and z is not None]))
