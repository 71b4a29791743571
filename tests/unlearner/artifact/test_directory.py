"""The directory of a fitted unlearner: round trips, damage, bad arguments, several processes at once."""

import hashlib
import json
import os
import shutil
import threading

import numpy as np
import pytest
from faults import damage, start
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toy_artifact import (
    BOTH,
    FIRST,
    THETA,
    arrays_without,
    finish,
    forget,
    forget_second,
    forget_whole,
    no_strays,
    nothing_left,
    save_old,
    state_of,
)

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.artifact import durable, tensors
from l2ul_fast.unlearner.artifact.directory import check_artifact, load_artifact, locked, read_header, save_artifact
from l2ul_fast.unlearner.artifact.format import canonical
from l2ul_fast.unlearner.artifact.ledger import entry

DTYPES = ["?", "u1", "i1", "u2", "<i2", ">i2", "u4", "i4", "u8", "i8", "f2", "f4", ">f4", "f8", ">f8"]
OLD, NEW = ([], 1), (FIRST, 2)


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
    class Slow:
        def __getattr__(self, name):
            return getattr(os, name)

        def write(self, fd, data):
            return os.write(fd, data[:997])

    monkeypatch.setattr(durable, "os", Slow())
    save_old(tmp_path)
    forget_whole(tmp_path)
    assert state_of(tmp_path) == NEW


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
    forget_whole(tmp_path)
    assert (cells.stat().st_mtime_ns, cells.stat().st_ino) == before
    no_strays(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("state-1-*")) == [cells.name]


# Damage --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """With a journal."""
    directory = tmp_path_factory.mktemp("sound") / "a"
    save_old(directory)
    forget_whole(directory)
    forget_second(directory)
    return directory


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_bytes_never_load_as_something_else(tmp_path_factory, sound, data):
    directory = shutil.copytree(sound, tmp_path_factory.mktemp("damaged") / "a")
    names = sorted(p.name for p in directory.iterdir() if p.stat().st_size)
    damage(directory / data.draw(st.sampled_from(names)), data)
    for memory_map in (False, True):
        try:
            load_artifact(directory, memory_map=memory_map)
        except DataError:
            pass
        else:
            assert state_of(directory) == (BOTH, 3)


def _edit(directory, **changes):
    """Change artifact.json as somebody would who also puts its checksum right."""
    path = directory / "artifact.json"
    content = json.loads(path.read_text())
    content |= changes
    del content["sha256"]
    content["sha256"] = hashlib.sha256(canonical(content).encode()).hexdigest()
    path.write_text(json.dumps(content))


def test_every_fault_of_the_directory_is_one_clear_sentence(tmp_path):
    number = iter(range(100))

    def case(match, change):
        directory = tmp_path / str(next(number))
        save_old(directory)
        state = directory / "state-1-theta.safetensors"
        change(directory, state)
        for use in (load_artifact, check_artifact):
            with pytest.raises(DataError, match=match) as caught:
                use(directory)
            assert "\n" not in str(caught.value)

    def files(**changes):
        def change(directory, state):
            record = json.loads((directory / "artifact.json").read_text())["files"]["theta"]
            _edit(directory, files={"theta": record | changes})

        return change

    outside = tmp_path / "outside.safetensors"
    case("there is no artifact", lambda d, s: shutil.rmtree(d))
    case("there is no artifact", lambda d, s: (d / "artifact.json").unlink())
    case("theta.safetensors is missing", lambda d, s: s.unlink())
    case("rows.sha256 is missing", lambda d, s: (d / "state-1-rows.sha256").unlink())
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
    case("damaged", lambda d, s: _edit(d, facts=[]))
    case("damaged", lambda d, s: _edit(d, ledger={"bytes": 10**30, "entries": 1, "head": "0" * 64}))
    case("not an artifact", lambda d, s: (d / "artifact.json").write_text('{"format": NaN}'))
    case("claims 1000000000000 bytes", lambda d, s: os.truncate(d / "artifact.json", 10**12))
    case("claims 1000000000000 bytes", lambda d, s: os.truncate(s, 10**12))
    case("claims 1000000000000 bytes", lambda d, s: os.truncate(d / "ledger.jsonl", 10**12))
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
        assert state_of(tmp_path) == OLD
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
    forget_whole(tmp_path / "new" / "folder")
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
            save_artifact(tmp_path, {}, {}, timeout=timeout)
            results.append("saved")
        except DataError as error:
            results.append(str(error))

    with locked(tmp_path), locked(tmp_path):  # nested in one thread
        impatient = threading.Thread(target=other, args=(0,))
        impatient.start()
        impatient.join()
        patient = threading.Thread(target=other, args=(60,))
        patient.start()
        forget_whole(tmp_path)  # saving takes the lock again
        assert state_of(tmp_path) == NEW  # readers are not kept out
        assert len(results) == 1
    patient.join()
    assert "another process is changing" in results[0]
    assert results[1] == "saved"
    with pytest.raises(DataError, match="there is no artifact"), locked(tmp_path / "missing"):
        pass


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
    assert state_of(tmp_path) == OLD
    no_strays(tmp_path)


def test_a_reader_overtaken_by_a_writer_reads_the_new_state(tmp_path, monkeypatch):
    save_old(tmp_path)
    real, calls = tensors.load_arrays, []

    def overtaken(*args):
        calls.append(args)
        if len(calls) == 1:  # the header is read; before its first file is opened another process saves
            forget_whole(tmp_path)
        return real(*args)

    monkeypatch.setattr(tensors, "load_arrays", overtaken)
    assert load_artifact(tmp_path)[0]["generation"] == 2


def _forget_one_by_one(directory, rows):
    """Deferred or whole, in turn."""
    for row in rows:
        with locked(directory):
            forget(directory, [row])
            if row % 3 == 0:
                finish(directory)


def test_two_processes_forget_while_a_third_reads(tmp_path):
    save_old(tmp_path)
    writers = [start(_forget_one_by_one, tmp_path, range(first, first + 12)) for first in (100, 200)]
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(len(state_of(tmp_path)[0]))
    assert [writer.exitcode for writer in writers] == [0, 0]
    gone, generation = state_of(tmp_path)
    assert (gone, generation) == ([*range(100, 112), *range(200, 212)], 1 + 24 + 8)
    nothing_left(tmp_path, gone, values=False)  # of so many, four bytes are found by chance
    assert seen


def test_theta_of_another_ledger_is_noticed(tmp_path):
    save_old(tmp_path)
    save_artifact(tmp_path, {}, arrays_without([]) | {"theta": THETA * 2})
    with pytest.raises(DataError, match="not those of the last line"):
        check_artifact(tmp_path)
