"""The directory of a fitted unlearner: round trips, damage, crashes at every change, full disks, writers at once."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from faults import Faults, crash_points, damage, error_points, kill_at, traces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.artifact import directory as artifact
from l2ul_fast.unlearner.artifact import durable, tensors
from l2ul_fast.unlearner.artifact import format as header
from l2ul_fast.unlearner.artifact.directory import (
    check_artifact,
    load_artifact,
    locked,
    read_header,
    read_ledger,
    save_artifact,
)
from l2ul_fast.unlearner.artifact.ledger import entry

DTYPES = ["?", "u1", "i1", "u2", "<i2", ">i2", "u4", "i4", "u8", "i8", "f2", "f4", ">f4", "f8", ">f8"]
FACTS = {"model": "lr", "n": 100, "d": 3, "lam": 1e-3, "data": {"kind": "arrays"}, "classes": [0, 1]}
FIT = {"theta": np.array([0.5, -1.25, 3.0]), "counts": np.arange(12).reshape(3, 4), "cells": np.arange(60, dtype="u1")}
GROUPS = {"model": ["theta"], "cells": ["cells"]}
FINAL = {"artifact.json", "ledger.jsonl", ".lock"}


def save_old(directory):
    first = entry("fit", n=100, theta=FIT["theta"], time=0)
    save_artifact(directory, FACTS, FIT, groups=GROUPS, ledger_entry=first)


def save_new(directory):
    """One request: theta and counts change, the cells stay, the ledger gets a line."""
    facts, arrays = load_artifact(directory)
    theta = arrays["theta"] + 1
    made = entry("unlearn", n=98, theta=theta, theta_before=arrays["theta"], rows=[7, 5], time=1)
    changed = {"theta": theta, "counts": arrays["counts"] - 1}
    save_artifact(
        directory,
        {**facts, "n": 98},
        changed,
        groups={"model": ["theta"]},
        keep={"cells"},
        ledger_entry=made,
        base=facts["generation"],
    )


def state_of(directory):
    """Which state is there, "old" or "new", after comparing every value of it."""
    facts, arrays = load_artifact(directory)
    changed = facts["n"] != 100
    assert facts == {**FACTS, "n": 98 if changed else 100, "generation": 2 if changed else 1}
    assert set(arrays) == set(FIT)
    np.testing.assert_array_equal(arrays["theta"], FIT["theta"] + changed)
    np.testing.assert_array_equal(arrays["counts"], FIT["counts"] - changed)
    np.testing.assert_array_equal(arrays["cells"], FIT["cells"])
    ledger = check_artifact(directory)
    assert ledger.forgotten().tolist() == ([5, 7] if changed else [])
    assert len(ledger) == 1 + changed
    return "new" if changed else "old"


def no_strays(directory):
    named = {record.file for record in read_header(directory).files.values()}
    assert {p.name for p in directory.iterdir()} == named | FINAL
    assert (directory / "ledger.jsonl").stat().st_size == read_header(directory).ledger_bytes


def check_crash(directory, finished):
    found = state_of(directory)
    assert found == "new" or not finished
    if found == "old":  # the next attempt must go through as if nothing had happened
        save_new(directory)
        assert state_of(directory) == "new"
    no_strays(directory)


# Crashes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power_loss", [0, 3])
def test_a_crash_at_any_change_leaves_the_old_or_the_new_state(tmp_path, power_loss):
    assert crash_points(tmp_path, save_old, save_new, check_crash, power_loss) > 10


@pytest.mark.parametrize("power_loss", [0, 3])
def test_a_crash_in_the_first_save_leaves_nothing_or_all(tmp_path, power_loss):
    def check(directory, finished):
        if not (directory / "artifact.json").exists():
            assert not finished
            with pytest.raises(DataError, match="there is no artifact"):
                load_artifact(directory)
            save_old(directory)
        assert state_of(directory) == "old"
        no_strays(directory)

    crash_points(tmp_path, lambda directory: None, save_old, check, power_loss)


def test_a_crash_while_cleaning_up_after_a_crash(tmp_path):
    def crashed_save(directory):
        save_old(directory)
        probe = Faults(directory)
        copy = shutil.copytree(directory, directory.with_name("probe"))
        probe.directory = copy
        assert probe.run(save_new)
        faults = Faults(directory, stop_at=probe.calls.index("replace") + 3)  # committed, old files still there
        assert not faults.run(save_new)

    def check(directory, finished):
        assert state_of(directory) == "new"
        no_strays(directory)

    assert crash_points(tmp_path, crashed_save, load_artifact, check, power_loss=4) > 2


@pytest.mark.parametrize("stop_at", [4, 9])
def test_sigkill(tmp_path, stop_at):
    save_old(tmp_path)
    assert not kill_at("test_directory:save_new", tmp_path, stop_at)
    check_crash(tmp_path, False)


class CarelessOs:
    """os for durable.py, with one precaution of the save left out."""

    def __init__(self, missing):
        self.missing = missing

    def __getattr__(self, name):
        return getattr(os, name)  # looked up late: the fault injection has its own in there

    def fsync(self, fd):
        kind = "sync directory" if os.path.isdir(f"/proc/self/fd/{fd}") else "sync files"
        if self.missing != kind:
            os.fsync(fd)

    def replace(self, source, target):
        if self.missing == "replace":
            content = source.read_bytes()
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(fd, content)
            os.fsync(fd)
            os.close(fd)
        else:
            os.replace(source, target)

    def unlink(self, path):
        if self.missing != "unlink":
            os.unlink(path)


@pytest.mark.parametrize("missing", ["sync files", "sync directory", "replace", "unlink"])
def test_the_crash_test_notices_a_careless_save(tmp_path, monkeypatch, missing):
    """A crash test that passes without the precautions would be worth nothing."""
    monkeypatch.setattr(durable, "os", CarelessOs(missing))
    with pytest.raises((DataError, AssertionError)):
        crash_points(tmp_path, save_old, save_new, check_crash, power_loss=4 if "sync" in missing else 0)


def test_writing_past_the_fault_injection_is_refused(tmp_path):
    for careless in (lambda d: (d / "x").write_bytes(b"1"), lambda d: open(d / "x", "a").close()):
        with pytest.raises(RuntimeError, match="past the fault injection"):
            Faults(tmp_path).run(careless)


# Errors --------------------------------------------------------------------------------------------------------------


def test_a_full_disk_at_any_change_is_one_sentence_and_the_old_state_stays(tmp_path):
    def check(directory, raised):
        if raised is None:
            assert state_of(directory) == "new"
            return
        assert isinstance(raised, DataError), raised
        assert "\n" not in str(raised)
        if state_of(directory) == "old":
            assert "no space left" in str(raised)
            save_new(directory)
        else:
            assert "is saved, but files of its old state" in str(raised)
        assert state_of(directory) == "new"
        no_strays(directory)

    assert error_points(tmp_path, save_old, save_new, check) > 10


def test_a_save_that_failed_takes_away_what_it_wrote(tmp_path):
    def check(directory, raised):
        no_strays(directory)  # at once, not only when the directory is used again
        assert state_of(directory) == ("new" if raised is None else "old")

    assert error_points(tmp_path, save_old, save_new, check, failing=("write",)) > 10


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written(tmp_path):
    save_old(tmp_path)
    tmp_path.chmod(0o500)
    try:
        assert state_of(tmp_path) == "old"
        with pytest.raises(DataError, match="Permission denied"):
            save_artifact(tmp_path, FACTS, FIT)
    finally:
        tmp_path.chmod(0o700)


def test_permission_denied_is_one_sentence(tmp_path):
    save_old(tmp_path)
    with Faults(tmp_path, 1, error=13), pytest.raises(DataError, match=r"cannot use .*: Permission denied"):
        save_new(tmp_path)
    assert state_of(tmp_path) == "old"


# Round trips ---------------------------------------------------------------------------------------------------------

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)
any_array = hnp.arrays(
    st.sampled_from(DTYPES).map(np.dtype), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, any_array, max_size=5), st.booleans(), st.data())
def test_round_trip(tmp_path_factory, arrays, memory_map, data):
    directory = tmp_path_factory.mktemp("a")
    chosen = data.draw(st.lists(st.sampled_from(sorted(arrays)), unique=True)) if arrays else []
    save_artifact(directory, {"lam": 0.1}, arrays, groups={"some": chosen} if chosen else None)
    facts, again = load_artifact(directory, memory_map=memory_map)
    assert facts == {"lam": 0.1, "generation": 1}
    assert set(again) == set(arrays)
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype.newbyteorder("=")
        assert again[name].shape == array.shape
        assert again[name].tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()  # NaN payloads too
        assert again[name].flags.writeable
        assert again[name].flags.aligned
    _agrees_with_the_library(directory, arrays)


def _agrees_with_the_library(directory, arrays):
    safetensors = pytest.importorskip("safetensors.numpy")
    found = {}
    for path in directory.glob("*.safetensors"):
        found |= safetensors.load_file(path)
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
        assert found[name].shape == array.shape


def test_short_writes_are_continued(tmp_path, monkeypatch):
    slow = CarelessOs(None)
    slow.write = lambda fd, data: os.write(fd, data[:7])
    monkeypatch.setattr(durable, "os", slow)
    save_old(tmp_path)
    save_new(tmp_path)
    assert state_of(tmp_path) == "new"


def test_strided_read_only_and_mapped_arrays_are_saved_as_they_look(tmp_path):
    base = np.arange(24.0).reshape(4, 6)
    base.setflags(write=False)
    save_artifact(tmp_path, {}, {"a": base[::2, ::-1], "b": base.T, "c": np.asfortranarray(base)})
    _, mapped = load_artifact(tmp_path, memory_map=True)
    np.testing.assert_array_equal(mapped["a"], base[::2, ::-1])
    np.testing.assert_array_equal(mapped["b"], base.T)
    mapped["c"][:] = -1  # private: the file does not change
    np.testing.assert_array_equal(load_artifact(tmp_path)[1]["c"], base)
    save_artifact(tmp_path, {}, mapped)  # from the mapping of a file that this save deletes
    _, again = load_artifact(tmp_path)
    np.testing.assert_array_equal(again["a"], base[::2, ::-1])
    assert (again["c"] == -1).all()


def test_kept_files_are_not_written_again_and_others_are_deleted(tmp_path):
    save_old(tmp_path)
    cells = tmp_path / "state-1-cells.safetensors"
    before = cells.stat().st_mtime_ns, cells.stat().st_ino
    save_new(tmp_path)
    assert (cells.stat().st_mtime_ns, cells.stat().st_ino) == before
    no_strays(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("state-1-*")) == [cells.name]


def test_nothing_of_a_dropped_row_is_left(tmp_path):
    rng = np.random.default_rng(0)
    X, cells = rng.normal(size=(50, 7)), rng.integers(0, 256, (50, 25)).astype(np.uint8)
    single = X.astype(np.float32)
    whole = {"X": X, "columns": np.ascontiguousarray(single.T), "cells": cells}
    save_artifact(tmp_path, {}, whole, groups={"cells": ["cells"]})
    assert {t.split(" in ")[0] for t in traces(tmp_path, X[17], cells[17])} >= {
        "row as float64",
        "value 3 as float32",
        "packed cells",
    }
    keep = np.arange(50) != 17
    left = {"X": X[keep], "columns": np.ascontiguousarray(single.T[:, keep]), "cells": cells[keep]}
    save_artifact(tmp_path, {}, left, groups={"cells": ["cells"]}, ledger_entry=None)
    assert traces(tmp_path, X[17], cells[17]) == []
    assert traces(tmp_path, X[18], cells[18])
    assert "row as float64 in state-2-main.safetensors" in traces(tmp_path, X[18])


# Damage --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sound") / "a"
    save_old(directory)
    save_new(directory)
    return directory


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_bytes_never_load_as_something_else(tmp_path_factory, sound, data):
    directory = tmp_path_factory.mktemp("damaged") / "a"
    shutil.copytree(sound, directory)
    path = data.draw(st.sampled_from(sorted(p for p in directory.iterdir() if p.stat().st_size)))
    damage(path, data)
    for memory_map in (False, True):
        try:
            _, arrays = load_artifact(directory, memory_map=memory_map)
        except DataError:
            pass
        else:
            assert {name: a.tobytes() for name, a in arrays.items()} == {
                name: a.tobytes() for name, a in load_artifact(sound)[1].items()
            }
            assert state_of(directory) == "new"


def _edit(directory, **changes):
    """Change artifact.json as somebody would who also puts its checksum right."""
    path = directory / "artifact.json"
    content = json.loads(path.read_text())
    content |= changes
    del content["sha256"]
    content["sha256"] = hashlib.sha256(header.canonical(content).encode()).hexdigest()
    path.write_text(json.dumps(content))


def test_every_fault_of_the_directory_is_one_clear_sentence(tmp_path):
    number = iter(range(100))

    def case(match, change):
        directory = tmp_path / str(next(number))
        save_old(directory)
        state = directory / "state-1-model.safetensors"
        change(directory, state)
        for use in (load_artifact, check_artifact):
            with pytest.raises(DataError, match=match) as caught:
                use(directory)
            assert "\n" not in str(caught.value)

    def files(**changes):
        def change(directory, state):
            record = json.loads((directory / "artifact.json").read_text())["files"]["model"]
            _edit(directory, files={"model": record | changes})

        return change

    outside = tmp_path / "outside.safetensors"
    case("there is no artifact", lambda d, s: shutil.rmtree(d))
    case("there is no artifact", lambda d, s: (d / "artifact.json").unlink())
    case("model.safetensors is missing", lambda d, s: s.unlink())
    case("ledger.jsonl is missing", lambda d, s: (d / "ledger.jsonl").unlink())
    case(r"has 3 bytes instead of \d+", lambda d, s: s.write_bytes(b"abc"))
    case("wrong checksum", lambda d, s: s.write_bytes(bytes(s.stat().st_size)))
    case("made by format version 3, this program reads 2", lambda d, s: _edit(d, format_version=3))
    case("not an artifact", lambda d, s: _edit(d, format="other"))
    case("not an artifact", lambda d, s: (d / "artifact.json").write_text("[" * 100_000))
    case("not an artifact", lambda d, s: (d / "artifact.json").write_bytes(b"\xff\x00"))
    case("damaged", lambda d, s: _edit(d, generation=-1))
    case("damaged", lambda d, s: _edit(d, ledger=None))
    case("damaged", files(file="../outside.safetensors"))
    case("damaged", files(file="/etc/passwd"))
    case("damaged", files(file="state-1-cells.safetensors"))
    case("damaged", files(arrays=["other"]))
    case("cut off", lambda d, s: (d / "ledger.jsonl").write_bytes(b"{}\n"))
    case("Is a directory|not a file", lambda d, s: (s.unlink(), s.mkdir()))
    case("not a file", lambda d, s: (s.unlink(), os.mkfifo(s)))
    case("symbolic link", lambda d, s: (s.rename(outside), s.symlink_to(outside)))


def test_a_crafted_file_of_arrays_is_refused_even_with_the_right_checksum(tmp_path):
    save_artifact(tmp_path, {}, {"a": np.arange(4.0)})
    path = tmp_path / "state-1-main.safetensors"
    good = {"dtype": "F64", "shape": [4], "data_offsets": [0, 32]}
    for facts in (
        good | {"shape": [2**62]},
        good | {"shape": [-4]},
        good | {"shape": [2.0, 2]},
        good | {"dtype": "F128"},
        good | {"data_offsets": [8, 40]},
        good | {"data_offsets": [0, 24], "shape": [3]},
        [],
        None,
        good | {"shape": 4},
        good | {"shape": [0, 2**70], "data_offsets": [0, 0]},
        good | {"shape": [-2, -2]},
        good | {"shape": ["4"]},
    ):
        text = json.dumps({"a": facts}).encode()
        content = len(text).to_bytes(8, "little") + text + bytes(32)
        path.write_bytes(content)
        record = {"file": path.name, "bytes": len(content), "arrays": ["a"]}
        _edit(tmp_path, files={"main": record | {"sha256": hashlib.sha256(content).hexdigest()}})
        for memory_map in (False, True):
            with pytest.raises(DataError, match="damaged"):
                load_artifact(tmp_path, memory_map=memory_map)
    overlapping = {
        "a": good | {"shape": [3], "data_offsets": [0, 24]},
        "b": good | {"shape": [3], "data_offsets": [8, 32]},
    }
    with pytest.raises(ValueError, match="offsets"):
        tensors.layout_of(json.dumps(overlapping).encode(), 32)
    huge = (2**63).to_bytes(8, "little") + content[8:]
    path.write_bytes(huge)
    _edit(tmp_path, files={"main": record | {"sha256": hashlib.sha256(huge).hexdigest()}})
    with pytest.raises(DataError, match="damaged"):
        load_artifact(tmp_path)


def test_bad_arguments_change_nothing(tmp_path):
    save_old(tmp_path)
    a = np.zeros(3)
    for kind, kwargs in [
        (ValueError, {"arrays": {"../a": a}}),
        (ValueError, {"arrays": {"__metadata__": a}}),
        (TypeError, {"arrays": {"a": np.array(["x"])}}),
        (TypeError, {"arrays": {"a": np.zeros(2, complex)}}),
        (TypeError, {"arrays": {"a": [1, 2]}}),
        (ValueError, {"arrays": {"a": a}, "groups": {"x": ["b"]}}),
        (ValueError, {"arrays": {"a": a}, "groups": {"x": ["a"], "y": ["a"]}}),
        (ValueError, {"arrays": {"a": a}, "groups": {"../x": ["a"]}}),
        (ValueError, {"arrays": {"a": a}, "keep": ["nothing"]}),
        (ValueError, {"arrays": {"a": a}, "groups": {"cells": ["a"]}, "keep": ["cells"]}),
        (ValueError, {"arrays": {"cells": a}, "keep": ["cells"]}),
        (TypeError, {"arrays": {"a": a}, "keep": "cells"}),
        (ValueError, {"arrays": {"a": a}, "facts": {"lam": float("nan")}}),
        (TypeError, {"arrays": {"a": a}, "facts": {"lam": a}}),
        (ValueError, {"arrays": {"a": a}, "ledger_entry": {"action": "unlearn", "x": float("inf")}}),
        (DataError, {"arrays": {"a": a}, "base": 7}),
    ]:
        with pytest.raises(kind):
            save_artifact(tmp_path, **{"facts": {}} | kwargs)
        assert state_of(tmp_path) == "old"
        no_strays(tmp_path)


def test_a_save_does_not_build_on_what_is_missing(tmp_path):
    save_old(tmp_path)
    (tmp_path / "state-1-cells.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"cells.safetensors is missing or damaged"):
        save_artifact(tmp_path, {}, {}, keep=["cells"])
    (tmp_path / "ledger.jsonl").write_bytes(b"")
    with pytest.raises(DataError, match=r"ledger.jsonl was cut off"):
        save_artifact(tmp_path, {}, {}, ledger_entry=entry("refresh", n=100, theta=[1.0]))
    assert read_header(tmp_path).generation == 1


def test_a_directory_with_other_files_is_not_taken_over(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match=r"holds other files \(thesis.tex\)"):
        save_old(tmp_path)
    save_old(tmp_path / "new" / "folder")
    (tmp_path / "new" / "folder" / "notes.txt").write_text("mine")
    save_new(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder" / "notes.txt").read_text() == "mine"
    with pytest.raises(DataError, match="Not a directory"):
        save_old(tmp_path / "thesis.tex")


def test_the_ledger_is_never_written_through_a_link(tmp_path):
    directory, other = tmp_path / "a", tmp_path / "other"
    save_old(directory)
    (directory / "ledger.jsonl").rename(other)
    (directory / "ledger.jsonl").symlink_to(other)
    before = other.read_bytes()
    with pytest.raises(DataError, match="symbolic link"):
        save_artifact(directory, {}, {}, ledger_entry=entry("refresh", n=100, theta=[1.0]))
    assert other.read_bytes() == before


# Writers at once -----------------------------------------------------------------------------------------------------


def test_a_second_writer_waits_or_is_told(tmp_path):
    save_old(tmp_path)
    results = []

    def other(timeout):
        try:
            save_artifact(tmp_path, FACTS, FIT, timeout=timeout)
            results.append("saved")
        except DataError as error:
            results.append(str(error))

    with locked(tmp_path), locked(tmp_path):  # nested in one thread
        impatient = threading.Thread(target=other, args=(0,))
        impatient.start()
        impatient.join()
        patient = threading.Thread(target=other, args=(60,))
        patient.start()
        save_new(tmp_path)  # saving takes the lock again
        assert state_of(tmp_path) == "new"  # readers are not kept out
        assert len(results) == 1
    patient.join()
    assert "another process is changing" in results[0]
    assert results[1] == "saved"
    with pytest.raises(DataError, match="there is no artifact"), locked(tmp_path / "missing"):
        pass


def test_a_stale_state_is_not_written_over_a_newer_one(tmp_path):
    save_old(tmp_path)
    facts, arrays = load_artifact(tmp_path)
    save_new(tmp_path)
    with pytest.raises(DataError, match="changed by someone else"):
        save_artifact(tmp_path, facts, arrays, base=facts["generation"])
    assert state_of(tmp_path) == "new"


def test_a_reader_never_cleans_up_behind_a_running_writer(tmp_path):
    save_old(tmp_path)
    (tmp_path / "state-2-main.safetensors").write_bytes(b"half of a new sta")
    done = threading.Event()
    with locked(tmp_path):
        reader = threading.Thread(target=lambda: (load_artifact(tmp_path), done.set()))
        reader.start()
        reader.join()
        assert done.is_set()
        assert (tmp_path / "state-2-main.safetensors").exists()
    assert state_of(tmp_path) == "old"
    no_strays(tmp_path)


def test_a_reader_overtaken_by_a_writer_reads_the_new_state(tmp_path, monkeypatch):
    save_old(tmp_path)
    real, calls = artifact.load_arrays, []

    def overtaken(*args):
        calls.append(args)
        if len(calls) == 1:  # the header is read; before its first file is opened another process saves
            save_new(tmp_path)
        return real(*args)

    monkeypatch.setattr(artifact, "load_arrays", overtaken)
    facts, _ = load_artifact(tmp_path)
    assert facts["generation"] == 2


WRITER = """
import sys, numpy as np
from l2ul_fast.unlearner.artifact.directory import load_artifact, locked, save_artifact
from l2ul_fast.unlearner.artifact.ledger import entry
for i in range(20):
    with locked(sys.argv[1]):
        facts, arrays = load_artifact(sys.argv[1])
        k = int(facts["n"]) - 1
        rows = [k]
        arrays = {"theta": np.full(50_000, float(k))}
        made = entry("unlearn", n=k, theta=arrays["theta"], rows=rows)
        save_artifact(sys.argv[1], {"n": k}, arrays, ledger_entry=made, base=facts["generation"])
"""


def test_two_processes_forget_while_a_third_reads(tmp_path):
    theta = np.full(50_000, 100.0)
    save_artifact(tmp_path, {"n": 100}, {"theta": theta}, ledger_entry=entry("fit", n=100, theta=theta))
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(2)]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        facts, arrays = load_artifact(tmp_path, memory_map=len(seen) % 2 == 0)
        assert (arrays["theta"] == facts["n"]).all()
        seen.add(facts["n"])
    assert [writer.returncode for writer in writers] == [0, 0]
    assert check_artifact(tmp_path).forgotten().tolist() == list(range(60, 100))
    assert read_header(tmp_path).generation == 41
    assert seen


def test_theta_of_another_ledger_is_noticed(tmp_path):
    save_old(tmp_path)
    save_artifact(tmp_path, FACTS, FIT | {"theta": FIT["theta"] * 2})
    with pytest.raises(DataError, match="not those of the last line"):
        check_artifact(tmp_path)
    assert len(read_ledger(Path(str(tmp_path)))) == 1
