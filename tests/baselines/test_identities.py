"""The identities of every method once more, where one model or one level is not enough: MLP, softmax, classes."""

import itertools
import math

import numpy as np
import pytest
from baselines_data import RidgeModel, blobs, rho, table_of
from test_universal import anchored

from l2ul_fast.baselines import (
    METHODS,
    Certified,
    DeltaGrad,
    DescentToDelete,
    Finetune,
    Fyemu,
    Influence,
    NegGrad,
    Newton,
    Recipe,
    Retrain,
    Sisa,
)
from l2ul_fast.baselines.base import hessian_of, penalty_strength
from l2ul_fast.baselines.minibatch import few_rows, orders, row_order
from l2ul_fast.baselines.newton import factor
from l2ul_fast.baselines.sisa import slice_epochs
from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel, MLPModel

SHORT = Recipe(epochs=4, batch=32, rate=0.05)
MODELS = {"lr": LogisticModel(4, lam=1e-2), "softmax": LogisticModel(4, 3, lam=1e-2), "mlp": MLPModel(4, h=3)}
FORGET = np.array([3, 77, 200, 300, 402])


def prepared(method, table, model, seed=0):
    method.prepare(table, model, seed)
    return method


@pytest.fixture(scope="module")
def tables():
    two = table_of(*blobs(403, 4, seed=21))
    return {"lr": two, "mlp": two, "softmax": table_of(*blobs(403, 4, 3, seed=21))}


# ----------------------------------------------------------------------------------------------------- the references


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp", "anchored"])
def test_retrain_is_stationary_and_cold_equals_a_fit_that_never_saw_the_rows(kind, warm, tables):
    table = tables["mlp" if kind == "anchored" else kind]
    model = anchored(table.X, table.y) if kind == "anchored" else MODELS[kind]
    if kind == "mlp":
        model = MLPModel(4, h=2, lam=1e-2)  # flat minima cannot be found to 1e-10
    method = prepared(Retrain(warm=warm), table, model, seed=2)
    answer = method.unlearn(FORGET)
    X, y = np.delete(table.X, FORGET, axis=0), np.delete(table.y, FORGET)
    residual = np.linalg.norm(model.gradient(answer.theta, X, y))
    bound = np.linalg.norm(method.theta - answer.theta)
    assert residual < 1e-9
    assert residual < 1e-3 * bound
    assert answer.facts["converged"]
    if not warm:
        fresh = prepared(Retrain(), table.without(FORGET), model, seed=2)
        np.testing.assert_array_equal(answer.theta, fresh.theta)
    method.unlearn(FORGET, commit=True)
    np.testing.assert_array_equal(method.theta, answer.theta)


def test_warm_retraining_keeps_the_curvature_of_the_rows_it_has(tables):
    table, model = tables["lr"], MODELS["lr"]
    method = prepared(Retrain(warm=True), table, model)
    method.unlearn(FORGET, commit=True)
    X, y = np.delete(table.X, FORGET, axis=0), np.delete(table.y, FORGET)
    np.testing.assert_allclose(method._metric, model.hessian(method.theta, X, y), atol=1e-12)
    assert method.state_bytes() == 8 * (5 + 25)


@pytest.mark.parametrize("kind", ["lr", "softmax"])
def test_retraining_many_rows_begins_with_few_and_ends_at_the_same_point(kind, tables, monkeypatch):
    table, model = tables[kind], MODELS[kind]
    plain = prepared(Retrain(), table, model)
    monkeypatch.setattr("l2ul_fast.baselines.retrain.FEW_PAY", 300)
    method = prepared(Retrain(), table, model)
    assert method.prepare_facts["few_steps"] > 0
    assert "few_steps" not in plain.prepare_facts
    np.testing.assert_allclose(method.theta, plain.theta, atol=1e-8)
    answer = method.unlearn(FORGET)
    assert answer.facts["gradient_norm"] < 1e-10
    np.testing.assert_allclose(answer.theta, plain.unlearn(FORGET).theta, atol=1e-8)
    # few rows that lack a class cannot be fitted: the fit begins as usual
    monkeypatch.setattr("l2ul_fast.baselines.retrain.few_rows", lambda t, seed: t.without(np.flatnonzero(t.y == 1)))
    assert "few_steps" not in prepared(Retrain(), table, model).prepare_facts


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_minibatch_retraining_warm_goes_on_from_theta(kind, tables):
    """Cold starts at the model's own start; warm is fine-tuning with the same recipe."""
    table, model = tables[kind], MODELS[kind]
    cold = prepared(Retrain(solver="minibatch", recipe=SHORT), table, model, seed=5)
    warm = prepared(Retrain(True, "minibatch", recipe=SHORT), table, model, seed=5)
    np.testing.assert_array_equal(cold.theta, warm.theta)
    tuned = prepared(Finetune(SHORT), table, model, seed=5)
    tuned.theta = warm.theta
    np.testing.assert_array_equal(warm.unlearn(FORGET).theta, tuned.unlearn(FORGET).theta)
    assert (cold.unlearn(FORGET).theta != warm.unlearn(FORGET).theta).any()
    assert cold.unlearn(FORGET).facts["steps"] == 4 * -(-403 // 32)


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_nothing_answers_with_the_model_of_all_rows(kind, tables):
    table = tables[kind]
    model = anchored(table.X, table.y) if kind == "mlp" else MODELS[kind]
    method = prepared(METHODS["nothing"](), table, model)
    assert np.linalg.norm(model.gradient(method.theta, table.X, table.y)) < 1e-9
    for commit in (False, True):
        answer = method.unlearn(FORGET, commit=commit)
        np.testing.assert_array_equal(answer.theta, method.theta)
        assert rho(answer.theta, method.theta, model.fit(table.without(FORGET)).theta) == 1.0
    assert method.n == 398
    assert method.exact is False
    assert method.state_bytes() == 8 * model.size


def test_seeds_change_what_is_random(tables):
    """Order of the rows and of the batches: one seed, one run; another seed, another run."""
    for name in ("sisa", "deltagrad", "finetune", "neggrad", "fyemu"):
        options = {"batch": 64} if name == "deltagrad" else {}
        answers = [
            prepared(METHODS[name](**options), tables["lr"], MODELS["lr"], seed)
            .unlearn(FORGET)
            .predict_proba(tables["lr"].X)
            for seed in (1, 1, 2)
        ]
        np.testing.assert_array_equal(answers[0], answers[1])
        assert (answers[0] != answers[2]).any()
    rows = [row_order(tables["lr"], seed) for seed in (1, 2)]
    assert (rows[0] != rows[1]).mean() > 0.9
    batches = orders(50, 2, [12, 3])
    assert (batches != orders(50, 2, [12, 4])).mean() > 0.9
    assert (batches[:50] != batches[50:]).mean() > 0.9  # every epoch in an order of its own


def test_few_rows_are_chosen_by_number(tables):
    """Rows that are gone leave a gap: no other row takes their place, and they are not there."""
    table = tables["lr"]
    whole, less = (few_rows(t, 3, limit=100) for t in (table, table.without(FORGET)))
    chosen = np.random.default_rng([3, 13]).choice(403, 100, replace=False, shuffle=False)
    gone = np.isin(np.sort(chosen), FORGET)
    assert gone.any()
    assert (whole.n, less.n) == (100, 100 - gone.sum())
    np.testing.assert_array_equal(less.ids(), np.flatnonzero(~gone))
    np.testing.assert_array_equal(whole.X, table.X[np.sort(chosen)])
    np.testing.assert_array_equal(less.X[~gone], whole.X[~gone])
    assert not less.X[gone].any()


def test_answers_are_copies(tables):
    """Writing into an answer does not reach the method."""
    for name in ("nothing", "retrain", "newton", "influence", "d2d"):
        method = prepared(METHODS[name](), tables["lr"], MODELS["lr"])
        kept = method.theta.copy()
        for ids in ([], FORGET):
            method.unlearn(ids).theta[:] = np.nan
        np.testing.assert_array_equal(method.theta, kept)
        method.unlearn(FORGET, commit=True).theta[:] = np.nan
        assert np.isfinite(method.theta).all()


# --------------------------------------------------------------------------------------------------------------- SISA


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_sisa_is_exact_in_turn_and_at_once(kind, tables):
    """C1 after two committed requests, at every checkpoint."""
    table, model = tables[kind], MODELS[kind]
    method = prepared(Sisa(3, 4, SHORT), table, model, seed=4)
    method.unlearn(FORGET[:2], commit=True)
    method.unlearn(FORGET[2:], commit=True)
    fresh = prepared(Sisa(3, 4, SHORT), table.without(FORGET), model, seed=4)
    for mine, other in zip(method.shards, fresh.shards, strict=True):
        np.testing.assert_array_equal(mine.checkpoints, other.checkpoints)
    for vote in ("majority", "mean"):
        asked = prepared(Sisa(3, 4, SHORT, vote), table, model, seed=4).unlearn(FORGET)
        peer = prepared(Sisa(3, 4, SHORT, vote), table.without(FORGET), model, seed=4).unlearn([])
        np.testing.assert_array_equal(asked.predict_proba(table.X), peer.predict_proba(table.X))


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_sisa_counters_are_the_analytic_ones(kind, tables):
    """C3: visits and steps of every slice that is replayed, for rows of several shards and slices."""
    method = prepared(Sisa(3, 4, SHORT), tables[kind], MODELS[kind])
    epochs = slice_epochs(4, 4)
    assert epochs == [1, 2, 1, 2]
    assert slice_epochs(20, 4) == [8, 8, 8, 8]
    rows = {(0, 1): 5, (0, 3): 2, (2, 2): 1}  # (shard, slice) -> how many of its rows leave
    forget, visits, steps = [], 0, 0
    for (j, s), count in rows.items():
        edge = method.shards[j].edges[s]
        forget += method.shards[j].order[edge : edge + count].tolist()
    for j, first in ((0, 1), (2, 2)):
        for s in range(first, 4):
            size = int(method.shards[j].edges[s + 1])
            gone = sum(count for (k, at), count in rows.items() if k == j and at <= s)
            visits += epochs[s] * (size - gone)
            steps += epochs[s] * -(-size // 32)
    facts = method.unlearn(forget).facts
    assert facts == {"shards": 2, "sample_visits": visits, "steps": steps}
    whole = sum(epochs[s] * int(shard.edges[s + 1]) for shard in method.shards for s in range(4))
    assert method.prepare_facts["sample_visits"] == whole
    sizes = [len(shard.order) for shard in method.shards]
    assert max(sizes) - min(sizes) <= 1
    assert np.array_equal(np.sort(np.concatenate([shard.order for shard in method.shards])), np.arange(403))


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_sisa_forgets_the_remainder(kind, tables):
    """C4: rows beyond S equal slices are part of the last slice."""
    for published in (False, True):
        method = prepared(Sisa(3, 4, SHORT, as_published=published), tables[kind], MODELS[kind])
        shard = method.shards[0]
        assert shard.edges.tolist() == [0, 33, 66, 99, 134]
        inside, beyond = int(shard.order[131]), int(shard.order[132])
        assert method.unlearn([inside]).facts["shards"] == 1
        assert method.unlearn([beyond]).facts["shards"] == (0 if published else 1)
        # together with a row that is looked at, the other leaves as well, even as published
        both = prepared(Sisa(3, 4, SHORT), tables[kind].without([inside, beyond]), MODELS[kind])
        method.unlearn([inside, beyond], commit=True)
        np.testing.assert_array_equal(method.members()[0], both.members()[0])


def test_sisa_members_start_apart_and_ties_go_to_the_lowest_class(tables):
    method = prepared(Sisa(4, 1, Recipe(epochs=0)), tables["mlp"], MODELS["mlp"], seed=2)
    for j, theta in enumerate(method.members()):
        np.testing.assert_array_equal(theta, MODELS["mlp"].start(2 + j))
    three = prepared(Sisa(2, 1, SHORT), tables["softmax"], MODELS["softmax"])
    model, X = MODELS["softmax"], tables["softmax"].X
    single = [model.predict(t, X) for t in three.members()]
    split = single[0] != single[1]
    assert split.any()
    called = three.unlearn([]).predict_proba(X).argmax(axis=1)
    np.testing.assert_array_equal(called[split], np.minimum(*single)[split])
    with pytest.raises(UserError, match="at least one"):
        Sisa(0)
    with pytest.raises(UserError, match="vote"):
        Sisa(vote="loudest")


# ---------------------------------------------------------------------------------------------------------- DeltaGrad


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_deltagrad_replay_comes_near_the_exact_one(kind, tables):
    """U6 against its own run, and C2 for softmax: exact steps only are that run."""
    table, model = tables[kind], MODELS[kind]
    options = {"epochs": 60, "batch": 403, "rate": 0.2, "burn_in": 10}
    method = prepared(DeltaGrad(**options), table, model)
    answer = method.unlearn(FORGET)
    assert answer.facts["quasi_steps"] > 0
    assert rho(answer.theta, method.theta, method.retrained(FORGET)) < 0.3
    exact = prepared(DeltaGrad(**{**options, "burn_in": 60}), table, model).unlearn(FORGET)
    np.testing.assert_array_equal(exact.theta, method.retrained(FORGET))


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_deltagrad_trains_by_plain_gradient_descent_on_its_batches(kind, tables):
    """The cached run, written out: batches by place, iterates before the step, gradients without the penalty."""
    table, model = tables[kind], MODELS[kind]
    method = prepared(DeltaGrad(epochs=2, batch=100, rate=0.2), table, model, seed=3)
    assert method.starts.tolist() == [0, 100, 200, 300, 400, 403]
    where, rows = method._descent.pad.where, np.argsort(method._place)
    assert sorted(method.order[:5].tolist()) == sorted(method.order[5:].tolist()) == [0, 1, 2, 3, 4]
    theta = model.start(3) if kind == "mlp" else model.start()
    for t, b in enumerate(method.order):
        part = rows[method.starts[b] : method.starts[b + 1]]
        np.testing.assert_allclose(method.trace.W[t, where], theta, atol=1e-12)
        gradient = model.data_gradient(theta, table.X[part], table.y[part])
        np.testing.assert_allclose(method.trace.G[t, where], gradient, atol=1e-12)
        theta = theta - 0.2 * (gradient + model.penalty_gradient(theta))
    np.testing.assert_allclose(method.theta, theta, atol=1e-12)
    # and the run that answers are compared with: the same batches, less the rows, means over those that stay
    theta = model.start(3) if kind == "mlp" else model.start()
    for b in method.order:
        part = np.setdiff1d(rows[method.starts[b] : method.starts[b + 1]], FORGET)
        theta = theta - 0.2 * model.gradient(theta, table.X[part], table.y[part])
    np.testing.assert_allclose(method.retrained(FORGET), theta, atol=1e-12)


def test_deltagrad_published_differences_one_by_one(tables):
    table, model = tables["lr"], LogisticModel(4, lam=0.1)
    options = {"epochs": 8, "batch": 50, "rate": 0.2, "burn_in": 3, "period": 4}
    ours, theirs = (prepared(DeltaGrad(**options, as_published=p), table, model) for p in (False, True))
    np.testing.assert_array_equal(ours.theta, theirs.theta)  # training is the same
    assert theirs._options["limit"] == 0.0 < ours._options["limit"]
    # the burn-in counts from the first step of the run: (t <= 3 or (t - 3) % 4 == 0) of 72 steps, none copied
    batch = int(ours.order[8])
    row = int(np.argsort(ours._place)[ours.starts[batch]])
    facts = theirs.unlearn([row]).facts
    assert facts["copied_steps"] == 0
    assert facts["exact_steps"] >= sum(t <= 3 or (t - 3) % 4 == 0 for t in range(72))
    # the removed rows' penalty at the cached point matters where rows leave in quasi-Newton steps
    full = {"epochs": 60, "batch": 403, "rate": 0.2, "burn_in": 5}
    right, wrong = (prepared(DeltaGrad(**full, as_published=p), table, model) for p in (False, True))
    away = np.arange(20)
    target = right.retrained(away)
    assert rho(right.unlearn(away).theta, right.theta, target) < 0.5 * rho(
        wrong.unlearn(away).theta, right.theta, target
    )


def test_deltagrad_defaults(tables):
    for kind, burn_in in (("lr", 20), ("mlp", 80)):
        method = prepared(DeltaGrad(), tables[kind], MODELS[kind])
        assert method._options["burn_in"] == burn_in
        assert (method._options["memory"], method._options["period"]) == (2, 5)
        assert method.recipe == Recipe(20, 16384, 0.1, adam=False, decay=False)
    with pytest.raises(UserError, match="memory"):
        DeltaGrad(memory=0)


# -------------------------------------------------------------------------------------------------------------- FYEMU


@pytest.mark.parametrize("level", ["row", "class"])
@pytest.mark.parametrize("kind", ["softmax", "mlp"])
def test_fyemu_noise_objective_falls(level, kind, tables):
    """C1, C3: minus the loss plus the penalty falls at every look, the loss of the noise ends higher, theta stays."""
    table = tables[kind]
    model = LogisticModel(4, 3) if kind == "softmax" else MLPModel(4, h=4, lam=1e-2)
    labels = np.repeat([0, 1], 32) if level == "class" else table.y[:64].astype(np.int64)
    start, objective, thetas = np.random.default_rng([0, 17]).normal(size=(64, 4)), [], []
    for steps in range(0, 13, 2):
        method = prepared(Fyemu(level, noise_steps=steps, tol=1e-7), table, model)
        noise, losses = method.make_noise(labels)
        thetas.append(method.theta)
        objective.append(-losses[:, -1].mean() + 0.1 * (noise**2).sum(axis=1).mean())
        if steps == 0:
            np.testing.assert_array_equal(noise, start)
    assert (np.diff(objective) < 0).all()
    assert losses.shape == (64, 13)
    assert losses[:, -1].mean() > losses[:, 0].mean() + 0.05
    assert (thetas[0] == thetas[-1]).all()


@pytest.mark.parametrize("level", ["row", "class"])
@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_fyemu_reads_no_forgotten_row(level, kind, tables):
    """C4: features of the forgotten rows may be anything when the request comes."""
    table = table_of(tables[kind].X.copy(), tables[kind].y)
    model = MLPModel(4, h=3, lam=1e-2) if kind == "mlp" else MODELS[kind]
    forget = np.flatnonzero(table.y == 1)[:7]
    method = prepared(Fyemu(level, noise_rows=16, retain_per_class=60, tol=1e-7), table, model)
    first = method.unlearn(forget).theta
    table.X[forget] = np.nan
    np.testing.assert_array_equal(method.unlearn(forget).theta, first)
    assert np.isfinite(first).all()


def test_fyemu_stages_are_what_they_say(tables):
    """Noise rows with their labels and copies, retained rows with theirs; then retained rows alone; whole batches."""
    table, model, forget = tables["lr"], MODELS["lr"], FORGET
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
def test_fyemu_class_level_labels(published, tables):
    """Two classes leave: noise rows carry their class; as published, three of each are all called class 0."""
    table, model = tables["softmax"], MODELS["softmax"]
    plain = {"adam": False, "decay": False}
    method = prepared(
        Fyemu(
            "class",
            noise_rows=8,
            copies=2,
            retain_per_class=40,
            as_published=published,
            impair=Recipe(1, 10**6, 0.3, **plain),
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
    np.testing.assert_allclose(method.unlearn(forget).theta, expected, atol=1e-12)


# ------------------------------------------------------------------------------- Newton, certified removal, influence


def test_influence_is_off_by_the_share_that_leaves():
    """On ridge regression, 5 % of the rows: Newton is exact; the full Hessian leaves rho of about r / n."""
    rhos = []
    for seed in range(10):
        table, model = table_of(*blobs(1000, 8, seed=seed)), RidgeModel(8, lam=1e-2)
        forget = np.random.default_rng(seed).choice(1000, 50, replace=False)
        theta, target = model.fit(table).theta, model.fit(table.without(forget)).theta
        answer = prepared(Influence(), table, model).unlearn(forget).theta
        rhos.append(rho(answer, theta, target))
        X, y = table.take(forget)
        expected = theta + np.linalg.solve(
            1000 * model.hessian(None, table.X, table.y), 50 * model.gradient(theta, X, y)
        )
        np.testing.assert_allclose(answer, expected, atol=1e-11)
        newton = prepared(Newton("direct"), table, model).unlearn(forget).theta
        assert rho(newton, theta, target) < 1e-10
    assert 0.03 < np.median(rhos) < 0.12


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_newton_and_influence_formulas(kind, tables):
    """Both from sums written out, with the Hessian of the retained rows and of all rows."""
    table = tables[kind]
    model = anchored(table.X, table.y) if kind == "mlp" else MODELS[kind]
    for name in ("newton", "influence"):
        method = prepared(METHODS[name](), table, model)
        theta, (X, y) = method.theta, table.take(FORGET)
        rest = table.without(FORGET) if name == "newton" else table
        H = hessian_of(model, theta, rest) + rest.n * np.diag(penalty_strength(model))
        total = 5 * model.gradient(theta, X, y)
        answer = method.unlearn(FORGET)
        np.testing.assert_allclose(answer.theta, theta + np.linalg.lstsq(H, total, rcond=1e-11)[0], atol=1e-9)
        assert answer.facts["damping"] == 0
    first = prepared(Influence(order=1, tau=0.7), table, model)
    np.testing.assert_allclose(first.unlearn(FORGET).theta, first.theta + 0.7 / 403 * total, atol=1e-9)
    assert first.state_bytes() == 8 * model.size
    with pytest.raises(UserError, match="order"):
        Influence(order=3)


def test_newton_error_is_of_second_order():
    """C3: small at 5 %; and with every row there k times, forgetting the same rows leaves a k^2 times smaller error."""
    X, y = blobs(1000, 8, seed=5, spread=2.0)
    model, forget = LogisticModel(8, lam=1e-2), np.random.default_rng(1).choice(1000, 50, replace=False)
    rhos = []
    for k in (1, 2, 4, 8):
        table = table_of(np.tile(X, (k, 1)), np.tile(y, k))
        method = prepared(Newton(), table, model)
        target = model.fit(table.without(forget), tol=1e-12).theta
        rhos.append(rho(method.unlearn(forget).theta, method.theta, target))
    assert rhos[0] < 0.02
    np.testing.assert_allclose(np.array(rhos[:-1]) / rhos[1:], 2, rtol=0.1)


def test_damping_makes_any_matrix_definite():
    H = np.diag([1.0, -0.5, 2.0])
    (matrix, _), damping = factor(H)
    assert damping > 0.5
    np.testing.assert_allclose(np.triu(matrix).T @ np.triu(matrix), H + damping * np.eye(3), atol=1e-12)
    assert factor(np.eye(2))[1] == 0.0


def test_certified_without_noise_is_sekhari_and_newton(tables):
    """theta + H_R^-1 sum_f grad / (n - r), H_R = (n H_D - sum_f H_f) / (n - r): one formula under three names."""
    table, model, n, r = tables["lr"], MODELS["lr"], 403, 5
    rows = np.column_stack([table.X.astype(float), np.ones(n)])
    method = prepared(Certified(sigma=1e-13, epsilon=1e18, radius=1e3), table, model)
    s = 1 / (1 + np.exp(-rows @ method.theta))
    gradients = (s - table.y)[:, None] * rows + model.lam * method.theta  # of every row, penalty in every row's loss
    H = np.einsum("i,ij,ik->ijk", s * (1 - s), rows, rows) + model.lam * np.eye(5)
    H_D = H.mean(axis=0)
    H_R = (n * H_D - H[FORGET].sum(axis=0)) / (n - r)
    sekhari = method.theta + np.linalg.solve(H_R, gradients[FORGET].sum(axis=0)) / (n - r)
    answer = method.unlearn(FORGET)
    assert not answer.facts["retrained"]
    np.testing.assert_allclose(answer.theta, sekhari, atol=1e-10)
    assert answer.facts["bound"] == pytest.approx(
        0.25
        * 1e3
        * np.linalg.norm(np.delete(rows, FORGET, axis=0), 2)
        * np.linalg.norm(sekhari - method.theta)
        * np.linalg.norm(np.delete(rows, FORGET, axis=0) @ (sekhari - method.theta)),
        rel=1e-6,
    )


def test_certified_bounds_rows_at_the_radius_and_the_budget_is_what_it_says(tables):
    """C2 and C4 with rows scaled down: residuals below beta, beta a running sum, retrained when it would burst."""
    table, model = tables["lr"], MODELS["lr"]
    method = prepared(Certified(sigma=3.0, epsilon=0.8, delta=1e-3, radius=1.0), table, model, seed=2)
    assert method.budget == pytest.approx(3.0 * 0.8 / math.sqrt(2 * math.log(1500)))
    left, beta, order = table, method.beta, np.random.default_rng(3).permutation(403)
    assert method.residual(method.theta, table) <= beta < 1e-6
    draws, outcomes = [method.b.copy()], []
    for i in range(60):
        answer = method.unlearn(order[5 * i : 5 * i + 5], commit=True)
        left = left.without(order[5 * i : 5 * i + 5])
        facts = answer.facts
        outcomes.append(facts["retrained"])
        assert method.residual(answer.theta, left) <= method.beta + 1e-12  # rounding, right after a retrain
        assert method.beta == facts["beta"] <= method.budget
        if facts["retrained"]:
            assert beta + facts["bound"] > method.budget
            draws.append(method.b.copy())
        else:
            assert facts["beta"] == pytest.approx(beta + facts["bound"], rel=1e-12)
        beta = method.beta
    assert True in outcomes
    assert False in outcomes
    for a, b in itertools.pairwise(draws):
        assert (a != b).all()  # a new linear term with every training
    assert np.std(np.concatenate(draws)) == pytest.approx(3.0, rel=0.6)


# ---------------------------------------------------------------------------------- fine-tuning, NegGrad+, descent


@pytest.mark.parametrize("kind", ["softmax", "mlp"])
def test_one_step_of_finetune_neggrad_and_d2d(kind, tables):
    """Whole batches, one step: gradients of the retained rows (and of the forgotten), written out."""
    table = tables[kind]
    model = anchored(table.X, table.y) if kind == "mlp" else MODELS[kind]
    X, y = np.delete(table.X, FORGET, axis=0), np.delete(table.y, FORGET)
    whole = Recipe(1, 1000, 0.4, adam=False, decay=False)
    tuned = prepared(Finetune(whole), table, model)
    theta = tuned.theta
    kept, gone = model.data_gradient(theta, X, y), model.data_gradient(theta, *table.take(FORGET))
    penalty = model.penalty_gradient(theta)
    answer = tuned.unlearn(FORGET)
    np.testing.assert_allclose(answer.theta, theta - 0.4 * (kept + penalty), atol=1e-12)
    assert answer.facts == {"steps": 1, "sample_visits": 398}
    climbed = prepared(NegGrad(whole, keep=0.7), table, model).unlearn(FORGET)
    np.testing.assert_allclose(climbed.theta, theta - 0.4 * (0.7 * kept - 0.3 * gone + penalty), atol=1e-12)
    descended = prepared(DescentToDelete(1), table, model)
    L, mu = descended.smoothness(398), descended.mu
    step = 2 / (L + mu) * (kept + penalty)
    np.testing.assert_allclose(descended.unlearn(FORGET).theta, descended.theta - step, atol=1e-10)
    assert descended.unlearn(FORGET).facts["contraction"] == pytest.approx((L - mu) / (L + mu))


def test_adam_and_falling_rates_in_finetuning(tables):
    """Adam with its usual constants and rates that fall to 0 as half a cosine, on the batches of the retained rows."""
    table, model = tables["lr"], MODELS["lr"]
    method = prepared(Finetune(Recipe(epochs=2, batch=100, rate=0.05)), table, model, seed=1)
    rows, order = np.argsort(method._place), np.random.default_rng([12, 1])
    order = order.permuted(np.tile(np.arange(5), (2, 1)), axis=1).ravel()
    theta, mean, square = method.theta.copy(), 0.0, 0.0
    for t, b in enumerate(order):
        part = np.setdiff1d(rows[100 * b : 100 * b + 100], FORGET)
        g = model.gradient(theta, table.X[part], table.y[part])
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
        rate = 0.05 * 0.5 * (1 + math.cos(math.pi * t / 10))
        theta = theta - rate * (mean / (1 - 0.9 ** (t + 1))) / (np.sqrt(square / (1 - 0.999 ** (t + 1))) + 1e-8)
    np.testing.assert_allclose(method.unlearn(FORGET).theta, theta, atol=1e-9)


@pytest.mark.parametrize("kind", ["ridge", "lr", "softmax"])
def test_d2d_distance_falls_by_the_contraction_every_step(kind, tables):
    """Promised where every parameter is penalised (ridge); with free intercepts every step still comes closer."""
    table = tables["softmax" if kind == "softmax" else "lr"]
    model = RidgeModel(4, lam=0.1) if kind == "ridge" else MODELS[kind]
    target = model.fit(table.without(FORGET)).theta
    far = []
    for iterations in (1, 2, 4, 8, 16):
        method = prepared(DescentToDelete(iterations), table, model)
        answer = method.unlearn(FORGET)
        far.append(rho(answer.theta, method.theta, target))
        if kind == "ridge":
            assert far[-1] <= answer.facts["contraction"] ** iterations * (1 + 1e-6)
    assert (np.diff(far) < 0).all()
    with pytest.raises(UserError, match="iterations"):
        DescentToDelete(0)


def test_d2d_noise_is_drawn_anew_and_the_clean_state_goes_on(tables):
    table, model = tables["lr"], LogisticModel(4, lam=0.1)
    loud, quiet = (prepared(DescentToDelete(5, noise=n, epsilon=2.0, delta=1e-3), table, model) for n in (True, False))
    noises = []
    for part in (FORGET[:2], FORGET[2:]):
        shown, clean = loud.unlearn(part, commit=True), quiet.unlearn(part, commit=True)
        np.testing.assert_array_equal(loud.theta, clean.theta)
        assert shown.facts == clean.facts
        assert shown.facts["sigma"] == pytest.approx(
            shown.facts["sensitivity"] * math.sqrt(2 * math.log(1250)) / 2.0, rel=1e-12
        )
        noises.append((shown.theta - clean.theta) / shown.facts["sigma"])
    assert (noises[0] != noises[1]).all()
    assert np.abs(noises).max() < 5
    assert loud.requests == 2
