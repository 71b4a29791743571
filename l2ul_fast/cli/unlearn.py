"""`l2ul fit`, `l2ul unlearn`, `l2ul show`: a durable unlearner in a directory."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_type_hints

import typer

from l2ul_fast.cli.options import LATE, progress_bar
from l2ul_fast.errors import UserError
from l2ul_fast.unlearner.options import NUMBERS, OLD_HEADS, Options

if TYPE_CHECKING:
    from l2ul_fast.unlearner import L2UL
    from l2ul_fast.unlearner.result import Unlearned

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads; default: all of this process's cores.")]
Data = Annotated[Path | None, typer.Option(help="The dataset file, if it has moved since the fit.")]
Dir = Annotated[Path, typer.Argument(help="Directory of a fitted unlearner.")]

#: Exit code where all was done and saved, and only the answer could not be printed.
DONE_UNTOLD = 3
#: Requests that `show` prints.
LATEST = 10


@contextlib.contextmanager
def budget(threads: int | None) -> Iterator[None]:
    """Use so many threads in the block; None leaves them as they are."""
    from l2ul_kernels import threads as budget

    with contextlib.ExitStack() as stack:
        if threads is not None:
            try:
                stack.enter_context(budget(threads))
            except ValueError as error:
                raise UserError(str(error)) from error
        yield


def _client(scheduler: str | None, workers: int | None) -> contextlib.AbstractContextManager[Any]:
    """A Dask client if the options ask for one, else None."""
    if scheduler is None and workers is None:
        return contextlib.nullcontext()
    from l2ul_fast.distributed import connect

    return connect(scheduler, workers)


@contextlib.contextmanager
def noted() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings of the block, each of which `warn` prints as one sentence."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", category=UserWarning)
        warnings.filterwarnings("always", category=DeprecationWarning, module="l2ul_fast")
        yield caught


def warn(texts: list[str]) -> None:
    for text in texts:
        typer.echo(f"warning: {text}", err=True)


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Print in the block what was done and saved; where that fails, one sentence and exit code 3 say that it is."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails once more
        with contextlib.suppress(OSError):
            typer.echo(f"error: {what}, but standard output could not be written ({error.strerror})", err=True)
        raise typer.Exit(DONE_UNTOLD) from None


def _offered() -> list[inspect.Parameter]:
    """The options of an unlearner that `l2ul fit` offers, as typer reads them."""
    hints, found = get_type_hints(Options), []
    for option in fields(Options):
        facts = option.metadata
        if facts["help"] is None:
            continue
        kind, names = hints[option.name], []
        if "metavar" in facts:
            kind = str
        elif "choices" in facts:
            kind = Literal[*(word for word in facts["choices"] if word not in NUMBERS)]  # a file holds classes
        elif kind is bool:
            names = [f"--{option.name}"]  # no --no-...
        told = typer.Option(*names, **{name: facts[k] for k, name in _TOLD.items() if k in facts})
        name = _RENAMED.get(option.name, option.name)
        found.append(inspect.Parameter(name, _KEYWORD, default=option.default, annotation=Annotated[kind, told]))
    prior = Annotated[Literal["newton", "none"] | None, typer.Option(hidden=True)]
    return [*found, inspect.Parameter("prior", _KEYWORD, default=None, annotation=prior)]


_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_RENAMED = {"random_state": "seed"}
_TOLD = {"help": "help", "metavar": "metavar", "low": "min", "high": "max"}


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `_offered` in place of its **options."""
    hints = get_type_hints(command, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(command).parameters.values()]
    own = [p for p in own if p.kind is not p.VAR_KEYWORD]
    at = 1 + [p.name for p in own].index("out")
    parameters = [*own[:at], *_offered(), *own[at:]]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


@_with_options
def fit(
    file: Annotated[str, typer.Argument(help="HDF5 dataset file (see `l2ul data`).")],
    *,
    out: Annotated[Path, typer.Option(help="Directory to write; an unlearner in it is replaced.")],
    part: Annotated[Literal["train", "all"], typer.Option(help="Rows to train on.")] = "train",
    threads: Threads = None,
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler whose workers share the work.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Or: processes to start for that on this machine.")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train a model on a dataset file, and make what it takes to unlearn from it."""
    from l2ul_fast.unlearner import L2UL
    from l2ul_fast.unlearner.artifact.directory import refuse_foreign

    with budget(threads), noted() as caught:
        refuse_foreign(out)
        options["anchor"] = read_anchor(options["anchor"])
        unlearner = L2UL(random_state=options.pop("seed"), **options)
        with _client(scheduler, workers) as client, progress_bar() as progress:
            unlearner.fit(file, part=part, progress=progress, client=client)
        unlearner.save(out)
        floor = unlearner.noise_floor()
    found = [str(w.message) for w in caught]
    with told(f"the model is fitted and saved in {out}"):
        warn(found)
        if as_json:
            facts = _facts(unlearner) | {"out": str(out), "report": unlearner.report_, "noise_floor": floor}
            print(json.dumps(facts | {"warnings": found}))
            return
        seconds, kind = unlearner.report_["fit_seconds"], unlearner.params["head"]
        rows = f"{unlearner.n} rows ({unlearner.label}) x {unlearner.d}"
        typer.echo(f"{unlearner.params['model']} on {rows}, head {kind}, fitted in {seconds:.1f} s")
        if floor > 0:
            typer.echo(
                f"noise floor: training from another start answers {floor:.1%} of the rows otherwise (no anchor)"
            )
        typer.echo(f"saved in {out}; take rows out with `l2ul unlearn {out} --rows ...`")


def _facts(unlearner: L2UL) -> dict[str, Any]:
    told = ("model", "head", "order", "anchor", "penalty", "psi", "t", "lam")
    found = {name: getattr(unlearner, name) for name in ("label", "n", "d")}
    found |= {"classes": unlearner.classes_, "parameters": int(unlearner.theta.size)}
    return {name: unlearner.params[name] for name in told} | found


def read_anchor(text: str) -> str | list[float]:
    """ "grid", "optimum", or the numbers of a text file, separated by commas or blanks."""
    if text in ("grid", "optimum"):
        return text
    try:
        return [float(word) for word in Path(text).read_text("ascii").replace(",", " ").split()]
    except OSError as error:
        raise UserError(
            f"the anchor must be grid, optimum or a file of parameters, and {text!r} cannot be read: {error.strerror}"
        ) from None
    except ValueError:
        raise UserError(f"the anchor file {text} must hold numbers only, separated by commas or blanks") from None


def read_rows(rows: str | None, rows_file: Path | None) -> list[int]:
    """Row numbers from the options: "17,42,100-200", or a file with numbers or ranges separated by commas or blanks."""
    if (rows is None) == (rows_file is None):
        raise UserError("name the rows with either --rows or --rows-file")
    text = rows
    if rows_file is not None:
        try:
            text = rows_file.read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {rows_file}: {error}") from error
    found: list[int] = []
    for word in (text or "").replace(",", " ").split():
        first, dash, last = word.partition("-")
        if not word.isascii() or not first.isdigit() or (dash and not last.isdigit()) or len(word) > 40:
            raise UserError(f"{word[:40]!r} is not a row number or a range like 100-200")
        low, high = int(first), int(last or first)
        if high < low or high - low > 10**7:
            raise UserError(f"the range {word} is empty or too long")
        found.extend(range(low, high + 1))
    if not found:
        raise UserError("no row was named")
    return found


def unlearn(
    directory: Dir,
    rows: Annotated[str | None, typer.Option(help="Row numbers of the dataset file: 17,42,100-200.")] = None,
    rows_file: Annotated[Path | None, typer.Option(help="A text file with row numbers.")] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="No new request: do what deferred requests have left due.")
    ] = False,
    rtol: Annotated[
        float | None,
        typer.Option(help="Largest estimated error of the answer; passes over the data are made where it takes them."),
    ] = None,
    defer: Annotated[
        bool, typer.Option("--defer", help="Save the request alone, at once; what it makes due is left for later.")
    ] = False,
    request_id: Annotated[
        str | None, typer.Option(help="Your name of the request: given again with the same rows, nothing is done.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Measure the gradient on all rows that stay (one pass).")
    ] = False,
    refresh: Annotated[bool | None, typer.Option(hidden=True)] = None,
    data: Data = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Take rows out of a fitted model; the directory changes to the new state as a whole, or not at all.

    What the request makes due is done before the end, so that nothing that is kept gives the rows away; with --defer
    the directory and `l2ul show` say what is due until the next `l2ul unlearn` without it.
    """
    from l2ul_fast.unlearner import L2UL
    from l2ul_fast.unlearner.artifact import locked, read_header
    from l2ul_fast.unlearner.result import finite

    with budget(threads), noted() as caught:
        if refresh is not None:
            new = "has no effect any more: what is due is always done" if refresh else "is now --defer"
            warnings.warn(f"--{'' if refresh else 'no-'}refresh {new}", DeprecationWarning, stacklevel=1)
            defer = defer or not refresh
        asked = Asked(_wanted(rows, rows_file, finish, rtol, defer, request_id), rtol, defer, request_id, check)
        read_header(directory)  # before the lock: a directory of something else stays as it is
        with locked(directory):
            facts = _do(L2UL.load(directory, data), directory, asked)
    facts["warnings"] = _still_true(caught, facts)
    done = "nothing was left to do" if facts["repeated"] or not asked.rows else f"{facts['r']} row(s) are forgotten"
    with told(f"{done} and {directory} is saved"):
        warn(facts["warnings"])
        if as_json:
            print(json.dumps(finite(facts), allow_nan=False))
        else:
            _tell(facts, directory)


def _wanted(
    rows: str | None, rows_file: Path | None, finish: bool, rtol: float | None, defer: bool, request_id: str | None
) -> list[int]:
    """The rows of the request, none for --finish; UserError for options that contradict each other."""
    from l2ul_fast.unlearner.artifact.ledger import check_request_id

    if request_id is not None:
        check_request_id(request_id)
    if not finish:
        return read_rows(rows, rows_file)
    others = {"--rows": rows, "--rows-file": rows_file, "--rtol": rtol, "--defer": defer, "--request-id": request_id}
    for name, value in others.items():
        if value is not None and value is not False:
            raise UserError(f"--finish is no new request: {name} does not go with it")
    return []


class Asked(NamedTuple):
    """What `l2ul unlearn` was told to do; no rows for --finish."""

    rows: list[int]
    rtol: float | None
    defer: bool
    request_id: str | None
    check: bool


def _do(u: L2UL, directory: Path, asked: Asked) -> dict[str, Any]:
    """Answer, finish and save; the facts of `--json`."""
    wanted, rtol, defer, request_id, check = asked
    if check and u.retained() is None:
        raise UserError("this unlearner keeps no rows (store_rows=False): --check has none to look at")
    repeated = request_id is not None and _was_done(u, wanted, request_id)
    result: Unlearned | None = None
    answer = None
    if wanted and not repeated:
        _warm(u)
    begin = time.perf_counter()
    if wanted and not repeated:
        result = u.unlearn(wanted, rtol=rtol)
        answer = time.perf_counter() - begin
    due = u.due
    done = None if defer or due is None else finish_due(u, directory, result is not None)
    refreshed = time.perf_counter()
    if result is not None or done is not None or u.entries:  # entries: a state of an earlier version was taken over
        u.save(directory, defer=defer, request_id=None if repeated else request_id)
    end = time.perf_counter()
    return {
        "r": 0 if result is None else result.rows.size,
        "n": u.n,
        "request_id": request_id,
        "repeated": repeated,
        "tier": None if result is None else result.tier,
        "error": None if result is None else result.error,
        "answer_seconds": answer,
        "deferred": defer,
        "due": u.due,
        "was_due": due,
        "refreshed": done,
        "error_after": u.head.error,
        "finish_seconds": None if done is None else refreshed - begin - (answer or 0.0),
        "save_seconds": end - refreshed,
        "erased_seconds": None if result is None or u.due else end - begin,
        "gradient_residual": u.residual() if check else None,
    }


def _was_done(u: L2UL, wanted: list[int], request_id: str) -> bool:
    """Whether the request of this name was saved before; UserError if that one was for other rows."""
    from l2ul_fast.unlearner.artifact.ledger import decode_rows
    from l2ul_fast.unlearner.artifact.saving import find_request

    found = find_request(u.history, request_id)
    if not found:
        return False
    same = all(e["action"] == "unlearn" for e in found)
    if not same or sorted(wanted) != sorted(k for e in found for k in decode_rows(e["rows"], e["r"]).tolist()):
        raise UserError(
            f"the request id {request_id!r} was used before ({found[0]['time']}) for other rows: nothing was forgotten"
        )
    return True


def finish_due(u: L2UL, directory: Path, requested: bool) -> dict[str, Any]:
    """Do what is due; what was done, without lists."""
    with progress_bar("finish what is due", LATE) as progress:
        try:
            done = u.refresh(progress=progress)
        except UserError as error:
            later = ": --defer leaves for later what cannot be done now" if requested else ""
            raise UserError(f"{error}; {directory} is as it was before{later}") from error
    return {key: value for key, value in done.items() if isinstance(value, bool | int | float | str | None)}


def _warm(u: L2UL) -> None:
    """Load the compiled request path, so that the latency printed is that of a running service."""
    import numpy as np

    from l2ul_fast.unlearner.requests import Request, rows_of

    if u.head.exact_sums and u.store.keeps_rows:
        u.head.warm(u.store, u.status)
        copy.deepcopy(u.head).forget(rows_of(u, Request(np.empty(0, np.int64))))


def _still_true(caught: list[warnings.WarningMessage], facts: dict[str, Any]) -> list[str]:
    """The warnings, but for those of an answer that was far off until something better took its place."""
    from l2ul_fast.unlearner.result import UNTRUSTED, RetrainInstead

    found = [str(w.message) for w in caught if not issubclass(w.category, RetrainInstead)]
    error = facts["error_after"]
    if facts["refreshed"] is not None:
        return found
    found += [text for w in caught if "is not refined" in (text := str(w.message)) and text not in found]
    if error is not None and error > UNTRUSTED:
        what = "finish what is due" if facts["due"] else "name an --rtol with the next request, or fit again"
        found.append(f"the model may be as far from a retrained one as {error:.2g} of what was asked for: {what}")
    return found


def _error_text(error: float | None) -> str:
    return "not known" if error is None else f"{error:.1e} of the distance that retraining moves the model"


def _tell(facts: dict[str, Any], directory: Path) -> None:
    if facts["answer_seconds"] is not None:
        error = _error_text(facts["error"])
        seconds = facts["answer_seconds"]
        typer.echo(f"forgot {facts['r']} row(s) in {seconds * 1e6:,.0f} us; {facts['n']} rows remain")
        typer.echo(f"answer: {facts['tier']}; estimated error {error}")
    elif facts["repeated"]:
        typer.echo(f"request {facts['request_id']!r} was done before: nothing to forget; {facts['n']} rows remain")
    if facts["refreshed"] is not None:
        after = f"; estimated error now {_error_text(facts['error_after'])}"
        typer.echo(f"finished what was due in {facts['finish_seconds']:.2f} s ({facts['was_due']}){after}")
    elif facts["was_due"] is None and facts["answer_seconds"] is None:
        typer.echo("nothing is due")
    if facts["gradient_residual"] is not None:
        typer.echo(f"largest gradient entry on the rows that stay: {facts['gradient_residual']:.2e} (0: retrained)")
    if facts["due"] is not None:
        typer.echo(f"due: {facts['due']}; until `l2ul unlearn {directory} --finish` the directory may give rows away")
    elif facts["erased_seconds"] is not None:
        typer.echo(f"erased from {directory} after {facts['erased_seconds']:.3f} s")


def show(directory: Dir, data: Annotated[Path | None, typer.Option(hidden=True)] = None, as_json: Json = False) -> None:
    """What a directory holds: model, data, what was forgotten and when, what is due; checks the ledger's chain."""
    facts, entries = _state(directory)
    if as_json:
        print(json.dumps(facts | {"entries": entries}))
        return
    for key, value in facts.items():
        typer.echo(f"{key:10} {'-' if value is None else value}")
    for e in entries[-LATEST:]:
        what = f"{e['r']} row(s)" if "r" in e else ""
        named = f"  {e['request_id']}" if "request_id" in e else ""
        typer.echo(f"  {e['time']}  {e['action']:8} {what}  n = {e['n']}{named}")


def _state(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What `show` prints, and the ledger; all of it checked, and of one moment."""
    from l2ul_fast.unlearner.artifact.directory import check_artifact, read_view

    while True:
        view = read_view(directory)
        ledger = check_artifact(directory)
        if read_view(directory).identity == view.identity:
            break  # else another process saved meanwhile
    facts, params = view.facts, view.facts["params"]
    anchor = params.get("anchor")
    found = {
        "model": params["model"],
        "head": OLD_HEADS.get(params["head"], params["head"]),
        "order": params.get("order"),
        "anchor": anchor if anchor is None or isinstance(anchor, str) else "given",
        "label": facts["label"],
        "n": facts["n"],
        "d": facts["d"],
        "classes": facts["classes"],
        "data": facts["data"],
        "forgotten": int(ledger.forgotten().size),
        "requests": sum(e["action"] == "unlearn" for e in ledger.entries),
        "due": facts.get("due"),
        "deferred": len(view.entries),
        "ledger": "intact",
    }
    return found, ledger.entries
