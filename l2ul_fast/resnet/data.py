"""CIFAR-10 from its original binary batches (plain or .gz), or a stand-in of class-conditional textures."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2ul_fast.datasets.text.rawfiles import READ_ERRORS, default_raw_dir
from l2ul_fast.errors import DataError, UserError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORD, BATCH = 3073, 10_000  #: bytes of a label and an image; images of an original batch
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = "test_batch.bin"
#: SHA-256 of the unpacked originals where we know it; the other batches are checked for size and labels.
SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
#: Channel means and standard deviations of the training images, for standardising.
MEAN, SCALE = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
STANDIN_VERSION = 1


@dataclass(frozen=True)
class Images:
    """Images (k, 3, 32, 32) uint8 and classes (k,) int64: training rows, test rows, and rows for tuning only.

    source: "real", "subset" (some training batches or rows only) or "stand-in"; identity: what exactly was read.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    tune_x: Tensor
    tune_y: Tensor
    source: str
    identity: str

    @property
    def n(self) -> int:
        return len(self.y)


def standardise(x: Tensor) -> Tensor:
    """Images with pixels from 0 to 255 as float32 in units of the data's spread."""
    mean, scale = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(SCALE).view(1, 3, 1, 1)
    return (x.float() - mean) / scale


def load(
    raw_dir: Path | None, rows: int | None, test_rows: int | None, tune_rows: int, standin: bool | None = None
) -> Images:
    """The first `rows` training images; tune_rows, then test_rows images of the test batch, never the same ones.

    raw_dir holds the batches, or a folder cifar10 with them. standin=None makes a stand-in where no original is found.
    """
    folder = None if standin else find(raw_dir)
    if folder is None:
        if standin is False:
            where = raw_dir or default_raw_dir()
            raise DataError(f"no CIFAR-10 found: put {TRAIN[0]} and {TEST} (or .gz) into {where}/cifar10")
        return make_standin(rows or 50_000, test_rows or 9_000, tune_rows)
    batches: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = []
    digests: list[str] = []
    for name in TRAIN:
        if rows is not None and sum(len(y) for _, y in batches) >= rows:
            break
        path = _path(folder, name)
        if path is None:
            break
        image, label, digest = read_batch(path, name)
        batches.append((image, label))
        digests.append(digest)
    x, y = np.concatenate([b[0] for b in batches])[:rows], np.concatenate([b[1] for b in batches])[:rows]
    if rows is not None and len(y) < rows:
        raise DataError(f"{rows} training images were asked for, the batches in {folder} have {len(y)}")
    test_path = _path(folder, TEST)
    assert test_path is not None
    test_x, test_y, digest = read_batch(test_path, TEST)
    last = BATCH if test_rows is None else tune_rows + test_rows
    if last > BATCH or tune_rows < 1:
        raise UserError(f"{tune_rows} images for tuning and {test_rows} for testing are more than the batch's {BATCH}")
    identity = hashlib.sha256("".join([*digests, digest, str(len(y)), str(tune_rows), str(last)]).encode()).hexdigest()
    source = "real" if len(y) == len(TRAIN) * BATCH else "subset"
    a, b, c, d, e, f = (
        torch.from_numpy(part)
        for part in (x, y, test_x[tune_rows:last], test_y[tune_rows:last], test_x[:tune_rows], test_y[:tune_rows])
    )
    return Images(a, b, c, d, e, f, source, f"cifar10:{identity}")


def find(raw_dir: Path | None) -> Path | None:
    """The folder that holds at least the first training batch and the test batch, or None."""
    root = Path(raw_dir) if raw_dir is not None else default_raw_dir()
    for folder in (root / "cifar10", root):
        if _path(folder, TRAIN[0]) is not None and _path(folder, TEST) is not None:
            return folder
    return None


def _path(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def read_batch(path: Path, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64], str]:
    """(images (k, 3, 32, 32), labels (k,), sha256) of a batch file; DataError unless it is what `name` should be."""
    try:
        with open(path, "rb") as packed:
            file: Any = gzip.GzipFile(fileobj=packed) if path.suffix == ".gz" else packed
            raw = file.read(BATCH * RECORD + 1)
    except READ_ERRORS as error:
        raise DataError(f"cannot read {path} ({error}): get it again") from None
    digest = hashlib.sha256(raw).hexdigest()
    if len(raw) != BATCH * RECORD:
        raise DataError(f"{path} is not a CIFAR-10 batch: {BATCH * RECORD} bytes expected, found {len(raw)}")
    if SHA256.get(name, digest) != digest:
        raise DataError(f"{path} is damaged or not the original {name} (wrong checksum): get it again")
    table = np.frombuffer(raw, np.uint8).reshape(BATCH, RECORD)
    labels = table[:, 0].astype(np.int64)
    if labels.max() >= len(CLASSES):
        raise DataError(f"{path} is not a CIFAR-10 batch: it has a label {labels.max()}")
    return table[:, 1:].reshape(-1, 3, 32, 32).copy(), labels, digest


def make_standin(rows: int, test_rows: int, tune_rows: int, seed: int = 0) -> Images:
    """Textures: each class a pair of gratings and a tint, with random phase, contrast and much noise. Not CIFAR-10."""
    rng = np.random.default_rng([STANDIN_VERSION, seed])
    k = rows + test_rows + tune_rows
    y = rng.permutation(np.arange(k) % len(CLASSES))
    angle = rng.uniform(0, np.pi, (len(CLASSES), 2))
    pitch = rng.uniform(0.3, 1.2, (len(CLASSES), 2))
    tint = rng.normal(0, 14, (len(CLASSES), 3))
    place = np.arange(32, dtype=np.float32)
    x = np.empty((k, 3, 32, 32), np.uint8)
    for first in range(0, k, 1000):
        c = y[first : first + 1000]
        image = 128 + tint[c][:, :, None, None] + rng.normal(0, 40, (len(c), 3, 32, 32))
        for wave in range(2):
            a, q = angle[c, wave] + rng.normal(0, 0.15, len(c)), pitch[c, wave]
            line = (
                np.multiply.outer(np.cos(a) * q, place)[:, :, None] + np.multiply.outer(np.sin(a) * q, place)[:, None]
            )
            phase, height = rng.uniform(0, 2 * np.pi, len(c)), rng.uniform(5, 40, len(c))
            image += (height[:, None, None] * np.sin(line + phase[:, None, None]))[:, None]
        x[first : first + len(c)] = image.clip(0, 255)
    test, tune = slice(rows, rows + test_rows), slice(rows + test_rows, k)
    images, labels = torch.from_numpy(x), torch.from_numpy(y)
    identity = f"standin:{STANDIN_VERSION}:{seed}:{rows}:{test_rows}:{tune_rows}"
    return Images(
        images[:rows], labels[:rows], images[test], labels[test], images[tune], labels[tune], "stand-in", identity
    )
