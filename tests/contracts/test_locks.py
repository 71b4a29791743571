"""What a redesign must not change: saved files of older versions, numbers at fixed seeds, names of commands.

The fixtures were written by an older version (fixtures/make_artifacts.py and make_run.py say which). A saved artifact
either loads with the same theta or is refused in one sentence; any other error is a broken promise to its owner.
"""

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
FIXTURES = HERE / "fixtures"
EXPECTED = json.loads((FIXTURES / "artifacts" / "expected.json").read_text())["artifacts"]
IDENTITIES = json.loads((FIXTURES / "identities.json").read_text())
GOLDEN = json.loads((HERE / "golden.json").read_text())


# Saved artifacts -----------------------------------------------------------------------------------------------------


def load(name, folder):
    """The fixture's unlearner from a copy in `folder`, or None where it is refused in one sentence."""
    from l2ul_fast import L2UL
    from l2ul_fast.errors import DataError, UserError

    facts = EXPECTED[name]
    copy = shutil.copytree(FIXTURES / "artifacts" / name, folder / name)
    data = None if facts["data"] is None else FIXTURES / "artifacts" / facts["data"]
    try:
        return L2UL.load(copy, data=data)
    except (DataError, UserError) as error:
        text = str(error)
        assert text, "the refusal says nothing"
        assert len(text.splitlines()) == 1, text
        assert not text.startswith("Traceback"), text
        return None


def test_every_fixture_has_its_expectation():
    assert {path.name for path in (FIXTURES / "artifacts").iterdir() if path.is_dir()} == set(EXPECTED)
    assert {facts["store"] for facts in EXPECTED.values()} == {"arrays", "file", "none"}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_artifact_loads_or_is_refused_in_one_sentence(name, tmp_path):
    facts, u = EXPECTED[name], load(name, tmp_path)
    if u is None:
        pytest.skip("refused in one sentence")
    np.testing.assert_array_equal(u.theta, facts["theta"])
    assert u.n == facts["n"]
    assert list(u.classes_) == facts["classes"]
    assert sorted(np.concatenate([e["rows"] for e in u.forget_log]).tolist()) == facts["forgotten"]
    assert len(u.forget_log) == facts["requests"]
    found = u.predict_proba(np.array(facts["probe"], np.float32))
    np.testing.assert_allclose(found, facts["probabilities"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, facts in EXPECTED.items() if facts["store"] != "none"])
def test_a_loaded_artifact_answers_requests_and_refuses_forgotten_rows(name, tmp_path):
    from l2ul_fast.errors import UserError

    facts, u = EXPECTED[name], load(name, tmp_path)
    if u is None:
        pytest.skip("refused in one sentence")
    with pytest.raises(UserError):
        u.unlearn([facts["forgotten"][0]])
    free = u.retained().ids()
    result = u.unlearn([int(free[100])])
    assert result.n == facts["n"] - 1
    assert np.isfinite(u.theta).all()
    u.save(tmp_path / "again")


def test_the_command_line_shows_old_artifacts_without_a_traceback(tmp_path):
    from typer.testing import CliRunner

    from l2ul_fast.cli.app import app
    from l2ul_fast.errors import UserError

    for name, facts in EXPECTED.items():
        copy = shutil.copytree(FIXTURES / "artifacts" / name, tmp_path / name)
        data = [] if facts["data"] is None else ["--data", str(FIXTURES / "artifacts" / facts["data"])]
        result = CliRunner().invoke(app, ["show", str(copy), *data, "--json"])
        if result.exit_code != 0:
            assert isinstance(result.exception, UserError | SystemExit), "".join(
                traceback.format_exception(result.exception)
            )


# A recorded run ------------------------------------------------------------------------------------------------------


def test_the_recorded_run_is_read():
    from l2ul_fast.results import read_records

    records = read_records(FIXTURES / "run")
    assert len(records) == sum(facts["records"] for facts in IDENTITIES.values())
    assert {r["experiment"] for r in records} == set(IDENTITIES)


@pytest.mark.parametrize("experiment", IDENTITIES)
def test_its_cells_are_those_of_the_list(experiment):
    """As they stand in the file, field by field: whoever renames fields compares after the renaming."""
    facts = IDENTITIES[experiment]
    lines = (FIXTURES / "run" / "records.jsonl").read_text().splitlines()
    own = [r for r in map(json.loads, lines) if r["experiment"] == experiment]
    tuples = sorted(json.dumps([r.get(k) for k in facts["identity"]]) for r in own)
    assert tuples == [json.dumps(t) for t in facts["tuples"]]
    assert len(set(tuples)) == facts["distinct"] == facts["records"]
    assert sorted({k for r in own for k in r}) == facts["fields"]


def test_the_recorded_run_is_reported(tmp_path):
    from l2ul_fast.report.run import write_report
    from l2ul_fast.report.summary import terminal
    from l2ul_fast.results import read_records

    copy = shutil.copytree(FIXTURES / "run", tmp_path / "run")
    assert terminal(read_records(copy)) is not None
    page, _ = write_report(copy, tmp_path / "page")
    assert page.is_file()
    text = page.read_text()
    assert "Not enough records for its figure" not in text
    headings = json.loads((FIXTURES / "headings.json").read_text())
    lost = [heading for heading in headings if heading not in text]
    assert not lost, f"sections gone from the page: {lost}"


# Numbers at fixed seeds ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden():
    place = importlib.util.spec_from_file_location("make_golden", HERE / "make_golden.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return json.loads(json.dumps(module.compute()))


def far(found, wanted, same_width):
    """Why two golden values differ, or None."""
    if isinstance(wanted, dict) and "values" in wanted:
        a, b = np.array(found["values"]), np.array(wanted["values"])
        if a.shape != b.shape:
            return f"{a.size} numbers, not {b.size}"
        apart = float(np.abs(a - b).max() / max(np.abs(b).max(), math.ulp(0)))
        return None if apart <= wanted["rel"] else f"off by {apart:.1e} of the largest, allowed {wanted['rel']:.0e}"
    if isinstance(wanted, dict) and "width" in wanted and not same_width:
        return None  # floats bit for bit: on machines with the same vectors only
    return None if found == wanted else f"{found}, not {wanted}"


@pytest.mark.parametrize("part", ["kernels", "data", "fits", "requests"])
def test_golden_values(part, golden):
    same_width = golden["vector_bytes"] == GOLDEN["vector_bytes"]
    found, wanted = golden[part], GOLDEN[part]
    assert set(found) == set(wanted)
    apart = {name: far(found[name], value, same_width) for name, value in wanted.items()}
    apart = {name: text for name, text in apart.items() if text}
    assert not apart, "\n".join(f"{name}: {text}" for name, text in apart.items())


# Names ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lists():
    """Commands and benchmarks, found by a fresh interpreter."""
    keep = {k: v for k, v in os.environ.items() if k not in ("L2UL_BENCH_SOURCE", "L2UL_BENCH_PROFILE")}
    done = subprocess.run(
        [sys.executable, str(HERE / "make_lists.py"), "--print"], capture_output=True, text=True, env=keep, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def words(lines):
    return {line.split(":")[0] for line in lines}


def test_every_command_still_exists(lists):
    known = (HERE / "help" / "commands.txt").read_text().splitlines()
    assert words(known) <= words(lists["commands"])


def test_the_help_of_every_command_was_recorded():
    text = (HERE / "help" / "help.txt").read_text()
    known = (HERE / "help" / "commands.txt").read_text().splitlines()
    assert {f"$ {command} --help" for command in words(known)} <= set(text.splitlines())


def test_every_asv_benchmark_still_exists(lists):
    """asv keys its results by file.Class.method, parameters and version: a new one of these begins a new history."""
    known = (HERE / "asv.txt").read_text().splitlines()
    lost = sorted(set(known) - set(lists["asv"]))
    assert not lost, f"history of these ends: {lost}"
