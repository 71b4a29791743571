"""Membership attacks as published, by name. Their values point in different directions: always name the variant.

| variant | value | members score |
|---|---|---|
| chundawat2023 | share of D_f called MEMBER | high |
| liu2024 | share of D_f called NON-member | low |
| starting-kit | accuracy of telling D_f from test rows | away from 0.5 |
The target is always Retrain's value of the same variant. `roc.pooled_attack` is ours and the one to prefer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.checks import ClassIndices, Count, Labels, Number0, Results1, Switch, Times, checked, known_classes
from l2ul_fast.errors import DataError
from l2ul_fast.metrics.value import (
    MIN_ROWS,
    Number,
    Value,
    Vector,
    check_proba,
    degenerate,
    first_degenerate,
    measured,
    number,
    same_length,
)

#: Rows that a support vector attack is trained on at most; its time grows with their square.
LIMIT = 10_000
FEATURES = ("correctness", "confidence", "entropy", "m_entropy", "prob")
TINY = 1e-30


def entropy(proba: ArrayLike) -> Vector:
    """(n,) entropy of probabilities (n, C), in nats."""
    p = check_proba(proba)
    return np.asarray(-(p * np.log(np.maximum(p, TINY))).sum(axis=1))


@checked
def modified_entropy(proba: ArrayLike, y: ClassIndices) -> Vector:
    """(n,) -(1 - p_y) log p_y - sum over c != y of p_c log(1 - p_c): 0 for a sure right answer."""
    p, y = check_proba(proba), np.asarray(y, np.int64)
    same_length(p, y)
    known_classes(np.asarray(y), p.shape[1])
    own = np.take_along_axis(p, y[:, None], axis=1)[:, 0]
    others = p * np.log(np.maximum(1 - p, TINY))
    np.put_along_axis(others, y[:, None], 0.0, axis=1)
    return np.asarray(-(1 - own) * np.log(np.maximum(own, TINY)) - others.sum(axis=1))


def _share(inside: Vector, outside: Vector, asked: Vector, member: bool, target: Number, nothing: Number) -> Value:
    """Share of asked rows called members (or not members), with the reasons why it may mean nothing."""
    if len(asked) < MIN_ROWS:
        return degenerate(f"r = {len(asked)}: a share of fewer than {MIN_ROWS} rows is too coarse", target, nothing)
    if min(len(inside), len(outside)) < MIN_ROWS:
        return degenerate(f"the attack needs {MIN_ROWS} retained and test rows to learn from", target, nothing)
    from sklearn.svm import SVC

    X, y = np.concatenate([inside, outside]), np.repeat([1, 0], [len(inside), len(outside)])
    attacker = SVC(C=3, gamma="auto", kernel="rbf").fit(X, y)
    if len(np.unique(attacker.predict(X))) == 1:
        return degenerate("the attacker gives every row the same verdict", target, nothing)
    return measured(float(((attacker.predict(asked) == 1) == member).mean()), target, nothing)


@checked
def mia_chundawat2023(
    retain: ArrayLike,
    test: ArrayLike,
    forget: ArrayLike,
    target: Number = None,
    nothing: Number = None,
    seed: Number0 = 0,
    limit: Count | None = LIMIT,
) -> Value:
    """Share of D_f called MEMBER from the entropy of predictions; probabilities (k, C) of each part.

    An RBF support vector machine (C = 3) learns retained (1) from test rows (0), as many as given (not balanced, as
    published). Beyond `limit` rows both parts are thinned at random in the same proportion. Target: Retrain's value.
    """
    inside, outside = entropy(retain)[:, None], entropy(test)[:, None]
    total = len(inside) + len(outside)
    if limit is not None and total > limit:
        rng = np.random.default_rng(seed)
        inside, outside = (rng.permutation(part)[: len(part) * limit // total] for part in (inside, outside))
    return _share(inside, outside, entropy(forget)[:, None], True, target, nothing)


@checked
def mia_liu2024(
    retain: tuple[ArrayLike, ArrayLike],
    test: tuple[ArrayLike, ArrayLike],
    forget: tuple[ArrayLike, ArrayLike],
    target: dict[str, Value] | None = None,
    nothing: dict[str, Value] | None = None,
    seed: Number0 = 0,
    limit: Count | None = LIMIT,
    shuffle: Switch = True,
) -> dict[str, Value]:
    """Share of D_f called NON-member by five attacks; each part is (probabilities (k, C), labels (k,)).

    As many retained as test rows (drawn at random; shuffle=False: the first, as published) train one RBF support vector
    machine (C = 3) for each of correctness, confidence (p_y; the one papers quote), entropy, m_entropy (the corrected
    formula) and prob (all probabilities). Target: Retrain's values.
    """
    parts = []
    for name, part in (("retain", retain), ("test", test), ("forget", forget)):
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise DataError(f"{name} must be (probabilities, labels)")
        parts.append((check_proba(part[0]), Labels()(f"labels of {name}", part[1])))
        same_length(*parts[-1])
        known_classes(parts[-1][1], parts[-1][0].shape[1])
    n = min(len(parts[0][1]), len(parts[1][1]), limit // 2 if limit else np.iinfo(int).max)
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(len(y))[:n] if shuffle else np.arange(n) for _, y in parts[:2]]
    shadow = [(p[i], y[i]) for (p, y), i in zip(parts[:2], chosen, strict=True)]
    found = {}
    for feature in FEATURES:
        inside, outside, asked = (_feature(feature, p, y) for p, y in (*shadow, parts[2]))
        goal, beside = (target or {}).get(feature), (nothing or {}).get(feature)
        found[feature] = _share(inside, outside, asked, False, goal, beside)
    return found


def _feature(name: str, p: Vector, y: NDArray[np.int64]) -> Vector:
    """(k, 1), or (k, C) for prob."""
    if name == "prob":
        return p
    if name == "correctness":
        column: Any = p.argmax(axis=1) == y
    elif name == "confidence":
        column = np.take_along_axis(p, y[:, None], axis=1)[:, 0]
    else:
        column = entropy(p) if name == "entropy" else modified_entropy(p, y)
    return np.asarray(column, np.float64)[:, None]


@checked
def mia_starting_kit(
    forget_losses: Results1,
    test_losses: Results1,
    target: Number = 0.5,
    nothing: Number = None,
    seed: Number0 = 0,
    splits: Times = 10,
) -> Value:
    """Accuracy of logistic regression that tells D_f from test rows by their log-loss, mean of 10 random splits.

    The larger side is cut at random to the smaller. Target: Retrain's value (0.5 only when D_f is a random sample).
    """
    forget, test = np.asarray(forget_losses, np.float64), np.asarray(test_losses, np.float64)
    if not (np.isfinite(forget).all() and np.isfinite(test).all()):
        raise DataError("a loss is NaN or infinite")
    n = min(len(forget), len(test))
    if n < MIN_ROWS:
        return degenerate(f"{n} rows a side: the attack needs at least {MIN_ROWS}", target, nothing)
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedShuffleSplit

    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.permutation(forget)[:n], rng.permutation(test)[:n]])[:, None]
    y = np.repeat([1, 0], n)
    hits, varies = [], False
    for train, held in StratifiedShuffleSplit(splits, test_size=0.1, random_state=seed).split(X, y):
        called = LogisticRegression().fit(X[train], y[train]).predict(X)
        hits.append(float((called[held] == y[held]).mean()))
        varies |= bool(len(np.unique(called)) > 1)
    if not varies:
        return degenerate("the attacker gives every row the same verdict", target, nothing)
    return measured(float(np.mean(hits)), target, nothing)


def mia_gap(unlearned: Number, retrained: Number, original: Number = None) -> Value:
    """|attack on theta' - attack on Retrain|, both of the same variant. Target 0."""
    if reason := first_degenerate(unlearned, retrained):
        return degenerate(reason, 0.0)
    u, r, o = number(unlearned), number(retrained), number(original)
    if u is None or r is None:
        raise DataError("the gap needs the attack's value on both models")
    return measured(abs(u - r), 0.0, None if o is None else abs(o - r))
