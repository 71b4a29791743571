"""Against code that others wrote: scikit-learn, scipy and statsmodels, each to the tolerance its own solver reaches."""

import numpy as np
import pytest
import statsmodels.api as sm
from baselines_data import RidgeModel, anchored, blobs, prepared, table_of
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier

from l2ul_fast.baselines import Influence, Newton, Recipe, Retrain
from l2ul_fast.baselines.minibatch import orders
from l2ul_fast.models import LogisticModel, MLPModel

FORGET = np.array([4, 90, 91, 250, 299])
#: lam so small that it is lost in rounding: statsmodels fits without a penalty.
NONE = 1e-14


def noisy(n, d, n_classes=2, seed=0):
    """float64 rows that no plane separates: fits without a penalty exist."""
    X, y = blobs(n, d, n_classes, seed, spread=2.0)
    return X.astype(np.float64), y


@pytest.fixture(scope="module")
def binary():
    return noisy(300, 4, seed=31)


# ------------------------------------------------------------------------------------------------------- scikit-learn


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cholesky", "newton-cg", "sag"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_retrained_parameters_are_those_of_scikit_learn(n_classes, solver):
    X, y = noisy(300, 4, n_classes, seed=33)
    model = LogisticModel(4, n_classes, lam=1e-2)
    answer = prepared(Retrain(), table_of(X, y), model).unlearn(FORGET)
    rest = np.delete(np.arange(300), FORGET)
    peer = LogisticRegression(C=1 / (1e-2 * 295), tol=1e-12, max_iter=100_000, solver=solver).fit(X[rest], y[rest])
    theirs = np.concatenate([peer.coef_.ravel(), peer.intercept_ - (peer.intercept_.mean() if n_classes > 2 else 0)])
    np.testing.assert_allclose(answer.theta, theirs, atol=1e-9 if solver == "newton-cholesky" else 1e-6)
    np.testing.assert_allclose(answer.predict_proba(X), peer.predict_proba(X), atol=1e-6)
    loss = model.loss(answer.theta, X[rest], y[rest]) - 0.005 * (peer.coef_**2).sum()
    assert loss == pytest.approx(log_loss(y[rest], peer.predict_proba(X[rest])), abs=1e-6)


def peer_mlp(model, theta, X, y, rate, **how):
    """scikit-learn's MLP with our parameters and no penalty; its first call makes the arrays and moves nothing."""
    peer = MLPClassifier((model.h,), activation=model.activation, alpha=0.0, shuffle=False, batch_size=len(X), **how)
    peer.set_params(learning_rate_init=1e-300).partial_fit(X, y, classes=np.arange(model.n_classes))
    for mine, theirs in zip(split(model, theta), (*peer.coefs_, *peer.intercepts_), strict=True):
        theirs[...] = mine
    del peer._optimizer  # the next call makes another, with the rate and without moments
    return peer.set_params(learning_rate_init=rate)


def split(model, theta):
    """(W1 (d, h), W2 (h, o), b1, b2) as scikit-learn keeps them."""
    h, d, o = model.h, model.d, 1 if model.n_classes == 2 else model.n_classes
    W1, b1, W2, b2 = np.split(theta, np.cumsum([h * d, h, o * h]))
    return W1.reshape(h, d).T, W2.reshape(o, h).T, b1, b2


def joined(peer):
    W1, W2, b1, b2 = *peer.coefs_, *peer.intercepts_
    return np.concatenate([W1.T.ravel(), b1, W2.T.ravel(), b2])


@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_mlp_minibatch_retraining_is_that_of_scikit_learn(n_classes, adam):
    """The same batches, less the forgotten rows, one `partial_fit` each: parameters after three epochs."""
    X, y = noisy(300, 5, n_classes, seed=35)
    model = MLPModel(5, n_classes, h=4, lam=0.0)
    recipe = Recipe(epochs=3, batch=64, rate=0.02, adam=adam, decay=False)
    method = prepared(Retrain(solver="minibatch", recipe=recipe), table_of(X, y), model, seed=7)
    how = {"solver": "adam"} if adam else {"solver": "sgd", "momentum": 0.0}
    peer = None
    for b in orders(5, 3, [12, 7]):
        rows = np.setdiff1d(np.flatnonzero(method._place // 64 == b), FORGET)
        if peer is None:
            peer = peer_mlp(model, model.start(7), X[rows], y[rows], 0.02, **how)
        peer.set_params(batch_size=len(rows)).partial_fit(X[rows], y[rows])
    found = method.unlearn(FORGET).theta
    np.testing.assert_allclose(found, joined(peer), atol=1e-5 if adam else 1e-12)
    assert np.linalg.norm(found - model.start(7)) > 0.05


# -------------------------------------------------------------------------------------------------------------- scipy


def test_retrained_mlp_parameters_are_those_of_scipy(binary):
    """Trust-region Newton of scipy from our theta, on the retained rows."""
    X, y = binary
    model = anchored(X, y)
    method = prepared(Retrain(), table_of(X, y), model)
    Xr, yr = np.delete(X, FORGET, axis=0), np.delete(y, FORGET)
    found = minimize(
        lambda t: model.loss(t, Xr, yr),
        method.theta,
        method="trust-exact",
        jac=lambda t: model.gradient(t, Xr, yr),
        hess=lambda t: model.hessian(t, Xr, yr),
        options={"gtol": 1e-9, "maxiter": 500},
    )
    np.testing.assert_allclose(method.unlearn(FORGET).theta, found.x, atol=1e-6)
    assert np.abs(method.theta - found.x).max() > 1e-3


# -------------------------------------------------------------------------------------------------------- statsmodels


def rows_of(X):
    return np.column_stack([X, np.ones(len(X))])


def logit_of(X, y):
    return sm.Logit(y.astype(float), rows_of(X))


def glm_of(X, y):
    return sm.GLM(y.astype(float), rows_of(X), sm.families.Binomial())


def test_coefficients_and_hessian_of_logit_and_glm(binary):
    X, y = binary
    model = LogisticModel(4, lam=NONE)
    theta = prepared(Retrain(), table_of(X, y), model).theta
    logit = logit_of(X, y)
    np.testing.assert_allclose(theta, logit.fit(disp=0, method="newton", tol=1e-14).params, atol=1e-9)
    np.testing.assert_allclose(theta, glm_of(X, y).fit(tol=1e-14).params, atol=1e-7)
    np.testing.assert_allclose(300 * model.hessian(theta, X, y), -logit.hessian(theta), atol=1e-9)
    away = theta + 0.3
    np.testing.assert_allclose(300 * model.gradient(away, X, y), -logit.score(away), atol=1e-9)
    assert 300 * model.loss(away, X, y) == pytest.approx(-logit.loglike(away), rel=1e-12)


def test_coefficients_and_hessian_of_mnlogit():
    """Its first class has parameters 0: differences to that class agree, and so does the Hessian of the differences."""
    X, y = noisy(300, 4, 3, seed=32)
    model = LogisticModel(4, 3, lam=1e-11)
    theta = model.fit((X, y), tol=1e-11).theta
    logit = sm.MNLogit(y, rows_of(X))
    peer = logit.fit(disp=0, method="newton", maxiter=100, tol=1e-14)
    params = np.column_stack([theta[:12].reshape(3, 4), theta[12:]])  # (C, d + 1)
    np.testing.assert_allclose((params - params[0])[1:].T, np.asarray(peer.params), atol=1e-6)
    # ours with respect to classes 1 and 2 alone, in its order (class by class, intercept last)
    H = 300 * model.hessian(theta, X, y)
    places = [[4 * c + k for k in range(4)] + [12 + c] for c in (1, 2)]
    places = np.concatenate(places)
    np.testing.assert_allclose(H[np.ix_(places, places)], -logit.hessian(peer.params), atol=1e-4)


@pytest.mark.parametrize("family", ["GLM", "Logit"])
def test_one_forgotten_row_is_the_one_step_influence_of_statsmodels(binary, family):
    """Its d_params drops one observation by one Newton step with that row's curvature removed; without that correction
    (1 - leverage) it is the influence function with the Hessian of all rows."""
    X, y = binary
    table, model = table_of(X, y), LogisticModel(4, lam=NONE)
    if family == "GLM":
        result = glm_of(X, y).fit(tol=1e-14, maxiter=200)
    else:
        result = logit_of(X, y).fit(disp=0, method="newton", tol=1e-14)
    peer = result.get_influence()
    newton, influence = (prepared(method, table, model) for method in (Newton(), Influence()))
    for i in (0, 17, 44, 123, 299):
        np.testing.assert_allclose(newton.theta - newton.unlearn([i]).theta, peer.d_params[i], atol=1e-8)
        np.testing.assert_allclose(newton.unlearn([i]).theta, peer.params_one[i], atol=1e-7)
        plain = peer.d_params[i] * (1 - peer.hat_matrix_diag[i])
        np.testing.assert_allclose(influence.theta - influence.unlearn([i]).theta, plain, atol=1e-8)
        assert np.abs(peer.d_params[i]).max() > 1e-4


def test_one_forgotten_row_of_least_squares_is_exact_as_in_statsmodels(binary):
    """Leave-one-out of ordinary least squares has a closed form (dfbeta); Newton and retraining equal it."""
    X, y = binary
    table, model = table_of(X, y), RidgeModel(4, lam=0.0)
    result = sm.OLS(y, rows_of(X)).fit()
    dfbeta = result.get_influence().dfbeta
    newton = prepared(Newton(), table, model)
    np.testing.assert_allclose(newton.theta, result.params, atol=1e-12)
    for i in (0, 17, 299):
        np.testing.assert_allclose(newton.theta - newton.unlearn([i]).theta, dfbeta[i], atol=1e-12)
        exact = model.fit(table.without([i])).theta
        np.testing.assert_allclose(newton.theta - exact, dfbeta[i], atol=1e-12)
