"""Datasets of one's own, by name in every command: a data file, or a Python file with a class `Dataset`.

A data file is .csv (.tsv, .txt, also packed; the last column is the class), .parquet (the same), .npz or .h5 with X and
y. `Dataset` has a name and load(), which returns (X, y) or the path of a data file. The rows are read twice, first for
the classes, and written as NAME.own.h5 with the source own:<sha256 of the content>; an unchanged content is not written
again. Whole numbers as classes stay what they are; words become 0, 1, ... in alphabetical order.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from l2ul_fast.datasets.file.check import own_dataset, refuse_bomb
from l2ul_fast.datasets.file.hdf5 import numbered, open_dataset, open_hdf5
from l2ul_fast.datasets.file.layout import FORMAT, SUFFIXES, dataset_path, default_data_dir
from l2ul_fast.datasets.file.writer import DatasetWriter
from l2ul_fast.datasets.registry import REGISTRY, DatasetInfo
from l2ul_fast.datasets.text.csv import BLOCK_BYTES, Layout, LineError, check_number, parse_text, refuse_wide
from l2ul_fast.datasets.text.rawfiles import PACKED, file_sha256, load_arrays, unpacked
from l2ul_fast.errors import DataError
from l2ul_fast.tables import MOST_CLASSES

_ROWS = 1 << 16  # read at a time

Block = tuple[np.ndarray, np.ndarray]  # X (k, d), labels (k,)
Source = tuple[tuple[str, ...], Callable[[], Iterator[Block]]]  # columns, and their rows as often as one asks
Progress = Callable[[int, int | None], None]


class Dataset(Protocol):
    """Rows by a name. `load` gives X (n, d) and y (n,), or the path of a data file."""

    name: str

    def load(self) -> tuple[Any, Any] | Path: ...


@dataclass(frozen=True)
class Content:
    """The rows of a dataset, which can be read again and again, and what identifies them."""

    columns: tuple[str, ...]
    blocks: Callable[[], Iterator[Block]]
    sha256: str


#: Words that stand for no class.
NO_LABEL = ("nan", "NaN", "NAN", "<NA>", "NaT")
#: Words in place of a number: no line of column names holds them.
NO_NAMES = (b"nan", b"inf", b"-inf", b"na", b"null", b"none", b"?")


def is_data_file(word: str) -> bool:
    """Whether a command's argument means a file rather than a dataset's name."""
    return os.sep in word or _suffix(Path(word)) in (*READERS, ".py")


def register_file(path: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> str:
    """Add a dataset by its data file, or by a Python file, which is executed; returns its name."""
    return load_dataset_file(path, data_dir).name


def load_dataset_file(
    path: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    codec: str = "none",
    progress: Progress | None = None,
) -> DatasetInfo:
    """Register the dataset in a data file, or in a Python file, which is executed.

    Parameters
    ----------
    path : path
        .csv, .tsv, .txt (also .gz, .bz2, .xz), .parquet, .npz, .h5 or .py.
    data_dir : path, optional
        Folder of the HDF5 file that is made; by default L2UL_DATA_DIR.
    codec : str
        Of that file.
    progress : callable, optional
        Called with (rows done, rows expected).

    Returns
    -------
    DatasetInfo
        The entry, under its name in the registry; `path` is its HDF5 file.

    Raises
    ------
    DataError
        In one sentence, when the file cannot be used or its name is taken.
    """
    path = Path(path)
    if not os.path.isfile(path):  # not Path.is_file, which raises for names that are too long
        raise DataError(f"there is no file {path}")
    if path.suffix.lower() == ".py":
        return register_dataset(_class_in(path)(), path, data_dir=data_dir, codec=codec, progress=progress)
    if path.suffix.lower() in (".h5", ".hdf5") and _is_dataset_file(path):
        with open_dataset(path) as data:
            name = path.name.removesuffix(SUFFIXES["own"]) if path.name.endswith(SUFFIXES["own"]) else path.stem
            return _entry(_checked_name(name, path), path, data.n, data.columns, data.source, path)
    name = Path(path.stem).stem if path.suffix.lower() in PACKED else path.stem
    return _made(_checked_name(name, path), path, _content(path), data_dir, codec, progress)


def register_dataset(dataset: Dataset, origin: Path, name: str | None = None, **options: Any) -> DatasetInfo:
    """Register an object with load(), found in the file `origin`; options as of `load_dataset_file`."""
    name = _checked_name(str(name or getattr(dataset, "name", "") or origin.stem), origin)
    with _one_sentence(f"load() of {origin} failed"):
        found = dataset.load()
    if isinstance(found, str | os.PathLike):
        return _made(name, origin, _content(origin.parent / found), **options)
    if not isinstance(found, tuple) or len(found) != 2:
        raise DataError(f"load() of {origin} must return (X, y) or a path, not {type(found).__name__}")
    return _made(name, origin, _arrays(origin, *found), **options)


def register_installed(point: EntryPoint) -> None:
    """Import the dataset of an entry point: a module that registers itself, or a class (or object) with load()."""
    with _one_sentence(f"the installed dataset {point.name} cannot be imported"):
        found = point.load()
    if point.name in REGISTRY:
        return
    found = getattr(found, "Dataset", found)
    dataset = found() if isinstance(found, type) else found
    if not callable(getattr(dataset, "load", None)):
        raise DataError(f"the installed dataset {point.name} has no load()")
    spec = importlib.util.find_spec(point.module)
    register_dataset(dataset, Path(spec.origin if spec and spec.origin else point.module), point.name)


def _class_in(path: Path) -> type[Any]:
    spec = importlib.util.spec_from_file_location(f"l2ul_fast_dataset_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _one_sentence(f"{path} cannot be imported"):
        spec.loader.exec_module(module)
    found = getattr(module, "Dataset", None)
    if not isinstance(found, type) or not callable(getattr(found, "load", None)):
        raise DataError(f"{path} has no class Dataset with load()")
    return found


@contextlib.contextmanager
def _one_sentence(failed: str) -> Iterator[None]:
    """DataError "`failed`: type and first line" for any error but one that is a sentence already."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{failed}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}") from error


def _checked_name(name: str, origin: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")
    known = REGISTRY.get(name)
    same = known is None or (
        known.path is not None
        and (known.source_page in (_page(origin), _page(known.path)) or known.path == origin.absolute())
    )
    if not name or name == "all" or not same:
        raise DataError(f"the dataset in {origin} cannot be called {name!r}, which is taken: give it another name")
    return name


def _page(origin: Path) -> str:
    return origin.absolute().as_uri()


def _entry(name: str, origin: Path, n: int, columns: tuple[str, ...], source: str, path: Path) -> DatasetInfo:
    info = DatasetInfo(name, n, columns, origin.name, _page(origin), content_sha256=source[-64:], path=path.absolute())
    REGISTRY[name] = info
    return info


def _made(
    name: str,
    origin: Path,
    content: Content,
    data_dir: str | os.PathLike[str] | None = None,
    codec: str = "none",
    progress: Progress | None = None,
) -> DatasetInfo:
    """The entry of a dataset whose HDF5 file is written unless it is there."""
    path = dataset_path(default_data_dir() if data_dir is None else data_dir, name, "own")
    source, page = f"own:{content.sha256}", _page(origin)
    made_of = ""
    if path.is_file() and not _is_dataset_file(path):
        raise DataError(f"{path} is in the way and not one of l2ul's: move it, or give {origin} another name")
    with contextlib.suppress(DataError), open_dataset(path) as data:
        if data.source == source:
            return _entry(name, origin, data.n, content.columns, source, path)
        made_of = data.made_of
    if made_of not in ("", page):
        raise DataError(f"{path} was made from {made_of}: delete it, or give {origin} another name")
    n, codes, words = _classes(origin, content)
    extra: dict[str, Any] = {"original_name": origin.name, "source_page": page, "columns": list(content.columns)}
    extra |= {"class_names": words} if words else {}
    classes = sorted(set(codes.values()))
    writer = DatasetWriter(
        path, name=name, source=source, d=len(content.columns), classes=classes, n=n, codec=codec, extra_attrs=extra
    )
    with writer:
        for X, labels in content.blocks():
            values, inverse = np.unique(labels, return_inverse=True)
            writer.append(X, np.array([codes[value] for value in values.tolist()], np.int64)[inverse])
            if progress is not None:
                progress(writer.rows, n)
    return _entry(name, origin, n, content.columns, source, path)


def _classes(origin: Path, content: Content) -> tuple[int, dict[Any, int], list[str]]:
    """(rows, from a label to its class, the labels if they are words) of a whole content."""
    n, found = 0, set[Any]()
    for X, labels in content.blocks():
        if X.ndim != 2 or X.shape[1] != len(content.columns) or labels.shape != X.shape[:1]:
            raise DataError(f"{origin} must hold X (n, d) and y (n,), not {X.shape} and {labels.shape}")
        n += len(labels)
        found |= set(np.unique(labels).tolist())
        if len(found) > MOST_CLASSES:
            raise DataError(f"{origin} has more than {MOST_CLASSES} classes: is the class the last column (or y)?")
    if any(label != label or label == "" for label in found):
        raise DataError(f"{origin} has rows without a class: fill them in or leave them out")
    if any(isinstance(label, str) and "\0" in label for label in found):
        raise DataError(f"{origin} has a class with a NUL byte")
    if len(found) < 2:
        raise DataError(f"{origin} has rows of {len(found)} class{'es' * (not found)}, at least two are needed")
    try:
        codes = {label: _whole(label) for label in sorted(found)}
    except ValueError:
        words = sorted(map(str, found))
        return n, {label: words.index(str(label)) for label in found}, words
    if len(set(codes.values())) < len(codes):
        raise DataError(f"{origin} writes one class in two ways, such as 1 and 1.0: write it in one")
    return n, codes, []


def _whole(label: Any) -> int:
    """A label as a whole number; ValueError if it is none."""
    value = check_number(label.encode()) if isinstance(label, str) else label
    if not np.isfinite(value) or value != value // 1 or abs(value) >= 2**63:
        raise ValueError(f"{label} is no whole number")
    return int(value)


def _labels(y: Any, origin: Path) -> np.ndarray:
    """Labels as numbers or as words; "" where there is none."""
    labels = np.asarray(y)
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8", "backslashreplace")
    elif labels.dtype.kind == "O":
        found = [v.decode("utf-8", "backslashreplace") if isinstance(v, bytes) else v for v in labels.ravel().tolist()]
        strange = next((v for v in found if not isinstance(v, str | int | float | None) and str(v) != "<NA>"), None)
        if strange is not None:
            raise DataError(f"{origin}: classes must be numbers or words, not {type(strange).__name__}")
        labels = np.array([str(v) for v in found]).reshape(labels.shape)
        labels[labels == "None"] = ""
    elif labels.dtype.kind not in "biufU":
        raise DataError(f"{origin}: classes must be numbers or words, not {labels.dtype}")
    if labels.dtype.kind == "U":
        labels = np.where(np.isin(labels, NO_LABEL), "", labels)
    elif labels.dtype.kind == "f" and np.isinf(labels).any():
        raise DataError(f"{origin} has a class that is infinite")
    return labels


def _numbers(X: Any, origin: Path) -> np.ndarray:
    try:
        rows = np.asarray(X)
        if rows.dtype.kind in "cmMV":  # a cast would drop what is no number
            raise TypeError(f"got {rows.dtype}")
        with np.errstate(over="ignore"):  # an infinity is refused, with its row, when it is written
            return rows.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"{origin}: X must hold numbers: {str(error).splitlines()[0]}") from None


# --- files ---------------------------------------------------------------------------------------------------------


def _suffix(path: Path) -> str:
    """.csv of x.csv and of x.csv.gz, lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return suffixes[0] if len(suffixes) == 2 and suffixes[1] in PACKED else "".join(suffixes[-1:])


def _content(path: Path) -> Content:
    if _suffix(path) not in READERS:
        raise DataError(f"{path} is none of {', '.join(READERS)} or .py")
    failed = f"{path} cannot be read"

    def guarded() -> Iterator[Block]:
        with _one_sentence(failed):
            yield from blocks()

    with _one_sentence(failed):
        columns, blocks = READERS[_suffix(path)](path)
        return Content(columns, guarded, file_sha256(path))


def _arrays(origin: Path, X: Any, y: Any) -> Content:
    columns = tuple(map(str, getattr(X, "columns", ())))
    rows, labels = _numbers(X, origin), _labels(y, origin)
    digest = hashlib.sha256(np.ascontiguousarray(rows).data)
    digest.update("\n".join(map(str, labels.ravel().tolist())).encode())
    width = rows.shape[1] if rows.ndim == 2 else 1
    return Content(columns or numbered(width), lambda: iter([(rows, labels)]), digest.hexdigest())


def _csv(path: Path) -> Source:
    """Text with or without a line of column names (a first line in which nothing but the class may be a number)."""

    @contextlib.contextmanager
    def text() -> Iterator[BinaryIO]:
        with open(path, "rb") as file:
            yield unpacked(file, path.suffix.lower(), str(path), path.stat().st_size)

    with text() as stream:
        first = stream.readline(BLOCK_BYTES).removeprefix(codecs.BOM_UTF8)
    try:
        refuse_wide(first)
    except LineError as error:
        raise DataError(f"{path}, line 1 is damaged: {error}") from None
    if len(first) == BLOCK_BYTES:
        raise DataError(f"{path}, line 1 is damaged: it is longer than {BLOCK_BYTES} bytes")
    delimiter = next((c for c in ",;\t|" if c.encode() in first), " ")
    fields = [field.strip() for field in first.split(None if delimiter == " " else delimiter.encode())]
    if len(fields) < 2:
        raise DataError(f"{path} has one column: columns of numbers and, last, the class are needed")
    # names that are no numbers nor what stands for a missing one, or those that pandas gives columns without names
    header = (not any(map(_is_number, fields[:-1])) and not any(f.lower() in NO_NAMES for f in fields[:-1])) or (
        len(fields) > 3 and fields == [b"%d" % j for j in range(len(fields))]
    )
    if header and not fields[0]:
        raise DataError(f"{path}: the first column has no name, as an index has none: write the file without it")
    names = tuple(field.decode("utf-8-sig", "backslashreplace").strip('"') for field in fields[:-1])

    def blocks() -> Iterator[Block]:
        with text() as stream:
            if header:
                stream.readline()
            layout = Layout(len(names), None, delimiter=delimiter)
            for X, labels in parse_text(stream, layout, str(path), line=2 if header else 1):
                yield X, _labels(np.char.strip(labels, '"'), path)

    return names if header else numbered(len(names)), blocks


def _is_number(text: bytes) -> bool:
    with contextlib.suppress(ValueError):
        check_number(text)
        return True
    return False


def _parquet(path: Path) -> Source:
    import pyarrow as pa
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]  # pandas' index
    features = [file.schema_arrow.field(name) for name in names[:-1]]
    refuse_bomb(str(path), 4 * file.metadata.num_rows * file.metadata.num_columns, path.stat().st_size)
    if not features:
        raise DataError(f"{path} has less than two columns: numbers and, last, the class are needed")
    for field in features:
        kind = field.type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise DataError(f"{path}: column {field.name!r} holds {kind}, not numbers (the last column is the class)")

    def blocks() -> Iterator[Block]:
        for batch in file.iter_batches(_ROWS, columns=names):
            *columns, last = (batch.column(name).to_numpy(zero_copy_only=False) for name in names)
            yield np.column_stack([_numbers(column, path) for column in columns]), _labels(last, path)

    return tuple(field.name for field in features), blocks


def _npz(path: Path) -> Source:
    content = _arrays(path, *load_arrays(path, "X", "y"))
    return content.columns, content.blocks


def _h5(path: Path) -> Source:
    with open_hdf5(path, str(path)) as file:
        try:
            X, y = own_dataset(file, "X"), own_dataset(file, "y")
        except DataError as error:
            raise DataError(f"{path} cannot be read: {error}") from None
        if X.ndim != 2 or y.shape != X.shape[:1]:
            raise DataError(f"{path} must hold X (n, d) and y (n,), not {X.shape} and {y.shape}")
        width = X.shape[1]

    def blocks() -> Iterator[Block]:
        with open_hdf5(path, str(path)) as file:
            for start in range(0, len(file["y"]), _ROWS):
                part = slice(start, start + _ROWS)
                yield _numbers(file["X"][part], path), _labels(file["y"][part], path)

    return numbered(width), blocks


def _is_dataset_file(path: Path) -> bool:
    """Whether an HDF5 file is one of l2ul's, or damaged, so that `open_dataset` has to say what is wrong."""
    try:
        with open_hdf5(path, str(path)) as file:
            return bool(file.attrs.get("format") == FORMAT)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError):
        return True


READERS: dict[str, Callable[[Path], Source]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), _csv),
    ".parquet": _parquet,
    ".npz": _npz,
    **dict.fromkeys((".h5", ".hdf5"), _h5),
}
