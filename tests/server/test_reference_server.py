"""The server on real sockets, looked at with the standard library's HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from consul_coord import Client
from consul_coord.clock import VirtualClock
from consul_coord.errors import ConfigError, InvalidArgument
from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.server.transport import Listener

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from consul_coord.clock import SystemClock

    AnyServer = ReferenceServer[SystemClock] | ReferenceServer[VirtualClock]

DEADLINE = 30.0


@pytest.fixture
def server() -> Iterator[ReferenceServer[SystemClock]]:
    with ReferenceServer() as running:
        yield running


@pytest.fixture
def virtual() -> Iterator[ReferenceServer[VirtualClock]]:
    with ReferenceServer(clock=VirtualClock()) as running:
        yield running


def place(server: AnyServer) -> tuple[str, int]:
    host, _, port = server.address.removeprefix("http://").rpartition(":")
    return host, int(port)


def ask(
    server: AnyServer,
    method: str,
    target: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(*place(server), timeout=DEADLINE)
    try:
        connection.request(method, target, body, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read(), reply.headers
    finally:
        connection.close()


def wait_until_blocked(server: AnyServer, count: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while server.state.blocked != count:
        assert time.monotonic() < deadline, f"{server.state.blocked} requests wait, not {count}"
        time.sleep(0.001)


def test_it_serves_soon_after_it_is_started() -> None:
    began = time.perf_counter()
    with ReferenceServer() as server:
        assert ask(server, "GET", "/v1/status/leader")[1] == b'"127.0.0.1:8300"'
    assert time.perf_counter() - began < DEADLINE


def test_the_headers_of_a_read(server: ReferenceServer[SystemClock]) -> None:
    ask(server, "PUT", "/v1/kv/k", b"v")
    status, body, headers = ask(server, "GET", "/v1/kv/k")
    (entry,) = json.loads(body)
    assert (status, entry["Value"]) == (200, "dg==")
    assert headers["X-Consul-Index"] == str(entry["ModifyIndex"])
    assert headers["X-Consul-KnownLeader"] == "true"
    assert headers["Vary"] == "Accept-Encoding"
    assert "Date" in headers
    assert "Server" not in headers


def test_header_names_are_spelled_as_consul_spells_them(server: ReferenceServer[SystemClock]) -> None:
    with socket.create_connection(place(server), timeout=DEADLINE) as raw:
        raw.sendall(b"GET /v1/kv/none HTTP/1.1\r\nHost: x\r\n\r\n")
        head = raw.recv(1000)
    for name in (b"X-Consul-Index", b"X-Consul-Knownleader", b"X-Consul-Lastcontact", b"Vary"):
        assert b"\r\n" + name + b": " in head


def test_gzip_for_those_who_take_it_and_chunks_for_large_bodies(server: ReferenceServer[SystemClock]) -> None:
    ask(server, "PUT", "/v1/kv/large", bytes(range(256)) * 64)
    _, zipped, headers = ask(server, "GET", "/v1/kv/large?raw", headers={"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(zipped) == bytes(range(256)) * 64
    _, _, headers = ask(server, "GET", "/v1/kv/large?raw")
    assert headers["Transfer-Encoding"] == "chunked"


def test_a_chunked_session_body_is_not_read(server: ReferenceServer[SystemClock]) -> None:
    connection = http.client.HTTPConnection(*place(server), timeout=DEADLINE)
    connection.request("PUT", "/v1/session/create", iter([b'{"Name":"x"}']), encode_chunked=True)
    session = json.loads(connection.getresponse().read())["ID"]
    connection.close()
    assert server.state.sessions[session].name == ""


def test_a_write_wakes_a_blocked_reader(server: ReferenceServer[SystemClock]) -> None:
    ask(server, "PUT", "/v1/kv/k", b"v")
    index = server.state.kv["k"].modify_index
    with ThreadPoolExecutor() as pool:
        watch = pool.submit(ask, server, "GET", f"/v1/kv/k?index={index}")
        wait_until_blocked(server, 1)
        ask(server, "PUT", "/v1/kv/k", b"w")
        assert json.loads(watch.result(DEADLINE)[1])[0]["Value"] == "dw=="


@pytest.mark.parametrize("body", [0, 300_000], ids=["without a body", "with a large one"])
def test_a_reader_that_goes_away_waits_no_more(server: ReferenceServer[SystemClock], body: int) -> None:
    with socket.create_connection(place(server), timeout=DEADLINE) as raw:
        head = b"GET /v1/kv/none?index=1000 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % body
        raw.sendall(head + bytes(body))
        wait_until_blocked(server, 1)
    wait_until_blocked(server, 0)


def test_on_a_real_clock_a_wait_and_a_ttl_end_by_themselves() -> None:
    with ReferenceServer(config=ServerConfig(session_ttl_min=0.05)) as server:
        session = json.loads(ask(server, "PUT", "/v1/session/create", b'{"TTL":"50ms"}')[1])["ID"]
        index = server.state.sessions[session].create_index
        _, body, _ = ask(server, "GET", f"/v1/session/info/{session}?index={index}&wait=60s")
        assert body == b"[]"
        _, _, headers = ask(server, "GET", f"/v1/session/list?index={server.state.index}&wait=50ms")
        assert headers["X-Consul-Index"] == str(server.state.index)


def test_on_a_virtual_clock_time_passes_when_told(virtual: ReferenceServer[VirtualClock]) -> None:
    session = json.loads(ask(virtual, "PUT", "/v1/session/create", b'{"TTL":"10s"}')[1])["ID"]
    ask(virtual, "PUT", f"/v1/kv/k?acquire={session}", b"v")
    assert virtual.state.session_expires_in(session) == 20.0
    index = virtual.state.kv["k"].modify_index
    with ThreadPoolExecutor() as pool:
        watch = pool.submit(ask, virtual, "GET", f"/v1/kv/k?index={index}")
        wait_until_blocked(virtual, 1)
        virtual.clock.advance(20.0)
        assert session not in virtual.state.sessions
        assert "Session" not in json.loads(watch.result(DEADLINE)[1])[0]
    assert virtual.state.lock_delays == {"k": 15.0}
    virtual.clock.advance(15.0)
    assert virtual.state.lock_delays == {}


def test_a_reader_that_goes_away_is_forgotten(server: ReferenceServer[SystemClock]) -> None:
    with socket.create_connection(place(server), timeout=DEADLINE) as raw:
        raw.sendall(b"GET /v1/session/list?index=1000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until_blocked(server, 1)
    wait_until_blocked(server, 0)


def test_stopping_answers_pending_readers() -> None:
    server = ReferenceServer()
    server.start()
    with ThreadPoolExecutor() as pool:
        watch = pool.submit(ask, server, "GET", "/v1/session/list?index=1000000")
        wait_until_blocked(server, 1)
        server.stop()
        assert watch.result(DEADLINE)[0] == 200
    with pytest.raises(RuntimeError, match="no address"):
        _ = server.address


@pytest.mark.parametrize("sent", [b"", b"GET /v1/kv/", b"GET /v1/kv/large HTTP/1.1\r\nHost: x\r\n\r\n"])
@pytest.mark.parametrize("connections", [1, 200])
def test_stopping_leaves_no_connection_whatever_it_is_at(connections: int, sent: bytes) -> None:
    server = ReferenceServer(config=ServerConfig(http_max_conns_per_client=0))
    server.start()
    # More than the buffers of a connection hold, for one who does not read.
    ask(server, "PUT", "/v1/kv/large", b"x" * 500_000)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(place(server))) for _ in range(connections)]
        for client in clients:
            client.sendall(sent)
        server.stop()
        for client in clients:
            client.settimeout(DEADLINE)
            with contextlib.suppress(ConnectionResetError):
                while client.recv(1_000_000):
                    pass


def test_connections_beyond_a_clients_share_are_closed_without_a_word() -> None:
    with (
        ReferenceServer(config=ServerConfig(http_max_conns_per_client=1)) as server,
        socket.create_connection(place(server), timeout=DEADLINE) as first,
    ):
        first.sendall(b"GET /v1/status/leader HTTP/1.1\r\nHost: x\r\n\r\n")
        assert first.recv(1000).startswith(b"HTTP/1.1 200")
        with socket.create_connection(place(server), timeout=DEADLINE) as second:
            assert second.recv(1000) == b""


def test_settings_of_a_wrong_type_are_named() -> None:
    wrong: Any = {"session_ttl_min": "1"}
    with pytest.raises(ConfigError, match="session_ttl_min must be a number of 0 or more, not '1'"):
        ServerConfig(**wrong)
    with pytest.raises(InvalidArgument, match="config must be of the class ServerConfig, not dict"):
        ReferenceServer(config=wrong)


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "consul.sock"
    with ReferenceServer(uds=path) as server:
        assert server.address == f"unix://{path}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://consul") as client:
            assert client.get("/v1/status/leader").json() == "127.0.0.1:8300"
    assert not path.exists()


def test_a_relative_unix_socket_has_an_address_that_a_client_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ReferenceServer(uds="consul.sock") as server, Client(address=server.address) as client:
        assert client.status.leader()


def test_a_unix_socket_whose_path_is_taken_or_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "consul.sock"
    server = ReferenceServer(uds=path)
    path.touch()
    with pytest.raises(OSError, match="in use"):
        server.start()
    gc.collect()  # an open socket would be told of
    path.unlink()
    with server:
        path.unlink()


def test_a_start_that_fails_says_why_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when another server listens on the port between this one's binding and its listening."""

    async def taken(*_: object) -> None:
        raise OSError("taken")

    server = ReferenceServer()
    with monkeypatch.context() as patched:
        patched.setattr(Listener, "start", taken)
        with pytest.raises(OSError, match="taken"):
            server.start()
    gc.collect()
    server.stop()
    with server:
        assert ask(server, "GET", "/v1/status/leader")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org", ""])
def test_only_loopback_is_served(host: str) -> None:
    with pytest.raises(ValueError, match="loopback"):
        ReferenceServer(host=host)


def test_an_async_client_without_a_socket() -> None:
    async def main() -> None:
        server = ReferenceServer(clock=VirtualClock())
        transport = httpx.ASGITransport(app=server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://consul") as client:
            await client.put("/v1/kv/k", content=b"v")
            index = (await client.get("/v1/kv/k")).headers["X-Consul-Index"]
            watch = asyncio.create_task(client.get("/v1/kv/k", params={"index": index, "wait": "10s"}))
            await asyncio.to_thread(wait_until_blocked, server, 1)
            threading.Thread(target=server.clock.advance, args=(11.0,)).start()
            assert (await watch).headers["X-Consul-Index"] == index

    asyncio.run(main())


def test_as_an_async_context_manager() -> None:
    async def main() -> int:
        async with ReferenceServer() as server, httpx.AsyncClient(base_url=server.address) as client:
            return (await client.get("/v1/agent/self")).status_code

    assert asyncio.run(main()) == 200
