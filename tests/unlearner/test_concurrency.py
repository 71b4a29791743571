"""One unlearner in many threads at once, and in a process that was forked."""

import pickle
import sys
import threading

import numpy as np
import pytest
from unlearners import HEADS, canonical_of, fitted_head, head_state, kept, logistic_data, same_contents, state_of

from l2ul_fast import L2UL
from l2ul_kernels.request.claims import FORGOTTEN, PRESENT

pytestmark = pytest.mark.filterwarnings("ignore::l2ul_fast.unlearner.result.RetrainInstead")


@pytest.fixture(autouse=True)
def _hasty():
    """Threads take turns a thousand times more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def run_together(jobs):
    """All of them at once in threads of their own; the first exception of any is raised."""
    barrier, wrong = threading.Barrier(len(jobs)), []

    def work(job):
        barrier.wait()
        try:
            job()
        except BaseException as error:  # of this thread: told below
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    if wrong:
        raise wrong[0]


@pytest.mark.parametrize("each", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_threads_leave_what_one_after_the_other_would(each):
    """To the last bit: sums, scales, anchor, the parameters that follow from them, and the log."""
    X, y = logistic_data(12 * each, 4)
    together, alone = L2UL().fit(X, y), L2UL().fit(X, y)
    gone = np.random.default_rng(0).permutation(12 * each)[: 8 * each].reshape(8, each)
    answers = [[] for _ in range(8)]

    def ask(own, found):
        for k in range(0, each, 5):
            found += [together.unlearn([int(row)]) for row in own[k : k + 4]]  # alone, as users do most
            found.append(together.unlearn(own[k + 4 : k + 5]))

    run_together([lambda k=k: ask(gone[k], answers[k]) for k in range(8)])
    for row in gone.ravel().tolist():
        alone.unlearn([row])
    assert state_of(together) == state_of(alone)
    np.testing.assert_array_equal(canonical_of(together), canonical_of(alone))
    np.testing.assert_array_equal(together.status, alone.status)
    np.testing.assert_array_equal(together.store.X, alone.store.X)
    left = [answer.n for found in answers for answer in found]
    assert sorted(left) == list(range(4 * each, 12 * each))  # each request saw another number of rows
    assert all(np.isfinite(answer.theta).all() for found in answers for answer in found)
    log = together.forget_log
    assert [entry["n"] for entry in log] == list(range(12 * each - 1, 4 * each - 1, -1))
    assert sorted(int(entry["rows"][0]) for entry in log) == sorted(gone.ravel().tolist())
    for u in (together, alone):
        u.refresh()
    assert state_of(together) == state_of(alone) == state_of(L2UL().fit(X[kept(len(X), gone)], y[kept(len(X), gone)]))


def consistent(u, size):
    """The parts of a copy, or of a saved state, are those of one moment."""
    assert (u.status == PRESENT).sum() == u.n == u.class_counts.sum()
    gone = np.flatnonzero(u.status[:size] == FORGOTTEN)
    assert not u.store.X[gone].any()
    assert sum(entry["rows"].size for entry in u.forget_log) == (u.status == FORGOTTEN).sum()
    assert np.isfinite(u.theta).all()
    if hasattr(u.head, "sums"):
        assert u.head.sums[0] == u.n


@pytest.mark.parametrize("name", ["expansion", *(name for name in ("mlp", "lr3", "kme lr2", "learned lr2"))])
@pytest.mark.parametrize("rounds", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_everything_at_once(name, rounds, tmp_path):
    """Threads that unlearn, learn, predict, save, refresh, copy and pickle the same object."""
    X, y = logistic_data(2000, 6) if name == "expansion" else HEADS[name][1]
    u = L2UL().fit(X, y) if name == "expansion" else fitted_head(name)
    per, size = min(2, 300 // rounds) or 1, len(X)
    rows = np.random.default_rng(1).permutation(size)[: 3 * rounds * per].reshape(3, rounds, per)
    learns, seals = name in ("expansion", "mlp", "lr3"), rounds if name == "expansion" else 2

    def unlearn(own):
        for some in own:
            assert u.unlearn(some.tolist()).rows.size == per

    def learn():
        for k in range(rounds if learns else 0):
            u.unlearn(u.learn(X[k : k + 2] * 0.5, y[k : k + 2])[:1])

    def look():
        for _ in range(5 * rounds):
            assert set(np.unique(u.predict(X[:200]))) <= set(u.classes_)
            assert repr(u)
            assert u.theta.shape == u.head.theta.shape

    def save():
        for k in range(seals):
            u.save(tmp_path / "u", defer=k % 2 == 0)
            consistent(L2UL.load(tmp_path / "u"), size)

    def refresh():
        for _ in range(seals):
            u.refresh()

    def copy():
        for _ in range(rounds):
            consistent(u.copy(), size)
            consistent(pickle.loads(pickle.dumps(u)), size)  # noqa: S301 - our own

    run_together([*(lambda k=k: unlearn(rows[k]) for k in range(3)), learn, look, save, refresh, copy])
    consistent(u, size)
    gone = np.flatnonzero(u.status == FORGOTTEN)
    np.testing.assert_array_equal(gone[gone < size], np.sort(rows.ravel()))
    assert u.n == size - rows.size + (rounds if learns else 0)
    u.save(tmp_path / "u")
    again = L2UL.load(tmp_path / "u")
    same_contents(head_state(again), head_state(u))
    if name == "expansion":
        there = u.status == PRESENT
        assert state_of(u) == state_of(L2UL().fit(u.store.X[there], u.store.y[there]))


def test_a_forked_process_answers_or_says_in_one_sentence_that_it_cannot(run_python):
    out = run_python(
        """
import os, numpy as np
from l2ul_fast import L2UL
rng = np.random.default_rng(0)
X = rng.normal(size=(30000, 5)); y = X[:, 0] + rng.logistic(size=30000) > 0
u = L2UL().fit(X, y)
expected = u.copy().unlearn([3]).theta

def child(what):
    pid = os.fork()
    if not pid:
        try:
            print(what(), flush=True)
        except RuntimeError as error:
            print("forked after" in str(error) and "\\n" not in str(error), u.n, flush=True)
        os._exit(0)
    print(os.waitpid(pid, 0)[1])

child(lambda: np.array_equal(u.unlearn([3]).theta, expected))
child(lambda: (u.unlearn(range(20000)).n == 10000, u.n == 10000)[0])
child(lambda: L2UL().fit(X, y).n)
print(L2UL().fit(X, y).n)
""",
        PYTHONWARNINGS="ignore",
    ).split("\n")
    assert out[:2] == ["True", "0"]
    assert out[2] in ("True", "True 30000")
    assert out[4] in ("30000", "True 30000")
    assert out[3] == out[5] == "0"
    assert out[6] == "30000"
