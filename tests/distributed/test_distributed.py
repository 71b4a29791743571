"""Counts and pairs on real worker processes: bit for bit those of one process, also when a worker is killed."""

import ctypes
import inspect
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("distributed")

from l2ul_fast import L2UL, distributed
from l2ul_fast.datasets.file.hdf5 import DatasetWriter
from l2ul_fast.datasets.stream.manifest import Manifest, describe, expand, load
from l2ul_fast.datasets.stream.stream import Shards, sample_partitions, stream_counts
from l2ul_fast.distributed import sums as counting
from l2ul_fast.distributed.executor import _Files, _opened, about_seconds, shares
from l2ul_fast.distributed.worker import REPORTS
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.experiments.speed.distributed import scheduler_bytes, work_of
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.tables import ArrayTable, FileTable
from l2ul_fast.unlearner.heads.sealed import labels_of
from l2ul_fast.unlearner.pairs.make import PairMaker, full_pairs, subset_pairs
from l2ul_fast.unlearner.pairs.plan import plan_pairs

N, D = 6000, 5
CHUNK = 64
PAIR_FIELDS = ("rows", "starts", "n_forget", "n", "theta", "theta_r", "Z", "T")


def rows_of_all():
    rng = np.random.default_rng(7)
    X = (rng.standard_normal((N, D)) * [1, 10, 100, 1, 1] + 50).astype(np.float32)
    y = np.where(X[:, 0] + rng.standard_normal(N) > 50, 7, 2)
    return X, y


def write(folder, cuts, codec="none"):
    """The same rows as files cut at these places."""
    X, y = rows_of_all()
    folder.mkdir()
    edges = [0, *cuts, N]
    for i, (low, high) in enumerate(itertools.pairwise(edges)):
        path = folder / f"s{i}.h5"
        with DatasetWriter(path, name="magic", source="standin:test:0", d=D, classes=[7, 2], codec=codec) as writer:
            writer.append(X[low:high], y[low:high])
    return sorted(map(str, folder.glob("s*.h5")))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Three shards with many chunks each."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("writer", "hdf5"):
            patch.setattr(f"l2ul_fast.datasets.file.{module}.chunk_rows", lambda d: CHUNK)
        return write(tmp_path_factory.mktemp("data") / "three", (1000, 4001))


@pytest.fixture(scope="module")
def client():
    """Two processes; the driver's own thread settings must not reach them."""
    before = os.environ.get("NUMBA_NUM_THREADS")
    os.environ["NUMBA_NUM_THREADS"] = "2"
    try:
        with distributed.connect(workers=2) as client:
            assert os.environ["NUMBA_NUM_THREADS"] == "2"
            yield client
    finally:
        os.environ.pop("NUMBA_NUM_THREADS")
        if before is not None:
            os.environ["NUMBA_NUM_THREADS"] = before


def many_leaves(manifest):
    """A leaf for every other chunk or so."""
    return counting.spans(manifest, 2, leaf_bytes=2 * 4 * D * CHUNK, leaves=1000)


def kill_one(client):
    """SIGKILL one worker; its nanny starts another."""
    pid = sorted(client.run(os.getpid).values())[0]
    os.kill(pid, signal.SIGKILL)
    return pid


# Counts ---------------------------------------------------------------------------------------------------------------


def test_counts_are_those_of_one_process(client, shards):
    manifest = distributed.describe_shards(client, shards)
    partitions = sample_partitions(shards, 9, 4, random_state=3)
    assert distributed.sample_partitions(client, manifest, 9, 4, 3).same_as(partitions)
    raw = distributed.sample_partitions(client, manifest, 9, 4, 3, standardise=False)
    assert raw.same_as(sample_partitions(shards, 9, 4, 3, standardise=False))
    for by_class in (False, True):
        for part in ("all", "train", "test"):
            expected = stream_counts(shards, partitions, by_class, part)
            seen = []
            for leaves in (None, many_leaves(manifest)):
                found = distributed.stream_counts(
                    client, manifest, partitions, by_class, part, lambda *a, seen=seen: seen.append(a), leaves
                )
                assert found.dtype == np.int64
                np.testing.assert_array_equal(found, expected)
            assert seen[-1] == (N, N)
            assert len(seen) > 40


def test_progress_of_many_leaves_follows_their_sums(client, shards, monkeypatch):
    monkeypatch.setattr("l2ul_fast.distributed.sums.WATCHED", 10)
    manifest = distributed.describe_shards(client, shards)
    partitions, leaves, seen = sample_partitions(shards, 9, 4, random_state=3), many_leaves(manifest), []
    expected = stream_counts(shards, partitions)
    found = distributed.stream_counts(client, manifest, partitions, progress=lambda *a: seen.append(a), leaves=leaves)
    np.testing.assert_array_equal(found, expected)
    assert seen == sorted(seen)
    assert seen[-1] == (N, N)
    assert 2 <= len(seen) <= -(-len(leaves) // 16) + 1
    np.testing.assert_array_equal(distributed.stream_counts(client, manifest, partitions, leaves=leaves), expected)


def test_a_killed_worker_changes_nothing(client, shards):
    manifest = distributed.describe_shards(client, shards)
    partitions = sample_partitions(shards, 9, 4, random_state=0)
    expected = stream_counts(shards, partitions, by_class=True)
    killed = []

    def kill(done, total):
        if done > N / 3 and not killed:
            killed.append(kill_one(client))

    leaves = many_leaves(manifest)
    assert len(leaves) > 40
    found = distributed.stream_counts(client, manifest, partitions, True, "all", kill, leaves)
    np.testing.assert_array_equal(found, expected)
    client.wait_for_workers(2, timeout=60)
    assert os.environ["NUMBA_NUM_THREADS"] == "2"  # of this process: numba would refuse to compile with another value
    assert len(killed) == 1
    assert killed[0] not in client.run(os.getpid).values()
    # and once more with the new process, which has loaded nothing yet
    np.testing.assert_array_equal(distributed.stream_counts(client, manifest, partitions, True), expected)


@pytest.mark.slow
def test_eight_workers_count_the_same(shards):
    partitions = sample_partitions(shards, 100, 4, random_state=0)
    expected = stream_counts(shards, partitions, by_class=True)
    with distributed.connect(workers=8) as client:
        manifest = distributed.describe_shards(client, shards)
        found = distributed.stream_counts(client, manifest, partitions, True, leaves=many_leaves(manifest))
        np.testing.assert_array_equal(found, expected)
        assert distributed.worker_count(client) == 8


def test_a_task_that_runs_twice_returns_the_same_and_spoils_nothing(shards):
    partitions = sample_partitions(shards, 9, 4, random_state=0)
    held = counting._Held("x", partitions, False, "all", 1)
    shard = describe(shards[0])
    first = counting._count(held, shard.path, shard.checksum, 0, 512)
    second = counting._count(held, shard.path, shard.checksum, 0, 512)
    np.testing.assert_array_equal(first, second)
    kept = first.copy()
    np.testing.assert_array_equal(counting._add([first, second]), 2 * kept)
    np.testing.assert_array_equal(first, kept)
    assert kept[0].sum() == 512


def test_other_shards_same_seeds_same_counts(tmp_path, client, shards):
    """Cut into other files, the same rows give the same seeds and counts."""
    one, seven = write(tmp_path / "one", ()), write(tmp_path / "seven", (1, 500, 501, 2222, 3333, 5999))
    partitions = [sample_partitions(files, 50, 4, random_state=1) for files in (shards, one, seven)]
    assert partitions[0].same_as(partitions[1])
    assert partitions[0].same_as(partitions[2])
    np.testing.assert_array_equal(partitions[0].row_ids, partitions[2].row_ids)
    manifest = distributed.describe_shards(client, seven)
    assert distributed.sample_partitions(client, manifest, 50, 4, 1).same_as(partitions[0])
    expected = stream_counts(one, partitions[0], by_class=True)
    np.testing.assert_array_equal(distributed.stream_counts(client, manifest, partitions[0], True), expected)


def test_a_shard_twice_is_an_error(tmp_path, client, shards):
    shutil.copy(shards[1], tmp_path / "copy.h5")
    (tmp_path / "link.h5").symlink_to(shards[1])
    cases = ((shards[1], "listed twice"), (tmp_path / "link.h5", "listed twice"), (tmp_path / "copy.h5", "same rows"))
    for again, words in cases:
        with pytest.raises(DataError, match=words):
            distributed.describe_shards(client, [*shards, again])


def test_files_through_fsspec(tmp_path, client, shards):
    urls = [f"file://{path}" for path in shards]
    manifest = distributed.describe_shards(client, [f"file://{os.path.dirname(shards[0])}/s*.h5"])
    assert [shard.path for shard in manifest.shards] == urls
    partitions = distributed.sample_partitions(client, manifest, 9, 4, 3)
    assert partitions.same_as(sample_partitions(shards, 9, 4, 3))
    expected = stream_counts(shards, partitions, by_class=True, part="train")
    found = distributed.stream_counts(client, manifest, partitions, True, "train")
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(DataError, match="cannot open"):
        distributed.describe_shards(client, ["file:///nowhere/at/all.h5"])
    (tmp_path / "text.h5").write_text("no")
    with pytest.raises(DataError, match="not an HDF5 file"):
        distributed.describe_shards(client, [f"file://{tmp_path}/text.h5"])


def test_damage_and_change_are_found_on_the_workers(tmp_path, client, shards):
    copies = [shutil.copy(path, tmp_path) for path in shards]
    manifest = distributed.describe_shards(client, copies)
    partitions = sample_partitions(copies, 9, 4, random_state=0)
    with h5py.File(copies[1]) as file:
        where = file["X"].id.get_chunk_info_by_coord((CHUNK, 0)).byte_offset
    with open(copies[1], "r+b") as file:
        file.seek(where + 9)
        file.write(b"\xff")
    with pytest.raises(DataError, match=rf"s1.h5 is damaged in rows {CHUNK}\.\.{2 * CHUNK - 1}"):
        distributed.stream_counts(client, manifest, partitions)
    shutil.copy(copies[0], copies[2])
    with pytest.raises(DataError, match="has changed"):
        distributed.stream_counts(client, manifest, partitions)
    narrow = type(partitions).from_seeds(partitions.seeds[:, :, :4])
    with pytest.raises(UserError, match="columns"):
        distributed.stream_counts(client, manifest, narrow)


def test_few_bytes_reach_the_scheduler(client, shards):
    manifest = distributed.describe_shards(client, shards)
    partitions = sample_partitions(shards, 100, 4, random_state=0)
    distributed.stream_counts(client, manifest, partitions, True)
    before = scheduler_bytes(client)
    distributed.stream_counts(client, manifest, partitions, True)
    moved = scheduler_bytes(client) - before
    assert 1000 < moved / len(shards) < 64 * 1024


# Manifest -------------------------------------------------------------------------------------------------------------


def test_a_manifest_maps_row_numbers(tmp_path, client, shards):
    manifest = distributed.describe_shards(client, shards)
    assert (manifest.n, manifest.d, manifest.classes, manifest.label) == (N, D, [7, 2], "stand-in")
    assert manifest.first_rows.tolist() == [0, 1000, 4001, N]
    where, rows = manifest.locate([0, 999, 1000, 4000, 4001, N - 1])
    assert where.tolist() == [0, 0, 1, 1, 2, 2]
    assert rows.tolist() == [0, 999, 0, 3000, 0, N - 4002]
    X, _ = rows_of_all()
    ids = [4001, 3, 3, 1000, 5999]
    np.testing.assert_array_equal(distributed.take_rows(client, manifest, ids), X[ids])
    for bad in (-1, N):
        with pytest.raises(DataError, match=f"row {bad} is not among"):
            manifest.locate([0, bad])
    with Shards(shards) as opened:
        np.testing.assert_allclose(manifest.mean, opened.mean, rtol=1e-7)
        np.testing.assert_allclose(manifest.scale, opened.scale, rtol=1e-7)

    path = tmp_path / "m.json"
    manifest.save(path)
    known = load(path)
    assert known == manifest.shards
    assert distributed.describe_shards(client, (), known).shards == manifest.shards
    path.write_text(path.read_text().replace(manifest.shards[1].checksum, "0" * 64))
    with pytest.raises(DataError, match="not the file of the manifest"):
        distributed.describe_shards(client, (), load(path))
    for text in ("{", "[]", '{"format": "other"}', path.read_text().replace('"n": 1000', '"n": 0')):
        path.write_text(text)
        with pytest.raises(DataError, match="not a manifest"):
            load(path)
    with pytest.raises(DataError, match="cannot read"):
        load(tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot write"):
        manifest.save(tmp_path / "m.json" / "deeper.json")
    with pytest.raises(DataError, match="no dataset file"):
        Manifest([])
    with pytest.raises(DataError, match="no file matches"):
        expand([str(tmp_path / "*.nothing")])


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 1000])
def test_leaves_cover_every_row_once(shards, workers):
    manifest = Manifest(describe(path) for path in shards)
    for leaf_bytes in (1, 10_000, 1 << 30):
        leaves = counting.spans(manifest, workers, leaf_bytes, leaves=7)
        assert all(low % CHUNK == 0 and low < high for _, low, high in leaves)
        for i, shard in enumerate(manifest.shards):
            mine = [leaf for leaf in leaves if leaf[0] == i]
            assert [low for _, low, _ in mine] == [0, *(high for _, _, high in mine[:-1])]
            assert mine[-1][2] == shard.n
        assert len(leaves) <= 7 * workers + len(shards)


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_the_work_of_all_processes_is_that_of_a_usual_call(client):
    calls = []

    async def work(seconds):
        burn(seconds)

    def call():
        calls.append(1.0 if len(calls) == 1 else 0.05)  # the second one is interrupted
        client.sync(work, calls[-1])

    found = work_of(client, call, 3)
    assert len(calls) == 3
    assert 0.05 <= found["scheduler_seconds"] <= found["cpu_seconds"] < 0.3  # their mean is more
    assert found["scheduler_bytes"] < 65536
    found = work_of(client, lambda: client.run(burn, 0.2), 1)
    assert found["cpu_seconds"] - found["scheduler_seconds"] > 0.35  # two workers, whatever the scheduler does


# Pairs ----------------------------------------------------------------------------------------------------------------


def assert_same_pairs(found, expected):
    assert (found.rejected, found.full) == (expected.rejected, expected.full)
    for name in PAIR_FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize(("robust", "short", "runs"), [(False, 0.0, 6), (True, 0.0, 6), (False, 1.0, 2)])
def test_lr_pairs_are_those_of_one_process(client, shards, robust, short, runs, monkeypatch):
    monkeypatch.setattr("l2ul_fast.distributed.executor.SHORT", short)
    table = FileTable(shards, "train").without(np.arange(100, 300))
    model, labels = LogisticModel(D, 2, 1e-3), labels_of(table)
    seen = []
    expected = subset_pairs(model, table, labels, 70, 60, 5, robust=robust)
    found = subset_pairs(
        model, table, labels, 70, 60, 5, robust=robust, client=client, progress=lambda *a: seen.append(a)
    )
    assert_same_pairs(found, expected)
    assert seen[-1] == (70, 70)
    assert seen == sorted(seen)
    assert len(seen) == len(shares(70, 2, 70, short > 0)) == runs  # after every task


def test_pairs_with_rare_classes_and_hidden_rows_are_those_of_one_process(client):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 3))
    y = (np.arange(3000) % 50 == 0).astype(np.uint8)  # 2 %: many subsets of 60 lack the class at first
    table, model = ArrayTable(X, y, [0, 1]), LogisticModel(3, 2, 1e-2)
    expected = subset_pairs(model, table, y, 60, 60, 1)
    assert_same_pairs(subset_pairs(model, table, y, 60, 60, 1, client=client), expected)
    left = table.without(np.arange(2000))
    expected = subset_pairs(model, left, y[2000:], 60, 60, 1)
    assert expected.rows.min() >= 2000
    assert_same_pairs(subset_pairs(model, left, y[2000:], 60, 60, 1, client=client), expected)
    with pytest.raises(UserError, match="class 1 is too rare"):
        subset_pairs(model, table, y, 60, 3, 1, client=client)


# fetched in the end: what the worker had done is lost with it; short: that is half of all
@pytest.mark.parametrize(("fetched", "short"), [(0.1, 0.0), (1.0, 0.0), (1.0, 1.0)])
def test_pairs_survive_a_killed_worker(client, shards, fetched, short, monkeypatch):
    monkeypatch.setattr("l2ul_fast.distributed.executor.FETCHED", fetched)
    monkeypatch.setattr("l2ul_fast.distributed.executor.SHORT", short)
    table = FileTable(shards, "train")
    model, labels = LogisticModel(D, 2, 1e-3), labels_of(table)
    expected = subset_pairs(model, table, labels, 200, 100, 5)
    killed = []

    def kill(done, total):
        if not killed:
            killed.append(kill_one(client))

    assert_same_pairs(subset_pairs(model, table, labels, 200, 100, 5, client=client, progress=kill), expected)
    client.wait_for_workers(2, timeout=60)
    assert killed[0] not in client.run(os.getpid).values()


def test_mlp_pairs_of_both_kinds_are_those_of_one_process(client, shards):
    table = FileTable(shards, "train")
    model = MLPModel(D, 2, 3, "tanh", 1e-3)
    expected = subset_pairs(model, table, labels_of(table), 12, 100, 2)
    assert_same_pairs(subset_pairs(model, table, labels_of(table), 12, 100, 2, client=client), expected)
    X, y = table.take(table.ids()[:400])
    anchored, fit = model.fit_anchored((X, y), model.train_anchor(X, y))
    expected = full_pairs(anchored, X, y, np.arange(400), fit, 140, 3)
    assert_same_pairs(full_pairs(anchored, X, y, np.arange(400), fit, 140, 3, client=client), expected)


@pytest.mark.parametrize("head", ["expansion", "learned", "kme"])
def test_a_fit_with_workers_is_the_fit_without(client, shards, head):
    params = {"m": 60, "s": 200, "t": 10, "head": head, "random_state": 4}
    alone, spread = L2UL("lr", **params).fit(shards), L2UL("lr", **params).fit(shards, client=client)
    np.testing.assert_array_equal(spread.theta, alone.theta)
    held = alone.head.arrays()
    assert head != "learned" or "learned.W" in held
    assert spread.head.arrays().keys() == held.keys()
    for name, array in held.items():
        np.testing.assert_array_equal(spread.head.arrays()[name], array, err_msg=name)
    ids = [int(alone.store._table.ids()[5])]
    np.testing.assert_array_equal(spread.unlearn(ids).theta, alone.unlearn(ids).theta)


# Workers --------------------------------------------------------------------------------------------------------------


def thread_facts():
    import multiprocessing

    import numba
    from threadpoolctl import threadpool_info

    pools = [pool["num_threads"] for pool in threadpool_info()]
    return numba.config.NUMBA_NUM_THREADS, max(pools, default=1), multiprocessing.current_process().name


def test_workers_have_one_thread_each(client):
    facts = list(client.run(thread_facts).values())
    assert len(facts) == 2
    for numba_threads, largest_pool, _ in facts:
        assert (numba_threads, largest_pool) == (1, 1)
    assert {info["nthreads"] for info in client.scheduler_info(n_workers=-1)["workers"].values()} == {1}
    assert client.cluster.scheduler.WORKER_SATURATION == 1  # no task waits with a worker that is busy


def report_interval(dask_worker):
    return dask_worker.periodic_callbacks["heartbeat"].callback_time / 1000


def test_local_workers_report_rarely_also_those_that_replace_others(client):
    killed = kill_one(client)
    until, pids, intervals = time.monotonic() + 30, [killed], []
    while (killed in pids or len(pids) < 2 or set(intervals) != {REPORTS}) and time.monotonic() < until:
        time.sleep(0.1)  # a new worker has Dask's interval until its first report
        pids = client.run(os.getpid, on_error="ignore").values()
        intervals = client.run(report_interval, on_error="ignore").values()
    assert killed not in pids
    assert list(intervals) == [REPORTS] * 2
    assert REPORTS > 1  # Dask's own, with which a worker starts


def pages_of_a_second_array():
    """Pages that 24 MiB take from the system after as many were given back."""
    import resource

    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.empty(24 << 20, np.uint8)[::4096] = 1
        taken.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(taken[1:])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_workers_and_the_benchmarks_one_process_keep_their_memory(client):
    assert all(pages == 0 for pages in client.run(pages_of_a_second_array).values())
    taken = []
    for keep in ("", "from l2ul_fast.distributed.worker import keep_memory; assert keep_memory()"):
        source = inspect.getsource(pages_of_a_second_array)
        code = f"import numpy as np\n{keep}\n{source}\nprint(pages_of_a_second_array())"
        variables = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # from the start as Dask's own workers have it
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=variables)
        taken.append(int(done.stdout))
    assert taken[0] > 10 > taken[1]


def test_the_memory_of_rows_is_used_by_the_next_pairs(shards):
    table, model = FileTable(shards, "train"), LogisticModel(D, 2, 1e-3)
    plans = [plan_pairs(table.n, labels_of(table), 10, s, random_state=0) for s in (100, 60, 140)]
    first = PairMaker(model, table, plans[0])
    shorter = PairMaker(model, table, plans[1], before=first)
    assert np.shares_memory(shorter._X, first._X)
    longer = PairMaker(model, table, plans[2], before=shorter)
    rows = np.empty((10, 140), np.int64)
    made, expected = longer.make(0, 10, rows), PairMaker(model, table, plans[2]).make(0, 10, rows.copy())
    for found, wanted in zip(made, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    wide = PairMaker(model, ArrayTable(np.zeros((300, 1000)), np.zeros(300, np.uint8), [0]), plans[0])
    assert wide.batches(0, 1000)[0] == (0, 1000 // 6)  # 167 pairs of 100 rows of 8000 bytes are 128 MiB
    doubles = ArrayTable(np.zeros((300, D)), np.arange(300, dtype=np.uint8) % 2, [0, 1])
    assert PairMaker(model, doubles, plans[1], before=longer)._X.dtype == np.float64
    table.close()


def test_the_local_worker_loads_no_numba_before_its_variables_are_set():
    code = "import l2ul_fast.distributed.worker, sys; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("of_host", "url", "ahead"), [(1, False, True), (10**6, False, False), (10**6, True, True)])
def test_only_workers_with_a_core_to_spare_read_ahead(shards, monkeypatch, of_host, url, ahead):
    seen = []
    monkeypatch.setattr(counting, "available_cores", lambda: 2)
    monkeypatch.setattr(counting, "is_url", lambda path: url)
    monkeypatch.setattr(counting.stream, "stream_counts", lambda *a, ahead, **k: seen.append(ahead))
    monkeypatch.setattr(counting, "opened_shard", lambda *a: None)
    held = counting._Held("ahead", sample_partitions(shards, 9, 4, random_state=0), False, "all", of_host)
    counting._count(held, shards[0], "", 0, 512)
    assert seen == [ahead]


def square(x):
    import numba

    if x == 13:
        raise UserError("thirteen")
    return x * x, numba.get_num_threads()


def test_map_jobs(client):
    found = dict(distributed.map_jobs(client, square, range(10)))
    assert found == {i: (i * i, 1) for i in range(10)}
    assert list(distributed.map_jobs(client, square, [])) == []
    with pytest.raises(UserError, match="thirteen"):
        list(distributed.map_jobs(client, square, [13, *range(50)]))
    for _ in distributed.map_jobs(client, square, range(50)):
        break  # the rest is cancelled
    assert dict(distributed.map_jobs(client, square, [3])) == {0: (9, 1)}


MISSES = """
import json, os
from l2ul_fast import distributed
from l2ul_fast.distributed import counts
def misses():
    from l2ul_kernels.voronoi import workers
    from l2ul_fast.datasets.file import chunks
    made = [v for v in [*vars(workers).values(), chunks._sums] if hasattr(v, "stats")]
    return [sum(sum(v.stats.cache_misses.values()) for v in made), sum(sum(v.stats.cache_hits.values()) for v in made)]
if __name__ == "__main__":
    from l2ul_fast.distributed.cluster import prepare
    with distributed.connect(workers=3) as client:
        prepare(client, counts._load)
        print(json.dumps(sorted(client.run(misses).values())))
"""


@pytest.mark.slow
def test_one_process_per_host_compiles(tmp_path):
    import json

    (tmp_path / "misses.py").write_text(MISSES)
    done = subprocess.run(
        [sys.executable, "misses.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "L2UL_CACHE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (none, hits), (none2, hits2), (misses, _) = json.loads(done.stdout.splitlines()[-1])
    assert none == none2 == 0
    assert misses > 0  # more than the hits: what a kernel calls is compiled with it
    assert hits == hits2 > 0


def test_connecting_to_nothing_is_one_sentence():
    with pytest.raises(UserError, match="either the address"), distributed.connect():
        pass
    with pytest.raises(UserError, match="either the address"), distributed.connect("tcp://127.0.0.1:1", 2):
        pass
    with pytest.raises(UserError, match="at least 1"), distributed.connect(workers=0):
        pass


def test_no_scheduler_at_the_address(monkeypatch):
    monkeypatch.setattr("l2ul_fast.distributed.cluster.WAIT", 1)
    for address in ("tcp://127.0.0.1:9", "nonsense://x"):
        with pytest.raises(UserError, match="no Dask scheduler answers at"), distributed.connect(address):
            pass


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 400))
def test_shares_are_all_pairs_once_and_get_smaller(m, workers, largest):
    runs = shares(m, workers, largest)
    assert [i for first, last in runs for i in range(first, last)] == list(range(m))
    sizes = [last - first for first, last in runs]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) <= largest
    # nobody has more than eight tenths of its share in one task (but of two pairs both), or waits long for the last one
    assert max(sizes) <= max(2, 0.8 * m / workers)
    assert sizes[-1] <= max(2, (m / workers) ** 0.5)
    if largest >= m:
        assert len(sizes) <= 8 * workers


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 400))
def test_shares_of_a_short_job_are_even(m, workers, largest):
    runs = shares(m, workers, largest, short=True)
    assert [i for first, last in runs for i in range(first, last)] == list(range(m))
    sizes = [last - first for first, last in runs]
    assert max(sizes) <= largest
    assert max(sizes) - min(sizes) <= 1
    # the same number of runs for every worker, and not more than are needed
    assert len(runs) == m or len(runs) % workers == 0
    assert len(runs) < m / largest + workers


def test_jobs_are_told_apart_by_what_their_models_multiply():
    narrow, wide, mlp = LogisticModel(10, 2, 1e-3), LogisticModel(400, 2, 1e-3), MLPModel(10, 2, 10, "tanh", 1e-3)
    assert about_seconds(narrow, 2000) == 2 * about_seconds(narrow, 1000)
    assert about_seconds(wide, 1000) > 50 * about_seconds(narrow, 1000)  # a Hessian has 1300 times as many entries
    assert about_seconds(mlp, 1000) > 10 * about_seconds(narrow, 1000)  # many epochs instead of a few steps


def test_a_file_that_is_another_one_on_the_worker_is_refused(client, shards, tmp_path):
    table = FileTable(shards, "train")
    model, labels = LogisticModel(D, 2, 1e-3), labels_of(table)
    other = _Files.of(table)._replace(fingerprint="another")
    with pytest.raises(DataError, match="not the file that was fitted"):
        _opened(other)
    with pytest.raises(UserError, match="workers cannot read a"):
        subset_pairs(model, NotATable(table), labels, 8, 30, 0, client=client)
    table.close()


class NotATable:
    def __init__(self, table):
        self.n, self.d, self.dtype = table.n, table.d, table.dtype
