"""The `l2ul` command in this process: a child would take a second to import what is here already."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import typer.main
from report_data import main_records
from report_data import write as write_run
from typer.testing import CliRunner

from l2ul_fast import L2UL
from l2ul_fast.cli import main
from l2ul_fast.cli.app import app
from l2ul_fast.datasets.file.hdf5 import DatasetWriter

#: A quick and valid use of every command in a copy of what `prepare` made; all experiments share one command, and the
#: file of the one here stays where it was, since a process loads it once.
USES = {
    "env": "env",
    "data list": "data list",
    "data fetch": "data fetch susy",
    "data convert": "data convert susy",
    "data make": "data make magic --rows 200",
    "data verify": "data verify magic",
    "kme": "kme rows.h5 --t 5 --cells cells.h5",
    "fit": "fit rows.h5 --out new",
    "unlearn": "unlearn u --rows 3",
    "show": "show u",
    "reconstruct": "reconstruct u",
    "bench": "bench --experiment ../sorting.py sorting --profile tiny --out new-run",
    "report": "report run",
    "compare": "compare a b",
    "reproduce": "reproduce run 3",
    "ledger head": "ledger head u",
    "ledger verify": "ledger verify u",
    "replay": "replay u --onto before",
}


def run(*words, **environment):
    """The result (`exit_code`, `stdout`, `stderr`) of `l2ul WORDS...`; a traceback fails."""
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="l2ul", env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def l2ul(*words, code=0, **environment):
    """The result of `l2ul WORDS...`, which must end with this exit code."""
    result = run(*words, **environment)
    assert result.exit_code == code, result.stderr
    return result


def printed(*words):
    """Standard output and standard error of a command that must succeed."""
    result = l2ul(*words)
    return result.stdout, result.stderr


def mistake(*words, code=1, **environment):
    """The one sentence on standard error with which `l2ul WORDS...` fails; a fit may have shown progress before."""
    result = l2ul(*words, code=code, **environment)
    assert result.stdout == ""
    *progress, sentence = result.stderr.splitlines()
    assert words[0] == "fit" or not progress, result.stderr
    assert sentence.startswith("error: ")
    return sentence


def done(*words):
    """Standard output of a command that must succeed without a warning."""
    result = l2ul(*words)
    assert "warning" not in result.stderr
    return result.stdout


def facts_of(*words):
    return json.loads(done(*words, "--json"))


def contents(directory):
    """The bytes of all files but the lock."""
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != ".lock"}


def ended(*words, monkeypatch):
    """The exit code of `l2ul WORDS...` as a program, signals and streams included."""
    monkeypatch.setattr(sys, "argv", ["l2ul", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    raise AssertionError("main() came back")


def commands():
    """The words of every command."""

    def below(words, command):
        if not hasattr(command, "list_commands") or words == "bench":
            return [words]
        context = typer.Context(command)
        names = command.list_commands(context)
        return [leaf for name in names for leaf in below(f"{words} {name}".strip(), command.get_command(context, name))]

    return below("", typer.main.get_command(app))


def prepare(folder):
    """Fill the folder with what USES names; copies of it must lie beside it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)).astype(np.float32)
    with DatasetWriter(folder / "rows.h5", name="magic", source="standin:test:0", d=3, classes=[0, 1]) as writer:
        writer.append(X, (X[:, 0] > 0).astype(int))
    (folder / "data").mkdir()
    (folder / "data" / "magic.standin.h5").write_bytes((folder / "rows.h5").read_bytes())
    (folder / "raw").mkdir()
    np.savez(folder / "raw" / "susy_subset.npz", X=rng.normal(size=(50, 18)).astype("f4"), y=rng.integers(0, 2, 50))
    u = L2UL("lr").fit(str(folder / "rows.h5"))
    u.save(folder / "before")
    u.unlearn([5])
    u.save(folder / "u")
    for name in "ab":
        write_run(folder / name, main_records(2, {"magic": ("stand-in", 19_020, 10)}, ("nothing", "retrain", "newton")))
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    experiment = re.findall(r'```python\n(""".*?)```', page, re.DOTALL)[2]
    (folder.parent / "sorting.py").write_text(experiment)
