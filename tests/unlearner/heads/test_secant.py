"""The secant head: the MLP and multinomial logistic regression, whose sums are not kept."""

import numpy as np
import pytest
from unlearners import CURVED, DUE, HEADS, THREE, fitted_head, head_state, kept, logistic_data, retrain, rho, small
from unlearners import same_contents as same

from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.models.mlp import ANCHOR_WIDTH
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.heads import secant
from l2ul_fast.unlearner.heads.base import THETA_GRID
from l2ul_fast.unlearner.heads.secant import Inverse, InverseOfSum, Secant, anchor_rows
from l2ul_fast.unlearner.result import RetrainInstead

pytestmark = pytest.mark.filterwarnings("ignore::l2ul_fast.unlearner.result.RetrainInstead")

X, Y = CURVED
LABELS = Y.astype(np.uint8)
GIVEN = HEADS["mlp given"][2]["anchor"]
every = pytest.mark.parametrize("name", ["mlp", "mlp given", "lr3", "mlp plain"])
targeted = pytest.mark.parametrize("name", ["mlp", "mlp given", "lr3"])


def requests(name):
    """Rows of each shape."""
    data, labels = HEADS[name][1]
    near = np.argsort(np.linalg.norm(data - data[7], axis=1))
    return [np.array([3]), np.arange(50), np.flatnonzero(labels == 1)[:100], near[:100], np.argsort(data[:, 0])[:150]]


def anchors(u):
    return anchor_rows(u.params, u.retained())


@pytest.fixture
def passes(monkeypatch):
    """A list that grows with every pass over the rows for their gradient."""
    found, real = [], secant.table_sum

    def counted(*what):
        found.append(1)
        return real(*what)

    monkeypatch.setattr(secant, "table_sum", counted)
    return found


# The fit -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "lr3"])
def test_retraining_is_a_function_of_the_data(name):
    """Cold and warm starts meet, for every kind of request."""
    u, data = fitted_head(name), HEADS[name][1]
    assert isinstance(u.head, Secant)
    assert (u.head.kind, u.head.tier, u.due, u.head.error) == ("secant", "sealed", None, 0.0)
    assert u.residual() < 5e-9
    assert u.noise_floor() == 0
    assert np.mean(u.predict(data[0]) == data[1]) > 0.7
    for rows in requests(name):
        cold, warm = retrain(u, *data, rows), retrain(u, *data, rows, start=u.theta)
        np.testing.assert_allclose(cold, warm, atol=1e-7)


def test_the_report_of_a_fit_says_what_the_anchor_is():
    found = fitted_head("mlp").report_
    assert (found["anchored"], found["anchor_rows"], found["mu"]) == (True, 300, fitted_head("mlp").model.mu)
    assert found["lowest_curvature_over_mu"] >= 0.7
    assert found["gradient_norm"] < 1e-9
    assert set(found["seconds"]) == {"train", "curvature"}
    assert fitted_head("mlp given").report_["anchor_rows"] == 0
    assert fitted_head("mlp plain").report_["anchored"] is False
    assert "anchored" not in fitted_head("lr3").report_


def test_anchor_rows_are_chosen_by_their_numbers_and_the_anchor_lies_on_its_grid():
    u = fitted_head("mlp")
    rows, table = anchors(u), u.retained()
    assert len(set(rows.tolist())) == 300
    assert not np.array_equal(rows, anchor_rows(u.params | {"random_state": 1}, table))
    gone = np.r_[rows[:4], kept(1500, rows)[:4]]
    left = anchor_rows(u.params, table.without(gone), again=True)
    assert len(left) == 300
    assert np.setdiff1d(rows, left).tolist() == rows[:4].tolist()  # others take their place, and nothing else changes
    few = table.without(np.arange(1300))
    np.testing.assert_array_equal(anchor_rows(u.params, few, again=True), few.ids())
    assert anchor_rows(u.params | {"anchor_rows": None}, table).size == 1500
    widths = u.model.anchor_widths(X[rows])
    assert set(widths) == {ANCHOR_WIDTH}
    np.testing.assert_array_equal(u.model.anchor % ANCHOR_WIDTH, 0)
    np.testing.assert_array_equal(u.theta % THETA_GRID, 0)


# The instant answer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "mlp given", "mlp plain"])
@pytest.mark.parametrize("count", [1, 32, 33, 200])  # one, few and many go different ways
def test_an_answer_is_one_step_with_the_kept_inverse(name, count, passes):
    u = fitted_head(name)
    rows, before, model = np.arange(5, 5 + count), u.theta, u.model
    keep = kept(1500, rows)
    hessian = model.hessian(before, X, LABELS)
    residual = model.data_gradient(before, X[keep], LABELS[keep]) + model.penalty_gradient(before)
    values, vectors = np.linalg.eigh(hessian)  # the plain one need not be positive
    least = secant.DAMPING * model.strength
    step = vectors @ (vectors.T @ residual / np.where(values > least, values, np.maximum(np.abs(values), least)))
    answer = u.unlearn(rows)
    np.testing.assert_allclose(answer.theta, before - step, atol=1e-3 * np.linalg.norm(step))
    assert (answer.tier, answer.due, answer.n, passes) == ("instant", DUE, 1500 - count, [])
    np.testing.assert_array_equal(u.class_counts, np.bincount(Y[keep]))
    assert u.forget_log[0]["rows"].tolist() == rows.tolist()


@pytest.mark.parametrize("count", [1, 16, 17, 300])
def test_a_multinomial_answer_is_newton_s_step_of_the_rows_that_stay(count, passes):
    u, (data, labels) = fitted_head("lr3"), THREE
    rows, before = np.arange(9, 9 + count), u.theta
    keep = kept(2000, rows)
    hessian = u.model.hessian(before, data[keep], labels[keep].astype(np.uint8))
    gradient = u.model.gradient(before, data[keep], labels[keep].astype(np.uint8))
    answer = u.unlearn(rows)
    expected = before - np.linalg.pinv(hessian, rcond=1e-10) @ gradient
    np.testing.assert_allclose(answer.theta, expected, atol=1e-7 * np.linalg.norm(expected - before))
    assert (answer.tier, answer.due, passes) == ("instant", DUE, [])


@targeted
def test_instant_answers_come_close_to_retraining(name):
    data = HEADS[name][1]
    for rows, limit in zip(requests(name), (0.05, 0.05, 0.2, 0.4, 0.2), strict=True):
        u = fitted_head(name)
        before, after = u.theta, u.unlearn(rows).theta
        assert rho(after, before, retrain(u, *data, rows)) < limit


@every
def test_answers_depend_on_the_set_of_rows_only(name):
    rows = np.random.default_rng(2).permutation(1500)[:120]
    before, thetas = fitted_head(name).theta, []
    for parts in ([rows], [rows[::-1]], np.array_split(rows, 9), np.array_split(rows[::-1], 120)):
        u = fitted_head(name)
        for part in parts:
            u.unlearn(part)
        thetas.append(u.theta)
    step = np.linalg.norm(thetas[0] - before)
    np.testing.assert_array_equal(thetas[1], thetas[0])
    for theta in thetas[2:]:
        np.testing.assert_allclose(theta, thetas[0], atol=1e-6 * step)
    u = fitted_head(name)
    unchanged = head_state(u)
    np.testing.assert_array_equal(u.unlearn([]).theta, before)
    same(head_state(u), unchanged)


def test_anchor_rows_are_requests_like_any_other(passes):
    rows = anchors(fitted_head("mlp"))
    others = kept(1500, rows)
    found = []
    for some in (rows[:1], others[:1], rows[:40], others[:40]):
        u = fitted_head("mlp")
        before, anchor = u.theta, u.model.anchor
        answer = u.unlearn(some)
        assert (answer.tier, passes) == ("instant", [])
        np.testing.assert_array_equal(u.model.anchor, anchor)
        found.append(rho(answer.theta, before, retrain(u, X, Y, some)))
    assert max(found) < 0.1
    assert fitted_head("mlp").unlearn(rows).n == 1200  # all of them


def test_a_wide_network_keeps_a_single_precision_inverse():
    u = fitted_head("mlp", hidden=22, lam=1e-2)
    assert u.theta.size > 100
    assert u.head.inverse.W.dtype == np.float32
    before, rows = u.theta, np.arange(20)
    assert rho(u.unlearn(rows).theta, before, retrain(u, X, Y, rows, start=before)) < 0.2


# Error and secant steps ----------------------------------------------------------------------------------------------


@targeted
@pytest.mark.parametrize("rtol", [1e-2, 1e-5])
def test_secant_steps_go_on_until_the_error_is_small_enough(name, rtol, passes):
    data = HEADS[name][1]
    for rows in requests(name):
        u = fitted_head(name)
        before = u.theta
        target = retrain(u, *data, rows)
        instant = u.copy().unlearn(rows).error
        passes.clear()
        answer = u.unlearn(rows, rtol=rtol)
        assert answer.error <= rtol
        assert (answer.tier == "secant steps") == (len(passes) > 0) == (instant > rtol)
        assert len(passes) <= (4 if rtol == 1e-2 else secant.PASSES)
        assert rho(answer.theta, before, target) < 5 * rtol + 1e-6
        assert answer.due == DUE  # what is kept still knows the rows


def test_an_estimate_after_a_pass_is_what_is_left_of_the_gradient():
    u, rows = fitted_head("mlp"), np.argsort(X[:, 0])[:150]
    before = u.theta
    target = retrain(u, X, Y, rows)
    u.unlearn(rows)
    table, head = u.retained(), u.head
    for _ in range(4):
        head._pass(table)
        true = rho(head.theta, before, target)
        assert true / 5 < head.error < 20 * true + 1e-6


@targeted
def test_a_request_after_secant_steps_starts_from_there(name):
    data, u = HEADS[name][1], fitted_head(name)
    before, rows = u.theta, np.arange(60)
    u.unlearn(rows, rtol=1e-6)
    answer = u.unlearn(np.arange(60, 80))
    true = rho(answer.theta, before, retrain(u, *data, np.arange(80)))
    assert answer.tier == "instant"
    assert 1e-6 < answer.error < 0.2
    assert true < 5 * answer.error


@targeted
def test_training_takes_over_where_secant_steps_do_not_arrive(name, monkeypatch):
    data, u = HEADS[name][1], fitted_head(name)
    monkeypatch.setattr(secant, "PASSES", 1)
    rows, before = np.argsort(data[0][:, 0])[:300], u.theta
    answer = u.unlearn(rows, rtol=1e-7)
    assert answer.tier == "trained again"
    assert answer.error <= 1e-7
    assert rho(answer.theta, before, retrain(u, *data, rows)) < 1e-6


def test_training_that_fails_leaves_the_instant_answer_with_a_warning(monkeypatch):
    u = fitted_head("lr3")
    monkeypatch.setattr(secant, "PASSES", 0)
    monkeypatch.setattr(LogisticModel, "fit", lambda *what, **how: (_ for _ in ()).throw(UserError("no luck")))
    expected = u.copy().unlearn(np.arange(50)).theta
    with pytest.warns(RetrainInstead, match="the rows are forgotten, but the answer is not refined: no luck"):
        answer = u.unlearn(np.arange(50), rtol=1e-9)
    np.testing.assert_array_equal(answer.theta, expected)
    assert answer.error > 1e-9
    assert u.n == 1950


# The parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("C", [3, 5])
def test_gradients_hessians_and_third_derivatives_are_the_model_s(C):
    rng = np.random.default_rng(C)
    data, labels = rng.normal(size=(40, 4)), rng.integers(0, C, 40).astype(np.uint8)
    model = LogisticModel(4, C, 1e-9)
    theta, q = rng.normal(size=model.size), rng.normal(size=model.size)
    for r in (1, 16, 17, 40):
        some, marks = data[:r], labels[:r]
        expected = r * model.data_gradient(theta, some, marks)
        np.testing.assert_allclose(secant.gradient_sum(model, some, marks, theta), expected, atol=1e-12)
        hessian = r * (model.hessian(theta, some, marks) - 1e-9 * np.diag(model._penalised))
        np.testing.assert_allclose(secant.hessian_of_rows(model, some, marks, theta), hessian, atol=1e-11)
        ahead, behind = (r * model.hessian(theta + h * q, some, marks) for h in (1e-5, -1e-5))
        third = secant.third_along(model, some, theta, q)
        np.testing.assert_allclose(third, (ahead - behind) / 2e-5, atol=1e-7)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_few_and_of_many_rows_are_the_mlp_s(classes, dtype):
    rng = np.random.default_rng(classes)
    data, labels = rng.normal(size=(500, 3)).astype(dtype), rng.integers(0, classes, 500).astype(np.uint8)
    model = MLPModel(3, classes, 4)
    theta, weights = rng.normal(size=model.size), rng.integers(0, 2, 500).astype(float)
    for r in (1, 32, 33, 500):
        expected = r * model.data_gradient(theta, data[:r], labels[:r])
        np.testing.assert_allclose(secant.gradient_sum(model, data[:r], labels[:r], theta), expected, atol=1e-10)
    stay = weights > 0
    expected = stay.sum() * model.data_gradient(theta, data[stay], labels[stay])
    np.testing.assert_allclose(secant.gradient_sum(model, data, labels, theta, weights), expected, atol=1e-10)


def test_the_bend_is_the_length_of_what_newton_leaves_over(monkeypatch):
    monkeypatch.setattr(secant, "PROJECTIONS", 300)  # three are within a factor of some 3, 300 within some percent
    data, labels = THREE
    u = small().fit(data, labels)
    head, theta = u.head, u.theta
    step = 0.05 * np.random.default_rng(0).normal(size=theta.size)
    bend = 0.5 * secant.third_along(u.model, data.astype(float), theta, step) @ step / len(data)
    expected = np.linalg.norm(head.inverse @ bend) / np.linalg.norm(step)
    assert head._bend(step) == pytest.approx(expected, rel=0.2)
    assert head._bend(2 * step) == pytest.approx(2 * head._bend(step))
    assert head._bend(0 * step) == 0
    assert fitted_head("mlp").head._bend(np.ones(21)) == 0


def test_third_derivatives_are_of_a_sample_of_a_large_table(monkeypatch):
    data, labels = THREE
    table = secant.EvenBlocks(ArrayTable(data, labels.astype(np.uint8), [0, 1, 2]))
    model, W = LogisticModel(6, 3, 1e-3), np.eye(21, dtype=np.float32)
    whole = secant.projected_thirds(model, table, np.zeros(21), W)
    monkeypatch.setattr(secant, "BEND_ROWS", 300)
    monkeypatch.setattr(secant, "BLOCK_ROWS", 100)
    some = secant.projected_thirds(model, table, np.zeros(21), W)
    assert not np.array_equal(some, whole)
    Q = np.random.default_rng(0).normal(size=(secant.PROJECTIONS, 21))
    expected = np.stack([secant.third_along(model, data[::7].astype(float), np.zeros(21), q) for q in Q]) / 286
    np.testing.assert_allclose(some, expected, atol=1e-6)


def test_an_inverse_learns_secant_pairs():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(9, 9))
    matrix = root @ root.T + np.eye(9)
    for inverse in (Inverse(np.linalg.inv(matrix).astype(np.float32)), InverseOfSum(5 * matrix, np.zeros((9, 9)), 5)):
        v = rng.normal(size=9)
        np.testing.assert_allclose(inverse @ v, np.linalg.solve(matrix, v), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(inverse @ np.zeros(9), np.zeros(9))
        np.testing.assert_allclose(inverse @ (1e-60 * v), 1e-60 * (inverse @ v), rtol=1e-5)
        for _ in range(3):
            step, change = rng.normal(size=9), rng.normal(size=9)
            change = matrix @ step + 0.1 * change
            inverse.learn(step, change)
            np.testing.assert_allclose(inverse @ change, step, rtol=1e-5, atol=1e-5)
        assert len(inverse.a) == len(inverse.b) == 3
        inverse.learn(step, inverse._times(np.r_[1.0, np.zeros(8)], inverse.a, inverse.b) * 0)  # says nothing
        assert len(inverse.a) == 3


def test_an_inverse_of_a_sum_follows_it(monkeypatch):
    rng = np.random.default_rng(1)
    rows, fixed = rng.normal(size=(400, 9)), 0.1 * np.eye(9)
    inverse = InverseOfSum(rows.T @ rows, fixed, 400)
    made, v = inverse.W, rng.normal(size=9)
    for gone, again in ((np.arange(5), False), (np.arange(5, 395), True)):  # far from what it was made of: made again
        monkeypatch.setattr(secant, "hessian_of_rows", lambda model, X, y, theta: X.T @ X)
        inverse.change(None, rows[gone], None, None, -1, 400 - gone.max() - 1)
        rest = rows[gone.max() + 1 :]
        expected = np.linalg.solve(rest.T @ rest / len(rest) + fixed, v)
        np.testing.assert_allclose(inverse @ v, expected, rtol=1e-7)
        assert not again or inverse.W is not made or secant.CG_STEPS >= 9


def test_blocks_are_those_of_a_table_that_never_had_other_rows(monkeypatch):
    monkeypatch.setattr(secant, "BLOCK_ROWS", 256)
    gone = np.random.default_rng(0).permutation(1500)[:400]
    keep = kept(1500, gone)
    hidden = secant.EvenBlocks(ArrayTable(X, LABELS, [0, 1]).without(gone))
    fresh = secant.EvenBlocks(ArrayTable(X[keep], LABELS[keep], [0, 1]))
    ours, theirs = list(hidden.blocks()), list(fresh.blocks())
    assert [len(x) for x, _ in ours] == [256, 256, 256, 256, 76] == [len(x) for x, _ in theirs]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])


# The seal ------------------------------------------------------------------------------------------------------------


@targeted
@pytest.mark.parametrize("rtol", [None, 1e-3])
def test_the_seal_is_the_optimum_of_the_rows_that_stay(name, rtol):
    data, u = HEADS[name][1], fitted_head(name)
    assert u.refresh() == {"sealed": False, "why": None}
    rows = np.union1d(np.arange(25), np.argsort(data[0][:, 0])[:200])
    u.unlearn(rows, rtol=rtol)
    done = u.refresh()
    assert (done["sealed"], done["why"]) == (True, DUE)
    assert (u.due, u.head.error, u.head.tier) == (None, 0.0, "sealed")
    assert u.residual() < 5e-9  # the grid's
    np.testing.assert_allclose(u.theta, retrain(u, *data, rows), atol=1e-7)
    stay = kept(len(data[0]), rows)
    labels = data[1].astype(np.uint8)
    hessian = u.model.hessian(u.theta, data[0][stay], labels[stay])
    if name == "lr3":
        np.testing.assert_allclose(
            u.head.inverse.total / len(stay), hessian - 1e-3 * np.diag(u.model._penalised), atol=1e-9
        )
    else:
        np.testing.assert_allclose(hessian @ u.head.inverse.W, np.eye(len(hessian)), atol=1e-4)
    assert not {"secant.base", "secant.first", "secant.unseen", "secant.steps"} & set(u.head.arrays())
    assert "open" not in u.head.facts()
    np.testing.assert_allclose(u.unlearn([900]).n, len(stay) - 1)
    assert u.due == DUE


@pytest.mark.parametrize("name", ["mlp given", "lr3"])
def test_the_seal_arrives_from_far_away(name):
    """The inverse of the last seal is no guide there; a step with it does not halve the gradient."""
    data, u = HEADS[name][1], fitted_head(name)
    rows = np.flatnonzero(data[1] == 1)[:-9]
    u.unlearn(rows)
    assert u.head.error > 0.2
    u.refresh()
    assert u.residual() < 5e-9
    np.testing.assert_allclose(u.theta, retrain(u, *data, rows), atol=1e-7)


def test_a_seal_that_does_not_arrive_by_steps_trains(monkeypatch):
    u, rows = fitted_head("mlp given"), np.arange(200)
    u.unlearn(rows)
    monkeypatch.setattr(secant, "_inverse_at", lambda *what: (Inverse(np.eye(21, dtype=np.float32)), True))
    calls, real = [], MLPModel.fit
    monkeypatch.setattr(MLPModel, "fit", lambda *what, **how: calls.append(1) or real(*what, **how))
    u.head.inverse.W = np.eye(21, dtype=np.float32)
    v = u.copy()
    u.refresh()
    assert calls
    np.testing.assert_allclose(u.theta, retrain(u, X, Y, rows), atol=1e-7)

    def stuck(*what, **how):
        found = real(*what, **how)
        found.converged = False
        return found

    monkeypatch.setattr(MLPModel, "fit", stuck)
    before = head_state(v)
    with pytest.raises(UserError, match="training does not converge on the rows that stay"):
        v.refresh()
    same(head_state(v), before)
    assert v.due == DUE


def test_the_seal_trains_the_anchor_on_the_anchor_rows_that_stay():
    u = fitted_head("mlp")
    anchor, mu, rows = u.model.anchor, u.model.mu, anchors(u)
    gone = np.r_[rows[:100], kept(1500, rows)[:50]]
    u.unlearn(gone)
    done = u.refresh()
    assert 0 < done["anchor_moved"] == int((u.model.anchor != anchor).sum())
    left = anchor_rows(u.params, u.retained(), again=True)
    assert not np.isin(left, gone).any()
    plain = u.model.with_anchor(None, None)
    expected = plain.fit((X[left], LABELS[left]), start=anchor, tol=1e-10).theta
    assert np.abs(u.model.anchor - expected).max() <= ANCHOR_WIDTH / 2 + 1e-6
    np.testing.assert_array_equal(u.model.anchor % ANCHOR_WIDTH, 0)
    assert u.model.mu == mu
    assert u.head.well_defined


def test_an_anchor_that_is_given_is_never_moved():
    u = fitted_head("mlp given")
    np.testing.assert_array_equal(u.model.anchor, GIVEN)
    u.unlearn(np.arange(300))
    assert "anchor_moved" not in u.refresh()
    np.testing.assert_array_equal(u.model.anchor, GIVEN)


def sealed_and_fresh(u, data, labels, rows):
    """What is kept after the seal without rows, and after a fit of the others under the same numbers."""
    u.unlearn(rows)
    u.refresh()
    table = ArrayTable(data, labels.astype(np.uint8), u.classes_).without(rows)
    fresh = secant.fit(u.params, table, len(data), lambda *what: None).head
    return u.head.arrays(), fresh.arrays(), (u.head.facts(), fresh.facts())


@pytest.mark.parametrize("count", [1, 40])
@every
def test_refresh_equals_a_fit_without_the_rows(name, count):
    u, (data, labels) = fitted_head(name), HEADS[name][1]
    rows = kept(1500, anchors(u))[:count] if name == "mlp" else np.arange(count) * 7
    ours, theirs, facts = sealed_and_fresh(u, data, labels, rows)
    assert set(ours) == set(theirs)
    for key in ours:
        np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)
    assert facts[0] == facts[1]


def test_refresh_equals_a_fit_without_anchor_rows_if_training_finds_the_same():
    """A fit takes the best of five random starts, the seal goes on from the anchor: mostly the same local optimum."""
    equal = 0
    for row in anchors(fitted_head("mlp"))[:12]:
        ours, theirs, _ = sealed_and_fresh(fitted_head("mlp"), X, Y, np.array([row]))
        found = np.array_equal(ours["secant.anchor"], theirs["secant.anchor"])
        assert found == np.array_equal(ours["secant.theta"], theirs["secant.theta"])
        assert not found or all(np.array_equal(ours[key], theirs[key]) for key in ours)
        equal += found
    assert equal >= 6


# New rows ------------------------------------------------------------------------------------------------------------


@targeted
def test_learning_is_the_other_sign(name):
    (data, labels), u = HEADS[name][1], fitted_head(name)
    n, before = len(data), u.theta
    held = u.class_counts
    ids = u.learn(data[40:100] + np.float32(0.3), labels[40:100])
    assert ids.tolist() == list(range(n, n + 60))
    assert (u.n, u.due, u.head.tier) == (n + 60, DUE, "instant")
    np.testing.assert_array_equal(u.class_counts, held + np.bincount(labels[40:100], minlength=len(u.classes_)))
    all_rows, marks = np.vstack([data, data[40:100] + np.float32(0.3)]), np.r_[labels, labels[40:100]]
    target = retrain(u, all_rows, marks, [], start=before)
    true = rho(u.theta, before, target)
    assert true < 0.1
    assert true < 5 * u.head.error
    v = u.copy()
    v.unlearn(ids)
    np.testing.assert_allclose(v.theta, before, atol=1e-5 * np.linalg.norm(u.theta - before))
    u.refresh()
    assert u.residual() < 5e-9
    np.testing.assert_allclose(u.theta, retrain(u, all_rows, marks, []), atol=1e-7)
    u.unlearn([3, ids[5]])
    u.refresh()
    np.testing.assert_allclose(u.theta, retrain(u, all_rows, marks, [3, ids[5]]), atol=1e-7)


@every
def test_rows_that_cannot_be_learned_change_nothing(name):
    (data, labels), u = HEADS[name][1], fitted_head(name)
    before = head_state(u)
    for match, rows, marks in [
        ("class", data[:2], [0, 7]),
        ("labels", data[:2], [0]),
        ("shape|columns|features", data[:2, :2], [0, 1]),
        ("NaN", np.where(data[:2] > 9, 0, np.nan), [0, 1]),
    ]:
        with pytest.raises(ValueError, match=match):
            u.learn(rows, marks)
        same(head_state(u), before)
    assert u.learn(data[:0], labels[:0]).size == 0
    same(head_state(u), before)


# Without an anchor ---------------------------------------------------------------------------------------------------


def test_training_without_an_anchor(passes):
    u = fitted_head("mlp plain")
    assert u.model.anchor is None
    assert np.mean(u.predict(X) == Y) > 0.65
    assert (u.due, u.head.error) == (None, None)
    other = u.model.fit((X, LABELS), seed=u.params["random_state"] + 1, tol=1e-6).theta
    assert u.noise_floor() == np.mean(u.model.predict(other, X) != u.model.predict(u.theta, X)) > 0
    passes.clear()
    before, answer = u.theta, u.unlearn(np.arange(20))
    assert (answer.error, answer.tier, answer.due, passes) == (None, "instant", DUE, [])
    moved = np.linalg.norm(answer.theta - before)
    assert 0 < moved < 0.5 * np.linalg.norm(before)
    answer = u.unlearn([30], rtol=0.5)  # with no estimate that could be small enough
    assert (answer.error, answer.tier) == (None, "trained again")
    assert u.residual() < 1e-5
    u.refresh()
    start = MLPModel(3, 2, 4).fit(
        (X[kept(1500, [*range(20), 30])], LABELS[kept(1500, [*range(20), 30])]), seed=u.params["random_state"], tol=1e-6
    )
    np.testing.assert_allclose(u.theta, start.theta, atol=1e-3)
    assert u.due is None
    assert u.residual() < 1e-5


def test_three_classes_and_relu_have_no_anchor():
    labels = Y + (X[:, 2] > 1)
    u = small("mlp", activation="relu").fit(X, labels)
    assert u.model.anchor is None
    before, answer = u.theta, u.unlearn(np.arange(20))
    assert not np.array_equal(answer.theta, before)
    assert answer.error is None
    u.refresh()
    np.testing.assert_array_equal(u.class_counts, np.bincount(labels[20:]))
    assert u.due is None


# Errors --------------------------------------------------------------------------------------------------------------


def test_bad_options_are_one_sentence():
    wide = np.zeros((60, 1400), np.float32)
    wide[:, 0] = np.arange(60)
    three = logistic_data(60, 3, classes=3)
    for match, model, data, options in [
        ("anchor_rows must be 0 or from 20 to 1500, got 5", "mlp", CURVED, {"anchor_rows": 5}),
        ("anchor_rows must be 0 or from 20 to 1500, got 1501", "mlp", CURVED, {"anchor_rows": 1501}),
        ('the MLP has penalty="mean" only', "mlp", CURVED, {"penalty": "sum"}),
        ('more than two classes has penalty="mean" only', "lr", THREE, {"penalty": "sum"}),
        ("the MLP has no sums to expand at an anchor", "mlp", CURVED, {"anchor": "optimum"}),
        ("more than two classes has no sums to expand", "lr", THREE, {"anchor": np.zeros(21)}),
        ("an anchor for two classes only", "mlp", three, {"anchor": np.zeros(21)}),
        ("the anchor must have 21 finite numbers", "mlp", CURVED, {"anchor": np.zeros(20)}),
        ("the anchor must have 21 finite numbers|finite", "mlp", CURVED, {"anchor": np.full(21, np.nan)}),
        ("4203 parameters: the inverse Hessian is kept for up to 4096", "lr", (wide, np.arange(60) % 3), {}),
        ("parameters: the inverse Hessian is kept for up to 4096", "mlp", CURVED, {"hidden": 1000}),
    ]:
        with pytest.raises(UserError, match=match):
            small(model, **options).fit(*data)
    for model, data in (("mlp", CURVED), ("lr", THREE)):
        with pytest.raises(UserError, match="cannot have weights"):
            small(model).fit(*data, np.ones(len(data[0])))


def test_a_model_without_a_well_defined_optimum_is_refused(monkeypatch):
    real = MLPModel.choose_mu

    def none_will_do(self, *what, **how):
        mu, found = real(self, *what, **how)
        found.converged = False
        return mu, found

    u, rows = fitted_head("mlp"), np.arange(30)
    u.unlearn(rows)
    before = head_state(u)
    monkeypatch.setattr(MLPModel, "choose_mu", none_will_do)
    with pytest.raises(UserError, match="no anchor strength makes retraining well defined here: raise lam"):
        small("mlp").fit(*CURVED)
    monkeypatch.setattr(secant, "_above", lambda *what: False)
    with pytest.raises(UserError, match="no anchor strength makes retraining well defined on the rows that stay"):
        u.refresh()
    same(head_state(u), before)


def test_another_mu_is_chosen_where_the_old_one_will_not_do(monkeypatch):
    u, chosen = fitted_head("mlp"), []
    u.unlearn(np.arange(30))
    above, anchored = secant._above, MLPModel.fit_anchored
    least = secant.LEAST_CURVATURE * u.model.mu
    monkeypatch.setattr(secant, "_above", lambda matrix, floor: (chosen or floor != least) and above(matrix, floor))
    monkeypatch.setattr(MLPModel, "fit_anchored", lambda *what: chosen.append(1) or anchored(*what))
    done = u.refresh()
    assert chosen == [1]
    assert done["mu"] == u.model.mu
    assert u.head.well_defined
    assert u.residual() < 5e-9
