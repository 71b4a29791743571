"""Records of a run on disk, and the one definition of their fields.

results/<run>/records.jsonl   one JSON object per measured cell, appended and flushed
results/<run>/run.json        the environment it was measured in
results/<run>/records.lock    held by the process that writes

FIELDS says what each field means; the identity fields tell cells apart, for resuming, comparing and reproducing alike.
An experiment adds fields of its own in its declaration. Files of older versions are never rewritten: readers pass every
record through `upgrade`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2ul_fast.errors import UserError
from l2ul_fast.files import write_atomic

Record = dict[str, Any]
Cell = Mapping[str, Any]
SCHEMA = 2

Text, Number, Whole, Truth = (str,), (int, float), (int,), (bool,)


@dataclass(frozen=True)
class Field:
    """One field of a record.

    role: "identity" (which cell), "repeat" (which repetition of the cell), "metric" (how well) or "info".
    better: "lower" or "higher" of a metric. Every metric may be None: not measured, or without meaning there.
    """

    types: tuple[type, ...]
    help: str
    unit: str = ""
    role: str = "info"
    better: str = ""


def identity(types: tuple[type, ...], help: str, unit: str = "") -> Field:
    """A field that tells cells apart; None where a cell has no such thing."""
    return Field(types, help, unit, "identity")


def metric(help: str, unit: str = "", better: str = "lower") -> Field:
    """A number that says how well."""
    return Field(Number, help, unit, "metric", better)


def info(help: str, types: tuple[type, ...] = Number, unit: str = "") -> Field:
    """A field that neither identifies nor judges."""
    return Field(types, help, unit)


FIELDS: dict[str, Field] = {
    "experiment": identity(Text, "name of the experiment"),
    "dataset": identity(Text, "name of the dataset"),
    "source": identity(Text, "real, subset or stand-in (of older records), own:<sha256>, or what made synthetic rows"),
    "n": identity(Whole, "training rows", "rows"),
    "d": identity(Whole, "features"),
    "model": identity(Text, "lr, mlp or the network's name"),
    "method": identity(Text, "method, head or candidate"),
    "task": identity(Text, "what is timed, where a method does several things"),
    "request": identity(Text, "which rows are asked for: random, one class, one cluster, half-space, ..."),
    "r": identity(Whole, "rows really forgotten", "rows"),
    "rtol": identity(Number, "accuracy that the request asks for"),
    "order": identity(Whole, "order of the expansion"),
    "parameter": identity(Text, "the parameter that is varied"),
    "value": identity(Number, "its value"),
    "psi": identity(Whole, "seeds per partition"),
    "t": identity(Whole, "partitions"),
    "s": identity(Whole, "rows per training pair", "rows"),
    "m": identity(Whole, "training pairs"),
    "k": identity(Whole, "number of subsets that hold a row, at least"),
    "requests": identity(Whole, "requests answered so far, or asked in a row"),
    "contaminated": identity(Whole, "rows that were contaminated", "rows"),
    "check": identity(Text, "what is compared"),
    "attack": identity(Text, "how rows are sought"),
    "scene": identity(Text, "what the attacker holds"),
    "block": identity(Whole, "which stretch of a long stream of requests"),
    "workers": identity(Whole, "processes of a cluster"),
    "shards": identity(Whole, "files"),
    "leaves": identity(Whole, "tasks of the first level"),
    "dtype": identity(Text, "type of the rows"),
    "scope": identity(Text, "forgotten classes or rows of a network"),
    "width": identity(Whole, "width of a network"),
    "epochs": identity(Whole, "epochs of training"),
    "threads": identity(Whole, "thread budget of the process"),
    "settings": identity(Text, "numbers that replace those of the profile (--set), as JSON"),
    "profile": identity(Text, "sizes: tiny, quick, paper or full"),
    "seed": Field(Whole, "seed of models and requests", role="repeat"),
    "base_seed": Field(Whole, "--seed of the run, where it is not 1 and `seed` does not say it", role="repeat"),
    "repeat": Field(Whole, "number of the repetition: other rows of the same sort", role="repeat"),
    # how well
    "answer_seconds": metric("time of one request, median of `repeats`", "s"),
    "unlearn_seconds": metric("another name of answer_seconds", "s"),
    "erased_seconds": metric("time until nothing that is kept gives the rows back; None: never", "s"),
    "refresh_seconds": metric("time of refresh", "s"),
    "prepare_seconds": metric("time of the preparation", "s"),
    "seconds": metric("time of one call, median of `repeats`", "s"),
    "rho": metric("distance to the retrained parameters; doing nothing is 1, None for ensembles"),
    "disagreement": metric("share of test rows that the retrained model answers otherwise"),
    "accuracy": metric("share of test rows answered rightly", better="higher"),
    "forget_accuracy": info("share of forgotten rows answered rightly; Retrain's is the target"),
    "state_bytes": metric("memory kept between requests, the rows left out", "bytes"),
    "rows_per_second": metric("throughput", "rows/s", "higher"),
    # what else is known
    "schema": info("version of this list", Whole),
    "status": info("ok, or why there is no number", Text),
    "failed": info("true where the whole job raised: `status` says what", Truth),
    "job": info("name of the job that measured it", Text),
    "at": info("seconds since the job began", unit="s"),
    "steal": info("share of CPU time that the host took away during the job"),
    "r_asked": info("rows asked for: small tables have fewer to give", Whole, "rows"),
    "error": info("the method's own estimate of rho"),
    "tier": info("how the answer was found", Text),
    "due": info("whether a refresh is due, or why; of slow-down: how many requests left one", (bool, int, str)),
    "anchor_moved": info("coordinates of the anchor that are others without the rows", (int, bool)),
    "retrained": info("whether certified removal had to retrain", Truth),
    "exact": info("whether answers equal training without the rows", Truth),
    "change": info("distance between the model and the retrained one"),
    "noise_floor": info("what two retrains from different starts differ by, in units of rho"),
    "rho_target": info("what rho is measured against: retrain of the model, or of the method's own training", Text),
    "retrain_accuracy": info("accuracy of the retrained model"),
    "retrain_forget_accuracy": info("its accuracy on forgotten rows"),
    "nothing_disagreement": info("disagreement of the model that forgets nothing"),
    "answer_spread": info("interquartile range of the request's times over their median"),
    "overhead_seconds": info("what timing takes around a call that does nothing", unit="s"),
    "erased_status": info("why erased_seconds is missing", Text),
    "spread": info("interquartile range of the times over their median"),
    "repeats": info("timed calls", Whole),
    "runs": info("repetitions that a condensed record stands for", Whole),
}

#: Methods under the names they were recorded with -> the names they have now. What was called "l2ul" moved theta by one
#: Newton step: no head of today's L2UL does that, so it keeps a name of its own.
RENAMED = {"l2ul": "l2ul-newton", "l2ul-reanchored": "l2ul-newton-reanchored"}
#: The same in the experiment on networks, where "l2ul" meant other things.
RENAMED_NETWORKS = {"l2ul": "l2ul-network", "l2ul-influence": "l2ul-newton"}
EXPERIMENTS = {"pairs-lr": "pairs", "pairs_mlp": "pairs"}
#: Fields under the names they were recorded with -> the names they have now.
RENAMED_FIELDS = {
    "kind": "request",
    "run": "repeat",
    "draw": "repeat",
    "case": "repeat",
    "part": "task",
    "dirty": "contaminated",
    "forgot_its_model": "fails_null_control",
    "of_peak": "fraction_of_peak",
    "of_limit": "fraction_of_limit",
    "wall_seconds": "seconds",
    "p50": "p50_seconds",
    "p99": "p99_seconds",
    "most": "max_seconds",
    "refresh_p50": "refresh_p50_seconds",
    "unlearn_seconds_max": "max_seconds",
    "reanchored": "refreshes",
    "reanchor_seconds": "refresh_seconds",
    "unlearn_spread": "answer_spread",
}
TARGETS = {"own": "method", "A": "model"}


def identity_fields(own: Mapping[str, Field] | None = None, repeats: bool = True) -> tuple[str, ...]:
    """Names of the fields that tell cells (and, unless repeats=False, their repetitions) apart."""
    roles = ("identity", "repeat") if repeats else ("identity",)
    return tuple(name for name, field in (FIELDS | dict(own or {})).items() if field.role in roles)


#: What was measured; records that agree in it are repetitions of one cell.
IDENTITY = identity_fields(repeats=False)
#: Which repetition.
REPEAT = tuple(name for name, field in FIELDS.items() if field.role == "repeat")


def validate(record: Record, own: Mapping[str, Field] | None = None) -> None:
    """UserError that names the field which is unknown or of another type."""
    known = FIELDS | dict(own or {})
    for name, value in record.items():
        if name not in known:
            raise UserError(f"the record has a field {name!r} that nobody declared: add it to the experiment's fields")
        types = known[name].types
        fits = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        if value is not None and not fits:
            wanted = " or ".join(t.__name__ for t in types)
            raise UserError(f"field {name!r} of a record must be {wanted}, got {value!r}")
    if not isinstance(record.get("experiment"), str):
        raise UserError("a record must name its experiment")


def upgrade(record: Record) -> Record:
    """A record of any older version as this version would have written it; a fresh one stays as it is.

    What was not measured then (`erased_seconds`, say) stays missing.
    """
    if record.get("schema") == SCHEMA:
        return record
    renamed = RENAMED_NETWORKS if record.get("experiment") == "resnet" else RENAMED
    old = record
    if "request" in old and "kind" in old:  # said the kind and the number of rows once more
        old = {name: value for name, value in old.items() if name != "request"}
    new = {RENAMED_FIELDS.get(name, name): value for name, value in old.items()}
    new["experiment"] = EXPERIMENTS.get(old.get("experiment", ""), old.get("experiment", ""))
    if isinstance(old.get("method"), str):
        new["method"] = renamed.get(old["method"], old["method"])
    if "reference" in new:
        new["rho_target"] = TARGETS.get(new.pop("reference"))
    if "unlearn_seconds" in new and "answer_seconds" not in new:
        new["answer_seconds"] = new["unlearn_seconds"]
    if new.get("method") == "nothing" and new["experiment"] in ("lr", "mlp", "efficacy", "baselines"):
        new["overhead_seconds"] = new.get("answer_seconds")  # what was timed was the harness
        new["answer_seconds"] = new["unlearn_seconds"] = None
    if isinstance(new.get("r"), float):  # a median of whole numbers
        new["r"] = round(new["r"])
    if old.get("experiment") in EXPERIMENTS:
        new.setdefault("model", "lr" if old["experiment"] == "pairs-lr" else "mlp")
    if new["experiment"] == "scale":  # said how the learned head was trained, which has no part in it
        new = {name: value for name, value in new.items() if name not in ("m", "s")}
    if new["experiment"] == "kernels" and "n" in new:
        new["rows"] = new.pop("n")  # as many as fitted the time
    if new["experiment"] == "kernels" and isinstance(new.get("seconds"), list):
        new["seconds"] = sorted(new["seconds"])[len(new["seconds"]) // 2] if new["seconds"] else None
    return new | {"schema": SCHEMA}


class Run:
    """One run's folder. Opening an existing one continues it; several processes may write to it at once."""

    def __init__(self, folder: Path | str, environment: Record | None = None) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "records.jsonl"
        self.records: list[Record] = []
        self._read_to = 0
        self._known: dict[tuple[str, tuple[str, ...]], tuple[int, set[tuple[Any, ...]]]] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if environment is not None:
                write_atomic(self.folder / "run.json", json.dumps(environment, indent=2) + "\n")
            self.refresh()
        except OSError as error:
            raise UserError(f"cannot use {self.folder} for results: {error.strerror}") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process writes meanwhile."""
        with open(self.folder / "records.lock", "w") as lock:
            try:
                import fcntl
            except ImportError:  # Windows
                yield
                return
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @property
    def environment(self) -> Record:
        """What run.json says; empty when it is missing or damaged."""
        try:
            found = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def refresh(self) -> list[Record]:
        """All records, those of other processes included. A half-written last line is not one (yet)."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._read_to)
                new = file.read()
        except FileNotFoundError:
            return self.records
        for line in new[: new.rfind(b"\n") + 1].splitlines(keepends=True):
            if line.strip():
                self.records.append(_parsed(line, len(self.records) + 1, self.path))
            self._read_to += len(line)
        return self.records

    def append(self, record: Record) -> None:
        """Add one record, on disk before this returns."""
        line = (json.dumps(record, default=_plain) + "\n").encode()
        try:
            with self._alone(), open(self.path, "ab+") as file:
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    if file.read(1) != b"\n":  # a process was killed while writing: its cell is measured again
                        file.seek(0)
                        text = file.read()
                        end = text.rfind(b"\n") + 1
                        if _is_object(text[end:]):
                            file.write(b"\n")
                        else:
                            file.truncate(end)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"cannot write to {self.folder}: {error.strerror}") from None
        self.refresh()

    def has(self, **key: Any) -> bool:
        """Whether a record with these values is already there; one of a failed job counts."""
        names = tuple(sorted(key))
        where = str(key.get("experiment", "")), names
        self.refresh()
        seen, found = self._known.get(where, (0, set()))
        for record in self.records[seen:]:
            found.add(tuple(_hashable(record.get(name)) for name in names))
        self._known[where] = len(self.records), found
        return tuple(_hashable(key[name]) for name in names) in found


def _plain(value: Any) -> Any:
    """A NumPy scalar as Python's own."""
    if hasattr(value, "item"):
        return value.item()
    raise UserError(f"a record holds {value!r}, which is no JSON value")


def _hashable(value: Any) -> Any:
    value = _plain(value) if hasattr(value, "item") else value
    return value if value is None or isinstance(value, str | int | float | bool) else json.dumps(value)


def _parsed(line: bytes, number: int, path: Path) -> Record:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"line {number} of {path} is damaged: not a JSON object; delete the file or the line")
    return found


def read_records(folder: Path | str) -> list[Record]:
    """The records of a finished or unfinished run."""
    path = Path(folder)
    path = path / "records.jsonl" if path.is_dir() else path
    if not path.exists():
        raise UserError(f"no results at {path}")
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    # a last line without its end is being written, or its process was killed
    whole = [line for line in lines if line.endswith(b"\n") or _is_object(line)]
    return [_parsed(line, number, path) for number, line in enumerate(whole, 1) if line.strip()]


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def current(records: Iterable[Record]) -> list[Record]:
    """Upgraded records without failures that a later try made good."""
    records = [upgrade(r) for r in records]
    names = (*IDENTITY, *REPEAT)

    def cell(record: Record) -> tuple[Any, ...]:
        return tuple(_hashable(record.get(name)) for name in names if name not in ("source", "n", "d"))

    last = {cell(r): i for i, r in enumerate(records) if r.get("failed")}
    good = {cell(r) for r in records if not r.get("failed")}
    return [r for i, r in enumerate(records) if not r.get("failed") or (cell(r) not in good and last[cell(r)] == i)]
