"""Faults: which requests they hit, and what the client of a real socket sees."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from consul_coord.clock import VirtualClock
from consul_coord.errors import InvalidArgument
from consul_coord.server import Effect, Fault, ReferenceServer, ServerConfig
from consul_coord.server.faults import Faults
from consul_coord.server.wire import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consul_coord.clock import SystemClock

DEADLINE = 30.0


@pytest.fixture
def server() -> Iterator[ReferenceServer[SystemClock]]:
    with ReferenceServer(config=ServerConfig(control=True)) as running:
        yield running


def connect(address: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(address.removeprefix("http://"), timeout=DEADLINE)


def put(
    server: ReferenceServer[SystemClock] | ReferenceServer[VirtualClock], key: str = "k"
) -> tuple[int, str]:
    connection = connect(server.address)
    try:
        connection.request("PUT", f"/v1/kv/{key}", b"v")
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("fault", "hit"),
    [
        (Fault(), True),
        (Fault(method="PUT", path=r"^/v1/kv/k"), True),
        (Fault(method="GET"), False),
        (Fault(path=r"/v1/txn"), False),
        (Fault(path=r"\?.*acquire=s"), True),
        (Fault(client="10.0.0.1"), True),
        (Fault(client="py/1"), True),
        (Fault(client="go/1"), False),
        (Fault(matches=lambda request: request.body == b"v"), True),
        (Fault(matches=lambda request: request.body == b"w"), False),
    ],
)
def test_a_fault_hits_what_fits(fault: Fault, *, hit: bool) -> None:
    request = Request("PUT", "/v1/kv/k", "acquire=s", b"v", {"user-agent": "py/1.0"}, 1, "10.0.0.1")
    assert fault.hits(request) is hit


def test_a_fault_is_spent_after_its_times_and_can_be_taken_back() -> None:
    faults, request = Faults(), Request.make("GET", "/")
    first, second = faults.add(Fault(times=2)), faults.add(Fault(delay=1.0))
    struck = [faults.strike(request) for _ in range(3)]
    assert struck == [first.fault, first.fault, second.fault]
    assert (first.hits, first.spent, second.hits, second.spent) == (2, True, 1, False)
    second.remove()
    assert faults.strike(request) is None
    faults.add(Fault())
    faults.clear()
    assert faults.strike(request) is None


@pytest.mark.parametrize(
    ("effect", "error", "applied"),
    [
        (Effect.LOSE_REQUEST, http.client.RemoteDisconnected, False),
        (Effect.LOSE_REPLY, http.client.RemoteDisconnected, True),
        (Effect.TRUNCATE, http.client.IncompleteRead, True),
        (Effect.RESET, ConnectionResetError, True),
        (Effect.GARBAGE, http.client.BadStatusLine, False),
    ],
)
def test_broken_connections(
    server: ReferenceServer[SystemClock],
    caplog: pytest.LogCaptureFixture,
    effect: Effect,
    error: type[Exception],
    *,
    applied: bool,
) -> None:
    handle = server.faults.add(Fault(effect=effect, path="/v1/kv/", times=1))
    with pytest.raises(error):
        put(server)
    assert handle.spent
    assert ("k" in server.state.kv) is applied
    assert put(server) == (200, "true")
    assert not caplog.records  # what a test asked for is no error


@pytest.mark.parametrize(("status", "body"), [(500, "No cluster leader"), (429, ""), (503, None)])
@pytest.mark.parametrize(("effect", "applied"), [(Effect.RESPOND, False), (Effect.APPLY_AND_RESPOND, True)])
def test_error_replies(
    server: ReferenceServer[SystemClock], status: int, body: str | None, effect: Effect, *, applied: bool
) -> None:
    server.faults.add(Fault(effect=effect, status=status, times=1))
    answered = put(server)
    assert answered[0] == status
    assert body is None or answered[1] == body
    assert ("k" in server.state.kv) is applied


def test_an_index_that_goes_back(server: ReferenceServer[SystemClock]) -> None:
    put(server)
    server.faults.add(Fault(effect=Effect.INDEX_BACK, times=1))
    reply = httpx.get(f"{server.address}/v1/kv/k")
    assert reply.headers["X-Consul-Index"] == "1"
    assert reply.json()[0]["ModifyIndex"] > 1


def test_losing_the_leader() -> None:
    with ReferenceServer(config=ServerConfig(leaderless_hold=0.01)) as server:
        server.faults.add(Fault(effect=Effect.LOSE_LEADER, times=1))
        assert put(server) == (500, "No cluster leader")
        server.elect_leader()
        assert put(server) == (200, "true")


def test_a_delay_follows_the_servers_clock() -> None:
    with ReferenceServer(clock=VirtualClock()) as server:
        server.faults.add(Fault(delay=5.0, times=1))
        done = threading.Event()

        def send() -> None:
            httpx.put(f"{server.address}/v1/kv/k", content=b"v")
            done.set()

        threading.Thread(target=send).start()
        deadline = time.monotonic() + DEADLINE
        while server.clock.next_alarm() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert "k" not in server.state.kv
        server.clock.advance(5.0)
        assert done.wait(DEADLINE)
        assert "k" in server.state.kv


def test_who_left_during_a_delay_does_not_begin_to_wait() -> None:
    with ReferenceServer(clock=VirtualClock()) as server:
        server.faults.add(Fault(delay=5.0, times=1))
        leaving = connect(server.address)
        leaving.request("GET", "/v1/kv/k?index=1000")
        deadline = time.monotonic() + DEADLINE
        while server.clock.next_alarm() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        leaving.close()
        put(server)  # by its end the server knows that the other has left
        server.clock.advance(5.0)
        put(server)
        assert server.state.blocked == 0


def test_a_client_in_the_same_process_sees_a_broken_connection() -> None:
    async def main() -> None:
        server = ReferenceServer()
        server.faults.add(Fault(effect=Effect.LOSE_REPLY, times=1))
        transport = httpx.ASGITransport(app=server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://consul") as client:
            with pytest.raises(ConnectionResetError):
                await client.put("/v1/kv/k", content=b"v")
        assert "k" in server.state.kv

    asyncio.run(main())


def control(server: ReferenceServer[SystemClock], path: str, /, **fields: object) -> httpx.Response:
    return httpx.post(f"{server.address}/reference/{path}", content=json.dumps(fields))


def test_the_control_endpoint(server: ReferenceServer[SystemClock]) -> None:
    assert control(server, "faults", effect="respond", status=503, times=1, path=None).json() is True
    assert put(server)[0] == 503
    control(server, "faults", effect="respond")
    control(server, "faults/clear")
    assert put(server)[0] == 200
    control(server, "leader/lose")
    assert server.state.leader == ""
    control(server, "leader/elect")
    assert server.state.leader


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("faults", {"effect": "bogus"}, 400),
        ("faults", {"nonsense": 1}, 400),
        ("faults", {"path": "("}, 400),
        ("faults", {"path": 1}, 400),
        ("faults", {"delay": "1"}, 400),
        ("faults", {"times": "1"}, 400),
        ("clock/advance", {"seconds": 1}, 400),
        ("nonsense", {}, 404),
    ],
)
def test_bad_control_requests(
    server: ReferenceServer[SystemClock], path: str, fields: dict[str, object], status: int
) -> None:
    assert control(server, path, **fields).status_code == status
    assert put(server)[0] == 200


def test_control_is_off_by_default() -> None:
    with ReferenceServer() as server:
        assert control(server, "faults/clear").status_code == 404


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"effect": "lose"}, "effect must be one of none, lose-request, .*, not 'lose'"),
        ({"path": "["}, "path is no regular expression: "),
        ({"times": 0}, "times must be 1 or more, or None for any number, not 0"),
        ({"delay": -1}, "delay must be a number of seconds, 0 or more, not -1"),
        ({"delay": math.inf}, "delay must be a number of seconds, 0 or more, not inf"),
        ({"status": 99}, "status must be from 200 to 599, not 99"),
        ({"body": b"no"}, "body must be a string, or None, not bytes"),
        ({"path": 5}, "path must be a string, or None, not int"),
    ],
)
def test_a_fault_that_can_not_be_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=rf"^{told}"):
        Fault(**settings)


def test_an_effect_may_be_given_by_its_name() -> None:
    fault: Any = {"effect": "lose-reply"}
    assert Fault(**fault) == Fault(effect=Effect.LOSE_REPLY)


def test_what_is_no_fault_is_not_added() -> None:
    anything: Any = "lose-reply"
    with pytest.raises(InvalidArgument, match="a fault must be of the class Fault, not str"):
        Faults().add(anything)
