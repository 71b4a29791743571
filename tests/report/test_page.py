"""The page of a run: what it says follows from the records, whatever state the run is in."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from command import l2ul, mistake
from report_data import ENVIRONMENT, EXHIBITS, FEW, STYLES, before, main_records, write

from l2ul_fast.cli.report import unmeasured
from l2ul_fast.errors import UserError
from l2ul_fast.experiments import runner
from l2ul_fast.protocols import Style
from l2ul_fast.report.compare import compare_runs
from l2ul_fast.report.figure import Exhibit, Figure, Goal, resolve
from l2ul_fast.report.page import write_report
from l2ul_fast.report.page.page import Section, table_html, write_page
from l2ul_fast.report.terminal import closing
from l2ul_fast.report.values import Cell, Table


@pytest.fixture(scope="module")
def text(report):
    return report[0].read_text(encoding="utf-8")


def shown(folder, records, **options):
    """The page of these records, and what is missing."""
    page, missing = write_report(write(folder, records), exhibits=EXHIBITS, styles=STYLES, **options)
    return page.read_text(encoding="utf-8"), missing


class Tags(HTMLParser):
    """Start tags with their attributes, texts by tag, and whether every tag that needs it was closed."""

    VOID = ("meta", "link", "br", "img", "path", "use")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_network(report, text):
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
                assert (report[0].parent / target).is_file()
    assert "url(http" not in text
    assert "default-src 'none'" in text


def test_verdict_ranking_and_plot_come_first_machine_and_what_is_missing_last(text):
    order = [a["id"] for tag, a in Tags(text).tags if tag == "section"]
    assert order[:4] == ["ranking", "headline", "x-lr", "x-mlp"]
    assert order[-1] == "about"  # nothing is missing
    verdict = re.search(r'<p class="verdict">(.*?)</p>', text)[1]
    for part in ("2 datasets", "stand-ins: higgs", "L2UL", "faster", "Retrain", "rho", "did nothing"):
        assert part in verdict
    assert len(verdict) < 250
    assert text.index(verdict) < text.index('id="ranking"')
    assert verdict.count(". ") == 0  # one sentence


def test_every_plot_has_words_and_files_every_table_a_caption(report, text):
    found = Tags(text)
    pictures = [a for tag, a in found.tags if tag == "svg"]
    assert all(len(a["aria-label"]) > 40 and a["role"] == "img" for a in pictures)
    names = {"headline-lr", "headline-mlp", "lr-lr-r1", "mlp-mlp-r1", "mlp-mlp-r100", "mlp-mlp-r1000", "cores"}
    for suffix in ("png", "svg"):
        assert {p.stem for p in report[0].parent.glob(f"*.{suffix}")} == names
    assert len(pictures) == len(names)
    tables = sum(tag == "table" for tag, _ in found.tags)
    captions = [text for tag, text in found.texts if tag == "caption"]
    assert len(captions) == tables > 8
    assert len(set(captions)) == tables


def test_text_of_records_stays_text(text):
    assert "<script>alert(1)</script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count("<script>") == 1


def test_data_machine_and_stand_ins_are_named(text):
    for part in ("Example CPU 9000", "numpy 2.4.6", "stand-in: generated, not the real data"):
        assert part in text
    for tag, data in Tags(text).texts:
        if tag in ("th", "td", "span") and re.search(r"higgs \(", data):
            assert "stand-in" in data
    assert "1.50× slower" not in text
    assert not re.search(r">0\.\d+×<", text)  # "0.88x faster" is said as slower


def test_an_unfinished_run_names_what_is_missing(tmp_path, undrawn):
    records = [r for r in main_records(3) if r["experiment"] == "lr"]
    lost = [r for r in records if not (r["dataset"] == "higgs" and (r["method"] == "nothing" or r["repeat"] == 2))]
    lost += [{"experiment": "lr", "failed": True, "status": "ValueError: no", "method": "sisa", "schema": 2}]
    folder = write(tmp_path / "run", lost)
    with open(folder / "records.jsonl", "a") as file:
        file.write('{"experiment": "lr", "data')  # being written
    (folder / "run.json").write_text("{damaged")
    page, missing = write_report(folder, exhibits=EXHIBITS, styles=STYLES, missing=["What was asked for."])
    wanted = ("What was asked for.", "no row of nothing", "fewer than 3 runs", "1 cell failed")
    assert all(any(part in sentence for sentence in missing) for part in wanted)
    text = page.read_text()
    assert "1 cell failed: ValueError: no" in text
    assert "What was asked for." in text
    assert "Example CPU 9000" in text  # from the first record
    assert (folder / "records.jsonl").read_text().endswith('"data')  # reading changes nothing


def test_cells_that_the_options_ask_for_and_nobody_measured_are_missing(tmp_path, undrawn):
    names = ("newton", "nothing", "retrain")
    options = runner.Options(("lr", "gate-of-mine"), "tiny", datasets=("magic", "higgs"), methods=names)
    run = runner.open_run(replace(options, experiments=("lr",)), tmp_path)
    (plan,) = runner.plan_of(replace(options, experiments=("lr",)), [1], folder=tmp_path)
    cells = [task.key(cell) for task in plan.tasks for cell in task.job.cells]
    for cell in cells[1:]:
        run.append({"schema": 2, "source": "real", "n": 10, "d": 2, "answer_seconds": 1.0, **cell})
    assert unmeasured(str(tmp_path)) == [f"Logistic regression (Fig. 2): 1 of {len(cells)} cells are not measured yet."]
    assert "1 of" in l2ul("report", tmp_path, "--out", tmp_path / "page").stderr
    options.write(tmp_path / "options.json")  # one that nobody here knows: the others are said
    assert len(unmeasured(str(tmp_path))) == 1
    for text in ("{damaged", '{"experiments": ["lr"], "profile": "tiny", "numbers": {"runs": 1000000000000}}'):
        (tmp_path / "options.json").write_text(text)
        assert unmeasured(str(tmp_path)) == []


def test_a_run_of_before_is_reported_under_its_own_name(tmp_path, undrawn):
    text, _ = shown(tmp_path, before(main_records(2, FEW)))
    assert "L2UL before: Newton&#x27;s step takes one row out of a logistic regression" in text
    assert "Call overhead" in text  # what was timed of doing nothing


def test_exhibits_and_styles_come_from_outside(tmp_path):
    records = [{"experiment": "new", "method": "mine", "value": v, "schema": 2} for v in (1.0, 3.0)]
    own = Figure(
        tables=lambda records: [Table("Values of mine", ["value"], [[r["value"]] for r in records])],
        goals=(Goal("small", "value", {"method": "mine"}, 1.5), Goal("large", "value", {}, 1.5, at_least=True)),
    )
    folder = write(tmp_path, records)
    page, _ = write_report(folder, exhibits={"new": Exhibit("A new thing", own)}, styles={"mine": Style("Mine")})
    text = page.read_text()
    for part in ("A new thing", "Values of mine", 'class="missed"', 'class="good"'):
        assert part in text
    page, _ = write_report(folder, exhibits={})  # nobody knows it: a plain table
    assert "new: records" in page.read_text()
    assert resolve(own) is own
    assert isinstance(resolve("l2ul_fast.experiments.speed.cores:FIGURE"), Figure)
    for wrong in ("l2ul_fast.experiments.speed.cores:NONE", "no.such.module:FIGURE", "nonsense", "json:dumps"):
        with pytest.raises(UserError, match=r"figure|Figure"):
            resolve(wrong)


def test_a_figure_that_lacks_records_leaves_the_rest(tmp_path, undrawn):
    text, _ = shown(tmp_path, [{"experiment": "cores", "seconds": 1.0}, *main_records(1, FEW)])
    assert "Not enough records for its figure yet" in text
    assert "Scaling by cores: records" in text
    assert 'id="ranking"' in text


def test_a_run_without_times_is_reported(tmp_path, undrawn):
    records = [{k: v for k, v in r.items() if not k.endswith("_seconds")} for r in main_records(2, FEW)]
    text, _ = shown(tmp_path, records)
    assert "takes one row" not in text  # there is nothing to say of times
    assert 'id="ranking"' in text


@pytest.mark.parametrize(
    "wrong", [None, "?", 7, float("nan"), 10**400, ["a"]], ids=["null", "text", "number", "nan", "huge", "list"]
)
def test_damaged_fields_do_not_stop_page_terminal_or_comparison(tmp_path, undrawn, wrong):
    """Each field of a record in turn is gone, of another type or no number; run.json holds the same."""
    records = [r for r in main_records(2, FEW) if r["experiment"] != "mlp"]
    damaged = [{**r, name: wrong} for name, r in zip([*records[0], "noise_floor"], records, strict=False)]
    damaged += [{k: v for k, v in r.items() if k != name} for name, r in zip(records[0], records[40:], strict=False)]
    folder = write(tmp_path, damaged + records[-40:], dict.fromkeys([*ENVIRONMENT, "methods", "fields"], wrong))
    page, _ = write_report(folder, exhibits=EXHIBITS, styles=STYLES)
    assert 'id="ranking"' in page.read_text()
    assert compare_runs(folder, folder).bad == []
    assert closing(damaged, EXHIBITS, STYLES) is not None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "holds no measured records yet"),
        ('{"experiment": "environment"}\n', "holds no measured records yet"),
        ('{"experiment": "lr"}\nnonsense\n', r"line 2 .* is damaged"),
        ("[1]\n", r"line 1 .* is damaged"),
        ('"\xff"\n', r"line 1 .* is damaged"),
    ],
)
def test_damaged_and_empty_runs_are_one_sentence(tmp_path, content, sentence):
    (tmp_path / "records.jsonl").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=sentence):
        write_report(tmp_path)


def test_the_command_prints_the_path(tmp_path):
    folder = write(tmp_path / "r", [{"experiment": "new", "value": 1}])
    assert l2ul("report", folder, "--out", tmp_path / "o").stdout.strip() == str(tmp_path / "o" / "index.html")
    (tmp_path / "file").write_text("")
    assert "cannot write the report" in mistake("report", folder, "--out", tmp_path / "file")


def test_braces_in_text_are_no_placeholders(tmp_path):
    text = write_page("{{css}}", "{{body}}", [Section("a", "{{script}}", "{{nav}}")], tmp_path).read_text()
    assert "<h1>{{css}}</h1>" in text
    assert "<p>{{nav}}</p>" in text


def test_cells_carry_what_they_are_sorted_by_and_blocks_their_heading():
    rows = [["A", "x", Cell("1 ms", 0.001)], ["A", "y", None], ["B", "z", float("nan")]]
    text = table_html(Table("t", ["data", "a", "b"], rows, block=1))
    assert '<td class="num" data-sort="0.001">1 ms</td>' in text
    assert text.count('<td class="num">–</td>') == 2  # nothing to sort by: stays last
    assert '<th scope="row" data-sort="x">x</th>' in text
    assert re.findall(r'scope="rowgroup" colspan="2"><span>(\w)<', text) == ["A", "B"]
