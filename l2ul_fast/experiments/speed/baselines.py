"""How fast retraining is, beside scikit-learn and torch, and what the baselines add to their own arithmetic.

Logistic regression: everybody goes on until the gradient norm is below the same tolerance, and the norm reached is
recorded. The MLP: everybody runs Adam for the same epochs with the same batch size, and the loss reached is recorded.
Candidates take turns, with the same number of threads. A model this small can be slower in torch with more threads than
with one: torch therefore also runs with one thread, as a candidate of its own; compare with the faster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines import DeltaGrad, Fyemu, Recipe, Retrain, Sisa
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, by_profile, register
from l2ul_fast.experiments.speed.pairs import BATCH, LAM, H, adam_classifier, flatten
from l2ul_fast.measure.records import Record, info, metric
from l2ul_fast.measure.timing import interleave
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import style_of
from l2ul_fast.report.values import Cell as TableCell
from l2ul_fast.report.values import Table, marked, median, model_text, number_text, ratio_text, select, timed
from l2ul_fast.tables import ArrayTable
from l2ul_kernels import threads as thread_budget

TOL = 1e-8
D, EPOCHS = 28, 2
SOLVERS = ("newton-cholesky", "lbfgs")
TORCH_ALONE = "torch, 1 thread"
#: Requests whose overhead is measured: (method, rows asked for).
OVERHEADS = (("sisa", 100), ("deltagrad", 100), ("fyemu", 100), ("fyemu", 1000))
#: Calls of a request timed together: a turn should last about as long as the gradients it is compared with, so that
#: waking threads and filling caches weigh the same.
CALLS = {"sisa": 3, "deltagrad": 5, "fyemu": 20}


def jobs(context: Context) -> Iterator[Job]:
    """Retrain of both models beside others, and the overheads."""
    n = context.numbers["n"]
    common = {"dataset": "synthetic", "n": n}
    methods = ("ours", *SOLVERS)
    cells: list[Cell] = [{**common, "task": "speed lr", "model": "lr", "method": name} for name in methods]
    yield Job("speed lr", tuple(cells), partial(measure_lr, context), seconds=20.0)
    mlp = {"dataset": "synthetic", "n": min(n, 200_000), "task": "speed mlp", "model": "mlp", "epochs": EPOCHS}
    cells = [{**mlp, "method": name} for name in ("ours", "torch", TORCH_ALONE, "sklearn")]
    yield Job("speed mlp", tuple(cells), partial(measure_mlp, context), seconds=20.0)
    common["task"] = "speed overhead"
    cells = [
        {**common, "model": model, "method": name, "r": forgotten(n, r).size}
        for model in ("lr", "mlp")
        for name, r in OVERHEADS
    ]
    yield Job("speed overhead", tuple(cells), partial(measure_overhead, context), seconds=20.0)


def forgotten(n: int, r: int) -> NDArray[np.int64]:
    """About r of n row numbers, evenly spread."""
    return np.arange(0, n, n // min(r, n))


def make_rows(n: int, d: int = D, seed: int = 0) -> ArrayTable:
    """A table of HIGGS's shape: standardised features, a curved border, noisy labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    score = X @ rng.normal(size=d) / d**0.5 + np.tanh(X[:, 0] * X[:, 1])
    return ArrayTable(X, (score + rng.normal(size=n) > 0).astype(np.uint8), [0, 1])


def _turns(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, Record]:
    """The calls in turn: seconds, spread and the ratio to ours."""
    times = interleave(calls, repeats)
    return {
        name: {"source": "synthetic", "d": D, **taken.facts, "ratio": taken.median / times["ours"].median}
        for name, taken in times.items()
    }


def measure_lr(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """A cold fit of all rows: ours and scikit-learn's solvers, with the gradient norm that each reached."""
    from sklearn.linear_model import LogisticRegression

    n = cells[0]["n"]
    table, model = make_rows(n), LogisticModel(D, lam=LAM)
    X64 = table.X.astype(np.float64)
    found: dict[str, Any] = {}

    def ours() -> None:
        method = Retrain(tol=TOL)
        method.prepare(table, model, 0)
        found["ours"] = method.theta

    def peer(solver: str) -> None:
        # scikit-learn minimises C * sum + |w|^2 / 2; its tolerance is on the mean gradient
        fitted = LogisticRegression(C=1 / (LAM * n), solver=solver, tol=TOL, max_iter=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted.fit(X64, table.y)
        found[solver] = np.append(fitted.coef_[0], fitted.intercept_).astype(np.float64)

    model.fit((table.X[:1000], table.y[:1000]))
    times = _turns({"ours": ours, **{s: partial(peer, s) for s in SOLVERS}}, context.numbers["repeats"])
    for cell in cells:
        gradient = model.gradient(np.asarray(found[cell["method"]]), table.X, table.y)
        yield {**cell, **times[cell["method"]], "tol": TOL, "gradient_norm": float(np.abs(gradient).max())}


def torch_mlp(table: ArrayTable, start: NDArray[np.float64], recipe: Recipe) -> NDArray[np.float64]:
    """theta after Adam in torch: one module, rows in memory, batches by slicing a permutation."""
    import torch

    X, y = torch.from_numpy(table.X), torch.from_numpy(table.y.astype(np.float32))
    net = torch.nn.Sequential(torch.nn.Linear(D, H), torch.nn.Tanh(), torch.nn.Linear(H, 1))
    W1, b1, w2, b2 = np.split(start.astype(np.float32), np.cumsum([H * D, H, H]))
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), (W1.reshape(H, D), b1, w2.reshape(1, H), b2), strict=True):
            parameter.copy_(torch.from_numpy(value))
    adam = torch.optim.Adam(net.parameters(), lr=recipe.rate, weight_decay=LAM, fused=True)
    loss_of, n = torch.nn.BCEWithLogitsLoss(), len(X)
    generator = torch.Generator().manual_seed(0)
    for _ in range(recipe.epochs):
        order = torch.randperm(n, generator=generator)
        Xs, ys = X[order], y[order]  # one gather an epoch: faster than one a batch
        for lo in range(0, n, recipe.batch):
            adam.zero_grad(set_to_none=True)
            loss_of(net(Xs[lo : lo + recipe.batch])[:, 0], ys[lo : lo + recipe.batch]).backward()
            adam.step()
    return np.concatenate([p.detach().numpy().astype(np.float64).ravel() for p in net.parameters()])


def sklearn_mlp(table: ArrayTable, start: NDArray[np.float64], recipe: Recipe) -> NDArray[np.float64]:
    """theta after MLPClassifier with the same start, epochs, batch size and rate."""
    peer = adam_classifier(1, recipe.rate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer.fit(table.X[: recipe.batch], table.y[: recipe.batch])  # makes the arrays; then our start goes in
        W1, b1, w2, b2 = np.split(start.astype(np.float32), np.cumsum([H * D, H, H]))
        peer.coefs_, peer.intercepts_ = [W1.reshape(H, D).T.copy(), w2.reshape(H, 1).copy()], [b1.copy(), b2.copy()]
        peer.max_iter = recipe.epochs
        peer.fit(table.X, table.y)
    return flatten(peer.coefs_[0], peer.intercepts_[0], peer.coefs_[1], peer.intercepts_[1])


def measure_mlp(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """An Adam run from the same start: ours, torch and scikit-learn, with the loss that each reached."""
    table, model = make_rows(cells[0]["n"]), MLPModel(D, h=H, lam=LAM)
    recipe = Recipe(EPOCHS, BATCH, 1e-3, adam=True, decay=False)
    method, found = Retrain(solver="minibatch", recipe=recipe), {}

    def ours() -> Any:
        method.prepare(table, model, 0)
        return method.theta

    def torch_alone() -> Any:
        with thread_budget(1):
            return torch_mlp(table, model.start(0), recipe)

    runs: dict[str, Callable[[], Any]] = {
        "ours": ours,
        "torch": lambda: torch_mlp(table, model.start(0), recipe),
        TORCH_ALONE: torch_alone,
        "sklearn": lambda: sklearn_mlp(table, model.start(0), recipe),
    }

    def run(name: str) -> None:
        found[name] = runs[name]()

    small = make_rows(500)
    Retrain(solver="minibatch", recipe=recipe).prepare(small, model, 0)
    torch_mlp(small, model.start(0), recipe)
    times = _turns({name: partial(run, name) for name in runs}, context.numbers["repeats"])
    for cell in cells:
        loss = model.loss(np.asarray(found[cell["method"]]), table.X, table.y)
        yield {**cell, **times[cell["method"]], "h": H, "batch": BATCH, "loss": loss}


def measure_overhead(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Seconds of a request of SISA, DeltaGrad and FYEMU, of its own arithmetic, and the overhead of one over the other.

    Its arithmetic: as many row gradients as it takes, through the same gradient kernel, nothing around them; with all
    threads where its batches can use them, with one for FYEMU, whose steps of 64 rows follow each other. For FYEMU the
    compiled loop that makes its noise is added: those are Adam steps on rows, not on the model.
    """
    n, repeats = cells[0]["n"], context.numbers["repeats"]
    table = make_rows(n)
    asked = {forgotten(n, r).size: r for _, r in OVERHEADS}
    for cell in cells:
        name, forget = cell["method"], forgotten(n, asked[cell["r"]])
        model: Any = LogisticModel(D, lam=LAM) if cell["model"] == "lr" else MLPModel(D, lam=LAM)
        theta = 0.1 * np.ones(model.size)
        model.fit = lambda rows, theta=theta, **options: type("Fit", (), {"theta": theta})  # training is not measured
        if name == "sisa":
            method: Any = Sisa(recipe=Recipe(epochs=5, batch=1024))
        elif name == "deltagrad":
            method = DeltaGrad(epochs=3 if cell["model"] == "mlp" else 10)
        else:
            method = Fyemu()
        method.prepare(table, model, 0)
        visits = _visits(name, method, method.unlearn(forget).facts, n)
        few = 2000 if name == "fyemu" else n
        calls: dict[str, Callable[[], object]] = {
            "request": partial(method.unlearn, forget),
            "gradients": partial(model.data_gradient, theta, table.X[:few], table.y[:few]),
        }
        if name == "fyemu":
            calls["noise"] = partial(method.make_noise, table.y[forget].astype(np.int64))
        turns = repeats * (context.numbers["short"] if name == "fyemu" else 1)
        times = interleave(calls, turns, {"request": CALLS[name], "gradients": 20, "noise": 20})
        arithmetic = visits * times["gradients"].median / min(few, n)
        if name == "fyemu":
            arithmetic += times["noise"].median
        yield {
            **cell,
            "source": "synthetic",
            "d": D,
            **times["request"].facts,
            "visits": visits,
            "arithmetic_seconds": arithmetic,
            "overhead": times["request"].median / arithmetic - 1,
        }


def _visits(name: str, method: Any, facts: Record, n: int) -> int:
    """Row gradients that the request needs."""
    if name == "sisa":
        return int(facts["sample_visits"])
    if name == "deltagrad":
        return int(facts["exact_steps"]) * min(method.recipe.batch, n)
    return int(2 * facts["retain_rows"] + method.copies * facts["noise_rows"])


#: short: how many more turns short requests get, which take the same time.
NUMBERS = {"n": (2_000, 1_000_000), "repeats": (1, 5), "short": (1, 5)}


# Report --------------------------------------------------------------------------------------------------------------


#: (task, peer) -> how many times faster ours must be.
GOALS = {
    ("speed lr", "newton-cholesky"): 5.0,
    ("speed lr", "lbfgs"): 5.0,
    ("speed mlp", "torch"): 5.0,
    ("speed mlp", "torch, 1 thread"): 5.0,
    ("speed mlp", "sklearn"): 10.0,
}
#: Share of a method's own arithmetic that everything else may cost.
OVERHEAD = 0.2


def shown_tables(records: list[Record]) -> list[Table]:
    return [_peers(records), _overhead(records)]


def _peers(records: list[Record]) -> Table:
    rows = []
    for task in ("speed lr", "speed mlp"):
        for r in select(records, task=task, failed=None):
            reached = f"gradient {r['gradient_norm']:.0e}" if "gradient_norm" in r else f"loss {r.get('loss', 0):.4f}"
            goal, ratio = GOALS.get((task, r["method"])), median([r], "ratio")
            cell = marked(ratio_text(ratio), ratio, goal, at_least=True) if goal else TableCell("–")
            rows.append(
                [f"{model_text(r['model'])}, {r['n']:,} × {r['d']}", r["method"], timed("seconds")([r]), cell, reached]
            )
    columns = ["data", "trained by", "time", "ours is faster by", "reached"]
    return Table("Retrain beside other libraries", columns, rows, "Synthetic rows; medians of interleaved repeats.", 1)


def _overhead(records: list[Record]) -> Table:
    rows = []
    for r in select(records, task="speed overhead", failed=None):
        text = f"{number_text(100 * r['overhead'])} %"
        data = f"{model_text(r['model'])}, {r['n']:,} × {r['d']}, r = {r.get('r') or 100}"
        goal = marked(text, r["overhead"], OVERHEAD, f"{100 * OVERHEAD:g} %")
        rows.append([data, style_of(r["method"]).label, timed("seconds")([r]), goal])
    title = "Time of a method beyond its own arithmetic"
    return Table(title, ["data", "method", "time", "over its arithmetic"], rows, block=1)


FIGURE = Figure(shown_tables)


register(
    Experiment(
        name="baseline-speed",
        title="How fast our baselines are",
        help="Our Retrain beside scikit-learn and torch; what SISA, DeltaGrad and FYEMU add to their arithmetic.",
        profiles=by_profile(NUMBERS),
        jobs=jobs,
        figure=FIGURE,
        fields={
            "ratio": info("seconds over those of ours"),
            "tol": info("gradient norm at which everybody stops"),
            "gradient_norm": info("reached"),
            "loss": info("objective reached, over all rows"),
            "h": info("hidden units", (int,)),
            "batch": info("rows per step", (int,), "rows"),
            "visits": info("row gradients that the request needs", (int,)),
            "arithmetic_seconds": info("of these row gradients alone", unit="s"),
            "overhead": metric("seconds over those of its own arithmetic, minus one"),
        },
        datasets=("synthetic",),
        in_all=False,
        order=60,
    )
)
