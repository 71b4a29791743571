"""The `l2ul` command in this process: a child would take a second to import what is here already."""

from typer.testing import CliRunner

from l2ul_fast.cli.app import app


def l2ul(*words, code=0, **environment):
    """The result (`stdout`, `stderr`) of `l2ul WORDS...`, which must end with this exit code and no traceback."""
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="l2ul", env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stderr
    return result


def mistake(*words, code=1, **environment):
    """The one sentence on standard error with which `l2ul WORDS...` fails."""
    result = l2ul(*words, code=code, **environment)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr
