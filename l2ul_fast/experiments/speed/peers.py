"""Other ways to find nearest seeds, each as its users would write it well: the peers of `l2ul bench kernels`.

A peer is a function (X, seeds, threads) -> call, where call(n) assigns the first n rows in every partition and returns
cells (n, t). Building (trees, transposes) is not timed. A peer whose package is missing raises ImportError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

Call = Callable[[int], NDArray[Any]]
Peer = Callable[[NDArray[np.float32], NDArray[np.float32], int], Call]

#: Rows per chunk of the GEMM peers: the scores of a chunk stay in the second-level cache (tried 256 to 16384).
CHUNK = 1024


def _gemm_parts(seeds: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    t, psi, d = seeds.shape
    flat = seeds.reshape(t * psi, d)
    return np.ascontiguousarray(flat.T), (flat**2).sum(axis=1) / 2


def numpy_gemm(X: NDArray[np.float32], seeds: NDArray[np.float32], threads: int) -> Call:
    t, psi, _ = seeds.shape
    transposed, half_norms = _gemm_parts(seeds)

    def call(n: int) -> NDArray[Any]:
        out = np.empty((n, t), np.uint8)
        scores = np.empty((CHUNK, t * psi), np.float32)
        for lo in range(0, n, CHUNK):
            part = scores[: min(CHUNK, n - lo)]
            np.matmul(X[lo : lo + len(part)], transposed, out=part)
            np.subtract(half_norms, part, out=part)
            out[lo : lo + len(part)] = part.reshape(-1, t, psi).argmin(axis=-1)
        return out

    return call


def torch_gemm(X: NDArray[np.float32], seeds: NDArray[np.float32], threads: int) -> Call:
    import torch

    t, psi, _ = seeds.shape
    transposed, half_norms = (torch.from_numpy(a) for a in _gemm_parts(seeds))
    rows = torch.from_numpy(X)

    def call(n: int) -> NDArray[Any]:
        out = torch.empty((n, t), dtype=torch.uint8)
        with torch.inference_mode():
            for lo in range(0, n, CHUNK):
                hi = min(lo + CHUNK, n)
                scores = torch.addmm(half_norms, rows[lo:hi], transposed, alpha=-1)
                out[lo:hi] = scores.view(-1, t, psi).argmin(dim=-1)
        return out.numpy()

    return call


def scikit_learn(X: NDArray[np.float32], seeds: NDArray[np.float32], threads: int) -> Call:
    from sklearn.metrics import pairwise_distances_argmin

    def call(n: int) -> NDArray[Any]:
        return np.stack([pairwise_distances_argmin(X[:n], s) for s in seeds], axis=1)

    return call


def faiss_knn(X: NDArray[np.float32], seeds: NDArray[np.float32], threads: int) -> Call:
    import faiss

    def call(n: int) -> NDArray[Any]:
        faiss.omp_set_num_threads(threads)
        return np.concatenate([faiss.knn(X[:n], s, 1)[1] for s in seeds], axis=1)

    return call


def ikpykit_anne(X: NDArray[np.float32], seeds: NDArray[np.float32], threads: int) -> Call:
    from ikpykit.kernel import IsoKernel

    t, psi, _ = seeds.shape
    # it draws its own seeds, so its cells are other ones; the work is the same
    model = IsoKernel(method="anne", n_estimators=t, max_samples=psi, random_state=0).fit(X)

    def call(n: int) -> NDArray[Any]:
        return model.transform(X[:n])

    return call


def scipy_ckdtree(X: NDArray[np.float32], seeds: NDArray[np.float32], threads: int) -> Call:
    from scipy.spatial import cKDTree

    trees = [cKDTree(s) for s in seeds]

    def call(n: int) -> NDArray[Any]:
        return np.stack([tree.query(X[:n], workers=threads)[1] for tree in trees], axis=1)

    return call


def _loops(X: Any, seeds: Any, out: Any) -> None:
    t, psi, d = seeds.shape
    for i in prange(len(out)):
        for p in range(t):
            best, where = np.float32(np.inf), 0
            for j in range(psi):
                total = np.float32(0)
                for k in range(d):
                    difference = X[i, k] - seeds[p, j, k]
                    total += difference * difference
                if total < best:
                    best, where = total, j
            out[i, p] = where


_plain = njit(parallel=True)(_loops)
_fast = njit(parallel=True, fastmath=True)(_loops)


def _compiled(kernel: Any) -> Peer:
    def peer(X: NDArray[np.float32], seeds: NDArray[np.float32], threads: int) -> Call:
        points = seeds.copy()  # writeable, like X: one compiled version

        def call(n: int) -> NDArray[Any]:
            out = np.empty((n, len(points)), np.uint16)
            kernel(X, points, out)
            return out

        return call

    return peer


PEERS: dict[str, Peer] = {
    "numpy GEMM+argmin": numpy_gemm,
    "torch GEMM+argmin": torch_gemm,
    "scikit-learn": scikit_learn,
    "faiss": faiss_knn,
    "ikpykit": ikpykit_anne,
    "scipy cKDTree": scipy_ckdtree,
    "plain numba": _compiled(_plain),
    "plain numba, fastmath": _compiled(_fast),
}
#: Peers whose cells can be compared with ours: all that take our seeds.
COMPARABLE = frozenset(PEERS) - {"ikpykit"}
