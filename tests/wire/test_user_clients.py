"""What is particular to clients of httpx that the user brings."""

from __future__ import annotations

import itertools
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
import httpcore
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consul_coord import threads
from consul_coord.config import Settings
from consul_coord.errors import BrokenReply, ClientClosed, ConnectFailed, RequestTimeout, TransportError
from consul_coord.http.messages import Request, Response, Retry
from consul_coord.http.transport import bounded, user_clients
from consul_coord.http.transport.base import SendCancelled
from consul_coord.http.transport.bounded import call_bounded
from consul_coord.http.transport.build import async_transport, sync_transport
from consul_coord.io import Signal
from tests.support.sites import never
from tests.support.stalls import lasting
from tests.wire.servers import OK, PATIENCE, always
from tests.wire.test_connections import cancelled_send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from consul_coord.http.transport.base import Transport
    from tests.wire.conftest import Serve
    from tests.wire.servers import Peer

GET = Request("GET", "/v1/kv/a", retry=Retry.READ)
CAS = Request("PUT", "/v1/kv/a", body=b"v", retry=Retry.NEVER)
HERE = Settings.resolve(address="http://127.0.0.1:8500", token="s3cret", environ={})

Handler = Callable[[httpx.Request], httpx.Response]
Send = Callable[..., Response]


def send_sync(handler: Handler, request: Request, *, timeout: float = 5.0, **options: object) -> Response:
    with httpx.Client(transport=httpx.MockTransport(handler), **options) as client:  # type: ignore[arg-type]
        return sync_transport(HERE, http_client=client).send(request, timeout=timeout)


def send_async(handler: Handler, request: Request, *, timeout: float = 5.0, **options: object) -> Response:
    async def main() -> Response:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler), **options) as client:  # type: ignore[arg-type]
            return await async_transport(HERE, http_client=client).send(request, timeout=timeout)

    return anyio.run(main)


SENDERS = pytest.mark.parametrize("send", [send_sync, send_async])


@SENDERS
def test_a_mock_transport_gets_the_whole_request(send: Send) -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, headers={"X-Consul-Index": "7"}, json=[1])

    response = send(handle, CAS, headers={"X-Trace": "1"}, base_url="http://elsewhere:1/base")
    assert (response.status, response.headers["x-consul-index"], response.body) == (200, "7", b"[1]")
    (request,) = seen
    assert str(request.url) == "http://127.0.0.1:8500/v1/kv/a"
    assert request.headers["x-consul-token"] == "s3cret"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["x-trace"] == "1"
    assert request.read() == b"v"


@SENDERS
def test_parameters_of_the_client_stand_beside_those_of_the_request(send: Send) -> None:
    """By itself httpx lets them replace the whole query: a write with a condition would have none."""
    seen: list[httpx.URL] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        return httpx.Response(200, json=True)

    write = Request("PUT", "/v1/kv/a", params=(("cas", "0"), ("dc", "d +/&")), body=b"v", retry=Retry.NEVER)
    flag = Request("GET", "/v1/kv/a", params=(("recurse", ""),), retry=Retry.READ)
    for request in (write, flag, GET):
        send(handle, request, params={"key": "k 1", "dc": "theirs"})
    assert [url.params.multi_items() for url in seen] == [
        [("key", "k 1"), ("dc", "d +/&"), ("cas", "0")],
        [("key", "k 1"), ("dc", "theirs"), ("recurse", "")],
        [("key", "k 1"), ("dc", "theirs")],
    ]


BROUGHT: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "headers": ({"headers": {"X-Trace": "1"}}, "x-trace", ["1", "1"]),
    "parameters": ({"params": {"trace": "1"}}, "query", ["trace=1", "trace=1"]),
    "cookies": ({"cookies": {"way": "1"}}, "cookie", ["way=1", "stick=2; way=1"]),
    "cookies of replies": ({}, "cookie", ["", "stick=2"]),
    "a login": ({"auth": ("us", "pw")}, "authorization", ["Basic dXM6cHc=", "Basic dXM6cHc="]),
}
"""Settings of an httpx client, where the server looks for them, and what it finds in each of two requests."""


@pytest.mark.parametrize("what", BROUGHT)
@pytest.mark.parametrize("kind", [httpx.Client, httpx.AsyncClient])
def test_what_the_client_adds_to_requests_goes_with_each_of_ours(kind: type[Any], what: str) -> None:
    """A balancer of load, say, keeps a client at one agent by a cookie."""
    options, name, expected = BROUGHT[what]
    seen: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        found = request.url.query.decode() if name == "query" else request.headers.get(name, "")
        seen.append("; ".join(sorted(found.split("; "))))
        assert request.headers["x-consul-token"] == "s3cret"
        return httpx.Response(200, headers={"Set-Cookie": "stick=2"}, json=True)

    client = kind(transport=httpx.MockTransport(handle), **options)
    for _ in range(2):
        if kind is httpx.Client:
            sync_transport(HERE, http_client=client).send(CAS, timeout=5.0)
        else:
            anyio.run(lambda: async_transport(HERE, http_client=client).send(CAS, timeout=5.0))
    assert seen == expected


@SENDERS
def test_no_stage_of_a_request_may_last_longer_than_the_call(send: Send) -> None:
    """Also the wait for a place in the client's own pool, which may have none left."""
    seen: dict[str, float] = {}

    def handle(request: httpx.Request) -> httpx.Response:
        seen.update(request.extensions["timeout"])
        return httpx.Response(200, json=[])

    send(handle, GET, timeout=3.0)
    assert sorted(seen) == ["connect", "pool", "read", "write"]
    assert all(0 < seconds <= 3.0 for seconds in seen.values())


class Signs:
    """Adds a header of its own to whatever its client builds."""

    def build_request(self, *arguments: Any, **options: Any) -> httpx.Request:
        built: httpx.Request = super().build_request(*arguments, **options)  # type: ignore[misc]
        built.headers["X-Signed"] = "1"
        return built


class Signing(Signs, httpx.Client):
    """A client of a user's own."""


class AsyncSigning(Signs, httpx.AsyncClient):
    """The same."""


@pytest.mark.parametrize("kind", [Signing, AsyncSigning])
def test_a_client_that_builds_requests_in_its_own_way_does_so(kind: type[Any]) -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=[1])

    client = kind(transport=httpx.MockTransport(handle))
    if kind is Signing:
        sync_transport(HERE, http_client=client).send(CAS, timeout=5.0)
    else:
        anyio.run(lambda: async_transport(HERE, http_client=client).send(CAS, timeout=5.0))
    assert [request.headers.get("x-signed") for request in seen] == ["1"]


@SENDERS
def test_redirects_are_not_followed_though_the_client_would(send: Send) -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(301, headers={"Location": "http://elsewhere/"})

    assert send(handle, GET, follow_redirects=True).status == 301
    assert asked == ["http://127.0.0.1:8500/v1/kv/a"]


FAILURES: dict[type[Exception], tuple[type[TransportError], bool]] = {
    httpx.ConnectError: (ConnectFailed, False),
    httpx.ProxyError: (ConnectFailed, False),
    httpx.UnsupportedProtocol: (ConnectFailed, False),
    httpx.ConnectTimeout: (RequestTimeout, False),
    httpx.PoolTimeout: (RequestTimeout, False),
    httpx.ReadTimeout: (RequestTimeout, True),
    httpx.WriteTimeout: (RequestTimeout, True),
    httpx.ReadError: (BrokenReply, True),
    httpx.WriteError: (BrokenReply, True),
    httpx.RemoteProtocolError: (BrokenReply, True),
    httpx.LocalProtocolError: (BrokenReply, True),
}


@SENDERS
@pytest.mark.parametrize("failure", FAILURES)
def test_each_of_its_exceptions_becomes_one_of_ours(send: Send, failure: type[Exception]) -> None:
    expected, unknown = FAILURES[failure]

    def handle(request: httpx.Request) -> httpx.Response:
        raise failure("it happened")

    with pytest.raises(expected) as raised:
        send(handle, CAS)
    assert raised.value.outcome_unknown is unknown
    assert isinstance(raised.value.__cause__, failure)


class Twice(httpx.HTTPTransport):
    """Repeats what fails, as some transports of users do."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return super().handle_request(request)
        except httpx.TransportError:
            return super().handle_request(request)


class AsyncTwice(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except httpx.TransportError:
            return await super().handle_async_request(request)


@pytest.fixture
def lost_once() -> Iterator[Settings]:
    """An agent that takes one request, and is gone before it answers."""
    listener = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        peer, _ = listener.accept()
        listener.close()
        peer.recv(65536)
        peer.close()

    thread = threading.Thread(target=take)
    thread.start()
    yield Settings.resolve(address=f"http://127.0.0.1:{listener.getsockname()[1]}", environ={})
    thread.join(PATIENCE)


def test_a_transport_that_repeats_by_itself_hides_no_request_that_was_sent(lost_once: Settings) -> None:
    with httpx.Client(transport=Twice()) as client, pytest.raises(ConnectFailed) as raised:
        sync_transport(lost_once, http_client=client).send(CAS, timeout=PATIENCE)
    assert raised.value.outcome_unknown


def test_an_async_transport_that_repeats_hides_none_either(lost_once: Settings) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(transport=AsyncTwice()) as client:
            await async_transport(lost_once, http_client=client).send(CAS, timeout=PATIENCE)

    with pytest.raises(ConnectFailed) as raised:
        anyio.run(main)
    assert raised.value.outcome_unknown


def test_a_proxy_that_refuses_a_tunnel_was_sent_no_request(serve: Serve) -> None:
    def refuse(peer: Peer) -> None:
        assert (peer.request() or b"").startswith(b"CONNECT ")
        peer.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

    proxy = serve(refuse).address
    behind = Settings.resolve(address="https://127.0.0.1:8501", environ={})
    with httpx.Client(proxy=proxy) as client, pytest.raises(ConnectFailed) as raised:
        sync_transport(behind, http_client=client).send(CAS, timeout=PATIENCE)
    assert not raised.value.outcome_unknown


def test_a_proxy_that_hangs_before_its_tunnel_was_sent_no_request(serve: Serve) -> None:
    def hang(peer: Peer) -> None:
        peer.request()
        peer.wait_for_hang_up()

    proxy = serve(hang).address
    behind = Settings.resolve(address="https://127.0.0.1:8501", environ={})
    with httpx.Client(proxy=proxy) as client, pytest.raises(RequestTimeout) as raised:
        sync_transport(behind, http_client=client).send(CAS, timeout=0.3)
    assert not raised.value.outcome_unknown


@SENDERS
def test_a_users_own_exception_stays_what_it_is(send: Send) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise LookupError("from a hook")

    with pytest.raises(LookupError, match="from a hook"):
        send(handle, GET)


def test_the_callers_context_reaches_the_users_code() -> None:
    trace: ContextVar[str] = ContextVar("trace")
    trace.set("abc")
    assert send_sync(lambda _: httpx.Response(200, text=trace.get()), GET).body == b"abc"


def test_a_client_that_hangs_is_left_behind() -> None:
    released = threading.Event()

    def handle(request: httpx.Request) -> httpx.Response:
        released.wait(PATIENCE)
        return httpx.Response(200)

    with lasting(most=0.5):
        try:
            with pytest.raises(RequestTimeout) as raised:
                send_sync(handle, CAS, timeout=0.2)
        finally:
            released.set()
    assert raised.value.outcome_unknown is True


def test_requests_one_after_the_other_start_no_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    start = threading.Thread.start

    def note(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    threads = set()

    def handle(_: httpx.Request) -> httpx.Response:
        threads.add(threading.get_ident())
        return httpx.Response(200)

    with httpx.Client(transport=httpx.MockTransport(handle)) as client:
        transport = sync_transport(HERE, http_client=client)
        for _ in range(20):
            transport.send(GET, timeout=PATIENCE)
    assert started.count("consul-coord-call") <= 1
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_a_call_left_behind_keeps_its_thread_from_the_next_ones() -> None:
    released, hang = threading.Event(), [True]

    def handle(_: httpx.Request) -> httpx.Response:
        if hang.pop():
            released.wait(PATIENCE)
        hang.append(False)
        return httpx.Response(200)

    with httpx.Client(transport=httpx.MockTransport(handle)) as client:
        transport = sync_transport(HERE, http_client=client)
        try:
            with pytest.raises(RequestTimeout):
                transport.send(GET, timeout=0.1)
            hang.append(False)
            assert transport.send(GET, timeout=PATIENCE).status == 200
        finally:
            released.set()


def test_where_no_thread_can_be_had_a_call_is_made_here_and_its_caller_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "start", none_left)
    monkeypatch.setattr(bounded, "_idle", deque())
    call = bounded._Call(threading.get_ident)
    bounded._hand_over(call)
    assert call.result == (threading.get_ident(),)
    assert call.latch.acquire(blocking=False), "its caller would wait for its whole time"


def frame_of(kind: type[Any], *, shows_socket: bool = True) -> Any:
    """Return what is on the stack while a connection of httpcore's sends."""
    connection = object.__new__(kind)
    if shows_socket:
        connection._network_stream = SimpleNamespace(get_extra_info=lambda _: "its socket")
    code = SimpleNamespace(co_name="handle_request")
    return SimpleNamespace(f_code=code, f_locals={"self": connection}, f_back=None)


class Unknown:
    """Some other connection."""


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        (frame_of(httpcore.HTTP11Connection), "its socket"),
        (frame_of(httpcore.HTTP11Connection, shows_socket=False), None),
        (frame_of(httpcore.HTTP2Connection), None),
        (frame_of(Unknown), None),
        (None, None),
    ],
    ids=["HTTP/1", "no socket", "HTTP/2", "unknown", "none"],
)
def test_only_a_connection_of_one_exchange_that_shows_its_socket_is_used_without_a_helper(
    frame: Any, found: object
) -> None:
    """Versions of httpcore may differ in what they keep it in, and an end of HTTP/2 ends other exchanges."""
    assert user_clients._socket_above(frame) == found


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the timeouts of the exchanges that took place on a helper thread."""
    timeouts: list[float] = []

    def note(function: Callable[[], Response], **options: Any) -> Response:
        timeouts.append(options["timeout"])
        return call_bounded(function, **options)

    monkeypatch.setattr(user_clients, "call_bounded", note)
    return timeouts


WAITED = 0.6
"""Seconds for which a reply is waited for."""


@pytest.fixture
def warm(serve: Serve) -> Iterator[Callable[..., Transport]]:
    """Return a function that makes a transport whose connection was used once; then ``answer`` has it."""
    with ExitStack() as stack:

        def make(answer: Callable[[Peer], object], **options: Any) -> Transport:
            first = [True]

            def handle(peer: Peer) -> None:
                if first.pop():
                    peer.request()
                    peer.send(OK)
                first.append(False)
                answer(peer)

            client = stack.enter_context(httpx.Client(trust_env=False, **options))
            here = Settings.resolve(address=serve(handle).address, environ={})
            transport = sync_transport(here, http_client=client)
            transport.send(GET, timeout=PATIENCE)
            return transport

        yield make


def test_over_a_kept_connection_the_caller_makes_the_call(
    helped: list[float], warm: Callable[..., Transport]
) -> None:
    transport = warm(always(OK))
    assert len(helped) == 1
    for _ in range(10):
        assert transport.send(CAS, timeout=PATIENCE).body == b"true"
    assert len(helped) == 1


def test_where_httpx_does_not_show_its_transports_a_helper_makes_the_call(
    helped: list[float], monkeypatch: pytest.MonkeyPatch, warm: Callable[..., Transport]
) -> None:
    """It has no public name for them, so a later version may not have the one that is used."""
    transport_for: Callable[..., httpx.BaseTransport] = httpx.Client._transport_for_url

    def send(self: httpx.Client, request: httpx.Request) -> httpx.Response:
        response = transport_for(self, request.url).handle_request(request)
        response.request = request
        return response

    monkeypatch.setattr(httpx.Client, "_send_single_request", send)
    monkeypatch.delattr(httpx.Client, "_transport_for_url")
    transport = warm(always(OK))
    assert transport.send(CAS, timeout=PATIENCE).body == b"true"
    assert len(helped) == 2


def test_a_call_that_waits_for_its_reply_costs_no_time_of_the_processor(
    warm: Callable[..., Transport],
) -> None:
    """The watcher of its deadline sleeps."""

    def late(peer: Peer) -> None:
        peer.request()
        time.sleep(WAITED)  # time itself: it is what the call waits for
        peer.send(OK)

    transport = warm(late)
    spent = time.process_time()
    assert transport.send(CAS, timeout=PATIENCE).body == b"true"
    assert time.process_time() - spent < WAITED / 3


def test_where_all_connections_of_the_client_are_in_use_one_is_waited_for(
    helped: list[float], warm: Callable[..., Transport]
) -> None:
    """Not on the caller's thread, where nothing could end that."""
    asked, opened = threading.Event(), threading.Event()

    def late(peer: Peer) -> None:
        peer.request()
        asked.set()
        assert opened.wait(PATIENCE)
        peer.send(OK)
        always(OK)(peer)

    transport = warm(late, limits=httpx.Limits(max_connections=1))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(transport.send, CAS, timeout=PATIENCE)
        assert asked.wait(PATIENCE)
        with lasting(most=0.4), pytest.raises(RequestTimeout):
            transport.send(CAS, timeout=0.1)
        second = pool.submit(transport.send, CAS, timeout=PATIENCE)
        opened.set()
        assert [each.result(PATIENCE).body for each in (first, second)] == [b"true"] * 2
    assert len(helped) == 3


@pytest.mark.parametrize("kind", ["blocking", "asyncio", "trio"])
def test_what_waited_for_a_connection_of_the_client_for_all_its_time_was_not_sent(
    serve: Serve, kind: str
) -> None:
    asked, limits = threading.Event(), httpx.Limits(max_connections=1)

    def hold_on(peer: Peer) -> None:
        peer.request()
        asked.set()
        peer.wait_for_hang_up()

    server = serve(hold_on)
    here = Settings.resolve(address=server.address, environ={})

    async def in_two_tasks() -> None:
        async with httpx.AsyncClient(trust_env=False, limits=limits) as client:
            transport = async_transport(here, http_client=client)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(transport.send, CAS, timeout=PATIENCE))
                assert await anyio.to_thread.run_sync(asked.wait, PATIENCE)
                try:
                    await transport.send(CAS, timeout=1.0)
                finally:
                    group.cancel_scope.cancel()

    def in_two_threads() -> None:
        with httpx.Client(trust_env=False, limits=limits) as client, ThreadPoolExecutor(1) as pool:
            transport = sync_transport(here, http_client=client)
            pool.submit(transport.send, CAS, timeout=PATIENCE)
            assert asked.wait(PATIENCE)
            try:
                transport.send(CAS, timeout=1.0)
            finally:
                server.disconnect()

    with pytest.raises((RequestTimeout, BaseExceptionGroup)) as raised:
        in_two_threads() if kind == "blocking" else anyio.run(in_two_tasks, backend=kind)
    errors = raised.value.exceptions if isinstance(raised.value, BaseExceptionGroup) else [raised.value]
    (error,) = errors
    assert isinstance(error, RequestTimeout)
    assert len(server.requests) == 1
    assert "no connection" in str(error)
    assert error.outcome_unknown is False


def test_a_connection_that_has_ended_is_replaced(helped: list[float], serve: Serve) -> None:
    def once(peer: Peer) -> None:
        peer.request()
        peer.send(OK)

    server = serve(once)
    with httpx.Client(trust_env=False) as client:
        here = Settings.resolve(address=server.address, environ={})
        transport = sync_transport(here, http_client=client)
        for number in range(3):
            while number and not _has_ended(client):
                time.sleep(0.01)
            assert transport.send(CAS, timeout=PATIENCE).status == 200
    assert len(server.requests) == 3
    assert len(helped) == 3


def _has_ended(client: httpx.Client) -> bool:
    connections = client._transport._pool.connections  # type: ignore[attr-defined]
    return all(connection.has_expired() for connection in connections)


def silent(peer: Peer) -> None:
    peer.request()
    peer.wait_for_hang_up()


def slow_head(peer: Peer) -> None:
    peer.request()
    peer.drip(b"HTTP/1.1 200 OK\r\n" + b"X-A: a\r\n" * 100, pause=0.02)


def slow_body(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    peer.drip(bytes(1000), pause=0.02)


def slow_chunk(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1")
    peer.drip(b";" + b"a" * 1000, pause=0.02)


def endless(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
    peer.wait_for_hang_up()


SLOW = pytest.mark.parametrize("answer", [silent, slow_head, slow_body, slow_chunk, endless])


@SLOW
def test_a_slow_reply_over_a_kept_connection_ends_at_the_limit(
    helped: list[float], warm: Callable[..., Transport], answer: Callable[[Peer], object]
) -> None:
    transport = warm(answer)
    with lasting(least=0.55, most=0.9), pytest.raises(RequestTimeout) as raised:
        transport.send(CAS, timeout=0.6)
    assert raised.value.outcome_unknown is True
    assert "0.6 s" in str(raised.value)
    assert len(helped) == 1


def broken_off(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf of it")


def test_a_reply_that_breaks_off_over_a_kept_connection_is_no_timeout(warm: Callable[..., Transport]) -> None:
    transport = warm(broken_off)
    with pytest.raises(BrokenReply) as raised:
        transport.send(CAS, timeout=PATIENCE)
    assert raised.value.outcome_unknown is True


@SLOW
def test_a_request_over_a_kept_connection_can_be_cancelled(
    helped: list[float], warm: Callable[..., Transport], answer: Callable[[Peer], object]
) -> None:
    transport, cancel = warm(answer), Signal()
    timer = threading.Timer(0.3, cancel.set)
    with lasting(least=0.25, most=0.5):
        timer.start()
        with pytest.raises(SendCancelled) as raised:
            transport.send(CAS, timeout=PATIENCE, cancel=cancel)
    timer.join()
    assert raised.value.error.outcome_unknown is True
    assert len(helped) == 1


@pytest.mark.parametrize("by", ["its cancellation", "Ctrl-C"])
def test_what_was_ended_before_it_was_sent_is_not_sent_later(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Its caller was told that nothing was applied."""
    server, connect = serve(always(OK)), socket.create_connection
    connecting, connected, go_on = threading.Event(), threading.Event(), threading.Event()
    noticed = threading.Event()

    def connect_slowly(*arguments: Any, **options: Any) -> socket.socket:
        connecting.set()
        assert go_on.wait(PATIENCE)
        sock = connect(*arguments, **options)
        connected.set()
        return sock

    def press_ctrl_c() -> None:
        """Press it until Python notices: a signal just before a wait is noticed when the wait ends."""
        assert connecting.wait(PATIENCE)
        while not noticed.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def interrupt_once(*_: object) -> None:
        if not noticed.is_set():
            noticed.set()
            raise KeyboardInterrupt

    monkeypatch.setattr(socket, "create_connection", connect_slowly)
    with httpx.Client(trust_env=False) as client:
        transport = sync_transport(Settings.resolve(address=server.address, environ={}), http_client=client)
        if by == "Ctrl-C":
            former = signal.signal(signal.SIGINT, interrupt_once)
            try:
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(press_ctrl_c)
                    with pytest.raises(KeyboardInterrupt):
                        transport.send(CAS, timeout=PATIENCE)
            finally:
                signal.signal(signal.SIGINT, former)
        else:
            cancelled = cancelled_send(transport, CAS, when=connecting)
            assert cancelled.error.outcome_unknown is False
        go_on.set()
        assert connected.wait(PATIENCE)
        never(lambda: server.requests, within=0.3)


def sending_and_cancelled(
    address: str, monkeypatch: pytest.MonkeyPatch, *, at_line: int
) -> SendCancelled | None:
    """Send, and cancel that when the thread that sends has come to so many lines of the transport.

    That thread goes on when the caller has its error, which is returned; None when it has less lines.
    """
    cancel, answered, lines = Signal(), threading.Event(), itertools.count(1)
    ended = threading.Event()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != user_clients.__file__:
            return None
        if event == "line" and next(lines) == at_line:
            cancel.set()
            assert answered.wait(PATIENCE)
        return trace

    def traced(function: Callable[[], Response]) -> Response:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return function()
        finally:
            sys.settrace(before)
            ended.set()

    def aside(function: Callable[[], Response], **options: Any) -> Response:
        return call_bounded(partial(traced, function), **options)

    monkeypatch.setattr(user_clients, "call_bounded", aside)
    with httpx.Client(trust_env=False, verify=False) as client:
        transport = sync_transport(Settings.resolve(address=address, environ={}), http_client=client)
        try:
            transport.send(CAS, timeout=PATIENCE, cancel=cancel)
        except SendCancelled as cancelled:
            return cancelled
        finally:
            answered.set()
            assert ended.wait(PATIENCE)
    return None


def test_what_is_cancelled_at_any_line_is_not_sent_if_its_caller_was_told_so(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's thread says what became of it, and another one sends it."""
    server, told = serve(always(OK)), set[bool]()
    for line in itertools.count(1):
        before = len(server.requests)
        cancelled = sending_and_cancelled(server.address, monkeypatch, at_line=line)
        if cancelled is None:
            break
        unknown = cancelled.error.outcome_unknown
        assert unknown or len(server.requests) == before, line
        told.add(unknown)
    assert told == {False, True}


def test_what_a_user_adds_may_hang_and_stays_off_the_callers_thread(
    helped: list[float], warm: Callable[..., Transport]
) -> None:
    class Login(httpx.Auth):
        pass

    class Wrapped(httpx.HTTPTransport):
        pass

    kinds: list[dict[str, Any]] = [
        {"auth": Login()},
        {"event_hooks": {"response": [lambda _: None]}},
        {"transport": Wrapped()},
        {"mounts": {"all://": Wrapped()}},
    ]
    for options in kinds:
        helped.clear()
        transport = warm(always(OK), **options)
        assert transport.send(CAS, timeout=PATIENCE).status == 200
        assert len(helped) == 2


def test_the_client_is_never_closed(serve: Serve) -> None:
    server = serve(always(OK))
    here = Settings.resolve(address=server.address, environ={})
    with httpx.Client(trust_env=False) as client:
        transport = sync_transport(here, http_client=client)
        transport.send(GET, timeout=1.0)
        transport.forget()
        transport.close()
        assert not client.is_closed
        with pytest.raises(ClientClosed):
            transport.send(GET, timeout=1.0)
        assert client.get(server.address).text == "true"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_async_client_is_never_closed(serve: Serve, backend: str) -> None:
    here = Settings.resolve(address=serve(always(OK)).address, environ={})

    async def main() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            transport = async_transport(here, http_client=client)
            await transport.send(GET, timeout=1.0)
            transport.forget()
            await transport.aclose()
            assert not client.is_closed

    anyio.run(main, backend=backend)


def test_a_client_closed_by_its_user() -> None:
    client = httpx.Client()
    client.close()
    with pytest.raises(ClientClosed, match=r"the httpx\.Client that carries its requests"):
        sync_transport(HERE, http_client=client).send(GET, timeout=1.0)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(key=st.text(min_size=1, max_size=20), value=st.text(max_size=20))
def test_httpx_leaves_the_encoding_as_it_is(key: str, value: str) -> None:
    request = Request("GET", "/v1/kv/" + quote("k" + key, safe="/"), params=(("dc", value),))
    seen: list[bytes] = []

    def handle(received: httpx.Request) -> httpx.Response:
        seen.append(received.url.raw_path)
        return httpx.Response(200)

    send_sync(handle, request)
    query = f"dc={quote(value, safe='')}" if value else "dc"
    assert seen == [f"{request.path}?{query}".encode()]
