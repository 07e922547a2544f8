"""``lock`` at a terminal: the command reads it, Ctrl-C reaches the command, Ctrl-Z suspends both.

Each test has a pseudo-terminal of its own.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Lock
from tests.cli.processes import PATIENCE, PROGRAM, environ, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

CTRL_C, CTRL_D, CTRL_Z = b"\x03", b"\x04", b"\x1a"


class Screen:
    """A program at a terminal of its own, as the leader of the terminal's session."""

    def __init__(self, command: Sequence[str], *, env: dict[str, str]) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], list(command), env)
        self.text = ""
        self._status: int | None = None

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def wait_for(self, text: str) -> None:
        """Wait until the screen shows a text after what was waited for before."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.text:
            readable, _, _ = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"no {text!r} on the screen: {self.text!r}"
            try:
                new = os.read(self._terminal, 4096)
            except OSError:
                new = b""
            assert new, f"the program ended without {text!r}: {self.text!r}"
            self.text += new.decode()
        self.text = self.text.partition(text)[2]

    def end(self) -> int:
        """Return the exit code."""
        until(self._has_ended, "the program ended")
        assert self._status is not None
        return os.waitstatus_to_exitcode(self._status)

    def hang_up(self) -> None:
        """Close the terminal under the program."""
        terminal, self._terminal = self._terminal, os.open(os.devnull, os.O_RDWR)
        os.close(terminal)

    def close(self) -> None:
        if not self._has_ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._terminal)

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None


@contextlib.contextmanager
def screen(command: Sequence[str], *, address: str, term: str = "dumb", **changes: str) -> Iterator[Screen]:
    settings = {"CONSUL_HTTP_ADDR": address, "PS1": "$ ", "TERM": term, "HISTFILE": "", **changes}
    shown = Screen(command, env=environ(**settings))
    try:
        yield shown
    finally:
        shown.close()


def locked(key: str, *command: str) -> list[str]:
    return [*PROGRAM, "lock", "-q", key, "--", *command]


def test_the_command_reads_the_terminal(address: str, key: str) -> None:
    with screen(
        locked(key, "sh", "-c", 'echo ready; read line; echo "got <$line>"'), address=address
    ) as shown:
        shown.wait_for("ready")
        shown.type(b"some words\n")
        shown.wait_for("got <some words>")
        assert shown.end() == 0


def test_ctrl_c_reaches_the_command(address: str, key: str, client: Client) -> None:
    script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.01; done"
    with screen(locked(key, "sh", "-c", script), address=address) as shown:
        shown.wait_for("ready")
        shown.type(CTRL_C)
        shown.wait_for("caught")
        assert shown.end() == 7
    assert Lock(client, key).holder() is None


def test_ctrl_c_ends_a_command_that_does_not_care_with_130(address: str, key: str) -> None:
    with screen(locked(key, "sh", "-c", "echo ready; exec sleep 60"), address=address) as shown:
        shown.wait_for("ready")
        shown.type(CTRL_C)
        assert shown.end() == 130


def test_ctrl_c_while_waiting_is_130(address: str, key: str, client: Client) -> None:
    with Lock(client, key).hold(), screen([*PROGRAM, "lock", key, "--", "true"], address=address) as shown:
        shown.wait_for("waiting for")
        shown.type(CTRL_C)
        assert shown.end() == 130


def test_an_interactive_program_gets_the_terminal(address: str, key: str) -> None:
    script = "import os, time\nwhile os.tcgetpgrp(0) != os.getpgrp(): time.sleep(0.01)\nprint('in front')"
    with screen(locked(key, sys.executable, "-c", script), address=address) as shown:
        shown.wait_for("in front")
        assert shown.end() == 0


def test_the_foreground_is_lent_and_taken_back_by_its_owner_only(address: str) -> None:
    script = """
import subprocess
from consul_coord.cli.terminal import Terminal
terminal = Terminal()
child, other = (subprocess.Popen(["sleep", "60"], process_group=0) for _ in range(2))
lend, back = terminal.lend, terminal.take_back
steps = [(back, child), (lend, child), (lend, child), (lend, other), (back, other), (back, child)]
print([step(group.pid) for step, group in [*steps, steps[0]]])
for process in (child, other):
    process.kill()
    process.wait()
"""
    with screen([sys.executable, "-c", script], address=address) as shown:
        shown.wait_for("[False, True, True, False, False, True, False]")
        assert shown.end() == 0


def test_without_a_terminal_there_is_nothing_to_lend() -> None:
    script = (
        "from consul_coord.cli.terminal import Terminal as T; t = T(); print(t.is_interactive, t.lend(1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        start_new_session=True,
        timeout=PATIENCE,
        check=True,
        text=True,
    )
    assert done.stdout.split() == ["False", "False"]


@pytest.fixture
def shell(address: str) -> Iterator[Screen]:
    """Yield an interactive shell with job control, ready for commands."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash, whose job control this is about")
    with screen([bash, "--norc", "--noprofile", "--noediting", "-i"], address=address) as shown:
        shown.type(b"stty -echo; echo sh''own\n")
        shown.wait_for("shown")
        yield shown


def command_line(key: str, script: str, *options: str) -> bytes:
    words = [*PROGRAM, "lock", "-q", key, *options, "--", "sh", "-c", f'"{script}"']
    return " ".join(words).encode() + b"\n"


def test_ctrl_z_suspends_and_fg_continues(shell: Screen, key: str) -> None:
    shell.type(command_line(key, "echo ready; read line; echo got $line; read line; echo got $line"))
    shell.wait_for("ready")
    shell.type(CTRL_Z)
    shell.wait_for("Stopped")
    shell.type(b"echo shell is back\n")
    shell.wait_for("shell is back")
    shell.type(b"fg\n")
    shell.wait_for("lock")
    shell.type(b"word\n")
    shell.type(b"another\n")
    shell.wait_for("got")
    shell.wait_for("got")
    shell.type(b"echo code $?\n")
    shell.wait_for("code 0")


@pytest.mark.slow
def test_a_command_whose_lock_was_lost_while_suspended_does_not_go_on(
    shell: Screen, key: str, client: Client
) -> None:
    shell.type(command_line(key, "echo ready; read line; echo went on", "--ttl", "1", "--lock-delay", "1"))
    shell.wait_for("ready")
    shell.type(CTRL_Z)
    shell.wait_for("Stopped")
    with Lock(client, key).hold(timeout=PATIENCE):
        shell.type(b"fg\n")
        shell.wait_for("the hold ended before the command")
        assert "went on" not in shell.text
        shell.type(b"echo code $?\n")
        shell.wait_for("code 76")


def test_ctrl_z_is_not_forgotten_when_the_command_is_just_getting_the_terminal(
    shell: Screen, key: str, tmp_path: Path
) -> None:
    # As if it had read before it got the terminal, and Ctrl-Z had come before it was continued.
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})\n"
        "os.kill(os.getpid(), signal.SIGTSTP)\n"
        "os.kill(os.getpid(), signal.SIGTTIN)\n"
        "print('went', 'on')\n",
        encoding="utf-8",
    )
    shell.type(" ".join([*PROGRAM, "lock", "-q", key, "--", sys.executable, str(program)]).encode() + b"\n")
    shell.wait_for("Stopped")
    shell.type(b"fg\n")
    shell.wait_for("went on")


def test_a_background_job_may_read_once_it_is_in_the_foreground(shell: Screen, key: str) -> None:
    line = command_line(key, "echo ready; read line; echo got $line").removesuffix(b"\n") + b" &\n"
    shell.type(line)
    shell.wait_for("ready")
    shell.type(b"wait %1 2>/dev/null; echo waited\n")
    shell.wait_for("waited")
    shell.type(b"fg\n")
    shell.wait_for("lock")
    shell.type(b"word\n")
    shell.wait_for("got")
