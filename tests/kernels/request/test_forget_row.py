"""One-row requests on an expansion: the integers of the rows that stay, and their root."""

from types import SimpleNamespace

import numpy as np
import pytest
from unlearners import data_for, optimum

from l2ul_fast.models import GeneralisedLinearModel, LogisticModel
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.heads.expansion import Expansion
from l2ul_kernels.linear import integer_sums as ints
from l2ul_kernels.request import FORGOTTEN, GONE, OUTSIDE
from l2ul_kernels.request.claims import DONE

N, LAM = 120, 1e-2


def expansion(model, anchor, order=3):
    X, y = data_for(model, N, 3, seed=1)
    y = y.astype(np.uint8 if model == "lr" else np.float64)
    made = LogisticModel(3, 2, LAM) if model == "lr" else GeneralisedLinearModel(3, model, LAM)
    table = ArrayTable(X, y, np.arange(2 if model == "lr" else 0))
    head = Expansion.build(made, table, optimum(X, y, model, LAM), anchor=anchor, order=order)
    return X, y, head


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("anchor", ["grid", "optimum"])
@pytest.mark.parametrize("model", ["lr", "squared", "poisson"])
def test_a_request_leaves_the_integers_and_the_root_of_the_rows_that_stay(model, anchor, order):
    X, y, head = expansion(model, anchor, order)
    rows, labels, status, weights = X.copy(), y.copy(), np.zeros(N, np.uint8), np.empty(0)
    store = SimpleNamespace(X=rows, y=labels, weights=weights)
    gone, theta = [5, 40, 17], head.theta
    for row in gone:
        code, theta, _, _ = head.forget_row(row, store, status)
        assert code == DONE
        assert not rows[row].any()
        assert status[row] == FORGOTTEN
    stay = np.setdiff1d(np.arange(N), gone)
    sums = np.zeros_like(head.sums)
    ints.add_all_rows(X[stay], y[stay], None, 1, head.terms, sums)
    np.testing.assert_array_equal(head.sums, sums)
    before, after = optimum(X, y, model, LAM), optimum(X[stay], y[stay], model, LAM)
    head._find_root()
    change = np.linalg.norm(after - before)
    assert np.linalg.norm(theta - head.theta) < 0.02 * change  # the instant answer against the root
    assert np.linalg.norm(head.theta - after) < (0.02 if order == 3 or model == "squared" else 0.5) * change
    held = head.sums.copy()
    for row, reason in ((5, GONE), (-1, OUTSIDE), (N, OUTSIDE)):
        assert head.forget_row(row, store, status)[0] == reason
    np.testing.assert_array_equal(head.sums, held)
