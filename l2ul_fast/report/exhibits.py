"""The figure and table of every experiment: {experiment: (plot(records) -> Figure, table(records) -> (columns, rows))}.

Both take any records and pick their own. Cells of a table are plain values or `common.Cell`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figures import baseline_speed, bounds, contamination, leak, scaling, sensitivity, sequence

Plot = Callable[[list[Record]], Any]
Columns = tuple[list[str], list[list[Any]]]

FIGURES: dict[str, tuple[Plot, Callable[[list[Record]], Columns]]] = {
    "contamination": (contamination.plot, contamination.table),
    "sensitivity": (sensitivity.plot, sensitivity.table),
    "bounds": (bounds.plot, bounds.table),
    "leak": (leak.plot, leak.table),
    "sequence": (sequence.plot, sequence.table),
    "cores": (scaling.plot_cores, scaling.table_cores),
    "scale": (scaling.plot_scale, scaling.table_scale),
    "baseline-speed": (lambda records: None, baseline_speed.columns),
}
