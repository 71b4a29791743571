"""Odd arguments: never a traceback (tests/support/command_fuzz.py; `make fuzz` runs it for longer)."""

import pytest
from command_fuzz import Desk, arguments
from hypothesis import HealthCheck, given, settings

QUICK = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def desk():
    with Desk() as desk:
        yield desk


@QUICK
@given(words=arguments())
def test_odd_arguments_are_obeyed_or_refused_in_one_sentence(desk, words):
    desk.check(words)


@pytest.mark.slow
@settings(QUICK, max_examples=3000, derandomize=False)
@given(words=arguments())
def test_thousands_of_odd_arguments(desk, words):
    desk.check(words)
