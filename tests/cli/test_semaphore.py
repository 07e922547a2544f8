"""``semaphore``: how many run at once, what refuses, and what a loss does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Semaphore
from tests.cli.processes import is_alive

if TYPE_CHECKING:
    from tests.cli.conftest import Start


def test_as_many_run_as_there_are_slots(start: Start, key: str, anywhere: str) -> None:
    options = ("semaphore", key, "--limit", "2", "--json", "--value", "backup", "--")
    running = [start(*options, "cat", address=anywhere) for _ in range(2)]
    acquired = [command.event("acquired") for command in running]
    with Client(address=anywhere) as client:
        holders = Semaphore(client, key, 2).holders()
        assert {holder.session for holder in holders} == {event["session"] for event in acquired}
        assert {holder.value for holder in holders} == {b"backup"}
        third = start(*options, "sh", "-c", "echo $CONSUL_LOCK_KEY $CONSUL_LOCK_FENCE", address=anywhere)
        assert third.event("waiting")["blocker"]["kind"] == "held"
        running[0].feed("")
        assert running[0].end() == 0
        assert third.end() == 0
        own = third.event("acquired")
        assert third.stdout.all() == [f"{key}/{own['session']} {own['fence']}"]
        assert own["fence"] > max(event["fence"] for event in acquired)
        running[1].feed("")
        assert running[1].end() == 0
        assert Semaphore(client, key, 2).destroy()


@pytest.mark.parametrize(("options", "code"), [((), 75), (("--not-acquired-code", "0"), 0)])
def test_not_acquired_is_75_or_as_asked(
    start: Start, key: str, client: Client, options: tuple[str, ...], code: int
) -> None:
    with Semaphore(client, key, 1):
        refused = start("semaphore", key, "--limit", "1", "--timeout", "0", *options, "--", "echo", "ran")
        assert refused.end() == code
        assert refused.stdout.all() == []


def test_another_limit_is_65_and_told(start: Start, key: str, client: Client) -> None:
    with Semaphore(client, key, 2):
        conflict = start("semaphore", key, "--limit", "3", "--", "true")
        assert conflict.end() == 65
        told = " ".join(conflict.stderr.all())
        assert "2" in told
        assert "3" in told


@pytest.mark.slow
def test_a_lost_slot_stops_the_command(start: Start, key: str, client: Client) -> None:
    script = "trap '' TERM; echo $$; while :; do sleep 0.01; done"
    command = start("semaphore", key, "--limit", "1", "--json", "--", "sh", "-c", script)
    pid = int(command.stdout.wait_for(str.isdigit, "process id"))
    client.session.destroy(command.event("acquired")["session"])
    assert command.end() == 76
    assert not is_alive(pid)
