"""`l2ul fit`, `unlearn`, `show`, `reconstruct`: from the first command to the last, and answers to mistakes."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from command import contents, done, facts_of, l2ul, printed
from command import mistake as refused
from faults import start
from unlearners import logistic_data

from l2ul_fast.cli.unlearn import read_rows
from l2ul_fast.errors import UserError
from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.artifact.directory import check_artifact

FIXTURES = Path(__file__).parents[1] / "contracts" / "fixtures" / "artifacts"
#: Options that keep the fit of a head short.
OPTIONS = {
    "expansion": (),
    "learned": ("--m", 60, "--s", 400),
    "kme": ("--m", 60, "--s", 400, "--t", 10, "--psi", 8),
    "paper": ("--m", 20, "--s", 300, "--t", 10),
    "mlp": ("--model", "mlp", "--hidden", 3, "--anchor-rows", 300),
}


def sums(directory):
    (path,) = directory.glob("state-*-sums.safetensors")
    return path.read_bytes()


def listed(rows):
    return ",".join(map(str, rows))


def training_rows(directory, count=None):
    return L2UL.load(directory).retained().ids()[:count]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A stand-in file."""
    return facts_of("data", "make", "magic", "--rows", 3000, "--data-dir", tmp_path_factory.mktemp("data"))["path"]


@pytest.fixture(scope="module")
def fits(path, tmp_path_factory):
    """A function: the directory of an unlearner with that head (or "mlp"), fitted once."""
    folder, found = tmp_path_factory.mktemp("fits"), {}

    def fitted(name):
        if name not in found:
            head = "expansion" if name == "mlp" else name
            found[name] = facts_of("fit", path, "--out", folder / name, "--head", head, *OPTIONS[name])
        return folder / name, found[name]

    return fitted


@pytest.fixture
def copy_of(fits, tmp_path):
    """A function: a copy of such a directory."""
    return lambda name: shutil.copytree(fits(name)[0], tmp_path / name)


@pytest.fixture
def directory(copy_of):
    return copy_of("expansion")


@pytest.fixture
def far(directory):
    """Rows on one side of all: without them the optimum lies in another cell of the grid."""
    u = L2UL.load(directory)
    ids = u.retained().ids()
    X = u.store.fetch(ids)[0]
    rows = ids[X[:, 0] > np.quantile(X[:, 0], 0.8)]
    assert u.unlearn(rows).due
    return listed(rows)


@pytest.fixture
def few(directory):
    """Rows without which nothing is due, of an unlearner for which that is so."""
    u = L2UL.load(directory)
    rows = []
    for row in u.retained().ids():
        if len(rows) < 6 and L2UL.load(directory).unlearn([*rows, row]).due is None:
            rows.append(int(row))
        if len(rows) == 6:
            return rows
    raise AssertionError("every request makes something due")


# Fit -----------------------------------------------------------------------------------------------------------------


def test_fit_says_what_it_made(fits, path, tmp_path):
    facts = fits("expansion")[1]
    assert (facts["model"], facts["head"], facts["order"], facts["anchor"]) == ("lr", "expansion", 3, "grid")
    assert (facts["label"], facts["d"], facts["parameters"], facts["warnings"]) == ("stand-in", 10, 11, [])
    assert (facts["penalty"], facts["lam"], facts["noise_floor"]) == ("mean", 1e-3, 0)
    assert "prior" not in facts
    out = done("fit", path, "--out", tmp_path / "u", "--part", "all", "--threads", 1)
    assert "lr on 3000 rows (stand-in) x 10, head expansion, fitted in" in out
    assert f"take rows out with `l2ul unlearn {tmp_path / 'u'} --rows ...`" in out
    assert L2UL.load(tmp_path / "u").n == 3000
    done("fit", path, "--out", tmp_path / "u")  # replaces it
    assert L2UL.load(tmp_path / "u").n == facts["n"]


@pytest.mark.parametrize("name", ["learned", "kme", "paper"])
def test_heads_that_learn_from_pairs(fits, copy_of, name):
    facts = fits(name)[1]
    assert facts["head"] == name
    assert facts["report"]["m"] + facts["report"]["rejected"] == (20 if name == "paper" else 60)
    directory = copy_of(name)
    rows = training_rows(directory, 3)
    found = facts_of("unlearn", directory, "--rows", listed(rows[:2]))
    assert (found["r"], found["n"], found["due"]) == (2, facts["n"] - 2, None)
    assert found["was_due"] == "the parameters are not at the optimum of the rows that stay"
    assert found["refreshed"]["sealed"] is True
    assert set(found["refreshed"]) >= {"pairs", "partitions"}
    assert (found["error_after"], found["warnings"]) == (0, [])
    shown = facts_of("show", directory)
    assert (shown["head"], shown["due"], shown["forgotten"]) == (name, None, 2)
    assert [e["action"] for e in shown["entries"]] == ["fit", "unlearn", "refresh"]
    # deferred: it says what is due, and how far off the answer may be
    out, err = printed("unlearn", directory, "--rows", rows[2], "--defer")
    assert "due: the parameters are not at the optimum" in out
    if name != "learned":
        assert err.startswith("warning: the model may be as far from a retrained one as ")
        assert err.endswith("of what was asked for: finish what is due\n")
        assert len(err.splitlines()) == 1
    assert facts_of("show", directory)["due"] is not None
    assert facts_of("unlearn", directory, "--finish")["due"] is None


def test_an_mlp_from_one_command_to_the_next(copy_of):
    directory = copy_of("mlp")
    row = training_rows(directory, 1)[0]
    out = done("unlearn", directory, "--rows", row, "--defer")
    assert "forgot 1 row(s)" in out
    assert "due: " in out
    again = refused("unlearn", directory, "--rows", row)
    assert again == f"error: row {row} was forgotten before: nothing was forgotten"
    assert done("unlearn", directory, "--finish").startswith("finished what was due in ")
    assert facts_of("show", directory)["due"] is None


def test_the_expansion_takes_its_options(path, tmp_path):
    done("fit", path, "--out", tmp_path / "any")
    row = listed(training_rows(tmp_path / "any", 1))
    facts = facts_of("fit", path, "--out", tmp_path / "2", "--order", 2, "--penalty", "sum")
    assert (facts["order"], facts["penalty"]) == (2, "sum")
    out = done("unlearn", tmp_path / "2", "--rows", row)
    assert "answer: order 2; estimated error not known" in out
    near = np.round(L2UL.load(tmp_path / "any").theta, 1)
    (tmp_path / "public.txt").write_text(f"{near[0]}, " + " ".join(str(x) for x in near[1:]))
    facts = facts_of("fit", path, "--out", tmp_path / "public", "--anchor", tmp_path / "public.txt")
    assert facts["anchor"] == near.tolist()
    assert facts_of("show", tmp_path / "public")["anchor"] == "given"
    facts = facts_of("fit", path, "--out", tmp_path / "optimum", "--anchor", "optimum")
    assert facts["anchor"] == "optimum"
    found = facts_of("unlearn", tmp_path / "optimum", "--rows", row)  # every request moves the optimum
    assert found["was_due"] == "the point of the expansion is the optimum of rows of which some have left"
    assert (found["refreshed"]["expanded"], found["due"]) == (True, None)


@pytest.mark.parametrize(
    ("options", "now", "text"),
    [
        (("--head", "influence"), "expansion", "head='influence' is now head=\"expansion\""),
        (("--prior", "newton"), "expansion", "prior='newton' is now head=\"expansion\""),
        (("--prior", "none", "--m", 40, "--s", 400), "learned", "prior='none' is now head=\"learned\""),
        (("--head", "direct", *OPTIONS["paper"]), "paper", "head='direct' is now head=\"paper\""),
    ],
)
def test_old_names_work_with_a_warning(path, tmp_path, options, now, text):
    out, err = printed("fit", path, "--out", tmp_path / "u", *options, "--json")
    assert json.loads(out)["head"] == now
    assert json.loads(out)["warnings"] == [text]
    assert err.splitlines()[-1] == f"warning: {text}"
    assert facts_of("show", tmp_path / "u")["head"] == now


def test_plain_training_prints_its_noise_floor(path, tmp_path):
    options = ("--model", "mlp", "--hidden", 2, "--anchor-rows")
    out = done("fit", path, "--out", tmp_path / "plain", *options, 0)
    assert "noise floor: training from another start answers" in out
    assert facts_of("fit", path, "--out", tmp_path / "anchored", *options, 300)["noise_floor"] == 0


def test_mistakes_of_a_fit(path, tmp_path):
    out = tmp_path / "out"
    assert "missing.h5" in refused("fit", tmp_path / "missing.h5", "--out", out)
    assert "lam must be positive" in refused("fit", path, "--out", out, "--lam", 0)
    learned = ("--head", "learned", "--s", 10_000_000)
    assert "cannot be drawn from" in refused("fit", path, "--out", out, *learned)
    assert "head must be one of expansion, learned, kme, paper" in refused("fit", path, "--out", out, "--head", "svm")
    (tmp_path / "words.txt").write_text("a b")
    (tmp_path / "short.txt").write_text("1 2")
    (tmp_path / "nan.txt").write_text("nan " * 11)
    for anchor, match in (
        ("nowhere", "must be grid, optimum or a file of parameters, and 'nowhere' cannot be read"),
        (tmp_path, "cannot be read"),
        (tmp_path / "words.txt", "must hold numbers only"),
        (path, "must hold numbers only"),
        (tmp_path / "short.txt", "the anchor must have 11 finite numbers"),
        (tmp_path / "nan.txt", "the anchor must have 11 finite numbers"),
    ):
        assert match in refused("fit", path, "--out", out, "--anchor", anchor)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    # found out before the work, not after it
    assert "holds other files (notes.txt)" in refused("fit", tmp_path / "missing.h5", "--out", tmp_path / "mine")
    assert "is not a directory" in refused("fit", path, "--out", tmp_path / "mine" / "notes.txt")
    assert not out.exists()
    for option, value in (("--model", "svm"), ("--psi", 1), ("--order", 1), ("--penalty", "x"), ("--network", "")):
        l2ul("fit", path, "--out", out, option, value, code=2)


# Unlearn, show -------------------------------------------------------------------------------------------------------


def test_from_fit_to_show(path, directory, few):
    before = training_rows(directory)
    n = len(before)
    facts = facts_of("unlearn", directory, "--rows", listed(few[:2]))
    assert (facts["r"], facts["n"], facts["tier"], facts["warnings"]) == (2, n - 2, "order 3", [])
    assert 0 < facts["error"] < 0.1
    assert (facts["due"], facts["was_due"], facts["refreshed"], facts["deferred"]) == (None, None, None, False)
    assert (facts["repeated"], facts["request_id"], facts["gradient_residual"]) == (False, None, None)
    assert 0 < facts["answer_seconds"] < facts["erased_seconds"]
    out = done("unlearn", directory, "--rows", few[2], "--check", "--threads", 1)
    assert "forgot 1 row(s) in" in out
    assert f"{n - 3} rows remain" in out
    assert "answer: order 3; estimated error" in out
    assert "largest gradient entry on the rows that stay" in out
    assert f"erased from {directory} after" in out
    assert "finished" not in out
    u = L2UL.load(directory)
    assert u.n == n - 3
    assert [e["rows"].tolist() for e in u.forget_log] == [few[:2], [few[2]]]
    np.testing.assert_array_equal(np.setdiff1d(before, u.retained().ids()), few[:3])
    shown = facts_of("show", directory)
    assert (shown["forgotten"], shown["requests"], shown["n"], shown["ledger"]) == (3, 2, n - 3, "intact")
    assert (shown["model"], shown["head"], shown["order"], shown["anchor"]) == ("lr", "expansion", 3, "grid")
    assert (shown["due"], shown["deferred"]) == (None, 0)
    assert [e["action"] for e in shown["entries"]] == ["fit", "unlearn", "unlearn"]
    assert shown["data"]["paths"] == [path]
    out = done("show", directory)
    for text in ("stand-in", "forgotten  3", "unlearn", "2 row(s)", "due        -"):
        assert text in out


def test_rows_from_a_file_and_the_state_a_program_would_reach(directory, tmp_path):
    rows = training_rows(directory, 40)
    u = L2UL.load(directory)
    u.unlearn(rows)
    u.save(tmp_path / "program")
    (tmp_path / "rows.txt").write_text("\n".join(f"{row}," if row % 2 else f"{row}-{row}" for row in rows))
    assert facts_of("unlearn", directory, "--rows-file", tmp_path / "rows.txt")["r"] == 40
    assert sums(directory) == sums(tmp_path / "program")
    np.testing.assert_array_equal(L2UL.load(directory).theta, L2UL.load(tmp_path / "program").theta)


def test_what_a_request_makes_due_is_done_before_the_end(directory, far):
    out = done("unlearn", directory, "--rows", far, "--check")
    assert "finished what was due in" in out
    assert "the optimum left its cell of the grid" in out
    assert "due:" not in out
    assert facts_of("show", directory)["due"] is None
    entries = check_artifact(directory).entries
    assert [e["action"] for e in entries] == ["fit", "unlearn", "refresh"]
    u = L2UL.load(directory)
    assert u.due is None
    assert u.residual() < 1e-6  # expanded at the rows that stay
    fresh = L2UL.load(directory)
    fresh.head.expand_anew(fresh.retained())
    np.testing.assert_array_equal(fresh.head.sums, u.head.sums)


def test_a_deferred_request_is_due_until_it_is_finished(directory, far, few):
    whole = (directory / "artifact.json").read_bytes()
    n = L2UL.load(directory).n
    facts = facts_of("unlearn", directory, "--rows", far, "--defer")
    reason = "the optimum left its cell of the grid"
    assert reason in facts["due"]
    assert facts["was_due"] == facts["due"]
    assert (facts["deferred"], facts["refreshed"], facts["erased_seconds"]) == (True, None, None)
    assert (directory / "artifact.json").read_bytes() == whole  # the journal says what is new
    assert len((directory / "journal.jsonl").read_bytes().splitlines()) == 1
    assert not list(directory.glob("state-*-theta.*"))  # theta of before would give the rows away
    shown = facts_of("show", directory)
    assert (shown["due"], shown["deferred"], shown["n"], shown["requests"]) == (facts["due"], 1, n - facts["r"], 1)
    assert f"due        {facts['due']}" in done("show", directory)
    left = [row for row in few if str(row) not in far.split(",")]
    out, err = printed("unlearn", directory, "--rows", left[0], "--defer")
    # what was left of the expansion's error by all rows before is much in units of one row's effect
    assert err.startswith("warning: the model may be as far from a retrained one as ")
    assert err.endswith(" of what was asked for: finish what is due\n")
    assert f"until `l2ul unlearn {directory} --finish` the directory may give rows away" in out
    assert "erased" not in out
    assert len((directory / "journal.jsonl").read_bytes().splitlines()) == 2
    # the next request that is not deferred does it
    facts = facts_of("unlearn", directory, "--rows", left[1])
    assert facts["due"] is None
    assert (facts["refreshed"]["expanded"], facts["erased_seconds"] > 0) == (True, True)
    assert not (directory / "journal.jsonl").exists()
    shown = facts_of("show", directory)
    assert (shown["due"], shown["deferred"], shown["requests"]) == (None, 0, 3)
    assert [e["action"] for e in shown["entries"]] == ["fit", "unlearn", "unlearn", "unlearn", "refresh"]


def test_finish_is_no_request(directory, far):
    before = contents(directory)
    assert done("unlearn", directory, "--finish") == "nothing is due\n"
    facts = facts_of("unlearn", directory, "--finish")
    assert (facts["r"], facts["refreshed"], facts["answer_seconds"], facts["tier"]) == (0, None, None, None)
    assert contents(directory) == before
    done("unlearn", directory, "--rows", far, "--defer")
    out = done("unlearn", directory, "--finish")
    assert out.startswith("finished what was due in ")
    assert "forgot" not in out
    assert facts_of("show", directory)["due"] is None
    before = contents(directory)
    for option in (("--rows", 1), ("--rows-file", "x"), ("--rtol", 0), ("--defer",), ("--request-id", "a")):
        assert f"{option[0]} does not go with it" in refused("unlearn", directory, "--finish", *option)
    assert contents(directory) == before


def test_a_deferred_request_of_which_nothing_is_due_is_erased(directory, few):
    facts = facts_of("unlearn", directory, "--rows", listed(few), "--defer")
    assert (facts["due"], facts["deferred"]) == (None, True)
    assert facts["answer_seconds"] < facts["erased_seconds"]
    shown = facts_of("show", directory)
    assert (shown["due"], shown["deferred"], shown["forgotten"]) == (None, 1, len(few))


def test_a_request_id_given_twice_is_one_erasure(directory, few, far):
    first = facts_of("unlearn", directory, "--rows", listed(few[:2]), "--request-id", "ticket 1")
    assert (first["repeated"], first["request_id"], first["r"]) == (False, "ticket 1", 2)
    before = contents(directory)
    again = facts_of("unlearn", directory, "--rows", listed(few[1::-1]), "--request-id", "ticket 1")
    assert (again["repeated"], again["r"], again["n"]) == (True, 0, first["n"])
    assert (again["answer_seconds"], again["erased_seconds"], again["refreshed"]) == (None, None, None)
    out = done("unlearn", directory, "--rows", listed(few[:2]), "--request-id", "ticket 1", "--defer")
    assert "request 'ticket 1' was done before: nothing to forget" in out
    for rows in (few[:3], few[:1], few[3:]):
        text = refused("unlearn", directory, "--rows", listed(rows), "--request-id", "ticket 1")
        assert "the request id 'ticket 1' was used before (2" in text
        assert "for other rows: nothing was forgotten" in text
    assert "was forgotten before" in refused("unlearn", directory, "--rows", few[0], "--request-id", "ticket 2")
    assert "was forgotten before" in refused("unlearn", directory, "--rows", few[0])
    assert "1 to 100 printable" in refused("unlearn", directory, "--rows", few[3], "--request-id", "a\nb")
    assert "1 to 100 printable" in refused("unlearn", directory, "--rows", few[3], "--request-id", "")
    assert contents(directory) == before
    assert "ticket 1" in done("show", directory)
    assert [e.get("request_id") for e in L2UL.load(directory).forget_log] == ["ticket 1"]


def test_a_deferred_request_id_that_is_given_again_finishes(directory, far):
    deferred = facts_of("unlearn", directory, "--rows", far, "--request-id", "a", "--defer")
    assert deferred["due"]
    again = facts_of("unlearn", directory, "--rows", far, "--request-id", "a", "--defer")
    assert (again["repeated"], again["due"]) == (True, deferred["due"])
    assert len((directory / "journal.jsonl").read_bytes().splitlines()) == 1
    again = facts_of("unlearn", directory, "--rows", far, "--request-id", "a")
    assert (again["repeated"], again["due"], again["refreshed"]["expanded"]) == (True, None, True)
    assert facts_of("show", directory)["requests"] == 1
    assert facts_of("unlearn", directory, "--rows", far, "--request-id", "a")["repeated"] is True


def test_rtol_takes_what_it_needs(directory, far, tmp_path):
    exact = shutil.copytree(directory, tmp_path / "exact")
    instant = facts_of("unlearn", directory, "--rows", far, "--rtol", 1, "--defer")
    assert (instant["tier"], instant["due"] is None) == ("order 3", False)
    facts = facts_of("unlearn", exact, "--rows", far, "--rtol", instant["error"] / 10, "--defer")
    assert (facts["tier"], facts["due"]) == ("new expansion", None)
    assert facts["error"] < instant["error"] / 10
    assert L2UL.load(exact).residual() < 1e-6
    before = contents(exact)
    for rtol in ("-1", "nan"):
        assert "rtol must be a number of at least 0" in refused("unlearn", exact, "--rows", 1, "--rtol", rtol)
    l2ul("unlearn", exact, "--rows", 1, "--rtol", "x", code=2)
    assert contents(exact) == before


def test_the_old_refresh_option_works_with_a_warning(directory, far):
    out, err = printed("unlearn", directory, "--rows", far, "--no-refresh", "--json")
    assert json.loads(out)["deferred"] is True
    assert err == "warning: --no-refresh is now --defer\n"
    row = training_rows(directory, 1)[0]
    out, err = printed("unlearn", directory, "--rows", row, "--refresh", "--json")
    assert (json.loads(out)["due"], json.loads(out)["deferred"]) == (None, False)
    assert err == "warning: --refresh has no effect any more: what is due is always done\n"


def test_mistakes_are_one_sentence_and_nothing_changes(path, directory, tmp_path):
    u = L2UL.load(directory)
    first = u.retained().ids()
    foreign = np.setdiff1d(np.arange(3000), first)[0]
    done("unlearn", directory, "--rows", first[0])
    before = contents(directory)
    class_1 = first[u.store.y[first] == 1]
    (tmp_path / "class").write_text(" ".join(str(row) for row in class_1 if row != first[0]))
    (tmp_path / "all").write_text(" ".join(str(row) for row in first[1:]))
    cases = {
        "was forgotten before": f"{first[1]},{first[0]}",
        "does not exist": "3000",
        "is not a training row": str(foreign),
        "is named twice": f"{first[1]},{first[1]}",
        "is not a row number or a range": f"{first[1]},abc",
        "is empty or too long": "9-3",
        "no row was named": " , ",
    }
    for options in ((), ("--defer", "--request-id", "a", "--rtol", 1e-3)):
        for match, rows in cases.items():
            assert match in refused("unlearn", directory, "--rows", rows, *options)
        for name, match in (("class", "takes out all rows of class"), ("all", "takes out all rows: delete")):
            assert match in refused("unlearn", directory, "--rows-file", tmp_path / name, *options)
    assert "is not a row number" in refused("unlearn", directory, "--rows=-5")
    assert "is not a row number" in refused("unlearn", directory, "--rows", "²")
    assert "whole numbers" in refused("unlearn", directory, "--rows", "9999999999999999999999")
    assert "does not exist" in refused("unlearn", directory, "--rows", "9999999999999999999")
    assert "either --rows or --rows-file" in refused("unlearn", directory)
    assert "either --rows or --rows-file" in refused("unlearn", directory, "--rows", "1", "--rows-file", path)
    assert "cannot read" in refused("unlearn", directory, "--rows-file", tmp_path / "missing")
    assert "cannot read" in refused("unlearn", directory, "--rows-file", path)
    assert contents(directory) == before
    l2ul("unlearn", directory, "--rows", 1, "--threads", 0, code=2)
    assert "threads" in refused("unlearn", directory, "--rows", 1, "--threads", 100_000)
    assert contents(directory) == before


def test_a_directory_of_something_else_stays_as_it_is(tmp_path):
    (tmp_path / "mine").mkdir()
    for place in ("nowhere", "mine"):
        for command in (("unlearn", "--rows", "1"), ("unlearn", "--finish"), ("show",), ("reconstruct",)):
            assert "there is no artifact" in refused(command[0], tmp_path / place, *command[1:])
    assert not list((tmp_path / "mine").iterdir())
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_what_cannot_be_finished_changes_nothing(directory, far, monkeypatch):
    before = contents(directory)

    def fail(self, *args, **options):
        raise UserError("the model did not converge")

    with monkeypatch.context() as patch:
        patch.setattr(L2UL, "refresh", fail)
        text = refused("unlearn", directory, "--rows", far)
        assert text == (
            f"error: the model did not converge; {directory} is as it was before: --defer leaves for later what cannot "
            "be done now"
        )
        assert contents(directory) == before
        done("unlearn", directory, "--rows", far, "--defer")
        before = contents(directory)
        text = refused("unlearn", directory, "--finish")
        assert text == f"error: the model did not converge; {directory} is as it was before"
        assert contents(directory) == before
    done("unlearn", directory, "--finish")
    assert facts_of("show", directory)["due"] is None


def test_without_rows_a_request_is_one_sentence(tmp_path):
    X, y = logistic_data(600, 5)
    L2UL("lr", store_rows=False).fit(X, y).save(tmp_path / "u")
    before = contents(tmp_path / "u")
    assert "keeps no rows (store_rows=False)" in refused("unlearn", tmp_path / "u", "--rows", 1)
    assert "keeps no rows (store_rows=False)" in refused("unlearn", tmp_path / "u", "--rows", 1, "--rtol", 1)
    assert "--check has none to look at" in refused("unlearn", tmp_path / "u", "--finish", "--check")
    assert done("unlearn", tmp_path / "u", "--finish") == "nothing is due\n"
    assert contents(tmp_path / "u") == before
    assert facts_of("show", tmp_path / "u")["data"]["kind"] == "none"


def test_a_moved_file_is_named_with_an_option(path, directory, tmp_path):
    moved = shutil.copy(path, tmp_path / "moved.h5")
    assert facts_of("show", directory)["data"]["paths"] == [path]
    rows = training_rows(directory, 2)
    done("unlearn", directory, "--rows", rows[0], "--data", moved)
    assert facts_of("show", directory)["data"]["paths"] == [str(moved)]
    (tmp_path / "moved.h5").unlink()
    before = contents(directory)
    assert "say where it is with --data" in refused("unlearn", directory, "--rows", rows[1])
    other = facts_of("data", "make", "magic", "--rows", 2000, "--data-dir", tmp_path / "other")["path"]
    assert "is not the file this model was fitted on" in refused("unlearn", directory, "--rows", 1, "--data", other)
    assert contents(directory) == before
    done("show", directory)  # what was forgotten is known without the data
    done("show", directory, "--data", path)


def test_damage_is_one_sentence(directory, few):
    done("unlearn", directory, "--rows", few[0], "--defer")
    for name, match in (("journal.jsonl", "of .*journal.jsonl"), ("ledger.jsonl", "ledger.jsonl is not as it was")):
        good = (directory / name).read_bytes()
        (directory / name).write_bytes(good.replace(b'"n":', b'"m":') + good)
        for command in (("unlearn", "--rows", few[1]), ("show",)):
            assert re.search(match, refused(command[0], directory, *command[1:]))
        (directory / name).write_bytes(good)
    done("show", directory)


def test_directories_of_an_earlier_version(tmp_path):
    old = shutil.copytree(FIXTURES / "lr-file", tmp_path / "u")
    shown = facts_of("show", old)
    assert (shown["head"], shown["order"], shown["due"], shown["ledger"]) == ("expansion", None, None, "intact")
    data = ("--data", FIXTURES / "rows.h5")
    with pytest.warns(UserWarning, match="earlier version"):
        rows = L2UL.load(old, data[1]).retained().ids()
    out, err = printed("unlearn", old, "--rows", rows[0], *data, "--json")
    (text,) = json.loads(out)["warnings"]
    assert "was saved by an earlier version: its model was trained again" in text
    assert err == f"warning: {text}\n"
    after = facts_of("show", old)
    assert (after["order"], after["forgotten"]) == (3, shown["forgotten"] + 1)
    refused_one = shutil.copytree(FIXTURES / "lr-direct", tmp_path / "direct")
    before = contents(refused_one)
    assert facts_of("show", refused_one)["head"] == "paper"
    text = refused("unlearn", refused_one, "--rows", 1)
    assert "was saved by an earlier version, and what it keeps to unlearn from cannot be taken over: fit again" in text
    assert contents(refused_one) == before


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


# Reconstruct ---------------------------------------------------------------------------------------------------------


def test_reconstruct_says_what_is_due_and_where_the_row_is_safe(copy_of, tmp_path):
    directory = copy_of("learned")
    before = shutil.copytree(directory, tmp_path / "before")
    done("unlearn", directory, "--rows", training_rows(directory, 1)[0], "--defer")
    kept = contents(directory)
    found = facts_of("reconstruct", directory)
    assert found["due"] == f"the directory is not finished: {facts_of('show', directory)['due']}"
    out = done("reconstruct", directory)
    assert f"due: what forgotten rows left here goes with `l2ul unlearn {directory} --finish`" in out
    assert contents(directory) == kept
    done("unlearn", directory, "--finish")
    found = facts_of("reconstruct", directory, "--before", before)
    assert (found["due"], found["leaks"]) == (None, False)
    assert found["best"] is None or found["best"]["error"] >= 0.5 * found["chance"]
    assert {"row", "inherent", "chance"} <= {a["kind"] for a in found["attacks"]}


def test_reconstruct_takes_rows_that_are_not_kept_from_arrays(tmp_path):
    X, y = logistic_data(600, 5, dtype=np.float64)
    weights = np.random.default_rng(0).uniform(0.5, 2, 600)
    for name, given in (("plain", {}), ("weighted", {"weights": weights})):
        u = L2UL("lr", store_rows=False).fit(X, y, given.get("weights"))
        u.unlearn([5], X[[5]], y[[5]])
        u.save(tmp_path / name, defer=True)
        np.savez(tmp_path / "rows.npz", X=X, y=y, **given)
        np.savez(tmp_path / "truth.npz", X=X[5], y=y[5])
        files = ("--data", tmp_path / "rows.npz", "--truth-file", tmp_path / "truth.npz")
        found = facts_of("reconstruct", tmp_path / name, *files)
        assert found["chance"] is not None
        assert any(a["kind"] == "row" and a["used"] for a in found["attacks"])


def test_mistakes_of_reconstruct(directory, few, tmp_path):
    assert "no row was forgotten" in refused("reconstruct", directory)
    done("unlearn", directory, "--rows", few[0])
    before = contents(directory)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "text.npz").write_text("1,2,3")
    np.savez(tmp_path / "other.npz", X=np.ones(10))
    np.savez(tmp_path / "class.npz", X=np.ones(10), y=7)
    (tmp_path / "empty.csv").write_text("\n")
    (tmp_path / "short.csv").write_text("1,2,1\n")
    (tmp_path / "ragged.csv").write_text("1,2,0\n1,0\n")
    (tmp_path / "words.csv").write_text("1,2,x,1\n")
    npz = "must be an npz file with arrays X, y"
    for name, match in {
        **dict.fromkeys(("broken.npz", "text.npz", "other.npz", "missing.npz"), npz),
        **dict.fromkeys(("empty.csv", "short.csv"), "rows of 10 finite features"),
        **dict.fromkeys(("ragged.csv", "words.csv", "missing.csv"), "the label last"),
        "class.npz": "not one of the classes",
    }.items():
        for option in ("--truth-file", "--candidates-file"):
            assert match in refused("reconstruct", directory, option, tmp_path / name)
    assert "there is no artifact" in refused("reconstruct", directory, "--before", tmp_path / "nowhere")
    assert "with --data" in refused("reconstruct", directory, "--data", tmp_path / "missing.h5")
    assert contents(directory) == before


# Several processes ---------------------------------------------------------------------------------------------------


def _unlearn(out, *args):
    out.write_text(done("unlearn", *args))


def test_two_processes_with_one_request_id_are_one_erasure(directory, few, tmp_path):
    words = (directory, "--rows", few[0], "--request-id", "a", "--defer", "--json")
    both = [start(_unlearn, tmp_path / name, *words) for name in "ab"]
    for process in both:
        process.join(300)
    found = [json.loads((tmp_path / name).read_text()) for name in "ab"]
    assert sorted(facts["repeated"] for facts in found) == [False, True]
    assert facts_of("show", directory)["forgotten"] == 1
