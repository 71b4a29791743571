"""Download of the original files with pooch: https only, checksum where known, interrupted downloads go on."""

import os
from collections.abc import Callable
from pathlib import Path

from l2ul_fast.datasets.registry import RawFile, get_info
from l2ul_fast.datasets.text.rawfiles import RawData, default_raw_dir, find_raw
from l2ul_fast.errors import DataError

Progress = Callable[[int, int | None], None]  # (done, total): rows, or bytes for downloads


class _Resuming:
    """A downloader for pooch that goes on where an interrupted one stopped, if the server's file is still the same.

    What has come so far lies in .<name>.part beside the file, with the server's mark of its version in .<name>.tag.
    """

    def __init__(self, part: Path, progress: Progress | None, timeout: float) -> None:
        self.part, self.tag = part, part.with_suffix(".tag")
        self._progress, self._timeout = progress, timeout

    def __call__(self, url: str, output_file: object, pooch: object) -> None:
        import requests

        done = self.part.stat().st_size if self.part.is_file() and self.tag.is_file() else 0
        headers = {"Range": f"bytes={done}-", "If-Range": self.tag.read_text("ascii")} if done else {}
        answer = requests.get(url, stream=True, timeout=self._timeout, headers=headers)
        try:
            if answer.status_code != 206:
                answer.raise_for_status()
                done = 0
            mark = answer.headers.get("etag") or answer.headers.get("last-modified")
            if mark and mark.isascii() and not mark.startswith("W/"):
                self.tag.write_text(mark, "ascii")
            left = answer.headers.get("content-length")
            total = done + int(left) if left is not None and left.isdigit() else None
            with open(self.part, "ab" if done else "wb") as file:
                for piece in answer.iter_content(chunk_size=1 << 20):
                    file.write(piece)
                    done += len(piece)
                    if self._progress is not None:
                        self._progress(done, total)
        finally:
            answer.close()
        os.replace(self.part, str(output_file))
        self.tag.unlink(missing_ok=True)

    def clean(self) -> None:
        """Keep nothing that could not be gone on from."""
        if not self.tag.is_file():
            self.part.unlink(missing_ok=True)


def fetch(
    name: str, raw_dir: str | os.PathLike[str] | None = None, progress: Progress | None = None, timeout: float = 30.0
) -> RawData:
    """Make sure that the original files of a dataset are in the raw folder; downloads what is missing.

    A complete original that is already there (in any accepted form) is used as it is. An interrupted download is gone
    on with, if the server says which version of the file it sends.
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
    downloader = _Resuming(folder / f".{file.name}.part", progress, timeout)
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
    finally:
        downloader.clean()
