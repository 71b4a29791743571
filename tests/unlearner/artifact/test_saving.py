"""Unlearners on disk: round trips, deferred saves, byte identity, no trace of a forgotten row, crashes everywhere."""

import contextlib
import errno
import filecmp
import itertools
import json
import shutil
import signal
import subprocess
import threading
import tracemalloc

import numpy as np
import pytest
from faults import crash_points, error_points, signal_at, traces
from hypothesis import given, settings
from hypothesis import strategies as st
from unlearners import curved_data, data_for, logistic_data, small

from l2ul_fast.datasets.file.hdf5 import DatasetWriter
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.artifact.directory import check_artifact, load_artifact, read_header, read_view, save_artifact
from l2ul_fast.unlearner.artifact.journal import JOURNAL

LR, MLP = logistic_data(), curved_data()
SQUARED, POISSON = data_for("squared", 600), data_for("poisson", 600)
WEIGHTS = np.random.default_rng(5).exponential(size=2000)
#: Name -> (data, what is fitted). The first ones keep integer sums.
EXPANSIONS = {
    "expansion": (LR, lambda: small().fit(*LR)),
    "order 2": (LR, lambda: small(order=2).fit(*LR)),
    "double": (LR, lambda: small(penalty="sum").fit(LR[0].astype(float), LR[1])),
    "words": (LR, lambda: small().fit(LR[0], np.array(["no", "yes"])[LR[1]])),
    "weights": (LR, lambda: small().fit(*LR, sample_weight=WEIGHTS)),
    "given anchor": (LR, lambda: small(anchor=np.zeros(7)).fit(*LR)),
    "optimum": (LR, lambda: small(anchor="optimum").fit(*LR)),
    "squared": (SQUARED, lambda: small("squared").fit(*SQUARED)),
    "poisson": (POISSON, lambda: small("poisson").fit(*POISSON)),
    "no rows": (LR, lambda: small(store_rows=False).fit(*LR)),
}
THREE = logistic_data(classes=3)
SEALED = {
    "three classes": (THREE, lambda: small().fit(*THREE)),
    "mlp": (MLP, lambda: small("mlp").fit(*MLP)),
    "mlp plain": (MLP, lambda: small("mlp", anchor_rows=0).fit(*MLP)),
    "learned": (LR, lambda: small(head="learned").fit(*LR)),
    "mlp learned": (MLP, lambda: small("mlp", head="learned").fit(*MLP)),
    "kme": (LR, lambda: small(head="kme", psi=4).fit(*LR)),
    "paper": (LR, lambda: small(head="paper").fit(*LR)),
    "mlp paper": (MLP, lambda: small("mlp", head="paper", s=300).fit(*MLP)),
}
KINDS = EXPANSIONS | SEALED
KEPT = [kind for kind in KINDS if kind != "no rows"]
#: None of them moves the optimum out of its cell.
ROWS = [4, 8, 17]

pytestmark = pytest.mark.filterwarnings("ignore::l2ul_fast.unlearner.result.RetrainInstead")


@pytest.fixture(scope="module")
def fitted():
    """fitted(kind): a copy of an unlearner that is fitted once."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = KINDS[kind][1]()
        return made[kind].copy()

    return get


def request(u, kind, rows):
    """The same request for every kind of store."""
    X, y = KINDS[kind][0]
    return u.unlearn(rows, X=X[rows], y=y[rows]) if kind == "no rows" else u.unlearn(rows)


def held(directory):
    """(facts, arrays as bytes) of a directory, but for its times."""
    facts, arrays = load_artifact(directory)
    for key in ("generation", "report"):
        del facts[key]
    return facts, {name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()}


def files(directory):
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != ".lock"}


def sums_file(directory):
    return directory / read_view(directory).files["sums"].file


def write_file(path, data=LR, order=None):
    X, y = data
    order = np.arange(len(X)) if order is None else order
    with DatasetWriter(path, name="magic", source="standin:t:0", d=X.shape[1], classes=[0, 1]) as writer:
        writer.append(X[order] * 3 + 100, y[order])
    return path


def far_rows(u, share=0.3):
    """So many on one side of the boundary that the optimum leaves its cell of the grid."""
    scores = u.store.X @ u.theta[:-1]
    return np.argsort(scores)[: int(share * u.n)]


# Round trips ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_unlearner_answers_as_the_saved_one(tmp_path, fitted, kind):
    u = fitted(kind)
    u.save(tmp_path / "a")
    v = L2UL.load(tmp_path / "a")
    np.testing.assert_array_equal(v.theta, u.theta)
    assert (v.n, v.classes_, v.d, v.params, v.due) == (u.n, u.classes_, u.d, u.params, None)
    np.testing.assert_array_equal(v.status, u.status)
    v.save(tmp_path / "b")
    assert held(tmp_path / "b") == held(tmp_path / "a")
    a, b = request(v, kind, ROWS), request(u, kind, ROWS)
    scale = np.abs(u.theta).max()
    np.testing.assert_allclose(a.theta, b.theta, atol=1e-7 * scale)
    assert (a.n, a.rows.tolist()) == (u.n, ROWS)
    # now one that has forgotten rows, and one more round
    v.save(tmp_path / "a", defer=kind == "no rows")
    w = L2UL.load(tmp_path / "a")
    assert [e["rows"].tolist() for e in w.forget_log] == [ROWS]
    assert [e["n"] for e in w.forget_log] == [w.n]
    assert w.forget_log[0]["time"] == pytest.approx(v.forget_log[0]["time"], abs=0.01)
    with pytest.raises(UserError, match="forgotten before"):
        request(w, kind, [ROWS[0]])
    np.testing.assert_allclose(w.theta, v.theta, atol=1e-12 * scale)
    np.testing.assert_allclose(request(w, kind, [7]).theta, request(v, kind, [7]).theta, atol=1e-7 * scale)
    check_artifact(tmp_path / "a")


@pytest.mark.parametrize("kind", KEPT)
def test_what_is_saved_after_a_request_needs_no_refresh(tmp_path, fitted, kind):
    u = fitted(kind)
    request(u, kind, ROWS)
    u.save(tmp_path / "a")
    assert u.due is None
    assert read_header(tmp_path / "a").facts["due"] is None
    v = L2UL.load(tmp_path / "a")
    assert v.due is None
    v.refresh()
    v.save(tmp_path / "a")
    np.testing.assert_array_equal(v.theta, u.theta)


@pytest.mark.parametrize("kind", KINDS)
def test_a_deferred_save_says_what_is_due_and_a_whole_one_does_it(tmp_path, fitted, kind):
    """Whichever way the state got on disk, it is the same."""
    u = fitted(kind)
    u.save(tmp_path / "a")
    before = read_header(tmp_path / "a")
    whole = u.copy()
    for rows in (ROWS[:1], ROWS[1:]):
        request(u, kind, rows)
        u.save(tmp_path / "a", defer=True)
    assert read_header(tmp_path / "a") == before  # all that changed is in the journal
    assert (tmp_path / "a" / JOURNAL).stat().st_size
    assert not list((tmp_path / "a").glob("*theta*"))
    v = L2UL.load(tmp_path / "a")
    assert v.n == u.n
    np.testing.assert_array_equal(v.status, u.status)
    np.testing.assert_allclose(v.theta, u.theta, rtol=1e-9, atol=1e-9)
    assert [e["rows"].tolist() for e in v.forget_log] == [ROWS[:1], ROWS[1:]]
    assert v.due == u.due
    if kind in EXPANSIONS:
        np.testing.assert_array_equal(v.head.sums, u.head.sums)
    if kind == "no rows":
        return
    np.testing.assert_array_equal(v.retained().ids(), u.retained().ids())
    facts = read_view(tmp_path / "a").facts
    if kind in SEALED or kind == "optimum":
        assert facts["due"]
    v.save(tmp_path / "a")
    assert not (tmp_path / "a" / JOURNAL).exists()
    assert v.due is None
    request(whole, kind, ROWS)
    whole.save(tmp_path / "b")
    (facts, arrays), (other, more) = held(tmp_path / "a"), held(tmp_path / "b")
    assert facts == other
    assert arrays == more
    actions = [e["action"] for e in check_artifact(tmp_path / "a").entries]
    assert actions == ["fit", "unlearn", "unlearn", "refresh"]


def test_a_file_is_found_again_and_recognised(tmp_path):
    path = write_file(tmp_path / "a.h5")
    u = small().fit(path)
    rows = u.retained().ids()[[5, 700]]
    u.unlearn(rows)
    u.save(tmp_path / "u")
    v = L2UL.load(tmp_path / "u")
    assert v.label == "stand-in"
    np.testing.assert_array_equal(v.theta, u.theta)
    assert not list((tmp_path / "u").glob("*-rows.*"))  # the rows stay where they are
    more = v.retained().ids()[[9]]
    np.testing.assert_allclose(v.unlearn(more).theta, u.unlearn(more).theta, atol=1e-12)
    v.save(tmp_path / "u", defer=True)
    assert L2UL.load(tmp_path / "u").n == v.n
    shutil.move(path, tmp_path / "b.h5")
    with pytest.raises(DataError, match=r"a\.h5.*say where it is with --data"):
        L2UL.load(tmp_path / "u")
    moved = L2UL.load(tmp_path / "u", data=tmp_path / "b.h5")
    assert moved.n == v.n
    moved.unlearn(moved.retained().ids()[[20]])
    moved.save(tmp_path / "u", defer=True)
    assert L2UL.load(tmp_path / "u").n == moved.n  # the new place is remembered
    write_file(path, logistic_data(seed=1))
    write_file(tmp_path / "c.h5", order=np.random.default_rng(0).permutation(2000))
    for other in (path, tmp_path / "c.h5"):
        with pytest.raises(DataError, match=r"not the file this model was fitted on"):
            L2UL.load(tmp_path / "u", data=other)


def test_another_directory_gets_the_whole_history(tmp_path, fitted):
    u = fitted("expansion")
    u.save(tmp_path / "a")
    u.unlearn([1, 2])
    u.save(tmp_path / "a", defer=True)
    u.unlearn([3])
    u.refresh()
    u.save(tmp_path / "b", defer=True)  # nothing there that a journal could continue
    assert not (tmp_path / "b" / JOURNAL).exists()
    actions = [e["action"] for e in check_artifact(tmp_path / "b").entries]
    assert actions == ["fit", "unlearn", "unlearn", "refresh"]
    assert check_artifact(tmp_path / "a").forgotten().tolist() == [1, 2]
    assert check_artifact(tmp_path / "b").forgotten().tolist() == [1, 2, 3]
    old, other = L2UL.load(tmp_path / "a"), L2UL.load(tmp_path / "a")
    old.unlearn([10])
    old.save(tmp_path / "a", defer=True)
    other.unlearn([11])
    for defer in (True, False):
        with pytest.raises(DataError, match="changed by someone else"):
            other.save(tmp_path / "a", defer=defer)
    assert check_artifact(tmp_path / "a").forgotten().tolist() == [1, 2, 10]
    fitted("expansion").save(tmp_path / "a")  # a new fit replaces it, the ledger goes on
    assert [e["action"] for e in check_artifact(tmp_path / "a").entries] == ["fit", "unlearn", "unlearn", "fit"]
    assert L2UL.load(tmp_path / "a").forget_log == []
    assert not (tmp_path / "a" / JOURNAL).exists()


def test_a_copy_and_its_original_do_not_write_over_each_other(tmp_path, fitted):
    u = fitted("expansion")
    u.save(tmp_path)
    u.unlearn([1])
    u.save(tmp_path, defer=True)
    v = u.copy()
    v.unlearn([2])
    v.save(tmp_path, defer=True)
    u.unlearn([3])
    with pytest.raises(DataError, match="changed by someone else"):
        u.save(tmp_path, defer=True)
    assert check_artifact(tmp_path).forgotten().tolist() == [1, 2]


def test_saving_again_without_a_change_adds_no_line(tmp_path, fitted):
    u = fitted("expansion")
    u.save(tmp_path)
    u.save(tmp_path)
    generation = u.generation
    u.save(tmp_path, defer=True)
    assert u.generation == generation
    assert len(check_artifact(tmp_path)) == 1
    v = L2UL.load(tmp_path)
    v.save(tmp_path)
    assert len(check_artifact(tmp_path)) == 1


def test_threads_may_save_while_others_unlearn(tmp_path, fitted):
    u = fitted("expansion")
    u.save(tmp_path)
    failed = []

    def forget(first):
        try:
            for row in range(first, first + 60):
                u.unlearn([row])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=forget, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    turn = 0
    while any(thread.is_alive() for thread in threads):
        turn += 1
        u.save(tmp_path, defer=turn % 3 > 0)
        assert L2UL.load(tmp_path).n >= u.n
    for thread in threads:
        thread.join()
    u.save(tmp_path)
    assert not failed
    assert check_artifact(tmp_path).forgotten().tolist() == [*range(60), *range(100, 160)]


# Rows that come ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["expansion", "squared", "no rows", "weights"])
def test_learned_rows_are_saved_and_can_be_forgotten(tmp_path, fitted, kind):
    u = fitted(kind)
    X, y = KINDS[kind][0]
    n = u.n
    u.save(tmp_path)
    more, marks = X[:3] * 0.5, y[:3]
    weights = np.array([1.0, 0.5, 2.0]) if kind == "weights" else None
    ids = u.learn(more, marks, weights)
    u.save(tmp_path, defer=True)
    assert not (tmp_path / JOURNAL).exists()  # the file of rows has grown
    v = L2UL.load(tmp_path)
    assert (v.n, v.status.size) == (n + 3, n + 3)
    given = {"X": more[[1]], "y": marks[[1]]} if kind == "no rows" else {}
    for w in (u, v):
        w.unlearn([int(ids[1])], **given)
    v.save(tmp_path, defer=True)
    w = L2UL.load(tmp_path)
    assert (w.n, w.status.size) == (n + 2, n + 3)
    np.testing.assert_array_equal(w.head.sums, u.head.sums)
    np.testing.assert_array_equal(w.theta, u.head.canonical())
    ledger = check_artifact(tmp_path)
    assert [e["action"] for e in ledger.entries] == ["fit", "learn", "unlearn"]
    assert ledger.entries[1]["rows"] == f"{n}-{n + 2}"
    assert ledger.forgotten().tolist() == [n + 1]


# Names of requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("defer", [False, True])
def test_a_request_id_is_one_erasure(tmp_path, fitted, defer):
    u = fitted("expansion")
    u.save(tmp_path)
    u.unlearn([3])
    u.save(tmp_path, defer=defer, request_id="ticket 17")
    before = files(tmp_path)
    u.save(tmp_path, defer=True, request_id="ticket 17")  # asked again: it was done
    v = L2UL.load(tmp_path)
    v.save(tmp_path, defer=True, request_id="ticket 17")
    assert files(tmp_path) == before
    assert [(e["rows"].tolist(), e["request_id"]) for e in v.forget_log] == [([3], "ticket 17")]
    v.unlearn([4])
    with pytest.raises(UserError, match="'ticket 17' was used before"):
        v.save(tmp_path, defer=defer, request_id="ticket 17")
    assert files(tmp_path) == before
    v.save(tmp_path, defer=defer, request_id="ticket 18")
    assert [e.get("request_id") for e in L2UL.load(tmp_path).forget_log] == ["ticket 17", "ticket 18"]
    check_artifact(tmp_path)


def test_a_bad_request_id_changes_nothing(tmp_path, fitted):
    u = fitted("expansion")
    u.save(tmp_path)
    before = files(tmp_path)
    with pytest.raises(UserError, match="there is no new request"):
        u.save(tmp_path, request_id="17")
    u.unlearn([3])
    for bad in ("", "x" * 101, "a\nb", 17, b"17"):
        with pytest.raises(UserError, match="1 to 100 printable characters"):
            u.save(tmp_path, defer=True, request_id=bad)
    assert files(tmp_path) == before


# Byte identity -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["expansion", "order 2", "weights", "squared"])
@pytest.mark.parametrize("defer", [False, True])
def test_the_file_of_sums_is_that_of_somebody_who_never_had_the_rows(tmp_path, fitted, kind, defer):
    X, y = KINDS[kind][0]
    u = fitted(kind)
    u.save(tmp_path / "a")
    for rows in (ROWS[:1], ROWS[:0:-1]):
        u.unlearn(rows)
        assert kind == "order 2" or u.due is None  # else these rows would prove nothing
        u.save(tmp_path / "a", defer=defer)
    keep = np.setdiff1d(np.arange(len(X)), ROWS)
    options = {"sample_weight": WEIGHTS[keep]} if kind == "weights" else {}
    other = L2UL(u.params["model"], order=u.params["order"]).fit(X[keep], y[keep], **options)
    other.save(tmp_path / "b")
    np.testing.assert_array_equal(u.head.anchor, other.head.anchor)
    subprocess.run(["cmp", sums_file(tmp_path / "a"), sums_file(tmp_path / "b")], check=True)
    if not defer:
        assert filecmp.cmp(*(next(d.glob("*-theta.*")) for d in (tmp_path / "a", tmp_path / "b")), shallow=False)


@pytest.mark.parametrize("kind", ["expansion", "squared", "poisson", "three classes", "mlp"])
def test_another_row_in_place_of_the_forgotten_one_changes_no_byte(tmp_path, kind):
    """But for times, what the ledger knows of the fit, and what that is a digest of."""
    (X, y), model = KINDS[kind][0], kind if kind in ("mlp", "squared", "poisson") else "lr"
    found = []
    for name in "ab":
        rows = X.copy()
        rows[77] = X[77] if name == "a" else X[78] * 0.9
        u = small(model).fit(rows, y)
        u.unlearn([77])
        u.save(tmp_path / name)
        found.append(held(tmp_path / name))
    (facts, arrays), (other, more) = found
    if kind == "mlp":  # the strength of its anchor is chosen on D, see docs/artifact.md
        assert facts["head_facts"].pop("mu") == pytest.approx(other["head_facts"].pop("mu"), rel=0.5)
    assert facts.pop("fit") != other.pop("fit")  # drawn anew
    assert facts == other
    differing = [name for name in arrays if arrays[name] != more[name]]
    assert differing == []


@pytest.mark.parametrize("kind", EXPANSIONS)
def test_no_figure_computed_on_the_rows_is_among_the_facts(tmp_path, fitted, kind):
    u = fitted(kind)
    request(u, kind, ROWS)
    u.save(tmp_path, defer=kind == "no rows")
    facts = read_view(tmp_path).facts
    allowed = {u.params["lam"]} | ({*u.head.facts()["penalty"]} if kind == "double" else set())
    assert {x for x in _numbers(facts) if isinstance(x, float)} <= {0.0, *allowed}
    assert "gradient_norm" not in facts["report"]


def _numbers(value, key=""):
    """All numbers below a value, but for times."""
    if isinstance(value, dict):
        return {f for k, v in value.items() for f in _numbers(v, f"{key}.{k}")}
    if isinstance(value, list):
        return {f for item in value for f in _numbers(item, key)}
    return {value} if isinstance(value, int | float) and "seconds" not in key else set()


# What is due ---------------------------------------------------------------------------------------------------------


def test_a_state_that_is_due_says_so_until_it_is_done(tmp_path, fitted):
    u = fitted("expansion")
    u.save(tmp_path)
    u.unlearn(far_rows(u))
    assert u.due
    u.save(tmp_path, defer=True)
    assert read_view(tmp_path).facts["due"] == u.due
    v = L2UL.load(tmp_path)
    assert v.due == u.due
    np.testing.assert_array_equal(v.head.sums, u.head.sums)
    np.testing.assert_allclose(v.theta, u.theta, atol=1e-9)
    v.save(tmp_path)
    assert v.due is None
    assert read_view(tmp_path).facts["due"] is None
    assert not np.array_equal(v.head.anchor, u.head.anchor)
    keep = v.retained().ids()
    fresh = small().fit(LR[0][keep], LR[1][keep])
    fresh.save(tmp_path.with_name("fresh"))
    subprocess.run(["cmp", sums_file(tmp_path), sums_file(tmp_path.with_name("fresh"))], check=True)


def test_without_rows_what_is_due_stays_due_and_is_one_sentence(tmp_path, fitted):
    u = fitted("no rows")
    u.save(tmp_path)
    rows = np.argsort(LR[0] @ u.theta[:-1])[:600]
    request(u, "no rows", rows)
    assert u.due
    before = files(tmp_path)
    for use in (u.refresh, lambda: u.save(tmp_path), lambda: u.__exit__(None, None, None)):
        with pytest.raises(UserError, match="the rows are not kept") as caught:
            use()
        assert "\n" not in str(caught.value)
    assert files(tmp_path) == before
    u.save(tmp_path, defer=True)
    v = L2UL.load(tmp_path)
    assert v.due == u.due
    assert not v.store.digests[rows].any()


# Damage --------------------------------------------------------------------------------------------------------------


def rewrite(directory, change):
    """Save the artifact again with other facts or arrays: the checksums are right, the content is not."""
    facts, arrays = load_artifact(directory)
    groups = {group: list(record.arrays) for group, record in read_header(directory).files.items() if group != "main"}
    change(facts, arrays)
    groups = {group: [name for name in names if name in arrays] for group, names in groups.items()}
    save_artifact(directory, facts, arrays, groups={group: names for group, names in groups.items() if names})


def put(array, place, value):
    array[place] = value


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("there is no|lacks or garbles params is missing", lambda f, a: f.pop("params")),
        ("lacks or garbles 'expansion.sums'", lambda f, a: a.pop("expansion.sums")),
        ("lacks or garbles", lambda f, a: f["params"].update(nonsense=1)),
        ("psi must be", lambda f, a: f["params"].update(psi=1)),
        ("unknown kind", lambda f, a: f.update(head="other")),
        ("do not add up", lambda f, a: f.update(n=5)),
        ("do not add up", lambda f, a: a.update(forgotten=np.array([3, 4, 5]))),
        ("do not add up", lambda f, a: put(a["y"], 7, 1 - a["y"][7])),
        ("rows that do not exist", lambda f, a: a.update(forgotten=np.array([5000]))),
        ("rows that do not exist", lambda f, a: a.update(forgotten=np.array([-1]))),
        ("foreign", lambda f, a: f.update(rows=10**15)),
        ("X, which has shape", lambda f, a: f.update(d=10**9)),
        ("sums of the expansion", lambda f, a: a.update({"expansion.sums": np.zeros(3, np.int64)})),
        ("sums of the expansion", lambda f, a: put(a["expansion.anchor"], 0, np.nan)),
        ("X, which has shape", lambda f, a: a.update(X=a["X"][:7])),
        ("X, which holds float16", lambda f, a: a.update(X=a["X"].astype(np.float16))),
        ("X, which must hold finite", lambda f, a: put(a["X"], (9, 0), np.nan)),
        ("y, which holds float64", lambda f, a: a.update(y=a["y"].astype(float))),
        ("labels of other classes", lambda f, a: put(a["y"], 0, 9)),
        ("weights, which must be", lambda f, a: put(a["weights"], 0, -1)),
        ("forgotten, which is not ascending", lambda f, a: a.update(forgotten=np.array([3, 3]))),
        ("forgotten, which is not ascending", lambda f, a: a.update(forgotten=np.array([3.0]))),
        ("n is not a whole number", lambda f, a: f.update(n=10**30)),
        ("n is not a whole number", lambda f, a: f.update(n=1999.0)),
        ("classes is not a list", lambda f, a: f.update(classes=list(range(300)))),
        ("kind is not one of", lambda f, a: f["data"].update(kind="url")),
        ("lam must be positive", lambda f, a: f["params"].update(lam=-1)),
        ("head_facts", lambda f, a: f.update(head_facts=[])),
    ],
)
def test_a_state_that_makes_no_sense_is_one_sentence(tmp_path, fitted, match, change):
    """Also for who only checks it; and no memory is taken for what does not exist."""
    directory = tmp_path / "u"
    u = fitted("weights")
    u.unlearn([3])
    u.save(directory)
    rewrite(directory, change)
    _refused(directory, match, check="params is missing" not in match)  # else it is no unlearner's


def _refused(directory, match, check=True):
    for use in (L2UL.load, check_artifact) if check else (L2UL.load,):
        tracemalloc.start()
        with pytest.raises(DataError, match=match) as caught:
            use(directory)
        assert "\n" not in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < 2e7
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "match", "change"),
    [
        ("mlp", "parameters of its model", lambda f, a: f["params"].update(hidden=10**6)),
        ("mlp", "does not fit the model", lambda f, a: a.update({"secant.theta": np.zeros(10**5)})),
        ("mlp", "secant.inverse", lambda f, a: put(a["secant.inverse"], 0, np.nan)),
        ("mlp", "add up", lambda f, a: put(a["secant.counts"], 0, 10**6)),
        ("kme", "cells.seed_rows, which has rows", lambda f, a: put(a["cells.seed_rows"], (0, 0), 10**6)),
        ("kme", "cells of the rows", lambda f, a: put(a["cells.counts"], (0, 0, 0), -1)),
        ("kme", "cells.packed, which must have", lambda f, a: a.update({"cells.packed": a["cells.packed"][:1]})),
        ("kme", "s must be", lambda f, a: f["head_facts"]["options"].update(s="x")),
        ("kme", "kme.W", lambda f, a: put(a["kme.W"], (0, 0), np.inf)),
        ("no rows", "digests", lambda f, a: a.update(digests=a["digests"][:5])),
    ],
)
def test_a_state_of_another_kind_that_makes_no_sense(tmp_path, fitted, kind, match, change):
    fitted(kind).save(tmp_path)
    rewrite(tmp_path, change)
    _refused(tmp_path, match)


def test_packed_cells_that_do_not_exist_are_refused(tmp_path):
    """With a power of two for psi every pattern of bits is a cell."""
    small(head="kme", psi=5).fit(*LR).save(tmp_path)
    rewrite(tmp_path, lambda f, a: put(a["cells.packed"], (7, 0), 255))
    _refused(tmp_path, "cells of the rows, of which some do not exist")


ODD = (None, True, -1, 0, 1, 7, 1.5, 10**9, 10**30, "", "x", "lr", "9-3", [], [1], [[0.5]], {}, {"a": None})


def _forge(data, facts, arrays):
    """Another value in one place of the facts, or of the arrays."""
    if data.draw(st.booleans()):
        at, key = facts, data.draw(st.sampled_from(sorted(facts)))
        while isinstance(at[key], dict) and at[key] and data.draw(st.booleans()):
            at = at[key]
            key = data.draw(st.sampled_from(sorted(at)))
        if data.draw(st.booleans()):
            at[key] = data.draw(st.sampled_from(ODD))
        else:
            del at[key]
        return
    name = data.draw(st.sampled_from(sorted(arrays)))
    array = arrays[name]
    kind = data.draw(st.sampled_from(["value", "dtype", "shape", "gone", "empty"]))
    if kind == "gone":
        del arrays[name]
    elif kind == "dtype":
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(data.draw(st.sampled_from(["f2", "f4", "f8", "i1", "u1", "i8", "u8", "?"])))
    elif kind == "shape" and array.ndim:
        arrays[name] = data.draw(st.sampled_from([array[:-1], array[:1], array[None], array.reshape(-1)]))
    elif kind == "empty" or not array.size:
        arrays[name] = array.reshape(-1)[:0]
    else:
        value = data.draw(
            st.sampled_from([0, 1, -1, 255, 10**6, 2**62] + [1e300, np.nan, -np.inf] * (array.dtype.kind == "f"))
        )
        with np.errstate(all="ignore"):
            arrays[name].flat[data.draw(st.integers(0, array.size - 1))] = np.array(value).astype(array.dtype)


def _refusal(use):
    try:
        use()
    except DataError as error:
        return str(error)
    return None


@pytest.mark.parametrize("examples", [25, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["weights", "three classes", "mlp", "kme", "no rows"])
def test_what_loading_refuses_is_never_called_sound(tmp_path_factory, fitted, kind, examples):
    """And what it takes can be used."""
    start = tmp_path_factory.mktemp("forged") / "u"
    fitted(kind).save(start)

    @settings(max_examples=examples, deadline=None, derandomize=examples < 100)
    @given(st.data())
    def forged(data):
        directory = shutil.copytree(start, tmp_path_factory.mktemp("forged") / "u")
        rewrite(directory, lambda facts, arrays: _forge(data, facts, arrays))
        refused = _refusal(lambda: L2UL.load(directory))
        checked = _refusal(lambda: check_artifact(directory))
        assert "\n" not in f"{refused} {checked}"
        assert refused is None or checked is not None or "params" not in read_header(directory).facts
        if refused is None:
            u = L2UL.load(directory)
            with contextlib.suppress(UserError):  # rows that have left, say
                request(u, kind, [7])
            assert np.isfinite(u.theta).all()
        shutil.rmtree(directory.parent)

    forged()


# No trace ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("defer", [False, True])
def test_nothing_of_a_forgotten_row_is_left(tmp_path, fitted, kind, defer):
    u = fitted(kind)
    if defer and kind in ("kme", "paper", "mlp paper"):
        rows = np.setdiff1d([7, 77, 1234], u.head.cells.partitions.row_ids)  # seeds are replaced when it is finished
    else:
        rows = np.array([7, 77, 523])
    X, theta = u.store.X.copy(), u.theta.copy()
    u.save(tmp_path)
    for row in rows:
        assert traces(tmp_path, X[row])  # the search finds what is there
    u.unlearn([int(rows[0])])  # as one call, and the long way
    u.unlearn(rows[1:])
    u.save(tmp_path, defer=defer)
    for row in rows:
        assert traces(tmp_path, X[row]) == []
    arrays = load_artifact(tmp_path)[1]
    if not defer or kind in EXPANSIONS:
        assert not [name for name, array in arrays.items() if theta.tobytes() in array.tobytes()]
    ids = {"forgotten", "cells.seed_rows"} & set(arrays)
    assert {name for name in ids if np.isin(arrays[name], rows).any()} == (set() if defer else {"forgotten"})
    content = json.loads((tmp_path / "artifact.json").read_text())
    assert 523 not in _numbers(content)
    assert len([e for e in check_artifact(tmp_path).entries if e["action"] == "unlearn"]) == 2


# Crashes -------------------------------------------------------------------------------------------------------------


def save_fitted(directory):
    small().fit(*LR).save(directory)


def forget(directory):
    u = L2UL.load(directory)
    u.unlearn(ROWS)
    u.save(directory)


def forget_deferred(directory):
    u = L2UL.load(directory)
    u.unlearn(ROWS[:1])
    u.unlearn(ROWS[1:])
    u.save(directory, defer=True)


def forget_then_finish(directory):
    """What the command line does."""
    u = L2UL.load(directory)
    u.unlearn(ROWS)
    u.save(directory, defer=True)
    u.save(directory)


def forget_one_by_one(directory):
    u = L2UL.load(directory)
    for row in np.setdiff1d(ROWS, check_artifact(directory).forgotten()):
        u.unlearn([int(row)])
        u.save(directory, defer=True)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """What a directory holds with all rows, and after each way of forgetting some."""
    folder = tmp_path_factory.mktemp("states")
    save_fitted(folder / "old")
    theta = {}
    for action in (forget, forget_deferred, forget_then_finish, forget_one_by_one):
        directory = shutil.copytree(folder / "old", folder / action.__name__)
        action(directory)
        assert read_view(directory).facts["due"] is None
        theta[action.__name__] = L2UL.load(directory).theta
    assert len({t.tobytes() for t in theta.values()}) == 1  # the set of rows decides, not the way they took
    return folder / "old", L2UL.load(folder / "old").theta, theta["forget"]


@pytest.mark.parametrize("power_loss", [0, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("action", [forget, forget_deferred, forget_then_finish, forget_one_by_one])
def test_a_crash_at_any_write_leaves_the_old_or_the_new_state(tmp_path, states, action, power_loss):
    start, old, new = states

    def check(directory, finished):
        u = L2UL.load(directory)
        found = check_artifact(directory).forgotten().tolist()
        assert np.flatnonzero(u.status == 1).tolist() == found
        for row in found:
            assert traces(directory, LR[0][row]) == []
        if finished or found == ROWS:
            assert found == ROWS
            np.testing.assert_array_equal(u.theta, new)
        elif found == []:
            np.testing.assert_array_equal(u.theta, old)
        else:
            assert action is forget_one_by_one
            assert found == ROWS[: len(found)]
        if found != ROWS:  # the next attempt goes through as if nothing had happened
            forget_one_by_one(directory)
        u = L2UL.load(directory)
        u.save(directory)
        assert check_artifact(directory).forgotten().tolist() == ROWS
        np.testing.assert_array_equal(u.theta, new)

    def setup(directory):
        shutil.copytree(start, directory)

    assert crash_points(tmp_path / "work", setup, action, check, power_loss) > 12


@pytest.mark.parametrize("defer", [False, True])
def test_a_full_disk_keeps_the_old_state_and_the_object_goes_on(tmp_path, states, defer):
    made = {}

    def action(directory):
        made["u"] = u = L2UL.load(directory)
        u.unlearn(ROWS)
        u.save(directory, defer=defer)

    def check(directory, raised):
        forgotten = check_artifact(directory).forgotten().tolist()
        u = made["u"]
        if raised is None:
            assert forgotten == ROWS
        else:
            assert isinstance(raised, DataError)
            if "is saved, but" in str(raised):
                assert forgotten == ROWS
            elif "may hold the new state" in str(raised):
                return
            else:
                assert forgotten == []
        u.unlearn([900])
        u.save(directory, defer=True)  # there is space again
        assert check_artifact(directory).forgotten().tolist() == [*ROWS, 900]
        assert L2UL.load(directory).n == 1996
        for row in [*ROWS, 900]:
            assert traces(directory, LR[0][row]) == []

    assert error_points(tmp_path, lambda d: shutil.copytree(states[0], d), action, check) > 10


# At every change ------------------------------------------------------------------------------------------------------


def save_due(directory):
    """A deferred request after which a pass is due."""
    u = small().fit(*LR)
    u.save(directory)
    u.unlearn(far_rows(u))
    u.save(directory, defer=True)


def finish_due(directory):
    L2UL.load(directory).save(directory)


def refresh(directory):
    u = L2UL.load(directory)
    u.refresh()
    u.save(directory)


#: What is there, what is done, rows before and after.
DONE = {
    "fit": (lambda directory: None, save_fitted, None, 2000),
    "unlearn": (save_fitted, forget, 2000, 1997),
    "unlearn deferred": (save_fitted, forget_deferred, 2000, 1997),
    "unlearn and finish": (save_fitted, forget_then_finish, 2000, 1997),
    "finish": (save_due, finish_due, 1400, 1400),
    "refresh": (save_fitted, refresh, 2000, 2000),
}


def _old_or_new(what, directory, finished):
    """Neither lost nor twice; and what was stopped goes through when it is done again."""
    _, action, before, after = DONE[what]
    if (directory / "artifact.json").exists():
        u = L2UL.load(directory)
        assert u.n == after or (u.n == before and not finished)
        assert check_artifact(directory).forgotten().size == 2000 - u.n
    else:
        assert (before, finished) == (None, False)
        u = None
    if u is None or u.n != after or what in ("finish", "refresh"):
        action(directory)
    u = L2UL.load(directory)
    assert u.n == after
    u.save(directory)
    assert check_artifact(directory).forgotten().size == 2000 - after
    for row in ROWS if after == 1997 else ():
        assert traces(directory, LR[0][row]) == []


@pytest.mark.slow
@pytest.mark.parametrize("what", DONE)
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_killed_at_every_change(tmp_path, what, signum):
    setup, action, *_ = DONE[what]
    setup(tmp_path / "start")
    for stop_at in itertools.count(1):
        directory = tmp_path / str(stop_at)
        if (tmp_path / "start").exists():
            shutil.copytree(tmp_path / "start", directory)
        finished = signal_at(action, directory, stop_at, signum)
        _old_or_new(what, directory, finished)
        if finished:
            break
    assert stop_at > 12


@pytest.mark.slow
@pytest.mark.parametrize("what", DONE)
@pytest.mark.parametrize(("error", "signum"), [(errno.ENOSPC, None), (errno.EIO, None), (None, signal.SIGINT)])
def test_an_error_or_ctrl_c_at_every_change(tmp_path, what, error, signum):
    setup, action, *_ = DONE[what]

    def check(directory, raised):
        assert raised is None or isinstance(raised, DataError | KeyboardInterrupt), raised
        _old_or_new(what, directory, raised is None)

    assert error_points(tmp_path, setup, action, check, error, (), signum) > 12


def test_killed(tmp_path, states):
    for what, stop_at, signum in (("unlearn and finish", 9, signal.SIGKILL), ("unlearn deferred", 14, signal.SIGTERM)):
        directory = shutil.copytree(states[0], tmp_path / str(stop_at))
        assert not signal_at(DONE[what][1], directory, stop_at, signum)
        _old_or_new(what, directory, False)


def test_a_clock_that_goes_backwards(tmp_path, fitted, monkeypatch):
    u, times = fitted("expansion"), iter([5e8, 4e8, -10.0])
    u.save(tmp_path)
    monkeypatch.setattr("l2ul_fast.unlearner.l2ul.time.time", lambda: next(times))
    for row in ROWS:
        u.unlearn([row])
        u.save(tmp_path, defer=True, request_id=f"ticket {row}")
    assert [e["time"] for e in L2UL.load(tmp_path).forget_log] == [5e8, 4e8, -10.0]
    assert [e["rows"] for e in check_artifact(tmp_path).entries[1:]] == [str(row) for row in ROWS]
    with pytest.raises(UserError, match="forgotten before"):
        u.unlearn([ROWS[0]])
    u.save(tmp_path, defer=True, request_id=f"ticket {ROWS[0]}")  # was done
    check_artifact(tmp_path)
