"""The small models' L2UL on a network's last layer: multinomial regression on the principal penultimate features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from l2ul_fast.errors import DataError
from l2ul_fast.resnet.features import Matrix, outputs
from l2ul_fast.resnet.model import ResNet18, arrays_of, copy_of, network_of
from l2ul_fast.resnet.train import Progress
from l2ul_fast.unlearner.artifact.directory import load_artifact, save_artifact
from l2ul_fast.unlearner.l2ul import L2UL


class HeadL2UL:
    """A frozen trunk and `L2UL("lr")` on its features: fit, unlearn, refresh, save, load are those of the small models.

    The last layer is fitted anew, to the optimum of mean log-loss + lam / 2 ||weights||^2, so that Newton's step means
    something. dims: principal directions of the features that it sees (theta has C (dims + 1) entries). The kernel mean
    embedding of all rows' features is computed once, in fit; training pairs are batched multinomial fits.
    """

    def __init__(self, dims: int = 32, lam: float = 1e-3, m: int = 64, s: int = 1000, random_state: int = 0) -> None:
        self.dims = dims
        self.l2ul = L2UL("lr", lam=lam, m=m, s=s, random_state=random_state)

    def fit(
        self, network: ResNet18, features: Matrix, y: NDArray[np.int64], progress: Progress | None = None
    ) -> HeadL2UL:
        """features (n, 8 width) are those of the training rows, y (n,) their classes."""
        self.network = copy_of(network).eval()
        mean = features.mean(axis=0, dtype=np.float64)
        centred = features - mean
        values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
        keep = min(self.dims, int((values > 1e-7 * values.max()).sum()))
        scale = np.sqrt(values[::-1][:keep])
        self.mean, self.project = mean, vectors[:, ::-1][:, :keep] / scale
        self.l2ul.fit(self.seen(features), y, progress=progress)
        return self

    def seen(self, features: Matrix) -> NDArray[np.float32]:
        """(n, dims) what the last layer sees: centred, principal, of unit variance."""
        return np.ascontiguousarray((features - self.mean) @ self.project, np.float32)

    def unlearn(self, rows: ArrayLike) -> Any:
        """As `L2UL.unlearn`: what it returns predicts from `seen(features)`."""
        return self.l2ul.unlearn(rows)

    def refresh(self) -> dict[str, Any]:
        """As `L2UL.refresh`."""
        return self.l2ul.refresh()

    def logits(self, features: Matrix) -> NDArray[np.float64]:
        """(n, C) of the model now."""
        return self.l2ul.model.logits(self.l2ul.theta, self.seen(features))

    def predict(self, x: Tensor) -> NDArray[np.int64]:
        """(k,) classes of images (k, 3, 32, 32) uint8."""
        return np.asarray(self.logits(outputs(self.network, x).features).argmax(axis=1))

    def save(self, directory: str | Path) -> None:
        """The trunk goes to <directory>/network, once: requests never change it; the rest is <directory>/head."""
        directory = Path(directory)
        arrays = arrays_of(self.network) | {"mean": self.mean, "project": self.project}
        if not (directory / "network" / "artifact.json").exists():
            facts = {"kind": "trunk", "width": self.network.width, "n_classes": self.network.n_classes}
            save_artifact(directory / "network", facts | {"dims": self.dims}, arrays)
        self.l2ul.save(directory / "head")

    @classmethod
    def load(cls, directory: str | Path) -> HeadL2UL:
        """Read and check what `save` wrote."""
        directory = Path(directory)
        facts, arrays = load_artifact(directory / "network")
        try:
            u = cls(int(facts["dims"]))
            u.network = network_of(int(facts["width"]), int(facts["n_classes"]), arrays)
            u.mean, u.project = arrays["mean"], arrays["project"]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{directory} cannot be used: it lacks or garbles {error}; fit again") from error
        u.l2ul = L2UL.load(directory / "head")
        return u
