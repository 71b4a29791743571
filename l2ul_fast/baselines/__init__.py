"""The methods that unlearning is measured against: one file and one class each, one protocol (see base.py).

`METHODS[name]()` makes one with its defaults; keyword arguments are those of its class.
"""

from collections.abc import Callable
from functools import partial

from l2ul_fast.baselines.base import Answer, Baseline
from l2ul_fast.baselines.certified import Certified
from l2ul_fast.baselines.d2d import DescentToDelete
from l2ul_fast.baselines.deltagrad import DeltaGrad
from l2ul_fast.baselines.finetune import Finetune
from l2ul_fast.baselines.fyemu import Fyemu
from l2ul_fast.baselines.influence import Influence
from l2ul_fast.baselines.minibatch import Recipe
from l2ul_fast.baselines.neggrad import NegGrad
from l2ul_fast.baselines.newton import Newton
from l2ul_fast.baselines.nothing import Nothing
from l2ul_fast.baselines.retrain import Retrain
from l2ul_fast.baselines.sisa import Sisa

#: In the order of a table: the two references first.
METHODS: dict[str, Callable[..., Baseline]] = {
    "nothing": Nothing,
    "retrain": Retrain,
    "retrain-warm": partial(Retrain, warm=True),
    "sisa": Sisa,
    "deltagrad": DeltaGrad,
    "fyemu": Fyemu,
    "newton": Newton,
    "certified": Certified,
    "influence": Influence,
    "finetune": Finetune,
    "d2d": DescentToDelete,
    "neggrad": NegGrad,
}

__all__ = [
    "METHODS",
    "Answer",
    "Baseline",
    "Certified",
    "DeltaGrad",
    "DescentToDelete",
    "Finetune",
    "Fyemu",
    "Influence",
    "NegGrad",
    "Newton",
    "Nothing",
    "Recipe",
    "Retrain",
    "Sisa",
]
