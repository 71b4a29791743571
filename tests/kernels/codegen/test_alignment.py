import numpy as np
import pytest

from l2ul_kernels.codegen.alignment import LINE, aligned_parts, aligned_zeros


@pytest.mark.parametrize("shape", [0, 1, 5, 1000, (3, 7), (2, 0, 3), (4, 1 << 15)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_arrays_begin_with_a_cache_line(shape, dtype):
    kept = [aligned_zeros(shape, dtype) for _ in range(20)]  # numpy's own would not all do so
    for zeros in kept:
        assert zeros.size == 0 or zeros.ctypes.data % LINE == 0
        assert zeros.shape == np.zeros(shape).shape
        assert zeros.dtype == dtype
        assert zeros.flags.c_contiguous
        assert not zeros.any()
        zeros[...] = 1
    parts = aligned_parts(*[((3, 5), dtype), (zeros.shape, dtype), ((0,), np.int8), ((1,), np.uint8)] * 5)
    assert all(a.size == 0 or a.ctypes.data % LINE == 0 for a in parts)
    assert [(a.shape, a.dtype) for a in parts[:2]] == [((3, 5), dtype), (zeros.shape, dtype)]
    for k, part in enumerate(parts):
        part[...] = k
    assert all((part == k).all() for k, part in enumerate(parts))  # none lies in another
