"""One self-contained HTML page of a run."""

from l2ul_fast.report.page.sections import write_report

__all__ = ["write_report"]
