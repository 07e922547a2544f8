"""How connections begin, end, go stale, are cancelled, and come through a fork."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from consul_coord.config import Settings
from consul_coord.errors import (
    BrokenReply,
    ConnectFailed,
    RequestTimeout,
    TooManyConnections,
    TransportError,
)
from consul_coord.http.messages import Request, Retry
from consul_coord.http.transport import dial
from consul_coord.http.transport.base import SendCancelled
from consul_coord.http.transport.build import sync_transport
from consul_coord.http.transport.exchange import DirectTransport
from consul_coord.http.transport.limit import PATIENT
from consul_coord.http.transport.pool import KEEP, MAX_IDLE
from consul_coord.http.transport.streams import StreamTransport
from tests.support.sites import eventually
from tests.support.stalls import lasting, stalls
from tests.wire.servers import OK, PATIENCE, always, answering, silent
from tests.wire.test_time import black_hole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from consul_coord.http.transport.base import Transport
    from consul_coord.http.transport.pool import Link, Pool
    from tests.wire.conftest import MakeEngine, Serve
    from tests.wire.engines import Engine
    from tests.wire.servers import Peer, RawServer

GET = Request("GET", "/v1/kv/a", retry=Retry.READ)
RENEW = Request("PUT", "/v1/session/renew/x", retry=Retry.IDEMPOTENT, urgent=True)
LOCK = Request("PUT", "/v1/txn", body=b"[]", retry=Retry.IDEMPOTENT)
QUERY = Request("GET", "/v1/kv/a", params=(("index", "7"),), retry=Retry.READ, hold_open=60.0)
CAS = Request("PUT", "/v1/kv/a", params=(("cas", "7"),), body=b"v", retry=Retry.NEVER)


def pool_of(engine: Engine) -> Pool:
    """Return the connections of one of the package's own engines."""
    transport = getattr(engine, "transport", None)
    assert isinstance(transport, DirectTransport | StreamTransport)
    return transport.pool


def settings_for(server: RawServer | str) -> Settings:
    return Settings.resolve(address=server if isinstance(server, str) else server.address, environ={})


# --- opening


def test_a_refused_connection_leaves_nothing_unknown(engine: MakeEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectFailed) as raised:
        engine(f"127.0.0.1:{port}").send(CAS)
    assert raised.value.outcome_unknown is False
    assert f"127.0.0.1:{port}" in str(raised.value)


def test_a_name_that_does_not_exist(own_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_args: object, **_options: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConnectFailed, match="not known"):
        own_engine("no-such-host.invalid:8500").send(CAS)


def test_a_failure_whose_reasons_go_round_in_a_circle_is_told(
    own_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of an error do that is raised once more while what came of it is handled."""

    def fail(*_args: object, **_options: object) -> list[object]:
        first, second = socket.gaierror(socket.EAI_NONAME, "no such name"), OSError("as of the first")
        first.__cause__, second.__cause__ = second, first
        raise first

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(ConnectFailed, match="no such name"):
        own_engine("some-host.invalid:8500").send(CAS)


def test_a_resolver_that_hangs_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: released.wait(PATIENCE))
    transport = DirectTransport(settings_for("some-host.invalid:8500"))
    with lasting(most=0.5):
        try:
            with pytest.raises(TimeoutError) as raised:
                transport.send(CAS, timeout=0.2)
        finally:
            released.set()
    assert getattr(raised.value, "outcome_unknown", None) is False


def look_up_as(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> None:
    """Have each name stand for these addresses."""
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: places)


@pytest.mark.parametrize("first", ["refuses", "is silent"])
def test_the_next_address_is_tried_when_one_fails(
    own_engine: MakeEngine, serve: Serve, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    server = serve(always(OK))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing: tuple[str, int] = listener.getsockname()
    with black_hole() as silent:
        host, _, port = silent.rpartition(":")
        failing = refusing if first == "refuses" else (host, int(port))
        look_up_as(monkeypatch, failing, ("127.0.0.1", server.port))
        sender = own_engine("two-addresses.invalid:8500")
        with lasting(most=0.9):
            assert sender.send(CAS, timeout=1.0).body == b"true"


def test_of_all_addresses_the_last_ones_failure_is_told(
    own_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing: tuple[str, int] = listener.getsockname()
    with black_hole() as silent:
        host, _, port = silent.rpartition(":")
        look_up_as(monkeypatch, refusing, (host, int(port)))
        sender: Any = own_engine("two-addresses.invalid:8500")
        sender.transport.connect_within = 0.2  # as where there is another agent
        with pytest.raises(ConnectFailed, match=r"Connection timed out|TimeoutError") as raised:
            sender.send(CAS, timeout=PATIENCE)
    assert raised.value.outcome_unknown is False


def test_a_name_is_looked_up_even_when_no_thread_can_be_had(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(always(OK))
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "consul-coord-call":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    transport = DirectTransport(settings_for(f"localhost:{server.port}"))
    assert transport.send(CAS, timeout=PATIENCE).body == b"true"
    transport.close()


def test_a_name_is_looked_up(own_engine: MakeEngine, serve: Serve) -> None:
    server = serve(always(OK))
    assert own_engine(f"localhost:{server.port}").send(GET).body == b"true"


def test_an_ipv6_address(own_engine: MakeEngine) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
            port = listener.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with pytest.raises(ConnectFailed, match=rf"\[::1\]:{port}"):
        own_engine(f"[::1]:{port}").send(GET)


def test_a_unix_socket(own_engine: MakeEngine, serve: Serve, tmp_path: Path) -> None:
    server = serve(always(OK), uds=tmp_path / "agent.sock")
    sender = own_engine(server)
    assert [sender.send(CAS).body for _ in range(3)] == [b"true"] * 3
    assert b"\r\nHost: localhost\r\n" in server.requests[0]
    assert server.connections == 1


def test_a_call_ends_also_while_errors_are_handled_that_refer_to_each_other(
    engine: MakeEngine, tmp_path: Path
) -> None:
    """The error of a connection has what is handled as its context, and a certificate is looked for there."""
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__cause__ = second, first
    sender = engine(f"unix://{tmp_path}/none.sock")
    try:
        raise first
    except ValueError:
        with pytest.raises(ConnectFailed):
            sender.send(CAS)


def test_a_unix_socket_that_is_not_there(own_engine: MakeEngine, tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed):
        own_engine(f"unix://{tmp_path}/none.sock").send(CAS)


def test_sockets_send_small_requests_at_once(serve: Serve) -> None:
    transport = DirectTransport(settings_for(serve(always(OK))))
    transport.send(GET, timeout=1.0)
    (link,) = transport.pool.open.all()
    assert link.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    transport.close()


# --- ending


def test_a_reset_within_the_body(engine: MakeEngine, serve: Serve) -> None:
    def handle(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        peer.reset()

    with pytest.raises(BrokenReply) as raised:
        engine(serve(handle)).send(CAS)
    assert raised.value.outcome_unknown is True


def closing_after_a_reply(peer: Peer) -> None:
    """Promise to keep the connection, and close it."""
    peer.request()
    peer.send(OK)


def test_a_connection_closed_while_idle_is_noticed(own_engine: MakeEngine, serve: Serve) -> None:
    server = serve(closing_after_a_reply)
    sender = own_engine(server)
    for _ in range(3):
        assert sender.send(CAS).body == b"true"
        server.wait_until_idle()
    assert server.connections == 3


def hang_up_on_the_second(peer: Peer) -> None:
    """Answer once per connection; read the next request, and close without a byte."""
    peer.request()
    peer.send(OK)
    peer.request()


@pytest.mark.parametrize("request_", [GET, RENEW])
def test_a_lost_race_with_the_agents_close_is_repeated_once(
    own_engine: MakeEngine, serve: Serve, request_: Request
) -> None:
    server = serve(hang_up_on_the_second)
    sender = own_engine(server)
    assert [sender.send(request_).body for _ in range(3)] == [b"true"] * 3
    assert server.connections == 3
    assert len(server.requests) == 5


@pytest.mark.parametrize("request_", [CAS, LOCK])
def test_a_lost_race_is_not_repeated_when_a_late_copy_could_do_harm(
    own_engine: MakeEngine, serve: Serve, request_: Request
) -> None:
    server = serve(hang_up_on_the_second)
    sender = own_engine(server)
    assert sender.send(request_).body == b"true"
    with pytest.raises(BrokenReply) as raised:
        sender.send(request_)
    assert raised.value.outcome_unknown is True
    assert len(server.requests) == 2


def test_a_repeat_happens_only_on_a_connection_used_before(own_engine: MakeEngine, serve: Serve) -> None:
    server = serve(answering(b""))
    with pytest.raises(BrokenReply):
        own_engine(server).send(RENEW)
    assert len(server.requests) == 1


def test_idle_connections_are_bounded(serve: Serve) -> None:
    crowd = MAX_IDLE + 4
    together = threading.Barrier(crowd)

    def handle(peer: Peer) -> None:
        while peer.request() is not None:
            together.wait(PATIENCE)
            peer.send(OK)

    server = serve(handle)
    transport = DirectTransport(settings_for(server))
    with ThreadPoolExecutor(crowd) as threads:
        assert len(list(threads.map(lambda _: transport.send(GET, timeout=PATIENCE), range(crowd)))) == crowd
    assert server.connections == crowd
    assert len(transport.pool.open.all()) == MAX_IDLE
    transport.close()
    assert not transport.pool.open.all()


def test_a_connection_is_closed_soon_after_its_last_use(serve: Serve) -> None:
    server = serve(always(OK))
    transport = DirectTransport(settings_for(server))
    transport.send(GET, timeout=1.0)
    assert 0 < transport.sweep() <= KEEP
    transport.send(GET, timeout=1.0)
    assert server.connections == 1
    (link,) = transport.pool.open.all()
    link.kept_until -= KEEP
    assert transport.sweep() == KEEP
    assert not transport.pool.open.all()
    server.wait_until_idle()
    transport.close()


def test_a_connection_that_was_not_swept_is_not_used_too_late(serve: Serve) -> None:
    server = serve(always(OK))
    transport = DirectTransport(settings_for(server))
    transport.send(GET, timeout=1.0)
    (link,) = transport.pool.open.all()
    link.kept_until -= KEEP
    transport.send(GET, timeout=1.0)
    assert server.connections == 2
    assert len(transport.pool.open.all()) == 1
    transport.close()


def test_a_close_meanwhile_closes_the_connection_in_use(serve: Serve) -> None:
    arrived, released = threading.Event(), threading.Event()

    def handle(peer: Peer) -> None:
        peer.request()
        arrived.set()
        assert released.wait(PATIENCE)
        peer.send(OK)
        assert peer.wait_for_hang_up()

    transport = DirectTransport(settings_for(serve(handle)))
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(transport.send, GET, timeout=PATIENCE)
        assert arrived.wait(PATIENCE)
        transport.close()
        released.set()
        assert pending.result(PATIENCE).body == b"true"
    assert not transport.pool.open.all()


# --- cancelling


class Flag:
    """A cancellation as small as can be."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._callbacks: list[Callable[[], object]] = []

    def is_set(self) -> bool:
        return self._event.is_set()

    def subscribe(self, callback: Callable[[], object], /) -> Callable[[], object]:
        self._callbacks.append(callback)
        if self.is_set():
            callback()
        return lambda: self._callbacks.remove(callback)

    def set(self) -> None:
        self._event.set()
        for callback in list(self._callbacks):
            callback()

    @property
    def subscribers(self) -> int:
        return len(self._callbacks)


def cancelled_send(transport: Transport, request: Request, *, when: threading.Event) -> SendCancelled:
    """Return what a send raises within 100 ms of being cancelled, which it is once ``when`` is set."""
    flag = Flag()
    fired = [0.0]

    def fire() -> None:
        assert when.wait(PATIENCE)
        fired[0] = time.monotonic()
        flag.set()

    thread = threading.Thread(target=fire)
    thread.start()
    with stalls() as measured, pytest.raises(SendCancelled) as raised:
        transport.send(request, timeout=PATIENCE, cancel=flag)
    took = time.monotonic() - fired[0]
    assert took < 0.1 + measured.slack
    thread.join()
    assert flag.subscribers == 0
    return raised.value


@pytest.mark.parametrize("by", ["giving up its agent", "its cancellation", "the end of its time"])
def test_what_is_ended_here_was_not_ended_by_the_other_side(serve: Serve, by: str) -> None:
    """Else a refusal soon after would not be put down to the agent's limit."""
    arrived, flag = threading.Event(), Flag()
    timeout = 0.2 if by == "the end of its time" else PATIENCE

    def handle(peer: Peer) -> None:
        peer.request()
        peer.send(OK)
        peer.request()
        arrived.set()
        peer.wait_for_hang_up()

    server = serve(handle)
    transport = DirectTransport(settings_for(server))
    transport.send(GET, timeout=PATIENCE)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(transport.send, CAS, timeout=timeout, cancel=flag)
        assert arrived.wait(PATIENCE)
        if by == "giving up its agent":
            transport.pool.cut()
        elif by == "its cancellation":
            flag.set()
        assert waits.exception(PATIENCE) is not None
    assert transport.pool.limit.is_blamed(transport.pool.now())
    transport.close()


def test_a_connection_that_the_other_side_ends_in_use_speaks_against_the_limit(serve: Serve) -> None:
    """An agent at its limit ends new connections only: a refusal after this one is of an outage."""

    def handle(peer: Peer) -> None:
        peer.request()
        peer.send(OK)
        peer.request()

    transport = DirectTransport(settings_for(serve(handle)))
    transport.send(GET, timeout=PATIENCE)
    assert transport.pool.limit.is_blamed(transport.pool.now())
    with pytest.raises(BrokenReply):
        transport.send(CAS, timeout=PATIENCE)
    assert not transport.pool.limit.is_blamed(transport.pool.now())
    transport.close()


ANY = pytest.mark.parametrize("request_", [GET, QUERY, CAS], ids=["read", "query", "write"])


@ANY
def test_what_is_cut_off_on_a_new_connection_is_not_sent_there_again(
    serve: Serve, own_engine: MakeEngine, request_: Request
) -> None:
    """Its agent is given up, and has not refused the connection."""
    arrived = threading.Event()
    server = serve(partial(silent, arrived=arrived))
    engine = own_engine(server)
    pool = pool_of(engine)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(engine.send, request_, timeout=PATIENCE)
        assert arrived.wait(PATIENCE)
        pool.cut()
        assert isinstance(waits.exception(PATIENCE), BrokenReply)
    assert server.connections == 1
    assert not pool.limit.has_refused_since(0.0)


@ANY
@pytest.mark.parametrize("kept", [False, True], ids=["new", "kept"])
def test_what_has_no_connection_yet_when_its_agent_is_given_up_is_not_sent_there(
    serve: Serve, own_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, kept: bool, request_: Request
) -> None:
    """The error lets another agent have it at once."""
    server = serve(answering(OK, OK))
    engine = own_engine(server)
    pool = pool_of(engine)
    if kept:
        engine.send(RENEW)
    take = pool.take

    def take_and_cut(now: float) -> Link | None:
        link = take(now)
        pool.cut()
        return link

    monkeypatch.setattr(pool, "take", take_and_cut)
    with pytest.raises(ConnectFailed) as raised:
        engine.send(request_)
    assert not raised.value.outcome_unknown
    assert len(server.requests) == kept
    assert pool.limit.is_blamed(pool.now())
    assert not pool.limit.has_refused_since(0.0)
    monkeypatch.undo()
    assert engine.send(request_).body == b"true", "it may be asked again later"


@pytest.mark.parametrize(("request_", "unknown"), [(GET, False), (CAS, True)])
@pytest.mark.parametrize("user_client", [False, True])
def test_a_waiting_send_is_cancelled_at_once(
    serve: Serve, request_: Request, unknown: bool, user_client: bool
) -> None:
    arrived = threading.Event()
    server = serve(partial(silent, arrived=arrived))
    with httpx.Client(trust_env=False) as client:
        transport = sync_transport(settings_for(server), http_client=client if user_client else None)
        cancelled = cancelled_send(transport, request_, when=arrived)
        assert cancelled.error.outcome_unknown is unknown
        if isinstance(transport, DirectTransport):
            assert not transport.pool.limit.has_refused_since(0.0), "the agent has refused nothing"
        server.disconnect()
        transport.close()


def test_a_connect_is_cancelled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting, pause = threading.Event(), dial._pause

    def tell_and_pause(*args: Any) -> bool:
        connecting.set()
        return pause(*args)

    monkeypatch.setattr(dial, "_pause", tell_and_pause)
    with black_hole() as address:
        cancelled = cancelled_send(DirectTransport(settings_for(address)), CAS, when=connecting)
    assert cancelled.error.outcome_unknown is False


def test_a_look_up_is_cancelled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looking_up, released = threading.Event(), threading.Event()

    def look_up(*_args: object, **_options: object) -> list[object]:
        looking_up.set()
        released.wait(PATIENCE)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    transport = DirectTransport(settings_for("some-host.invalid:8500"))
    try:
        cancelled = cancelled_send(transport, CAS, when=looking_up)
    finally:
        released.set()
    assert isinstance(cancelled.error, ConnectFailed)


def test_a_cancellation_that_is_set_already_sends_nothing(serve: Serve) -> None:
    server = serve(always(OK))
    transport = DirectTransport(settings_for(server))
    transport.send(GET, timeout=1.0)
    flag = Flag()
    flag.set()
    with pytest.raises(SendCancelled) as raised:
        transport.send(CAS, timeout=1.0, cancel=flag)
    assert raised.value.error.outcome_unknown is False
    assert len(server.requests) == 1
    transport.close()


def test_a_cancellation_in_a_pause_before_connecting_ends_that_and_sends_nothing(serve: Serve) -> None:
    """As at the agent's limit, where a request looks again and again whether it may connect."""
    server, flag, pauses = serve(always(OK)), Flag(), list[float]()
    transport: Any = DirectTransport(settings_for(server))
    for _ in range(PATIENT):
        transport.pool.limit.refused(transport.pool.now())

    async def pause(_attempt: object, seconds: float) -> None:
        pauses.append(seconds)
        flag.set()

    transport._pause = pause
    with pytest.raises(SendCancelled) as raised:
        transport.send(CAS, timeout=PATIENCE, cancel=flag)
    assert raised.value.error.outcome_unknown is False
    assert len(pauses) == 1
    assert server.connections == 0


def test_a_cancellation_that_comes_with_the_answer_to_a_trial_sends_nothing_more(serve: Serve) -> None:
    server, flag = serve(always(OK)), Flag()
    transport: Any = DirectTransport(settings_for(server))
    transport.pool.limit.refused(transport.pool.now())  # so that a new connection is tried out
    read = transport._read_soon

    async def read_and_cancel(*args: Any) -> bytes:
        data: bytes = await read(*args)
        flag.set()
        return data

    transport._read_soon = read_and_cancel
    with pytest.raises(SendCancelled) as raised:
        transport.send(CAS, timeout=PATIENCE, cancel=flag)
    assert raised.value.error.outcome_unknown is False
    assert [request.split(b" ")[0] for request in server.requests] == [b"GET"]
    assert not transport.pool.open.all()
    transport.close()


def test_a_late_cancellation_leaves_the_pooled_connection_alone(serve: Serve) -> None:
    server = serve(always(OK))
    transport = DirectTransport(settings_for(server))
    flag = Flag()
    assert transport.send(CAS, timeout=1.0, cancel=flag).body == b"true"
    flag.set()
    assert transport.send(CAS, timeout=1.0).body == b"true"
    assert server.connections == 1
    transport.close()


def test_a_braked_connect_works_as_any_other(serve: Serve) -> None:
    transport = DirectTransport(settings_for(serve(always(OK))))
    assert transport.send(CAS, timeout=1.0, cancel=Flag()).body == b"true"
    transport.close()


# --- forking

FORK_SCRIPT = """
import os, sys
import anyio
from anyio.from_thread import start_blocking_portal
from consul_coord.config import Settings
from consul_coord.http.messages import Request
from consul_coord.http.transport.build import async_transport, sync_transport

def sockets():
    paths = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sum(os.path.islink(path) and os.readlink(path).startswith("socket:") for path in paths)

settings = Settings.resolve(address=sys.argv[1], environ={})
kind, name = sys.argv[2], "/v1/kv/"
if kind == "sync":
    transport = sync_transport(settings)
    def send(who):
        assert transport.send(Request("PUT", name + who), timeout=5.0).body == b"true"
else:
    transport = async_transport(settings)
    running = start_blocking_portal(kind)
    portal = running.__enter__()
    async def asend(who):
        assert (await transport.send(Request("PUT", name + who), timeout=5.0)).body == b"true"
    def send(who):
        portal.call(asend, who)

send("parent-1")
opened = sockets()
child = os.fork()
if child == 0:
    transport.forget()
    assert sockets() == opened - 1, (sockets(), opened)
    if kind == "sync":
        send("child")
    else:
        anyio.run(asend, "child", backend=kind)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
send("parent-2")
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["sync", "asyncio", "trio"])
def test_a_forked_child_leaves_the_parents_connection_alone(serve: Serve, kind: str) -> None:
    by_connection: dict[int, list[bytes]] = {}

    def handle(peer: Peer) -> None:
        while (request := peer.request()) is not None:
            by_connection.setdefault(id(peer), []).append(request.split(b" ")[1].removeprefix(b"/v1/kv/"))
            peer.send(OK)

    server = serve(handle)
    done = subprocess.run(
        [sys.executable, "-c", FORK_SCRIPT, server.address, kind],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(by_connection.values()) == [[b"child"], [b"parent-1", b"parent-2"]]


def test_a_child_that_forgets_nothing_still_gets_a_connection_of_its_own(serve: Serve) -> None:
    server = serve(always(OK))
    script = FORK_SCRIPT.replace("    transport.forget()\n", "").replace(
        "    assert sockets() == opened - 1, (sockets(), opened)\n", ""
    )
    assert script != FORK_SCRIPT
    done = subprocess.run(
        [sys.executable, "-c", script, server.address, "sync"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert server.connections == 2


@pytest.mark.slow
@pytest.mark.parametrize("was_served", [True, False])
def test_an_outage_that_ends_open_connections_is_not_put_down_to_the_limit(
    own_engine: MakeEngine, serve: Serve, was_served: bool
) -> None:
    is_gone = threading.Event()

    def handle(peer: Peer) -> None:
        """Answer until the outage; then close without a byte, as some proxies do."""
        while peer.request() is not None and not is_gone.is_set():
            peer.send(OK)

    sender = own_engine(serve(handle))
    if was_served:
        assert sender.send(GET).body == b"true"
    is_gone.set()
    with pytest.raises(BrokenReply):
        sender.send(GET)
    with pytest.raises(ConnectFailed) as raised:
        sender.send(GET)
    assert isinstance(raised.value, TooManyConnections) is not was_served
    assert ("http_max_conns_per_client" in str(raised.value)) is not was_served
    assert ("proxy" in str(raised.value)) is was_served
    is_gone.clear()
    assert sender.send(GET).body == b"true"


@pytest.mark.parametrize("request_", [CAS, GET], ids=["CAS", "GET"])
def test_a_time_that_ends_amid_a_new_try_is_put_down_to_the_limit(
    own_engine: MakeEngine, serve: Serve, request_: Request
) -> None:
    refused = iter(range(2))

    def handle(peer: Peer) -> None:
        """Hang up twice, as at the limit; then take a request, and answer nothing."""
        if next(refused, None) is None:
            while peer.request() is not None:
                pass

    server = serve(handle)
    sender = own_engine(server)
    with pytest.raises(BrokenReply):
        sender.send(CAS)
    with pytest.raises(TooManyConnections) as raised:
        sender.send(request_, timeout=1.0)
    assert not raised.value.outcome_unknown
    assert server.connections == 3


def test_a_time_that_ends_after_a_write_was_sent_leaves_its_outcome_unknown_also_near_the_limit(
    own_engine: MakeEngine, serve: Serve
) -> None:
    """As an error of the limit, it would be sent to another agent as well."""
    refused = iter(range(2))

    def handle(peer: Peer) -> None:
        """Hang up twice, as at the limit; then answer what tries the connection out, and nothing else."""
        if next(refused, None) is None:
            while (request := peer.request()) is not None:
                if b" /v1/status/leader " in request:
                    peer.send(OK)

    server = serve(handle)
    sender = own_engine(server)
    with pytest.raises(BrokenReply):
        sender.send(CAS)
    with pytest.raises(RequestTimeout) as raised:
        sender.send(CAS, timeout=1.0)
    assert raised.value.outcome_unknown
    assert b"cas=7" in server.requests[-1]


@pytest.mark.parametrize("request_", [GET, QUERY, CAS, RENEW], ids=["read", "query", "write", "renewal"])
def test_what_waits_for_room_is_sent_once_there_is_some(
    own_engine: MakeEngine, serve: Serve, request_: Request
) -> None:
    sender = own_engine(serve(always(OK)))
    pool = pool_of(sender)
    pool.limit.refused(pool.now())
    with lasting(most=PATIENCE / 4):
        assert sender.send(request_, timeout=PATIENCE / 2).status == 200


@pytest.mark.parametrize("times", [(0.2, PATIENCE), (math.inf, 0.2)], ids=["other agents", "its own time"])
def test_a_request_that_begins_in_a_pause_and_ends_before_it_is_put_down_to_the_limit(
    own_engine: MakeEngine, serve: Serve, times: tuple[float, float]
) -> None:
    server = serve(always(OK))
    sender = own_engine(server)
    transport: Any = sender.transport  # type: ignore[attr-defined]
    limit, (transport.connect_within, timeout) = transport.pool.limit, times
    for _ in range(PATIENT):
        limit.refused(transport.pool.now())  # as others of its client were
    with lasting(least=0.0, most=0.5), pytest.raises(TooManyConnections) as raised:
        sender.send(CAS, timeout=timeout)
    assert not raised.value.outcome_unknown
    assert server.connections == 0


def test_a_renewal_that_is_refused_tells_so_at_once_where_no_connection_may_come_free(
    own_engine: MakeEngine, serve: Serve
) -> None:
    """Its hold has to know that there is no contact."""
    server = serve(lambda _: None)  # hangs up on all
    sender = own_engine(server)
    limit = pool_of(sender).limit
    for _ in range(PATIENT):
        limit.refused(pool_of(sender).now())
    with lasting(least=0.0, most=1.0), pytest.raises(TransportError):
        sender.send(RENEW)
    assert server.connections == 1


def test_a_renewal_that_is_refused_waits_for_a_connection_that_may_come_free(
    own_engine: MakeEngine, serve: Serve
) -> None:
    taken, free = threading.Event(), threading.Event()

    def handle(peer: Peer) -> None:
        """Answer the first connection when the test says so, and hang up on all others."""
        if not taken.is_set():
            taken.set()
            peer.request()
            assert free.wait(PATIENCE)
            peer.send(OK)
            always(OK)(peer)

    sender = own_engine(serve(handle))
    pool = pool_of(sender)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(sender.send, GET, timeout=PATIENCE)
        assert taken.wait(PATIENCE)
        eventually(pool.has_in_use)  # the server may know of it sooner than the client
        for _ in range(PATIENT):
            pool.limit.refused(pool.now())
        before = math.nextafter(pool.now(), math.inf)
        renewal = threads.submit(sender.send, RENEW, timeout=PATIENCE)
        eventually(lambda: pool.limit.has_refused_since(before))
        eventually(lambda: pool.waiting)
        free.set()
        assert first.result().status == renewal.result().status == 200


def test_a_query_lets_others_go_first_within_its_own_time(own_engine: MakeEngine, serve: Serve) -> None:
    """Where the agent has no room, it begins once no other request waits for a connection."""
    taken, free = threading.Event(), threading.Event()

    def handle(peer: Peer) -> None:
        """Answer the first connection when the test says so, and hang up on all others."""
        if not taken.is_set():
            taken.set()
            peer.request()
            assert free.wait(PATIENCE)
            peer.send(OK)
            always(OK)(peer)

    sender = own_engine(serve(handle))
    pool = pool_of(sender)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(sender.send, GET, timeout=PATIENCE)
        assert taken.wait(PATIENCE)
        for _ in range(PATIENT):
            pool.limit.refused(pool.now())
        second = threads.submit(sender.send, GET, timeout=PATIENCE)
        eventually(lambda: pool.waiting)
        with lasting(least=0.3, most=PATIENCE / 4), pytest.raises(TransportError) as raised:
            sender.send(QUERY, timeout=0.3)
        assert raised.value.outcome_unknown is False
        free.set()
        assert first.result().status == second.result().status == 200
