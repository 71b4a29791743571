"""Small data sets, small unlearners, independent optima and a look at everything held, for the tests of L2UL."""

import json
from contextlib import contextmanager

import numpy as np
import pytest

from l2ul_fast.errors import UserError
from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.heads.expansion import Expansion
from l2ul_kernels.request import expansion as kernels

#: Values that a request may leave behind without meaning anything.
SCRATCH = (
    "_packed",  # padded copies of partition seeds
    "_memory",  # of a forward, which its counts follow
    "_work",
    "work",
)
TIMES = ("time", "seconds", "fit_seconds", "fit_id")  # and what is drawn anew at every fit
LOSSES = {"lr": "logistic", "squared": "squared", "poisson": "poisson"}


def logistic_data(n=2000, d=6, classes=2, seed=0, dtype=np.float32):
    """Rows whose labels follow a (multinomial) logistic model."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(dtype)
    scores = X @ rng.normal(size=(classes, d)).T + rng.gumbel(size=(n, classes))
    return X, scores.argmax(axis=1)


def curved_data(n=1500, seed=0):
    """Rows that take hidden units to tell apart."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    score = 2 * X[:, 0] * X[:, 1] + 1.5 * np.sin(2 * X[:, 2]) + rng.logistic(size=n)
    return X, (score > 0).astype(int)


def data_for(model, n=400, d=4, seed=0, dtype=np.float64):
    """X, y of binary labels, numbers or counts, as the model wants them."""
    if model == "lr":
        return logistic_data(n, d, seed=seed, dtype=dtype)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(dtype)
    z = X @ rng.normal(size=d) / np.sqrt(d) + 0.5
    return X, rng.poisson(np.exp(z)).astype(float) if model == "poisson" else z + rng.normal(size=n)


def small(model="lr", **options):
    """An unlearner that is fitted in well under a second."""
    sizes = {"m": 80, "t": 20, "hidden": 4, "anchor_rows": 300} if model == "mlp" else {"m": 60, "s": 400, "t": 20}
    return L2UL(model, **(sizes | options))


TWO, THREE, CURVED = logistic_data(), logistic_data(classes=3, seed=1), curved_data()
#: Heads without integer sums, by what they are fitted on: (model, data, options).
HEADS = {
    "mlp": ("mlp", CURVED, {}),
    "mlp given": ("mlp", CURVED, {"anchor": tuple(np.random.default_rng(0).integers(-9, 10, 21) / 8.0)}),
    "lr3": ("lr", THREE, {}),
    "mlp plain": ("mlp", CURVED, {"anchor_rows": 0}),
    "learned lr2": ("lr", TWO, {"head": "learned"}),
    "kme lr2": ("lr", TWO, {"head": "kme", "psi": 8}),
    "paper lr2": ("lr", TWO, {"head": "paper"}),
    "learned lr3": ("lr", THREE, {"head": "learned"}),
    "kme lr3": ("lr", THREE, {"head": "kme", "psi": 5}),
    "learned mlp": ("mlp", CURVED, {"head": "learned"}),
    "kme mlp": ("mlp", CURVED, {"head": "kme", "psi": 8}),
    "paper mlp": ("mlp", CURVED, {"head": "paper", "s": 200}),
    "learned mlp plain": ("mlp", CURVED, {"head": "learned", "anchor_rows": 0, "s": 200}),
}
DUE = "the parameters are not at the optimum of the rows that stay"
_fitted = {}


def fitted_head(name, **options):
    """An unlearner of its own with one of HEADS; what is fitted twice is copied."""
    model, data, own = HEADS[name]
    key = (name, *sorted(options.items()))
    if key not in _fitted:
        _fitted[key] = small(model, **(own | options)).fit(*data)
    return _fitted[key].copy()


def is_plain(name):
    """Whether training is not a function of the data alone."""
    return name == "paper mlp" or name.endswith("plain")


def head_state(u):
    """Everything that a head keeps, and what the unlearner keeps of the rows, as bytes."""
    arrays = u.head.arrays() | {"status": u.status, "X": u.store.X, "y": u.store.y}
    facts = json.dumps(u.head.facts(), sort_keys=True)
    return {name: (a.shape, a.dtype.str, a.tobytes()) for name, a in arrays.items()} | {"facts": facts}


def kept(n, rows):
    return np.setdiff1d(np.arange(n), rows)


def retrain(u, X, y, rows, start=None):
    """theta of u's model trained on everything but `rows`, to a gradient of 1e-10."""
    index = np.searchsorted(u.classes_, y).astype(np.uint8)
    keep = kept(len(X), rows)
    found = u.model.fit((X[keep], index[keep]), start=start)
    assert found.converged
    return found.theta


def derivatives_at(theta, X, y, model="lr"):
    """(rows with a 1 behind them, their loss, first, second, third derivative by the predictor) in plain numpy."""
    wide = np.hstack([np.asarray(X, np.float64), np.ones((len(X), 1))])
    z = wide @ theta
    if model == "squared":
        return wide, (z - y) ** 2 / 2, z - y, np.ones_like(z), np.zeros_like(z)
    if model == "poisson":
        mean = np.exp(np.minimum(z, 300))
        return wide, mean - y * z, mean - y, mean, mean
    s = np.exp(-np.logaddexp(0, -z))
    other = np.exp(-np.logaddexp(0, z))
    return wide, np.logaddexp(0, z) - y * z, np.where(y > 0, -other, s), s * other, s * other * (other - s)


def optimum(X, y, model="lr", lam=1e-3, weights=None, penalty=None):
    """The minimiser of the rows' weighted losses + penalty / 2 ||coef||^2, by Newton's method in plain numpy.

    penalty: lam times the sum of weights if None.
    """
    weights = np.ones(len(X)) if weights is None else np.asarray(weights, float)
    ridge = np.append(np.full(X.shape[1], lam * weights.sum() if penalty is None else penalty), 0.0)
    theta = np.zeros(ridge.size)

    def at(theta):
        wide, loss, e, w, _ = derivatives_at(theta, X, y, model)
        gradient = (weights * e) @ wide + ridge * theta
        return weights @ loss + ridge @ theta**2 / 2, gradient, (wide.T * (weights * w)) @ wide + np.diag(ridge)

    value, gradient, hessian = at(theta)
    for _ in range(200):
        step, share = np.linalg.solve(hessian, gradient), 1.0
        while share > 1e-10:
            there = at(theta - share * step)
            if there[0] < value or np.linalg.norm(there[1]) < np.linalg.norm(gradient):
                break
            share /= 2
        theta = theta - share * step
        value, gradient, hessian = at(theta)
        if np.linalg.norm(step) <= 1e-14 * np.linalg.norm(theta):
            break
    assert np.linalg.norm(np.linalg.solve(hessian, gradient)) <= 1e-8 * (1 + np.linalg.norm(theta))
    return theta


def rho(after, before, target):
    return np.linalg.norm(after - target) / np.linalg.norm(before - target)


def state_of(u):
    """The bytes of all that an expansion keeps of the data."""
    return u.head.sums.tobytes(), u.head.anchor.tobytes(), u.head.exponents.tobytes()


def canonical_of(u):
    """theta as a function of the integers alone; u itself is left as it was."""
    return u.copy().head.canonical()


def contents(thing, skip=SCRATCH):
    """Every array (as bytes, with dtype and shape) and every plain value reachable from an object, by path."""
    found, seen = {}, set()

    def walk(value, path):
        if isinstance(value, np.ndarray):
            found[path] = (str(value.dtype), value.shape, value.tobytes())
        elif isinstance(value, str | bytes | int | float | bool | np.generic | type(None)):
            found[path] = repr(value)
        elif id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, dict):
                items = value.items()
            elif isinstance(value, list | tuple):
                items = enumerate(value)
            elif type(value).__module__.startswith(("l2ul_", "numpy")):
                slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
                items = [(name, getattr(value, name)) for name in slots] + list(getattr(value, "__dict__", {}).items())
            else:
                return
            if isinstance(value, Expansion):  # but its scratch
                items = [item for item in items if item[0] != "state"]
                items += [("state", value.state[: kernels.ROW].copy()), ("inverse", value.inverse.copy())]
            if isinstance(value, L2UL):
                items = [("theta", value.theta), ("log", value.forget_log), *value.__dict__.items()]
            for name, item in items:
                if name not in skip:
                    walk(item, f"{path}.{name}")

    walk(thing, type(thing).__name__)
    return found


def same_contents(a, b):
    """Fails with the names of what differs."""
    differing = [name for name in sorted(set(a) | set(b)) if a.get(name) != b.get(name)]
    assert not differing, differing


@contextmanager
def refused(match, u=None, error=UserError):
    """Fails unless what is inside raises one sentence and leaves everything that u holds as it was."""
    before = contents(u)
    with pytest.raises(error, match=match) as caught:
        yield
    assert "\n" not in str(caught.value)
    same_contents(contents(u), before)
