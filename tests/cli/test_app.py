"""What needs no server: version, help, usage, bugs, and a missing extra."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import click
import pytest

import consul_coord
from consul_coord import LOCK_FLAGS, Client, threads
from consul_coord.cli import main, options
from consul_coord.cli.app import VERBS, verb
from consul_coord.cli.codes import ExitCode
from consul_coord.server import ReferenceServer
from tests.cli.processes import PATIENCE, PROGRAM, environ


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"consul-coord {consul_coord.__version__}\n"


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_each_verb_has_help_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"consul-coord {verb}" in capsys.readouterr().out.partition("Examples:")[2]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["lock"],
        ["lock", "k"],
        ["lock", "k", "--timeout", "-1", "--", "true"],
        ["lock", "k", "--timeout", "soon", "--", "true"],
        ["lock", "k", "--not-acquired-code", "256", "--", "true"],
        ["lock", "/k", "--", "true"],
        ["lock", "k", "--ttl", "0", "--", "true"],
        ["lock", "k", "--lock-delay", "61", "--", "true"],
        ["lock", "k", "--value", "\udcff", "--", "true"],
        ["elect", "k", "--value", "\udcff", "--", "true"],
        ["semaphore", "p", "--limit", "1", "--value", "\udcff", "--", "true"],
        ["semaphore", "p", "--", "true"],
        ["semaphore", "p", "--limit", "0", "--", "true"],
        ["semaphore", "/p", "--limit", "1", "--", "true"],
        ["serve", "--host", "0.0.0.0"],
        ["demo", "--ttl", "0"],
        ["simulate", "--seed", "1", "--trace", "/no/such/folder/run.json"],
        ["simulate", "--seed", "1", "--timeline", "/no/such/folder/run.svg"],
        ["simulate", "--seed", "1", "--report", "/no/such/folder/runs.json"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2_and_says_why(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err


FREE = {click.STRING, click.UNPROCESSED}
"""The types that take any text."""
TYPED = {
    f"{name} {parameter.opts[-1]}": (name, parameter)
    for name in VERBS
    for parameter in verb(name).params
    if not getattr(parameter, "is_flag", False)
    and parameter.type not in FREE
    and not isinstance(parameter.type, click.Path)
}


@pytest.mark.parametrize("of", TYPED)
def test_a_value_of_the_wrong_type_is_refused_by_one_sentence(
    of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, parameter = TYPED[of]
    before = [] if isinstance(parameter, click.Option) else ["k"]
    wanted = [parameter.opts[-1], "x"] if isinstance(parameter, click.Option) else ["x"]
    assert main([name, *before, *wanted]) == 2
    *_, told = capsys.readouterr().err.splitlines()
    shown = parameter.make_metavar(click.Context(verb(name))) if before else parameter.opts[-1]
    expected = r"a time(: | of at least \S+ s: )give seconds.*|a whole number.*|one of '.*'\."
    assert re.fullmatch(rf"Error: Invalid value for '{re.escape(shown)}': 'x' is not ({expected})", told)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["semaphore", "p", "--limit", "0"], "'0' is not a whole number of at least 1"),
        (["semaphore", "p", "--limit", "1.5"], "'1.5' is not a whole number of at least 1"),
        (["serve", "--port", "65536"], "'65536' is not a whole number from 0 to 65535"),
        (["serve", "--port", "-1"], "'-1' is not a whole number from 0 to 65535"),
        (["lock", "k", "--timeout", "inf"], "'inf' is not a time: give seconds"),
        (["lock", "k", "--max-hold", "99ms"], "'99ms' is not a time of at least 0.1 s: give seconds"),
        (["elect", "k", "--lock-delay", "0"], "'0' is not a time of at least 0.05 s: give seconds"),
        (["lock", "k", "--lock-delay", "0"], "'0' is not a time of at least 0.05 s: give seconds"),
        (["lock", "k", "ls", "-l"], "No such option '-l': write the command and its options after --"),
        (["lock", "k", "rsync", "--timeout=30"], "'--timeout=30' stands after the command: write -- before"),
        (["elect", "k", "--quiet", "serve", "--once"], "'--once' stands after the command: write -- before"),
        (["sessions", "-l"], "No such option '-l'."),
    ],
    ids=" ".join,
)
def test_a_value_out_of_bounds_too(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["lock", "k", "--address", "ftp://here", "--", "true"], "address"),
        (["lock", "k", "--token-file", "/nowhere/token", "--", "true"], "/nowhere/token"),
    ],
)
def test_bad_configuration_is_78(
    arguments: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 78
    assert names in capsys.readouterr().err


@pytest.mark.parametrize("verb", [("lock", "k"), ("once", "k", "--slot", "1")], ids=["lock", "once"])
def test_a_bug_is_70_and_asks_for_a_report(
    verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(options.Agent, "client", broken)
    assert main([*verb, "--", "true"]) == 70
    told = capsys.readouterr().err
    assert "bug" in told
    assert "ZeroDivisionError" in told


def test_a_system_without_room_for_another_process_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    assert main(["lock", "k", "--", "true"]) == 78
    expected = "consul-coord: the system gives no more processes or files: Resource temporarily unavailable\n"
    assert capsys.readouterr().err == expected


def test_a_system_without_room_for_another_thread_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **_named: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "start", refuse)
    assert main(["lock", "k", "--", "true"]) == 78
    assert "raise the limit on this process's threads" in capsys.readouterr().err


def run_into(stdout: IO[str] | int, *arguments: str, unbuffered: str) -> tuple[int, str]:
    """Run the command with that stdout; return its exit code and what is on stderr."""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        env=environ(PYTHONUNBUFFERED=unbuffered),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_answer_that_cannot_be_written_is_no_bug(unbuffered: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = run_into(full, "simulate", "--seed", "1", unbuffered=unbuffered)
    assert ended == (78, "consul-coord: can't write: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("stream", "argument", "code"), [("stdout", "no-such-verb", 2), ("stderr", "--help", 0)]
)
def test_what_can_no_longer_be_written_changes_no_exit_code(stream: str, argument: str, code: int) -> None:
    program = (
        "import contextlib, sys; from consul_coord.cli import main\n"
        f"with contextlib.suppress(OSError): sys.{stream}.write('left')\n"
        f"sys.exit(main(['{argument}']))"
    )
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full if stream == "stdout" else subprocess.DEVNULL,
            stderr=full if stream == "stderr" else subprocess.DEVNULL,
            env=environ(PYTHONUNBUFFERED=""),
            timeout=PATIENCE,
            check=False,
        )
    assert ended.returncode == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_lost_part_of_an_answer_is_no_success() -> None:
    program = (
        "import sys; from consul_coord.cli import app\n"
        "app.app.main = lambda **_: sys.stdout.write('left') and None\n"
        "sys.exit(app.run([]))"
    )
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environ(PYTHONUNBUFFERED=""),
            timeout=PATIENCE,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (78, "consul-coord: can't write: No space left on device\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_answer_that_nobody_reads_is_not_the_answer_no(unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        ended = run_into(write, "--help", unbuffered=unbuffered)
    finally:
        os.close(write)
    assert ended == (128 + signal.SIGPIPE, "")


def test_ctrl_c_before_the_verb_is_loaded_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "consul_coord.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "consul_coord.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert main(["--version"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments", [["holders", ""], ["doctor"], ["break", "k"], ["lock", "j", "--", "true"]]
)
def test_a_caller_may_close_all_streams(arguments: list[str]) -> None:
    codes = []
    with ReferenceServer() as server:
        operator = Client(server.address)
        operator.kv.acquire("k", operator.session.create(), flags=LOCK_FLAGS)
        for redirection in ("</dev/null >/dev/null 2>&1", "<&- >&- 2>&-"):
            done = subprocess.run(
                ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *PROGRAM, *arguments],
                env=environ(CONSUL_HTTP_ADDR=server.address),
                timeout=PATIENCE,
                check=False,
            )
            codes.append(done.returncode)
    assert codes[0] == codes[1] != ExitCode.BUG


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("click", ["--version"], "cli"),
        ("httptools", ["serve"], "server"),
        ("uvicorn", ["serve"], "server"),
        ("uvicorn", ["demo"], "server"),
    ],
)
def test_a_missing_extra_is_named(module: str, arguments: list[str], extra: str) -> None:
    script = (
        f"import sys; sys.modules[{module!r}] = None\nfrom consul_coord.cli import main\nsys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 78
    assert f"{module} is not installed" in done.stderr
    assert f"pip install 'consul-coord[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
