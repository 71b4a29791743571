"""An artifact with a value for every row: its states, the changes between them, and which state a directory holds."""

import numpy as np
from faults import traces

from l2ul_fast.unlearner.artifact.directory import append_artifact, open_artifact, read_ledger, read_view, save_artifact
from l2ul_fast.unlearner.artifact.journal import JOURNAL
from l2ul_fast.unlearner.artifact.ledger import entry

N, D = 4000, 5  # three blocks of X
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, D))
Y = RNG.integers(0, 2, N).astype(np.uint8)
WEIGHTS = RNG.exponential(size=N)
THETA = RNG.normal(size=D + 1)
CELLS = np.arange(60, dtype=np.uint8)  # no request changes them
FIRST, SECOND = [5, 1637], [9, 10, 11, 3999]  # row 1637 lies in two blocks
BOTH = sorted([*FIRST, *SECOND])
GROUPS = {"rows": ["X", "y", "weights"], "sums": ["sums"], "theta": ["theta"]}


def sums_without(rows):
    """Whole numbers that know of every row that stays."""
    return np.rint(np.delete(X, rows, axis=0) * 2.0**30).astype(np.int64).sum(axis=0)


def arrays_without(rows):
    rows = np.asarray(rows, np.int64)
    arrays = {"X": X.copy(), "y": Y.copy(), "weights": WEIGHTS.copy()}
    for array in arrays.values():
        array[rows] = 0
    return arrays | {"sums": sums_without(rows), "theta": THETA + rows.size, "forgotten": rows}


def save_old(directory):
    """With all rows, in place of whatever there is."""
    made = entry("fit", n=N, theta=THETA, time=0)
    groups = GROUPS | {"cells": ["cells"]}
    facts, arrays = {"n": N, "due": None}, arrays_without([]) | {"cells": CELLS}
    save_artifact(directory, facts, arrays, groups=groups, erasable=["rows"], ledger_entry=made)


def _save_whole(directory, action, rows=()):
    gone = np.union1d(read_ledger(directory).forgotten(), rows).astype(np.int64)
    arrays = arrays_without(gone)
    named = {"rows": rows} if action == "unlearn" else {}
    save_artifact(
        directory,
        {"n": N - gone.size, "due": None},
        arrays,
        groups=GROUPS,
        keep=["cells"],
        erasable=["rows"],
        ledger_entry=entry(action, n=N - gone.size, theta=arrays["theta"], time=2, **named),
        base=read_view(directory).generation,
    )


def forget_whole(directory):
    _save_whole(directory, "unlearn", FIRST)


def finish(directory):
    """What a save that is not deferred does with a journal."""
    _save_whole(directory, "refresh")


def forget(directory, rows, known=None, base=None):
    """One deferred save."""
    gone = np.union1d(read_ledger(directory).forgotten(), rows).astype(np.int64)
    base = known.generation if known else read_view(directory).generation if base is None else base
    return append_artifact(
        directory,
        {"n": N - gone.size, "due": "it is"},
        {"sums": sums_without(gone)},
        groups={"sums": ["sums"]},
        keep=["main", "rows", "cells"],
        base=base,
        known=known,
        ledger_entry=entry("unlearn", n=N - gone.size, rows=rows, time=1),
    )


def forget_first(directory):
    forget(directory, FIRST)


def forget_second(directory):
    forget(directory, SECOND)


def forget_both(directory):
    forget(directory, SECOND, known=forget(directory, FIRST))


def state_of(directory):
    """(forgotten rows, generation), after comparing every value and looking for what should be gone."""
    found = open_artifact(directory)
    gone = np.union1d(found.arrays["forgotten"], found.erased)
    assert found.facts == {"n": N - gone.size, "due": "it is" if found.erased.size else None}
    for name, array in (arrays_without(gone) | {"cells": CELLS}).items():
        if name == "theta" and found.erased.size:  # that of before would give the rows away
            assert name not in found.arrays
        elif name != "forgotten":
            np.testing.assert_array_equal(found.arrays[name], array)
    found.ledger.verify()
    assert found.ledger.forgotten().tolist() == gone.tolist()
    assert len(found.ledger) == found.generation
    return gone.tolist(), found.generation


def nothing_left(directory, rows, values=True):
    for row in rows:
        assert traces(directory, X[row], values=values) == []
        assert traces(directory, [WEIGHTS[row]], values=False) == []


def no_strays(directory):
    view = read_view(directory)
    named = {name for record in view.files.values() for name in record.names}
    own = {"artifact.json", "ledger.jsonl", ".lock"} | ({JOURNAL} if view.end else set())
    assert {p.name for p in directory.iterdir()} == named | own
    assert not view.end or (directory / JOURNAL).stat().st_size == view.end
    assert (directory / "ledger.jsonl").stat().st_size == view.header.ledger_bytes
