"""``elect`` and ``leader``: who runs when, what ends a command, and what followers are shown."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import LOCK_FLAGS, Client, Lock, leader
from consul_coord.cli.elect import ASIDE, _hand_over
from consul_coord.cli.output import Reporter
from tests.cli.processes import until
from tests.support.proxy import Fault, FaultProxy, Lose

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Start
    from tests.cli.processes import Cli

FAST = ("--ttl", "1", "--lock-delay", "1")
SHOW_AND_WAIT = 'echo "$CONSUL_LOCK_HELD $CONSUL_LOCK_KEY $CONSUL_LOCK_FENCE"; exec sleep 600'


@pytest.fixture(params=["address", pytest.param("agent_address", marks=pytest.mark.agent)])
def anywhere(request: pytest.FixtureRequest) -> str:
    """Return the address of each kind of server in turn."""
    found: str = request.getfixturevalue(request.param)
    return found


def test_one_runs_and_the_next_follows_its_end(start: Start, key: str, anywhere: str) -> None:
    first = start("elect", key, "--value", "one", "--json", "--", "sh", "-c", SHOW_AND_WAIT, address=anywhere)
    elected = first.event("elected")
    assert first.stdout.wait_for(bool, "line") == f"true {key} {elected['term']}"
    second = start(
        "elect", key, "--value", "two", "--json", "--", "sh", "-c", SHOW_AND_WAIT, address=anywhere
    )
    second.event("waiting")
    with Client(address=anywhere) as client:
        found = leader(client, key)
        assert found is not None
        assert (found.text, found.term) == ("one", elected["term"])
        first.send(signal.SIGTERM)
        assert first.end() == 128 + signal.SIGTERM
        assert second.event("elected")["term"] > elected["term"]
        second.send(signal.SIGTERM)
        assert second.end() == 128 + signal.SIGTERM
        assert leader(client, key) is None


def test_the_commands_own_end_is_ours(start: Start, key: str) -> None:
    assert start("elect", key, "--", "sh", "-c", "exit 7").end() == 7
    assert start("elect", key, "--", "/no/such/command").end() == 127


def test_after_a_loss_the_command_is_stopped_and_run_again(start: Start, key: str, client: Client) -> None:
    command = start("elect", key, *FAST, "--json", "--", "sh", "-c", SHOW_AND_WAIT)
    first = command.event("elected")
    said = [f"true {key} {first['term']}"]
    command.stdout.wait_for(lambda line: line == said[0], "what the first command says")
    client.session.destroy(first["session"])
    command.event("lost_leadership")
    again = command.event("elected")
    assert again["term"] > first["term"]
    said.append(f"true {key} {again['term']}")
    command.stdout.wait_for(lambda line: line == said[1], "what the second command says")
    command.send(signal.SIGINT)
    assert command.end() == 128 + signal.SIGINT
    assert command.stdout.all() == said


def test_once_ends_at_the_loss(start: Start, key: str, client: Client) -> None:
    command = start("elect", key, *FAST, "--once", "--json", "--", "sleep", "600")
    elected = command.event("elected")
    command.event("started")
    client.session.destroy(elected["session"])
    assert command.end() == 76


def test_a_signal_ends_the_wait(start: Start, key: str, client: Client) -> None:
    session = client.session.create()
    assert client.kv.acquire(key, session, flags=LOCK_FLAGS)
    command = start("elect", key, "--json", "--", "true")
    command.event("waiting")
    command.send(signal.SIGTERM)
    assert command.end() == 128 + signal.SIGTERM
    until(lambda: client.kv.keys(key + "/").value == (), "the queue is empty")
    client.session.destroy(session)


def test_a_key_used_for_something_else_is_refused(start: Start, key: str, client: Client) -> None:
    client.kv.put(key, b"settings")
    command = start("elect", key, "--", "true")
    assert command.end() == 65
    (line,) = command.stderr.all()
    assert line.startswith(f"consul-coord: '{key}' is not a lock: ")
    told = start("elect", key, "--json", "--", "true").events()
    assert [event["event"] for event in told if "is not a lock" in str(event)] == ["failed", "error"]


def test_the_leader_is_shown(start: Start, key: str, anywhere: str, tmp_path: Path) -> None:
    nobody = start("leader", key, address=anywhere)
    assert nobody.end() == 1
    assert nobody.stdout.all() == [f"{key}: nobody leads"]
    watching = start("leader", key, "--watch", "--json", address=anywhere)
    assert json.loads(watching.stdout.wait_for(bool, "line")) == {"key": key, "leader": None}
    leading = start("elect", key, "--value", "me", "--json", "--", "sleep", "600", address=anywhere)
    elected = leading.event("elected")
    shown = json.loads(watching.stdout.wait_for(bool, "line"))["leader"]
    assert (shown["value"], shown["term"], shown["session"]) == ("me", elected["term"], elected["session"])
    command = start("leader", key, address=anywhere)
    assert command.end() == 0
    assert command.stdout.all() == [
        f"{key}: me (term {elected['term']}, node {shown['node']}, session {elected['session']})"
    ]
    leading.send(signal.SIGTERM)
    leading.end()
    assert json.loads(watching.stdout.wait_for(bool, "line")) == {"key": key, "leader": None}
    watching.send(signal.SIGINT)
    assert watching.end() == 128 + signal.SIGINT


def test_values_that_are_no_text_are_shown_all_the_same(start: Start, key: str, client: Client) -> None:
    session = client.session.create()
    assert client.kv.acquire(key, session, value=b"\xff\x00")
    command = start("leader", key, "--json")
    assert command.end() == 0
    (line,) = command.stdout.all()
    assert json.loads(line)["leader"]["value_base64"] == "/wA="
    plain = start("leader", key)
    assert plain.end() == 0
    assert "\\xff" in plain.stdout.all()[0]
    client.session.destroy(session)


def test_a_value_steers_no_terminal(start: Start, key: str, client: Client) -> None:
    session = client.session.create()
    assert client.kv.acquire(key, session, value=b"me\x1b]0;title\x07\nnobody leads")
    command = start("leader", key)
    assert command.end() == 0
    (line,) = command.stdout.all()
    assert line.isprintable()
    assert line.startswith(f"{key}: me ")
    client.session.destroy(session)


def test_watching_without_an_agent_says_so(start: Start, key: str) -> None:
    watching = start("leader", key, "--watch", address="127.0.0.1:1")
    watching.stderr.wait_for(lambda line: "127.0.0.1:1" in line and "retrying" in line, "word of it")
    watching.send(signal.SIGINT)
    assert watching.end() == 130


# -- handing over -------------------------------------------------------------------------------------------

STEADY = "trap 'echo ending; exit 0' TERM; echo leading; while :; do sleep 0.01; done"


def leading(start: Start, key: str, *options: str) -> Cli:
    """Return a candidate that leads."""
    leader = start("elect", key, "--json", *options, "--", "sh", "-c", STEADY)
    leader.stdout.wait_for("leading".__eq__, "word of leading")
    return leader


@pytest.mark.slow
def test_a_signal_hands_over_and_the_leader_stands_again(start: Start, key: str) -> None:
    first = leading(start, key, "--drain-on", "USR1")
    second = start("elect", key, "--json", "--", "sh", "-c", STEADY)
    second.event("waiting")
    first.send(signal.SIGUSR1)
    second.stdout.wait_for("leading".__eq__, "word of leading")
    first.event("handed_over")
    assert first.stdout.seen == ["leading", "ending"]
    second.send(signal.SIGTERM)
    first.stdout.wait_for("leading".__eq__, "word of leading again")


class Resigning:
    """An election whose leader resigns."""

    pause = 0.0

    def resign(self, *, pause: float = 0.0) -> None:
        self.pause = pause


def test_a_leader_that_has_handed_over_stands_aside_for_those_that_come_a_moment_later() -> None:
    election: Any = Resigning()
    _hand_over(election, None, reporter=Reporter(quiet=True))
    assert election.pause == ASIDE > 1.0


def test_with_once_a_drained_leader_ends_with_0(start: Start, key: str) -> None:
    leader = leading(start, key, "--drain-on", "HUP", "--once")
    leader.send(signal.SIGHUP)
    assert leader.end() == 0
    assert leader.stdout.all() == ["leading", "ending"]


def test_a_command_that_does_not_end_in_time_is_killed(start: Start, key: str) -> None:
    script = "trap '' TERM; echo leading; while :; do sleep 0.01; done"
    options = ("--drain-on", "USR2", "--drain-timeout", "300ms", "--once")
    leader = start("elect", key, *options, "--", "sh", "-c", script)
    leader.stdout.wait_for("leading".__eq__, "word of leading")
    leader.send(signal.SIGUSR2)
    assert leader.end() == 0


def test_transfer_makes_the_named_candidate_lead(start: Start, call: Call, key: str, client: Client) -> None:
    leader = leading(start, key, "--drain-timeout", "10s")
    others = [start("elect", key, "--json", "--", "sh", "-c", STEADY) for _ in range(2)]
    lock = Lock(client, key)
    until(lambda: len(lock.contenders()) == 2, "two candidates wait")
    heir = lock.contenders()[1].session
    outcome = call("transfer", key, heir[:8])
    assert outcome.code == 0, outcome.err
    holder = lock.holder()
    assert holder is not None
    assert holder.session == heir
    leader.event("handed_over")
    assert client.kv.get(f"{key}/.wait/handover").value is None
    for each in (leader, *others):
        each.send(signal.SIGTERM)


def test_a_transfer_survives_a_hiccup_of_the_leaders_agent(
    start: Start, call: Call, key: str, client: Client, address: str
) -> None:
    with FaultProxy(address) as proxy:
        leader = start("elect", key, "--json", "--", "sh", "-c", STEADY, address=proxy.address)
        leader.stdout.wait_for("leading".__eq__, "word of leading")
        start("elect", key, "--json", "--", "sh", "-c", STEADY)
        until(lambda: bool(Lock(client, key).contenders()), "a candidate waits")
        proxy.add(Fault(lose=Lose.AGENT, method="DELETE", path=f"/v1/kv/{key}/.wait/handover"))
        outcome = call("transfer", key, Lock(client, key).contenders()[0].session, "--timeout", "30s")
        assert outcome.code == 0, outcome.err
        leader.send(signal.SIGTERM)
        leader.end()


def test_transfer_to_nobody_changes_nothing(start: Start, call: Call, key: str) -> None:
    assert call("transfer", key, "0" * 8).code == 1
    leader = leading(start, key)
    assert call("transfer", key, "0" * 8).code == 1
    assert leader.stdout.seen == ["leading"]


def test_a_leader_that_does_not_listen_goes_on_and_the_request_is_taken_back(
    start: Start, call: Call, key: str, client: Client
) -> None:
    with Lock(client, key).hold() as hold:
        candidate = start("elect", key, "--json", "--", "true")
        candidate.event("waiting")
        until(lambda: bool(Lock(client, key).contenders()), "a candidate waits")
        heir = Lock(client, key).contenders()[0].session
        assert call("transfer", key, heir, "--timeout", "500ms").code == 1
        assert hold.is_held
    assert client.kv.get(f"{key}/.wait/handover").value is None
    assert candidate.end() == 0
