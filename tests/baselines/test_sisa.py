"""SISA: bit by bit its own pipeline without the rows, and only the work that it promises."""

import math

import numpy as np
import pytest
from baselines_data import FORGET, SHORT, plain, prepared

from l2ul_fast.baselines import Recipe, Retrain, Sisa
from l2ul_fast.baselines.sisa import slice_epochs
from l2ul_kernels import threads


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
@pytest.mark.parametrize(("shards", "slices"), [(1, 1), (4, 1), (3, 4)])
def test_sisa_is_its_own_pipeline_without_the_rows_bit_by_bit(kind, shards, slices):
    """C1 at every checkpoint, at once and in turn, for both votes."""
    table, model = plain(kind)
    fresh = prepared(Sisa(shards, slices, SHORT), table.without(FORGET), model, seed=4)
    for parts in ([FORGET], [FORGET[:2], FORGET[2:]]):
        method = prepared(Sisa(shards, slices, SHORT), table, model, seed=4)
        before = method.members()
        for part in parts:
            method.unlearn(part, commit=True)
        for mine, other in zip(method.shards, fresh.shards, strict=True):
            np.testing.assert_array_equal(mine.checkpoints, other.checkpoints)
        assert (method.members() != before).any()
    for vote in ("majority", "mean"):
        asked = prepared(Sisa(shards, slices, SHORT, vote), table, model, seed=4).unlearn(FORGET)
        peer = prepared(Sisa(shards, slices, SHORT, vote), table.without(FORGET), model, seed=4).unlearn([])
        np.testing.assert_array_equal(asked.predict_proba(table.X), peer.predict_proba(table.X))


def test_sisa_of_one_shard_is_retraining():
    """C2."""
    table, model = plain("mlp")
    sisa = prepared(Sisa(1, 1, SHORT), table, model, seed=6)
    retrain = prepared(Retrain(solver="minibatch", recipe=SHORT), table, model, seed=6)
    np.testing.assert_array_equal(sisa.members()[0], retrain.theta)
    sisa.unlearn(FORGET, commit=True)
    np.testing.assert_array_equal(sisa.members()[0], retrain.unlearn(FORGET).theta)


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_sisa_counters_are_the_analytic_ones(kind):
    """C3: visits and steps of every slice that is replayed, for rows of several shards and slices; no other changes."""
    method = prepared(Sisa(3, 4, SHORT), *plain(kind))
    epochs = slice_epochs(4, 4)
    assert epochs == [1, 2, 1, 2]
    assert slice_epochs(20, 4) == [8, 8, 8, 8]
    assert slice_epochs(20, 1) == [20]
    assert sum(epochs) == math.floor(4 * 2 * SHORT.epochs / 5)
    rows = {(0, 1): 5, (0, 3): 2, (2, 2): 1}  # (shard, slice) -> how many of its rows leave
    forget, visits, steps = [], 0, 0
    for (j, s), count in rows.items():
        edge = method.shards[j].edges[s]
        forget += method.shards[j].order[edge : edge + count].tolist()
    for j, first in ((0, 1), (2, 2)):
        for s in range(first, 4):
            size = int(method.shards[j].edges[s + 1])
            gone = sum(count for (k, at), count in rows.items() if k == j and at <= s)
            visits += epochs[s] * (size - gone)
            steps += epochs[s] * -(-size // 32)
    facts = method.unlearn(forget).facts
    assert facts == {"shards": 2, "sample_visits": visits, "steps": steps}
    whole = sum(epochs[s] * int(shard.edges[s + 1]) for shard in method.shards for s in range(4))
    assert method.prepare_facts["sample_visits"] == whole
    sizes = [len(shard.order) for shard in method.shards]
    assert max(sizes) - min(sizes) <= 1
    assert np.array_equal(np.sort(np.concatenate([shard.order for shard in method.shards])), np.arange(403))
    assert method.unlearn(np.arange(100)).facts["shards"] == 3  # a request of a hundred rows
    before = [shard.checkpoints.copy() for shard in method.shards]
    method.unlearn(forget, commit=True)
    changed = [(shard.checkpoints != b).any(axis=1).tolist() for shard, b in zip(method.shards, before, strict=True)]
    assert changed == [[False, True, True, True], [False] * 4, [False, False, True, True]]


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_sisa_forgets_the_remainder(kind):
    """C4: rows beyond S equal slices are part of the last slice."""
    table, model = plain(kind)
    for published in (False, True):
        method = prepared(Sisa(3, 4, SHORT, as_published=published), table, model)
        shard = method.shards[0]
        assert shard.edges.tolist() == [0, 33, 66, 99, 134]
        inside, beyond = int(shard.order[131]), int(shard.order[132])
        assert method.unlearn([inside]).facts["shards"] == 1
        assert method.unlearn([beyond]).facts["shards"] == (0 if published else 1)
        # together with a row that is looked at, the other leaves as well, even as published
        both = prepared(Sisa(3, 4, SHORT), table.without([inside, beyond]), model)
        method.unlearn([inside, beyond], commit=True)
        np.testing.assert_array_equal(method.members()[0], both.members()[0])


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_sisa_votes(kind):
    """Members start apart; a tie goes to the lowest class."""
    table, model = plain(kind)
    blank = prepared(Sisa(4, 1, Recipe(epochs=0)), table, model, seed=2)
    starts = [model.start(2 + j) if kind == "mlp" else model.start() for j in range(4)]
    np.testing.assert_array_equal(blank.members(), starts)
    method = prepared(Sisa(2, 1, SHORT), table, model)
    votes = method.unlearn([]).predict_proba(table.X)
    single = [model.predict(theta, table.X) for theta in method.members()]
    np.testing.assert_allclose(votes, np.mean([np.eye(model.n_classes)[called] for called in single], axis=0))
    assert (single[0] != single[1]).any()
    np.testing.assert_array_equal(votes.argmax(axis=1), np.minimum(*single))
    mean = prepared(Sisa(2, 1, SHORT, vote="mean"), table, model).unlearn([]).predict_proba(table.X)
    np.testing.assert_allclose(mean, np.mean([model.predict_proba(t, table.X) for t in method.members()], axis=0))


def test_sisa_does_not_depend_on_threads():
    method = prepared(Sisa(4, 2, SHORT), *plain("mlp"))
    with threads(1):
        alone = prepared(Sisa(4, 2, SHORT), *plain("mlp"))
    np.testing.assert_array_equal(method.members(), alone.members())
