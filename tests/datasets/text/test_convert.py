"""Conversion of small originals: checks against the registry, atomicity, SIGKILL, and downloads with a fake server."""

import dataclasses
import errno
import gzip
import hashlib
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import requests
from dataset_files import rows_of
from hostile import own_registry

from l2ul_fast.datasets import registry
from l2ul_fast.datasets.file.hdf5 import open_dataset, verify
from l2ul_fast.datasets.plugin import load_dataset_file
from l2ul_fast.datasets.registry import REGISTRY, RawFile
from l2ul_fast.datasets.text.convert import convert
from l2ul_fast.datasets.text.fetch import fetch
from l2ul_fast.errors import DataError
from l2ul_fast.tables import FileTable

MAGIC = b"1,2,3,4,5,6,7,8,9,10,g\n" * 3 + b"2,3,4,5,6,7,8,9,10,11,h\n" * 2
SUM = hashlib.sha256(MAGIC).hexdigest()


@pytest.fixture
def small_magic(monkeypatch):
    """A registry in which magic has five rows."""
    info = dataclasses.replace(
        REGISTRY["magic"],
        n=5,
        class_counts=(2, 3),
        content_sha256=SUM,
        files=(RawFile("https://example.org/magic04.data", SUM),),
    )
    monkeypatch.setitem(registry.REGISTRY, "magic", info)


@pytest.fixture
def folders(tmp_path):
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw", tmp_path / "data"


@pytest.mark.parametrize("codec", ["none", "bitshuffle-lz4", "zstd"])
def test_convert(small_magic, folders, codec):
    raw, data = folders
    (raw / "magic04.data.gz").write_bytes(gzip.compress(MAGIC))
    seen = []
    path = convert("magic", raw, data, codec, progress=lambda done, total: seen.append((done, total)))
    assert path == data / "magic.h5"
    assert seen[-1] == (5, 5)
    assert verify(path) == []
    with open_dataset(path) as file:
        assert (file.n, file.d, file.label, file.class_counts) == (5, 10, "real", [2, 3])
        assert file.source == f"real:{SUM}"
        assert file.attrs["class_rule"] == REGISTRY["magic"].class_rule
        assert list(file.attrs["columns"]) == list(REGISTRY["magic"].columns)
        X, y = file.read(0, 5)
    assert X[:, 0].tolist() == [1, 1, 1, 2, 2]
    assert y.tolist() == [1, 1, 1, 0, 0]


def test_line_ends_do_not_change_the_checksum(small_magic, folders):
    raw, data = folders
    (raw / "magic04.data").write_bytes(MAGIC.replace(b"\n", b"\r\n"))
    with open_dataset(convert("magic", raw, data)) as file:
        assert file.source == f"real:{SUM}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MAGIC[: -len(b"2,3,4,5,6,7,8,9,10,11,h\n")], "has 4 rows instead of 5"),
        (MAGIC + MAGIC, "has 10 rows instead of 5"),
        (MAGIC[:-8], "line 5 is damaged"),
        (MAGIC.replace(b"10,g", b"9,g"), f"is not the published file .sha256 .* instead of {SUM}"),
        (MAGIC.replace(b"g", b"h", 1), r"has \(3, 2\) rows of class 0 and 1"),
        (b"", "has 0 rows instead of 5"),
        (b"PK\x03\x04 this is not text", "line 1 is damaged"),
        (b"\x89HDF\r\n\x1a\n" + bytes(10000), "line 1 is damaged"),
    ],
)
def test_wrong_files_leave_the_old_one_intact(small_magic, folders, text, message):
    raw, data = folders
    (raw / "magic04.data").write_bytes(MAGIC)
    before = convert("magic", raw, data).read_bytes()
    (raw / "magic04.data").write_bytes(text)
    with pytest.raises(DataError, match=message):
        convert("magic", raw, data)
    assert (data / "magic.h5").read_bytes() == before
    assert os.listdir(data) == ["magic.h5"]


def test_a_part_is_written_as_a_subset_only_on_request(small_magic, folders):
    raw, data = folders
    (raw / "magic04.data").write_bytes(MAGIC[:46])
    path = convert("magic", raw, data, subset=True)
    assert path == data / "magic.subset.h5"
    with open_dataset(path) as file:
        assert (file.n, file.label, file.attrs["original_rows"]) == (2, "subset", 5)
        assert file.source.startswith("subset:")
        assert file.attrs["source_sha256_of"] == "rows"


def test_npz_subset(folders):
    raw, data = folders
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 18)).astype(np.float32), rng.integers(0, 2, 100).astype(np.int8)
    np.savez(raw / "susy_subset.npz", X=X, y=y)
    path = convert("susy", raw, data)
    with open_dataset(path) as file:
        assert path.name == "susy.subset.h5"
        assert file.source == "subset:" + hashlib.sha256((raw / "susy_subset.npz").read_bytes()).hexdigest()
        np.testing.assert_array_equal(file.read(0, 100)[0], X)


def test_complete_npz_must_have_its_checksum(folders):
    raw, data = folders
    np.savez(raw / "sepsis_patient_agg89.npz", X=np.zeros((40336, 89), np.float32), y=np.arange(40336) < 2932)
    with pytest.raises(DataError, match="is not the published file"):
        convert("sepsis", raw, data)


def test_published_archive_is_checked_by_its_own_sum(folders, monkeypatch):
    """Of HIGGS only the sha256 of the .gz is published, so that is what counts."""
    raw, data = folders
    packed = gzip.compress(b"".join(b"%d," % (k % 2) + b",".join([b"%d" % k] * 28) + b"\n" for k in range(1000)))
    file = RawFile("https://example.org/HIGGS.csv.gz", hashlib.sha256(packed).hexdigest())
    monkeypatch.setitem(registry.REGISTRY, "higgs", dataclasses.replace(REGISTRY["higgs"], n=1000, files=(file,)))
    (raw / "HIGGS.csv.gz").write_bytes(packed)
    with open_dataset(convert("higgs", raw, data)) as made:
        assert made.source == f"real:{file.sha256}"
    (raw / "HIGGS.csv.gz").write_bytes(gzip.compress(gzip.decompress(packed), compresslevel=1))
    with pytest.raises(DataError, match="is not the published file"):
        convert("higgs", raw, data)


def test_rows_identify_text_without_a_published_sum(folders, monkeypatch):
    raw, data = folders
    monkeypatch.setitem(registry.REGISTRY, "higgs", dataclasses.replace(REGISTRY["higgs"], n=2))
    sources = []
    for text in (
        "1," + ",".join(["0.5"] * 28) + "\n0," + ",".join(["7"] * 28) + "\n",
        "1," + ",".join(["5e-1"] * 28) + "\n0," + ",".join(["7.0"] * 28) + "\n",
        "1," + ",".join(["0.5"] * 28) + "\n1," + ",".join(["7"] * 28) + "\n",
    ):
        (raw / "HIGGS.csv").write_text(text)
        with open_dataset(convert("higgs", raw, data)) as file:
            assert file.label == "real"
            sources.append(file.source)
    assert sources[0] == sources[1] != sources[2]


def test_killed_at_any_write_then_run_again(tmp_path):
    """The signal that writing beyond RLIMIT_FSIZE sends ends the process like SIGKILL, half-way through a write."""
    old, new = ("".join(f"{k * s},{k % 2}\n" for k in range(50)) for s in (1, 2))
    (tmp_path / "mine.csv").write_text(old)
    script = """
        import os, resource, signal
        from pathlib import Path
        from l2ul_fast.datasets.plugin import load_dataset_file
        made, done = load_dataset_file("mine.csv", ".").path, []
        before = made.read_bytes()
        Path("mine.csv").write_text(open("new.csv").read())
        for limit in range(0, len(before), 700):
            child = os.fork()
            if not child:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                load_dataset_file("mine.csv", ".")
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert os.WTERMSIG(status) == signal.SIGXFSZ, status
            assert made.read_bytes() == before
            done.append(len(list(Path(".").glob(".mine.own.h5.*.tmp"))))
        print(len(done), sum(done))
    """
    (tmp_path / "new.csv").write_text(new)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    kills, left = map(int, done.stdout.split() or pytest.fail(done.stderr))
    assert kills == left > 10  # each left its half file, and removed that of the one before
    with own_registry():
        path = load_dataset_file(tmp_path / "mine.csv", tmp_path).path
    assert sorted(os.listdir(tmp_path)) == ["mine.csv", "mine.own.h5", "new.csv"]
    assert verify(path) == []
    assert rows_of(path)[0][3, 0] == 6


def test_a_folder_that_takes_no_file_is_one_sentence(small_magic, folders):
    raw, _ = folders
    (raw / "magic04.data").write_bytes(MAGIC)
    for folder in ("/proc/nowhere", "/proc/self", raw / "magic04.data"):
        with pytest.raises(
            DataError, match=r"cannot write .*magic\.h5: (No such|Permission|Not a dir|Operation not|File ex)"
        ):
            convert("magic", raw, folder)


def test_a_read_error_is_one_sentence(small_magic, folders, monkeypatch):
    raw, data = folders
    (raw / "magic04.data").write_bytes(MAGIC)
    path = convert("magic", raw, data)

    def failing(*args):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "preadv", failing)
    assert verify(path) == [f"{path} is damaged in rows 0..4 (checksum or read error): make the file again"]
    with pytest.raises(DataError, match=r"magic\.h5 is damaged in rows 0\.\.4"):
        FileTable(path)


def test_a_failed_write_to_disk_is_noticed_at_once(small_magic, folders, monkeypatch):
    """The system reports it to one fsync only, and the first one runs beside the conversion."""
    raw, data = folders
    (raw / "magic04.data").write_bytes(MAGIC)
    before = convert("magic", raw, data).read_bytes()
    calls, fsync = [], os.fsync

    def failing(handle):
        calls.append(handle)
        if len(calls) == 1:
            raise OSError(errno.EIO, "broken")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(DataError, match=r"cannot write .*: Input/output error"):
        convert("magic", raw, data)
    assert (data / "magic.h5").read_bytes() == before
    assert os.listdir(data) == ["magic.h5"]


# --- fetch -------------------------------------------------------------------------------------------------------


class FakeAnswer:
    def __init__(self, body: bytes, status: int = 200) -> None:
        self.body, self.status_code = body, status
        self.headers = {"content-length": str(len(body))}

    def raise_for_status(self):
        if self.status_code != 200:
            raise requests.HTTPError("refused", response=self)

    def iter_content(self, chunk_size):
        yield from (self.body[k : k + 16] for k in range(0, len(self.body), 16))

    def close(self):
        pass


def serve(monkeypatch, answer):
    asked = []

    def get(url, **options):
        asked.append(url)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(requests, "get", get)
    return asked


def test_fetch_stores_a_checked_file_and_does_not_ask_twice(small_magic, folders, monkeypatch):
    raw, data = folders
    asked = serve(monkeypatch, FakeAnswer(MAGIC))
    seen = []
    found = fetch("magic", raw, progress=lambda done, total: seen.append((done, total)))
    assert found.path == raw / "magic" / "magic04.data"
    assert found.path.read_bytes() == MAGIC
    assert seen[-1][0] == len(MAGIC)
    assert fetch("magic", raw).path == found.path
    assert asked == ["https://example.org/magic04.data"]
    assert verify(convert("magic", raw, data)) == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (requests.ConnectionError("offline"), "could not be downloaded from .* .no connection.: .* put it into"),
        (requests.Timeout("slow"), "no connection"),
        (FakeAnswer(b"", 404), "the server answered 404"),
        (FakeAnswer(b"<html>moved</html>"), "has another sha256"),
        (FakeAnswer(MAGIC[:-1]), "has another sha256"),
    ],
)
def test_failed_downloads_keep_nothing(small_magic, folders, monkeypatch, answer, message):
    raw, _ = folders
    serve(monkeypatch, answer)
    with pytest.raises(DataError, match=message):
        fetch("magic", raw)
    assert [path for path in raw.rglob("*") if path.is_file()] == []


class Breaking(FakeAnswer):
    """Sends some bytes of a marked file, then the connection breaks."""

    def __init__(self, body: bytes, stop: int | None, status: int = 200, mark: str = '"v1"') -> None:
        super().__init__(body, status)
        self.stop = stop
        self.headers["etag"] = mark

    def raise_for_status(self):
        pass

    def iter_content(self, chunk_size):
        yield self.body[: self.stop]
        if self.stop is not None:
            raise requests.ConnectionError("broken")


@pytest.mark.parametrize("same", [True, False])
def test_an_interrupted_download_goes_on(small_magic, folders, monkeypatch, same):
    raw, _ = folders
    serve(monkeypatch, Breaking(MAGIC, 40))
    with pytest.raises(DataError, match="no connection"):
        fetch("magic", raw)
    sent = []

    def get(url, headers, **options):
        sent.append(headers)
        return Breaking(MAGIC[40:], None, 206) if same else Breaking(MAGIC, None, mark='"v2"')

    monkeypatch.setattr(requests, "get", get)
    assert fetch("magic", raw).path.read_bytes() == MAGIC  # and its checksum was right
    assert sent == [{"Range": "bytes=40-", "If-Range": '"v1"'}]
    assert [path.name for path in (raw / "magic").iterdir()] == ["magic04.data"]


def test_a_subset_does_not_replace_a_download(folders, monkeypatch):
    raw, _ = folders
    np.savez(raw / "higgs_subset.npz", X=np.zeros((3, 28), np.float32), y=np.array([0, 1, 1]))
    asked = serve(monkeypatch, requests.ConnectionError("offline"))
    with pytest.raises(DataError, match=r"HIGGS\.csv\.gz could not be downloaded"):
        fetch("higgs", raw)
    assert asked == [REGISTRY["higgs"].files[0].url]
