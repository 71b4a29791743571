"""What the report shows of an experiment: functions that make tables and plots of its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, cast

from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import Record
from l2ul_fast.report.values import Cell, Drawing, Table, median, number_text, select


class Goal(NamedTuple):
    """A figure that was promised: the median of `field` over the records with these values, at most or at least."""

    title: str
    field: str
    cell: Mapping[str, Any]
    limit: float
    at_least: bool = False


def no_plots(records: list[Record]) -> list[Drawing]:
    return []


@dataclass(frozen=True)
class Figure:
    """Tables and plots of one experiment; each function gets its records only."""

    tables: Callable[[list[Record]], list[Table]]
    plots: Callable[[list[Record]], list[Drawing]] = no_plots
    goals: tuple[Goal, ...] = field(default=())

    def all_tables(self, records: list[Record]) -> list[Table]:
        """Those that have rows, and the goals that were measured."""
        found = [*self.tables(records), goals_table(self.goals, records)]
        return [table for table in found if table.rows]


def goals_table(goals: tuple[Goal, ...], records: list[Record]) -> Table:
    """A line per goal whose cell was measured; one that is missed says so."""
    rows = []
    for goal in goals:
        found = median(select(records, **goal.cell), goal.field)
        if found is None:
            continue
        reached = found >= goal.limit if goal.at_least else found <= goal.limit
        verdict = Cell("reached", 1.0, "good") if reached else Cell("missed", 0.0, "missed")
        rows.append([goal.title, found, f"{'>=' if goal.at_least else '<='} {number_text(goal.limit)}", verdict])
    return Table("Goals", ["what", "measured", "goal", "verdict"], rows)


class Exhibit(NamedTuple):
    """An experiment as the report shows it: "package.module:NAME" or a Figure; without one its records are a table."""

    title: str
    figure: Figure | str | None = None
    order: int = 100
    records: tuple[str, ...] = ()  #: experiments whose records it shows too


def resolve(figure: Figure | str | None) -> Figure | None:
    """The Figure itself, or the one that "package.module:NAME" names.

    Raises
    ------
    UserError
        If there is no such module or no Figure of that name in it.
    """
    if not isinstance(figure, str):
        return figure
    module, _, name = figure.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"there is no figure {figure!r}: {error}") from None
    if not hasattr(found, "all_tables"):
        raise UserError(f"{figure!r} is not a Figure")
    return cast(Figure, found)
