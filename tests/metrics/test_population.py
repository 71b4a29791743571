"""U-LiRA, KLoM, the NeurIPS-2023 score, relearn time, poison recovery: methods whose answers are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from l2ul_fast import metrics
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.metrics import Value
from l2ul_fast.metrics.lira import _score, _Scores, draw_worlds
from l2ul_fast.models import LogisticModel, MLPModel


def make(n, d, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = (X @ rng.normal(size=d) + noise * rng.logistic(size=n) > 0).astype(np.uint8)
    return X, y


X, Y = make(600, 6)
MODEL = LogisticModel(6, lam=1e-2)


def nothing(theta, forget, rows):
    return theta


def retrain(theta, forget, rows):
    kept = np.setdiff1d(rows, forget)
    return MODEL.fit((X[kept], Y[kept]), start=theta).theta


def newton(theta, forget, rows):
    kept = np.setdiff1d(rows, forget)
    g = MODEL.data_gradient(theta, X[forget], Y[forget]) + MODEL.penalty_gradient(theta)
    return theta + np.linalg.solve(MODEL.hessian(theta, X[kept], Y[kept]), g) * len(forget) / len(kept)


# --------------------------------------------------------------------------------------------------------- populations


def test_population_fits_and_gives_each_unlearner_its_own_rows():
    ids = np.stack([np.random.default_rng(i).choice(600, 40, replace=False) for i in range(6)])
    population = metrics.fit_population(MODEL, X, Y, ids, 5)
    assert population.converged.all()
    np.testing.assert_allclose(population.theta[3], MODEL.fit((X[ids[3]], Y[ids[3]])).theta, atol=1e-8)
    np.testing.assert_allclose(metrics.unlearn_all(population, retrain), population.theta_r, atol=1e-7)
    seen = []

    def spoil(theta, forget, rows):
        seen.append((forget.copy(), rows.copy()))
        theta[:] = forget[:] = rows[:] = 0
        return theta

    before = population.theta.copy()
    assert (metrics.unlearn_all(population, spoil) == 0).all()
    np.testing.assert_array_equal(population.theta, before)
    np.testing.assert_array_equal(population.ids, ids)
    for i, (forget, rows) in enumerate(seen):
        np.testing.assert_array_equal(forget, ids[i, :5])
        np.testing.assert_array_equal(rows, ids[i])
    with pytest.raises(UserError, match="shape"):
        metrics.unlearn_all(population, lambda theta, forget, rows: theta[:2])
    with pytest.raises(DataError, match="ids"):
        metrics.fit_population(MODEL, X, Y, ids, 40)
    one_class = np.flatnonzero(Y == 1)[None, :40]
    assert not metrics.fit_population(MODEL, X, Y, one_class, 5).converged.any()


@given(st.integers(1, 5), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_worlds_are_balanced_and_disjoint(r, seed):
    s, m = 12, 16
    targets, ids, had = draw_worlds(40, s, r, m, np.random.default_rng(seed))
    assert ids.shape == (m, s)
    for i in range(m):
        assert len(np.unique(ids[i])) == s
        assert set(ids[i, :r]) == set(targets[had[i]])
        assert not set(ids[i]) & set(targets[~had[i]])  # never seen, neither as forgotten nor as retained row
    assert (had.sum(axis=0) == m // 2).all()
    assert (had[::2] ^ had[1::2]).all()


# -------------------------------------------------------------------------------------------------------------- U-LiRA


def test_lira_tells_nothing_from_retrain():
    run = {"s": 30, "r": 5, "n_models": 256, "n_groups": 2, "n_boot": 200}
    found = {u.__name__: metrics.u_lira(MODEL, X, Y, u, **run) for u in (nothing, retrain, newton)}
    done, none = found["retrain"], found["nothing"]
    for value in (done.auc, done.accuracy):
        assert value.interval[0] < 0.5 < value.interval[1]
        assert value.value == pytest.approx(value.target, abs=1e-6)
    assert none.auc.interval[0] > 0.55
    assert none.accuracy.interval[0] > 0.53
    assert none.auc.value == none.auc.nothing == done.auc.nothing
    assert none.auc.target == done.auc.target == found["newton"].auc.target
    assert none.auc.beaten_by_nothing
    assert abs(found["newton"].auc.gap) < 0.5 * none.auc.gap
    assert (done.models, done.rejected) == (256, 0)
    assert metrics.u_lira(MODEL, X, Y, nothing, **run) == none
    assert metrics.u_lira(MODEL, X, Y, nothing, **run, seed=1) != none


def test_lira_scores_models_it_was_not_fitted_on():
    """Margins that are pure noise: likelihood ratios by hand, from one half of the models for the other half only."""
    rng = np.random.default_rng(3)
    _, _, had = draw_worlds(100, 20, 4, 64, rng)
    phi, fine = rng.normal(size=(64, 8)), np.ones(64, bool)
    fine[[2, 5]] = False  # one of either half
    scored = np.arange(64) // 2 % 2 == 1
    assert (had[scored].sum(axis=0) == 16).all()  # both halves have every target in half of their models
    found = _Scores([], [])
    assert _score(phi, had, fine, found) is None
    models = np.flatnonzero(fine & scored)
    assert len(found.inside) == len(models) == 31
    for i, inside, outside in zip(models, found.inside, found.outside, strict=True):
        ratio = np.empty(8)
        for t in range(8):
            fitted = fine & ~scored
            a, b = (norm(x.mean(), x.std(ddof=1)) for x in (phi[fitted & had[:, t], t], phi[fitted & ~had[:, t], t]))
            ratio[t] = a.logpdf(phi[i, t]) - b.logpdf(phi[i, t])
        np.testing.assert_allclose(inside, ratio[had[i]], atol=1e-9)
        np.testing.assert_allclose(outside, ratio[~had[i]], atol=1e-9)


def test_lira_refuses_too_little():
    few = metrics.u_lira(MODEL, X, Y, nothing, s=30, r=5, n_models=60)
    assert "60 models" in few.auc.degenerate
    diverged = metrics.u_lira(MODEL, X, Y, lambda t, f, a: t * np.nan, s=30, r=5, n_models=64, n_groups=1)
    assert "not finite" in diverged.auc.degenerate
    assert diverged.rejected == 64
    with pytest.raises(UserError, match="rows"):
        metrics.u_lira(MODEL, X, Y, nothing, s=600, r=5)
    stuck = LogisticModel(6)
    stuck.fit_pairs = lambda X, y, ids, r, **o: (np.ones((64, 7)), np.ones((64, 7)), np.zeros((64, 2)), None)
    same = metrics.u_lira(stuck, X, Y, nothing, s=30, r=5, n_models=64, n_groups=1)
    assert "same" in same.auc.degenerate


def test_lira_of_the_mlp():
    model = MLPModel(6, h=3, lam=1e-2)
    run = {"s": 40, "r": 5, "n_models": 128, "n_groups": 1, "n_boot": 50, "tol": 1e-5, "epochs": 20}
    found = metrics.u_lira(model, X, Y, nothing, **run)
    assert found.auc.interval[0] > 0.55
    assert found.auc.target < 0.57


# ---------------------------------------------------------------------------------------------------------------- KLoM


def test_klom_points_equal_a_plain_histogram():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.3, 1, (50, 7)), rng.normal(0, 1.5, (70, 7))
    a[0, 0], a[:, 1], b[:, 1], a[:, 2] = 1e6, 3.0, 3.0, 0.5
    expected = []
    for u, o in zip(a.T, b.T, strict=True):
        u, o = np.clip(u, -100, 100), np.clip(o, -100, 100)
        edges = np.linspace(min(u.min(), o.min()), max(u.max(), o.max()), 21)
        if edges[0] == edges[-1]:
            expected.append(0.0)
            continue
        p, q = np.histogram(u, edges)[0] / 50, np.histogram(o, edges)[0] / 70
        expected.append(sum(x * np.log(x / (z if z > 0 else 1e-5)) for x, z in zip(p, q, strict=True) if x > 0))
    np.testing.assert_allclose(metrics.klom_points(a, b), expected, atol=1e-12)
    np.testing.assert_array_equal(metrics.klom_points(b, b), 0)
    with pytest.raises(DataError, match="shapes"):
        metrics.klom_points(a, b[:, :3])
    with pytest.raises(DataError, match="NaN"):
        metrics.klom_points(a * np.nan, b)


def test_klom_orders_methods():
    forget = np.flatnonzero(Y[:150] == 1)[:40]  # one class: the model really changes
    run = {"test": (X[300:], Y[300:]), "s": 120, "n_models": 100}
    found = {u.__name__: metrics.klom(MODEL, X[:150], Y[:150], forget, u, **run) for u in (nothing, retrain, newton)}
    for part in ("forget", "retain", "test"):
        none, done = found["nothing"][part], found["retrain"][part]
        assert none.mean.value == none.mean.nothing > 2 * none.mean.target
        assert done.mean.value < 1.5 * done.mean.target
        assert done.p95.value <= done.p99.value
        assert done.mean.target == none.mean.target
    assert found["newton"]["forget"].mean.value < 0.5 * found["nothing"]["forget"].mean.value
    assert metrics.klom(MODEL, X[:150], Y[:150], forget, nothing, **run) == found["nothing"]
    # KL from the unlearned to the oracle: models that all answer alike, as a usual oracle does, are in a full bin of it
    kept = np.setdiff1d(np.arange(150), forget)
    usual = MODEL.fit((X[kept], Y[kept])).theta
    alike = metrics.klom(MODEL, X[:150], Y[:150], forget, lambda theta, ids, rows: usual, **run)
    assert 1 < alike["test"].mean.value < 5  # the other way round it would be about log(1e5) - 2


def test_klom_refuses_too_little():
    run = {"test": (X[300:], Y[300:]), "s": 60}
    few = metrics.klom(MODEL, X[:100], Y[:100], np.arange(5), nothing, n_models=19, **run)
    assert "19 models" in few["test"].p99.degenerate
    bad = metrics.klom(MODEL, X[:100], Y[:100], np.arange(5), lambda t, f, a: t * np.nan, n_models=20, **run)
    assert "finite" in bad["forget"].mean.degenerate
    none = metrics.klom(MODEL, X[:100], Y[:100], np.arange(5), nothing, test=(X[:0], Y[:0]), s=60, n_models=20)
    assert none["test"].mean.degenerate == "no rows"
    assert none["retain"].mean.value is not None


# --------------------------------------------------------------------------------------------------- NeurIPS-2023 score


def brute_epsilon(a, b, attacks, delta=1e-5):
    """All attacks, one after the other; values are multiples of 1/2, so thresholds in steps of 1/4 miss no region."""
    wide, narrow = (a, b) if np.ptp(a) >= np.ptp(b) else (b, a)
    low, high = (a, b) if np.median(b) > np.median(a) else (b, a)
    steps = np.arange(-2, 2.25, 0.25)
    if attacks == "published":
        trials = [(t, np.inf, high, low) for t in np.arange(-20, 20, 0.25)]
        trials += [(r - np.ptp(narrow) + x, r, narrow, wide) for r in narrow.max() + steps for x in steps]
    else:
        cuts = np.r_[np.unique(np.r_[a, b]), np.inf]
        trials = [(x, z - 0.25, one, two) for x in cuts for z in cuts[cuts > x] for one, two in ((a, b), (b, a))]
        trials += [(x, z, None, one) for x, z, one, _ in trials]
    best = 0.0
    for left, right, positive, negative in trials:
        if positive is None:  # everything but the interval
            positive, flip = (b if negative is a else a), True
        else:
            flip = False
        called = [((x >= left) & (x <= right)) != flip for x in (positive, negative)]
        fnr, fpr = 1 - called[0].mean(), called[1].mean()
        if fnr == 0 and fpr == 0:
            best = np.inf
        elif fnr > 0 and fpr > 0:
            for x, z in ((fpr, fnr), (fnr, fpr)):
                if 1 - delta - x > 0:
                    best = max(best, np.log(1 - delta - x) - np.log(z))
    return float(min(best, 50))


@given(
    st.integers(0, 10_000),
    st.integers(2, 12),
    st.integers(2, 12),
    st.floats(0.3, 3),
    st.sampled_from(["published", "all"]),
)
@settings(max_examples=60, deadline=None)
def test_epsilons_equal_brute_force(seed, n, m, scale, attacks):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.5, scale, (n, 1)), rng.normal(0, 2, (m, 1))
    a, b = np.round(2 * a) / 2, np.round(2 * b) / 2
    spans = np.ptp(a), np.ptp(b)
    expected = 50.0 if min(spans) < 0.01 * max(spans) else brute_epsilon(a[:, 0], b[:, 0], attacks)
    assert metrics.epsilons(a, b, attacks=attacks)[0] == pytest.approx(expected, rel=1e-9)


def test_forgetting_orders_sets_and_names_the_deterministic_one():
    rng = np.random.default_rng(1)
    r, again, far = rng.normal(size=(200, 5)), rng.normal(size=(200, 5)), rng.normal(1.5, 1, (200, 5))
    good, bad = metrics.forgetting(again, r, rng.normal(size=(200, 5))), metrics.forgetting(far, r)
    assert good.value > 2 * bad.value
    assert good.value == pytest.approx(good.target, rel=0.7)
    apart = metrics.forgetting(r + 100, r)
    assert apart.value == 0  # told apart without an error: epsilon 50
    assert "vary the seed" in metrics.forgetting(np.ones((200, 5)), r).degenerate
    assert "retrained models" in metrics.forgetting(r, np.ones((200, 5))).degenerate
    mixed = far.copy()
    mixed[:, 0] = 0.3  # one example without spread costs that example only
    assert metrics.epsilons(mixed, r)[0] == 50
    assert metrics.forgetting(mixed, r).value is not None
    assert "19 models" in metrics.forgetting(r[:19], r).degenerate
    assert metrics.forgetting(r[:, :0], r[:, :0]).degenerate == "no examples"
    score = metrics.forgetting_score(good, 0.9, 0.8, 0.7, 0.7)
    assert score.value == pytest.approx(good.value * 0.9 / 0.8)
    assert metrics.forgetting_score(good, 0.9, 0.0, 0.7, 0.7).degenerate == "Retrain's accuracy is 0"
    assert metrics.forgetting_score(metrics.forgetting(r[:3], r), 1, 1, 1, 1).degenerate
    for bad_input in ((r, r[:, :2]), (r * np.nan, r), (r[:0], r)):
        with pytest.raises(DataError, match="output"):
            metrics.epsilons(*bad_input)
    with pytest.raises(ValueError, match="attacks"):
        metrics.epsilons(r, r, attacks="some")


def test_points_halve_every_half():
    from l2ul_fast.metrics.epsilon import _points

    eps = np.array([0.0, 0.49, 0.5, 0.99, 1.0, 2.2, 6.99, 7.0])
    np.testing.assert_allclose(_points(eps, 512), [1, 1, 0.5, 0.5, 0.25, 1 / 16, 0.5**13, 0])  # ln 511 is 6.2


# ------------------------------------------------------------------------------------------------------------- relearn


@pytest.fixture(scope="module")
def one_class():
    """Half the rows of one class leave: Retrain's loss on them rises, so there is something to relearn."""
    forget = np.flatnonzero(Y == 1)[:250]
    kept = np.setdiff1d(np.arange(600), forget)
    theta = MODEL.fit((X, Y)).theta
    return X[forget], Y[forget], theta, MODEL.fit((X[kept], Y[kept])).theta


def test_relearn_time(one_class):
    Xf, yf, theta, theta_r = one_class
    assert metrics.relearn_time(MODEL, theta_r, theta_r, theta, Xf, yf).value == 1
    none = metrics.relearn_time(MODEL, theta, theta_r, theta, Xf, yf)
    assert none.value == 0 == none.nothing
    half = metrics.relearn_time(MODEL, 0.5 * (theta + theta_r), theta_r, theta, Xf, yf)
    assert 0 < half.value < 1
    assert half == metrics.relearn_time(MODEL, 0.5 * (theta + theta_r), theta_r, theta, Xf, yf)


def test_relearn_time_is_a_ratio_of_steps_to_the_slackened_loss(one_class):
    Xf, yf, theta, theta_r = one_class
    new = 0.5 * (theta + theta_r)
    ratios = []
    for slack in (0.0, 0.05, 0.3):
        goal = (1 + slack) * metrics.losses(MODEL, theta, Xf, yf).mean()
        steps = [metrics.relearn_steps(MODEL, t, Xf, yf, goal) for t in (new, theta_r)]
        ratios.append(steps)
        assert metrics.relearn_time(MODEL, new, theta_r, theta, Xf, yf, slack=slack).value == steps[0] / steps[1]
    assert metrics.relearn_time(MODEL, new, theta_r, theta, Xf, yf).value == ratios[1][0] / ratios[1][1]
    assert ratios[0] > ratios[1] > ratios[2]


def test_relearning_goes_through_all_rows_and_has_no_penalty(one_class):
    """Batches by hand: every row once before any comes again; a strong penalty of the model plays no part."""
    Xf, yf, _, theta_r = one_class
    model, rng = LogisticModel(6, lam=5.0), np.random.default_rng(4)
    order, at, seen = [], theta_r.copy(), []
    for _ in range(12):  # 250 rows: batches of 32 end with one of 26
        if len(order) == 0:
            order = rng.permutation(250)
        part, order = order[:32], order[32:]
        at = at - 0.1 * model.data_gradient(at, Xf[part], yf[part])
        seen.append(float(metrics.losses(model, at, Xf, yf).mean()))
    assert (np.diff(seen) < 0).all()
    for k, loss in enumerate(seen, 1):
        assert metrics.relearn_steps(model, theta_r, Xf, yf, loss + 1e-12, seed=4) == k
        assert metrics.relearn_steps(model, theta_r, Xf, yf, loss - 1e-9, seed=4) == k + 1


def test_relearn_degenerate(one_class):
    Xf, yf, theta, theta_r = one_class
    assert "within 5%" in metrics.relearn_time(MODEL, theta_r, theta, theta, Xf, yf).degenerate
    assert "Retrain does not" in metrics.relearn_time(MODEL, theta, theta_r, theta, Xf, yf, max_steps=1).degenerate
    worse = theta_r + 50 * (theta_r - theta)
    assert metrics.relearn_time(MODEL, worse, theta_r, theta, Xf, yf, max_steps=40).degenerate.startswith("D_f is not")
    assert metrics.relearn_time(MODEL, theta, theta_r, theta, Xf[:0], yf[:0]).degenerate == "no rows"
    with pytest.raises(UserError, match="rate"):
        metrics.relearn_steps(MODEL, theta, Xf, yf, 0.1, rate=0.0)


# -------------------------------------------------------------------------------------------------------------- poison


def test_recovery():
    assert metrics.recovery(0.6, 0.8, 0.9).value == pytest.approx(2 / 3)
    assert metrics.recovery(0.6, 0.9, 0.9).value == 1
    assert metrics.recovery(0.6, 0.6, 0.9).value == 0
    assert "cost" in metrics.recovery(0.8, 0.9, 0.805).degenerate
    assert "cost" in metrics.recovery(0.8, 0.9, 0.7).degenerate
    # the control has recovered when it is past the middle between its own target and full recovery
    for null, verdict in ((0.54, False), (0.56, True)):
        assert metrics.Recovery(Value(1.0), Value(null, target=0.1)).forgot_its_model is verdict
    y = np.array([0, 1, 2, 0, 1, 2])
    dirty = metrics.poison_labels(y, [0, 1, 2], 3)
    assert (dirty[:3] != y[:3]).all()
    assert (dirty[3:] == y[3:]).all()
    assert set(dirty) <= {0, 1, 2}
    np.testing.assert_array_equal(metrics.poison_labels(y, [0, 1], 3, swap=(0, 1))[:2], [1, 0])
    with pytest.raises(UserError, match="classes"):
        metrics.poison_labels(y, [2], 3, swap=(0, 1))


def test_null_control_catches_the_method_that_ignores_its_input():
    poison = np.flatnonzero(Y[:400] == 1)[:150]
    test = (X[400:], Y[400:])
    clean = MODEL.fit((X, Y)).theta

    def retrains(Xp, yp):
        def unlearn(theta, forget, rows):
            kept = np.setdiff1d(rows, forget)
            return MODEL.fit((Xp[kept], yp[kept])).theta

        return unlearn

    def run(prepare, **more):
        return metrics.poison_experiment(MODEL, X[:400], Y[:400], test, prepare, poison, **more)

    honest = run(retrains)
    assert honest.recovery.value == pytest.approx(1)
    assert honest.null.value == pytest.approx(honest.null.target)
    assert honest.null.value < 0.4
    assert honest.forgot_its_model is False
    cheat = run(lambda Xp, yp: lambda theta, forget, rows: clean)
    assert cheat.recovery.value > 0.9
    assert cheat.null.value > 0.9
    assert cheat.forgot_its_model is True
    idle = run(lambda Xp, yp: nothing)
    assert idle.recovery.value == 0 == idle.null.value
    swapped = run(retrains, swap=(1, 0))
    assert swapped == honest  # two classes: any other label is the swapped one
    mild = run(retrains, min_effect=0.9)
    assert "less than" in mild.recovery.degenerate
    assert mild.forgot_its_model is None
    with pytest.raises(UserError, match="clean"):
        metrics.poison_experiment(MODEL, X[:200], Y[:200], test, retrains, np.arange(100))


@pytest.mark.parametrize("attacks", ["published", "all"])
def test_one_side_that_hardly_varies_gives_itself_away(attacks):
    """These cannot be told apart by counting, so 50 is by rule: less than a hundredth of the other side's spread."""
    even = np.linspace(-1, 1, 20)[:, None]
    wide = np.where(abs(even) < 0.6, 0.001 * even, even)  # half of them where the others are
    for narrow, given_away in ((0.0099 * even, True), (0.0101 * even, False), (0 * even, True)):
        for pair in ((narrow, wide), (wide, narrow)):
            assert (metrics.epsilons(*pair, attacks=attacks)[0] == 50) == given_away
