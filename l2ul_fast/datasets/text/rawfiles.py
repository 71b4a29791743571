"""Finding and opening the original files. Archives are read as streams: nothing is ever unpacked to disk."""

import bz2
import contextlib
import gzip
import hashlib
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, cast

from l2ul_fast.datasets.file.layout import default_data_dir
from l2ul_fast.datasets.registry import DatasetInfo, get_info
from l2ul_fast.errors import DataError

PACKED = (".gz", ".bz2", ".xz")
# What reading a damaged or truncated file or archive may raise.
READ_ERRORS = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
Seen = Callable[[memoryview], None]


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
            return next((m for m in safe_members(archive) if base_name(m) in wanted), None)
    except (zipfile.BadZipFile, OSError):
        return None


def safe_members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Files of an archive, without those whose names point outside it: no honest archive has such names."""

    def safe(member: zipfile.ZipInfo) -> bool:
        name = PurePosixPath(member.filename.replace("\\", "/"))
        return not (member.is_dir() or name.is_absolute() or ".." in name.parts)

    return [member for member in archive.infolist() if safe(member)]


def base_name(member: zipfile.ZipInfo) -> str:
    """Last part of a member's name, lower case."""
    return PurePosixPath(member.filename).name.lower()


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
            yield unpacked(stream, suffix)
        except (zipfile.BadZipFile, PermissionError, FileNotFoundError) as error:
            raise DataError(f"cannot read {raw.path}: {error}") from error


def unpacked(stream: BinaryIO, suffix: str) -> BinaryIO:
    """The text of a stream that is packed as a file with this suffix is."""
    if suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=stream))
    if suffix == ".bz2":
        return cast(BinaryIO, bz2.BZ2File(stream))
    if suffix == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(stream))
    return stream


def file_sha256(path: Path) -> str:
    """sha256 of a file, hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
