"""What a lock sends when all is well, and what it does about replies that are lost, late, forged or garbled.

Whatever happens to single replies: in the end the log shows the clean-up, and Consul has nothing locked that
nobody holds.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Lock
from consul_coord.errors import (
    AcquireTimeout,
    DecodeError,
    KeyConflict,
    ServerError,
    TransportError,
    ValueTooLarge,
)
from consul_coord.models import LOCK_FLAGS, SEMAPHORE_FLAGS, HoldState, ReleaseOutcome, SessionSpec
from tests.support.sites import never
from tests.wire.agents import HANGS_UP, Reply, said
from tests.wire.relay import barges, creates_session, does, joins, takes, unlocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.wire.agents import ScriptedAgent, Seen
    from tests.wire.clients import Make
    from tests.wire.relay import RelayedConsul

pytest_plugins = ["tests.wire.scripted"]
pytestmark = pytest.mark.timeout(20)

KEY = "jobs/nightly"
QUEUE = f"{KEY}/.wait/"
LARGEST_TXN = 512 * 1024
PATIENT = 5.0
"""Enough time for an acquire that is to succeed, in seconds."""

FAILURES = {
    "lost": HANGS_UP,
    "cut short": Reply(200, b'{"Results":', missing=40),
    "500": said(500, "rpc error making call: EOF"),
}
"""The caller can't know whether the request was carried out."""
GARBAGE = {
    "page": Reply(200, b"<html>Sign in</html>"),
    "not JSON": Reply(200, b'{"Results":'),
    "no results": Reply(200, b'{"Results":[],"Errors":null}'),
    "another's results": Reply(
        200, b'{"Results":[{"KV":{"Key":"x","CreateIndex":1,"ModifyIndex":1}}],"Errors":null}'
    ),
}
"""Repeating these would not help: the call fails."""


LOOK = f"GET /v1/kv/{KEY}"
BARGE = "check-not-exists lock get-tree"


def script(agent: ScriptedAgent) -> list[str]:
    """Return what was asked since a session was made, one word or line a request."""
    return [
        " ".join(map(str, seen.verbs)) or seen.line
        for seen in agent.requests
        if not (creates_session(seen) or seen.is_blocking)
    ]


@pytest.fixture
def rival(consul: RelayedConsul) -> Iterator[Client]:
    """Return another client, which asks Consul directly."""
    with Client(address=consul.address) as client:
        yield client


# --- all is well


def test_a_warm_pair_is_two_requests(make: Make, consul: RelayedConsul, scripted: ScriptedAgent) -> None:
    lock = make.lock(make.client(), KEY, value="it's me")
    lock.acquire().release()
    scripted.forget()
    hold = lock.acquire(timeout=PATIENT)
    assert hold.release() is ReleaseOutcome.RELEASED
    acquire, release = scripted.requests
    own = f'"Flags":{LOCK_FLAGS},"Session":"{hold.session}"'
    value = '"Value":"aXQncyBtZQ=="'
    assert (acquire.line, release.line) == ("PUT /v1/txn", "PUT /v1/txn")
    assert acquire.body.decode() == (
        f'[{{"KV":{{"Verb":"check-not-exists","Key":"{QUEUE}{hold.session}"}}}},'
        f'{{"KV":{{"Verb":"lock","Key":"{KEY}",{value},{own}}}}},'
        f'{{"KV":{{"Verb":"get-tree","Key":"{QUEUE}"}}}}]'
    )
    assert release.body.decode() == (
        f'[{{"KV":{{"Verb":"check-index","Key":"{KEY}","Index":{hold.fence}}}}},'
        f'{{"KV":{{"Verb":"unlock","Key":"{KEY}",{value},{own}}}}}]'
    )
    for seen in (acquire, release):
        assert seen.headers["content-length"] == str(len(seen.body))


def test_a_cold_acquire_makes_a_session_and_looks_first(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent
) -> None:
    hold = make.lock(make.client(session=SessionSpec(ttl=20, name="me")), KEY).acquire(timeout=PATIENT)
    made = scripted.requests[0]
    sent = json.loads(made.body)
    assert re.fullmatch(r"me #[0-9a-f]{12}-1", sent.pop("Name"))
    assert (made.line, sent) == (
        "PUT /v1/session/create",
        {"Behavior": "release", "TTL": "20s", "NodeChecks": [], "ServiceChecks": []},
    )
    assert script(scripted) == [LOOK, BARGE]
    assert consul.locked() == {KEY: hold.session}
    assert hold.fence == consul.server.state.kv[KEY].modify_index


# --- replies to the acquire


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_barge_without_an_answer(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, failure: str, applied: bool
) -> None:
    """A look tells whether the key is ours; the request itself is not sent again."""
    consul.follow(consul.spoil(barges, FAILURES[failure], applied=applied))
    hold = make.lock(make.client(), KEY).acquire(timeout=PATIENT)
    assert consul.locked() == {KEY: hold.session}
    assert hold.fence == consul.server.state.kv[KEY].modify_index
    assert hold.state is HoldState.HELD
    assert script(scripted) == [
        *(LOOK, BARGE),
        *(
            (LOOK, "check-session delete")
            if applied
            else (LOOK, "lock get get-tree", "lock get-tree", "check-index lock delete")
        ),
    ]
    assert hold.release() is ReleaseOutcome.RELEASED
    assert consul.locked() == {}


def test_a_barge_that_is_refused_for_now(make: Make, consul: RelayedConsul, scripted: ScriptedAgent) -> None:
    consul.follow(consul.spoil(barges, said(429), applied=False))
    client = make.client()
    hold = make.lock(client, KEY).acquire(timeout=PATIENT)
    assert consul.locked() == {KEY: hold.session}
    assert client.pending_cleanup == 0


def test_closing_beside_other_clean_up_destroys_the_session_once(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent
) -> None:
    """The background looks for the leftovers of an unanswered request meanwhile."""
    consul.follow(consul.spoil(barges, HANGS_UP, applied=False))
    client = make.client()
    make.lock(client, KEY).acquire(timeout=PATIENT).release()
    assert client.pending_cleanup >= 1
    client.close()
    never(lambda: sum("/destroy/" in line for line in scripted.lines) != 1, within=0.2)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_garbled_grant_is_given_back(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, garbage: str
) -> None:
    consul.follow(consul.spoil(barges, GARBAGE[garbage]))
    client = make.client()
    with pytest.raises(DecodeError, match="PUT /v1/txn"):
        make.lock(client, KEY).acquire(timeout=PATIENT)
    assert consul.settles({})
    (session,) = consul.server.state.sessions
    assert in_order(
        script(scripted)[2:],
        f"GET /v1/kv/{QUEUE}{session}?consistent",
        f"GET /v1/kv/{KEY}?consistent",
        "check-index unlock",
    )
    assert client.pending_cleanup >= 1, "a late copy of the request may come yet"


@pytest.mark.parametrize("failure", FAILURES)
def test_one_try_without_an_answer(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, failure: str
) -> None:
    consul.follow(consul.spoil(barges, FAILURES[failure]))
    with pytest.raises((TransportError, ServerError), match="PUT /v1/txn"):
        make.lock(make.client(), KEY).try_acquire()
    assert consul.settles({})
    assert "check-index unlock" in "\n".join(script(scripted))


def in_order(lines: list[str], *wanted: str) -> bool:
    """Return whether all of these are among the lines, one after the other."""
    left = iter(lines)
    return all(any(line.startswith(each) for line in left) for each in wanted)


# --- replies in the queue


@pytest.mark.parametrize(("failure", "applied"), [("lost", True), ("lost", False), ("500", True)])
def test_a_join_without_an_answer_keeps_one_place(
    make: Make, consul: RelayedConsul, rival: Client, failure: str, applied: bool
) -> None:
    held = Lock(rival, KEY).acquire()
    consul.follow(consul.spoil(joins, FAILURES[failure], applied=applied))
    with pytest.raises(AcquireTimeout) as raised:
        make.lock(make.client(), KEY).acquire(timeout=1.0)
    assert (raised.value.blocker.kind, raised.value.blocker.session) == ("held", held.session)
    assert consul.settles({KEY: held.session})


def test_giving_up_shows_in_the_log(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, rival: Client
) -> None:
    held = Lock(rival, KEY).acquire()
    with pytest.raises(AcquireTimeout):
        make.lock(make.client(), KEY).acquire(timeout=1.0)  # long enough to join on a busy machine
    session = next(name for name in consul.server.state.sessions if name != held.session)
    assert consul.settles({KEY: held.session})
    scripted.wait_for(lambda seen: seen.line == f"GET /v1/kv/{KEY}?consistent")
    assert in_order(
        script(scripted),
        f"GET /v1/kv/{QUEUE}{session}?consistent",
        f"DELETE /v1/kv/{QUEUE}{session}?cas=",
        f"GET /v1/kv/{KEY}?consistent",
    )


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_garbled_join_leaves_no_contender(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, rival: Client, garbage: str
) -> None:
    held = Lock(rival, KEY).acquire()
    consul.follow(consul.spoil(joins, GARBAGE[garbage]))
    with pytest.raises(DecodeError):
        make.lock(make.client(), KEY).acquire(timeout=PATIENT)
    assert consul.settles({KEY: held.session})
    assert in_order(script(scripted), f"GET /v1/kv/{QUEUE}", f"DELETE /v1/kv/{QUEUE}")


@pytest.mark.parametrize(("failure", "applied"), [("lost", True), ("lost", False), ("500", True)])
def test_a_take_without_an_answer(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, failure: str, applied: bool
) -> None:
    """Nobody holds the key, and the lock is fair: it joins, and takes as the head."""
    consul.follow(consul.spoil(takes, FAILURES[failure], applied=applied))
    hold = make.lock(make.client(), KEY, fair=True).acquire(timeout=PATIENT)
    assert script(scripted)[5:] == (
        ["get get-tree", "check-session delete"]
        if applied
        else ["get get-tree", "get-tree", "check-index lock delete"]
    )
    assert consul.locked() == {KEY: hold.session}
    assert hold.fence == consul.server.state.kv[KEY].modify_index


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_garbled_take_is_given_back(make: Make, consul: RelayedConsul, garbage: str) -> None:
    consul.follow(consul.spoil(takes, GARBAGE[garbage]))
    with pytest.raises(DecodeError):
        make.lock(make.client(), KEY, fair=True).acquire(timeout=PATIENT)
    assert consul.settles({})


def test_an_agent_that_fails_all_along_is_cleaned_up_after(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent
) -> None:
    """The barge is carried out, and from then on nothing sensible is answered, to the clean-up neither."""
    failing = [True]

    def down(_: Seen) -> Reply | None:
        return said(500, "No cluster leader") if failing and consul.locked() else None

    client = make.client()
    make.lock(client, KEY).acquire(timeout=PATIENT).release()
    consul.follow(consul.spoil(barges, HANGS_UP), down)
    with pytest.raises(AcquireTimeout) as raised:
        make.lock(client, KEY).acquire(timeout=0.6)
    assert raised.value.blocker.kind == "unreachable"
    assert "No cluster leader" in str(raised.value)
    assert consul.locked() != {}
    assert client.pending_cleanup > 0
    failing.clear()
    assert consul.settles({})


# --- what is no lock


@pytest.mark.parametrize("flags", [0, 1, SEMAPHORE_FLAGS])
def test_a_key_with_other_flags_is_not_touched(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, rival: Client, flags: int
) -> None:
    rival.kv.put(KEY, b"precious", flags=flags)
    before = consul.server.state.kv
    lock = make.lock(make.client(), KEY)
    for timeout in (0, PATIENT):
        with pytest.raises(KeyConflict) as raised:
            lock.acquire(timeout=timeout)
        assert raised.value.flags == flags
        named = "a semaphore's record" if flags == SEMAPHORE_FLAGS else hex(flags)
        assert named in str(raised.value)
    assert script(scripted) == [LOOK] * 2
    assert consul.server.state.kv == before


# --- replies to the release


@pytest.mark.parametrize(("failure", "applied"), [("lost", True), ("lost", False), ("500", True)])
def test_a_release_without_an_answer_is_repeated(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, failure: str, applied: bool
) -> None:
    hold = make.lock(make.client(), KEY).acquire(timeout=PATIENT)
    scripted.forget()
    scripted.serves_trials = True
    consul.follow(consul.spoil(unlocks, FAILURES[failure], applied=applied, times=2))
    assert hold.release() is ReleaseOutcome.RELEASED
    unlock = "check-index unlock"
    found = [f"GET /v1/kv/{KEY}?consistent"] if applied else []
    assert script(scripted) == [unlock, unlock, unlock, *found]
    assert len({seen.body for seen in scripted.requests[:3]}) == 1
    assert consul.locked() == {}


@pytest.mark.parametrize("applied", [True, False])
def test_a_garbled_release_is_left_to_the_background(
    make: Make, consul: RelayedConsul, applied: bool
) -> None:
    hold = make.lock(make.client(), KEY).acquire(timeout=PATIENT)
    consul.follow(consul.spoil(unlocks, GARBAGE["page"], applied=applied))
    assert hold.release() is ReleaseOutcome.UNKNOWN
    assert consul.settles({})


def test_a_release_of_what_another_took_away_says_so(
    make: Make, consul: RelayedConsul, rival: Client, scripted: ScriptedAgent
) -> None:
    hold = make.lock(make.client(), KEY).acquire(timeout=PATIENT)
    rival.kv.delete(KEY)
    theirs = Lock(rival, KEY).acquire(timeout=PATIENT)
    assert hold.release() is ReleaseOutcome.ALREADY_LOST
    assert consul.locked() == {KEY: theirs.session}


def test_a_value_that_could_not_be_locked_or_unlocked_is_refused_before(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent
) -> None:
    key = "jobs/" + "n" * 300
    client = make.client()
    make.lock(client, key).acquire(timeout=PATIENT).release()
    around = len(next(seen.body for seen in scripted.requests if barges(seen)))
    largest = (LARGEST_TXN - around - len('"Value":"",')) // 4 * 3
    with pytest.raises(ValueTooLarge):
        make.lock(client, key, value=b"v" * (largest + 300)).acquire(timeout=PATIENT)
    hold = make.lock(client, key, value=b"v" * (largest - 600)).acquire(timeout=PATIENT)
    with pytest.raises(ValueTooLarge):
        hold.put(b"v" * (largest + 300))
    assert hold.release() is ReleaseOutcome.RELEASED
    assert consul.locked() == {}


def test_a_late_copy_of_a_release_frees_nobody(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent
) -> None:
    lock = make.lock(make.client(), KEY)
    lock.acquire(timeout=PATIENT).release()
    late = next(seen for seen in scripted.requests if unlocks(seen))
    hold = lock.acquire(timeout=PATIENT)
    assert consul.ask(late).status == 409
    assert consul.locked() == {KEY: hold.session}
    assert hold.verify()


def test_late_copies_of_an_acquire_lock_for_nobody(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent
) -> None:
    """Of a take, that is: its contender is gone."""
    lock = make.lock(make.client(), KEY, fair=True)
    lock.acquire(timeout=PATIENT).release()
    late = next(seen for seen in scripted.requests if takes(seen))
    assert consul.ask(late).status == 409
    assert consul.locked() == {}
    assert not does("lock")(late)
