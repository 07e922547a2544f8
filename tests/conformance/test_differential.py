"""Random operations on the reference server and on a real agent, reply against reply.

Each part has an agent of its own, that nobody else writes to: sessions that other tests leave behind, and
that end by themselves a little later, move the very indexes that are compared here.

The seed is printed, and CONSUL_COORD_SEED begins with it again. Hypothesis shrinks what fails. A failure that
does not come again when Hypothesis replays it is told together with what both were asked until then.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from contextlib import closing
from dataclasses import replace
from functools import partialmethod
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from consul_coord.server import ReferenceServer, kv, sessions
from consul_coord.server.lockdelay import LockDelays
from consul_coord.server.store import SESSIONS
from consul_coord.server.waiting import WaitingRoom
from consul_coord.testing.agent import RealAgent
from tests.conformance.operations import Operations
from tests.conformance.sides import CONFIG, TIMEOUT, Agent, Answer
from tests.conformance.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from consul_coord.server.records import Entry, SessionRecord
    from consul_coord.server.store import Store

PARTS = 8
"""Small enough to be shared out among the processes of pytest-xdist."""
LONG_PARTS = 20
LAST_SAID = 200
PLANTED_SEED = 5


@pytest.fixture
def own_agent(consul_binary: Path) -> Iterator[RealAgent]:
    with RealAgent(binary=consul_binary) as agent:
        if not (target := Target("agent", agent.address)).is_1_8:
            pytest.skip(f"the reference server is a Consul 1.8; the cases say how {target.version} differs")
        wait_until_quiet(agent.address)
        yield agent


def wait_until_quiet(address: str) -> None:
    """Wait until the agent has written its own node to the catalog, which moves indexes that are compared."""
    deadline = time.monotonic() + TIMEOUT
    with closing(Agent(address)) as agent:
        while any(node["TaggedAddresses"] is None for node in agent.ask("GET", "/v1/catalog/nodes").body):
            assert time.monotonic() < deadline, "the agent does not register its node"
            time.sleep(0.05)


SETTINGS = hypothesis.settings(
    max_examples=20,
    stateful_step_count=50,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    print_blob=True,
)


@pytest.fixture
def begin(search_seed: int, part: int) -> int:
    """Return where a part begins: parts of one portion must not meet, at a thousand batches each."""
    if named := os.environ.get("CONSUL_COORD_SEED"):
        return int(named)
    return (search_seed * (PARTS + LONG_PARTS) + part) * 1_000


def run(
    address: str,
    at_least: int,
    seed: int,
    settings: hypothesis.settings = SETTINGS,
    *,
    without: Sequence[str] = (),
) -> None:
    """Run the machine until both sides have answered so many operations, watches and time among them.

    ``without``: the names of operations to leave out.
    """
    sys.stdout.write(f"CONSUL_COORD_SEED={seed}\n")

    class Run(Operations):
        """Counts for itself."""

    for name in without:
        setattr(Run, name, partialmethod(getattr(Operations, name)))  # which is no rule any more
    Run.address = address
    batches = itertools.count(seed)
    try:
        while Run.operations < at_least or Run.woken < at_least / 1_000 or not Run.expired:
            run_state_machine_as_test(hypothesis.seed(next(batches))(Run), settings=settings)
    except BaseException:
        sys.stdout.write("\n".join(("Last asked:", *Run.said[-LAST_SAID:], "")))
        raise
    sys.stdout.write(
        f"{Run.operations} operations, {Run.woken} watches woken, {Run.expired} ends waited for\n"
    )


@pytest.mark.search
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_operations(own_agent: RealAgent, begin: int) -> None:
    run(own_agent.address, 10_000 // PARTS, begin)


def keep_lock_index(store: Store, index: int, entry: Entry) -> Entry:
    existing = store.kv.get(entry.key)
    kept = replace(entry, lock_index=existing.lock_index, session=existing.session) if existing else entry
    return kv._store(store, index, existing, kept)


def end_without_keys(store: Store, index: int, session: SessionRecord, delay: object) -> None:
    store.sessions.remove(session.id)
    store.changed(SESSIONS, index)


OF_THE_CATALOG = (
    *("register_service", "register_check", "deregister", "create_query"),
    *("look_at_services", "look_at_node"),
)
"""Operations that none of these faults concerns: without them, each shows soon."""
PLANTED: dict[str, tuple[object, str, object]] = {
    "lock-delays are forgotten": (LockDelays, "active", lambda *_: False),
    "a write keeps the LockIndex": (kv, "put", keep_lock_index),
    "a session's end leaves its keys held": (sessions, "invalidate", end_without_keys),
    "nobody who watches a prefix is woken": (WaitingRoom, "_reached", lambda _, mark: (mark,)),
}


@pytest.mark.search
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", PLANTED)
def test_a_difference_is_found(own_agent: RealAgent, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[fault])
    unshrunk = hypothesis.settings(SETTINGS, phases=[hypothesis.Phase.generate])
    # What shows in time only, as a watch that is not woken, may fail at another step when it is replayed.
    with pytest.raises((AssertionError, TimeoutError, ExceptionGroup, Flaky)):
        run(own_agent.address, 60_000, PLANTED_SEED, unshrunk, without=OF_THE_CATALOG)


def test_a_difference_at_the_very_end_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a machine is busy: what should have shown at a step shows while all is taken away."""

    class Run(Operations):
        """Counts for itself."""

    with ReferenceServer(config=CONFIG) as agent:
        Run.address = agent.address
        machine = Run()
        machine.same_start()
        machine.watch("tree", "a", "", 0)
        asked = machine.sides.agent
        assert len(asked._watching) == 1
        monkeypatch.setattr(machine.sides.reference, "ask", lambda *_: Answer(500, "", None))
        with pytest.raises(AssertionError, match="and not"):
            machine.teardown()
    assert (asked._connection.sock, asked._watching) == (None, set())


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(PARTS, PARTS + LONG_PARTS))
def test_many_random_operations(own_agent: RealAgent, begin: int) -> None:
    run(own_agent.address, 10_000, begin)
