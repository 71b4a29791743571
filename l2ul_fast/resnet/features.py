"""What a network says of many images: penultimate features, logits, probabilities, accuracies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2ul_fast.resnet.data import standardise
from l2ul_fast.resnet.model import ResNet18, fused

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
