"""What a client and a candidate say while Consul does not answer: agents that stop, and agents that die."""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    AsyncClient,
    AsyncLeaderElection,
    Client,
    HoldState,
    LeaderElection,
    Lock,
    RequestTimeout,
    Semaphore,
    SessionSpec,
)
from consul_coord.testing.agent import RealAgent
from tests.election.conftest import QUICK, SPEC
from tests.election.waiting import PATIENCE, Told, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from consul_coord import LeaderInfo
    from tests.election.conftest import Stand


@pytest.fixture
def agent(consul_binary: Path, tmp_path: Path) -> Iterator[RealAgent]:
    """Yield an agent of this test's own, whose data outlive a kill."""
    with RealAgent(binary=consul_binary, data_dir=tmp_path) as own:
        yield own


def stopped(agent: RealAgent) -> Callable[[], object]:
    agent.pause()
    return agent.resume


def killed(agent: RealAgent) -> Callable[[], object]:
    agent.kill()
    return agent.start


@pytest.mark.slow
@pytest.mark.parametrize("harm", [stopped, killed])
def test_being_cut_off_shows_and_passes(
    agent: RealAgent, key: str, harm: Callable[[RealAgent], Callable[[], object]]
) -> None:
    told: Told = Told()

    def tell(info: LeaderInfo | None) -> None:
        told.say(None if info is None else info.text)

    def age() -> float:
        seconds = follower.leader_age
        assert seconds is not None
        return seconds

    with ExitStack() as running:
        leading, client = (
            running.enter_context(Client(address=agent.address, session=SPEC)) for _ in range(2)
        )
        leader = running.enter_context(LeaderElection(leading, key, value="first", retry_wait=QUICK))
        leader.wait_for_leadership(timeout=PATIENCE)
        follower = LeaderElection(client, key, value="second", retry_wait=QUICK, on_change=tell)
        running.enter_context(follower)
        until(lambda: told.news == ["first"], "it knows who leads")
        until(client.ready, "it is ready")
        until(lambda: follower.problem is None, "all is well")
        assert client.connected
        assert client.last_contact < PATIENCE
        assert age() < PATIENCE

        heal = harm(agent)
        until(lambda: not client.connected, "it has noticed")
        assert not client.ready()
        assert client.healthy(), "it holds nothing, so there is nothing to be lost"
        problem = follower.problem
        assert isinstance(problem, RequestTimeout)
        assert "no answer from Consul for" in str(problem)
        until(lambda: told.news == ["first", None], "the leader's lease must have ended")
        assert follower.leader is None
        assert age() >= (SPEC.ttl or math.nan)
        until(lambda: not leader.is_leader, "it has ended indeed")
        assert leader.leader is None

        heal()
        until(client.ready, "it is ready again")
        assert client.connected
        until(lambda: follower.problem is None, "all is well again")
        until(lambda: follower.leader is not None, "somebody leads again")
        until(lambda: len(told.news) > 2, "it is told")
        assert told.news[2] in {"first", "second"}


@pytest.mark.slow
def test_a_hold_in_jeopardy_is_healthy_and_not_ready(agent: RealAgent, key: str) -> None:
    with Client(address=agent.address, session=SPEC) as client, Lock(client, key) as hold:
        until(client.ready, "it is ready")
        agent.pause()
        until(lambda: not client.ready(), "a renewal has failed")
        held, healthy = hold.is_held, client.healthy()
        agent.resume()
        assert healthy is held, "health is the lease, and nothing else"
        until(client.ready, "it is ready again")


@pytest.mark.slow
def test_an_outage_is_two_lines_of_the_log_however_much_is_held(
    agent: RealAgent, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "consul_coord")
    spec = SessionSpec(ttl=6, lock_delay=6)
    with ExitStack() as running:
        client = running.enter_context(Client(address=agent.address, session=spec))
        locks = Lock(client, key), Semaphore(client, f"{key}-slots", 2), Semaphore(client, f"{key}-more", 2)
        held = [running.enter_context(lock) for lock in locks]
        agent.pause()
        until(lambda: all(one.state is HoldState.JEOPARDY for one in held), "all renewals have failed")
        agent.resume()
        until(lambda: all(one.state is HoldState.HELD for one in held), "all are renewed")
        until(lambda: len(caplog.records) > 1, "the end is told")
    began, ended = (record.getMessage() for record in caplog.records)
    assert began.startswith("no contact with Consul for ")
    assert ended.startswith("contact with Consul is back after ")
    for line in (began, ended):
        assert all(one.key in line for one in held)


def test_an_idle_client_finds_out_while_it_is_looked_at(agent: RealAgent) -> None:
    with Client(address=agent.address) as client:
        assert client.last_contact == math.inf
        assert not client.connected, "nothing is known yet"
        until(lambda: client.connected, "it has asked")
        assert client.ready()
        assert client.stats().sessions_created == 0
    assert not client.connected
    assert not client.ready()


def test_a_leader_knows_itself_and_the_next_in_line_knows_the_leader(stand: Stand) -> None:
    leading = stand(value="first")
    assert leading.leader_age is None or leading.leader_age >= 0
    leading.wait_for_leadership(timeout=PATIENCE)
    until(lambda: leading.leader is not None, "it sees itself")
    seen = leading.leader
    assert seen is not None
    assert (seen.value, seen.term) == (b"first", leading.term)
    assert leading.leader_age == 0.0
    following = stand(value="second")
    until(lambda: following.leader is not None, "it sees the leader")
    leading.proclaim("changed")
    until(lambda: following.leader is not None and following.leader.text == "changed", "it sees the change")
    assert following.leader is not None
    assert following.leader.term == leading.term
    leading.stop()
    assert leading.leader is None
    until(lambda: following.is_leader, "it leads")
    until(lambda: following.leader is not None and following.leader.text == "second", "it sees itself")


@pytest.mark.anyio
async def test_an_async_client_tells_the_same(reference_address: str, key: str) -> None:
    client = AsyncClient(address=reference_address)
    assert not client.connected, "before it was entered nothing is asked"
    assert client.last_contact == math.inf
    async with client:
        election = AsyncLeaderElection(client, key, value="me")
        assert election.leader is None
        async with election:
            await election.wait_for_leadership(timeout=PATIENCE)
            leader: Any = election.leader
            assert leader.value == b"me"
            assert client.ready()
    assert not client.ready()
