"""A benchmark case: its cells, and how one is opened."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from l2ul_fast.cases.profiles import Profile
from l2ul_kernels.threads import thread_limit, threads

Cell = dict[str, Any]


class Skip(NotImplementedError):
    """This cell cannot run here; the text says why."""


def _nothing() -> None:
    """Nothing has to be done before a call."""


@dataclass
class Work:
    """Something to time. before() is called, untimed, before every call(); info goes into the record."""

    call: Callable[[], object]
    info: dict[str, Any]
    before: Callable[[], None] = _nothing
    close: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Case:
    """One line of the table.

    build(profile, **cell but threads) prepares the work, inside the thread budget of the cell. axes(profile) names the
    parameters beside `threads` and their values.
    """

    name: str
    suite: str
    build: Callable[..., Work]
    axes: Callable[[Profile], dict[str, tuple[Any, ...]]]
    threads: Callable[[Profile], tuple[int, ...]] = field(default=lambda profile: (1,))

    def parameters(self, profile: Profile) -> dict[str, tuple[Any, ...]]:
        """Parameter names and their values: dataset and threads first."""
        axes = self.axes(profile)
        return {"dataset": axes.pop("dataset"), "threads": self.threads(profile), **axes}

    def cells(self, profile: Profile) -> Iterator[Cell]:
        """All combinations of the parameters."""
        parameters = self.parameters(profile)
        for values in itertools.product(*parameters.values()):
            yield dict(zip(parameters, values, strict=True))

    @contextlib.contextmanager
    def open(self, profile: Profile, *, threads: int, **cell: Any) -> Iterator[Work]:
        """The work of one cell, compiled and called once, inside its thread budget."""
        with budget(threads):
            work = self.build(profile, **cell)
            try:
                work.info.update(case=self.name, threads=threads)
                for _ in range(2):  # the first call compiles or loads kernels, the second one finds caches as they stay
                    work.before()
                    work.call()
                yield work
            finally:
                work.close()


@contextlib.contextmanager
def budget(k: int) -> Iterator[None]:
    """A thread budget; Skip where this process may not use so many."""
    if k > thread_limit():
        raise Skip(f"{k} threads: this process may use {thread_limit()}")
    with threads(k):
        yield
