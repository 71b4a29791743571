"""The pages about methods: one for each, all in the index, and no test named that does not exist."""

import re
from pathlib import Path

from l2ul_fast.baselines import METHODS

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "methods"


def test_every_method_has_a_page_and_a_line_in_the_index():
    index = (PAGES / "README.md").read_text()
    linked = dict(re.findall(r"^\| \[([\w-]+)\]\(([\w.]+)\) \|", index, re.MULTILINE))
    assert list(linked) == list(METHODS)
    for name, page in linked.items():
        text = (PAGES / page).read_text()
        assert name in text
        for word in ("**Cost of a request:**", "**State:**", "**Guarantee:**", "**Tables:**"):
            assert word in text, f"{page} does not say {word}"
    exact = {name for name in METHODS if METHODS[name]().exact}
    assert {m[0] for m in re.findall(r"^\| \[([\w-]+)\]\S+ \| (\*\*yes\*\*)", index, re.MULTILINE)} == exact


def test_tests_named_by_the_identities_exist():
    named = set(re.findall(r"`(test_\w+)`", (PAGES / "identities.md").read_text()))
    assert len(named) > 60
    sources = [file.read_text() for file in (ROOT / "tests").rglob("test_*.py")]
    written = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    assert not named - written
