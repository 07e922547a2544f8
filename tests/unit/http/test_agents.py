"""Which of several agents carries a request: the rules by themselves, in virtual time, without a socket."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from consul_coord.errors import (
    AcquireCancelled,
    BrokenReply,
    CertificateRefused,
    ClientClosed,
    ConnectFailed,
    RequestTimeout,
    TransportError,
)
from consul_coord.http.agents import (
    CHECK_LASTS,
    CHECK_WITHIN,
    CONNECT_WITHIN,
    LOOK,
    REFRESH,
    REFUSED_FOR,
    REST,
    SIGN_WITHIN,
    SILENCE,
    SILENT_AFTER,
    Agent,
    Agents,
    Servers,
)
from consul_coord.http.messages import Request, Response
from tests.support.fake_io import run_at_once

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from consul_coord.config import Settings
    from consul_coord.errors import ConsulCoordError

T = TypeVar("T")

A, B, C, D = "http://a:8500", "http://b:8500", "http://c:8500", "http://d:8500"
READ = Request("GET", "/v1/kv/k")
QUERY = Request("GET", "/v1/kv/k", hold_open=10.0)
PEERS, SERVICE, RENEW, LEADER = (
    "/v1/status/peers",
    "/v1/catalog/service/consul",
    "/v1/session/renew/s",
    "/v1/status/leader",
)
TIMEOUT = 10.0


def reply(value: object, status: int = 200) -> Response:
    return Response(status, {"x-consul-index": "1"}, json.dumps(value).encode())


@dataclass(slots=True)
class Behaviour:
    """The way in which an agent answers; ``fails`` makes an error of it, after ``takes`` seconds."""

    peers: tuple[str, ...] = ("10.0.0.1:8300", "10.0.0.2:8300")
    ids: tuple[str, ...] | None = ("one", "two")
    """Of the servers, at those addresses; None where the token may not read them."""
    knows_session: bool = False
    fails: type[TransportError] | None = None
    doubt: bool = True
    """Whether what fails may have been applied."""
    silent: bool = False
    takes: float = 0.001
    answer: Response = field(default_factory=lambda: reply([]))

    def reply_to(self, path: str) -> Response:
        if path == PEERS:
            return reply(self.peers)
        if path == SERVICE:
            return Response(403, {}, b"Permission denied") if self.ids is None else reply(self._services())
        if path == RENEW:
            return reply([{"ID": "s", "TTL": "10s"}]) if self.knows_session else Response(404, {}, b"")
        return self.answer

    def _services(self) -> list[dict[str, object]]:
        return [
            {
                "ID": one,
                "Node": one,
                "Address": peer.partition(":")[0],
                "ServiceID": "consul",
                "ServiceName": "consul",
                "ServicePort": 8300,
            }
            for one, peer in zip(self.ids or (), self.peers, strict=False)
        ]


class World:
    """Agents by address, a clock, and what is asked of whom: a ``Way``."""

    def __init__(self, *addresses: str) -> None:
        self.time = 1000.0
        self.agents = {address: Behaviour() for address in addresses or (A, B, C)}
        self.asked: list[tuple[str, str, float]] = []
        self.cut: list[str] = []
        self.moves: list[tuple[str, str]] = []
        self.refusals: list[tuple[str, str]] = []
        self.looked_up = 0
        self.lookup = 0.0
        self.deadline = float("inf")
        each = [cast("Settings", SimpleNamespace(address=address)) for address in self.agents]
        settings = cast("Settings", SimpleNamespace(agents=each))
        self.rules = Agents(settings, cutter=lambda one: lambda: self.cut.append(one.address))
        self.rules.on_move = lambda before, after: self.moves.append((before, after))
        self.rules.on_refusal = lambda address, why: self.refusals.append((address, why))

    def now(self) -> float:
        return self.time

    async def exchange(self, agent: Agent, request: Request, *, timeout: float) -> Response:
        assert self.time + timeout <= self.deadline + 1e-6, f"{request.path} may take longer than its call"
        if request.path != READ.path:  # leases depend on it, and others' requests may wait there in vain
            assert request.urgent, f"{request.path} waits for others' turns"
        behaviour = self.agents[agent.address]
        self.asked.append((agent.address, request.path, timeout))
        if request.path in {PEERS, SERVICE, RENEW}:
            assert request.urgent, "a check queues behind other requests, for which the agent is to be used"
        if behaviour.silent or behaviour.takes > timeout:
            self.time += max(0.0, timeout)
            raise RequestTimeout("silent", method=request.method, path=request.path, outcome_unknown=True)
        self.time += behaviour.takes
        if behaviour.fails is not None:
            raise behaviour.fails(
                "it fails", method=request.method, path=request.path, outcome_unknown=behaviour.doubt
            )
        return behaviour.reply_to(request.path)

    async def find(self, agents: Agents, *, timeout: float) -> None:
        assert self.time + timeout <= max(self.time, self.deadline) + 1e-6
        assert timeout >= 0, "a thread can't wait for less than no time"
        self.looked_up += 1
        self.time += min(timeout, self.lookup)

    # -- for the test

    def run(self, program: Coroutine[Any, Any, T]) -> T:
        return run_at_once(program)

    def send(self, request: Request = READ, *, timeout: float = TIMEOUT) -> Response:
        self.deadline = self.time + timeout
        try:
            return self.run(self.rules.send(self, request, timeout=timeout))
        finally:
            self.deadline = float("inf")

    def paths(self, address: str) -> list[str]:
        """Return what an agent was asked for since the last such question to it."""
        found = [path for asked, path, _ in self.asked if asked == address]
        self.asked = [each for each in self.asked if each[0] != address]
        return found

    def agent(self, address: str) -> Agent:
        return next(each for each in self.rules.all if each.address == address)

    @property
    def current(self) -> str | None:
        return None if self.rules.current is None else self.rules.current.address


CHECK = [PEERS, SERVICE]


@pytest.fixture
def world() -> World:
    """Return three agents of one cluster, of which the first serves."""
    world = World()
    world.send()
    world.asked.clear()
    world.time += 1.0
    return world


def test_all_goes_to_one_agent_with_the_whole_time_that_it_has(world: World) -> None:
    for timeout in (0.05, 3.0, 40.0):
        world.send(timeout=timeout)
    assert [each[:2] for each in world.asked] == [(A, READ.path)] * 3
    assert [timeout for *_, timeout in world.asked] == pytest.approx([0.05, 3.0, 40.0])
    assert (world.looked_up, world.moves, world.cut) == (1, [], [])


def test_the_first_one_is_checked_before_its_first_use_where_there_are_others() -> None:
    world = World()
    world.send()
    assert world.paths(A) == [*CHECK, READ.path]
    alone = World(A)
    alone.send()
    assert alone.paths(A) == [READ.path]


def test_what_could_not_be_sent_goes_on_in_the_order_of_the_names_and_stays_there(world: World) -> None:
    world.agents[A].fails = world.agents[B].fails = ConnectFailed
    world.send()
    assert (world.paths(A), world.paths(B), world.paths(C)) == ([READ.path], [PEERS], [*CHECK, READ.path])
    assert (world.current, world.moves, {*world.cut}) == (C, [(A, C)], {A, B})
    world.cut.clear()
    world.agents[A].fails = world.agents[B].fails = None
    world.time += REST + 1.0
    world.send()
    assert (world.paths(A), world.paths(C)) == ([], [READ.path])
    assert world.cut == []


def test_the_next_agent_has_the_time_that_is_left(world: World) -> None:
    world.agents[A].fails = ConnectFailed
    world.agents[A].takes, world.lookup = 2.0, 1.0
    began = world.time
    world.send()
    (timeout,) = [timeout for address, path, timeout in world.asked if (address, path) == (B, READ.path)]
    assert timeout == pytest.approx(began + TIMEOUT - world.time, abs=0.01)


def test_none_is_tried_once_the_time_is_over(world: World) -> None:
    world.agents[A].fails = ConnectFailed
    world.lookup = CONNECT_WITHIN
    with pytest.raises(ConnectFailed):
        world.send(timeout=CONNECT_WITHIN)
    assert world.paths(B) == []


def test_a_look_up_that_hangs_leaves_time_for_the_other_agents(world: World) -> None:
    world.agents[A].fails = ConnectFailed
    world.lookup = math.inf
    assert world.send().status == 200
    assert world.time <= 1000.0 + 2 * CONNECT_WITHIN


def test_a_look_up_has_all_the_time_where_there_is_no_other_agent() -> None:
    world = World(A)
    world.lookup = TIMEOUT / 2
    assert world.send().status == 200
    assert world.time >= 1000.0 + TIMEOUT / 2


def test_a_look_up_that_takes_all_the_time_is_named() -> None:
    world = World(A)
    world.lookup = TIMEOUT
    with pytest.raises(ConnectFailed, match="looking up a name may have taken it"):
        world.send()


def test_a_process_that_was_paused_amid_a_failing_connect_learns_of_that_failure(world: World) -> None:
    def fails_late(*words: str, **fields: Any) -> ConnectFailed:
        world.time += 2 * TIMEOUT
        return ConnectFailed(*words, **fields)

    world.agents[A].fails = cast("type[TransportError]", fails_late)
    with pytest.raises(ConnectFailed):
        world.send()
    assert world.paths(B) == []


@pytest.mark.parametrize("fails", [BrokenReply, RequestTimeout])
def test_what_was_sent_is_not_sent_again_and_its_agent_is_left(
    world: World, fails: type[TransportError]
) -> None:
    world.agents[A].fails = fails if fails is BrokenReply else None
    world.agents[A].silent = fails is RequestTimeout
    with pytest.raises(fails):
        world.send()
    assert (world.paths(A), world.paths(B)) == ([READ.path], [])
    world.send()
    assert (world.paths(A), world.current) == ([], B)


def test_a_short_time_without_an_answer_says_nothing_of_an_agent(world: World) -> None:
    world.agents[A].silent = True
    with pytest.raises(RequestTimeout):
        world.send(timeout=SILENCE - 0.01)
    assert not world.agent(A).rests(world.time)
    with pytest.raises(RequestTimeout):
        world.send(timeout=SILENCE + 0.01)
    assert world.agent(A).rests(world.time)


def test_an_agent_that_has_answered_something_meanwhile_is_not_silent(world: World) -> None:
    world.agents[A].silent = True
    exchange = world.exchange

    async def beside(agent: Agent, request: Request, *, timeout: float) -> Response:
        agent.hear(world.time + 0.1)
        return await exchange(agent, request, timeout=timeout)

    world.exchange = beside  # type: ignore[method-assign]
    with pytest.raises(RequestTimeout):
        world.send()
    assert not world.agent(A).rests(world.time)


def test_an_answer_to_a_check_is_a_sign_of_life_for_a_slow_request_beside_it(world: World) -> None:
    world.time += REFRESH
    world.agents[A].silent = True
    exchange = world.exchange

    async def beside(agent: Agent, request: Request, *, timeout: float) -> Response:
        world.exchange = exchange  # type: ignore[method-assign]
        world.agents[A].silent, world.deadline = False, math.inf
        world.time += 0.1
        await world.rules.look_after(world)
        world.agents[A].silent = True
        return await exchange(agent, request, timeout=timeout)

    world.exchange = beside  # type: ignore[method-assign]
    with pytest.raises(RequestTimeout):
        world.send()
    assert world.paths(A)[:2] == CHECK, "it was not checked"
    assert not world.agent(A).rests(world.time)


def test_an_agent_that_was_left_is_tried_when_no_other_one_serves_the_longest_resting_one_first(
    world: World,
) -> None:
    for address in (A, B, C):
        world.send()
        assert world.current == address
        world.agents[address].fails = BrokenReply
        with pytest.raises(BrokenReply):
            world.send()
        world.agents[address].fails = ConnectFailed
        world.time += 0.5
    world.asked.clear()
    with pytest.raises(ConnectFailed, match="no agent serves") as caught:
        world.send()
    assert list(dict.fromkeys(address for address, *_ in world.asked)) == [A, B, C]
    assert caught.value.outcome_unknown
    world.agents[B].fails = None
    world.send()
    assert world.current == B


def test_the_agent_that_serves_is_preferred_to_one_that_has_rested(world: World) -> None:
    world.agents[A].fails = BrokenReply
    with pytest.raises(BrokenReply):
        world.send()
    world.agents[A].fails = None
    world.send()
    assert world.current == B
    world.time += REST
    world.agents[B].fails = ConnectFailed
    world.send()
    assert world.current == A, "it has rested, and is the first by name"


@pytest.mark.parametrize(
    ("status", "body", "left"),
    [
        (200, b"[]", False),
        (404, b"", False),
        (400, b"No cluster leader", False),
        (500, b"invalid session", False),
        (500, b"No cluster leader", True),
        (500, b"rpc error getting client: failed to get conn", True),
        (500, b"No known Consul servers", True),
        (503, b"No known Consul servers", True),
        (429, b"", True),
    ],
)
def test_an_agent_that_says_that_it_does_not_serve_is_left(
    world: World, status: int, body: bytes, *, left: bool
) -> None:
    world.agents[A].answer = Response(status, {}, body)
    assert world.send().status == status
    assert world.agent(A).rests(world.time) is left
    assert world.agent(A).rests(world.time + REST - 0.01) is left
    assert not world.agent(A).rests(world.time + REST)


# -- which cluster


def moved(world: World, timeout: float = TIMEOUT) -> str | None:
    """Let the first agent fail, and return which one serves then; B if it may."""
    world.agents[A].fails = world.agents[C].fails = ConnectFailed
    try:
        world.send(timeout=timeout)
    except ConnectFailed as error:
        return str(error)
    return world.current


@pytest.mark.parametrize(
    ("peers", "ids", "used"),
    [
        (("10.0.0.1:8300", "10.0.0.2:8300"), ("one", "two"), True),
        (("10.0.0.2:8300", "10.0.0.9:8300"), ("two", "new"), True),
        (("10.0.0.7:8300",), ("two",), False),
        (("10.0.0.1:8300", "10.0.0.9:8300"), ("one", "new"), True),
        (("10.0.0.1:8300", "10.0.0.2:8300"), ("other", "another"), False),
        (("10.0.0.2:8300", "10.0.0.9:8300"), None, True),
        (("10.9.0.1:8300",), None, False),
        (("10.9.0.1:8300",), ("one",), False),
    ],
)
def test_an_agent_is_used_if_it_sees_a_server_that_is_known(
    world: World, peers: tuple[str, ...], ids: tuple[str, ...] | None, *, used: bool
) -> None:
    world.agents[B] = Behaviour(peers, ids)
    found = moved(world)
    assert (found == B) is used
    if not used:
        assert found is not None
        assert f"{B} belongs to another cluster" in found
        assert world.paths(B) == CHECK
        assert [address for address, _ in world.refusals] == [B]


@pytest.mark.parametrize("known", [True, False])
def test_a_session_that_it_knows_is_proof_where_the_servers_are_none(world: World, *, known: bool) -> None:
    world.rules.session = lambda: "s"
    world.agents[B] = Behaviour(("10.9.0.1:8300",), None, knows_session=known)
    assert (moved(world) == B) is known
    assert world.paths(B)[:3] == [*CHECK, RENEW]


def test_a_refused_agent_is_reported_once_and_asked_again_later(world: World) -> None:
    world.agents[B] = Behaviour(("10.9.0.1:8300",), None)
    moved(world)
    assert world.paths(B) == CHECK
    world.time += REFUSED_FOR - 1.0
    assert "two clusters would be two holders" in str(moved(world))
    assert world.paths(B) == []
    world.time += 1.0
    moved(world)
    assert world.paths(B) == CHECK
    assert len(world.refusals) == 1
    world.agents[B] = Behaviour()
    world.time += REFUSED_FOR
    assert moved(world) == B


def test_a_check_counts_for_a_while(world: World) -> None:
    world.run(world.rules.look_after(world))
    assert (world.paths(B), world.paths(C)) == (CHECK, CHECK)
    world.time += CHECK_LASTS - 1.0
    assert moved(world) == B
    assert world.paths(B) == [READ.path]


def test_a_check_does_not_count_for_long(world: World) -> None:
    world.run(world.rules.look_after(world))
    world.paths(B)
    world.time += CHECK_LASTS
    assert moved(world) == B
    assert world.paths(B) == [*CHECK, READ.path]


def test_an_agent_that_can_not_be_checked_is_not_used(world: World) -> None:
    world.agents[B].silent = True
    began = world.time
    assert "could not be checked" in str(moved(world))
    assert world.paths(B) == [PEERS]
    assert world.time - began < CHECK_WITHIN + 0.1
    assert world.agent(B).rests(world.time)


@pytest.mark.parametrize("ends", [AcquireCancelled("cancelled", key="k"), ClientClosed()])
def test_a_call_that_is_ended_amid_a_check_says_nothing_of_the_agent(
    ends: ConsulCoordError, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(A, B)

    async def end(_agent: Agent, _request: Request, *, timeout: float) -> Response:
        raise ends

    with monkeypatch.context() as patch:
        patch.setattr(world, "exchange", end)
        with pytest.raises(type(ends)):
            world.send()
    assert not any(agent.rests(world.time) for agent in world.rules.all)


@pytest.mark.parametrize("timeout", [SILENCE / 2, 0.4])
def test_an_agent_is_left_if_its_check_had_the_time_to_be_answered(timeout: float) -> None:
    world = World(A, B)
    world.agents[A].silent = True
    world.agents[B].fails = ConnectFailed
    with pytest.raises(ConnectFailed, match="could not be checked"):
        world.send(timeout=timeout)
    assert world.rules.all[0].rests(world.time) is (timeout >= SILENCE)


def test_a_check_has_no_more_time_than_the_call(world: World) -> None:
    world.agents[B].silent = True
    assert "could not be checked" in str(moved(world, timeout=0.4))


@pytest.mark.parametrize(
    ("third", "used"),
    [(Behaviour(), True), (Behaviour(("10.9.0.1:8300",), None), False), (Behaviour(silent=True), True)],
    ids=["agrees", "contradicts", "is silent"],
)
def test_a_new_client_whose_first_agent_is_away_uses_another_if_none_contradicts(
    third: Behaviour, *, used: bool
) -> None:
    world = World()
    world.agents[A].fails = ConnectFailed
    world.agents[C] = third
    if used:
        world.send()
        assert world.current == B
    else:
        with pytest.raises(ConnectFailed, match="nothing says which one is meant"):
            world.send()
        assert world.current is None


@pytest.mark.parametrize("ends", [None, AcquireCancelled("cancelled", key="k")])
def test_one_that_could_not_contradict_in_the_time_of_a_call_may_do_so_later(
    ends: ConsulCoordError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(A, B, C)
    world.agents[A].fails = ConnectFailed
    world.agents[C] = Behaviour(("10.9.0.1:8300",), None, takes=SILENCE / 2)
    answer = world.exchange

    async def end(agent: Agent, request: Request, *, timeout: float) -> Response:
        if ends is not None and agent.address == C:
            raise ends
        return await answer(agent, request, timeout=timeout)

    with monkeypatch.context() as patch:
        patch.setattr(world, "exchange", end)
        with pytest.raises(AcquireCancelled if ends else ConnectFailed):
            world.send(timeout=SILENCE / 4)
    assert world.current is None
    with pytest.raises(ConnectFailed, match="belong to different clusters"):
        world.send()


def test_another_cluster_is_not_taken_for_the_own_one_that_another_call_has_learned_meanwhile() -> None:
    """The first agent serves again while the check of the second one compares that with the third."""
    world = World(A, B, C)
    world.agents[A].fails = ConnectFailed
    world.agents[B] = Behaviour(("10.9.0.1:8300",), None)
    answer = world.exchange

    async def serve(agent: Agent, request: Request, *, timeout: float) -> Response:
        if agent.address == C:
            world.exchange, world.agents[A].fails = answer, None  # type: ignore[method-assign]
            world.time += REST
            world.send()
            assert world.current == A
            raise ConnectFailed("it fails", method="GET", path=request.path, outcome_unknown=False)
        return await answer(agent, request, timeout=timeout)

    world.exchange = serve  # type: ignore[method-assign]
    world.send(timeout=10 * REST)
    assert world.current != B
    assert [address for address, _ in world.refusals] == [B]


def test_one_that_is_silent_keeps_no_other_from_contradicting() -> None:
    world = World(A, B, C, D)
    world.agents[A].fails = world.agents[C].fails = ConnectFailed
    world.agents[D] = Behaviour(("10.9.0.1:8300",), None)
    with pytest.raises(ConnectFailed, match="nothing says which one is meant"):
        world.send()
    assert world.current is None


def test_a_new_client_that_has_a_session_asks_for_it() -> None:
    world = World()
    world.rules.session = lambda: "s"
    with pytest.raises(ConnectFailed, match="another cluster"):
        world.send()
    world.agents[A].knows_session = True
    world.time += REFUSED_FOR
    world.send()
    assert world.current == A


@pytest.mark.parametrize(
    ("kinds", "final"),
    [
        ((CertificateRefused, CertificateRefused, CertificateRefused), True),
        ((ConnectFailed, CertificateRefused, CertificateRefused), False),
    ],
)
def test_that_no_agent_serves_is_final_if_each_of_them_refuses_the_certificate(
    kinds: tuple[type[ConnectFailed], ...], *, final: bool
) -> None:
    world = World()
    world.send()
    for address, kind in zip((A, B, C), kinds, strict=True):
        world.run(world.rules.look_after(world))
        world.agents[address].fails = kind
    with pytest.raises(ConnectFailed) as caught:
        world.send()
    assert isinstance(caught.value, CertificateRefused) is final
    assert str(caught.value).count("it fails") == 3


# -- looking after them


def silent_under(world: World, request: Request) -> None:
    """Have a request under way for a while, and look for life then."""
    world.agents[A].silent = True
    exchange = world.exchange

    async def looked_at(agent: Agent, asked: Request, *, timeout: float) -> Response:
        world.exchange = exchange  # type: ignore[method-assign]
        ends = world.time + timeout
        world.paths(A)
        for passes in (SILENT_AFTER - 0.01, 0.02):
            world.time += passes
            world.run(world.rules.look_for_life(world))
            looks.append(world.paths(A))
        return await exchange(agent, asked, timeout=ends - world.time)

    looks: list[list[str]] = []
    world.exchange = looked_at  # type: ignore[method-assign, assignment]
    with pytest.raises(RequestTimeout):
        world.send(request)
    assert looks == ([[], []] if request.hold_open else [[], [LEADER]])


def test_a_silent_agent_is_left_long_before_the_time_of_a_request_is_over(world: World) -> None:
    began = world.time
    cut_at: list[float] = []
    world.agent(A).cut = lambda: cut_at.append(world.time)
    silent_under(world, READ)
    assert world.current == B
    assert cut_at[0] - began < SILENT_AFTER + SIGN_WITHIN + 0.1


def test_an_agent_that_falls_silent_just_after_another_answer_is_left_as_soon(world: World) -> None:
    """A release that was sent before that answer came waits no longer."""
    exchange, agent = world.exchange, world.agent(A)
    left_at: list[float] = []

    async def silent_after_another_answer(asked: Agent, request: Request, *, timeout: float) -> Response:
        world.exchange, ends = exchange, world.time + timeout  # type: ignore[method-assign]
        world.time += 0.1
        world.send()
        answered_at, world.agents[A].silent = world.time, True
        for _ in range(8):
            world.time += LOOK
            world.run(world.rules.look_for_life(world))
            left_at.extend([world.time] if agent.rests(world.time) else [])
        assert left_at[0] <= answered_at + SILENT_AFTER + LOOK + SIGN_WITHIN
        return await exchange(asked, request, timeout=ends - world.time)

    world.exchange = silent_after_another_answer  # type: ignore[method-assign, assignment]
    with pytest.raises(RequestTimeout):
        world.send()
    assert world.current == B


def test_an_agent_that_falls_silent_just_after_a_sign_of_life_is_left_as_soon(world: World) -> None:
    """Its request is slow at first, and nothing else is sent."""
    exchange, agent = world.exchange, world.agent(A)

    async def slow_and_then_silent(asked: Agent, request: Request, *, timeout: float) -> Response:
        world.exchange, ends = exchange, world.time + timeout  # type: ignore[method-assign]
        world.time += SILENT_AFTER
        world.run(world.rules.look_for_life(world))
        assert world.paths(A) == [LEADER], "it has given a sign of life"
        silent_at, world.agents[A].silent = world.time, True
        while world.time < silent_at + SILENT_AFTER + LOOK + SIGN_WITHIN:
            world.time += LOOK
            world.run(world.rules.look_for_life(world))
        assert agent.rests(world.time)
        return await exchange(asked, request, timeout=ends - world.time)

    world.exchange = slow_and_then_silent  # type: ignore[method-assign, assignment]
    with pytest.raises(RequestTimeout):
        world.send()
    assert world.current == B


def test_what_waits_at_an_agent_that_a_short_request_has_left_goes_on_as_soon(world: World) -> None:
    """A call that gave up leaves the agent, and sends nothing else: a release beside it waits no longer."""
    exchange = world.exchange
    cut_at: list[float] = []
    world.agent(A).cut = lambda: cut_at.append(world.time)

    async def beside_a_short_one(asked: Agent, request: Request, *, timeout: float) -> Response:
        world.exchange, began = exchange, world.time  # type: ignore[method-assign]
        world.agents[A].silent = True
        with pytest.raises(RequestTimeout):
            world.send(timeout=2 * SILENCE)
        world.paths(A)
        while world.time < began + SILENT_AFTER + LOOK + SIGN_WITHIN:
            world.time += LOOK
            world.run(world.rules.look_for_life(world))
        assert world.paths(A) == [], "an agent that was left rests"
        assert cut_at, "what is under way there would wait for its whole time"
        return await exchange(asked, request, timeout=timeout + began - world.time)

    world.exchange = beside_a_short_one  # type: ignore[method-assign, assignment]
    with pytest.raises(RequestTimeout):
        world.send()
    assert world.current == B


@pytest.mark.parametrize(
    ("is_new", "is_back", "goes_to"),
    [
        pytest.param(True, False, B, id="a new client"),
        pytest.param(False, False, C, id="a client that moves"),
        pytest.param(False, True, A, id="a client that moves, and its agent is back"),
    ],
)
def test_an_agent_that_falls_silent_just_after_its_check_is_left_as_soon(
    *, is_new: bool, is_back: bool, goes_to: str
) -> None:
    world = World()
    if not is_new:
        world.send()
        world.agents[A] = Behaviour(fails=ConnectFailed, doubt=False)
    exchange, silent = world.exchange, world.agent(A if is_new else B)
    cut_at: list[float] = []
    silent.cut = lambda: cut_at.append(world.time)

    async def silent_once_checked(asked: Agent, request: Request, *, timeout: float) -> Response:
        if asked is silent and request.path == READ.path:
            world.exchange, began = exchange, world.time  # type: ignore[method-assign]
            world.agents[silent.address].silent = True
            if is_back:
                world.agents[A] = Behaviour()
                world.agent(A).left_at -= REST
            while world.time < began + SILENT_AFTER + LOOK + SIGN_WITHIN:
                world.time += LOOK
                world.run(world.rules.look_for_life(world))
            assert cut_at, "what is under way there would wait for its whole time"
            timeout -= world.time - began
        return await exchange(asked, request, timeout=timeout)

    world.exchange = silent_once_checked  # type: ignore[method-assign, assignment]
    with pytest.raises(RequestTimeout):
        world.send()
    assert world.current == goes_to


def test_what_waits_at_an_agent_that_a_new_client_left_is_cut_off() -> None:
    world = World()
    world.agents[A].silent = True
    world.send()
    assert (world.current, world.cut, world.moves) == (B, [A], [])


def test_what_was_answered_is_no_reason_to_ask_for_a_sign_of_life(world: World) -> None:
    for _ in range(2):
        world.send()
    world.paths(A)
    world.time += 2 * SILENT_AFTER
    world.run(world.rules.look_for_life(world))
    assert world.paths(A) == []


def test_a_blocking_query_without_an_answer_is_no_silence(world: World) -> None:
    silent_under(world, QUERY)
    assert world.cut == []


def test_an_agent_that_gives_a_sign_of_life_is_waited_for(world: World) -> None:
    agent = world.agent(A)
    agent.asked_at = world.time
    world.time += SILENT_AFTER
    for _ in range(3):
        world.run(world.rules.look_for_life(world))
    assert world.paths(A) == [LEADER], "no request waits there that would need another sign"
    assert not agent.rests(world.time)


def test_servers_that_are_exchanged_one_by_one_stay_known(world: World) -> None:
    world.time += REFRESH
    for address in (A, B, C):
        world.agents[address] = Behaviour(("10.0.0.2:8300", "10.0.0.3:8300"), None)
    world.run(world.rules.look_after(world))
    assert world.paths(A) == CHECK
    world.run(world.rules.look_after(world))
    assert world.paths(A) == []
    world.agents[B] = Behaviour(("10.0.0.3:8300", "10.0.0.4:8300"), None)
    world.time += CHECK_LASTS
    assert moved(world) == B


@pytest.mark.parametrize("why", ["none serves", "it rests", "it does not answer"])
def test_others_are_not_checked_while_nothing_is_known_for_certain(world: World, why: str) -> None:
    if why == "none serves":
        world.rules.current = None
    elif why == "it rests":
        world.agent(A).leave(world.time)
    else:
        world.time += REFRESH
        world.agents[A].fails = ConnectFailed
    world.run(world.rules.look_after(world))
    assert (world.paths(B), world.paths(C)) == ([], [])


def test_a_wrong_address_is_reported_before_it_is_needed_and_looked_at_again(world: World) -> None:
    world.agents[B] = Behaviour(("10.9.0.1:8300",), None)
    world.agents[C].fails = ConnectFailed
    world.run(world.rules.look_after(world))
    assert [address for address, _ in world.refusals] == [B]
    world.paths(B)
    world.paths(C)
    world.agents[B] = Behaviour()
    world.time += REFUSED_FOR - 1.0
    world.run(world.rules.look_after(world))
    assert (world.paths(B), world.paths(C)) == ([], []), "one that was left is checked when it is needed"
    world.time += 1.0
    world.run(world.rules.look_after(world))
    assert world.paths(B) == CHECK
    assert world.agent(B).refused == ""


def test_one_that_can_not_be_checked_keeps_no_other_from_it(world: World) -> None:
    world.agents[B].fails = ConnectFailed
    world.run(world.rules.look_after(world))
    assert world.paths(C) == CHECK
    world.agents[B] = Behaviour(("10.9.0.1:8300",), None)
    world.time += REST
    world.agents[A].fails = ConnectFailed
    world.send()
    assert world.current == C


def test_verifying_takes_the_time_of_two_requests_at_most(world: World) -> None:
    world.agents[B].takes = CHECK_WITHIN - 0.1
    assert world.run(world.rules.verify(world, world.agent(B))) == ""
    world.agents[B].takes = CHECK_WITHIN + 0.1
    assert world.run(world.rules.verify(world, world.agent(B)))


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        (Behaviour(), ""),
        (Behaviour(("10.9.0.1:8300",), None), "another cluster"),
        (Behaviour(fails=ConnectFailed), "could not be checked"),
    ],
)
def test_one_agent_can_be_verified(world: World, behaviour: Behaviour, told: str) -> None:
    world.run(world.rules.look_after(world))
    world.paths(B)
    world.agents[B] = behaviour
    found = world.run(world.rules.verify(world, world.agent(B)))
    assert found.startswith(told) if not told else told in found
    assert world.paths(B), "what was known before does not count"
    assert LEADER not in found


ELSEWHERE = Behaviour(("10.9.0.1:8300",), None)
"""An agent of another cluster."""


def test_one_that_was_left_is_checked_again_however_lately_it_was(world: World) -> None:
    """While it was away another cluster may have got its address."""
    world.agents[A].fails = ConnectFailed
    world.send()
    assert world.current == B
    world.paths(A)
    world.agents[A] = ELSEWHERE
    world.agents[B].fails = world.agents[C].fails = ConnectFailed
    with pytest.raises(ConnectFailed, match="another cluster"):
        world.send()
    assert world.paths(A) == CHECK


def test_one_that_was_left_and_refused_since_is_looked_at_again(world: World) -> None:
    world.agents[B].fails = ConnectFailed
    world.run(world.rules.look_after(world))
    world.time += REST
    world.agents[B] = ELSEWHERE
    assert "another cluster" in str(moved(world))
    world.agents[A] = Behaviour()
    world.time += REFUSED_FOR
    world.send()
    world.agents[B] = Behaviour()
    world.paths(B)
    world.run(world.rules.look_after(world))
    assert world.paths(B) == CHECK
    assert world.agent(B).refused == ""


def test_one_that_was_refused_just_now_can_be_verified(world: World) -> None:
    world.agents[B] = ELSEWHERE
    assert "another cluster" in world.run(world.rules.verify(world, world.agent(B)))
    world.agents[B] = Behaviour()
    assert world.run(world.rules.verify(world, world.agent(B))) == ""


def test_a_move_is_told_with_the_agent_that_was_left_first(world: World) -> None:
    world.agents[A].fails = ConnectFailed
    world.send()
    assert world.moves == [(A, B)]


@pytest.mark.parametrize("doubtful", [None, A, B, C])
def test_that_no_agent_serves_leaves_doubt_if_one_of_them_may_have_got_the_request(
    world: World, doubtful: str | None
) -> None:
    world.run(world.rules.look_after(world))
    for address, agent in world.agents.items():
        agent.fails, agent.doubt = ConnectFailed, address == doubtful
    with pytest.raises(ConnectFailed) as raised:
        world.send()
    assert raised.value.outcome_unknown is (doubtful is not None)


def test_what_is_known_of_an_agent_outlasts_a_look_at_which_there_are(world: World) -> None:
    before = {agent.address: agent for agent in world.rules.all}
    found = [cast("Settings", SimpleNamespace(address=each)) for each in (C, A, A, "http://d:8500")]
    world.rules.update(found)
    assert [agent.address for agent in world.rules.all] == [C, A, "http://d:8500"]
    assert world.agent(A) is before[A]
    assert world.agent(C) is before[C]


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (("ab", "xy"), ("bc", "zz"), True),
        (("ab", "xy"), ("cd", "xy"), False),
        (("ab", "xy"), ("", "yz"), True),
        (("", "xy"), ("ab", "yz"), True),
        (("", "xy"), ("", "yz"), True),
        (("ab", "xy"), ("", "zz"), False),
        (("", "xy"), ("ab", "zz"), False),
        (("", "xy"), ("", "zz"), False),
    ],
)
def test_servers_are_compared_by_their_ids_and_by_their_addresses_where_ids_are_unknown(
    ours: tuple[str, str], theirs: tuple[str, str], *, same: bool
) -> None:
    one, other = (Servers(ids=frozenset(ids), peers=frozenset(peers)) for ids, peers in (ours, theirs))
    assert one.are_those_of(other) == same
