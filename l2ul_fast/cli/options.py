"""Shared by the commands: parsing of lists, the progress bar, the console for messages."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from l2ul_fast.errors import UserError

stderr = Console(stderr=True, soft_wrap=True, highlight=False)
#: Seconds of work before a bar appears in commands that are mostly quick.
LATE = 2.0


def stdout(width: int = 160) -> Console:
    """The console of tables: as wide as the terminal or COLUMNS, `width` characters when piped."""
    console = Console()
    return console if console.is_terminal or os.environ.get("COLUMNS") else Console(width=width)


def parse_names(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """Names of a comma-separated option; () when it is not given.

    Raises
    ------
    UserError
        For a name that is not known.
    """
    found = parse_words(text)
    for name in found:
        if name not in known:
            raise UserError(f"{name!r} is not one of {', '.join(known)}")
    return found


def parse_words(text: str | None) -> tuple[str, ...]:
    """Parts of a comma-separated option."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def parse_ints(text: str | None) -> list[int] | None:
    """'1,2,4' -> [1, 2, 4]; None stays None.

    Raises
    ------
    UserError
        For anything but positive whole numbers.
    """
    if text is None:
        return None
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UserError(f"expected positive numbers separated by commas, got {text!r}")
    return found


def parse_settings(texts: list[str] | None) -> dict[str, Any]:
    """['n=1000', 'psi=4,64'] -> {'n': 1000, 'psi': (4, 64)}; values are JSON, lists of numbers or words, or text.

    Raises
    ------
    UserError
        For a text without "=".
    """
    found = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"expected name=value, got {text!r}")
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
        return tuple(value) if isinstance(value, list) else value
    except ValueError:
        parts = [part.strip() for part in text.split(",")]
        return tuple(_value(part) for part in parts) if len(parts) > 1 else text


def thread_list(text: str | None) -> list[int] | None:
    """Thread counts of an option.

    Raises
    ------
    UserError
        For more than this process may use.
    """
    from l2ul_kernels.threads import thread_limit

    wanted = parse_ints(text)
    for k in wanted or []:
        if k > thread_limit():
            raise UserError(f"cannot use {k} threads: this process may run on {thread_limit()} core(s)")
    return wanted


@contextmanager
def progress_bar(what: str = "starting", delay: float = 0.0) -> Iterator[Callable[..., None]]:
    """A callback (done, total) or (stage, done, total) of a bar on stderr, which appears after `delay` seconds.

    It is drawn once a second: more often would disturb timings.
    """
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    # in a log, the last state of a bar that came late stays
    transient = delay > 0 and stderr.is_terminal
    bar = Progress(*columns, TimeRemainingColumn(), console=stderr, refresh_per_second=1, transient=transient)
    task, begin = bar.add_task(what, total=None), time.monotonic()

    def progress(*news: Any) -> None:
        *stage, done, total = news
        if time.monotonic() - begin >= delay:
            bar.start()
        bar.update(task, description=stage[0] if stage else None, completed=done, total=total or None)

    if delay <= 0:
        bar.start()
    try:
        yield progress
    finally:
        if bar.live.is_started:
            bar.stop()
