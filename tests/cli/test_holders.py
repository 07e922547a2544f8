"""``holders``: what is told of locks, elections, semaphores and other keys."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    LOCK_FLAGS,
    SEMAPHORE_FLAGS,
    Client,
    LeaderElection,
    Lock,
    ReadWriteLock,
    Semaphore,
    SessionSpec,
)
from tests.cli.processes import until

if TYPE_CHECKING:
    from tests.cli.conftest import Call, Start


def told(call: Call, prefix: str, *options: str, address: str | None = None) -> list[dict[str, Any]]:
    outcome = call("holders", prefix, "--json", *options, address=address)
    assert outcome.code == (0 if outcome.out else 1)
    return [json.loads(line) for line in outcome.out.splitlines()]


def waiter(client: Client, key: str) -> str:
    session = client.session.create(SessionSpec(lock_delay=0.0, allow_unbounded=True))
    assert client.kv.acquire(f"{key}/.wait/{session}", session, flags=LOCK_FLAGS)
    return session


def test_a_lock_with_its_holder_and_its_queue(call: Call, key: str, anywhere: str) -> None:
    spec = SessionSpec(name="nightly")
    with Client(address=anywhere, session=spec) as client, Lock(client, key, value="me").hold() as hold:
        waiting = [waiter(client, key) for _ in range(2)]
        (place,) = told(call, key, address=anywhere)
        node = client.agent.info().value.node
        for session in waiting:
            client.session.destroy(session)
    assert place == {
        "kind": "lock",
        "key": key,
        "holders": [
            {
                "key": key,
                "session": hold.session,
                "value": "me",
                "fence": hold.fence,
                "node": node,
                "session_name": "nightly",
            }
        ],
        "waiters": [
            {
                "position": position,
                "key": f"{key}/.wait/{session}",
                "session": session,
                "value": "",
                "node": node,
                "session_name": "",
            }
            for position, session in enumerate(waiting, start=1)
        ],
        "limit": 1,
        "problem": "",
    }


def test_a_semaphore_with_its_holders_the_longest_first(call: Call, key: str, anywhere: str) -> None:
    with Client(address=anywhere) as client:
        semaphore = Semaphore(client, key, 3, value="slot")
        with semaphore.hold() as first, semaphore.hold() as second:
            (place,) = told(call, key, address=anywhere)
            dead = client.session.create(SessionSpec(behavior="delete", lock_delay=0.0, allow_unbounded=True))
            assert client.kv.acquire(f"{key}/{dead}", dead, flags=SEMAPHORE_FLAGS)
            assert told(call, key, address=anywhere) == [place], "who is not in the record holds nothing"
            client.session.destroy(dead)
        assert (place["kind"], place["key"], place["limit"], place["waiters"]) == ("semaphore", key, 3, [])
        assert [(each["session"], each["fence"], each["value"]) for each in place["holders"]] == [
            (first.session, first.fence, "slot"),
            (second.session, second.fence, "slot"),
        ]
        assert told(call, key, address=anywhere) == []
        assert semaphore.destroy()


def test_a_read_write_lock_with_those_who_are_in(call: Call, key: str, client: Client) -> None:
    lock = ReadWriteLock(client, key, value="me")
    with lock.write.hold() as writer:
        (place,) = told(call, key)
        assert (place["kind"], place["key"], place["waiters"]) == ("writing", key, [])
        assert [(each["session"], each["fence"], each["value"]) for each in place["holders"]] == [
            (writer.session, writer.fence, "me")
        ]
    with lock.read.hold() as reader:
        (place,) = told(call, key)
        assert (place["kind"], [each["session"] for each in place["holders"]]) == (
            "reading",
            [reader.session],
        )
    assert told(call, key) == []


def test_an_election_is_shown_as_one_from_its_first_moment(call: Call, key: str, client: Client) -> None:
    with LeaderElection(client, key, value="one") as election:
        leadership = election.wait_for_leadership(timeout=10)
        (place,) = told(call, key)
    assert place["kind"] == "election"
    (leader,) = place["holders"]
    assert (leader["value"], leader["fence"]) == ("one", leadership.term)
    until(lambda: client.kv.keys(key + "/").value == (), "the note is gone with the leader")


def test_an_election_whose_leader_has_proclaimed_keeps_its_term(call: Call, key: str, client: Client) -> None:
    with LeaderElection(client, key, value="one") as election:
        leadership = election.wait_for_leadership(timeout=10)
        election.proclaim("two")
        (place,) = told(call, key)
    assert place["kind"] == "election"
    (leader,) = place["holders"]
    assert (leader["value"], leader["fence"]) == ("two", leadership.term)


def test_a_key_that_is_held_without_a_locks_flags_is_shown_as_it_is(
    call: Call, key: str, client: Client
) -> None:
    session = client.session.create()
    client.kv.acquire(key, session, value=b"\xff")
    (place,) = told(call, key)
    assert place["kind"] == "key"
    assert place["holders"][0]["value_base64"] == "/w=="
    client.kv.release(key, session)
    assert told(call, key) == []
    client.session.destroy(session)


def test_what_is_free_is_shown_when_asked_for(call: Call, key: str, client: Client) -> None:
    with Lock(client, key):
        pass
    client.kv.put(f"{key}/setting", b"no lock")
    assert told(call, key) == []
    assert [(place["key"], place["holders"]) for place in told(call, key, "--all")] == [(key, [])]


def test_a_free_lock_that_somebody_waits_for_is_in_use(call: Call, key: str, client: Client) -> None:
    session = waiter(client, key)
    (place,) = told(call, key)
    assert (place["key"], [each["session"] for each in place["waiters"]]) == (key, [session])
    client.session.destroy(session)


def test_a_record_that_cannot_be_read_is_told(call: Call, key: str, client: Client) -> None:
    client.kv.put(f"{key}/.lock", b"{", flags=SEMAPHORE_FLAGS)
    (place,) = told(call, key)
    assert f"{key}/.lock" in place["problem"]
    assert f"{key}/.lock" in call("holders", key).out


def test_text_has_one_line_for_each_holder_and_lets_nothing_steer_the_terminal(
    call: Call, key: str, client: Client
) -> None:
    with Lock(client, f"{key}/a", value="\x1b[31mred\n").hold() as hold, Semaphore(client, f"{key}/b", 2):
        outcome = call("holders", key)
    head, lock, slot = outcome.out.splitlines()
    assert head.split() == ["KIND", "KEY", "PLACE", "WHO", "SESSION", "NODE", "FENCE"]
    assert lock.split() == ["lock", f"{key}/a", "holds", "[31mred", hold.session, "node1", str(hold.fence)]
    assert slot.startswith("semaphore 1/2")
    assert "\x1b" not in outcome.out


def test_text_lists_who_waits_by_place_from_1(call: Call, key: str, client: Client) -> None:
    with Lock(client, key, value="me").hold():
        waiting = [waiter(client, key) for _ in range(2)]
        _, holds, *queue = [line.split() for line in call("holders", key).out.splitlines()]
        for session in waiting:
            client.session.destroy(session)
    assert holds[2:4] == ["holds", "me"]
    assert [(line[2], line[4]) for line in queue] == [("1", waiting[0]), ("2", waiting[1])]


def test_an_election_of_the_command_is_shown_as_one(call: Call, key: str, start: Start) -> None:
    candidates = [start("elect", key, "--value", name, "--json", "--", "cat") for name in ("one", "two")]
    until(
        lambda: [(len(one["holders"]), len(one["waiters"])) for one in told(call, key)] == [(1, 1)],
        "one leads, one waits",
    )
    (place,) = told(call, key)
    assert place["kind"] == "election"
    assert {each["value"] for each in place["holders"] + place["waiters"]} == {"one", "two"}
    assert " leads " in call("holders", key).out
    for candidate in candidates:
        candidate.send(signal.SIGTERM)


def test_nothing_held_is_said_and_is_1(call: Call, key: str) -> None:
    outcome = call("holders", key)
    assert (outcome.code, outcome.out) == (1, "")
    assert key in outcome.err


@pytest.mark.parametrize("prefix", ["/x", "a//b"])
def test_a_prefix_that_consul_would_change_is_2(call: Call, prefix: str) -> None:
    assert call("holders", prefix).code == 2
