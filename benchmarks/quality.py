"""How good the answers are whose times the other suites track, beside a retrain and beside doing nothing."""

from l2ul_fast.cases import quality
from l2ul_fast.cases.table import MODELS

from .common import PROFILE, Tracked, version


class Quality(Tracked):
    params = (list(PROFILE.few), list(MODELS), [100], list(quality.METHODS))
    param_names = ("dataset", "model", "r", "method")
    version = version(1)

    def track_rho(self, dataset, model, r, method):
        """|theta' - theta_r| / |theta - theta_r|: 0 for a retrain, 1 for doing nothing."""
        return quality.rho(PROFILE, dataset, model, r, method)

    track_rho.unit = "rho"

    def track_accuracy_gap(self, dataset, model, r, method):
        """Largest distance to the accuracy of a retrained model."""
        return quality.accuracy_gap(PROFILE, dataset, model, r, method)

    track_accuracy_gap.unit = "accuracy gap"
