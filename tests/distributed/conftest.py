"""Two workers and three shards, shared by all tests of this folder."""

import os

import pytest
from cluster import CHUNK, write

pytest.importorskip("distributed")

from l2ul_fast import distributed


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """Three shards with many chunks each."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("writer", "hdf5"):
            patch.setattr(f"l2ul_fast.datasets.file.{module}.chunk_rows", lambda d: CHUNK)
        return write(tmp_path_factory.mktemp("data") / "three", (1000, 4001))


@pytest.fixture(scope="session")
def client():
    """Two processes; the driver's own thread settings must not reach them."""
    before = os.environ.get("NUMBA_NUM_THREADS")
    os.environ["NUMBA_NUM_THREADS"] = "2"
    try:
        with distributed.connect(workers=2) as client:
            assert os.environ["NUMBA_NUM_THREADS"] == "2"
            yield client
    finally:
        os.environ.pop("NUMBA_NUM_THREADS")
        if before is not None:
            os.environ["NUMBA_NUM_THREADS"] = before
