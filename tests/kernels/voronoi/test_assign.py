"""assign_cells and cell_counts against the NumPy oracle: every shape, every kind of input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import l2ul_kernels as lk
from l2ul_kernels import reference
from l2ul_kernels.voronoi import partitions as partitions_module

EPS = {np.dtype(np.float32): 2.0**-23, np.dtype(np.float64): 2.0**-52}


def assert_nearest(X, seeds, cells):
    """Every cell is the nearest seed up to rounding: a few ulps of the data's spread, squared."""
    distances = reference.squared_distances(X, seeds)
    mine = np.take_along_axis(distances, cells[:, :, None].astype(int), axis=-1)[..., 0]
    centre = seeds.reshape(-1, seeds.shape[-1]).astype(float).mean(axis=0)
    size = np.sqrt(((X - centre) ** 2).sum(axis=-1)) + np.sqrt(((seeds - centre) ** 2).sum(axis=-1).max())
    dtype = np.result_type(X.dtype, seeds.dtype)
    slack = (X.shape[1] + 8) * EPS[dtype] * (2 * size**2 + 1e-300)
    assert (mine - distances.min(axis=-1) <= slack[:, None]).all()


@st.composite
def problems(draw):
    """Rows and seeds of one of the kinds that break distance code."""
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    n, d = draw(st.integers(0, 70)), draw(st.integers(1, 40))
    t, psi = draw(st.integers(1, 20)), draw(st.one_of(st.integers(2, 20), st.sampled_from([64, 255, 256, 257, 300])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["normal", "integers", "duplicates", "far", "tiny", "huge", "constant"]))
    X, seeds = rng.standard_normal((n, d)), rng.standard_normal((t, psi, d))
    if kind == "integers":
        X, seeds = rng.integers(-3, 4, (n, d)), rng.integers(-3, 4, (t, psi, d))
    elif kind == "duplicates":
        seeds[:, 1::2] = seeds[:, : psi // 2 * 2 : 2]
    elif kind == "far":
        X, seeds = X + 1e4, seeds + 1e4
    elif kind in ("tiny", "huge"):
        scale = {"tiny": 1e-25, "huge": 1e20}[kind]
        X, seeds = X * scale, seeds * scale
    elif kind == "constant":
        X, seeds = np.full((n, d), 7.5), np.full((t, psi, d), 7.5)
    return kind, X.astype(dtype), seeds.astype(dtype)


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(0, 2**32))
def test_cells_and_counts_agree_with_the_oracle(problem, seed):
    kind, X, seeds = problem
    partitions = lk.Partitions.from_seeds(seeds)
    t, psi, _ = seeds.shape
    cells = lk.assign_cells(X, partitions)
    assert cells.shape == (len(X), t)
    assert cells.dtype == (np.uint8 if psi <= 256 else np.uint16)
    if kind in ("integers", "constant"):  # exact arithmetic: ties must go to the lowest seed
        np.testing.assert_array_equal(cells, reference.assign_cells(X, seeds))
    else:
        assert_nearest(X, seeds, cells)
    if kind == "duplicates":  # the second of two equal seeds never wins
        assert not (cells % 2)[cells < psi // 2 * 2].any()
    np.testing.assert_array_equal(lk.cell_counts(X, partitions), reference.cell_counts(cells, psi))
    n_classes = 1 + seed % 7
    y = np.random.default_rng(seed).integers(0, n_classes, len(X))
    expected = reference.class_counts(cells, y, psi, n_classes)
    np.testing.assert_array_equal(lk.cell_counts(X, partitions, y, n_classes), expected)
    np.testing.assert_array_equal(lk.counts_from_cells(cells, psi, y, n_classes), expected)


@pytest.mark.parametrize("psi", [2, 3, 4, 5, 7, 8, 9, 16, 64, 256, 257, 1000, 4096])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_number_of_seeds(psi, dtype):
    rng = np.random.default_rng(psi)
    X = rng.standard_normal((max(psi, 100), 5)).astype(dtype)
    partitions = lk.Partitions.sample(X, 3, psi, random_state=0)
    rows = rng.standard_normal((75, 5)).astype(dtype)
    cells = lk.assign_cells(rows, partitions)
    assert_nearest(rows, partitions.seeds, cells)
    np.testing.assert_array_equal(lk.cell_counts(rows, partitions), reference.cell_counts(cells, psi))


@pytest.mark.parametrize("d", [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 89, 300])
@pytest.mark.parametrize("t", [1, 2, 15, 16, 17, 40])
def test_every_width(d, t):
    rng = np.random.default_rng(d * 100 + t)
    X = rng.integers(-5, 6, (130, d)).astype(np.float32)
    for psi in (2, 3, 4, 6):
        partitions = lk.Partitions.sample(X, t, psi, random_state=1)
        np.testing.assert_array_equal(lk.assign_cells(X, partitions), reference.assign_cells(X, partitions.seeds))


def _views(X, folder):
    n, d = X.shape
    wide = np.zeros((2 * n, 3 * d), X.dtype)
    wide[::2, ::3] = X
    yield "strided", wide[::2, ::3]
    padded = np.zeros((n, d + 3), X.dtype)
    padded[:, 1:-2] = X
    yield "padded rows", padded[:, 1:-2]
    yield "reversed rows", X[::-1].copy()[::-1]
    yield "fortran", np.asfortranarray(X)
    frozen = X.copy()
    frozen.setflags(write=False)
    yield "read-only", frozen
    yield "byte-swapped", X.astype(X.dtype.newbyteorder())
    raw = np.zeros(X.nbytes + 1, np.uint8)
    raw[1:] = np.frombuffer(X.tobytes(), np.uint8)
    yield "unaligned", raw[1:].view(X.dtype).reshape(n, d)
    mapped = np.memmap(folder / "x.bin", X.dtype, "w+", shape=X.shape)
    mapped[:] = X
    mapped.flush()
    yield "memory-mapped", np.memmap(folder / "x.bin", X.dtype, "r", shape=X.shape)
    yield "a list", X.astype(float).tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_memory_layout_gives_the_same_cells(dtype, tmp_path):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((333, 11)).astype(dtype)
    partitions = lk.Partitions.sample(X, 20, 5, random_state=0)
    expected = lk.assign_cells(X, partitions)
    assert_nearest(X, partitions.seeds, expected)
    for name, view in _views(X, tmp_path):
        np.testing.assert_array_equal(lk.assign_cells(view, partitions), expected, err_msg=name)
        np.testing.assert_array_equal(lk.cell_counts(view, partitions), reference.cell_counts(expected, 5), name)


def test_copied_blocks_join_without_a_seam(monkeypatch):
    from l2ul_kernels.voronoi import driver

    monkeypatch.setattr(driver, "COPY_ROWS", 37)
    X = np.random.default_rng(0).standard_normal((200, 6))
    partitions = lk.Partitions.sample(X, 9, 4, random_state=0)
    y = np.arange(200) % 3
    fortran = np.asfortranarray(X)
    np.testing.assert_array_equal(lk.assign_cells(fortran, partitions), lk.assign_cells(X, partitions))
    np.testing.assert_array_equal(lk.cell_counts(fortran, partitions, y), lk.cell_counts(X, partitions, y))
    X[150, 2] = np.nan
    with pytest.raises(ValueError, match="row 150 of X has NaN"):
        lk.cell_counts(np.asfortranarray(X), partitions)


@pytest.mark.parametrize("n", [0, 1])
def test_no_rows_and_one_row(n):
    partitions = lk.Partitions.sample(np.eye(5, dtype=np.float32), 7, 3, random_state=0)
    X = np.ones((n, 5), np.float32)
    assert lk.assign_cells(X, partitions).shape == (n, 7)
    assert lk.cell_counts(X, partitions).sum() == 7 * n
    assert lk.cell_counts(X, partitions, np.zeros(n, int), 2).shape == (2, 7, 3)


def _far_mistakes(offset):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((2000, 8)) + offset).astype(np.float32)
    partitions = lk.Partitions.sample(X, 10, 16, random_state=0)
    return (lk.assign_cells(X, partitions) != reference.assign_cells(X, partitions.seeds)).mean()


def test_far_from_the_origin_is_as_exact_as_near_it(monkeypatch):
    assert _far_mistakes(1e4) <= 1e-4
    # and this test would notice if centring went missing:
    monkeypatch.setattr(partitions_module, "_centre", lambda seeds: np.zeros(seeds.shape[-1]))
    assert _far_mistakes(1e4) > 5e-4


def test_float64_is_not_rounded_to_float32():
    seeds = np.array([[[0.0], [1e-12]]])
    X = np.array([[0.0], [1e-12], [0.4e-12], [0.6e-12]]) + 1.0
    cells = lk.assign_cells(X, lk.Partitions.from_seeds(seeds + 1.0))
    np.testing.assert_array_equal(cells[:, 0], reference.assign_cells(X, seeds + 1.0)[:, 0])
    # float32 rows with seeds that float32 cannot hold are computed in float64 too
    rows = np.array([[1.0]], np.float32)
    third = lk.Partitions.from_seeds(np.array([[[1.0 + 1e-9], [1.0 + 1e-10]]]))
    assert lk.assign_cells(rows, third)[0, 0] == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_standardised_on_the_way(dtype):
    rng = np.random.default_rng(0)
    mean, scale = rng.normal(0, 1e4, 9), 10.0 ** rng.integers(-4, 5, 9)
    Z = rng.standard_normal((500, 9))
    X = (mean + scale * Z).astype(dtype)
    Z = (X - mean) / scale
    for psi in (2, 4, 9):
        partitions = lk.Partitions.from_seeds(Z[:psi].astype(dtype)[None], mean=mean, scale=scale)
        cells = lk.assign_cells(X, partitions)
        assert_nearest(Z.astype(dtype), partitions.seeds, cells)
        assert (cells != lk.assign_cells(X, lk.Partitions.from_seeds(partitions.seeds))).any()
    plain = lk.Partitions.from_seeds(partitions.seeds)
    assert not plain.same_as(partitions)
    assert plain.same_as(lk.Partitions.from_seeds(partitions.seeds, mean=None))


def test_scales_that_float32_cannot_hold_are_computed_in_float64():
    """Their columns overflowed, and comparisons with infinities gave cells that meant nothing."""
    rng = np.random.default_rng(0)
    Z, scale = rng.standard_normal((200, 3)).astype(np.float32), np.array([1.0, 1e-25, 1e25])
    X = (Z * scale).astype(np.float32)
    partitions = lk.Partitions.from_seeds(Z[:8].reshape(2, 4, 3), mean=np.zeros(3), scale=scale)
    assert partitions.compute_dtype(X.dtype) == np.float64
    np.testing.assert_array_equal(lk.assign_cells(X, partitions), reference.assign_cells(X / scale, partitions.seeds))
    near = lk.Partitions.from_seeds(partitions.seeds, mean=np.ones(3), scale=np.array([1e-9, 1.0, 1e9]))
    assert near.compute_dtype(X.dtype) == np.float32  # small units are no reason


def test_integer_rows_are_exact():
    X = np.arange(12).reshape(6, 2)
    partitions = lk.Partitions.from_seeds(X[None, :4])
    np.testing.assert_array_equal(lk.assign_cells(X, partitions), reference.assign_cells(X, X[None, :4]))


def test_out_is_used_added_to_and_subtracted_from():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((500, 4)).astype(np.float32), rng.integers(0, 2, 500)
    partitions = lk.Partitions.sample(X, 30, 4, random_state=0)
    wide = np.zeros((500, 90), np.uint8)
    cells = lk.assign_cells(X, partitions)
    for out in (np.empty((500, 30), np.uint8), wide[:, :30], wide[:, ::3]):
        assert lk.assign_cells(X, partitions, out=out) is out
        np.testing.assert_array_equal(out, cells)
    for labels in (None, y):
        total = lk.cell_counts(X, partitions, labels)
        running = lk.cell_counts(X[:200], partitions, None if labels is None else y[:200])
        again = lk.cell_counts(X[200:], partitions, None if labels is None else y[200:], out=running)
        assert again is running
        np.testing.assert_array_equal(running, total)
        lk.cell_counts(X, partitions, labels, out=running, sign=-1)
        assert not running.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e36])
@pytest.mark.parametrize("row", [0, 31, 32, 99])
def test_unusable_values_name_their_row_and_add_nothing(value, row):
    X = np.random.default_rng(0).standard_normal((100, 9)).astype(np.float32)
    partitions = lk.Partitions.sample(X, 5, 4, random_state=0)
    X[row, 8] = value
    total = np.zeros((5, 4), np.int64)
    with pytest.raises(ValueError, match=f"row {row} of X has"):
        lk.cell_counts(X, partitions, out=total)
    assert not total.any()
    with pytest.raises(ValueError, match=f"row {row} of X has"):
        lk.assign_cells(X, partitions)


def test_bad_arguments_are_one_clear_sentence():
    X = np.zeros((10, 3), np.float32)
    partitions = lk.Partitions.sample(np.random.default_rng(0).random((10, 3)), 2, 3, random_state=0)
    cases = [
        (ValueError, "shape", lambda: lk.assign_cells(X[0], partitions)),
        (ValueError, "2 features but the seeds have 3", lambda: lk.assign_cells(X[:, :2], partitions)),
        (TypeError, "float16", lambda: lk.assign_cells(X.astype(np.float16), partitions)),
        (ValueError, "match X", lambda: lk.cell_counts(X, partitions, np.zeros(9, int))),
        (ValueError, "found 0..2", lambda: lk.cell_counts(X, partitions, np.arange(10) % 3, 2)),
        (ValueError, "without labels", lambda: lk.cell_counts(X, partitions, n_classes=2)),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()
