"""N_U in torch: the paper's direct head, and the correction network of the influence head. Torch is imported only here.

Training runs on one thread, because sums over several threads would depend on their number, and takes all randomness
from its own generator. The compiled forward of the trained weights is l2ul_kernels.forward.
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

from l2ul_fast.errors import DataError, UserError
from l2ul_fast.unlearner.features import pair_embeddings
from l2ul_fast.unlearner.ridge import RidgeHead
from l2ul_kernels import threads

Progress = Callable[[int, int], None]
HIDDEN = (256, 64)
#: Standard errors by which the correction must lower the held-out error to be kept.
MARGIN = 1.0


class UnlearnNetwork(nn.Module):
    """Named input blocks, one behind the other, -> h1 -> h2 -> p with ReLU. blocks: {name: size} in input order.

    log_range: the log(r/n) that the correction network has seen; outside it the nearest is used.
    """

    def __init__(
        self,
        blocks: Mapping[str, int],
        p: int,
        hidden: tuple[int, int] = HIDDEN,
        generator: torch.Generator | None = None,
        log_range: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.blocks, self.p, self.log_range = dict(blocks), p, log_range
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
        if set(blocks) != set(self.blocks):
            raise DataError(f"this network's inputs are {', '.join(self.blocks)}, not {', '.join(blocks)}")
        parts = [np.asarray(blocks[name], np.float32).reshape(-1, size) for name, size in self.blocks.items()]
        if self.log_range and "log_ratio" in blocks:
            at = list(self.blocks).index("log_ratio")
            parts[at] = np.clip(parts[at], *self.log_range)
        return torch.from_numpy(np.concatenate(parts, axis=1))

    @torch.no_grad()
    def predict(self, **blocks: NDArray[Any]) -> NDArray[np.float32]:
        """(m, p) for blocks (m, size) each."""
        return self(self.join(**blocks)).numpy()

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Inputs by outputs: "W1.<block>" (size, h1), "b1", "W2" (h1, h2), "b2", "W3" (h2, p), "b3", "log_range"."""

        def turned(tensor: torch.Tensor) -> NDArray[np.float32]:
            return np.ascontiguousarray(tensor.detach().numpy().T, np.float32).copy()

        parts = torch.split(self.first.weight, list(self.blocks.values()), dim=1)
        out = {f"W1.{name}": turned(part) for name, part in zip(self.blocks, parts, strict=True)}
        layers = {"1": self.first, "2": self.second, "3": self.third}
        out |= {f"W{k}": turned(layer.weight) for k, layer in layers.items() if k != "1"}
        out |= {f"b{k}": turned(layer.bias) for k, layer in layers.items()}
        if self.log_range is not None:
            out["log_range"] = np.array(self.log_range, np.float32)
        return out

    @classmethod
    def from_weights(cls, weights: Mapping[str, NDArray[np.float32]]) -> UnlearnNetwork:
        """The network that `weights` described; input blocks in the order they come in."""
        names = [name[3:] for name in weights if name.startswith("W1.")]
        try:
            sizes = (weights["b1"].size, weights["b2"].size)
            low_high = tuple(float(v) for v in weights["log_range"]) if "log_range" in weights else None
            blocks = {name: len(weights[f"W1.{name}"]) for name in names}
            network = cls(blocks, weights["b3"].size, sizes, log_range=low_high)  # type: ignore[arg-type]
            first = np.concatenate([weights[f"W1.{name}"] for name in names])
            with torch.no_grad():
                for k, layer in (("1", network.first), ("2", network.second), ("3", network.third)):
                    matrix = first if k == "1" else weights[f"W{k}"]
                    layer.weight.copy_(torch.from_numpy(matrix.T.copy()))
                    layer.bias.copy_(torch.from_numpy(weights[f"b{k}"].copy()))
        except (KeyError, ValueError, RuntimeError) as error:
            raise DataError(f"these are not the weights of a network: {error}") from None
        return network


@dataclass
class Trained:
    """A trained network (None: not kept), its loss curves by epoch, and what to report about it."""

    network: UnlearnNetwork | None
    curves: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        if self.network is None:
            raise UserError("held-out pairs did not favour the network, so there is none")
        return self.network.weights()


def _train(
    network: UnlearnNetwork, x: torch.Tensor, target: torch.Tensor, held: torch.Tensor, generator: torch.Generator,
    epochs: int, batch: int, lr: float, patience: int, progress: Progress | None,
) -> tuple[dict[str, list[float]], int]:  # fmt: skip
    """Adam on the pairs not `held` (bool), mean squared error, cosine schedule; ends at the best held-out epoch.

    Returns loss curves (epoch 0 is before training) and that epoch. Stops after `patience` epochs without a new best.
    """
    train = torch.nonzero(~held).ravel()
    optimizer = torch.optim.Adam(network.parameters(), lr=lr, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    loss_of = nn.functional.mse_loss
    out_x, out_target = x[held], target[held]

    def held_out() -> float:
        with torch.no_grad():
            return float(loss_of(network(out_x), out_target))

    curves: dict[str, list[float]] = {"train": [float("nan")], "heldout": [held_out()]}
    best, kept = 0, copy.deepcopy(network.state_dict())
    for epoch in range(1, epochs + 1):
        order = train[torch.randperm(len(train), generator=generator)]
        total = 0.0
        for part in torch.split(order, batch):
            optimizer.zero_grad()
            loss = loss_of(network(x[part]), target[part])
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(part)
        schedule.step()
        curves["train"].append(total / len(train))
        curves["heldout"].append(held_out())
        if curves["heldout"][-1] < curves["heldout"][best]:
            best, kept = epoch, copy.deepcopy(network.state_dict())
        if progress is not None:
            progress(epoch, epochs)
        if epoch - best >= patience:
            break
    network.load_state_dict(kept)
    return curves, best


def _hold_out(m: int, share: float, generator: torch.Generator) -> torch.Tensor:
    if m < 10:
        raise UserError(f"{m} training pairs are too few for a network: make at least 10")
    held = torch.zeros(m, dtype=torch.bool)
    held[torch.randperm(m, generator=generator)[: max(2, round(share * m))]] = True
    return held


def fit_direct(
    mu_D: NDArray[Any], mu_f: NDArray[Any], theta: NDArray[Any], theta_r: NDArray[Any], *, seed: int | None = 0,
    hidden: tuple[int, int] = HIDDEN, epochs: int = 60, batch: int = 64, lr: float = 1e-3, held_out: float = 0.1,
    patience: int = 60, progress: Progress | None = None,
) -> Trained:  # fmt: skip
    """The paper's head: raw [mu_D, mu_f (m, t psi), theta (m, p)] -> theta_r (m, p)."""
    m, p = theta.shape
    generator = torch.Generator().manual_seed(_seed(seed))
    with threads(1):
        network = UnlearnNetwork({"mu_D": mu_D.shape[1], "mu_f": mu_f.shape[1], "theta": p}, p, hidden, generator)
        held = _hold_out(m, held_out, generator)
        x, target = network.join(mu_D=mu_D, mu_f=mu_f, theta=theta), torch.from_numpy(theta_r.astype(np.float32))
        curves, best = _train(network, x, target, held, generator, epochs, batch, lr, patience, progress)
    facts = {
        "epochs": len(curves["train"]) - 1, "best_epoch": best, "heldout_loss": curves["heldout"][best],
        "heldout_do_nothing": float(np.mean((theta - theta_r)[held.numpy()] ** 2)), "m": m,
    }  # fmt: skip
    return Trained(network, curves, facts)


def _seed(seed: int | None) -> int:
    return int(np.random.default_rng(seed).integers(2**62))


def train_direct(pairs: Any, cells: Any, *, seed: int | None = 0, progress: Progress | None = None) -> Trained:
    """`fit_direct` on pairs (rows, starts, n_forget, theta, theta_r, full) with the stored cells (packed, t, psi)."""
    whole = cells.counts.sum(axis=0) if pairs.full else None
    mu = pair_embeddings(cells.packed, pairs.rows, pairs.n_forget, cells.t, cells.psi, starts=pairs.starts, whole=whole)
    return fit_direct(mu.mu_D, mu.mu_f, pairs.theta, pairs.theta_r, seed=seed, progress=progress)


def fit_correction(
    Z: NDArray[Any], residual: NDArray[Any], mu_f_class: NDArray[Any], log_ratio: NDArray[Any], *,
    seed: int | None = 0, hidden: tuple[int, int] = HIDDEN, epochs: int = 60, batch: int = 64, lr: float = 1e-3,
    held_out: float = 0.2, patience: int = 15, progress: Progress | None = None,
) -> Trained:  # fmt: skip
    """A network on [z, mu_f per class, log(r/n)] for what the linear head leaves of the targets: residual (m, p).

    Give leave-one-out residuals, or the network would learn what the head has overfitted. It starts at zero and is kept
    only if it lowers the held-out error by more than MARGIN standard errors; facts say both errors (root mean squares
    over pairs), which hold for the raw inputs and outputs.
    """
    m, p = Z.shape
    ratio = np.asarray(log_ratio, np.float64).reshape(m, 1)
    generator = torch.Generator().manual_seed(_seed(seed))
    with threads(1):
        held = _hold_out(m, held_out, generator)
        train = ~held.numpy()
        z_scale = np.sqrt(np.mean(Z[train] ** 2, axis=0))
        z_scale[z_scale == 0] = 1
        centre, spread = ratio[train].mean(), ratio[train].std() or 1.0
        out_scale = float(np.sqrt(np.mean(residual[train] ** 2))) or 1.0
        blocks = {"z": p, "mu_f_class": mu_f_class.shape[1], "log_ratio": 1}
        network = UnlearnNetwork(blocks, p, hidden, generator)
        x = network.join(z=Z / z_scale, mu_f_class=mu_f_class, log_ratio=(ratio - centre) / spread)
        with torch.no_grad():
            network.third.weight.zero_()
            network.third.bias.zero_()
        target = torch.from_numpy((residual / out_scale).astype(np.float32))
        curves, best = _train(network, x, target, held, generator, epochs, batch, lr, patience, progress)
        _fold(network, z_scale, centre, spread, out_scale)
        network.log_range = (float(np.float32(ratio.min())), float(np.float32(ratio.max())))
        left = residual - network.predict(z=Z, mu_f_class=mu_f_class, log_ratio=ratio)
    without, with_it = ((a[~train] ** 2).sum(axis=1) for a in (residual, left))
    gain = without - with_it
    kept = best > 0 and gain.mean() > MARGIN * gain.std(ddof=1) / np.sqrt(len(gain))
    facts = {
        "heldout_without": float(np.sqrt(without.mean())), "heldout_with": float(np.sqrt(with_it.mean())),
        "best_epoch": best, "kept": bool(kept), "m": m,
    }  # fmt: skip
    return Trained(network if kept else None, curves, facts)


@torch.no_grad()
def _fold(network: UnlearnNetwork, z_scale: NDArray[Any], centre: float, spread: float, out_scale: float) -> None:
    """Build the scaling of inputs and outputs into the weights, so that the network takes and gives raw ones."""
    weight, p = network.first.weight, len(z_scale)
    network.first.bias -= weight[:, -1] * (centre / spread)
    weight[:, -1] /= spread
    weight[:, :p] /= torch.from_numpy(z_scale.astype(np.float32))
    network.third.weight *= out_scale
    network.third.bias *= out_scale


def train_correction(
    pairs: Any, cells: Any, y: NDArray[Any], n_classes: int, head: RidgeHead, *, seed: int | None = 0,
    progress: Progress | None = None,
) -> Trained:  # fmt: skip
    """`fit_correction` for a fitted head on pairs (rows, starts, n_forget, n, full); y (N,) labels by row number."""
    mu = pair_embeddings(
        cells.packed, pairs.rows, pairs.n_forget, cells.t, cells.psi, starts=pairs.starts, y=y, n_classes=n_classes,
        whole=cells.counts.sum(axis=0) if pairs.full else None,
    )  # fmt: skip
    assert mu.mu_f_class is not None
    log_ratio = np.log(pairs.n_forget / pairs.n)
    return fit_correction(head.Z, head.loo_residuals(), mu.mu_f_class, log_ratio, seed=seed, progress=progress)
