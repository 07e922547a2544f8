"""The page on ``consul lock``: the commands of its table, each beside the other on a real agent."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Lock, Semaphore
from tests.integrations import pages

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "migrating-from-consul-lock"
ROWS = re.findall(r"^\| `(consul lock .*?)` \| `(consul-coord .*?)` \|$", pages.text_of(PAGE), re.MULTILINE)
PATIENCE = 90.0


def theirs(row: int, binary: Path, address: str, *options: str) -> list[str]:
    _, verb, *rest = shlex.split(ROWS[row][0])
    return [str(binary), verb, f"-http-addr={address}", *options, *rest[:-1], "true"]


def ours(row: int, address: str, *options: str) -> list[str]:
    before, _, _ = ROWS[row][1].partition(" -- ")
    words = [*shlex.split(before)[1:], "--address", address, *options]
    return [sys.executable, "-m", "consul_coord", *words, "--", "sh", "-c", "echo ran; exit 3"]


def ends(command: list[str], *, code: int) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == code, f"{done.stdout}{done.stderr}"


def test_the_commands_are_found() -> None:
    assert len(ROWS) == 2


@pytest.mark.slow
def test_they_lock_the_same_key(consul_binary: Path, agent_address: str) -> None:
    with Client(address=agent_address) as client:
        with Lock(client, "jobs/archive/.lock").hold(timeout=PATIENCE):
            ends(theirs(0, consul_binary, agent_address, "-timeout=500ms"), code=1)
            ends(ours(0, agent_address, "--timeout", "3"), code=75)
            ends(ours(0, agent_address, "--timeout", "0", "--not-acquired-code", "9"), code=9)
        ends(ours(0, agent_address, "--timeout", "30"), code=3)
        ends(theirs(0, consul_binary, agent_address), code=0)


@pytest.mark.slow
def test_they_share_the_slots(consul_binary: Path, agent_address: str) -> None:
    with Client(address=agent_address) as client:
        slots = Semaphore(client, "jobs/slots", 3)
        permits = [slots.acquire(timeout=PATIENCE) for _ in range(3)]
        ends(theirs(1, consul_binary, agent_address, "-timeout=500ms"), code=1)
        ends(ours(1, agent_address, "--timeout", "3"), code=75)
        permits.pop().release()
        ends(theirs(1, consul_binary, agent_address), code=0)
        ends(ours(1, agent_address, "--timeout", "30"), code=3)
        for permit in permits:
            permit.release()


@pytest.mark.parametrize("option", ["--timeout", "--value", "--quiet", "--token-file", "--not-acquired-code"])
def test_the_options_of_the_page_exist(option: str) -> None:
    assert option in pages.text_of(PAGE)
    shown = subprocess.run(
        [sys.executable, "-m", "consul_coord", "lock", "--help"], capture_output=True, text=True, check=True
    )
    assert option in shown.stdout


@pytest.mark.parametrize(
    "option", ["-timeout", "-name", "-child-exit-code", "-monitor-retry", "-pass-stdin", "-try"]
)
def test_their_options_of_the_page_exist(option: str, consul_binary: Path) -> None:
    shown = subprocess.run([consul_binary, "lock", "-help"], capture_output=True, text=True, check=False)
    assert option in pages.text_of(PAGE)
    assert option in shown.stdout


def test_stdin_is_passed_on(agent_address: str) -> None:
    command = [*ours(0, agent_address)[:-3], "cat"]
    done = subprocess.run(command, input=b"through", capture_output=True, timeout=PATIENCE, check=True)
    assert done.stdout == b"through"
