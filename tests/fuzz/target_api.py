"""Calls of L2UL, the kernel mean embedding and the isolation kernel with odd objects, given as expressions."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from engine import Lie
from hypothesis import strategies as st
from strange import listed

ROOM = "l2ul_fast/unlearner"
MODULES = (
    f"{ROOM}/options.py",
    f"{ROOM}/requests.py",
    f"{ROOM}/l2ul.py",
    "l2ul_fast/tables.py",
    "l2ul_fast/embedding.py",
)
#: Odd in place of rows.
ROWS = listed("""
    X | X[:1] | X[:0] | X[:, :0] | X[0] | X.T | X.tolist() | X.astype(np.float16) | X.astype(complex) |
    X.astype(object) | X.astype(int) | X.astype('>f4') | X > 0 | np.asfortranarray(X) | X[::-1] | X * np.nan |
    X * np.inf | X * 1e300 | X * 1e-300 | np.zeros_like(X) | X * [1e12, 1, 1e-12] | np.ma.masked_array(X, X > 1) |
    pd.DataFrame(X) | pd.DataFrame(X, index=range(5, 165)) | pd.DataFrame(X).astype('Float64') | sp.csr_matrix(X) |
    torch.tensor(X) | np.matrix(X) | X[None] | np.array(X.tolist() + [[1]], object) | [[10**400] * 3] * 160 | 'rows' |
    None | 0 | {} | iter(X) | X.view(np.recarray) | np.broadcast_to(X[0], X.shape) | [[]] | [] | np.array(['a']) |
    X.astype(np.longdouble)
""")
LABELS = listed("""
    y | y[:1] | y * 0 | y - 1 | y + 254 | y * 1.5 | y * np.nan | y.astype(bool) | y.astype(str) | y.astype(bytes) |
    -y | y.tolist() | y[:, None] | y.astype(object) | np.where(y, 'a', None) | np.arange(160) | np.arange(160) % 3 |
    y.astype('M8[s]') | pd.Series(y) | pd.Series(y, index=range(159, -1, -1)) | pd.Categorical(y) |
    np.ma.masked_array(y, y > 0) | y.astype(complex) | None | 'y' | 0 | {} | [[1]] | [1, 'a'] * 80 |
    np.array([10**30] * 160, object) | y.astype('>i4') | y.astype(np.float16)
""")
REQUEST = listed("""
    [3] | [3, 4] | 3 | [] | [3, 3] | [-1] | [159] | [160] | [10**30] | [2**63] | [True] | y > 0 | [0.0] | [1.5] |
    ['3'] | None | '3' | {3} | range(3) | slice(3) | np.array([3], np.uint64) | np.array([2**63 + 1], np.uint64) |
    np.array([3.0]) | np.ma.masked_array([7, 8], [0, 1]) | pd.Index([3]) | pd.Series([3], index=['a']) |
    np.array([[3]]) | np.array(3) | (3, 4) | pd.Series(y > 0) | np.zeros(160, bool) | np.ones(160, bool) |
    np.ones(159, bool) | range(160) | [np.nan] | [None] | [3j] | np.array([3], object) | np.array(['3']) |
    np.array([3], 'M8[s]') | iter([3]) | np.arange(159) | [[3, 4], [5]] | b'3' | torch.tensor([3])
""")
OPTIONS = {
    name: listed(values)
    for name, values in {
        "model": "'lr' | 'mlp' | 'squared' | 'poisson' | 'x' | None | 0 | ['lr']",
        "head": "'expansion' | 'learned' | 'kme' | 'paper' | 'direct' | 'x' | None | []",
        "order": "2 | 3 | 4 | '3' | 2.0 | True | None",
        "anchor": "'grid' | 'optimum' | 'x' | np.zeros(4) | np.full(4, np.nan) | [1, 2] | 0 | [[1]]",
        "penalty": "'mean' | 'sum' | 'x' | None",
        "lam": "1e-3 | 1e-12 | 1e10 | 0 | -1 | np.nan | np.inf | '1' | None | 1j | np.array(1e-3) | [1] | 10**400",
        "psi": "2 | 4 | 4096 | 1 | 0 | 4097 | 2**40 | '4' | None | 4.0 | 300",
        "t": "1 | 10 | 0 | -1 | 10**6 + 1 | 2**40 | '1' | 1.5 | None",
        "m": "1 | 30 | 60 | 0 | '1' | 10**30 | None",
        "s": "20 | 60 | 100 | 160 | 161 | 10**9 | 0 | None | '20'",
        "hidden": "1 | 2 | 0 | '2' | 10**9 | -1",
        "anchor_rows": "0 | 20 | 160 | 161 | -1 | 10**9 | None | 'x'",
        "robust": "True | 'x' | np.array([1, 2]) | None",
        "random_state": "0 | None | -1 | 2**70 | 'x' | 1.5 | np.random.default_rng(0)",
        "store_rows": "True | False | None | 'x' | np.array([0, 1])",
        "activation": "'tanh' | 'relu' | 'x' | None",
        "nonsense": "1",
    }.items()
}
#: After a fit, in turn; {rows} and {request} are one of the above.
CALLS = listed("""
    u.unlearn({request}) | u.unlearn({request}, {rows}, {labels}) | u.unlearn({request}, rtol={number}) |
    u.predict({rows}) | u.predict_proba({rows}) | u.learn({rows}, {labels}) | u.learn(X[:2], {labels}) |
    u.learn({rows}[:2], y[:2], sample_weight={number}) | u.refresh() | u.save(folder / 'a'); u.load(folder / 'a') |
    u.save({number}) | u.load({number}) | u.copy() | u.residual({rows}) | copy.deepcopy(u) |
    pickle.loads(pickle.dumps(u)) | u.standardise({rows}) | u.fit({rows}, {labels}) | u.retained() | u.noise_floor() |
    u.due | u.forget_log | u.theta[:] = 0 | u.fit(X, y, sample_weight={labels}) | repr(u) | u.fit({number}) |
    KernelMeanEmbedding(Partitions.sample(X)).partial_fit({rows}).forget({rows}) |
    IsolationKernel(psi={number}).fit({rows}).kernel({rows})
""")
NUMBERS = listed("""
    0 | 1 | -1 | 1e-3 | 0.5 | np.nan | np.inf | 'x' | None | [] | y | y * 0 | y - 5.0 | 2**70 | b'x' | True
""")
NUMBERS += ["'a\\0b'"]


@functools.cache
def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(160, 3))
    return X, (X @ [1.0, -1.0, 0.5] + rng.normal(size=160) > 0).astype(np.int64)


def prepare() -> None:
    from l2ul_fast import L2UL

    for options in (
        {},
        {"model": "mlp", "hidden": 2},
        {"head": "learned", "m": 60, "s": 60},
        {"head": "kme", "m": 40, "s": 60, "t": 5},
    ):
        u = L2UL(random_state=0, **options).fit(*data())
        u.unlearn([3])
        u.refresh()
    with tempfile.TemporaryDirectory() as folder:  # loads what cases import
        run({"options": {}, "rows": "pd.DataFrame(X)", "labels": "y", "calls": ["u.predict(X)"]}, Path(folder))


def cases() -> Any:
    options = st.dictionaries(st.sampled_from(tuple(OPTIONS)), st.integers(0, 30), max_size=2)
    rows, labels, request, number = (st.sampled_from(some) for some in (ROWS, LABELS, REQUEST, NUMBERS))
    filled = st.builds(
        lambda call, **names: call.format(**names),
        st.sampled_from(CALLS),
        rows=rows,
        labels=labels,
        request=request,
        number=number,
    )
    sound = st.just("X"), st.just("y")
    return st.fixed_dictionaries(
        {
            "options": st.just({}) | options,
            "rows": st.one_of(sound[0], sound[0], rows),
            "labels": st.one_of(sound[1], sound[1], labels),
            "calls": st.lists(filled, max_size=3),
        }
    )


def run(case: Any, folder: Path) -> None:
    import copy
    import pickle

    import pandas as pd
    import scipy.sparse as sp
    import torch

    from l2ul_fast import L2UL, IsolationKernel, KernelMeanEmbedding
    from l2ul_kernels import Partitions

    X, y = (array.copy() for array in data())
    scope = {
        "np": np,
        "pd": pd,
        "sp": sp,
        "torch": torch,
        "X": X,
        "y": y,
        "folder": folder,
        "copy": copy,
        "pickle": pickle,
    }
    scope |= {"IsolationKernel": IsolationKernel, "KernelMeanEmbedding": KernelMeanEmbedding, "Partitions": Partitions}
    with np.errstate(all="ignore"):
        options = {name: eval(OPTIONS[name][k % len(OPTIONS[name])], scope) for name, k in case["options"].items()}  # noqa: S307
        try:
            rows, labels = eval(case["rows"], scope), eval(case["labels"], scope)  # noqa: S307
        except Exception:  # an expression that is none here, as pd.Series of a scalar
            return
    kept = X.copy(), y.copy()
    u = L2UL(**({"m": 60, "s": 60, "hidden": 2, "t": 5} | options)).fit(rows, labels)
    if not np.isfinite(u.theta).all():
        raise Lie("theta is not finite after a fit")
    scope["u"] = u
    problems = []
    for call in case["calls"]:
        theta, n = u.theta.copy(), u.n
        try:
            exec(call, scope)
        except (ValueError, TypeError) as error:
            ours = "IsolationKernel" not in call  # what scikit-learn says of its arguments has several lines
            problems.append(error if ours else ValueError(str(error).split("\n")[0]))
            if call.startswith("u.unlearn") and (u.n != n or u.theta.tobytes() != theta.tobytes()):
                raise Lie(f"{call} was refused and changed the model") from error
        u = scope["u"]
        if not np.isfinite(u.theta).all():
            raise Lie(f"theta is not finite after {call}")
    if not (np.array_equal(X, kept[0]) and np.array_equal(y, kept[1])):
        raise Lie("the caller's rows were changed")
    if problems:
        raise problems[0]
