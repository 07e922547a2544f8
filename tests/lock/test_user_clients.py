"""An error of a user's HTTP client in the background is a failure like any other, and ends no program."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from consul_coord import Client, Group, Lock
from consul_coord.events import Event, Failed
from consul_coord.server import ReferenceServer

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 30.0


class Trouble:
    """A hook that raises at blocking queries whose address has a text, and an observer of what is told."""

    def __init__(self) -> None:
        self.at = ""
        self.raised = threading.Event()
        self.told: list[Failed] = []

    async def __call__(self, request: httpx.Request) -> None:
        url = str(request.url)
        if self.at and self.at in url and "index=" in url and not self.raised.is_set():
            self.raised.set()
            raise LookupError("a bug of the user's")

    def on_event(self, event: Event) -> None:
        if isinstance(event, Failed):
            self.told.append(event)


@pytest.fixture
def trouble() -> Trouble:
    return Trouble()


@pytest.fixture
def clients(trouble: Trouble) -> Iterator[tuple[Client, Client]]:
    """Return a client whose HTTP client is in trouble, and another one."""
    limits = httpx.Limits(max_keepalive_connections=0)
    background = httpx.AsyncClient(limits=limits, event_hooks={"request": [trouble]})
    with ExitStack() as stack:
        address = stack.enter_context(ReferenceServer()).address
        calls = stack.enter_context(httpx.Client())
        mine = Client(address=address, http_client=calls, background_http_client=background, observer=trouble)
        yield stack.enter_context(mine), stack.enter_context(Client(address=address))


def test_the_watch_of_a_hold_goes_on(trouble: Trouble, clients: tuple[Client, Client]) -> None:
    mine, other = clients
    trouble.at = "/v1/kv/a?"
    hold = Lock(mine, "a").acquire()
    assert trouble.raised.wait(PATIENCE)
    other.kv.delete("a")
    assert hold.lost.wait(PATIENCE)
    (told,) = trouble.told
    assert told.error == "LookupError: a bug of the user's"


def test_a_group_is_followed_as_before(trouble: Trouble, clients: tuple[Client, Client]) -> None:
    mine, other = clients
    states = Group(mine, "g").watch()
    assert next(states).value.all == ()
    trouble.at = "/v1/kv/g/members"
    with ThreadPoolExecutor(1) as pool:
        state = pool.submit(next, states)
        assert trouble.raised.wait(PATIENCE)
        with Group(other, "g", id="one"):
            try:
                assert [member.id for member in state.result(PATIENCE).value.joined] == ["one"]
            finally:
                states.close()


def test_a_watch_of_the_users_own_goes_on(trouble: Trouble, clients: tuple[Client, Client]) -> None:
    mine, other = clients
    states = mine.kv.watch("a")
    assert next(states).value is None
    trouble.at = "/v1/kv/a?"
    with ThreadPoolExecutor(1) as pool:
        state = pool.submit(next, states)
        assert trouble.raised.wait(PATIENCE)
        other.kv.put("a", "1")
        assert state.result(PATIENCE).value is not None
