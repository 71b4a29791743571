"""Counting the rows of an HDF5 file in the page cache; memory must not grow with the file."""

from .common import PROFILE, Timed, Tracked, growth, version


class StreamCounts(Timed):
    case = "stream_counts"
    version = version(1)

    def time_stream_counts(self, *cell):
        self.work.call()

    def peakmem_stream_counts(self, *cell):
        """Peak of the whole process: interpreter, kernels and the writing of a stand-in included."""
        self.work.call()


class Memory(Tracked):
    """MiB by which a file of ten times the rows raises the peak of a process that has streamed the small one."""

    params = (list(PROFILE.few),)
    param_names = ("dataset",)
    unit = "MiB"
    version = version(1)

    def track_growth(self, dataset):
        return growth(dataset)
