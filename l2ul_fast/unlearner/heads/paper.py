"""The paper's head, to the letter: theta' = N_U(mu_D, mu_f, theta), a network on embeddings that know no classes.

It takes the kernel mean embeddings of D and of the forgotten rows, and theta, and gives theta' itself. Whatever the
request, its error is that of a network's output, while the truth moves by a share r / n: see `error`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.tables import Table
from l2ul_fast.unlearner.heads.base import Arrays, Report, Rows, checked
from l2ul_fast.unlearner.heads.sealed import Kept, SealedHead
from l2ul_fast.unlearner.pairs.make import Pairs
from l2ul_kernels.request.network import DirectForward

Weights = dict[str, NDArray[np.float32]]
_WEIGHTS = ("W1.mu_D", "W1.mu_f", "W1.theta", "b1", "W2", "b2", "W3", "b3")


class Paper(SealedHead):
    """cells: the cells of all rows; weights: those of the network.

    off: root mean square distance of the network's output to the truth, over pairs it was not trained on; pace: median
    over pairs of what retraining changes, times (n - r) / sqrt(r).
    """

    kind: ClassVar[str] = "paper"
    anchored: ClassVar[bool] = False
    embeds: ClassVar[bool] = True
    instant: ClassVar[str] = "network"
    reveals: ClassVar[str] = "its parameters, its network and the seeds of its cells still depend on them"

    def __init__(self, kept: Kept, weights: Weights, off: float, pace: float) -> None:
        super().__init__(kept)
        self.weights, self.off, self.pace = weights, off, pace
        self._forward = DirectForward(weights, self.cells.t, self.cells.psi)
        self._rebase()
        self._forward.compile(self.cells.packed)

    @classmethod
    def of(cls, kept: Kept, pairs: Pairs, table: Table, report: Report) -> tuple[Self, dict[str, Any]]:
        from l2ul_fast.unlearner.heads.network import train_direct  # torch is imported only when a network is trained

        seed = kept.options["random_state"]
        network = train_direct(pairs, kept.cells, seed, lambda done, total: report("train N_U", done, total))
        off = float(np.sqrt(network.facts["heldout_loss"] * kept.theta.size))
        pace = float(np.median(np.linalg.norm(pairs.T, axis=1)))
        return cls(kept, network.network.weights(), off, pace), {"network": network.facts}

    def _rebase(self) -> None:
        """Take the embedding of D from the counts anew."""
        self._forward.set_base(self.cells.counts.sum(axis=0), self.n, self._theta)

    def forget(self, rows: Rows) -> None:
        """Take rows out that are in: their stored cells say all that is needed."""
        theta = self._forward.move(self.cells.packed, rows.ids, self.n - len(rows.X), np.empty(self._theta.size))
        self.cells.revert(rows.y, rows.ids)
        self._leave(rows, theta)

    def _estimate(self) -> float | None:
        """The network's error over what retraining changes when so many rows leave at random."""
        changed = self.pace * np.sqrt(self._moved) / self.n
        return float(self.off / changed) if changed > 0 else None

    def refine(self, table: Table, rtol: float) -> None:
        super().refine(table, rtol)
        self._rebase()

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"off": self.off, "pace": self.pace}

    def arrays(self) -> Arrays:
        return super().arrays() | {f"paper.{name}": array for name, array in self.weights.items()}

    @classmethod
    def _saved(cls, kept: Kept, facts: dict[str, Any], arrays: Arrays) -> tuple[Any, ...]:
        q, p, h1, h2 = kept.cells.t * kept.cells.psi, kept.model.size, arrays["paper.b1"].size, arrays["paper.b2"].size
        shapes = ((q, h1), (q, h1), (p, h1), (h1,), (h1, h2), (h2,), (h2, p), (p,))
        named = zip(_WEIGHTS, shapes, strict=True)
        weights = {name: checked(f"paper.{name}", arrays, shape, np.float32) for name, shape in named}
        return weights, float(facts["off"]), float(facts["pace"])
