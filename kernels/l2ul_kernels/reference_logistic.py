"""Moved to l2ul_kernels.reference.linear; this name stays for one release."""

from l2ul_kernels.reference.linear import *  # noqa: F403
