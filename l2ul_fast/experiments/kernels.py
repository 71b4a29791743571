"""Moved to `l2ul_fast.experiments.speed.kernels`; kept for the case tables of older commits that asv runs here."""

from collections.abc import Iterator
from typing import Any

from l2ul_fast.experiments.speed import kernels
from l2ul_fast.measure.records import Record


def measure_cell(*plan: Any) -> Iterator[Record]:
    """Records of `speed.kernels.measure_cell`, their rate also under the name that it had."""
    for record in kernels.measure_cell(*plan):
        yield record | {"of_peak": record.get("fraction_of_peak")}


__all__ = ["measure_cell"]
