"""What the asv suites share: cells of the case table as asv parameters. No benchmarks in here."""

import atexit
import contextlib
import tempfile
from pathlib import Path

from l2ul_fast.cases import CASES, current
from l2ul_fast.cases.data import SEED, source

PROFILE = current()
_opened = contextlib.ExitStack()
_works = {}
atexit.register(_opened.close)


def version(number):
    """Results of another profile or of real rows are no history of these: asv keeps versions apart."""
    return f"{number} {PROFILE.name} {source()}"


class Timed:
    """Times one case. asv starts a process for every cell, and calls setup again before every sample."""

    case = ""
    timeout = 1800
    number = 1  # a sample is one call: the median over samples is the p50 of a call
    rounds = PROFILE.rounds
    warmup_time = 0  # opening a cell warms it up
    repeat = (3, 2000, PROFILE.seconds)

    def __init_subclass__(cls):
        parameters = CASES[cls.case].parameters(PROFILE)
        cls.params = tuple(map(list, parameters.values()))
        cls.param_names = tuple(parameters)

    def setup(self, *values):
        if values not in _works:
            cell = dict(zip(self.param_names, values, strict=True))
            _works[values] = _opened.enter_context(CASES[self.case].open(PROFILE, **cell))
        self.work = _works[values]
        self.work.before()


class Tracked:
    """Values that are computed once; not times."""

    timeout = 1800


def growth(dataset):
    """MiB by which streaming ten times the rows raises a process's peak; always stand-ins."""
    from l2ul_fast.datasets.registry import get_info
    from l2ul_fast.datasets.standin.rows import make
    from l2ul_fast.experiments.stream import memory_growth

    large = min(get_info(dataset).n, PROFILE.stream_rows)
    with tempfile.TemporaryDirectory() as name:
        paths = [make(dataset, n, SEED, Path(name) / str(n)) for n in (large // 10, large)]
        return memory_growth(*paths)
