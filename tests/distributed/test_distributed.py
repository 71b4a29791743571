"""Counts, fits and pairs on real worker processes: bit for bit those of one process, also when a worker is killed."""

import json
import os
import shutil
import subprocess
import sys
import weakref

import h5py
import numpy as np
import pytest
from cluster import CHUNK, D, N, kill_one, rows_of_all, write
from dask.utils import parse_timedelta

from l2ul_fast import L2UL, distributed
from l2ul_fast.datasets.stream.manifest import Manifest, describe, expand, load
from l2ul_fast.datasets.stream.stream import Shards, sample_partitions, stream_counts
from l2ul_fast.distributed import executor
from l2ul_fast.distributed import sums as counting
from l2ul_fast.distributed.cluster import _alone
from l2ul_fast.distributed.executor import DaskWorkers, _Files, _opened
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.tables import ArrayTable, FileTable
from l2ul_fast.unlearner.heads.sealed import labels_of
from l2ul_fast.unlearner.pairs.make import full_pairs, subset_pairs

PAIR_FIELDS = ("rows", "starts", "n_forget", "n", "theta", "theta_r", "Z", "T")


def many_leaves(manifest):
    """A leaf for every other chunk or so."""
    return counting.spans(manifest, 2, leaf_bytes=2 * 4 * D * CHUNK, leaves=1000)


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


def test_a_killed_worker_changes_nothing(client, shards, monkeypatch):
    # Dask looks for it 15 s after its death, here half a second: it must not give up one that is just starting again
    monkeypatch.setattr("distributed.deploy.spec.parse_timedelta", lambda limit: parse_timedelta(limit) / 30)
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
    assert len(client.cluster.workers) == 2
    assert os.environ["NUMBA_NUM_THREADS"] == "2"  # of this process: numba would refuse to compile with another value
    assert len(killed) == 1
    assert killed[0] not in client.run(os.getpid).values()
    # and once more with the new process, which has loaded nothing yet
    np.testing.assert_array_equal(distributed.stream_counts(client, manifest, partitions, True), expected)


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
    shutil.copy(shards[1], copies[1])
    shutil.copy(copies[0], copies[2])
    with pytest.raises(DataError, match="has changed"):
        distributed.stream_counts(client, manifest, partitions)
    narrow = type(partitions).from_seeds(partitions.seeds[:, :, :4])
    with pytest.raises(UserError, match="columns"):
        distributed.stream_counts(client, manifest, narrow)


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


# Pairs and fits -------------------------------------------------------------------------------------------------------


def assert_same_pairs(found, expected):
    assert (found.rejected, found.full) == (expected.rejected, expected.full)
    for name in PAIR_FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def rare_class():
    """A table one class of which many subsets of 60 rows lack at first."""
    y = (np.arange(3000) % 50 == 0).astype(np.uint8)
    return ArrayTable(np.random.default_rng(0).standard_normal((3000, 3)), y, [0, 1])


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("kind", ["files", "files, robust", "arrays", "mlp", "full"])
def test_pairs_are_those_of_one_process(client, shards, kind, hidden, monkeypatch):
    monkeypatch.setattr(executor, "TASK_PAIRS", 7)
    seen = []
    if kind == "full":
        table, model = FileTable(shards, "train"), MLPModel(D, 2, 3, "tanh", 1e-3)
        X, y = table.take(table.ids()[:400])
        anchored, fit = model.fit_anchored((X, y), model.train_anchor(X, y))

        def make(**how):
            return full_pairs(anchored, X, y, np.arange(400), fit, 140, 3, **how)
    else:
        table = rare_class() if kind == "arrays" else FileTable(shards, "train")
        table = table.without(np.arange(100, 300)) if hidden else table
        model = MLPModel(D, 2, 3, "tanh", 1e-3) if kind == "mlp" else LogisticModel(table.d, 2, 1e-3)

        def make(**how):
            return subset_pairs(model, table, labels_of(table), 35, 60, 5, robust=kind == "files, robust", **how)

    assert_same_pairs(make(executor=DaskWorkers(client), progress=lambda *a: seen.append(a)), make())
    assert seen == sorted(seen)
    assert seen[-1] == ((140, 140) if kind == "full" else (35, 35))
    assert len(seen) == (2 if kind == "full" else 5)  # after every task


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 8])
def test_any_number_of_workers_gives_the_same(shards, workers, monkeypatch):
    monkeypatch.setattr(executor, "TASK_PAIRS", 5)
    partitions = sample_partitions(shards, 100, 4, random_state=0)
    table, model = FileTable(shards, "train"), LogisticModel(D, 2, 1e-3)
    with distributed.connect(workers=workers) as client:
        assert distributed.worker_count(client) == workers
        manifest = distributed.describe_shards(client, shards)
        found = distributed.stream_counts(client, manifest, partitions, True, leaves=many_leaves(manifest))
        np.testing.assert_array_equal(found, stream_counts(shards, partitions, by_class=True))
        pairs = subset_pairs(model, table, labels_of(table), 70, 60, 5, executor=DaskWorkers(client))
        assert_same_pairs(pairs, subset_pairs(model, table, labels_of(table), 70, 60, 5))


def test_pairs_survive_a_killed_worker(client, shards, monkeypatch):
    monkeypatch.setattr(executor, "TASK_PAIRS", 10)
    table, model = FileTable(shards, "train"), LogisticModel(D, 2, 1e-3)
    killed = []

    def kill(done, total):
        if not killed:
            killed.append(kill_one(client))

    def make(**how):
        return subset_pairs(model, table, labels_of(table), 200, 100, 5, **how)

    assert_same_pairs(make(executor=DaskWorkers(client), progress=kill), make())
    client.wait_for_workers(2, timeout=60)
    assert killed[0] not in client.run(os.getpid).values()


def test_mistakes_of_pairs_are_one_sentence(client, shards):
    rare, table = rare_class(), FileTable(shards, "train")
    model, labels = LogisticModel(D, 2, 1e-3), labels_of(table)
    with pytest.raises(UserError, match="class 1 is too rare"):
        subset_pairs(LogisticModel(3, 2, 1e-2), rare, rare.y, 60, 3, 1, executor=DaskWorkers(client))
    with pytest.raises(DataError, match="not the file that was fitted"):
        _opened(_Files.of(table)._replace(fingerprint="another"))
    with pytest.raises(UserError, match="workers cannot read a"):
        subset_pairs(model, NotATable(table), labels, 8, 30, 0, executor=DaskWorkers(client))
    table.close()


class NotATable:
    def __init__(self, table):
        self.n, self.d, self.dtype, self.ids = table.n, table.d, table.dtype, table.ids


@pytest.mark.parametrize("head", ["learned", "kme"])
def test_a_fit_with_workers_is_the_fit_without(client, shards, head):
    params = {"m": 60, "s": 200, "t": 10, "head": head, "random_state": 4}
    alone, spread = L2UL("lr", **params).fit(shards), L2UL("lr", **params).fit(shards, client=client)
    np.testing.assert_array_equal(spread.theta, alone.theta)
    held = alone.head.arrays()
    assert spread.head.arrays().keys() == held.keys()
    for name, array in held.items():
        np.testing.assert_array_equal(spread.head.arrays()[name], array, err_msg=name)


# Workers --------------------------------------------------------------------------------------------------------------


def thread_facts():
    import numba
    from threadpoolctl import threadpool_info

    return numba.config.NUMBA_NUM_THREADS, max((pool["num_threads"] for pool in threadpool_info()), default=1)


def test_workers_have_one_thread_each(client):
    assert list(client.run(thread_facts).values()) == [(1, 1)] * 2
    assert {info["nthreads"] for info in client.scheduler_info(n_workers=-1)["workers"].values()} == {1}
    assert client.cluster.scheduler.WORKER_SATURATION == 1  # no task waits with a worker that is busy


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


def test_what_failed_holds_no_file_open():
    """HDF5 hands out the old header of a file that was written anew, as long as anything holds it open."""
    opened = []

    def read(item):
        file = type("File", (), {})()
        opened.append(weakref.ref(file))
        try:
            raise OSError("wrong checksum")
        except OSError as error:
            raise DataError("damaged") from error

    with pytest.raises(DataError, match="damaged") as kept:
        _alone(0, read, None)
    assert opened[0]() is None
    assert kept.value.__context__ is None


MISSES = """
import json
from l2ul_fast import distributed
def misses():
    from l2ul_kernels.voronoi import workers
    from l2ul_fast.datasets.file import chunks
    made = {**vars(workers), "fletcher": chunks._sums}
    made = {name: v for name, v in made.items() if hasattr(v, "stats")}
    return [f"{name} {signature}" for name, v in made.items() for signature in v.stats.cache_misses]
if __name__ == "__main__":
    from l2ul_fast.distributed.cluster import prepare
    with distributed.connect(workers=3) as client:
        prepare(client)
        print(json.dumps(sorted(client.run(misses).values())))
"""


@pytest.mark.slow
def test_the_processes_of_a_host_compile_a_kernel_once(tmp_path):
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
    compiled = [kernel for of_one in json.loads(done.stdout.splitlines()[-1]) for kernel in of_one]
    assert compiled
    assert len(compiled) == len(set(compiled))


@pytest.mark.parametrize(
    ("scheduler", "workers", "words"),
    [
        (None, None, "either the address"),
        ("tcp://127.0.0.1:1", 2, "either the address"),
        (None, 0, "at least 1"),
        ("tcp://127.0.0.1:9", None, "no Dask scheduler answers at"),
        ("nonsense://x", None, "no Dask scheduler answers at"),
    ],
)
def test_connecting_to_nothing_is_one_sentence(scheduler, workers, words, monkeypatch):
    monkeypatch.setattr("l2ul_fast.distributed.cluster.WAIT", 1)
    with pytest.raises(UserError, match=words), distributed.connect(scheduler, workers):
        pass
