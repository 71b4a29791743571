"""Original file in, dataset file out."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from l2ul_fast.datasets.file.layout import dataset_path, default_data_dir
from l2ul_fast.datasets.file.writer import DatasetWriter
from l2ul_fast.datasets.text.rawfiles import RawData, file_sha256, find_raw, read_rows
from l2ul_fast.errors import DataError

Progress = Callable[[int, int | None], None]  # (rows done, rows expected)


class _Identity:
    """Which sha256 goes into the source attribute: that of the original file if a published one exists to compare
    with, else that of the rows (hashing gigabytes of text would take longer than parsing them)."""

    def __init__(self, raw: RawData, complete: bool) -> None:
        self._hash = hashlib.sha256()
        self._labels = hashlib.sha256()
        self.expected: str | None = None
        info, path = raw.info, raw.path
        served = {file.name.lower(): file.sha256 for file in info.files}.get(path.name.lower())
        self.of = "rows"
        if raw.kind == "npz":
            self.of, self.expected, self._fixed = "npz", info.npz_sha256, file_sha256(path)
        elif raw.kind == "text" and complete and info.content_sha256:
            self.of, self.expected = "text", info.content_sha256
        elif raw.kind == "text" and complete and served and path.suffix != ".zip":
            self.of, self.expected = "file", served

    def text(self, piece: memoryview) -> None:
        self._hash.update(bytes(piece).replace(b"\r", b""))  # the published sums are of files with LF line ends

    def file(self, piece: memoryview) -> None:
        self._hash.update(piece)

    def rows(self, X: np.ndarray, y: np.ndarray) -> None:
        self._hash.update(np.ascontiguousarray(X).data)
        self._labels.update(np.ascontiguousarray(y).data)

    def digest(self) -> str:
        if self.of == "npz":
            return self._fixed
        if self.of == "rows":
            self._hash.update(self._labels.digest())
        return self._hash.hexdigest()


def convert(
    name: str,
    raw_dir: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    codec: str = "none",
    progress: Progress | None = None,
    *,
    subset: bool = False,
    split_seed: int = 0,
) -> Path:
    """Convert the original of a dataset to its dataset file and return the path.

    A file with fewer rows than the dataset is refused as truncated unless subset is true; it is then written as a
    subset (<name>.subset.h5), as are the .npz subsets. An existing file is replaced only by a complete new one.
    """
    raw = find_raw(name, raw_dir)
    info = raw.info
    label = "subset" if subset or raw.is_subset else "real"
    path = dataset_path(data_dir if data_dir is not None else default_data_dir(), name, label)
    identity = _Identity(raw, complete=label == "real")
    extra = {
        "original_name": info.original_name,
        "original_rows": info.n,
        "source_page": info.source_page,
        "licence": info.licence,
        "citation": info.citation,
        "class_rule": info.class_rule,
        "categorical": info.categorical,
        "missing": info.missing,
        "columns": list(info.columns),
        "raw_file": raw.path.name,
        "source_sha256_of": identity.of,
    }
    rows = read_rows(
        raw,
        split_seed=split_seed,
        seen_text=identity.text if identity.of == "text" else None,
        seen_file=identity.file if identity.of == "file" else None,
    )
    writer = DatasetWriter(
        path, name=name, source="", d=info.d, classes=[0, 1], codec=codec, split_seed=split_seed, extra_attrs=extra
    )
    with writer:
        for X, y in rows:
            if identity.of == "rows":
                identity.rows(X, y)  # here: a thread of its own made converting 10 % slower on two cores
            writer.append(X, y)
            if progress is not None:
                progress(writer.rows, info.n if label == "real" else None)
        digest = identity.digest()
        _check(raw, label, writer, digest, identity.expected)
        writer.source = f"{label}:{digest}"
    return path


def _check(raw: RawData, label: str, writer: DatasetWriter, digest: str, expected: str | None) -> None:
    """Refuse what is not the published dataset; the row count comes first, as it says more than a checksum."""
    info = raw.info
    if label == "real" and writer.rows != info.n:
        raise DataError(
            f"{raw.path} has {writer.rows} rows instead of {info.n}: get the complete file, "
            f"or convert it with --subset if it is meant to be a part"
        )
    counts = tuple(int(c) for c in writer.class_counts)
    if label == "real" and info.class_counts is not None and counts != info.class_counts:
        raise DataError(f"{raw.path} has {counts} rows of class 0 and 1 instead of {info.class_counts}: get it again")
    if expected is not None and digest != expected:
        raise DataError(f"{raw.path} is not the published file (sha256 {digest} instead of {expected}): get it again")
