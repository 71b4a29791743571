"""Two networks, each trained without one half of the rows: what a network says of rows it has not seen.

RUM's memorisation score and the targets of L2UL come from them. Their training is set-up, shared by both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.resnet.data import Images
from l2ul_fast.resnet.features import Matrix, outputs, probabilities, share_right
from l2ul_fast.resnet.train import Progress, Recipe, train


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
