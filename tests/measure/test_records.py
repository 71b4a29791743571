"""Records survive kills; timing takes turns; generated text equals what the records say."""

import json
import time

import pytest

from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import Run, read_records, upgrade, write_atomic
from l2ul_fast.measure.timing import Times, gain, interleave, stolen_seconds


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
    assert gain(Times([2.0, 20.0, 3.0]), Times([1.0, 10.0, 1.0])) == 2
    assert 0 <= stolen_seconds() < 1e9


def test_old_records_are_read_under_honest_names():
    old = {"experiment": "lr", "method": "l2ul", "r": 1, "unlearn_seconds": 0.5}
    assert upgrade(old) == {
        "experiment": "lr",
        "method": "l2ul-newton",
        "r": 1,
        "unlearn_seconds": 0.5,
        "answer_seconds": 0.5,
    }
    assert old["method"] == "l2ul"  # files and what was read from them stay as they are
    assert upgrade({"experiment": "resnet", "method": "l2ul"})["method"] == "l2ul-network"
    fresh = {"experiment": "lr", "method": "l2ul-expansion", "answer_seconds": 1.0, "unlearn_seconds": 1.0}
    assert upgrade(fresh) is fresh
    for name in ("l2ul-learned", "l2ul-paper", "newton", "", None):
        assert upgrade({"method": name})["method"] == name
    stream = {"experiment": "sequence", "method": "l2ul-reanchored", "reanchored": 2, "reanchor_seconds": 0.1}
    assert upgrade(stream) == {
        "experiment": "sequence",
        "method": "l2ul-newton-reanchored",
        "refreshes": 2,
        "refresh_seconds": 0.1,
    }
    # once is enough
    assert upgrade(upgrade(old)) == upgrade(old)


def test_no_old_name_is_a_method_of_today():
    """Or a fresh record would be renamed."""
    from l2ul_fast.experiments.contenders import ALL_METHODS
    from l2ul_fast.measure.records import RENAMED, RENAMED_NETWORKS

    assert not set(ALL_METHODS) & (set(RENAMED) | set(RENAMED_NETWORKS))
    assert not set(RENAMED.values()) & set(ALL_METHODS)
