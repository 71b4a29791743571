"""FYEMU / UNSIR (Tarun et al. 2023): impair the model with noise it gets wrong, then repair it on retained rows.

The published method forgets classes and never looks at their rows. Requests here name rows, so by default one noise row
is made for every forgotten row, with its label: this adaptation is ours.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines.base import Baseline, Ids, Outcome, Vector
from l2ul_fast.baselines.minibatch import Recipe, RecipeLike, descent, train_stages
from l2ul_fast.checks import Count, NotNegative, OneOf, Positive, Switch, Times, Whole, checked
from l2ul_fast.errors import UserError
from l2ul_fast.protocols import Style
from l2ul_kernels.sgd.descent import Descent, error_noise

#: Noise rows that the published code makes of a class: it counts the channels of an image instead of the images.
PUBLISHED_ROWS = 3
#: Rows kept of each class beyond those that are trained on, for when some of these are forgotten.
SPARE = 64
Level = Annotated[str, OneOf(("row", "class"))]
Few = Annotated[int, Whole(0, 10**6)]


class Fyemu(Baseline):
    """Noise (40 steps of Adam against the model), one epoch on noise and retained rows, one on retained rows alone.

    level "row": one noise row for each forgotten row, with its label. level "class": `noise_rows` for every class among
    the forgotten rows, and no retained row of such a class is used. as_published (class level): only 3 distinct noise
    rows per class, all labelled class 0. Features of the forgotten rows are never read.
    """

    name = "fyemu"
    style = Style("FYEMU", "pink", "<")
    table_order = 50
    in_memory = True

    @checked
    def __init__(
        self,
        level: Level = "row",
        noise_rows: Times = 256,
        copies: Few = 20,
        retain_per_class: Count = 1000,
        impair: RecipeLike | None = None,
        repair: RecipeLike | None = None,
        noise_steps: Few = 40,
        noise_rate: Positive = 0.1,
        noise_penalty: NotNegative = 0.1,
        tol: NotNegative = 1e-10,
        as_published: Switch = False,
    ) -> None:
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
        self.theta = self.model.fit(self.table, tol=self.tol).theta
        order = np.random.default_rng([self.seed, 18]).permutation(self.table.ids())
        self._pools = [order[self.table.y[order] == c] for c in range(self.model.n_classes)]
        self._keep_near()

    def _keep_near(self) -> None:
        """Copies of the rows that requests train on, some to spare: one by one from a large table they would cost more
        than the training."""
        near = [pool[: self.retain_per_class + SPARE] for pool in self._pools]
        self._ends = np.cumsum([0, *(len(part) for part in near)]).tolist()
        self._near = np.concatenate(near)
        self._near_X, self._near_y = self.table.take(self._near)
        self._by_number = np.argsort(self._near)
        self._numbers = self._near[self._by_number]
        first = [
            start + np.arange(min(self.retain_per_class, len(part)))
            for start, part in zip(self._ends, near, strict=False)
        ]
        self._first = np.concatenate(first)
        self._descent: Descent | None = None

    def _descent_on(self, X: NDArray[Any], y: NDArray[np.uint8], noise: Vector, labels: NDArray[Any]) -> Descent:
        """Gradient descent on the rows X, y and the noise behind them. For the kept copies it is made once."""
        k, rows, marks = len(y), noise.astype(X.dtype), labels.astype(np.uint8)
        if X is not self._near_X:
            return descent(np.concatenate([X, rows]), np.concatenate([y, marks]), self.model)
        if self._descent is None or len(self._descent.y) < k + len(marks):
            self._descent = descent(np.concatenate([X, rows]), np.concatenate([y, marks]), self.model, True)
        self._descent.X[k : k + len(marks)], self._descent.y[k : k + len(marks)] = rows, marks
        return self._descent

    def make_noise(self, labels: NDArray[Any]) -> tuple[Vector, Vector]:
        """(rows (k, d), their losses (k, steps + 1)) for these labels, against the present theta."""
        model, rng = self.model, np.random.default_rng([self.seed, 17])
        how = {"h": model.h, "activation": model.activation} if model.name == "mlp" else {}
        how |= {"steps": self.noise_steps, "rate": self.noise_rate, "penalty": self.noise_penalty}
        start = rng.normal(size=(len(labels), model.d))
        return error_noise(start, labels, self.theta, model.name, model.n_classes, **how)

    def _labels(self, ids: Ids) -> NDArray[np.int64]:
        """The label of every noise row."""
        y = self.table.y[ids].astype(np.int64)
        return y if self.level == "row" else np.repeat(np.unique(y), self.noise_rows)

    def _skipped(self, ids: Ids) -> list[int]:
        """Classes of which no row is used."""
        return np.unique(self.table.y[ids]).tolist() if self.level == "class" else []

    def _subset(self, ids: Ids) -> Ids:
        """Retained rows to train on: at most retain_per_class of every class (class level: of the others)."""
        skip, parts = self._skipped(ids), []
        for c, pool in enumerate(self._pools):
            if c not in skip:
                first = pool[: self.retain_per_class + len(ids)]
                parts.append(first[~np.isin(first, ids)][: self.retain_per_class])
        return np.concatenate(parts) if parts else ids[:0]

    def _retained(self, ids: Ids) -> tuple[NDArray[Any], NDArray[np.uint8], Ids]:
        """X (k, d), y (k,), and the places in them of the rows of `_subset`: the kept copies where these are enough."""
        at = np.searchsorted(self._numbers, ids)
        at[at == len(self._numbers)] = 0
        hit = self._by_number[at[self._numbers[at] == ids]]
        if hit.size == 0 and self.level == "row":  # the usual request
            return self._near_X, self._near_y, self._first
        there = np.ones(len(self._near), bool)
        there[hit] = False
        skip, parts = self._skipped(ids), [ids[:0]]
        for c, pool in enumerate(self._pools):
            if c not in skip:
                first, end = self._ends[c : c + 2]
                parts.append(first + np.flatnonzero(there[first:end])[: self.retain_per_class])
                if len(parts[-1]) < self.retain_per_class and end - first < len(pool):
                    rows = self._subset(ids)
                    return *self.table.take(rows), np.arange(len(rows))
        return self._near_X, self._near_y, np.concatenate(parts)

    def _outcome(self, ids: Ids) -> Outcome:
        X, y, keep = self._retained(ids)
        if keep.size == 0:
            raise UserError("no retained rows are left to repair the model with")
        labels = self._labels(ids)
        noise, losses = self.make_noise(labels)
        if self.as_published:
            first = np.arange(len(labels)) % self.noise_rows < PUBLISHED_ROWS
            noise, labels = noise[first], np.zeros(int(first.sum()), np.int64)
        run = self._descent_on(X, y, noise, labels)
        made = np.arange(len(X), len(X) + len(noise))
        mixed = np.concatenate([*[made] * self.copies, keep])  # a copy of a noise row is one more visit to it
        theta, steps = train_stages(run, [(mixed, self.impair), (keep, self.repair)], self.theta, self.seed)
        facts = {
            "noise_rows": len(noise),
            "retain_rows": len(keep),
            "impair_steps": steps[0],
            "repair_steps": steps[1],
            "noise_loss": (float(losses[:, 0].mean()), float(losses[:, -1].mean())),
        }
        return Outcome(theta, facts, {})

    def _committed(self, ids: Ids) -> None:
        self._pools = [pool[~np.isin(pool, ids)] for pool in self._pools]
        self._keep_near()

    def _arrays(self) -> list[NDArray[Any]]:
        near = [self._near, self._near_X, self._near_y, self._by_number, self._numbers, self._first]
        if self._descent is not None:
            near += [self._descent.X, self._descent.y]
        return [*super()._arrays(), *self._pools, *near]
