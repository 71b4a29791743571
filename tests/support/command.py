"""The `l2ul` command in this process: a child would take a second to import what is here already."""

import json

from typer.testing import CliRunner

from l2ul_fast.cli.app import app


def run(*words, **environment):
    """The result (`exit_code`, `stdout`, `stderr`) of `l2ul WORDS...`; a traceback fails."""
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="l2ul", env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def l2ul(*words, code=0, **environment):
    """The result of `l2ul WORDS...`, which must end with this exit code."""
    result = run(*words, **environment)
    assert result.exit_code == code, result.stderr
    return result


def printed(*words):
    """Standard output and standard error of a command that must succeed."""
    result = l2ul(*words)
    return result.stdout, result.stderr


def mistake(*words, code=1, **environment):
    """The one sentence on standard error with which `l2ul WORDS...` fails; a fit may have shown progress before."""
    result = l2ul(*words, code=code, **environment)
    assert result.stdout == ""
    *progress, sentence = result.stderr.splitlines()
    assert words[0] == "fit" or not progress, result.stderr
    assert sentence.startswith("error: ")
    return sentence


def done(*words):
    """Standard output of a command that must succeed without a warning."""
    result = l2ul(*words)
    assert "warning" not in result.stderr
    return result.stdout


def facts_of(*words):
    return json.loads(done(*words, "--json"))


def contents(directory):
    return {p.name: p.read_bytes() for p in directory.iterdir()}
