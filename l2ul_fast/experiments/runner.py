"""The one loop that measures: resumable, one record per cell; what fails costs its own cells only."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from l2ul_fast.errors import UserError
from l2ul_fast.experiments import registry
from l2ul_fast.experiments.registry import Context, Experiment, Job
from l2ul_fast.files import write_atomic
from l2ul_fast.measure.environment import StealMeter
from l2ul_fast.measure.records import SCHEMA, Cell, Record, Run, validate
from l2ul_fast.workers import deaf_to_interrupts

Progress = Callable[[str, int, int], None]
#: Extra -> a package that only it brings.
EXTRAS = {"dask": "distributed", "bench": "sklearn", "learn": "torch", "data": "h5py"}


@dataclass(frozen=True)
class Options:
    """What a run is asked to measure: kept in options.json of its folder, and read by its processes.

    The file holds those of the last command, and under "before" those of every other command of this run.
    """

    experiments: tuple[str, ...]
    profile: str = "quick"
    datasets: tuple[str, ...] = ()  #: () is every experiment's own choice
    methods: tuple[str, ...] = ()  #: () is all of them
    select: tuple[str, ...] = ()  #: words, of which a job's experiment and name must hold one
    numbers: Mapping[str, Any] = field(default_factory=dict)  #: replace those of the profile
    seed: int = 1
    data_dir: str = "data"
    raw_dir: str | None = None
    plugins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: files: experiments, methods, data
    retry_failed: bool = False

    @classmethod
    def read(cls, path: Path | str) -> Options:
        """Those of a file that `write` made.

        Raises
        ------
        UserError
            If it cannot be read.
        """
        return cls.read_all(path)[0]

    @classmethod
    def read_all(cls, path: Path | str) -> list[Options]:
        """Those of every command of the run, the last one first.

        Raises
        ------
        UserError
            If the file cannot be read.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            return [cls._of(one) for one in (found, *found.get("before", ()))]
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"cannot read the options of the run at {path}: {error}") from None

    @classmethod
    def _of(cls, found: Mapping[str, Any]) -> Options:
        known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        for name in ("experiments", "datasets", "methods", "select"):
            known[name] = _words(name, known.get(name))
        plugins = known.get("plugins") or {}
        known["plugins"] = {kind: _words("plugins", some) for kind, some in plugins.items()}
        one = cls(**known)
        kinds: dict[str, Any] = {
            "profile": str,
            "data_dir": str,
            "raw_dir": (str, type(None)),
            "numbers": dict,
            "retry_failed": bool,
        }
        wrong = [name for name, kind in kinds.items() if not isinstance(getattr(one, name), kind)]
        if wrong or type(one.seed) is not int or one.seed < 0:
            raise TypeError(f"{(wrong or ['seed'])[0]} is none")
        return one

    def write(self, path: Path) -> None:
        """Keep them as JSON, before those that the file holds already."""
        mine = json.loads(json.dumps(asdict(self)))
        held = [json.loads(json.dumps(asdict(one))) for one in (self.read_all(path) if path.exists() else ())]
        write_atomic(path, json.dumps(mine | {"before": [one for one in held if one != mine]}, indent=2) + "\n")


def _words(name: str, found: Any) -> tuple[str, ...]:
    """A list of names; TypeError for anything else."""
    if not isinstance(found or (), list | tuple) or not all(isinstance(word, str) for word in found or ()):
        raise TypeError(f"{name} must be a list of names")
    return tuple(found or ())


def experiments_of(options: Options) -> list[Experiment]:
    """The experiments that are asked for, plug-ins loaded."""
    known = registry.load(tuple(options.plugins.get("experiments", ())))
    use_plugins(options.plugins)
    for name in options.experiments:
        if name not in known:
            raise UserError(f"{name!r} is not one of the experiments {', '.join(known)}")
        for extra in known[name].needs:
            if importlib.util.find_spec(EXTRAS.get(extra, extra)) is None:
                raise UserError(f"the experiment {name} needs more: pip install 'l2ul-fast[{extra}]'")
    return [known[name] for name in options.experiments]


def use_plugins(files: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Load the methods and datasets of the user's files; the names of the datasets."""
    from l2ul_fast.baselines import use_plugin

    for file in files.get("methods", ()):
        use_plugin(file)
    if not files.get("data"):
        return ()
    from l2ul_fast.datasets.plugin import register_file

    return tuple(register_file(Path(file)) for file in files["data"])


def context_of(experiment: Experiment, options: Options, threads: int, folder: Path | None = None) -> Context:
    """What the experiment is told."""
    from l2ul_fast.baselines import method_names
    from l2ul_fast.datasets.registry import dataset_names

    known = experiment.datasets or tuple(dataset_names())
    own = experiment.methods or method_names()
    names = options.datasets or experiment.default_datasets or known
    return Context(
        profile=options.profile,
        numbers=experiment.numbers(options.profile, options.numbers),
        datasets=tuple(name for name in names if name in known),
        methods=tuple(name for name in own if not options.methods or name in options.methods),
        threads=threads,
        seed=options.seed,
        data_dir=Path(options.data_dir),
        raw_dir=None if options.raw_dir is None else Path(options.raw_dir),
        folder=folder,
    )


def known_methods(experiments: list[Experiment]) -> tuple[str, ...]:
    """Names of methods that at least one of the experiments knows."""
    from l2ul_fast.baselines import method_names

    return tuple(dict.fromkeys(name for e in experiments for name in e.methods or method_names()))


@dataclass(frozen=True)
class Task:
    """A job with what all of its records share."""

    experiment: Experiment
    job: Job
    common: Record

    @property
    def name(self) -> str:
        return f"{self.experiment.name} {self.job.name}"

    def key(self, cell: Cell) -> Record:
        """The values by which the record of a cell is recognised."""
        return {**self.common, **cell}

    def failure(self, cell: Cell, reason: str) -> Record:
        """The record of a cell that could not be measured."""
        return {"schema": SCHEMA, **self.key(cell), "job": self.job.name, "status": reason, "failed": True}

    def wrote(self, record: Record) -> bool:
        """Whether the record is one of this job."""
        here = {"experiment": self.experiment.name, **(self.job.cells[0] if self.job.cells else {})}["experiment"]
        same = all(record.get(name) == value for name, value in self.common.items() if name != "experiment")
        return same and record.get("experiment") == here and record.get("job") == self.job.name

    def todo(self, run: Run, retry_failed: bool = False) -> tuple[Cell, ...]:
        """Cells that the run does not hold."""
        if retry_failed:
            return tuple(c for c in self.job.cells if not run.has(**self.key(c), failed=None))
        return tuple(cell for cell in self.job.cells if not run.has(**self.key(cell)))


def tasks_of(options: Options, threads: int, folder: Path | None = None) -> list[Task]:
    """All jobs in the order in which they run; those of one group follow each other."""
    found, experiments = [], experiments_of(options)
    own = _own_sources()
    for experiment in experiments:
        context = context_of(experiment, options, threads, folder)
        common = {"experiment": experiment.name, "profile": options.profile, "threads": threads}
        common["settings"] = settings_of(experiment, options)
        for job in experiment.jobs(context):
            told = options.seed and all(cell.get("seed") == options.seed for cell in job.cells)
            seed = {"base_seed": None if told or options.seed == 1 else options.seed}
            cells = tuple({**own.get(cell.get("dataset"), {}), **cell} for cell in job.cells)
            found.append(Task(experiment, replace(job, cells=cells), common | seed))
    if options.select:
        found = [task for task in found if any(word in task.name for word in options.select)]
    first = {task.job.group: i for i, task in reversed(list(enumerate(found))) if task.job.group}
    place = {id(task): (first.get(task.job.group, i), i) for i, task in enumerate(found)}
    return sorted(found, key=lambda task: place[id(task)])


def _own_sources() -> dict[Any, Record]:
    """{the user's own dataset: its source, by which its cells are told from those of other rows of that name}."""
    from l2ul_fast.datasets.registry import dataset_names
    from l2ul_fast.experiments.inputs import own_source

    found = {name: own_source(name) for name in dataset_names()}
    return {name: {"source": source} for name, source in found.items() if source is not None}


def settings_of(experiment: Experiment, options: Options) -> str | None:
    """The numbers that stand in place of the profile's, but for how often: records of others are other cells."""
    known = {name for numbers in experiment.profiles.values() for name in numbers} - {"runs", "seeds", "repeats"}
    own = {name: value for name, value in sorted(options.numbers.items()) if name in known}
    return json.dumps(own) if own else None


def complete(
    record: Record, task: Task, cells: tuple[Cell, ...], began: float, steal: float | None = None
) -> tuple[Cell, Record]:
    """The cell of a record, and the record with what every record has; one with a field that nobody declared becomes a
    failure of its cell.

    Raises
    ------
    UserError
        For a record of none of the cells.
    """
    whole: Record = {**task.common, "status": "ok", **record, "schema": SCHEMA, "job": task.job.name}
    if whole.get("answer_seconds") is not None:
        whole["unlearn_seconds"] = whole["answer_seconds"]
    whole |= {"at": round(time.time() - began, 3), "steal": steal}
    whole = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in whole.items()}
    same = (c for c in cells if all(whole.get(name) == value for name, value in task.key(c).items()))
    cell = next(same, None)
    if cell is None:
        shown = {name: whole.get(name) for name in (task.job.cells[0] if task.job.cells else ())}
        raise UserError(f"{task.name} yielded a record of no cell that it was given, or a second one: {shown}")
    try:
        validate(whole, task.experiment.fields)
    except UserError as error:
        return cell, task.failure(cell, str(error))
    return cell, whole


@dataclass
class Summary:
    """How many cells were measured, were there before, and failed."""

    new: int = 0
    known: int = 0
    failed: int = 0


def run_tasks(run: Run, tasks: list[Task], progress: Progress, retry_failed: bool = False) -> Summary:
    """Measure what is missing. A job that raises records its cells as failed, with the reason; the others go on."""
    summary, behind = Summary(), 0.0
    total = sum(task.job.seconds for task in tasks)
    for task in tasks:
        cells = task.todo(run, retry_failed)
        left, show = list(cells), _bar(progress, task, behind, total)
        show()
        summary.known += len(task.job.cells) - len(cells)
        began, meter = time.time(), StealMeter()
        try:
            with registry.telling(show):
                for record in task.job.measure(cells) if cells else ():
                    cell, whole = complete(record, task, tuple(left), began, meter.share())
                    left.remove(cell)
                    run.append(whole)
                    summary.failed += bool(whole.get("failed"))
                    summary.new += not whole.get("failed")
                    show(share=1 - len(left) / len(cells))
            text = "the job yielded no record of this cell"
        except (Exception, SystemExit) as error:  # of a plug-in as well
            text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        for cell in left:
            run.append(task.failure(cell, text))
            summary.failed += 1
        behind += task.job.seconds
    progress("done", int(1000 * total), int(1000 * total))
    return summary


def _bar(progress: Progress, task: Task, behind: float, total: float) -> Callable[..., None]:
    """A function that shows what the task is doing and, from then on, the share of its cells that is done."""
    done = behind

    def show(what: str = "", share: float | None = None) -> None:
        nonlocal done
        done = done if share is None else behind + share * task.job.seconds
        progress(f"{task.name}: {what}" if what else task.name, int(1000 * done), int(1000 * total))

    return show


def check_gate(run: Run, threads: int) -> None:
    """Nothing is timed before the correctness check holds; its deviations are a record."""
    if run.has(experiment="gate", threads=threads):
        return
    from l2ul_fast.experiments.gate import check

    run.append({"schema": SCHEMA, "experiment": "gate", "method": "", "threads": threads, **check()})


@dataclass(frozen=True)
class Part:
    """The tasks for one number of threads."""

    threads: int
    tasks: list[Task]


def plan_of(options: Options, counts: list[int] | None, jobs: int = 1, folder: Path | None = None) -> list[Part]:
    """Every task, by number of threads: those of `counts`, else what each experiment is measured with by default."""
    from l2ul_kernels.threads import thread_limit

    most = max(1, thread_limit() // jobs)
    experiments = experiments_of(options)
    wanted = {e.name: counts or (thread_counts(most) if e.each_thread_count else [most]) for e in experiments}
    parts = []
    for k in sorted({k for some in wanted.values() for k in some}, reverse=True):
        names = tuple(e.name for e in experiments if k in wanted[e.name])
        parts.append(Part(k, tasks_of(replace(options, experiments=names), k, folder)))
    return parts


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and all."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if most == 1 else [*counts, most]


def open_run(options: Options, folder: Path) -> Run:
    """The run's folder; a new one, or one that has nothing recorded, is told its environment and options.

    run.json also keeps the looks of the methods, and which fields of their own the experiments tell cells apart by: a
    reader needs no plug-in of the run.
    """
    run = Run(folder)
    fields = dict(run.environment.get("fields") or {})
    for name in options.experiments:
        fields |= registry.load()[name].roles
    if not run.has(experiment="environment"):
        from l2ul_fast.measure.environment import describe

        found = describe()
        methods = {name: asdict(style) for name, style in registry.styles_of().items()}
        run = Run(folder, found | {"methods": methods, "fields": fields})
        short = {key: found[key] for key in ("cpu", "cores", "vector_bytes", "git")}
        run.append({"schema": SCHEMA, "experiment": "environment", "method": "", **short, **found["versions"]})
    elif fields != run.environment.get("fields", {}):
        run = Run(folder, run.environment | {"fields": fields})
    options.write(folder / "options.json")
    return run


def measure_all(plan: list[Part], run: Run, jobs: int, progress: Progress) -> Summary:
    """Measure what is missing: in this process if it is one number of threads and one job, else in others."""
    options = Options.read(run.folder / "options.json")
    if jobs == 1 and len(plan) == 1:
        return measure(plan[0].tasks, run, plan[0].threads, progress, options.retry_failed)
    total = Summary()
    for part in plan:
        tasks = [task for task in part.tasks if task.todo(run, options.retry_failed)]
        total.known += sum(len(task.job.cells) - len(task.todo(run, options.retry_failed)) for task in part.tasks)
        if tasks:
            before = len(run.refresh())
            spawn(part, run, jobs, progress)
            new = run.refresh()[before:]
            total.failed += sum(bool(record.get("failed")) for record in new)
            total.new += sum(not record.get("failed") and record["experiment"] != "gate" for record in new)
    return total


def measure(tasks: list[Task], run: Run, threads: int, progress: Progress, retry_failed: bool = False) -> Summary:
    """What is missing of the tasks, in this process, on `threads` threads."""
    if not any(task.todo(run, retry_failed) for task in tasks):
        return Summary(known=sum(len(task.job.cells) for task in tasks))
    progress("loading torch", 0, 1)
    import torch  # noqa: F401 - before the budget, which sets the threads of what is imported

    from l2ul_kernels import threads as budget

    progress("correctness check (the first run compiles kernels)", 0, 1)
    with budget(threads):
        check_gate(run, threads)
        return run_tasks(run, tasks, progress, retry_failed)


def spawn(part: Part, run: Run, jobs: int, progress: Progress) -> None:
    """`jobs` processes with the part's threads each, on cores of their own; numba's limit is set before they start.

    Raises
    ------
    UserError
        If there are too few cores, or a process fails.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    k = part.threads
    if k * jobs > len(cores):
        raise UserError(f"{jobs} jobs of {k} thread(s) need {jobs * k} cores, there are {len(cores)}")
    names = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, str(k))
    wanted = ",".join(dict.fromkeys(task.experiment.name for task in part.tasks))
    running = []
    with deaf_to_interrupts():
        for i in range(jobs):
            own = ",".join(map(str, cores[i * k : (i + 1) * k]))
            order = [sys.executable, "-m", "l2ul_fast.experiments.runner", str(run.folder), str(k), f"{i}/{jobs}", own]
            running.append(subprocess.Popen([*order, wanted], env=environment, stdout=2))  # a plug-in may print
    before, total = len(run.refresh()), sum(len(task.todo(run)) for task in part.tasks)
    try:
        while any(process.poll() is None for process in running):
            done = len(run.refresh()) - before
            stage = "measuring" if done else "loading, correctness check, first fits"
            progress(f"{jobs} process(es), {k} thread(s): {stage}", done, max(total, 1))
            time.sleep(0.2)
    except BaseException:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
        raise
    codes = [process.returncode for process in running]
    if any(codes):
        raise UserError(f"a process of the run failed (exit codes {codes}); run the same command again to go on")


def _child() -> None:
    """Entry of the processes of `spawn`: folder, threads, share i/k, cores, experiments."""
    folder, threads, share, cores, names = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    i, k = (int(part) for part in share.split("/"))
    try:
        run = Run(folder)
        options = replace(Options.read(run.folder / "options.json"), experiments=tuple(names.split(",")))
        tasks = tasks_of(options, int(threads), run.folder)[i::k]
        measure(tasks, run, int(threads), lambda stage, done, total: None, options.retry_failed)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    _child()
