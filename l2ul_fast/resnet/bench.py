"""Profiles of the experiment on networks, what the cells of a seed share, and how answers are scored."""

from __future__ import annotations

import copy
import hashlib
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.metrics.membership import mia_gap, mia_liu2024
from l2ul_fast.metrics.predictions import Accuracies, tow
from l2ul_fast.resnet.advimp import AdvImp
from l2ul_fast.resnet.data import Images
from l2ul_fast.resnet.features import Outputs, Unseen, memorisation, outputs, probabilities, share_right, unseen_outputs
from l2ul_fast.resnet.l2ul_head import HeadL2UL
from l2ul_fast.resnet.model import ResNet18
from l2ul_fast.resnet.rum import Rum
from l2ul_fast.resnet.salun import SalUn
from l2ul_fast.resnet.steps import FineTune, NegGrad, Request
from l2ul_fast.resnet.train import Recipe, Trained, train
from l2ul_fast.resnet.unlearner import NetworkUnlearner

Progress = Callable[[str, int, int], None]
Logits = NDArray[np.floating]


@dataclass(frozen=True)
class Profile:
    """One size of the experiment. epochs: of the unlearning methods that train; share: of RUM's rate for the others."""

    rows: int | None
    test_rows: int | None
    tune_rows: int
    eval_rows: int  #: retained rows that accuracy and attacks are measured on, at most
    width: int
    recipe: Recipe
    sizes: tuple[int, ...]
    finetune: FineTune
    neggrad: NegGrad
    salun: SalUn
    advimp: AdvImp
    dims: int = 32
    m: int = 48
    s: int = 1000
    mia_rows: int = 2000
    repeats: int = 5


PROFILES = {
    "tiny": Profile(
        300,
        120,
        100,
        150,
        2,
        Recipe(3, 50, 0.1),
        (12, 60),
        FineTune(1, 0.02, 64),
        NegGrad(1, 0.01, 64),
        SalUn(1, 0.02, 64),
        AdvImp(2, iterations=5, step=1.0, rate=0.01, max_steps=20),
        dims=5,
        m=8,
        s=100,
        mia_rows=100,
        repeats=1,
    ),
    # an epoch takes 20 s of two cores; 5 of them leave time for five trainings, two halves and everything else. Without
    # flips and shifts, as we read the paper: with them so few epochs leave nothing to unlearn (docs/resnet.md)
    "local": Profile(
        10_000,
        2000,
        1000,
        2000,
        16,
        Recipe(5, 64, 0.2, augment=False),
        (10, 100, 1000, 3000),
        FineTune(1, 0.02, 128),
        NegGrad(1, 0.01, 128),
        SalUn(1, 0.02, 128),
        AdvImp(20, iterations=5, step=1.0, rate=1e-3, most=1000, max_steps=40),
    ),
    # the paper says 50 epochs at 1e-4; Adam without augmentation is our reading. The others' settings are their own.
    "paper": Profile(
        None,
        None,
        1000,
        10_000,
        64,
        Recipe(50, 128, 1e-4, "adam", decay=0.0, schedule="flat", augment=False),
        (10, 100, 1000, 3000),
        FineTune(10),
        NegGrad(5),
        SalUn(5),
        AdvImp(),
        dims=64,
        m=64,
        s=2000,
        mia_rows=10_000,
    ),
}


class Bench:
    """All that the cells of one seed share, made when the first cell needs it and found again after a kill."""

    def __init__(self, profile: Profile, images: Images, seed: int, folder: Path, show: Callable[[str], None]) -> None:
        self.profile, self.images, self.seed, self.show = profile, images, seed, show
        key = hashlib.sha256(repr((asdict(profile), images.identity, seed)).encode()).hexdigest()[:12]
        self.folder = folder / f"work-{key}"
        self.folder.mkdir(parents=True, exist_ok=True)

    def train(self, name: str, gone: NDArray[np.bool_] | None) -> Trained:
        def report(what: str, done: int, total: int) -> None:
            self.show(f"{name}: {what} {100 * done // max(total, 1)} %")

        p, images = self.profile, self.images
        path = self.folder / f"{name}.safetensors"
        return train(images.x, images.y, gone, p.recipe, p.width, self.seed, path, images.identity, report)

    @cached_property
    def original(self) -> Trained:
        return self.train("origin", None)

    @cached_property
    def seen(self) -> tuple[Outputs, Outputs]:
        """Outputs of the original for training and test rows."""
        network = self.original.network
        return outputs(network, self.images.x), outputs(network, self.images.test_x)

    @cached_property
    def unseen(self) -> Unseen:
        def report(what: str, done: int, total: int) -> None:
            self.show(f"networks for half the rows: {what} {100 * done // max(total, 1)} %")

        p = self.profile
        return unseen_outputs(self.images, p.recipe, p.width, self.seed, self.folder, report)

    @cached_property
    def score(self) -> NDArray[np.float64]:
        return memorisation(self.seen[0].logits, self.unseen.logits, self.images.y.numpy())

    @cached_property
    def unlearner(self) -> NetworkUnlearner:
        """Fitted once, then kept on disk."""
        place = self.folder / "l2ul-head"
        if (place / "artifact.json").exists():
            return NetworkUnlearner.load(place)
        self.show("l2ul-network: fit")
        u = NetworkUnlearner(self.seed).fit(self.original.network, self.images, self.unseen)
        u.save(place)
        return u

    @cached_property
    def last_layer(self) -> tuple[HeadL2UL, float]:
        """The unlearner and the seconds of its fit."""
        self.show("l2ul-expansion: fit")
        p, start = self.profile, time.perf_counter()
        u = HeadL2UL(p.dims, m=p.m, s=p.s, random_state=self.seed)
        u.fit(self.original.network, self.seen[0].features, self.images.y.numpy())
        return u, time.perf_counter() - start


@dataclass
class Answer:
    """A method's answer to a request: logits of any training rows and of the test rows, and its cost."""

    rows: Callable[[NDArray[np.int64]], Logits]
    test: Logits
    setup: float
    seconds: float
    facts: dict[str, Any]


def of_network(bench: Bench, network: ResNet18, setup: float, seconds: float, facts: dict[str, Any]) -> Answer:
    images = bench.images
    test = outputs(network, images.test_x).logits
    return Answer(lambda ids: outputs(network, images.x[ids]).logits, test, setup, seconds, facts)


def answer(bench: Bench, method: str, forget: NDArray[np.int64]) -> Answer:
    """Run one method on one request."""
    p, images, network = bench.profile, bench.images, bench.original.network
    if method == "retrain":
        gone = np.zeros(images.n, bool)
        gone[forget] = True
        trained = bench.train(f"retrain-{forget.size}", gone)
        return of_network(bench, trained.network, 0.0, trained.seconds, {})
    if method == "nothing":
        train_rows, test = bench.seen
        return Answer(lambda ids: train_rows.logits[ids], test.logits, 0.0, 0.0, {})
    if method == "l2ul-network":
        return of_l2ul(bench, forget)
    if method == "l2ul-expansion":
        return of_last_layer(bench, forget)
    setup = 0.0
    if method.startswith("rum"):
        setup = bench.unseen.seconds
        runner: Any = Rum.published(bench.score, p.finetune, p.salun, method == "rum-published")
    else:
        runner = {"finetune": p.finetune, "neggrad": p.neggrad, "salun": p.salun, "advimp": p.advimp}[method]
    request = Request.of(images.x, images.y, forget, bench.seed, p.recipe.augment)
    start = time.perf_counter()
    found = runner.unlearn(network, request)
    return of_network(bench, found, setup, time.perf_counter() - start, request.facts)


def of_l2ul(bench: Bench, forget: NDArray[np.int64]) -> Answer:
    fitted = bench.unlearner
    times = []
    for _ in range(bench.profile.repeats + 1):
        u = fitted.clone()
        start = time.perf_counter()
        network = u.unlearn(forget)
        times.append(time.perf_counter() - start)
    setup = bench.unseen.seconds + fitted.report_["fit_seconds"]
    facts = {"weight": fitted.strength.at(forget.size / fitted.n), "state_bytes": fitted.state_bytes()}
    facts["expected_forget_accuracy"] = fitted.targets.expected(fitted.n, forget.size)
    return of_network(bench, network, setup, statistics.median(times[1:]), facts)


def of_last_layer(bench: Bench, forget: NDArray[np.int64]) -> Answer:
    fitted, setup = bench.last_layer
    times = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more rows than the pairs practised: the table shows what comes of it
        for _ in range(bench.profile.repeats + 1):
            u = copy.copy(fitted)
            u.l2ul = copy.deepcopy(fitted.l2ul)
            start = time.perf_counter()
            u.unlearn(forget)
            times.append(time.perf_counter() - start)
    train_rows, test = bench.seen
    facts = {"head_accuracy": share_right(fitted.logits(test.features), bench.images.test_y.numpy())}
    seconds = statistics.median(times[1:])
    return Answer(lambda ids: u.logits(train_rows.features[ids]), u.logits(test.features), setup, seconds, facts)


class Judge:
    """Compares answers to one request with Retrain's."""

    def __init__(self, bench: Bench, forget: NDArray[np.int64]) -> None:
        self.bench, self.forget = bench, forget
        stay = np.setdiff1d(np.arange(bench.images.n), forget)
        rng = np.random.default_rng([bench.seed, 10])
        self.retain = np.sort(rng.permutation(stay)[: bench.profile.eval_rows])
        self.labels = [bench.images.y.numpy()[ids] for ids in (forget, self.retain)] + [bench.images.test_y.numpy()]
        self.known = {name: answer(bench, name, forget) for name in ("retrain", "nothing")}
        self.looks = {name: self.look(found) for name, found in self.known.items()}

    def look(self, found: Answer) -> tuple[Accuracies, Any, list[NDArray[np.int64]]]:
        """(accuracies, attack value, predictions) on forgotten, retained and test rows."""
        parts = [found.rows(self.forget), found.rows(self.retain), found.test]
        right = Accuracies(*(share_right(z, y) for z, y in zip(parts, self.labels, strict=True)))
        f, r, t = ((probabilities(z), y) for z, y in zip(parts, self.labels, strict=True))
        attack = mia_liu2024(r, t, f, seed=self.bench.seed, limit=self.bench.profile.mia_rows)["confidence"]
        return right, attack, [z.argmax(axis=1) for z in parts]

    def record(self, method: str, scope: str) -> dict[str, Any]:
        """Scores and costs of the method's answer."""
        found = self.known.get(method) or answer(self.bench, method, self.forget)
        right, attack, said = self.looks.get(method) or self.look(found)
        target, goal, told = self.looks["retrain"]
        nothing = self.looks["nothing"]
        gap = mia_gap(attack, goal, nothing[1])
        return {
            "tow": tow(right, target, nothing[0]).value,
            "forget_accuracy": right.forget,
            "retain_accuracy": right.retain,
            "test_accuracy": right.test,
            "retrain_forget_accuracy": target.forget,
            "retrain_retain_accuracy": target.retain,
            "retrain_test_accuracy": target.test,
            "forget_disagreement": float((said[0] != told[0]).mean()),
            "test_disagreement": float((said[2] != told[2]).mean()),
            "mia": attack.value,
            "retrain_mia": goal.value,
            "mia_gap": gap.value,
            "mia_degenerate": gap.degenerate,
            "mia_variant": "liu2024 confidence",
            "setup_seconds": found.setup,
            "answer_seconds": None if method == "nothing" else found.seconds,
            **found.facts,
        }


def rows_to_forget(n: int, r: int, seed: int) -> NDArray[np.int64]:
    """r random rows; the same for every method."""
    return np.sort(np.random.default_rng([seed, 11, r]).permutation(n)[:r])
