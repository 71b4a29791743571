"""The main job: which experiments there are, what each profile measures, and in which order jobs run.

quick: seven datasets at reduced n, every method, a few minutes. paper: the paper's n, m, s and 10 runs (stand-ins of
full size where the original is not complete). full: the same with more runs. tiny: seconds, to see that it works (lr,
mlp, efficacy and baselines only).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from l2ul_fast.errors import UserError
from l2ul_fast.experiments.jobs import Job, Setting

#: Experiments in the order they run; each is a module of this name here.
EXPERIMENTS = ("lr", "mlp", "efficacy", "contamination", "sensitivity", "bounds", "leak", "sequence", "cores", "scale")
#: Those that are run only when named: `baselines` repeats `lr` and `mlp` on a few datasets for more r.
NAMED = ("baselines",)
#: The room of an experiment that is not one of the paper's.
ROOMS = {"sequence": "quality", "cores": "speed", "scale": "speed"}
#: rows: of a dataset in all; m: training pairs of L2UL; cold: runs in which the MLP is retrained from its anchor;
#: mlp_rows, wide_rows: training rows of the MLP at most (wide: above 40 features); wide_skips: methods left out
#: there (the heads that learn from pairs need 2.5 per parameter: a minute); complete: no subsets of originals.
PROFILES: dict[str, dict[str, Any]] = {
    "tiny": {"rows": 1_000, "runs": 2, "m": 60, "cold": 1, "mlp_rows": 400, "wide_rows": 400, "complete": False},
    "quick": {
        "rows": 12_000,
        "runs": 10,
        "m": 200,
        "cold": 2,
        "mlp_rows": None,
        "wide_rows": 2_500,
        "wide_skips": ("l2ul-learned", "l2ul-kme"),
        "complete": False,
    },
    "paper": {"rows": None, "runs": 10, "m": 1000, "cold": 1, "mlp_rows": None, "wide_rows": 60_000, "complete": True},
    "full": {"rows": None, "runs": 30, "m": 1000, "cold": 10, "mlp_rows": None, "wide_rows": None, "complete": True},
}


def jobs_of(setting: Setting, experiments: tuple[str, ...], only: tuple[str, ...] = ()) -> list[Job]:
    """All jobs of the experiments. `mlp` and `efficacy` of a dataset follow each other: they share what is prepared.

    only: words, of which a job's experiment and name must hold one.
    """
    found: list[Job] = []
    for name in experiments:
        if name not in EXPERIMENTS + NAMED:
            raise UserError(f"{name!r} is not one of the experiments {', '.join(EXPERIMENTS + NAMED)}")
        found += import_module(f"l2ul_fast.experiments.{ROOMS.get(name, 'paper')}.{name}").jobs(setting)
    order = {dataset: i for i, dataset in enumerate(setting.datasets)}
    shared = [job for job in found if job.experiment in ("mlp", "efficacy")]
    shared.sort(key=lambda job: order[job.name])
    rest = iter(shared)
    found = [next(rest) if job.experiment in ("mlp", "efficacy") else job for job in found]
    return [job for job in found if not only or any(word in f"{job.experiment} {job.name}" for word in only)]


def setting_of(profile: str, **options: Any) -> Setting:
    """A setting with the profile's numbers."""
    if profile not in PROFILES:
        raise UserError(f"the profile must be one of {', '.join(PROFILES)}, got {profile!r}")
    return Setting(profile, dict(PROFILES[profile]), **options)
