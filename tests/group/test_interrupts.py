"""Joining and leaving, interrupted wherever CPython may run a signal handler: nobody hangs or remains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Group
from tests.election.waiting import until
from tests.group.conftest import SPEC
from tests.interrupts.points import strike

if TYPE_CHECKING:
    from collections.abc import Callable

STEP = 37
"""Of so many places one is struck, another one in each pass."""

# A socket or a coroutine that is dropped as it is made.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def each_place(start: int, prepare: Callable[[], Group], act: Callable[[Group], object]) -> list[Group]:
    """Do something again and again, struck at another place each time, until it is over before."""
    found: list[Group] = []
    place = start
    while True:
        group = prepare()
        struck = strike(lambda group=group: act(group), place).at  # type: ignore[misc]
        if not struck:
            return found
        place += STEP
        found.append(group)
        after(group)


def after(group: Group) -> None:
    """Join, whatever has happened before, and leave."""
    group.join(timeout=30)
    assert group.joined
    group.leave()
    until(lambda: group.members() == (), "it has left")


@pytest.mark.parametrize("start", [0, 13, 26])
def test_an_interrupted_join_can_be_made_again(reference_address: str, prefix: str, start: int) -> None:
    with Client(address=reference_address, session=SPEC) as client:
        assert each_place(start, lambda: Group(client, prefix, id="one"), Group.join)


@pytest.mark.parametrize("start", [0, 13, 26])
def test_what_an_interrupted_join_left_is_given_back(reference_address: str, prefix: str, start: int) -> None:
    """Unless it had joined: then it can be left."""
    with Client(address=reference_address, session=SPEC) as client:
        place = start
        while True:
            group = Group(client, prefix, id="one")
            if not strike(group.join, place).at:
                break
            place += STEP
            if group.joined:
                group.leave()
            until(lambda: Group(client, prefix).members() == (), "it is given back")


@pytest.mark.parametrize("start", [3, 20])
def test_an_interrupted_leave_can_be_made_again(reference_address: str, prefix: str, start: int) -> None:
    with Client(address=reference_address, session=SPEC) as client:

        def joined() -> Group:
            group = Group(client, prefix, id="one")
            group.join(timeout=30)
            return group

        assert each_place(start, joined, Group.leave)
