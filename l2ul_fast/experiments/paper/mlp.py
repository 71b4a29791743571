"""Figures 3 to 5 of the paper: the MLP, 1, 100 and 1000 forgotten rows, seven datasets, every method."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path

from l2ul_fast.experiments.arena import WIDE, Arena, chosen, compare
from l2ul_fast.experiments.jobs import Done, Job, Setting, load, some_rows
from l2ul_fast.measure.records import Record

REQUESTS = (("random", 1), ("random", 100), ("random", 1000))


def jobs(setting: Setting) -> list[Job]:
    """A job for each dataset."""
    return [Job("mlp", name, partial(measure, setting, name), weight=20.0) for name in setting.datasets]


def measure(setting: Setting, name: str, done: Done) -> Iterator[Record]:
    arena, facts = arena_of(setting, name), setting.facts
    yield from compare(arena, REQUESTS, facts["runs"], done, chosen(arena, facts), facts["cold"])


def arena_of(setting: Setting, name: str) -> Arena:
    """The dataset with everybody prepared; the last one is kept for the experiment that uses it next."""
    facts = setting.facts
    return _arena(
        name,
        setting.profile,
        facts["rows"],
        facts["mlp_rows"],
        facts["wide_rows"],
        facts["m"],
        setting.seed,
        setting.raw_dir,
        setting.folder,
        bool(facts.get("complete")),
    )


@lru_cache(maxsize=1)
def _arena(
    name: str,
    profile: str,
    rows: int | None,
    mlp_rows: int | None,
    wide_rows: int | None,
    m: int,
    seed: int,
    raw_dir: Path | None,
    folder: Path,
    complete: bool,
) -> Arena:
    label, train, test = load(name, rows, raw_dir, folder, complete)
    train = some_rows(train, wide_rows if train.d > WIDE else mlp_rows)
    return Arena(name, label, train, test, "mlp", seed, m)
