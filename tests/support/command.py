"""`l2ul ...` in this process: what a command prints, and the one sentence that a mistake is answered with."""

import json

from typer.testing import CliRunner

from l2ul_fast.cli.app import app


def run(*args):
    """(exit code, standard output, standard error); a traceback fails."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def done(*args):
    """Standard output of a command that must succeed without a warning."""
    code, out, err = run(*args)
    assert code == 0, err
    assert "warning" not in err
    return out


def facts_of(*args):
    return json.loads(done(*args, "--json"))


def refused(*args):
    """The one sentence a mistake is answered with."""
    code, out, err = run(*args)
    assert (code, out) == (1, ""), (code, out, err)
    *progress, last = err.splitlines()
    assert last.startswith("error: ")
    assert args[0] == "fit" or not progress
    return last


def contents(directory):
    """The bytes of all files but the lock."""
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != ".lock"}
