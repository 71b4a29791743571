"""IsolationKernel as a scikit-learn citizen, KernelMeanEmbedding as exact arithmetic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from l2ul_fast import IsolationKernel, KernelMeanEmbedding
from l2ul_kernels import Partitions, reference
from l2ul_kernels.threads import thread_limit


@parametrize_with_checks([IsolationKernel(t=10, random_state=0), IsolationKernel(psi=2, t=3, n_jobs=1)])
def test_is_a_scikit_learn_transformer(estimator, check):
    check(estimator)


@pytest.fixture
def X():
    return np.random.default_rng(0).standard_normal((300, 6)).astype(np.float32)


def test_features_are_the_cells(X):
    kernel = IsolationKernel(psi=5, t=12, random_state=3).fit(X)
    features = kernel.transform(X)
    assert issparse(features)
    assert features.format == "csr"
    assert features.dtype == np.float32
    cells = reference.assign_cells(X, kernel.partitions_.seeds)
    np.testing.assert_array_equal(features.toarray(), reference.one_hot(cells, 5))
    names = kernel.get_feature_names_out()
    assert names[0] == "partition0_cell0"
    assert names[-1] == "partition11_cell4"
    assert len(set(names)) == features.shape[1] == 60


def test_kernel_is_a_similarity_with_ones_on_the_diagonal(X):
    K = IsolationKernel(random_state=0).fit(X).kernel(X)
    assert np.all((K >= 0) & (K <= 1))
    np.testing.assert_array_equal(np.diag(K), 1)
    np.testing.assert_array_equal(K, K.T)
    assert np.linalg.eigvalsh(K).min() > -1e-9
    # denser regions isolate more finely: an equally distant pair in a crowd is less alike than one outside it
    rng = np.random.default_rng(1)
    crowd = np.concatenate([rng.normal(0, 0.2, (950, 2)), rng.normal(8, 3, (50, 2))])
    kernel = IsolationKernel(psi=16, t=400, random_state=0).fit(crowd)
    dense, sparse = np.array([[-0.3, 0.0], [0.3, 0.0]]), np.array([[7.7, 8.0], [8.3, 8.0]])
    assert kernel.kernel(dense[:1], dense[1:])[0, 0] < kernel.kernel(sparse[:1], sparse[1:])[0, 0]


def test_same_random_state_same_features_and_any_thread_count(X):
    first = IsolationKernel(random_state=5).fit(X)
    for jobs in (None, 1, -1):
        again = clone(first).set_params(n_jobs=jobs).fit(X)
        assert (first.transform(X) != again.transform(X)).nnz == 0
    assert (first.transform(X) != clone(first).set_params(random_state=6).fit(X).transform(X)).nnz > 0
    with pytest.raises(ValueError, match="cannot use"):
        clone(first).set_params(n_jobs=thread_limit() + 1).fit(X).transform(X)


def test_learns_inside_a_pipeline(X):
    y = (np.linalg.norm(X, axis=1) > np.sqrt(6)).astype(int)
    model = make_pipeline(IsolationKernel(psi=16, random_state=0), LogisticRegression(max_iter=500)).fit(X, y)
    assert model.score(X, y) > 0.85  # a circle: no linear model of X comes near


def test_more_seeds_than_rows_says_so(X):
    with pytest.raises(ValueError, match=r"psi=301 .* n_samples=300"):
        IsolationKernel(psi=301).fit(X)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.integers(1, 6))
def test_any_order_of_adding_and_forgetting_ends_in_the_same_state(seed, by_class, parts):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((200, 3)).astype(np.float32), rng.integers(0, 2, 200)
    partitions = Partitions.sample(X, 10, 4, random_state=seed)
    keep = rng.random(200) < 0.7

    def embedding():
        return KernelMeanEmbedding(partitions, 2 if by_class else None)

    def labels(mask):
        return (y[mask],) if by_class else ()

    direct = embedding().partial_fit(X[keep], *labels(keep))
    roundabout = embedding()
    for part in np.array_split(rng.permutation(200), parts):
        roundabout.merge(embedding().partial_fit(X[part], *labels(part)))
    for part in np.array_split(np.flatnonzero(~keep), parts):
        roundabout.forget(X[part], *labels(part))
    np.testing.assert_array_equal(roundabout.counts, direct.counts)
    np.testing.assert_array_equal(roundabout.mean, direct.mean)
    np.testing.assert_array_equal(direct.n, np.bincount(y[keep], minlength=2) if by_class else keep.sum())


def test_mean_is_the_mean_of_the_features(X):
    kernel = IsolationKernel(random_state=0).fit(X)
    embedding = KernelMeanEmbedding(kernel.partitions_).partial_fit(X)
    np.testing.assert_allclose(embedding.mean, np.asarray(kernel.transform(X).mean(axis=0)).ravel(), atol=1e-6)
    np.testing.assert_allclose(embedding.mean.reshape(100, 4).sum(axis=1), 1, atol=1e-12)
    assert not KernelMeanEmbedding(kernel.partitions_).mean.any()


def test_impossible_requests_change_nothing(X):
    partitions = Partitions.sample(X, 20, 4, random_state=0)
    embedding = KernelMeanEmbedding(partitions).partial_fit(X[:100])
    before = embedding.counts.copy()
    other = Partitions.sample(X, 20, 4, random_state=1)
    cases = [
        (ValueError, "never added", lambda: embedding.forget(X)),
        (ValueError, "row 0", lambda: embedding.partial_fit(np.full((1, 6), np.nan))),
        (ValueError, "no classes", lambda: embedding.partial_fit(X, np.zeros(300, int))),
        (ValueError, "different seeds", lambda: embedding.merge(KernelMeanEmbedding(other))),
        (ValueError, "classes", lambda: embedding.merge(KernelMeanEmbedding(partitions, 2))),
        (TypeError, "merge", lambda: embedding.merge(before)),
        (ValueError, "labels y", lambda: KernelMeanEmbedding(partitions, 2).partial_fit(X)),
        (ValueError, "n_classes", lambda: KernelMeanEmbedding(partitions, 0)),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()
        np.testing.assert_array_equal(embedding.counts, before)
