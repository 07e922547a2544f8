"""What is sent again after a bad reply, how often and how fast; and what never is.

Reads and idempotent writes are repeated until they succeed or their time is over; what could take effect
twice is not sent twice.
"""

from __future__ import annotations

import socket
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import (
    BrokenReply,
    ConnectFailed,
    ConsulCoordError,
    DecodeError,
    NoLeader,
    RequestTimeout,
    ServerError,
)
from consul_coord.http.failures import outcome_unknown
from consul_coord.http.messages import Retry
from tests.support.stalls import lasting
from tests.wire.agents import HANGS_UP, TRIAL, Reply, said, told
from tests.wire.catalogue import ENDPOINTS, SID
from tests.wire.clocks import HurriedClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.wire.agents import ScriptedAgent
    from tests.wire.clients import Make

pytest_plugins = ["tests.wire.scripted"]
pytestmark = pytest.mark.timeout(20)

TOLERANCE = 0.3
"""How late a call may end, in seconds."""
CUT = Reply(200, b'[{"', {"Content-Type": "application/json"}, missing=50)
FAILURES = {
    "500": said(500, "rpc error making call: EOF"),
    "no leader": said(500, "No cluster leader"),
    "503": said(503),
    "hang-up": HANGS_UP,
    "cut short": CUT,
}
"""After these a write may or may not have been applied."""
ONCE_ONLY = {name: each for name, each in ENDPOINTS.items() if each.retry is Retry.NEVER}
REPEATABLE = {name: each for name, each in ENDPOINTS.items() if each.retry is not Retry.NEVER}


@pytest.mark.parametrize("failure", ["500", "hang-up", "cut short", "429"])
def test_reads_and_idempotent_writes_are_repeated(make: Make, scripted: ScriptedAgent, failure: str) -> None:
    client = make.client(clock=HurriedClock())
    bad = FAILURES.get(failure, said(429))
    for name, endpoint in REPEATABLE.items():
        scripted.forget()
        scripted.serves_trials = endpoint.line != TRIAL
        scripted.in_turn(bad, endpoint.reply)
        assert endpoint.call(client) == endpoint.value, name
        assert [(seen.line, seen.body) for seen in scripted.requests] == [
            (endpoint.line, endpoint.body or b"")
        ] * 2, name


@pytest.mark.parametrize("failure", [*FAILURES, "garbage"])
@pytest.mark.parametrize("warm", [False, True])
def test_what_could_take_effect_twice_is_sent_once(
    make: Make, scripted: ScriptedAgent, failure: str, warm: bool
) -> None:
    client = make.client(clock=HurriedClock())
    scripted.serves_trials = True
    bad = FAILURES.get(failure, Reply(200, b"\xff\xfe"))
    for name, endpoint in ONCE_ONLY.items():
        scripted.always(endpoint.reply)
        if warm:
            endpoint.call(client)
        scripted.forget()
        scripted.in_turn(bad, endpoint.reply)
        with pytest.raises((ServerError, NoLeader, BrokenReply, DecodeError)) as raised:
            endpoint.call(client)
        assert isinstance(raised.value, ConsulCoordError)
        assert outcome_unknown(raised.value), name
        assert scripted.lines == [endpoint.line], name


def test_which_are_sent_once() -> None:
    assert set(ONCE_ONLY) == {"kv.put, cas", "kv.delete, cas", "session.create", "query.create", "txn"}


def test_a_refusal_to_serve_is_no_unknown_outcome(make: Make, scripted: ScriptedAgent) -> None:
    client = make.client(clock=HurriedClock())
    for name, endpoint in ONCE_ONLY.items():
        scripted.forget()
        scripted.in_turn(said(429), endpoint.reply)
        assert endpoint.call(client) == endpoint.value, name
        assert scripted.lines == [endpoint.line] * 2, name


def test_a_hang_up_between_calls_costs_nothing(make: Make, scripted: ScriptedAgent) -> None:
    client = make.client()
    scripted.always(Reply(200, b"true", {"Connection": "close"}))
    for _ in range(3):
        assert client.kv.put("k", b"v", cas=1) is True
    assert len(scripted.requests) == 3
    assert client.stats().retries == 0


def test_the_pauses_grow_and_are_jittered(make: Make, scripted: ScriptedAgent) -> None:
    seen = []
    for _ in range(2):
        clock = HurriedClock()
        scripted.in_turn(*[said(500)] * 7, said(200, '"127.0.0.1:8300"'))
        assert make.client(clock=clock, timeout=60.0).status.leader() == "127.0.0.1:8300"
        seen.append(clock.pauses)
        for pause, step in zip(clock.pauses, (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
            assert step / 2 <= pause <= step * (1 + 1e-9)
    assert seen[0] != seen[1]


def test_the_pauses_are_really_made(make: Make, scripted: ScriptedAgent) -> None:
    scripted.in_turn(said(500), said(429), HANGS_UP, told("10.0.0.1:8300"))
    client = make.client()
    assert client.status.leader() == "10.0.0.1:8300"
    times = [seen.at for seen in scripted.requests]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) == 3
    assert all(gap >= least for gap, least in zip(gaps, (0.025, 0.05, 0.1), strict=True))


def test_silence_ends_at_the_deadline(make: Make, scripted: ScriptedAgent) -> None:
    scripted.answer = scripted.silent
    client = make.client(timeout=0.2)
    calls: dict[str, Any] = {
        "read": lambda: client.kv.get("k"),
        "write": lambda: client.kv.put("k", b"v"),
        "cas": lambda: client.kv.put("k", b"v", cas=1),
    }
    for name, call in calls.items():
        scripted.forget()
        with lasting(least=0.19, most=0.2 + TOLERANCE), pytest.raises(RequestTimeout) as raised:
            call()
        assert raised.value.outcome_unknown is (name != "read")
        assert isinstance(raised.value, TimeoutError)
        assert len(scripted.requests) == 1


@pytest.mark.parametrize("failure", ["500", "cut short"])
def test_failing_ends_by_the_deadline(make: Make, scripted: ScriptedAgent, failure: str) -> None:
    scripted.always(FAILURES[failure])
    client = make.client(timeout=1.0)
    # The last try may have been left too little time.
    with lasting(most=1.0 + TOLERANCE), pytest.raises((ServerError, BrokenReply, RequestTimeout)):
        client.session.info(SID)
    assert len(scripted.requests) >= 2


def test_a_pause_that_takes_too_long_does_not_hide_what_went_wrong(
    make: Make, scripted: ScriptedAgent
) -> None:
    """As when a machine is suspended, or out of breath, between two tries."""
    scripted.always(said(500, "the disk is full"))
    with pytest.raises(ServerError, match="the disk is full"):
        make.client(clock=HurriedClock(oversleeps=3600.0)).kv.get("k")
    assert len(scripted.requests) == 1


@pytest.fixture
def leaving() -> Iterator[str]:
    """Serve at an address that breaks off its first connection in the middle, and then is no more."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        peer.recv(65536)
        listener.close()
        peer.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread.join()


def test_a_doubt_about_an_earlier_try_remains(make: Make, leaving: str) -> None:
    """The write may have been applied, though the last try could not even connect."""
    with pytest.raises(ConnectFailed) as raised:
        make.client(address=leaving, timeout=0.2).kv.put("k", b"v")
    assert raised.value.outcome_unknown is True


def test_nothing_listening_is_no_doubt(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectFailed) as raised:
        make.client(address=f"127.0.0.1:{port}", timeout=0.2).kv.put("k", b"v")
    assert raised.value.outcome_unknown is False
    assert isinstance(raised.value.__cause__, OSError)
