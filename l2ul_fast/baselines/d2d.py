"""Descent-to-delete (Neel, Roth, Sharifi-Malvajerdi 2021): full gradient steps on the retained rows, then noise."""

from __future__ import annotations

import math

import numpy as np

from l2ul_fast.baselines.base import Baseline, Ids, Outcome, Vector, hessian_of, penalty_strength, steepest
from l2ul_fast.checks import Between, NotNegative, Positive, Switch, Times, checked
from l2ul_fast.protocols import Style
from l2ul_fast.tables import Table


class DescentToDelete(Baseline):
    """`iterations` steps of size 2 / (L + mu) on the retained rows from the last clean theta.

    L bounds the retained rows' curvature (logistic regression: 1/4 of their Gram matrix's largest eigenvalue, plus lam)
    and mu is the penalty; an MLP has neither, so its Hessian's extreme eigenvalues at theta stand in and nothing is
    guaranteed. With noise, what is published is theta + N(0, sigma^2): sigma follows from the sensitivity
    D_i = gamma^I (D_{i-1} + 2 r G / (mu n)), gamma = (L - mu) / (L + mu), G the longest row. The clean theta is secret.
    Guarantees need a penalty on every parameter: with a free intercept, sigma is a figure and no promise.
    """

    name = "d2d"
    style = Style("Descent-to-Delete", "pink", "P")
    table_order = 100

    _clean: Vector

    @checked
    def __init__(
        self,
        iterations: Times = 10,
        noise: Switch = False,
        epsilon: Positive = 1.0,
        delta: Between = 1e-4,
        tol: NotNegative = 1e-10,
    ) -> None:
        self.iterations, self.noise, self.epsilon, self.delta, self.tol = iterations, noise, epsilon, delta, tol

    def _prepare(self) -> None:
        self.theta = self.model.fit(self.table, tol=self.tol).theta
        self.sensitivity, self.requests = 0.0, 0
        self._measure()

    def _measure(self) -> None:
        """mu, L and G of the rows now there, in one pass."""
        model, strength = self.model, penalty_strength(self.model)
        self.mu = float(strength[strength > 0].min(initial=np.inf))
        L_sum, self.longest = steepest(model, self.table)
        if model.name == "lr":
            self.L_sum, self.L_penalty = L_sum, float(strength.max())
        else:
            values = np.linalg.eigvalsh(hessian_of(model, self.theta, self.table) / self.n + np.diag(strength))
            self.L_sum, self.L_penalty = 1.5 * self.n * float(values[-1]), 0.0
            self.mu = max(float(values[0]), 1e-12)

    def _gradient(self, table: Table, theta: Vector) -> Vector:
        total, n = np.zeros(len(theta)), 0
        for X, y in table.blocks():
            total += len(X) * self.model.data_gradient(theta, X, y)
            n += len(X)
        return np.asarray(total / n + self.model.penalty_gradient(theta))

    def _outcome(self, ids: Ids) -> Outcome:
        theta, table = self.theta.copy(), self.table.without(ids)
        L = self.L_sum / (self.n - len(ids)) + self.L_penalty  # of any rows: their sum is bounded by that of all
        contraction = (L - self.mu) / (L + self.mu)  # how much closer to the optimum a step comes at least
        for _ in range(self.iterations):
            theta -= 2 / (L + self.mu) * self._gradient(table, theta)
        change = 2 * self.longest * len(ids) / (self.mu * self.n)
        sensitivity = contraction**self.iterations * (self.sensitivity + change)
        sigma = sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon
        facts = {"sensitivity": sensitivity, "sigma": sigma, "contraction": contraction}
        state = {"sensitivity": sensitivity, "requests": self.requests + 1, "_clean": theta}
        shown = theta
        if self.noise:
            shown = theta + np.random.default_rng([self.seed, 16, self.requests]).normal(0, sigma, len(theta))
        return Outcome(shown, facts, state)

    def _committed(self, ids: Ids) -> None:
        self.theta = self._clean
        self._measure()  # the longest row, or the steepest direction, may have left
