"""What a user waits for: one call of unlearn with 1, 100 or 1000 rows. The result is the p50 of single calls."""

from .common import Timed, version


class Unlearn(Timed):
    case = "request"
    version = version(1)

    def time_request(self, *cell):
        self.work.call()
