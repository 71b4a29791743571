"""Moved to l2ul_kernels.reference.mlp; this name stays for one release."""

from l2ul_kernels.reference.mlp import *  # noqa: F403
