"""The `l2ul` command as a user types it, without a process of its own: a child takes seconds to import everything."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from l2ul_fast.cli import main


def l2ul(folder, *words, code=0, **environment):
    """(stdout, stderr) of `l2ul WORDS...` in a folder, without the user's original files; its exit code is checked."""
    out, err, ended = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["l2ul", *map(str, words)])
        patch.delenv("L2UL_RAW_DIR", raising=False)
        for name, value in {"COLUMNS": "160", "OPENBLAS_THREAD_TIMEOUT": "23", **environment}.items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as stop:
            ended = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            print(stop.code if isinstance(stop.code, str) else "", file=sys.stderr)
    assert ended == code, err.getvalue()[-3000:]
    assert "Traceback" not in err.getvalue()
    return out.getvalue(), err.getvalue()
