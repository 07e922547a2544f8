"""The rules of the wait queue hold in every state of a small world, and none of them can be left out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.lock.waitqueue import Adopt, Follow, Gone, Lead, judge
from tests.models.explorer import Explored, explore
from tests.models.lock_model import REQUESTS, UNANSWERED, LockModel

if TYPE_CHECKING:
    from consul_coord.models import KVPair
    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.lock.waitqueue import Verdict

SMALL: Final = {
    "two clients, twice each, a fault": LockModel(attempts=2),
    "three clients": LockModel(clients=3, faults=0),
    "three clients that give up": LockModel(clients=3, faults=0, give_ups=1),
    "three clients, a death": LockModel(clients=3, faults=0, deaths=1),
    "two clients, a fault, a death": LockModel(faults=1, deaths=1),
    "two clients that give up, a fault": LockModel(give_ups=1),
}
LARGE: Final = {
    "three clients, a fault": LockModel(clients=3),
    "two clients that give up, two faults": LockModel(faults=2, give_ups=1),
    "two clients, twice each, two faults": LockModel(attempts=2, faults=2),
    "two clients that give up, twice each, a fault": LockModel(attempts=2, give_ups=2),
    "three clients that give up, a death": LockModel(clients=3, faults=0, deaths=1, give_ups=1),
    "three clients, a fault, a death": LockModel(clients=3, deaths=1),
    "four clients": LockModel(clients=4, faults=0),
    "four clients that give up": LockModel(clients=4, faults=0, give_ups=1),
    "three clients that give up, a fault": LockModel(clients=3, give_ups=1),
}
HAPPENS: Final = {
    *("take done", "take refused", "take lost", "take late", "take reply lost", "barge done", "adopt done"),
    *("late take is applied", "late barge is applied", "late unlock vanishes", "unlock refused", "join late"),
    *("is woken by the one before", "is woken by the key", "sweeps", "begins to barge"),
}
"""What a world with two clients and a fault has to show."""


@cache
def explored_once(name: str) -> Explored:
    return explore(SMALL[name])


def _no_adopt(look: Look, session: str) -> Verdict:
    verdict = judge(look, session)
    return judge(replace(look, pair=None), session) if isinstance(verdict, Adopt) else verdict


def _follow_oneself(look: Look, session: str) -> Verdict:
    verdict = judge(look, session)
    return replace(verdict, predecessor=verdict.own) if isinstance(verdict, Follow) else verdict


def _everybody_is_the_head(look: Look, session: str) -> Verdict:
    verdict = judge(look, session)
    held = look.pair if look.pair is not None and look.pair.session is not None else None
    return Lead(verdict.own, held) if isinstance(verdict, Follow) else verdict


def _by_session_id(key: str, pairs: list[KVPair]) -> Look:
    look = waitqueue.read(key, pairs)
    return replace(look, live=tuple(sorted(look.live, key=lambda pair: pair.key)))


def _the_dead_live(key: str, pairs: list[KVPair]) -> Look:
    revived = [
        pair if pair.session or pair.key == key else replace(pair, session=waitqueue.session_of(pair))
        for pair in pairs
    ]
    return waitqueue.read(key, revived)


def _follows_the_holder(look: Look, _own: KVPair, before: Gone) -> bool:
    return look.pair is not None and look.pair.session == before.session


def _with(request: str, *ops: str) -> dict[str, Any]:
    return {"requests": {**REQUESTS, request: ops}}


WITHOUT: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "a barge does not check for an own contender": ("progress", _with("barge", "lock K")),
    "a take names no contender": ("order", _with("take", "lock K", "delete C")),
    "a take names its contender without the index": (
        "order",
        {**_with("take", "check-exists C", "lock K", "delete C"), "attempts": 2, "give_ups": 1},
    ),
    "an unlock names no index": ("exclusion", {**_with("unlock", "unlock K"), "attempts": 2}),
    "giving up leaves the contender": ("progress", {**_with("withdraw"), "give_ups": 1, "faults": 0}),
    "a take leaves the contender": ("progress", _with("take", "check-index C", "lock K")),
    "an unanswered unlock is taken for done": (
        "fences",
        {"unanswered": {**UNANSWERED, "unlock": "idle"}, "attempts": 2},
    ),
    "an unanswered withdrawal is taken for done": (
        "progress",
        {"unanswered": {**UNANSWERED, "withdraw": "idle"}, "sweeps": False, "give_ups": 1},
    ),
    "nobody sweeps": ("progress", {"sweeps": False}),
    "the head watches in the lock-delay": (
        "progress",
        {"retries_in_lock_delay": False, "deaths": 1, "faults": 0},
    ),
    "a watch begins from now": ("progress", {"watches_from_the_look": False, "clients": 3, "faults": 0}),
    "a key that is ours is not adopted": ("progress", {"judge": _no_adopt}),
    "the own contender is followed": (
        "progress",
        {"judge": _follow_oneself, "clients": 3, "faults": 0},
    ),
    "everybody is the head": ("order", {"judge": _everybody_is_the_head, "clients": 3, "faults": 0}),
    "the queue is by session id": ("order", {"read": _by_session_id, "clients": 3, "faults": 0}),
    "who follows nobody any more is the head": (
        "order",
        {"is_head": lambda *_: True, "clients": 3, "faults": 0, "give_ups": 1},
    ),
    "who follows the holder is the head": (
        "order",
        {"is_head": _follows_the_holder, "clients": 3},
    ),
    "the dead count as living": (
        "progress",
        {"read": _the_dead_live, "clients": 3, "faults": 0, "deaths": 1},
    ),
}


@pytest.mark.search
@pytest.mark.parametrize("name", SMALL)
def test_the_rules_hold_in_every_state(name: str) -> None:
    explored = explored_once(name)
    assert explored.broken == "", str(explored)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LARGE)
def test_the_rules_hold_in_every_state_of_larger_worlds(name: str) -> None:
    explored = explore(LARGE[name], most=5_000_000)
    assert explored.broken == "", str(explored)


@pytest.mark.search
def test_the_worlds_reach_what_they_are_for() -> None:
    assert explored_once("two clients, twice each, a fault").names >= HAPPENS


@pytest.mark.search
@pytest.mark.parametrize("name", WITHOUT)
def test_no_rule_can_be_left_out(name: str) -> None:
    rule, changes = WITHOUT[name]
    explored = explore(LockModel(**changes))
    assert explored.broken == rule, str(explored)
