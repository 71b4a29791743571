"""Hostile data files by the hundred: see support/hostile.py."""

import hostile
import pytest


@pytest.mark.parametrize("target", hostile.TARGETS)
def test_hostile_files_are_refused_or_true(tmp_path, target):
    assert hostile.run_all([target], 0, 60, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", hostile.TARGETS)
def test_thousands_of_hostile_files(tmp_path, target):
    assert hostile.run_all([target], 60, 720, tmp_path) == []
