"""What every head offers: it takes rows out of what it keeps of the data and knows the model without them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class Answer(NamedTuple):
    """theta (p,), the estimate of its rho or None, and what was done to find it."""

    theta: Vector
    error: float | None
    tier: str
