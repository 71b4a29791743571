"""Kernels with every index checked by numba, on memory that is filled with rubbish when it is taken and given back.

Here those of stored cells and of requests, which read what they are handed by row numbers; `make sanitize` runs all
tests of kernels like this. What goes by address (call_at, IR, codegen/pointers) is beyond such checks: there
`make coverage-kernels` is the check, where numpy arrays stand for memory.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FEW = ("voronoi/test_subsets.py", "request/test_claims.py")


@pytest.mark.compiled
@pytest.mark.skipif("NUMBA_BOUNDSCHECK" in os.environ, reason="this is that run")
def test_no_index_of_stored_cells_and_requests_is_out_of_bounds(request):
    """The cache of these kernels is kept beside pytest's own: compiling them takes most of the time."""
    cache = request.config.cache.mkdir("sanitized")
    env = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache), "MALLOC_PERTURB_": "165"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *(str(HERE / name) for name in FEW),
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-3000:]
