"""`l2ul fit`, `unlearn`, `show`: a small stand-in from the first command to the last, and answers to mistakes."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from l2ul_fast.cli.app import app
from l2ul_fast.cli.unlearn import read_rows
from l2ul_fast.errors import UserError
from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.artifact import check_artifact

OPTIONS = ("--m", 60, "--s", 400, "--t", 20)


def run(*args):
    """(exit code, standard output, standard error); a traceback fails."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def refused(*args):
    """The one sentence a mistake is answered with."""
    code, out, err = run(*args)
    assert code == 1, (code, out, err)
    assert out == ""
    *progress, last = err.splitlines()
    assert last.startswith("error: ")
    assert args[0] == "fit" or not progress
    assert "Traceback" not in err
    return last


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """(stand-in file, directory of an unlearner fitted on it)."""
    folder = tmp_path_factory.mktemp("cli")
    code, out, err = run("data", "make", "magic", "--rows", 3000, "--data-dir", folder, "--json")
    assert code == 0, err
    path = json.loads(out)["path"]
    code, out, err = run("fit", path, "--out", folder / "u", *OPTIONS, "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert (facts["model"], facts["label"], facts["d"], facts["parameters"]) == ("lr", "stand-in", 10, 11)
    assert facts["report"]["m"] + facts["report"]["rejected"] == 60
    return path, folder / "u"


def test_plain_training_prints_its_noise_floor(fitted, tmp_path):
    options = ("--model", "mlp", "--m", 20, "--s", 300, "--t", 20, "--anchor-rows")
    code, out, err = run("fit", fitted[0], "--out", tmp_path / "plain", *options, 0)
    assert code == 0, err
    assert "noise floor: training from another start answers" in out
    code, out, err = run("fit", fitted[0], "--out", tmp_path / "anchored", *options, 500, "--json")
    assert code == 0, err
    assert json.loads(out)["noise_floor"] == 0


@pytest.fixture
def directory(fitted, tmp_path):
    return shutil.copytree(fitted[1], tmp_path / "u")


def training_rows(directory, count):
    return L2UL.load(directory).retained().ids()[:count]


def test_from_fit_to_show(fitted, directory):
    path, _ = fitted
    rows = training_rows(directory, 6)
    n = L2UL.load(directory).n
    code, out, err = run("unlearn", directory, "--rows", f"{rows[0]},{rows[1]}", "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert (facts["r"], facts["n"], facts["advice"], facts["warnings"]) == (2, n - 2, "ok", [])
    assert facts["latency_us"] > 0
    assert facts["gradient_residual"] is None
    assert set(facts["refreshed"]) == {"pairs", "partitions", "head", "reanchored"}
    code, out, err = run("unlearn", directory, "--rows", rows[2], "--check", "--no-refresh", "--threads", 1)
    assert code == 0, err
    assert "forgot 1 row(s) in" in out
    assert f"{n - 3} rows remain" in out
    assert "largest gradient entry on the rows that stay" in out
    assert "refreshed" not in out
    u = L2UL.load(directory)
    assert u.n == n - 3
    assert [e["rows"].tolist() for e in u.forget_log] == [rows[:2].tolist(), [rows[2]]]
    np.testing.assert_array_equal(np.flatnonzero(u.gone == 1), rows[:3])
    code, out, _ = run("show", directory, "--json")
    assert code == 0
    shown = json.loads(out)
    assert (shown["forgotten"], shown["requests"], shown["n"], shown["ledger"]) == (3, 2, n - 3, "intact")
    assert [e["action"] for e in shown["entries"]] == ["fit", "unlearn", "refresh", "unlearn"]
    assert shown["data"]["paths"] == [path]
    code, out, _ = run("show", directory)
    assert code == 0
    for text in ("stand-in", "forgotten  3", "unlearn", "2 row(s)"):
        assert text in out


def test_rows_from_a_file_and_the_state_a_program_would_reach(directory, tmp_path):
    rows = training_rows(directory, 40)
    u = L2UL.load(directory)
    u.unlearn(rows)
    listed = tmp_path / "rows.txt"
    listed.write_text("\n".join(f"{row}," if row % 2 else f"{row}-{row}" for row in rows))
    code, out, err = run("unlearn", directory, "--rows-file", listed, "--no-refresh", "--json")
    assert code == 0, err
    assert json.loads(out)["r"] == 40
    np.testing.assert_array_equal(L2UL.load(directory).theta, u.theta)


def test_a_request_out_of_range_warns_and_goes_on(directory):
    rows = training_rows(directory, 900)
    code, out, err = run("unlearn", directory, "--rows", ",".join(map(str, rows)), "--no-refresh")
    assert code == 0
    assert "retrain instead" in out
    assert err.startswith("warning: 900 of ")


def test_mistakes_are_one_sentence_and_nothing_changes(fitted, directory, tmp_path):
    path, _ = fitted
    u = L2UL.load(directory)
    first = u.retained().ids()
    foreign = np.setdiff1d(np.arange(3000), first)[0]
    run("unlearn", directory, "--rows", first[0])
    before = {p.name: p.read_bytes() for p in directory.iterdir()}
    cases = {
        "was forgotten before": f"{first[1]},{first[0]}",
        "does not exist": "3000",
        "is not a training row": str(foreign),
        "is named twice": f"{first[1]},{first[1]}",
        "is not a row number or a range": f"{first[1]},abc",
        "is empty or too long": "9-3",
        "no row was named": " , ",
    }
    for match, rows in cases.items():
        assert match in refused("unlearn", directory, "--rows", rows)
    assert "is not a row number" in refused("unlearn", directory, "--rows=-5")
    assert "is not a row number" in refused("unlearn", directory, "--rows", "²")
    assert "whole numbers" in refused("unlearn", directory, "--rows", "9999999999999999999999")
    assert "does not exist" in refused("unlearn", directory, "--rows", "9999999999999999999")
    assert "either --rows or --rows-file" in refused("unlearn", directory)
    assert "either --rows or --rows-file" in refused("unlearn", directory, "--rows", "1", "--rows-file", path)
    assert "cannot read" in refused("unlearn", directory, "--rows-file", tmp_path / "missing")
    assert "cannot read" in refused("unlearn", directory, "--rows-file", path)
    class_1 = first[u.store._table.y[first] == 1]
    (tmp_path / "class").write_text(" ".join(str(row) for row in class_1 if row != first[0]))
    assert "takes out all rows of class" in refused("unlearn", directory, "--rows-file", tmp_path / "class")
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == before
    for command in (("unlearn", "--rows", "1"), ("show",)):
        assert "there is no artifact" in refused(command[0], tmp_path / "nowhere", *command[1:])
    assert run("unlearn", directory, "--rows", 1, "--threads", 0)[0] == 2


def test_mistakes_of_a_fit(fitted, tmp_path):
    path, _ = fitted
    out = tmp_path / "out"
    assert "missing.h5" in refused("fit", tmp_path / "missing.h5", "--out", out)
    assert "lam must be positive" in refused("fit", path, "--out", out, "--lam", 0)
    assert "cannot be drawn from" in refused("fit", path, "--out", out, "--s", 10_000_000)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    # found out before the work, not after it
    assert "holds other files (notes.txt)" in refused("fit", tmp_path / "missing.h5", "--out", tmp_path / "mine")
    assert "is not a directory" in refused("fit", path, "--out", tmp_path / "mine" / "notes.txt")
    assert not out.exists()
    assert run("fit", path, "--out", out, "--model", "svm")[0] == 2
    assert run("fit", path, "--out", out, "--psi", 1)[0] == 2


def test_a_moved_file_is_named_with_an_option(fitted, directory, tmp_path):
    path, _ = fitted
    moved = shutil.copy(path, tmp_path / "moved.h5")
    content = json.loads((directory / "artifact.json").read_text())["facts"]["data"]["paths"]
    assert content == [path]
    rows = training_rows(directory, 1)
    code, _, err = run("unlearn", directory, "--rows", rows[0], "--data", moved)
    assert code == 0, err
    (tmp_path / "moved.h5").unlink()
    assert "say where it is with --data" in refused("unlearn", directory, "--rows", "1")
    assert run("show", directory)[0] == 0  # what was forgotten is known without the data


def test_damage_is_one_sentence(directory):
    path = next(directory.glob("state-*-main.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for command in (("unlearn", "--rows", "1"), ("show",)):
        assert "damaged (wrong checksum)" in refused(command[0], directory, *command[1:])
    (directory / "ledger.jsonl").write_text("{}\n")
    assert "damaged" in refused("show", directory)


@pytest.mark.parametrize(
    ("text", "rows"),
    [("17", [17]), ("17,42", [17, 42]), ("3-5", [3, 4, 5]), (" 1, 2\n4-4 \t9 ", [1, 2, 4, 9]), ("007", [7])],
)
def test_row_lists(tmp_path, text, rows):
    assert read_rows(text, None) == rows
    (tmp_path / "rows").write_text(text)
    assert read_rows(None, tmp_path / "rows") == rows


@pytest.mark.parametrize("text", ["", "-1", "1-", "1--2", "1.5", "1e3", "x", "5-3", "0-99999999999", "1" * 41, "٣"])
def test_bad_row_lists(text):
    with pytest.raises(UserError) as caught:
        read_rows(text, None)
    assert "\n" not in str(caught.value)


def test_an_mlp_in_processes_of_its_own(fitted, tmp_path):
    """As a user would: two programs, one directory."""
    path, _ = fitted
    out = tmp_path / "mlp"

    def l2ul(*args):
        command = [sys.executable, "-c", "from l2ul_fast.cli import main; main()", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    done = l2ul("fit", path, "--out", out, "--model", "mlp", "--hidden", 3, "--m", 30, "--t", 10)
    assert done.returncode == 0, done.stderr
    assert "fitted in" in done.stdout
    row = training_rows(out, 1)[0]
    done = l2ul("unlearn", out, "--rows", row)
    assert done.returncode == 0, done.stderr
    assert "forgot 1 row(s)" in done.stdout
    done = l2ul("unlearn", out, "--rows", row)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: row {row} was forgotten before: nothing was forgotten\n"
    assert check_artifact(out).forgotten().tolist() == [row]
