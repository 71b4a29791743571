"""The page of a run: what it says follows from the records, whatever state the run is in."""

import json
import re
from html.parser import HTMLParser

import pytest
from report_data import DATASETS, main_records, other_records, write
from typer.testing import CliRunner

from l2ul_fast.cli.app import app
from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import read_records
from l2ul_fast.report.common import Cell, Table, dataset_label, median, ratio_text, runs_of, seconds_text, tidy
from l2ul_fast.report.figures import costs, headline, methods, speedup
from l2ul_fast.report.page import Section, table_html, write_page
from l2ul_fast.report.run import find_run, missing_parts, write_report

FEW = {name: DATASETS[name] for name in ("magic", "higgs")}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("run"), main_records(3, FEW, threads=(1, 2)) + other_records())
    page, missing = write_report(folder)
    return page, page.read_text(encoding="utf-8"), missing


class Tags(HTMLParser):
    """Start tags with their attributes, and whether every tag that needs it was closed."""

    VOID = ("meta", "link", "br", "img", "path", "use")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_network(report):
    page, text, _ = report
    found = Tags(text)
    assert found.open == []
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, attributes in found.tags:
        assert tag not in ("iframe", "object", "embed", "form", "base")
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name, "")
            assert not re.match(r"(?:https?:)?//|javascript:", target)
            if target.startswith("#"):
                assert target[1:] in ids
            elif target and not target.startswith("data:"):
                assert (page.parent / target).is_file()
    assert "url(http" not in text
    assert "default-src 'none'" in text


def test_every_plot_has_words_and_files(report):
    page, text, _ = report
    pictures = [a for tag, a in Tags(text).tags if tag == "svg"]
    assert len(pictures) == 7  # two headlines, LR, three of MLP, cores
    assert all(len(a["aria-label"]) > 40 and a["role"] == "img" for a in pictures)
    for suffix in ("png", "svg"):
        assert {p.stem for p in page.parent.glob(f"*.{suffix}")} == {
            "headline-lr-lr",
            "headline-mlp-mlp",
            "lr-lr-r1",
            "mlp-mlp-r1",
            "mlp-mlp-r100",
            "mlp-mlp-r1000",
            "cores",
        }


def test_text_of_records_stays_text(report):
    _, text, _ = report
    assert "<script>alert(1)</script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count("<script>") == 1


def test_data_machine_and_runs_are_named(report):
    _, text, missing = report
    assert "Example CPU 9000" in text
    assert "numpy 2.4.6" in text
    assert "stand-ins of the same shape: higgs." in text
    assert "stand-in: generated, not the real data" in text
    assert "higgs (stand-in, n = 800,000)" in text
    assert any("sensitivity" in sentence and "lr" not in sentence.split() for sentence in missing)


def test_all_tables_have_retrain_and_nothing():
    records = main_records(2, FEW)
    for table in (methods.table(records, "lr"), methods.table(records, "mlp"), methods.efficacy(records)):
        for dataset in {row[0] for row in table.rows}:
            names = [cell.text for row in table.rows if row[0] == dataset for cell in row if isinstance(cell, Cell)]
            assert "Retrain" in names
            assert "Do nothing" in names


def test_speedups_are_ratios_of_medians_with_both_times():
    records = main_records(5, FEW)
    rows = {(r[0].text, r[1].text): r for r in speedup.rows(records, "lr")}
    row = rows[dataset_label(*("magic", "real", 15_216)), "Retrain"]

    def time(method):
        return median(
            [r for r in records if r["experiment"] == "lr" and r["dataset"] == "magic" and r["method"] == method],
            "unlearn_seconds",
        )

    assert row[2].sort == time("retrain")
    assert row[3].sort == time("l2ul-expansion")
    assert row[4].sort == pytest.approx(time("retrain") / time("l2ul-expansion"))
    assert row[9].sort == pytest.approx(row[4].sort)  # neither needs more to erase the row
    grad = rows[row[0].text, "DeltaGrad"]
    assert grad[9].sort == pytest.approx(50 * grad[4].sort, rel=0.1)
    assert row[4].text == ratio_text(row[4].sort)
    assert row[5].text == "630×"
    assert row[6].text == "reached"
    higgs = rows[dataset_label("higgs", "stand-in", 800_000), "Retrain"]
    assert higgs[5].text == "422,500×"
    assert higgs[6].text == "not reached (7% of the paper's n)"
    assert rows[dataset_label("magic", "real", 15_216), "Newton step"][5].sort is None
    mlp = {(r[0].text, r[1].text): r[5].sort for r in speedup.rows(records, "mlp") if r[5].sort}
    assert sorted(mlp.values()) == [43, 730, 1203, 15087, 32750, 105250, 294750, 398000]


def test_thread_counts_are_never_mixed():
    records = main_records(2, FEW, threads=(1, 4))
    assert {r["threads"] for r in methods.main_records(records)} == {4}
    one = [r for r in records if r["threads"] == 1]
    assert {r["threads"] for r in methods.main_records(records + one)} == {1}
    table = costs.thread_table(records)
    assert table.columns[4:7] == ["1 thread", "4 threads", "1 → 4"]
    assert costs.thread_table(one) is None


def test_records_are_read_as_reports_need_them():
    records = main_records(2, FEW)
    for r in records:
        r["r"] = min(r["r"], 700)  # a small table gives fewer rows than asked for
    found = tidy(records)
    assert {r["r"] for r in found} == {1, 100, 1000}
    assert all(r["noise_floor"] == 1e-8 for r in found)  # measured by Retrain, valid for all
    assert runs_of([r for r in found if r["method"] == "l2ul-expansion" and r["experiment"] == "lr"]) == 2
    row = next(row for row in methods.table(found, "lr").rows if row[4].text == "Retrain, warm start")
    assert row[7].text == "≤ 1e-08 (solver noise)"
    row = next(row for row in methods.table(found, "lr").rows if row[4].text == "DeltaGrad")
    assert row[7].text.endswith("†")


def test_headline_marks():
    records = [r for r in main_records(4) if r["experiment"] == "lr"]
    found = {m.method: m for m in headline.marks(records)}
    assert "nothing" not in found  # the line at 1
    assert found["sisa"].rho is None
    assert found["retrain"].rho == 0
    assert found["l2ul-expansion"].datasets == 7
    assert 1.5e-4 < found["l2ul-expansion"].rho < 2.5e-4
    assert set(headline.panels(main_records(1))[("mlp", "mlp")]) == {1, 100, 1000}


def test_break_even_counts_requests():
    facts = {"experiment": "lr", "dataset": "magic", "source": "real", "n": 10, "model": "lr", "r": 1, "kind": "random"}
    times = {"retrain": (1.0, 1.0), "l2ul-expansion": (6.0, 0.01), "fyemu": (1.0, 3.0)}
    records = [
        {**facts, "method": m, "seed": 0, "threads": 1, "prepare_seconds": p, "unlearn_seconds": u}
        for m, (p, u) in times.items()
    ]
    found = {row[3].text: row[4].text for row in costs.break_even_table(records).rows}
    assert found == {"L2UL": "6", "FYEMU": "never"}  # 5 s more, 0.99 s saved each time


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.8e-6, "4.8 µs"), (2.5e-7, "250 ns"), (0.0123, "12.3 ms"), (3.456, "3.46 s"), (90, "90 s"), (1200, "20 min")],
)
def test_seconds_are_readable(seconds, text):
    assert seconds_text(seconds) == text


def test_cells_carry_what_they_are_sorted_by():
    text = table_html(Table("t", ["a", "b"], [["x", Cell("1 ms", 0.001)], ["y", None], ["z", float("nan")]]))
    assert '<td class="num" data-sort="0.001">1 ms</td>' in text
    assert text.count('<td class="num">–</td>') == 2  # nothing to sort by: stays last
    assert '<th scope="row" data-sort="x">x</th>' in text


def test_null_and_foreign_values_do_not_stop_the_page(tmp_path):
    records = main_records(1, FEW)
    for i, r in enumerate(records):
        r[["accuracy", "rho", "unlearn_seconds", "noise_floor", "prepare_seconds"][i % 5]] = [None, "?", float("nan")][
            i % 3
        ]
    for name in ("source", "n", "kind", "threads", "retrain_accuracy"):
        records[3].pop(name)
    page, _ = write_report(write(tmp_path / "run", records), tmp_path / "out")
    assert page == tmp_path / "out" / "index.html"


def test_an_unfinished_run_names_what_is_missing(tmp_path):
    records = [r for r in main_records(3) if r["experiment"] == "lr"]
    lost = [r for r in records if not (r["dataset"] == "higgs" and (r["method"] == "sisa" or r["run"] == 2))]
    sentences = missing_parts(lost)
    assert "mlp" in sentences[0]
    assert "lr: no records of sisa on higgs (lr, r = 1, random)." in sentences
    assert any("fewer than 3 runs" in s for s in sentences)
    assert "no row of retrain" in missing_parts([r for r in lost if r["method"] != "retrain"])[-1]
    folder = write(tmp_path / "run", lost)
    with open(folder / "records.jsonl", "a") as file:
        file.write('{"experiment": "lr", "data')  # being written
    (folder / "run.json").write_text("{damaged")
    page, _ = write_report(folder)
    assert "no records of sisa on higgs" in page.read_text()
    assert "Example CPU 9000" in page.read_text()  # from the first record
    assert (folder / "records.jsonl").read_text().endswith('"data')  # reading changes nothing


def test_an_experiment_without_a_figure_is_a_plain_table(tmp_path):
    page, _ = write_report(write(tmp_path, [{"experiment": "new", "what": "speed", "value": 12.5, "deep": {"a": 1}}]))
    text = page.read_text()
    assert "Records of new" in text
    assert "12.5" in text


def test_a_figure_that_lacks_records_leaves_the_rest(tmp_path):
    page, _ = write_report(write(tmp_path, [{"experiment": "cores", "seconds": 1.0}, *main_records(1, FEW)]))
    text = page.read_text()
    assert "Not enough records for its figure yet" in text
    assert "Records of cores" in text
    assert "Speed-ups" in text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "holds no measured records yet"),
        ('{"experiment": "environment"}\n', "holds no measured records yet"),
        ('{"experiment": "lr"}\nnonsense\n', r"line 2 .* is damaged"),
        ("[1]\n", r"line 1 .* is damaged"),
        ("null\n", r"line 1 .* is damaged"),
        ('"\xff"\n', r"line 1 .* is damaged"),
    ],
)
def test_damaged_and_empty_runs_are_one_sentence(tmp_path, content, sentence):
    (tmp_path / "records.jsonl").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=sentence):
        write_report(tmp_path)


def test_runs_are_found_by_folder_or_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "results" / "quick", main_records(1, FEW)[:1])
    assert find_run("quick").name == "quick"
    assert find_run("results/quick").name == "quick"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no records\.jsonl"):
        find_run("empty")
    with pytest.raises(UserError, match="there is no run"):
        find_run("nowhere")


def test_the_command_prints_the_path(tmp_path):
    folder = write(tmp_path / "r", [{"experiment": "new", "value": 1}])
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "o")])
    assert done.exit_code == 0
    assert done.stdout.strip() == str(tmp_path / "o" / "index.html")
    assert "missing: No records of: lr" in done.stderr
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "file")])
    assert isinstance(done.exception, UserError)
    assert "cannot write the report" in str(done.exception)


def test_braces_in_text_are_no_placeholders(tmp_path):
    page = write_page("{{css}}", "{{body}}", [Section("a", "{{script}}", "{{nav}}")], tmp_path)
    text = page.read_text()
    assert "<h1>{{css}}</h1>" in text
    assert "<p>{{nav}}</p>" in text


def test_reading_records_keeps_a_last_line_without_its_end(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({"a": 1}) + "\n\n" + json.dumps({"a": 2}))
    assert read_records(tmp_path) == [{"a": 1}, {"a": 2}]


def test_both_times_stand_beside_retrain():
    records = tidy(main_records(3, FEW))
    table = methods.table(records, "lr")
    at = {name: i for i, name in enumerate(table.columns)}
    rows = {row[at["method"]].text: row for row in table.rows if row[0].startswith("magic")}
    assert rows["Do nothing"][at["erased"]].text == "never"
    assert rows["Do nothing"][at["× Retrain, erased"]].sort is None
    assert rows["Retrain"][at["× Retrain"]].sort == rows["Retrain"][at["× Retrain, erased"]].sort == 1
    ours, grad = rows["L2UL"], rows["DeltaGrad"]
    assert ours[at["× Retrain, erased"]].sort == ours[at["× Retrain"]].sort > 1
    assert grad[at["× Retrain, erased"]].sort == pytest.approx(grad[at["× Retrain"]].sort / 50, rel=0.1)
    found = {m.method: m for m in headline.marks([r for r in records if r["experiment"] == "lr"])}
    assert found["deltagrad"].erased == pytest.approx(50 * found["deltagrad"].seconds, rel=0.1)


def test_a_run_of_before_is_reported_under_its_own_name(tmp_path):
    records = main_records(2, FEW)
    for r in records:
        r["method"] = {"l2ul-expansion": "l2ul"}.get(r["method"], r["method"])
        for name in ("answer_seconds", "erased_seconds"):
            del r[name]
    page, _ = write_report(write(tmp_path, records))
    text = page.read_text()
    assert "LR: one row forgotten in" in text  # its default head is what the page sums up
    assert "L2UL before: Newton&#x27;s step" in text or "L2UL before: Newton's step" in text
    row = next(row for row in methods.table(tidy(records), "lr").rows if row[4].text.startswith("L2UL before"))
    assert [cell.text for cell in row[11:13]] == ["–", "–"]  # nobody measured that
    assert row[10].sort > 1
