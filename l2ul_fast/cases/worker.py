"""One side of the perf-check: a process that opens cells and times them when it is told to (see l2ul_fast.perfcheck).

Commands and answers are JSON lines: {"open": case, "cell": {...}}, {"turn": seconds}, {"close": 1}.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from typing import Any

import l2ul_kernels
from l2ul_fast.cases import CASES, PROFILES, Skip, Work


def turn(work: Work, seconds: float) -> float:
    """Seconds of one call: the lower quartile of at least 3 calls, which interruptions do not reach."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < end:
        work.before()
        start = time.perf_counter()
        work.call()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[(len(taken) - 1) // 4]


class Worker:
    """Holds the cell that is open."""

    def __init__(self, profile: str) -> None:
        self.profile, self.stack = PROFILES[profile], contextlib.ExitStack()
        self.work: Work | None = None

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        if "open" in order:
            try:
                self.work = self.stack.enter_context(CASES[order["open"]].open(self.profile, **order["cell"]))
            except Skip as reason:
                return {"skip": str(reason)}
            except (
                Exception
            ) as error:  # an old commit may lack what the case needs: the other side is told, and goes on
                return {"error": f"{type(error).__name__}: {error}"}
            return {"ready": 1}
        if "turn" in order:
            assert self.work is not None
            return {"seconds": turn(self.work, order["turn"])}
        self.stack.close()
        self.work = None
        gc.collect()
        return {"closed": 1}


def main() -> None:
    # answers go to the real stdout; whatever a library prints goes to stderr
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(sys.argv[1])
    print(json.dumps({"kernels": l2ul_kernels.__file__}), file=answers)
    gc.disable()
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
