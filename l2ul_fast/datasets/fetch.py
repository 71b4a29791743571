"""Download of the original files with pooch: https only, checksum where known, nothing half-downloaded is kept."""

import os
from collections.abc import Callable
from pathlib import Path

from l2ul_fast.datasets.rawfiles import RawData, default_raw_dir, find_raw
from l2ul_fast.datasets.registry import RawFile, get_info
from l2ul_fast.errors import DataError

__all__ = ["fetch", "find_raw"]

Progress = Callable[[int, int | None], None]  # (done, total): rows, or bytes for downloads


class _Bar:
    """What pooch wants of a progress bar, around a plain callback."""

    def __init__(self, progress: Progress) -> None:
        self.total: int | None = None
        self._done = 0
        self._progress = progress

    def update(self, k: int) -> None:
        self._done += k
        self._progress(self._done, self.total)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass


def fetch(
    name: str, raw_dir: str | os.PathLike[str] | None = None, progress: Progress | None = None, timeout: float = 30.0
) -> RawData:
    """Make sure that the original files of a dataset are in the raw folder; downloads what is missing.

    A complete original that is already there (in any accepted form) is used as it is. pooch cannot resume a download:
    an interrupted one starts again.
    """
    info = get_info(name)
    root = Path(raw_dir) if raw_dir is not None else default_raw_dir()
    try:
        found = find_raw(name, root)
        if not found.is_subset:
            return found
    except DataError:
        pass
    for file in info.files:
        _download(file, root / name, progress, timeout)
    return find_raw(name, root)


def _download(file: RawFile, folder: Path, progress: Progress | None, timeout: float) -> Path:
    import pooch  # here, so that reading a dataset needs neither the packages nor the time to import them
    import requests

    assert file.url.startswith("https://")
    pooch.get_logger().setLevel("WARNING")  # its notices would mix with the progress bar
    downloader = pooch.HTTPDownloader(progressbar=_Bar(progress) if progress else False, timeout=timeout)
    known = f"sha256:{file.sha256}" if file.sha256 else None
    try:
        return Path(pooch.retrieve(file.url, known, fname=file.name, path=folder, downloader=downloader))
    except requests.RequestException as error:
        reason = f"the server answered {error.response.status_code}" if error.response is not None else "no connection"
        raise DataError(
            f"{file.name} could not be downloaded from {file.url} ({reason}): get it elsewhere and put it into {folder}"
        ) from error
    except ValueError as error:  # pooch: the hash does not match
        raise DataError(
            f"{file.name} from {file.url} has another sha256 than {file.sha256}: it was changed or damaged on the way, "
            f"get it elsewhere and put it into {folder}"
        ) from error
    except OSError as error:
        raise DataError(f"{file.name} cannot be stored in {folder}: {error.strerror or error}") from error
