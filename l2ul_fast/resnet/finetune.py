"""Fine-tune: a few epochs on the rows that stay."""

from __future__ import annotations

from dataclasses import dataclass

from l2ul_fast.resnet.model import ResNet18, copy_of
from l2ul_fast.resnet.steps import Request, empty, train_on


@dataclass(frozen=True)
class FineTune:
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
