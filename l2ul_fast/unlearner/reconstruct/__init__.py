"""What a saved directory gives away of a row that was forgotten: attacks on it, and how near each comes to the row.

The attacker holds one saved directory (or two, before and after), every row that stayed, the code and the format. Each
attack looks for a place where the row may have left a trace and turns the trace into an estimate of the row's features.
Most traces are differences: what was saved minus what the rows that stay give by themselves. A sum that still has the
row's term gives it back at once; parameters that were brought to the optimum of the rows that stay by too few steps
give it back through the map of those steps, inverted.

The error of an estimate is its distance from the true row over the length of the row, features only. It is compared
with `chance`: the mean of the rows that stay, or one of them.

What comes out is of one of these kinds:

    row       an estimate from the directory and the rows that stay: this is what must fail
    confirms  recognises the row among given candidates, but cannot compute it
    inherent  an estimate from the states before and after: nothing deterministic can hide this
    outside   an estimate from the user's own data file
    chance    a guess that uses no trace

`evidence` is what the attacker holds; `traces` are attacks on what is stored row by row or lies in the files, `sums` on
what is summed over the rows, `newton` on the last steps of training, `confirm` those that need candidates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from l2ul_fast.errors import UserError
from l2ul_fast.unlearner.reconstruct import confirm, newton, sums, traces
from l2ul_fast.unlearner.reconstruct.evidence import (
    CHANCE,
    CONFIRMS,
    INHERENT,
    OUTSIDE,
    ROW,
    Attack,
    Evidence,
    Labelled,
    Vector,
)

__all__ = ["CHANCE", "CONFIRMS", "INHERENT", "OUTSIDE", "ROW", "Attack", "Verdict", "reconstruct", "verdict"]

#: Rows that the errors of random guesses are taken from.
GUESSES = 1000

ATTACKS: tuple[Callable[[Evidence], Iterator[Attack]], ...] = (
    traces.due,
    traces.stored_rows,
    traces.leftovers,
    traces.verbatim,
    traces.numbers,
    sums.integer_sums,
    sums.gradients,
    newton.last_bits,
    newton.inverted_steps,
    sums.cell,
    traces.cells,
    sums.pairs,
    sums.float_sums,
    sums.anchor,
    sums.standardisation,
    confirm.digests_and_figures,
    sums.snapshots,
)


class Verdict(NamedTuple):
    """chance: the error of the best guess. best: the nearest attack of kind "row", None if none has an error."""

    chance: float | None
    best: Attack | None

    @property
    def leaks(self) -> bool | None:
        """Whether an attack is nearer than half of chance; None if that was not measured."""
        if self.chance is None:
            return None
        return self.best is not None and self.best.error is not None and self.best.error < 0.5 * self.chance


def verdict(attacks: list[Attack]) -> Verdict:
    """The best attack on one directory beside the best guess."""
    guesses = [a.error for a in attacks if a.kind == CHANCE and a.error is not None]
    measured = [a for a in attacks if a.kind == ROW and a.error is not None]
    return Verdict(min(guesses, default=None), min(measured, key=lambda a: a.error or 0.0, default=None))


def reconstruct(
    directory: str | Path,
    before: str | Path | None = None,
    truth: tuple[ArrayLike, Any] | None = None,
    data: Any = None,
    candidates: tuple[ArrayLike, Any] | None = None,
) -> list[Attack]:
    """Attack a saved directory for the rows that were forgotten; nothing in it changes.

    Parameters
    ----------
    directory : path
        A directory that `L2UL.save` wrote.
    before : path, optional
        An earlier copy of it, from before the request.
    truth : (X, y), optional
        The forgotten rows, (d,) or (k, d), with a label or (k,) labels: errors are measured against them. Features as
        the model sees them (rows of a file: standardised). Found in the data file where the model was fitted on one.
    data : path or (X, y) or (X, y, weights), optional
        The dataset file, if it has moved. With `store_rows=False`, which keeps no rows: all rows by their numbers
        (those of the forgotten ones are not looked at).
    candidates : (X, y), optional
        Rows among which the forgotten one may be, for attacks that can only confirm. If None: the truth and rows near.

    Returns
    -------
    list of Attack

    Raises
    ------
    UserError
        Where no row was forgotten, or the directory, the truth or the data cannot be used.
    """
    with tempfile.TemporaryDirectory() as scratch:
        evidence = Evidence.open(Path(directory), Path(scratch) / "after", data)
        if not evidence.forgotten.size:
            raise UserError(f"no row was forgotten in {directory}")
        earlier = None if before is None else Evidence.open(Path(before), Path(scratch) / "before", data)
        evidence.add(earlier, truth, candidates)
        found = [_measured(attack, evidence.truth) for function in ATTACKS for attack in function(evidence)]
        return found + [_measured(guess, evidence.truth) for guess in _guesses(evidence, found)]


def _measured(attack: Attack, truth: Labelled | None) -> Attack:
    if attack.row is None or attack.error is not None or truth is None:
        return attack
    if not np.isfinite(attack.row).all():
        return attack._replace(row=None, used=attack.used + "; gives no finite row")
    return attack._replace(error=_error(attack.row, truth))


def _error(row: Vector, truth: Labelled) -> float:
    lengths = np.maximum(np.linalg.norm(truth.X, axis=1), np.finfo(float).tiny)
    return float((np.linalg.norm(truth.X - row, axis=1) / lengths).min())


def _guesses(e: Evidence, attacks: list[Attack]) -> Iterator[Attack]:
    """The mean of the rows that stay, and the best of some of them: as many as the attacks have estimates, since the
    best of those is what it is compared with."""
    if e.X is None:
        return
    yield Attack("the mean row", "no trace at all", e.X.mean(axis=0), CHANCE)
    some = e.X[np.random.default_rng(0).permutation(len(e.X))[:GUESSES]]
    tries = max(1, sum(a.kind == ROW and a.error is not None for a in attacks))
    error = None
    if e.truth is not None:  # the median of the smallest of `tries` errors
        error = float(np.quantile([_error(row, e.truth) for row in some], 1 - 0.5 ** (1 / tries)))
    used = f"no trace at all (the best of {tries} guesses, median over {len(some)} rows)"
    yield Attack("random rows", used, some[0], CHANCE, error)
