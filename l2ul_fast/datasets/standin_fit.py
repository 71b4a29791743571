"""Moved to `l2ul_fast.datasets.standin.fit`; `python -m l2ul_fast.datasets.standin_fit` stays for one release."""

from l2ul_fast.datasets.standin.fit import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
