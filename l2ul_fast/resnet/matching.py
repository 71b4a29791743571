"""The move of a large network by L2UL: make wrong what would be wrong unseen, keep all other outputs.

The last layer moves, and outputs are linear in it: logits = logits_0 + A move, A being the penultimate features. With
G = sum of A^T A over the rows that stay, one request solves
    (G + w A_f^T V A_f) move = w A_f^T V push,
a system of a few hundred unknowns whatever n and the size of the network. push is the least change of the forgotten
rows' logits that puts a wrong answer above the right class where one is expected, V its importance by row; w is learned
from practice requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.resnet.features import margins

Float = NDArray[np.float64]
Ids = NDArray[np.int64]

#: Weights of the forgotten rows that practice tries; 0 does nothing.
WEIGHTS = np.concatenate([[0.0], np.geomspace(0.1, 1000, 13)])
#: Curvature added everywhere, relative to the mean diagonal of G: the system never becomes singular.
FLOOR = 1e-6
#: How far a wrong answer's logit shall be above the right class's.
MARGIN = 0.5
#: Importance of forgotten rows that keep their answer, beside those that shall change it.
UNCHANGED = 0.1


@dataclass
class Design:
    """A (n, q) float32, a row per image; moves are (q, C)."""

    A: NDArray[np.float32]

    def gram(self, ids: Ids | None = None) -> Float:
        """(q, q) sum of A^T A over these images, all when None."""
        total = np.zeros((self.A.shape[1], self.A.shape[1]))
        n = len(self.A) if ids is None else len(ids)
        for start in range(0, n, 2000):  # a block at a time: never a second copy of A
            now = slice(start, start + 2000)
            part = self.A[now if ids is None else ids[now]].astype(np.float64)
            total += part.T @ part
        return total

    def change(self, ids: Ids | slice, move: Float) -> Float:
        """(k, C) change of these images' logits."""
        return np.asarray(self.A[ids] @ move.astype(np.float32), float)

    def solve(self, ids: Ids, push: Float, importance: Float, left: Float, weight: float) -> Float:
        """The move that brings logits of images ids (k,) nearer to `push` (k, C) more, each with its importance (k,).

        left (q, q) is G of the images that stay.
        """
        part = self.A[ids].astype(np.float64)
        heavy = part * (weight * importance)[:, None]
        system = left + heavy.T @ part
        system[np.diag_indices(len(system))] += FLOOR * np.trace(left) / len(left)
        return np.asarray(np.linalg.solve(system, heavy.T @ push), np.float64)


def least_push(now: NDArray[np.floating], y: NDArray[np.int64], wanted: NDArray[np.int64]) -> tuple[Float, Float]:
    """(push (k, C), importance (k,)): the least change of logits now (k, C) that puts `wanted` (k,) above y (k,).

    A third class may then lead: the answer is wrong all the same. Rows that shall be right (wanted = y) are not pushed.
    """
    k = np.arange(len(y))
    lead = now[k, y] - now[k, wanted]
    half = np.where(wanted != y, np.maximum(lead + MARGIN, 0.0) / 2, 0.0)
    push = np.zeros(now.shape)
    push[k, y] -= half
    push[k, wanted] += half
    return push, np.where(wanted != y, 1.0, UNCHANGED)


@dataclass
class Targets:
    """Expected outputs of retraining for rows it does not see.

    logits (n, C): of networks that did not see the row. They were trained on half the rows, so they are right less
    often than a retrained network; `rate` is what it would reach, and the right class's logit rises until it does.
    rate: accuracy of the original network on rows it has not seen; slope: what one doubling of the rows adds to it.
    """

    logits: NDArray[np.float32]
    margins: Float  #: ascending, of all rows that stay
    rate: float
    slope: float

    @classmethod
    def of(cls, logits: NDArray[np.float32], y: NDArray[np.int64], rate: float, half_rate: float) -> Targets:
        return cls(logits, np.sort(margins(logits, y)), rate, max(0.0, rate - half_rate))

    def expected(self, n: int, r: int) -> float:
        """Accuracy on unseen rows after training on n - r rows."""
        return max(0.0, self.rate - self.slope * float(np.log2(n / (n - r))))

    def answers(self, ids: Ids, y: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        """(k,) what a retrained network is expected to answer for rows ids whose classes are y (k,)."""
        lift = -float(np.quantile(self.margins, 1 - self.expected(n, len(ids))))
        out = self.logits[ids].astype(np.float64)
        out[np.arange(len(ids)), y] += lift
        return np.asarray(out.argmax(axis=1))


@dataclass(frozen=True)
class Strength:
    """The learned weight w of a request by its share r / n: straight lines between the practised shares, in logs."""

    shares: Float
    weights: Float

    def at(self, share: float) -> float:
        if not self.weights.any():
            return 0.0
        logs = np.log(np.maximum(self.weights, WEIGHTS[1] / 10))
        return float(np.exp(np.interp(np.log(share), np.log(self.shares), logs)))


def practise(
    design: Design,
    targets: Targets,
    logits: NDArray[np.floating],
    y: NDArray[np.int64],
    left: Float,
    visible: Ids,
    seed: int,
    repeats: int = 6,
) -> tuple[Strength, list[dict[str, float]]]:
    """Learn w: for forget sets of several sizes, the w whose accuracies come nearest to those expected of retraining.

    Nearness is ToW without its test factor: forgotten rows should be right as often as expected, rows that stay as
    often as before. Returns what was learned, and for each size r, weight, score and the score of doing nothing.
    """
    rng = np.random.default_rng([seed, 8])
    n, found, log = len(visible), [], []
    before = logits[visible].argmax(axis=1) == y[visible]
    sizes = sorted({min(max(2, r), n // 2) for r in np.geomspace(10, max(11, 0.3 * n), 6).astype(int)})
    for r in sizes:
        scores = np.zeros(len(WEIGHTS))
        for _ in range(repeats):
            chosen = rng.permutation(n)[:r]
            ids = np.sort(visible[chosen])
            wanted = targets.answers(ids, y[ids], n)
            hoped = float((wanted == y[ids]).mean())
            push = least_push(logits[ids], y[ids], wanted)
            out = np.zeros(n, bool)
            out[chosen] = True
            kept = float(before[~out].mean())
            rest = left - design.gram(ids)
            for k, weight in enumerate(WEIGHTS):
                right = before
                if weight:
                    move = design.solve(ids, *push, rest, weight)
                    right = (logits[visible] + design.change(visible, move)).argmax(axis=1) == y[visible]
                scores[k] += (1 - abs(right[out].mean() - hoped)) * (1 - abs(right[~out].mean() - kept)) / repeats
        best = int(scores.argmax())
        found.append(WEIGHTS[best])
        log.append({"r": float(r), "weight": found[-1], "score": scores[best], "nothing": scores[0]})
    return Strength(np.array(sizes) / n, np.array(found)), log
