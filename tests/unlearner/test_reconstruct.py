"""Attacks on a saved directory: each finds the leak that was planted for it, none finds a row in a clean one."""

import functools
import shutil

import numpy as np
import pytest
from command import done, facts_of
from unlearners import curved_data, logistic_data

from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.artifact.directory import load_artifact, save_artifact
from l2ul_fast.unlearner.heads.expansion import Expansion
from l2ul_fast.unlearner.heads.secant import anchor_rows
from l2ul_fast.unlearner.reconstruct import CONFIRMS, INHERENT, OUTSIDE, ROW, reconstruct, verdict
from l2ul_kernels import unpack_cells
from l2ul_kernels.linear import integer_sums as ints

N, D = 800, 5
ROW_ID = 12
MODELS = ("lr", "weighted", "squared", "poisson")


def rows(model="lr", seed=0):
    """(X, y, weights or None)"""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)) + 0.3
    z = X @ rng.normal(size=D) * 0.5
    weights = rng.uniform(0.5, 2.0, N) if model == "weighted" else None
    if model == "squared":
        return X, z + rng.normal(size=N), weights
    if model == "poisson":
        return X, rng.poisson(np.exp(0.5 * z)).astype(float), weights
    return X, (z + rng.logistic(size=N) > 0).astype(int), weights


def fitted(model="lr", seed=0, **options):
    X, y, weights = rows(model, seed)
    return L2UL("lr" if model == "weighted" else model, **options).fit(X, y, weights)


def truth(model="lr", seed=0, row=ROW_ID):
    X, y, _ = rows(model, seed)
    return X[row], y[row]


def named(attacks, name):
    """Those whose names begin so."""
    return [a for a in attacks if a.name.startswith(name)]


def nearest(attacks, name):
    return min((a.error for a in named(attacks, name) if a.error is not None), default=np.inf)


def plant(directory, out, facts=None, **arrays):
    """A copy of an artifact with other arrays or facts, checksums and all."""
    old_facts, old = load_artifact(directory)
    save_artifact(out, old_facts | (facts or {}), old | arrays)
    return out


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """(directory of before, directory of after one row was forgotten)."""
    folder = tmp_path_factory.mktemp("clean")
    u = fitted()
    u.save(folder / "before")
    u.unlearn([ROW_ID])
    u.save(folder / "after")
    assert u.due is None
    return folder / "before", folder / "after"


# Clean ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [2, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_a_clean_directory_gives_no_row(model, store, seeds, tmp_path):
    errors, measured = {}, 0
    for seed in range(40):
        X, y, _ = rows(model, seed)
        u = fitted(model, seed, store_rows=store)
        u.unlearn([ROW_ID]) if store else u.unlearn([ROW_ID], X[[ROW_ID]], y[[ROW_ID]])
        if not store and u.due:
            continue  # could not be saved: there are no rows to expand at
        u.save(tmp_path / str(seed))
        assert u.due is None
        measured += 1
        attacks = reconstruct(tmp_path / str(seed), truth=(X[ROW_ID], y[ROW_ID]), data=None if store else (X, y))
        assert verdict(attacks).chance > 0.5
        assert not [a for a in attacks if a.kind in (INHERENT, OUTSIDE)]
        assert "equal those of the rows that stay" in named(attacks, "sums")[0].used
        note_errors(errors, attacks)
        if measured == seeds:
            break
    assert measured == seeds
    assert {"gradient at theta", "gradient at anchor"} <= set(errors)
    assert not near_the_row(errors)


def note_errors(errors, attacks):
    for a in attacks:
        if a.kind == ROW and a.error is not None:
            errors.setdefault(a.name, []).append(a.error / verdict(attacks).chance)


def near_the_row(errors):
    """Attacks that are nearer than half of chance, in the middle."""
    return {name: found for name, found in errors.items() if np.median(found) < 0.5}


@pytest.mark.parametrize(
    "options", [{"order": 2}, {"anchor": "optimum"}, {"anchor": [0.0] * (D + 1)}, {"penalty": "sum"}]
)
def test_other_expansions_give_no_row(options, tmp_path):
    u = fitted(**options)
    u.unlearn([ROW_ID, 40])
    u.save(tmp_path / "u")
    X, y, _ = rows()
    found = verdict(reconstruct(tmp_path / "u", truth=(X[[ROW_ID, 40]], y[[ROW_ID, 40]])))
    assert found.leaks is False


def test_nothing_in_the_directory_changes(clean):
    before = {path.name: path.read_bytes() for path in clean[1].iterdir()}
    (clean[1] / "state-7-rows.safetensors").write_bytes(b"left by a killed save")
    reconstruct(clean[1], truth=truth())
    assert (clean[1] / "state-7-rows.safetensors").exists()
    (clean[1] / "state-7-rows.safetensors").unlink()
    assert {path.name: path.read_bytes() for path in clean[1].iterdir()} == before


def test_without_truth_attacks_claim_and_nothing_is_measured(clean, tmp_path):
    attacks = reconstruct(plant(clean[1], tmp_path / "x", theta=L2UL.load(clean[0]).theta))
    assert all(a.error is None for a in attacks)
    assert verdict(attacks).leaks is None
    claim = named(attacks, "gradient at theta")[0].row
    np.testing.assert_allclose(claim, truth()[0], atol=0.2)


# Planted -------------------------------------------------------------------------------------------------------------


def with_term(directory, which):
    """`sums` with the row's terms of one kind put back."""
    before, after = (load_artifact(path)[1]["expansion.sums"] for path in directory)
    p, at = D + 1, ints.moments_at(D + 1, 2)
    ends = {"moments": (at, p), "G": (at + p, p), "H": (at + 2 * p, p * (p + 1) // 2)}
    ends["T"] = (ends["H"][0] + ends["H"][1], p * (p + 1) * (p + 2) // 6)
    part = slice(ends[which][0], sum(ends[which]))
    sums = after.copy()
    sums[part] = before[part]
    return sums


@pytest.mark.parametrize(("which", "largest"), [("G", 1e-9), ("H", 1e-9), ("T", 1e-3), ("moments", 2.0)])
def test_a_term_left_in_the_sums(clean, which, largest, tmp_path):
    planted = plant(clean[1], tmp_path / "x", **{"expansion.sums": with_term(clean, which)})
    attack = named(reconstruct(planted, truth=truth()), f"sums: {which}")[0]
    assert attack.error < largest
    np.testing.assert_allclose(np.abs(attack.row), np.abs(truth()[0]), rtol=1e-3)  # moments know no signs


def newton_steps(k):
    """theta after k Newton steps on the rows that stay, from the optimum with the row."""
    X, y, _ = rows()
    wide, penalised = np.hstack([X, np.ones((N, 1))]), np.arange(D + 1) < D
    stay = np.arange(N) != ROW_ID

    def step(theta, these):
        Z, n = wide[these], these.sum()
        s = 1 / (1 + np.exp(-Z @ theta))
        J = (Z.T * (s * (1 - s))) @ Z + 1e-3 * n * np.diag(penalised)
        return theta - np.linalg.solve(J, Z.T @ (s - y[these]) + 1e-3 * n * penalised * theta)

    theta = np.zeros(D + 1)
    for _ in range(12):
        theta = step(theta, np.ones(N, bool))
    for _ in range(k):
        theta = step(theta, stay)
    return theta


@pytest.mark.parametrize(
    ("steps", "name", "largest"),
    [(0, "gradient at theta", 1e-6), (1, "Newton inverted, one step", 1e-4), (2, "Newton inverted, two steps", 0.2)],
)
def test_a_theta_that_stopped_too_early(clean, steps, name, largest, tmp_path):
    """Two Newton steps from the old optimum are not enough to hide it."""
    planted = plant(clean[1], tmp_path / "x", theta=newton_steps(steps))
    assert nearest(reconstruct(planted, truth=truth()), name) < largest


def test_a_theta_that_was_brought_to_rounding_is_safe(clean, tmp_path):
    planted = plant(clean[1], tmp_path / "x", theta=newton_steps(4))
    assert verdict(reconstruct(planted, truth=truth())).leaks is False


def test_a_theta_that_is_not_that_of_its_integers(clean, tmp_path):
    """The theta of before, and one that was never polished."""
    planted = plant(clean[1], tmp_path / "x", theta=L2UL.load(clean[0]).theta)
    assert nearest(reconstruct(planted, truth=truth()), "last bits of theta") < 1e-6


def test_an_anchor_that_is_the_optimum_with_the_row(clean, tmp_path):
    u = fitted(anchor="optimum")
    u.unlearn([ROW_ID])
    head = u.head
    planted = plant(clean[1], tmp_path / "x", {"head_facts": head.facts()}, theta=head.canonical(), **head.arrays())
    assert nearest(reconstruct(planted, truth=truth()), "gradient at anchor") < 1e-6


@pytest.mark.parametrize(("array", "value"), [("X", None), ("y", 1), ("weights", 1.5)])
def test_a_place_that_is_not_overwritten(array, value, tmp_path):
    model = "weighted" if array == "weights" else "lr"
    u = fitted(model)
    u.unlearn([ROW_ID, 13])
    u.save(tmp_path / "u")
    x, label = truth(model)
    kept = load_artifact(tmp_path / "u")[1][array].copy()
    kept[ROW_ID] = x if value is None else value
    attacks = reconstruct(plant(tmp_path / "u", tmp_path / "x", **{array: kept}), truth=(x, label))
    if array == "X":
        assert nearest(attacks, "stored row") == nearest(attacks, "verbatim") == 0.0
    else:
        assert named(attacks, {"y": "stored label", "weights": "stored weight"}[array])


def test_a_single_request_overwrites_the_weight(tmp_path):
    u = fitted("weighted")
    u.unlearn([ROW_ID])
    u.save(tmp_path / "u")
    assert not named(reconstruct(tmp_path / "u"), "stored weight")


def test_a_scale_that_only_the_row_can_have_set(tmp_path):
    X, y, _ = rows()
    X[ROW_ID, 2] = 60.0
    stay = np.arange(N) != ROW_ID
    u = L2UL("lr").fit(X, y)
    u.unlearn([ROW_ID])
    exponents = L2UL("lr").fit(X, y).head.exponents
    stale = Expansion.at(u.head.setup, u.head.anchor, exponents, _passes(X[stay], y[stay]))
    stale.settle()
    u.save(tmp_path / "u")
    assert nearest(reconstruct(tmp_path / "u", truth=(X[ROW_ID], y[ROW_ID])), "scales") == np.inf
    planted = plant(tmp_path / "u", tmp_path / "x", theta=stale.theta, **stale.arrays())
    assert nearest(reconstruct(planted, truth=(X[ROW_ID], y[ROW_ID])), "scales") < 0.4


def _passes(X, y):
    from l2ul_fast.tables import ArrayTable
    from l2ul_fast.unlearner.passes import LocalPasses

    return LocalPasses(ArrayTable(X, y.astype(np.uint8), [0, 1]))


def test_a_grid_point_that_the_row_has_moved(clean, tmp_path):
    arrays, u = load_artifact(clean[1])[1], L2UL.load(clean[1])
    X, y, _ = rows()
    stay = np.arange(N) != ROW_ID
    point = arrays["expansion.anchor"].copy()
    point[0] += 2.0**-6
    moved = Expansion.at(u.head.setup, point, arrays["expansion.exponents"], _passes(X[stay], y[stay]))
    moved.settle()
    planted = plant(clean[1], tmp_path / "x", theta=moved.theta, **moved.arrays())
    attacks = reconstruct(planted, truth=truth())
    assert "differs in 1 coordinate" in named(attacks, "grid point")[0].used
    assert not verdict(attacks).leaks  # a cell is not a row


def test_a_file_that_was_left_behind(clean, tmp_path):
    shutil.copytree(clean[1], tmp_path / "u")
    old = next(clean[0].glob("state-*-rows.safetensors"))
    shutil.copy(old, tmp_path / "u" / "state-99-rows.safetensors")
    attacks = reconstruct(tmp_path / "u", truth=truth())
    assert nearest(attacks, "leftover bytes") == nearest(attacks, "verbatim") == 0.0
    assert (tmp_path / "u" / "state-99-rows.safetensors").exists()


@pytest.mark.parametrize("form", ["<f8", "<f4", "text"])
def test_bytes_that_nothing_needs(clean, form, tmp_path):
    """A redo record, slack at the end of a file, somebody's notes."""
    shutil.copytree(clean[1], tmp_path / "u")
    x = truth()[0]
    content = f'{{"redo": {x.tolist()}'.encode() if form == "text" else b"\xff\xff\xff" + x.astype(form).tobytes()
    names = ("notes.bin", "ledger.jsonl", "journal.jsonl")
    for name in names:
        with open(tmp_path / "u" / name, "ab") as file:
            file.write(content)
    as_found = x if form == "text" else x.astype(form).astype(float)
    attacks = reconstruct(tmp_path / "u", truth=(as_found, truth()[1]))
    assert max(nearest(attacks, f"leftover bytes in {name}") for name in names) < 1e-6
    assert form == "text" or nearest(attacks, "verbatim") == 0.0


@pytest.mark.parametrize("what", ["row", "mean", "gradient", "encoded"])
def test_numbers_in_the_facts(clean, what, tmp_path):
    import base64

    x, _ = truth()
    X = rows()[0]
    value = {
        "row": x.tolist(),
        "mean": X.mean(axis=0).tolist(),
        "gradient": (0.3 * np.append(x, 1.0)).tolist(),
        "encoded": base64.b64encode(x.astype("<f4").tobytes()).decode(),
    }[what]
    report = load_artifact(clean[1])[0]["report"]
    planted = plant(clean[1], tmp_path / "x", {"report": report | {"extra": value}})
    assert nearest(reconstruct(planted, truth=truth()), "numbers in") < 1e-6


def test_figures_and_digests_confirm_a_candidate(clean, tmp_path):
    report = load_artifact(clean[1])[0]["report"]
    figure = fitted().report_["gradient_norm"]
    planted = plant(clean[1], tmp_path / "x", {"report": report | {"gradient_norm": figure}})
    attacks = reconstruct(planted, truth=truth())
    assert nearest(attacks, "figure gradient_norm") == 0.0
    assert named(attacks, "figure")[0].kind == CONFIRMS
    attacks = reconstruct(clean[1], truth=truth())  # its ledger has the digest of the theta that was saved before
    assert nearest(attacks, "digests in ledger") == 0.0
    assert not verdict(attacks).leaks
    X, y, _ = rows()
    others = reconstruct(clean[1], truth=truth(), candidates=(X[20:30], y[20:30]))
    assert nearest(others, "digests in ledger") == np.inf


def test_a_digest_of_the_row_that_is_still_there(tmp_path):
    X, y, _ = rows()
    u = fitted(store_rows=False)
    digest = u.store.digest(X[[ROW_ID]], y[[ROW_ID]])
    u.unlearn([ROW_ID], X[[ROW_ID]], y[[ROW_ID]])
    u.save(tmp_path / "u")
    digests = load_artifact(tmp_path / "u")[1]["digests"].copy()
    digests[ROW_ID] = digest[0]
    planted = plant(tmp_path / "u", tmp_path / "x", digests=digests)
    attacks = reconstruct(planted, truth=truth(), data=(X, y))
    assert nearest(attacks, "digest") == 0.0
    assert not [a for a in reconstruct(planted, truth=truth()) if a.kind == ROW and a.row is not None]


@pytest.mark.parametrize("model", MODELS)
def test_two_snapshots_give_the_row(model, tmp_path):
    u = fitted(model)
    u.save(tmp_path / "before")
    u.unlearn([ROW_ID])
    u.save(tmp_path / "after")
    attacks = reconstruct(tmp_path / "after", tmp_path / "before", truth=truth(model))
    assert nearest(attacks, "two snapshots: expansion") < 1e-6
    assert nearest(attacks, "two snapshots: sums: G") < 1e-9
    assert {a.kind for a in named(attacks, "two snapshots")} == {INHERENT}
    assert not verdict(attacks).leaks


# Heads without integer sums ------------------------------------------------------------------------------------------

SMALL = {"m": 60, "s": 400, "t": 20}
MLP = {"hidden": 3, "anchor_rows": 200}
HEADS = {
    "learned": ("lr", 2, {"head": "learned", **SMALL}),
    "kme": ("lr", 2, {"head": "kme", "psi": 4, **SMALL}),
    "paper": ("lr", 2, {"head": "paper", **SMALL}),
    "multinomial": ("lr", 3, {}),
    "mlp": ("mlp", 2, MLP),
    "mlp without anchor": ("mlp", 2, MLP | {"anchor_rows": 0}),
    "learned mlp": ("mlp", 2, {"head": "learned", "m": 80, "t": 20, **MLP}),
}


def other_rows(model, classes, seed):
    if model == "mlp":
        return curved_data(N, seed)
    return logistic_data(N, D, classes, seed, np.float64)


@functools.cache
def _fitted_once(name, seed):
    model, classes, own = HEADS[name]
    X, y = other_rows(model, classes, seed)
    return L2UL(model, **own).fit(X, y), X, y


def fitted_head(name, seed=0):
    """(unlearner, X, y)"""
    if name == "paper":
        pytest.importorskip("torch")
    u, X, y = _fitted_once(name, seed)
    return u.copy(), X, y


@pytest.mark.parametrize("seeds", [2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", HEADS)
def test_a_sealed_directory_gives_no_row(name, seeds, tmp_path):
    errors = {}
    for seed in range(seeds):
        fitted, X, y = fitted_head(name, seed)
        rows_in_use = [ROW_ID]
        if getattr(fitted.head, "cells", None) is not None:  # a seed, which is kept verbatim
            rows_in_use.append(int(fitted.head.cells.partitions.row_ids[3, 1]))
        if name == "mlp":
            rows_in_use.append(int(anchor_rows(fitted.params, fitted.retained())[7]))
        for row in rows_in_use:
            u = fitted.copy()
            u.unlearn([row])
            assert u.due
            folder = tmp_path / f"{seed} {row}"
            u.save(folder)
            attacks = reconstruct(folder, truth=(X[row], y[row]))
            assert not named(attacks, "due")
            note_errors(errors, attacks)
    assert "gradient at theta" in errors
    assert not near_the_row(errors)


@pytest.mark.parametrize("name", HEADS)
def test_a_directory_that_is_due_gives_the_row_and_says_so(name, tmp_path):
    u, X, y = fitted_head(name)
    u.save(tmp_path / "before")
    u.unlearn([ROW_ID])
    u.save(tmp_path / "u", defer=True)
    attacks = reconstruct(tmp_path / "u", tmp_path / "before", truth=(X[ROW_ID], y[ROW_ID]))
    assert named(attacks, "due")
    assert verdict(attacks).best.error < 1e-3
    assert nearest(attacks, "two snapshots: gradient") < 1e-3


@pytest.mark.parametrize("what", ["total", "hessian"])
def test_a_term_left_in_sums_of_floats(what, tmp_path):
    u, X, y = fitted_head("multinomial")
    row = X[[ROW_ID]], np.searchsorted(u.classes_, y[[ROW_ID]]).astype(np.uint8)
    u.unlearn([ROW_ID])
    u.save(tmp_path / "u")
    theta, kept = u.theta, load_artifact(tmp_path / "u")[1][f"secant.{what}"]
    term = u.model.data_gradient(theta, *row)
    if what == "hessian":
        H = u.model.hessian(theta, *row) - 1e-3 * np.diag(u.model.penalty_gradient(np.ones(theta.size)) > 0)
        term = H[np.tril_indices(theta.size)]
    planted = plant(tmp_path / "u", tmp_path / "x", **{f"secant.{what}": kept + term})
    assert nearest(reconstruct(planted, truth=(X[ROW_ID], y[ROW_ID])), f"{what} - ") < 1e-6


def test_an_inverse_hessian_with_the_row(tmp_path):
    u, X, y = fitted_head("mlp")
    u.unlearn([ROW_ID])
    u.save(tmp_path / "u")
    everything = u.model.hessian(u.theta, X, np.searchsorted(u.classes_, y).astype(np.uint8))
    inverse = np.linalg.inv(everything)[np.tril_indices(u.theta.size)].astype(np.float32)
    planted = plant(tmp_path / "u", tmp_path / "x", **{"secant.inverse": inverse})
    attacks = reconstruct(planted, truth=(X[ROW_ID], y[ROW_ID]))
    assert nearest(attacks, "inverse - Hessians at theta") < 0.1


def test_newton_inverted_for_a_softmax(tmp_path):
    """The seal must go on until rounding stops it, and hide what is left by rounding theta."""
    u, X, y = fitted_head("multinomial")
    optimum = u.theta
    u.unlearn([ROW_ID])
    u.save(tmp_path / "u")
    stay = np.arange(N) != ROW_ID
    rest = X[stay], np.searchsorted(u.classes_, y[stay]).astype(np.uint8)
    free = (u.model.penalty_gradient(np.ones(u.theta.size)) == 0).astype(float)
    optimum = u.model.fit((X, np.searchsorted(u.classes_, y).astype(np.uint8)), start=optimum, tol=0.0).theta
    J = u.model.hessian(optimum, *rest) + np.outer(free, free)
    stale = optimum - np.linalg.solve(J, u.model.gradient(optimum, *rest))
    planted = plant(tmp_path / "u", tmp_path / "x", theta=stale, **{"secant.theta": stale})
    assert nearest(reconstruct(planted, truth=(X[ROW_ID], y[ROW_ID])), "Newton inverted, one step") < 1e-3


def test_a_pair_that_forgot_the_row(tmp_path):
    u, X, y = fitted_head("learned")
    u.unlearn([ROW_ID])
    u.save(tmp_path / "u")
    labels = np.searchsorted(u.classes_, y).astype(np.uint8)
    Z = [
        u.model.data_gradient(u.theta, X[[i]], labels[[i]]) + u.model.penalty_gradient(u.theta)
        for i in (3, 40, ROW_ID, 9)
    ]
    planted = plant(tmp_path / "u", tmp_path / "x", **{"pairs.Z": np.array(Z)})
    assert nearest(reconstruct(planted, truth=(X[ROW_ID], y[ROW_ID])), "pairs: pairs.Z") < 1e-6


@pytest.mark.parametrize("what", ["packed", "counts", "seeds"])
def test_cells_of_the_row(what, tmp_path):
    u, X, y = fitted_head("kme")
    row = int(u.head.cells.partitions.row_ids[3, 1])
    before = {name: np.array(array) for name, array in u.head.arrays().items()}
    cells = u.head.cells
    packed = before["cells.packed"][row]
    u.unlearn([row])
    u.save(tmp_path / "u")
    arrays = load_artifact(tmp_path / "u")[1]
    changed = {name: np.array(array) for name, array in arrays.items() if name.startswith("cells.")}
    partitions = np.any(changed["cells.seeds"] != before["cells.seeds"], axis=(1, 2))
    assert partitions.any()
    if what == "seeds":
        changed["cells.seeds"][3, 1] = X[row]
    elif what == "packed":
        changed["cells.packed"][row] = packed
    else:
        own = unpack_cells(packed[None], cells.t, cells.psi)[0]
        changed["cells.counts"][1, np.arange(cells.t), own] += 1
        changed["cells.counts"][1, np.arange(cells.t), (own + 1) % cells.psi] -= 1  # the number of rows is checked
    planted = plant(tmp_path / "u", tmp_path / "x", **changed)
    attacks = reconstruct(planted, truth=(X[row], y[row]))
    name = {"packed": "stored cells", "counts": "cell counts", "seeds": "seeds"}[what]
    assert nearest(attacks, name) < (1e-6 if what == "seeds" else 0.75 * verdict(attacks).chance)


# Command line --------------------------------------------------------------------------------------------------------


def test_command_line(clean, tmp_path):
    x, y = truth()
    np.savez(tmp_path / "truth.npz", X=x, y=y)
    (tmp_path / "truth.csv").write_text(",".join(map(repr, map(float, x))) + f",{y}\n")
    found = [facts_of("reconstruct", clean[1], "--truth-file", tmp_path / f"truth.{form}") for form in ("npz", "csv")]
    assert found[0] == found[1]
    assert found[0]["leaks"] is False
    assert found[0]["chance"] == verdict(reconstruct(clean[1], truth=truth())).chance
    out = done("reconstruct", clean[1], "--truth-file", tmp_path / "truth.csv", "--before", clean[0])
    assert "nothing deterministic can hide the row" in out
    assert out.splitlines()[-1].endswith("no attack is nearer than half of chance")
    planted = plant(clean[1], tmp_path / "x", theta=newton_steps(0))
    assert done("reconstruct", planted, "--truth-file", tmp_path / "truth.csv").endswith("THE ROW LEAKS\n")
    out = done("reconstruct", planted)
    assert "give the forgotten row with --truth-file" in out
    assert "claims" in out


def test_rows_of_a_data_file(tmp_path):
    """The truth is read from the user's file, whose mean is a function of the row; the model's are coarse."""
    path = facts_of("data", "make", "magic", "--rows", 1000, "--data-dir", tmp_path)["path"]
    L2UL("lr").fit(path).save(tmp_path / "fitted")
    errors = {}
    for i in (17, 100, 500):
        u = L2UL.load(tmp_path / "fitted")
        u.unlearn([int(u.retained().ids()[i])])
        u.save(tmp_path / str(i))
        for a in facts_of("reconstruct", tmp_path / str(i))["attacks"]:
            if a["error"] is not None:
                errors.setdefault((a["kind"], a["name"]), []).append(a["error"])
    assert max(errors[OUTSIDE, "data file: mean"]) < 1e-4
    assert not {name for (kind, name), found in errors.items() if kind == ROW and np.median(found) < 0.4}
