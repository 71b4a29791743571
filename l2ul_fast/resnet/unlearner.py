"""L2UL for networks: fit, unlearn, refresh, save, load. It moves the last layer."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from l2ul_fast.errors import DataError, UserError
from l2ul_fast.resnet.data import Images
from l2ul_fast.resnet.features import Unseen, outputs, share_right
from l2ul_fast.resnet.matching import Design, Strength, Targets, least_push, practise
from l2ul_fast.resnet.model import ResNet18, arrays_of, copy_of, flat, network_of
from l2ul_fast.unlearner.artifact.directory import load_artifact, read_ledger, save_artifact
from l2ul_fast.unlearner.artifact.ledger import entry
from l2ul_fast.unlearner.rows import row_numbers


class NetworkUnlearner:
    """A network that rows can be taken out of in milliseconds.

    The last layer moves. What the layers before it learned from a row stays there: only retraining removes that.

    After fit: network (the model now), n, forget_log, report_ (what fit found out), move (of the last layer, weights
    and bias (q + 1, C): zero at first; the ledger's theta).
    """

    def __init__(self, random_state: int = 0) -> None:
        self.random_state = random_state
        self.forget_log: list[dict[str, Any]] = []
        self.entries: list[dict[str, Any]] = []

    def fit(self, network: ResNet18, images: Images, unseen: Unseen) -> NetworkUnlearner:
        """Prepare to unlearn from a network trained on `images`; `unseen` is what networks say of rows they lack."""
        start = time.perf_counter()
        found = outputs(network, images.x)
        self.y = images.y.numpy().copy()
        rate = share_right(outputs(network, images.tune_x).logits, images.tune_y.numpy())
        self.targets = Targets.of(unseen.logits.copy(), self.y, rate, unseen.rate)
        self.logits = found.logits
        self.design = Design(np.concatenate([found.features, np.ones((images.n, 1), np.float32)], axis=1))
        self.left = self.design.gram()
        self.network, self.base = copy_of(network).eval(), flat(network).numpy()
        self.move = np.zeros((self.design.A.shape[1], network.n_classes))
        self.gone, self.n = np.zeros(images.n, bool), images.n
        self.report_: dict[str, Any] = {"rate": rate, "half_rate": unseen.rate}
        self._practise()
        self.report_["fit_seconds"] = time.perf_counter() - start
        self.forget_log, self.entries = [], [entry("fit", n=self.n, theta=self.move)]
        self.saved_to: Path | None = None
        self.generation: int | None = None
        self.history: list[dict[str, Any]] = []
        return self

    def _practise(self) -> None:
        now = self.logits + self.design.change(slice(None), self.move)
        visible = np.flatnonzero(~self.gone)
        self.strength, log = practise(self.design, self.targets, now, self.y, self.left, visible, self.random_state)
        self.report_["practice"] = log

    # Verbs -----------------------------------------------------------------------------------------------------------

    def unlearn(self, rows: ArrayLike) -> ResNet18:
        """Take rows out: the network that now stands for the rows that stay (`self.network`, changed in place)."""
        ids = np.sort(row_numbers(rows, self.gone.size))
        if not ids.size:
            return self.network
        if ids[0] < 0 or ids[-1] >= self.gone.size or (np.diff(ids) == 0).any():
            raise UserError(f"row numbers must be from 0 to {self.gone.size - 1}, each once: nothing was forgotten")
        if self.gone[ids].any():
            raise UserError(f"row {ids[self.gone[ids].argmax()]} was forgotten before")
        if ids.size == self.n:
            raise UserError("the request takes out all rows: delete the model instead")
        y = self.y[ids]
        left = self.left - self.design.gram(ids)
        weight = self.strength.at(ids.size / self.n)
        before = self.move
        if weight:
            now = self.logits[ids] + self.design.change(ids, before)
            push = least_push(now, y, self.targets.answers(ids, y, self.n))
            self.move = before + self.design.solve(ids, *push, left, weight)
            self._apply()
        self.left = left
        self.gone[ids] = True
        self.n -= ids.size
        # nothing of a forgotten row stays in what is kept per row
        self.design.A[ids] = 0
        self.logits[ids], self.targets.logits[ids], self.y[ids] = 0, 0, 0
        self.forget_log.append({"rows": ids, "n": self.n, "time": time.time()})
        self.entries.append(entry("unlearn", n=self.n, rows=ids, theta=self.move, theta_before=before))
        return self.network

    def _apply(self) -> None:
        """Put base + move into the network."""
        with torch.no_grad():
            C, q = self.network.n_classes, self.network.n_features
            split = len(self.base) - C * (q + 1)
            weight, bias = self.base[split:-C].reshape(C, q), self.base[-C:]
            self.network.head.weight.copy_(torch.from_numpy(weight + self.move[:-1].T))
            self.network.head.bias.copy_(torch.from_numpy(bias + self.move[-1]))

    def refresh(self) -> dict[str, Any]:
        """Learn w and the targets' calibration anew, from the rows that stay. The trunk stays as it is."""
        keep = ~self.gone
        fresh = Targets.of(self.targets.logits[keep], self.y[keep], self.targets.rate, 0.0)
        self.targets.margins = fresh.margins
        self._practise()
        done = {"strength": "learned anew", "margins": int(keep.sum()), "network": "unchanged"}
        self.entries.append(entry("refresh", n=self.n, theta=self.move, refreshed=done))
        return done

    def predict(self, x: Tensor) -> NDArray[np.int64]:
        """(k,) classes of images (k, 3, 32, 32) uint8."""
        return np.asarray(outputs(self.network, x).logits.argmax(axis=1))

    def clone(self) -> NetworkUnlearner:
        """One to try a request on: it changes nothing here. What requests never change is shared."""
        other = copy.copy(self)
        other.network = copy_of(self.network)
        other.design = Design(self.design.A.copy())
        other.targets = replace(self.targets, logits=self.targets.logits.copy())
        other.logits, other.y, other.gone = self.logits.copy(), self.y.copy(), self.gone.copy()
        other.forget_log, other.entries, other.history = [*self.forget_log], [*self.entries], [*self.history]
        other.saved_to, other.generation, other.report_ = None, None, dict(self.report_)
        return other

    def state_bytes(self) -> int:
        """Bytes kept beside the network."""
        kept = (self.design.A, self.logits, self.targets.logits, self.targets.margins, self.left, self.base)
        return sum(a.nbytes for a in kept)

    # Disk ------------------------------------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write state and ledger, all or nothing; the network's weights are written once."""
        directory = Path(directory)
        arrays: dict[str, NDArray[Any]] = {
            "theta": self.move,
            "A": self.design.A,
            "logits": self.logits,
            "unseen": self.targets.logits,
            "margins": self.targets.margins,
            "left": self.left,
            "gone": self.gone,
            "y": self.y,
            "shares": self.strength.shares,
            "weights": self.strength.weights,
        }
        fixed = arrays_of(self.network) | {"base": self.base}
        facts = {
            "kind": "network",
            "scope": "head",
            "random_state": self.random_state,
            "n": self.n,
            "width": self.network.width,
            "n_classes": self.network.n_classes,
            "rate": self.targets.rate,
            "slope": self.targets.slope,
            "report": self.report_,
        }
        if directory.resolve() == self.saved_to:
            self.generation = save_artifact(
                directory, facts, arrays, keep=["network"], ledger_entry=self.entries, base=self.generation
            )
        else:
            whole = [*self.history, *self.entries]
            groups = {"network": list(fixed)}
            self.generation = save_artifact(directory, facts, arrays | fixed, groups=groups, ledger_entry=whole)
            self.saved_to = directory.resolve()
        self.history, self.entries = [*self.history, *self.entries], []

    @classmethod
    def load(cls, directory: str | Path) -> NetworkUnlearner:
        """Read and check what `save` wrote."""
        directory = Path(directory)
        facts, arrays = load_artifact(directory)
        if facts.get("kind") != "network":
            raise DataError(f"{directory} is not a network's unlearner")
        if facts.get("scope") == "subspace":
            raise DataError(f"{directory} moves a subspace of all weights, which is no longer supported: fit again")
        try:
            return cls._build(directory, facts, arrays)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, UserError) as error:
            raise DataError(f"{directory} cannot be used: it lacks or garbles {error}; fit again") from error

    @classmethod
    def _build(cls, directory: Path, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> NetworkUnlearner:
        u = cls(int(facts["random_state"]))
        u.network = network_of(int(facts["width"]), int(facts["n_classes"]), arrays)
        u.base, u.move = arrays["base"], arrays["theta"]
        u.design, u.left, u.logits = Design(arrays["A"]), arrays["left"], arrays["logits"]
        u.targets = Targets(arrays["unseen"], arrays["margins"], float(facts["rate"]), float(facts["slope"]))
        u.strength = Strength(arrays["shares"], arrays["weights"])
        u.gone, u.y, u.n, u.report_ = arrays["gone"], arrays["y"], int(facts["n"]), dict(facts["report"])
        if u.move.any():
            u._apply()
        u.saved_to, u.generation = directory.resolve(), int(facts["generation"])
        u.history = list(read_ledger(directory).entries)
        return u
