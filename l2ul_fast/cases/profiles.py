"""Sizes of the benchmark cases, and the datasets and thread counts they run over."""

from __future__ import annotations

import os
from dataclasses import dataclass

from l2ul_fast.errors import UserError

#: From narrow to wide: d = 3, 10, 14, 18, 28, 54, 89.
DATASETS = ("skin", "magic", "adult", "susy", "higgs", "covtype", "sepsis")
#: An MLP on more columns than this takes minutes to fit: those cells are skipped unless the profile says so.
WIDE = 60
VARIABLE = "L2UL_BENCH_PROFILE"


@dataclass(frozen=True)
class Profile:
    """Sizes of one profile.

    datasets, few : datasets of the cheap suites, and of those that fit models. psi : cells per partition.
    operations : of one kernel call (2 d psi t a row). stream_rows : rows of the HDF5 file (at most what the set has).
    lr_rows, mlp_rows : rows that models are fitted on. m, s : pairs, rows per pair. draws : requests measured.
    anchored : MLPs of at most 30 columns get their anchor, as by default. wide : MLPs on more than WIDE columns too.
    seconds : how long asv samples one cell in one round; rounds : processes it does so in; turns : of a ratio.
    """

    name: str
    datasets: tuple[str, ...] = DATASETS
    few: tuple[str, ...] = DATASETS
    psi: tuple[int, ...] = (4, 64)
    operations: float = 2e9
    stream_rows: int = 500_000
    lr_rows: int = 100_000
    mlp_rows: int = 20_000
    m: int = 200
    s: int = 1000
    draws: int = 5
    anchored: bool = True
    wide: bool = False
    seconds: float = 3.0
    rounds: int = 2
    turns: int = 9


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "smoke",
            few=("magic", "higgs"),
            psi=(4,),
            operations=2e8,
            stream_rows=20_000,
            lr_rows=4000,
            mlp_rows=4000,
            m=8,
            s=300,
            draws=1,
            anchored=False,
            seconds=0.1,
            turns=3,
        ),
        Profile("regular"),
        Profile(
            "full",
            psi=(2, 4, 16, 64, 256),
            operations=2e10,
            stream_rows=11_000_000,
            lr_rows=1_000_000,
            mlp_rows=100_000,
            m=1000,
            s=3000,
            draws=20,
            wide=True,
            seconds=10.0,
            turns=15,
        ),
    )
}


def current() -> Profile:
    """The profile that the environment variable L2UL_BENCH_PROFILE names; "regular" when it is not set."""
    name = os.environ.get(VARIABLE) or "regular"
    if name not in PROFILES:
        raise UserError(f"{VARIABLE} must be one of {', '.join(PROFILES)}, not {name!r}")
    return PROFILES[name]


def all_threads(profile: Profile) -> tuple[int, ...]:
    """1, 2, 4, ... and all cores of the machine; a process may be allowed fewer (see Case.open)."""
    cores = os.cpu_count() or 1
    powers = [1 << k for k in range(cores.bit_length()) if 1 << k < cores]
    return (*powers, cores)


def model_threads(profile: Profile) -> tuple[int, ...]:
    """The same for cases that fit models, where the smoke profile is content with one thread."""
    return (1,) if profile.name == "smoke" else all_threads(profile)
