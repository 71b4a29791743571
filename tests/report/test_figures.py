"""Tables and plots say what the records say: medians, spread, real r, call overhead; published pages, too."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from report_data import EXHIBITS, FEW, STYLES, before, main_records, write
from rich.console import Console
from typer.testing import CliRunner

from l2ul_fast.cli.app import app
from l2ul_fast.errors import UserError
from l2ul_fast.experiments.paper import efficacy
from l2ul_fast.measure.records import read_records
from l2ul_fast.protocols import Style
from l2ul_fast.report import markdown, style, terminal
from l2ul_fast.report.figure import resolve
from l2ul_fast.report.figures import headline, methods, speedup
from l2ul_fast.report.publish import PARTS, part_text, publish
from l2ul_fast.report.runs import find_run, measured, ready
from l2ul_fast.report.values import Table, dataset_label, median, r_text, seconds_text, select

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def styles():
    with style.using(STYLES):
        yield


def column(table, name, **key):
    """Texts of one column, of the rows whose first cells contain these words."""
    at = {name: i for i, name in enumerate(table.columns)}
    rows = [row for row in table.rows if all(word in row[at[k]].text for k, word in key.items())]
    return [row[at[name]] for row in rows]


# One exact zero, real r, call overhead, spread, stolen time -----------------------------------------------------------


@pytest.mark.parametrize("zeros", [1, 3])
def test_exact_zeros_do_not_pull_the_mark_to_the_floor(zeros):
    records = [r for r in main_records(2) if r["experiment"] == "lr"]
    for dataset in ("sepsis", "magic", "skin")[:zeros]:
        for r in select(records, dataset=dataset, method="deltagrad"):
            r["rho"] = 0.0
    found = {m.method: m for m in headline.marks(ready(records))}
    assert found["deltagrad"].rho == pytest.approx(0.05, rel=0.2)
    assert min(found["deltagrad"].found("rho")) == 1e-8  # at the solver's noise, not at 0
    assert found["retrain"].rho == found["retrain-warm"].rho == 1e-8
    table = headline.tables(ready(records))[0]
    assert [c.text for c in column(table, "rank", method="Retrain")] == ["1", "1"]
    assert "solver's own noise" in table.note
    (rho,) = column(table, "rho", method="DeltaGrad")
    assert rho.text.startswith("0.05 (1e-08–")


def test_the_ranking_is_in_the_order_of_the_rho_that_it_shows():
    """First on three small datasets and far off on four: the median over all decides, not the places on each."""
    records = select(main_records(2), experiment="lr")
    for r in select(records, method="influence"):
        r["rho"] = 1e-6 if r["dataset"] in ("magic", "adult", "sepsis") else 0.4
    table = headline.tables(ready(records))[0]
    rows = [row for row in table.rows if row[table.columns.index("rho")].sort is not None]
    rhos, ranks = ([row[table.columns.index(name)].sort for row in rows] for name in ("rho", "rank"))
    assert rhos == sorted(rhos)
    assert ranks == [1 + sum(other < rho for other in rhos) for rho in rhos]
    assert column(table, "rank", method="Influence")[0].sort > column(table, "rank", method="Descent")[0].sort
    assert "rank: the order of the rho shown" in table.note


def test_names_stand_near_their_marks():
    for drawing in headline.plots(ready(select(main_records(1), r_asked=(1, 100)))):
        names = [t for axis in drawing.figure.axes for t in axis.texts if t.xyann != t.xy and t.get_zorder() == 6]
        assert len(names) >= 14
        assert max(np.hypot(*t.xyann) for t in names) < 35  # points; a name is 9 high


def test_one_zero_of_two_datasets_does_not_halve_the_mark():
    assert headline.upper_median([1e-9, 0.1]) == 0.1
    assert headline.upper_median([1e-9, 1e-9, 0.1]) == 1e-9
    assert headline.middle_of([1e-6, 1e-4]) == pytest.approx(1e-5)


def test_r_is_what_was_really_forgotten():
    records = main_records(1, FEW)
    for r in records:
        if r["r_asked"] == 1000 and r["dataset"] == "magic":
            r["r"] = 375
    found = ready(records)
    assert r_text(select(found, dataset="magic", r_asked=1000)) == "375 (asked 1,000)"
    assert r_text(select(found, r_asked=1000)) == "375 to 1,000 (asked 1,000)"
    mlp = select(found, experiment="mlp")
    assert set(headline.panels(mlp)) == {("mlp", 1), ("mlp", 100), ("mlp", 1000)}  # one panel for what was asked
    assert any("r = 375 to 1,000 (asked 1,000)" in row[0].text for row in headline.tables(mlp)[1].rows)
    magic = column(methods.table(mlp), "r", dataset="magic", r="asked")
    assert {c.text for c in magic} == {"r = 375 (asked 1,000)"}
    assert {
        c.text for c in column(efficacy.shown_tables(select(found, experiment="efficacy"))[0], "r", dataset="magic")
    } == {"r = 375 (asked 1,000)"}
    assert "375 (asked 1,000)" in {c.text for c in column(methods.brief(mlp), "r")}


def test_doing_nothing_is_a_call_overhead_not_a_time():
    found = ready(select(main_records(2, FEW), experiment="lr"))
    for table in (methods.table(found), headline.tables(found)[0]):
        assert {c.text for c in column(table, "answer", method="Do nothing")} == {"–"}
        assert all(" ns" in c.text for c in column(table, "answer", method="Call overhead"))
        assert {c.text for c in column(table, "rho", method="Do nothing")} == {"1"}


def test_headline_figures_have_their_spread_and_disturbed_timings_a_mark():
    found = ready(select(main_records(5, FEW), experiment="lr"))
    one = select(found, dataset="magic")
    for records in (found, one):  # over datasets, over repeats
        table = headline.tables(records)[0]
        for name in ("answer", "rho"):
            assert re.search(r"\(.+–.+\)", column(table, name, method="Newton")[0].text)
    assert re.search(r"\(.+–.+\)", column(methods.table(one), "answer", method="Newton")[0].text)
    assert "‡" not in str(headline.tables(found)[0])
    noisy = [{**r, "steal": 0.1} if r["method"] == "newton" else r for r in found]
    table = headline.tables(noisy)[0]
    assert "‡" in column(table, "answer", method="Newton")[0].text
    assert "‡" not in column(table, "answer", method="Influence")[0].text
    assert "other guests of the host" in table.note  # load of its own is not seen, and the legend says so
    assert "what else the machine itself was doing is not seen" in table.note


# Numbers --------------------------------------------------------------------------------------------------------------


def test_ratios_are_of_medians_with_both_times():
    records = ready(select(main_records(5, FEW), experiment="lr"))
    table = speedup.tables(records)[0]
    magic = {"dataset": dataset_label("magic", "real", 15_216)}

    def time(method, name="answer_seconds"):
        return median(select(records, dataset="magic", method=method), name)

    assert column(table, "its time", against="Retrain", **magic)[0].sort == time("retrain")
    ratio = column(table, "faster by", against="Retrain", **magic)[0]
    assert ratio.sort == pytest.approx(time("retrain") / time("l2ul-expansion"))
    assert column(table, "paper says", against="Retrain", **magic)[0].text == "630×"
    assert column(table, "verdict", against="Retrain", **magic)[0].text == "reached"
    assert (
        column(table, "verdict", against="Retrain", dataset="higgs")[0].text == "not reached (7.3 % of the paper's n)"
    )
    erased = column(table, "faster by, until erased", against="DeltaGrad", **magic)[0]
    assert erased.sort == pytest.approx(50 * time("deltagrad") / time("l2ul-expansion"), rel=0.1)
    whole = methods.table(records)
    assert column(whole, "erased", method="Do nothing")[0].text == "never"
    assert column(whole, "× Retrain", method="Retrain")[0].sort == 1
    slow = column(whole, "× Retrain", method="FYEMU") + column(whole, "× Retrain", method="DeltaGrad")
    assert all("slower" in c.text for c in slow if c.sort < 1)
    assert column(whole, "rho", method="Retrain, warm")[0].text == "≤ 1e-08 (solver noise)"
    assert column(whole, "rho", method="DeltaGrad")[0].text.endswith("†")


def test_thread_counts_are_blocks_of_their_own():
    records = ready(select(main_records(2, FEW, threads=(1, 4)), experiment="lr"))
    assert {c.text for c in column(methods.table(records), "threads")} == {"1 thread", "4 threads"}
    assert {c.text for c in column(methods.brief(records), "threads")} == {"1", "4"}
    assert {r["threads"] for cells in headline.panels(records).values() for r in cells} == {4}
    table = methods.thread_table(records)
    assert table.columns[4:7] == ["1 thread", "4 threads", "gain"]
    assert not methods.thread_table(select(records, threads=1)).rows


def test_break_even_counts_requests():
    cell = {"experiment": "lr", "dataset": "a", "source": "real", "n": 10, "model": "lr", "r": 1, "request": "random"}
    times = {"retrain": (1.0, 1.0), "l2ul-expansion": (6.0, 0.01), "fyemu": (1.0, 3.0)}
    records = [{**cell, "method": m, "prepare_seconds": p, "answer_seconds": u} for m, (p, u) in times.items()]
    table = methods.break_even_table(ready([{**r, "schema": 2} for r in records]))
    found = {row[3].text: row[4].text for row in table.rows}
    assert found == {"L2UL": "6", "FYEMU": "never"}  # 5 s more, 0.99 s saved each time


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.8e-6, "4.8 µs"), (2.5e-7, "250 ns"), (0.0123, "12.3 ms"), (3.456, "3.46 s"), (90, "90 s"), (1200, "20 min")],
)
def test_seconds_are_readable(seconds, text):
    assert seconds_text(seconds) == text


def test_plug_ins_get_a_free_colour_and_old_methods_keep_a_name():
    with style.using({**STYLES, "mine": style.Style("Mine"), "other": style.Style("Other")}):
        assert style.style_of("mine").colour != style.style_of("other").colour
        assert style.method_order("mine") < style.method_order("l2ul-newton") < style.method_order("nobody")
    assert style.style_of("l2ul-newton").label.startswith("L2UL before")


# Renderers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_no_cell_is_cut_in_the_terminal(columns):
    records = main_records(2, FEW, threads=(1, 2))
    console = Console(width=columns, record=True, file=io.StringIO())
    console.print(terminal.closing(records, EXHIBITS, STYLES, columns))
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= columns
    if columns >= 80:
        table = methods.brief(ready(select(records, experiment="lr")))
        assert all(c.text in text for row in table.rows for c in row)
        assert text.count("magic (real, n = 15,216), LR") == 1  # one block per dataset and model


def test_the_terminal_shows_every_method_with_and_without_the_default_head():
    records = select(main_records(2, FEW), experiment="lr")
    own = [{**r, "method": "of-mine"} for r in select(records, method="influence")]

    def text(records):
        console = Console(width=120, record=True, file=io.StringIO())
        console.print(terminal.closing(records, EXHIBITS, STYLES, 120))
        return console.export_text()

    assert "of-mine" in text(records + own)
    few = text(own + select(records, method=("retrain", "nothing")))
    assert "every method" in few
    assert few.count("of-mine") >= 3  # on each dataset and in the ranking


@pytest.mark.parametrize(("colour", "marker"), [("mauve", "☃"), ("#12", ""), ("$x$", "triangle"), ("", "$x$")])
def test_unknown_colours_and_marks_become_ones_that_can_be_drawn(colour, marker):
    with style.using({"mine": Style("Mine", colour, marker)}):
        found = style.style_of("mine")
    assert found.colour in style.COLOURS
    assert found.marker == "o"


def test_columns_are_honoured_when_piped(monkeypatch):
    monkeypatch.setenv("COLUMNS", "77")
    assert terminal.console().width == 77


def test_one_table_in_markdown():
    table = Table("T", ["data", "a", "b"], [["x", "1|2", 3.5], ["y", "k", None]], "A note.", block=1)
    text = markdown.render([table])
    assert text.splitlines()[2:] == [
        "| a | b |",
        "| --- | ---: |",
        "| **x** |  |",
        "| 1\\|2 | 3.5 |",
        "| **y** |  |",
        "| k | – |",
        "",
        "A note.",
    ]
    with pytest.raises(UserError, match="exactly one pair"):
        markdown.replace_part("nothing here", "main", "")


# Published pages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTS)
def test_pages_say_what_their_records_say(name):
    """A figure typed by hand, or stale, fails here."""
    text = (ROOT / PARTS[name].page).read_text(encoding="utf-8")
    assert markdown.replace_part(text, name, part_text(ROOT, name, STYLES)) == text


RECORDED = measured(ready(read_records(ROOT / "tests" / "contracts" / "fixtures" / "run")))


@pytest.mark.parametrize(
    "name", [name for name in EXHIBITS if EXHIBITS[name].figure and select(RECORDED, experiment=name)]
)
def test_every_figure_draws_the_recorded_run(name, undrawn):
    """Every row has a cell for every column; whatever is drawn has words."""
    figure, mine = resolve(EXHIBITS[name].figure), select(RECORDED, experiment=name)
    for table in figure.all_tables(mine):
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert all(len(drawing.alt) > 40 for drawing in figure.plots(mine))


def test_publishing_writes_records_plots_and_pages(tmp_path, undrawn):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("before\n<!-- main:begin -->\nold\n<!-- main:end -->\nafter\n")
    run = write(tmp_path / "run", main_records(3, FEW))
    done = CliRunner().invoke(app, ["report", str(run), "--publish", str(tmp_path)])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n")
    assert "On 2 datasets (stand-ins: higgs) L2UL takes one row" in text
    assert {p.name for p in (tmp_path / "docs").iterdir()} == {"main.jsonl", "main-lr.png", "main-mlp.png"}
    kept = read_records(tmp_path / "docs" / "main.jsonl")
    assert {r["runs"] for r in kept[1:]} == {3}
    newton = next(r for r in kept if r.get("method") == "newton")
    assert newton["answer_seconds_low"] < newton["answer_seconds"] < newton["answer_seconds_high"]
    publish(run, tmp_path, EXHIBITS, STYLES)
    assert (tmp_path / "README.md").read_text() == text
    (tmp_path / "README.md").write_text("before\n<!-- main:begin -->\nold\n<!-- main:end -->\nafter\n")
    publish(tmp_path / "docs" / "main.jsonl", tmp_path, EXHIBITS, STYLES)  # what is kept, shown anew
    assert (tmp_path / "README.md").read_text() == text
    assert read_records(tmp_path / "docs" / "main.jsonl") == kept
    with pytest.raises(UserError, match="no records that a page"):
        publish(write(tmp_path / "other", [{"experiment": "odd", "y": 1}]), tmp_path, EXHIBITS, STYLES)


def test_runs_are_found_by_folder_or_name_and_read_as_of_today(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = main_records(1, FEW)[:3]
    write(tmp_path / "results" / "quick", records)
    assert find_run("quick").name == find_run("results/quick").name == "quick"
    (tmp_path / "empty").mkdir()
    for name, sentence in (("empty", r"no records\.jsonl"), ("nowhere", "there is no run")):
        with pytest.raises(UserError, match=sentence):
            find_run(name)
    old, new = ready(before(main_records(1, FEW))), ready(main_records(1, FEW))
    assert json.dumps(old[0]["overhead_seconds"]) == json.dumps(new[0]["overhead_seconds"])
    assert old[0]["answer_seconds"] is None
    assert all(r["noise_floor"] == 1e-8 for r in new)  # measured by Retrain, valid for all
