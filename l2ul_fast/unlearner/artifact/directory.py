"""A fitted unlearner on disk: a directory that always holds exactly one whole state.

artifact.json                           facts; name, size and SHA-256 of every other file; replacing it is a commit
state-<generation>-<group>.safetensors  arrays, written once under a new name and never changed, but for the rows
state-<generation>-rows.sha256          digests of the blocks of the file of rows, see tensors.py
journal.jsonl                           small changes since artifact.json was written; appending a line is a commit
ledger.jsonl                            see ledger.py; what lies behind the length in artifact.json was never committed
.lock                                   held by whoever changes the directory

A save writes new files, syncs them, replaces artifact.json and deletes what it no longer names; a deferred one appends
to the journal instead (journal.py). So a process killed anywhere leaves the old state or the new one. All changes go
through durable.py; header.py is artifact.json, tensors.py the files of arrays.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.artifact import durable, tensors
from l2ul_fast.unlearner.artifact.durable import LOCK, delete, explain, locked, rewrite_tail, sync_directory, write_file
from l2ul_fast.unlearner.artifact.format import HEADER, NEW_HEADER, STATE, FileRecord, Header, dump, read_header
from l2ul_fast.unlearner.artifact.journal import (
    JOURNAL,
    Ids,
    Record,
    View,
    changed_facts,
    erased_rows,
    plain,
    read_journal,
)
from l2ul_fast.unlearner.artifact.ledger import Entry, Ledger, chain, theta_digest
from l2ul_fast.unlearner.artifact.schema import BLOCK
from l2ul_fast.unlearner.artifact.tensors import Arrays, Erased

LEDGER = "ledger.jsonl"
_GROUP = re.compile(r"[a-z0-9_]{1,40}")
_ARRAY = re.compile(r"(?!__)[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class NotTidied(DataError):
    """The new state is saved and will stay, but files of the old one could not be deleted or overwritten yet."""

    exit_code = 3  # of a command: what was asked for is done

    def __init__(self, text: str, generation: int) -> None:
        super().__init__(text)
        self.generation = generation


@dataclass
class Opened:
    """What a directory holds: facts, arrays, the ledger, and the rows that its journal took out (of arrays `rows`)."""

    facts: dict[str, Any]
    arrays: Arrays
    ledger: Ledger
    erased: Ids
    generation: int
    version: int


# Read ----------------------------------------------------------------------------------------------------------------


def read_view(directory: Path | str) -> View:
    """The present state of a directory: artifact.json and its journal, but no arrays."""
    directory = Path(directory)
    header = read_header(directory)
    while True:
        try:
            data = durable.read_file(directory / JOURNAL)
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise explain(directory, error) from error
        # before the second look at artifact.json: a save that replaces it deletes these files afterwards
        held = sum(_size(directory / name) for record in header.files.values() for name in record.names)
        before, header = header, read_header(directory)
        if header.digest == before.digest:  # else a save replaced it, and deleted the journal, meanwhile
            return read_journal(header, data, str(directory / JOURNAL), 8 * held)  # a row takes a bit at least


def load_artifact(
    directory: Path | str, *, memory_map: bool = False, verify: bool = True
) -> tuple[dict[str, Any], Arrays]:
    """Facts and arrays of the saved state; the facts also hold its `generation` (give it to `save_artifact` as base).

    memory_map: arrays are views of the mapped files, private to this process (writing to them changes no file).
    verify: check all checksums and the ledger's chain; False with memory_map reads only the pages that are used.
    """
    found = open_artifact(directory, memory_map=memory_map, verify=verify)
    return {**found.facts, "generation": found.generation}, found.arrays


def open_artifact(directory: Path | str, *, memory_map: bool = False, verify: bool = True) -> Opened:
    """Everything of the saved state; options as for `load_artifact`. What a killed process left undone is done."""
    directory = Path(directory)
    view, begun = read_view(directory), False
    while True:
        try:
            arrays: Arrays = {}
            for group, record in view.files.items():
                erased = Erased(view.erased, view.digests.get(group, {})) if record.blocks else None
                arrays |= tensors.load_arrays(directory / record.file, record, memory_map, verify, erased)
                begun |= erased is not None and erased.found
            ledger = _ledger_of(directory, view)
            if verify:
                _ = ledger.entries  # reading them checks the chain
            break
        except (FileNotFoundError, DataError) as error:
            tried, view = view, read_view(directory)
            if view.identity == tried.identity:  # else another process saved a new state meanwhile
                if isinstance(error, DataError):
                    raise
                raise DataError(f"{error.filename} is missing: restore it from a copy or fit again") from None
        except OSError as error:
            raise explain(directory, error) from error
    with contextlib.suppress(DataError, OSError):  # somebody else is at work, or we may only read
        if begun or _leftovers(directory, view):
            with locked(directory, timeout=0):
                _finish(directory, _current(directory))
    return Opened(view.facts, arrays, ledger, view.erased, view.generation, view.header.version)


def read_ledger(directory: Path | str) -> Ledger:
    """The committed part of the ledger, with what the journal adds to it; `.verify()` checks it."""
    directory = Path(directory)
    try:
        return _ledger_of(directory, read_view(directory))
    except OSError as error:
        raise explain(directory, error) from error


def _ledger_of(directory: Path, view: View) -> Ledger:
    path, header = directory / LEDGER, view.header
    data = durable.read_file(path, header.ledger_bytes) if header.ledger_bytes else b""
    if len(data) < header.ledger_bytes:
        raise DataError(f"{path} was cut off: {len(data)} of {header.ledger_bytes} bytes are left")
    lines, head = chain(view.entries, header.ledger_entries, header.ledger_head)
    return Ledger(data + b"".join(lines), head, str(path))


def check_artifact(directory: Path | str) -> Ledger:
    """Check everything: checksums, the ledger, that the saved theta is the one of the ledger's last line, and, of an
    unlearner, what loading it checks, as far as that takes no dataset file."""
    directory = Path(directory)
    found = open_artifact(directory)
    found.ledger.verify()
    last = found.ledger.entries[-1] if len(found.ledger) else {}
    # a deferred save keeps no theta: the one of before would give the rows away
    if "theta" in found.arrays and last and last.get("theta_after") != theta_digest(found.arrays["theta"]):
        raise DataError(f"the parameters in {directory} are not those of the last line of its ledger")
    if "params" in found.facts:
        from l2ul_fast.unlearner.artifact.saving import check_state  # here: it is made of this module

        check_state(directory, found)
    return found.ledger


# Write ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Change:
    """What a save is given: facts as JSON values, arrays by file (`parts`), what stays, new lines of the ledger."""

    facts: dict[str, Any]
    parts: dict[str, Arrays]
    keep: Collection[str]
    entries: list[Entry]
    base: int | None
    erasable: Collection[str] = ()

    @classmethod
    def of(
        cls,
        facts: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        groups: Mapping[str, Collection[str]] | None,
        keep: Collection[str],
        entries: Entry | list[Entry] | None,
        base: int | None,
        erasable: Collection[str] = (),
    ) -> _Change:
        """With everything checked that can be checked before the disk is touched."""
        parts = _grouped(arrays, groups or {}, keep)
        listed = entries if isinstance(entries, list) else [entries] if entries is not None else []
        return cls(plain(facts), parts, keep, listed, base, erasable)


def save_artifact(
    directory: Path | str,
    facts: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    *,
    groups: Mapping[str, Collection[str]] | None = None,
    keep: Collection[str] = (),
    erasable: Collection[str] = (),
    ledger_entry: Entry | list[Entry] | None = None,
    base: int | None = None,
    timeout: float = 60.0,
) -> int:
    """Make a state durable, all of it or nothing, and delete the one before; returns the new generation.

    facts: JSON values. groups: file name -> names of its arrays; the rest goes to the file "main". keep: groups whose
    present file stays as it is (its arrays are not given again). erasable: groups whose rows `append_artifact` may
    overwrite in place. ledger_entry: what `ledger.entry` made, one or more. base: the generation this state was derived
    from; a directory that has moved on, or holds another fact `fit`, is refused. None overwrites.
    """
    directory = Path(directory)
    change = _Change.of(facts, arrays, groups, keep, ledger_entry, base, erasable)
    try:
        durable.make_directory(directory)
        with locked(directory, timeout):
            return _save(directory, change)
    except OSError as error:
        raise explain(directory, error) from error


def append_artifact(
    directory: Path | str,
    facts: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    *,
    groups: Mapping[str, Collection[str]] | None = None,
    keep: Collection[str] = (),
    ledger_entry: Entry | list[Entry] | None = None,
    base: int,
    known: View | None = None,
    timeout: float = 60.0,
) -> View:
    """Make a small change durable by a line of the journal; arguments as for `save_artifact`, returns the new state.

    Groups that are neither given nor kept are deleted. The rows that the entries forget are overwritten in the kept
    groups whose rows may be. known: what this function returned last, which saves reading the journal.
    """
    directory = Path(directory)
    change = _Change.of(facts, arrays, groups, keep, ledger_entry, base)
    try:
        with locked(directory, timeout):
            return _append(directory, change, known)
    except OSError as error:
        raise explain(directory, error) from error


def refuse_foreign(directory: Path | str) -> None:
    """DataError when `save_artifact` would not write here; to be asked before hours of work."""
    directory = Path(directory)
    if directory.is_dir():
        _current(directory)
    elif directory.exists():
        raise DataError(f"{directory} is not a directory: choose another one")


def _grouped(
    arrays: Mapping[str, Any], groups: Mapping[str, Collection[str]], keep: Collection[str]
) -> dict[str, Arrays]:
    """Arrays by file."""
    if isinstance(keep, str):
        raise TypeError("keep must be a list of group names")
    for name, array in arrays.items():
        if not _ARRAY.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of an array")
        if not isinstance(array, np.ndarray) or array.dtype.newbyteorder("<") not in tensors.CODES:
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


def _save(directory: Path, change: _Change) -> int:
    view = _current(directory)
    old = view.header
    files = _kept(directory, view, change)
    if _size(directory / LEDGER) < old.ledger_bytes:
        raise DataError(f"{directory / LEDGER} was cut off: restore it from a copy")
    _finish(directory, view)
    generation = view.generation + 1
    lines, head = chain([*view.entries, *change.entries], old.ledger_entries, old.ledger_head)
    added = b"".join(lines)
    try:
        files |= _write_groups(directory, generation, change)
        if added:
            rewrite_tail(directory / LEDGER, old.ledger_bytes, added)
        counts = (old.ledger_bytes + len(added), old.ledger_entries + len(lines))
        write_file(directory / NEW_HEADER, [dump(Header(generation, change.facts, files, *counts, head))], os.O_TRUNC)
        sync_directory(directory)
        durable.replace(directory / NEW_HEADER, directory / HEADER)
    except BaseException:
        with contextlib.suppress(DataError, OSError):
            _finish(directory, _current(directory))
        raise
    with _tidying(directory, generation):
        sync_directory(directory)
        _finish(directory, _current(directory))
    return generation


def _append(directory: Path, change: _Change, known: View | None) -> View:
    view = _still(directory, known)
    if view is None:
        view = _current(directory)
        _refuse_stale(directory, view, change)
        _finish(directory, view)  # what a killed process left undone
    kept = _kept(directory, view, change)
    generation, ids = view.generation + 1, erased_rows(change.entries)
    erased = {}
    if ids.size:
        erased = {g: (r, tensors.layout_on_disk(directory / r.file, r)) for g, r in kept.items() if r.blocks}
    digests = {g: tensors.digests_without(directory / r.file, r, layout, ids) for g, (r, layout) in erased.items()}
    dropped = sorted(set(view.files) - set(kept) - set(change.parts))
    try:
        files = _write_groups(directory, generation, change)
        record = Record(generation, changed_facts(view.facts, change.facts), files, dropped, digests, change.entries)
        line = record.line(view.head)
        durable.create(directory / JOURNAL)
        sync_directory(directory)  # the new names; from here on the line alone decides
        rewrite_tail(directory / JOURNAL, view.end, line)
    except BaseException as error:
        with contextlib.suppress(DataError, OSError):
            rewrite_tail(directory / JOURNAL, view.end, b"")
            _finish(directory, _current(directory))
        if isinstance(error, OSError) and _current(directory).generation == generation:  # the line cannot be taken back
            why = os.strerror(error.errno or 0)
            raise DataError(f"{directory} may hold the new state or the old one ({why}): load it again") from error
        raise
    superseded = [name for g, r in view.files.items() if g not in kept for name in r.names]
    view.apply(record, line)
    with _tidying(directory, generation):
        for group, (own, layout) in erased.items():
            tensors.erase_on_disk(directory / own.file, own, layout, ids, digests[group])
        for name in superseded:
            delete(directory / name)
        sync_directory(directory)
    return view


def _write_groups(directory: Path, generation: int, change: _Change) -> dict[str, FileRecord]:
    """One new file for each group, synced."""
    files: dict[str, FileRecord] = {}
    for group, part in change.parts.items():
        name, names = f"state-{generation}-{group}.safetensors", tuple(sorted(part))
        if group in change.erasable:
            blocks = tensors.Blocks()
            size, _ = write_file(directory / name, tensors.encode(part), digest=blocks)
            files[group] = FileRecord(name, size, "", names, BLOCK)
            write_file(directory / files[group].digests, [blocks.lines()])
        else:
            size, digest = write_file(directory / name, tensors.encode(part))
            files[group] = FileRecord(name, size, digest, names)
    return files


@contextlib.contextmanager
def _tidying(directory: Path, generation: int) -> Any:
    """The commit is made: an error from here on is no failure to save."""
    try:
        yield
    except (OSError, DataError) as error:
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
        raise NotTidied(
            f"{directory} is saved, but files of its old state may be left there until it is opened again: {why}",
            generation,
        ) from error


def _refuse_stale(directory: Path, view: View, change: _Change) -> None:
    """Another generation, or that of another fit which took the directory over."""
    if change.base not in (None, view.generation) or (
        change.base is not None and view.facts.get("fit") != change.facts.get("fit")
    ):
        raise DataError(f"{directory} was changed by someone else since it was loaded: load it again and repeat")


def _current(directory: Path) -> View:
    """The present state, or that of an empty artifact when the directory is new."""
    if (directory / HEADER).exists():
        return read_view(directory)
    for name in os.listdir(directory):
        if not STATE.fullmatch(name) and name not in (NEW_HEADER, LEDGER, JOURNAL, LOCK):
            raise DataError(f"{directory} holds other files ({name}) and no artifact: choose a new or empty directory")
    return View.of(Header(0, {}, {}))


def _still(directory: Path, known: View | None) -> View | None:
    """`known` if it is still the state of the directory, as far as artifact.json and the journal's length tell."""
    if known is None or read_header(directory).digest != known.header.digest:
        return None
    return known if known.end and _size(directory / JOURNAL) == known.end else None


def _kept(directory: Path, view: View, change: _Change) -> dict[str, FileRecord]:
    """The files that stay, of the state that the change was derived from."""
    _refuse_stale(directory, view, change)
    for group in change.keep:
        if group not in view.files:
            raise ValueError(f"there is no group {group} to keep in {directory}")
        path = directory / view.files[group].file
        if _size(path) != view.files[group].bytes:
            raise DataError(f"{path} is missing or damaged: restore it from a copy or fit again")
    kept = {group: view.files[group] for group in change.keep}
    if {n for part in change.parts.values() for n in part} & {n for record in kept.values() for n in record.arrays}:
        raise ValueError("an array is given that is also in a kept group")
    return kept


def _leftovers(directory: Path, view: View) -> list[str]:
    """Files of ours that the state does not name, and the ledger and journal when they are longer than committed."""
    used = {name for record in view.files.values() for name in record.names}
    listed = os.listdir(directory)
    found = [name for name in listed if name == NEW_HEADER or STATE.fullmatch(name)]
    found = [name for name in found if name not in used]
    if JOURNAL in listed and (not view.end or _size(directory / JOURNAL) > view.end):
        found.append(JOURNAL)
    return found + [LEDGER] * (_size(directory / LEDGER) > view.header.ledger_bytes)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _finish(directory: Path, view: View) -> None:
    """Overwrite the rows that the journal takes out, and delete what an earlier state or a killed save left behind.

    The lock must be held. Does nothing that was done before.
    """
    for group, record in view.files.items():
        erased = Erased(view.erased, view.digests.get(group, {}))
        path = directory / record.file
        if record.blocks and erased.ids.size:
            layout = tensors.layout_on_disk(path, record)
            if not tensors.is_erased(path, record, layout, erased):
                tensors.erase_on_disk(path, record, layout, erased.ids, erased.digests)
    found = _leftovers(directory, view)
    if found:
        sync_directory(directory)  # a killed save may have replaced the header just now: no deletion may overtake that
    for name in found:
        if name == LEDGER:
            rewrite_tail(directory / LEDGER, view.header.ledger_bytes, b"")
        elif name == JOURNAL and view.end:
            rewrite_tail(directory / JOURNAL, view.end, b"")
        else:
            delete(directory / name)
    if found:
        sync_directory(directory)
