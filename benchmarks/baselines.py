"""One request to every baseline: Retrain, SISA, DeltaGrad, FYEMU."""

from .common import Timed, version


class Baselines(Timed):
    case = "baseline"
    version = version(1)

    def time_request(self, *cell):
        self.work.call()
