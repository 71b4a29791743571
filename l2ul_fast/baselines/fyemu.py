"""FYEMU / UNSIR (Tarun et al. 2023): impair the model with noise it gets wrong, then repair it on retained rows.

The published method forgets classes and never looks at their rows. Requests here name rows, so by default one noise row
is made for every forgotten row, with its label: this adaptation is ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines.base import Baseline, Ids, Outcome, Vector
from l2ul_fast.baselines.minibatch import Recipe, descent, train_stages
from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable
from l2ul_kernels.sgd import error_noise

#: Noise rows that the published code makes of a class: it counts the channels of an image instead of the images.
PUBLISHED_ROWS = 3


class Fyemu(Baseline):
    """Noise (40 steps of Adam against the model), one epoch on noise and retained rows, one on retained rows alone.

    level "row": one noise row for each forgotten row, with its label. level "class": `noise_rows` for every class among
    the forgotten rows, and no retained row of such a class is used. as_published (class level): only 3 distinct noise
    rows per class, all labelled class 0. Features of the forgotten rows are never read.
    """

    name = "fyemu"
    in_memory = True

    def __init__(
        self,
        level: str = "row",
        noise_rows: int = 256,
        copies: int = 20,
        retain_per_class: int = 1000,
        impair: Recipe | None = None,
        repair: Recipe | None = None,
        noise_steps: int = 40,
        noise_rate: float = 0.1,
        noise_penalty: float = 0.1,
        tol: float = 1e-10,
        as_published: bool = False,
    ) -> None:
        if level not in ("row", "class"):
            raise UserError(f'level must be "row" or "class", got {level!r}')
        if as_published and level != "class":
            raise UserError('the published method forgets classes: as_published needs level="class"')
        self.level, self.noise_rows, self.copies, self.retain_per_class = level, noise_rows, copies, retain_per_class
        # published rates for classes; a row's share of the model is smaller
        rates = (0.02, 0.01) if level == "class" else (2e-3, 1e-3)
        batch = 256 if as_published else 64  # tables have fewer rows than images: batches of 256 are too few steps
        self.impair = impair or Recipe(1, batch, rates[0], decay=False)
        self.repair = repair or Recipe(1, batch, rates[1], decay=False)
        if self.impair.epochs and self.repair.epochs and self.impair.adam != self.repair.adam:
            raise UserError("impairing and repairing must both use Adam, or neither")
        self.noise_steps, self.noise_rate, self.noise_penalty = noise_steps, noise_rate, noise_penalty
        self.tol, self.as_published = tol, as_published

    def _prepare(self) -> None:
        assert isinstance(self.table, ArrayTable)
        self.theta = self.model.fit(self.table, tol=self.tol).theta
        order = np.random.default_rng([self.seed, 18]).permutation(self.table.ids())
        self._pools = [order[self.table.y[order] == c] for c in range(self.model.n_classes)]
        self._marks = np.zeros(len(self.table.X), bool)  # scratch: the rows of a request, while it is looked at

    def make_noise(self, labels: NDArray[Any]) -> tuple[Vector, Vector]:
        """(rows (k, d), their losses (k, steps + 1)) for these labels, against the present theta."""
        model, rng = self.model, np.random.default_rng([self.seed, 17])
        assert self.theta is not None
        kind = {"h": model.h, "activation": model.activation} if model.name == "mlp" else {}
        return error_noise(
            rng.normal(size=(len(labels), model.d)), labels, self.theta, model.name, model.n_classes,
            steps=self.noise_steps, rate=self.noise_rate, penalty=self.noise_penalty, **kind,
        )  # fmt: skip

    def _labels(self, ids: Ids) -> NDArray[np.int64]:
        """The label of every noise row."""
        assert isinstance(self.table, ArrayTable)
        y = self.table.y[ids].astype(np.int64)
        return y if self.level == "row" else np.repeat(np.unique(y), self.noise_rows)

    def _subset(self, ids: Ids) -> Ids:
        """Retained rows to train on: at most retain_per_class of every class (class level: of the others)."""
        assert isinstance(self.table, ArrayTable)
        skip = np.unique(self.table.y[ids]).tolist() if self.level == "class" else []
        parts = []
        self._marks[ids] = True
        for c, pool in enumerate(self._pools):
            if c not in skip:
                first = pool[: self.retain_per_class + len(ids)]
                parts.append(first[~self._marks[first]][: self.retain_per_class])
        self._marks[ids] = False
        return np.concatenate(parts) if parts else ids[:0]

    def _outcome(self, ids: Ids) -> Outcome:
        assert self.theta is not None
        assert isinstance(self.table, ArrayTable)
        labels, keep = self._labels(ids), self._subset(ids)
        if keep.size == 0:
            raise UserError("no retained rows are left to repair the model with")
        noise, losses = self.make_noise(labels)
        if self.as_published:
            first = np.arange(len(labels)) % self.noise_rows < PUBLISHED_ROWS
            noise, labels = noise[first], np.zeros(int(first.sum()), np.int64)
        X_keep, y_keep = self.table.take(keep)
        k = len(noise)
        run = descent(
            np.concatenate([noise.astype(X_keep.dtype), X_keep]), np.concatenate([labels.astype(np.uint8), y_keep]),
            self.model,
        )  # fmt: skip
        both = np.arange(k + len(keep))
        mixed = np.concatenate([*[both[:k]] * self.copies, both[k:]])  # a copy of a noise row is one more visit to it
        stages = [(mixed, self.impair), (both[k:], self.repair)]
        theta, steps = train_stages(run, stages, self.theta, np.random.default_rng([self.seed, 19]))
        facts = {
            "noise_rows": len(noise), "retain_rows": len(keep), "impair_steps": steps[0], "repair_steps": steps[1],
            "noise_loss": (float(losses[:, 0].mean()), float(losses[:, -1].mean())),
        }  # fmt: skip
        return Outcome(theta, facts, {})

    def _committed(self, ids: Ids) -> None:
        self._pools = [pool[~np.isin(pool, ids)] for pool in self._pools]

    def _arrays(self) -> list[NDArray[Any]]:
        return [*super()._arrays(), *self._pools]
