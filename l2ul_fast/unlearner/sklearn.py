"""Take rows out of a fitted scikit-learn LogisticRegression or MLPClassifier, and give one back.

Both move by the same rule: theta' = theta - H^-1 (g_R - g_D), g_D and g_R being the gradients of scikit-learn's own
objective with and without the rows. What a fit that has not converged lacks to its optimum is left alone, so an empty
request returns the same parameters. Nothing is stored between calls: each costs one pass over X.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.tables import check_rows, class_indices
from l2ul_fast.unlearner.requests import refuse
from l2ul_fast.unlearner.rows import RowLabels, in_order, paired, row_numbers
from l2ul_kernels.request.claims import claim

Vector = NDArray[np.float64]
Rows = tuple[NDArray[Any], NDArray[np.uint8]]

#: Curvatures of the MLP below this share of their mean count as this share: a smaller one is noise, not knowledge.
DAMPING = 0.01
#: Parameters of an MLP above which its Hessian takes too much time.
LARGEST_MLP = 4000
#: A Newton step on all rows longer than this share of the parameters: they do not belong to these rows.
FOREIGN = 0.5


def unlearn_estimator(estimator: Any, X: ArrayLike, y: ArrayLike, rows: ArrayLike) -> Any:
    """A fitted estimator of the same class and options as if it had not seen these rows; the given one is unchanged.

    X (n, d), y (n,) are what `estimator` was fitted on (without sample weights), rows (r,) the numbers of those to
    forget.

    LogisticRegression, two or more classes, any solver but liblinear, with an L2 penalty and intercept: one Newton step
    of the objective that refitting with the same C minimises. Where the fit had converged (a small tol, and X in double
    precision when r is small) the result is 20 to some hundred times closer to a refit than the given estimator, for r
    up to a few percent of n.

    MLPClassifier, two classes, one hidden layer (tanh or relu): one step with the Hessian made positive definite and
    damped. scikit-learn stops long before an optimum, and a refit ends in another basin (its predictions differ by
    percents from those of a fit with another seed), so there is no refit that this could be close to. What it is worth:
    after a tanh fit that did converge (lbfgs) it makes most of the change that a warm refit makes to the loss of the
    forgotten rows; after anything else, relu above all, it is a change in the right direction without a guarantee of
    its size. Check what matters to you on the forgotten rows, or use `L2UL("mlp")`, whose training makes retraining
    well defined.
    """
    kind = type(estimator).__module__.partition(".")[0], type(estimator).__name__
    if kind == ("sklearn", "LogisticRegression"):
        read, move = _logistic, _move_logistic
    elif kind == ("sklearn", "MLPClassifier"):
        read, move = _mlp, _move_mlp
    else:
        raise UserError(
            f"only LogisticRegression and MLPClassifier of scikit-learn can be unlearned from, not {kind[1]} "
            "(of a Pipeline give the last step, with X as that step sees it)"
        )
    if not hasattr(estimator, "classes_"):
        raise UserError(f"this {kind[1]} is not fitted: call fit first")
    theta = read(estimator)
    data, keep, ids = _split(estimator, X, y, rows)
    if not ids.size:
        return _with(estimator, theta)
    return _with(estimator, move(estimator, theta, data, keep, ids))


def _split(estimator: Any, X: ArrayLike, y: ArrayLike, rows: ArrayLike) -> tuple[Rows, NDArray[np.bool_], Any]:
    """((X, class indices), mask of the rows that stay, the others' numbers), all checked."""
    names = getattr(estimator, "feature_names_in_", None)
    paired(X, y=y)
    data = check_rows(in_order(X, None if names is None else tuple(names)), int(estimator.n_features_in_))
    classes, labels = class_indices(y, np.asarray(estimator.classes_).tolist())
    if len(data) != len(labels):
        raise UserError(f"X has {len(data)} rows but y has {len(labels)} labels")
    ids, gone = np.sort(row_numbers(rows, len(data), RowLabels.of(X))), np.zeros(len(data), np.uint8)
    refusal = claim(ids, gone)
    if refusal >= 0:
        refuse(refusal, ids)
    left = np.bincount(labels[gone == 0], minlength=len(classes))
    if not left.all():
        raise UserError(f"no row of class {classes[int(left.argmin())]} would stay: fit again without that class")
    return (data, labels), gone == 0, ids


# LogisticRegression --------------------------------------------------------------------------------------------------


def _logistic(estimator: Any) -> Vector:
    """theta in our layout; UserError for an objective that is not ours."""
    for name, fine in (
        ("solver", estimator.solver != "liblinear"),
        ("fit_intercept", bool(estimator.fit_intercept)),
        ("class_weight", estimator.class_weight is None),
        ("dual", not estimator.dual),
    ):
        if not fine:
            raise UserError(f"a LogisticRegression with {name}={getattr(estimator, name)!r} is not supported")
    penalty, ratio = getattr(estimator, "penalty", "l2"), getattr(estimator, "l1_ratio", None)
    plain = (penalty in ("l2", "deprecated") and ratio in (None, 0)) or (penalty == "elasticnet" and ratio == 0)
    if not plain or not 0 < estimator.C < np.inf:
        raise UserError("only a LogisticRegression with an L2 penalty (finite C, no L1 part) is supported")
    many = len(estimator.classes_) > 2
    if getattr(estimator, "multi_class", "auto") not in ("auto", "deprecated", "multinomial" if many else "auto"):
        raise UserError(f"a LogisticRegression with multi_class={estimator.multi_class!r} is not supported")
    return np.concatenate([np.ravel(estimator.coef_), estimator.intercept_]).astype(np.float64)


def _move_logistic(estimator: Any, theta: Vector, data: Rows, keep: NDArray[np.bool_], ids: Any) -> Vector:
    (X, y), n = data, len(keep)
    C, d = len(estimator.classes_), X.shape[1]
    # in units of the mean over the rows that stay; refitting keeps C, so the penalty of all of D is the same in sum
    model = LogisticModel(d, C, 1 / (estimator.C * (n - ids.size)))
    gone = ids.size * model.data_gradient(theta, X[ids], y[ids])
    stay = (n - ids.size) * model.gradient(theta, X[keep], y[keep])
    inverse = inverse_of(model, model.hessian(theta, X[keep], y[keep])) / (n - ids.size)
    if np.linalg.norm(inverse @ (stay + gone)) > FOREIGN * (np.linalg.norm(theta) + 1e-3):
        raise UserError("the estimator is far from an optimum on X, y: give what it was fitted on, or let it converge")
    return theta + inverse @ gone


def inverse_of(model: LogisticModel, hessian: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inverse of a Hessian. One number added to all intercepts of a multinomial model changes nothing, so there the
    Hessian is zero; no gradient has a part in that direction, and any curvature may stand for it."""
    if model.n_classes > 2:
        intercepts = np.arange(model.size) >= model.n_classes * model.d
        hessian = hessian + np.outer(intercepts, intercepts)
    return np.asarray(np.linalg.inv(hessian), np.float64)


# MLPClassifier -------------------------------------------------------------------------------------------------------


def _mlp(estimator: Any) -> Vector:
    """The same for an MLPClassifier."""
    sizes = estimator.hidden_layer_sizes
    if isinstance(sizes, Sequence | np.ndarray) and len(sizes) != 1:
        raise UserError(f"only an MLPClassifier with one hidden layer is supported, not {tuple(sizes)}")
    if estimator.activation not in ("tanh", "relu"):
        raise UserError(f"only the activations tanh and relu are supported, not {estimator.activation}")
    if estimator.out_activation_ != "logistic" or estimator.n_outputs_ != 1:
        raise UserError("only an MLPClassifier of two classes is supported")
    if estimator.early_stopping:
        raise UserError("early_stopping=True trains on some of the rows only, nobody knows which: fit without it")
    W1, W2 = estimator.coefs_
    theta = np.concatenate([W1.T.ravel(), estimator.intercepts_[0], W2.ravel(), estimator.intercepts_[1]])
    if theta.size > LARGEST_MLP:
        raise UserError(f"this MLPClassifier has {theta.size} parameters, at most {LARGEST_MLP} are supported")
    return theta.astype(np.float64)


def _move_mlp(estimator: Any, theta: Vector, data: Rows, keep: NDArray[np.bool_], ids: Any) -> Vector:
    X, y = data
    d, h = estimator.coefs_[0].shape
    r, n = ids.size, len(keep)
    model = MLPModel(d, 2, h, estimator.activation, lam=0.0)
    weights = np.ones(theta.size)
    weights[h * d : h * d + h] = weights[-1] = 0.0  # biases are not penalised
    before, after = _penalty(estimator, n), _penalty(estimator, n - r)
    # g_R - g_D; without penalty g_R = (n g_D - r g_F) / (n - r)
    whole, gone = model.data_gradient(theta, X, y), model.data_gradient(theta, X[ids], y[ids])
    change = r / (n - r) * (whole - gone) + (after - before) * weights * theta
    values, vectors = np.linalg.eigh(model.hessian(theta, X, y) + before * np.diag(weights))
    curved = np.maximum(np.abs(values), DAMPING * np.abs(values).mean())
    return theta - vectors @ ((vectors.T @ change) / curved)


def _penalty(estimator: Any, n: int) -> float:
    """scikit-learn divides alpha by the rows of a batch; lbfgs has one batch of all rows."""
    if estimator.solver == "lbfgs":
        return float(estimator.alpha) / n
    batch = 200 if estimator.batch_size == "auto" else int(estimator.batch_size)
    return float(estimator.alpha) / min(batch, n)


# A new estimator -----------------------------------------------------------------------------------------------------


def _with(estimator: Any, theta: Vector) -> Any:
    """A clone with these parameters and whatever predicting needs; nothing else of the training is carried over."""
    from sklearn.base import clone

    made = clone(estimator)
    for name in ("classes_", "n_features_in_", "feature_names_in_", "n_iter_"):
        if hasattr(estimator, name):
            setattr(made, name, getattr(estimator, name))
    if hasattr(estimator, "coef_"):
        size = estimator.coef_.size
        made.coef_ = theta[:size].reshape(estimator.coef_.shape).astype(estimator.coef_.dtype)
        made.intercept_ = theta[size:].astype(estimator.intercept_.dtype)
        return made
    for name in ("n_layers_", "n_outputs_", "out_activation_", "_label_binarizer", "t_"):
        setattr(made, name, getattr(estimator, name))
    (d, h), dtype = estimator.coefs_[0].shape, estimator.coefs_[0].dtype
    W1, b1, W2, b2 = np.split(theta, [h * d, h * d + h, h * d + 2 * h])
    made.coefs_ = [np.ascontiguousarray(W1.reshape(h, d).T, dtype), W2.reshape(h, 1).astype(dtype)]
    made.intercepts_ = [b1.astype(dtype), b2.astype(dtype)]
    # partial_fit goes on from here with an optimiser of its own
    made.loss_curve_, made.best_loss_, made._no_improvement_count = [], np.inf, 0
    return made
