"""Moved to l2ul_kernels.reference.request; this name stays for one release."""

from l2ul_kernels.reference.request import *  # noqa: F403
