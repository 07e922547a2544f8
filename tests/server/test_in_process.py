"""Clients in the server's own process and loop, without any socket: asyncio and trio, both kinds of clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import httpx
import pytest

from consul_coord import AsyncClient, AsyncLock, ResponseError
from consul_coord.clock import VirtualClock
from consul_coord.server import Effect, Fault, ReferenceServer, ServerConfig, app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

DEADLINE = 30.0

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture
def server() -> ReferenceServer[VirtualClock]:
    return ReferenceServer(clock=VirtualClock())


@pytest.fixture
async def http(server: ReferenceServer[VirtualClock]) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=server.app)) as client:
        yield client


@pytest.fixture
async def client(
    server: ReferenceServer[VirtualClock], http: httpx.AsyncClient
) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(address="http://consul:8500", http_client=http, clock=server.clock) as client:
        yield client


async def eventually(condition: Callable[[], object]) -> None:
    with anyio.fail_after(DEADLINE):
        while not condition():  # noqa: ASYNC110 - the server has no event for it
            await anyio.sleep(0.001)


async def test_a_lock(server: ReferenceServer[VirtualClock], client: AsyncClient) -> None:
    async with AsyncLock(client, "k").hold(timeout=5) as hold:
        assert server.state.kv["k"].session == hold.session
    assert server.state.kv["k"].session == ""


async def test_a_lease_runs_out_with_the_clock(
    server: ReferenceServer[VirtualClock], client: AsyncClient
) -> None:
    hold = await AsyncLock(client, "k").acquire(timeout=5)
    server.clock.advance(60)
    assert not hold.is_held
    assert server.state.kv["k"].session == ""


async def test_a_waiter_gets_the_lock_from_the_holder(
    server: ReferenceServer[VirtualClock], http: httpx.AsyncClient, client: AsyncClient
) -> None:
    other = AsyncClient(address="http://consul:8500", http_client=http, clock=server.clock)
    async with other, anyio.create_task_group() as tasks:
        hold = await AsyncLock(client, "k").acquire(timeout=5)

        async def wait() -> None:
            async with AsyncLock(other, "k").hold(timeout=60) as second:
                assert second.fence > hold.fence

        tasks.start_soon(wait)
        await eventually(lambda: len(server.state.kv) > 1)
        await hold.release()


async def test_a_reader_that_goes_away_is_forgotten(
    server: ReferenceServer[VirtualClock], http: httpx.AsyncClient
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(http.get, "http://consul/v1/session/list?index=1000000")
        await eventually(lambda: server.state.blocked == 1)
        tasks.cancel_scope.cancel()
    assert server.state.blocked == 0


async def test_a_read_overtakes_a_write_that_takes_its_time() -> None:
    """As on an agent that writes to its disk first; what is the agent's own takes none."""
    server = ReferenceServer(config=ServerConfig(write_time=0.01), clock=VirtualClock())
    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(app=server.app), base_url="http://consul") as http,
        anyio.create_task_group() as tasks,
    ):
        replies = list[httpx.Response]()

        async def write() -> None:
            replies.append(await http.put("/v1/kv/k", content=b"v"))

        tasks.start_soon(write)
        await anyio.wait_all_tasks_blocked()
        assert (await http.get("/v1/kv/k")).status_code == 404
        assert (await http.put("/v1/agent/service/register", json={"Name": "s"})).status_code == 200
        assert replies == []
        server.clock.advance(0.01)
        await eventually(lambda: replies)
        assert [reply.json() for reply in replies] == [True]
        assert (await http.get("/v1/kv/k")).status_code == 200


async def test_errors_and_delays_of_faults(
    server: ReferenceServer[VirtualClock], http: httpx.AsyncClient, client: AsyncClient
) -> None:
    server.faults.add(Fault(effect=Effect.RESPOND, status=400, body="no", method="PUT"))
    with pytest.raises(ResponseError, match="no"):
        await client.kv.put("k", b"v")
    server.faults.clear()
    server.faults.add(Fault(delay=5.0, times=1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(http.put, "http://consul/v1/kv/k")
        await eventually(lambda: server.clock.next_alarm() is not None)
        assert "k" not in server.state.kv
        server.clock.advance(5.0)
    assert "k" in server.state.kv


@pytest.mark.parametrize(("size", "status"), [(10, 200), (11, 413)])
async def test_a_body_of_no_told_length_is_kept_whole_or_refused(
    monkeypatch: pytest.MonkeyPatch, size: int, status: int
) -> None:
    monkeypatch.setattr(app, "_LARGEST_BODY", 10)
    server = ReferenceServer(config=ServerConfig(kv_max_value_size=10))

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size):
            yield b"x"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=server.app)) as http:
        answer = await http.put("http://consul/v1/kv/k", content=pieces())
    assert answer.status_code == status
    assert [entry.value for entry in server.state.kv.values()] == ([b"x" * size] if status == 200 else [])


async def test_on_a_real_clock_a_wait_and_a_ttl_end_by_themselves() -> None:
    server = ReferenceServer(config=ServerConfig(session_ttl_min=0.05))
    transport = httpx.ASGITransport(app=server.app)
    with anyio.fail_after(DEADLINE):
        async with httpx.AsyncClient(transport=transport, base_url="http://consul") as http:
            created = await http.put("/v1/session/create", content=b'{"TTL":"50ms"}')
            session = created.json()["ID"]
            index = server.state.sessions[session].create_index
            ended = await http.get(f"/v1/session/info/{session}?index={index}&wait=60s")
            assert ended.json() == []
            idle = await http.get(f"/v1/session/list?index={server.state.index}&wait=50ms")
            assert idle.headers["X-Consul-Index"] == str(server.state.index)
