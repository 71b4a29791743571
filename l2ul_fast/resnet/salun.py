"""SalUn: only the weights that matter most for the forgotten rows move, towards random labels for these rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from l2ul_fast.errors import UserError
from l2ul_fast.resnet.data import standardise
from l2ul_fast.resnet.model import ResNet18, copy_of
from l2ul_fast.resnet.steps import Request, empty, train_on


def saliency(network: ResNet18, request: Request, batch: int = 256) -> Tensor:
    """(p,) |sum over the forgotten rows' batches of the gradient of minus their mean loss|, in eval mode."""
    network.eval()
    total: Tensor | None = None
    for start in range(0, len(request.forget), batch):
        ids = request.forget[start : start + batch]
        loss = -functional.cross_entropy(network(standardise(request.x[ids])), request.y[ids])
        parts = torch.autograd.grad(loss, list(network.parameters()))
        flat = torch.cat([g.reshape(-1) for g in parts])
        total = flat if total is None else total + flat
    assert total is not None
    return total.abs()


def mask_of(network: ResNet18, score: Tensor, share: float, least: bool = False) -> list[Tensor]:
    """1 at the `share` of all parameters with the largest score (least: the smallest), in each parameter's shape."""
    if not 0 < share <= 1:
        raise UserError(f"the share of weights that may move must be above 0 and at most 1, got {share}")
    count = round(share * score.numel())
    chosen = torch.topk(score, count, largest=not least).indices
    flat = torch.zeros_like(score)
    flat[chosen] = 1
    pieces = torch.split(flat, [p.numel() for p in network.parameters()])
    return [piece.view(p.shape) for piece, p in zip(pieces, network.parameters(), strict=True)]


@dataclass(frozen=True)
class SalUn:
    """least_salient=True is what RUM's published mask generator does: it lost the minus sign before sorting."""

    epochs: int = 5
    rate: float = 0.1
    batch: int = 256
    share: float = 0.5
    least_salient: bool = False
    name = "salun"

    def unlearn(self, network: ResNet18, request: Request) -> ResNet18:
        """A new network, trained on retained rows and on forgotten rows with random classes (new ones every epoch)."""
        out = copy_of(network)
        if empty(request):
            return out
        mask = mask_of(out, saliency(out, request), self.share, self.least_salient)

        def labels(epoch: int) -> Tensor:
            y = request.y.clone()
            rng = np.random.default_rng([request.seed, 4, epoch])
            y[request.forget] = torch.from_numpy(rng.integers(0, network.n_classes, len(request.forget)))
            return y

        ids = np.concatenate([request.retain, request.forget])
        return train_on(out, request, ids, labels, self.epochs, self.rate, self.batch, mask)
