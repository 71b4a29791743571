"""Dataset files: bytes edited; attributes, datasets and links replaced; rows and labels that are none."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from engine import Lie
from hypothesis import strategies as st
from strange import edited, edits, listed, values

MODULES = tuple(f"l2ul_fast/datasets/{name}.py" for name in ("file/hdf5", "file/table", "file/layout", "stream/shards"))
ATTRIBUTES = listed("""
    format | format_version | name | source | n | d | classes | class_counts | mean | variance | scale | split_rule |
    split_seed | n_train | columns
""")
N, D = 400, 3
NUMBERS = ("nan", "inf", "-inf", "1e300", "-1", "0", "3", "255", "2**40", "1e-320")
#: Ways to replace a dataset of the file; some need h5py's virtual and external storage.
WAYS = listed("""
    gone | group | type | soft | external link | external file | virtual | scalar | empty | huge | unwritten |
    float64 | float16 | int32 | int64 | complex | text | compound | bool | wide | flat | short | long | gzip | plain |
    chunked otherwise | big-endian | fletcher
""")


@functools.cache
def corpus() -> Path:
    """A sound file, and a second one with other rows to point links at."""
    from l2ul_fast.datasets import DatasetWriter

    place = Path(tempfile.mkdtemp(prefix="l2ul-fuzz-"))
    rng = np.random.default_rng(3)
    for name in ("rows.h5", "other.h5"):
        X = rng.normal(size=(N, D)).astype(np.float32)
        with DatasetWriter(place / name, name="higgs", source="standin:1:0", d=D, classes=[0, 1]) as writer:
            writer.append(X, (X[:, 0] + rng.normal(size=N) > 0).astype(np.uint8))
    return place


def prepare() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run([], Path(folder))


def cases() -> Any:
    change = st.one_of(
        st.tuples(st.just("bytes"), edits, st.none()),
        st.tuples(st.just("attribute"), st.sampled_from(ATTRIBUTES), values | st.sampled_from(NUMBERS)),
        st.tuples(st.just("attribute"), st.sampled_from(ATTRIBUTES), st.just("delete")),
        st.tuples(
            st.just("entry"),
            st.sampled_from(("mean", "scale", "variance", "classes", "class_counts")),
            st.sampled_from(NUMBERS),
        ),
        st.tuples(st.just("dataset"), st.sampled_from(("X", "y")), st.sampled_from(WAYS)),
        st.tuples(st.just("row"), st.integers(0, N - 1), st.sampled_from(NUMBERS)),
        st.tuples(st.just("label"), st.integers(0, N - 1), st.sampled_from(("1", "2", "7", "255"))),
    )
    return st.lists(change, max_size=2)


def number(text: Any) -> Any:
    """A number that is written as text, everything else as it is."""
    return eval(text, {"nan": np.nan, "inf": np.inf, "__builtins__": {}}) if text in NUMBERS else text  # noqa: S307


def change(path: Path, what: str, where: Any, how: Any) -> None:
    import h5py

    if what == "bytes":
        path.write_bytes(edited(path.read_bytes(), where))
        return
    with h5py.File(path, "r+") as file, np.errstate(all="ignore"):
        if what == "attribute":
            del file.attrs[where]
            if how != "delete":
                file.attrs[where] = number(how)
        elif what == "entry":
            held = np.asarray(file.attrs[where]).astype(np.float64)
            held[len(held) // 2] = number(how)
            file.attrs[where] = held
        elif what == "row":
            file["X"][where, 1] = number(how)
        elif what == "label":
            file["y"][where] = int(how)
        else:
            replace(file, where, how, path.parent)


def replace(file: Any, name: str, how: str, folder: Path) -> None:
    """Another thing in place of a dataset."""
    import h5py

    held, chunks = file[name][()], file[name].chunks
    other = str(corpus() / "other.h5")
    del file[name]
    types = {
        "float64": "f8",
        "float16": "f2",
        "int32": "i4",
        "int64": "i8",
        "complex": "c8",
        "bool": "?",
        "big-endian": ">f4",
    }
    shapes = {"wide": (N, D + 1), "flat": (N * D,), "short": (N - 1, *held.shape[1:]), "long": (N + 1, *held.shape[1:])}
    if how == "group":
        file.create_group(name)
    elif how == "type":
        file[name] = np.dtype("f8")
    elif how == "soft":
        file["elsewhere"] = held
        file[name] = h5py.SoftLink("/elsewhere")
    elif how == "external link":
        file[name] = h5py.ExternalLink(other, name)
    elif how == "external file":
        (folder / "raw").write_bytes(held.tobytes())
        file.create_dataset(name, held.shape, held.dtype, external=[(str(folder / "raw"), 0, held.nbytes)])
    elif how == "virtual":
        layout = h5py.VirtualLayout(held.shape, held.dtype)
        layout[:] = h5py.VirtualSource(other, name, held.shape)
        file.create_virtual_dataset(name, layout)
    elif how == "scalar":
        file[name] = 1.0
    elif how == "empty":
        file[name] = h5py.Empty("f4")
    elif how in ("huge", "unwritten"):
        n = 2**31 if how == "huge" else N
        file.create_dataset(name, (n, *held.shape[1:]), held.dtype, chunks=chunks)
        if how == "huge":
            file.attrs["n"] = n
    elif how == "text":
        file[name] = np.full(held.shape, b"1", "S1")
    elif how == "compound":
        file[name] = np.zeros(held.shape, [("a", "f4")])
    elif how in types:
        file.create_dataset(name, data=held.astype(types[how]), chunks=chunks)
    elif how in shapes:
        file.create_dataset(name, data=np.resize(held, shapes[how]), chunks=True)
    elif how == "gzip":
        file.create_dataset(name, data=held, chunks=chunks, compression="gzip")
    elif how == "fletcher":
        file.create_dataset(name, data=held, chunks=chunks, fletcher32=True)
    elif how == "plain":
        file[name] = held
    elif how == "chunked otherwise":
        file.create_dataset(name, data=held, chunks=(7, *held.shape[1:]))


def run(case: Any, folder: Path) -> None:
    from l2ul_fast import L2UL
    from l2ul_fast.datasets import verify
    from l2ul_fast.datasets.stream import sample_partitions, stream_counts
    from l2ul_fast.tables import FileTable, in_memory

    path = folder / "rows.h5"
    path.write_bytes((corpus() / "rows.h5").read_bytes())
    for what, where, how in case:
        try:
            change(path, what, where, how)
        except Exception:  # what h5py cannot write is no case
            continue
    found = verify(path)
    if not case and found:
        raise Lie(f"a sound file is called damaged: {found}")
    problems = []

    def fit() -> None:
        u = L2UL("lr", random_state=0).fit(path, part="all")
        if not np.isfinite(u.theta).all():
            raise Lie("a fit of the file is not finite")
        if u.n > path.stat().st_size:
            raise Lie(f"{u.n} rows were fitted from {path.stat().st_size} bytes")

    def table() -> None:
        held = FileTable(path, "train")
        try:
            rows = in_memory(held)
            if not np.isfinite(rows.X).all() or rows.y.max() >= len(rows.classes):
                raise Lie("rows of the table are not finite, or their labels no classes")
        finally:
            held.close()

    for call in (table, fit, lambda: stream_counts(path, sample_partitions(path, random_state=0), by_class=True)):
        try:
            call()
        except (ValueError, TypeError) as error:
            problems.append(error)
    if not found and problems:
        raise Lie(f"verify calls a file sound of which is said: {problems[0]}")
    if problems:
        raise problems[0]
