"""RUM: split the forgotten rows by how much the model memorised them, unlearn the parts one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.resnet.model import ResNet18, copy_of
from l2ul_fast.resnet.salun import SalUn
from l2ul_fast.resnet.steps import FineTune, Request
from l2ul_fast.resnet.train import Ids


class Method(Protocol):
    def unlearn(self, network: ResNet18, request: Request) -> ResNet18: ...


def refine(forget: Ids, score: NDArray[np.float64], parts: int) -> list[Ids]:
    """Disjoint parts of equal size, least memorised first; score (n,) is of all rows."""
    if parts < 1:
        raise UserError(f"RUM needs at least one part, got {parts}")
    order = forget[np.argsort(score[forget], kind="stable")]
    return [np.sort(piece) for piece in np.array_split(order, parts)]


@dataclass(frozen=True)
class Rum:
    """methods: one for each part, least memorised first; None does nothing. The default is the published example.

    score (n,): memorisation of every row, P[right | trained on it] - P[right | not trained on it]. It takes networks
    that were trained without the row, which is set-up and not part of a request's time.
    """

    score: NDArray[np.float64]
    methods: tuple[Method | None, ...] = field(default_factory=lambda: (None, FineTune(10), SalUn(5)))
    name = "rum"

    @classmethod
    def published(cls, score: NDArray[np.float64], tuned: FineTune, salient: SalUn, as_published: bool = False) -> Rum:
        """nothing, fine-tuning, SalUn; as_published: SalUn moves the LEAST salient weights, as the code does."""
        last = SalUn(salient.epochs, salient.rate, salient.batch, salient.share, as_published)
        return cls(score, (None, tuned, last))

    def unlearn(self, network: ResNet18, request: Request) -> ResNet18:
        """A new network. Each part's retained rows are all rows but this part and those before it."""
        if len(self.score) != len(request.y):
            raise UserError(f"RUM needs a score for each of the {len(request.y)} rows, got {len(self.score)}")
        out, gone = copy_of(network), np.zeros(len(request.y), bool)
        gone[np.setdiff1d(np.arange(len(request.y)), np.concatenate([request.retain, request.forget]))] = True
        for method, part in zip(self.methods, refine(request.forget, self.score, len(self.methods)), strict=True):
            gone[part] = True
            if method is not None and part.size:
                out = method.unlearn(out, request.part(part, np.flatnonzero(~gone)))
        return out
