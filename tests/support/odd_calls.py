"""Every public function of metrics, models, baselines, embedding and measuring, with arguments that are right, and ways
to spoil each: `findings(name)` says where an odd argument is not refused in one sentence, or changes something.

A call with an odd argument may raise a ValueError or TypeError of one sentence. Where a number is NaN, infinite or
absurd it may also answer with a degenerate Value or with a NaN in the result: that hides nothing. Other kinds of the
same array (a list, read-only, in another byte order) must give the same result, or be refused.
"""

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from baselines_data import OPTIONS, anchored, blobs, prepared, table_of

from l2ul_fast import IsolationKernel, KernelMeanEmbedding, metrics
from l2ul_fast.baselines import METHODS, Recipe
from l2ul_fast.measure import timing
from l2ul_fast.models import GeneralisedLinearModel, LogisticModel, MLPModel
from l2ul_kernels import Partitions


class Arg(NamedTuple):
    """A right argument and what it is: its kind says how it is spoiled."""

    value: Any
    kind: str


class Call(NamedTuple):
    """make() -> the function; its arguments by name; whether arrays of one length must have it."""

    make: Callable[[], Callable[..., Any]]
    arguments: dict[str, Arg]
    tied: bool = True


class Raises:
    """An object that cannot be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error

    def __len__(self) -> int:
        raise self.error

    def __float__(self) -> float:
        raise self.error

    __index__ = __float__
    __iter__ = __array__


# Spoiling ------------------------------------------------------------------------------------------------------------

ARRAYS = ("floats", "features", "proba", "labels", "words", "ids", "targets", "results")
#: What no array is.
NO_ARRAYS: dict[str, Any] = {
    "a word": "abc",
    "bytes": b"abc",
    "a set": {1.0, 2.0},
    "a dict": {"a": 1},
    "nothing": None,
    "an object": object(),
    "a ragged list": [[1.0], [1.0, 2.0]],
    "a generator": (x for x in (1.0, 2.0)),
    "an array that raises": Raises(RuntimeError("two\nlines")),
    "an array without memory": Raises(MemoryError("none")),
    "a class": float,
}
NO_NUMBERS: dict[str, Any] = {
    **NO_ARRAYS,
    "a list": [1.0, 2.0],
    "a complex number": 1j,
    "a numeral": "3",
    "a date": np.datetime64("2020-01-01"),
    "NaN": math.nan,
    "infinity": math.inf,
    "a number beyond floats": 10**400,
    "minus infinity": -math.inf,
}
LEAVES = (str, bytes, int, float, complex, type(None), type, np.generic)


def spoiled(arg: Arg, rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """(what it is now, the odd value): must be refused, or answered with what is no number."""
    value, kind = arg
    if kind in ARRAYS:
        a = np.asarray(value)
        yield from NO_ARRAYS.items()
        mask = np.zeros(a.shape, bool)
        mask.ravel()[:1] = True
        yield "masked", np.ma.array(a, mask=mask)
        yield "complex", a + 1j
        yield "dates", np.zeros(a.shape, "M8[s]")
        yield "objects", np.full(a.shape, "x", object)
        yield "of one dimension more", a[None]
        yield "a scalar", a.ravel()[0]
        yield "a structure", np.zeros(a.shape, [("a", float)])
        if kind not in ("words", "ids", "labels", "results"):
            for what in (math.nan, math.inf, -math.inf):
                b = a.astype(np.float64)
                b.ravel()[rng.integers(a.size)] = what
                yield str(what), b
        if kind == "features":
            yield "of one column more", np.hstack([a, a[:, :1]])
            yield "without columns", a[:, :0]
        if kind in ("labels", "ids"):
            for what, bad in (("half", 0.5), ("NaN", math.nan), ("negative", -1), ("absurd", 2**63), ("large", 10**6)):
                b = a.astype(np.uint64 if what == "absurd" else np.int64 if isinstance(bad, int) else np.float64)
                b.ravel()[rng.integers(a.size)] = bad
                yield what, b
        if kind == "ids":
            yield "truth values", np.ones(a.shape, bool)
            yield "floats", a.astype(np.float64)
        if kind == "proba":
            yield "shares beyond 1", a * 2
            yield "negative shares", np.array([1.5, -0.5] + [0.0] * (a.shape[1] - 2)) * np.ones_like(a)
    elif kind in ("positive", "notnegative", "share", "count", "whole", "finite"):
        yield from ((what, v) for what, v in NO_NUMBERS.items() if v is not None or value is not None)
        if kind != "finite":
            yield "negative", -3
        if kind in ("positive", "count"):
            yield "zero", 0
        if kind == "share":
            yield "above 1", 1.5
        if kind in ("count", "whole"):
            yield "a half", 1.5
    elif kind == "word":
        yield from (("another word", "abcd"), ("nothing", None), ("a list", ["a"]), ("an array", np.zeros(2)), ("1", 1))
    elif kind == "switch":
        yield from (("a word", "yes"), ("nothing", None), ("2", 2), ("an array", np.zeros(2)), ("NaN", math.nan))
    elif kind in ("model", "table"):
        yield from NO_ARRAYS.items()
        yield "an array", np.zeros((3, 3))
        yield "a model's class", LogisticModel
    elif kind == "rows":
        X, y = value
        yield from NO_ARRAYS.items()
        for what, odd in spoiled(Arg(X, "features"), rng):
            yield f"X {what}", (odd, y)
        for what, odd in spoiled(Arg(y, "labels"), rng):
            if what not in ("large", "negative"):  # of a set that is only compared with
                yield f"y {what}", (X, odd)
        yield "one label less", (X, y[:-1])
        yield "three parts", (X, y, y)
    elif kind == "each":
        yield from ((what, v) for what, v in NO_ARRAYS.items() if what != "a generator")
        for what, odd in spoiled(Arg(value[0], "floats"), rng):
            if "nan" not in what and "inf" not in what:
                yield f"part 0: {what}", [odd, *value[1:]]
    else:
        assert kind == "any", kind


def alike(arg: Arg) -> Iterator[tuple[str, Any]]:
    """(what it is now, the same in another form): must give the same result, or be refused."""
    value, kind = arg
    if kind in ARRAYS and kind != "words":
        a = np.asarray(value)
        frozen = a.copy()
        frozen.flags.writeable = False
        yield "read-only", frozen
        yield "a list", a.tolist()
        yield "another byte order", a.astype(a.dtype.newbyteorder())
        yield "strided", np.repeat(a, 2, axis=0)[::2]
        yield "reversed twice", a[::-1].copy()[::-1]
        yield "Fortran order", np.asfortranarray(a)
        if a.dtype.kind in "iu":
            yield "small integers", a.astype(np.uint16)
    elif kind in ("positive", "notnegative", "share", "finite"):
        yield "a NumPy number", np.float64(value) if value is not None else None
    elif kind in ("count", "whole"):
        yield "a NumPy number", np.int64(value) if value is not None else None


def sizes(call: Call) -> Iterator[tuple[str, str, Any]]:
    """(argument, what it is now, value): one row fewer than the others have."""
    if not call.tied:
        return
    kinds = ("floats", "features", "proba", "labels", "words", "targets")
    lengths = {name: len(np.asarray(a.value)) for name, a in call.arguments.items() if a.kind in kinds}
    for name, length in lengths.items():
        if list(lengths.values()).count(length) > 1:
            yield name, "a row short", np.asarray(call.arguments[name].value)[:-1]


# Judging -------------------------------------------------------------------------------------------------------------


def outcome(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[str, Any]:
    """("result", it), ("refused", sentence) or ("finding", what is wrong)."""
    try:
        return "result", function(**arguments)
    except (ValueError, TypeError) as error:
        text = str(error)
        if not text or "\n" in text.strip() or len(text) > 400:
            return "finding", f"is refused in no single sentence: {type(error).__name__}: {text[:200]!r}"
        return "refused", text
    except Exception as error:
        return "finding", f"raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def leaves(thing: Any, depth: int = 0) -> Iterator[Any]:
    """Arrays, numbers and words within a result or an argument."""
    if isinstance(thing, (np.ndarray, *LEAVES)):
        yield thing
    elif isinstance(thing, dict):
        for key in thing:
            yield from leaves(thing[key], depth + 1)
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from leaves(part, depth + 1)
    elif depth < 4 and hasattr(thing, "__dict__") and not callable(thing):
        yield from leaves(vars(thing), depth + 1)


def no_number(result: Any) -> bool:
    """Whether a result says itself that it is none: a degenerate Value, a NaN or an infinity in it."""
    for leaf in (result, *leaves(result)):
        if getattr(leaf, "degenerate", None):
            return True
        number = isinstance(leaf, float | np.ndarray | np.floating) and np.asarray(leaf).dtype.kind in "fc"
        if number and not np.isfinite(leaf).all():
            return True
    return any(isinstance(leaf, str) and ("rows" in leaf or "finite" in leaf) for leaf in leaves(result))


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal, but for rounding."""
    first, second = list(leaves(a)), list(leaves(b))
    if len(first) != len(second):
        return False
    for x, z in zip(first, second, strict=True):
        if isinstance(x, float | np.ndarray | np.floating) and np.asarray(x).dtype.kind == "f":
            if np.shape(x) != np.shape(z) or not np.allclose(x, z, rtol=1e-5, atol=1e-6, equal_nan=True):
                return False
        elif isinstance(x, np.ndarray | int | str | bool) and not np.array_equal(x, z):
            return False
    return True


def snapshot(arguments: dict[str, Any]) -> list[bytes]:
    return [
        np.ascontiguousarray(a).tobytes() for a in leaves(arguments) if isinstance(a, np.ndarray) and a.dtype != object
    ]


NO_ANSWER = object()
#: None is an answer too.
OPTIONAL = ("limit", "random_state", "n_jobs")


def tried(call: Call, argument: str, what: str, odd: Any, right: Any = NO_ANSWER) -> str | None:
    """A finding about one odd argument, or None. right: the result it must have if it is answered."""
    arguments = {name: a.value for name, a in call.arguments.items()} | {argument: odd}
    if odd is None and _may_be_none(call, argument):
        return None
    before = snapshot(arguments)
    kind, found = outcome(call.make(), arguments)
    if kind == "finding":
        return f"{argument} {what}: {found}"
    if snapshot(arguments) != before:
        return f"{argument} {what}: an argument was changed"
    if kind == "result" and right is NO_ANSWER and not no_number(found):
        return f"{argument} {what}: is answered with {str(found)[:100]}"
    if kind == "result" and right is not NO_ANSWER and not same(found, right):
        return f"{argument} {what}: gives another result"
    return None


def _may_be_none(call: Call, argument: str) -> bool:
    parameter = signature(call.make()).parameters.get(argument)
    return argument in OPTIONAL or (parameter is not None and parameter.default is None)


def findings(name: str, seed: int = 0) -> list[str]:
    """All that is wrong with one function."""
    call, rng = CALLS[name], np.random.default_rng(seed)
    arguments = {key: a.value for key, a in call.arguments.items()}
    before = snapshot(arguments)
    kind, right = outcome(call.make(), arguments)
    if kind != "result":
        return [f"{name}: the right arguments are not accepted: {right}"]
    found = [] if snapshot(arguments) == before else [f"{name}: right arguments are changed"]
    for key, arg in call.arguments.items():
        for what, odd in spoiled(arg, rng):
            found.append(tried(call, key, what, odd))
        for what, other in alike(arg):
            found.append(tried(call, key, what, other, right))
    for key, what, odd in sizes(call):
        found.append(tried(call, key, what, odd))
    return [f"{name}: {one}" for one in found if one]


def attack(seed: int, count: int) -> Iterator[str]:
    """Findings in `count` calls drawn at random, one or two arguments odd in each: for a fuzzer with fresh seeds."""
    rng = np.random.default_rng(seed)
    names = sorted(CALLS)
    for _ in range(count):
        name = names[rng.integers(len(names))]
        call, chosen = CALLS[name], {}
        keys = list(call.arguments)
        for key in rng.permutation(keys)[: rng.integers(1, 3)]:
            odd = [o for o in spoiled(call.arguments[key], rng) if o[1] is not None or not _may_be_none(call, key)]
            if odd:
                chosen[key] = odd[rng.integers(len(odd))]
        arguments = {key: a.value for key, a in call.arguments.items()} | {key: v for key, (_, v) in chosen.items()}
        before = snapshot(arguments)
        kind, found = outcome(call.make(), arguments)
        said = ", ".join(f"{key} {what}" for key, (what, _) in chosen.items())
        if kind == "finding":
            yield f"{name}: {said}: {found}"
        elif snapshot(arguments) != before:
            yield f"{name}: {said}: an argument was changed"
        elif kind == "result" and chosen and not no_number(found):
            yield f"{name}: {said}: is answered with {str(found)[:100]}"


# The functions -------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
X, Y = blobs(60, 3, 2, seed=1)
FORGET = np.array([3, 17, 44])
MODEL = LogisticModel(3, lam=1e-2)
MLP = MLPModel(3, h=2, lam=1e-2)
THETA = MODEL.fit((X, Y)).theta
REST = np.delete(np.arange(60), FORGET)
THETA_R = MODEL.fit((X[REST], Y[REST])).theta
NEW = 0.5 * (THETA + THETA_R)
PROBA, PROBA_R = MODEL.predict_proba(NEW, X), MODEL.predict_proba(THETA_R, X)


def floats(value: Any) -> Arg:
    return Arg(np.asarray(value, np.float64), "floats")


MODEL_ARG, ROWS = Arg(MODEL, "model"), Arg((X, Y), "rows")
XA, YA, IDS = Arg(X, "features"), Arg(Y, "labels"), Arg(FORGET, "ids")
SEED, COUNT = Arg(0, "whole"), Arg(20, "count")
T_NEW, T_R, T = (floats(t) for t in (NEW, THETA_R, THETA))
POPULATION = np.stack([RNG.permutation(60)[:30] for _ in range(3)])
MANY = RNG.normal(size=(25, 4))


def nothing(theta: Any, forget: Any, rows: Any) -> Any:
    return theta


def given(function: Callable[..., Any], tied: bool = True, **arguments: Arg) -> Call:
    return Call(lambda: function, arguments, tied)


def _metrics() -> Iterator[tuple[str, Call]]:
    words, proba = Arg(Y, "words"), Arg(PROBA, "proba")
    mlp, mlp_theta = Arg(MLP, "model"), floats(MLP.start(1))
    other = floats(MLP.start(2))
    m = metrics
    yield "align_units", given(m.align_units, model=mlp, theta=mlp_theta, reference=other)
    yield "aligned_rho", given(m.aligned_rho, model=mlp, theta_new=mlp_theta, theta_r=other, theta=floats(MLP.start(3)))
    yield "times", given(m.times, seconds=floats([1.0, 2, 3]), warmup=Arg(1, "whole"))
    seconds = {key: Arg(v, "notnegative") for key, v in (("extra", 3.0), ("retrain", 2.0), ("unlearn", 1.0))}
    yield "break_even", given(m.break_even, **{f"{key}_seconds": v for key, v in seconds.items()})
    yield "throughput", given(m.throughput, seconds=floats([1.0, 2]))
    yield (
        "time_to_rho",
        given(
            m.time_to_rho,
            seconds=floats([1.0, 2]),
            rhos=Arg(np.array([1.0, 0.05]), "results"),
            goal=Arg(0.1, "positive"),
        ),
    )
    yield "parameter_distance", given(m.parameter_distance, theta_new=T_NEW, theta_r=T_R, theta=T)
    yield "rho", given(m.rho, theta_new=T_NEW, theta_r=T_R, theta=T, error=Arg(1e-9, "notnegative"))
    yield "sequential_gap", given(m.sequential_gap, in_turn=T_NEW, at_once=T_R, theta=T)
    yield "solver_error", given(m.solver_error, model=MODEL_ARG, theta=T, rows=ROWS)
    yield "rho_floor", given(m.rho_floor, theta=T, theta_r=T_R, error=Arg(0.1, "notnegative"))
    yield "rho_floor_two", given(m.rho_floor_two, theta=T, theta_r=T_R, theta_r2=T_NEW)
    three = {"theta_new": T_NEW, "theta_r": T_R, "theta": T, "retained": ROWS}
    yield "gradient_residual", given(m.gradient_residual, model=MODEL_ARG, **three)
    yield "excess_loss", given(m.excess_loss, model=MODEL_ARG, **three)
    many, attacks = Arg(MANY, "results"), Arg("published", "word")
    more = Arg(MANY + 1, "results")
    yield ("epsilons", given(m.epsilons, unlearned=many, retrained=more, delta=Arg(1e-5, "share"), attacks=attacks))
    yield ("forgetting", given(m.forgetting, unlearned=many, retrained=more, other_retrained=many))
    parts = ("quality", "retain_u", "retain_r", "test_u", "test_r")
    yield "forgetting_score", given(m.forgetting_score, **{part: Arg(0.5, "finite") for part in parts})
    both = {"proba": proba, "retrained": Arg(PROBA_R, "proba"), "original": proba}
    yield "activation_distance", given(m.activation_distance, **both)
    yield "js_divergence", given(m.js_divergence, **both)
    yield "js_rows", given(m.js_rows, p=proba, q=Arg(PROBA_R, "proba"))
    yield "zrf", given(m.zrf, proba=proba, random_proba=Arg(PROBA_R, "proba"), target=Arg(0.5, "finite"))
    yield "random_proba", given(m.random_proba, model=MODEL_ARG, X=XA, seed=SEED)
    yield "klom_points", given(m.klom_points, unlearned=many, oracle=more)
    data = {"model": MODEL_ARG, "X": XA, "y": YA}
    small = {**data, "unlearn": Arg(nothing, "any"), "s": Arg(30, "count")}
    yield "klom", given(m.klom, **small, forget=IDS, test=ROWS, n_models=COUNT, points=Arg(5, "count"), seed=SEED)
    yield (
        "u_lira",
        given(
            m.u_lira,
            **small,
            r=Arg(4, "count"),
            n_models=Arg(64, "count"),
            n_groups=Arg(1, "count"),
            n_boot=COUNT,
            seed=SEED,
        ),
    )
    yield "entropy", given(m.entropy, proba=proba)
    yield "modified_entropy", given(m.modified_entropy, proba=proba, y=YA)
    attack = {"seed": SEED, "limit": Arg(50, "count")}
    yield (
        "mia_chundawat2023",
        given(m.mia_chundawat2023, False, retain=proba, test=proba, forget=Arg(PROBA_R, "proba"), **attack),
    )
    sides = {part: Arg((PROBA, Y), "any") for part in ("retain", "test", "forget")}
    yield "mia_liu2024", given(m.mia_liu2024, **sides, **attack, shuffle=Arg(True, "switch"))
    own = {"forget_losses": floats(RNG.gamma(1, 1, 30)), "test_losses": floats(RNG.gamma(1, 1, 40))}
    yield "mia_starting_kit", given(m.mia_starting_kit, **own, seed=SEED, splits=Arg(3, "count"))
    yield "mia_gap", given(m.mia_gap, **{part: Arg(0.5, "finite") for part in ("unlearned", "retrained", "original")})
    shares = {"original": Arg(0.5, "finite"), "unlearned": Arg(0.8, "finite"), "retrained": Arg(0.9, "finite")}
    yield "recovery", given(m.recovery, **shares, min_effect=Arg(0.01, "finite"))
    yield "poison_labels", given(m.poison_labels, y=YA, ids=IDS, n_classes=Arg(2, "count"), seed=SEED)
    prepare = Arg(lambda X, y: nothing, "any")
    yield "poison_experiment", given(m.poison_experiment, **data, test=ROWS, prepare=prepare, poison=IDS, seed=SEED)
    yield "fit_population", given(m.fit_population, **data, ids=Arg(POPULATION, "ids"), r=Arg(3, "count"))
    population = Arg(m.fit_population(MODEL, X, Y, POPULATION, 3), "model")
    yield "unlearn_all", given(m.unlearn_all, population=population, unlearn=Arg(nothing, "any"))
    yield "accuracy", given(m.accuracy, predicted=words, y=words, target=Arg(0.5, "finite"))
    yield "accuracy_on", given(m.accuracy_on, model=MODEL_ARG, theta=T, rows=ROWS)
    yield "accuracies", given(m.accuracies, model=MODEL_ARG, theta=T, forget=ROWS, retain=ROWS, test=ROWS)
    yield "f1", given(m.f1, predicted=words, y=words, average=Arg("macro", "word"))
    yield "disagreement", given(m.disagreement, predicted=words, retrained=words, original=words)
    yield "churn", given(m.churn, predicted=words, retrained=words, original=words)
    yield "paired_difference", given(m.paired_difference, values=floats([1.0, 2, 3]), targets=floats([1.0, 1, 1]))
    three = {part: Arg(m.Accuracies(0.5, 0.6, 0.7), "model") for part in ("unlearned", "retrained", "original")}
    yield "tow", given(m.tow, **three)
    yield "tow_mia", given(m.tow_mia, **three, **{f"mia_{k}": Arg(0.5, "share") for k in "uro"})
    steps = {"rate": Arg(0.1, "positive"), "batch": Arg(8, "count"), "max_steps": Arg(50, "whole"), "seed": SEED}
    yield "relearn_steps", given(m.relearn_steps, **data, theta=T, goal=Arg(0.5, "finite"), **steps)
    worse = {"theta_new": T_NEW, "theta_r": floats(0 * THETA), "theta": T}
    yield "relearn_time", given(m.relearn_time, **data, **worse, slack=Arg(0.05, "notnegative"), **steps)
    yield "attack_scores", given(m.attack_scores, **data, theta=T, score=Arg("loss", "word"))
    thetas, forgets = Arg([THETA, THETA_R], "each"), Arg([FORGET, FORGET + 1], "any")
    scores = {"thetas": thetas, "forgets": forgets, "train": ROWS, "test": ROWS, "score": Arg("loss", "word")}
    yield "request_scores", given(m.request_scores, model=MODEL_ARG, **scores, seed=SEED)
    sides = {"members": Arg([own["forget_losses"].value], "each"), "outsiders": Arg([own["test_losses"].value], "each")}
    yield "pooled_attack", given(m.pooled_attack, **sides, rates=Arg([0.1], "any"), n_boot=COUNT, seed=SEED)
    yield "margins", given(m.margins, **data, theta=T)
    yield "losses", given(m.losses, **data, theta=T)
    number = {"value": Arg(0.5, "finite"), "target": Arg(0.5, "finite"), "nothing": Arg(0.5, "finite")}
    yield "Value", given(m.Value, **number)


def _models() -> Iterator[tuple[str, Call]]:
    lam, d = Arg(0.1, "positive"), Arg(3, "count")
    yield "LogisticModel", given(LogisticModel, d=d, n_classes=Arg(2, "count"), lam=lam)
    yield "GeneralisedLinearModel", given(GeneralisedLinearModel, d=d, loss=Arg("squared", "word"), lam=lam)
    sizes = {"d": d, "n_classes": Arg(2, "count"), "h": Arg(2, "count"), "activation": Arg("tanh", "word")}
    theta = MLP.start(1)
    yield (
        "MLPModel",
        given(MLPModel, **sizes, lam=Arg(0.1, "notnegative"), anchor=floats(theta), mu=Arg(0.1, "notnegative")),
    )
    three, Y3 = LogisticModel(3, 3, lam=1e-2), (np.arange(60) % 3).astype(np.uint8)
    targets = X @ np.array([1.0, -1, 0.5]) + 0.1
    kinds = {
        "lr": (MODEL, THETA, YA),
        "softmax": (three, three.fit((X, Y3)).theta, Arg(Y3, "labels")),
        "mlp": (MLP, theta, YA),
        "squared": (GeneralisedLinearModel(3), THETA, Arg(targets, "targets")),
        "poisson": (GeneralisedLinearModel(3, "poisson"), 0.1 * THETA, Arg(np.round(np.exp(0.3 * targets)), "targets")),
    }
    for name, (model, at, y) in kinds.items():
        t = floats(at)
        rows = {"theta": t, "X": XA, "y": y}
        yield f"{name}.penalty_gradient", given(model.penalty_gradient, theta=t)
        for what in ("data_gradient", "gradient", "loss", "hessian"):
            yield f"{name}.{what}", given(getattr(model, what), **rows)
        for what in ("predict", "logits", "predict_proba"):
            if hasattr(model, what):
                yield f"{name}.{what}", given(getattr(model, what), theta=t, X=XA)
        if hasattr(model, "hvp"):
            unread = {} if name == "mlp" else {"y": Arg(Y, "any")}  # the others' Hessian has no labels in it
            yield f"{name}.hvp", given(model.hvp, **(rows | unread), v=t)
        numbers = {"start": t, "tol": Arg(1e-6, "notnegative")}
        set_of = "rows" if name in ("lr", "softmax", "mlp") else "any"
        yield f"{name}.fit", given(model.fit, rows=Arg((X, y.value), set_of), **numbers)
        if hasattr(model, "fit_pairs"):
            pairs = {"ids": Arg(POPULATION, "ids"), "n_forget": Arg(np.array([1, 2, 3]), "ids")}
            yield f"{name}.fit_pairs", given(model.fit_pairs, X=XA, y=y, **pairs)
    yield "mlp.start", given(MLP.start, seed=SEED)
    yield "mlp.train_anchor", given(MLP.train_anchor, X=XA, y=YA, seed=SEED, seeds=Arg(1, "count"))
    model = anchored(X, Y)
    fit = model.fit((X, Y))
    pairs = {"forget_ids": IDS, "forget_starts": Arg(np.array([0, 1, 3]), "ids"), "fit": Arg(fit, "model")}
    yield "mlp.anchored_pairs", given(model.anchored_pairs, X=XA, y=YA, **pairs, tol=Arg(1e-8, "notnegative"))
    yield "mlp.fit_anchored", given(MLPModel(3, h=3).fit_anchored, rows=ROWS, anchor=floats(model.anchor))
    yield "mlp.with_anchor", given(MLP.with_anchor, anchor=floats(theta), mu=Arg(0.1, "notnegative"))


#: Options of the methods, and their kinds.
OF_METHODS = {
    "retrain": {"warm": "switch", "solver": "word", "tol": "notnegative"},
    "retrain-warm": {"solver": "word", "tol": "notnegative"},
    "sisa": {"shards": "count", "slices": "count", "vote": "word", "as_published": "switch"},
    "deltagrad": {"epochs": "count", "batch": "count", "rate": "positive", "memory": "count", "burn_in": "whole"}
    | {"period": "count", "limit": "notnegative", "as_published": "switch"},
    "fyemu": {"level": "word", "noise_rows": "count", "copies": "whole", "retain_per_class": "count"}
    | {"noise_steps": "whole", "noise_rate": "positive", "noise_penalty": "notnegative", "tol": "notnegative"}
    | {"as_published": "switch"},
    "newton": {"solver": "word", "tol": "notnegative"},
    "certified": {
        "sigma": "positive",
        "epsilon": "positive",
        "delta": "share",
        "radius": "positive",
        "tol": "notnegative",
    },
    "influence": {"order": "count", "tau": "finite", "tol": "notnegative"},
    "finetune": {"tol": "notnegative"},
    "d2d": {"iterations": "count", "noise": "switch", "epsilon": "positive", "delta": "share", "tol": "notnegative"},
    "neggrad": {"keep": "share", "tol": "notnegative"},
}
#: Values of options whose default is None.
GIVEN = {"epochs": 3, "batch": 16, "burn_in": 2, "limit": 1.0, "radius": 2.0}


@cache
def method(name: str) -> Any:
    return prepared(METHODS[name](**OPTIONS.get(name, {})), table_of(X, Y), MODEL)


def _baselines() -> Iterator[tuple[str, Call]]:
    table = Arg(table_of(X, Y), "table")
    for name, make in METHODS.items():
        forget = {"forget": IDS, "commit": Arg(False, "switch")}
        yield f"{name}.unlearn", Call(lambda name=name: method(name).unlearn, forget)
        quick = OPTIONS.get(name, {})
        yield (
            f"{name}.prepare",
            Call(
                lambda make=make, quick=quick: make(**quick).prepare, {"table": table, "model": MODEL_ARG, "seed": SEED}
            ),
        )
        values = {key: parameter.default for key, parameter in signature(make).parameters.items()}
        options = {
            key: Arg(GIVEN[key] if values.get(key) is None else values[key], kind)
            for key, kind in OF_METHODS.get(name, {}).items()
        }
        if options:
            yield name, given(make, **options)
    recipe = {"epochs": Arg(3, "whole"), "batch": Arg(8, "count"), "rate": Arg(0.1, "positive")}
    yield "Recipe", given(Recipe, **recipe, adam=Arg(True, "switch"), decay=Arg(True, "switch"))


def _embedding() -> Iterator[tuple[str, Call]]:
    kernel = IsolationKernel(psi=4, t=5, random_state=0).fit(X)

    def fitted(psi: Any, t: Any, random_state: Any, n_jobs: Any) -> Any:
        return IsolationKernel(psi, t, random_state=random_state, n_jobs=n_jobs).fit(X).transform(X[:5]).toarray()

    options = {"psi": Arg(4, "count"), "t": Arg(5, "count"), "random_state": Arg(0, "whole"), "n_jobs": Arg(2, "count")}
    yield "IsolationKernel", given(fitted, **options)
    yield (
        "IsolationKernel.fit",
        given(lambda X: IsolationKernel(t=3, random_state=0).fit(X).partitions_.seeds, X=Arg(X, "floats")),
    )
    yield "IsolationKernel.transform", given(lambda X: kernel.transform(X).toarray(), X=XA)
    yield "IsolationKernel.kernel", given(kernel.kernel, X=XA, Y=Arg(X[:9], "features"))
    partitions = kernel.partitions_

    def counted(X: Any, y: Any) -> Any:
        return KernelMeanEmbedding(partitions, 2).partial_fit(X, y).counts

    def forgotten(X: Any, y: Any) -> Any:
        return KernelMeanEmbedding(partitions, 2).partial_fit(globals()["X"], Y).forget(X, y).counts

    yield "KernelMeanEmbedding.partial_fit", given(counted, X=XA, y=YA)
    yield "KernelMeanEmbedding.forget", given(forgotten, X=XA, y=YA)
    yield (
        "KernelMeanEmbedding",
        given(KernelMeanEmbedding, partitions=Arg(partitions, "model"), n_classes=Arg(2, "count")),
    )
    merge = partial(lambda other: KernelMeanEmbedding(partitions).merge(other).counts)
    yield "KernelMeanEmbedding.merge", given(merge, other=Arg(KernelMeanEmbedding(partitions), "model"))
    assert Partitions is type(partitions)


def _measure() -> Iterator[tuple[str, Call]]:
    calls = Arg({"a": lambda: None}, "any")
    numbers = {"repeats": Arg(2, "count"), "pause": Arg(0.0, "notnegative")}
    yield "interleave", given(lambda **how: list(timing.interleave(**how)), calls=calls, **numbers)


CALLS: dict[str, Call] = {}
for _some in (_metrics, _models, _baselines, _embedding, _measure):
    CALLS.update(_some())
