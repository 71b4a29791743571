"""Odd arguments for every command: `arguments` draws them, `Desk` runs them in this process and judges the answer.

A command may do what it is told or refuse it in one sentence. Anything else is a finding: an exception, a traceback, an
exit code that no command has, a file outside its folder, a change of the folder by a command that was refused.
"""

import contextlib
import io
import os
import shutil
import socket
import sys
import tempfile
import webbrowser
from pathlib import Path
from unittest import mock

import typer.main
from command import USES, commands, prepare
from hypothesis import strategies as st

from l2ul_fast.cli import main
from l2ul_fast.cli.app import app
from l2ul_fast.errors import UserError

#: Words that a parser may stumble over. No number between 10,000 and what every check refuses: it would be obeyed; no
#: path that leads out of the folder, for the same reason.
ODD = [
    *"""
    - -- --- = -1 0 1 2 -0 1.5 1e3 nan inf 1e999 99999999999999999999 -99999999999999999999 0x10 1_000 ٣ ½ None null
    . ./ ~ $HOME * [ ] [] {} {"a":1} %s % \\ ' " ; & , ,, 1, ,1 1,,2 1- -1-2 3-1 1-99999999999999999999 1,1 é 日本 🙂
    magic susy all lr mlp newton tiny paper u before rows.h5 cells.h5 a b run raw data nowhere data/magic.standin.h5
    u/artifact.json u/ledger.jsonl a/records.jsonl raw/susy_subset.npz s3://b/x.h5 http://x file:///etc/passwd
    x.npz x.csv x.json n=1 =1 n= n=[1 n==1
    """.split(),  # noqa: SIM905 - a list of so many would take a page
    *("", " ", "a b", "\t", "\n", "\r\n", "\udcff", "\x1b[31m", "\u202e", "x" * 300, "9" * 5000),
]
#: Done; a mistake, or something to report; a usage error, or runs that cannot be compared; done but not told.
CODES = (0, 1, 2, 3)
#: Options that reach outside the process, or take as long as they are told to.
LEFT_OUT = {"--workers", "--scheduler", "--open", "--install-completion", "--show-completion", "--jobs", "--data-dir"}


def options():
    """Command -> the names of its options."""
    root = typer.main.get_command(app)
    found = {}
    for name in commands():
        command = root
        for word in name.split():
            command = command.get_command(typer.Context(command), word)
        if name == "bench":
            command = command.get_command(typer.Context(command), "lr")
        names = [option for p in command.params for option in p.opts if option.startswith("--")]
        found[name] = [*sorted(set(names) - LEFT_OUT), "--help"]
    return found


ODD_WORDS = st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_characters="\0/."), max_size=8))


@st.composite
def arguments(draw):
    """The words after `l2ul`: a valid use of a command, mostly with one value made odd, else with words moved about."""
    name = draw(st.sampled_from(sorted(USES_NOW)))
    words = USES_NOW[name].split()
    first = len(name.split())
    if draw(st.integers(0, 3)):
        value, option = draw(ODD_WORDS), draw(st.sampled_from(OPTIONS[name]))
        places = [i for i in range(first, len(words)) if not words[i].startswith("--")]
        if places and draw(st.booleans()):
            words[draw(st.sampled_from(places))] = value
        elif option in words:
            words[words.index(option) + 1] = value
        else:
            words += draw(st.sampled_from(([option, value], [f"{option}={value}"], [option])))
        return words
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(words)))
        there = words[place : place + 1]
        put = draw(st.sampled_from(([], [draw(ODD_WORDS)], [draw(st.sampled_from(OPTIONS[name]))], there * 2)))
        words[place : place + draw(st.integers(0, 1))] = put
    return words


class Desk:
    """A folder with all that the commands work on; each run gets a copy of it.

    `with Desk() as desk: desk.check(words)` raises AssertionError for a finding.
    """

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        self.place = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.prepared = self.place / "prepared"
        self.prepared.mkdir()
        prepare(self.prepared)
        before = os.getcwd()
        self.stack.callback(os.chdir, before)
        refuse = mock.Mock(side_effect=OSError("no network here"))
        for patch in (
            mock.patch.object(socket.socket, "connect", refuse),
            mock.patch.object(socket, "getaddrinfo", refuse),
            mock.patch.object(webbrowser, "open"),
            mock.patch("l2ul_fast.distributed.cluster.connect", mock.Mock(side_effect=UserError("no workers here"))),
        ):
            self.stack.enter_context(patch)
        return self

    def __exit__(self, *error):
        self.stack.close()

    def check(self, words):
        """Run `l2ul WORDS...`; (exit code, standard output, standard error)."""
        with tempfile.TemporaryDirectory(dir=self.place) as name:
            folder = Path(shutil.copytree(self.prepared, Path(name) / "here"))
            os.chdir(folder)
            try:
                code, out, err = self.run(words, folder)
            finally:
                os.chdir(self.place)
            outside = sorted(set(os.listdir(name)) - {"here"})
        asked = f"l2ul {' '.join(map(repr, words))}\n{err[-2000:]}"
        assert code in CODES, f"exit code {code}: {asked}"
        assert "Traceback" not in err, asked
        assert not outside, f"written outside: {outside}: {asked}"
        if code == 1 and not out and err.startswith("error: "):
            assert err.count("\n") <= 1 + "".join(words).count("\n"), f"not one sentence: {asked}"
        return code, out, err

    def run(self, words, folder):
        words = [*words, "--dry-run"] if words[:1] == ["bench"] and "--" not in words else words
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape") for _ in range(2))
        environment = {"L2UL_RAW_DIR": str(folder / "raw"), "L2UL_DATA_DIR": str(folder / "data")}
        with (
            mock.patch.object(sys, "argv", ["l2ul", *words]),
            mock.patch.dict(os.environ, environment),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main()
                code = 0
            except SystemExit as end:
                code = end.code or 0
            except BaseException as error:
                raise AssertionError(f"l2ul {words!r}: {type(error).__name__}: {error}") from error
            for stream in (out, err):
                stream.flush()
        return code, *(s.buffer.getvalue().decode("utf-8", "replace") for s in (out, err))


USES_NOW = {name: USES[name] for name in commands() if name not in ("data fetch", "reproduce")}
OPTIONS = options()
