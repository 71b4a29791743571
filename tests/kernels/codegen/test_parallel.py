import numba
import numpy as np
import pytest

import l2ul_kernels as lk
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.parallel import parallel_for


@kernel()
def _mark(first, last, thread, seen, threads):
    for i in range(first, last):
        seen[i] += 1
        threads[i] = thread


@pytest.mark.parametrize("n", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("threads", [None, 1, 2, 3])
def test_every_item_is_done_once_by_a_thread_of_the_number_asked_for(n, threads):
    seen, by = np.zeros(n, np.int64), np.zeros(n, np.int64)
    parallel_for(_mark, n, seen, by, threads=threads)
    assert (seen == 1).all()
    assert (by < (threads or numba.get_num_threads())).all()
    with lk.threads(1):
        parallel_for(_mark, n, seen, by)
    assert (seen == 2).all()
    assert not by.any()


def test_an_error_reaches_the_caller():
    def fail(first, last, thread):
        raise RuntimeError(f"at {first}")

    with pytest.raises(RuntimeError, match="at 0"):
        parallel_for(fail, 1)
    with pytest.raises(RuntimeError, match="at "):
        parallel_for(fail, 8, threads=2)
