"""Deferred saves: a line of the journal is the commit, rows are overwritten where they lie."""

import hashlib
import json
import os
import shutil
import subprocess
import threading
from functools import partial

import numpy as np
import pytest
from faults import Faults
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_artifact import BOTH, FIRST, SECOND, THETA, finish, forget, forget_both, forget_first, save_old, state_of

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.artifact.directory import (
    append_artifact,
    check_artifact,
    load_artifact,
    locked,
    open_artifact,
    read_header,
    save_artifact,
)
from l2ul_fast.unlearner.artifact.format import Header
from l2ul_fast.unlearner.artifact.journal import JOURNAL, Record, read_journal
from l2ul_fast.unlearner.artifact.ledger import entry


@pytest.fixture(scope="module")
def deferred(tmp_path_factory):
    directory = tmp_path_factory.mktemp("deferred") / "a"
    save_old(directory)
    forget_both(directory)
    return directory


# What is written -----------------------------------------------------------------------------------------------------


def _counted(sizes, write, fd, data, *place):
    sizes.append(len(data))
    return write(fd, data, *place)


def test_the_bytes_of_a_request_do_not_grow_with_the_rows(tmp_path, monkeypatch):
    found = []
    for n in (2_000, 60_000):
        rows, sums = np.random.default_rng(0).normal(size=(n, 8)), {"sums": np.arange(50)}
        groups, fit = {"rows": ["X"], "sums": ["sums"]}, entry("fit", n=n, theta=THETA, time=0)
        save_artifact(tmp_path, {}, sums | {"X": rows}, groups=groups, erasable=["rows"], ledger_entry=fit)
        gone, base, written = entry("unlearn", n=n - 1, rows=[1234], time=0), read_header(tmp_path).generation, []
        with monkeypatch.context() as patch:
            for name in ("write", "pwrite"):
                patch.setattr(os, name, partial(_counted, written, getattr(os, name)))
            append_artifact(tmp_path, {}, sums, groups={"sums": ["sums"]}, keep=["rows"], ledger_entry=gone, base=base)
        found.append((len(written), sum(written)))
    assert found[0][0] == found[1][0] > 3
    assert abs(found[0][1] - found[1][1]) < 10  # n and block numbers have more digits


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_rows_of_any_shape_are_overwritten_and_no_other_byte(tmp_path_factory, data):
    n, d = data.draw(st.integers(1, 3000)), data.draw(st.integers(1, 40))
    dtype = data.draw(st.sampled_from(["f4", "f8"]))
    whole = np.random.default_rng(n).normal(size=(n, d)).astype(dtype) + 10
    marks = np.full(n, 7, np.uint8)
    directory = tmp_path_factory.mktemp("rows")
    arrays, fit = {"X": whole, "y": marks, "s": np.ones(1)}, entry("fit", n=n, theta=THETA, time=0)
    save_artifact(directory, {}, arrays, groups={"rows": ["X", "y"]}, erasable=["rows"], ledger_entry=fit)
    view, gone = None, np.zeros(0, np.int64)
    for turn in range(data.draw(st.integers(1, 3))):
        rows = np.unique(data.draw(st.lists(st.integers(0, n - 1), max_size=6)))
        rows = np.setdiff1d(rows, gone).astype(np.int64)
        gone = np.union1d(gone, rows)
        made, known = entry("unlearn", n=n - gone.size, rows=rows, time=1), view if data.draw(st.booleans()) else None
        s = {"s": np.ones(1) * turn}
        view = append_artifact(directory, {}, s, keep=["rows"], base=1 + turn, known=known, ledger_entry=made)
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


def test_the_digests_can_be_checked_with_standard_tools(deferred):
    name = read_header(deferred).files["rows"].file.removesuffix(".safetensors")
    command = f"split -b 65536 --filter='sha256sum | cut -c1-64' {name}.safetensors | cmp - {name}.sha256"
    subprocess.run(command, shell=True, cwd=deferred, check=True)


def test_the_journal_holds_numbers_of_rows_and_reads_as_json_lines(deferred):
    lines = (deferred / JOURNAL).read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["entries"][0]["rows"] for line in lines] == ["5,1637", "9-11,3999"]
    previous = read_header(deferred).digest
    for line in lines:
        content = json.loads(line)
        assert content["previous"] == previous
        previous = content["sha256"]
        assert hashlib.sha256(line[: line.rindex(b',"sha256"')]).hexdigest() == previous
        assert set(content["files"]) == {"sums"}
    assert json.loads(lines[0])["dropped"] == ["theta"]
    assert set(json.loads(lines[0])["digests"]["rows"]) == {"0", "1", "2"}  # X and weights


def test_the_ledger_goes_on_as_if_nothing_had_been_deferred(tmp_path, deferred):
    directory = shutil.copytree(deferred, tmp_path / "a")
    before = check_artifact(directory)
    assert len((directory / "ledger.jsonl").read_bytes().splitlines()) == 1
    finish(directory)
    after = check_artifact(directory)
    assert after.lines[:3] == before.lines
    after.verify(before.head)  # a hash that was noted while the save was deferred stays good


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
        assert state_of(directory) == (BOTH, 3)
        assert (directory / JOURNAL).read_bytes() == b"".join(lines)


def test_a_record_that_makes_no_sense_is_not_taken_for_one():
    header = Header(3, {"n": 1}, {}, digest="a" * 64)
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
        {"entries": [entry("unlearn", n=0, rows=[0], time=0) | {"rows": "0-99999999999", "r": 10**11}]},
        {"digests": {"rows": {"-1": "0" * 64}}},
        {"dropped": None},
        {"facts": 3},
    ):
        content = json.loads(good.line("a" * 64)) | change
        del content["sha256"]
        text = json.dumps(content, separators=(",", ":")).encode()[:-1]
        line = text + b',"sha256":"' + hashlib.sha256(text).hexdigest().encode() + b'"}\n'
        assert read_journal(header, line, "j", most=1000).end == 0


# Several at once -----------------------------------------------------------------------------------------------------


def test_only_the_state_that_was_loaded_is_continued(tmp_path):
    save_old(tmp_path)
    view = forget(tmp_path, FIRST)
    forget(tmp_path, SECOND)  # by somebody else
    for late in (
        lambda: forget(tmp_path, [20], view),
        lambda: forget(tmp_path, [20], base=2),
        lambda: save_artifact(tmp_path, {}, {"theta": THETA}, base=2),
    ):
        with pytest.raises(DataError, match="changed by someone else"):
            late()
    assert state_of(tmp_path) == (BOTH, 3)


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


def test_a_reader_that_may_not_write_sees_the_new_state(tmp_path):
    """After a crash between the commit and the overwriting, with the rows still in the file."""
    save_old(tmp_path)
    probe = Faults(shutil.copytree(tmp_path, tmp_path.with_name("probe")))
    assert probe.run(forget_first)
    assert not Faults(tmp_path, stop_at=probe.calls.index("pwrite") + 1).run(forget_first)
    before, found = {p.name: p.read_bytes() for p in tmp_path.iterdir()}, []
    with locked(tmp_path):  # nobody else may change anything
        for memory_map in (False, True):
            reader = threading.Thread(target=lambda: found.append(open_artifact(tmp_path, memory_map=memory_map)))  # noqa: B023
            reader.start()
            reader.join()
    assert [(opened.erased.tolist(), opened.arrays["X"][FIRST].any()) for opened in found] == [(FIRST, False)] * 2
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert state_of(tmp_path) == (FIRST, 2)
