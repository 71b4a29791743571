"""Table 3: what can still be told of the forgotten rows, beside what Retrain shows and what the paper printed."""

from __future__ import annotations

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.values import (
    Cell,
    Table,
    cells_of,
    median,
    method_cell,
    middle,
    model_text,
    one_thread_count,
    r_text,
    runs_of,
)

#: Table 3 of the paper: {dataset: {method: (MIA, accuracy on the forgotten rows)}}; SISA has no MIA there.
PAPER: dict[str, dict[str, tuple[float | None, float]]] = {
    "magic": {"retrain": (0.79, 0.85), "sisa": (None, 0.79), "fyemu": (0.65, 0.71), "l2ul-paper": (0.75, 0.78)},
    "adult": {"retrain": (0.80, 0.81), "sisa": (None, 0.78), "fyemu": (0.68, 0.75), "l2ul-paper": (0.74, 0.76)},
    "skin": {"retrain": (1.0, 1.0), "sisa": (None, 1.0), "fyemu": (1.0, 1.0), "l2ul-paper": (1.0, 1.0)},
    "covtype": {"retrain": (0.73, 0.82), "sisa": (None, 0.76), "fyemu": (0.68, 0.76), "l2ul-paper": (0.67, 0.71)},
    "susy": {"retrain": (0.72, 0.73), "sisa": (None, 0.71), "fyemu": (0.69, 0.70), "l2ul-paper": (0.69, 0.71)},
    "higgs": {"retrain": (0.65, 0.74), "sisa": (None, 0.77), "fyemu": (0.68, 0.69), "l2ul-paper": (0.50, 0.63)},
}
COLUMNS = {
    "accuracy on forgotten": middle("forget_accuracy", "{:.3f}"),
    "Retrain's": middle("retrain_forget_accuracy", "{:.3f}"),
    "paper's": lambda own: _published(own, 1),
    "MIA (SVC)": middle("mia_svc", "{:.3f}"),
    "paper's MIA": lambda own: _published(own, 0),
    "MIA AUC [95 %]": lambda own: _auc(own),
    "gap to Retrain's MIA": middle("mia_gap", "{:.3f}"),
    "no MIA because": lambda own: Cell("; ".join(sorted({str(w) for q in own if (w := q.get("mia_degenerate"))}))),
    "runs": runs_of,
}


def _published(own: list[Record], which: int) -> float | None:
    r = own[0]
    found = PAPER.get(str(r.get("dataset")), {}).get(str(r.get("method"))) if r.get("model") == "mlp" else None
    return found[which] if found else None


def _auc(own: list[Record]) -> Cell:
    auc = middle("mia_auc", "{:.3f}")(own)
    low, high = median(own, "mia_auc_low"), median(own, "mia_auc_high")
    return auc if low is None or high is None else auc._replace(text=f"{auc.text} [{low:.3f}, {high:.3f}]")


def tables(records: list[Record]) -> list[Table]:
    mine, rows = one_thread_count(records), []
    for data, model, _, found in cells_of(mine, "data", "model", "r_asked"):
        for method, own in cells_of(found, "method"):
            head = [data, model_text(model), f"r = {r_text(found)}", method_cell(method)]
            rows.append([*head, *(make(own) for make in COLUMNS.values())])
    note = (
        "The target of each column is Retrain's own value, not the lowest: a method that scores far below Retrain has "
        "damaged the model rather than forgotten the rows. The paper's columns are its Table 3, on its own machine."
    )
    title = "Table 3: accuracy and membership attacks on the forgotten rows"
    return [Table(title, ["dataset", "model", "r", "method", *COLUMNS], rows, note, block=3)]


FIGURE = Figure(tables)
