"""The command line: every command with odd words in place of its arguments and options."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from engine import Lie
from hypothesis import strategies as st
from strange import listed

MODULES = tuple(f"l2ul_fast/cli/{name}.py" for name in ("unlearn", "data", "report", "reconstruct"))
MODULES += ("l2ul_fast/cli/kme.py:kme,_here,_facts,_store_cells,_listed",)
MODULES += ("l2ul_fast/cli/options.py:parse_names,parse_words,parse_ints,parse_settings,_value,thread_list",)
MODULES += ("l2ul_fast/cli/bench.py:_command,_listing,reproduce",)
WORDS = listed("""
    - | -- | -1 | 0 | 1 | 2 | 3.5 | 1,2 | 0-5 | 5-0 | 1- | , | nan | inf | 1e3 | 2**70 |
    9999999999999999999999999999999999999999 | x | * | ~ | x=1 | = | rows= | rows=x | n=[1 | runs=0 | m={} |
    seeds=null | lr | mlp | all | magic | sepsis | rows.h5 | mine.csv | saved | saved/artifact.json | run |
    run/records.jsonl | empty | . | .. | / | /dev/null | /proc/self/mem | missing.h5 | missing.py | broken.py |
    odd.h5 | odd.csv | out | @ | %s | {} | [bold] | tiny | none | zstd | kme | grid
""")
WORDS += ["", " ", "a\x01b", "\xe9", "\udc80"]
#: Command lines that are sound.
LINES = listed("""
    kme rows.h5 | kme rows.h5 --by-class --part all --raw raw.npz --cells cells --json | fit rows.h5 --out made |
    fit rows.h5 --out made --head learned --m 40 --s 60 --json | fit rows.h5 --out made --model mlp --hidden 2 |
    unlearn saved --rows 3 | unlearn saved --rows-file rows.txt --rtol 1e-3 --check --json | unlearn saved --refresh |
    unlearn saved --rows 5-9 --defer --request-id a | unlearn saved --finish | show saved | show saved --json |
    reconstruct saved | reconstruct saved --before saved --truth-file truth.txt --json |
    reconstruct saved --candidates-file truth.txt | reconstruct gone --before saved --truth-file truth.npz |
    reconstruct gone --truth-file truth.npz --json | unlearn gone --finish --json |
    report run | report run --out page | compare run run |
    compare run run --all --json --min-effect 0.2 | reproduce run lr/magic/newton | env | env --json | data list |
    data list --json | data fetch | data convert mine.csv | data convert mine.csv --codec zstd --json |
    data make magic --rows 300 | data make skin adult --rows 200 --json | data verify rows.h5 |
    data verify rows.h5 odd.h5 --json | bench lr --dry-run --profile tiny | bench unlearn --dry-run --set draws=1 |
    bench lr mlp --dry-run --data mine.csv --methods newton,retrain --runs 2 --threads 1 | bench
""")
#: Options that start or look for other processes are left out.
APART = ("--workers", "--scheduler")


def command_of(line: str) -> str:
    """The words of a line that name its command."""
    words = line.split()
    return " ".join(words[: 2 if words[0] in ("data", "bench") else 1])


@functools.cache
def options() -> dict[str, list[str]]:
    """Command -> its options, as the help says."""
    import typer.main

    from l2ul_fast.cli.app import app

    root = typer.main.get_command(app)
    found = {}
    for words in {command_of(line) for line in LINES}:
        command, context = root, typer.Context(root)
        for word in words.split():
            command = command.get_command(context, word)
            context = typer.Context(command)
        names = [name for parameter in command.params for name in parameter.opts if name.startswith("--")]
        found[words] = [name for name in names if name not in APART] or ["--help"]
    return found


@functools.cache
def corpus() -> Path:
    """A folder with one file of each sort that commands read."""
    import json

    from target_hdf5 import corpus as datasets
    from target_json import RECORD

    from l2ul_fast import L2UL

    place = Path(tempfile.mkdtemp(prefix="l2ul-fuzz-"))
    shutil.copy(datasets() / "rows.h5", place / "rows.h5")
    (place / "odd.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    (place / "mine.csv").write_text("".join(f"{k % 7},{k % 5},{k % 2}\n" for k in range(90)))
    (place / "odd.csv").write_bytes(b"a,b\n\x00,\xff\n")
    (place / "broken.py").write_text("import nothing_like_this\n")
    (place / "rows.txt").write_text("3\n4 5\n")
    (place / "truth.txt").write_text("0.1 0.2 0.3 1\n")
    (place / "empty").mkdir()
    (place / "run").mkdir()
    (place / "run" / "records.jsonl").write_text(json.dumps(RECORD) + "\n")
    u = L2UL("lr", random_state=0).fit(place / "rows.h5", part="all")
    u.save(place / "saved")
    X, y = u.retained().take(np.arange(9))
    np.savez(place / "truth.npz", X=X[7:8], y=y[7:8])
    u.unlearn([7])
    u.save(place / "gone", defer=True)
    return place


def prepare() -> None:
    for line in (
        "data make magic --rows 300",
        "fit rows.h5 --out made",
        "unlearn saved --rows 3",
        "bench lr --dry-run",
    ):  # loads what most import
        said = io.StringIO()
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            run({"line": line, "edits": []}, Path(folder))


def cases() -> Any:
    word = st.one_of(st.sampled_from(WORDS), st.text(max_size=6))
    edit = st.tuples(st.sampled_from(("put", "insert", "drop", "option", "option", "flag")), st.integers(0, 30), word)
    return st.fixed_dictionaries({"line": st.sampled_from(LINES), "edits": st.lists(edit, max_size=2)})


def words_of(case: Any) -> list[str]:
    """The command line after the edits; long work stays short."""
    command = command_of(case["line"])
    words, known = case["line"].split()[len(command.split()) :], options()[command]
    for how, place, word in case["edits"]:
        if how in ("option", "flag"):
            words += [known[place % len(known)]] + [word] * (how == "option")
        elif how == "drop" and words:
            del words[place % len(words)]
        elif words:
            at = place % len(words)
            words[at : at + (how == "put")] = [word]
    words = [word.replace("\0", "") for word in words]  # no process can be given one
    if command.startswith("bench") and not {"--dry-run", "--help"} & set(words):
        words.append("--dry-run")
    return [*command.split(), *(word for word in words if word not in APART)]


def run(case: Any, folder: Path) -> None:
    from l2ul_fast.cli import main

    here, words = folder / "here", words_of(case)
    shutil.copytree(corpus(), here)
    place, known = os.getcwd(), dict(os.environ)
    out = sys.stdout
    begin = out.tell()
    try:
        os.chdir(here)
        os.environ |= {"L2UL_RAW_DIR": str(here / "empty"), "L2UL_DATA_DIR": str(here / "data")}
        with (
            mock.patch.object(sys, "argv", ["l2ul", *words]),
            mock.patch("urllib.request.urlopen", side_effect=OSError("offline")),
            mock.patch("webbrowser.open"),
        ):
            main()
        code: Any = 0
    except SystemExit as stop:
        code = stop.code
    except KeyboardInterrupt:
        raise Lie(f"{words} was interrupted by nobody") from None
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ.update(known)
    text = out.getvalue()[begin:] + (code if isinstance(code, str) else "")
    if "Traceback (most" in text:
        raise Lie(f"{words} ends in a traceback: {text[-300:]!r}")
    if code not in (None, 0) and not text.strip():
        raise Lie(f"{words} ends with {code} and says nothing")
    if isinstance(code, int) and code not in (0, 1, 2, 130):
        raise Lie(f"{words} ends with {code}")
    if code not in (None, 0):
        raise ValueError(code if isinstance(code, str) else f"ended with {code}")
