"""Atomic writes, stopped at every change they make to the disk."""

import pytest
from faults import crash_points, error_points

from l2ul_fast.files import write_atomic

OLD, NEW = b"old", b"new" * 1000


def setup(folder):
    folder.mkdir()
    (folder / "f").write_bytes(OLD)


@pytest.mark.parametrize(("sync", "power_loss"), [(True, 4), (True, 0), (False, 0)])
def test_a_file_is_the_old_or_the_new_one_wherever_it_stops(tmp_path, sync, power_loss):
    def check(folder, finished):
        assert (folder / "f").read_bytes() in ((NEW,) if finished else (OLD, NEW))

    assert crash_points(tmp_path, setup, lambda d: write_atomic(d / "f", NEW, sync), check, power_loss) >= 3


def test_a_full_disk_leaves_the_old_file_alone(tmp_path):
    def check(folder, raised):
        if raised is not None:
            assert isinstance(raised, OSError)
            assert (folder / "f").read_bytes() in (OLD, NEW)  # the last sync may fail when the new one is there
        assert [path.name for path in folder.iterdir()] == ["f"]

    error_points(tmp_path, setup, lambda d: write_atomic(d / "f", NEW.decode()), check)
