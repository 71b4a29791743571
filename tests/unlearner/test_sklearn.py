"""Rows out of fitted scikit-learn estimators: close to refitting for logistic regression, sound for the MLP."""

import copy
import pickle
import warnings

import numpy as np
import pytest
from unlearners import curved_data, kept, logistic_data, refused, rho

from l2ul_fast.unlearner import sklearn as bridge
from l2ul_fast.unlearner.sklearn import unlearn_estimator

linear_model = pytest.importorskip("sklearn.linear_model")
neural_network = pytest.importorskip("sklearn.neural_network")
sklearn_pipeline = pytest.importorskip("sklearn.pipeline")

X, Y = logistic_data(dtype=np.float64)
X3, Y3 = logistic_data(dtype=np.float64, classes=3)
CURVED = curved_data(800)


def logistic(data, labels, **options):
    model = linear_model.LogisticRegression(**({"tol": 1e-12, "max_iter": 5000} | options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(data, labels)


def network(**options):
    """Trained to the end, unless said otherwise."""
    made = {
        "hidden_layer_sizes": (4,),
        "activation": "tanh",
        "solver": "lbfgs",
        "alpha": 1.0,
        "tol": 1e-12,
        "max_iter": 20_000,
        "max_fun": 10**6,
        "random_state": 0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return neural_network.MLPClassifier(**(made | options)).fit(*CURVED)


def flat(estimator):
    parts = [estimator.coef_, estimator.intercept_] if hasattr(estimator, "coef_") else []
    parts += getattr(estimator, "coefs_", []) + getattr(estimator, "intercepts_", [])
    return np.concatenate([np.ravel(part) for part in parts])


@pytest.mark.parametrize("C", [1.0, 0.01])
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cholesky"])
@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression_comes_close_to_refitting(C, solver, classes):
    data, labels = (X, Y) if classes == 2 else (X3, Y3)
    names = np.array(["a", "b", "c"])[labels]
    before = logistic(data, names, C=C, solver=solver)
    saved = pickle.dumps(before)
    for rows in (np.array([700]), np.arange(60)):
        after = unlearn_estimator(before, data, names, rows)
        keep = kept(2000, rows)
        target = logistic(data[keep], names[keep], C=C, solver="newton-cholesky")
        a, b, t = flat(after), flat(before), flat(target)
        if classes == 3:  # intercepts are determined up to a common number
            for vector in (a, b, t):
                vector[-3:] -= vector[-3:].mean()
        assert rho(a, b, t) < 0.05
        assert type(after) is type(before)
        assert after.get_params() == before.get_params()
        assert set(after.predict(data)) <= set(names)
        np.testing.assert_allclose(after.predict_proba(data), target.predict_proba(data), atol=1e-3)
        assert after.coef_.shape == before.coef_.shape
    assert pickle.dumps(before) == saved  # as it was


def test_refitting_keeps_C_not_lam():
    """The penalty of one row is 1 / (C n): with a wrong scale a strong penalty would show."""
    before, rows = logistic(X, Y, C=1e-3), np.arange(100)
    after = unlearn_estimator(before, X, Y, rows)
    target = logistic(X[100:], Y[100:], C=1e-3)
    assert rho(flat(after), flat(before), flat(target)) < 0.02
    mean_units = logistic(X[100:], Y[100:], C=1e-3 * 2000 / 1900)
    assert rho(flat(after), flat(before), flat(mean_units)) > 0.2


@pytest.mark.parametrize("made", [lambda: logistic(X, Y), lambda: logistic(X, Y, tol=1e-2), network])
def test_an_empty_request_changes_no_bit(made):
    before = made()
    data = (X, Y) if hasattr(before, "coef_") else CURVED
    after = unlearn_estimator(before, *data, [])
    np.testing.assert_array_equal(flat(after), flat(before))
    np.testing.assert_array_equal(after.predict_proba(data[0]), before.predict_proba(data[0]))
    assert after is not before
    assert not np.shares_memory(flat(after), flat(before))
    rows = np.array([30, 4, 9])
    a, b = (unlearn_estimator(before, *data, order) for order in (rows, rows[::-1]))
    np.testing.assert_array_equal(flat(a), flat(b))
    assert not np.array_equal(flat(a), flat(before))


def test_a_fit_that_stopped_early_moves_by_what_the_rows_gave():
    """With tol=1e-2 the distance to the optimum is larger than the change: it is kept, not mixed into the answer."""
    rough, exact, rows = logistic(X, Y, tol=1e-2), logistic(X, Y), np.arange(40)
    move = flat(unlearn_estimator(rough, X, Y, rows)) - flat(rough)
    target = flat(logistic(X[40:], Y[40:])) - flat(exact)
    assert np.linalg.norm(flat(rough) - flat(exact)) > 0
    assert np.linalg.norm(move - target) / np.linalg.norm(target) < 0.1


def loss(estimator, rows):
    p = estimator.predict_proba(CURVED[0][rows])[:, 1]
    return -np.log(np.where(CURVED[1][rows] == 1, p, 1 - p)).mean()


def test_mlp_moves_the_loss_of_the_forgotten_rows_as_a_warm_refit_does():
    before = network()
    saved = pickle.dumps(before)
    near = np.argsort(np.linalg.norm(CURVED[0] - CURVED[0][7], axis=1))
    for rows in (np.arange(20), near[:50], np.flatnonzero(CURVED[1] == 1)[:80]):
        after = unlearn_estimator(before, *CURVED, rows)
        keep = kept(800, rows)
        refit = copy.deepcopy(before).set_params(warm_start=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refit.fit(CURVED[0][keep], CURVED[1][keep])
        share = (loss(after, rows) - loss(before, rows)) / (loss(refit, rows) - loss(before, rows))
        assert 0.5 < share < 1.5, share
    assert pickle.dumps(before) == saved


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": "relu"},
        {"hidden_layer_sizes": 6, "alpha": 0.0, "max_iter": 300},
        {"solver": "adam", "max_iter": 100},
        {"solver": "sgd", "max_iter": 100, "batch_size": 64, "learning_rate_init": 0.1},
    ],
)
def test_mlp_of_every_kind_gives_back_a_working_estimator(options):
    before = network(**options)
    rows = np.flatnonzero(CURVED[1] == 1)[:20]
    after = unlearn_estimator(before, *CURVED, rows)
    assert np.isfinite(flat(after)).all()
    assert loss(after, rows) > loss(before, rows)  # it knows them less well
    assert np.mean(after.predict(CURVED[0]) == before.predict(CURVED[0])) > 0.9
    assert [w.shape for w in after.coefs_] == [w.shape for w in before.coefs_]
    assert after.get_params() == before.get_params()
    for name in ("_optimizer", "loss_", "_best_coefs", "_random_state"):  # what training left behind
        assert not hasattr(after, name)
    if before.solver != "lbfgs":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            after.partial_fit(*CURVED)
        assert np.isfinite(flat(after)).all()


def test_the_layout_of_the_mlp_and_its_penalty():
    """Our gradient at scikit-learn's optimum is zero: same parameters, same objective."""
    from l2ul_fast.models import MLPModel

    before = network(alpha=3.0)
    theta = bridge._mlp(before)
    model = MLPModel(3, 2, 4, "tanh", lam=0.0)
    np.testing.assert_allclose(model.predict_proba(theta, CURVED[0]), before.predict_proba(CURVED[0]), atol=1e-6)
    weights = np.r_[np.ones(12), np.zeros(4), np.ones(4), 0]
    gradient = model.data_gradient(theta, CURVED[0], CURVED[1].astype(np.uint8)) + 3.0 / 800 * weights * theta
    assert np.abs(gradient).max() < 1e-4
    np.testing.assert_array_equal(flat(bridge._with(before, theta)), flat(before))


def test_the_mlp_step_is_newtons_where_the_hessian_is_definite(monkeypatch):
    from l2ul_fast.models import MLPModel

    monkeypatch.setattr(bridge, "DAMPING", 0.0)
    before, rows = network(alpha=20.0, solver="lbfgs"), np.arange(100)
    theta, model = bridge._mlp(before), MLPModel(3, 2, 4, "tanh", lam=0.0)
    data, labels, weights = CURVED[0], CURVED[1].astype(np.uint8), np.r_[np.ones(12), np.zeros(4), np.ones(4), 0]

    def gradient(keep):
        return model.data_gradient(theta, data[keep], labels[keep]) + 20.0 / len(keep) * weights * theta

    hessian = model.hessian(theta, data, labels) + 20.0 / 800 * np.diag(weights)
    values, vectors = np.linalg.eigh(hessian)
    move = (vectors / np.abs(values)) @ vectors.T @ (gradient(kept(800, rows)) - gradient(np.arange(800)))
    found = bridge._mlp(unlearn_estimator(before, *CURVED, rows))
    np.testing.assert_allclose(found - theta, -move, atol=1e-5 * np.linalg.norm(move))


def test_single_precision_and_data_frames_come_back_as_they_were():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X.astype(np.float32), columns=[f"c{i}" for i in range(6)])
    before = logistic(frame, Y)
    after = unlearn_estimator(before, frame, Y, np.arange(50))
    assert after.coef_.dtype == before.coef_.dtype == np.float32
    assert list(after.feature_names_in_) == list(frame.columns)
    after.predict(frame)


def bad_logistic(**options):
    return lambda: logistic(X[:200], Y[:200], **options)


@pytest.mark.parametrize(
    ("match", "made"),
    [
        ("solver='liblinear'", bad_logistic(solver="liblinear")),
        ("fit_intercept=False", bad_logistic(fit_intercept=False)),
        ("class_weight='balanced'", bad_logistic(class_weight="balanced")),
        ("L2 penalty", bad_logistic(C=np.inf)),
        ("L2 penalty", bad_logistic(solver="saga", l1_ratio=0.5, max_iter=5)),
        ("not LogisticRegressionCV", lambda: linear_model.LogisticRegressionCV(max_iter=5)),
        ("not RidgeClassifier", linear_model.RidgeClassifier),
        ("not Pipeline", lambda: sklearn_pipeline.make_pipeline(linear_model.LogisticRegression())),
        ("not str", lambda: "x"),
        ("is not fitted", linear_model.LogisticRegression),
        ("is not fitted", neural_network.MLPClassifier),
        ("one hidden layer", lambda: network(hidden_layer_sizes=(3, 3), max_iter=3)),
        ("tanh and relu", lambda: network(activation="logistic", max_iter=3)),
        ("early_stopping", lambda: network(solver="adam", early_stopping=True, max_iter=3)),
        ("at most 4000", lambda: network(hidden_layer_sizes=(900,), max_iter=1)),
        ("two classes", lambda: neural_network.MLPClassifier((3,), max_iter=5).fit(X3[:100, :3], Y3[:100])),
    ],
)
def test_what_is_not_supported_says_so(match, made):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = made()
    wide = getattr(estimator, "n_features_in_", 6)
    data = (X[:200], Y[:200]) if wide == 6 else (CURVED[0], CURVED[1])
    with refused(match):
        unlearn_estimator(estimator, *data, [1])


def test_bad_requests_are_one_sentence():
    before = logistic(X, Y)
    for match, arguments in [
        ("does not exist", (X, Y, [2000])),
        ("does not exist", (X, Y, [-1])),
        ("named twice", (X, Y, [1, 1])),
        ("whole numbers", (X, Y, [1.5])),
        ("no row of class 1", (X, Y, np.flatnonzero(Y == 1))),
        ("no row of class 0", (X, Y, np.arange(2000))),
        ("shape", (X[:, :3], Y, [1])),
        ("NaN", (X * np.nan, Y, [1])),
        ("not one of the model's classes", (X, Y + 5, [1])),
        ("2000 rows but y has 3", (X, Y[:3], [1])),
        ("far from an optimum on X, y", (X, 1 - Y, [1])),
        ("far from an optimum on X, y", (100 * X + 50, Y, [1])),
    ]:
        with refused(match):
            unlearn_estimator(before, *arguments)
