"""`l2ul data`: list, fetch, convert, make and verify dataset files."""

import contextlib
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from l2ul_fast.cli.options import LATE, progress_bar, stdout
from l2ul_fast.errors import DataError

app = typer.Typer(no_args_is_help=True, help="Datasets: what is here, downloads, conversion, stand-ins, checks.")

Names = Annotated[list[str], typer.Argument(help="dataset names, or `all`", show_default=False)]
RawDir = Annotated[Path | None, typer.Option(help="folder of the original files [L2UL_RAW_DIR]", show_default=False)]
DataDir = Annotated[Path | None, typer.Option(help="folder of the HDF5 files [L2UL_DATA_DIR]", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="one JSON object per line on standard output")]


def _expand(names: list[str]) -> list[str]:
    from l2ul_fast.datasets import REGISTRY, get_info

    return list(REGISTRY) if names == ["all"] else [get_info(name).name for name in names]


def _known(data_dir: Path) -> list[str]:
    """Names of the paper's datasets, and of those of which the folder has a file of the user's own."""
    from l2ul_fast.datasets.file.layout import SUFFIXES
    from l2ul_fast.datasets.registry import REGISTRY

    own = sorted(path.name.removesuffix(SUFFIXES["own"]) for path in data_dir.glob("*" + SUFFIXES["own"]))
    return list(dict.fromkeys([*REGISTRY, *own]))


def _describe(path: Path) -> dict[str, Any]:
    """Facts of a dataset file; `error` where it cannot be used."""
    from l2ul_fast.datasets.file.hdf5 import open_dataset

    facts: dict[str, Any] = {"path": str(path), "bytes": path.stat().st_size}
    try:
        with open_dataset(path) as data:
            facts |= {"label": data.label, "name": data.name, "source": data.source, "n": data.n, "d": data.d}
            facts |= {"classes": data.classes, "class_counts": data.class_counts, "n_train": data.n_train}
    except DataError as error:
        facts["error"] = str(error)
    return facts


def _done(as_json: bool, facts: dict[str, Any], sentence: str) -> None:
    typer.echo(json.dumps(facts) if as_json else sentence)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


@app.command("list")
def list_(raw_dir: RawDir = None, data_dir: DataDir = None, as_json: Json = False) -> None:
    """What is here: originals, and files labelled real, subset, stand-in or own."""
    from l2ul_fast.datasets import REGISTRY, dataset_path, default_data_dir, find_raw
    from l2ul_fast.datasets.file.layout import SUFFIXES

    folder = data_dir or default_data_dir()
    heads = ("dataset", "rows x columns", "original", "file", "label", "rows", "size")
    table = Table(*(Column(head, overflow="fold") for head in heads))
    for name in _known(folder):
        files = [_describe(path) for label in SUFFIXES if (path := dataset_path(folder, name, label)).is_file()]
        facts: dict[str, Any] = {"name": name} | {key: files[0].get(key, "?") if files else "?" for key in ("n", "d")}
        original, part = None, ""
        if (info := REGISTRY.get(name)) is not None:
            facts |= {"original_name": info.original_name, "n": info.n, "d": info.d, "licence": info.licence}
            facts |= {"source_page": info.source_page, "class_rule": info.class_rule}
            with contextlib.suppress(DataError):
                raw = find_raw(name, raw_dir)
                original = str(raw.path if len(raw.paths) == 1 else raw.path.parent)
                part = " (subset)" if raw.is_subset else ""
        if as_json:
            typer.echo(json.dumps(facts | {"original": original, "original_is_subset": bool(part), "files": files}))
            continue
        first = (name, f"{facts['n']} x {facts['d']}", Path(original).name + part if original else "-")
        for k, file in enumerate(files or [{}]):
            label, rows = file.get("label", "damaged" if file else "-"), str(file.get("n", "-"))
            cells = (Path(file["path"]).name, label, rows, _size(file["bytes"])) if file else ("-", "-", "-", "-")
            table.add_row(*(first if k == 0 else ("", "", "")), *cells)
    if not as_json:
        stdout(width=1000).print(table)


@app.command()
def fetch(names: Names, raw_dir: RawDir = None, as_json: Json = False) -> None:
    """Download original files (checksummed where the sum is known)."""
    from l2ul_fast import datasets

    for name in _expand(names):
        with progress_bar(f"fetch {name}", LATE) as progress:
            raw = datasets.fetch(name, raw_dir, progress)
        _done(as_json, {"name": name, "path": str(raw.path)}, f"{name}: {raw.path}")


@app.command()
def convert(
    names: Annotated[
        list[str],
        typer.Argument(help="dataset names, or `all`, or data files (csv, parquet, npz, h5, py)", show_default=False),
    ],
    raw_dir: RawDir = None,
    data_dir: DataDir = None,
    codec: Annotated[str, typer.Option(help="none, bitshuffle-lz4 or zstd")] = "none",
    subset: Annotated[
        bool, typer.Option("--subset", help="the original file is meant to be a part of the set")
    ] = False,
    as_json: Json = False,
) -> None:
    """Turn original files, or data files of your own, into HDF5."""
    from l2ul_fast import datasets
    from l2ul_fast.datasets.plugin import is_data_file, load_dataset_file

    for name in [word for given in names for word in ([given] if is_data_file(given) else _expand([given]))]:
        begin = time.perf_counter()
        with progress_bar(f"convert {name}", LATE) as progress:
            info = load_dataset_file(name, data_dir, codec, progress) if is_data_file(name) else datasets.get_info(name)
            path = info.path or datasets.convert(name, raw_dir, data_dir, codec, progress, subset=subset)
        _report(path, time.perf_counter() - begin, as_json)


@app.command()
def make(
    names: Names,
    rows: Annotated[int | None, typer.Option(min=1, help="rows to make; default: as many as the real set")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Make stand-ins: synthetic rows of the same shape, labelled as such everywhere."""
    from l2ul_fast.datasets.standin.rows import make as make_file

    for name in _expand(names):
        begin = time.perf_counter()
        with progress_bar(f"make {name}", LATE) as progress:
            path = make_file(name, rows, seed, data_dir, progress)
        _report(path, time.perf_counter() - begin, as_json)


def _report(path: Path, seconds: float, as_json: bool) -> None:
    facts = _describe(path) | {"seconds": round(seconds, 3)}
    rate = facts["n"] / seconds
    sentence = f"{path}: {facts['label']}, {facts['n']} x {facts['d']}, {seconds:.2f} s, {rate:,.0f} rows/s"
    _done(as_json, facts | {"rows_per_second": round(rate)}, sentence)


@app.command()
def verify(
    targets: Annotated[list[str] | None, typer.Argument(help="dataset names or HDF5 files; default: all")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Read files completely: checksums, NaN, labels, attributes. Exit code 1 if anything is wrong."""
    from l2ul_fast import datasets

    sound = True
    for path in _targets(targets, data_dir or datasets.default_data_dir()):
        with progress_bar(f"verify {path.name}", LATE) as progress:
            findings = datasets.verify(path, progress)
        sound &= not findings
        facts = {"path": str(path), "sound": not findings, "findings": findings}
        _done(as_json, facts, f"{path}: " + ("sound" if not findings else "; ".join(findings)))
    if not sound:
        raise typer.Exit(1)


def _targets(targets: list[str] | None, data_dir: Path) -> list[Path]:
    """Files meant by names (all files of that dataset) or paths."""
    from l2ul_fast.datasets import REGISTRY, dataset_path
    from l2ul_fast.datasets.file.layout import SUFFIXES

    paths = []
    for target in targets or _known(data_dir):
        here = [path for label in SUFFIXES if (path := dataset_path(data_dir, target, label)).is_file()]
        if not here and target not in REGISTRY:
            here = [Path(target)]
        elif targets and not here:
            raise DataError(f"there is no file of {target} in {data_dir}: make it with `l2ul data convert {target}`")
        paths += here
    if not paths:
        raise DataError(
            f"there are no dataset files in {data_dir}: make one with `l2ul data convert` or `l2ul data make`"
        )
    return paths
