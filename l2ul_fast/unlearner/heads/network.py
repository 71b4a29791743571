"""N_U in torch: the network of the paper's head. Torch is imported only here.

Training runs on one thread, because sums over several threads would depend on their number, and takes all randomness
from its own generator. The compiled forward of the trained weights is l2ul_kernels.request.network.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from l2ul_fast.errors import UserError
from l2ul_fast.unlearner.pairs.features import pair_embeddings
from l2ul_kernels import threads

Progress = Callable[[int, int], None]
HIDDEN = (256, 64)


class UnlearnNetwork(nn.Module):
    """Named input blocks, one behind the other, -> h1 -> h2 -> p with ReLU. blocks: {name: size} in input order."""

    def __init__(
        self,
        blocks: Mapping[str, int],
        p: int,
        hidden: tuple[int, int] = HIDDEN,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.blocks, self.p = dict(blocks), p
        sizes = (sum(self.blocks.values()), *hidden, p)
        shapes = itertools.pairwise(sizes)
        self.first, self.second, self.third = (nn.utils.skip_init(nn.Linear, a, b) for a, b in shapes)
        for layer in (self.first, self.second, self.third):  # torch's own defaults, but from our generator
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, p) from the blocks (batch, inputs), concatenated."""
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))

    def join(self, **blocks: NDArray[Any]) -> torch.Tensor:
        """The input (m, inputs) float32 from named blocks (m, size)."""
        parts = [np.asarray(blocks[name], np.float32).reshape(-1, size) for name, size in self.blocks.items()]
        return torch.from_numpy(np.concatenate(parts, axis=1))

    @torch.no_grad()
    def predict(self, **blocks: NDArray[Any]) -> NDArray[np.float32]:
        """(m, p) for blocks (m, size) each."""
        return self(self.join(**blocks)).numpy()

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Inputs by outputs: "W1.<block>" (size, h1), "b1", "W2" (h1, h2), "b2", "W3" (h2, p), "b3"."""

        def turned(tensor: torch.Tensor) -> NDArray[np.float32]:
            return np.ascontiguousarray(tensor.detach().numpy().T, np.float32).copy()

        parts = torch.split(self.first.weight, list(self.blocks.values()), dim=1)
        out = {f"W1.{name}": turned(part) for name, part in zip(self.blocks, parts, strict=True)}
        layers = {"1": self.first, "2": self.second, "3": self.third}
        out |= {f"W{k}": turned(layer.weight) for k, layer in layers.items() if k != "1"}
        out |= {f"b{k}": turned(layer.bias) for k, layer in layers.items()}
        return out


@dataclass
class Trained:
    """A trained network, its loss curves by epoch (epoch 0 is before training), and what to report about it."""

    network: UnlearnNetwork
    curves: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def fit_direct(
    mu_D: NDArray[Any],
    mu_f: NDArray[Any],
    theta: NDArray[Any],
    theta_r: NDArray[Any],
    *,
    seed: int | None = 0,
    hidden: tuple[int, int] = HIDDEN,
    epochs: int = 60,
    batch: int = 64,
    lr: float = 1e-3,
    held_out: float = 0.1,
    patience: int = 60,
    progress: Progress | None = None,
) -> Trained:
    """The paper's head: raw [mu_D, mu_f (m, t psi), theta (m, p)] -> theta_r (m, p).

    Adam on the pairs that are not held out, mean squared error, cosine schedule; stops after `patience` epochs without
    a new best on the others, and ends at the best one.
    """
    m, p = theta.shape
    if m < 10:
        raise UserError(f"{m} training pairs are too few for a network: make at least 10")
    generator = torch.Generator().manual_seed(int(np.random.default_rng(seed).integers(2**62)))
    loss_of = nn.functional.mse_loss
    with threads(1):
        network = UnlearnNetwork({"mu_D": mu_D.shape[1], "mu_f": mu_f.shape[1], "theta": p}, p, hidden, generator)
        held = torch.zeros(m, dtype=torch.bool)
        held[torch.randperm(m, generator=generator)[: max(2, round(held_out * m))]] = True
        x, target = network.join(mu_D=mu_D, mu_f=mu_f, theta=theta), torch.from_numpy(theta_r.astype(np.float32))
        train, out_x, out_target = torch.nonzero(~held).ravel(), x[held], target[held]
        optimizer = torch.optim.Adam(network.parameters(), lr=lr, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

        def loss_held_out() -> float:
            with torch.no_grad():
                return float(loss_of(network(out_x), out_target))

        losses, held_losses = [float("nan")], [loss_held_out()]
        best, kept = 0, copy.deepcopy(network.state_dict())
        for epoch in range(1, epochs + 1):
            total = 0.0
            for part in torch.split(train[torch.randperm(len(train), generator=generator)], batch):
                optimizer.zero_grad()
                loss = loss_of(network(x[part]), target[part])
                loss.backward()
                optimizer.step()
                total += float(loss.detach()) * len(part)
            schedule.step()
            losses.append(total / len(train))
            held_losses.append(loss_held_out())
            if held_losses[-1] < held_losses[best]:
                best, kept = epoch, copy.deepcopy(network.state_dict())
            if progress is not None:
                progress(epoch, epochs)
            if epoch - best >= patience:
                break
        network.load_state_dict(kept)
    facts = {
        "epochs": len(losses) - 1,
        "best_epoch": best,
        "heldout_loss": held_losses[best],
        "heldout_do_nothing": float(np.mean((theta - theta_r)[held.numpy()] ** 2)),
        "m": m,
    }
    return Trained(network, {"train": losses, "heldout": held_losses}, facts)


def train_direct(pairs: Any, cells: Any, seed: int | None = 0, progress: Progress | None = None) -> Trained:
    """`fit_direct` on pairs (rows, starts, n_forget, theta, theta_r, full) with the stored cells (packed, t, psi)."""
    return fit_direct(*pair_embeddings(cells, pairs), pairs.theta, pairs.theta_r, seed=seed, progress=progress)
