"""artifact.json: which state of an artifact is the current one, and what its files must look like."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from l2ul_fast import __version__
from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.artifact.durable import explain, read_file
from l2ul_fast.unlearner.artifact.ledger import START
from l2ul_fast.unlearner.artifact.schema import HEADER as FIELDS
from l2ul_fast.unlearner.artifact.schema import check, one_of, parse

FORMAT = "l2ul-artifact"
FORMAT_VERSION = 2
#: Versions whose files can be read; what they hold may still be refused.
READABLE = (1, 2)

HEADER, NEW_HEADER = "artifact.json", "artifact.json.new"
#: Names of files of arrays, and of the digests of their blocks: generation and group.
STATE = re.compile(r"state-(\d{1,18})-([a-z0-9_]{1,40})\.(?:safetensors|sha256)")


@dataclass(frozen=True)
class FileRecord:
    """What artifact.json says about one file of arrays.

    blocks: 0, or the size of the blocks whose SHA-256 stand in a file of their own, because rows of the arrays are
    overwritten in place; `sha256` is then empty.
    """

    file: str
    bytes: int
    sha256: str
    arrays: tuple[str, ...]
    blocks: int = 0

    @property
    def digests(self) -> str:
        """Name of the file with the digests of the blocks."""
        return self.file.removesuffix(".safetensors") + ".sha256"

    @property
    def names(self) -> list[str]:
        """The files it stands for."""
        return [self.file, self.digests] if self.blocks else [self.file]

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        found: dict[str, Any] = {"file": self.file, "bytes": self.bytes, "arrays": list(self.arrays)}
        return found | ({"blocks": self.blocks} if self.blocks else {"sha256": self.sha256})

    @classmethod
    def of(cls, group: str, facts: dict[str, Any]) -> FileRecord:
        """What `plain` gave, after a check by the schema; ValueError where its parts do not go together."""
        found, blocks = STATE.fullmatch(facts["file"]), facts.get("blocks", 0)
        if not found or found[2] != group or ("sha256" in facts) == bool(blocks):
            raise ValueError("a file of another group, or without a digest")
        return cls(facts["file"], facts["bytes"], facts.get("sha256", ""), tuple(facts["arrays"]), blocks)


@dataclass(frozen=True)
class Header:
    """artifact.json: which state is the current one, as far as no journal continues it. digest: its SHA-256."""

    generation: int
    facts: dict[str, Any]
    files: dict[str, FileRecord]
    ledger_bytes: int = 0
    ledger_entries: int = 0
    ledger_head: str = START
    package_version: str = __version__
    version: int = FORMAT_VERSION
    digest: str = START


def canonical(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"facts can hold JSON values only, got {type(value).__name__}")


def dump(header: Header) -> bytes:
    content: dict[str, Any] = {
        "format": FORMAT,
        "format_version": header.version,
        "package_version": header.package_version,
        "generation": header.generation,
        "facts": header.facts,
        "files": {k: v.plain() for k, v in header.files.items()},
        "ledger": {"bytes": header.ledger_bytes, "entries": header.ledger_entries, "head": header.ledger_head},
    }
    content["sha256"] = hashlib.sha256(canonical(content).encode()).hexdigest()
    return canonical(content).encode() + b"\n"


def read_header(directory: Path | str) -> Header:
    """artifact.json, checked; DataError when it is missing, damaged, foreign or of another version."""
    directory = Path(directory)
    path = directory / HEADER
    try:
        text = read_file(path)
    except OSError as error:
        raise explain(directory, error) from error
    try:
        content = parse(text)
        check("it", content, {"format": one_of(FORMAT)})
    except ValueError:
        raise DataError(f"{path} is damaged or not an artifact of this program") from None
    version = content.get("format_version")
    if type(version) is not int or version not in READABLE:
        raise DataError(
            f"{directory} was made by format version {str(version)[:20]}, this program reads {FORMAT_VERSION}: "
            "use the program that made it, or fit again"
        )
    try:
        signed = canonical({k: v for k, v in content.items() if k != "sha256"})
        if hashlib.sha256(signed.encode()).hexdigest() != content.get("sha256"):
            raise ValueError("wrong checksum")
        check("it", content, FIELDS)
        files = {group: FileRecord.of(group, facts) for group, facts in content["files"].items()}
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}): restore it from a copy or fit again") from None
    held, ledger = content["facts"], content["ledger"]
    counts = ledger["bytes"], ledger["entries"], ledger["head"]
    made_by = content["package_version"]
    return Header(content["generation"], held, files, *counts, made_by, version, content["sha256"])
