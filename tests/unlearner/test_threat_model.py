"""docs/threat-model.md: heads that test_reconstruct.py has not, what is left of a row by design, names that exist."""

import re
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from unlearners import curved_data, logistic_data

from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.reconstruct import ROW, reconstruct, verdict
from l2ul_fast.unlearner.result import RetrainInstead

ROOT = Path(__file__).parents[2]
SMALL = {"m": 40, "s": 300, "t": 10}
MLP = {"hidden": 3, "anchor_rows": 150}
ROW_ID = 12
slow = pytest.mark.slow
#: model, classes, rows, features, options
HEADS = {
    "wide": ("lr", 2, 1200, 1001, {}),
    "multinomial learned": ("lr", 3, 600, 5, {"head": "learned", **SMALL}),
    "mlp kme": ("mlp", 2, 600, 3, {"head": "kme", "psi": 4, **SMALL, **MLP}),
    "learned robust": ("lr", 2, 600, 5, {"head": "learned", "robust": True, **SMALL}),
    "multinomial kme": ("lr", 3, 600, 5, {"head": "kme", "psi": 4, **SMALL}),
    "multinomial paper": ("lr", 3, 600, 5, {"head": "paper", **SMALL}),
    "mlp paper": ("mlp", 2, 600, 3, {"head": "paper", **SMALL, **MLP}),
    "mlp of three classes": ("mlp", 3, 600, 5, MLP),
}
LONG = ("multinomial kme", "multinomial paper", "mlp paper", "mlp of three classes")


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow if name in LONG else ()) for name in HEADS])
def test_another_head_gives_no_row(name, tmp_path):
    """Sealed it gives nothing; due it gives the row and says so: the attacks are strong enough to see it."""
    model, classes, n, d, options = HEADS[name]
    if options.get("head") == "paper":
        pytest.importorskip("torch")
    X, y = curved_data(n, 0) if d == 3 else logistic_data(n, d, classes, 0, np.float64)
    u = L2UL(model, **options).fit(X, y)
    u.save(tmp_path / "before")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RetrainInstead)
        u.unlearn([ROW_ID])
    u.copy().save(tmp_path / "due", defer=True)
    u.save(tmp_path / "sealed")
    truth = X[ROW_ID], y[ROW_ID]
    due = reconstruct(tmp_path / "due", truth=truth)
    assert [a for a in due if a.name.startswith("due")]
    assert verdict(due).best.error < 1e-2
    both = reconstruct(tmp_path / "sealed", tmp_path / "before", truth=truth)  # attacks on one state are among them
    assert verdict(both).leaks is False
    found = {a.name: a.error for a in both if a.kind == ROW and a.error is not None}
    assert not {name: error for name, error in found.items() if error < 0.5 * verdict(both).chance}
    assert min(a.error for a in both if a.name.startswith("two snapshots") and a.error is not None) < 1e-2


def test_penalty_sum_gives_the_weight_of_the_row_that_left(tmp_path):
    """Of several rows the sum; the page says so."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(400, 4)), rng.uniform(0.5, 2.0, 400)
    y = (X[:, 0] + rng.logistic(size=400) > 0).astype(int)
    u = L2UL("lr", penalty="sum", lam=1e-3).fit(X, y, weights)
    u.unlearn([ROW_ID])
    u.save(tmp_path)
    kept = L2UL.load(tmp_path).head.penalty[0] / 1e-3
    stay = np.arange(400) != ROW_ID
    assert kept - weights[stay].sum() == pytest.approx(weights[ROW_ID], rel=1e-9)


@slow
def test_the_time_of_an_answer_says_little_of_the_row(capsys):
    """Rows that move theta most, among as many others: can they be told by the time of their request?"""
    rng = np.random.default_rng(0)
    n, d = 15_000, 10
    X = rng.normal(size=(n, d)) * np.where(rng.random((n, 1)) < 0.05, 3.0, 1.0)
    y = (X @ rng.normal(size=d) + rng.logistic(size=n) > 0).astype(int)
    base, wide = L2UL("lr").fit(X, y), np.hstack([X, np.ones((n, 1))])
    s = 1 / (1 + np.exp(-wide @ base.theta))
    H = (wide.T * (s * (1 - s))) @ wide + 1e-3 * n * np.diag(np.arange(d + 1) < d)
    shift = np.linalg.norm(np.linalg.solve(H, (wide * (s - y)[:, None]).T), axis=0)
    largest, told = np.argsort(shift)[-1000:], []
    for _ in range(5):
        ids = rng.permutation(np.r_[largest, rng.choice(np.argsort(shift)[:-1000], 1000, replace=False)])
        u, times = base.copy(), []
        for row in ids.tolist():
            begin = time.perf_counter_ns()
            u.unlearn([row])
            times.append(time.perf_counter_ns() - begin)
        far = np.isin(ids, largest)
        told.append(
            stats.mannwhitneyu(np.array(times)[far], np.array(times)[~far]).statistic / far.sum() / (~far).sum()
        )
    with capsys.disabled():
        print(f"AUC of telling them apart by time: {min(told):.2f} to {max(told):.2f}")
    assert 0.35 < np.median(told) < 0.65


PAGES = ("docs/threat-model.md", "SECURITY.md")


def test_what_the_pages_name_exists():
    """Tests, commands, targets of make, links and their headings; a figure not recorded yet may name what comes."""
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    text = "\n".join(line for line in text.splitlines() if "not recorded yet" not in line)
    sources = [file.read_text() for file in (ROOT / "tests").rglob("test_*.py")]
    tests = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) >= 25
    assert not named - tests
    targets = set(re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert not set(re.findall(r"`make ([\w-]+)", text)) - {word for line in targets for word in line.split()}
    from typer.main import get_command

    from l2ul_fast.cli.app import app

    assert not set(re.findall(r"`l2ul (\w+)", text)) - set(get_command(app).commands)
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
            file, _, heading = target.partition("#")
            linked = (ROOT / page).parent / file
            assert linked.is_file(), target
            titles = re.findall(r"^#+ (.*)", linked.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert not heading or heading in slugs, target
