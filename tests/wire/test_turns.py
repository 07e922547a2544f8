"""How the requests of one event loop share the connections that an agent allows one address."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from consul_coord.config import Settings
from consul_coord.errors import BrokenReply, ClientClosed, RequestTimeout, TooManyConnections
from consul_coord.http.messages import Request, Retry
from consul_coord.http.transport import exchange, pool
from consul_coord.http.transport.exchange import DirectTransport
from consul_coord.http.transport.limit import ASIDE, MOST, PATIENT
from consul_coord.http.transport.pool import KEEP, KEEP_PARKED, LATE, Link
from consul_coord.http.transport.streams import MAX_SHORT, StreamTransport
from tests.wire.servers import OK, PATIENCE, always

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from consul_coord.http.messages import Response
    from tests.wire.conftest import Serve
    from tests.wire.servers import Peer, RawServer

WRITE = Request("PUT", "/v1/kv/a", body=b"v", retry=Retry.NEVER)
RENEW = Request("PUT", "/v1/session/renew/x", retry=Retry.IDEMPOTENT, urgent=True)
READ = Request("GET", "/v1/kv/a", retry=Retry.READ)
WATCH = Request("GET", "/v1/kv/a", params=(("index", "7"),), retry=Retry.READ, hold_open=30.0)

PLACES = 2

pytestmark = pytest.mark.parametrize("backend", ["asyncio", "trio"])


class Desk:
    """An agent that answers writes when it is told to, and anything else at once."""

    def __init__(self) -> None:
        self.full = threading.Event()
        self.opened = threading.Event()
        self.most = 0
        self._waiting = 0
        self._lock = threading.Lock()

    def handle(self, peer: Peer) -> None:
        while (request := peer.request()) is not None:
            if request.startswith(b"PUT /v1/kv/"):
                with self._lock:
                    self._waiting += 1
                    self.most = max(self.most, self._waiting)
                    if self._waiting == PLACES:
                        self.full.set()
                assert self.opened.wait(PATIENCE)
                with self._lock:
                    self._waiting -= 1
            peer.send(OK)


def run(
    backend: str,
    server: RawServer,
    scenario: Callable[[StreamTransport, anyio.abc.TaskGroup], Coroutine[None, None, None]],
    *,
    max_short: int = PLACES,
) -> None:
    async def main() -> None:
        settings = Settings.resolve(address=server.address, environ={})
        transport = StreamTransport(settings, max_short=max_short)
        try:
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as group:
                    await scenario(transport, group)
        finally:
            await transport.aclose()

    anyio.run(main, backend=backend)


async def wait_for(event: threading.Event) -> None:
    assert await anyio.to_thread.run_sync(event.wait, PATIENCE)


def test_many_at_once_take_turns(serve: Serve, backend: str) -> None:
    server = serve(always(OK))
    done: list[Response] = []

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        async def send_some() -> None:
            done.extend([await transport.send(WRITE, timeout=PATIENCE) for _ in range(3)])

        for _ in range(4 * MAX_SHORT):
            group.start_soon(send_some)

    run(backend, server, scenario, max_short=MAX_SHORT)
    assert len(done) == 12 * MAX_SHORT
    assert server.connections <= MAX_SHORT


def test_renewals_and_watches_wait_for_nobody(serve: Serve, backend: str) -> None:
    desk = Desk()
    server = serve(desk.handle)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        async def send() -> None:
            await transport.send(WRITE, timeout=PATIENCE)

        for _ in range(5):
            group.start_soon(send)
        await wait_for(desk.full)
        for request in (RENEW, WATCH, RENEW, WATCH):
            assert (await transport.send(request, timeout=PATIENCE)).body == b"true"
        desk.opened.set()

    run(backend, server, scenario)
    assert desk.most == PLACES
    assert server.connections == PLACES + 1


def test_a_turn_that_does_not_come_in_time_leaves_nothing_unknown(serve: Serve, backend: str) -> None:
    desk = Desk()
    server = serve(desk.handle)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        async def send() -> None:
            await transport.send(WRITE, timeout=PATIENCE)

        for _ in range(PLACES):
            group.start_soon(send)
        await wait_for(desk.full)
        with pytest.raises(RequestTimeout) as raised:
            await transport.send(WRITE, timeout=0.05)
        assert raised.value.outcome_unknown is False
        desk.opened.set()
        await transport.send(WRITE, timeout=PATIENCE)

    run(backend, server, scenario)
    assert len(server.requests) == 3


def test_who_waits_for_a_turn_learns_that_the_client_was_closed(serve: Serve, backend: str) -> None:
    desk = Desk()
    server = serve(desk.handle)
    closed: list[ClientClosed] = []

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        async def send() -> None:
            try:
                await transport.send(WRITE, timeout=PATIENCE)
            except ClientClosed as error:
                closed.append(error)

        for _ in range(5):
            group.start_soon(send)
        await wait_for(desk.full)
        await anyio.wait_all_tasks_blocked()
        await transport.aclose()
        desk.opened.set()

    run(backend, server, scenario)
    assert len(closed) == 3
    assert len(server.requests) == 2


def test_a_turn_is_given_up_with_the_connection_that_failed(serve: Serve, backend: str) -> None:
    def hang_up(peer: Peer) -> None:
        peer.request()
        peer.send(OK[:20])

    server = serve(hang_up)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        for _ in range(5):
            with pytest.raises(Exception, match="ended before the reply"):
                await transport.send(WRITE, timeout=PATIENCE)

    run(backend, server, scenario)
    assert len(server.requests) == 5


def test_no_turn_is_lost_to_a_request_that_is_cancelled(serve: Serve, backend: str) -> None:
    server = serve(always(OK))

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        scopes = [anyio.CancelScope() for _ in range(20)]

        async def send(number: int) -> None:
            with scopes[number]:
                await transport.send(WRITE, timeout=PATIENCE)
            # The turn has just been handed on: whoever got it may be cancelled before it runs.
            scopes[(number * 7 + 3) % len(scopes)].cancel()

        async with anyio.create_task_group() as crowd:
            for number in range(len(scopes)):
                crowd.start_soon(send, number)
        for _ in range(2 * PLACES):
            group.start_soon(send_one, transport)

    async def send_one(transport: StreamTransport) -> None:
        assert (await transport.send(WRITE, timeout=PATIENCE)).body == b"true"

    run(backend, server, scenario)


def let_pass(links: Iterable[Link], seconds: float) -> None:
    for link in links:
        link.kept_until -= seconds


def test_requests_that_follow_each_other_share_one_connection(serve: Serve, backend: str) -> None:
    server = serve(always(OK))

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        for request in (WRITE, RENEW, WATCH):
            await transport.send(request, timeout=PATIENCE)
        assert 0 < await transport.sweep() <= KEEP
        assert len(transport.pool.idle) == 1
        let_pass(transport.pool.idle, KEEP)
        assert await transport.sweep() == KEEP
        assert not transport.pool.idle

    run(backend, server, scenario)
    assert server.connections == 1


def test_a_request_says_how_long_its_connection_is_kept(serve: Serve, backend: str) -> None:
    server = serve(always(OK))

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await transport.send(replace(RENEW, keep=0.0), timeout=PATIENCE)
        assert not transport.pool.idle
        await transport.send(replace(RENEW, keep=2 * KEEP), timeout=PATIENCE)
        await transport.send(WRITE, timeout=PATIENCE)
        await transport.send(replace(RENEW, keep=0.0), timeout=PATIENCE)
        let_pass(transport.pool.idle, KEEP)
        await transport.sweep()
        assert len(transport.pool.idle) == 1
        assert server.connections == 2
        let_pass(transport.pool.idle, KEEP)
        await transport.sweep()
        assert not transport.pool.idle

    run(backend, server, scenario)


class Holding:
    """An agent that holds queries open until it is told to answer them."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.opened = threading.Event()

    def handle(self, peer: Peer) -> None:
        while (request := peer.request()) is not None:
            if request.startswith(b"GET "):
                self.asked.set()
                assert self.opened.wait(PATIENCE)
            peer.send(OK)


async def ask_for_a_moment(transport: StreamTransport, agent: Holding, request: Request = WATCH) -> None:
    """Have something asked and cancelled."""
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            await transport.send(request, timeout=PATIENCE)

        group.start_soon(ask)
        await anyio.to_thread.run_sync(agent.asked.wait, PATIENCE)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("request_", [WATCH, READ], ids=["query", "read"])
def test_a_cancelled_requests_connection_is_used_once_it_is_answered(
    serve: Serve, backend: str, request_: Request
) -> None:
    agent = Holding()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await ask_for_a_moment(transport, agent, request_)
        (parked,) = transport.pool.parked
        assert not parked.has_answered()
        agent.opened.set()
        with anyio.fail_after(PATIENCE):
            await anyio.wait_readable(parked.sock)
        await transport.send(WRITE, timeout=PATIENCE)
        assert server.connections == 1
        assert not transport.pool.parked

    run(backend, server, scenario)


def test_a_cancelled_querys_connection_is_closed_when_it_is_not_needed(serve: Serve, backend: str) -> None:
    agent = Holding()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await ask_for_a_moment(transport, agent)
        assert 0 < await transport.sweep() <= KEEP_PARKED
        let_pass(transport.pool.parked, KEEP_PARKED)
        await transport.sweep()
        assert not transport.pool.parked
        agent.opened.set()

    run(backend, server, scenario)
    server.wait_until_idle()


def test_a_cancelled_querys_connection_outlives_a_request_that_wants_none(serve: Serve, backend: str) -> None:
    agent = Holding()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await ask_for_a_moment(transport, agent)
        (parked,) = transport.pool.parked
        parked.kept_until = time.monotonic()
        agent.opened.set()
        with anyio.fail_after(PATIENCE):
            await anyio.wait_readable(parked.sock)
        await transport.send(replace(RENEW, keep=0.0), timeout=PATIENCE)
        assert list(transport.pool.idle) == [parked]

    run(backend, server, scenario)


def test_near_the_limit_a_reply_may_come_late(serve: Serve, backend: str) -> None:
    agent = Holding()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await ask_for_a_moment(transport, agent)
        (parked,) = transport.pool.parked
        now = time.monotonic()
        transport.pool.limit.refused(now)
        parked.kept_until = parked.back_by = now - 0.1
        assert 0 < await transport.sweep() <= LATE
        assert transport.pool.parked
        parked.back_by -= LATE
        await transport.sweep()
        assert not transport.pool.parked
        agent.opened.set()

    run(backend, server, scenario)


def test_a_renewal_waits_for_the_query_that_is_about_to_return(
    serve: Serve, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "PATIENCE", PATIENCE)
    agent = Holding()
    server = serve(agent.handle)
    waited = 0.0

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        async def ask() -> None:
            await transport.send(replace(WATCH, hold_open=0.01), timeout=PATIENCE)

        nonlocal waited
        group.start_soon(ask)
        await anyio.to_thread.run_sync(agent.asked.wait, PATIENCE)
        group.start_soon(anyio.to_thread.run_sync, agent.opened.set)
        began = time.monotonic()
        await transport.send(RENEW, timeout=PATIENCE)
        waited = time.monotonic() - began
        assert server.connections == 1

    run(backend, server, scenario)
    assert waited < pool.PATIENCE_PART * PATIENCE / 2


def test_a_query_that_is_overdue_is_cut_off_before_a_renewal_connects(serve: Serve, backend: str) -> None:
    agent = Holding()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        cut_off = anyio.Event()

        async def ask() -> None:
            with pytest.raises(BrokenReply):
                await transport.send(replace(WATCH, hold_open=0.01), timeout=PATIENCE)
            cut_off.set()

        group.start_soon(ask)
        await anyio.to_thread.run_sync(agent.asked.wait, PATIENCE)
        await transport.send(RENEW, timeout=PATIENCE)
        assert server.connections == 2
        with anyio.fail_after(PATIENCE):
            await cut_off.wait()
        agent.opened.set()

    run(backend, server, scenario)


def test_a_renewal_does_not_wait_for_a_query_that_lasts(serve: Serve, backend: str) -> None:
    agent = Holding()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        async def ask() -> None:
            await transport.send(WATCH, timeout=PATIENCE)

        group.start_soon(ask)
        await anyio.to_thread.run_sync(agent.asked.wait, PATIENCE)
        await transport.send(RENEW, timeout=PATIENCE)
        assert server.connections == 2
        agent.opened.set()

    run(backend, server, scenario)


# -- the limit on connections

TOLD = b"Your IP is issuing too many concurrent connections, please rate limit your calls\n"
BUSY = b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (
    len(TOLD),
    TOLD,
)


class Full:
    """An agent that has no room for so many connections, and says so or hangs up."""

    def __init__(self, refused: int, *, reply: bytes = b"") -> None:
        self._left = refused
        self._reply = reply
        self.tried: list[bytes] = []

    def handle(self, peer: Peer) -> None:
        if self._left > 0:
            self._left -= 1
            if self._reply:
                peer.request()
                peer.send(self._reply)
            return
        while (request := peer.request()) is not None:
            self.tried.append(request.split(b" HTTP")[0])
            peer.send(OK)


def test_a_first_refusal_leaves_a_write_unknown_and_the_next_is_tried_out_first(
    serve: Serve, backend: str
) -> None:
    agent = Full(3)
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        told: list[None] = []
        transport.listen(lambda: told.append(None))
        with pytest.raises(BrokenReply, match=r"limits\.http_max_conns_per_client") as refused:
            await transport.send(WRITE, timeout=PATIENCE)
        assert refused.value.outcome_unknown
        assert (await transport.send(WRITE, timeout=PATIENCE)).body == b"true"
        assert len(told) == 2

    run(backend, server, scenario)
    assert agent.tried == [b"GET /v1/status/leader", b"PUT /v1/kv/a"]


@pytest.mark.parametrize("retry", [Retry.IDEMPOTENT, Retry.NEVER])
def test_beside_a_query_a_write_is_not_repeated_over_a_new_connection(
    serve: Serve, backend: str, retry: Retry
) -> None:
    """Its end may be the limit's or a proxy's, and then a copy of it may come late."""
    asked, seen = threading.Event(), list[bytes]()

    def handle(peer: Peer) -> None:
        while (request := peer.request()) is not None:
            line = request.partition(b" HTTP/")[0]
            if line.startswith(b"PUT "):
                seen.append(line)
                return  # without a reply
            if b"index=" in line:
                asked.set()
                peer.request()  # never: the query goes on
            peer.send(OK)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        group.start_soon(partial(transport.send, WATCH, timeout=PATIENCE))
        await anyio.to_thread.run_sync(asked.wait, PATIENCE)
        with pytest.raises(BrokenReply) as broken:
            await transport.send(replace(WRITE, retry=retry), timeout=PATIENCE)
        assert broken.value.outcome_unknown
        group.cancel_scope.cancel()

    run(backend, serve(handle), scenario)
    assert seen == [b"PUT /v1/kv/a"]


def test_a_refusal_that_is_told_leaves_nothing_unknown(serve: Serve, backend: str) -> None:
    agent = Full(2, reply=BUSY)
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        assert (await transport.send(WRITE, timeout=PATIENCE)).body == b"true"

    run(backend, server, scenario)
    assert agent.tried[-1] == b"PUT /v1/kv/a"


def test_when_there_is_no_room_for_long_the_error_names_the_limit(serve: Serve, backend: str) -> None:
    server = serve(Full(1_000).handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        with pytest.raises(BrokenReply):
            await transport.send(WRITE, timeout=PATIENCE)
        with pytest.raises(TooManyConnections, match=r"limits\.http_max_conns_per_client") as refused:
            await transport.send(WRITE, timeout=2.0)
        assert not refused.value.outcome_unknown

    run(backend, server, scenario)
    assert server.connections < 10


@pytest.mark.parametrize("times", [(0.5, PATIENCE), (PATIENCE, 0.5)], ids=["other agents", "its own time"])
def test_for_room_it_is_waited_until_other_agents_are_to_be_asked_or_the_requests_time_is_over(
    serve: Serve, backend: str, times: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "SOON", PATIENCE)  # a busy machine may be slow to hang up
    server = serve(Full(1_000).handle)
    within, timeout = times

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        with pytest.raises(BrokenReply):
            await transport.send(WRITE, timeout=PATIENCE)
        transport.connect_within = within
        began = time.monotonic()
        with pytest.raises(TooManyConnections):
            await transport.send(WRITE, timeout=timeout)
        assert time.monotonic() - began < PATIENCE / 2

    run(backend, server, scenario)


def test_at_the_limit_a_request_waits_for_a_connection_of_its_own_client(serve: Serve, backend: str) -> None:
    agent, full = Holding(), threading.Event()

    def handle(peer: Peer) -> None:
        if not full.is_set():
            full.set()
            agent.handle(peer)

    server = serve(handle)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        group.start_soon(partial(transport.send, WATCH, timeout=PATIENCE))
        await anyio.to_thread.run_sync(agent.asked.wait, PATIENCE)
        group.start_soon(partial(anyio.to_thread.run_sync, agent.opened.set))
        assert (await transport.send(WRITE, timeout=PATIENCE)).body == b"true"

    run(backend, server, scenario)
    assert [request.split(b" ")[0] for request in server.requests if b"kv/a" in request] == [b"GET", b"PUT"]


def test_at_the_limit_it_does_so_also_after_another_connection_has_ended(serve: Serve, backend: str) -> None:
    agent, numbers, ended = Holding(), itertools.count(), threading.Event()

    def handle(peer: Peer) -> None:
        number = next(numbers)
        if number == 0:
            agent.handle(peer)
        elif number == 1:
            peer.request()
            peer.send(OK)
            peer.request()
            ended.set()
        else:  # there is no room for a third one
            agent.opened.set()

    server = serve(handle)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        group.start_soon(partial(transport.send, WATCH, timeout=PATIENCE))
        await wait_for(agent.asked)
        for _ in range(2):
            assert (await transport.send(READ, timeout=PATIENCE / 4)).body == b"true"
        assert ended.is_set()
        assert agent.opened.is_set()

    run(backend, server, scenario)


class Apart:
    """An agent that answers a request when the test says so; over which connection shows in ``seen``."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.seen: list[tuple[int, bytes]] = []
        self.asked = {b"GET": threading.Event(), b"PUT": threading.Event()}
        self.opened = {b"GET": threading.Event(), b"PUT": threading.Event()}

    def handle(self, peer: Peer) -> None:
        number = next(self._numbers)
        while (request := peer.request()) is not None:
            line = request.split(b" HTTP")[0]
            self.seen.append((number, line))
            verb, _, path = line.partition(b" ")
            if path != b"/v1/status/leader":
                self.asked[verb].set()
                assert self.opened[verb].wait(PATIENCE)
            peer.send(LAST if verb == b"GET" and path != b"/v1/status/leader" else OK)


LAST = OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


@pytest.mark.parametrize("first_ends", [True, False], ids=["alone", "beside"])
def test_at_the_limit_a_client_keeps_the_new_connection_unless_it_still_has_another(
    serve: Serve, backend: str, *, first_ends: bool
) -> None:
    """Without one it would have to find room again, which others may have taken."""
    agent = Apart()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        written = anyio.Event()

        async def write() -> None:
            await transport.send(WRITE, timeout=PATIENCE)
            written.set()

        async with anyio.create_task_group() as second:
            async with anyio.create_task_group() as first:
                first.start_soon(partial(transport.send, READ, timeout=PATIENCE))
                await wait_for(agent.asked[b"GET"])
                transport.pool.limit.refused(time.monotonic())
                second.start_soon(write)
                await wait_for(agent.asked[b"PUT"])
                if not first_ends:
                    agent.opened[b"PUT"].set()
                    await written.wait()
                    assert transport.pool.limit.is_near(time.monotonic())
                agent.opened[b"GET"].set()
            agent.opened[b"PUT"].set()
        assert len(transport.pool.idle) == first_ends
        assert not transport.pool.limit.is_near(time.monotonic())

    run(backend, server, scenario)
    assert [number for number, request in agent.seen if request.startswith(b"PUT")] == [1]


def test_at_the_limit_a_connection_that_was_answered_near_it_counts_as_another(
    serve: Serve, backend: str
) -> None:
    """A further one is not kept then: its place is free for other clients at once."""
    agent = Holding()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        transport.pool.limit.refused(time.monotonic())
        await transport.send(RENEW, timeout=PATIENCE)
        group.start_soon(partial(transport.send, WATCH, timeout=PATIENCE))
        await wait_for(agent.asked)
        transport.pool.limit.refused(time.monotonic())
        await transport.send(RENEW, timeout=PATIENCE)
        found = server.connections, len(transport.pool.idle)
        agent.opened.set()
        assert found == (2, 0)

    run(backend, server, scenario)


def test_at_the_limit_a_query_begins_once_no_other_request_waits_for_a_connection(
    serve: Serve, backend: str
) -> None:
    agent, bodies = Apart(), list[bytes]()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        async def send(request: Request) -> None:
            bodies.append((await transport.send(request, timeout=PATIENCE)).body)

        group.start_soon(send, RENEW)
        await wait_for(agent.asked[b"PUT"])
        for _ in range(PATIENT + 1):
            transport.pool.limit.refused(time.monotonic())
        for request in (READ, WATCH):
            group.start_soon(send, request)
            await anyio.wait_all_tasks_blocked()
        assert transport.pool.waiting
        for opened in agent.opened.values():
            opened.set()

    run(backend, server, scenario)
    assert bodies == [b"true"] * 3
    assert [b"index=" in request for _, request in agent.seen] == [False, False, True]


def test_at_the_limit_a_connection_that_other_requests_wait_for_is_kept(serve: Serve, backend: str) -> None:
    agent = Apart()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        group.start_soon(partial(transport.send, replace(RENEW, keep=0.0), timeout=PATIENCE))
        await wait_for(agent.asked[b"PUT"])
        for _ in range(PATIENT + 1):
            transport.pool.limit.refused(time.monotonic())
        group.start_soon(partial(transport.send, READ, timeout=PATIENCE))
        await anyio.wait_all_tasks_blocked()
        assert transport.pool.waiting
        for opened in agent.opened.values():
            opened.set()

    run(backend, server, scenario)
    assert [number for number, _ in agent.seen] == [0, 0]


# -- giving others a place

BEGIN = replace(WRITE, begins=lambda: True)


class Changing:
    """An agent that hangs up on one connection, by its number, and answers on all others."""

    def __init__(self, refused: int | None = None) -> None:
        self._refused = refused
        self._numbers = itertools.count()
        self.seen: list[tuple[int, bytes]] = []
        self.ended: set[int] = set()

    def handle(self, peer: Peer) -> None:
        number = next(self._numbers)
        if number == self._refused:
            return
        while (request := peer.request()) is not None:
            self.seen.append((number, request.split(b" HTTP")[0]))
            peer.send(OK)
        self.ended.add(number)

    def writes(self) -> list[int]:
        return [number for number, request in self.seen if request.startswith(b"PUT")]


@pytest.fixture
def old_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each connection count as one that was used for long."""
    monkeypatch.setattr(pool, "STAY", 0.0)


async def writes(transport: StreamTransport, *requests: Request) -> None:
    for request in requests:
        assert (await transport.send(request, timeout=PATIENCE)).body == b"true"


@pytest.mark.usefixtures("old_at_once")
def test_what_begins_exchanges_an_old_connection_for_a_new_one(serve: Serve, backend: str) -> None:
    agent = Changing()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await writes(transport, BEGIN, WRITE, BEGIN, WRITE)

    run(backend, server, scenario)
    assert agent.writes() == [0, 0, 1, 1]
    assert agent.seen[2] == (1, b"GET /v1/status/leader"), "tried out before a write"


@pytest.mark.usefixtures("old_at_once")
def test_without_room_for_a_new_one_the_old_place_is_given_up(serve: Serve, backend: str) -> None:
    agent = Changing(refused=1)
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await writes(transport, BEGIN)
        began = time.monotonic()
        await writes(transport, BEGIN)
        assert time.monotonic() - began >= ASIDE / 2, "others could not come first"

    run(backend, server, scenario)
    assert agent.writes() == [0, 2]


def test_a_young_connection_stays(serve: Serve, backend: str) -> None:
    agent = Changing()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await writes(transport, BEGIN, BEGIN)

    run(backend, server, scenario)
    assert agent.writes() == [0, 0]


@pytest.mark.usefixtures("old_at_once")
@pytest.mark.parametrize(
    "request_",
    [WRITE, replace(WRITE, urgent=True), replace(WRITE, begins=lambda: False)],
    ids=["amid", "renewal", "holds"],
)
def test_what_has_something_to_lose_keeps_its_connection(
    serve: Serve, backend: str, request_: Request
) -> None:
    agent = Changing()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await writes(transport, request_, request_)

    run(backend, server, scenario)
    assert agent.writes() == [0, 0]


@pytest.mark.usefixtures("old_at_once")
def test_a_call_with_little_time_keeps_its_connection(serve: Serve, backend: str) -> None:
    agent = Changing(refused=1)
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await writes(transport, BEGIN)
        assert (await transport.send(BEGIN, timeout=MOST / 2)).body == b"true"

    run(backend, server, scenario)
    assert agent.writes() == [0, 0]


@pytest.mark.usefixtures("old_at_once")
def test_a_client_that_watches_something_keeps_its_connections(serve: Serve, backend: str) -> None:
    agent = Holding()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, group: anyio.abc.TaskGroup) -> None:
        group.start_soon(partial(transport.send, WATCH, timeout=PATIENCE))
        await anyio.to_thread.run_sync(agent.asked.wait, PATIENCE)
        harmless = replace(BEGIN, retry=Retry.READ)  # one that is sent without trying out
        await writes(transport, harmless, harmless)
        agent.opened.set()

    run(backend, server, scenario)
    assert server.connections == 2


@pytest.mark.usefixtures("old_at_once")
def test_without_another_way_in_the_old_connection_goes_on(serve: Serve, backend: str) -> None:
    agent = Changing()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await writes(transport, BEGIN)
        server.stop_listening()
        await writes(transport, BEGIN)

    run(backend, server, scenario)
    assert agent.writes() == [0, 0]


class Silent(Changing):
    """An agent that says nothing on its second connection."""

    def handle(self, peer: Peer) -> None:
        if self.seen and not self.ended:
            self.ended.add(1)
            peer.request()
            peer.request()  # until the client hangs up
        else:
            super().handle(peer)


@pytest.mark.usefixtures("old_at_once")
def test_a_new_connection_that_is_not_answered_costs_the_call_a_moment(
    serve: Serve, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "SOON", 0.2)
    agent = Silent()
    server = serve(agent.handle)

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await writes(transport, BEGIN, BEGIN)

    run(backend, server, scenario)
    assert agent.writes() == [0, 0]

    agent = Silent()
    transport = DirectTransport(Settings.resolve(address=serve(agent.handle).address, environ={}))
    for _ in range(2):
        assert transport.send(BEGIN, timeout=PATIENCE).body == b"true"
    transport.close()
    assert agent.writes() == [0, 0]


@pytest.mark.usefixtures("old_at_once")
def test_a_call_that_is_interrupted_while_it_tries_out_a_new_connection_ends_there(
    serve: Serve, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Changing()
    server = serve(agent.handle)

    async def interrupt(*_: object) -> bytes:
        raise KeyboardInterrupt

    async def scenario(transport: StreamTransport, _: anyio.abc.TaskGroup) -> None:
        await writes(transport, BEGIN)
        monkeypatch.setattr(transport, "_read_soon", interrupt)
        with pytest.raises(KeyboardInterrupt):
            await transport.send(BEGIN, timeout=PATIENCE)
        assert not transport.pool.open.all()

    run(backend, server, scenario)
    assert len(agent.writes()) == 1

    transport = DirectTransport(Settings.resolve(address=server.address, environ={}))
    transport.send(BEGIN, timeout=PATIENCE)
    monkeypatch.setattr(transport, "_read_soon", interrupt)
    with pytest.raises(KeyboardInterrupt):
        transport.send(BEGIN, timeout=PATIENCE)
    assert not transport.pool.open.all()
    assert len(agent.writes()) == 2
