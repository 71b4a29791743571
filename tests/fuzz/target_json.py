"""Files of a run: records.jsonl, run.json and options.json, read by resuming, tables, `compare` and `reproduce`."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from engine import Lie
from hypothesis import strategies as st
from strange import edited, edits, places, replaced, values

MODULES = ("l2ul_fast/measure/records.py:upgrade,Run,_hashable,_parsed,read_records,_is_object,current",)
MODULES += (
    "l2ul_fast/experiments/reproduce.py:find",
    "l2ul_fast/experiments/runner.py:Options",
    "l2ul_fast/report/runs.py",
)
KEYS = {"dataset": "magic", "source": "stand-in", "n": 800, "d": 10, "model": "lr", "request": "random", "r": 1}
RECORD = {
    **{
        "schema": 2,
        "experiment": "lr",
        "profile": "tiny",
        "threads": 1,
        "settings": None,
        "job": "magic",
        "status": "ok",
    },
    **KEYS,
    **{"method": "newton", "seed": 1, "repeat": 0, "answer_seconds": 1e-5, "erased_seconds": 1e-3, "rho": 0.01},
    **{"accuracy": 0.8, "retrain_accuracy": 0.8, "disagreement": 0.0, "noise_floor": 1e-9, "steal": 0.0, "at": 0.1},
}
OLD = {"experiment": "lr", "method": "l2ul", "kind": "random", "run": 0, "unlearn_seconds": 1.0, "reference": "A"}
OLDER = [
    OLD,
    {"experiment": "resnet", "method": "l2ul", "request": "x", "kind": "y", "r": 3.5},
    {"experiment": "pairs-lr", "method": "ours", "m": 3, "s": 4},
    {"experiment": "scale", "method": "fit", "m": 3, "task": "fit", "n": 1000},
    {"experiment": "kernels", "method": "ours", "n": 5, "seconds": [3, 1, 2], "of_peak": 0.5},
    {"experiment": "lr", "method": "nothing", "unlearn_seconds": 1e-6, "dataset": "magic"},
]
RUN = {
    "cpu": "x",
    "cores": 2,
    "git": "abc",
    "methods": {"newton": {"label": "Newton", "colour": "#123456", "marker": "o"}},
}
OPTIONS = {
    **{"experiments": ["lr"], "profile": "tiny", "datasets": ["magic"], "methods": ["newton"], "select": []},
    **{"numbers": {"runs": 1}, "seed": 1, "data_dir": "data", "raw_dir": "raw", "plugins": {}, "retry_failed": False},
    "before": [{"experiments": ["mlp"], "profile": "tiny"}],
}


def prepare() -> None:
    """Everything that reading a run imports, once: tables draw with slow packages."""
    sound: dict[str, Any] = {
        "records": [[0, []], [1, []]],
        "line": None,
        "end": "\n",
        "run": [],
        "options": [],
        "bytes": {},
        "cell": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        run(sound, Path(folder))


def cases() -> Any:
    return st.fixed_dictionaries(
        {
            "records": st.lists(st.tuples(st.integers(0, 8), st.lists(places, max_size=3)), min_size=1, max_size=4),
            "line": st.none() | st.text(max_size=30) | values,
            "end": st.sampled_from(("\n", "\n", "", '\n{"experiment": "l', "\n\n \n")),
            "run": st.lists(places, max_size=2),
            "options": st.lists(places, max_size=2),
            "bytes": st.dictionaries(st.sampled_from(("records.jsonl", "run.json", "options.json")), edits, max_size=1),
            "cell": st.sampled_from(("1", "99", "lr/newton", "r=1", "lr/magic/newton/repeat=0", "x=", "=", "//", "٣"))
            | st.text(max_size=12),
        }
    )


def changed(content: Any, changes: list[Any]) -> Any:
    found = json.loads(json.dumps(content))
    for place, value, how in changes:
        found = replaced(found, place, value, how)
    return found


def run(case: Any, folder: Path) -> None:
    from l2ul_fast.experiments import registry, runner
    from l2ul_fast.experiments.reproduce import find
    from l2ul_fast.measure.records import Run, current, read_records, upgrade
    from l2ul_fast.report.compare import compare_runs
    from l2ul_fast.report.runs import environment_of, find_run, load, styles_of
    from l2ul_fast.report.terminal import closing

    pool = [RECORD, {**RECORD, "method": "retrain"}, {**RECORD, "settings": '{"m": 77}'}, *OLDER]
    lines = [json.dumps(changed(pool[which], changes)) for which, changes in case["records"]]
    if case["line"] is not None:
        lines.insert(len(lines) // 2, case["line"] if isinstance(case["line"], str) else json.dumps(case["line"]))
    texts = {
        "records.jsonl": "\n".join(lines) + case["end"],
        "run.json": json.dumps(changed(RUN, case["run"])),
        "options.json": json.dumps(changed(OPTIONS, case["options"])),
    }
    for name, text in texts.items():
        data = text.encode("utf-8", "surrogatepass")
        (folder / name).write_bytes(edited(data, case["bytes"].get(name, [])))
    problems = []

    def tried(call: Any) -> Any:
        """The result, or None after a sentence, which is raised at the end: every reader has its turn."""
        try:
            return call()
        except (ValueError, TypeError) as error:
            problems.append(error)
            return None

    records = tried(lambda: read_records(folder)) or []
    for look in (find_run, read_records):
        with contextlib.suppress(ValueError):  # there is no such run
            look(Path(case["cell"]))
    opened = tried(lambda: Run(folder))
    if opened is not None:
        if not isinstance(opened.environment, dict):
            raise Lie("the environment of a run is no table")
        opened.has(experiment="lr", r=1, settings=None)
        if not set(map(json.dumps, opened.records)) <= set(map(json.dumps, records)):
            raise Lie("Run holds records that read_records does not give")
        opened.append({"experiment": "gate"})
        if Run(folder).records[-1] != {"experiment": "gate"} or len(opened.records) != len(records) + 1:
            raise Lie("what was appended is not the last record")
    tried(lambda: [upgrade(upgrade(r)) for r in records])
    tried(lambda: current(records))
    tried(lambda: find([upgrade(r) for r in records], case["cell"]))
    tried(lambda: runner.experiments_of(runner.Options.read_all(folder / "options.json")[0]))
    shown = tried(lambda: load(folder)) or []
    tried(lambda: styles_of(environment_of(folder, shown)))
    tried(lambda: closing(records, registry.exhibits(), registry.styles_of(), 100))
    tried(lambda: compare_runs(folder, folder))
    if problems:
        raise problems[0]
