"""NegGrad+: down the loss of the rows that stay, up the loss of the others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

import numpy as np
from torch.nn import functional

from l2ul_fast.resnet.model import ResNet18, copy_of
from l2ul_fast.resnet.steps import Request, empty, sgd


@dataclass(frozen=True)
class NegGrad:
    """Minimises keep * loss(retained batch) - (1 - keep) * loss(forget batch); forget batches are taken in turn."""

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
        pieces = np.array_split(request.forget, max(1, len(request.forget) // self.forget_batch))
        turn = cycle(pieces)
        for epoch in range(self.epochs):
            for part in request.shuffled(request.retain, self.batch, epoch):
                bad = next(turn)
                # one pass for both: a batch of a single forgotten row has no variance of its own
                both = np.concatenate([part, bad])
                logits, y = out(request.images(both, epoch)), request.y[both]
                good = functional.cross_entropy(logits[: len(part)], y[: len(part)])
                loss = self.keep * good - (1 - self.keep) * functional.cross_entropy(
                    logits[len(part) :], y[len(part) :]
                )
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
        return out.eval()
