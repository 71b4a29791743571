"""Metrics of unlearning. Each states its target, which is Retrain's value, and says so when its input allows no number.

Parts: predictions (accuracy), distance (rho), alignment (MLP units), function (outputs), membership (as
published), roc (ours), lira, klom and epsilon (populations of models), relearn, poison, cost.
See docs/metrics.md.
"""

from l2ul_fast.metrics.alignment import align_units, aligned_rho
from l2ul_fast.metrics.cost import Times, break_even, throughput, time_to_rho, times
from l2ul_fast.metrics.distance import (
    excess_loss,
    gradient_residual,
    parameter_distance,
    rho,
    rho_floor,
    rho_floor_two,
    sequential_gap,
    solver_error,
)
from l2ul_fast.metrics.epsilon import epsilons, forgetting, forgetting_score
from l2ul_fast.metrics.function import activation_distance, js_divergence, js_rows, random_proba, zrf
from l2ul_fast.metrics.klom import KLoM, klom, klom_points
from l2ul_fast.metrics.lira import Lira, u_lira
from l2ul_fast.metrics.membership import (
    entropy,
    mia_chundawat2023,
    mia_gap,
    mia_liu2024,
    mia_starting_kit,
    modified_entropy,
)
from l2ul_fast.metrics.poison import Recovery, poison_experiment, poison_labels, recovery
from l2ul_fast.metrics.population import Population, fit_population, unlearn_all
from l2ul_fast.metrics.predictions import (
    Accuracies,
    accuracies,
    accuracy,
    accuracy_on,
    churn,
    disagreement,
    f1,
    paired_difference,
    tow,
    tow_mia,
)
from l2ul_fast.metrics.relearn import relearn_steps, relearn_time
from l2ul_fast.metrics.roc import Attack, attack_scores, pooled_attack, request_scores
from l2ul_fast.metrics.value import Unlearn, Value, losses, margins

__all__ = [
    "Accuracies",
    "Attack",
    "KLoM",
    "Lira",
    "Population",
    "Recovery",
    "Times",
    "Unlearn",
    "Value",
    "accuracies",
    "accuracy",
    "accuracy_on",
    "activation_distance",
    "align_units",
    "aligned_rho",
    "attack_scores",
    "break_even",
    "churn",
    "disagreement",
    "entropy",
    "epsilons",
    "excess_loss",
    "f1",
    "fit_population",
    "forgetting",
    "forgetting_score",
    "gradient_residual",
    "js_divergence",
    "js_rows",
    "klom",
    "klom_points",
    "losses",
    "margins",
    "mia_chundawat2023",
    "mia_gap",
    "mia_liu2024",
    "mia_starting_kit",
    "modified_entropy",
    "paired_difference",
    "parameter_distance",
    "poison_experiment",
    "poison_labels",
    "pooled_attack",
    "random_proba",
    "recovery",
    "relearn_steps",
    "relearn_time",
    "request_scores",
    "rho",
    "rho_floor",
    "rho_floor_two",
    "sequential_gap",
    "solver_error",
    "throughput",
    "time_to_rho",
    "times",
    "tow",
    "tow_mia",
    "u_lira",
    "unlearn_all",
    "zrf",
]
