"""The table of cases and how each one is prepared."""

from __future__ import annotations

import copy
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.cases.case import Case, Skip, Work
from l2ul_fast.cases.data import SEED, facts, many_rows, real_file, rows, source
from l2ul_fast.cases.profiles import WIDE, Profile, all_threads, model_threads
from l2ul_fast.datasets.registry import get_info

T = 100
MODELS = ("lr", "mlp")
BASELINES = ("retrain", "sisa", "deltagrad", "fyemu")
#: Rows of the requests that baselines answer.
R = 10


def kernel(profile: Profile, dataset: str, psi: int, assign: bool) -> Work:
    """assign_cells or cell_counts on rows in memory."""
    from l2ul_kernels import Partitions, assign_cells, cell_counts

    n = max(2048, int(profile.operations / (2 * get_info(dataset).d * psi * T)))
    X = many_rows(dataset, n)
    partitions = Partitions.sample(X, T, psi, random_state=0)
    info = facts(dataset, n, psi=psi, t=T)
    if assign:
        out = np.empty((n, T), np.uint8 if psi <= 256 else np.uint16)
        return Work(lambda: assign_cells(X, partitions, out=out), info)
    return Work(lambda: cell_counts(X, partitions), info)


def stream(profile: Profile, dataset: str) -> Work:
    """stream_counts over an HDF5 file in the page cache (it has just been written and read)."""
    from l2ul_fast.datasets.standin import make
    from l2ul_fast.datasets.stream import sample_partitions, stream_counts

    n = min(profile.stream_rows, get_info(dataset).n)
    folder = tempfile.TemporaryDirectory()
    path = real_file(dataset) if source() == "real" else make(dataset, n, SEED, Path(folder.name))
    partitions = sample_partitions(path, random_state=0)
    n = get_info(dataset).n if source() == "real" else n
    info = facts(dataset, n, psi=partitions.n_seeds, t=partitions.n_partitions)
    return Work(lambda: stream_counts(path, partitions), info, close=folder.cleanup)


def model_rows(profile: Profile, dataset: str, model: str) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Rows a model is fitted on; Skip where that would take too long for the profile."""
    if model == "mlp" and get_info(dataset).d > WIDE and not profile.wide:
        raise Skip(f"an MLP on {get_info(dataset).d} columns is fitted in the full profile only")
    return rows(dataset, profile.lr_rows if model == "lr" else profile.mlp_rows)


def fitted(profile: Profile, dataset: str, model: str) -> Any:
    """An L2UL on the rows of the cell."""
    from l2ul_fast.unlearner.l2ul import L2UL

    X, y = model_rows(profile, dataset, model)
    # trained without its anchor, an MLP of any data is fitted in seconds
    anchored = model == "lr" or (profile.anchored and X.shape[1] <= 30)
    return L2UL(model, m=profile.m, s=min(profile.s, len(X) // 4), anchor_rows=None if anchored else 0).fit(X, y)


class Requests:
    """Requests of r rows to an unlearner, each answered once; when all rows are used up, it begins anew with a copy."""

    def __init__(self, first: Any, r: int) -> None:
        # commits before the heads: anchor rows took a thousand times as long and were left out
        anchor = getattr(getattr(first, "step", None), "anchor_rows", np.zeros(0, np.int64))
        free = np.setdiff1d(np.arange(first.n), anchor)
        use = np.random.default_rng(1).permutation(free)[: max(r, free.size // 2 // r * r)]
        self.requests = np.sort(use.reshape(-1, r), axis=1)
        self.first, self.turn = first, len(self.requests)

    def before(self) -> None:
        if self.turn == len(self.requests):
            self.unlearner, self.turn = copy.deepcopy(self.first), 0
        rows = self.requests[self.turn]
        self.rows = rows if rows.size > 1 else rows.tolist()  # as users write one row
        self.turn += 1

    def call(self) -> object:
        return self.unlearner.unlearn(self.rows)


def request(profile: Profile, dataset: str, model: str, r: int) -> Work:
    """One call of unlearn with r rows: what a user waits for. State updates are part of it."""
    from l2ul_fast.unlearner.result import RetrainInstead

    first = fitted(profile, dataset, model)
    quiet = warnings.catch_warnings()
    quiet.__enter__()
    warnings.simplefilter("ignore", RetrainInstead)  # small profiles ask for a large share of their few rows
    requests = Requests(first, r)
    info = facts(dataset, first.n, psi=first.params["psi"], t=first.params["t"], model=model, r=r)
    return Work(requests.call, info, requests.before, lambda: quiet.__exit__(None, None, None))


def pairs(profile: Profile, dataset: str, model: str) -> Work:
    """m pairs of fits: the training data of N_U."""
    from l2ul_fast.models import LogisticModel, MLPModel

    X, y = model_rows(profile, dataset, model)
    rng = np.random.default_rng(0)
    ids = np.stack([rng.choice(len(X), profile.s, replace=False) for _ in range(profile.m)])
    n_forget = np.exp(rng.uniform(0, np.log(profile.s // 10), profile.m)).astype(np.int64)
    info = facts(dataset, len(X), model=model, m=profile.m, s=profile.s)
    if model == "lr":
        logistic = LogisticModel(X.shape[1])
        return Work(lambda: logistic.fit_pairs(X, y, ids, n_forget, tol=1e-8), info)
    mlp = MLPModel(X.shape[1])
    return Work(lambda: mlp.fit_pairs(X, y, ids, n_forget, epochs=20, epochs_retained=10), info)


def prepared(profile: Profile, dataset: str, model: str, method: str) -> Any:
    """A baseline with its defaults, prepared on the rows of the cell; but MLPs are retrained by epochs: exact Newton
    steps take minutes on some sets."""
    from l2ul_fast.baselines import METHODS
    from l2ul_fast.models import LogisticModel, MLPModel
    from l2ul_fast.tables import ArrayTable

    X, y = model_rows(profile, dataset, model)
    found = METHODS[method](**({"solver": "minibatch"} if (method, model) == ("retrain", "mlp") else {}))
    kind = LogisticModel if model == "lr" else MLPModel
    found.prepare(ArrayTable(X, y, [0, 1]), kind(X.shape[1]), 0)
    return found


def forget_rows(n: int, r: int) -> NDArray[np.int64]:
    """r row numbers below n, ascending."""
    return np.sort(np.random.default_rng(2).choice(n, r, replace=False))


def baseline(profile: Profile, dataset: str, model: str, method: str) -> Work:
    """One request of R rows to a baseline; it leaves the baseline as it was."""
    found = prepared(profile, dataset, model, method)
    ids = forget_rows(found.n, R)
    return Work(lambda: found.unlearn(ids), facts(dataset, found.n, model=model, method=method, r=R))


def _of_kernels(profile: Profile) -> dict[str, tuple[Any, ...]]:
    return {"dataset": profile.datasets, "psi": profile.psi}


def _of_models(profile: Profile, **more: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    return {"dataset": profile.few, "model": MODELS, **more}


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("assign_cells", "kernels", partial(kernel, assign=True), _of_kernels, all_threads),
        Case("cell_counts", "kernels", partial(kernel, assign=False), _of_kernels, all_threads),
        Case("stream_counts", "stream", stream, lambda p: {"dataset": p.few}, all_threads),
        Case("request", "unlearn", request, partial(_of_models, r=(1, 100, 1000))),
        Case("pairs", "pairs", pairs, _of_models, model_threads),
        Case("baseline", "baselines", baseline, partial(_of_models, method=BASELINES), model_threads),
    )
}
