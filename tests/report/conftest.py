"""One page of a run, drawn once; and pages whose plots cost nothing, for tests of the rest."""

import pytest
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

    def savefig(figure, to, **options):
        to.write("<svg></svg>") if hasattr(to, "write") else to.write_bytes(b"")

    monkeypatch.setattr(Figure, "savefig", savefig)
    monkeypatch.setattr(Figure, "draw_without_rendering", lambda figure: None)
