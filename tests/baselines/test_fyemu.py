"""FYEMU: noise that the model gets wrong, two short stages, and no forgotten row read."""

import numpy as np
import pytest
from baselines_data import FORGET, blobs, plain, prepared, table_of

from l2ul_fast.baselines import Fyemu, Recipe
from l2ul_fast.models import LogisticModel, MLPModel


@pytest.mark.parametrize("level", ["row", "class"])
@pytest.mark.parametrize("kind", ["softmax", "mlp"])
def test_noise_objective_falls(level, kind):
    """C1, C3: minus the loss plus the penalty falls at every look, the loss of the noise ends higher, theta stays."""
    table, _ = plain(kind)
    model = LogisticModel(4, 3) if kind == "softmax" else MLPModel(4, h=4, lam=1e-2)
    labels = np.repeat([0, 1], 32) if level == "class" else table.y[:64].astype(np.int64)
    start, objective = np.random.default_rng([0, 17]).normal(size=(64, 4)), []
    for steps in range(0, 13, 2):
        method = prepared(Fyemu(level, noise_steps=steps, tol=1e-7), table, model)
        before = method.theta.copy()
        noise, losses = method.make_noise(labels)
        np.testing.assert_array_equal(method.theta, before)
        objective.append(-losses[:, -1].mean() + 0.1 * (noise**2).sum(axis=1).mean())
        if steps == 0:
            np.testing.assert_array_equal(noise, start)
    assert (np.diff(objective) < 0).all()
    assert losses.shape == (64, 13)
    assert losses[:, -1].mean() > losses[:, 0].mean() + 0.05
    free, _ = prepared(Fyemu(level, noise_penalty=0.0, tol=1e-7), table, model).make_noise(labels)
    strict, _ = prepared(Fyemu(level, noise_penalty=1.0, tol=1e-7), table, model).make_noise(labels)
    assert (strict**2).sum() < 0.9 * (free**2).sum()
    own = model.predict_proba(method.theta, noise)[np.arange(64), labels]
    np.testing.assert_allclose(-np.log(own), losses[:, -1], atol=1e-9)


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_it_forgets_a_class_and_keeps_the_others(kind):
    """C2."""
    X, y = blobs(5000, 6, 4, seed=33, spread=0.5)
    model = LogisticModel(6, 4, lam=1e-2) if kind == "lr" else MLPModel(6, 4, h=5, lam=1e-2)
    table = table_of(X[:4000], y[:4000])
    method = prepared(Fyemu(level="class", tol=1e-6), table, model)
    before = model.predict(method.theta, X[4000:])
    answer = method.unlearn(np.flatnonzero(y[:4000] == 1))
    after, test = answer.predict_proba(X[4000:]).argmax(axis=1), y[4000:]
    assert (after == test)[test == 1].mean() < 0.05
    assert (after == test)[test != 1].mean() > (before == test)[test != 1].mean() - 0.05


@pytest.mark.parametrize("level", ["row", "class"])
@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_no_forgotten_row_is_read(level, kind):
    """C4: features of the forgotten rows may be anything when the request comes."""
    table, model = plain(kind)
    table = table_of(table.X.copy(), table.y)
    model = MLPModel(4, h=3, lam=1e-2) if kind == "mlp" else model
    forget = np.flatnonzero(table.y == 1)[:7]
    method = prepared(Fyemu(level, noise_rows=16, retain_per_class=60, tol=1e-7), table, model)
    first = method.unlearn(forget).theta
    table.X[forget] = np.nan
    method._near_X[np.isin(method._near, forget)] = np.nan
    np.testing.assert_array_equal(method.unlearn(forget).theta, first)
    assert np.isfinite(first).all()


def test_stages_are_what_they_say():
    """Noise rows with their labels and copies, retained rows with theirs; then retained rows alone; whole batches."""
    (table, model), forget = plain("lr"), FORGET
    impair, repair = (Recipe(1, 10**6, rate, adam=False, decay=False) for rate in (0.3, 0.2))
    method = prepared(Fyemu(copies=3, retain_per_class=50, impair=impair, repair=repair), table, model)
    noise, losses = method.make_noise(table.y[forget])
    keep = method._subset(forget)
    assert len(keep) == 100
    assert len(np.intersect1d(keep, forget)) == 0
    X = np.vstack([np.repeat(noise.astype(np.float32), 3, axis=0), table.X[keep]])
    y = np.concatenate([np.repeat(table.y[forget], 3), table.y[keep]])
    theta = method.theta - 0.3 * model.gradient(method.theta, X, y)
    theta = theta - 0.2 * model.gradient(theta, table.X[keep], table.y[keep])
    answer = method.unlearn(forget)
    np.testing.assert_allclose(answer.theta, theta, atol=1e-12)
    facts = answer.facts
    assert (facts["noise_rows"], facts["retain_rows"], facts["impair_steps"], facts["repair_steps"]) == (5, 100, 1, 1)
    assert facts["noise_loss"] == pytest.approx((losses[:, 0].mean(), losses[:, -1].mean()))


@pytest.mark.parametrize("published", [False, True])
def test_class_level_labels(published):
    """Two classes leave: noise rows carry their class; as published, three of each are all called class 0."""
    table, model = plain("softmax")
    descent = {"adam": False, "decay": False}
    method = prepared(
        Fyemu(
            "class",
            noise_rows=8,
            copies=2,
            retain_per_class=40,
            as_published=published,
            impair=Recipe(1, 10**6, 0.3, **descent),
            repair=Recipe(0),
        ),
        table,
        model,
    )
    forget = np.array([np.flatnonzero(table.y == c)[0] for c in (1, 2)])
    labels = np.repeat([1, 2], 8)
    noise, _ = method.make_noise(labels)
    if published:
        noise, labels = noise[[0, 1, 2, 8, 9, 10]], np.zeros(6, int)
    keep = method._subset(forget)
    assert len(keep) == 40
    assert (table.y[keep] == 0).all()
    X = np.vstack([np.tile(noise.astype(np.float32), (2, 1)), table.X[keep]])
    y = np.concatenate([np.tile(labels, 2), table.y[keep]]).astype(np.uint8)
    expected = method.theta - 0.3 * model.gradient(method.theta, X, y)
    answer = method.unlearn(forget)
    np.testing.assert_allclose(answer.theta, expected, atol=1e-12)
    assert answer.facts["noise_rows"] == len(noise)


@pytest.mark.parametrize("level", ["row", "class"])
@pytest.mark.parametrize("r", [1, 40, 300])
def test_the_same_rows_are_trained_on_from_copies_and_from_the_table(level, r):
    """Retained rows, of other classes where a class leaves; 300 rows are more than the copies can spare."""
    data, model = plain("lr")
    method = prepared(Fyemu(level=level, retain_per_class=50), data, model)
    pools = np.concatenate([pool[: r // 2 + 1] for pool in method._pools])  # those that would be trained on first
    elsewhere = np.setdiff1d(np.arange(len(data.X)), method._near)[-r:]
    for forget in (np.sort(pools), elsewhere, np.sort(np.concatenate([pools[:1], elsewhere]))):
        if level == "class":
            forget = forget[data.y[forget] == 1]
        X, y, places = method._retained(forget)
        rows = method._subset(forget)
        np.testing.assert_array_equal(X[places], data.X[rows])
        np.testing.assert_array_equal(y[places], data.y[rows])
        assert not np.isin(rows, forget).any()
        assert level == "row" or forget.size == 0 or (data.y[rows] == 0).all()
    few = [method._subset(method._pools[1][:k]) for k in (0, 1)]
    assert len(few[0]) == 100
    assert len(few[1]) == (100 if level == "row" else 50)


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_an_answer_does_not_depend_on_what_was_asked_before(kind):
    """Rows and scratch are used again; requests grow and shrink, and one takes more rows than there are to spare."""
    used = prepared(Fyemu(retain_per_class=20, tol=1e-4), *plain(kind))
    for forget in (np.arange(5), np.arange(60), np.arange(3), np.arange(0, 360, 2), np.array([377])):
        fresh = prepared(Fyemu(retain_per_class=20, tol=1e-4), *plain(kind))
        fresh.theta = used.theta
        np.testing.assert_array_equal(used.unlearn(forget).theta, fresh.unlearn(forget).theta)


def test_row_numbers_are_forgotten():
    table, model = plain("lr")
    method = prepared(Fyemu(retain_per_class=200), table, model)
    method.unlearn(FORGET, commit=True)
    for c, pool in enumerate(method._pools):
        np.testing.assert_array_equal(np.sort(pool), np.setdiff1d(np.flatnonzero(table.y == c), FORGET))
    assert not np.isin(method._near, FORGET).any()
    np.testing.assert_array_equal(method._near_X, table.X[method._near])
    np.testing.assert_array_equal(method._near_y, table.y[method._near])
