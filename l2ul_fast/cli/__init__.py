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
    try:
        from l2ul_fast.cli.app import app
    except ImportError as error:
        sys.exit(f"l2ul needs the package {error.name}: pip install 'l2ul-fast[all]'")
    from l2ul_fast.errors import UserError

    try:
        app()
    except UserError as error:
        sys.exit(f"error: {error}")
    except ImportError as error:
        sys.exit(f"error: this command needs the package {error.name}: pip install 'l2ul-fast[all]'")
    except RuntimeError as error:
        if "cannot cache function" not in str(error):  # numba's words
            raise
        sys.exit(
            "error: there is no folder to cache compiled kernels in: name one that can be written with "
            "NUMBA_CACHE_DIR, or set L2UL_CACHE=0"
        )
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
