"""The `l2ul` command: one small file per group of commands."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point. A missing extra, a mistake of the user or Ctrl-C is one sentence, never a traceback."""
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
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command again to go on")
