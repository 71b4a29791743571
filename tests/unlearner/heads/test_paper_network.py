"""N_U in torch: what it learns, and that it repeats exactly."""

import types

import numpy as np
import pytest
import torch

from l2ul_fast.errors import UserError
from l2ul_fast.unlearner.heads.network import UnlearnNetwork, fit_direct, train_direct
from l2ul_kernels import pack_cells, reference, threads
from l2ul_kernels.request.network import DirectForward
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
    for name, array in runs[0].network.weights().items():
        np.testing.assert_array_equal(array, runs[1].network.weights()[name])
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


def test_a_compiled_forward_gives_the_network_s_numbers():
    network = UnlearnNetwork({"mu_D": 100, "mu_f": 100, "theta": 29}, 29, generator=torch.Generator().manual_seed(0))
    rng = np.random.default_rng(0)
    cells, theta = rng.integers(0, 4, (3000, 25)).astype(np.uint8), rng.normal(size=29)
    counts, forward = reference.cell_counts(cells, 4), DirectForward(network.weights(), 25, 4)
    forward.set_base(counts, 3000, theta)
    for r in (1, 3, 4, 1000):
        ids = rng.choice(3000, r, replace=False)
        mu_f = reference.cell_counts(cells[ids], 4).reshape(1, -1) / r
        theirs = network.predict(mu_D=counts.reshape(1, -1) / 3000, mu_f=mu_f, theta=theta[None])[0]
        np.testing.assert_allclose(forward(pack_cells(cells, 4), ids, np.empty(29)), theirs, rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="at least 10"):
        fit_direct(*(np.zeros((9, 3)) for _ in range(4)))


def test_from_pairs_and_stored_cells_to_a_compiled_network():
    rng = np.random.default_rng(4)
    n, t, m, s, p = 2000, 6, 200, 60, 3
    cells = rng.integers(0, 4, (n, t)).astype(np.uint8)
    rows = np.stack([rng.choice(n, s, replace=False) for _ in range(m)])
    r, theta = rng.integers(1, 7, m), rng.normal(size=(m, p))
    pairs = types.SimpleNamespace(theta=theta, theta_r=2 * theta, full=False)
    pairs.rows, pairs.starts, pairs.n_forget = rows.ravel(), np.arange(m + 1) * s, r
    counts = reference.class_counts(cells, np.zeros(n, np.uint8), 4, 1)
    store = types.SimpleNamespace(packed=pack_cells(cells, 4), t=t, psi=4, counts=counts)
    trained = train_direct(pairs, store, seed=1)
    assert trained.facts["epochs"] == 60
    assert trained.facts["heldout_loss"] < trained.facts["heldout_do_nothing"]
    assert trained.network.blocks == {"mu_D": 24, "mu_f": 24, "theta": 3}
    forward, forget = DirectForward(trained.network.weights(), t, 4), rows[0, : r[0]]
    forward.set_base(counts[0], n, theta[0])
    mu_f = reference.cell_counts(cells[forget], 4).reshape(1, -1) / r[0]
    theirs = trained.network.predict(mu_D=counts.reshape(1, -1) / n, mu_f=mu_f, theta=theta[:1])[0]
    np.testing.assert_allclose(forward(store.packed, forget, np.empty(p)), theirs, rtol=1e-4, atol=1e-5)
    pairs.full, pairs.starts = True, np.r_[0, np.cumsum(r)]
    pairs.rows = np.concatenate([a[:k] for a, k in zip(rows, r, strict=True)])
    assert train_direct(pairs, store, seed=1).curves != trained.curves
