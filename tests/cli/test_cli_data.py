"""`l2ul data`: JSON on standard output, one sentence on standard error, exit codes."""

import json
import sys
import types

import h5py
import numpy as np
import pytest
from command import l2ul, mistake

from l2ul_fast.cli.options import progress_bar
from l2ul_fast.datasets import plugin, registry
from l2ul_fast.datasets.file.hdf5 import DatasetWriter, dataset_path


def lines(*words, code=0):
    """The JSON lines of `l2ul data WORDS... --json`."""
    return [json.loads(line) for line in l2ul("data", *words, "--json", code=code).stdout.splitlines()]


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


def test_convert_list_verify(folders):
    _, data = folders
    (made,) = lines("convert", "susy")
    assert (made["label"], made["n"], made["d"], made["path"]) == ("subset", 50, 18, str(data / "susy.subset.h5"))
    make_standin("susy", 20, data_dir=data)
    listed = {entry["name"]: entry for entry in lines("list")}
    assert len(listed) == 7
    assert [(file["label"], file["n"]) for file in listed["susy"]["files"]] == [("subset", 50), ("stand-in", 20)]
    assert listed["susy"]["original_is_subset"]
    assert listed["magic"]["original"] is None
    out = l2ul("data", "list", COLUMNS="160").stdout
    assert all(text in out for text in ("susy.subset.h5", "susy.standin.h5", "subset", "stand-in", "11000000 x 28"))
    assert [found["sound"] for found in lines("verify")] == [True, True]


def test_verify_of_a_damaged_file_fails(folders):
    _, data = folders
    lines("convert", "susy")
    with h5py.File(data / "susy.subset.h5", "r+") as file:
        file["X"][7, 3] = np.nan
    for target in ("susy", data / "susy.subset.h5"):
        findings = [f"row 7 of {data / 'susy.subset.h5'} has a NaN or an infinity"]
        assert lines("verify", target, code=1)[0]["findings"] == findings
    with h5py.File(data / "susy.subset.h5", "r+") as file:
        file.attrs["format_version"] = 9
    assert "damaged" in l2ul("data", "list").stdout


def test_a_data_file_is_converted_listed_and_verified(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "REGISTRY", dict(registry.REGISTRY))
    monkeypatch.setattr(plugin, "REGISTRY", registry.REGISTRY)
    _, data = folders
    (tmp_path / "mine.csv").write_text("a,b,class\n1,2,no\n3,4,yes\n5,6,no\n")
    made = lines("convert", tmp_path / "mine.csv", "susy")
    assert [(m["label"], m["n"], m["d"]) for m in made] == [("own", 3, 2), ("subset", 50, 18)]
    assert made[0]["source"].startswith("own:")
    listed = lines("list")
    assert listed[-1]["name"] == "mine"
    assert [(file["label"], file["n"]) for file in listed[-1]["files"]] == [("own", 3)]
    assert "mine.own.h5" in l2ul("data", "list").stdout
    for target, count in (((), 2), (("mine",), 1), ((data / "mine.own.h5",), 1)):
        assert len(lines("verify", *target)) == count
    (tmp_path / "mine.csv").write_text("a,b,class\n1,2,no\n3,,yes\n")
    assert "line 3 is damaged" in mistake("data", "convert", tmp_path / "mine.csv")


def test_a_list_is_complete_in_a_narrow_window(folders):
    _, data = folders
    name = "a-name-that-is-longer-than-a-column-of-a-narrow-window"
    make_standin(name, 20, data_dir=data).rename(data / f"{name}.own.h5")
    assert f" {name}.own.h5 " in l2ul("data", "list", COLUMNS=None).stdout
    shown = l2ul("data", "list", COLUMNS="80").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown


def test_make_calls_the_generator(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "l2ul_fast.datasets.standin.rows", types.SimpleNamespace(make=make_standin))
    (made,) = lines("make", "magic", "--rows", 30, "--seed", 4, "--data-dir", folders[1])
    assert (made["label"], made["n"], made["source"]) == ("stand-in", 30, "standin:t:4")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("convert magic", "no original of magic found: put magic04.data"),
        ("convert mnist", "there is no dataset 'mnist'"),
        ("convert susy --codec gzip", "codec 'gzip' is unknown"),
        ("make mnist", "there is no dataset 'mnist'"),
        ("verify", "there are no dataset files in"),
        ("verify magic", "there is no file of magic"),
    ],
)
def test_mistakes_are_one_sentence(folders, words, message):
    assert mistake("data", *words.split()).startswith("error: " + message)


def test_interrupt(folders, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("l2ul_fast.datasets.convert", interrupted)
    assert l2ul("data", "convert", "susy", code=130).stderr == "interrupted: nothing half-written was kept\n"


def test_progress_goes_to_standard_error_and_only_when_it_takes_long(capsys):
    for delay, shown in ((0.0, True), (60.0, False)):
        with progress_bar("convert it", delay=delay) as progress:
            progress(5, 10)
            progress(10, 10)
        out, err = capsys.readouterr()
        assert out == ""
        assert ("convert it" in err) == shown
