"""Deferred saves: a line of the journal is the commit, rows are overwritten where they lie, crashes at every change."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys

import faults
import numpy as np
import pytest
from faults import Faults, crash_points, damage, error_points, kill_at, traces
from hypothesis import given, settings
from hypothesis import strategies as st
from test_directory import CarelessOs

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.artifact import directory as artifact
from l2ul_fast.unlearner.artifact import durable
from l2ul_fast.unlearner.artifact.directory import (
    NotTidied,
    append_artifact,
    check_artifact,
    load_artifact,
    open_artifact,
    read_header,
    read_ledger,
    read_view,
    save_artifact,
)
from l2ul_fast.unlearner.artifact.journal import JOURNAL, Record, read_journal
from l2ul_fast.unlearner.artifact.ledger import entry

N, D = 4000, 5  # three blocks of X
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, D))
Y = RNG.integers(0, 2, N).astype(np.uint8)
WEIGHTS = RNG.exponential(size=N)
THETA = RNG.normal(size=D + 1)
FIRST, SECOND = [1637, 5], [9, 10, 11, 3999]  # row 1637 lies in two blocks
GONE = np.zeros(0, np.int64)


def sums_without(rows):
    """Whole numbers that know of every row that stays."""
    keep = np.setdiff1d(np.arange(N), rows)
    return np.rint(X[keep] * 2.0**30).astype(np.int64).sum(axis=0)


def save_old(directory, rows=()):
    arrays = {"X": X.copy(), "y": Y.copy(), "weights": WEIGHTS.copy(), "theta": THETA, "sums": sums_without(rows)}
    for name in ("X", "y", "weights"):
        arrays[name][list(rows)] = 0
    save_artifact(
        directory,
        {"n": N - len(rows), "due": None},
        arrays | {"forgotten": np.array(rows, np.int64)},
        groups={"rows": ["X", "y", "weights"], "sums": ["sums"], "theta": ["theta"]},
        erasable=["rows"],
        ledger_entry=entry("fit", n=N - len(rows), theta=THETA, time=0),
    )


def forget(directory, rows, before=(), known=None, base=None):
    """One deferred save."""
    n = N - len(before) - len(rows)
    return append_artifact(
        directory,
        {"n": n, "due": "it is"},
        {"sums": sums_without([*before, *rows])},
        groups={"sums": ["sums"]},
        keep=["main", "rows"],
        base=1 if base is None else base,
        known=known,
        ledger_entry=entry("unlearn", n=n, rows=rows, time=1),
    )


def forget_first(directory):
    forget(directory, FIRST)


def forget_both(directory):
    view = forget(directory, FIRST)
    forget(directory, SECOND, FIRST, view, view.generation)


def state_of(directory):
    """The rows that the directory has forgotten, after comparing every value and looking for what should be gone."""
    found = open_artifact(directory)
    gone = found.erased
    assert found.facts == {"n": N - gone.size, "due": "it is" if gone.size else None}
    np.testing.assert_array_equal(found.arrays["sums"], sums_without(gone))
    for name, whole in (("X", X), ("y", Y), ("weights", WEIGHTS)):
        keep = np.setdiff1d(np.arange(N), gone)
        np.testing.assert_array_equal(found.arrays[name][keep], whole[keep])
        assert not found.arrays[name][gone].any()
    assert ("theta" in found.arrays) == (not gone.size)  # that of all rows
    found.ledger.verify()
    assert found.ledger.forgotten().tolist() == gone.tolist()
    assert found.generation == len(found.ledger)
    return gone.tolist()


def nothing_left(directory, rows, values=True):
    for row in rows:
        assert traces(directory, X[row], values=values) == []
        assert traces(directory, [WEIGHTS[row]], values=False) == []


def no_strays(directory):
    view = read_view(directory)
    named = {name for record in view.files.values() for name in record.names}
    own = {"artifact.json", "ledger.jsonl", ".lock"} | ({JOURNAL} if view.end else set())
    assert {p.name for p in directory.iterdir()} == named | own
    if view.end:
        assert (directory / JOURNAL).stat().st_size == view.end


# Crashes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power_loss", [0, 3])
def test_a_crash_at_any_change_leaves_the_old_or_the_new_state(tmp_path, power_loss):
    def check(directory, finished):
        found = state_of(directory)
        assert found == sorted(FIRST) or not finished
        if found:
            nothing_left(directory, FIRST)  # opening it has done the rest
        else:
            forget_first(directory)
            assert state_of(directory) == sorted(FIRST)
        nothing_left(directory, FIRST)
        no_strays(directory)

    changes = crash_points(tmp_path, save_old, forget_first, check, power_loss)
    assert changes > 12


@pytest.mark.parametrize("power_loss", [0, 2])
def test_the_second_request_finds_what_the_first_left(tmp_path, power_loss):
    def check(directory, finished):
        found = state_of(directory)
        assert found in (sorted(FIRST), sorted([*FIRST, *SECOND]))
        assert found != sorted(FIRST) or not finished
        nothing_left(directory, found)
        no_strays(directory)

    def again(directory):
        forget(directory, SECOND, FIRST, base=2)

    def setup(directory):
        save_old(directory)
        forget_first(directory)

    assert crash_points(tmp_path, setup, again, check, power_loss) > 12


@pytest.mark.parametrize("stop_before", ["pwrite", "unlink"])
def test_a_crash_while_opening_after_a_crash(tmp_path, stop_before):
    """Once the line is in the journal, whoever opens the directory does the rest, however often that is killed."""

    def setup(directory):
        save_old(directory)
        probe = Faults(shutil.copytree(directory, tmp_path / f"probe-{directory.name}"))
        assert probe.run(forget_first)
        faults = Faults(directory, stop_at=probe.calls.index(stop_before) + 1)
        assert not faults.run(forget_first)

    def check(directory, finished):
        assert state_of(directory) == sorted(FIRST)
        nothing_left(directory, FIRST)
        no_strays(directory)

    assert crash_points(tmp_path / "work", setup, open_artifact, check, power_loss=2) > 2


def save_whole(directory):
    """What a save that is not deferred does with a journal."""
    facts, arrays = load_artifact(directory)
    groups = {"rows": ["X", "y", "weights"], "sums": ["sums"], "theta": ["theta"]}
    erased = open_artifact(directory).erased
    last = entry("refresh", n=facts["n"], theta=THETA + 1, time=2)
    save_artifact(
        directory,
        facts | {"due": None},
        arrays | {"theta": THETA + 1, "forgotten": erased},
        groups=groups,
        erasable=["rows"],
        ledger_entry=last,
        base=facts["generation"],
    )


@pytest.mark.parametrize("power_loss", [0, 2])
def test_a_whole_save_empties_the_journal_at_once_or_not_at_all(tmp_path, power_loss):
    def setup(directory):
        save_old(directory)
        forget_both(directory)

    gone = sorted([*FIRST, *SECOND])

    def check(directory, finished):
        view = read_view(directory)
        assert read_ledger(directory).forgotten().tolist() == gone
        if view.end:
            assert not finished
            assert state_of(directory) == gone
            save_whole(directory)
        found = open_artifact(directory)
        assert found.facts == {"n": N - len(gone), "due": None}
        assert not found.erased.size
        assert found.arrays["forgotten"].tolist() == gone
        np.testing.assert_array_equal(found.arrays["sums"], sums_without(gone))
        assert [e["action"] for e in check_artifact(directory).entries] == ["fit", "unlearn", "unlearn", "refresh"]
        assert not (directory / JOURNAL).exists()
        nothing_left(directory, gone)
        no_strays(directory)

    assert crash_points(tmp_path, setup, save_whole, check, power_loss) > 15


@pytest.mark.parametrize("stop_at", [6, 13])
def test_sigkill(tmp_path, stop_at):
    save_old(tmp_path)
    assert not kill_at("test_journal:forget_first", tmp_path, stop_at)
    found = state_of(tmp_path)
    nothing_left(tmp_path, found)
    if not found:
        forget_first(tmp_path)
    assert state_of(tmp_path) == sorted(FIRST)


@pytest.mark.slow
def test_sigkill_everywhere(tmp_path):
    for stop_at in range(1, 100):
        work = tmp_path / str(stop_at)
        save_old(work)
        finished = kill_at("test_journal:forget_both", work, stop_at)
        nothing_left(work, state_of(work))
        if finished:
            assert state_of(work) == sorted([*FIRST, *SECOND])
            return
    pytest.fail("never finished")


class Careless(CarelessOs):
    """os for durable.py, with one precaution of a deferred save left out."""

    def fdatasync(self, fd):
        if self.missing != "sync rows":
            os.fdatasync(fd)

    def pwrite(self, fd, data, start):
        return len(data) if self.missing == "erase" else os.pwrite(fd, data, start)


@pytest.mark.parametrize("missing", ["sync files", "sync directory", "unlink", "erase"])
def test_the_crash_test_notices_a_careless_save(tmp_path, monkeypatch, missing):
    monkeypatch.setattr(durable, "os", Careless(missing))

    def check(directory, finished):
        nothing_left(directory, FIRST if finished else [])  # before anybody opens it again
        found = state_of(directory)
        assert found == sorted(FIRST) or not finished
        nothing_left(directory, found)
        no_strays(directory)

    with pytest.raises((DataError, AssertionError)):
        crash_points(tmp_path, save_old, forget_first, check, power_loss=6 if "sync" in missing else 0)


def test_rows_are_gone_from_the_disk_before_the_save_returns(tmp_path):
    """Also when the power fails then, and nobody opens the directory again."""
    for seed in range(4):
        directory = tmp_path / str(seed)
        save_old(directory)
        faults = Faults(directory)
        assert faults.run(forget_both)
        faults.lose_power(seed)
        nothing_left(directory, [*FIRST, *SECOND])


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [("open", "write", "fsync"), ("fsync",), ("pwrite", "fdatasync", "unlink")])
def test_an_error_at_any_change_is_one_sentence_and_tells_saved_from_not_saved(tmp_path, failing):
    seen = set()

    def check(directory, raised):
        found = state_of(directory)
        if raised is None:
            assert found == sorted(FIRST)
            return
        assert isinstance(raised, DataError), raised
        assert "\n" not in str(raised)
        seen.add(type(raised))
        if isinstance(raised, NotTidied):
            assert "is saved, but" in str(raised)
            assert raised.generation == 2
            assert found == sorted(FIRST)
        elif "may hold the new state or the old one" not in str(raised):
            assert found == []
        if not found:
            forget_first(directory)
        nothing_left(directory, FIRST)
        no_strays(directory)

    assert error_points(tmp_path, save_old, forget_first, check, errno.EIO, failing) > 2
    assert NotTidied in seen


def test_a_line_that_cannot_be_taken_back_is_not_called_unsaved(tmp_path):
    """The sync of the journal fails, and then so does cutting the line off."""

    def check(directory, raised):
        found = state_of(directory)
        if raised is not None and "may hold the new state or the old one" in str(raised):
            assert found == sorted(FIRST)
            seen.append(raised)
        elif isinstance(raised, DataError) and not isinstance(raised, NotTidied):
            assert found == []

    seen = []
    error_points(tmp_path, save_old, forget_first, check, errno.EIO, ("fsync", "ftruncate"))
    assert seen


# What is written -----------------------------------------------------------------------------------------------------


def test_the_bytes_of_a_request_do_not_grow_with_the_rows(tmp_path, monkeypatch):
    written = []

    class Counting:
        def __getattr__(self, name):
            return getattr(os, name)

        def write(self, fd, data):
            written.append(len(data))
            return os.write(fd, data)

        def pwrite(self, fd, data, start):
            written.append(len(data))
            return os.pwrite(fd, data, start)

    found = {}
    for n in (2_000, 60_000):
        rows = np.random.default_rng(0).normal(size=(n, 8))
        save_artifact(
            tmp_path / str(n),
            {"n": n},
            {"X": rows, "sums": np.arange(50)},
            groups={"rows": ["X"], "sums": ["sums"]},
            erasable=["rows"],
            ledger_entry=entry("fit", n=n, theta=THETA, time=0),
        )
        monkeypatch.setattr(durable, "os", Counting())
        written.clear()
        gone = entry("unlearn", n=n - 1, rows=[1234], time=0)
        append_artifact(
            tmp_path / str(n),
            {"n": n - 1},
            {"sums": np.arange(50)},
            groups={"sums": ["sums"]},
            keep=["rows"],
            ledger_entry=gone,
            base=1,
        )
        monkeypatch.undo()
        found[n] = len(written), sum(written)
        np.testing.assert_array_equal(
            np.delete(load_artifact(tmp_path / str(n))[1]["X"], 1234, 0), np.delete(rows, 1234, 0)
        )
    assert found[2_000][0] == found[60_000][0]
    assert abs(found[2_000][1] - found[60_000][1]) < 10  # n and block numbers have more digits


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_rows_of_any_shape_are_overwritten_and_no_other_byte(tmp_path_factory, data):
    n, d = data.draw(st.integers(1, 3000)), data.draw(st.integers(1, 40))
    dtype = data.draw(st.sampled_from(["f4", "f8"]))
    whole = np.random.default_rng(n).normal(size=(n, d)).astype(dtype) + 10
    marks = np.full(n, 7, np.uint8)
    directory = tmp_path_factory.mktemp("rows")
    save_artifact(
        directory,
        {},
        {"X": whole, "y": marks, "s": np.ones(1)},
        groups={"rows": ["X", "y"]},
        erasable=["rows"],
        ledger_entry=entry("fit", n=n, theta=THETA, time=0),
    )
    view, gone = None, np.zeros(0, np.int64)
    for turn in range(data.draw(st.integers(1, 3))):
        rows = np.unique(data.draw(st.lists(st.integers(0, n - 1), max_size=6)))
        rows = np.setdiff1d(rows, gone).astype(np.int64)
        gone = np.union1d(gone, rows)
        view = append_artifact(
            directory,
            {},
            {"s": np.ones(1) * turn},
            keep=["rows"],
            base=1 + turn,
            known=view if data.draw(st.booleans()) else None,
            ledger_entry=entry("unlearn", n=n - gone.size, rows=rows, time=1),
        )
    whole[gone], marks[gone] = 0, 0
    for memory_map in (False, True):
        _, arrays = load_artifact(directory, memory_map=memory_map)
        assert arrays["X"].tobytes() == whole.tobytes()
        assert arrays["y"].tobytes() == marks.tobytes()
    found = read_header(directory).files["rows"]
    on_disk = (directory / found.file).read_bytes()
    assert whole.tobytes() in on_disk  # the file itself, not what is made of it while loading
    digests = [hashlib.sha256(on_disk[i : i + 65536]).hexdigest() for i in range(0, len(on_disk), 65536)]
    assert (directory / found.digests).read_text().split() == digests


def test_the_digests_can_be_checked_with_standard_tools(tmp_path):
    save_old(tmp_path)
    forget_both(tmp_path)
    name = read_header(tmp_path).files["rows"].file.removesuffix(".safetensors")
    command = f"split -b 65536 --filter='sha256sum | cut -c1-64' {name}.safetensors | cmp - {name}.sha256"
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)


def test_the_journal_holds_numbers_of_rows_and_reads_as_json_lines(tmp_path):
    save_old(tmp_path)
    forget_both(tmp_path)
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["entries"][0]["rows"] for line in lines] == ["5,1637", "9-11,3999"]
    previous = json.loads((tmp_path / "artifact.json").read_text())["sha256"]
    for line in lines:
        content = json.loads(line)
        assert content["previous"] == previous
        previous = content["sha256"]
        assert hashlib.sha256(line[: line.rindex(b',"sha256"')]).hexdigest() == previous
        assert set(content["files"]) == {"sums"}
    assert json.loads(lines[0])["dropped"] == ["theta"]
    assert set(json.loads(lines[0])["digests"]["rows"]) == {"0", "1", "2"}  # X and weights


def test_the_ledger_goes_on_as_if_nothing_had_been_deferred(tmp_path):
    save_old(tmp_path)
    forget_both(tmp_path)
    deferred = check_artifact(tmp_path)
    assert len((tmp_path / "ledger.jsonl").read_bytes().splitlines()) == 1
    save_whole(tmp_path)
    after = check_artifact(tmp_path)
    assert after.lines[:3] == deferred.lines
    after.verify(deferred.head)  # a hash that was noted while the save was deferred stays good


# Damage --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deferred(tmp_path_factory):
    directory = tmp_path_factory.mktemp("deferred") / "a"
    save_old(directory)
    forget_both(directory)
    return directory


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_bytes_never_load_as_something_else(tmp_path_factory, deferred, data):
    directory = shutil.copytree(deferred, tmp_path_factory.mktemp("damaged") / "a")
    names = sorted(p.name for p in directory.iterdir() if p.stat().st_size)
    path = directory / data.draw(st.sampled_from([*names, JOURNAL, JOURNAL]))
    damage(path, data)
    for memory_map in (False, True):
        try:
            load_artifact(directory, memory_map=memory_map)
        except DataError:
            pass
        else:
            assert state_of(directory) == sorted([*FIRST, *SECOND])


def test_what_does_not_continue_is_refused_and_what_was_never_whole_is_cut_off(tmp_path, deferred):
    lines = (deferred / JOURNAL).read_bytes().splitlines(keepends=True)
    for i, (wrong, match) in enumerate(
        [
            ([lines[0][:50] + b"x" + lines[0][51:], lines[1]], "line 1 of .* is damaged"),
            ([lines[1]], "line 1 of .* does not continue"),
            ([lines[0], lines[0]], "line 2 of .* does not continue"),
            ([lines[0]], "sums.safetensors is missing|rows.safetensors is damaged"),
            ([], "sums.safetensors is missing|rows.safetensors is damaged"),
        ]
    ):
        directory = shutil.copytree(deferred, tmp_path / str(i))
        (directory / JOURNAL).write_bytes(b"".join(wrong))
        with pytest.raises(DataError, match=match) as caught:
            load_artifact(directory)
        assert "\n" not in str(caught.value)
        assert (directory / JOURNAL).read_bytes() == b"".join(wrong)  # nothing is tidied up that could be needed
    for tail in (lines[1][:70], b"\0" * 300, b"{}\n", b"\n"):
        directory = shutil.copytree(deferred, tmp_path / f"tail {tail[:2]!r}")
        with open(directory / JOURNAL, "ab") as file:
            file.write(tail)
        assert state_of(directory) == sorted([*FIRST, *SECOND])
        assert (directory / JOURNAL).read_bytes() == b"".join(lines)


def test_a_journal_of_an_earlier_state_does_not_count(tmp_path, deferred):
    directory = shutil.copytree(deferred, tmp_path / "a")
    stale = (directory / JOURNAL).read_bytes()
    save_whole(directory)
    (directory / JOURNAL).write_bytes(stale)  # as if the save had been killed before deleting it
    found = open_artifact(directory)
    assert not found.erased.size
    assert len(found.ledger) == 4
    assert not (directory / JOURNAL).exists()


def test_a_record_that_makes_no_sense_is_not_taken_for_one():
    header = artifact.Header(3, {"n": 1}, {}, digest="a" * 64)
    good = Record(4, {"n": 0}, {}, entries=[entry("unlearn", n=0, rows=[0], time=0)])
    assert read_journal(header, good.line("a" * 64), "j").facts == {"n": 0}
    outside = {"file": "../x.safetensors", "bytes": 1, "arrays": [], "sha256": "0" * 64}
    for change in (
        {"generation": -1},
        {"files": {"x": outside}},
        {"files": []},
        {"digests": {"rows": {"x": "0" * 64}}},
        {"digests": {"rows": {"1": "0"}}},
        {"entries": [3]},
        {"entries": [{"action": "unlearn", "rows": "x", "r": 1}]},
        {"dropped": None},
        {"facts": 3},
    ):
        content = json.loads(good.line("a" * 64)) | change
        del content["sha256"]
        text = json.dumps(content, separators=(",", ":")).encode()[:-1]
        line = text + b',"sha256":"' + hashlib.sha256(text).hexdigest().encode() + b'"}\n'
        assert read_journal(header, line, "j").end == 0


# Several at once -----------------------------------------------------------------------------------------------------


def test_only_the_state_that_was_loaded_is_continued(tmp_path):
    save_old(tmp_path)
    view = forget(tmp_path, FIRST)
    with pytest.raises(DataError, match="changed by someone else"):
        forget(tmp_path, SECOND)
    forget(tmp_path, SECOND, FIRST, base=2)  # by somebody else
    with pytest.raises(DataError, match="changed by someone else"):
        forget(tmp_path, [20], [*FIRST, *SECOND], view, view.generation)
    with pytest.raises(DataError, match="changed by someone else"):
        save_artifact(tmp_path, {}, {"theta": THETA}, base=2)
    assert state_of(tmp_path) == sorted([*FIRST, *SECOND])


def test_damage_is_not_given_a_new_digest(tmp_path):
    save_old(tmp_path)
    path = tmp_path / "state-1-rows.safetensors"
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="wrong checksum"):
        forget(tmp_path, [4])
    forget(tmp_path, [3000])  # lies in other blocks
    with pytest.raises(DataError, match="wrong checksum"):
        load_artifact(tmp_path)


def test_a_reader_that_may_not_write_sees_the_new_state(tmp_path, monkeypatch):
    """After a crash between the commit and the overwriting, with the rows still in the file."""
    save_old(tmp_path)
    probe = Faults(shutil.copytree(tmp_path, tmp_path.with_name("probe")))
    assert probe.run(forget_first)
    assert not Faults(tmp_path, stop_at=probe.calls.index("pwrite") + 1).run(forget_first)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with artifact.locked(tmp_path):  # nobody else may change anything
        code = (
            "import sys; from l2ul_fast.unlearner.artifact.directory import open_artifact\n"
            "found = open_artifact(sys.argv[1], memory_map=sys.argv[2] == 'True')\n"
            "assert not found.arrays['X'][found.erased].any(); print(found.erased.tolist())"
        )
        for memory_map in (False, True):
            done = subprocess.run(
                [sys.executable, "-c", code, str(tmp_path), str(memory_map)], capture_output=True, text=True
            )
            assert (done.stdout, done.stderr) == (f"{sorted(FIRST)}\n", "")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert state_of(tmp_path) == sorted(FIRST)
    nothing_left(tmp_path, FIRST)


WRITER = """
import sys, numpy as np
from test_journal import N, append_artifact, entry, save_whole, sums_without
from l2ul_fast.unlearner.artifact.directory import locked, open_artifact
import test_journal
for row in range(int(sys.argv[2]), int(sys.argv[2]) + 12):
    with locked(sys.argv[1]):
        found = open_artifact(sys.argv[1])
        n = found.facts["n"] - 1
        test_journal.append_artifact(sys.argv[1], {"n": n, "due": "it is"},
            {"sums": sums_without(np.append(found.erased, row))}, groups={"sums": ["sums"]}, keep=["main", "rows"],
            base=found.generation, ledger_entry=entry("unlearn", n=n, rows=[row], time=1))
"""


def test_two_processes_forget_while_a_third_reads(tmp_path):
    save_old(tmp_path)
    folders = [os.path.dirname(file) for file in (__file__, faults.__file__)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(first)], env=environment)
        for first in (100, 200)
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        seen.add(len(state_of(tmp_path)))
    assert [writer.returncode for writer in writers] == [0, 0]
    assert state_of(tmp_path) == [*range(100, 112), *range(200, 212)]
    nothing_left(tmp_path, range(100, 112), values=False)  # of so many, four bytes are found by chance
    assert seen
