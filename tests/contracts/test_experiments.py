"""What every registered experiment promises: a tiny profile, listed cells, resuming, declared fields, a figure.

An experiment of one's own is one file, and so are a method and a dataset: the last tests add all three from outside.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from in_process import l2ul

from l2ul_fast import baselines
from l2ul_fast.baselines.check import check_method
from l2ul_fast.datasets.registry import REGISTRY
from l2ul_fast.errors import UserError
from l2ul_fast.experiments import arena, inputs, registry, runner
from l2ul_fast.experiments.registry import Context, Experiment, Job
from l2ul_fast.experiments.reproduce import reproduce_cell
from l2ul_fast.experiments.timed import TimedMethod
from l2ul_fast.measure.records import FIELDS, IDENTITY, REPEAT, SCHEMA, Run, current, identity_fields, upgrade, validate
from l2ul_fast.plugins import class_of

EXPERIMENTS = registry.load()
METHODS = ("nothing", "retrain", "retrain-warm", "newton", "sisa", "l2ul-expansion")
#: One size of what takes a process for each, and no cold start, which tests/cli/test_cli.py has.
FEWER: dict[str, dict] = {"scale": {"n": (3000,)}, "stream": {"rows": 1000}}
SELECT = {"kernels": ("d=3",)}
#: Measured by tests of their own: they need what a test run may not have.
ELSEWHERE = {"distributed", "resnet"}


def silent(stage, done, total):
    pass


def options(name, folder, **others):
    methods = () if EXPERIMENTS[name].methods else METHODS
    wanted = tuple(n for n in ("magic", "adult") if not EXPERIMENTS[name].datasets or n in EXPERIMENTS[name].datasets)
    given = {"methods": methods, "datasets": wanted, "raw_dir": str(folder), "select": SELECT.get(name, ())}
    given |= {"numbers": {"runs": 1, **FEWER.get(name, {})}} | others
    return runner.Options((name,), profile="tiny", data_dir=str(folder / "data"), **given)


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("experiments")


class Stopped(KeyboardInterrupt):
    """In place of Ctrl-C."""


def test_names_titles_and_orders_are_told_apart():
    assert len({e.title for e in EXPERIMENTS.values()}) == len(EXPERIMENTS)
    for experiment in EXPERIMENTS.values():
        assert experiment.help.endswith(".")
        assert set(experiment.profiles) <= set(registry.PROFILES)
        overlap = set(experiment.fields) & set(FIELDS)
        assert not overlap, f"{experiment.name} declares {overlap} once more"


@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - ELSEWHERE))
def test_it_stops_resumes_and_says_what_it_declared(name, work, monkeypatch):
    chosen, folder = options(name, work), work / name
    tasks = runner.tasks_of(chosen, 1, folder)
    cells = [task.key(cell) for task in tasks for cell in task.job.cells]
    assert cells, "nothing to measure"
    keys = {json.dumps(cell, sort_keys=True) for cell in cells}
    assert len(keys) == len(cells), "two cells are one"
    own = EXPERIMENTS[name].fields
    allowed = set(identity_fields(own)) | {"experiment"}
    assert {field for cell in cells for field in cell} <= allowed, "a cell is told by what identifies it"

    run, append = Run(folder), Run.append

    def stop_after_one(self, record):
        append(self, record)
        if not record.get("failed") and record["experiment"] != "gate":
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Run, "append", stop_after_one)
        with pytest.raises(Stopped):
            runner.measure(tasks, run, 1, silent)
    begun = [r for r in Run(folder).records if r["experiment"] != "gate"]
    assert len(begun) == 1

    run = Run(folder)
    summary = runner.measure(runner.tasks_of(chosen, 1, folder), run, 1, silent)
    mine = [r for r in run.records if r["experiment"] != "gate"]
    failures = {r["status"] for r in mine if r.get("failed")}
    assert not failures
    assert summary.new == len(cells) - 1
    assert len(mine) == len(cells)
    assert mine[0] == begun[0], "what was measured before stays"
    for record in mine:
        validate(record, own)
        assert upgrade(record) is record
    assert runner.measure(runner.tasks_of(chosen, 1, folder), Run(folder), 1, silent).new == 0

    figure = EXPERIMENTS[name].figure
    if figure is not None:
        from l2ul_fast.report.figure import resolve

        found = resolve(figure)
        shown = [r for r in current(run.records) if r["experiment"] != "gate"]
        assert any(table.rows for table in found.all_tables(shown))
        for drawing in found.plots(shown):
            assert drawing.figure.get_axes()
            assert drawing.alt


def test_a_job_that_raises_costs_its_own_cells_only(tmp_path):
    def jobs(context):
        for name in ("one", "two", "three"):
            yield Job(name, ({"task": name, "repeat": 0}, {"task": name, "repeat": 1}), measure)

    def measure(cells):
        for cell in cells:
            if cell["task"] == "two":
                raise RuntimeError("no luck") if cell["repeat"] else UserError("not here")
            yield {**cell, "seconds": 1.0, **({"surprise": 1} if cell["task"] == "three" else {})}

    broken = Experiment("broken", "Broken", "Breaks.", {"tiny": {}}, jobs)
    context = Context("tiny", {}, (), (), 1, 0, tmp_path)
    common = {"experiment": "broken", "profile": "tiny", "threads": 1}
    tasks = [runner.Task(broken, job, common) for job in jobs(context)]
    run = Run(tmp_path / "run")
    summary = runner.run_tasks(run, tasks, silent)
    assert (summary.new, summary.failed) == (2, 4)
    reasons = {(r["task"], r["repeat"]): r["status"] for r in run.records}
    assert reasons["one", 0] == "ok"
    assert reasons["two", 0] == reasons["two", 1] == "not here"
    assert "surprise" in reasons["three", 0]
    assert runner.run_tasks(run, tasks, silent).new == 0, "failures are not tried again by themselves"
    again = runner.run_tasks(run, tasks, silent, retry_failed=True)
    assert (again.new, again.failed) == (0, 4)
    run.append({**next(r for r in run.records if r["task"] == "two"), "status": "ok", "failed": None, "seconds": 2.0})
    assert sum(r["task"] == "two" and bool(r.get("failed")) for r in current(run.records)) == 1


def test_two_processes_that_write_one_run_lose_nothing(tmp_path):
    code = (
        "import sys; from l2ul_fast.measure.records import Run; run = Run(sys.argv[1])\n"
        "for i in range(200): run.append({'experiment': 'x', 'who': sys.argv[2], 'i': i, 'pad': 'y' * 3000})"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), who]) for who in "ab"]
    while any(process.poll() is None for process in both):
        Run(tmp_path)  # opening it while others append must not cut anything off
    assert [process.returncode for process in both] == [0, 0]
    found = {(r["who"], r["i"]) for r in Run(tmp_path).records}
    assert found == {(who, i) for who in "ab" for i in range(200)}


#: The method, dataset and experiment that docs/extending.md shows.
PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
OWN_METHOD, OWN_DATASET, OWN_EXPERIMENT = re.findall(r'```python\n(""".*?)```', PAGE, re.DOTALL)


@pytest.fixture
def outside(tmp_path):
    """(folder with the three files, function that runs `l2ul` there): (stdout, stderr). What they add is forgotten."""
    for name, text in (("halfway", OWN_METHOD), ("sorting", OWN_EXPERIMENT), ("mine", OWN_DATASET)):
        noisy = re.sub(r"^( *)(def (?!__).*)", r"\1\2\n\1    print('noise')", text, flags=re.MULTILINE)
        (tmp_path / f"{name}.py").write_text(f"{noisy}\nprint('noise')\n")
    known = [(live, dict(live)) for live in (registry.EXPERIMENTS, baselines._plugins, REGISTRY)]
    yield tmp_path, partial(l2ul, tmp_path, L2UL_DATA_DIR="data")
    for live, before in known:
        live.clear()
        live.update(before)


def test_an_experiment_of_ones_own_is_one_file(outside):
    folder, l2ul = outside
    words = ("bench", "--experiment", "sorting.py")
    assert "Time of sorting." in l2ul(*words, "--help")[0]
    assert "--set" in l2ul(*words, "sorting", "--help")[0]
    words += ("sorting", "--profile", "tiny", "--out", "run")
    dry = l2ul(*words, "--dry-run")[0]
    assert "sorting" in dry
    assert "?" in dry.split("Expected")[0], "what a job takes is known for the profile quick"
    assert not (folder / "run").exists()
    out, _ = l2ul(*words, "--json")
    assert "noise" not in out
    records = [json.loads(line) for line in out.splitlines()]
    assert {r["task"] for r in records if r["experiment"] == "sorting"} == {"sort", "argsort"}
    page = (folder / "run" / "report" / "index.html").read_text()
    assert "Sorting numbers" in page
    assert "Sorting in NumPy" in page
    path = folder / "run" / "records.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert "?" not in l2ul(*words, "--dry-run")[0].split("Expected")[0], "half of the job is done: the rest is known"
    assert "measured 1 cells" in l2ul(*words)[1]
    assert "nothing was missing" in l2ul(*words)[1]
    shutil.copytree(folder / "run", folder / "again")
    assert "2 values compared: 0 slower, 0 worse, 0 faster" in l2ul("compare", "run", "again")[0]


def test_a_method_and_a_dataset_of_ones_own_are_one_file_each(outside):
    folder, l2ul = outside
    assert check_method(class_of(folder / "halfway.py", "Method")) == []
    words = ("bench", "lr", "--profile", "tiny", "--runs", "1", "--threads", "1", "--method", "halfway.py")
    words += ("--data", "mine.py", "--methods", "nothing,retrain,retrain-warm,l2ul-expansion,halfway", "--out", "own")
    jobs = min(2, len(os.sched_getaffinity(0)))  # two: processes of their own, where plug-ins work too
    assert "measured 5 cells" in l2ul(*words, "--jobs", jobs)[1]
    records = [r for r in Run(folder / "own").records if r["experiment"] == "lr"]
    assert {r["method"] for r in records} == {"nothing", "retrain", "retrain-warm", "l2ul-expansion", "halfway"}
    assert {r["dataset"] for r in records} == {"blobs-of-mine"}
    assert all(r["source"].startswith("own:") for r in records)
    halfway = next(r for r in records if r["method"] == "halfway")
    assert halfway["rho"] == pytest.approx(0.5, abs=1e-6)
    page = (folder / "own" / "report" / "index.html").read_text()
    assert "Halfway house" in page
    assert "blobs-of-mine" in page
    assert "nothing was missing" in l2ul(*words)[1]


def test_own_data_that_changed_is_measured_again(outside):
    """In every experiment that takes a dataset of one's own: its content is part of what tells a cell."""
    folder, _ = outside
    taking = [name for name, e in EXPERIMENTS.items() if not e.datasets and name not in ELSEWHERE]
    keys = []
    for shift in range(2):
        (folder / "mine.csv").write_text("".join(f"{i % 7},{i % 5 + shift},{i % 2}\n" for i in range(900)))
        runner.use_plugins({"data": (str(folder / "mine.csv"),)})
        given = {"datasets": ("mine",), "data_dir": str(folder / "data")}
        keys.append(
            {
                name: {json.dumps(task.key(cell), sort_keys=True) for task in tasks for cell in task.job.cells}
                for name in taking
                if (tasks := runner.tasks_of(runner.Options((name,), "paper", **given), 1))
            }
        )
    told = {name: {key for key in cells if '"mine"' in key} for name, cells in keys[0].items()}
    assert {name for name in told if told[name]} >= {"lr", "mlp", "efficacy", "baselines", "unlearn", "bounds", "leak"}
    for name in told:
        both = told[name] & keys[1][name]
        assert {json.loads(key)["source"] for key in both} <= {"sizes only"}, name


def test_bad_files_of_ones_own_are_one_sentence(outside):
    folder, l2ul = outside
    (folder / "broken.py").write_text("import nothing_like_this\n")
    (folder / "empty.py").write_text("x = 1\n")
    (folder / "newton.py").write_text(OWN_METHOD.replace("halfway", "newton"))
    for file in ("broken.py", "empty.py", "newton.py"):
        assert l2ul("bench", "lr", "--method", file, "--dry-run", code=1)[1].startswith("error: ")
    for file in ("broken.py", "empty.py", "missing.py"):
        assert l2ul("bench", "--experiment", file, "lr", "--dry-run", code=1)[1].startswith("error: ")


def test_installed_plugins_are_found(tmp_path, monkeypatch):
    info = tmp_path / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[l2ul_fast.methods]\nhalfway = others_method:Method\n")
    (tmp_path / "others_method.py").write_text(OWN_METHOD)
    code = "from l2ul_fast.baselines import make, method_names; print(method_names()); print(make('halfway').name)"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "halfway" in done.stdout


def test_the_tiny_run_measures_the_cells_of_before(work):
    """Against the recorded run, read through `upgrade`. Other names: one Newton step is no head any more. Other
    numbers: r is that of the rows really forgotten, and the embeddings by class were no method then."""
    fixtures = Path(__file__).parent / "fixtures" / "run" / "records.jsonl"
    old = [upgrade(json.loads(line)) for line in fixtures.read_text().splitlines()]
    fields = set(IDENTITY + REPEAT) - {"r", "d", "source", "profile", "threads", "experiment"}
    for name in ("lr", "mlp", "efficacy", "baselines", "contamination", "sensitivity", "bounds", "leak", "cores"):
        tasks = runner.tasks_of(options(name, work, methods=()), 1)
        cells = [cell for task in tasks for cell in task.job.cells]
        told = sorted(fields & {field for cell in cells for field in cell})
        now = {tuple(cell.get(field) for field in told) for cell in cells if cell.get("method") != "l2ul-kme"}
        mine = [
            r | ({"method": "l2ul-expansion"} if r["method"] == "l2ul-newton" else {})
            for r in old
            if r["experiment"] == name
        ]
        assert now == {tuple(r.get(field) for field in told) for r in mine}, name


def test_the_page_of_fields_is_generated():
    place = importlib.util.spec_from_file_location("make_records_doc", Path(__file__).parent / "make_records_doc.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    docs = Path(__file__).parents[2] / "docs"
    again = "run: python tests/contracts/make_records_doc.py"
    assert (docs / "records.md").read_text() == module.page(), again
    assert (docs / "records.schema.json").read_text() == module.schema(), again


FAULTY = {
    "raises": "def unlearn(self, forget, commit=False): raise ValueError('not today')",
    "nan": "def unlearn(self, forget, commit=False): return Answer(None, lambda X: np.full((len(X), 2), np.nan))",
    "writes": "def unlearn(self, forget, commit=False): forget[:] = self.table.X[:] = 0; return self.nothing",
    "quits": "def unlearn(self, forget, commit=False): raise SystemExit",
}


@pytest.mark.parametrize("fault", FAULTY)
def test_a_faulty_method_costs_its_own_cells_only(fault, tmp_path, monkeypatch):
    text = f"""
import numpy as np
from l2ul_fast.baselines import Answer
class Method:
    name = "faulty"
    def prepare(self, table, model, seed=0):
        self.table, theta = table, model.fit(table).theta
        self.nothing = Answer(theta, lambda X: model.predict_proba(theta, X))
    def state_bytes(self): return 0
    {FAULTY[fault]}
"""
    (tmp_path / "faulty.py").write_text(text)
    monkeypatch.setattr(baselines, "_plugins", {})
    plugins = {"methods": (str(tmp_path / "faulty.py"),)}
    found = {}
    for methods in (("nothing", "retrain", "newton"), ("nothing", "retrain", "newton", "faulty")):
        chosen = options("lr", tmp_path, methods=methods, numbers={"runs": 2}, plugins=plugins)
        run = Run(tmp_path / str(len(methods)))
        if fault == "quits" and "faulty" in methods:
            runner.run_tasks(run, runner.tasks_of(chosen, 1), silent)
            assert any(r.get("failed") for r in run.records)
            return
        runner.run_tasks(run, runner.tasks_of(chosen, 1), silent)
        found[len(methods)] = {
            (r["dataset"], r["method"], r["repeat"]): r.get("rho") for r in run.records if r["method"] != "faulty"
        }
    assert found[3] == found[4]
    faulty = [r for r in run.records if r["method"] == "faulty"]
    assert len(faulty) == 4
    if fault != "writes":
        assert all(r["status"] != "ok" for r in faulty)
    assert all(bool(r.get("failed")) == (fault == "raises") for r in faulty)


def test_records_of_other_numbers_are_other_cells(tmp_path):
    run = Run(tmp_path / "run")

    def missing(**numbers):
        chosen = options("lr", tmp_path, methods=("nothing",), numbers=numbers)
        tasks = runner.tasks_of(chosen, 1)
        count = sum(len(task.todo(run)) for task in tasks)
        runner.run_tasks(run, tasks, silent)
        return count

    assert [missing(runs=1), missing(runs=1), missing(runs=2)] == [2, 0, 2]  # more of the same
    assert [missing(runs=1, m=77), missing(runs=1, m=77), missing(runs=1)] == [2, 0, 0]


LR = ("bench", "lr", "--profile", "tiny", "--datasets", "skin", "--methods", "nothing,retrain,newton", "--runs", "1")


def test_a_run_knows_every_command_that_it_was_made_with(tmp_path):
    """Cells of another seed or of other numbers are reproduced with these, and share no median with others."""
    l2ul(tmp_path, *LR, "--seed", "3")
    l2ul(tmp_path, *LR, "--set", "rows=900")
    l2ul(tmp_path, *LR)
    run = tmp_path / "results" / "lr-tiny"
    assert "stand-in, rows = 900" in (run / "report" / "index.html").read_text()
    old = [r for r in Run(run).records if r.get("method") == "newton"]
    assert [(r["seed"], r["settings"]) for r in old] == [(3, None), (1, '{"rows": 900}'), (1, None)]
    assert len({(r["rho"], r["n"]) for r in old}) == 3
    for record in old:
        wanted, again = reproduce_cell(run, str(Run(run).records.index(record) + 1), tmp_path / "again")
        assert wanted == [record]
        assert again[0]["rho"] == pytest.approx(record["rho"], rel=1e-6)
    assert Run(tmp_path / "again").environment == json.loads((tmp_path / "again" / "run.json").read_text())
    assert {r["n"] for r in Run(tmp_path / "again").records if r.get("method") == "newton"} == {r["n"] for r in old}
    before = (run / "run.json").read_bytes()
    reproduce_cell(run, "lr/newton/seed=3", run)
    assert (run / "run.json").read_bytes() == before


def test_another_seed_is_another_cell(tmp_path):
    """Also where `seed` of the cells counts repetitions, from 0."""
    for name in ("lr", "sensitivity", "bounds"):
        one, two = (runner.tasks_of(options(name, tmp_path, seed=seed), 1) for seed in (1, 2))
        one, two = ({json.dumps(task.key(cell)) for task in tasks for cell in task.job.cells} for tasks in (one, two))
        assert one
        assert not one & two


def test_progress_says_what_takes_long(tmp_path, monkeypatch):
    monkeypatch.setattr(arena, "_compiled", set())
    inputs.load.cache_clear()
    told = []
    tasks = runner.tasks_of(options("lr", tmp_path, methods=("nothing", "newton")), 1)
    runner.measure(tasks, Run(tmp_path / "run"), 1, lambda stage, done, total: told.append((stage, done, total)))
    stages = [stage for stage, _, _ in told]
    for stage in (
        "loading torch",
        "correctness check",
        "lr magic: loading magic",
        "newton: loading or compiling",
        "done",
    ):
        assert any(stage in text for text in stages), stage
    done = [k for _, k, total in told if total > 1]
    assert done == sorted(done)
    assert len(set(done)) > 4  # within a job too


def test_compiling_is_no_part_of_the_preparation(monkeypatch):
    class Slow(TimedMethod):
        def prepare(self, table, model, seed):
            super().prepare(table, model, seed)
            asked.append(table.n)
            self.prepare_seconds = 0.0 if len(asked) > 1 else 5.0  # the first one compiles

    asked = []
    monkeypatch.setattr(arena, "_compiled", set())
    monkeypatch.setattr(arena, "timed", lambda name, m: Slow(name))
    rows = inputs.standin_rows(1000, "skin")
    assert arena.Arena("toy", "synthetic", rows, rows, "lr", 1, None)["nothing"].prepare_seconds == 0
    assert asked == [arena.FEW, 1000]


def test_a_record_cannot_speak_for_the_runner(tmp_path):
    """Schema and job are the runner's; with another profile, thread count or experiment it is no record of the cell."""

    def jobs(context):
        for name, value in (("schema", 99), ("job", "x"), ("profile", "full"), ("threads", 64), ("experiment", "lr")):
            yield Job(name, ({"task": name},), lambda cells, own={name: value}: iter([{**cells[0], **own}]))

    bold = Experiment("bold", "Bold", "Speaks.", {"tiny": {}}, jobs)
    common = {"experiment": "bold", "profile": "tiny", "threads": 1}
    tasks = [runner.Task(bold, job, common) for job in jobs(Context("tiny", {}, (), (), 1, 0, tmp_path))]
    run = Run(tmp_path / "run")
    assert runner.run_tasks(run, tasks, silent).failed == 3
    for record in run.records:
        assert (record["schema"], record["job"]) == (SCHEMA, record["task"])
        assert {name: record[name] for name in common} == common


def test_a_job_that_yields_nothing_or_twice_has_failed(tmp_path):
    def jobs(context):
        yield Job("none", ({"task": "none"},), lambda cells: iter(()))
        yield Job("twice", ({"task": "twice"},), lambda cells: iter([{**cells[0], "seconds": 1.0}] * 2))
        yield Job("numpy", ({"n": np.int64(3)},), lambda cells: iter([{**cells[0], "seconds": float("nan")}]))

    strange = Experiment("strange", "Strange", "Odd.", {"tiny": {}}, jobs)
    common = {"experiment": "strange", "profile": "tiny", "threads": 1}
    tasks = [runner.Task(strange, job, common) for job in jobs(Context("tiny", {}, (), (), 1, 0, tmp_path))]
    run = Run(tmp_path / "run")
    summary = runner.run_tasks(run, tasks, silent)
    assert (summary.new, summary.failed) == (1, 2)
    assert len(run.records) == 3
    assert json.loads(run.path.read_text().splitlines()[-1])["n"] == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"experiments": "lr"},
        {"seed": -1},
        {"plugins": ["a"]},
        {"plugins": {"data": [1]}},
        {"numbers": 3},
        {"before": [3]},
    ],
)
def test_damaged_options_are_one_sentence(wrong, tmp_path):
    (tmp_path / "options.json").write_text(json.dumps({"experiments": ["lr"]} | wrong))
    with pytest.raises(UserError, match="cannot read the options of the run"):
        runner.Options.read_all(tmp_path / "options.json")
