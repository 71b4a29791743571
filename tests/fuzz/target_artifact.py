"""Directories of saved unlearners: bytes, JSON values and arrays replaced, with checksums made right again or not."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from engine import HERE, Lie
from hypothesis import strategies as st
from strange import edited, edits, places, replaced

ROOM = "l2ul_fast/unlearner/artifact"
MODULES = (
    *(f"{ROOM}/{name}.py" for name in ("format", "tensors")),
    f"{ROOM}/ledger.py:decode_rows,_range,Ledger,_parse",
    f"{ROOM}/journal.py:Record,View,erased_rows,read_journal,_parse,_checked_digest",
    f"{ROOM}/directory.py:read_view,load_artifact,open_artifact,read_ledger,_ledger_of,check_artifact",
)
OLD = HERE.parent / "contracts" / "fixtures" / "artifacts"
#: Name -> (arguments of L2UL, how often it was saved, whether something is left deferred).
MADE: dict[str, tuple[dict[str, Any], int, bool]] = {
    "expansion": ({}, 1, False),
    "journal": ({}, 2, True),
    "file": ({}, 1, False),
    "no rows": ({"store_rows": False}, 1, False),
    "learned": ({"head": "learned", "m": 60, "s": 60}, 1, False),
    "kme": ({"head": "kme", "m": 60, "s": 60, "t": 5, "psi": 4}, 1, True),
    "paper": ({"head": "paper", "m": 30, "s": 60, "t": 5}, 1, False),
    "mlp": ({"model": "mlp", "hidden": 2}, 1, False),
    "squared": ({"model": "squared"}, 1, False),
}
N = 160
#: What arrays are replaced by, each a function of the array.
ARRAYS: dict[str, Any] = {
    "nan": lambda a: np.full_like(a, np.nan) if a.dtype.kind == "f" else np.full_like(a, -1),
    "most": lambda a: np.full_like(a, np.finfo(a.dtype).max if a.dtype.kind == "f" else np.iinfo(a.dtype).max),
    "least": lambda a: np.full_like(a, np.finfo(a.dtype).min if a.dtype.kind == "f" else np.iinfo(a.dtype).min),
    "zero": lambda a: np.zeros_like(a),
    "one": lambda a: np.ones_like(a),
    "reversed": lambda a: a.ravel()[::-1].reshape(a.shape),
    "short": lambda a: a[: len(a) // 2],
    "flat": lambda a: a.ravel(),
    "float16": lambda a: a.astype(np.float16),
    "int8": lambda a: a.astype(np.int8),
    "float64": lambda a: a.astype(np.float64),
    "int64": lambda a: a.astype(np.int64),
    "bool": lambda a: a.astype(bool),
    "empty": lambda a: a[:0],
    "first bad": lambda a: np.concatenate(
        [np.full(1, 2**30 if a.dtype.kind in "iu" else np.inf).astype(a.dtype), a.ravel()[1:]]
    ).reshape(a.shape),
}


def rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, 3))
    return X, (X @ [1.0, -1.0, 0.5] + rng.normal(size=N) > 0).astype(np.uint8)


@functools.cache
def corpus() -> Path:
    """A folder with one saved directory for each name, made by this version."""
    from l2ul_fast import L2UL
    from l2ul_fast.datasets import DatasetWriter

    place, (X, y) = Path(tempfile.mkdtemp(prefix="l2ul-fuzz-")), rows()
    with DatasetWriter(place / "rows.h5", name="higgs", source="standin:1:0", d=3, classes=[0, 1]) as writer:
        writer.append(X.astype(np.float32), y)
    for name, (options, saves, deferred) in MADE.items():
        u = L2UL(**({"random_state": 1} | options))
        target = X @ [1.0, 2.0, 3.0] if options.get("model") == "squared" else y
        u.fit(place / "rows.h5", part="all") if name == "file" else u.fit(X, target)
        for k in range(saves):
            values = (X[[k + 3]], y[[k + 3]]) if name == "no rows" else ()
            u.unlearn([k + 3], *values)
            if name == "no rows" and u.due:
                u = L2UL(**({"random_state": 1} | options)).fit(X, target)
            u.save(place / name, defer=deferred and k > 0)
        if deferred:
            u.unlearn([50])
            u.save(place / name, defer=True)
    return place


def prepare() -> None:
    corpus()


def cases() -> Any:
    made = st.sampled_from(tuple(MADE)) | st.sampled_from(sorted(path.name for path in OLD.iterdir() if path.is_dir()))
    file = st.integers(0, 6)
    changes = st.one_of(
        st.tuples(st.just("bytes"), file, edits),
        st.tuples(st.just("json"), file, st.lists(places, min_size=1, max_size=2)),
        st.tuples(st.just("array"), st.integers(0, 40), st.sampled_from(tuple(ARRAYS))),
        st.tuples(st.just("gone"), file, st.sampled_from(("delete", "empty", "folder", "link", "fifo", "copy"))),
    )
    return st.fixed_dictionaries(
        {
            "made": made,
            "changes": st.lists(changes, max_size=3),
            "sealed": st.booleans(),
            "journal": st.lists(places, max_size=1),
        }
    )


def arrays_of(directory: Path) -> list[tuple[Path, str]]:
    from safetensors.numpy import load_file

    files = [path for path in sorted(directory.glob("*.safetensors")) if path.is_file()]
    return [(path, name) for path in files for name in sorted(load_file(path))]


def change(directory: Path, what: str, which: int, how: Any) -> None:
    files = sorted(path for path in directory.iterdir() if path.is_file())
    if what == "array":
        from safetensors.numpy import load_file, save_file

        path, name = (found := arrays_of(directory))[which % len(found)]
        held = load_file(path)
        with np.errstate(all="ignore"):
            held[name] = np.ascontiguousarray(ARRAYS[how](held[name]))
        save_file(held, path)
        return
    if what == "json":
        files = [path for path in files if path.suffix in (".json", ".jsonl")]
    path = files[which % len(files)]
    if what == "bytes":
        path.write_bytes(edited(path.read_bytes(), how))
    elif what == "json":
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        if lines:
            content = json.loads(lines[which % len(lines)])
            for place, value, way in how:
                content = replaced(content, place, value, way)
            lines[which % len(lines)] = json.dumps(content)
            path.write_text("\n".join(lines) + "\n", errors="surrogatepass")
    else:
        data = path.read_bytes()
        path.unlink()
        if how == "empty":
            path.touch()
        elif how == "folder":
            path.mkdir()
        elif how == "link":
            path.symlink_to("/etc/hostname")
        elif how == "fifo":
            import os

            os.mkfifo(path)
        elif how == "copy":
            (directory / f"{path.name}.copy").write_bytes(data)


def seal(directory: Path) -> None:
    """Make sizes and checksums of artifact.json right again, as a forger would."""
    path = directory / "artifact.json"
    if not path.is_file():  # reading a FIFO would wait for ever
        return
    content = json.loads(path.read_text())
    for facts in content.get("files", {}).values():
        if not (directory / facts["file"]).is_file():
            continue
        data = (directory / facts["file"]).read_bytes()
        facts["bytes"] = len(data)
        if "sha256" in facts:
            facts["sha256"] = hashlib.sha256(data).hexdigest()
        if blocks := facts.get("blocks"):
            parts = [data[k : k + blocks] for k in range(0, len(data), blocks)]
            digests = directory / facts["file"].replace(".safetensors", ".sha256")
            digests.write_text("".join(f"{hashlib.sha256(part).hexdigest()}\n" for part in parts))
    content.pop("sha256", None)
    content["sha256"] = hashlib.sha256(json.dumps(content, indent=1, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def run(case: Any, folder: Path) -> None:
    from l2ul_fast import L2UL
    from l2ul_fast.unlearner.artifact import check_artifact, read_ledger

    old = case["made"] not in MADE
    directory, data = folder / "state", OLD / "rows.h5" if old else corpus() / "rows.h5"
    shutil.copytree((OLD if old else corpus()) / case["made"], directory)
    needs = {"data": data} if case["made"] in ("file", "lr-file", "lr-file-refreshed") else {}
    for what, which, how in case["changes"]:
        try:
            change(directory, what, which, how)
        except Exception:  # a change of what an earlier one destroyed
            continue
    if case["sealed"]:
        with contextlib.suppress(Exception):  # of what is no artifact any more
            seal(directory)
    problems = []
    for look in (check_artifact, read_ledger):
        try:
            look(directory)
        except (ValueError, TypeError) as error:
            problems.append(error)
    if not case["changes"] and not (case["sealed"] and old) and problems:
        raise Lie(f"what was not changed is refused: {problems[0]}")
    u = L2UL.load(directory, **needs)
    theta = np.asarray(u.theta)
    if not np.isfinite(theta).all():
        raise Lie("theta of a loaded unlearner is not finite")
    if not np.isfinite(
        u.predict_proba(rows()[0][:5, : u.d] if not old else np.zeros((2, u.d))) if u.classes_ is not None else 0.0
    ).all():
        raise Lie("predictions are not finite")
    here = u.retained()
    row = int(u.status.nonzero()[0][0]) if here is None else int(here.ids()[1])
    before = u.n
    if here is not None:
        u.unlearn([row])
        if u.n != before - 1 or not np.isfinite(u.theta).all():
            raise Lie("a request after loading leaves what is no model")
        u.save(directory)
        if L2UL.load(directory, **needs).n != before - 1:
            raise Lie("the saved unlearner has another number of rows")
