"""An experiment measured with a few numbers of its profile "tiny" replaced, away from the user's own files."""

from l2ul_fast.datasets.registry import REGISTRY
from l2ul_fast.experiments.registry import Context
from l2ul_fast.experiments.runner import Task, run_tasks
from l2ul_fast.measure.records import Run
from l2ul_kernels import threads as budget


def context_of(experiment, folder, threads=1, datasets=tuple(REGISTRY), **numbers):
    """What the experiment is told: stand-ins only, files below `folder`."""
    raw = folder / "no original files"  # None would be those of the user's environment
    raw.mkdir(exist_ok=True)
    return Context("tiny", experiment.numbers("tiny", numbers), datasets, (), threads, 1, folder / "data", raw)


def measured(experiment, folder, select="", **options):
    """All records of the jobs whose name holds `select`; a job that raises fails the test. A second call resumes."""
    context = context_of(experiment, folder, **options)
    jobs = [job for job in experiment.jobs(context) if select in job.name]
    common = {"experiment": experiment.name, "profile": "tiny", "threads": context.threads}
    run = Run(folder / "run")
    with budget(context.threads):
        run_tasks(run, [Task(experiment, job, common) for job in jobs], lambda stage, done, total: None)
    assert not [r["status"] for r in run.records if r.get("failed")]
    return run.records


def of(records, **key):
    """Those with these values."""
    return [r for r in records if all(r.get(k) == v for k, v in key.items())]
