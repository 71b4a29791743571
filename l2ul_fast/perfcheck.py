"""Moved to `l2ul_fast.measure.perfcheck`; `python -m l2ul_fast.perfcheck` stays."""

import sys

from l2ul_fast.measure.perfcheck import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
