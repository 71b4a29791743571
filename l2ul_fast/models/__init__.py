"""A: the models that rows are taken out of. One flat theta, its loss, derivatives, training and predictions."""

from l2ul_fast.models.fit import Fit
from l2ul_fast.models.glm import GeneralisedLinearModel
from l2ul_fast.models.logistic import LogisticModel
from l2ul_fast.models.mlp import MLPModel

__all__ = ["Fit", "GeneralisedLinearModel", "LogisticModel", "MLPModel"]
