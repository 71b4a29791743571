"""The report in a real browser: it opens, tables sort by mouse and keyboard, a phone can read it."""

import pytest
from browser import CHROMIUM, DRIVER, ENTER, SPACE, Browser

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="chromium and chromedriver are not installed (apt install chromium chromium-driver)",
)
COLUMN = """
    const body = document.querySelector('#x-lr table').tBodies[0];
    return Array.from(body.querySelectorAll('tr:not(.block)'), (row) => row.cells[arguments[0]].dataset.sort ?? null);
"""
OPEN = "document.querySelectorAll('details').forEach((d) => { d.open = true; })"


@pytest.fixture(scope="module")
def page(report):
    return report[0]


@pytest.fixture(scope="module")
def desk(page, tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("desk")) as browser:
        browser.open(page)
        browser.run(OPEN)
        yield browser


def heading(browser, name):
    """(selector of a column's button, place) of the table of all cells."""
    names = browser.run(
        "return Array.from(document.querySelectorAll('#x-lr table')[0].tHead.rows[0].cells, (c) => c.textContent)"
    )
    return f"#x-lr thead th:nth-child({names.index(name) + 1}) button", names.index(name)


def sorts(browser):
    return browser.run("return Array.from(document.querySelectorAll('#x-lr th'), (h) => h.getAttribute('aria-sort'))")


def test_tables_sort_by_mouse(desk):
    button, place = heading(desk, "prepare")
    desk.click(button)
    up = [float(v) for v in desk.run(COLUMN, place) if v is not None]
    assert up == sorted(up)
    assert len(up) > 10
    desk.click(button)
    assert [float(v) for v in desk.run(COLUMN, place) if v is not None] == up[::-1]
    assert [s for s in sorts(desk) if s] == ["descending"]
    desk.click(heading(desk, "method")[0])  # in the order of the legend
    order = [float(v) for v in desk.run(COLUMN, 0)]
    assert order == sorted(order)
    assert [s for s in sorts(desk) if s] == ["ascending"]


def test_tables_sort_by_keyboard(desk):
    button, place = heading(desk, "accuracy")
    desk.press(button, ENTER)
    up = [v for v in desk.run(COLUMN, place) if v is not None]
    assert list(map(float, up)) == sorted(map(float, up))
    desk.press(button, SPACE)
    assert [v for v in desk.run(COLUMN, place) if v is not None] == up[::-1]
    assert "Sorted by accuracy, descending" in desk.run("return document.getElementById('status').textContent")


def test_missing_values_stay_last_in_both_directions(desk):
    button, place = heading(desk, "rho")
    for _ in range(2):
        desk.click(button)  # SISA and the call overhead have none
        values = desk.run(COLUMN, place)
        known = [v for v in values if v is not None]
        assert values[len(known) :] == [None] * (len(values) - len(known))
        assert len(known) < len(values)
        assert len(known) > 10


def test_sorting_keeps_every_row_in_its_block(desk):
    count = "return Array.from(document.querySelectorAll('#x-mlp table')[0].tBodies, (b) => b.rows.length)"
    before = desk.run(count)
    desk.click("#x-mlp thead th:nth-child(5) button")
    assert desk.run(count) == before
    assert len(before) == 12  # datasets by r and threads
    first = "return Array.from(document.querySelectorAll('#x-mlp table')[0].tBodies, (b) => b.rows[0].className)"
    assert set(desk.run(first)) == {"block"}


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


def test_a_phone_shows_numbers_and_scrolls_inside_tables_and_plots(page, tmp_path):
    numbers = """
        return Array.from(document.querySelectorAll('#ranking tbody tr:not(.block)'), (row) =>
            Array.from(row.cells).slice(1).filter((c) => c.getBoundingClientRect().right <= innerWidth).length);
    """
    with Browser(tmp_path, 390, 844, phone=True) as phone:
        phone.open(page)
        phone.run(OPEN)
        assert phone.run("return innerWidth") == 390
        assert phone.run("return document.documentElement.scrollWidth") == 390
        assert min(phone.run(numbers)) >= 3  # rank, rho and time beside the name, whole and without scrolling
        wide = phone.run(
            "return Array.from(document.querySelectorAll('.scroll, .plot'), (e) => [e.scrollWidth > e.clientWidth,"
            " getComputedStyle(e).overflowX])"
        )
        assert sum(over for over, _ in wide) >= 8
        assert all(how == "auto" for over, how in wide if over)
        phone.run("document.querySelector('#ranking .scroll').scrollLeft = 150")
        left = "return document.querySelector('#ranking tbody th[scope=row]').getBoundingClientRect().left"
        assert phone.run(left) > 0  # the name stays in sight
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
