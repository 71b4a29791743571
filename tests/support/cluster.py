"""Rows in several files, and the death of a worker, for the tests of Dask."""

import itertools
import os
import signal

import numpy as np

from l2ul_fast.datasets.file.hdf5 import DatasetWriter

N, D = 6000, 5
CHUNK = 64


def rows_of_all():
    rng = np.random.default_rng(7)
    X = (rng.standard_normal((N, D)) * [1, 10, 100, 1, 1] + 50).astype(np.float32)
    y = np.where(X[:, 0] + rng.standard_normal(N) > 50, 7, 2)
    return X, y


def write(folder, cuts, codec="none"):
    """The same rows as files cut at these places."""
    X, y = rows_of_all()
    folder.mkdir()
    edges = [0, *cuts, N]
    for i, (low, high) in enumerate(itertools.pairwise(edges)):
        path = folder / f"s{i}.h5"
        with DatasetWriter(path, name="magic", source="standin:test:0", d=D, classes=[7, 2], codec=codec) as writer:
            writer.append(X[low:high], y[low:high])
    return sorted(map(str, folder.glob("s*.h5")))


def kill_one(client):
    """SIGKILL one worker; its nanny starts another."""
    pid = sorted(client.run(os.getpid).values())[0]
    os.kill(pid, signal.SIGKILL)
    return pid
