"""Small runs of registered experiments, for the tests of what they measure."""

from l2ul_fast.experiments import runner
from l2ul_fast.measure.records import Run
from l2ul_kernels import threads as budget


def options(name, folder, datasets=(), methods=(), select=(), **numbers):
    """Those of a tiny run on stand-ins, with other numbers in place of the profile's."""
    nothing = folder / "no original files"  # None would be those of the user's environment
    nothing.mkdir(exist_ok=True, parents=True)
    return runner.Options(
        (name,), "tiny", datasets, methods, select, numbers, data_dir=str(folder / "data"), raw_dir=str(nothing)
    )


def measured(name, folder, threads=1, **given):
    """The records of the experiment, measured into folder/run; nothing failed. A second call resumes."""
    chosen, run = options(name, folder, **given), Run(folder / "run")
    with budget(threads):
        runner.run_tasks(run, runner.tasks_of(chosen, threads, run.folder), lambda stage, done, total: None)
    assert not [record["status"] for record in run.records if record.get("failed")]
    return run.records


def of(records, **key):
    """The records with these values."""
    return [record for record in records if all(record.get(k) == v for k, v in key.items())]
