"""Ratios of candidates that take turns in one process. Above 1, ours is faster; a method that loses shows below 1."""

from l2ul_fast.cases import ratios
from l2ul_fast.cases.profiles import all_threads, model_threads
from l2ul_fast.cases.table import MODELS

from .common import PROFILE, Tracked, version


class OverBaseline(Tracked):
    """Seconds of a baseline's request over those of L2UL's."""

    params = (list(PROFILE.few), list(model_threads(PROFILE)), list(MODELS), list(ratios.METHODS))
    param_names = ("dataset", "threads", "model", "method")
    unit = "x"
    version = version(1)

    def track_over_baseline(self, dataset, threads, model, method):
        return ratios.over_baseline(PROFILE, dataset, threads, model, method)


class OverPeer(Tracked):
    """Seconds of numpy, torch and faiss over those of assign_cells, on the same rows with the same threads."""

    params = (list(PROFILE.few), list(all_threads(PROFILE)), list(PROFILE.psi), list(ratios.PEERS))
    param_names = ("dataset", "threads", "psi", "peer")
    unit = "x"
    version = version(1)

    def track_over_peer(self, dataset, threads, psi, peer):
        return ratios.over_peer(PROFILE, dataset, threads, psi, peer)


class OfPeak(Tracked):
    """Rate of a kernel as a fraction of the machine's own single-precision matrix product."""

    params = (list(PROFILE.few), list(all_threads(PROFILE)), list(PROFILE.psi), list(ratios.KERNELS))
    param_names = ("dataset", "threads", "psi", "kernel")
    unit = "of the sgemm peak"
    version = version(1)

    def track_of_peak(self, dataset, threads, psi, kernel):
        return ratios.of_peak(PROFILE, dataset, threads, psi, kernel)
