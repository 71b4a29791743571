"""One request, compiled: `claims` marks rows as forgotten, `expansion` takes one row out of a model of integer sums."""

from l2ul_kernels.request.claims import *  # noqa: F403
