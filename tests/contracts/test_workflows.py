"""Workflows and hooks: they call targets of the Makefile, with pinned actions, few rights and the tools of the venv."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
TARGETS = set(re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
TARGETS = {target for line in TARGETS for target in line.split()}


def steps(workflow):
    """(job, step) of every step."""
    return [(job, step) for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_are_workflows():
    assert {"test.yml", "lint.yml", "nightly.yml"} <= set(WORKFLOWS)
    assert {"test", "lint", "mutants", "asv-smoke"} <= TARGETS


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_call_targets_of_the_makefile(name):
    for job, step in steps(WORKFLOWS[name]):
        matrix = job.get("strategy", {}).get("matrix", {})
        targets = {*matrix.get("target", []), *(row["target"] for row in matrix.get("include", []) if "target" in row)}
        for called in re.findall(r"\bmake (\$\{\{ matrix\.target \}\}|[\w-]+)", step.get("run", "")):
            named = targets if called.startswith("$") else {called}
            assert named
            assert named <= TARGETS, f"{named - TARGETS} is no target of the Makefile"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_workflows_may_only_read(name):
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    for job, step in steps(workflow):
        assert "permissions" not in job
        assert "timeout-minutes" in job
        assert "run" in step or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step


def test_hooks_have_the_versions_of_the_constraints():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    revs = {repo["repo"].rsplit("/", 1)[-1]: repo.get("rev") for repo in config["repos"]}
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert revs["ruff-pre-commit"] == f"v{pins['ruff']}"
    assert revs["codespell"] == f"v{pins['codespell']}"


def test_tests_share_the_cores_and_benchmarks_do_not():
    """A benchmark beside another one measures that one, too: pytest-benchmark refuses, asv would not notice."""
    text = (ROOT / "Makefile").read_text()
    recipes = dict(re.findall(r"^([\w-]+)[^\n=]*:[^\n=]*\n((?:\t.*\n)+)", text, re.MULTILINE))
    assert "$(PYTEST)" in recipes["test"]
    assert "pytest" in recipes["bench-pytest"]
    assert [name for name, lines in recipes.items() if "bench" in name and re.search(r"PYTEST\)| -n ", lines)] == []


def test_a_linked_environment_is_used_as_it_is(tmp_path):
    """Nothing is installed into it, and the packages are those of this tree."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    (tmp_path / "other" / "bin").mkdir(parents=True)
    (tmp_path / ".venv").symlink_to("other")
    make = ["make", "-C", str(tmp_path), "test"]
    done = subprocess.run(make, capture_output=True, text=True)
    assert done.returncode != 0
    assert ".venv is a link to no environment" in done.stderr
    python = tmp_path / "other" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH: $@"\n')
    python.chmod(0o755)
    said = subprocess.run(make, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "/mine"}).stdout
    assert f"{tmp_path}:{tmp_path}/kernels:/mine: -m pytest" in said
    assert "pip" not in said
