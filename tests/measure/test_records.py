"""Records survive kills; timing takes turns; generated text equals what the records say."""

import json
import time

import pytest

from l2ul_fast.errors import UserError
from l2ul_fast.files import write_atomic
from l2ul_fast.measure import environment
from l2ul_fast.measure.records import (
    FIELDS,
    IDENTITY,
    REPEAT,
    SCHEMA,
    Run,
    current,
    identity,
    identity_fields,
    metric,
    read_records,
    upgrade,
    validate,
)
from l2ul_fast.measure.timing import Times, interleave


def test_a_run_goes_on_where_it_stopped(tmp_path):
    run = Run(tmp_path / "r", {"cpu": "x"})
    run.append({"experiment": "a", "d": 1})
    run.append({"experiment": "a", "d": 2})
    assert run.has(experiment="a", d=2)
    assert not run.has(experiment="a", d=3)
    again = Run(tmp_path / "r")
    assert again.records == run.records == read_records(tmp_path / "r")
    assert json.loads((tmp_path / "r" / "run.json").read_text()) == {"cpu": "x"}


def test_a_half_written_line_is_dropped_and_measured_again(tmp_path):
    run = Run(tmp_path)
    run.append({"d": 1})
    with open(run.path, "a") as file:
        file.write('{"d": 2, "sec')
    again = Run(tmp_path)
    assert again.records == [{"d": 1}]
    again.append({"d": 3})
    assert read_records(tmp_path) == [{"d": 1}, {"d": 3}]


def test_a_whole_last_line_without_its_end_is_kept(tmp_path):
    """Whoever edits the file by hand may leave the last end of line out."""
    (tmp_path / "records.jsonl").write_text('{"d": 1}\n{"d": 2}')
    assert read_records(tmp_path) == [{"d": 1}, {"d": 2}]
    run = Run(tmp_path)
    run.append({"d": 3})
    assert read_records(tmp_path) == run.records == [{"d": 1}, {"d": 2}, {"d": 3}]


def test_damage_is_named(tmp_path):
    run = Run(tmp_path)
    run.append({"d": 1})
    run.path.write_text('{"d": 1}\nnonsense\n{"d": 2}\n')
    with pytest.raises(UserError, match=r"line 2 .* damaged"):
        Run(tmp_path)
    with pytest.raises(UserError, match="damaged"):
        read_records(tmp_path)
    with pytest.raises(UserError, match="no results"):
        read_records(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot use"):
        Run(tmp_path / "file")


def test_files_appear_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "f"
    write_atomic(path, "old")
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_candidates_take_turns_in_another_order_every_round():
    order = []
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    times = interleave(calls, repeats=20, inner={"b": 2})
    text = "".join(order).replace("bb", "b")
    rounds = [text[i : i + 3] for i in range(0, 60, 3)]
    assert len(order) == 80
    assert all(sorted(one) == list("abc") for one in rounds)
    assert len(set(rounds)) == 6  # whatever runs before a candidate, it is not always the same
    assert all(len(times[name].seconds) == 20 for name in "abc")
    slow = interleave({"slow": lambda: time.sleep(0.01), "quick": lambda: None}, repeats=3)
    assert slow["slow"].median > 0.01 > slow["quick"].median
    assert Times([1.0, 2.0, 3.0]).median == 2
    assert Times([2.0, 2.0, 2.0]).spread == 0


def test_the_share_that_was_stolen_is_of_the_interval(monkeypatch, tmp_path):
    stat = tmp_path / "stat"
    monkeypatch.setattr(environment, "Path", lambda path: stat)
    stat.write_text("cpu  100 0 50 800 0 0 0 50 7 0\ncpu0 1 1\n")
    meter = environment.StealMeter()
    stat.write_text("cpu  160 0 60 810 0 0 0 70 9 0\n")
    assert meter.share() == pytest.approx(20 / 100)
    assert meter.share() == 0.0  # nothing since
    stat.unlink()
    assert meter.share() is None
    monkeypatch.undo()
    assert environment.StealMeter().share() in (None, pytest.approx(0.5, abs=0.5))


def test_old_records_are_read_under_honest_names():
    old = {"experiment": "lr", "method": "l2ul", "r": 1, "unlearn_seconds": 0.5, "kind": "random", "run": 3}
    assert upgrade(old) == {
        "schema": SCHEMA,
        "experiment": "lr",
        "method": "l2ul-newton",
        "r": 1,
        "unlearn_seconds": 0.5,
        "answer_seconds": 0.5,
        "request": "random",
        "repeat": 3,
    }
    assert old["method"] == "l2ul"  # files and what was read from them stay as they are
    assert upgrade({"experiment": "resnet", "method": "l2ul"})["method"] == "l2ul-network"
    fresh = {"schema": SCHEMA, "experiment": "lr", "method": "l2ul-expansion", "answer_seconds": 1.0}
    assert upgrade(fresh) is fresh
    for name in ("l2ul-learned", "l2ul-paper", "newton", ""):
        assert upgrade({"experiment": "lr", "method": name})["method"] == name
    stream = {"experiment": "sequence", "method": "l2ul-reanchored", "reanchored": 2, "reanchor_seconds": 0.1}
    assert upgrade(stream) == {
        "schema": SCHEMA,
        "experiment": "sequence",
        "method": "l2ul-newton-reanchored",
        "refreshes": 2,
        "refresh_seconds": 0.1,
    }
    idle = upgrade({"experiment": "lr", "method": "nothing", "unlearn_seconds": 4e-6, "reference": "A"})
    assert (idle["overhead_seconds"], idle["answer_seconds"], idle["rho_target"]) == (4e-6, None, "model")
    both = upgrade({"experiment": "unlearn-rho", "method": "newton", "kind": "random", "request": "random 1", "r": 1})
    assert both["request"] == "random"
    assert upgrade(upgrade(old)) == upgrade(old)  # once is enough


def test_fields_are_declared_and_of_their_type():
    own = {"items": metric("how many", better="higher"), "lap": identity((int,), "which round")}
    good = {"experiment": "x", "dataset": "magic", "r": 3, "rho": None, "items": 2.5, "lap": 1, "exact": True}
    validate(good, own)
    for wrong, named in (
        ({"surprise": 1}, "surprise"),
        ({"r": 3.5}, "'r'"),
        ({"r": True}, "'r'"),
        ({"exact": 1}, "exact"),
        ({"status": 7}, "status"),
        ({"experiment": None}, "name its experiment"),
    ):
        with pytest.raises(UserError, match=named):
            validate(good | wrong, own)
    assert "lap" in identity_fields(own)
    assert "lap" not in IDENTITY
    assert not set(REPEAT) & set(IDENTITY)
    for name, field in FIELDS.items():
        assert field.help, name
        assert (field.role == "metric") == bool(field.better), name


def test_a_failure_that_a_later_try_made_good_is_not_shown():
    failed = {"schema": SCHEMA, "experiment": "x", "method": "a", "r": 1, "failed": True, "status": "no"}
    good = {"schema": SCHEMA, "experiment": "x", "method": "a", "r": 1, "seconds": 1.0}
    other = failed | {"method": "b"}
    assert current([failed, good, other]) == [good, other]


def test_a_lock_that_cannot_be_written_is_one_sentence(tmp_path):
    run = Run(tmp_path)
    run.append({"experiment": "x", "seconds": 1.0})
    (tmp_path / "records.lock").unlink()
    (tmp_path / "records.lock").mkdir()
    with pytest.raises(UserError, match=r"cannot write to .*: Is a directory"):
        run.append({"experiment": "x", "seconds": 2.0})
    assert [r["seconds"] for r in read_records(tmp_path)] == [1.0]
