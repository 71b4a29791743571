"""The ledger: row numbers as text, the hash chain, and every way of tampering with it."""

import hashlib
import json
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.artifact.directory import check_artifact, read_header, read_ledger, save_artifact
from l2ul_fast.unlearner.artifact.ledger import START, Ledger, chain, decode_rows, encode_rows, entry, theta_digest

THETA = np.array([1.0, 2.0])


def history():
    """A fit of 100 rows and three requests."""
    forgotten, n, made = [[3, 1, 2], [50], list(range(60, 70))], 100, [entry("fit", n=100, theta=THETA, time=0)]
    for i, rows in enumerate(forgotten, 1):
        n -= len(rows)
        made.append(entry("unlearn", n=n, theta=THETA + i, theta_before=THETA + i - 1, rows=rows, time=i))
    return made


def ledger_of(entries):
    lines, head = chain(entries)
    return Ledger(b"".join(lines), head)


def rejoined(lines):
    """The lines with seq and previous put right again, as a careful forger would."""
    return chain([json.loads(line) for line in lines])


# Row numbers ---------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 60) | st.integers(0, 10**18 - 1), max_size=40), st.randoms())
def test_row_numbers_round_trip(rows, chance):
    given_order = sorted(rows)
    chance.shuffle(given_order)
    text = encode_rows(np.array(given_order, dtype=np.int64))
    back = decode_rows(text, len(rows))
    assert back.dtype == np.int64
    assert back.tolist() == sorted(rows)
    if rows:
        with pytest.raises(ValueError, match="more than there are rows"):
            decode_rows(text, len(rows) - 1)


def test_row_numbers_are_readable_and_compact():
    assert encode_rows([]) == ""
    assert encode_rows([9, 1, 3, 2]) == "1-3,9"
    assert encode_rows(np.array([7, 8], dtype=np.uint8)) == "7-8"
    assert encode_rows(np.arange(100_000)) == "0-99999"
    spread = np.random.default_rng(0).choice(11_000_000, 100_000, replace=False)
    assert len(encode_rows(spread)) < 9 * 100_000
    np.testing.assert_array_equal(decode_rows(encode_rows(spread), 100_000), np.sort(spread))


@pytest.mark.parametrize("rows", [[1, 1], [-1], [0.5], [[1]], ["1"], [10**18], [True]])
def test_bad_row_numbers_are_refused(rows):
    with pytest.raises(ValueError, match="row numbers"):
        encode_rows(rows)


@pytest.mark.parametrize(
    "text", ["1,", ",1", "1-", "-1", "2-1", "1,1", "2,1", "1-3,3", "1 ", "x", "1--2", "1" * 19, "1\n"]
)
def test_bad_text_is_refused(text):
    with pytest.raises(ValueError, match="row numbers"):
        decode_rows(text, 100)


def test_a_huge_range_is_refused_before_it_takes_memory():
    with pytest.raises(ValueError, match="more than there are rows"):
        decode_rows("0-999999999999999999", 100)


# Entries -------------------------------------------------------------------------------------------------------------


def test_an_entry_says_what_happened_and_nothing_of_the_rows():
    made = entry(
        "unlearn",
        n=97,
        theta=THETA,
        theta_before=theta_digest(THETA + 1),
        rows=np.array([5, 4, 9]),
        time=1.5,
        refreshed={"pairs": np.int64(3), "residual": np.float64(0.25), "distance": float("inf"), "ok": True},
    )
    assert made == {
        "time": "1970-01-01T00:00:01.500Z",
        "action": "unlearn",
        "r": 3,
        "rows": "4-5,9",
        "n": 97,
        "theta_before": theta_digest(THETA + 1),
        "theta_after": hashlib.sha256(THETA.tobytes()).hexdigest(),
        "refreshed": {"pairs": 3, "residual": 0.25, "distance": None, "ok": True},
    }
    assert entry("unlearn", n=97, theta=THETA, rows=[])["rows"] == ""
    assert json.loads(json.dumps(made)) == made


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (ValueError, {"action": "forget"}),
        (ValueError, {"action": "unlearn"}),
        (ValueError, {"action": "fit", "rows": [1]}),
        (ValueError, {"action": "unlearn", "rows": [1, 1]}),
        (ValueError, {"action": "fit", "theta": "abc"}),
        (TypeError, {"action": "fit", "refreshed": {"x": [0.1, 0.2]}}),
        (TypeError, {"action": "fit", "refreshed": {"x": np.zeros(3)}}),
        (TypeError, {"action": "fit", "refreshed": {"x": {"y": 1}}}),
    ],
)
def test_bad_entries_are_refused(kind, arguments):
    with pytest.raises(kind):
        entry(**{"n": 10, "theta": THETA} | arguments)


# The chain -----------------------------------------------------------------------------------------------------------


def test_a_sound_ledger_verifies_and_knows_what_was_forgotten():
    ledger = ledger_of(history())
    ledger.verify()
    assert ledger.forgotten().tolist() == [1, 2, 3, 50, *range(60, 70)]
    assert [e["seq"] for e in ledger.entries] == [0, 1, 2, 3]
    assert len(ledger) == 4
    assert Ledger(b"", START).forgotten().size == 0
    again, head = chain(ledger.entries)  # a copied history keeps its hashes
    assert again == ledger.lines
    assert head == ledger.head


def test_a_new_fit_starts_the_row_numbers_again():
    entries = [*history(), entry("fit", n=50, theta=THETA), entry("unlearn", n=48, theta=THETA, rows=[1, 49])]
    ledger = ledger_of(entries)
    ledger.verify()
    assert ledger.forgotten().tolist() == [1, 49]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_changed_byte_is_noticed(data):
    sound = ledger_of(history())
    content = bytearray(b"".join(sound.lines))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DataError, match="is not as it was written"):
        Ledger(bytes(content), sound.head).verify()


def test_dropped_moved_repeated_and_added_lines_are_noticed():
    sound = ledger_of(history())
    a, b, c, d = sound.lines
    dropped = [[b, c, d], [a, c, d], [a, b, d], [a, b, c], []]
    moved = [[b, a, c, d], [a, b, d, c], [a, b, c, d, d], [a, a, b, c, d]]
    added = [[a, b, c, d, more] for more in (b"{}\n", b"\n", b"x")] + [[a, b, c, d[:-1]], [a, b"[]\n", c, d]]
    for lines in dropped + moved + added:
        with pytest.raises(DataError, match="is not as it was written") as caught:
            Ledger(b"".join(lines), sound.head).verify()
        assert "\n" not in str(caught.value)


def test_a_wrong_number_in_a_sound_chain_is_noticed():
    lines, head = chain(history(), seq=1)
    with pytest.raises(DataError, match="line 1 was changed or is missing"):
        Ledger(b"".join(lines), head).verify()


def test_a_rewritten_chain_is_noticed_by_the_head_or_by_a_noted_hash():
    sound = ledger_of(history())
    noted = [hashlib.sha256(line).hexdigest() for line in sound.lines]
    forged, head = rejoined(
        [sound.lines[0], sound.lines[2].replace(b'"n":96', b'"n":99'), sound.lines[3].replace(b'"n":86', b'"n":89')]
    )
    with pytest.raises(DataError, match="its last line was changed or lines are missing"):
        Ledger(b"".join(forged), sound.head).verify()
    rewritten = Ledger(b"".join(forged), head)  # artifact.json was changed as well: the chain alone cannot tell
    rewritten.verify()
    rewritten.verify(noted[0])
    with pytest.raises(DataError, match="was rewritten"):
        rewritten.verify(noted[1])
    for hash_of_line in noted:
        sound.verify(hash_of_line)


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("row 50 is forgotten twice", lambda e: e[3].update(rows="50,61-69")),
        ("do not add up", lambda e: e[2].update(n=97)),
        ("do not add up", lambda e: e[2].update(r=2)),
        ("rows and their number belong", lambda e: e[0].update(r=2)),
        ("row numbers", lambda e: e[2].update(rows="7,5")),
        ("do not add up", lambda e: e[2].update(rows="0-999999999999")),
        ("action is not one of", lambda e: e[1].update(action="forget")),
        ("n is not a whole number", lambda e: e[1].update(n="96")),
        ("n is missing", lambda e: e[1].pop("n")),
        ("time is not a time", lambda e: e[1].update(time="today")),
        ("request_id is not text", lambda e: e[1].update(request_id="x" * 101)),
        ("refreshed is not one value", lambda e: e[1].update(refreshed={"row": [0.1, 0.2]})),
        ("makes no sense", lambda e: e[1].update(rows=None)),
    ],
)
def test_a_story_that_makes_no_sense_is_noticed(match, change):
    entries = history()
    change(entries)
    with pytest.raises(DataError, match=match):
        ledger_of(entries).verify()


# On disk -------------------------------------------------------------------------------------------------------------


def save_history(directory):
    for made in history():
        save_artifact(directory, {}, {"theta": THETA + 3}, ledger_entry=made)


def test_appending_one_by_one_or_at_once_gives_the_same_file(tmp_path):
    save_history(tmp_path / "a")
    save_artifact(tmp_path / "b", {}, {"theta": THETA + 3}, ledger_entry=history())
    first, second = ((tmp_path / name / "ledger.jsonl").read_bytes() for name in "ab")
    assert first == second == b"".join(ledger_of(history()).lines)
    assert read_header(tmp_path / "a").ledger_head == read_header(tmp_path / "b").ledger_head
    save_artifact(tmp_path / "c", {}, {}, ledger_entry=read_ledger(tmp_path / "a").entries)
    assert (tmp_path / "c" / "ledger.jsonl").read_bytes() == first
    assert check_artifact(tmp_path / "a").forgotten().size == 14


def test_the_chain_can_be_checked_with_standard_tools(tmp_path):
    save_history(tmp_path)
    for number in range(1, 4):
        command = f"sed -n {number}p ledger.jsonl | sha256sum | cut -c1-64"
        printed = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert read_ledger(tmp_path).entries[number]["previous"] == printed.strip()
