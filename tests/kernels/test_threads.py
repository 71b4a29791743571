"""The thread budget, identical results for any thread count, and callers that bring their own threads."""

import numba
import pytest

import l2ul_kernels as lk
from l2ul_kernels.threads import available_cores, report, thread_limit


def test_more_threads_than_cores_is_one_clear_error():
    k = thread_limit() + 1
    with pytest.raises(ValueError, match=rf"cannot use {k} threads: .*{available_cores()} core"), lk.threads(k):
        pass
    with pytest.raises(ValueError, match="cannot use 0 threads"), lk.threads(0):
        pass
    with pytest.raises(TypeError, match="int"), lk.threads(1.5):
        pass


@pytest.mark.compiled
def test_budget_reaches_every_pool_nests_and_returns():
    torch = pytest.importorskip("torch")
    before = numba.get_num_threads(), torch.get_num_threads()
    with lk.threads(thread_limit()):
        with lk.threads(1) as k:
            assert k == 1
            assert numba.get_num_threads() == torch.get_num_threads() == 1
            assert {pool["num_threads"] for pool in report()["pools"] if pool["user_api"] == "blas"} <= {1}
        assert numba.get_num_threads() == torch.get_num_threads() == thread_limit()
    assert (numba.get_num_threads(), torch.get_num_threads()) == before
    with pytest.raises(RuntimeError, match="inside"), lk.threads(1):
        raise RuntimeError("inside")
    assert (numba.get_num_threads(), torch.get_num_threads()) == before


@pytest.mark.compiled
def test_results_are_bit_identical_for_every_thread_count(run_python):
    """With more threads than this machine has cores, so that many counts are tried."""
    run_python(
        """
import numba, numpy as np, l2ul_kernels as lk
rng = np.random.default_rng(0)
for dtype in (np.float32, np.float64):
    for psi in (2, 4, 20):
        X = rng.standard_normal((20_011, 13)).astype(dtype)
        y = rng.integers(0, 3, len(X))
        partitions = lk.Partitions.sample(X, 40, psi, random_state=0)
        seen = set()
        for k in range(1, 8):
            numba.set_num_threads(k)
            results = lk.assign_cells(X, partitions), lk.cell_counts(X, partitions), lk.cell_counts(X, partitions, y)
            seen.add(b"".join(r.tobytes() for r in results))
        assert len(seen) == 1, (dtype, psi)
""",
        NUMBA_NUM_THREADS="7",
    )


@pytest.mark.compiled
@pytest.mark.parametrize("layer", ["omp", "workqueue", "tbb"])
def test_callers_with_their_own_threads_do_not_abort(run_python, layer):
    out = run_python(
        """
import threading, numba, numpy as np, l2ul_kernels as lk
rng = np.random.default_rng(0)
X = rng.standard_normal((30_000, 6)).astype(np.float32)
partitions = lk.Partitions.sample(X, 50, 4, random_state=0)
results = []
def call():
    for _ in range(20):
        results.append((lk.assign_cells(X, partitions).tobytes(), lk.cell_counts(X, partitions).tobytes()))
        lk.unpack_cells(lk.pack_cells(lk.assign_cells(X, partitions), 4), 50, 4)
workers = [threading.Thread(target=call) for _ in range(4)]
try:
    numba.np.ufunc.parallel._launch_threads()
except ValueError:
    print("layer not here")
else:
    for w in workers: w.start()
    for w in workers: w.join()
    assert len(results) == 80 and len(set(results)) == 1
    print(numba.threading_layer())
""",
        NUMBA_THREADING_LAYER=layer,
        NUMBA_NUM_THREADS="3",
    )
    assert out.strip() == layer or (layer == "tbb" and out.strip() == "layer not here")
