"""Nearest-seed kernels over the widths of the seven datasets; ratios to the machine's matrix product."""

import numpy as np

from l2ul_fast.experiments.kernels import ASSIGN, COUNTS, DIMENSIONS, T, measure_cell, thread_counts
from l2ul_kernels import Partitions, assign_cells, cell_counts, threads
from l2ul_kernels.threads import thread_limit


class _Case:
    params = (list(DIMENSIONS), [4, 64], thread_counts(thread_limit()))
    param_names = ("d", "psi", "threads")
    timeout = 300

    def setup(self, d, psi, k):
        rng = np.random.default_rng([d, psi])
        n = max(2048, int(2e9 / (2 * d * psi * T)))
        self.X = rng.standard_normal((n, d), dtype=np.float32)
        self.partitions = Partitions.sample(self.X, T, psi, random_state=0)
        self.out = np.empty((n, T), np.uint8)
        self.budget = threads(k)
        self.budget.__enter__()
        cell_counts(self.X, self.partitions)  # compiled before the clock starts
        assign_cells(self.X, self.partitions, out=self.out)

    def teardown(self, d, psi, k):
        self.budget.__exit__(None, None, None)


class Kernels(_Case):
    """Seconds per call; about 2e9 operations each."""

    def time_cell_counts(self, d, psi, k):
        cell_counts(self.X, self.partitions)

    def time_assign_cells(self, d, psi, k):
        assign_cells(self.X, self.partitions, out=self.out)


class OfPeak:
    """Rates as a fraction of sgemm, taken in the same turns."""

    params = _Case.params
    param_names = _Case.param_names
    timeout = 300
    unit = "of sgemm peak"

    def _fraction(self, method, d, psi, k):
        return next(r["of_peak"] for r in measure_cell(d, psi, k, 5, 0.02, ()) if r["method"] == method)

    def track_cell_counts(self, d, psi, k):
        return self._fraction(COUNTS, d, psi, k)

    def track_assign_cells(self, d, psi, k):
        return self._fraction(ASSIGN, d, psi, k)
