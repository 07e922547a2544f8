"""A unix socket whose listener is too busy to take one more connection: that is waited for, as over TCP."""

from __future__ import annotations

import errno
import socket
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from consul_coord.config import Settings
from consul_coord.errors import ConnectFailed, RequestTimeout
from consul_coord.http.messages import Request, Retry
from consul_coord.http.transport import dial, streams
from consul_coord.http.transport.exchange import DirectTransport
from tests.support.stalls import lasting
from tests.wire.servers import OK, PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


CAS = Request("PUT", "/v1/kv/a", params=(("cas", "7"),), body=b"v", retry=Retry.NEVER)


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[tuple[socket.socket, int]]:
    """Yield a listener that takes no more connections, and how many wait for it."""
    with ExitStack() as stack:
        listener = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
        listener.bind(str(tmp_path / "consul.sock"))
        listener.listen(0)
        for waiting in range(100):
            client = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            client.setblocking(False)
            code = client.connect_ex(listener.getsockname())
            if code == errno.EAGAIN:
                yield listener, waiting
                return
            if code:
                break
        pytest.skip("only Linux lets a connection to a crowded unix socket wait")


def settings_for(listener: socket.socket) -> Settings:
    return Settings.resolve(address=f"unix://{listener.getsockname()}", environ={})


def transport_to(listener: socket.socket) -> DirectTransport:
    return DirectTransport(settings_for(listener))


@contextmanager
def at_rest() -> Iterator[None]:
    """Fail if this thread computes for a fifth of a wait of half a second."""
    before = time.thread_time()
    yield
    assert time.thread_time() - before < 0.1


@contextmanager
def free_after(refused: threading.Event, crowd: tuple[socket.socket, int]) -> Iterator[None]:
    """Have a thread take all who wait, once another one was refused, and answer that one."""
    listener, waiting = crowd
    listener.settimeout(PATIENCE)

    def serve() -> None:
        assert refused.wait(PATIENCE)
        for _ in range(waiting):
            listener.accept()[0].close()
        with listener.accept()[0] as peer:
            peer.settimeout(PATIENCE)
            peer.recv(65536)
            peer.sendall(OK)

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield
    finally:
        server.join()


def test_a_listener_that_stays_busy_is_a_timeout_with_nothing_sent(crowd: tuple[socket.socket, int]) -> None:
    listener, _ = crowd
    with at_rest(), pytest.raises(RequestTimeout, match="no connection") as raised:
        transport_to(listener).send(CAS, timeout=0.5)
    assert raised.value.outcome_unknown is False


def test_where_another_agent_may_be_asked_it_is_waited_for_no_longer_than_that_takes(
    crowd: tuple[socket.socket, int],
) -> None:
    transport = transport_to(crowd[0])
    transport.connect_within = 0.2
    with lasting(least=0.2, most=PATIENCE / 2), pytest.raises(ConnectFailed) as raised:
        transport.send(CAS, timeout=PATIENCE)
    assert raised.value.outcome_unknown is False


def test_a_listener_that_becomes_free_is_reached(
    crowd: tuple[socket.socket, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, pause = threading.Event(), dial._pause

    def tell_and_pause(*args: Any) -> bool:
        refused.set()
        return pause(*args)

    monkeypatch.setattr(dial, "_pause", tell_and_pause)
    with free_after(refused, crowd), closing(transport_to(crowd[0])) as transport:
        assert transport.send(CAS, timeout=PATIENCE).status == 200


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_on_an_event_loop_it_is_waited_for_as_well(
    crowd: tuple[socket.socket, int], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    refused, sleep = threading.Event(), anyio.sleep

    async def tell_and_sleep(seconds: float) -> None:
        assert seconds == streams.FULL_PAUSE
        refused.set()
        await sleep(seconds)

    async def main() -> None:
        transport = streams.StreamTransport(settings_for(crowd[0]))
        with at_rest(), pytest.raises(RequestTimeout, match="no connection") as raised:
            await transport.send(CAS, timeout=0.5)
        assert raised.value.outcome_unknown is False
        monkeypatch.setattr(anyio, "sleep", tell_and_sleep)
        with free_after(refused, crowd):
            assert (await transport.send(CAS, timeout=PATIENCE)).status == 200
        await transport.aclose()

    anyio.run(main, backend=backend)
