"""Figure 2 of the paper: logistic regression, one forgotten row, seven datasets, every method."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from l2ul_fast.experiments.arena import Arena, chosen, compare
from l2ul_fast.experiments.jobs import Done, Job, Setting
from l2ul_fast.measure.records import Record

REQUESTS = (("random", 1),)


def jobs(setting: Setting) -> list[Job]:
    """A job for each dataset."""
    return [Job("lr", name, partial(measure, setting, name), weight=8.0) for name in setting.datasets]


def measure(setting: Setting, name: str, done: Done) -> Iterator[Record]:
    facts = setting.facts
    label, train, test = setting.tables(name, facts["rows"])
    arena = Arena(name, label, train, test, "lr", setting.seed, facts["m"])
    yield from compare(arena, REQUESTS, facts["runs"], done, chosen(arena, facts | {"wide_skips": ()}))
