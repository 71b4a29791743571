"""One page of a run, drawn once; and pages whose plots cost nothing, for tests of the rest."""

from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from report_data import EXHIBITS, FEW, STYLES, main_records, other_records, write

from l2ul_fast.report.page import write_report


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """(page, what is missing) of two datasets, two thread counts and three runs."""
    folder = write(tmp_path_factory.mktemp("run"), main_records(3, FEW, threads=(1, 2)) + other_records())
    return write_report(folder, exhibits=EXHIBITS, styles=STYLES)


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made, and not rendered: that takes most of the time of a page."""

    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())
    print_png = FigureCanvasAgg.print_png  # matplotlib itself asks for a renderer by it

    def touched(canvas, to, **options):
        return to.touch() if isinstance(to, Path) else print_png(canvas, to, **options)

    monkeypatch.setattr(FigureCanvasAgg, "print_png", touched)
    monkeypatch.setattr(FigureCanvasSVG, "print_svg", lambda canvas, text, **options: text.write("<svg></svg>"))
    monkeypatch.setattr(Figure, "draw_without_rendering", lambda figure: None)
