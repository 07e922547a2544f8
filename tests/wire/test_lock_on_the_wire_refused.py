"""A lock whose session or permissions fall short: the error says what is missing; nothing stays locked."""

from __future__ import annotations

import base64
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import Client, Lock
from consul_coord.errors import (
    AcquireTimeout,
    ConsulCoordError,
    InvalidRequest,
    LockLost,
    PermissionDenied,
    SessionCheckFailed,
    SessionNotFound,
)
from consul_coord.models import LossReason, ReleaseOutcome, SessionSpec
from tests.support.stalls import lasting
from tests.wire.agents import Reply, said, told
from tests.wire.relay import always, barges, creates_session, renews, unlocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.wire.agents import ScriptedAgent, Seen
    from tests.wire.clients import Make
    from tests.wire.relay import RelayedConsul, Rule, Wanted

pytest_plugins = ["tests.wire.scripted"]
pytestmark = pytest.mark.timeout(20)

KEY = "jobs/nightly"
QUEUE = f"{KEY}/.wait/"
PATIENT = 5.0
TOKEN = "b1gs3cret"


@pytest.fixture
def rival(consul: RelayedConsul) -> Iterator[Client]:
    """Return another client, which asks Consul directly."""
    with Client(address=consul.address) as client:
        yield client


def writes(agent: ScriptedAgent) -> list[str]:
    """Return what was asked that could change a key."""
    reads = {"get", "get-tree", "check-index", "check-session", "check-not-exists"}
    return [
        seen.line
        for seen in agent.requests
        if seen.path.startswith(("/v1/kv", "/v1/txn"))
        and seen.method != "GET"
        and not set(seen.verbs) <= reads
    ]


# --- sessions


SESSION_REFUSALS: dict[str, tuple[Reply, type[ConsulCoordError], str]] = {
    "TTL": (
        said(500, "Invalid Session TTL '15000000000', must be between [20s=24h0m0s]"),
        InvalidRequest,
        "take 20s to 24h0m0s",
    ),
    "critical": (said(500, "Check 'c1' is in critical state"), SessionCheckFailed, "'c1' is in critical"),
    "check": (said(500, "Missing check 'c1' registration"), SessionCheckFailed, "no such health check"),
    "denied": (said(403, "Permission denied"), PermissionDenied, "session:write on the agent's own node"),
    "token": (said(403, "ACL not found"), PermissionDenied, "do not know this token"),
    "no bootstrap, as newer servers say it": (
        said(
            403,
            "rpc error making call: ACL system must be bootstrapped before making any requests that require "
            "authorization: ACL not found",
        ),
        PermissionDenied,
        "consul acl bootstrap",
    ),
    "namespace": (
        said(400, 'Bad request: Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature'),
        InvalidRequest,
        "leave namespace unset",
    ),
    "partition, as 1.20.6 says it": (
        said(400, 'Invalid query parameter: "partition" - Partitions are a Consul Enterprise feature'),
        InvalidRequest,
        "leave partition unset",
    ),
    "critical, as 1.20.6 says it": (
        said(500, "apply failed: Check 'c1' is in critical state"),
        SessionCheckFailed,
        "'c1' is in critical",
    ),
    "denied, as 1.20.6 says it": (
        said(403, "Permission denied: token with AccessorID 'x' lacks permission 'session:write' on \"n1\""),
        PermissionDenied,
        "session:write on the agent's own node",
    ),
}


@pytest.mark.parametrize("name", SESSION_REFUSALS)
def test_no_session(make: Make, consul: RelayedConsul, scripted: ScriptedAgent, name: str) -> None:
    reply, kind, advice = SESSION_REFUSALS[name]
    consul.follow(always(reply, creates_session))
    client = make.client(token=TOKEN)
    for timeout in (0, PATIENT):
        with pytest.raises(kind, match=advice) as raised:
            make.lock(client, KEY).acquire(timeout=timeout)
        assert type(raised.value) is kind
        assert "PUT /v1/session/create" in str(raised.value)
        assert TOKEN not in str(raised.value)
    assert [seen.path for seen in scripted.requests] == ["/v1/session/create"] * 2
    assert client.pending_cleanup == 0


@pytest.mark.parametrize(
    "words",
    ["rpc error making call: Missing node registration", "apply failed: Missing node registration"],
    ids=["as 1.8.7 says it", "as 1.20.6 says it"],
)
def test_an_agents_node_that_is_not_registered_yet_passes(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, words: str
) -> None:
    refused = 0

    def soon(seen: Seen) -> Reply | None:
        nonlocal refused
        if creates_session(seen) and refused < 2:
            refused += 1
            return said(500, words)
        return None

    consul.follow(soon)
    client = make.client()
    with pytest.raises(AcquireTimeout, match="puts its own node back within a minute"):
        make.lock(client, KEY).acquire(timeout=0)
    assert make.lock(client, KEY).acquire(timeout=PATIENT).is_held
    assert [seen.path for seen in scripted.requests][:2] == ["/v1/session/create"] * 2
    assert client.pending_cleanup == 0


# What a follower and the leader of 1.20.6 say when limits.request_limits are enforced.
RATE_LIMITS = {
    "follower": said(429, "rate limit exceeded, try again later or against a different server"),
    "leader": said(
        503, "rate limit exceeded for operation that can only be performed by the leader, try again later"
    ),
    "proxy": Reply(429, b"slow down", {"Retry-After": "3600"}),
    "proxy that gives a date": Reply(429, b"", {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}),
}
"""After the last two, the client ignores when to retry: a lease does not wait for an hour."""


@pytest.mark.parametrize("wanted", [creates_session, barges, unlocks])
@pytest.mark.parametrize("reply", RATE_LIMITS.values(), ids=RATE_LIMITS)
def test_a_rate_limit_passes(make: Make, consul: RelayedConsul, reply: Reply, wanted: Wanted) -> None:
    consul.follow(consul.spoil(wanted, reply, applied=False, times=2))
    client = make.client()
    hold = make.lock(client, KEY).acquire(timeout=PATIENT)
    assert len(consul.locked()) == 1
    assert hold.release() is ReleaseOutcome.RELEASED
    assert consul.settles({})


@pytest.mark.parametrize("reply", RATE_LIMITS.values(), ids=RATE_LIMITS)
def test_a_rate_limit_that_lasts_is_named(make: Make, consul: RelayedConsul, reply: Reply) -> None:
    consul.follow(always(reply, creates_session))
    with pytest.raises(AcquireTimeout, match="too many requests at present") as raised:
        make.lock(make.client(), KEY).acquire(timeout=0.3)
    assert reply.body.decode() in str(raised.value)


@pytest.mark.parametrize("reply", RATE_LIMITS.values(), ids=RATE_LIMITS)
def test_a_rate_limit_on_renewals_and_watches_is_no_loss(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, reply: Reply
) -> None:
    hold = make.lock(make.client(session=SessionSpec(ttl=1.5)), KEY).acquire(timeout=PATIENT)
    consul.follow(
        consul.spoil(renews, reply, applied=False, times=2),
        consul.spoil(lambda seen: seen.is_blocking, reply, applied=False, times=2),
    )
    scripted.wait_for(lambda _: sum(map(renews, scripted.requests)) >= 4)
    assert hold.is_held
    assert hold.release() is ReleaseOutcome.RELEASED
    assert consul.settles({})


def test_a_session_whose_id_got_lost_is_not_asked_for_twice_in_one_try(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent
) -> None:
    """Each try of the lock asks once; what is left over ends by its TTL."""
    consul.follow(consul.spoil(creates_session, said(500, "rpc error making call: EOF")))
    make.lock(make.client(), KEY).acquire(timeout=PATIENT)
    times = [seen.at for seen in scripted.requests if creates_session(seen)]
    assert len(times) == 2
    assert times[1] - times[0] >= 0.04
    assert len(consul.locked()) == 1


@pytest.mark.parametrize(
    "garbage", [b"<html>", b"{}", b'{"ID":""}', b'{"ID":5}', b'{"ID":null}', b'["x"]', b"true"]
)
def test_a_session_without_an_id(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, garbage: bytes
) -> None:
    consul.follow(always(Reply(200, garbage), creates_session))
    with pytest.raises(ConsulCoordError, match="PUT /v1/session/create"):
        make.lock(make.client(), KEY).acquire(timeout=PATIENT)
    assert writes(scripted) == []


def test_a_session_that_is_gone_is_a_loss_at_once(make: Make, consul: RelayedConsul) -> None:
    """Long before its lease is over; the renewal comes after a third of it."""
    client = make.client(session=SessionSpec(ttl=1.5))
    hold = make.lock(client, KEY).acquire(timeout=PATIENT)
    consul.follow(lambda seen: said(404, "Session id 'x' not found") if renews(seen) else None)
    with lasting(most=1.0):
        assert hold.lost.wait(PATIENT)
    assert hold.reason is LossReason.SESSION_GONE
    with pytest.raises(LockLost) as raised:
        hold.check()
    assert (raised.value.reason, raised.value.fence) == (LossReason.SESSION_GONE, hold.fence)
    assert hold.release() is ReleaseOutcome.ALREADY_LOST


def test_a_renewal_that_fails_is_no_loss(make: Make, consul: RelayedConsul, scripted: ScriptedAgent) -> None:
    client = make.client(session=SessionSpec(ttl=1.5))
    hold = make.lock(client, KEY).acquire(timeout=PATIENT)
    failures = (said(500), Reply(200, b"<html>"))
    consul.follow(*(consul.spoil(renews, reply, applied=False) for reply in failures))
    scripted.wait_for(lambda _: sum(map(renews, scripted.requests)) >= 3)
    assert hold.is_held
    assert hold.release() is ReleaseOutcome.RELEASED


def test_a_given_session_that_does_not_exist(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent
) -> None:
    given = "00000000-0000-4000-8000-000000000000"
    with pytest.raises(SessionNotFound) as raised:
        make.lock(make.client(), KEY, session=given).acquire(timeout=PATIENT)
    assert raised.value.session == given
    assert not any(map(creates_session, scripted.requests))
    assert writes(scripted) == []


def test_a_shared_session_that_ended_between_is_replaced(
    make: Make, consul: RelayedConsul, rival: Client
) -> None:
    """The barge is refused for an invalid session: another one is made, and the key taken with that."""
    lock = make.lock(make.client(), KEY)
    first = lock.acquire(timeout=PATIENT)
    assert first.release() is ReleaseOutcome.RELEASED
    rival.session.destroy(first.session)
    second = lock.acquire(timeout=PATIENT)
    assert second.session != first.session
    assert second.fence > first.fence
    assert consul.locked() == {KEY: second.session}


# --- permissions


def denying(consul: RelayedConsul, prefix: str) -> Rule:
    """Return a rule for a token that may not write or check keys with a prefix, as Consul refuses it."""

    def rule(seen: Seen) -> Reply | None:
        reads = {"get", "get-tree"}
        refused = [
            {"OpIndex": at, "What": "Permission denied"}
            for at, op in enumerate(seen.ops)
            if str(op["Key"]).startswith(prefix) and op["Verb"] not in reads
        ]
        if refused:
            return told({"Results": None, "Errors": refused}, status=409)
        if seen.path.startswith(f"/v1/kv/{prefix}"):
            return said(403, "Permission denied")
        return hiding(consul, prefix)(seen)

    return rule


def hiding(consul: RelayedConsul, prefix: str) -> Rule:
    """Return a rule for a token that may not read keys with a prefix: trees lack them, silently."""

    def rule(seen: Seen) -> Reply | None:
        if "get-tree" not in seen.verbs:
            return None
        reply = consul.ask(seen)
        body = json.loads(reply.body)
        trees = sum(verb == "get-tree" for verb in seen.verbs)
        assert trees == 1
        assert seen.verbs[-1] == "get-tree"
        if body["Results"]:
            own = [op["Key"] for op in seen.ops if op["Verb"] == "lock"]
            kept = [each for at, each in enumerate(body["Results"]) if visible(each["KV"]["Key"], at, own)]
            body["Results"] = kept
        return Reply(reply.status, json.dumps(body).encode(), reply.headers)

    def visible(key: str, at: int, own: list[object]) -> bool:
        return not key.startswith(prefix) or (at == 0 and key in own)

    return rule


def test_no_permission_for_the_key(make: Make, consul: RelayedConsul, scripted: ScriptedAgent) -> None:
    consul.follow(denying(consul, KEY))
    for timeout in (0, PATIENT):
        with pytest.raises(PermissionDenied, match=f'key:write on "{KEY}"') as raised:
            make.lock(make.client(token=TOKEN), KEY).acquire(timeout=timeout)
        assert raised.value.needed == (f'key:write on "{KEY}"',)
        assert raised.value.body == "Permission denied"
        assert raised.value.__cause__ is not None
        assert TOKEN not in str(raised.value)
    assert consul.locked() == {}


def test_a_token_nobody_knows(make: Make, consul: RelayedConsul, scripted: ScriptedAgent) -> None:
    consul.follow(lambda seen: said(403, "ACL not found") if seen.path == "/v1/txn" else None)
    with pytest.raises(PermissionDenied, match="do not know this token"):
        make.lock(make.client(token=TOKEN), KEY).acquire(timeout=PATIENT)
    assert consul.locked() == {}


FORMS = {"denied": denying, "hidden": hiding}


@pytest.mark.parametrize("form", FORMS)
def test_without_the_queue_a_free_key_is_taken(make: Make, consul: RelayedConsul, form: str) -> None:
    consul.follow(FORMS[form](consul, QUEUE))
    lock = make.lock(make.client(), KEY)
    for _ in range(2):
        hold = lock.acquire(timeout=PATIENT)
        assert consul.locked() == {KEY: hold.session}
        assert hold.release() is ReleaseOutcome.RELEASED
        assert consul.locked() == {}


@pytest.mark.parametrize("form", FORMS)
def test_without_the_queue_the_key_is_watched(
    make: Make, consul: RelayedConsul, scripted: ScriptedAgent, rival: Client, form: str
) -> None:
    held = Lock(rival, KEY).acquire()
    consul.follow(FORMS[form](consul, QUEUE))
    lock = make.lock(make.client(), KEY, value=b"me")
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(lock.acquire(timeout=PATIENT)))
    waiting.start()
    watch = scripted.wait_for(lambda seen: seen.is_blocking and seen.path == f"/v1/kv/{KEY}")
    assert f"index={held.fence}" in watch.target
    assert consul.locked() == {KEY: held.session}, "no contender is left that could hold others up"
    held.release()
    waiting.join()
    (hold,) = got
    assert scripted.requests[-1].verbs == ["lock"]
    assert scripted.requests[-1].ops[0]["Value"] == base64.b64encode(b"me").decode()
    assert consul.locked() == {KEY: hold.session}
    assert hold.release() is ReleaseOutcome.RELEASED
    assert consul.locked() == {}
