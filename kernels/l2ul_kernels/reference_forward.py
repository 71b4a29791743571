"""Moved to l2ul_kernels.reference.network; this name stays for one release."""

from l2ul_kernels.reference.network import *  # noqa: F403
