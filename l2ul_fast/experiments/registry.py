"""Experiments: each is declared once, in one file, and found here by the command line, the runner and the report.

A file of `paper/`, `speed/` or `quality/`, an installed distribution's entry point `l2ul_fast.experiments`, or a file
that the user names, calls `register(Experiment(...))` when it is imported.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from l2ul_fast import plugins
from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import Cell, Field, Record, identity_fields
from l2ul_fast.protocols import Style

Measure = Callable[[tuple[Cell, ...]], Iterator[Record]]
ROOMS = ("paper", "speed", "quality")
PROFILES = ("tiny", "quick", "paper", "full")


@dataclass(frozen=True)
class Job:
    """Cells that share a preparation. `measure` yields one record for each of the cells that it is given.

    A cell holds the identity fields by which its record is recognised; whatever all cells have in common (experiment,
    profile, threads, seed) is added by the runner. Jobs of one `group` run one after the other: they share what is in a
    cache. `seconds` is expected at the profile "quick", for the progress bar and --dry-run.
    """

    name: str
    cells: tuple[Cell, ...]
    measure: Measure
    seconds: float = 1.0
    group: str = ""


@dataclass(frozen=True)
class Context:
    """What an experiment is told; nothing else reaches it."""

    profile: str
    numbers: Mapping[str, Any]  #: the profile's, with those of --set in their place
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    threads: int
    seed: int
    data_dir: Path
    raw_dir: Path | None = None
    folder: Path | None = None  #: of the run

    def among(self, names: tuple[str, ...] | str) -> tuple[str, ...]:
        """Those of the datasets that are asked for which the experiment's numbers name; "all" names every one."""
        return self.datasets if names == "all" else tuple(name for name in names if name in self.datasets)


@dataclass(frozen=True)
class Experiment:
    """The declaration that command line, runner and report read.

    Attributes
    ----------
    name : on the command line and in records.
    title : of its section in the report.
    help : of its command.
    profiles : profile -> its numbers; "tiny" (seconds, for tests) is required.
    jobs : the work, from a Context.
    figure : a report.figure.Figure or "package.module:NAME"; without one the report shows the plain records.
    records : names of experiments in its records, where they are not its own.
    fields : of its records, besides measure.records.FIELDS.
    methods : names of its own, where it does not compare those of `baselines`.
    datasets : those it can use, by name; () is every dataset.
    default_datasets : those it uses when none are asked for; () is all it can use.
    in_all : whether `l2ul bench all` runs it.
    order : its place in a run and on the page.
    each_thread_count : by default it is measured with 1, 2, 4, ... and all cores, else with all.
    needs : extras without which it cannot run.
    """

    name: str
    title: str
    help: str
    profiles: Mapping[str, Mapping[str, Any]]
    jobs: Callable[[Context], Iterator[Job]]
    figure: Any = None
    records: tuple[str, ...] = ()
    fields: Mapping[str, Field] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    default_datasets: tuple[str, ...] = ()
    in_all: bool = True
    order: int = 100
    each_thread_count: bool = False
    needs: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        """Names of the fields that tell its records apart."""
        return identity_fields(self.fields)

    @property
    def roles(self) -> dict[str, dict[str, str]]:
        """{name of its records: {field of its own: "identity" or "repeat"}}: what `compare` tells cells apart by."""
        own = {name: field.role for name, field in self.fields.items() if field.role in ("identity", "repeat")}
        return {name: own for name in (self.name, *self.records) if own}

    def numbers(self, profile: str, replaced: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A profile's numbers, some of them replaced.

        Raises
        ------
        UserError
            For an unknown profile, or a value of another kind than the profile's.
        """
        if profile not in self.profiles:
            raise UserError(f"{self.name} has the profiles {', '.join(self.profiles)}, not {profile!r}")
        known = {name for numbers in self.profiles.values() for name in numbers}
        found = dict(self.profiles[profile])
        for name, value in (replaced or {}).items():
            if name in known:
                found[name] = _like(name, value, found.get(name))
        return found


def _like(name: str, value: Any, usual: Any) -> Any:
    """The value in place of the usual one (None: any will do); a single one stands for a list of one."""
    if isinstance(usual, tuple) and not isinstance(value, list | tuple | dict):
        return (value,)
    kinds: tuple[type, ...] = next(
        (k for k in ((list, tuple), (int, float), (dict,)) if isinstance(usual, k)), (object,)
    )
    if isinstance(value, kinds) or value is None:
        return value
    raise UserError(f"--set {name}={value}: it does not fit, the profile has {usual!r}")


_told: list[Callable[[str], None]] = []


def say(what: str) -> None:
    """Tell who watches the run what is done now, where that takes seconds: loading, fitting, compiling."""
    for tell in _told:
        tell(what)


@contextmanager
def telling(tell: Callable[[str], None]) -> Iterator[None]:
    """Within this, `tell` is called with what `say` is given."""
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)


def by_profile(numbers: Mapping[str, tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
    """{number: its values in the order of PROFILES; the last one stands for all that follow} -> {profile: numbers}."""
    return {
        profile: {name: values[min(place, len(values) - 1)] for name, values in numbers.items()}
        for place, profile in enumerate(PROFILES)
    }


EXPERIMENTS: dict[str, Experiment] = {}


def register(experiment: Experiment) -> Experiment:
    """Add one and return it.

    Raises
    ------
    UserError
        For a name that is taken, or without the profile "tiny".
    """
    if experiment.name in (*EXPERIMENTS, "all"):
        raise UserError(f"there is already an experiment {experiment.name!r}")
    if "tiny" not in experiment.profiles:
        raise UserError(f"the experiment {experiment.name!r} needs a profile 'tiny'")
    EXPERIMENTS[experiment.name] = experiment
    return experiment


@cache
def _import_built_in() -> None:
    for room in ROOMS:
        package = import_module(f"l2ul_fast.experiments.{room}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    for _ in plugins.installed("l2ul_fast.experiments"):
        pass  # importing the module is enough: it registers itself


def load(files: tuple[Path | str, ...] = ()) -> dict[str, Experiment]:
    """Every experiment by name, in their order: built in, installed, and those that `files` register."""
    _import_built_in()
    for file in files:
        before = set(EXPERIMENTS)
        module = plugins.load_module(file)
        if before == set(EXPERIMENTS) and not getattr(module, "EXPERIMENT", None):
            known = [e for e in EXPERIMENTS.values() if getattr(e.jobs, "__module__", "") == module.__name__]
            if not known:
                raise UserError(f"{file} registers no experiment")
    return dict(sorted(EXPERIMENTS.items(), key=lambda item: (item[1].order, item[0])))


def asked(cells: tuple[Cell, ...], **key: Any) -> bool:
    """Whether one of the cells has all these values."""
    return any(all(cell.get(name) == value for name, value in key.items()) for cell in cells)


def exhibits() -> dict[str, Any]:
    """What the report shows of every experiment, by the names of their records."""
    from l2ul_fast.report.figure import Exhibit

    found = {e.name: Exhibit(e.title, e.figure, e.order, e.records) for e in load().values()}
    return found | {"gate": Exhibit("Correctness checks before any timing", None, 1000)}


def styles_of() -> dict[str, Style]:
    """Name and marks of every method; the report adds those that only a run's own file knows."""
    from l2ul_fast.baselines import styles

    return styles()
