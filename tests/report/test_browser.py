"""The report in a real browser: it opens, tables sort by mouse and keyboard, a phone can read it."""

import pytest
from browser import CHROMIUM, DRIVER, ENTER, SPACE, Browser
from report_data import DATASETS, main_records, other_records, write

from l2ul_fast.report.run import write_report

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="chromium and chromedriver are not installed (apt install chromium chromium-driver)",
)
COLUMN = """
    const table = document.querySelector(arguments[0] + ' table');
    return Array.from(table.tBodies[0].rows, (row) => row.cells[arguments[1]].dataset.sort ?? null);
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    few = {name: DATASETS[name] for name in ("magic", "covtype", "higgs")}
    return write_report(write(tmp_path_factory.mktemp("run"), main_records(2, few) + other_records()))[0]


@pytest.fixture(scope="module")
def desk(page, tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("desk")) as browser:
        browser.open(page)
        yield browser


def heading(column):
    return f"#lr thead th:nth-child({column}) button"


def sorts(browser):
    return browser.run("return Array.from(document.querySelectorAll('#lr th'), (h) => h.getAttribute('aria-sort'))")


def test_tables_sort_by_mouse(desk):
    desk.click(heading(10))  # time of one request
    up = [float(v) for v in desk.run(COLUMN, "#lr", 9)]
    assert up == sorted(up)
    assert len(set(up)) > 10
    desk.click(heading(10))
    assert [float(v) for v in desk.run(COLUMN, "#lr", 9)] == up[::-1]
    assert sorts(desk)[9] == "descending"
    desk.click(heading(1))  # names
    names = desk.run(COLUMN, "#lr", 0)
    assert names == sorted(names)
    assert [s for s in sorts(desk) if s] == ["ascending"]


def test_tables_sort_by_keyboard(desk):
    desk.press(heading(6), ENTER)
    up = [float(v) for v in desk.run(COLUMN, "#lr", 5)]
    assert up == sorted(up)
    desk.press(heading(6), SPACE)
    assert [float(v) for v in desk.run(COLUMN, "#lr", 5)] == up[::-1]
    assert "Sorted by accuracy, descending" in desk.run("return document.getElementById('status').textContent")


def test_missing_values_stay_last_in_both_directions(desk):
    for _ in range(2):
        desk.click(heading(8))  # rho: SISA has none
        values = desk.run(COLUMN, "#lr", 7)
        known = [v for v in values if v is not None]
        assert values[len(known) :] == [None] * 3
        assert len(known) > 30


def test_sorting_loses_no_row(desk):
    count = "return document.querySelectorAll('#mlp tbody tr').length"
    before = desk.run(count)
    desk.click("#mlp thead th:nth-child(5) button")
    assert desk.run(count) == before > 100


def test_plots_are_drawn_and_follow_the_page(desk):
    boxes = desk.run(
        "return Array.from(document.querySelectorAll('.plot svg'), (s) => [s.getBoundingClientRect().width,"
        " s.getBoundingClientRect().height, s.querySelectorAll('path').length])"
    )
    assert len(boxes) == 7
    assert all(width > 400 and height > 200 and paths > 10 for width, height, paths in boxes)


def test_the_console_is_quiet_and_nothing_was_loaded(desk):
    assert desk.console() == []
    assert desk.run("return performance.getEntriesByType('resource').length") == 0
    assert desk.run("return document.title") != ""


def test_text_of_records_was_not_run(desk):
    assert desk.run("return document.querySelectorAll('script').length") == 1
    assert desk.run("return document.body.textContent.includes('<script>alert(1)</script>')")


def test_a_phone_scrolls_tables_and_plots_inside_themselves(page, tmp_path):
    with Browser(tmp_path, 390, 844, phone=True) as phone:
        phone.open(page)
        assert phone.run("return innerWidth") == 390
        assert phone.run("return document.documentElement.scrollWidth") == 390
        wide = phone.run(
            "return Array.from(document.querySelectorAll('.scroll, .plot'), (e) => [e.scrollWidth > e.clientWidth,"
            " getComputedStyle(e).overflowX])"
        )
        assert sum(over for over, _ in wide) >= 8
        assert all(how == "auto" for over, how in wide if over)
        phone.click(heading(5))
        assert phone.console() == []


def test_dark_mode_turns_the_plots_too(page, tmp_path):
    script = """
        const ink = getComputedStyle(document.querySelector('.plot svg text')).fill;
        return [getComputedStyle(document.body).backgroundColor, ink];
    """
    with Browser(tmp_path, dark=True) as dark:
        dark.open(page)
        ground, ink = dark.run(script)
    brightness = [sum(map(int, colour[4:-1].split(","))) for colour in (ground, ink)]
    assert brightness[0] < 120
    assert brightness[1] > 600
