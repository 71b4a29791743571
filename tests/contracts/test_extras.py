"""A base install: whatever needs more says so in one sentence that names the extra."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from test_public_paths import OF_THE_CASES, PUBLIC

from l2ul_fast.extras import EXTRAS, PACKAGES

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
SENTENCE = re.compile(r"needs the package [\w-]+: pip install 'l2ul-fast\[\w+\]'|pip install 'l2ul-fast\[dask\]'")
#: They come with scikit-learn and pooch, and are never missing alone.
BROUGHT = {"joblib", "requests"}
#: Runs attempts in a process that cannot see the packages; prints [kind of error, text] or null for each.
BLIND = """
import importlib.machinery, json, sys, warnings
hidden, attempts = json.loads(sys.stdin.read())
found = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in hidden else found(name, path, target)
importlib.machinery.PathFinder.find_spec = find_spec
warnings.simplefilter("ignore")
import numpy as np
X = np.random.default_rng(0).normal(size=(300, 4))
y = (X[:, 0] > 0).astype(int)
answers = []
for attempt in attempts:
    try:
        exec(attempt, {"X": X, "y": y, "np": np})
        answers.append(None)
    except BaseException as error:
        answers.append([type(error).__name__, str(error)])
print(json.dumps(answers))
"""
FIT = "from l2ul_fast import L2UL; u = L2UL({model!r}, m=20, s=100, t=10, head={head!r}).fit({rows}); u.unlearn([3])"


def fit(head="expansion", model="lr", rows="X, y"):
    return FIT.format(head=head, model=model, rows=rows)


#: Works with numpy, numba, scipy and threadpoolctl alone.
BASE = [
    "import l2ul_fast",
    *(fit(head) for head in ("expansion", "learned", "kme")),
    fit() + "; u.save('u'); L2UL.load('u').unlearn([4]).theta",
    "from l2ul_fast.baselines import METHODS",
    "from l2ul_fast.models import LogisticModel, MLPModel",
    "from l2ul_fast.cli import main",
]
#: What needs it -> the package that it names first.
NEEDS = {
    "from l2ul_fast import IsolationKernel": "sklearn",
    "from l2ul_fast import KernelMeanEmbedding": "sklearn",
    "import l2ul_fast.metrics.membership as m; m.mia_chundawat2023(*np.random.dirichlet([1, 2], (3, 20)))": "sklearn",
    fit("paper"): "torch",
    fit(rows="'rows.h5'"): "h5py",
    "import l2ul_fast.datasets": "h5py",
    "from l2ul_fast.tables import FileTable": "h5py",
    "from l2ul_fast.cases import CASES": "h5py",
    "from l2ul_fast.perfcheck import main": "h5py",
    "import l2ul_fast.resnet.salun": "torch",
    "from l2ul_fast.distributed import connect\nconnect(workers=1).__enter__()": "dask",
    "from l2ul_fast.distributed import stream_counts": "h5py",
    "from l2ul_fast.experiments import registry; registry.load()": "h5py",
    "import l2ul_fast.report.terminal": "rich",
    "import l2ul_fast.cli.app": "typer",
}


@pytest.fixture
def blind(tmp_path):
    """blind(attempts, hidden) -> the error of each attempt, None where it succeeds."""

    def run(attempts, hidden=tuple(EXTRAS)):
        command = [sys.executable, "-c", BLIND]
        given = json.dumps([list(hidden), list(attempts)])
        done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return dict(zip(attempts, json.loads(done.stdout.splitlines()[-1]), strict=True))

    return run


def test_a_base_install_works_or_names_the_extra(blind):
    modules = {f"import {module}" for module in PUBLIC | OF_THE_CASES}
    said = blind([*BASE, *NEEDS, *sorted(modules - set(NEEDS) - set(BASE))])
    assert {attempt: error for attempt, error in said.items() if error and attempt in BASE} == {}
    for attempt, module in NEEDS.items():
        assert said[attempt], f"{attempt} did not need {module}"
        assert f"pip install 'l2ul-fast[{EXTRAS[module]}]'" in said[attempt][1], said[attempt]
    others = {attempt: error for attempt, error in said.items() if error and not SENTENCE.search(error[1])}
    assert others == {}


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(set(EXTRAS) - BROUGHT))
def test_each_missing_package_is_a_sentence(blind, module):
    """With all others there, more of the code runs before it asks for this one."""
    for attempt, error in blind([*BASE, *NEEDS], [module]).items():
        assert error is None or SENTENCE.search(error[1]) or "rows.h5" in error[1], (attempt, error)
        assert error is None or attempt not in BASE


def test_a_stranger_s_import_fails_as_before(blind):
    """Only what l2ul_fast imports gets the sentence."""
    said = blind(["import l2ul_fast, torch", "import importlib.util as u, l2ul_fast; assert not u.find_spec('torch')"])
    assert list(said.values()) == [["ModuleNotFoundError", "No module named 'torch'"], None]


def test_the_table_of_extras_is_that_of_the_project():
    for extra, needed in PROJECT["optional-dependencies"].items():
        for line in needed:
            package = re.match(r"[\w-]+", line)[0]
            module = {name: key for key, name in PACKAGES.items()}.get(package, package)
            if package != "l2ul-fast" and extra != "dev":
                assert module in EXTRAS, f"{package} of the extra {extra} is not in the table"
    for module, extra in EXTRAS.items():
        brought = " ".join(PROJECT["optional-dependencies"][extra])
        assert PACKAGES.get(module, module) in brought or module in BROUGHT
