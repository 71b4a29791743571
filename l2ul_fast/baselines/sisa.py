"""SISA (Bourtoule et al. 2021): an ensemble on disjoint shards; a request retrains only the shards it touches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.baselines.base import Baseline, Ids, Outcome, Vector
from l2ul_fast.baselines.minibatch import Deal, Recipe, RecipeLike, row_order, start_of, train_rows
from l2ul_fast.checks import OneOf, Switch, Times, checked
from l2ul_fast.errors import UserError
from l2ul_fast.protocols import Style
from l2ul_kernels.codegen.parallel import parallel_for

Vote = Annotated[str, OneOf(("majority", "mean"))]


@dataclass(frozen=True)
class Shard:
    """Rows of a shard in training order, absent ones included; edges (S + 1,) of its slices; checkpoints (S, p)."""

    order: Ids
    rows: Deal
    edges: Ids
    checkpoints: Vector


def slice_epochs(epochs: int, slices: int) -> list[int]:
    """Epochs of every slice: together they visit about as many rows as `epochs` epochs of an unsliced run."""
    share = 2 * epochs / (slices + 1)
    return [math.floor(s * share) - math.floor((s - 1) * share) for s in range(1, slices + 1)]


class Sisa(Baseline):
    """k shards of S slices; slice s of a shard is trained, from the checkpoint of slice s - 1, on slices 1..s.

    Which row is in which shard, slice and batch follows from row number and seed alone, so an answer equals, bit by
    bit, the same pipeline trained without the rows. Every slice starts its optimiser anew (a checkpoint is theta).
    vote: "majority" (a tie goes to the lowest class) or "mean" of the probabilities. as_published: rows beyond S equal
    slices are trained on but not looked at by a request, so forgetting only such rows changes nothing.
    """

    name = "sisa"
    style = Style("SISA", "orange", "^")
    table_order = 30
    exact = True
    in_memory = True

    @checked
    def __init__(
        self,
        shards: Times = 10,
        slices: Times = 1,
        recipe: RecipeLike | None = None,
        vote: Vote = "majority",
        as_published: Switch = False,
    ) -> None:
        self.k, self.slices, self.vote, self.as_published = shards, slices, vote, as_published
        self.recipe = recipe or Recipe()

    def _prepare(self) -> None:
        table = self.table
        N = len(table.X)
        if self.k * self.slices > N:
            raise UserError(f"{N} rows cannot be cut into {self.k} shards of {self.slices} slices")
        order = row_order(table, self.seed)
        edges = N * np.arange(self.k + 1) // self.k
        blank = np.zeros((self.slices, self.model.size))
        self.shards = []
        for j in range(self.k):
            rows = order[edges[j] : edges[j + 1]]
            inner = len(rows) // self.slices * np.arange(self.slices + 1)
            inner[-1] = len(rows)  # what is left over belongs to the last slice
            self.shards.append(Shard(rows, Deal(table, rows), inner, blank))
        self._shard = np.empty(N, np.int64)
        self._place = np.empty(N, np.int64)
        for j, shard in enumerate(self.shards):
            self._shard[shard.order], self._place[shard.order] = j, np.arange(len(shard.order))
        self.shards, self.prepare_facts = self._train(dict.fromkeys(range(self.k), 0), np.empty(0, np.int64))

    def _train(self, touched: dict[int, int], forget: Ids) -> tuple[list[Shard], dict[str, Any]]:
        """(all shards, facts) after retraining shards {number: first slice} without the rows `forget`, at once."""
        todo = sorted(touched)
        found, visits, steps = list(self.shards), [0] * len(todo), [0] * len(todo)
        # threads go to shards; a single shard may use them all inside its batches
        each = 1 if min(numba.get_num_threads(), len(todo)) > 1 else None

        def work(first: int, last: int, thread: int) -> None:
            for i in range(first, last):
                j = todo[i]
                found[j], visits[i], steps[i] = self._train_shard(j, touched[j], forget, each)

        parallel_for(work, len(todo))
        facts = {"shards": len(todo), "sample_visits": sum(visits), "steps": sum(steps)}
        return found, facts

    def _train_shard(self, j: int, first: int, forget: Ids, workers: int | None) -> tuple[Shard, int, int]:
        shard = self.shards[j]
        weights = shard.rows.without(self._place[forget[self._shard[forget] == j]])
        checkpoints = shard.checkpoints.copy()
        theta = checkpoints[first - 1] if first else start_of(self.model, self.seed + j)
        visits = steps = 0
        for s, epochs in enumerate(slice_epochs(self.recipe.epochs, self.slices)):
            if s < first:
                continue
            end = int(shard.edges[s + 1])
            # one shard of one slice draws its batches as Retrain does
            seed = self.seed if self.k == self.slices == 1 else [self.seed, j, s]
            recipe = replace(self.recipe, epochs=epochs)
            theta, done = train_rows(shard.rows, self.model, theta, recipe, seed, weights, end, workers)
            checkpoints[s] = theta
            visits, steps = visits + epochs * int(weights[:end].sum()), steps + done
        return replace(shard, checkpoints=checkpoints), visits, steps

    def _outcome(self, ids: Ids) -> Outcome:
        touched: dict[int, int] = {}
        for j, place in zip(self._shard[ids].tolist(), self._place[ids].tolist(), strict=True):
            edges = self.shards[j].edges
            if self.as_published and place >= len(self.shards[j].order) // self.slices * self.slices:
                continue
            s = int(np.searchsorted(edges, place, side="right")) - 1
            touched[j] = min(s, touched.get(j, s))
        shards, facts = self._train(touched, ids)
        return Outcome(None, facts, {"shards": shards}, self._predictor(shards))

    def _committed(self, ids: Ids) -> None:
        for j in np.unique(self._shard[ids]):
            self.shards[j].rows.drop(self._place[ids[self._shard[ids] == j]])

    def _nothing(self) -> Outcome:
        return Outcome(None, {}, {}, self._predictor(self.shards))

    def members(self) -> Vector:
        """(k, p) parameters of the ensemble."""
        return np.stack([shard.checkpoints[-1] for shard in self.shards])

    def _predictor(self, shards: list[Shard]) -> Callable[[ArrayLike], Vector]:
        thetas, model, vote = [s.checkpoints[-1].copy() for s in shards], self.model, self.vote

        def predict_proba(X: ArrayLike) -> Vector:
            """(n, C) share of the votes, or mean probability; the first largest is the prediction."""
            total = np.zeros((len(np.asarray(X)), model.n_classes))
            for theta in thetas:
                proba = model.predict_proba(theta, X)
                total += np.eye(model.n_classes)[proba.argmax(axis=1)] if vote == "majority" else proba
            return total / len(thetas)

        return predict_proba

    def _arrays(self) -> list[NDArray[Any]]:
        kept: list[NDArray[Any]] = [self._shard, self._place]
        for shard in self.shards:
            kept += [shard.order, shard.edges, shard.checkpoints, *shard.rows.arrays()]
        return kept
