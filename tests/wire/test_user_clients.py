"""What is particular to clients of httpx that the user brings."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consul_coord.config import Settings
from consul_coord.errors import BrokenReply, ClientClosed, ConnectFailed, RequestTimeout, TransportError
from consul_coord.http.messages import Request, Response, Retry
from consul_coord.http.transport.build import async_transport, sync_transport
from tests.support.stalls import lasting
from tests.wire.servers import OK, PATIENCE, always

if TYPE_CHECKING:
    from tests.wire.conftest import Serve

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
    with pytest.raises(ClientClosed):
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
