"""Hostile data files: valid ones, mutated by a seed, and what a reader may do with them.

A case is (target, seed). `run(target, seed, folder)` makes its file, reads it in every way the package has and returns
what is wrong, or None: it must be refused in one sentence (a DataError), or be accepted and hold what a slow reader
finds in it, within SECONDS and BYTES. HDF5 may end the process, so a test calls `run_all`, which uses a child process.
"""

import bz2
import contextlib
import faulthandler
import gzip
import io
import json
import lzma
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from functools import cache
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from l2ul_fast.datasets import registry
from l2ul_fast.datasets.file import check, writer
from l2ul_fast.datasets.file.hdf5 import DatasetWriter, open_dataset, verify
from l2ul_fast.datasets.plugin import load_dataset_file
from l2ul_fast.datasets.sets.sepsis import HOURLY
from l2ul_fast.datasets.stream.cellstore import CellStore, stream_cells
from l2ul_fast.datasets.stream.manifest import Manifest, describe, load
from l2ul_fast.datasets.stream.stream import sample_partitions, stream_counts
from l2ul_fast.datasets.text.rawfiles import find_raw, read_rows
from l2ul_fast.errors import DataError
from l2ul_fast.tables import FileTable

SECONDS, BYTES = 10, 1 << 30
N, D = 300, 4
rng = np.random.default_rng(0)
X = rng.normal(size=(N, D)).round(3).astype(np.float32)
Y = np.arange(N) % 2
WORDS = np.array(["no", "yes"])[Y]
CSV = "".join(",".join(map(repr, map(float, row))) + f",{word}\n" for row, word in zip(X, WORDS, strict=True)).encode()
SVM = "".join(f"{k} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) + "\n" for row, k in zip(X, Y, strict=True))


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes flipped, overwritten, left out, doubled or cut off."""
    if not data:
        return rng.bytes(10)
    out = bytearray(data)
    kind = rng.integers(6)
    a, b = sorted(int(k) for k in rng.integers(0, len(data) + 1, 2))
    b = min(b, a + int(rng.integers(1, 200)))
    if kind <= 2:
        for k in rng.integers(0, len(data), 1 << rng.integers(5)):
            out[k] ^= 1 << rng.integers(8)
    elif kind == 3:
        del out[a:]
    elif kind == 4:
        out[a:b] = rng.choice([bytes(b - a), b"\xff" * (b - a), rng.bytes(b - a)])
    else:
        out[a:b] = bytes(out[a:b]) * 2 if rng.random() < 0.5 else b""
    return bytes(out)


# --- dataset files -------------------------------------------------------------------------------------------------

ODD = (
    *(0, 1, -1, 2**31, 2**40, 2**63 - 1, 299, 301, 3000.5, 300.0, np.nan, np.inf, -np.inf, 1e300, 1e-320, 1e-30, True),
    *("", "3000", "x" * 5000, "a\nb", b"bytes", np.uint64(2**64 - 1), 1j, np.void(b"12"), h5py.Empty("f8")),
)
ATTRIBUTES = ("n", "d", "classes", "class_counts", "mean", "variance", "scale", "split_seed", "n_train")
TEXTS = ("columns", "format", "format_version", "name", "source", "split_rule")


def odd_value(rng: np.random.Generator):
    """Something no attribute of this name holds."""
    value = ODD[rng.integers(len(ODD))]
    shape = [(), (1,), (2,), (D,), (D + 1,), (2, 2), (0,), (8000,)][rng.integers(8)]
    if shape and isinstance(value, int | float) and not isinstance(value, bool):
        return np.full(shape, value)
    return value


def lie(file: h5py.File, rng: np.random.Generator) -> None:
    """One attribute is another one."""
    name = str(rng.choice(ATTRIBUTES * 3 + TEXTS))
    kind = rng.integers(4)
    if kind == 0:
        del file.attrs[name]
    elif kind == 1 and name in ATTRIBUTES:
        with contextlib.suppress(TypeError):
            value = np.array(file.attrs[name])
            value.flat[rng.integers(value.size)] *= rng.choice([0, -1, 2, 3])
            file.attrs[name] = value
    else:
        file.attrs[name] = odd_value(rng)


REPLACEMENTS = 15
STILL_TRUE = 13  # the one that leaves the same rows


def replace(file: h5py.File, name: str, kind: int, rng: np.random.Generator, folder: Path) -> None:
    """X or y is no dataset of this file's own, or another one."""
    old = file[name][:]
    del file[name]
    chunks = {"chunks": (64, *old.shape[1:]), "fletcher32": True}
    if kind == 0:
        file.create_group(name)
    elif kind == 1:
        file[name] = np.dtype("f4")
    elif kind == 2:
        file[name] = h5py.SoftLink(str(rng.choice(["/nowhere", "/" + name, "/other"])))
        file.create_dataset("other", data=old, **chunks)
    elif kind == 3:
        with h5py.File(folder / "other.h5", "w") as other:
            other.create_dataset(name, data=old, **chunks)
        file[name] = h5py.ExternalLink(str(folder / "other.h5"), name)
    elif kind == 4:
        with h5py.File(folder / "other.h5", "w") as other:
            other.create_dataset(name, data=old, **chunks)
        layout = h5py.VirtualLayout(old.shape, old.dtype)
        layout[:] = h5py.VirtualSource(str(folder / "other.h5"), name, old.shape)
        file.create_virtual_dataset(name, layout)
    elif kind == 5:
        file.create_dataset(name, data=old, external=[(str(folder / "other.bin"), 0, h5py.h5f.UNLIMITED)])
    elif kind == 6:
        file.create_dataset(name, old.shape, old.dtype, **chunks)  # never written
    elif kind in (7, 8):
        n = int(rng.choice([2**31, 2**40]))
        file.create_dataset(name, (n, *old.shape[1:]), old.dtype, **chunks)
        if kind == 7:
            other = "y" if name == "X" else "X"
            shape, dtype = file[other].shape[1:], file[other].dtype
            del file[other]
            file.create_dataset(other, (n, *shape), dtype, chunks=(64, *shape), fletcher32=True)
            file.attrs.update({"n": n, "class_counts": [n // 2, n // 2]})
    elif kind == 9:
        dtype = rng.choice(["f8", "f2", "i4", "S3", "c8", ">f4", "u2", "b1"])
        file.create_dataset(name, data=old.astype(dtype), **chunks)
    elif kind == 10:
        file[name] = old if rng.random() < 0.5 else old.ravel()[0]  # not in chunks, one number
    elif kind == 11:
        old.flat[rng.integers(old.size)] = [np.nan, np.inf, -np.inf][rng.integers(3)] if name == "X" else 7
        file.create_dataset(name, data=old, **chunks)
    elif kind == 12:
        zeros = np.zeros((2_000_000, *old.shape[1:]), old.dtype)
        file.create_dataset(name, data=zeros, chunks=(1_000_000, *old.shape[1:]), compression="gzip")
    elif kind == STILL_TRUE:
        made = file.create_dataset(name, (640, *old.shape[1:]), old.dtype, maxshape=(None, *old.shape[1:]), **chunks)
        made[:] = np.resize(old, made.shape)
        made.resize(N, axis=0)
    else:
        file.create_dataset(name, data=old * 2 if rng.random() < 0.5 else old[:-1], **chunks)


@cache
def valid_file(codec: str = "none") -> bytes:
    """A dataset file: N rows in chunks of 64."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(writer, "chunk_rows", return_value=64):
        path = Path(folder) / "a.h5"
        extra = {"columns": list("abcd")}
        with DatasetWriter(
            path, name="toy", source="standin:1:0", d=D, classes=[0, 1], codec=codec, extra_attrs=extra
        ) as made:
            made.append(X, Y)
        return path.read_bytes()


@cache
def valid_cells() -> bytes:
    """The cell store of that file."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "a.h5"
        data.write_bytes(valid_file())
        return stream_cells(data, sample_partitions(data, 5, 4, random_state=0)).read_bytes()


def make_h5(path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(valid_file(str(rng.choice(["none", "none", "zstd", "bitshuffle-lz4"]))))
    kind = rng.integers(4)
    if kind <= 1:
        path.write_bytes(damaged(path.read_bytes(), rng))
        return
    with h5py.File(path, "r+") as file:
        if kind == 2:
            lie(file, rng)
        else:
            replace(file, str(rng.choice(["X", "y"])), int(rng.integers(REPLACEMENTS)), rng, path.parent)


def read_h5(path: Path) -> None:
    """As verify, fit and kme read it: what one refuses, verify must not call sound."""
    findings = verify(path)
    refused = False
    try:
        table = FileTable(path, "all")
        try:
            parts = [(A.copy(), b.copy()) for A, b in table.blocks()]
            rows = table.take(np.arange(table.n)[:: max(1, table.n // 50)])[0]
            assert all(np.isfinite(A).all() for A, _ in parts), "rows that are not finite"
            assert np.isfinite(rows).all(), "rows taken by number that are not finite"
            labels = [table.classes[k] for _, b in parts for k in b]
        finally:
            table.close()
        with own_registry():
            load_dataset_file(path)
        partitions = sample_partitions(path, 3, 4, random_state=0)
        counts = stream_counts(path, partitions, by_class=True)
        assert counts.sum() == 3 * table.n, "counts that do not add up"
    except DataError as error:
        refused = True
        one_sentence(error)
    for finding in findings:
        one_sentence(finding)
    assert findings or not refused, "verify calls sound what is refused"
    if not findings:
        with open_dataset(path) as data:
            A, b = data.read(0, data.n)
        assert np.array_equal(A, X), "other rows"
        assert np.array_equal(b, Y), "other labels"
        assert labels == Y.tolist(), "labels of other classes"


# --- cell stores ---------------------------------------------------------------------------------------------------


def make_cells(path: Path, rng: np.random.Generator) -> None:
    data = path.with_name("data.h5")
    data.write_bytes(valid_file())
    path.write_bytes(valid_cells())
    kind = rng.integers(3)
    if kind == 0:
        path.write_bytes(damaged(path.read_bytes(), rng))
        return
    with h5py.File(path, "r+") as file:
        if kind == 1:
            file.attrs[str(rng.choice(["n", "t", "psi", "format", "label", "fingerprint"]))] = odd_value(rng)
        else:
            name = str(rng.choice(["cells", "seeds", "row_ids", "mean", "scale"]))
            old = file[name][()]
            del file[name]
            bad = [np.full_like(old, 255), np.full(old.shape, np.nan), old[..., :-1], old.astype(str).astype("S")]
            file[name] = bad[rng.integers(4)] if rng.random() < 0.8 else h5py.SoftLink("/seeds")


def read_cells(path: Path) -> None:
    data = path.with_name("data.h5")
    try:
        with CellStore(path, data) as store:
            cells = store.cells(np.arange(store.n))
    except DataError as error:
        one_sentence(error)
        return
    assert cells.shape == (N, store.t), "cells of other rows"
    assert (cells < store.psi).all(), "cells beyond psi"


# --- files of one's own, and originals -----------------------------------------------------------------------------

PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
ODD_TEXT = [
    b"",
    b"\0",
    b",",
    b"\r",
    b"\n\n",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b'"',
    b" ",
    b"\t",
    b"\xc3\xa9",
    b"\x1a",
    b";",
]
ODD_TEXT += [b"nan", b"inf", b"1e999", b"1_0", b"0x1", b"-", b"9" * 400]


def odd_text(text: bytes, rng: np.random.Generator) -> bytes:
    """Text with something in it that no table holds."""
    kind = rng.integers(9)
    if kind <= 4:
        k = int(rng.integers(len(text) + 1))
        return text[:k] + ODD_TEXT[rng.integers(len(ODD_TEXT))] + text[k:]
    if kind == 5:
        return text.decode("latin-1").encode(str(rng.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])))
    if kind == 6:
        return text.replace(b"\n", [b"\r\n", b"\r", b"\n\r", b"\n\n"][rng.integers(4)], int(rng.choice([-1, 3])))
    if kind == 7:
        return text[:700] + b"1" * 5_000_000 + text[700:]
    return text * int(rng.choice([0, 1, 2]))


def make_csv(path: Path, rng: np.random.Generator) -> None:
    text = CSV if rng.random() < 0.5 else b"a,b,c,d,class\n" + CSV
    suffix = str(rng.choice(list(PACK)))
    if suffix and rng.random() < 0.7:
        data = damaged(PACK[suffix](text), rng)
        if rng.random() < 0.1:
            data = PACK[suffix](b"1,2,3,4,a\n" * 500_000) if suffix != ".xz" else data
    else:
        data = PACK[suffix](odd_text(text, rng) if rng.random() < 0.7 else damaged(text, rng))
    path.with_name("case.csv" + suffix).write_bytes(data)


def npy(shape, dtype="'<f4'", body=b"", order="False") -> bytes:
    """A .npy file that may lie about its shape."""
    head = f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    head += b" " * (63 - (10 + len(head)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + body


SHAPES = ["(300, 4)", "(300, 18)", "(2147483648, 4)", "(1099511627776, 4)", "(-1, 4)", "(300,)", "()", "(0, 4)"]
TYPES = ["'<f4'", "'|O'", "'<f8'", "'<c8'", "'<M8[D]'", "'<U4'", "'|V16'", "[('a', '<f4')]", "'<f2'", "'nonsense'"]
LABELS = npy("(300,)", "'|u1'", Y.astype(np.uint8).tobytes())


def make_npz(path: Path, rng: np.random.Generator) -> None:
    packed = io.BytesIO()
    if rng.random() < 0.5:
        np.savez_compressed(packed, X=X, y=WORDS)
        data = damaged(packed.getvalue(), rng)
    else:
        lie = npy(rng.choice(SHAPES), rng.choice(TYPES), X.tobytes(), str(rng.choice(["False", "True", "1e9"])))
        both = [("X.npy", lie), ("y.npy", LABELS)] if rng.random() < 0.8 else [("X.npy", LABELS), ("y.npy", lie)]
        data = zipped((both + both[:1])[: int(rng.choice([1, 2, 2, 2, 3]))])
    path.with_name("case.npz").write_bytes(data)


def make_parquet(path: Path, rng: np.random.Generator) -> None:
    packed = io.BytesIO()
    columns = {f"c{j}": X[:, j] for j in range(D)}
    if rng.random() < 0.3:
        odd = [WORDS, pa.nulls(N), [[1]] * N, [{"a": 1}] * N, np.full(N, np.nan), np.arange(N).astype("M8[s]")]
        columns["c1"] = odd[rng.integers(len(odd))]
    labels = [WORDS, pa.nulls(N), [[1]] * N, np.arange(N).astype("M8[s]"), np.full(N, np.nan)]
    label = WORDS if rng.random() < 0.8 else labels[rng.integers(len(labels))]
    pq.write_table(pa.table({**columns, "class": label}), packed)
    data = packed.getvalue()
    path.with_name("case.parquet").write_bytes(damaged(data, rng) if rng.random() < 0.8 else data)


def make_foreign(path: Path, rng: np.random.Generator) -> None:
    path = path.with_name("case.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(64, D) if rng.random() < 0.5 else None)
        file.create_dataset("y", data=WORDS.astype("S"), chunks=(64,))
        if rng.random() < 0.5:
            replace(file, "X", int(rng.integers(REPLACEMENTS)), rng, path.parent)
            return
    path.write_bytes(damaged(path.read_bytes(), rng))


@contextlib.contextmanager
def own_registry():
    """Datasets that are registered meanwhile are forgotten again."""
    known = dict(registry.REGISTRY)
    try:
        yield
    finally:
        registry.REGISTRY.clear()
        registry.REGISTRY.update(known)


def read_own(path: Path) -> None:
    """As `l2ul data convert FILE` does; an accepted file becomes a sound one that holds what a slow reader reads."""
    (case,) = path.parent.glob("case.*")
    try:
        with own_registry():
            info = load_dataset_file(case, path.parent / "data")
    except DataError as error:
        one_sentence(error)
        assert not list((path.parent / "data").glob("*")), "something is left"
        return
    assert info.path is not None
    assert verify(info.path) == [], "the file made is not sound"
    expected = slow_rows(case)
    if expected is not None:
        with open_dataset(info.path) as data:
            A, _ = data.read(0, data.n)
        assert np.array_equal(A, expected), "other rows than a slow reader finds"


def slow_rows(case: Path) -> np.ndarray | None:
    """X by other means, where there are any."""
    suffixes = "".join(case.suffixes)
    if suffixes.startswith(".csv"):
        text = (case.read_bytes() if suffixes == ".csv" else open_packed(case)).decode("utf-8-sig", "replace")
        lines = [line.split(",") for line in text.splitlines() if line.strip()]
        names = lines[0][0].strip().isalpha() and lines[0][1].strip().isalpha()
        return np.array([[float(f) for f in line[:-1]] for line in lines[names:]]).astype(np.float32)
    if suffixes == ".npz":
        with np.load(case) as archive:
            return archive["X"].astype(np.float32)
    return None


def open_packed(case: Path) -> bytes:
    """The text of a packed file."""
    unpack = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}[case.suffix]
    return unpack(case.read_bytes())


MAGIC = b"".join(
    b",".join(b"%.3f" % v for v in np.resize(row, 10)) + (b",h\n", b",g\n")[k] for row, k in zip(X, Y, strict=True)
)
ADULT = b"39, ?, 7, Bachelors, 13, Never-married, Adm-clerical, Unmarried, White, Male, 2174, 0, 40, Cuba, <=50K\n"
PSV = "|".join((*HOURLY, "SepsisLabel")).encode() + b"\n" + (b"|".join(b"%d" % k for k in range(40)) + b"|1\n") * 3


def zipped(members: list[tuple[str, bytes]]) -> bytes:
    """A zip archive; a name may come twice."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings(action="ignore"):
        for name, data in members:
            archive.writestr(name, data)
    return packed.getvalue()


def make_original(path: Path, rng: np.random.Generator) -> None:
    """Originals of the paper's sets: text, packed text, zips, many files, arrays."""
    raw = path.with_name("raw")
    raw.mkdir()
    kind = rng.integers(6)

    def text(sound: bytes) -> bytes:
        return [odd_text, damaged, lambda data, rng: data][rng.integers(3)](sound, rng)

    def either(sound: bytes) -> bytes:
        return damaged(sound, rng) if rng.random() < 0.6 else sound

    if kind == 0:
        names = ["magic04.data", "a/magic04.data", "../magic04.data", "/magic04.data", "magic04.data.gz", "x.txt"]
        chosen = [str(name) for name in rng.choice(names, int(rng.integers(1, 4)))]
        members = [(name, gzip.compress(text(MAGIC)) if name.endswith("gz") else text(MAGIC)) for name in chosen]
        (raw / "magic04.data.zip").write_bytes(either(zipped(members)))
    elif kind in (1, 2):
        suffix = str(rng.choice(list(PACK)))
        name, sound = ("magic04.data", MAGIC) if kind == 1 else ("adult.data", ADULT * 50)
        (raw / f"{name}{suffix}").write_bytes(either(PACK[suffix](text(sound))))
    elif kind == 3:
        patients = [
            (f"training/p{k * (rng.random() < 0.97):06d}.psv", text(PSV) if rng.random() < 0.2 else PSV)
            for k in range(5)
        ]
        if rng.random() < 0.7:
            (raw / "training_setA.zip").write_bytes(either(zipped(patients)))
        else:
            (raw / "training").mkdir()
            for name, data in patients:
                (raw / name).write_bytes(data)
    elif kind == 4:
        (raw / "susy").write_bytes(text(SVM.replace("\n", "".join(f" {j}:1" for j in range(5, 19)) + "\n").encode()))
    else:
        packed = io.BytesIO()
        np.savez_compressed(packed, X=np.resize(X, (N, 18)), y=Y)
        lie = npy(rng.choice(SHAPES), rng.choice(TYPES), np.resize(X, (N, 18)).tobytes())
        data = packed.getvalue() if rng.random() < 0.5 else zipped([("X.npy", lie), ("y.npy", LABELS)])
        (raw / "susy_subset.npz").write_bytes(either(data))


def read_original(path: Path) -> None:
    raw = path.with_name("raw")
    name = next((name for name in ("magic", "adult", "susy") if list(raw.glob(name + "*"))), "sepsis")
    try:
        for A, b in read_rows(find_raw(name, raw)):
            assert A.dtype == np.float32, "rows of another type"
            assert len(A) == len(b), "rows without labels"
            assert np.isin(b, (0, 1)).all(), "labels of no class"
            assert np.isfinite(A).all() or name == "susy", "rows that are not finite"
    except DataError as error:
        one_sentence(error)


# --- manifests of shards -------------------------------------------------------------------------------------------


def make_manifest(path: Path, rng: np.random.Generator) -> None:
    data = path.with_name("data.h5")
    data.write_bytes(valid_file())
    Manifest([describe(str(data))]).save(path)
    text = path.read_bytes()
    if rng.random() < 0.5:
        path.write_bytes(damaged(text, rng) if rng.random() < 0.8 else b"[" * 100_000)
        return
    facts = json.loads(text)
    odd = [None, True, -1, 0, 2**70, 1.5, "", "x" * 5000, "a\0b", [], [1], {}, {"a": 1}, float("nan"), float("inf")]
    where = facts if rng.random() < 0.3 else facts["shards"][0]
    where[str(rng.choice(list(where)))] = odd[rng.integers(len(odd))]
    path.write_text(json.dumps(facts))


def read_manifest(path: Path) -> None:
    """As `l2ul kme MANIFEST` does: what it says must still be what the shards say."""
    try:
        shards = load(path)
        if shards != [describe(shard.path) for shard in shards]:
            return
        Manifest(shards)
    except DataError as error:
        one_sentence(error)
        return
    assert [shard.n for shard in shards] == [N], "other rows"


TARGETS = {
    "h5": (make_h5, read_h5),
    "cells": (make_cells, read_cells),
    "csv": (make_csv, read_own),
    "npz": (make_npz, read_own),
    "parquet": (make_parquet, read_own),
    "foreign": (make_foreign, read_own),
    "original": (make_original, read_original),
    "manifest": (make_manifest, read_manifest),
}


def one_sentence(error: object) -> None:
    text = str(error)
    assert text, "an empty message"
    assert "\n" not in text, f"more than a line: {text[:200]!r}"
    assert len(text) < 5000, f"a message of {len(text)} characters"


def run(target: str, seed: int, folder: Path) -> str | None:
    """What is wrong with case `seed` of a target, or None; `folder` is used and emptied again."""
    make, read = TARGETS[target]
    case = Path(tempfile.mkdtemp(dir=folder))
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        make(case / "case.h5" if target == "h5" else case / "cells.h5", np.random.default_rng([seed, len(target)]))
        begin = time.monotonic()
        with mock.patch.object(check, "BOMB_BYTES", 4 << 20):  # small bombs are as good as large ones
            read(case / "case.h5" if target == "h5" else case / "cells.h5")
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        shutil.rmtree(case)
    if time.monotonic() - begin > SECONDS:
        return f"it took {time.monotonic() - begin:.0f} s"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return f"it took {grown / 2**20:.0f} MB" if grown > BYTES else None


def run_all(targets: list[str], first: int, count: int, folder: Path) -> list[str]:
    """Findings of `count` cases of each target, from seed `first` on, run by a child process."""
    todo = [(target, seed) for target in targets for seed in range(first, first + count)]
    found = []
    while todo:
        words = [f"{target}:{seed}" for target, seed in todo]
        child = subprocess.run(
            [sys.executable, __file__, str(folder)], input=json.dumps(words), capture_output=True, text=True
        )
        lines = [json.loads(line) for line in child.stdout.splitlines()]
        found += [f"{word}: {wrong}" for word, wrong in lines if wrong not in (None, "begun")]
        done = {word for word, wrong in lines if wrong != "begun"}
        if child.returncode == 0:
            break
        died = next(word for word, wrong in reversed(lines) if wrong == "begun")
        found.append(f"{died}: the process ended with {child.returncode}: {child.stderr.strip()[:500]}")
        todo = [(t, s) for t, s in todo if f"{t}:{s}" not in done | {died}]
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    os.fsync = lambda fd: None  # no waiting for the disk
    out = os.fdopen(os.dup(1), "w", buffering=1)
    for word in json.load(sys.stdin):
        target, seed = word.split(":")
        print(json.dumps([word, "begun"]), file=out)
        faulthandler.dump_traceback_later(3 * SECONDS, exit=True)
        wrong = run(target, int(seed), folder)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps([word, wrong]), file=out)


if __name__ == "__main__":
    main()
