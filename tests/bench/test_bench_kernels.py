"""pytest-benchmark: the kernels over the widths of the seven datasets. `make bench-pytest` runs and saves them."""

import numpy as np
import pytest

from l2ul_fast.experiments.kernels import DIMENSIONS, T
from l2ul_kernels import Partitions, assign_cells, cell_counts


@pytest.mark.parametrize("kernel", ["cell_counts", "assign_cells"])
@pytest.mark.parametrize("psi", [4, 64])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_kernel(benchmark, d, psi, kernel):
    enabled = not benchmark.disabled
    n = int(2e9 / (2 * d * psi * T)) if enabled else 100
    X = np.random.default_rng([d, psi]).standard_normal((max(n, psi), d), dtype=np.float32)
    partitions = Partitions.sample(X, T, psi, random_state=0)
    call = {"cell_counts": cell_counts, "assign_cells": assign_cells}[kernel]
    call(X, partitions)  # compiled before the clock starts
    benchmark.group = f"d={d} psi={psi}"
    benchmark.extra_info.update(n=len(X), d=d, psi=psi, t=T, source="synthetic")
    result = benchmark(call, X, partitions)
    assert result.sum() > 0
