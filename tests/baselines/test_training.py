"""SISA, DeltaGrad, FYEMU, fine-tuning, NegGrad+ and descent-to-delete: the identities that define them."""

import math
from itertools import count

import numpy as np
import pytest
from baselines_data import RidgeModel, blobs, rho, table_of

from l2ul_fast.baselines import DeltaGrad, DescentToDelete, Finetune, Fyemu, NegGrad, Newton, Recipe, Retrain, Sisa
from l2ul_fast.baselines.minibatch import descent, orders, train_stages
from l2ul_fast.baselines.sisa import slice_epochs
from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_kernels import threads
from l2ul_kernels.sgd.shuffle import shuffle

SHORT = Recipe(epochs=4, batch=32, rate=0.05)


def prepared(method, table, model, seed=0):
    method.prepare(table, model, seed)
    return method


@pytest.fixture(scope="module")
def data():
    return table_of(*blobs(403, 4, seed=21))


# ------------------------------------------------------------------------------------------------------------- SISA


@pytest.mark.parametrize("model", [LogisticModel(4), MLPModel(4, h=3)], ids=["lr", "mlp"])
@pytest.mark.parametrize(("shards", "slices"), [(1, 1), (4, 1), (3, 4)])
def test_sisa_equals_its_own_pipeline_without_the_rows_bit_by_bit(data, model, shards, slices):
    forget = np.array([7, 8, 200, 402])
    method = prepared(Sisa(shards, slices, SHORT), data, model, seed=4)
    before = method.members()
    fresh = prepared(Sisa(shards, slices, SHORT), data.without(forget), model, seed=4)
    method.unlearn(forget, commit=True)
    np.testing.assert_array_equal(method.members(), fresh.members())
    for mine, other in zip(method.shards, fresh.shards, strict=True):
        np.testing.assert_array_equal(mine.checkpoints, other.checkpoints)
    assert (method.members() != before).any()


def test_sisa_of_one_shard_is_retraining(data):
    model, forget = MLPModel(4, h=3), [1, 2, 3]
    sisa = prepared(Sisa(1, 1, SHORT), data, model, seed=6)
    retrain = prepared(Retrain(solver="minibatch", recipe=SHORT), data, model, seed=6)
    np.testing.assert_array_equal(sisa.members()[0], retrain.theta)
    sisa.unlearn(forget, commit=True)
    np.testing.assert_array_equal(sisa.members()[0], retrain.unlearn(forget).theta)


def test_sisa_counts_its_visits(data):
    method = prepared(Sisa(3, 4, SHORT), data, LogisticModel(4))
    epochs = slice_epochs(SHORT.epochs, 4)
    assert sum(epochs) == math.floor(4 * 2 * SHORT.epochs / 5)
    assert slice_epochs(20, 1) == [20]
    row = int(method.shards[1].order[method.shards[1].edges[2]])  # first row of the third slice of shard 1
    facts = method.unlearn([row]).facts
    edges = method.shards[1].edges
    assert facts["shards"] == 1
    assert facts["sample_visits"] == sum(epochs[s] * (edges[s + 1] - 1) for s in (2, 3))
    assert facts["sample_visits"] < sum(epochs[s] * edges[s + 1] for s in range(4))
    first = int(method.shards[1].order[0])
    assert method.unlearn([first, row]).facts["sample_visits"] == sum(
        epochs[s] * (edges[s + 1] - 2) for s in (2, 3)
    ) + sum(epochs[s] * (edges[s + 1] - 1) for s in (0, 1))
    # every shard is touched by a request of a hundred rows
    assert method.unlearn(np.arange(100)).facts["shards"] == 3


def test_sisa_leaves_other_shards_and_earlier_slices_alone(data):
    method = prepared(Sisa(3, 4, SHORT), data, LogisticModel(4))
    before = [shard.checkpoints.copy() for shard in method.shards]
    row = int(method.shards[1].order[method.shards[1].edges[2]])
    method.unlearn([row], commit=True)
    after = [shard.checkpoints for shard in method.shards]
    for j in (0, 2):
        np.testing.assert_array_equal(before[j], after[j])
    np.testing.assert_array_equal(before[1][:2], after[1][:2])
    assert (before[1][2:] != after[1][2:]).any(axis=1).all()


def test_sisa_forgets_rows_beyond_equal_slices_and_the_published_code_does_not(data):
    model = LogisticModel(4)
    for published in (False, True):
        method = prepared(Sisa(3, 4, SHORT, as_published=published), data, model)
        size = len(method.shards[0].order)
        assert size % 4
        last = int(method.shards[0].order[-1])
        before = method.members()
        method.unlearn([last], commit=True)
        assert np.array_equal(method.members(), before) == published


def test_sisa_votes(data):
    method = prepared(Sisa(4, 1, SHORT), data, LogisticModel(4))
    votes = method.unlearn([]).predict_proba(data.X)
    single = np.stack([LogisticModel(4).predict(t, data.X) for t in method.members()])
    np.testing.assert_allclose(votes[:, 1], single.mean(axis=0))
    tie = votes[:, 1] == 0.5
    assert (votes[tie].argmax(axis=1) == 0).all()
    mean = prepared(Sisa(4, 1, SHORT, vote="mean"), data, LogisticModel(4)).unlearn([]).predict_proba(data.X)
    expected = np.mean([LogisticModel(4).predict_proba(t, data.X) for t in method.members()], axis=0)
    np.testing.assert_allclose(mean, expected)


def test_sisa_does_not_depend_on_threads(data):
    method = prepared(Sisa(4, 2, SHORT), data, MLPModel(4, h=3))
    with threads(1):
        alone = prepared(Sisa(4, 2, SHORT), data, MLPModel(4, h=3))
    np.testing.assert_array_equal(method.members(), alone.members())
    with pytest.raises(UserError, match="cannot be cut"):
        prepared(Sisa(300, 2), data, LogisticModel(4))


# -------------------------------------------------------------------------------------------------------- DeltaGrad


@pytest.mark.parametrize("batch", [403, 100])
@pytest.mark.parametrize("model", [LogisticModel(4), MLPModel(4, h=3)], ids=["lr", "mlp"])
def test_deltagrad_of_exact_steps_only_is_the_replayed_run_bit_by_bit(data, model, batch):
    method = prepared(DeltaGrad(epochs=12, batch=batch, rate=0.2, burn_in=10**6), data, model)
    answer = method.unlearn([3, 77, 300])
    np.testing.assert_array_equal(answer.theta, method.retrained([3, 77, 300]))
    assert answer.facts["quasi_steps"] == 0
    assert (answer.theta != method.theta).any()


def test_deltagrad_with_the_exact_hessian_of_a_quadratic_loss_is_exact(data):
    model = RidgeModel(4)
    method = prepared(DeltaGrad(epochs=60, batch=403, rate=0.1, burn_in=0, period=10**6), data, model)
    method._options["hessian"] = model.hessian(None, data.X, data.y)
    forget = np.arange(40)
    answer = method.unlearn(forget)
    assert answer.facts["quasi_steps"] == 59  # only the first step is exact
    np.testing.assert_allclose(answer.theta, method.retrained(forget), atol=1e-12)
    assert rho(answer.theta, method.theta, method.retrained(forget)) < 1e-9


@pytest.mark.parametrize("batch", [403, 101])
def test_deltagrad_with_lbfgs_is_close_and_counts_its_steps(data, batch):
    model = LogisticModel(4, lam=1e-2)
    method = prepared(DeltaGrad(epochs=100, batch=batch, rate=0.5, burn_in=10, period=5, memory=3), data, model)
    forget, steps = np.array([11, 200]), 100 * -(-403 // batch)
    answer = method.unlearn(forget)
    facts = answer.facts
    ages = range(steps - facts["copied_steps"])
    assert facts["exact_steps"] == sum(age <= 10 or (age - 10) % 5 == 0 for age in ages)
    assert facts["exact_steps"] + facts["quasi_steps"] + facts["copied_steps"] == steps
    assert rho(answer.theta, method.theta, method.retrained(forget)) < 0.1


@pytest.mark.parametrize(("model", "bound"), [(RidgeModel(8), 1e-10), (LogisticModel(8, lam=1e-2), 2e-3)])
def test_deltagrad_of_gradient_descent_on_all_rows_is_close(model, bound):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 8)).astype(np.float32)
    y = (X @ rng.normal(size=8) + rng.normal(size=1000) > 0).astype(np.uint8)
    method = prepared(DeltaGrad(epochs=400, batch=1000, rate=0.5), table_of(X, y), model)
    forget = np.arange(10)
    answer = method.unlearn(forget)
    assert answer.facts["exact_steps"] == 21 + 379 // 5
    assert rho(answer.theta, method.theta, method.retrained(forget)) < bound


def test_deltagrad_burn_in_begins_where_the_paths_part(data):
    """Before the first batch with a forgotten row nothing is computed; the published code counts from the start."""
    model = LogisticModel(4)
    options = {"epochs": 3, "batch": 50, "rate": 0.2, "burn_in": 2, "period": 100}
    method = prepared(DeltaGrad(**options), data, model)
    batch = int(method.order[6])
    row = int(np.flatnonzero(method._place == method.starts[batch])[0])
    facts = method.unlearn([row]).facts
    assert facts["copied_steps"] == 6
    assert facts["exact_steps"] == 3
    published = prepared(DeltaGrad(**options, as_published=True), data, model).unlearn([row]).facts
    assert published["copied_steps"] == 0


def test_deltagrad_published_bugs_change_the_answer(data):
    model = LogisticModel(4, lam=0.1)
    options = {"epochs": 8, "batch": 50, "rate": 0.2, "burn_in": 3, "period": 4}
    right, wrong = (prepared(DeltaGrad(**options, as_published=p), data, model) for p in (False, True))
    whole = np.flatnonzero((right._place >= right.starts[2]) & (right._place < right.starts[3]))  # a whole batch goes
    target = right.retrained(whole)
    good, bad = (rho(m.unlearn(whole).theta, right.theta, target) for m in (right, wrong))
    assert good < 0.5 * bad


def test_deltagrad_rewrites_its_cache(data):
    """After a committed request with exact steps, the cache is that of a run without the rows."""
    model, forget = LogisticModel(4), np.array([3, 77, 300])
    method = prepared(DeltaGrad(epochs=5, batch=100, burn_in=10**6), data, model)
    method.unlearn(forget, commit=True)
    fresh = prepared(DeltaGrad(epochs=5, batch=100, burn_in=10**6), data.without(forget), model)
    np.testing.assert_allclose(method.trace.W, fresh.trace.W, atol=1e-13)
    np.testing.assert_allclose(method.trace.G, fresh.trace.G, atol=1e-13)
    np.testing.assert_allclose(method.unlearn([9]).theta, fresh.unlearn([9]).theta, atol=1e-13)


def test_deltagrad_mlp_falls_back_to_exact_steps(data):
    model = MLPModel(4, h=3)
    options = {"epochs": 20, "batch": 403, "rate": 0.3, "burn_in": 3, "period": 50}
    free = prepared(DeltaGrad(**options, limit=0.0), data, model).unlearn([1, 2]).facts
    tight = prepared(DeltaGrad(**options, limit=1e-9), data, model).unlearn([1, 2]).facts
    assert free["quasi_steps"] > 0
    assert tight["quasi_steps"] == 0


# ------------------------------------------------------------------------------------------------------------ FYEMU


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_fyemu_noise_is_what_the_model_gets_wrong(kind):
    X, y = blobs(300, 4, 3, seed=30)
    model = LogisticModel(4, 3) if kind == "lr" else MLPModel(4, 3, h=4, lam=1e-2)
    method = prepared(Fyemu(level="class"), table_of(X, y), model)
    before = method.theta.copy()
    noise, losses = method.make_noise(np.full(64, 2))
    np.testing.assert_array_equal(method.theta, before)  # the model stays as it is
    objective = -losses.mean(axis=0)
    assert losses[:, -1].mean() > losses[:, 0].mean() + 0.1
    penalised = [objective[0], objective[-1] + 0.1 * (noise**2).sum(axis=1).mean()]
    start = np.random.default_rng([0, 17]).normal(size=(64, 4))
    assert penalised[1] < penalised[0] + 0.1 * (start**2).sum(axis=1).mean()
    proba = model.predict_proba(method.theta, noise)
    np.testing.assert_allclose(-np.log(proba[:, 2]), losses[:, -1], atol=1e-9)


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_fyemu_forgets_a_class_and_keeps_the_others(kind):
    X, y = blobs(5000, 6, 4, seed=33, spread=0.5)
    model = LogisticModel(6, 4, lam=1e-2) if kind == "lr" else MLPModel(6, 4, h=5, lam=1e-2)
    table = table_of(X[:4000], y[:4000])
    method = prepared(Fyemu(level="class", tol=1e-6), table, model)
    before = model.predict(method.theta, X[4000:])
    answer = method.unlearn(np.flatnonzero(y[:4000] == 1))
    after, test = answer.predict_proba(X[4000:]).argmax(axis=1), y[4000:]
    assert (after == test)[test == 1].mean() < 0.05
    assert (after == test)[test != 1].mean() > (before == test)[test != 1].mean() - 0.05


def test_fyemu_never_reads_the_forgotten_rows(data):
    model, forget = LogisticModel(4), np.array([1, 5, 9])
    table = table_of(data.X.copy(), data.y)
    method = prepared(Fyemu(), table, model)
    first = method.unlearn(forget).theta
    table.X[forget] = np.nan
    method._near_X[np.isin(method._near, forget)] = np.nan
    np.testing.assert_array_equal(method.unlearn(forget).theta, first)
    assert np.isfinite(first).all()
    assert method.unlearn(forget).facts["noise_rows"] == 3


def test_fyemu_as_published_has_three_noise_rows_and_one_label():
    X, y = blobs(400, 4, 3, seed=35)
    table, model = table_of(X, y), LogisticModel(4, 3)
    forget = np.flatnonzero(y == 2)
    right = prepared(Fyemu(level="class"), table, model).unlearn(forget)
    wrong = prepared(Fyemu(level="class", as_published=True), table, model).unlearn(forget)
    assert right.facts["noise_rows"] == 256
    assert wrong.facts["noise_rows"] == 3
    assert (right.theta != wrong.theta).any()
    with pytest.raises(UserError, match="classes"):
        Fyemu(as_published=True)


def test_fyemu_uses_retained_rows_of_other_classes_only(data):
    method = prepared(Fyemu(level="class", retain_per_class=50), data, LogisticModel(4))
    rows = method._subset(np.flatnonzero(data.y == 1)[:10])
    assert (data.y[rows] == 0).all()
    assert len(rows) == 50
    rows = prepared(Fyemu(retain_per_class=50), data, LogisticModel(4))._subset(np.arange(100))
    assert len(rows) == 100
    assert rows.min() >= 100


@pytest.mark.parametrize("level", ["row", "class"])
@pytest.mark.parametrize("r", [1, 40, 300])
def test_fyemu_trains_on_the_same_rows_from_its_copies_and_from_the_table(data, level, r):
    """300 rows are more than the copies can spare."""
    method = prepared(Fyemu(level=level, retain_per_class=50), data, LogisticModel(4))
    pools = np.concatenate([pool[: r // 2 + 1] for pool in method._pools])  # those that would be trained on first
    elsewhere = np.setdiff1d(np.arange(len(data.X)), method._near)[-r:]
    for forget in (np.sort(pools), elsewhere, np.sort(np.concatenate([pools[:1], elsewhere]))):
        if level == "class":
            forget = forget[data.y[forget] == 1]
        X, y, places = method._retained(forget)
        rows = method._subset(forget)
        np.testing.assert_array_equal(X[places], data.X[rows])
        np.testing.assert_array_equal(y[places], data.y[rows])
    assert not np.isin(method._subset(np.sort(pools)), pools).any()


@pytest.mark.parametrize("epochs", [(1, 1), (2, 3), (0, 2), (1, 0), (0, 0)])
@pytest.mark.parametrize("adam", [True, False])
def test_stages_are_runs_one_after_the_other(data, epochs, adam):
    """Each with Adam's memory and rates of its own, every epoch in a new order that has each visit once."""
    model, start = MLPModel(4, h=3), MLPModel(4, h=3).start(1)
    run = descent(data.X, data.y, model)
    pools = [np.concatenate([np.arange(90), np.arange(10)]), np.arange(100, 333)]
    recipes = [Recipe(epochs[0], 32, 0.05, adam), Recipe(epochs[1], 50, 0.01, adam, decay=False)]
    theta, steps = train_stages(run, list(zip(pools, recipes, strict=True)), start, 5)
    salts, expected, orders_seen = count(), start, []
    for pool, recipe, taken in zip(pools, recipes, steps, strict=True):
        assert taken == recipe.epochs * -(-len(pool) // recipe.batch)
        visits = [pool.copy() for _ in range(recipe.epochs)]
        for order in visits:
            shuffle(order, 5, next(salts))
        orders_seen += [v.tolist() for v in visits if len(v) == len(pools[1])]
        starts = [k * len(pool) + lo for k in range(recipe.epochs) for lo in range(0, len(pool), recipe.batch)]
        starts.append(recipe.epochs * len(pool))
        flat = np.concatenate([*visits, pool[:0]])
        expected = run.train(expected, flat, starts, np.arange(taken), recipe.rates(taken), adam=adam).theta
    np.testing.assert_array_equal(theta, expected)
    assert len({tuple(seen) for seen in orders_seen}) == len(orders_seen)


def test_fyemu_sees_every_request_by_itself(data):
    """Rows that an earlier request named, and that stayed, may be trained on."""
    method = prepared(Fyemu(retain_per_class=50), data, LogisticModel(4))
    first = method._subset(np.array([402]))
    assert (first < 100).any()
    method.unlearn(np.arange(100))
    np.testing.assert_array_equal(method._subset(np.array([402])), first)


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_fyemu_answers_the_same_whatever_was_asked_before(data, kind):
    """Its rows and scratch are used again; requests grow and shrink, and one takes more rows than it has to spare."""
    model = LogisticModel(4) if kind == "lr" else MLPModel(4, h=3)
    used = prepared(Fyemu(retain_per_class=20, tol=1e-4), data, model)
    for forget in (np.arange(5), np.arange(60), np.arange(3), np.arange(0, 360, 2), np.array([377])):
        fresh = prepared(Fyemu(retain_per_class=20, tol=1e-4), data, model)
        fresh.theta = used.theta
        np.testing.assert_array_equal(used.unlearn(forget).theta, fresh.unlearn(forget).theta)


def test_fyemu_refuses_two_kinds_of_steps():
    with pytest.raises(UserError, match="Adam"):
        Fyemu(impair=Recipe(1, 64, 1e-3), repair=Recipe(1, 64, 1e-3, adam=False))


# ------------------------------------------------------------------------------------- fine-tune, NegGrad+ and D2D


def test_finetune_of_whole_batches_is_gradient_descent_on_the_retained_rows(data):
    model, forget = LogisticModel(4, lam=1e-2), np.arange(60)
    recipe = Recipe(epochs=5000, batch=1000, rate=0.5, adam=False, decay=False)
    method = prepared(Finetune(recipe), data, model)
    target = model.fit(data.without(forget)).theta
    assert rho(method.unlearn(forget).theta, method.theta, target) < 1e-3
    one = prepared(Finetune(Recipe(1, 1000, 0.5, adam=False, decay=False)), data, model).unlearn(forget)
    expected = method.theta - 0.5 * model.gradient(method.theta, data.X[60:], data.y[60:])
    np.testing.assert_allclose(one.theta, expected, atol=1e-14)


def test_neggrad_step_is_descent_and_ascent(data):
    model, forget = LogisticModel(4, lam=1e-2), np.arange(0, 90, 3)
    method = prepared(NegGrad(Recipe(1, 1000, 0.5, adam=False, decay=False), keep=0.8), data, model)
    rest = np.setdiff1d(np.arange(403), forget)
    theta = method.theta
    step = 0.8 * model.data_gradient(theta, data.X[rest], data.y[rest])
    step = step - 0.2 * model.data_gradient(theta, data.X[forget], data.y[forget]) + model.penalty_gradient(theta)
    np.testing.assert_allclose(method.unlearn(forget).theta, theta - 0.5 * step, atol=1e-14)


def test_neggrad_cycles_through_forget_batches(data):
    """With two forget batches and two steps, each step climbs on one of them."""
    model, forget = LogisticModel(4, lam=1e-2), np.arange(300)  # batches of 202 and 98
    method = prepared(NegGrad(Recipe(1, 202, 0.3, adam=False, decay=False), keep=0.5), data, model)
    rows = np.argsort(method._place)
    away = rows[np.random.default_rng([0, 15]).permuted(method._place[forget])]
    first = orders(2, 1, [12, 0])[0]
    halves = [np.setdiff1d(rows[202 * b : 202 * (b + 1)], forget) for b in (first, 1 - first)]
    theta = method.theta.copy()
    for part, rest in zip((away[:202], away[202:]), halves, strict=True):
        step = 0.5 * model.data_gradient(theta, data.X[rest], data.y[rest])
        step = step - 0.5 * model.data_gradient(theta, data.X[part], data.y[part]) + model.penalty_gradient(theta)
        theta = theta - 0.3 * step
    np.testing.assert_allclose(method.unlearn(forget).theta, theta, atol=1e-13)


def test_neggrad_keep_one_is_finetune(data):
    recipe = Recipe(2, 64, 0.05)
    model, forget = MLPModel(4, h=3), [4, 5]
    ours = prepared(NegGrad(recipe, keep=1.0), data, model).unlearn(forget).theta
    np.testing.assert_array_equal(ours, prepared(Finetune(recipe), data, model).unlearn(forget).theta)


@pytest.mark.parametrize("iterations", [1, 5, 40])
def test_d2d_contracts_as_promised(data, iterations):
    """For a quadratic loss |theta_I - theta_r| <= gamma^I |theta - theta_r|, also when long rows stay and others go."""
    model, forget = RidgeModel(4), np.arange(40)
    method = prepared(DescentToDelete(iterations), data, model)
    target = model.fit(data.without(forget)).theta
    answer = method.unlearn(forget)
    assert rho(answer.theta, method.theta, target) <= answer.facts["contraction"] ** iterations * 1.001
    converged = prepared(DescentToDelete(5000), data, model).unlearn(forget).theta
    newton = prepared(Newton(), data, model).unlearn(forget).theta  # exact here
    np.testing.assert_allclose(converged, newton, atol=1e-9)


def test_d2d_noise_and_sensitivity(data):
    model = LogisticModel(4, lam=0.1)
    method = prepared(DescentToDelete(20, noise=True), data, model)
    clean = prepared(DescentToDelete(20), data, model)
    first, quiet = method.unlearn([1], commit=True), clean.unlearn([1], commit=True)
    longest = np.linalg.norm(np.column_stack([data.X, np.ones(403)]), axis=1).max()
    expected = first.facts["contraction"] ** 20 * 2 * longest / (0.1 * 403)
    assert first.facts["sensitivity"] == pytest.approx(expected, rel=1e-6)
    assert first.facts["sigma"] == pytest.approx(expected * np.sqrt(2 * np.log(1.25e4)), rel=1e-6)
    assert 0 < np.abs(first.theta - quiet.theta).max() < 6 * first.facts["sigma"]
    np.testing.assert_array_equal(method.theta, quiet.theta)  # the secret state has no noise
    second = method.unlearn([2])
    grown = second.facts["contraction"] ** 20 * (expected + 2 * longest / (0.1 * 402))
    assert second.facts["sensitivity"] == pytest.approx(grown, rel=1e-6)


# ----------------------------------------------------------------------------------------------------- minibatches


def test_retraining_minibatches_are_coupled_by_row_number(data):
    """Without a row the run is that of a table which never had it, close to the run with it, on the same places."""
    method = prepared(Retrain(solver="minibatch", recipe=SHORT), data, LogisticModel(4), seed=2)
    fresh = prepared(Retrain(solver="minibatch", recipe=SHORT), data.without([10]), LogisticModel(4), seed=2)
    np.testing.assert_array_equal(fresh.theta, method.unlearn([10]).theta)
    assert 0 < np.abs(fresh.theta - method.theta).max() < 0.1
    changed = (fresh._deal.X != method._deal.X).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [method._place[10]]


def test_exact_mlp_retraining_without_anchor_is_coupled(data):
    model = MLPModel(4, h=2, lam=1e-2)
    method = prepared(Retrain(), data, model, seed=1)
    fresh = prepared(Retrain(), data.without([402]), model, seed=1)
    answer = method.unlearn([402])
    np.testing.assert_array_equal(answer.theta, fresh.theta)
    assert answer.facts["converged"]
    assert np.linalg.norm(answer.theta - method.theta) < 0.2
