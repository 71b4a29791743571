"""`l2ul data`: JSON on standard output, one sentence on standard error, exit codes."""

import json
import sys
import types

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from l2ul_fast.cli.data import app, progress_bar
from l2ul_fast.datasets import plugin, registry
from l2ul_fast.datasets.file.hdf5 import DatasetWriter, dataset_path


def run(*args):
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def folders(tmp_path, monkeypatch):
    raw, data = tmp_path / "raw", tmp_path / "data"
    raw.mkdir()
    data.mkdir()
    monkeypatch.setenv("L2UL_RAW_DIR", str(raw))
    monkeypatch.setenv("L2UL_DATA_DIR", str(data))
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it
    rng = np.random.default_rng(0)
    np.savez(raw / "susy_subset.npz", X=rng.normal(size=(50, 18)).astype("f4"), y=rng.integers(0, 2, 50))
    return raw, data


def make_standin(name, rows=None, seed=0, data_dir=None, progress=None):
    path = dataset_path(data_dir, name, "stand-in")
    with DatasetWriter(path, name=name, source=f"standin:t:{seed}", d=10, classes=[0, 1]) as writer:
        writer.append(np.zeros((rows, 10)), np.arange(rows) % 2)
    return path


def test_convert_list_verify(folders, monkeypatch):
    _, data = folders
    code, out, _ = run("convert", "susy", "--json")
    assert code == 0
    made = json.loads(out)
    assert (made["label"], made["n"], made["d"], made["path"]) == ("subset", 50, 18, str(data / "susy.subset.h5"))
    make_standin("susy", 20, data_dir=data)
    code, out, _ = run("list", "--json")
    assert code == 0
    listed = {entry["name"]: entry for entry in map(json.loads, out.splitlines())}
    assert len(listed) == 7
    assert [(file["label"], file["n"]) for file in listed["susy"]["files"]] == [("subset", 50), ("stand-in", 20)]
    assert listed["susy"]["original_is_subset"]
    assert listed["magic"]["original"] is None
    code, out, _ = run("list")
    assert code == 0
    assert all(text in out for text in ("susy.subset.h5", "susy.standin.h5", "subset", "stand-in", "11000000 x 28"))
    code, out, _ = run("verify", "--json")
    assert code == 0
    assert [json.loads(line)["sound"] for line in out.splitlines()] == [True, True]


def test_verify_of_a_damaged_file_fails(folders):
    _, data = folders
    assert run("convert", "susy")[0] == 0
    with h5py.File(data / "susy.subset.h5", "r+") as file:
        file["X"][7, 3] = np.nan
    for target in ("susy", data / "susy.subset.h5"):
        code, out, _ = run("verify", target, "--json")
        assert code == 1
        assert json.loads(out)["findings"] == [f"row 7 of {data / 'susy.subset.h5'} has a NaN or an infinity"]
    with h5py.File(data / "susy.subset.h5", "r+") as file:
        file.attrs["format_version"] = 9
    code, out, _ = run("list")
    assert code == 0
    assert "damaged" in out


def test_a_data_file_is_converted_listed_and_verified(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "REGISTRY", dict(registry.REGISTRY))
    monkeypatch.setattr(plugin, "REGISTRY", registry.REGISTRY)
    _, data = folders
    (tmp_path / "mine.csv").write_text("a,b,class\n1,2,no\n3,4,yes\n5,6,no\n")
    code, out, _ = run("convert", tmp_path / "mine.csv", "susy", "--json")
    made = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(m["label"], m["n"], m["d"]) for m in made] == [("own", 3, 2), ("subset", 50, 18)]
    assert made[0]["source"].startswith("own:")
    listed = [json.loads(line) for line in run("list", "--json")[1].splitlines()]
    assert listed[-1]["name"] == "mine"
    assert [(file["label"], file["n"]) for file in listed[-1]["files"]] == [("own", 3)]
    assert "mine.own.h5" in run("list")[1]
    for target, count in (((), 2), (("mine",), 1), ((data / "mine.own.h5",), 1)):
        code, out, _ = run("verify", *target, "--json")
        assert (code, len(out.splitlines())) == (0, count)
    (tmp_path / "mine.csv").write_text("a,b,class\n1,2,no\n3,,yes\n")
    code, _, err = run("convert", tmp_path / "mine.csv")
    assert (code, err.count("\n")) == (1, 1)
    assert "line 3 is damaged" in err


def test_a_list_is_complete_in_a_narrow_window(folders, monkeypatch):
    _, data = folders
    name = "a-name-that-is-longer-than-a-column-of-a-narrow-window"
    make_standin(name, 20, data_dir=data).rename(data / f"{name}.own.h5")
    assert f" {name}.own.h5 " in run("list")[1]
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("list")[1]
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown


def test_make_calls_the_generator(folders, monkeypatch):
    _, data = folders
    monkeypatch.setitem(sys.modules, "l2ul_fast.datasets.standin.rows", types.SimpleNamespace(make=make_standin))
    code, out, _ = run("make", "magic", "--rows", 30, "--seed", 4, "--data-dir", data, "--json")
    made = json.loads(out)
    assert code == 0
    assert (made["label"], made["n"], made["source"]) == ("stand-in", 30, "standin:t:4")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("convert", "magic"), "no original of magic found: put magic04.data"),
        (("convert", "mnist"), "there is no dataset 'mnist'"),
        (("convert", "susy", "--codec", "gzip"), "codec 'gzip' is unknown"),
        (("make", "mnist"), "there is no dataset 'mnist'"),
        (("verify",), "there are no dataset files in"),
        (("verify", "magic"), "there is no file of magic"),
    ],
)
def test_mistakes_are_one_sentence(folders, args, message):
    code, out, err = run(*args)
    assert code == 1
    assert out == ""
    assert err.startswith("error: " + message)
    assert err.count("\n") == 1


def test_interrupt(folders, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("l2ul_fast.datasets.convert", interrupted)
    code, _, err = run("convert", "susy")
    assert code == 130
    assert err == "interrupted: nothing half-written was kept\n"


def test_progress_goes_to_standard_error_and_only_when_it_takes_long(capsys):
    for delay, shown in ((0.0, True), (60.0, False)):
        with progress_bar("convert it", delay=delay) as progress:
            progress(5, 10)
            progress(10, 10)
        out, err = capsys.readouterr()
        assert out == ""
        assert ("convert it" in err) == shown
