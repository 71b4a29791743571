"""With NUMBA_DISABLE_JIT=1 kernels run as plain Python: tests of compilation itself are left out."""

import numba
import pytest


def pytest_collection_modifyitems(items):
    if numba.config.DISABLE_JIT:
        for item in items:
            if item.get_closest_marker("compiled"):
                item.add_marker(pytest.mark.skip(reason="nothing is compiled"))
