"""An expansion whose rows are summed by worker processes: bit for bit that of one process, also when a worker dies."""

import os
import time

import numpy as np
import pytest
from cluster import N, kill_one, write

from l2ul_fast import L2UL, distributed
from l2ul_fast.distributed import passes
from l2ul_fast.distributed.passes import SharedPasses
from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import ArrayTable, FileTable
from l2ul_fast.unlearner.heads.expansion import fit_by_sums
from l2ul_fast.unlearner.passes import LocalPasses


def state(u):
    return {name: array.tobytes() for name, array in u.head.arrays().items()} | {"theta": u.theta.tobytes()}


@pytest.fixture(scope="module")
def alone(shards):
    return L2UL("lr").fit(shards, part="all")


def test_a_fit_on_workers_gives_the_bytes_of_one_process(client, shards, alone):
    assert state(L2UL("lr").fit(shards, part="all", client=client)) == state(alone)


def test_other_cuts_give_the_same_bytes(client, tmp_path, alone):
    """Sums do not know how rows were cut into leaves; mean and scale of other shards differ in their last bits."""
    files = write(tmp_path / "same", (1000, 4001))
    assert state(L2UL("lr").fit(files, part="all", client=client)) == state(alone)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 8])
def test_any_number_of_workers_gives_the_same_bytes(shards, alone, workers):
    with distributed.connect(workers=workers) as many:
        assert state(L2UL("lr").fit(shards, part="all", client=many)) == state(alone)


def wait_until_replaced(client, victim):
    """A worker that has just died is still asked for a moment, and answers with an error."""
    deadline = time.monotonic() + 60
    while True:
        found = list(client.run(os.getpid, on_error="return").values())
        if victim not in found and sum(isinstance(pid, int) for pid in found) == 2:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.parametrize("number", [1, -1])
def test_a_killed_worker_changes_nothing(client, shards, alone, number, monkeypatch):
    """One dies in the first pass or the last, when some of its tasks are done."""
    begun, victims, whole = [], [], passes.run_tasks

    def begin(*args):
        begun.append(args)
        for done in whole(*args):
            if len(begun) == number and not victims:
                victims.append(kill_one(client))
            yield done

    monkeypatch.setattr(passes, "run_tasks", begin)
    if number < 0:
        assert state(L2UL("lr").fit(shards, part="all", client=client)) == state(alone)
        number, begun = len(begun), []
    assert state(L2UL("lr").fit(shards, part="all", client=client)) == state(alone)
    assert number <= len(begun)
    assert len(victims) == 1
    wait_until_replaced(client, victims[0])


def test_a_new_expansion_on_workers_leaves_forgotten_rows_out(client, shards):
    rows = np.random.default_rng(0).permutation(N)[: N // 3]
    by_workers, by_one = (L2UL("lr").fit(shards, part="all") for _ in range(2))
    for u in (by_workers, by_one):
        u.unlearn(rows)
    assert by_one.due  # a third of the rows: the optimum moved
    assert by_workers.refresh(client=client)["expanded"]
    by_one.refresh()
    assert state(by_workers) == state(by_one)
    assert by_workers.due is None
    kept = FileTable(shards, "all", coarse=True).without(rows)
    wanted = LogisticModel(kept.d, 2, 1e-3).fit(kept, tol=0.0).theta
    np.testing.assert_allclose(by_workers.theta, wanted, atol=1e-5)


def test_the_fit_by_sums_is_the_fit(shards):
    table = FileTable(shards, "all")
    model = LogisticModel(table.d, 2, 1e-3)
    found = fit_by_sums(model, LocalPasses(table), 2)
    np.testing.assert_allclose(found.theta, model.fit(table).theta, atol=1e-9)
    assert found.gradient_norm <= 1e-10


def test_arrays_are_not_shared(client):
    table = ArrayTable(np.zeros((10, 2)), np.zeros(10, np.uint8), [0, 1])
    with pytest.raises(UserError, match="dataset files"):
        SharedPasses(client, table)
