"""Attacks that cannot compute a row, but recognise it among candidates: digests, and figures of the fit."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.artifact.ledger import theta_digest
from l2ul_fast.unlearner.artifact.schema import BLOCK
from l2ul_fast.unlearner.artifact.tensors import encode
from l2ul_fast.unlearner.reconstruct.evidence import CONFIRMS, Attack, Evidence, Vector
from l2ul_kernels.request.claims import PRESENT

_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def digests_and_figures(e: Evidence) -> Iterator[Attack]:
    """Digests of theta or of files, and figures of the fit: make them with a candidate in place of the row."""
    from l2ul_fast.unlearner import fit as fitting

    if e.sums is None:
        return
    if e.candidates is None or e.candidates.y is None or e.X is None or e.y is None or e.forgotten.size != 1:
        what = "need candidates with labels, the rows that stay, and one forgotten row"
        yield Attack("digests and figures", what, kind=CONFIRMS)
        return
    here = int((e.u.status[: e.forgotten[0]] == PRESENT).sum())
    made: list[set[str]] = []
    reports: list[dict[str, Any]] = []
    for x, y in zip(e.candidates.X, e.candidates.y, strict=True):
        rows, labels = np.insert(e.stored, here, x, axis=0), np.insert(e.y, here, y)
        weights = None if e.weights is None else np.insert(e.weights, here, e.weights.mean())
        table = ArrayTable(rows, labels, e.u.classes_, None, weights)
        digests: set[str] = set()
        report: dict[str, Any] = {}
        try:
            fitted = fitting.fit(e.u.params, table, len(rows), lambda what, done, total: None)
        except UserError:
            pass  # no model has this row
        else:
            theta, report = fitted.head.theta, fitted.report
            digests = {theta_digest(theta), _file_digest(fitted.head.arrays()), _file_digest({"theta": theta})}
            digests |= _block_digests(e, x, y)
        made.append(digests)
        reports.append(report)
    for path in e.files:
        told = set() if path.suffix == ".safetensors" else set(_DIGEST.findall(path.read_text("latin-1")))
        if told:
            same = np.array([bool(own & told) for own in made])
            yield confirmed(e, f"digests in {path.name}", same, "a digest (of theta, sums or rows)")
    for name, value in e.facts["report"].items():
        if isinstance(value, float) and "seconds" not in name:
            same = np.array([report.get(name) == value for report in reports])
            yield confirmed(e, f"figure {name}", same, f"{name} of the fit, {value:.3g},")


def confirmed(e: Evidence, name: str, same: NDArray[np.bool_], what: str) -> Attack:
    """The candidate that alone is the `same` (k,) as what was found."""
    assert e.candidates is not None
    alone = same.sum() == 1
    row = e.candidates.X[int(same.argmax())] if alone else None
    return Attack(
        name, f"{what} is that of {'one' if alone else int(same.sum())} of {same.size} candidates", row, CONFIRMS
    )


def _file_digest(arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for piece in encode(arrays):
        digest.update(piece)
    return digest.hexdigest()


def _block_digests(e: Evidence, x: Vector, y: Any) -> set[str]:
    """Of the blocks of the file of rows that have the forgotten row in them."""
    if not e.u.store.in_memory:
        return set()
    without: dict[str, NDArray[Any]] = {
        name: np.array(e.arrays[name]) for name in ("X", "y", "weights") if name in e.arrays
    }
    with_row = {name: array.copy() for name, array in without.items()}
    with_row["X"][e.forgotten[0]], with_row["y"][e.forgotten[0]] = x, y
    old, new = (b"".join(bytes(piece) for piece in encode(arrays)) for arrays in (without, with_row))
    blocks = [slice(start, start + BLOCK) for start in range(0, len(old), BLOCK)]
    return {hashlib.sha256(new[block]).hexdigest() for block in blocks if old[block] != new[block]}
