"""Quality that asv tracks beside the times: a faster answer that is a worse one shows here."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.cases.profiles import Profile
from l2ul_fast.cases.table import fitted, model_rows
from l2ul_fast.tables import ArrayTable

#: "l2ul" is what users of a commit get by default, whatever its name there: asv compares commits under this word.
METHODS = ("retrain", "nothing", "newton", "l2ul")


@lru_cache(maxsize=1)
def _answers(profile: Profile, dataset: str, model: str, r: int) -> list[dict[str, float]]:
    """One dict of a request: rho and accuracy gap of every method, "rho nothing" and so on."""
    # from a module that all commits have
    from l2ul_fast.experiments.unlearn_quality import answer, newton

    u = fitted(profile, dataset, model)
    X, y = model_rows(profile, dataset, model)
    table = ArrayTable(X, y, [0, 1])
    rng = np.random.default_rng(3)
    found = []
    for _ in range(profile.draws):
        ids = np.sort(rng.choice(len(X), r, replace=False))
        target = u.model.fit(table.without(ids), start=u.theta, tol=1e-9).theta
        thetas: dict[str, NDArray[np.float64]] = {
            "retrain": target,
            "nothing": u.theta,
            "newton": newton(u, table, ids),
            "l2ul": answer(u, ids),
        }
        change = float(np.linalg.norm(u.theta - target))
        truth = float((u.model.predict(target, X) == y).mean())
        each: dict[str, float] = {}
        for name, theta in thetas.items():
            each[f"rho {name}"] = float(np.linalg.norm(theta - target)) / change
            each[f"gap {name}"] = abs(float((u.model.predict(theta, X) == y).mean()) - truth)
        found.append(each)
    return found


def rho(profile: Profile, dataset: str, model: str, r: int, method: str) -> float:
    """Median over the draws of |theta' - theta_r| / |theta - theta_r|: 0 for a retrain, 1 for doing nothing."""
    return float(np.median([each[f"rho {method}"] for each in _answers(profile, dataset, model, r)]))


def accuracy_gap(profile: Profile, dataset: str, model: str, r: int, method: str) -> float:
    """Largest distance, over the draws, to the retrained model's accuracy on all rows."""
    return float(max(each[f"gap {method}"] for each in _answers(profile, dataset, model, r)))
