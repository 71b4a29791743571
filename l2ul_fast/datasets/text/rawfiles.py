"""Finding, opening and reading the original files. Archives are read as streams: nothing is unpacked to disk."""

import bz2
import contextlib
import gzip
import hashlib
import io
import lzma
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, cast

import numpy as np

from l2ul_fast.datasets.file.check import refuse_bomb
from l2ul_fast.datasets.file.layout import default_data_dir
from l2ul_fast.datasets.registry import DatasetInfo, get_info
from l2ul_fast.datasets.split import train_mask
from l2ul_fast.errors import DataError

PACKED = (".gz", ".bz2", ".xz")
# What reading a damaged or truncated file or archive may raise.
READ_ERRORS = (
    *(EOFError, OSError, NotImplementedError, RuntimeError, struct.error),  # a zip's other methods, passwords, headers
    *(zlib.error, lzma.LZMAError, zipfile.BadZipFile, UnicodeDecodeError),
)
#: Bytes of what is read as a whole: the text of one patient, all of adult.data.
MOST_BYTES = 64 << 20
Seen = Callable[[memoryview], None]
Rows = tuple[np.ndarray, np.ndarray]  # X (k, d) float32, y (k,) uint8 (of words where any class is taken)


@dataclass(frozen=True)
class RawData:
    """An original found on disk. kind: text file, NumPy archive, or many files (in a folder or in zip archives)."""

    info: DatasetInfo
    kind: Literal["text", "npz", "many"]
    paths: tuple[Path, ...]

    @property
    def path(self) -> Path:
        return self.paths[0]

    @property
    def is_subset(self) -> bool:
        """Whether this is known to be only a part of the dataset."""
        return self.kind == "npz" and self.info.npz_sha256 is None


def default_raw_dir() -> Path:
    """Folder of the original files: L2UL_RAW_DIR, or raw/ in the data folder."""
    return Path(os.environ.get("L2UL_RAW_DIR") or default_data_dir() / "raw")


def find_raw(name: str, raw_dir: str | os.PathLike[str] | None = None) -> RawData:
    """Look for the original of a dataset in <raw_dir>/<name>/ and <raw_dir>/; DataError says what to put where."""
    info = get_info(name)
    root = Path(raw_dir) if raw_dir is not None else default_raw_dir()
    for folder in (root / name, root):
        found = _in_folder(info, folder) if folder.is_dir() else None
        if found is not None:
            return found
    wanted = " and ".join(file.name for file in info.files)
    raise DataError(
        f"no original of {name} found: put {wanted} (from {info.source_page}) into {root / name}, "
        f"or run `l2ul data fetch {name}`, or use a stand-in: `l2ul data make {name}`"
    )


def _in_folder(info: DatasetInfo, folder: Path) -> RawData | None:
    files = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_file()}
    for base in info.base_names:
        for suffix in ("", *PACKED, ".zip"):
            if base + suffix in files:
                return RawData(info, "text", (files[base + suffix],))
    if info.base_names:  # the archive that a source page offers, such as magic+gamma+telescope.zip
        for path in files.values():
            if path.suffix.lower() == ".zip" and _zip_member(info, path) is not None:
                return RawData(info, "text", (path,))
    if info.patterns:
        for pattern in info.patterns:
            if many := sorted(folder.glob(pattern), key=lambda path: path.name):
                return RawData(info, "many", tuple(many))
        archives = [files[file.name.lower()] for file in info.files if file.name.lower() in files]
        if archives:
            return RawData(info, "many", tuple(archives))
    if info.npz is not None and info.npz in files:
        return RawData(info, "npz", (files[info.npz],))
    return None


def _zip_member(info: DatasetInfo, path: Path) -> zipfile.ZipInfo | None:
    """The archive member that is the original file (perhaps packed once more)."""
    wanted = {base + suffix for base in info.base_names for suffix in ("", *PACKED)}
    try:
        with zipfile.ZipFile(path) as archive:
            found = [member for member in safe_members(archive) if base_name(member) in wanted]
    except (*READ_ERRORS, ValueError):
        return None
    if len(found) > 1:
        raise DataError(f"{path} holds {len(found)} files that may be {info.base_names[0]}: unpack the right one")
    return found[0] if found else None


def safe_members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Files of an archive, without those whose names point outside it: no honest archive has such names."""

    def safe(member: zipfile.ZipInfo) -> bool:
        name = PurePosixPath(member.filename.replace("\\", "/"))
        return not (member.is_dir() or name.is_absolute() or ".." in name.parts)

    return [member for member in archive.infolist() if safe(member)]


def base_name(member: zipfile.ZipInfo) -> str:
    """Last part of a member's name, lower case."""
    return PurePosixPath(member.filename).name.lower()


class _Bounded:
    """Unpacked text; DataError when there is far too much of it for the size of the packed file."""

    def __init__(self, stream: Any, name: str, packed: int) -> None:
        self._stream, self._name, self._packed, self._size = stream, name, packed, 0

    def _counted(self, piece: bytes) -> bytes:
        self._size += len(piece)
        refuse_bomb(self._name, self._size, self._packed)
        return piece

    def read(self, size: int = -1) -> bytes:
        return self._counted(self._stream.read(size))

    def readline(self, size: int = -1) -> bytes:
        return self._counted(self._stream.readline(size))


class _Tap(io.RawIOBase):
    """A file that shows every byte read from it to a callback."""

    def __init__(self, file: BinaryIO, seen: Seen) -> None:
        self._file, self._seen = file, seen

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        k = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._seen(memoryview(buffer)[:k])
        return int(k)


@contextlib.contextmanager
def open_text(raw: RawData, seen: Seen | None = None) -> Iterator[BinaryIO]:
    """The unpacked text of an original as a binary stream; `seen` gets the bytes of the file as it is on disk."""
    with contextlib.ExitStack() as stack:
        try:
            file: BinaryIO = stack.enter_context(open(raw.path, "rb", buffering=0))
            if raw.path.suffix.lower() == ".zip":
                member = _zip_member(raw.info, raw.path)
                if member is None:
                    raise DataError(f"{raw.path} does not hold {raw.info.base_names[0]}, or is damaged: get it again")
                archive = stack.enter_context(zipfile.ZipFile(file))
                stream = cast(BinaryIO, stack.enter_context(archive.open(member)))
                suffix = PurePosixPath(base_name(member)).suffix
            else:
                stream = cast(BinaryIO, io.BufferedReader(_Tap(file, seen), 1 << 20)) if seen else file
                suffix = raw.path.suffix.lower()
        except READ_ERRORS as error:
            raise DataError(f"cannot read {raw.path}: {error}") from error
        yield unpacked(stream, suffix, str(raw.path), raw.path.stat().st_size)


def unpacked(stream: BinaryIO, suffix: str, name: str, packed: int) -> BinaryIO:
    """The text of a stream that is packed as a file with this suffix is; the file `name` has `packed` bytes."""
    if suffix == ".gz":
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream))
    elif suffix in (".bz2", ".xz"):
        stream = cast(BinaryIO, (bz2.BZ2File if suffix == ".bz2" else lzma.LZMAFile)(stream))
    return cast(BinaryIO, _Bounded(stream, name, packed))


def file_sha256(path: Path) -> str:
    """sha256 of a file, hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_rows(
    raw: RawData, *, split_seed: int = 0, seen_text: Seen | None = None, seen_file: Seen | None = None
) -> Iterator[Rows]:
    """The rows of an original. seen_text gets the unpacked text, seen_file the bytes on disk (text files only)."""
    reader = raw.info.reader
    if raw.kind == "npz":
        yield from read_npz(raw.path, raw.info.d, split_seed)
    else:
        assert reader is not None
        yield from reader(raw, split_seed, seen_text, seen_file)


def impute_train_median(X: np.ndarray, split_seed: int = 0) -> np.ndarray:
    """Replace each NaN of X (n, d), in place, by the (lower) median of its column over the training rows."""
    train = train_mask(0, len(X), split_seed)
    for j in np.flatnonzero(np.isnan(X).any(axis=0)):
        known = X[train, j]
        known = np.sort(known[~np.isnan(known)])
        X[np.isnan(X[:, j]), j] = known[(known.size - 1) // 2] if known.size else 0.0
    return X


def read_npz(path: Path, d: int, split_seed: int = 0) -> Iterator[Rows]:
    """Arrays X (n, d) and y (n,) of a NumPy archive; NaN is imputed."""
    try:
        X, y = load_arrays(path, "X", "y")
        if X.dtype.kind not in "biuf" or y.dtype.kind not in "biuf":
            raise TypeError(f"they hold {X.dtype} and {y.dtype}")
        X = X.astype(np.float32)
    except DataError:
        raise
    except Exception as error:  # of many kinds: NumPy evaluates the headers
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(f"{path} is not a NumPy archive with X and y, or is damaged: {reason}") from error
    if X.ndim != 2 or X.shape[1] != d or y.shape != X.shape[:1] or not np.isin(y, (0, 1)).all():
        raise DataError(f"{path} must hold X (n, {d}) and y (n,) of 0 and 1, not {X.shape} and {y.shape}")
    yield impute_train_median(X, split_seed), y.astype(np.uint8)


def load_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Arrays of a NumPy archive. Their headers are read first: no memory is taken for more than the archive holds."""
    arrays = []
    with zipfile.ZipFile(path) as archive:
        for name in names:
            found = [member for member in archive.infolist() if member.filename == f"{name}.npy"]
            if len(found) != 1:
                raise DataError(f"{path} holds {len(found)} arrays named {name}, not one")
            refuse_bomb(f"{path}, {name}", found[0].file_size, found[0].compress_size)
            with archive.open(found[0]) as stream:
                version = np.lib.format.read_magic(stream)
                header = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = header(stream)
            if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > found[0].file_size:
                raise DataError(f"{path}, {name} cannot be {dtype} {shape}: it has {found[0].file_size} bytes")
            with archive.open(found[0]) as stream:
                arrays.append(np.lib.format.read_array(stream, allow_pickle=False))
    return arrays
