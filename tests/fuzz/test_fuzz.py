"""Cases that were findings once, a few new ones of every target, and that the fuzzer sees what it is there to see."""

import json

import pytest
from engine import CASES, TARGETS, Verdict, Worker, fuzz

SAVED = {path.stem: json.loads(path.read_text()) for path in sorted(CASES.glob("*.json"))}
#: What is known and not mended yet ("open" in its file): this may only get less.
OPEN = {(saved["target"], Verdict(*saved["found"].split(": ", 1)).key) for saved in SAVED.values() if "open" in saved}
#: Of each target, at one seed: `make fuzz` takes fresh ones.
FEW = {"hdf5": 30, "artifact": 30, "json": 30, "text": 60, "archive": 30, "cli": 30, "api": 40, "kernels": 150}
FAULTS = {
    "lie": "raise Lie('accepted')",
    "no sentence": "raise ValueError('one\\ntwo')",
    "KeyError": "{}[1]",
    "memory": "bytearray(4 << 30)",
    "crash": "import os; os.abort()",
    "hang": "while True: pass",
    "SystemExit": "raise SystemExit(1)",
    "refused": "raise TypeError('in one sentence')",
    "ok": "pass",
}


@pytest.fixture(scope="module")
def worker():
    found = Worker()
    yield found
    found.close()


@pytest.mark.parametrize("name", SAVED)
def test_what_was_found_stays_fixed(name, worker):
    saved = SAVED[name]
    verdict = worker.run(saved["target"], saved["case"])
    if verdict.finding and "open" in saved:
        pytest.xfail(saved["open"])
    assert not verdict.finding, f"found before: {saved['found']}; now: {verdict.kind}: {verdict.text}"


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_cases_end_well_or_in_one_sentence(name, worker, monkeypatch, tmp_path):
    monkeypatch.setattr("engine.CASES", tmp_path)  # what is found here is found again by its seed
    tally = fuzz(name, worker, seed=0, cases=FEW[name])
    assert tally.cases >= FEW[name] // 2
    assert tally.ok > 0, "nothing was accepted: the cases are not near enough to what is read"
    found = {key: path.read_text() for key, (_, path) in tally.findings.items() if (name, key) not in OPEN}
    assert not found, "\n".join(f"{key}: {text}" for key, text in found.items())


def test_the_fuzzer_sees_what_it_looks_for(tmp_path, monkeypatch):
    lines = "".join(f"        case {name!r}:\n            {code}\n" for name, code in FAULTS.items())
    text = f"from engine import Lie\ndef prepare(): pass\ndef run(case, folder):\n    match case:\n{lines}"
    (tmp_path / "target_faulty.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    worker = Worker(("faulty",), seconds=1)
    assert {name: worker.run("faulty", name).kind for name in FAULTS} == {name: name for name in FAULTS}
    worker.close()
