"""Blocking queries on the pure service: what wakes them, what does not, and how long they wait."""

from __future__ import annotations

import pytest

from consul_coord.server.config import ServerConfig
from consul_coord.server.wire import Reply, Request
from tests.server.driver import Driver


@pytest.fixture
def agent() -> Driver:
    driver = Driver()
    driver.ask("PUT", "/v1/kv/d/k", b"v")
    driver.ask("PUT", "/v1/kv/d/other", b"v")
    return driver


def index_of(agent: Driver, target: str) -> int:
    index = agent.ask("GET", target).index
    assert index is not None
    return index


@pytest.mark.parametrize(
    ("target", "write"),
    [
        ("/v1/kv/d/k?", ("PUT", "/v1/kv/d/k")),
        ("/v1/kv/d/k?", ("DELETE", "/v1/kv/d/k")),
        ("/v1/kv/d/k?", ("DELETE", "/v1/kv/d?recurse")),
        ("/v1/kv/d?recurse", ("PUT", "/v1/kv/d/new")),
        ("/v1/kv/d?recurse", ("DELETE", "/v1/kv/d/k")),
        ("/v1/kv/d?keys", ("PUT", "/v1/kv/d/k")),
        ("/v1/kv/?recurse", ("PUT", "/v1/kv/x")),
        ("/v1/kv/absent?", ("PUT", "/v1/kv/absent")),
        ("/v1/session/list?", ("PUT", "/v1/session/create")),
        ("/v1/session/node/NODE1?", ("PUT", "/v1/session/create")),
    ],
)
def test_a_change_wakes_who_watches_it(agent: Driver, target: str, write: tuple[str, str]) -> None:
    index = index_of(agent, target)
    blocked = agent.block(f"{target}&index={index}")
    agent.ask(*write)
    woken = agent.late(blocked)
    assert woken is not None
    assert woken.index is not None
    assert woken.index > index


@pytest.mark.parametrize(
    ("target", "write"),
    [
        ("/v1/kv/d/k?", ("PUT", "/v1/kv/d/k", b"v")),
        ("/v1/kv/d/k?", ("PUT", "/v1/kv/d/k/child", b"v")),
        ("/v1/kv/d/k?", ("PUT", "/v1/kv/d/other", b"w")),
        ("/v1/kv/d?recurse", ("PUT", "/v1/kv/e", b"v")),
        ("/v1/kv/absent?", ("PUT", "/v1/kv/another", b"v")),
        ("/v1/session/list?", ("PUT", "/v1/kv/x", b"v")),
    ],
)
def test_other_changes_do_not(agent: Driver, target: str, write: tuple[str, str, bytes]) -> None:
    blocked = agent.block(f"{target}&index={index_of(agent, target)}")
    agent.ask(*write)
    assert agent.late(blocked) is None


def test_absent_keys_may_be_woken_early_on_request() -> None:
    agent = Driver(ServerConfig(spurious_wakeups=True))
    agent.ask("PUT", "/v1/kv/x", b"v")
    blocked = agent.block(f"/v1/kv/absent?index={index_of(agent, '/v1/kv/absent')}")
    agent.ask("PUT", "/v1/kv/another", b"v")
    woken = agent.late(blocked)
    assert woken is not None
    assert woken.status == 404


def test_the_end_of_a_session_wakes_its_watchers_only(agent: Driver) -> None:
    session, other = agent.session(TTL="10s"), agent.session()
    agent.ask("PUT", f"/v1/kv/lock?acquire={session}", b"v")
    index = index_of(agent, "/v1/session/list")
    on_session = agent.block(f"/v1/session/info/{session}?index={index}")
    on_key = agent.block(f"/v1/kv/lock?index={index_of(agent, '/v1/kv/lock')}")
    agent.ask("PUT", f"/v1/session/destroy/{other}")
    agent.ask("PUT", f"/v1/session/renew/{session}")
    assert agent.late(on_session) is agent.late(on_key) is None
    agent.advance(20.0)
    gone, freed = agent.late(on_session), agent.late(on_key)
    assert gone is not None
    assert freed is not None
    assert gone.json == []
    assert "Session" not in freed.json[0]


def test_the_end_of_a_lock_delay_is_no_event(agent: Driver) -> None:
    session = agent.session(LockDelay="5s")
    agent.ask("PUT", f"/v1/kv/lock?acquire={session}", b"v")
    agent.ask("PUT", f"/v1/session/destroy/{session}")
    blocked = agent.block(f"/v1/kv/lock?wait=60s&index={index_of(agent, '/v1/kv/lock')}")
    agent.advance(59.9)
    assert agent.late(blocked) is None


@pytest.mark.parametrize(
    ("wait", "seconds"), [("wait=1600ms&", 1.6), ("", 300.0), ("wait=0s&", 300.0), ("wait=2h&", 600.0)]
)
def test_a_wait_lasts_up_to_a_sixteenth_longer(wait: str, seconds: float) -> None:
    for jitter, expected in ((0.0, seconds), (1.0, seconds * 17 / 16)):
        agent = Driver(jitter=jitter)
        agent.ask("PUT", "/v1/kv/k", b"v")
        blocked = agent.block(f"/v1/kv/k?{wait}index={index_of(agent, '/v1/kv/k')}")
        assert blocked.until == pytest.approx(agent.now + expected)
        assert agent.service.next_timer() == blocked.until
        agent.advance(blocked.until - agent.now - 0.001)
        assert agent.late(blocked) is None
        agent.advance(0.002)
        ended = agent.late(blocked)
        assert ended is not None
        assert (ended.status, ended.json[0]["Key"]) == (200, "k")


def test_an_index_from_the_future_waits_its_full_time(agent: Driver) -> None:
    blocked = agent.block("/v1/kv/d/k?wait=10s&index=1000")
    agent.ask("PUT", "/v1/kv/d/k", b"changed")
    assert agent.late(blocked) is None
    agent.advance(10.0)
    ended = agent.late(blocked)
    assert ended is not None
    assert ended.index is not None
    assert ended.index < 1000


@pytest.mark.parametrize("query", ["index=0", "index=", "index=0&wait=5s", "wait=5s"])
def test_without_an_index_the_answer_comes_at_once(agent: Driver, query: str) -> None:
    assert agent.ask("GET", f"/v1/kv/d/k?{query}").status == 200


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("wait=5", "Invalid wait time"),
        ("wait=abc", "Invalid wait time"),
        ("index=abc", "Invalid index"),
        ("index=-1", "Invalid index"),
        ("index=1.5", "Invalid index"),
        (f"index={2**64}", "Invalid index"),
        ("stale&consistent", "Cannot specify ?stale with ?consistent, conflicting semantics."),
        ("cached&consistent", "Cannot specify ?cached with ?consistent, conflicting semantics."),
        ("max_stale=abc", 'Invalid max_stale value "abc"'),
    ],
)
def test_bad_options_are_refused(agent: Driver, query: str, text: str) -> None:
    reply = agent.ask("GET", f"/v1/kv/d/k?{query}")
    assert (reply.status, reply.text) == (400, text)


def test_watchers_are_answered_in_the_order_they_came_and_forgotten(agent: Driver) -> None:
    index = index_of(agent, "/v1/kv/d/k")
    tickets = [agent.block(f"/v1/kv/d/k?index={index}") for _ in range(3)]
    agent.service.cancel(tickets[1].ticket)
    agent.ask("PUT", "/v1/kv/d/k", b"w")
    assert [agent.late(ticket) is not None for ticket in tickets] == [True, False, True]
    assert agent.service.blocked == 0


def test_stopping_answers_everybody_with_what_there_is(agent: Driver) -> None:
    index = index_of(agent, "/v1/kv/d/k")
    blocked = agent.block(f"/v1/kv/d/k?index={index}")
    agent.service.dismiss(agent.now)
    agent.advance(0.0)
    ended = agent.late(blocked)
    assert ended is not None
    assert (ended.status, ended.index) == (200, index)


def test_losing_the_leader_ends_watches_but_stale_ones(agent: Driver) -> None:
    index = index_of(agent, "/v1/kv/d/k")
    plain = agent.block(f"/v1/kv/d/k?index={index}")
    stale = agent.block(f"/v1/kv/d/k?stale&index={index}")
    agent.state.lose_leader(agent.now)
    agent.service.publish(agent.now)
    agent.advance(0.0)
    ended = agent.late(plain)
    assert ended is not None
    assert (ended.status, ended.text) == (500, "rpc error making call: EOF")
    assert agent.late(stale) is None


READS = ("/v1/kv/k", "/v1/session/list", "/v1/catalog/nodes", "/v1/health/state/any")


@pytest.mark.parametrize("path", READS)
def test_a_stale_read_tells_for_how_many_milliseconds_there_has_been_no_leader(path: str) -> None:
    agent = Driver()

    def told() -> tuple[str | None, str | None]:
        reply = agent.service.handle(Request.make("GET", f"{path}?stale"), agent.now)
        assert isinstance(reply, Reply)
        return reply.header("X-Consul-Knownleader"), reply.header("X-Consul-Lastcontact")

    assert told() == ("true", "0")
    agent.state.lose_leader(agent.now)
    agent.advance(1.5)
    assert told() == ("false", "1500")
    agent.state.elect_leader(agent.now)
    assert told() == ("true", "0")
