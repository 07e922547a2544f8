"""``--max-hold``: a command that goes on for longer is stopped, by every verb that runs one under a hold."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.cli.processes import PATIENCE, is_alive, until

if TYPE_CHECKING:
    from tests.cli.conftest import Start

STUCK = (
    "--json",
    "--max-hold",
    "800ms",
    "--",
    "sh",
    "-c",
    "echo $$; trap '' TERM; while :; do sleep 0.1; done",
)
"""It ignores TERM, too."""
VERBS = {
    "lock": ("lock", "{key}"),
    "semaphore": ("semaphore", "{key}", "--limit", "1"),
    "once": ("once", "{key}", "--slot", "1"),
    "elect": ("elect", "{key}", "--once"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_stuck_command_is_stopped_and_the_next_one_runs(start: Start, key: str, verb: str) -> None:
    arguments = [each.format(key=key) for each in VERBS[verb]]
    first = start(*arguments, *STUCK)
    pid = int(first.stdout.wait_for(str.isdigit, "process id"))
    began = time.monotonic()
    second = start(*arguments, "--", "true")
    assert first.end() == 76
    assert not is_alive(pid)
    assert second.end() == 0
    assert time.monotonic() - began < PATIENCE, "nobody waits for a lock-delay: the command has ended"
    until(lambda: not is_alive(pid), "the end of the command")


def test_a_command_that_ends_in_time_is_not_concerned(start: Start, key: str) -> None:
    assert start("lock", key, "--max-hold", "20", "--", "sh", "-c", "exit 3").end() == 3


@pytest.mark.parametrize("time_", ["0", "-1", "soon"])
def test_what_is_no_time_is_2(start: Start, key: str, time_: str) -> None:
    refused = start("lock", key, f"--max-hold={time_}", "--", "true")
    assert refused.end() == 2
    assert any("not a time" in line for line in refused.stderr.all())
