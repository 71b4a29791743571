"""The latest requests of an unlearner, until its log takes them over.

Memory that is touched for the first time can cost a request more than all of its arithmetic, above all in a virtual
machine, and so can making objects. So what is noted of requests lies in blocks for many of them, which are touched when
they are made and written by compiled code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Requests per block, at most and at least, and the parameters that it should not exceed between these.
MOST, LEAST, ROOM = 4096, 128, 2**17

Vector = NDArray[np.float64]
Ids = NDArray[np.int64]


class Note(NamedTuple):
    """One request: the rows (r,), when it was answered (seconds since 1970), theta (p,) before and after."""

    rows: Ids
    time: float
    before: Vector
    after: Vector


class Block:
    """thetas (size + 1, p): before request 0, after it, ...; totals (size, p) of the requests, NaN where there are
    none; rows (size,) int64, the first one of each request; times (size,)."""

    __slots__ = ("rows", "size", "thetas", "times", "totals")

    def __init__(self, theta: Vector) -> None:
        p = theta.size
        self.size = max(LEAST, min(MOST, ROOM // p))
        self.thetas, self.totals = np.full((self.size + 1, p), np.nan), np.full((self.size, p), np.nan)
        self.rows, self.times = np.full(self.size, -1), np.full(self.size, np.nan)
        self.thetas[0] = theta


class Notes:
    """Requests in their order: `used` of them in `block`, and those of full blocks."""

    def __init__(self, theta: Vector) -> None:
        """theta (p,): before the first of them."""
        self.block, self.used = Block(theta), 0
        self._full: list[Block] = []
        self._sets: dict[int, Ids] = {}  # of the requests with more than one row

    @property
    def theta(self) -> Vector:
        """(p,), after the latest."""
        return self.block.thetas[self.used]

    def make_room(self) -> None:
        """Afterwards block has a place for one request more."""
        if self.used == self.block.size:
            self._full.append(self.block)
            self.block, self.used = Block(self.theta), 0

    def add(self, rows: Ids, time: float, theta: Vector, total: Vector | None) -> None:
        """A request for `rows` (r,), r >= 1, answered at `time`."""
        self.make_room()
        block, k = self.block, self.used
        block.rows[k], block.times[k], block.thetas[k + 1] = rows[0], time, theta
        if total is not None:
            block.totals[k] = total
        if len(rows) > 1:
            self._sets[len(self)] = rows
        self.used += 1

    def __len__(self) -> int:
        return sum(block.size for block in self._full) + self.used

    def all(self) -> list[Note]:
        """Every request so far."""
        found: list[Note] = []
        for block, used in [*((full, full.size) for full in self._full), (self.block, self.used)]:
            for k in range(used):
                rows = self._sets.get(len(found), block.rows[k : k + 1].copy())
                found.append(Note(rows, float(block.times[k]), block.thetas[k], block.thetas[k + 1]))
        return found
