"""Outputs of a network: penultimate features, logits, probabilities, accuracies.

What it would say of rows it has not seen comes from two networks, each trained without one half of them: RUM's
memorisation score and the targets of L2UL need that. Their training is set-up, shared by both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2ul_fast.resnet.data import Images, standardise
from l2ul_fast.resnet.model import ResNet18, fused
from l2ul_fast.resnet.train import Progress, Recipe, train

Matrix = NDArray[np.float32]


class Outputs(NamedTuple):
    """features (n, 8 width) and logits (n, C), float32."""

    features: Matrix
    logits: Matrix


def outputs(network: ResNet18, x: Tensor, batch: int = 100) -> Outputs:
    """One pass in eval mode over images x (n, 3, 32, 32) uint8; the network's mode is left as it was."""
    features, logits = np.empty((len(x), network.n_features), np.float32), np.empty((len(x), network.n_classes), "f4")
    with torch.inference_mode():
        quick = fused(network)
        for start in range(0, len(x), batch):
            part = quick.features(standardise(x[start : start + batch]))
            features[start : start + batch] = part.numpy()
            logits[start : start + batch] = quick.head(part).numpy()
    return Outputs(features, logits)


def probabilities(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """(n, C) softmax in float64."""
    z = np.asarray(logits, np.float64)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def share_right(logits: NDArray[np.floating], y: NDArray[np.integer]) -> float:
    """Accuracy of logits (n, C) for classes y (n,)."""
    return float((logits.argmax(axis=1) == y).mean())


def margins(logits: NDArray[np.floating], y: NDArray[np.integer]) -> NDArray[np.float64]:
    """(n,) logit of the right class minus the largest other: positive where the answer is right."""
    z = np.array(logits, np.float64)
    rows = np.arange(len(z))
    own = z[rows, y]
    z[rows, y] = -np.inf
    return own - z.max(axis=1)


# Of rows that it has not seen -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unseen:
    """logits (n, C) of every row by the network that did not see it. rate: accuracy of the two on rows for tuning."""

    logits: Matrix
    rate: float
    seconds: float


def unseen_outputs(
    images: Images, recipe: Recipe, width: int, seed: int, folder: Path | None, progress: Progress | None = None
) -> Unseen:
    """Train on each half, ask about the other. Checkpoints go to `folder`."""
    order = np.random.default_rng([seed, 7]).permutation(images.n)
    logits, rates, seconds = np.zeros((images.n, int(images.y.max()) + 1), np.float32), [], 0.0
    for number, half in enumerate(np.array_split(order, 2)):
        gone = np.zeros(images.n, bool)
        gone[half] = True
        checkpoint = folder / f"half-{number}.safetensors" if folder else None
        trained = train(images.x, images.y, gone, recipe, width, seed, checkpoint, images.identity, progress)
        seconds += trained.seconds
        logits[half] = outputs(trained.network, images.x[half]).logits
        rates.append(share_right(outputs(trained.network, images.tune_x).logits, images.tune_y.numpy()))
    return Unseen(logits, float(np.mean(rates)), seconds)


def memorisation(seen: Matrix, unseen: Matrix, y: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n,) probability of the right class by a network that saw the row, minus that by one that did not."""
    rows = np.arange(len(y))
    return probabilities(seen)[rows, y] - probabilities(unseen)[rows, y]
