"""Unlearners on disk: round trips, other or damaged files, no trace of a forgotten row, crashes at every write."""

import json
import shutil

import numpy as np
import pytest
from faults import crash_points, error_points, kill_at, traces
from unlearners import SCRATCH, TIMES, contents, curved_data, kept, logistic_data, same_contents, small

from l2ul_fast.datasets.hdf5 import DatasetWriter
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.artifact import check_artifact, load_artifact, read_header, save_artifact

LR, MLP = logistic_data(), curved_data()
KINDS = {
    "newton": lambda: small().fit(*LR),
    "learned": lambda: small(prior="none").fit(*LR),
    "direct": lambda: small(head="direct").fit(*LR),
    "three classes": lambda: small().fit(*logistic_data(classes=3)),
    "double": lambda: small(prior="none").fit(*logistic_data(dtype=np.float64)),
    "words": lambda: small(m=20).fit(LR[0], np.array(["no", "yes"])[LR[1]]),
    "one pair": lambda: small(m=1).fit(*LR),
    "no rows": lambda: small(store_rows=False).fit(*LR),
    "mlp": lambda: small("mlp").fit(*MLP),
    "mlp learned": lambda: small("mlp", prior="none").fit(*MLP),
    "mlp plain": lambda: small("mlp", anchor_rows=0, s=300).fit(*MLP),
    "mlp direct": lambda: small("mlp", head="direct", s=300).fit(*MLP),
}
#: What differs between an unlearner and the same one loaded: where it came from, and what is derived when needed.
BOOKS = (
    *SCRATCH, *TIMES, "entries", "history", "saved_to", "generation", "forget_log", "inverse", "curves", "_forward"
)  # fmt: skip


def write_file(path, data=LR, order=None):
    X, y = data
    order = np.arange(len(X)) if order is None else order
    with DatasetWriter(path, name="magic", source="standin:t:0", d=X.shape[1], classes=[0, 1]) as writer:
        writer.append(X[order] * 3 + 100, y[order])
    return path


def request(u, rows):
    """The same request for every kind of store."""
    data = LR if u.d == 6 else MLP
    return u.unlearn(rows, X=data[0][rows], y=data[1][rows]) if not u.params["store_rows"] else u.unlearn(rows)


# Round trips ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_unlearner_answers_as_the_saved_one(tmp_path, kind):
    u = KINDS[kind]()
    u.save(tmp_path / "a")
    v = L2UL.load(tmp_path / "a")
    same_contents(contents(v, BOOKS), contents(u, BOOKS))
    rows = np.array([3, 900, 41])
    np.testing.assert_array_equal(request(v, rows).theta, request(u, rows).theta)
    # now one that has forgotten rows, and one more round
    v.save(tmp_path / "a")
    w = L2UL.load(tmp_path / "a")
    same_contents(contents(w, BOOKS), contents(v, BOOKS))
    assert [e["rows"].tolist() for e in w.forget_log] == [[3, 41, 900]]
    assert [e["n"] for e in w.forget_log] == [w.n]
    assert w.forget_log[0]["time"] == pytest.approx(v.forget_log[0]["time"], abs=0.01)
    with pytest.raises(UserError, match="forgotten before"):
        request(w, rows[:1])
    move = np.linalg.norm(u.theta - KINDS[kind]().theta)
    np.testing.assert_allclose(request(w, np.array([7])).theta, request(u, np.array([7])).theta, atol=1e-5 * move)
    check_artifact(tmp_path / "a")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no rows"])
def test_refresh_after_a_round_trip(tmp_path, kind):
    u = KINDS[kind]()
    row = int(u.cells.partitions.row_ids[2, 0])
    u.unlearn([row])
    u.save(tmp_path)
    v = L2UL.load(tmp_path)
    done = v.refresh()
    assert done == u.refresh()
    assert done["partitions"] >= 1
    same_contents(contents(v, BOOKS), contents(u, BOOKS))
    v.save(tmp_path)
    w = L2UL.load(tmp_path)
    same_contents(contents(w, BOOKS), contents(v, BOOKS))
    np.testing.assert_array_equal(w.unlearn([5]).theta, v.unlearn([5]).theta)


def test_a_file_is_found_again_and_recognised(tmp_path):
    path = write_file(tmp_path / "a.h5")
    u = small().fit(path)
    rows = u.retained().ids()[[5, 700]]
    u.unlearn(rows)
    u.save(tmp_path / "u")
    v = L2UL.load(tmp_path / "u")
    same_contents(
        contents(v, (*BOOKS, "_table", "_mapped", "_where")), contents(u, (*BOOKS, "_table", "_mapped", "_where"))
    )
    assert v.label == "stand-in"
    assert not list((tmp_path / "u").glob("*-rows.*"))  # the rows stay where they are
    more = v.retained().ids()[[9]]
    np.testing.assert_allclose(v.unlearn(more).theta, u.unlearn(more).theta, atol=1e-12)
    shutil.move(path, tmp_path / "b.h5")
    with pytest.raises(DataError, match=r"a\.h5.*say where it is with --data"):
        L2UL.load(tmp_path / "u")
    moved = L2UL.load(tmp_path / "u", data=tmp_path / "b.h5")
    assert moved.n == v.n + 1
    moved.save(tmp_path / "u")
    assert L2UL.load(tmp_path / "u").n == moved.n  # the new place is remembered
    write_file(path, logistic_data(seed=1))
    write_file(tmp_path / "c.h5", order=np.random.default_rng(0).permutation(2000))
    for other in (path, tmp_path / "c.h5"):
        with pytest.raises(DataError, match=r"not the file this model was fitted on|holds other rows"):
            L2UL.load(tmp_path / "u", data=other)


def test_rows_in_another_order_are_noticed_by_their_cells(tmp_path, monkeypatch):
    """Even if everything that is noted about a file agrees."""
    monkeypatch.setattr("l2ul_fast.datasets.cellstore.fingerprint", lambda shards: "equal")
    small().fit(write_file(tmp_path / "a.h5")).save(tmp_path / "u")
    L2UL.load(tmp_path / "u")
    write_file(tmp_path / "b.h5", order=np.roll(np.arange(2000), 1))
    with pytest.raises(DataError, match="holds other rows, or in another order"):
        L2UL.load(tmp_path / "u", data=tmp_path / "b.h5")


def test_another_directory_gets_the_whole_history(tmp_path):
    u = KINDS["newton"]()
    u.save(tmp_path / "a")
    u.unlearn([1, 2])
    u.save(tmp_path / "a")
    u.unlearn([3])
    u.refresh()
    u.save(tmp_path / "b")
    actions = [e["action"] for e in check_artifact(tmp_path / "b").entries]
    assert actions == ["fit", "unlearn", "unlearn", "refresh"]
    assert check_artifact(tmp_path / "a").forgotten().tolist() == [1, 2]
    assert check_artifact(tmp_path / "b").forgotten().tolist() == [1, 2, 3]
    old = L2UL.load(tmp_path / "a")
    other = L2UL.load(tmp_path / "a")
    old.unlearn([10])
    old.save(tmp_path / "a")
    other.unlearn([11])
    with pytest.raises(DataError, match="changed by someone else"):
        other.save(tmp_path / "a")
    assert check_artifact(tmp_path / "a").forgotten().tolist() == [1, 2, 10]
    KINDS["newton"]().save(tmp_path / "a")  # a new fit replaces it, the ledger goes on
    assert len(check_artifact(tmp_path / "a").entries) == 4
    assert L2UL.load(tmp_path / "a").forget_log == []


# Damage --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sound") / "u"
    u = KINDS["learned"]()
    u.unlearn([3])
    u.save(directory)
    return directory


def test_every_damaged_file_is_one_sentence(tmp_path, sound):
    for name in sorted(p.name for p in sound.iterdir() if p.stat().st_size):
        for change in ("flip", "cut", "gone"):
            directory = shutil.copytree(sound, tmp_path / f"{name}-{change}")
            path = directory / name
            content = bytearray(path.read_bytes())
            if change == "gone":
                path.unlink()
            else:
                content[len(content) // 2] ^= 1
                path.write_bytes(content if change == "flip" else content[: len(content) // 2])
            with pytest.raises(DataError) as caught:
                L2UL.load(directory)
            assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="there is no artifact"):
        L2UL.load(tmp_path / "nowhere")


def rewrite(directory, change):
    """Save the artifact again with other facts or arrays: the checksums are right, the content is not."""
    facts, arrays = load_artifact(directory)
    groups = {group: list(record.arrays) for group, record in read_header(directory).files.items() if group != "main"}
    change(facts, arrays)
    groups = {group: [name for name in names if name in arrays] for group, names in groups.items()}
    save_artifact(directory, facts, arrays, groups={group: names for group, names in groups.items() if names})


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("lacks or garbles 'params'", lambda f, a: f.pop("params")),
        ("lacks or garbles 'theta'", lambda f, a: a.pop("theta")),
        ("lacks or garbles", lambda f, a: f["params"].update(nonsense=1)),
        ("psi must be", lambda f, a: f["params"].update(psi=1)),
        ("unknown kind", lambda f, a: f.update(step="OtherStep")),
        ("do not add up", lambda f, a: f.update(n=5)),
        ("do not add up", lambda f, a: a.update(forgotten=np.array([3, 4]))),
        ("lacks or garbles", lambda f, a: a.update(forgotten=np.array([5000]))),
        ("theta, which has shape", lambda f, a: a.update(theta=np.zeros(3))),
        ("W, which has shape", lambda f, a: a.update({"step.W": np.zeros((2, 2))})),
        ("packed, which has shape", lambda f, a: a.update(packed=a["packed"][:, :2])),
        ("counts", lambda f, a: a.update(counts=a["counts"][:, :5])),
        ("X, which has shape", lambda f, a: a.update(X=a["X"][:7])),
        ("labels of other classes", lambda f, a: a["y"].__setitem__(0, 9)),
    ],
)  # fmt: skip
def test_a_state_that_makes_no_sense_is_one_sentence(tmp_path, sound, match, change):
    directory = shutil.copytree(sound, tmp_path / "u")
    rewrite(directory, change)
    with pytest.raises(UserError, match=match) as caught:
        L2UL.load(directory)
    assert "\n" not in str(caught.value)


def test_another_version_is_one_sentence(tmp_path, sound, monkeypatch):
    directory = shutil.copytree(sound, tmp_path / "u")
    monkeypatch.setattr("l2ul_fast.unlearner.header.FORMAT_VERSION", 2)
    with pytest.raises(DataError, match="made by format version 1, this program reads 2"):
        L2UL.load(directory)


# No trace ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no rows"])
def test_nothing_of_a_forgotten_row_is_left(tmp_path, kind):
    u = KINDS[kind]()
    X = u.store.X.copy()
    packed = u.cells.packed.copy()
    seed = int(u.cells.partitions.row_ids[1, 2])
    own = getattr(u.step, "anchor_rows", np.array([7]))
    rows = np.unique([seed, int(own[0]), 1234])
    before = {int(row): u.cells.packed[row].copy() for row in rows}
    theta = u.theta.copy()
    u.save(tmp_path)
    for row in rows:
        assert traces(tmp_path, X[row], before[int(row)])  # the search finds what is there
    u.unlearn([int(rows[0])])  # as one call, and the long way
    first = u.theta.copy()
    u.unlearn(rows[1:])
    u.refresh()
    u.save(tmp_path)
    others = packed[kept(len(X), rows)]
    for row in rows:
        unique = not (others == before[int(row)]).all(axis=1).any()
        assert traces(tmp_path, X[row], before[int(row)] if unique else None) == []
    _, arrays = load_artifact(tmp_path)
    ids = {"pairs.rows", "seed_rows", "step.anchor_rows", "forgotten"} & set(arrays)
    assert [name for name in sorted(ids) if np.isin(arrays[name], rows).any()] == ["forgotten"]
    # neither the parameters that knew the rows nor what the request computed from them
    held = contents(u, ("_packed",))
    for needle in (theta.tobytes(), first.tobytes()):
        assert not [name for name, array in arrays.items() if needle in array.tobytes()]
        assert not [name for name, value in held.items() if isinstance(value, tuple) and needle in value[2]]
    for row in rows:
        pattern = X[row].tobytes()
        assert not [name for name, value in held.items() if isinstance(value, tuple) and pattern in value[2]]
    scratch = [getattr(u.step, name) for name in ("_work", "_total", "_single", "_memory") if hasattr(u.step, name)]
    if hasattr(u.step, "_forward"):
        scratch += [u.step._forward._room, u.step._forward._places]
    assert not any(array.any() for array in scratch)
    text = json.loads((tmp_path / "artifact.json").read_text())
    assert 1234 not in _numbers(text)
    last = [e for e in check_artifact(tmp_path).entries if e["action"] == "unlearn"]
    assert len(last) == 2


def _numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, int | float) else []


# Crashes -------------------------------------------------------------------------------------------------------------

ROWS = [5, 8, 700]


def save_fitted(directory):
    small(prior="none", m=30, s=100).fit(*LR).save(directory)


def forget(directory):
    u = L2UL.load(directory)
    u.unlearn(ROWS)
    u.save(directory)


def forget_and_refresh(directory):
    u = L2UL.load(directory)
    u.unlearn([*ROWS, int(u.cells.partitions.row_ids[0, 0])])
    u.refresh()
    u.save(directory)


def whole_state(directory):
    u = L2UL.load(directory)
    check_artifact(directory)
    return contents(u, BOOKS)


@pytest.mark.parametrize("power_loss", [0, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("action", [forget, forget_and_refresh])
def test_a_crash_at_any_write_leaves_the_old_or_the_new_state(tmp_path, action, power_loss):
    for name, steps in (("old", [save_fitted]), ("new", [save_fitted, action])):
        for step in steps:
            step(tmp_path / name)
    old, new = whole_state(tmp_path / "old"), whole_state(tmp_path / "new")
    assert old != new

    def check(directory, finished):
        found = whole_state(directory)
        if found == old:
            assert not finished
            assert check_artifact(directory).forgotten().size == 0
            action(directory)
            found = whole_state(directory)
        same_contents(found, new)
        assert np.isin(ROWS, check_artifact(directory).forgotten()).all()

    assert crash_points(tmp_path / "work", save_fitted, action, check, power_loss) > 10


def test_a_full_disk_keeps_the_old_state_and_the_object_goes_on(tmp_path):
    made = {}

    def action(directory):
        made["u"] = u = L2UL.load(directory)
        u.unlearn(ROWS)
        u.save(directory)

    def check(directory, raised):
        forgotten = check_artifact(directory).forgotten().tolist()
        if raised is None:
            assert forgotten == ROWS
            return
        assert isinstance(raised, DataError)
        if "is saved" in str(raised):
            assert forgotten == ROWS
            return
        assert forgotten == []
        made["u"].save(directory)  # there is space again
        assert check_artifact(directory).forgotten().tolist() == ROWS
        assert L2UL.load(directory).n == 1997

    assert error_points(tmp_path, save_fitted, action, check) > 10


def test_sigkill(tmp_path):
    save_fitted(tmp_path / "u")
    assert not kill_at("test_l2ul_disk:forget_and_refresh", tmp_path / "u", 9)
    assert L2UL.load(tmp_path / "u").n in (2000, 1996)
    check_artifact(tmp_path / "u")


@pytest.mark.slow
def test_sigkill_everywhere(tmp_path):
    for stop_at in range(1, 60):
        save_fitted(tmp_path / str(stop_at))
        finished = kill_at("test_l2ul_disk:forget_and_refresh", tmp_path / str(stop_at), stop_at)
        check_artifact(tmp_path / str(stop_at))
        assert L2UL.load(tmp_path / str(stop_at)).n in ((1996,) if finished else (1996, 2000))
        if finished:
            return
    pytest.fail("never finished")
