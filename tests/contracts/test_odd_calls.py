"""Odd arguments to every public function of metrics, models, baselines, embedding and measuring: see odd_calls.py."""

import inspect
import secrets

import numpy as np
import odd_calls
import pytest

from l2ul_fast import metrics
from l2ul_fast.baselines import METHODS

#: Plain records and sums of what others check.
NO_ROW = {"Accuracies", "Attack", "KLoM", "Lira", "Population", "Recovery", "Times", "Unlearn"}


@pytest.mark.parametrize("name", sorted(odd_calls.CALLS))
def test_odd_arguments_are_refused_in_one_sentence_and_nothing_changes(name):
    assert odd_calls.findings(name) == []


def test_every_public_function_has_a_row():
    assert {name for name in metrics.__all__ if callable(getattr(metrics, name))} - NO_ROW <= set(odd_calls.CALLS)
    for name, make in METHODS.items():
        options = set(inspect.signature(make).parameters) - {"recipe", "impair", "repair"}
        assert {f"{name}.unlearn", f"{name}.prepare"} <= set(odd_calls.CALLS)
        assert options <= set(odd_calls.OF_METHODS.get(name, {})), name


def test_what_takes_anything_is_found():
    """Lies, crashes, long messages and changed arguments."""

    def careless(theta, share):
        if np.ndim(theta) > 1:
            raise KeyError("no")
        theta[:1] *= 2
        return 1.0

    call = odd_calls.given(careless, theta=odd_calls.floats([0.0, 2.0]), share=odd_calls.Arg(0.5, "share"))
    assert "changed" in odd_calls.tried(call, "theta", "as it is", np.ones(2))
    assert "answered" in odd_calls.tried(call, "share", "negative", -1)
    assert "KeyError" in odd_calls.tried(call, "theta", "a matrix", np.ones((2, 2)))


@pytest.mark.slow
def test_a_thousand_calls_drawn_anew():
    seed = secrets.randbits(32)
    assert list(odd_calls.attack(seed, 1000)) == [], seed
