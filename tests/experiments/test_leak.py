"""Theorem 7.1 against enumeration and against counting; the cost of refreshing."""

from itertools import combinations, product

import numpy as np
import pytest
from experiment_runs import measured

from l2ul_fast.experiments.paper import leak


@pytest.mark.parametrize(("n", "m", "s"), [(4, 3, 2), (5, 2, 1), (3, 4, 2)])
@pytest.mark.parametrize("k", [1, 2])
def test_predicted_is_the_share_among_all_ways_to_draw(n, m, s, k):
    subsets = list(combinations(range(n), s))
    held = [sum(0 in chosen for chosen in ways) for ways in product(subsets, repeat=m)]
    assert leak.predicted(n, m, s, k) == pytest.approx(np.mean([count >= k for count in held]), rel=1e-12)


def test_predicted_at_the_paper_sizes():
    assert leak.predicted(11_000_000, 1000, 1000, 2) < 0.004  # what the paper quotes
    assert leak.predicted(11_000_000, 1000, 1000, 1) == pytest.approx(0.087, abs=5e-4)
    assert leak.predicted(11_000_000, 1000, 3000, 1) == pytest.approx(0.239, abs=5e-4)


def test_counting_agrees_with_the_prediction():
    n, m, s = 20_000, 50, 300
    times = leak.times_drawn(n, m, s, 0)
    assert times.shape == (n,)
    assert times.sum() == m * s
    assert times.max() <= m
    for k in (1, 2):
        p = leak.predicted(n, m, s, k)
        assert (times >= k).mean() == pytest.approx(p, abs=6 * np.sqrt(p * (1 - p) / n))
    assert not np.array_equal(times, leak.times_drawn(n, m, s, 1))


def test_what_was_counted_and_what_a_refresh_costs(tmp_path):
    numbers = {"sizes": ("magic",), "m": 20, "k": (1, 2), "draws": 2, "subsets": (("lr", "l2ul-paper", 500),)}
    numbers |= {"lr": ("magic",), "mlp": (), "rows": 600, "fit_m": 80, "s": 100, "repeats": 2, "seeds": 1}
    records = measured("leak", tmp_path, **numbers)
    chances = [r for r in records if r["task"] == "probability"]
    costs = {r["method"]: r for r in records if r["task"] == "refresh"}
    assert len(records) == 4 + 6
    for r in chances:
        assert (r["n"], r["s"], r["m"], r["source"]) == (19020, 500, 20, "sizes only")
        assert r["counted"] == (leak.times_drawn(19020, 20, 500, r["seed"]) >= r["k"]).mean()
    assert list(costs) == ["nothing", "retrain", "l2ul-expansion", "l2ul-learned", "l2ul-kme", "l2ul-paper"]
    assert costs["nothing"]["answer_seconds"] is None
    assert all(r["source"] == "stand-in" for r in costs.values())
    for method in ("l2ul-learned", "l2ul-kme", "l2ul-paper"):
        assert costs[method]["pairs_in_use"]
        assert costs[method]["pairs_dropped"] > 0  # the seal makes all of them anew
        assert costs[method]["due_share"] == 1
        assert costs[method]["refresh_seconds"] > costs[method]["answer_seconds"] > 0
    assert not costs["l2ul-expansion"]["pairs_in_use"]
    assert 0 <= costs["l2ul-expansion"]["due_share"] <= 1
