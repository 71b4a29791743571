"""A fitted unlearner on disk: a directory that always holds exactly one whole state.

artifact.json                           facts; name, size and SHA-256 of every other file; replacing it is the commit
state-<generation>-<group>.safetensors  arrays, written once under a new name and never changed
ledger.jsonl                            see ledger.py; what lies behind the length in artifact.json was never committed
.lock                                   held by whoever changes the directory

A save writes new files, syncs them, replaces artifact.json and deletes what it no longer names, so a process killed
anywhere leaves the old state or the new one. All changes go through durable.py; header.py is artifact.json, tensors.py
the files of arrays.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.durable import (
    LOCK,
    delete,
    explain,
    locked,
    make_directory,
    read_file,
    replace,
    rewrite_tail,
    sync_directory,
    write_file,
)
from l2ul_fast.unlearner.header import (
    FORMAT,
    FORMAT_VERSION,
    HEADER,
    NEW_HEADER,
    STATE,
    FileRecord,
    Header,
    canonical,
    dump,
    read_header,
)
from l2ul_fast.unlearner.ledger import Entry, Ledger, chain, theta_digest
from l2ul_fast.unlearner.tensors import CODES, Arrays, encode, load_arrays

__all__ = [
    "FORMAT", "FORMAT_VERSION", "Arrays", "FileRecord", "Header", "check_artifact", "load_artifact", "locked",
    "read_header", "read_ledger", "refuse_foreign", "save_artifact",
]  # fmt: skip

LEDGER = "ledger.jsonl"
_GROUP = re.compile(r"[a-z0-9_]{1,40}")
_ARRAY = re.compile(r"(?!__)[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def load_artifact(
    directory: Path | str, *, memory_map: bool = False, verify: bool = True
) -> tuple[dict[str, Any], Arrays]:
    """Facts and arrays of the saved state; the facts also hold its `generation` (give it to `save_artifact` as base).

    memory_map: arrays are views of the mapped files, private to this process (writing to them changes no file).
    verify: check all checksums and the ledger's chain; False with memory_map reads only the pages that are used.
    """
    directory = Path(directory)
    header = read_header(directory)
    while True:
        try:
            arrays: Arrays = {}
            for record in header.files.values():
                arrays |= load_arrays(directory / record.file, record, memory_map, verify)
            if verify:
                _ = _ledger_of(directory, header).entries  # reading them checks the chain
            break
        except FileNotFoundError as error:
            tried, header = header, read_header(directory)
            if header.generation == tried.generation:  # else another process saved a new state meanwhile
                raise DataError(f"{error.filename} is missing: restore it from a copy or fit again") from None
        except OSError as error:
            raise explain(directory, error) from error
    with contextlib.suppress(DataError, OSError):  # somebody else is at work, or we may only read
        if _leftovers(directory, header):
            with locked(directory, timeout=0):
                _clean(directory)
    return {**header.facts, "generation": header.generation}, arrays


def read_ledger(directory: Path | str) -> Ledger:
    """The committed part of the ledger; `.verify()` checks it."""
    try:
        return _ledger_of(Path(directory), read_header(directory))
    except OSError as error:
        raise explain(Path(directory), error) from error


def _ledger_of(directory: Path, header: Header) -> Ledger:
    path = directory / LEDGER
    data = read_file(path, header.ledger_bytes) if header.ledger_bytes else b""
    if len(data) < header.ledger_bytes:
        raise DataError(f"{path} was cut off: {len(data)} of {header.ledger_bytes} bytes are left")
    return Ledger(data, header.ledger_head, str(path))


def save_artifact(
    directory: Path | str,
    facts: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    *,
    groups: Mapping[str, Collection[str]] | None = None,
    keep: Collection[str] = (),
    ledger_entry: Entry | list[Entry] | None = None,
    base: int | None = None,
    timeout: float = 60.0,
) -> int:
    """Make a state durable, all of it or nothing, and delete the one before; returns the new generation.

    facts: JSON values. groups: file name -> names of its arrays; the rest goes to the file "main". keep: groups whose
    present file stays as it is (its arrays are not given again). ledger_entry: what `ledger.entry` made, one or more.
    base: the generation this state was derived from; a directory that has moved on is refused. None overwrites.
    """
    directory = Path(directory)
    parts = _grouped(arrays, groups or {}, keep)
    plain = json.loads(canonical({k: v for k, v in facts.items() if k != "generation"}))
    entries = ledger_entry if isinstance(ledger_entry, list) else [ledger_entry] if ledger_entry is not None else []
    try:
        make_directory(directory)
        with locked(directory, timeout):
            return _save(directory, plain, parts, keep, entries, base)
    except OSError as error:
        raise explain(directory, error) from error


def refuse_foreign(directory: Path | str) -> None:
    """DataError when `save_artifact` would not write here; to be asked before hours of work."""
    directory = Path(directory)
    if directory.is_dir():
        _current(directory)
    elif directory.exists():
        raise DataError(f"{directory} is not a directory: choose another one")


def _grouped(arrays: Mapping[str, Any], groups: Mapping[str, Collection[str]], keep: Collection[str]) -> dict[str, Any]:
    """Arrays by file, with everything checked that can be checked before the disk is touched."""
    if isinstance(keep, str):
        raise TypeError("keep must be a list of group names")
    for name, array in arrays.items():
        if not _ARRAY.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of an array")
        if not isinstance(array, np.ndarray) or array.dtype.newbyteorder("<") not in CODES:
            raise TypeError(f"array {name} cannot be saved: {getattr(array, 'dtype', type(array).__name__)}")
    named = [name for names in groups.values() for name in names]
    if len(set(named)) != len(named) or not set(named) <= set(arrays):
        raise ValueError("groups must name arrays that are given, each once")
    rest = [name for name in arrays if name not in set(named)]
    parts = {group: list(names) for group, names in groups.items()}
    if rest:
        parts["main"] = parts.get("main", []) + rest
    for group in (*parts, *keep):
        if not _GROUP.fullmatch(group):
            raise ValueError(f"{group!r} cannot be the name of a group: use a-z, 0-9 and _")
    if set(keep) & set(parts):
        raise ValueError(f"a group is either kept or given: {', '.join(sorted(set(keep) & set(parts)))}")
    return {group: {name: arrays[name] for name in names} for group, names in parts.items()}


def _save(
    directory: Path, facts: dict[str, Any], parts: dict[str, Any], keep: Collection[str], entries: list[Entry],
    base: int | None,
) -> int:  # fmt: skip
    old = _current(directory)
    if base is not None and old.generation != base:
        raise DataError(f"{directory} was changed by someone else since it was loaded: load it again and repeat")
    files = {group: _kept(directory, old, group) for group in keep}
    given = [name for part in parts.values() for name in part]
    if set(given) & {name for record in files.values() for name in record.arrays}:
        raise ValueError("an array is given that is also in a kept group")
    if _size(directory / LEDGER) < old.ledger_bytes:
        raise DataError(f"{directory / LEDGER} was cut off: restore it from a copy")
    _clean(directory)
    generation = old.generation + 1
    lines, head = chain(entries, old.ledger_entries, old.ledger_head)
    added = b"".join(lines)
    try:
        for group, part in parts.items():
            name = f"state-{generation}-{group}.safetensors"
            size, digest = write_file(directory / name, encode(part))
            files[group] = FileRecord(name, size, digest, tuple(sorted(part)))
        if added:
            rewrite_tail(directory / LEDGER, old.ledger_bytes, added)
        counts = (old.ledger_bytes + len(added), old.ledger_entries + len(lines))
        write_file(directory / NEW_HEADER, [dump(Header(generation, facts, files, *counts, head))], os.O_TRUNC)
        sync_directory(directory)
        replace(directory / NEW_HEADER, directory / HEADER)
    except BaseException:
        with contextlib.suppress(DataError, OSError):
            _clean(directory)
        raise
    try:
        sync_directory(directory)
        _clean(directory)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise DataError(f"{directory} is saved, but files of its old state may be left there: {why}") from error
    return generation


def _current(directory: Path) -> Header:
    """The present header, or one of an empty artifact when the directory is new."""
    if (directory / HEADER).exists():
        return read_header(directory)
    for name in os.listdir(directory):
        if not STATE.fullmatch(name) and name not in (NEW_HEADER, LEDGER, LOCK):
            raise DataError(f"{directory} holds other files ({name}) and no artifact: choose a new or empty directory")
    return Header(0, {}, {})


def _kept(directory: Path, old: Header, group: str) -> FileRecord:
    if group not in old.files:
        raise ValueError(f"there is no group {group} to keep in {directory}")
    record = old.files[group]
    path = directory / record.file
    if _size(path) != record.bytes:
        raise DataError(f"{path} is missing or damaged: restore it from a copy or fit again")
    return record


def _leftovers(directory: Path, header: Header) -> list[str]:
    """Files of ours that the header does not name, and the ledger when it is longer than committed."""
    used = {record.file for record in header.files.values()}
    found = [name for name in os.listdir(directory) if name == NEW_HEADER or STATE.fullmatch(name)]
    found = [name for name in found if name not in used]
    return found + [LEDGER] * (_size(directory / LEDGER) > header.ledger_bytes)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _clean(directory: Path) -> None:
    """Delete what an earlier state or a killed save left behind; the lock must be held."""
    header = _current(directory)
    found = _leftovers(directory, header)
    if found:
        sync_directory(directory)  # a killed save may have replaced the header just now: no deletion may overtake that
    for name in found:
        if name == LEDGER:
            rewrite_tail(directory / LEDGER, header.ledger_bytes, b"")
        else:
            delete(directory / name)
    if found:
        sync_directory(directory)


def check_artifact(directory: Path | str) -> Ledger:
    """Check everything: checksums, the ledger, and that the saved theta is the one of the ledger's last line."""
    _, arrays = load_artifact(directory)
    ledger = read_ledger(directory)
    ledger.verify()
    if len(ledger) and "theta" in arrays and ledger.entries[-1].get("theta_after") != theta_digest(arrays["theta"]):
        raise DataError(f"the parameters in {directory} are not those of the last line of its ledger")
    return ledger
