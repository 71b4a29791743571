"""ADV+IMP: drive the accuracy on the forgotten rows to zero; adversarial images and weight importance protect the rest.

Uses the network and the forgotten rows only. Its aim is misclassification, not closeness to retraining, so its ToW is
low by design.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from l2ul_fast.resnet.data import standardise
from l2ul_fast.resnet.model import ResNet18, copy_of
from l2ul_fast.resnet.steps import Request, empty, sgd


def targets_of(y: Tensor, copies: int, n_classes: int, seed: int, as_published: bool = False) -> Tensor:
    """(copies * r,) a random wrong class for each image.

    as_published: a draw that hits the right class becomes n_classes // 2, which may be the right class again.
    """
    rng = np.random.default_rng([seed, 5])
    right = y.repeat(copies)
    if as_published:
        drawn = torch.from_numpy(rng.integers(0, n_classes, len(right)))
        return torch.where(drawn == right, torch.full_like(drawn, n_classes // 2), drawn)
    return (right + torch.from_numpy(rng.integers(1, n_classes, len(right)))) % n_classes


def attack(
    network: ResNet18,
    x: Tensor,
    target: Tensor,
    radius: float,
    step: float,
    iterations: int,
    seed: int,
    batch: int = 256,
) -> Tensor:
    """Images (k, 3, 32, 32) within `radius` (L2, pixels from 0 to 1) of uint8 x that the network takes for `target`."""
    network.eval()
    generator = torch.Generator().manual_seed(seed)
    found = []
    for start in range(0, len(x), batch):
        clean = x[start : start + batch].float() / 255
        goal = target[start : start + batch]
        noise = torch.randn(clean.shape, generator=generator)
        size = radius * torch.rand(len(clean), generator=generator)
        moved = (clean + noise * (size / _norm(noise)).view(-1, 1, 1, 1)).clamp(0, 1)
        for _ in range(iterations):
            moved.requires_grad_(True)
            loss = functional.cross_entropy(network(standardise(255 * moved)), goal, reduction="sum")
            gradient = torch.autograd.grad(loss, moved)[0]
            with torch.no_grad():
                moved = moved - step * gradient / _norm(gradient).view(-1, 1, 1, 1)
                away = moved - clean
                away *= (radius / _norm(away)).clamp(max=1).view(-1, 1, 1, 1)
                moved = (clean + away).clamp(0, 1)
        found.append(moved.detach())
    return torch.cat(found)


def _norm(x: Tensor) -> Tensor:
    return x.flatten(1).norm(dim=1).clamp_min(1e-12)


def importance(network: ResNet18, x: Tensor, batch: int = 32) -> list[Tensor]:
    """For each parameter: mean over batches of |d mean ||f(x)||_2 / d theta|, each tensor scaled to [0, 1]."""
    network.eval()
    total = [torch.zeros_like(p) for p in network.parameters()]
    count = 0
    for start in range(0, len(x), batch):
        length = network(standardise(x[start : start + batch])).norm(dim=1).mean()
        for sum_, g in zip(total, torch.autograd.grad(length, list(network.parameters())), strict=True):
            sum_ += g.abs()
        count += 1
    out = []
    for sum_ in total:
        mean = sum_ / count
        span = mean.max() - mean.min()
        out.append((mean - mean.min()) / span if span > 0 else torch.zeros_like(mean))
    return out


def any_right(network: ResNet18, x: Tensor, y: Tensor, batch: int = 64) -> bool:
    """Whether any image is still classified right, in eval mode; stops at the first batch that has one."""
    training = network.training
    network.eval()
    with torch.inference_mode():
        found = any(
            bool((network(standardise(x[i : i + batch])).argmax(1) == y[i : i + batch]).any())
            for i in range(0, len(y), batch)
        )
    network.train(training)
    return found


@dataclass(frozen=True)
class AdvImp:
    """copies: adversarial images per forgotten row, fewer when `most` images would be exceeded.

    strength: of the penalty on moving weights unimportant for the forgotten rows. as_published: batch norm learns from
    tiny batches, the penalty is an explicit gradient (unstable beyond 2 / rate) and targets may be the right class.
    """

    copies: int = 20
    radius: float = 4.0
    step: float = 0.1
    iterations: int = 100
    rate: float = 1e-3
    strength: float = 1.0
    passes: int = 1000
    most: int | None = None
    max_steps: int | None = None
    as_published: bool = False
    name = "advimp"

    def unlearn(self, network: ResNet18, request: Request) -> ResNet18:
        """A new network; facts: steps, reached (all forgotten rows wrong), fooled (share of attacks that worked)."""
        out = copy_of(network)
        if empty(request):
            return out
        x, y = request.x[request.forget], request.y[request.forget]
        copies = self.copies if self.most is None else max(1, min(self.copies, self.most // len(y)))
        target = targets_of(y, copies, network.n_classes, request.seed, self.as_published)
        clean = x.repeat(copies, 1, 1, 1)
        adverse = attack(out, clean, target, self.radius, self.step, self.iterations, request.seed)
        with torch.inference_mode():
            hits = [out(standardise(255 * adverse[i : i + 500])).argmax(1) for i in range(0, len(target), 500)]
        request.facts["fooled"] = float((torch.cat(hits) == target).float().mean())
        protect = [1 - i for i in importance(out, x)]
        start = [p.detach().clone() for p in out.parameters()]
        optimiser = sgd(out, self.rate, decay=1e-4)
        out.train(self.as_published)
        steps, reached = 0, not any_right(out, x, y)
        turn = cycle([np.arange(len(y))[i : i + 32] for i in range(0, len(y), 32)])
        for index in range(self.passes):
            order = torch.from_numpy(np.random.default_rng([request.seed, 6, index]).permutation(len(target)))
            for part in order.split(256):
                if reached or (self.max_steps is not None and steps >= self.max_steps):
                    request.facts |= {"steps": steps, "reached": reached}
                    return out.eval()
                bad = next(turn)
                share = len(bad) / (len(bad) + len(part))
                logits = out(torch.cat([standardise(x[bad]), standardise(255 * adverse[part])]))
                loss = (1 - share) * functional.cross_entropy(logits[len(bad) :], target[part])
                loss = loss - share * functional.cross_entropy(logits[: len(bad)], y[bad])
                if self.as_published:
                    for p, s, w in zip(out.parameters(), start, protect, strict=True):
                        loss = loss + self.strength * (w * (p - s) ** 2).sum() / 2
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                if not self.as_published:  # the same penalty as an implicit step: stable for any strength
                    with torch.no_grad():
                        for p, s, w in zip(out.parameters(), start, protect, strict=True):
                            pull = self.rate * self.strength * w
                            p.copy_((p + pull * s) / (1 + pull))
                steps, reached = steps + 1, not any_right(out, x, y)
        request.facts |= {"steps": steps, "reached": reached}
        return out.eval()
