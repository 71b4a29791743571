"""Requests, passes of SGD over their rows, and the two methods that are nothing else: fine-tuning and NegGrad+."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional

from l2ul_fast.errors import UserError
from l2ul_fast.resnet.data import standardise
from l2ul_fast.resnet.model import ResNet18, copy_of
from l2ul_fast.resnet.train import Augment, Ids


@dataclass
class Request:
    """Rows to forget (r,) of images x (n, 3, 32, 32) with classes y (n,). retain: the rows a method may train on."""

    x: Tensor
    y: Tensor
    forget: Ids
    retain: Ids
    seed: int = 0
    augment: bool = True
    facts: dict[str, Any] = field(default_factory=dict)  #: what a method found out on the way

    @classmethod
    def of(cls, x: Tensor, y: Tensor, forget: ArrayLike, seed: int = 0, augment: bool = True) -> Request:
        """A request for these row numbers; UserError unless they are rows and each is named once."""
        ids = np.asarray(forget)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise UserError("row numbers must be a list of whole numbers")
        ids = np.sort(ids.astype(np.int64))
        if ids.size and (ids[0] < 0 or ids[-1] >= len(y) or (np.diff(ids) == 0).any()):
            raise UserError(f"row numbers must be from 0 to {len(y) - 1}, each once")
        if ids.size == len(y):
            raise UserError("the request takes out all rows: delete the model instead")
        return cls(x, y, ids, np.setdiff1d(np.arange(len(y)), ids), seed, augment)

    def part(self, forget: Ids, retain: Ids) -> Request:
        """The same images with other rows to forget; facts are shared."""
        return Request(self.x, self.y, forget, retain, self.seed, self.augment, self.facts)

    def shuffled(self, ids: Ids, size: int, epoch: int) -> Iterator[Ids]:
        """Batches of the rows in an order that depends on seed and epoch; none of a single row (batch norm)."""
        order = np.random.default_rng([self.seed, 3, epoch]).permutation(ids)
        pieces = np.array_split(order, max(1, len(order) // size))
        return iter([piece for piece in pieces if len(piece) > 1])

    def images(self, ids: Ids, epoch: int) -> Tensor:
        """Standardised training images (k, 3, 32, 32), augmented if A was trained so."""
        x = self.x[ids]
        if self.augment:
            x = Augment(len(self.y), self.seed, 10_000 + epoch)(x, ids)
        return standardise(x)


def sgd(network: ResNet18, rate: float, momentum: float = 0.9, decay: float = 5e-4) -> torch.optim.SGD:
    return torch.optim.SGD(network.parameters(), rate, momentum, weight_decay=decay)


def train_on(
    network: ResNet18,
    request: Request,
    ids: Ids,
    labels: Callable[[int], Tensor],
    epochs: int,
    rate: float,
    batch: int,
    mask: list[Tensor] | None = None,
) -> ResNet18:
    """`network` itself after epochs of cross-entropy on rows ids; labels(epoch) gives all classes (n,).

    mask: 0/1 of each parameter's shape; where it is 0 nothing moves, so there is no weight decay either.
    """
    network.train()
    optimiser = sgd(network, rate, decay=5e-4 if mask is None else 0.0)
    for epoch in range(epochs):
        y = labels(epoch)
        for part in request.shuffled(ids, batch, epoch):
            loss = functional.cross_entropy(network(request.images(part, epoch)), y[part])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            if mask is not None:
                for p, m in zip(network.parameters(), mask, strict=True):
                    p.grad.mul_(m)  # type: ignore[union-attr]
            optimiser.step()
    return network.eval()


def empty(request: Request) -> bool:
    """Whether nothing is to be forgotten: every method then returns the network as it is."""
    return request.forget.size == 0


# Methods of plain descent ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FineTune:
    """A few epochs on the rows that stay."""

    epochs: int = 10
    rate: float = 0.1
    batch: int = 256
    name = "finetune"

    def unlearn(self, network: ResNet18, request: Request) -> ResNet18:
        """A new network; forgotten rows are never read."""
        out = copy_of(network)
        if empty(request):
            return out
        return train_on(out, request, request.retain, lambda epoch: request.y, self.epochs, self.rate, self.batch)


@dataclass(frozen=True)
class NegGrad:
    """NegGrad+, which minimises keep * loss(retained batch) - (1 - keep) * loss(forget batch), these taken in turn."""

    epochs: int = 5
    rate: float = 0.01
    batch: int = 256
    keep: float = 0.95
    forget_batch: int = 64
    name = "neggrad"

    def unlearn(self, network: ResNet18, request: Request) -> ResNet18:
        """A new network."""
        out = copy_of(network)
        if empty(request):
            return out
        out.train()
        optimiser = sgd(out, self.rate)
        turn = cycle(np.array_split(request.forget, max(1, len(request.forget) // self.forget_batch)))
        for epoch in range(self.epochs):
            for part in request.shuffled(request.retain, self.batch, epoch):
                bad = next(turn)
                # one pass for both: a batch of a single forgotten row has no variance of its own
                both = np.concatenate([part, bad])
                logits, y = out(request.images(both, epoch)), request.y[both]
                down = functional.cross_entropy(logits[: len(part)], y[: len(part)])
                up = functional.cross_entropy(logits[len(part) :], y[len(part) :])
                loss = self.keep * down - (1 - self.keep) * up
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
        return out.eval()
