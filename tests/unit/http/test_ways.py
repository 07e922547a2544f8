"""How a request gets to one of several agents: in its time, and by all names that can be looked up."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import socket
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import Client
from consul_coord.base_client import require
from consul_coord.config import Settings
from consul_coord.errors import ClientClosed
from consul_coord.http.agents import CONNECT_WITHIN, LOOK
from consul_coord.http.endpoints import status
from consul_coord.http.transport.pool import KEEP
from consul_coord.http.transport.several import Fleet, SeveralTransport, _Blocking
from consul_coord.http.transport.several_async import AsyncSeveralTransport
from tests.support.fake_io import run_at_once

if TYPE_CHECKING:
    from consul_coord.http.agents import Agent

ADDRESSES = ["first.test:1", "unknown.test:2", "last.test:3", "127.0.0.1:4"]
FOUND = {"first.test": ["10.0.0.1", "10.0.0.2"], "last.test": ["10.0.0.3", "10.0.0.4"]}


class Way:
    """The agents of one client, in one world; no name server and no agent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_async: bool) -> None:
        self.is_async, self.sent = is_async, list[tuple[object, dict[str, object]]]()
        fleet = Fleet(Settings.resolve(address=ADDRESSES))
        self.agents = fleet.agents
        several: Any = AsyncSeveralTransport(fleet) if is_async else SeveralTransport(fleet)
        several.engine = lambda _: SimpleNamespace(send=self.send)
        self.cancel: Any = SimpleNamespace(subscribe=lambda _: lambda: None)
        self.several = several
        self.way: Any = several if is_async else _Blocking(several, self.cancel)
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def send(self, request: object, **given: object) -> object:
        self.sent.append((request, given))

        async def answered() -> str:
            return "reply"

        return answered() if self.is_async else "reply"

    def look_up(self, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host not in FOUND:
            raise socket.gaierror
        return [(None, None, None, "", (address, port)) for address in [*FOUND[host], *FOUND[host]]]

    def run(self, program: Any) -> object:
        assert inspect.iscoroutine(program)
        return asyncio.run(program) if self.is_async else run_at_once(program)


@pytest.fixture(params=[False, True], ids=["blocking", "async"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    return Way(monkeypatch, is_async=request.param)


def test_an_exchange_has_its_time_and_can_be_cancelled(way: Way) -> None:
    request = status.leader().request
    assert way.run(way.way.exchange(way.agents.all[0], request, timeout=2.5)) == "reply"
    given = {"timeout": 2.5} if way.is_async else {"timeout": 2.5, "cancel": way.cancel}
    assert way.sent == [(request, given)]


def test_a_name_that_is_unknown_keeps_no_other_from_being_looked_up(way: Way) -> None:
    for _ in range(2):  # what is known stays
        way.run(way.way.find(way.agents, timeout=5.0))
        assert [agent.settings.dial or agent.settings.host for agent in way.agents.all] == [
            *("10.0.0.1", "10.0.0.2", "unknown.test", "10.0.0.3", "10.0.0.4", "127.0.0.1"),
        ]


def test_a_name_that_can_not_be_looked_up_any_more_is_what_it_was(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    way.run(way.way.find(way.agents, timeout=5.0))
    before = way.agents.all
    monkeypatch.delitem(FOUND, "first.test")
    way.run(way.way.find(way.agents, timeout=5.0))
    assert way.agents.all == before


def test_all_look_ups_together_take_no_longer_than_they_may(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: hung.wait(30) and [])
    began = time.monotonic()
    try:
        way.run(way.way.find(way.agents, timeout=0.5))
    finally:
        hung.set()
    assert time.monotonic() - began < 1.0, "three names, and each had all the time"


@pytest.mark.parametrize(("due", "expected"), [((), KEEP), ((3.0, 0.1, 2.0), 0.1), ((KEEP + 1.0,), KEEP)])
def test_connections_are_looked_at_again_as_soon_as_those_of_the_first_agent_are_due(
    way: Way, due: tuple[float, ...], expected: float
) -> None:
    def sweep(seconds: float) -> Any:
        async def swept() -> float:
            return seconds

        return swept() if way.is_async else seconds

    way.several._engines = {
        str(seconds): SimpleNamespace(sweep=functools.partial(sweep, seconds)) for seconds in due
    }
    wait = asyncio.run(way.several.sweep()) if way.is_async else way.several.sweep()
    assert wait == (min(expected, LOOK) if way.is_async else expected), "or for a sign of life"


def test_that_any_agent_has_no_room_is_told(way: Way) -> None:
    told: list[str] = []
    first, *others = (agent.settings for agent in way.agents.all)
    pool = way.several._fleet.pool
    limits = [pool(first).limit]
    way.several.listen(lambda: told.append("no room"))
    limits += [pool(settings).limit for settings in others]
    for limit in limits:
        limit.refused(1000.0)
    assert told == [], "one alone may be by chance"
    for limit in limits:
        limit.refused(1001.0)
    assert len(told) == len(ADDRESSES)


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "async"])
def test_how_long_connecting_may_take_depends_on_whether_there_is_another_agent_by_now(
    is_async: bool,
) -> None:
    """The name of an agent may stand for more of them, or for fewer, when it is looked up again."""
    one, two = (Settings.resolve(address=given) for given in (ADDRESSES[0], ADDRESSES[:2]))
    fleet = Fleet(one)
    transport: Any = AsyncSeveralTransport(fleet) if is_async else SeveralTransport(fleet)
    (agent,) = fleet.agents.all
    for settings, within in ((one, math.inf), (two, CONNECT_WITHIN), (one, math.inf)):
        fleet.agents.update(settings.agents)
        assert transport.engine(agent).connect_within == within


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "async"])
def test_once_closed_nothing_is_sent_to_the_agent_that_serves(is_async: bool) -> None:
    fleet = Fleet(Settings.resolve(address=["127.0.0.1:1", "127.0.0.1:2"]))
    fleet.agents._use(fleet.agents.all[0], 0.0)
    request = status.leader().request

    async def close_and_send() -> None:
        transport = AsyncSeveralTransport(fleet)
        await transport.aclose()
        await transport.send(request, timeout=5.0)

    def close_and_send_here() -> None:
        transport = SeveralTransport(fleet)
        transport.close()
        transport.send(request, timeout=5.0)

    with pytest.raises(ClientClosed):
        asyncio.run(close_and_send()) if is_async else close_and_send_here()


def test_each_agent_but_the_one_that_serves_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [f"http://127.0.0.1:{number}" for number in (1, 2, 3)]
    with Client(addresses) as client:
        runner = require(client, Client, "a test")
        agents = runner._transport.agents  # type: ignore[attr-defined]

        async def verify(_way: object, agent: Agent) -> str:
            return f"of {agent.address}"

        monkeypatch.setattr(agents, "verify", verify)
        assert runner.serving == ", ".join(addresses), "nobody knows yet"
        assert list(runner.verify_agents()) == addresses
        agents._use(agents.all[1], 0.0)
        assert runner.serving == addresses[1]
        assert runner.verify_agents() == {each: f"of {each}" for each in (addresses[0], addresses[2])}


def test_where_there_is_one_agent_there_is_no_other_to_verify() -> None:
    with Client("http://127.0.0.1:1") as client:
        runner = require(client, Client, "a test")
        assert (runner.serving, runner.verify_agents()) == ("http://127.0.0.1:1", {})
