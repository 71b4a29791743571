"""Titles, figures and order of the experiments, and styles of the methods, until the registry hands them in."""

from __future__ import annotations

from l2ul_fast.protocols import Style
from l2ul_fast.report.figure import Exhibit

_ROOM = "l2ul_fast.report.figures."
EXHIBITS = {
    "lr": Exhibit("Logistic regression (Fig. 2)", f"{_ROOM}methods:FIGURE", 10),
    "mlp": Exhibit("MLP (Figs. 3–5)", f"{_ROOM}methods:FIGURE", 20),
    "baselines": Exhibit("All baselines", f"{_ROOM}methods:FIGURE", 30),
    "efficacy": Exhibit("Efficacy (Table 3)", f"{_ROOM}efficacy:FIGURE", 40),
    "contamination": Exhibit("Contaminated data (Fig. 6)", f"{_ROOM}contamination:FIGURE", 50),
    "sensitivity": Exhibit("Sensitivity to ψ, s and m (Figs. 7–8)", f"{_ROOM}sensitivity:FIGURE", 60),
    "bounds": Exhibit("Bounds (Theorems 4.5 and 4.6)", f"{_ROOM}bounds:FIGURE", 70),
    "leak": Exhibit("Rows in the unlearner's own training (Theorem 7.1)", f"{_ROOM}leak:FIGURE", 80),
    "sequence": Exhibit("A sequence of requests", f"{_ROOM}sequence:FIGURE", 90),
    "cores": Exhibit("Scaling by cores", f"{_ROOM}cores:FIGURE", 100),
    "scale": Exhibit("Time and memory by n", f"{_ROOM}scale:FIGURE", 110),
    "baseline-speed": Exhibit("How fast our baselines are", f"{_ROOM}baseline_speed:FIGURE", 120),
    "unlearn": Exhibit("What the unlearning core promises", f"{_ROOM}unlearn:FIGURE", 130),
    "pairs": Exhibit("Training pairs of the learned heads", f"{_ROOM}unlearn:PAIRS", 140),
    "resnet": Exhibit("ResNet-18 (CIFAR-10)", f"{_ROOM}resnet:FIGURE", 150),
    "kernels": Exhibit("Kernels", f"{_ROOM}kernels:FIGURE", 160),
    "stream": Exhibit("Streaming from disk", f"{_ROOM}stream:FIGURE", 170),
    "distributed": Exhibit("Dask workers", f"{_ROOM}distributed:FIGURE", 180),
    "gate": Exhibit("Correctness checks before any timing", None, 190),
}
STYLES = {
    "nothing": Style("Do nothing", "grey", "_"),
    "retrain": Style("Retrain", "ink", "s"),
    "retrain-warm": Style("Retrain, warm start", "ink", "D"),
    "sisa": Style("SISA", "orange", "^"),
    "deltagrad": Style("DeltaGrad", "green", "v"),
    "fyemu": Style("FYEMU", "pink", "<"),
    "newton": Style("Newton step", "yellow", "p"),
    "certified": Style("Certified removal", "yellow", "h"),
    "influence": Style("Influence", "yellow", "d"),
    "finetune": Style("Fine-tune", "green", ">"),
    "d2d": Style("Descent-to-Delete", "pink", "P"),
    "neggrad": Style("NegGrad", "orange", "X"),
    "l2ul-expansion": Style("L2UL", "blue", "*"),
    "l2ul-learned": Style("L2UL, learned", "sky", "*"),
    "l2ul-kme": Style("L2UL, embeddings by class", "green", "*"),
    "l2ul-paper": Style("L2UL as in the paper", "blue", "o"),
}
