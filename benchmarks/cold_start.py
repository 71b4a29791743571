"""A fresh interpreter: imports, the first call with and without compiled kernels on disk, a later call."""

from .common import PROFILE, version

CALL = "lk.cell_counts(X, partitions)"
READY = """
import numpy as np
import l2ul_kernels as lk
X = np.random.default_rng(0).standard_normal((1000, 28), dtype=np.float32)
partitions = lk.Partitions.sample(X, 100, 4, 0)
"""
#: numba reads the variable when it is imported; the folder goes when the interpreter ends.
NO_CACHE = """
import os, tempfile
folder = tempfile.TemporaryDirectory()
os.environ["NUMBA_CACHE_DIR"] = folder.name
"""


class ColdStart:
    timeout = 600
    number = 1
    warmup_time = 0
    rounds = 1
    repeat = (1, 2 if PROFILE.name == "smoke" else 9, 20.0)
    version = version(1)

    def setup(self):
        # the kernels are on disk before the interpreters that look for them there start
        import numpy as np

        from l2ul_kernels import Partitions, cell_counts

        X = np.random.default_rng(0).standard_normal((1000, 28), dtype=np.float32)
        cell_counts(X, Partitions.sample(X, 100, 4, 0))

    def timeraw_import_kernels(self):
        return "import l2ul_kernels"

    def timeraw_import_unlearner(self):
        return "from l2ul_fast import L2UL"

    def timeraw_first_call_compiles(self):
        return CALL, NO_CACHE + READY

    def timeraw_first_call_cached(self):
        return CALL, READY

    def timeraw_later_call(self):
        return CALL, READY + CALL
