"""Destroying a record that names the dead, interrupted wherever CPython may run a signal handler."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from consul_coord import Semaphore
from tests.interrupts.points import strike
from tests.support.sites import eventually

if TYPE_CHECKING:
    from tests.semaphore.conftest import MakeClient, Place

STEP = 97
"""Of so many places one is struck, another one in each pass."""
DEAD = "11111111-1111-1111-1111-111111111111"

# A socket or a coroutine that is dropped as it is made.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.slow
@pytest.mark.parametrize("site", ["reference"], indirect=True)
@pytest.mark.parametrize("start", [0, 32, 64])
def test_an_interrupted_destroy_leaves_no_session_and_can_be_made_again(
    make_client: MakeClient, place: Place, start: int
) -> None:
    semaphore = Semaphore(make_client(), place.prefix, 2)
    for number in itertools.count(start, STEP):
        place.write({"Limit": 2, "Holders": {DEAD: True}})
        if not strike(semaphore.destroy, number).at:
            assert number > start
            return
        assert eventually(lambda: not place.operator.sessions(place.site.unique))
        semaphore.destroy()
        assert eventually(lambda: not place.left_behind())
