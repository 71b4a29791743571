"""Training a network: everything random follows from row numbers and the seed, every epoch is a checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from l2ul_fast.errors import DataError
from l2ul_fast.files import publish, temp_path
from l2ul_fast.resnet.data import standardise
from l2ul_fast.resnet.model import ResNet18, build

Progress = Callable[[str, int, int], None]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """Settings of A. schedule: "cycle" (up for a quarter of the steps, then down to 0) or "flat"."""

    epochs: int = 8
    batch: int = 64
    rate: float = 0.2
    optimiser: str = "sgd"
    momentum: float = 0.9
    decay: float = 5e-4
    schedule: str = "cycle"
    augment: bool = True

    def rate_at(self, share: float) -> float:
        """Learning rate after this share (0 to 1) of all steps."""
        if self.schedule == "flat":
            return self.rate
        rise = 0.25
        if share < rise:
            return self.rate * (0.04 + 0.96 * share / rise)
        return self.rate * 0.5 * (1 + math.cos(math.pi * (share - rise) / (1 - rise)))


@dataclass
class Trained:
    """network: in eval mode. seconds: all epochs, also those of an interrupted run. accuracy: of the last epoch."""

    network: ResNet18
    seconds: float
    accuracy: float


def batches(n: int, gone: NDArray[np.bool_] | None, size: int, seed: int, epoch: int) -> Iterator[Ids]:
    """Row numbers of one epoch. Rows that are gone leave their batch and move no other row: runs stay coupled."""
    order = np.random.default_rng([seed, 1, epoch]).permutation(n)
    for start in range(0, n, size):
        ids = order[start : start + size]
        if gone is not None:
            ids = ids[~gone[ids]]
        if ids.size > 1:  # batch norm needs two
            yield ids


class Augment:
    """Flip and shift by up to 4 pixels; what happens to a row follows from its number, the seed and the epoch."""

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        rng = np.random.default_rng([seed, 2, epoch])
        self.shift = torch.from_numpy(rng.integers(0, 9, (n, 2)))
        self.flip = torch.from_numpy(rng.integers(0, 2, n).astype(bool))

    def __call__(self, x: Tensor, ids: Ids) -> Tensor:
        place, k = torch.arange(32), torch.arange(len(x))
        rows = self.shift[ids, 0][:, None] + place
        columns = self.shift[ids, 1][:, None] + place
        columns = torch.where(self.flip[ids][:, None], columns.flip(1), columns)
        padded = functional.pad(x, (4, 4, 4, 4))
        return padded[k[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def optimiser_of(network: ResNet18, recipe: Recipe) -> torch.optim.Optimizer:
    if recipe.optimiser == "adam":
        return torch.optim.Adam(network.parameters(), recipe.rate, weight_decay=recipe.decay)
    if recipe.optimiser != "sgd":
        raise DataError(f'optimiser must be "sgd" or "adam", got {recipe.optimiser!r}')
    return torch.optim.SGD(
        network.parameters(), recipe.rate, recipe.momentum, weight_decay=recipe.decay, nesterov=recipe.momentum > 0
    )


def train(
    x: Tensor,
    y: Tensor,
    gone: NDArray[np.bool_] | None,
    recipe: Recipe,
    width: int,
    seed: int,
    checkpoint: Path | None = None,
    identity: str = "",
    progress: Progress | None = None,
) -> Trained:
    """A(D without the rows that are gone (n,)). With a checkpoint file a killed run goes on after its last epoch."""
    network = build(width, int(y.max()) + 1, seed)
    optimiser = optimiser_of(network, recipe)
    key = _key(recipe, width, seed, identity, gone)
    done, seconds, accuracy = restore(checkpoint, key, network, optimiser) if checkpoint else (0, 0.0, math.nan)
    steps = math.ceil(len(y) / recipe.batch)
    for epoch in range(done, recipe.epochs):
        start = time.perf_counter()
        network.train()
        augment = Augment(len(y), seed, epoch) if recipe.augment else None
        hits = seen = 0
        for step, ids in enumerate(batches(len(y), gone, recipe.batch, seed, epoch)):
            image = x[ids] if augment is None else augment(x[ids], ids)
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate_at((epoch + step / steps) / recipe.epochs)
            logits = network(standardise(image))
            optimiser.zero_grad(set_to_none=True)
            functional.cross_entropy(logits, y[ids]).backward()
            optimiser.step()
            hits, seen = hits + int((logits.argmax(1) == y[ids]).sum()), seen + len(ids)
            if progress is not None and step % 10 == 0:
                progress("train", epoch * steps + step, recipe.epochs * steps)
        accuracy, seconds = hits / seen, seconds + time.perf_counter() - start
        if checkpoint:
            keep(checkpoint, key, network, optimiser, epoch + 1, seconds, accuracy)
    return Trained(network.eval(), seconds, accuracy)


# Checkpoints ---------------------------------------------------------------------------------------------------------


def _key(recipe: Recipe, width: int, seed: int, identity: str, gone: NDArray[np.bool_] | None) -> str:
    """Digest of all that a checkpoint must agree in to be continued."""
    rows = "" if gone is None else hashlib.sha256(np.packbits(gone).tobytes()).hexdigest()
    facts = {**asdict(recipe), "width": width, "seed": seed, "data": identity, "gone": rows}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def keep(
    path: Path, key: str, network: ResNet18, optimiser: torch.optim.Optimizer, epochs: int, seconds: float, acc: float
) -> None:
    """Write weights, buffers and the optimiser's state, all or nothing."""
    tensors = {f"network.{name}": value.contiguous() for name, value in network.state_dict().items()}
    for number, state in optimiser.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{number}.{name}"] = value.contiguous()
    facts = {"key": key, "epochs": str(epochs), "seconds": repr(seconds), "accuracy": repr(acc)}
    temporary = temp_path(path)
    save_file(tensors, temporary, facts)
    publish(temporary, path)


def restore(path: Path, key: str, network: ResNet18, optimiser: torch.optim.Optimizer) -> tuple[int, float, float]:
    """(epochs, seconds, accuracy) of the checkpoint put into network and optimiser; (0, 0, nan) where there is none."""
    if not path.exists():
        return 0, 0.0, math.nan
    try:
        with safe_open(os.fspath(path), "pt") as file:
            facts = file.metadata() or {}
            if facts.get("key") != key:
                raise DataError(f"{path} is the checkpoint of another training: delete it or use another folder")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        found = int(facts["epochs"]), float(facts["seconds"]), float(facts["accuracy"])
    except (SafetensorError, KeyError, OSError) as error:
        raise DataError(f"{path} is damaged ({error}): delete it, training starts again") from None
    network.load_state_dict({n.removeprefix("network."): v for n, v in tensors.items() if n.startswith("network.")})
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, number, item = name.split(".", 2)
            state.setdefault(int(number), {})[item] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return found
