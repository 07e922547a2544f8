"""Closing a client of semaphores: no session of theirs is left, not even one that is just made ahead."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Semaphore
from tests.semaphore.conftest import spec
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually

if TYPE_CHECKING:
    from tests.semaphore.conftest import Place
    from tests.support.proxy import FaultProxy

THE_SECOND = b'-2"'
"""How the name of a client's second session ends."""


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
def test_a_session_that_is_just_being_made_ahead_is_destroyed_too(
    place: Place, proxy: FaultProxy, *, answered: bool
) -> None:
    client = Client(address=proxy.address, session=spec(place.site))
    ahead = proxy.add(Fault(lose=Lose.TIME, path="/v1/session/create", containing=THE_SECOND))
    permit = Semaphore(client, place.prefix, 2).acquire(timeout=5)
    assert ahead.hit.wait(5)
    with ThreadPoolExecutor(1) as pool:
        close = pool.submit(client.close)
        eventually(lambda: not place.operator.exists(permit.session))
        if not answered:
            proxy.cut()
        ahead.let_go()
        close.result(10)
    assert place.left_behind() == []
    assert client.pending_cleanup == 0


def test_idle_sessions_and_those_of_dropped_objects_are_destroyed(place: Place, client: Client) -> None:
    for number in range(3):
        with Semaphore(client, f"{place.prefix}/{number}", 2):
            pass
    permits = [Semaphore(client, place.prefix, 3).acquire(timeout=5) for _ in range(3)]
    permits.pop()
    client.close()
    assert place.operator.sessions(place.site.unique) == []
    assert client.pending_cleanup == 0
