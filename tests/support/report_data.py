"""Synthetic records of a whole run, for tests of the report and of comparisons; the numbers mean nothing."""

import json
from pathlib import Path

import numpy as np

from l2ul_fast.experiments import registry

EXHIBITS, STYLES = registry.exhibits(), registry.styles_of()

DATASETS = {
    "magic": ("real", 15_216, 10),
    "adult": ("real", 26_048, 14),
    "sepsis": ("stand-in", 32_262, 89),
    "skin": ("real", 196_045, 3),
    "covtype": ("subset", 80_000, 54),
    "susy": ("stand-in", 400_000, 18),
    "higgs": ("stand-in", 800_000, 28),
}
FEW = {name: DATASETS[name] for name in ("magic", "higgs")}
# method: (seconds per row of the dataset, fixed seconds, rho at r = 1, accuracy lost)
METHODS = {
    "nothing": (0, 2e-7, 1.0, 0.0),
    "retrain": (1.5e-6, 1e-3, 0.0, 0.0),
    "retrain-warm": (3e-7, 1e-4, 1e-12, 0.0),
    "sisa": (2e-7, 1e-3, None, 0.002),
    "deltagrad": (4e-7, 5e-3, 0.05, 0.0),
    "fyemu": (0, 0.04, 40.0, 0.02),
    "newton": (0, 3e-5, 1e-4, 0.0),
    "certified": (0, 5e-5, 1e-4, 0.0),
    "influence": (0, 3e-5, 0.03, 0.0),
    "finetune": (1e-7, 1e-3, 3.0, 0.001),
    "d2d": (3e-7, 1e-3, 0.2, 0.0),
    "neggrad": (1e-8, 2e-3, 9.0, 0.01),
    "l2ul-expansion": (0, 4e-6, 2e-4, 0.0),
    "l2ul-learned": (0, 4e-6, 0.2, 0.0),
    "l2ul-kme": (0, 4e-6, 0.7, 0.0),
    "l2ul-paper": (0, 5e-6, 60.0, 0.04),
}
ACCURACY = {"magic": 0.79, "adult": 0.85, "sepsis": 0.98, "skin": 0.92, "covtype": 0.72, "susy": 0.78}
ENVIRONMENT = {
    "git": "0123456789abcdef0123456789abcdef01234567",
    "cpu": "Example CPU 9000",
    "cores": 8,
    "memory_gib": 32.0,
    "system": "Linux",
    "vector_bytes": 64,
    "versions": {"python": "3.11.7", "numpy": "2.4.6", "torch": None},
}


def main_records(seeds=10, datasets=DATASETS, methods=METHODS, noise=0.05, threads=(1,), rng=1):
    """Records of lr, mlp and efficacy, as a run of today writes them."""
    rng = np.random.default_rng(rng)
    cells = [
        (experiment, dataset, *DATASETS[dataset], model, method, r, seed, k)
        for experiment, model, sizes in (
            ("lr", "lr", (1,)),
            ("mlp", "mlp", (1, 100, 1000)),
            ("efficacy", "mlp", (1000,)),
        )
        for dataset in datasets
        for r in sizes
        for seed in range(seeds)
        for method in methods
        if (method, model) != ("fyemu", "lr")
        for k in threads
    ]
    return [_record(rng, noise, *cell) for cell in cells]


def _record(rng, noise, experiment, dataset, source, n, d, model, method, r, repeat, threads):
    slope, fixed, rho, lost = METHODS[method]
    heavy = 8 if model == "mlp" else 1
    retrain = ACCURACY.get(dataset, 0.64) + 0.002 * rng.standard_normal()
    time = heavy * (slope * n + fixed) * (1 + 0.2 * np.log10(r)) / threads**0.8
    quiet, nothing = noise if method != "nothing" else 0, method == "nothing"
    answer = time * float(np.exp(noise * rng.standard_normal()))
    # retrain and our sums need no more; some prepare anew; doing nothing never erases
    more = {"nothing": None, "retrain": 1, "sisa": 1, "l2ul-expansion": 1, "deltagrad": 50}.get(method, 3)
    found = {
        "schema": 2,
        "experiment": experiment,
        "dataset": dataset,
        "source": source,
        "n": n,
        "d": d,
        "model": model,
        "method": method,
        "r": r,
        "request": "random",
        "r_asked": r,
        "seed": 0,
        "repeat": repeat,
        "threads": threads,
        "profile": "quick",
        "accuracy": retrain - lost,
        "retrain_accuracy": retrain,
        "rho": rho if rho in (None, 1) else rho * r**0.3 * float(np.exp(quiet * rng.standard_normal())),
        "disagreement": 0.0 if rho == 0 else 0.001,
        "answer_seconds": None if nothing else answer,
        "overhead_seconds": answer if nothing else None,
        "answer_spread": noise,
        "erased_seconds": None if more is None else more * answer,
        "prepare_seconds": heavy * (1.5e-6 * n + (0.0 if method in ("retrain", "nothing") else 2.0)),
        "state_bytes": 25 * n if method.startswith("l2ul") else 1000,
        "rho_target": None if rho is None else "method" if method == "deltagrad" else "model",
        "job": f"{dataset} {model}",
        "status": "ok",
    }
    if method == "retrain":
        found["noise_floor"] = 1e-8
    if experiment == "efficacy":
        dead = dataset == "sepsis" and method == "l2ul-paper"
        auc = 0.5 + 0.02 * rng.random()
        attack = {"mia_svc": 0.7 - lost, "mia_auc": auc, "mia_auc_low": auc - 0.02, "mia_auc_high": auc + 0.02}
        attack |= {"mia_gap": lost}
        found |= dict.fromkeys(attack) | {"mia_degenerate": "all rows in one class"} if dead else attack
        found |= {"forget_accuracy": retrain - lost, "retrain_forget_accuracy": retrain}
    return found


def before(records):
    """The same as a version wrote them that knew neither the names of today nor two times."""
    names = {"request": "kind", "repeat": "run", "answer_spread": "unlearn_spread", "rho_target": "reference"}
    out = []
    for r in records:
        old = {names.get(k, k): v for k, v in r.items() if k not in ("schema", "answer_seconds", "erased_seconds")}
        old["unlearn_seconds"] = r["overhead_seconds"] if r["method"] == "nothing" else r["answer_seconds"]
        old["method"] = {"l2ul-expansion": "l2ul"}.get(r["method"], r["method"])
        old["reference"] = {"method": "own", "model": "A"}.get(r["rho_target"])
        del old["overhead_seconds"]
        out.append(old)
    return out


def other_records():
    """A few records of experiments that bring their own figures, and one that nobody knows."""
    base = {"experiment": "cores", "dataset": "higgs", "source": "stand-in", "n": 800_000, "d": 28, "model": "lr"}
    base |= {"spread": 0.01, "rate": 1e6, "unit": "rows/s", "seed": 0, "profile": "quick", "schema": 2}
    cores = [
        {**base, "method": task, "task": task, "threads": k, "seconds": seconds / k**0.9}
        for task, seconds in (("kme", 2.0), ("pairs", 5.0), ("retrain", 9.0))
        for k in (1, 2, 4, 8)
    ]
    odd = {"experiment": "odd", "dataset": "<script>alert(1)</script>", "method": 'a"b', "note": "$x$ & <b>", "y": 1.5}
    return [*cores, odd]


def write(folder: Path, records, environment=ENVIRONMENT) -> Path:
    """A run's folder with these records."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(environment))
    head = {"experiment": "environment", "method": "", "cpu": environment["cpu"], "cores": environment["cores"]}
    (folder / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [head, *records]))
    return folder
