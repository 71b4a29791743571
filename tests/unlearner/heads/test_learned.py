"""The heads that learn from training pairs (learned, kme, paper): requests, the seal, what is kept, and cells."""

import copy
import gc
import pickle
import warnings

import numpy as np
import pytest
from unlearners import curved_data, kept, logistic_data, retrain, rho, small

import l2ul_kernels as lk
from l2ul_fast import L2UL
from l2ul_fast.datasets.file.hdf5 import DatasetWriter
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.heads import kme, learned, paper
from l2ul_fast.unlearner.heads.base import CannotLearn
from l2ul_fast.unlearner.pairs import plan as draw
from l2ul_fast.unlearner.result import RetrainInstead
from l2ul_fast.unlearner.state import CellState
from l2ul_kernels import Partitions, assign_cells, reference, unpack_cells

pytestmark = pytest.mark.filterwarnings("ignore::l2ul_fast.unlearner.result.RetrainInstead")

HEADS = {"learned": learned.Learned, "kme": kme.Kme, "paper": paper.Paper}
TWO, THREE, CURVED = logistic_data(), logistic_data(classes=3, seed=1), curved_data()
#: One of each kind of state: (head, model, data, options).
CASES = [
    ("learned", "lr", TWO, {}),
    ("kme", "lr", TWO, {"psi": 8}),
    ("paper", "lr", TWO, {}),
    ("learned", "lr", THREE, {}),
    ("kme", "lr", THREE, {"psi": 5}),
    ("learned", "mlp", CURVED, {}),
    ("kme", "mlp", CURVED, {"psi": 8}),
    ("paper", "mlp", CURVED, {"s": 200}),
    ("learned", "mlp", CURVED, {"anchor_rows": 0, "s": 200}),
]
NAMES = [
    f"{head}-{model}{len(np.unique(data[1]))}{'-plain' if 'anchor_rows' in o else ''}" for head, model, data, o in CASES
]
SEALED = "the parameters are not at the optimum of the rows that stay"
cases = pytest.mark.parametrize("case", CASES, ids=NAMES)


def is_plain(case):
    """Whether the MLP is trained without an anchor."""
    return case[1] == "mlp" and (case[0] == "paper" or "anchor_rows" in case[3])


_fitted = {}


def fitted(case, **options):
    """An unlearner of its own; what is fitted twice is copied."""
    head, model, (X, y), own = case
    key = (head, model, len(np.unique(y)), *sorted((own | options).items()))
    if key not in _fitted:
        _fitted[key] = small(model, head=head, **(own | options)).fit(X, y)
    return _fitted[key].copy()


def state(u):
    """Everything that a head keeps, and what the unlearner keeps of the rows, as bytes."""
    arrays = u.head.arrays() | {"status": u.status, "X": u.store.X, "y": u.store.y}
    return {name: (a.shape, a.dtype.str, a.tobytes()) for name, a in arrays.items()} | {"facts": repr(u.head.facts())}


def same(a, b, but=()):
    differ = [name for name in sorted(set(a) | set(b)) if name not in but and a.get(name) != b.get(name)]
    assert not differ, differ


def answer_of(u, ids):
    """What the network of a paper head says to a request, without making it."""
    return u.head._forward(u.head.cells.packed, np.asarray(ids), np.empty(u.theta.size))


def seed_row(u):
    return int(u.head.cells.partitions.row_ids[0, 0])


# Requests ------------------------------------------------------------------------------------------------------------


@cases
def test_a_request_moves_the_model_and_takes_the_rows_out_of_what_is_counted(case):
    (X, y), u = case[2], fitted(case)
    before, rows = u.theta, np.arange(40, 90)
    assert u.due is None
    assert u.head.error == 0.0
    answer = u.unlearn(rows)
    assert not np.array_equal(answer.theta, before)
    np.testing.assert_array_equal(u.theta, answer.theta)
    assert answer.n == u.n == len(X) - 50
    assert (answer.due, answer.error) == (SEALED, u.head.error)
    assert answer.error > 0
    assert answer.tier == u.head.instant
    np.testing.assert_array_equal(u.class_counts, np.bincount(y[kept(len(X), rows)]))
    if hasattr(u.head, "cells"):
        cells = u.head.cells
        assert not cells.packed[rows].any()
        stay = kept(len(X), rows)
        theirs = reference.assign_cells(X[stay], np.asarray(cells.partitions.seeds))
        expected = reference.class_counts(theirs, y[stay].astype(np.uint8), cells.psi, len(u.classes_))
        np.testing.assert_array_equal(cells.counts, expected)


@pytest.mark.parametrize(("k", "limit"), [(0, 0.1), (3, 0.15), (5, 0.25), (1, 1.0), (4, 1.0), (6, 1.0)])
def test_unlearning_comes_closer_to_retraining_than_doing_nothing(k, limit):
    (X, y), u = CASES[k][2], fitted(CASES[k], m=400)
    for rows in (np.arange(30), np.flatnonzero(y == 1)[:60]):
        v = u.copy()
        before, after = v.theta, v.unlearn(rows).theta
        assert rho(after, before, retrain(u, X, y, rows, start=before)) < limit


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[5]], ids=[NAMES[0], NAMES[3], NAMES[5]])
def test_the_learned_map_is_the_formula(case):
    (X, y), u = case[2], fitted(case)
    theta, n, model = u.theta, u.n, u.model
    exact = {"rtol": 1e-9, "atol": 1e-12} if case[1] == "mlp" else {"rtol": 1e-12, "atol": 1e-14}
    for rows in ([17], np.arange(100, 103), np.arange(200, 280)):  # one, few and many go different ways
        gradient = model.gradient(theta, X[rows], y[rows].astype(np.uint8))
        expected = theta + len(rows) * (u.head.W @ gradient) / (n - len(rows))
        theta, n = u.unlearn(rows).theta, n - len(rows)
        np.testing.assert_allclose(theta, expected, **exact)


@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[6]], ids=[NAMES[1], NAMES[4], NAMES[6]])
def test_the_embedding_map_is_the_formula(case):
    (X, y), u = case[2], fitted(case)
    cells, C = u.head.cells, len(u.classes_)
    own = unpack_cells(cells.packed, cells.t, cells.psi)
    onehot = np.zeros((len(X), C, cells.t, cells.psi))
    for q in range(cells.t):
        onehot[np.arange(len(X)), y, q, own[:, q]] = 1
    onehot, stay, theta = onehot.reshape(len(X), -1), np.arange(len(X)), u.theta
    for rows in ([17], np.arange(100, 103), np.arange(200, 280)):
        n, r = len(stay), len(rows)
        z = np.sqrt(r) * (onehot[rows].mean(axis=0) - onehot[stay].mean(axis=0))
        expected = theta + np.sqrt(r) / (n - r) * (u.head.W.astype(float).T @ z)
        theta, stay = u.unlearn(rows).theta, np.setdiff1d(stay, rows)
        np.testing.assert_allclose(theta, expected, rtol=1e-4, atol=1e-7)


def test_the_paper_s_network_sees_the_rows_that_are_there():
    u = fitted(CASES[2])
    for rows in ([7], np.arange(20, 80)):
        peeked = answer_of(u, rows)
        np.testing.assert_allclose(u.unlearn(rows).theta, peeked, rtol=1e-6)
        fresh = lk.DirectForward(u.head.weights, u.head.cells.t, u.head.cells.psi)
        fresh.set_base(u.head.cells.counts.sum(axis=0), u.n, u.theta)
        expected = fresh(u.head.cells.packed, np.array([500]), np.empty(u.theta.size))
        np.testing.assert_allclose(answer_of(u, [500]), expected, rtol=1e-4, atol=1e-6)


@cases
def test_the_order_of_rows_does_not_show_and_nothing_comes_of_nothing(case):
    a, b = fitted(case), fitted(case)
    before = state(a)
    np.testing.assert_array_equal(a.unlearn([]).theta, b.theta)
    same(state(a), before)
    assert a.due is None
    rows = np.random.default_rng(0).choice(1500, 70, replace=False)
    np.testing.assert_array_equal(a.unlearn(rows).theta, b.unlearn(rows[::-1]).theta)
    same(state(a), state(b))


@cases
def test_refused_requests_change_nothing(case):
    (X, y), u = case[2], fitted(case)
    u.unlearn([3])
    before = state(u)
    C = len(u.classes_)
    for match, rows in [
        ("does not exist", [len(X)]),
        ("forgotten before", [3]),
        ("named twice", [1, 1]),
        ("all rows of class 0", np.setdiff1d(np.flatnonzero(y == 0), [3])),
        ("all rows", kept(len(X), [3])),
    ]:
        with pytest.raises(UserError, match=match):
            u.unlearn(rows)
        same(state(u), before)
        assert u.class_counts.sum() == u.n == len(X) - 1
    with pytest.raises(CannotLearn, match="can only forget"):
        u.learn(X[:3], y[:3])
    same(state(u), before)
    assert len(u.class_counts) == C


def test_an_answer_that_is_not_finite_is_refused():
    X, y = TWO[0].astype(np.float64), TWO[1]
    u = small(head="learned").fit(X, y)
    before = state(u)
    u.head.W[0, 0] = np.inf
    with np.errstate(all="ignore"), pytest.raises(UserError, match="finite"):
        u.unlearn([5])
    u.head.W[0, 0] = 0.0
    same(state(u), before, but=("learned.W",))
    assert u.status[5] == 0
    u.unlearn([5])


# Error and passes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [CASES[0], CASES[5]], ids=[NAMES[0], NAMES[5]])
def test_the_estimated_error_covers_the_true_one(case):
    """Truth at most five times the estimate, and not hundreds of times below it; structured requests included."""
    (X, y), u = case[2], fitted(case, m=300)
    labels, rng = y.astype(np.uint8), np.random.default_rng(3)
    for kind in draw.KINDS:
        shares = []
        for r in (1, 20, 150, 150):
            rows, v = draw.request(kind, r, X, labels, rng), u.copy()
            before, after = v.theta, v.unlearn(rows)
            shares.append(rho(after.theta, before, retrain(u, X, y, rows, start=before)) / after.error)
        assert max(shares) < 5, kind
        assert np.median(shares) > 0.02, kind


def test_the_estimate_is_of_all_that_was_forgotten():
    """A half-space in many small requests is as far off as at once, and says so."""
    (X, y), at_once = TWO, fitted(CASES[0], m=300)
    rows, small_ones = np.argsort(X[:, 0])[:300], at_once.copy()
    before = at_once.theta
    at_once.unlearn(rows)
    for some in np.array_split(rows, 30):
        small_ones.unlearn(some)
    target = retrain(at_once, X, y, rows)
    for u in (at_once, small_ones):
        true = rho(u.theta, before, target)
        assert true / 5 < u.head.error < 50 * true
    assert 0.2 < small_ones.head.error / at_once.head.error < 5


@pytest.mark.parametrize("case", [CASES[1], CASES[2]], ids=[NAMES[1], NAMES[2]])
def test_heads_that_are_far_off_say_so(case):
    (X, y), u = case[2], fitted(case)
    with pytest.warns(RetrainInstead, match="call refresh, or ask with rtol"):
        answer = u.unlearn(np.arange(5))
    assert answer.error > 0.5
    before = fitted(case).theta
    true = rho(answer.theta, before, retrain(u, X, y, np.arange(5)))
    assert true < 5 * answer.error


@cases
def test_rtol_trains_on_the_rows_that_stay_and_leaves_the_rest_due(case):
    u = fitted(case)
    answer = u.unlearn([3, 5], rtol=1e-6)
    assert (answer.error, answer.tier) == (0.0, "trained on the rows that stay")
    assert u.residual() < (1e-5 if is_plain(case) else 1e-9)
    assert u.due == "what was learned on rows that left is still there"
    assert u.unlearn([7], rtol=1e9).tier == u.head.instant
    assert u.due == SEALED
    if case[0] == "paper":  # the network starts from where theta is now
        peeked = answer_of(u, [9])
        np.testing.assert_allclose(u.unlearn([9]).theta, peeked, rtol=1e-6)


# The seal ------------------------------------------------------------------------------------------------------------


@cases
def test_the_seal_is_the_optimum_of_the_rows_that_stay(case):
    (X, y), u = case[2], fitted(case)
    assert u.refresh()["sealed"] is False
    rows = np.arange(25)
    if hasattr(u.head, "cells"):
        rows = np.union1d(rows, [seed_row(u)])
    u.unlearn(rows)
    done = u.refresh()
    assert done["sealed"] is True
    assert done["pairs"] >= 30
    assert u.due is None
    assert u.head.error == 0.0
    assert u.residual() < (1e-5 if is_plain(case) else 1e-10 if case[1] == "mlp" else 1e-14)
    if not is_plain(case):
        np.testing.assert_allclose(u.theta, retrain(u, X, y, rows), atol=1e-7 if case[1] == "mlp" else 1e-9)
    if hasattr(u.head, "cells"):
        cells, stay = u.head.cells, kept(len(X), rows)
        assert done["partitions"] >= 1
        assert not np.isin(cells.partitions.row_ids, rows).any()
        seeds = np.asarray(cells.partitions.seeds)
        np.testing.assert_array_equal(seeds, X[cells.partitions.row_ids])
        theirs = reference.assign_cells(X[stay], seeds)
        np.testing.assert_array_equal(unpack_cells(cells.packed[stay], cells.t, cells.psi), theirs)
        expected = reference.class_counts(theirs, y[stay].astype(np.uint8), cells.psi, len(u.classes_))
        np.testing.assert_array_equal(cells.counts, expected)
    names = set(u.head.arrays())
    assert not {name for name in names if "pair" in name or name.endswith((".Z", ".T"))}
    assert u.refresh()["sealed"] is False
    u.unlearn([100])
    assert u.due == SEALED


@cases
def test_the_seal_does_not_know_what_the_forgotten_rows_were(case):
    """Other rows in their place before the fit change no bit of what is kept afterwards, whatever way it went."""
    head, model, (X, y), own = case
    anchor = np.random.default_rng(0).integers(-9, 10, 21) / 8.0
    options = {"anchor": anchor} if model == "mlp" and not is_plain(case) else {}
    rows = np.array([5, 6, 900])
    a = fitted(case, **{k: tuple(v) for k, v in options.items()}) if options else fitted(case)
    if hasattr(a.head, "cells"):
        rows = np.union1d(rows, [seed_row(a)])
    other_X, other_y = X.copy(), y.copy()
    other_X[rows] = -3 * X[rows][::-1] + 1
    other_y[rows] = (y[rows] + 1) % len(np.unique(y))
    b = small(model, head=head, **(own | options)).fit(other_X, other_y)
    assert not np.array_equal(a.theta, b.theta)
    a.unlearn(rows)
    for row in rows[::-1]:
        b.unlearn([row])
    for u in (a, b):
        u.refresh()
    same(state(a), state(b))


def test_the_seal_of_an_anchored_model_moves_its_anchor_with_the_rows():
    u = fitted(CASES[5])
    anchor, mu = u.model.anchor, u.model.mu
    u.unlearn(np.flatnonzero((X := CURVED[0])[:, 0] > 0.9))
    np.testing.assert_array_equal(u.model.anchor, anchor)  # not at a request
    u.refresh()
    assert u.model.mu == mu
    assert u.residual() < 1e-10
    assert u.n < len(X)


@pytest.mark.parametrize("head", HEADS)
def test_the_seal_equals_a_fit_of_the_rows_that_stay(head):
    """But for the seeds of cells, which stay where they are not of forgotten rows."""
    case = CASES[list(HEADS).index(head)]
    u, rows = fitted(case), np.array([5, 6, 900])
    table = ArrayTable(TWO[0], TWO[1].astype(np.uint8), [0, 1]).without(rows)
    u.unlearn(rows)
    u.refresh()
    fresh = HEADS[head].fit(u.params, table, len(TWO[0]), lambda *what: None).head
    theirs, ours = fresh.arrays(), u.head.arrays()
    np.testing.assert_array_equal(ours["head.theta"], theirs["head.theta"])
    np.testing.assert_array_equal(ours["head.class_counts"], theirs["head.class_counts"])
    if head == "learned":
        np.testing.assert_array_equal(ours["learned.W"], theirs["learned.W"])
        assert u.head.facts() == fresh.facts()


def test_a_seal_that_fails_leaves_everything_as_it_was(monkeypatch):
    u = fitted(CASES[1])
    u.unlearn([seed_row(u), 5])
    before = state(u)
    monkeypatch.setattr("l2ul_fast.unlearner.pairs.ridge.GRID", np.array([1e30]))
    monkeypatch.setattr(kme.Kme, "of", classmethod(lambda *what: (_ for _ in ()).throw(UserError("no"))))
    with pytest.raises(UserError, match="no"):
        u.refresh()
    same(state(u), before)
    assert u.due == SEALED


def test_pairs_shrink_where_fewer_rows_stay_than_were_asked_for():
    X, y = logistic_data(500)
    u = small(head="learned").fit(X, y)
    u.unlearn(np.arange(150))
    assert u.refresh()["pairs"] == 60
    with pytest.raises(UserError, match="leaves 20 rows, and this head needs 40"):
        u.unlearn(np.arange(150, 480))
    assert (u.n, u.due) == (350, None)
    with pytest.raises(UserError, match="s=400 rows cannot be drawn"):
        small(head="learned").fit(X[:300], y[:300])


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[2], CASES[5]], ids=[NAMES[k] for k in (0, 1, 2, 5)])
def test_equal_seeds_give_equal_states_for_every_number_of_threads(case):
    head, model, (X, y), own = case
    states = []
    for threads in (1, 2):
        with lk.threads(threads):
            u = small(model, head=head, **own).fit(X, y)
            u.unlearn([5, 900])
            u.refresh()
            u.unlearn(np.arange(40, 60))
        states.append(state(u))
    same(*states)
    other = small(model, head=head, random_state=1, **own).fit(X, y)
    other.unlearn([5, 900])
    assert not np.array_equal(other.theta, u.theta)


# Keep ----------------------------------------------------------------------------------------------------------------


@cases
def test_copies_pickles_and_saved_ones_answer_the_same(case, tmp_path):
    u = fitted(case)
    u.unlearn([5])
    u.unlearn(np.arange(100, 160))
    u.save(tmp_path / "a", defer=True)
    pickled = pickle.loads(pickle.dumps(u))  # noqa: S301 - our own
    others = [u.copy(), pickled, L2UL.load(tmp_path / "a"), copy.deepcopy(u)]
    before = state(u)
    for v in others:
        same(state(v), before)
        assert (v.due, v.head.error, v.n) == (u.due, u.head.error, u.n)
        v.unlearn([900, 901])
    same(state(u), before)  # theirs are their own
    assert u.due == SEALED
    u.unlearn([900, 901])
    for v in others:
        np.testing.assert_allclose(v.theta, u.theta, rtol=1e-5, atol=1e-7)
        v.refresh()
    u.refresh()
    for v in others:
        same(state(v), state(u))


@cases
def test_saving_seals(case, tmp_path):
    (X, _), u = case[2], fitted(case)
    rows = np.array([5, 8])
    if hasattr(u.head, "cells"):
        rows = np.union1d(rows, [seed_row(u)])
    old = u.theta.tobytes()
    u.unlearn(rows)
    between = u.theta.tobytes()
    u.save(tmp_path / "a")
    assert u.due is None
    for file in (tmp_path / "a").iterdir():
        held = file.read_bytes()
        for bytes_of in [old, between, *(X[row].tobytes() for row in rows)]:
            assert bytes_of not in held, file.name
    v = L2UL.load(tmp_path / "a")
    same(state(v), state(u))
    assert v.due is None
    np.testing.assert_array_equal(v.unlearn([50]).theta, u.unlearn([50]).theta)


@pytest.mark.parametrize("head", HEADS)
def test_rows_that_are_not_kept_are_brought(head, tmp_path):
    X, y = TWO
    case = CASES[list(HEADS).index(head)]
    whole, bare = fitted(case), fitted(case, store_rows=False)
    bare.refresh()  # nothing has left
    bare.save(tmp_path / "sound")
    for rows in (np.array([5]), np.arange(100, 150)):
        np.testing.assert_array_equal(bare.unlearn(rows, X[rows], y[rows]).theta, whole.unlearn(rows).theta)
    assert not [name for name, a in bare.head.arrays().items() if a.shape[:1] == (len(X),) and name != "cells.packed"]
    for act in (bare.refresh, lambda: bare.save(tmp_path / "a")):
        with pytest.raises(UserError, match=r"store_rows=False.* (compute the rows|depend on them).*defer=True"):
            act()
    with pytest.raises(UserError, match="keeps no rows"):
        bare.unlearn([7], X[7:8], y[7:8], rtol=1e-6)
    bare.save(tmp_path / "a", defer=True)
    again = L2UL.load(tmp_path / "a")
    assert again.due == SEALED
    np.testing.assert_array_equal(again.theta, bare.theta)


@pytest.mark.parametrize("head", HEADS)
def test_rows_of_a_file(head, tmp_path):
    X, y = TWO
    with DatasetWriter(tmp_path / "a.h5", name="magic", source="standin:t:0", d=6, classes=[0, 1]) as writer:
        writer.append(X, y)
    u = small(head=head).fit(tmp_path / "a.h5", part="all")
    assert u.n == 2000
    before, rows = u.theta, np.arange(300, 330)
    u.unlearn(rows)
    assert not np.array_equal(u.theta, before)
    u.save(tmp_path / "u")
    assert u.residual() < 1e-14
    v = L2UL.load(tmp_path / "u")
    np.testing.assert_array_equal(v.theta, u.theta)
    np.testing.assert_array_equal(v.unlearn([1]).theta, u.unlearn([1]).theta)


@pytest.mark.parametrize(
    ("case", "match", "change"),
    [
        (0, "head.theta", lambda a, f: a.update({"head.theta": np.full(7, np.nan)})),
        (0, "learned.W", lambda a, f: a.update({"learned.W": np.zeros((7, 6))})),
        (0, "learned.W", lambda a, f: a.update({"learned.W": np.zeros((7, 7), np.float32)})),
        (0, "each class", lambda a, f: a.update({"head.class_counts": np.array([1, 2, 3])})),
        (0, "have left", lambda a, f: f.update({"unsealed": -1})),
        (1, "other rows", lambda a, f: a.update({"head.class_counts": np.array([1, 1999])})),
        (1, "do not fit their counts", lambda a, f: a["cells.counts"].__setitem__((0, 1, 0), 10**6)),
        (1, "do not fit their counts", lambda a, f: a.update({"cells.packed": a["cells.packed"].astype(np.int8)})),
        (1, "seeds", lambda a, f: a.update({"cells.seeds": a["cells.seeds"][:, :, :3]})),
        (4, "do not exist", lambda a, f: a["cells.packed"].__setitem__(3, 255)),
        (2, "paper.W2", lambda a, f: a["paper.W2"].__setitem__((0, 0), np.inf)),
        (2, "paper.W3", lambda a, f: a.update({"paper.W3": a["paper.W3"][:, :3]})),
        (5, "head.anchor", lambda a, f: a.update({"head.anchor": np.zeros(3)})),
    ],
)
def test_a_saved_head_that_makes_no_sense_is_refused(case, match, change):
    u = fitted(CASES[case])
    arrays, facts = {name: a.copy() for name, a in u.head.arrays().items()}, dict(u.head.facts())
    model = u.model if CASES[case][1] == "lr" else u.model.with_anchor(None, None)
    again = type(u.head).from_arrays(model, facts, arrays)
    np.testing.assert_array_equal(again.theta, u.theta)
    change(arrays, facts)
    with pytest.raises(ValueError, match=match):
        type(u.head).from_arrays(model, facts, arrays)


def test_old_names_warn_and_work():
    X, y = TWO
    with pytest.warns(DeprecationWarning, match='head="paper"'):
        direct = small(head="direct")
    with pytest.warns(DeprecationWarning, match='head="learned"'):
        purely = small(prior="none")
    with pytest.warns(DeprecationWarning, match='head="learned"'):
        both = small(head="influence", prior="none")
    assert (direct.params["head"], purely.params["head"], both.params["head"]) == ("paper", "learned", "learned")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        u = purely.fit(X, y)
        np.testing.assert_array_equal(u.unlearn([3]).theta, fitted(CASES[0]).unlearn([3]).theta)


def test_bad_options_are_one_sentence():
    X, y = TWO
    for match, options in [
        ("taught nothing", {"head": "learned", "m": 1}),
        ("at least 10", {"head": "paper", "m": 9}),
        ("psi=3000 seeds", {"head": "kme", "psi": 3000}),
        ('penalty="mean" only', {"head": "kme", "penalty": "sum"}),
        ("weights", {"head": "learned", "weights": np.ones(2000)}),
        ("pairs of s=3000", {"head": "learned", "s": 3000}),
    ]:
        weights = options.pop("weights", None)
        with pytest.raises(UserError, match=match):
            small(**options).fit(X, y, weights)
    with pytest.raises(UserError, match="anchor_rows must be 0 or from 20 to 1500"):
        small("mlp", head="learned", anchor_rows=5).fit(*CURVED)
    assert small(head="kme").params["psi"] == 64
    assert small(head="paper").params["psi"] == 4


# Cells ---------------------------------------------------------------------------------------------------------------


def cell_state(seed=0, n=600, d=4, t=7, psi=5, C=3):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n, d)).astype(np.float32), rng.integers(0, C, n).astype(np.uint8)
    return X, y, ArrayTable(X, y, list(range(C))), CellState.build(ArrayTable(X, y, list(range(C))), n, t, psi, 0)


def test_cells_come_and_go_in_any_order():
    X, y, _, whole = cell_state()
    state, ids, extra = CellState.empty(whole.partitions, 600, 3), np.random.default_rng(1).permutation(600), [3, 4, 5]
    for mine in (ids[:250], ids[250:]):
        state.add(X[mine], y[mine], mine)
    state.revert(y[ids[:10]], ids[:10])
    state.add(X[ids[:10]], y[ids[:10]], ids[:10])
    np.testing.assert_array_equal(state.counts, whole.counts)
    np.testing.assert_array_equal(state.packed, whole.packed)
    np.testing.assert_array_equal(whole.class_counts, np.bincount(y))
    whole.revert(y[extra], np.array(extra))
    cells = reference.assign_cells(np.delete(X, extra, axis=0), np.asarray(whole.partitions.seeds))
    np.testing.assert_array_equal(whole.counts, reference.class_counts(cells, np.delete(y, extra), 5, 3))
    assert not whole.packed[extra].any()


def test_replaced_seeds_are_rows_that_stay():
    X, y, table, state = cell_state()
    gone = np.unique(np.asarray(state.partitions.row_ids)[:3, 0])
    before, left = state.copy(), table.without(gone)
    state.revert(y[gone], gone)
    changed = state.seeds_among(gone)
    assert state.replace_seeds(gone, left, np.random.default_rng(0)) == changed.size >= 3
    assert not np.isin(state.partitions.row_ids, gone).any()
    seeds = np.asarray(state.partitions.seeds)
    np.testing.assert_array_equal(seeds, X[state.partitions.row_ids])
    untouched = np.setdiff1d(np.arange(7), changed)
    np.testing.assert_array_equal(seeds[untouched], np.asarray(before.partitions.seeds)[untouched])
    cells = reference.assign_cells(np.delete(X, gone, axis=0), seeds)
    np.testing.assert_array_equal(unpack_cells(state.packed, 7, 5)[left.ids()], cells)
    np.testing.assert_array_equal(state.counts, reference.class_counts(cells, np.delete(y, gone), 5, 3))
    assert all(len(set(row)) == 5 for row in np.asarray(state.partitions.row_ids))
    with pytest.raises(UserError, match="too few for partitions of psi=5"):
        state.replace_seeds(np.arange(598), table.without(np.arange(598)), np.random.default_rng(0))


def test_copied_cells_hold_no_address_of_the_original():
    """What the kernels read of seeds is found by address: a copy that kept it would read memory that is gone."""
    X, _, _, state = cell_state()
    expected = assign_cells(X, state.partitions)  # what the kernels need is there now
    copies = [copy.deepcopy(state), pickle.loads(pickle.dumps(state))]  # noqa: S301 - our own
    for other in copies:
        assert not other.partitions._packed
    del state
    gc.collect()
    filler = [np.full(400, np.nan) for _ in range(200)]
    for other in copies:
        np.testing.assert_array_equal(assign_cells(X, other.partitions), expected)
    assert len(filler) == 200
    assert isinstance(copies[0].partitions, Partitions)


def test_saved_cells_round_trip_and_foreign_ones_are_refused():
    _, _, _, state = cell_state()
    again = CellState.from_arrays(state.arrays(), 4)
    np.testing.assert_array_equal(again.packed, state.packed)
    np.testing.assert_array_equal(again.counts, state.counts)
    assert again.packed is not state.packed
    arrays = state.arrays()
    with pytest.raises(ValueError, match="seeds"):
        CellState.from_arrays(arrays, 5)
    with pytest.raises(KeyError):
        CellState.from_arrays({k: v for k, v in arrays.items() if k != "cells.counts"}, 4)
    with pytest.raises((ValueError, DataError)):
        CellState.from_arrays(arrays | {"cells.seeds": np.full_like(arrays["cells.seeds"], np.nan)}, 4)
