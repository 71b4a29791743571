"""Small data sets, small unlearners and a look at everything they hold, for the tests of L2UL."""

import numpy as np

from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.newton_step import NewtonStep

#: Values that a request may leave behind without meaning anything.
SCRATCH = (
    "_work",
    "_total",
    "_single",
    "_single_sums",
    "_memory",
    "_sums",
    "_packed",  # padded copies of partition seeds
    "_held",  # addresses
    "own",
    "notes",  # of which theta and the log are looked at
)
#: What a Newton step keeps, each by its name; they lie in `_own`.
PARTS = ("anchor", "curvature", "inverse", "correction")
TIMES = ("time", "seconds", "fit_seconds")


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


def small(model="lr", **options):
    """An unlearner that is fitted in well under a second."""
    sizes = {"m": 60, "s": 400, "t": 20} if model == "lr" else {"m": 80, "t": 20, "hidden": 4, "anchor_rows": 300}
    return L2UL(model, **(sizes | options))


def kept(n, rows):
    return np.setdiff1d(np.arange(n), rows)


def retrain(u, X, y, rows, start=None):
    """theta of u's model trained on everything but `rows`, to a gradient of 1e-10."""
    index = np.searchsorted(u.classes_, y).astype(np.uint8)
    keep = kept(len(X), rows)
    found = u.model.fit((X[keep], index[keep]), start=start)
    assert found.converged
    return found.theta


def rho(after, before, target):
    return np.linalg.norm(after - target) / np.linalg.norm(before - target)


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
            if isinstance(value, NewtonStep):
                items = [item for item in items if item[0] != "_own"] + [(name, getattr(value, name)) for name in PARTS]
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
