"""L2UL for networks: the algebra of a request, its verbs, artifact and ledger."""

import numpy as np
import pytest
import torch
from resnet_data import forget, images, same, trained, unseen

from l2ul_fast.errors import DataError, UserError
from l2ul_fast.resnet import unlearner
from l2ul_fast.resnet.features import memorisation, outputs, share_right
from l2ul_fast.resnet.l2ul_head import HeadL2UL
from l2ul_fast.resnet.matching import FLOOR, WEIGHTS, Design, Strength, Targets, least_push, practise
from l2ul_fast.resnet.model import flat
from l2ul_fast.resnet.unlearner import NetworkUnlearner
from l2ul_fast.unlearner.artifact.directory import check_artifact, read_ledger

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def fitted():
    """Tests work on clones."""
    u = NetworkUnlearner().fit(trained().network, images(), unseen())
    u.strength = Strength(np.array([0.01, 0.5]), np.array([30.0, 30.0]))  # whatever practice thinks of the toy
    return u


# The algebra ---------------------------------------------------------------------------------------------------------


def test_the_move_is_the_least_squares_one():
    n, C, q = 30, 4, 6
    design = Design(RNG.normal(size=(n, q)).astype(np.float32))
    ids, stay = np.array([2, 5, 6, 20]), np.setdiff1d(np.arange(n), [2, 5, 6, 20])
    push, importance, w = RNG.normal(size=(4, C)), np.array([1.0, 0.1, 1.0, 0.5]), 3.0
    left = design.gram() - design.gram(ids)
    assert np.allclose(left, design.gram(stay))
    move = design.solve(ids, push, importance, left, w)
    A = design.A.astype(np.float64)
    heavy = np.sqrt(w * importance)[:, None]
    floor = np.sqrt(FLOOR * np.trace(left) / q) * np.eye(q)
    system = np.concatenate([A[stay], A[ids] * heavy, floor])
    goal = np.concatenate([np.zeros((len(stay), C)), push * heavy, np.zeros((q, C))])
    assert np.allclose(move, np.linalg.lstsq(system, goal, rcond=None)[0], atol=1e-8)
    assert np.allclose(design.change(ids, move), A[ids] @ move, atol=1e-4)


def test_the_least_push_puts_the_wanted_class_ahead_and_no_more():
    now, y = RNG.normal(size=(50, 5)), RNG.integers(0, 5, 50)
    wanted = np.where(RNG.random(50) < 0.5, y, RNG.integers(0, 5, 50))
    push, importance = least_push(now, y, wanted)
    other = wanted != y
    after = now + push
    rows = np.flatnonzero(other)
    assert (after[rows, wanted[rows]] - after[rows, y[rows]] >= 0.5 - 1e-12).all()
    assert not push[~other].any()
    assert np.allclose(push.sum(axis=1), 0)
    assert (importance[other] == 1).all()
    assert (importance[~other] < 1).all()
    far = now[rows, wanted[rows]] - now[rows, y[rows]] > 0.5
    assert not push[rows[far]].any()


def test_expected_answers_are_right_as_often_as_retraining_would_be():
    logits, y = RNG.normal(size=(2000, 10)).astype(np.float32), RNG.integers(0, 10, 2000)
    targets = Targets.of(logits, y, rate=0.7, half_rate=0.6)
    ids = np.arange(2000)
    # one row at a time is one of many: together they are right at the rate of unseen rows
    lone = np.concatenate([targets.answers(ids[i : i + 1], y[i : i + 1], 2000) for i in range(0, 2000, 10)])
    assert (lone == y[::10]).mean() == pytest.approx(0.7, abs=0.08)
    half = targets.answers(ids[:1000], y[:1000], 2000)
    assert (half == y[:1000]).mean() == pytest.approx(0.6, abs=0.04)
    assert targets.expected(2000, 1000) == pytest.approx(0.6)
    assert Targets.of(logits, y, 0.5, 0.9).slope == 0  # more rows never hurt


def test_practice_finds_a_weight_that_helps():
    n, q, C = 400, 60, 3
    y = RNG.integers(0, C, n)
    design = Design(RNG.normal(size=(n, q)).astype(np.float32))
    logits = np.eye(C)[y] * 2 + RNG.normal(size=(n, C)) * 0.1  # all right
    targets = Targets.of(RNG.normal(size=(n, C)).astype(np.float32), y, 0.5, 0.5)
    strength, log = practise(design, targets, logits, y, design.gram(), np.arange(n), 0)
    small = log[0]
    assert small["score"] > small["nothing"] + 0.1
    assert strength.at(10 / n) >= WEIGHTS[1]
    flat_ = Strength(np.array([0.1, 0.2]), np.zeros(2))
    assert flat_.at(0.15) == 0.0
    assert Strength(np.array([0.01, 0.1]), np.array([1.0, 100.0])).at(10**-1.5) == pytest.approx(10.0)


# Verbs ---------------------------------------------------------------------------------------------------------------


def test_nothing_to_forget_changes_nothing(fitted):
    u = fitted.clone()
    assert same(u.unlearn([]), trained().network)
    assert u.n == 200


def test_the_head_makes_wrong_what_would_be_wrong_unseen(fitted):
    u = fitted.clone()
    u.strength = Strength(np.array([0.01, 0.5]), np.array([1e5, 1e5]))
    ids = forget()[:5]
    wanted = u.targets.answers(ids, u.y[ids], u.n)
    assert (wanted != u.y[ids]).any()
    network = u.unlearn(ids)
    said = outputs(network, images().x[ids]).logits.argmax(axis=1)
    wrong = wanted != images().y.numpy()[ids]
    assert (said[wrong] != images().y.numpy()[ids][wrong]).all()
    # the trunk is as it was, and the cached algebra is what the network says
    assert torch.equal(flat(network)[: -10 * 33], flat(trained().network)[: -10 * 33])
    stay = np.flatnonzero(~u.gone)
    assert np.allclose(
        outputs(network, images().x[stay]).logits, u.logits[stay] + u.design.change(stay, u.move), atol=1e-3
    )


def test_a_request_leaves_nothing_of_its_rows_and_order_does_not_matter(fitted):
    a, b = fitted.clone(), fitted.clone()
    a.unlearn(forget())
    b.unlearn(forget()[::-1].copy())
    assert same(a.network, b.network)
    assert not same(a.network, fitted.network)
    assert a.n == 200 - len(forget())
    per_row = (a.design.A, a.logits, a.targets.logits, a.y[:, None])
    for kept in per_row:
        assert not kept[forget()].any()
    assert np.allclose(a.left, a.design.gram())
    # the clone changed nothing in the original
    assert fitted.design.A[forget()].any()
    assert fitted.n == 200


def test_bad_requests_are_refused_and_change_nothing(fitted):
    u = fitted.clone()
    u.unlearn([3])
    before = flat(u.network)
    for rows, why in (([3], "before"), ([5, 5], "each once"), ([200], "each once"), ([-1], "each once")):
        with pytest.raises(UserError, match=why):
            u.unlearn(rows)
    with pytest.raises(UserError, match="all rows"):
        u.unlearn(np.flatnonzero(~u.gone))
    assert torch.equal(before, flat(u.network))
    assert u.n == 199


def test_a_saved_unlearner_goes_on_where_it_was(fitted, tmp_path):
    u = fitted.clone()
    u.unlearn(forget()[:4])
    u.save(tmp_path / "a")
    v = NetworkUnlearner.load(tmp_path / "a")
    assert same(u.network, v.network)
    assert np.array_equal(u.predict(images().test_x), v.predict(images().test_x))
    for one in (u, v):
        one.unlearn(forget()[4:])
    assert same(u.network, v.network)
    v.refresh()
    v.save(tmp_path / "a")
    ledger = check_artifact(tmp_path / "a")
    assert [e["action"] for e in ledger.entries] == ["fit", "unlearn", "unlearn", "refresh"]
    assert np.array_equal(ledger.forgotten(), forget())
    u.save(tmp_path / "b")  # another place gets the whole history
    assert len(read_ledger(tmp_path / "b").entries) == 3
    with pytest.raises(DataError, match="changed by someone else"):
        u.save(tmp_path / "b") or NetworkUnlearner.save(_stale(u), tmp_path / "b")


def _stale(u):
    u.generation -= 1
    return u


def test_a_foreign_or_damaged_artifact_is_refused(fitted, tmp_path):
    u = fitted.clone()
    u.save(tmp_path / "a")
    file = next((tmp_path / "a").glob("state-*-network.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        NetworkUnlearner.load(tmp_path / "a")


def test_an_artifact_of_the_removed_scope_is_one_sentence(fitted, tmp_path, monkeypatch):
    fitted.clone().save(tmp_path / "a")
    facts, arrays = unlearner.load_artifact(tmp_path / "a")
    monkeypatch.setattr(unlearner, "load_artifact", lambda path: (facts | {"scope": "subspace"}, arrays))
    with pytest.raises(DataError, match="no longer supported: fit again"):
        NetworkUnlearner.load(tmp_path / "a")


def test_refresh_learns_without_the_forgotten_rows(fitted):
    u = fitted.clone()
    u.unlearn(forget())
    done = u.refresh()
    assert done["margins"] == len(u.targets.margins) == 200 - len(forget())


# The small models' L2UL on the last layer -----------------------------------------------------------------------------


def test_the_influence_head_is_the_small_models_l2ul(tmp_path):
    y = images().y.numpy()
    seen = outputs(trained().network, images().x)
    u = HeadL2UL(dims=5, m=6, s=100, lam=1e-2).fit(trained().network, seen.features, y)
    Z = u.seen(seen.features)
    assert np.allclose(Z.T @ Z / len(Z), np.eye(Z.shape[1]), atol=1e-3)
    assert share_right(u.logits(seen.features), y) > 0.3
    start = u.l2ul.theta.copy()
    u.unlearn(forget())
    exact = u.l2ul.model.fit((np.delete(Z, forget(), axis=0), np.delete(y, forget()).astype(np.uint8))).theta
    assert np.linalg.norm(u.l2ul.theta - exact) < 0.5 * np.linalg.norm(start - exact)
    u.save(tmp_path / "a")
    v = HeadL2UL.load(tmp_path / "a")
    assert np.array_equal(v.predict(images().test_x), u.predict(images().test_x))
    v.unlearn([int(np.setdiff1d(np.arange(200), forget())[0])])
    v.refresh()
    v.save(tmp_path / "a")
    assert len(read_ledger(tmp_path / "a" / "head").forgotten()) == len(forget()) + 1


def test_memorisation_is_the_difference_of_probabilities():
    seen, other, y = np.array([[0.0, 50.0]]), np.array([[0.0, 0.0]]), np.array([1])
    assert memorisation(seen, other, y) == pytest.approx([0.5])
    assert np.array_equal(memorisation(other, other, y), [0.0])
