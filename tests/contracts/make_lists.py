"""Writes help/help.txt (every --help), help/commands.txt and asv.txt: names of commands and of asv's benchmarks.

    python tests/contracts/make_lists.py      made on commit 6aae32e

help.txt is for reading a diff by hand; tests compare commands.txt and asv.txt only.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: What asv runs: methods whose names begin so.
PREFIXES = ("time_", "timeraw_", "track_", "peakmem_", "mem_")


def commands() -> Iterator[tuple[str, Any]]:
    """(words, click command) of `l2ul` and everything below it, in the order of the help."""
    import typer.main

    from l2ul_fast.cli.app import app

    def below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield words, command
        if not hasattr(command, "list_commands"):
            return
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from below(f"{words} {name}", command.get_command(context, name))

    yield from below("l2ul", typer.main.get_command(app))


def options(command: Any) -> list[str]:
    """The names of a command's arguments and options, hidden ones too."""
    return [min(p.opts, key=lambda o: not o.startswith("--")) if p.opts else p.name for p in command.params]


def help_text() -> str:
    """Every --help, one after the other."""
    from typer.testing import CliRunner

    from l2ul_fast.cli.app import app

    parts = []
    for words, _ in commands():
        result = CliRunner().invoke(app, [*words.split()[1:], "--help"], prog_name="l2ul")
        assert result.exit_code == 0, (words, result.output)
        lines = [line.rstrip() for line in result.output.splitlines()]
        parts.append(f"$ {words} --help\n" + "\n".join(lines).strip("\n") + "\n")
    return "\n".join(parts)


def benchmarks() -> Iterator[str]:
    """A line per benchmark: name, what asv keys its results by besides (parameters), and the version."""
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        module = import_module(f"benchmarks.{path.stem}")
        for name, cls in sorted(vars(module).items()):
            if inspect.isclass(cls) and cls.__module__ == module.__name__ and not name.startswith("_"):
                for method in sorted(m for m in dir(cls) if m.startswith(PREFIXES)):
                    parameters = ",".join(getattr(cls, "param_names", ())) or "-"
                    yield f"{path.stem}.{name}.{method} {parameters} {json.dumps(getattr(cls, 'version', None))}"


def command_lines() -> list[str]:
    """A line per command: its words, then its options."""
    return [f"{words}: {' '.join(options(command))}".rstrip(": ") for words, command in commands()]


if __name__ == "__main__":
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "L2UL_BENCH_PROFILE": "regular"}
    for name in ("L2UL_DATA_DIR", "L2UL_RAW_DIR", "L2UL_BENCH_SOURCE", "FORCE_COLOR"):
        os.environ.pop(name, None)
    sys.path.insert(0, str(ROOT))
    if sys.argv[1:] == ["--print"]:
        print(json.dumps({"commands": command_lines(), "asv": list(benchmarks())}))
    else:
        (HERE / "help").mkdir(exist_ok=True)
        (HERE / "help" / "help.txt").write_text(help_text())
        (HERE / "help" / "commands.txt").write_text("\n".join(command_lines()) + "\n")
        (HERE / "asv.txt").write_text("\n".join(benchmarks()) + "\n")
