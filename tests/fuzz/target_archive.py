"""Packed originals and packed files of one's own: zip, gz, bz2, xz, npz, parquet; damaged, hollow, nested, enormous."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from engine import Lie
from hypothesis import strategies as st
from strange import edited, edits
from target_text import SETS, sepsis_lines

MODULES = (
    "l2ul_fast/datasets/text/rawfiles.py",
    "l2ul_fast/datasets/text/formats.py",
    "l2ul_fast/datasets/plugin.py:_content,_arrays,_numbers,_parquet,_npz,_h5",
)
OWN = "".join(f"{k % 7},{k % 5},{k % 2}\n" for k in range(60)).encode()
#: What an archive holds in place of rows: b * bytes, or the same packed once more.
BOMBS = ("0", "1,2,0\n", "\n", "\x00", "1,")
MEMBERS = (
    "../magic04.data",
    "/etc/magic04.data",
    "a/magic04.data",
    "MAGIC04.DATA",
    "magic04.data/",
    "x\\..\\magic04.data",
    "magic04.data\x00",
)
ARRAYS = {
    "sound": "np.arange(40.0).reshape(20, 2), np.arange(20) % 2",
    "object": "np.array([[1, 'a'], [2, None]], dtype=object), np.array([0, 1])",
    "nan": "np.full((4, 2), np.nan), np.array([0, 1, 0, 1])",
    "text": "np.full((4, 2), 'a'), np.array(['0', '1', '0', '1'])",
    "flat": "np.arange(9.0), np.arange(9)",
    "empty": "np.empty((0, 2)), np.empty(0)",
    "none": "np.empty((4, 0)), np.arange(4)",
    "wide": "np.zeros((2, 60000)), np.array([0, 1])",
    "many": "np.zeros((4, 2)), np.array([0.5, 1.5, 2**70, -1.0])",
    "complex": "np.zeros((4, 2), complex), np.array([0, 1, 0, 1])",
    "dates": "np.zeros((4, 2)), np.arange(4).astype('datetime64[s]')",
    "bytes": "np.zeros((4, 2)), np.array([b'a', b'b', b'a', b'\\xff'])",
    "bool": "np.zeros((4, 2), bool), np.array([True, False, True, False])",
    "short": "np.zeros((4, 2)), np.array([0, 1])",
    "deep": "np.zeros((4, 2)), np.zeros((4, 2))",
    "void": "np.zeros(4, [('a', 'f4')]), np.array([0, 1, 0, 1])",
}


def cases() -> Any:
    pack = st.sampled_from(("gz", "bz2", "xz", "zip"))
    payload = st.one_of(
        st.tuples(st.just("rows"), edits),
        st.tuples(st.just("bomb"), st.tuples(st.sampled_from(BOMBS), st.sampled_from((10**4, 10**6, 10**8)))),
        st.tuples(st.just("nested"), pack),
        st.tuples(st.just("nothing"), st.none()),
    )
    packed = st.fixed_dictionaries(
        {
            "own": st.booleans(),
            "pack": pack,
            "payload": payload,
            "edits": st.one_of(st.just([]), st.just([]), edits),
            "member": st.sampled_from((None, None, None, *MEMBERS)),
            "twice": st.sampled_from(("", "", "", "same", "other", "garbage")),
            "flags": st.sampled_from((0, 0, 0, 1, 8, 0x800)),
            "set": st.sampled_from(("magic", "skin", "adult", "susy", "sepsis")),
        }
    )
    arrays = st.fixed_dictionaries(
        {
            "arrays": st.sampled_from(("sound", "sound", *ARRAYS)),
            "form": st.sampled_from(("npz", "npz", "h5", "parquet")),
            "names": st.sampled_from(("Xy", "Xy", "Xy", "X", "y", "xy", "")),
            "shape": st.none() | st.sampled_from(("(99999999999, 2)", "(-1, 2)", "(2**70,)", "'a'", "()")),
            "edits": st.one_of(st.just([]), st.just([]), edits),
            "set": st.none() | st.sampled_from(("susy_subset", "higgs_subset", "sepsis_patient_agg89")),
        }
    )
    return st.one_of(packed, arrays)


def prepare() -> None:
    import pyarrow.parquet  # noqa: F401 - what is slow to load
    import target_text

    target_text.prepare()


def packed(data: bytes, how: str, name: str, case: Any) -> bytes:
    """The bytes in an archive of this kind."""
    if how != "zip":
        made = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[how](data)
        return (
            made + {"": b"", "same": made, "other": gzip.compress(b"1,2,0\n"), "garbage": b"\x00garbage"}[case["twice"]]
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("readme.txt", "nothing")
        archive.writestr(case["member"] or name, data)
        if case["twice"] == "other":
            archive.writestr(f"b/{name}", OWN)
    made = bytearray(buffer.getvalue())
    if case["flags"]:  # of the last member, in the central directory: encrypted, sizes later, names in UTF-8
        place = made.rfind(b"PK\x01\x02")
        made[place + 8 : place + 10] = case["flags"].to_bytes(2, "little")
    return bytes(made)


def rows_of(case: Any) -> tuple[str, bytes]:
    """(name of the unpacked file, its text)."""
    if case["own"]:
        return "mine.csv", OWN
    if case["set"] == "sepsis":
        return "p000001.psv", "\n".join(sepsis_lines([0, 1, 2])).encode()
    name, lines = SETS[case["set"]]
    return name, "\n".join(lines * 4).encode()


def run(case: Any, folder: Path) -> None:
    from l2ul_fast.datasets import convert, verify
    from l2ul_fast.datasets.plugin import load_dataset_file
    from l2ul_fast.datasets.registry import REGISTRY

    (folder / "raw").mkdir()
    if "arrays" in case:
        own, kind = case["set"] is None, (case["set"] or "").split("_")[0]
        path = folder / "raw" / (f"mine.{case['form']}" if own else f"{case['set']}.npz")
        if own and case["form"] != "npz":
            try:
                table(case, path)
            except Exception:  # arrays that these files cannot hold are no case
                return
            path.write_bytes(edited(path.read_bytes(), case["edits"]))
        else:
            path.write_bytes(edited(npz(case), case["edits"]))
    else:
        own, kind, (name, text) = case["own"], case["set"], rows_of(case)
        what, how = case["payload"]
        if what == "rows":
            text = edited(text, how)
        elif what == "bomb":
            size = how[1] if case["pack"] in ("gz", "zip") else min(how[1], 10**7)  # the others pack slowly
            text = how[0].encode() * (size // len(how[0]))
        elif what == "nested":
            text = packed(text, how, name, case)
        else:
            text = b""
        suffix = ".zip" if case["pack"] == "zip" else f".{case['pack']}"
        final = "training_setA.zip" if kind == "sepsis" and suffix == ".zip" and not own else name + suffix
        path = folder / "raw" / final
        path.write_bytes(edited(packed(text, case["pack"], name, case), case["edits"]))
    try:
        made = (
            load_dataset_file(path, folder / "data").path
            if own
            else convert(kind, folder / "raw", folder / "data", subset=True)
        )
    finally:
        REGISTRY.pop("mine", None)
    if problems := verify(made):
        raise Lie(f"what was converted is not sound: {problems[0]}")
    if outside := [p for p in folder.rglob("*") if p.is_file() and p.parent not in (folder / "raw", folder / "data")]:
        raise Lie(f"files were written elsewhere: {outside}")


def table(case: Any, path: Path) -> None:
    """The arrays as HDF5 or parquet."""
    X, y = eval(ARRAYS[case["arrays"]], {"np": np})  # noqa: S307 - the expressions above
    if case["form"] == "h5":
        import h5py

        with h5py.File(path, "w") as file:
            for name, array in (("X", X), ("y", y)):
                if name in case["names"]:
                    file[name] = array
        return
    import pyarrow as pa
    from pyarrow import parquet

    columns = {f"x{j}": pa.array(X[:, j]) for j in range(X.shape[1])} if "X" in case["names"] else {}
    parquet.write_table(pa.table(columns | {"y": pa.array(y)}), path)


def npz(case: Any) -> bytes:
    """A NumPy archive, perhaps with a header that says another shape."""
    X, y = eval(ARRAYS[case["arrays"]], {"np": np})  # noqa: S307 - the expressions above
    buffer = io.BytesIO()
    held = {name: array for name, array in (("X", X), ("y", y), ("x", X)) if name in case["names"]}
    np.savez(buffer, **held)
    if case["shape"] is None:
        return buffer.getvalue()
    out = io.BytesIO()
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.infolist():
            data = old.read(member)
            header = (
                f"{{'descr': '<f8', 'fortran_order': False, 'shape': {case['shape']}, }}".ljust(117).encode() + b"\n"
            )
            new.writestr(member.filename, data[:8] + len(header).to_bytes(2, "little") + header + data[128:])
    return out.getvalue()
