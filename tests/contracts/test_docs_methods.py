"""The pages about methods: one for each built-in one, all in the index, and no test named that does not exist."""

import re
from pathlib import Path

from l2ul_fast.baselines import METHODS

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "methods"
#: Plug-ins need no page; the heads of L2UL have docs/unlearn.md.
BUILT_IN = {
    name: make().exact
    for name, make in METHODS.items()
    if type(make()).__module__.startswith("l2ul_fast.baselines.") and not name.startswith("l2ul-")
}


def test_every_method_has_a_page_and_a_line_in_the_index():
    index = (PAGES / "README.md").read_text()
    linked = dict(re.findall(r"^\| \[([\w-]+)\]\(([\w.]+)\) \|", index, re.MULTILINE))
    assert set(linked) == set(BUILT_IN)
    for name, page in linked.items():
        text = (PAGES / page).read_text()
        assert name in text
        for word in ("**Cost of a request:**", "**State:**", "**Guarantee:**", "**Tables:**"):
            assert word in text, f"{page} does not say {word}"
    exact = {name for name, is_exact in BUILT_IN.items() if is_exact}
    assert {m[0] for m in re.findall(r"^\| \[([\w-]+)\]\S+ \| (\*\*yes\*\*)", index, re.MULTILINE)} == exact


def test_tests_named_by_the_identities_exist():
    named = set(re.findall(r"`(test_\w+)`", (PAGES / "identities.md").read_text()))
    assert len(named) > 60
    sources = [file.read_text() for file in (ROOT / "tests").rglob("test_*.py")]
    written = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    assert not named - written
