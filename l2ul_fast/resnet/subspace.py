"""Directions in which all parameters may move: an orthonormal basis of real unlearning trajectories."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from l2ul_fast.errors import UserError
from l2ul_fast.resnet.data import Images, standardise
from l2ul_fast.resnet.features import outputs
from l2ul_fast.resnet.matching import Targets, least_push
from l2ul_fast.resnet.model import ResNet18, copy_of, flat, set_flat

Progress = Callable[[str, int, int], None]
#: Parameters added at a time: the part of theta stays in the cache while all directions pass over it.
PIECE = 1 << 16


def trajectories(
    network: ResNet18,
    images: Images,
    targets: Targets,
    logits: NDArray[np.floating],
    k: int,
    seed: int,
    steps: int = 8,
    rate: float = 0.02,
    batch: int = 128,
    progress: Progress | None = None,
) -> Tensor:
    """(k, p) displacements of k short unlearning runs; run j takes `batch` rows of its own as forgotten.

    Each step is SGD on the distance of forgotten rows' logits to the wanted ones and of other rows' logits to the
    network's own. Batch norm uses its running statistics and keeps them, so only theta moves.
    """
    batch = max(1, min(batch, images.n // 3))
    start = flat(network)
    moved = torch.empty(k, len(start))
    y, own = images.y.numpy(), torch.from_numpy(np.asarray(logits, np.float32))
    for j in range(k):
        rng = np.random.default_rng([seed, 9, j])
        some = rng.permutation(images.n)
        forget = np.sort(some[:batch])
        push, _ = least_push(logits[forget], y[forget], targets.answers(forget, y[forget], images.n))
        goal = own[forget] + torch.from_numpy(push.astype(np.float32))
        copy = copy_of(network).eval()
        optimiser = torch.optim.SGD(copy.parameters(), rate, 0.9)
        for _ in range(steps):
            stay = rng.choice(some[batch:], batch, replace=False)
            found = copy(standardise(images.x[np.concatenate([forget, stay])]))
            wanted = torch.cat([goal, own[stay]])
            # logits, scaled down: their squares are large beside cross-entropy
            loss = functional.mse_loss(found, wanted) / 2
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(copy.parameters(), 1.0)
            optimiser.step()
        moved[j] = flat(copy) - start
        if progress is not None:
            progress("trajectories", j + 1, k)
    return moved


def orthonormal(moved: Tensor) -> tuple[NDArray[np.float16], NDArray[np.float64]]:
    """(basis (k, p) float16, reach (k,)): principal directions of displacements (k, p) and how far the runs went there.

    Half precision keeps the rows orthonormal to about 1e-3, and halves what a request reads.
    """
    if not torch.isfinite(moved).all() or not moved.any():
        raise UserError("the unlearning trajectories diverged or stood still: lower or raise their rate")
    gram = (moved @ moved.T).double().numpy()
    values, vectors = np.linalg.eigh(gram)
    keep = values > 1e-8 * values.max()
    values, vectors = values[keep][::-1], vectors[:, keep][:, ::-1]
    basis = torch.from_numpy((vectors / np.sqrt(values)).T.astype(np.float32).copy()) @ moved
    return basis.numpy().astype(np.float16), np.sqrt(values / len(moved))


def shifted(theta: NDArray[np.float32], basis: NDArray[np.float16], c: NDArray[np.float64]) -> NDArray[np.float32]:
    """theta (p,) + c (k,) @ basis (k, p), a piece at a time: the basis is read once and never copied as a whole."""
    out = theta.copy()
    weights = c.astype(np.float32)
    for start in range(0, len(theta), PIECE):
        out[start : start + PIECE] += weights @ basis[:, start : start + PIECE].astype(np.float32)
    return out


def responses(
    network: ResNet18,
    x: Tensor,
    logits: NDArray[np.floating],
    basis: NDArray[np.float16],
    reach: NDArray[np.float64],
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """(n * C, k) change of every logit when theta moves by reach[j] along direction j: k passes over the images."""
    n, C = logits.shape
    out = np.empty((n * C, len(basis)), np.float32)
    copy, theta = copy_of(network), flat(network).numpy()
    for j in range(len(basis)):
        set_flat(copy, torch.from_numpy(shifted(theta, basis[j : j + 1], reach[j : j + 1])))
        out[:, j] = (outputs(copy, x).logits - logits).reshape(-1)
        if progress is not None:
            progress("responses", j + 1, len(basis))
    return out
