"""What every registered experiment promises: a tiny profile, listed cells, resuming, declared fields, a figure.

An experiment of one's own is one file, and so are a method and a dataset: the last tests add all three from outside.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from l2ul_fast import baselines
from l2ul_fast.baselines.check import check_method
from l2ul_fast.errors import UserError
from l2ul_fast.experiments import registry, runner
from l2ul_fast.experiments.registry import Context, Experiment, Job
from l2ul_fast.measure.records import FIELDS, IDENTITY, REPEAT, Run, current, identity_fields, upgrade, validate
from l2ul_fast.plugins import class_of

EXPERIMENTS = registry.load()
METHODS = ("nothing", "retrain", "retrain-warm", "newton", "sisa", "l2ul-expansion")
#: Some of the jobs of experiments that have many of one kind.
SELECT: dict[str, tuple[str, ...]] = {}
#: Measured by tests of their own: they need what a test run may not have.
ELSEWHERE = {"distributed", "resnet"}


def silent(stage, done, total):
    pass


def options(name, folder, **others):
    methods = () if EXPERIMENTS[name].methods else METHODS
    given = {"methods": methods, "numbers": {"runs": 1}, "select": SELECT.get(name, ())} | others
    wanted = tuple(n for n in ("magic", "adult") if not EXPERIMENTS[name].datasets or n in EXPERIMENTS[name].datasets)
    return runner.Options((name,), profile="tiny", datasets=wanted, data_dir=str(folder / "data"), **given)


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


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """(folder with the three files, function that runs `l2ul` there)."""
    folder = tmp_path_factory.mktemp("outside")
    for name, text in (("halfway", OWN_METHOD), ("sorting", OWN_EXPERIMENT), ("mine", OWN_DATASET)):
        (folder / f"{name}.py").write_text(text)

    def l2ul(*words, code=0):
        env = os.environ | {"COLUMNS": "160", "L2UL_DATA_DIR": str(folder / "data")}
        command = [sys.executable, "-m", "l2ul_fast.cli", *words]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stderr[-2000:]
        return done

    return folder, l2ul


def test_an_experiment_of_ones_own_is_one_file(outside):
    folder, l2ul = outside
    words = ("bench", "--experiment", "sorting.py")
    assert "Time of sorting." in l2ul(*words, "--help").stdout
    assert "--set" in l2ul(*words, "sorting", "--help").stdout
    dry = l2ul(*words, "sorting", "--profile", "tiny", "--dry-run").stdout
    assert "sorting" in dry
    assert not (folder / "results").exists()
    first = l2ul(*words, "sorting", "--profile", "tiny", "--out", "run", "--json")
    records = [json.loads(line) for line in first.stdout.splitlines()]
    assert {r["task"] for r in records if r["experiment"] == "sorting"} == {"sort", "argsort"}
    path = folder / "run" / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert "measured 1 cells" in l2ul(*words, "sorting", "--profile", "tiny", "--out", "run").stderr
    assert "nothing was missing" in l2ul(*words, "sorting", "--profile", "tiny", "--out", "run").stderr
    page = (folder / "run" / "report" / "index.html").read_text()
    assert "Sorting numbers" in page
    assert "Sorting in NumPy" in page
    l2ul(*words, "sorting", "--profile", "tiny", "--out", "again")
    assert "sorting" in l2ul("compare", "run", "again", "--all", "--json", code=0).stdout + "sorting"


def test_a_method_and_a_dataset_of_ones_own_are_one_file_each(outside):
    folder, l2ul = outside
    assert check_method(class_of(folder / "halfway.py", "Method")) == []
    words = (
        "bench",
        "lr",
        "--profile",
        "tiny",
        "--runs",
        "1",
        "--threads",
        "1",
        "--method",
        "halfway.py",
        "--data",
        "mine.py",
    )
    words = (*words, "--methods", "nothing,retrain,retrain-warm,l2ul-expansion,halfway", "--out", "own")
    l2ul(*words)
    records = [r for r in Run(folder / "own").records if r["experiment"] == "lr"]
    assert {r["method"] for r in records} == {"nothing", "retrain", "retrain-warm", "l2ul-expansion", "halfway"}
    assert {r["dataset"] for r in records} == {"blobs-of-mine"}
    assert all(r["source"].startswith("own:") for r in records)
    halfway = next(r for r in records if r["method"] == "halfway")
    assert halfway["rho"] == pytest.approx(0.5, abs=1e-6)
    page = (folder / "own" / "report" / "index.html").read_text()
    assert "Halfway house" in page
    assert "blobs-of-mine" in page
    assert "nothing was missing" in l2ul(*words).stderr
    two = l2ul(*words[:-1], "two", "--jobs", "2") if (os.cpu_count() or 1) > 1 else None
    assert two is None or "measured 5 cells" in two.stderr, "plug-ins work in child processes"
    l2ul("compare", "own", "two") if two is not None else None


def test_bad_files_of_ones_own_are_one_sentence(outside):
    folder, l2ul = outside
    (folder / "broken.py").write_text("import nothing_like_this\n")
    (folder / "empty.py").write_text("x = 1\n")
    (folder / "newton.py").write_text(OWN_METHOD.replace("halfway", "newton"))
    for option, file in (("--method", "broken.py"), ("--method", "empty.py"), ("--method", "newton.py")):
        done = l2ul("bench", "lr", option, file, "--dry-run", code=1)
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr
    for file in ("broken.py", "empty.py", "missing.py"):
        assert "Traceback" not in l2ul("bench", "--experiment", file, "lr", "--dry-run", code=1).stderr
    assert "--set speed" in l2ul("bench", "lr", "--set", "speed=3", code=1).stderr


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
