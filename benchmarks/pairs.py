"""Pairs of fits, with and without some rows: the training data of the unlearning network."""

from .common import Timed, version


class Pairs(Timed):
    case = "pairs"
    version = version(1)

    def time_pairs(self, *cell):
        self.work.call()
