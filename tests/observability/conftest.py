"""A client whose observer is under test, and a course of events that real holds make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, LeaderElection, Lock, SessionSpec
from consul_coord.server import ReferenceServer, ServerConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord import Observer

PATIENCE = 20.0


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ReferenceServer(config=ServerConfig(session_ttl_min=0.2)) as server:
        yield server.address


@pytest.fixture
def course(address: str) -> Callable[[Observer], None]:
    """Return what makes a released hold, a lost one, a leadership, and renewals."""

    def run(observer: Observer) -> None:
        spec = SessionSpec(ttl=0.6, lock_delay=0.0, allow_unbounded=True)
        with Client(address=address, observer=observer, session=spec) as client:
            with Lock(client, "group/released").hold() as kept:
                while not client.stats().renewals:
                    kept.lost.wait(0.05)
            lost = Lock(client, "group/lost").acquire()
            client.session.destroy(lost.session)
            assert lost.lost.wait(PATIENCE)
            with LeaderElection(client, "group/leader") as election:
                election.wait_for_leadership(timeout=PATIENCE)

    return run
