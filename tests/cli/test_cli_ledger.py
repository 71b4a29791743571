"""`l2ul ledger` and `l2ul replay`: a rewrite is noticed, and erased people do not come back from a backup."""

import json
import shutil

import numpy as np
import pytest
from command import contents, done, facts_of, printed
from command import mistake as refused
from faults import traces
from unlearners import logistic_data

from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.artifact import check_artifact, read_ledger, save_artifact
from l2ul_fast.unlearner.artifact.ledger import entry

X, Y = logistic_data(600, 5)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fitted") / "u"
    L2UL("lr").fit(X, Y).save(directory)
    return directory


@pytest.fixture
def states(fitted, tmp_path):
    """(a backup from after one request, the directory that went on)."""
    directory = shutil.copytree(fitted, tmp_path / "u")
    done("unlearn", directory, "--rows", 3, "--request-id", "first")
    backup = shutil.copytree(directory, tmp_path / "backup")
    done("unlearn", directory, "--rows", "10-12", "--request-id", "second")
    done("unlearn", directory, "--rows", 40, "--defer")
    return backup, directory


# Head and verify -----------------------------------------------------------------------------------------------------


def test_the_head_is_that_of_the_last_line(states):
    backup, directory = states
    head = done("ledger", "head", directory).strip()
    assert head == read_ledger(directory).head != read_ledger(backup).head
    assert facts_of("ledger", "head", directory) == {"head": head, "entries": len(read_ledger(directory))}
    assert f"head {head}" in done("ledger", "verify", directory)
    noted = done("ledger", "head", backup).strip()
    found = facts_of("ledger", "verify", directory, "--head", f" {noted.upper()}\n")
    assert (found["head"], found["entries_since"]) == (head, found["entries"] - len(read_ledger(backup)))
    assert "the noted line is there; 0 line(s)" in done("ledger", "verify", directory, "--head", head)


def test_a_rewritten_or_cut_ledger_is_noticed_by_the_noted_hash(states, tmp_path):
    backup, directory = states
    noted = done("ledger", "head", directory).strip()
    assert "was rewritten or cut off" in refused("ledger", "verify", backup, "--head", noted)
    u = L2UL.load(directory)
    u.history[1]["rows"] = "4"  # another person's row; all checksums are right
    u.save(tmp_path / "forged")
    done("ledger", "verify", tmp_path / "forged")
    assert "was rewritten or cut off" in refused("ledger", "verify", tmp_path / "forged", "--head", noted)


@pytest.mark.parametrize("head", ["", "abc", "0" * 63, "g" * 64, "0" * 65])
def test_what_is_no_hash_is_one_sentence(states, head):
    assert "must be 64 hexadecimal digits" in refused("ledger", "verify", states[1], "--head", head)


def test_ledgers_that_cannot_be_read_are_one_sentence(states, tmp_path):
    (states[1] / "ledger.jsonl").write_bytes(b"{}\n")
    (tmp_path / "text").write_text("no ledger\n")
    for command in (("ledger", "head"), ("ledger", "verify"), ("replay", "--onto", states[0])):
        assert "there is no artifact" in refused(*command, tmp_path / "nowhere")
        assert "cut off" in refused(*command, states[1])
    assert "is not as it was written" in refused("replay", tmp_path / "text", "--onto", states[0])


# Replay --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [False, True])
def test_erased_people_do_not_come_back_from_a_backup(states, tmp_path, alone):
    backup, directory = states
    source = shutil.copy(directory / "ledger.jsonl", tmp_path / "ledger.jsonl") if alone else directory
    rows = [3, 10, 11, 12] if alone else [3, 10, 11, 12, 40]  # what is deferred is in the journal
    found = facts_of("replay", source, "--onto", backup)
    assert (found["r"], found["n"], found["due"]) == (len(rows) - 1, 600 - len(rows), None)
    assert check_artifact(backup).forgotten().tolist() == rows
    for row in rows:
        assert traces(backup, X[row]) == []
    assert [e.get("request_id") for e in L2UL.load(backup).forget_log][:2] == ["first", "second"]
    if not alone:
        done("unlearn", directory, "--finish")
        np.testing.assert_array_equal(L2UL.load(backup).theta, L2UL.load(directory).theta)
    before = contents(backup)
    assert "lacks no request: nothing to forget" in done("replay", source, "--onto", backup)
    assert contents(backup) == before
    assert "repeated" in printed("unlearn", backup, "--rows", "10-12", "--request-id", "second", "--json")[0]


def test_a_replay_says_what_it_did(states):
    backup, directory = states
    assert (
        done("replay", directory, "--onto", backup) == f"forgot 4 row(s) of 2 request(s) in {backup}; 595 rows remain\n"
    )


def test_rows_that_the_backup_never_had_are_left_out(fitted, tmp_path):
    backup = shutil.copytree(fitted, tmp_path / "backup")
    u = L2UL.load(fitted)
    learned = u.learn(X[:4] * 0.5, Y[:4])
    u.unlearn([7, *learned[:2].tolist()])
    u.save(tmp_path / "u")
    other = L2UL.load(backup)
    own = other.learn(X[4:8] * 0.5, Y[4:8])  # other rows of the same numbers
    other.save(backup)
    assert facts_of("replay", tmp_path / "u", "--onto", backup)["r"] == 1
    restored = L2UL.load(backup)
    assert restored.n == 603
    assert not restored.status[own].any()


def test_a_ledger_that_does_not_continue_the_backup_is_refused(states, tmp_path):
    backup, directory = states
    before = contents(backup)
    L2UL("lr").fit(X, Y).save(tmp_path / "other")
    assert "their ledgers have no line in common" in refused("replay", tmp_path / "other", "--onto", backup)
    u = L2UL("lr").fit(X[:500], Y[:500])
    u.save(directory)
    assert "since the backup the model was fitted again" in refused("replay", directory, "--onto", backup)
    assert "there is no artifact" in refused("replay", directory, "--onto", tmp_path / "nowhere")
    assert contents(backup) == before


def test_a_huge_range_takes_no_memory(states, tmp_path):
    """Who writes a ledger can claim 10^17 rows; only those of the backup are looked at."""
    backup, directory = states
    fit = read_ledger(directory).entries[:2]
    made = entry("unlearn", n=0, rows=[], time=0) | {"rows": "9-99999999999999999", "r": 10**17 - 9, "n": 0}
    claim = fit[0] | {"n": 10**17 - 9}
    save_artifact(tmp_path / "forged", {}, {}, ledger_entry=[claim, made])
    assert "no line in common" in refused("replay", tmp_path / "forged", "--onto", backup)
    assert json.loads(done("ledger", "head", tmp_path / "forged", "--json"))["entries"] == 2
