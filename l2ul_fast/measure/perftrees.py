"""Source trees for the perf-check: one folder per side, named by its content, so that compiled kernels are kept."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from l2ul_fast.errors import UserError

PARTS = ("l2ul_fast", "kernels")
CASES = Path("l2ul_fast") / "cases"


def commit_of(name: str) -> str:
    """The full hash of a commit."""
    order = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", name + "^{commit}"]
    try:
        return subprocess.run(order, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise UserError(f"{name!r} is neither a commit of this repository nor a folder") from None


def _extract(sha: str, folder: Path) -> None:
    done = subprocess.run(["git", "archive", sha, "--", *PARTS], capture_output=True)
    if done.returncode:
        raise UserError(f"commit {sha[:12]} cannot be measured: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def _files(folder: Path) -> list[Path]:
    """Source files below the folder's parts, as relative paths; not the case table, which every tree gets anew."""
    found = [
        path.relative_to(folder)
        for part in PARTS
        for path in sorted((folder / part).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and folder / CASES not in path.parents
    ]
    if not (folder / "kernels" / "l2ul_kernels").is_dir():
        raise UserError(f"{folder} has no sources: {' and '.join(PARTS)} are looked for there")
    return found


def tree_of(what: str, role: str, work: Path) -> Path:
    """The tree of a folder (as it is now) or of a commit, below `work`.

    A tree is written once. role ("base" or "head") keeps two trees of the same content apart. Every tree gets the case
    table of the running package, so that both sides do the same work.
    """
    work = work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    if os.path.isdir(what):
        folder, digest = Path(what), hashlib.sha256()
        files = _files(folder)
        for path in files:
            digest.update(str(path).encode() + b"\0" + (folder / path).read_bytes())
        tree = work / f"{role}-files-{digest.hexdigest()[:12]}"
    else:
        sha = commit_of(what)
        tree = work / f"{role}-{sha[:12]}"
    if not tree.exists():
        temporary = work / f".{tree.name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        if os.path.isdir(what):
            for path in files:
                (temporary / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(folder / path, temporary / path)
        else:
            _extract(sha, temporary)
        os.replace(temporary, tree)
    shutil.rmtree(tree / CASES, ignore_errors=True)
    shutil.copytree(Path(__file__).parents[1] / "cases", tree / CASES, ignore=shutil.ignore_patterns("__pycache__"))
    return tree
