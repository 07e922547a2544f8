"""One client with several addresses. Proxies before one reference server stand for agents of a cluster."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import pytest

from consul_coord import (
    AsyncClient,
    AsyncLock,
    Client,
    ConfigError,
    ConnectFailed,
    Lock,
    ReleaseOutcome,
    RequestTimeout,
    SessionSpec,
    TLSConfig,
)
from consul_coord.events import AgentRefused, FailedOver
from consul_coord.http import agents
from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.server.acl import AclConfig, Rule, Token
from tests.support.proxy import Fault, FaultProxy, Lose
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from consul_coord.events import Event

    class MakeClient(Protocol):
        """Makes a client that is closed with the test."""

        def __call__(self, *addresses: str, **settings: Any) -> Client: ...


CONFIG = ServerConfig(session_ttl_min=0.2)
PATIENCE = 20.0
LOADED = 2.0
"""Seconds more than promised, for a machine that is busy."""


class Events:
    """What clients report."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.seen.append(event)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.seen if isinstance(event, kind)]


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def server() -> Iterator[ReferenceServer[Any]]:
    with ReferenceServer(config=CONFIG) as one:
        yield one


@pytest.fixture
def other_cluster() -> Iterator[ReferenceServer[Any]]:
    with ReferenceServer(config=CONFIG) as another:
        yield another


@pytest.fixture
def pair(server: ReferenceServer[Any]) -> Iterator[tuple[FaultProxy, FaultProxy]]:
    """Yield two agents of one cluster."""
    with FaultProxy(server.address) as one, FaultProxy(server.address) as two:
        yield one, two


@pytest.fixture
def nobody() -> str:
    """Return an address where nobody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def make(events: Events) -> Iterator[MakeClient]:
    with ExitStack() as stack:

        def client(*addresses: str, **settings: Any) -> Client:
            return stack.enter_context(Client(addresses, observer=events, **settings))

        yield client


def asked(agent: FaultProxy) -> set[str]:
    return {request.path.partition("?")[0] for request in agent.requests}


CHECKS = {"/v1/status/peers", "/v1/catalog/service/consul"}


def test_all_goes_to_the_first_that_serves(
    pair: tuple[FaultProxy, FaultProxy], make: MakeClient, nobody: str, events: Events
) -> None:
    first, second = pair
    client = make(nobody, first.address, second.address)
    for number in range(5):
        client.kv.put("some/key", str(number))
    assert first.count("PUT", "/v1/kv/some/key") == 5
    assert asked(second) <= CHECKS
    assert events.of(FailedOver) == [], "it never served"
    assert repr(client) == f"<Client of {nobody}, {first.address}, {second.address}>"


def test_what_could_not_be_sent_goes_to_the_next_at_once(
    server: ReferenceServer[Any], make: MakeClient, events: Events
) -> None:
    with FaultProxy(server.address) as second:
        with FaultProxy(server.address) as first:
            client = make(first.address, second.address)
            client.kv.put("some/key", "1")
        began = time.monotonic()
        client.kv.put("some/key", "2")
        assert time.monotonic() - began < 1.0
        assert client.stats().retries == 0, "no caller has noticed"
        assert second.count("PUT", "/v1/kv/some/key") == 1
        eventually(lambda: events.of(FailedOver) == [FailedOver(first.address, second.address)])
        assert client.connected


def test_what_got_no_answer_is_settled_by_its_caller(
    pair: tuple[FaultProxy, FaultProxy], make: MakeClient
) -> None:
    """A take whose request stays in the first agent, and is applied after another one has given the lock."""
    first, second = pair
    client = make(first.address, second.address, timeout=1.0, session=SessionSpec(ttl=30.0))
    with Lock(client, "warm"):
        pass
    late = first.add(Fault(lose=Lose.TIME, method="PUT", path="/v1/txn", containing=b"jobs/late", times=9))
    with Lock(client, "jobs/late").hold(timeout=PATIENCE) as hold:
        assert second.count("PUT", "/v1/txn") >= 1
        late.let_go()
        assert late.passed_on.wait(PATIENCE)
        assert hold.verify()
    with Lock(client, "jobs/late").hold(timeout=PATIENCE) as again:
        assert again.fence > hold.fence


@pytest.mark.slow
def test_a_silent_agent_is_left_and_what_waits_there_goes_on(
    server: ReferenceServer[Any], pair: tuple[FaultProxy, FaultProxy], make: MakeClient, events: Events
) -> None:
    """The waiter's query would last until the renewal, in 2.4 s, which finds the agent silent in 1.75 s."""
    first, second = pair
    holder = make(server.address)
    waiter = make(first.address, second.address, session=SessionSpec(ttl=6.0, lock_delay=6.0))
    got = threading.Event()

    def wait() -> None:
        with Lock(waiter, "jobs/handed-over").hold(timeout=PATIENCE):
            got.set()

    with Lock(holder, "jobs/handed-over").hold() as hold:
        # Its answer just after the renewal was sent would be a sign of life.
        query = first.add(Fault(lose=Lose.TIME, path="/v1/kv/jobs/handed-over?index="))
        thread = threading.Thread(target=wait)
        thread.start()
        assert query.hit.wait(PATIENCE)
        places = Lock(holder, "jobs/handed-over").contenders()
        first.add(Fault(lose=Lose.TIME, times=1_000))
        eventually(lambda: events.of(FailedOver), within=4.5 + LOADED)
        eventually(lambda: second.count("GET", "/v1/kv/jobs/handed-over"), within=1.0 + LOADED)
        assert Lock(holder, "jobs/handed-over").contenders() == places
        hold.release()
        assert got.wait(2.0 + LOADED)
    thread.join(PATIENCE)
    first.clear()


def test_a_release_does_not_wait_for_a_silent_agent(
    pair: tuple[FaultProxy, FaultProxy], make: MakeClient, events: Events
) -> None:
    """Nothing else would notice it soon: the next renewal is due in 24 s."""
    first, second = pair
    client = make(first.address, second.address, session=SessionSpec(ttl=60.0, lock_delay=60.0))
    hold = Lock(client, "jobs/nightly").acquire()
    silent = first.add(Fault(lose=Lose.TIME, times=1_000))
    began = time.monotonic()
    assert hold.release() is ReleaseOutcome.RELEASED
    took = time.monotonic() - began
    first.clear()
    assert took < 2.0 + LOADED, "0.5 s until it is asked for a sign of life, 1 s for that, and 0.25 s"
    assert silent.hits
    assert events.of(FailedOver) == [FailedOver(first.address, second.address)]


def test_a_slow_answer_of_an_agent_that_lives_is_waited_for(
    pair: tuple[FaultProxy, FaultProxy], make: MakeClient, events: Events
) -> None:
    first, second = pair
    client = make(first.address, second.address)
    Lock(client, "jobs/nightly").run(lambda _: None)
    signs = first.count("GET", "/v1/status/leader")
    slow = first.add(Fault(lose=Lose.TIME, method="PUT", path="/v1/kv/some/key"))
    thread = threading.Thread(target=client.kv.put, args=("some/key", "1"))
    thread.start()
    eventually(lambda: first.count("GET", "/v1/status/leader") > signs)
    slow.let_go()
    thread.join(PATIENCE)
    assert second.count("PUT", "/v1/kv/some/key") == 0
    assert events.of(FailedOver) == []


@pytest.mark.parametrize(("status", "body"), [(500, b"No cluster leader"), (429, b"")])
def test_an_agent_that_says_it_does_not_serve_is_left(
    pair: tuple[FaultProxy, FaultProxy], make: MakeClient, status: int, body: bytes
) -> None:
    first, second = pair
    client = make(first.address, second.address)
    client.kv.put("some/key", "1")
    first.add(Fault(lose=Lose.AGENT, status=status, body=body, times=1_000))
    client.kv.put("some/key", "2")
    assert second.count("PUT", "/v1/kv/some/key") == 1


def test_an_agent_that_takes_no_more_connections_is_left(
    pair: tuple[FaultProxy, FaultProxy], make: MakeClient
) -> None:
    """It closes each at once, as an agent does that has all the connections it takes from one address."""
    first, second = pair
    client = make(first.address, second.address)
    client.kv.put("some/key", "1")
    first.go_down()
    began = time.monotonic()
    for number in range(3):
        client.kv.put("some/key", str(number))
    assert time.monotonic() - began < 4.0
    assert second.count("PUT", "/v1/kv/some/key") == 3


def test_when_no_other_serves_the_one_that_was_left_is_tried(
    pair: tuple[FaultProxy, FaultProxy], make: MakeClient
) -> None:
    """All agents say that there is no leader, for as long as there is none."""
    client = make(*(agent.address for agent in pair))
    client.kv.put("some/key", "1")
    faults = [agent.add(Fault(lose=Lose.AGENT, path="/v1/", times=3)) for agent in pair]
    client.kv.put("some/key", "2")
    assert all(fault.hits for fault in faults)


def test_an_agent_that_was_left_is_tried_again(
    pair: tuple[FaultProxy, FaultProxy], make: MakeClient, events: Events
) -> None:
    first, second = pair
    client = make(first.address, second.address)
    client.kv.put("some/key", "1")
    first.go_down()
    client.kv.put("some/key", "2")
    first.come_up()
    client.kv.put("some/key", "3")
    assert second.count("PUT", "/v1/kv/some/key") == 2, "it stays there"
    second.go_down()
    client.kv.put("some/key", "4")
    assert first.requests[-1].body == b"4"
    eventually(lambda: len(events.of(FailedOver)) == 2)


@pytest.mark.slow
def test_an_agent_of_another_cluster_is_refused_by_name(
    server: ReferenceServer[Any], other_cluster: ReferenceServer[Any], make: MakeClient, events: Events
) -> None:
    with FaultProxy(other_cluster.address) as foreign:
        with FaultProxy(server.address) as first:
            client = make(first.address, foreign.address, timeout=2.0)
            hold = Lock(client, "jobs/nightly").acquire()
        with pytest.raises(ConnectFailed) as refused:
            client.kv.put("some/key", "1")
        assert first.address in str(refused.value)
        assert f"{foreign.address} belongs to another cluster" in str(refused.value)
        assert "have other ids" in str(refused.value)
        assert not refused.value.outcome_unknown
        assert asked(foreign) <= {*CHECKS, f"/v1/session/renew/{hold.session}"}
        told = eventually(lambda: events.of(AgentRefused))[0]
        assert isinstance(told, AgentRefused)
        assert told.address == foreign.address
    assert Client(other_cluster.address).kv.keys("").value == ()


def test_a_new_client_whose_first_agent_is_away_does_not_guess_between_two_clusters(
    server: ReferenceServer[Any], other_cluster: ReferenceServer[Any], make: MakeClient, nobody: str
) -> None:
    client = make(nobody, other_cluster.address, server.address, timeout=2.0)
    with pytest.raises(ConnectFailed, match="nothing says which one is meant"):
        client.kv.put("some/key", "1")
    for one in (server, other_cluster):
        assert Client(one.address).kv.keys("").value == ()


def test_it_is_told_before_it_is_needed(
    server: ReferenceServer[Any], other_cluster: ReferenceServer[Any], make: MakeClient, events: Events
) -> None:
    client = make(server.address, other_cluster.address)
    with Lock(client, "jobs/nightly"):
        (told,) = eventually(lambda: events.of(AgentRefused))
    assert other_cluster.address in told.describe()


def test_the_same_addresses_of_servers_do_not_make_one_cluster(
    server: ReferenceServer[Any], other_cluster: ReferenceServer[Any]
) -> None:
    with Client(server.address) as one, Client(other_cluster.address) as two:
        assert one.status.peers() == two.status.peers()


def test_a_session_that_is_known_there_is_proof_as_well(
    make: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right to read the servers' ids, and after all servers have been exchanged."""
    rules = (Rule("key", "", "write", prefix=True), Rule("session", "", "write", prefix=True))
    acl = AclConfig(tokens={"of-locks": Token(rules)}, default_policy="deny")
    with ReferenceServer(config=ServerConfig(acl=acl)) as server, FaultProxy(server.address) as second:
        with FaultProxy(server.address) as first:
            client = make(first.address, second.address, token="of-locks")
            hold = Lock(client, "jobs/nightly").acquire()
            monkeypatch.setattr(agents.Servers, "are_those_of", lambda *_: False)
        assert hold.verify()
        assert second.count("PUT", f"/v1/session/renew/{hold.session}") >= 1
        monkeypatch.undo()
        hold.release()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a name with two addresses, of which the second one is that of the server, and one without any."""
    looked_up = socket.getaddrinfo

    def look_up(host: str, port: int, *rest: Any, **more: Any) -> Any:
        if host in {"nowhere.test", b"nowhere.test"}:
            raise socket.gaierror("unknown name")
        if host not in {"consul.test", b"consul.test"}:
            return looked_up(host, port, *rest, **more)
        return [looked_up(each, port, *rest, **more)[0] for each in ("127.0.0.8", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def in_use(client: Client | AsyncClient) -> str:
    """Return the address of the agent that serves."""
    agents = client._runner._agents
    assert agents is not None
    assert agents.current is not None
    return agents.current.address


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize("unknown", [[], ["http://nowhere.test:1"]], ids=["alone", "beside an unknown name"])
def test_a_name_with_several_addresses_stands_for_as_many_agents(
    server: ReferenceServer[Any], make: MakeClient, events: Events, unknown: list[str]
) -> None:
    port = server.address.rpartition(":")[2]
    client = make(*unknown, f"http://consul.test:{port}")
    client.kv.put("some/key", "1")
    assert client.kv.get_raw("some/key").value == b"1"
    with Lock(client, "jobs/nightly").hold(timeout=PATIENCE) as hold:
        assert hold.verify()
    assert in_use(client) == f"http://consul.test:{port} (127.0.0.1)"
    assert events.of(FailedOver) == []


@pytest.mark.anyio
@pytest.mark.usefixtures("names")
@pytest.mark.parametrize("unknown", [[], ["http://nowhere.test:1"]], ids=["alone", "beside an unknown name"])
async def test_a_name_stands_for_as_many_agents_of_an_async_client(
    server: ReferenceServer[Any], unknown: list[str]
) -> None:
    port = server.address.rpartition(":")[2]
    async with AsyncClient([*unknown, f"http://consul.test:{port}"]) as client:
        await client.kv.put("some/key", "1")
        assert in_use(client) == f"http://consul.test:{port} (127.0.0.1)"


@pytest.fixture
def silent_name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Have no name looked up any more once the event is set."""
    looked_up, silent, over = socket.getaddrinfo, threading.Event(), threading.Event()

    def look_up(host: str | bytes, *rest: Any, **more: Any) -> Any:
        if host in {"consul.test", b"consul.test"}:
            if silent.is_set():
                over.wait(PATIENCE)
            host = "127.0.0.1"
        return looked_up(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield silent
    over.set()


def named(agent: FaultProxy) -> str:
    return agent.address.replace("127.0.0.1", "consul.test")


@pytest.mark.parametrize("at_start", [True, False], ids=["at first", "later"])
def test_a_name_server_that_hangs_keeps_no_request_from_an_agent_that_serves(
    server: ReferenceServer[Any], make: MakeClient, silent_name_server: threading.Event, *, at_start: bool
) -> None:
    with FaultProxy(server.address) as second:
        with FaultProxy(server.address) as first:
            client = make(named(first), second.address)
            if at_start:
                silent_name_server.set()
            client.kv.put("some/key", "1")
        silent_name_server.set()
        client.kv.put("some/key", "2", timeout=4 * agents.CONNECT_WITHIN)
        assert second.count("PUT", "/v1/kv/some/key") == (2 if at_start else 1)


@pytest.mark.anyio
async def test_on_an_event_loop_it_keeps_none_either(
    server: ReferenceServer[Any], silent_name_server: threading.Event
) -> None:
    with FaultProxy(server.address) as second:
        with FaultProxy(server.address) as first:
            client = AsyncClient([named(first), second.address])
            await client.kv.put("some/key", "1")
            silent_name_server.set()
        await client.kv.put("some/key", "2", timeout=4 * agents.CONNECT_WITHIN)
        assert second.count("PUT", "/v1/kv/some/key") == 1
        assert client.stats().retries == 0, "no caller has noticed"
        await client.close()


def test_a_unix_socket_may_be_among_them(tmp_path: Path, make: MakeClient, nobody: str) -> None:
    with ReferenceServer(uds=tmp_path / "consul.sock") as server:
        client = make(nobody, f"unix://{tmp_path / 'consul.sock'}")
        client.kv.put("some/key", "1")
        assert server.state is not None


def test_settings_that_fit_one_agent_only_are_refused() -> None:
    two = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    with pytest.raises(ConfigError, match="several agents"):
        Client(two, http_client=httpx.Client(), background_http_client=httpx.AsyncClient())
    with pytest.raises(ConfigError, match="several agents"):
        AsyncClient(two, http_client=httpx.AsyncClient())
    with pytest.raises(ConfigError, match="at least one"):
        Client([])
    with pytest.raises(ConfigError, match="http://"):
        Client(["https://127.0.0.1:1", "http://127.0.0.1:2"], tls=TLSConfig())


def test_the_environment_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUL_HTTP_ADDR", "127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(ConfigError, match="CONSUL_HTTP_ADDR"):
        Client()


def test_an_address_named_twice_is_one_agent() -> None:
    client = Client(["127.0.0.1:1", "http://127.0.0.1:1"])
    assert repr(client) == "<Client of http://127.0.0.1:1>"


@pytest.mark.anyio
async def test_an_async_client_fails_over_too(server: ReferenceServer[Any], events: Events) -> None:
    with FaultProxy(server.address) as second:
        with FaultProxy(server.address) as first:
            client = AsyncClient([first.address, second.address], observer=events)
            await client.__aenter__()
            hold = await AsyncLock(client, "jobs/nightly").acquire()
        try:
            assert await hold.verify()
            await hold.release()
        finally:
            await client.close()
        eventually(lambda: events.of(FailedOver) == [FailedOver(first.address, second.address)])


def test_a_connection_that_hangs_is_given_up_for_the_next_agent(
    server: ReferenceServer[Any], make: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "CONNECT_WITHIN", 0.3)
    with closing(socket.socket()) as full, ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # nobody accepts: the next one's connection stays under way
            waiting = stack.enter_context(closing(socket.socket()))
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        client = make(f"http://127.0.0.1:{full.getsockname()[1]}", server.address)
        began = time.monotonic()
        client.kv.put("some/key", "1")
        assert time.monotonic() - began < 2.0


def test_a_call_whose_time_is_over_says_so(pair: tuple[FaultProxy, FaultProxy], make: MakeClient) -> None:
    for agent in pair:
        agent.add(Fault(lose=Lose.TIME, times=1_000))
    client = make(*(agent.address for agent in pair), timeout=0.5)
    with pytest.raises((ConnectFailed, RequestTimeout)):
        client.kv.put("some/key", "1")
    for agent in pair:
        agent.clear()
