"""The heads that learn from training pairs (learned, kme, paper): requests, the seal, what is kept, and cells."""

import copy
import gc
import pickle

import numpy as np
import pytest
from unlearners import (
    CURVED,
    DUE,
    HEADS,
    TWO,
    fitted_head,
    head_state,
    is_plain,
    kept,
    logistic_data,
    retrain,
    rho,
    same_contents,
    small,
)

import l2ul_kernels as lk
from l2ul_fast import L2UL
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.heads import kme, learned, paper
from l2ul_fast.unlearner.result import RetrainInstead
from l2ul_fast.unlearner.state import CellState
from l2ul_kernels import Partitions, assign_cells, reference, unpack_cells

pytestmark = pytest.mark.filterwarnings("ignore::l2ul_fast.unlearner.result.RetrainInstead")

KINDS = {"learned lr2": learned.Learned, "kme lr2": kme.Kme, "paper lr2": paper.Paper}
every = pytest.mark.parametrize("name", [name for name in HEADS if " " in name and not name.startswith("mlp")])


def answer_of(u, ids):
    """What the network of a paper head says to a request, without making it."""
    return u.head._forward(u.head.cells.packed, np.asarray(ids), np.empty(u.theta.size))


def seed_row(u):
    return int(u.head.cells.partitions.row_ids[0, 0])


# Requests ------------------------------------------------------------------------------------------------------------


@every
def test_a_request_moves_the_model_and_takes_the_rows_out_of_what_is_counted(name):
    (X, y), u = HEADS[name][1], fitted_head(name)
    before, rows = u.theta, np.arange(40, 90)
    assert u.due is None
    assert u.head.error == 0.0
    answer = u.unlearn(rows)
    assert not np.array_equal(answer.theta, before)
    np.testing.assert_array_equal(u.theta, answer.theta)
    assert answer.n == u.n == len(X) - 50
    assert (answer.due, answer.error) == (DUE, u.head.error)
    assert answer.error > 0
    assert answer.tier == u.head.instant
    np.testing.assert_array_equal(u.class_counts, np.bincount(y[kept(len(X), rows)]))
    if u.head.cells is not None:
        cells = u.head.cells
        assert not cells.packed[rows].any()
        stay = kept(len(X), rows)
        theirs = reference.assign_cells(X[stay], np.asarray(cells.partitions.seeds))
        expected = reference.class_counts(theirs, y[stay].astype(np.uint8), cells.psi, len(u.classes_))
        np.testing.assert_array_equal(cells.counts, expected)


LIMITS = {"learned lr2": 0.1, "learned lr3": 0.15, "learned mlp": 0.25, "kme lr2": 1.0, "kme lr3": 1.0, "kme mlp": 1.0}


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_unlearning_comes_closer_to_retraining_than_doing_nothing(name, limit):
    (X, y), u = HEADS[name][1], fitted_head(name, m=400)
    for rows in (np.arange(30), np.flatnonzero(y == 1)[:60]):
        v = u.copy()
        before, after = v.theta, v.unlearn(rows).theta
        assert rho(after, before, retrain(u, X, y, rows, start=before)) < limit


@pytest.mark.parametrize("name", ["learned lr2", "learned lr3", "learned mlp"])
def test_the_learned_map_is_the_formula(name):
    (X, y), u = HEADS[name][1], fitted_head(name)
    theta, n, model = u.theta, u.n, u.model
    exact = {"rtol": 1e-9, "atol": 1e-12} if HEADS[name][0] == "mlp" else {"rtol": 1e-12, "atol": 1e-14}
    for rows in ([17], np.arange(100, 103), np.arange(200, 280)):  # one, few and many go different ways
        gradient = model.gradient(theta, X[rows], y[rows].astype(np.uint8))
        expected = theta + len(rows) * (u.head.W @ gradient) / (n - len(rows))
        theta, n = u.unlearn(rows).theta, n - len(rows)
        np.testing.assert_allclose(theta, expected, **exact)


@pytest.mark.parametrize("name", ["kme lr2", "kme lr3", "kme mlp"])
def test_the_embedding_map_is_the_formula(name):
    (X, y), u = HEADS[name][1], fitted_head(name)
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
    u = fitted_head("paper lr2")
    for rows in ([7], np.arange(20, 80)):
        peeked = answer_of(u, rows)
        np.testing.assert_allclose(u.unlearn(rows).theta, peeked, rtol=1e-6)
        fresh = lk.DirectForward(u.head.weights, u.head.cells.t, u.head.cells.psi)
        fresh.set_base(u.head.cells.counts.sum(axis=0), u.n, u.theta)
        expected = fresh(u.head.cells.packed, np.array([500]), np.empty(u.theta.size))
        np.testing.assert_allclose(answer_of(u, [500]), expected, rtol=1e-4, atol=1e-6)


# Error and passes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kme lr2", "paper lr2"])
def test_heads_that_are_far_off_say_so(name):
    (X, y), u = HEADS[name][1], fitted_head(name)
    with pytest.warns(RetrainInstead, match="call refresh, or ask with rtol"):
        answer = u.unlearn(np.arange(5))
    assert answer.error > 0.5
    before = fitted_head(name).theta
    true = rho(answer.theta, before, retrain(u, X, y, np.arange(5)))
    assert true < 5 * answer.error


@every
def test_rtol_trains_on_the_rows_that_stay_and_leaves_the_rest_due(name):
    u = fitted_head(name)
    answer = u.unlearn([3, 5], rtol=1e-6)
    assert (answer.error, answer.tier) == (0.0, "trained on the rows that stay")
    assert u.residual() < (1e-5 if is_plain(name) else 1e-9)
    assert u.due == "what was learned on rows that left is still there"
    assert u.unlearn([7], rtol=1e9).tier == u.head.instant
    assert u.due == DUE
    if name.startswith("paper"):  # the network starts from where theta is now
        peeked = answer_of(u, [9])
        np.testing.assert_allclose(u.unlearn([9]).theta, peeked, rtol=1e-6)


# The seal ------------------------------------------------------------------------------------------------------------


@every
def test_the_seal_is_the_optimum_of_the_rows_that_stay(name):
    (X, y), u = HEADS[name][1], fitted_head(name)
    assert u.refresh()["sealed"] is False
    rows = np.arange(25)
    if u.head.cells is not None:
        rows = np.union1d(rows, [seed_row(u)])
    u.unlearn(rows)
    done = u.refresh()
    assert done["sealed"] is True
    assert done["pairs"] >= 30
    assert u.due is None
    assert u.head.error == 0.0
    assert u.residual() < (1e-5 if is_plain(name) else 1e-10 if HEADS[name][0] == "mlp" else 1e-14)
    if not is_plain(name):
        np.testing.assert_allclose(u.theta, retrain(u, X, y, rows), atol=1e-7 if HEADS[name][0] == "mlp" else 1e-9)
    if u.head.cells is not None:
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
    assert u.due == DUE


def test_the_seal_of_an_anchored_model_moves_its_anchor_with_the_rows():
    u = fitted_head("learned mlp")
    anchor, mu = u.model.anchor, u.model.mu
    u.unlearn(np.flatnonzero((X := CURVED[0])[:, 0] > 0.9))
    np.testing.assert_array_equal(u.model.anchor, anchor)  # not at a request
    u.refresh()
    assert u.model.mu == mu
    assert u.residual() < 1e-10
    assert u.n < len(X)


@pytest.mark.parametrize("name", KINDS)
def test_the_seal_equals_a_fit_of_the_rows_that_stay(name):
    """But for the seeds of cells, which stay where they are not of forgotten rows."""
    u, rows = fitted_head(name), np.array([5, 6, 900])
    table = ArrayTable(TWO[0], TWO[1].astype(np.uint8), [0, 1]).without(rows)
    u.unlearn(rows)
    u.refresh()
    fresh = KINDS[name].fit(u.params, table, len(TWO[0]), lambda *what: None).head
    theirs, ours = fresh.arrays(), u.head.arrays()
    np.testing.assert_array_equal(ours["head.theta"], theirs["head.theta"])
    np.testing.assert_array_equal(ours["head.class_counts"], theirs["head.class_counts"])
    if name == "learned lr2":
        np.testing.assert_array_equal(ours["learned.W"], theirs["learned.W"])
        assert u.head.facts() == fresh.facts()


def test_a_seal_that_fails_leaves_everything_as_it_was(monkeypatch):
    u = fitted_head("kme lr2")
    u.unlearn([seed_row(u), 5])
    before = head_state(u)
    monkeypatch.setattr("l2ul_fast.unlearner.pairs.ridge.GRID", np.array([1e30]))
    monkeypatch.setattr(kme.Kme, "of", classmethod(lambda *what: (_ for _ in ()).throw(UserError("no"))))
    with pytest.raises(UserError, match="no"):
        u.refresh()
    same_contents(head_state(u), before)
    assert u.due == DUE


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


# Keep ----------------------------------------------------------------------------------------------------------------


@every
def test_saving_seals(name, tmp_path):
    (X, _), u = HEADS[name][1], fitted_head(name)
    rows = np.array([5, 8])
    if u.head.cells is not None:
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
    same_contents(head_state(v), head_state(u))
    assert v.due is None
    np.testing.assert_array_equal(v.unlearn([50]).theta, u.unlearn([50]).theta)


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
