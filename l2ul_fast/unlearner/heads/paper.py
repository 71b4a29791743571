"""The paper's head, to the letter: theta' = N_U(mu_D, mu_f, theta), a network on embeddings that know no classes.

It takes the kernel mean embeddings of D and of the forgotten rows, and theta, and gives theta' itself. Whatever the
request, its error is that of a network's output, while the truth moves by a share r / n: see `error`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.tables import Table
from l2ul_fast.unlearner.fit import Fitted, Laps
from l2ul_fast.unlearner.heads.base import Arrays, Ids, Report, Rows, Vector
from l2ul_fast.unlearner.heads.kme import cells_from, cells_of, renewed
from l2ul_fast.unlearner.heads.sealed import (
    SealedHead,
    Trained,
    checked,
    counts_of,
    make_pairs,
    model_from,
    theta_from,
    train_first,
)
from l2ul_fast.unlearner.pairs.make import Pairs
from l2ul_fast.unlearner.state import CellState
from l2ul_fast.workers import Workers
from l2ul_kernels.request.network import DirectForward

Weights = dict[str, NDArray[np.float32]]
_WEIGHTS = ("W1.mu_D", "W1.mu_f", "W1.theta", "b1", "W2", "b2", "W3", "b3")


class Paper(SealedHead):
    """cells: the cells of all rows; weights: those of the network.

    off: root mean square distance of the network's output to the truth, over pairs it was not trained on; pace: median
    over pairs of what retraining changes, times (n - r) / sqrt(r).
    """

    kind: ClassVar[str] = "paper"
    instant: ClassVar[str] = "network"
    reveals: ClassVar[str] = "its parameters, its network and the seeds of its cells still depend on them"

    def __init__(
        self,
        model: Any,
        options: dict[str, Any],
        theta: Vector,
        class_counts: NDArray[np.int64],
        cells: CellState,
        weights: Weights,
        off: float,
        pace: float,
    ) -> None:
        super().__init__(model, options, theta, class_counts)
        self.cells, self.weights, self.off, self.pace = cells, weights, off, pace
        self._forward = DirectForward(weights, cells.t, cells.psi)
        self._rebase()
        self._forward.compile(cells.packed)

    @classmethod
    def of(
        cls,
        trained: Trained,
        pairs: Pairs,
        table: Table,
        cells: CellState,
        options: dict[str, Any],
        report: Report | None = None,
    ) -> tuple[Self, dict[str, Any]]:
        """(the head whose network is trained on these pairs, what was found); cells are those of table's rows."""
        from l2ul_fast.unlearner.heads.network import train_direct  # torch is imported only when a network is trained

        network = train_direct(
            pairs,
            cells,
            seed=options["random_state"],
            progress=None if report is None else lambda done, total: report("train N_U", done, total),
        )
        off = float(np.sqrt(network.facts["heldout_loss"] * trained.theta.size))
        pace, counts = float(np.median(np.linalg.norm(pairs.T, axis=1))), counts_of(table)
        head = cls(trained.model, options, trained.theta, counts, cells, network.weights(), off, pace)
        facts = {"m": len(pairs), "rejected": pairs.rejected, "pair_rows": int(pairs.n[0])}
        return head, facts | {"network": network.facts}

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

    def _anew(
        self, trained: Trained, pairs: Pairs, table: Table, forgotten: Ids, report: Report
    ) -> tuple[Self, int, dict[str, Any]]:
        cells, partitions = renewed(self.cells, forgotten, table, self.options, report)
        head, facts = self.of(trained, pairs, table, cells, self.options, report)
        return head, partitions, facts

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"off": self.off, "pace": self.pace}

    def arrays(self) -> Arrays:
        weights = {f"paper.{name}": array for name, array in self.weights.items()}
        return super().arrays() | self.cells.arrays() | weights

    @classmethod
    def from_arrays(cls, model: Any, facts: dict[str, Any], arrays: Arrays) -> Self:
        """The head that `facts` and `arrays` were taken from; ValueError if they do not fit each other."""
        theta, counts = theta_from(model, arrays)
        cells, p = cells_from(arrays, model.d, counts), model.size
        q, h1, h2 = cells.t * cells.psi, arrays["paper.b1"].size, arrays["paper.b2"].size
        shapes = ((q, h1), (q, h1), (p, h1), (h1,), (h1, h2), (h2,), (h2, p), (p,))
        weights = {
            name: checked(f"paper.{name}", arrays, shape, np.float32)
            for name, shape in zip(_WEIGHTS, shapes, strict=True)
        }
        model = model_from(model, facts, arrays)
        head = cls(model, facts["options"], theta, counts, cells, weights, float(facts["off"]), float(facts["pace"]))
        head._restore(facts, arrays)
        return head


def fit(params: dict[str, Any], table: Table, size: int, report: Report, workers: Workers | None = None) -> Fitted:
    """Train the model (an MLP without anchor), embed the rows, make pairs and train the network on them.

    Workers make the pairs.
    """
    lap = Laps()
    trained = train_first(table, params, report, anchored=False)
    lap("train")
    report("embed the rows", 0, 1)
    cells = cells_of(table, size, params)
    lap("embed")
    pairs = make_pairs(trained, table, params, report, workers)
    lap("pairs")
    head, facts = Paper.of(trained, pairs, table, cells, params, report)
    lap("head")
    cells.revert(np.empty(0, np.uint8), np.empty(0, np.int64))  # compiled now: the first request need not wait
    report("done", 1, 1)
    return Fitted(head, {"seconds": lap.seconds} | trained.facts | facts)
