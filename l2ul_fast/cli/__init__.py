"""The `l2ul` command: one small file per group of commands."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point. A missing extra, a mistake of the user or Ctrl-C is one sentence, never a traceback."""
    if "bench" in sys.argv[1:2]:
        # OpenBLAS threads spin for 0.1 s after their work and would take a core from the next candidate; 2^23 clock
        # ticks (3 ms) still bridge the gaps inside one candidate. Read when numpy loads, so it is set before.
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "23")
    from l2ul_fast.cli.process import one_sentence, open_streams, terminable

    open_streams()
    with terminable(), one_sentence():
        from l2ul_fast.cli.app import app

        try:
            app()
        except SystemExit as end:
            stop = getattr(end.__context__, "__cause__", None)
            if isinstance(stop, KeyboardInterrupt):  # in typer's own code, which says nothing and knows one code only
                raise stop from None
            raise
