"""`python -m l2ul_fast.cli` is the `l2ul` command."""

from l2ul_fast.cli import main

main()
