"""Nearest-seed kernels on rows in memory, at the widths of the seven datasets."""

from .common import Timed, version


class CellCounts(Timed):
    """Counts of rows per cell, on as many rows as take the profile's number of operations."""

    case = "cell_counts"
    version = version(1)

    def time_cell_counts(self, *cell):
        self.work.call()


class AssignCells(Timed):
    """Cells of rows, on as many rows as take the profile's number of operations."""

    case = "assign_cells"
    version = version(1)

    def time_assign_cells(self, *cell):
        self.work.call()
