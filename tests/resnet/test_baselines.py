"""Identities of ADV+IMP, RUM and their parts, at tiny size."""

import numpy as np
import pytest
import torch
from resnet_data import forget, images, same, trained

from l2ul_fast.errors import UserError
from l2ul_fast.resnet.advimp import AdvImp, any_right, attack, importance, targets_of
from l2ul_fast.resnet.data import standardise
from l2ul_fast.resnet.model import copy_of, flat
from l2ul_fast.resnet.rum import Rum, refine
from l2ul_fast.resnet.salun import SalUn, mask_of, saliency
from l2ul_fast.resnet.steps import FineTune, NegGrad, Request

QUICK = {
    "finetune": FineTune(1, 0.02, 64),
    "neggrad": NegGrad(1, 0.02, 64),
    "salun": SalUn(1, 0.02, 64),
    "advimp": AdvImp(1, iterations=2, max_steps=2, rate=0.01),
    "rum": Rum(np.arange(200) / 200.0, (None, FineTune(1, 0.02, 64), SalUn(1, 0.02, 64))),
}


def request(rows=None, seed=0):
    return Request.of(images().x, images().y, forget() if rows is None else rows, seed, augment=False)


@pytest.mark.parametrize("name", QUICK)
def test_nothing_to_forget_changes_nothing(name):
    assert same(QUICK[name].unlearn(trained().network, request([])), trained().network)


@pytest.mark.parametrize("name", QUICK)
def test_order_of_the_request_does_not_matter_and_the_original_stays(name):
    before = copy_of(trained().network)
    a = QUICK[name].unlearn(trained().network, request(forget()))
    b = QUICK[name].unlearn(trained().network, request(forget()[::-1].copy()))
    assert same(a, b)
    assert same(trained().network, before)
    assert not same(a, before)
    assert not a.training


@pytest.mark.parametrize("rows", [[3, 3], [-1], [200], [0.5], [[1, 2]], list(range(200))])
def test_bad_requests_are_refused(rows):
    with pytest.raises(UserError):
        request(rows)


def test_finetuning_never_reads_forgotten_rows():
    spoiled = images().x.clone()
    spoiled[forget()] = 0
    other = Request.of(spoiled, images().y, forget(), 0, False)
    assert same(
        QUICK["finetune"].unlearn(trained().network, request()), QUICK["finetune"].unlearn(trained().network, other)
    )


def test_neggrad_raises_the_loss_of_forgotten_rows_only():
    def loss(network, ids):
        with torch.no_grad():
            logits = network(standardise(images().x[ids]))
        return float(torch.nn.functional.cross_entropy(logits, images().y[ids]))

    found = NegGrad(4, 0.02, 64, keep=0.6).unlearn(trained().network, request())
    plain = NegGrad(4, 0.02, 64, keep=1.0).unlearn(trained().network, request())
    assert loss(found, forget()) > loss(plain, forget()) + 0.1


# SalUn ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_mask_holds_the_most_salient_weights(share):
    score = saliency(trained().network, request())
    mask = torch.cat([m.reshape(-1) for m in mask_of(trained().network, score, share)]).bool()
    assert int(mask.sum()) == round(share * len(score))
    if share < 1:
        assert score[mask].min() >= score[~mask].max()
        least = torch.cat([m.reshape(-1) for m in mask_of(trained().network, score, share, least=True)]).bool()
        assert score[least].max() <= score[~least].min()


def test_a_share_of_no_weights_is_refused():
    with pytest.raises(UserError, match="share"):
        mask_of(trained().network, torch.ones(5), 0.0)


def test_weights_outside_the_mask_stay_bit_for_bit():
    found = SalUn(1, 0.05, 64, share=0.2).unlearn(trained().network, request())
    score = saliency(trained().network, request())
    mask = torch.cat([m.reshape(-1) for m in mask_of(trained().network, score, 0.2)]).bool()
    moved = flat(found) != flat(trained().network)
    assert not moved[~mask].any()
    assert moved[mask].float().mean() > 0.5


# RUM -----------------------------------------------------------------------------------------------------------------


def test_parts_are_disjoint_and_complete_and_ordered():
    score = np.random.default_rng(0).random(200)
    parts = refine(forget(), score, 3)
    assert [len(p) for p in parts] == [3, 3, 3]
    assert sorted(np.concatenate(parts)) == sorted(forget())
    assert score[parts[0]].max() <= score[parts[1]].min()
    assert score[parts[1]].max() <= score[parts[2]].min()


@pytest.mark.parametrize("method", [FineTune(1, 0.02, 64), SalUn(1, 0.02, 64)])
def test_one_part_is_the_plain_method(method):
    rum = Rum(np.zeros(200), (method,))
    assert same(rum.unlearn(trained().network, request()), method.unlearn(trained().network, request()))


def test_three_times_nothing_is_nothing():
    found = Rum(np.arange(200.0), (None, None, None)).unlearn(trained().network, request())
    assert same(found, trained().network)


def test_each_part_retains_all_rows_but_those_gone_before():
    seen = []

    class Spy:
        def unlearn(self, network, part):
            seen.append((part.forget, part.retain))
            return network

    Rum(np.arange(200.0), (Spy(), None, Spy())).unlearn(trained().network, request())
    (first, kept), (last, left) = seen
    assert np.array_equal(first, forget()[:3])
    assert np.array_equal(kept, np.setdiff1d(np.arange(200), forget()[:3]))
    assert np.array_equal(last, forget()[6:])
    assert np.array_equal(left, np.setdiff1d(np.arange(200), forget()))


def test_the_published_mask_is_the_other_one():
    ours = Rum.published(np.arange(200.0), FineTune(1, 0.02, 64), SalUn(1, 0.02, 64))
    theirs = Rum.published(np.arange(200.0), FineTune(1, 0.02, 64), SalUn(1, 0.02, 64), as_published=True)
    assert not ours.methods[2].least_salient
    assert theirs.methods[2].least_salient
    assert not same(ours.unlearn(trained().network, request()), theirs.unlearn(trained().network, request()))
    with pytest.raises(UserError, match="score for each"):
        Rum(np.zeros(5)).unlearn(trained().network, request())


# ADV+IMP -------------------------------------------------------------------------------------------------------------


def test_attacks_reach_their_targets_within_the_radius():
    x, y = images().x[forget()].repeat(4, 1, 1, 1), images().y[forget()].repeat(4)
    with torch.no_grad():
        answers = trained().network(standardise(images().x)).argmax(1)
    # the toy network answers with one class for 2 rows of 200: no image near a row is taken for that one
    common = torch.bincount(answers, minlength=10) >= 10
    target = targets_of(images().y[forget()], 4, 10, 0)
    keep = common[target]
    assert keep.sum() >= 20
    moved = attack(trained().network, x[keep], target[keep], 8.0, 0.5, 60, 0)
    with torch.no_grad():
        said = trained().network(standardise(255 * moved)).argmax(1)
    assert (said == target[keep]).float().mean() >= 0.9
    assert (y[keep] != target[keep]).all()
    away = (moved - x[keep] / 255).flatten(1).norm(dim=1)
    assert away.max() <= 8.0 + 1e-3
    assert moved.min() >= 0
    assert moved.max() <= 1


def test_targets_are_wrong_classes_except_as_published():
    y = torch.arange(10).repeat(50)
    assert (targets_of(y, 2, 10, 0) != y.repeat(2)).all()
    published = targets_of(y, 2, 10, 0, as_published=True)
    assert set(y.repeat(2)[published == y.repeat(2)].tolist()) == {5}


def test_importance_is_scaled_per_tensor_and_positive():
    for i in importance(trained().network, images().x[forget()]):
        assert i.min() >= 0
        assert i.max() <= 1
        assert i.numel() == 1 or i.max() == 1 or not i.any()


def test_an_endless_penalty_freezes_what_is_not_important():
    loose = AdvImp(1, iterations=2, max_steps=5, rate=0.01, strength=0.0).unlearn(trained().network, request())
    frozen = AdvImp(1, iterations=2, max_steps=5, rate=0.01, strength=1e9).unlearn(trained().network, request())
    free = torch.cat([(i == 1).reshape(-1) for i in importance(trained().network, images().x[forget()])])
    moved = (flat(frozen) - flat(trained().network)).abs()
    assert moved[~free].max() < 1e-5
    assert (flat(loose) - flat(trained().network)).abs()[~free].max() > 1e-3


def test_it_stops_at_the_first_step_without_a_right_answer():
    x, y = images().x[forget()], images().y[forget()]
    asked = request()
    found = AdvImp(1, iterations=2, rate=0.05, passes=200).unlearn(trained().network, asked)
    assert asked.facts["reached"]
    assert not any_right(found, x, y)
    steps = asked.facts["steps"]
    assert steps > 0
    before = request()
    almost = AdvImp(1, iterations=2, rate=0.05, passes=200, max_steps=steps - 1).unlearn(trained().network, before)
    assert not before.facts["reached"]
    assert any_right(almost, x, y)


def test_as_published_batch_norm_learns():
    quiet = AdvImp(1, iterations=1, max_steps=1).unlearn(trained().network, request())
    noisy = AdvImp(1, iterations=1, max_steps=1, as_published=True).unlearn(trained().network, request())
    mean = trained().network.stem[1].running_mean
    assert torch.equal(quiet.stem[1].running_mean, mean)
    assert not torch.equal(noisy.stem[1].running_mean, mean)
