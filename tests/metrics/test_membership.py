"""Membership attacks: AUC against scikit-learn, published variants against their own definition, orientation, seeds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.svm import SVC

from l2ul_fast import metrics
from l2ul_fast.errors import DataError
from l2ul_fast.metrics import Value
from l2ul_fast.metrics.membership import FEATURES
from l2ul_fast.models import LogisticModel

scores = st.lists(st.integers(-4, 4), min_size=10, max_size=40)  # few values: many ties


def confident(rng, n, sure, c=2):
    """Probabilities (n, c) and labels: right with about the given confidence."""
    y = rng.integers(0, c, n)
    own = 1 / (1 + np.exp(-(sure + rng.normal(size=n))))
    p = np.repeat((1 - own)[:, None] / (c - 1), c, axis=1)
    p[np.arange(n), y] = own
    return p, y


# --------------------------------------------------------------------------------------------------------------- ours


@given(scores, scores)
@settings(max_examples=150, deadline=None)
def test_auc_and_tpr_equal_scikit_learn(a, b):
    n = min(len(a), len(b))
    a, b = np.array(a[:n], float), np.array(b[:n], float)
    found = metrics.pooled_attack([a], [b], rates=(0.1, 0.3), n_boot=5)
    if len(np.unique(np.r_[a, b])) == 1:
        assert found.auc.degenerate == "all scores are equal" == found.tpr[0.1].degenerate
        return
    truth, score = np.repeat([1, 0], n), np.r_[a, b]
    assert found.auc.value == pytest.approx(roc_auc_score(truth, score))
    fpr, tpr, _ = roc_curve(truth, score, drop_intermediate=False)
    for rate in (0.1, 0.3):
        assert found.tpr[rate].value == pytest.approx(tpr[fpr <= rate + 1e-12].max())
    assert found.auc.interval[0] <= found.auc.interval[1]


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_attack_does_not_care_about_scale_order_or_requests(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.5, 1, 40), rng.normal(0, 1, 40)
    plain = metrics.pooled_attack([a], [b], rates=(0.1,), n_boot=2)
    bent = metrics.pooled_attack([np.exp(a) - 7], [np.exp(b) - 7], rates=(0.1,), n_boot=2)
    split = metrics.pooled_attack(
        [a[i : i + 1] for i in range(40)], [b[i : i + 1] for i in range(40)], (0.1,), n_boot=2
    )
    mixed = metrics.pooled_attack([rng.permutation(a)], [rng.permutation(b)], rates=(0.1,), n_boot=2)
    swapped = metrics.pooled_attack([b], [a], rates=(0.1,), n_boot=2)
    for other in (bent, split, mixed):
        assert other.auc.value == pytest.approx(plain.auc.value)
        assert other.tpr[0.1].value == pytest.approx(plain.tpr[0.1].value)
    assert swapped.auc.value == pytest.approx(1 - plain.auc.value)


def test_interval_covers_and_knows_requests():
    """Intervals hold the truth about 95 times of 100; rows of one request that move together widen them."""
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(100):
        a, b = rng.normal(size=(2, 60))
        low, high = metrics.pooled_attack([a], [b], n_boot=200, seed=seed).auc.interval
        held += low <= 0.5 <= high
    assert 86 <= held <= 100
    shift = np.repeat(rng.normal(size=40), 25)
    a, b = rng.normal(size=(2, 1000)) * 0.1 + np.stack([shift, -shift])
    parts = [list(x.reshape(40, 25)) for x in (a, b)]
    by_request = metrics.pooled_attack(*parts, n_boot=300).auc.interval
    by_row = metrics.pooled_attack([a], [b], n_boot=300).auc.interval
    assert by_request[1] - by_request[0] > 2 * (by_row[1] - by_row[0])


def test_attack_is_balanced_and_deterministic():
    rng = np.random.default_rng(1)
    a, b = rng.normal(1, 1, 50), rng.normal(0, 1, 2000)
    first, again, other = (metrics.pooled_attack([a], [b], n_boot=50, seed=s) for s in (3, 3, 4))
    assert first == again
    assert first.auc != other.auc
    assert "too few" in first.tpr[0.01].degenerate  # 50 rows a side after balancing, though 2000 were given
    turned = metrics.pooled_attack([-b, -b], [-a, -a[:7]], n_boot=2)  # members are cut to the outsiders as well
    assert turned.tpr[0.01].degenerate.startswith("57 rows")
    assert 0.6 < turned.auc.value < 0.9
    assert metrics.pooled_attack([-b], [-a[:9]]).auc.degenerate.startswith("9 forgotten rows")
    enough = metrics.pooled_attack([rng.normal(size=100)], [b], n_boot=2)
    assert enough.tpr[0.01].value is not None
    assert "too few" in enough.tpr[0.001].degenerate


def test_attack_needs_rows_and_takes_targets():
    few = metrics.pooled_attack([[1.0, 2.0]], [[0.0, 1.0]])
    assert "at least 10" in few.auc.degenerate
    assert few.auc.target == 0.5
    assert few.tpr[0.01].target == 0.01
    rng = np.random.default_rng(2)
    r, o, u = (metrics.pooled_attack([rng.normal(m, 1, 100)], [rng.normal(size=100)], n_boot=2) for m in (0, 3, 1))
    found = metrics.pooled_attack([rng.normal(size=100)], [rng.normal(size=100)], retrained=r, original=o, n_boot=2)
    assert (found.auc.target, found.auc.nothing) == (r.auc.value, o.auc.value)
    gap = metrics.mia_gap(u.auc, r.auc, o.auc)
    assert gap.value == pytest.approx(abs(u.auc.value - r.auc.value))
    assert gap.nothing == pytest.approx(o.auc.value - r.auc.value)
    assert metrics.mia_gap(r.auc, r.auc).value == 0 == gap.target
    below = metrics.mia_gap(0.4, 0.7, 0.5)
    assert (below.value, below.nothing) == pytest.approx((0.3, 0.2))
    assert metrics.mia_gap(few.auc, r.auc).degenerate == few.auc.degenerate
    with pytest.raises(DataError, match="NaN"):
        metrics.pooled_attack([[np.nan] * 20], [[0.0] * 20])
    with pytest.raises(DataError, match="requests"):
        metrics.pooled_attack([[1.0]], [])


@pytest.fixture(scope="module")
def overfitted():
    """Logistic regression with as many parameters as rows: members stand out until it is retrained."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(90, 40)), rng.integers(0, 2, 90).astype(np.uint8)
    test = rng.normal(size=(500, 40)), rng.integers(0, 2, 500).astype(np.uint8)
    model, forgets = LogisticModel(40, lam=1e-2), [rng.choice(90, 5, replace=False) for _ in range(30)]
    theta = model.fit((X, y)).theta
    kept = [np.setdiff1d(np.arange(90), ids) for ids in forgets]
    return model, (X, y), test, forgets, theta, [model.fit((X[k], y[k]), start=theta).theta for k in kept]


def test_attack_finds_members_and_not_after_retraining(overfitted):
    model, train, test, forgets, theta, retrained = overfitted
    attacks = {}
    for name, thetas in (("nothing", [theta] * 30), ("retrain", retrained)):
        for score in ("confidence", "loss"):
            parts = metrics.request_scores(model, thetas, forgets, train, test, score, seed=1)
            attacks[name, score] = metrics.pooled_attack(*parts, n_boot=200)
        assert attacks[name, "loss"].auc.value == pytest.approx(attacks[name, "confidence"].auc.value)
    assert attacks["nothing", "loss"].auc.interval[0] > 0.55  # members have the higher score
    low, high = attacks["retrain", "loss"].auc.interval
    assert low < 0.5 < high
    # every request has test rows of its own, the same ones whatever the method
    same = metrics.request_scores(model, [theta] * 30, forgets, train, test, seed=1)[1]
    assert len({tuple(scores) for scores in same}) == 30
    everyone = metrics.attack_scores(model, theta, *test)
    again = metrics.request_scores(model, retrained, forgets, train, test, seed=1)[1]
    for before, after, at in zip(same, again, retrained, strict=True):
        rows = np.abs(everyone - before[:, None]).argmin(axis=1)  # which test rows these scores belong to
        expected = metrics.attack_scores(model, at, test[0][rows], test[1][rows])
        np.testing.assert_allclose(after, expected, atol=1e-9)
    with pytest.raises(ValueError, match="score"):
        metrics.attack_scores(model, theta, *test, "entropy")


# ---------------------------------------------------------------------------------------------------------- published


def test_entropies():
    rng = np.random.default_rng(4)
    p, y = rng.dirichlet(np.ones(4), 30), rng.integers(0, 4, 30)
    np.testing.assert_allclose(metrics.entropy(p), scipy_entropy(p, axis=1))
    expected = []
    for row, label in zip(p, y, strict=True):
        value = -(1 - row[label]) * np.log(row[label])
        for c in range(4):
            if c != label:
                value -= row[c] * np.log(1 - row[c])
        expected.append(value)
    np.testing.assert_allclose(metrics.modified_entropy(p, y), expected)
    sure = metrics.modified_entropy(np.eye(2), [0, 0])
    assert sure[0] == 0
    assert 10 < sure[1] < np.inf


def test_chundawat_counts_members():
    rng = np.random.default_rng(5)
    retain, test = confident(rng, 80, 4)[0], confident(rng, 60, 0)[0]
    forget = confident(rng, 40, 4)[0]
    inside, outside = metrics.entropy(retain), metrics.entropy(test)
    by_hand = SVC(C=3, gamma=1.0).fit(np.r_[inside, outside][:, None], np.r_[np.ones(80), np.zeros(60)])
    found = metrics.mia_chundawat2023(retain, test, forget, target=0.2)
    assert found.value == pytest.approx((by_hand.predict(metrics.entropy(forget)[:, None]) == 1).mean())
    assert found.value > 0.8  # like the retained rows: members
    assert metrics.mia_chundawat2023(retain, test, confident(rng, 40, 0)[0]).value < 0.5
    assert found.target == 0.2
    thin = metrics.mia_chundawat2023(retain, test, forget, limit=50, seed=1)
    assert thin == metrics.mia_chundawat2023(retain, test, forget, limit=50, seed=1)
    assert thin.value > 0.8


def test_liu_counts_non_members():
    rng = np.random.default_rng(6)
    retain, test, member, other = (confident(rng, n, sure, 3) for n, sure in ((90, 4), (60, -1), (40, 4), (40, -1)))
    high, low = (metrics.mia_liu2024(retain, test, asked) for asked in (other, member))
    assert tuple(high) == FEATURES
    for feature in FEATURES:
        assert high[feature].value > 0.6 > 0.3 > low[feature].value  # never-members are called so
    assert metrics.mia_liu2024(retain, test, other) == high
    plain = metrics.mia_liu2024(retain, test, other, shuffle=False, target=high)["confidence"]
    own = [np.take_along_axis(p, y[:, None], 1) for p, y in (retain, test, other)]
    by_hand = SVC(C=3, gamma=1.0).fit(np.vstack([own[0][:60], own[1]]), np.r_[np.ones(60), np.zeros(60)])
    assert plain.value == pytest.approx((by_hand.predict(own[2]) == 0).mean())
    assert plain.target == high["confidence"].value


def test_liu_draws_retained_rows_at_random():
    """Retained rows sorted, surest first: beside those, an ordinary member looks like no member."""
    rng = np.random.default_rng(7)
    p, y = confident(rng, 400, 2)
    order = np.argsort(-p[np.arange(400), y])
    retain, test, asked = (p[order], y[order]), confident(rng, 60, 0), confident(rng, 100, 2)
    first = metrics.mia_liu2024(retain, test, asked, shuffle=False)["confidence"].value
    drawn = metrics.mia_liu2024(retain, test, asked)["confidence"].value
    assert drawn < first - 0.2
    values = {metrics.mia_liu2024(retain, test, asked, seed=s)["confidence"].value for s in range(4)}
    assert len(values) > 1


def test_starting_kit_is_an_accuracy():
    rng = np.random.default_rng(8)
    same = metrics.mia_starting_kit(rng.gamma(1, 1, 300), rng.gamma(1, 1, 900))
    assert same.value == pytest.approx(0.5, abs=0.1)
    assert same.target == 0.5
    low, high = rng.gamma(1, 0.1, 300), rng.gamma(1, 0.1, 400) + 2
    assert metrics.mia_starting_kit(low, high).value > 0.95
    assert metrics.mia_starting_kit(high, low).value > 0.95  # whichever way round
    first, again, other = (metrics.mia_starting_kit(low, high - 2, seed=s) for s in (1, 1, 2))
    assert first == again != other


def test_degenerate_attacks():
    rng = np.random.default_rng(9)
    p, y = confident(rng, 50, 2)
    flat = np.full((50, 2), 0.5)
    nine = "r = 9: a share of fewer than 10 rows is too coarse"
    assert metrics.mia_chundawat2023(p, p, p[:9]).degenerate == nine
    assert "same verdict" in metrics.mia_chundawat2023(flat, flat, flat).degenerate
    assert "learn from" in metrics.mia_chundawat2023(p[:5], p, p).degenerate
    found = metrics.mia_liu2024((p, y), (p, y), (p[:9], y[:9]))
    assert {v.degenerate for v in found.values()} == {nine}
    right = confident(rng, 50, 9)  # always right: correctness says nothing, the other features may
    assert "same verdict" in metrics.mia_liu2024(right, right, (p, y))["correctness"].degenerate
    assert "at least 10" in metrics.mia_starting_kit(np.ones(9), np.ones(50)).degenerate
    assert "same verdict" in metrics.mia_starting_kit(np.ones(50), np.ones(50)).degenerate
    assert metrics.mia_gap(0.5, Value(None, degenerate="why")).degenerate == "why"
    with pytest.raises(DataError, match="loss"):
        metrics.mia_starting_kit([np.inf] * 20, [1.0] * 20)
