"""Attacks on what is kept row by row, and on the bytes of the files."""

from __future__ import annotations

import base64
import binascii
import contextlib
import filecmp
import json
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.unlearner.artifact.format import HEADER
from l2ul_fast.unlearner.artifact.tensors import layout_of
from l2ul_fast.unlearner.reconstruct.confirm import confirmed
from l2ul_fast.unlearner.reconstruct.evidence import CONFIRMS, Attack, Evidence, Vector
from l2ul_fast.unlearner.reconstruct.sums import penalty_of, row_in
from l2ul_kernels import Partitions, assign_cells, counts_from_cells, unpack_cells

#: Facts that are the user's own, and digests.
_NO_NUMBERS = {
    *("params", "options", "head", "digests", "previous"),
    *("theta_after", "theta_before", "sha256", "fingerprint"),
}
#: Files of an artifact (opening one deletes those of them that it does not need).
_KNOWN = re.compile(r"artifact\.json|ledger\.jsonl|journal\.jsonl|\.lock|state-.+")
_NUMBER = re.compile(rb"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")
#: Rows that share most cells with the forgotten one, whose mean is the estimate.
NEIGHBOURS = 5
#: Bytes of a file that are searched for something that looks like a row.
SEARCHED = 1 << 20


def due(e: Evidence) -> Iterator[Attack]:
    """Whether the directory says itself that it is not finished."""
    if e.facts.get("due"):
        yield Attack("due", f"the directory is not finished: {e.facts['due']}")


def stored_rows(e: Evidence) -> Iterator[Attack]:
    """The forgotten rows' places in what is kept row by row: features, label, weight, digest."""
    ids, where = e.forgotten, "its place in the stored rows"
    if "X" in e.arrays:
        left = np.asarray(e.arrays["X"])[ids]
        used = np.flatnonzero(left.any(axis=1))
        row = left[used[0]].astype(np.float64) if used.size else None
        yield Attack("stored row", f"{where} is {'not ' if used.size else ''}overwritten", row)
    for name, what in (("y", "label"), ("weights", "weight"), ("digests", "digest")):
        if name in e.arrays and np.asarray(e.arrays[name])[ids].any():
            yield Attack(f"stored {what}", f"the {what} is still there, {where} is not overwritten")
    if "digests" not in e.arrays:
        return
    digests = np.asarray(e.arrays["digests"])[ids]
    if not digests.any() or e.candidates is None or e.candidates.y is None:
        yield Attack("digest", "needs candidates" if digests.any() else "no digest is left", kind=CONFIRMS)
        return
    store: Any = e.u.store
    same = np.isin(store.digest(e.candidates.X.astype(store.dtype), e.candidates.y), digests[digests != 0])
    yield confirmed(e, "digest", same, "the digest of the row, still there")


# Cells ---------------------------------------------------------------------------------------------------------------


def cells(e: Evidence) -> Iterator[Attack]:
    """The row's cells, in its own place or in the counts, and seeds that are rows nobody has any more."""
    if e.X is None or e.y is None or "cells.seeds" not in e.arrays:
        return
    seeds, packed, counts = (np.asarray(e.arrays[f"cells.{name}"]) for name in ("seeds", "packed", "counts"))
    t, psi, d = seeds.shape
    own = assign_cells(e.stored, Partitions.from_seeds(np.ascontiguousarray(seeds)))
    left = packed[e.forgotten]
    left = left[left.any(axis=1)]
    row = _row_near(e, own, unpack_cells(left[:1], t, psi)[0]) if len(left) else None
    yield Attack("stored cells", "are still there: the rows nearest by cells" if len(left) else "are overwritten", row)
    difference = (counts - counts_from_cells(own, psi, e.y, len(counts))).sum(axis=0)
    row = _row_near(e, own, difference.argmax(axis=1)) if difference.any() else None
    used = "count another row: the rows nearest by cells" if difference.any() else "are those of the rows that stay"
    yield Attack("cell counts", used, row)
    known = {x.tobytes() for x in e.X.astype(seeds.dtype)}
    foreign = [x for x in seeds.reshape(-1, d) if x.tobytes() not in known]
    held = int(np.isin(np.asarray(e.arrays["cells.seed_rows"]), e.forgotten).sum())
    used = f"{len(foreign)} are no rows that stay, {held} have a forgotten row's number"
    yield Attack("seeds", used, foreign[0].astype(np.float64) if foreign else None)


def _row_near(e: Evidence, own: NDArray[Any], wanted: NDArray[Any]) -> Vector:
    """Mean of the rows that stay which share most of the wanted cells (t,)."""
    assert e.X is not None
    shared = (own == wanted).sum(axis=1)
    return np.asarray(e.X[np.argsort(-shared, kind="stable")[:NEIGHBOURS]].mean(axis=0))


# Numbers in the text files -------------------------------------------------------------------------------------------


def numbers(e: Evidence) -> Iterator[Attack]:
    """Lists of numbers in artifact.json, the ledger and the journal: a row, a mean over D, a gradient."""
    d, p = e.d, e.theta.size
    lists = [(f"numbers in {where}", values) for where, values in _lists(e) if values.size in (d, p)]
    for name, values in lists:
        if values.size == d:
            yield Attack(name, "taken as the row", values)
            if e.X is not None:
                known, total = e.X.sum(axis=0), len(e.X) + e.forgotten.size
                yield Attack(name, "taken as the mean of all rows", total * values - known)
                yield Attack(name, "taken as the sum of all rows", values - known)
        if values.size == p:
            yield Attack(name, "taken as a gradient", row_in(e.u, values))
    if not lists:
        yield Attack("numbers in the facts", "no list is as long as a row or as theta")
    constant, _ = penalty_of(e.u)
    if constant and e.X is not None:
        staying = float(len(e.X) if e.weights is None else e.weights.sum())
        lost = constant / e.u.model.lam - staying
        yield Attack("penalty", f"was chosen at the fit: the forgotten rows weigh {lost:.6g}")


def _lists(e: Evidence) -> Iterator[tuple[str, Vector]]:
    """Every list of numbers in the text files, also in base64 or hexadecimal form."""
    yield from _walk(e, e.facts, HEADER)
    for path in e.files:
        if path.suffix == ".jsonl" or (path.suffix == ".json" and path.name != HEADER):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(ValueError, RecursionError):
                    yield from _walk(e, json.loads(line), path.name)


def _walk(e: Evidence, value: Any, where: str) -> Iterator[tuple[str, Vector]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in _NO_NUMBERS:
                yield from _walk(e, item, f"{where}: {key}")
    elif isinstance(value, list):
        if value and all(type(item) in (int, float) for item in value):
            yield where, np.array(value, np.float64)
        else:
            for item in value:
                yield from _walk(e, item, where)
    elif isinstance(value, str):
        for content in _decoded(value):
            for dtype in ("<f4", "<f8"):
                if len(content) == e.d * np.dtype(dtype).itemsize:
                    values = np.frombuffer(content, dtype).astype(np.float64)
                    if e.plausible(values):
                        yield where, values


def _decoded(text: str) -> Iterator[bytes]:
    with contextlib.suppress(binascii.Error, ValueError):
        yield base64.b64decode(text, validate=True)
    with contextlib.suppress(ValueError):
        yield bytes.fromhex(text)


# Bytes ---------------------------------------------------------------------------------------------------------------


def leftovers(e: Evidence) -> Iterator[Attack]:
    """Bytes that the present state does not need: what opening the directory deletes, overwrites or does not know."""
    pieces: dict[str, bytes] = {}
    for path in e.files:
        name = path.relative_to(e.directory)
        kept = e.opened / name
        if not kept.is_file():
            pieces[str(name)] = path.read_bytes()
        elif not filecmp.cmp(path, kept, shallow=False):
            pieces[str(name)] = _changed(path.read_bytes(), kept.read_bytes())
        elif not _KNOWN.fullmatch(str(name)):
            pieces[str(name)] = path.read_bytes()
    if not any(pieces.values()):
        yield Attack("leftover bytes", "there are none")
    for file, content in pieces.items():
        if content:
            row = _row_in_arrays(e, content)
            row = _row_in_bytes(e, content) if row is None else row
            yield Attack(f"leftover bytes in {file}", f"{len(content)} bytes that the state does not need", row)


def _changed(found: bytes, kept: bytes) -> bytes:
    """The part of `found` that opening has changed or cut off, in whole words."""
    shared = min(len(found), len(kept))
    differing = np.flatnonzero(np.frombuffer(found[:shared], np.uint8) != np.frombuffer(kept[:shared], np.uint8))
    first = int(differing[0]) // 8 * 8 if differing.size else shared
    last = len(found) if len(found) > len(kept) else -(-(int(differing[-1]) + 1) // 8) * 8 if differing.size else first
    return found[first:last]


def _row_in_arrays(e: Evidence, content: bytes) -> Vector | None:
    """The forgotten row in a whole file of arrays."""
    try:
        length = int.from_bytes(content[:8], "little")
        layout = layout_of(content[8 : 8 + length], len(content) - 8 - length)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    for _, dtype, shape, start in layout:
        if dtype.kind == "f" and len(shape) == 2 and shape[1] == e.d and shape[0] > e.forgotten[0]:
            rows = np.ndarray(shape, dtype, content, 8 + length + start)
            found = np.asarray(rows[e.forgotten[0]], np.float64)
            if found.any():
                return found
    return None


def _row_in_bytes(e: Evidence, content: bytes) -> Vector | None:
    """The first d numbers side by side that could be a row of D and are none of those that stay."""
    if e.X is None:
        return None
    largest, known = 4 * np.abs(e.X).max(axis=0) + np.finfo(float).tiny, {row.tobytes() for row in e.X}
    for values in _numbers_in(content[:SEARCHED]):
        if values.size < e.d:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(values, e.d)
        with np.errstate(invalid="ignore"):
            large = (np.abs(windows) > 1e-6 * largest).sum(axis=1)
            fits = (np.abs(windows) <= largest).all(axis=1) & (2 * large > e.d)
        for i in np.flatnonzero(fits)[:100]:
            if windows[i].tobytes() not in known:
                return windows[i].copy()
    return None


def _numbers_in(content: bytes) -> Iterator[Vector]:
    """Bytes read as text, as float64 and as float32, from each offset."""
    yield np.array([float(number) for number in _NUMBER.findall(content)])
    for dtype in ("<f8", "<f4"):
        width = np.dtype(dtype).itemsize
        for offset in range(width):
            part = content[offset:]
            with np.errstate(invalid="ignore"):
                yield np.frombuffer(part[: len(part) // width * width], dtype).astype(np.float64)


def verbatim(e: Evidence) -> Iterator[Attack]:
    """The bytes of the true row anywhere in the directory (its own bytes, or those of most of its numbers)."""
    if e.truth is None:
        return
    for x in e.truth.X:
        if not x.any() or (e.X is not None and (x == e.X).all(axis=1).any()):
            continue  # zeros, or a row that stays too
        for dtype in ("<f4", "<f8", ">f4", ">f8"):
            for path in e.files:
                at = _find(path, x.astype(dtype).tobytes())
                if at >= 0:
                    yield Attack("verbatim", f"the row's bytes are in {path.name} at {at}", x)
                    return
    yield Attack("verbatim", "the row's bytes are in no file")


def _find(path: Path, pattern: bytes) -> int:
    if path.stat().st_size < len(pattern):
        return -1
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped.find(pattern)
