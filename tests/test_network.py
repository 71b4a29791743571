"""N_U in torch: what it learns, that it repeats exactly, and when a correction is kept."""

import types

import numpy as np
import pytest
import torch

from l2ul_fast.errors import DataError, UserError
from l2ul_fast.unlearner.network import (
    UnlearnNetwork,
    fit_correction,
    fit_direct,
    train_correction,
    train_direct,
)
from l2ul_fast.unlearner.ridge import RidgeHead
from l2ul_kernels import pack_cells, reference, threads
from l2ul_kernels.forward import CorrectionForward
from l2ul_kernels.threads import thread_limit


def embeddings(rng, m, t=5, psi=4):
    return rng.dirichlet(np.ones(psi) * 20, (m, t)).reshape(m, t * psi).astype(np.float32)


def test_a_direct_head_trained_on_theta_learns_to_give_theta():
    """T6: theta_r := theta. rho on fresh pairs, against what a network that ignores theta would score."""
    rng = np.random.default_rng(0)
    m, fresh = 1500, slice(1500, None)
    mu_D, mu_f, theta = embeddings(rng, 1700, t=2), embeddings(rng, 1700, t=2), rng.normal(size=(1700, 3))
    trained = fit_direct(mu_D[:m], mu_f[:m], theta[:m], theta[:m], epochs=100, lr=2e-3)
    blocks = {"mu_D": mu_D[fresh], "mu_f": mu_f[fresh], "theta": theta[fresh]}
    size = np.linalg.norm(theta[fresh])
    assert np.linalg.norm(trained.network.predict(**blocks) - theta[fresh]) / size <= 1e-2
    blocks["theta"] = theta[fresh][::-1]
    assert np.linalg.norm(trained.network.predict(**blocks) - theta[fresh]) > size


def test_training_repeats_exactly_and_touches_no_global_state():
    rng = np.random.default_rng(1)
    mu_D, mu_f, theta = embeddings(rng, 80), embeddings(rng, 80), rng.normal(size=(80, 4))
    state, before = torch.get_rng_state(), torch.get_num_threads()
    runs, epochs = [], []
    for k in (1, thread_limit()):
        with threads(k):
            runs.append(
                fit_direct(mu_D, mu_f, theta, 2 * theta, seed=5, epochs=4, progress=lambda *e: epochs.append(e))
            )
    other = fit_direct(mu_D, mu_f, theta, 2 * theta, seed=6, epochs=4)
    for name, array in runs[0].weights().items():
        np.testing.assert_array_equal(array, runs[1].weights()[name])
    assert runs[0].curves["heldout"] == runs[1].curves["heldout"] != other.curves["heldout"]
    assert epochs[:4] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == before


def test_training_ends_at_the_best_held_out_epoch():
    rng = np.random.default_rng(2)
    mu_D, mu_f, theta = embeddings(rng, 60), embeddings(rng, 60), rng.normal(size=(60, 4))
    target = rng.normal(size=(60, 4))  # nothing to learn: it only gets worse
    trained = fit_direct(mu_D, mu_f, theta, target, epochs=300, lr=3e-3, patience=10, held_out=0.3)
    losses, best = trained.curves["heldout"], trained.facts["best_epoch"]
    assert losses[best] == min(losses) == trained.facts["heldout_loss"]
    assert trained.facts["epochs"] == best + 10 < 300
    assert trained.curves["train"][-1] < trained.curves["train"][1]
    assert trained.facts["heldout_do_nothing"] > 0


def test_weights_round_trip_and_inputs_are_checked():
    network = UnlearnNetwork({"z": 3, "mu_f_class": 8, "log_ratio": 1}, 3, (16, 8), torch.Generator(), (-5.0, -1.0))
    again = UnlearnNetwork.from_weights(network.weights())
    rng = np.random.default_rng(0)
    blocks = {"z": rng.normal(size=(6, 3)), "mu_f_class": rng.random((6, 8)), "log_ratio": np.linspace(-9, 1, 6)}
    np.testing.assert_array_equal(again.predict(**blocks), network.predict(**blocks))
    beyond = {**blocks, "log_ratio": np.full(6, -5.0)}
    np.testing.assert_array_equal(network.predict(**blocks)[0], network.predict(**beyond)[0])
    assert {name: a.shape for name, a in network.weights().items()} == {
        "W1.z": (3, 16), "W1.mu_f_class": (8, 16), "W1.log_ratio": (1, 16), "W2": (16, 8), "W3": (8, 3), "b1": (16,),
        "b2": (8,), "b3": (3,), "log_range": (2,),
    }  # fmt: skip
    with pytest.raises(DataError, match="inputs are z"):
        network.predict(z=blocks["z"])
    lacking = network.weights()
    del lacking["W2"]
    with pytest.raises(DataError, match="not the weights"):
        UnlearnNetwork.from_weights(lacking)


def test_a_correction_is_kept_only_where_there_is_something_to_correct():
    rng = np.random.default_rng(3)
    m, p = 400, 3
    Z, mu, ratio = 50 * rng.normal(size=(m, p)), embeddings(rng, m), np.log(rng.uniform(0.001, 0.1, m))
    curved = 0.1 * np.abs(Z) + 0.02 * rng.normal(size=(m, p))
    useful = fit_correction(Z, curved, mu, ratio, seed=1)
    assert useful.facts["kept"]
    assert useful.facts["heldout_with"] < 0.5 * useful.facts["heldout_without"]
    # the scaling is inside the weights: raw inputs give raw outputs
    left = curved - useful.network.predict(z=Z, mu_f_class=mu, log_ratio=ratio)
    assert np.linalg.norm(left) < 0.5 * np.linalg.norm(curved)
    assert useful.network.log_range == pytest.approx((ratio.min(), ratio.max()))
    noise = fit_correction(Z, rng.normal(size=(m, p)), mu, ratio, seed=1)
    assert noise.network is None
    assert noise.facts["kept"] is False
    assert noise.facts["heldout_with"] > 0.98 * noise.facts["heldout_without"]
    with pytest.raises(UserError, match="none"):
        noise.weights()
    nothing = fit_correction(Z, np.zeros((m, p)), mu, ratio)
    assert nothing.network is None
    with pytest.raises(UserError, match="at least 10"):
        fit_correction(Z[:9], Z[:9], mu[:9], ratio[:9])


def test_from_pairs_and_stored_cells_to_a_compiled_correction():
    rng = np.random.default_rng(4)
    n, t, m, s, p = 2000, 6, 200, 60, 3
    cells, y = rng.integers(0, 4, (n, t)).astype(np.uint8), rng.integers(0, 2, n).astype(np.uint8)
    rows = np.stack([rng.choice(n, s, replace=False) for _ in range(m)])
    r = rng.integers(1, 7, m)
    theta, Z = rng.normal(size=(m, p)), rng.normal(size=(m, p))
    T = Z @ rng.normal(size=(p, p)) + np.abs(Z)
    pairs = types.SimpleNamespace(
        rows=rows.ravel(), starts=np.arange(m + 1) * s, n_forget=r, n=np.full(m, s), full=False, theta=theta,
        theta_r=theta + T * np.sqrt(r)[:, None] / (s - r)[:, None],
    )  # fmt: skip
    counts = reference.class_counts(cells, y, 4, 2)
    store = types.SimpleNamespace(packed=pack_cells(cells, 4), t=t, psi=4, counts=counts)
    trained = train_direct(pairs, store, seed=1)
    assert trained.facts["epochs"] == 60
    assert trained.network.blocks == {"mu_D": 24, "mu_f": 24, "theta": 3}
    head = RidgeHead.fit(Z, T)
    correction = train_correction(pairs, store, y, 2, head, seed=1)
    assert correction.facts["kept"]
    forward = CorrectionForward(correction.weights(), t, 4)
    forget, ratio = rows[0, : r[0]], float(np.log(r[0] / s))
    mu = reference.class_counts(cells[forget], y[forget], 4, 2).reshape(1, -1) / r[0]
    theirs = correction.network.predict(z=Z[:1], mu_f_class=mu, log_ratio=np.array([ratio]))[0]
    ours = forward(store.packed, forget, y, Z[0], ratio, np.empty(p))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * np.abs(theirs).max())
    pairs.full, pairs.rows, pairs.starts = (
        True,
        np.concatenate([a[:k] for a, k in zip(rows, r, strict=True)]),
        np.r_[0, np.cumsum(r)],
    )
    assert train_direct(pairs, store, seed=1).curves != trained.curves
