"""The rules of the semaphore hold in every state of a small world, and none of them can be left out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.semaphore.slots import Follow, Front, Held, Take, TooSmall
from tests.models.explorer import Explored, explore
from tests.models.semaphore_model import REQUESTS, UNANSWERED, Ours, SemaphoreModel

if TYPE_CHECKING:
    from consul_coord.recipes.semaphore.slots import Listing, Verdict

SMALL: Final = {
    "two clients, twice each, a fault": SemaphoreModel(attempts=2),
    "three clients for two slots": SemaphoreModel(clients=3, limit=2, faults=0),
    "three clients, a death": SemaphoreModel(clients=3, faults=0, deaths=1),
    "two clients that give up, a fault": SemaphoreModel(give_ups=1),
    "an operator raises the limit, and a client keeps its slot": SemaphoreModel(
        clients=3, raises=1, faults=0, keeps=frozenset({1})
    ),
    "an operator deletes": SemaphoreModel(deletions=1, faults=0, attempts=2),
    "three clients, a kill": SemaphoreModel(clients=3, faults=0, kills=1),
    "two clients, twice each, two kills": SemaphoreModel(attempts=2, faults=0, kills=2),
    "two clients, a fault and a kill": SemaphoreModel(kills=1),
    "two slots in one take beside one, a fault": SemaphoreModel(wants=(2,), limit=2),
    "two that want both slots": SemaphoreModel(wants=(2, 2), limit=2, faults=0, attempts=2),
    "two slots in one take, two clients behind": SemaphoreModel(clients=3, wants=(2,), limit=2, faults=0),
    "two slots in one take, a client keeps the third": SemaphoreModel(
        clients=3, wants=(1, 2), limit=3, faults=0, keeps=frozenset({0})
    ),
    "two slots in one take, a fault, and somebody gives up": SemaphoreModel(wants=(2,), limit=2, give_ups=1),
    "two slots in one take, the limit is lowered": SemaphoreModel(wants=(2,), limit=2, faults=0, lowers=1),
    "two slots in one take, two kills": SemaphoreModel(wants=(2,), limit=2, faults=0, kills=2),
    "two slots in one take, an operator deletes": SemaphoreModel(wants=(2,), limit=2, faults=0, deletions=1),
}
LARGE: Final = {
    "three clients, a fault": SemaphoreModel(clients=3),
    "three clients for two slots, a fault": SemaphoreModel(clients=3, limit=2),
    "three clients for two slots, a death": SemaphoreModel(clients=3, limit=2, faults=0, deaths=1),
    "two clients, twice each, two faults": SemaphoreModel(attempts=2, faults=2),
    "an operator deletes, a fault": SemaphoreModel(deletions=1, attempts=2),
    "four clients for two slots": SemaphoreModel(clients=4, limit=2, faults=0),
    "three clients for two slots, a kill": SemaphoreModel(clients=3, limit=2, faults=0, kills=1),
    "two clients, a kill, the limit raised": SemaphoreModel(faults=0, kills=1, raises=1, attempts=2),
    "two clients, twice each, a fault and a kill": SemaphoreModel(attempts=2, kills=1),
    "two slots in one take, twice, a kill": SemaphoreModel(
        wants=(2,), limit=2, faults=0, kills=1, attempts=2
    ),
    "two slots in one take, a fault and a kill": SemaphoreModel(wants=(2,), limit=2, kills=1),
    "two that want two of three slots, a fault and a kill": SemaphoreModel(wants=(2, 2), limit=3, kills=1),
    "two slots in one take, two clients behind, a fault": SemaphoreModel(clients=3, wants=(1, 2), limit=2),
    "two slots in one take, two clients behind, a kill": SemaphoreModel(
        clients=3, wants=(1, 2), limit=2, faults=0, kills=1
    ),
    "two slots in one take, a fault, a kill, the limit lowered": SemaphoreModel(
        wants=(2,), limit=2, kills=1, lowers=1
    ),
    "two slots in one take, two faults": SemaphoreModel(wants=(2,), limit=2, faults=2, attempts=2),
}
HAPPENS: Final = {
    *("take done", "take refused", "take lost", "take late", "take reply lost", "join late", "leave lost"),
    *("late take is applied", "late join is applied", "late leave is applied", "is woken at the front"),
}
"""What a world with two clients and a fault has to show."""


@cache
def explored_once(name: str) -> Explored:
    return explore(SMALL[name])


Refused = frozenset[str]


def _judge(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    return slots.judge(listing, ours[0], born=born, refused=refused, others=ours[1:])


def _not_adopted(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    verdict = _judge(listing, ours, born, refused)
    return Front(verdict.own) if isinstance(verdict, Held) else verdict


def _rank_does_not_count(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    verdict = _judge(listing, ours, born, refused)
    if isinstance(verdict, Front | Follow) and len(listing.held) < listing.record.limit:
        return Take(verdict.own, listing.record.with_holders((*listing.held, *ours)))
    return verdict


def _the_dead_keep_their_slots(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    return _judge(listing, ours, born, refused.union(listing.dead))


def _the_refused_do_not_count(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    """Judge the rank as if the refused slots were free, and take one if there is any other."""
    verdict, kept = _judge(listing, ours, born, frozenset()), (*listing.held, *sorted(refused))
    if isinstance(verdict, Take) and len(kept) < listing.record.limit:
        removed = tuple(one for one in verdict.removed if one not in refused)
        return Take(verdict.own, listing.record.with_holders((*kept, *ours)), removed)
    return _judge(listing, ours, born, refused)


def _nobody_prunes(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    verdict = _judge(listing, ours, born, refused)
    if isinstance(verdict, Take):
        return replace(verdict, record=verdict.record.with_holders(ours))
    return verdict


def _everybody_is_the_front(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    verdict = _judge(listing, ours, born, refused)
    return (
        Take(verdict.own, listing.record.with_holders((*listing.held, *ours)))
        if isinstance(verdict, Front | Follow)
        else verdict
    )


def _smaller_ones_pass(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    """Leave out of the queue who wants more than is free."""
    verdict, free = _judge(listing, ours, born, refused), listing.record.limit - len(listing.held)
    wanted = [slots.wanted_by(one) for one in listing.waiters]
    if isinstance(verdict, Follow):
        before = [one for one in wanted[: verdict.position] if one <= free]
        if sum(before) + len(ours) <= free:
            return Take(verdict.own, listing.record.with_holders((*listing.held, *ours)))
    return verdict


def _everybody_wants_one(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    verdict, free = _judge(listing, ours, born, refused), listing.record.limit - len(listing.held)
    if isinstance(verdict, Follow) and verdict.position + len(ours) <= free:
        return Take(verdict.own, listing.record.with_holders((*listing.held, *ours)))
    return verdict


def _one_free_slot_is_enough(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    verdict, free = _judge(listing, ours, born, refused), listing.record.limit - len(listing.held)
    if isinstance(verdict, Front) and free > 0:
        return Take(verdict.own, listing.record.with_holders((*listing.held, *ours)))
    return verdict


def _the_first_alone_is_entered(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    verdict = _judge(listing, ours, born, refused)
    if isinstance(verdict, Take):
        return replace(verdict, record=verdict.record.without(ours[1:]))
    return verdict


def _a_part_is_adopted(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    verdict, own = _judge(listing, ours, born, refused), listing.live.get(ours[0])
    return Held(own) if own is not None and ours[0] in listing.record.holders else verdict


def _who_wants_too_much_stays(listing: Listing, ours: Ours, born: int, refused: Refused) -> Verdict:
    verdict = _judge(listing, ours, born, refused)
    return Front(listing.live[ours[0]]) if isinstance(verdict, TooSmall) else verdict


def _with(request: str, *ops: str) -> dict[str, Any]:
    return {"requests": {**REQUESTS, request: ops}}


WITHOUT: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "a take names no index of the record": (
        "limit",
        {
            **_with("take", "remove the dead", "check-index C", "set R", "mark C"),
            "clients": 3,
            "limit": 2,
            "faults": 0,
        },
    ),
    "a take names no contender": (
        "order",
        {**_with("take", "remove the dead", "cas R", "mark C"), "clients": 3, "faults": 0, "deletions": 1},
    ),
    "a take leaves its contender as it is": (
        "progress",
        {
            **_with("take", "remove the dead", "check-index C", "cas R"),
            "clients": 3,
            "faults": 0,
            "raises": 1,
            "keeps": {1},
        },
    ),
    "giving up ends nothing": (
        "progress",
        {"requests": {**REQUESTS, "drop": (), "destroy": ()}, "give_ups": 1, "faults": 0},
    ),
    "an unanswered leave is taken for done": ("progress", {"unanswered": {**UNANSWERED, "leave": "idle"}}),
    # Among takers that ask for the lock-delay nothing comes of it: a living one can't be removed.
    "a session is always used again, and a take asks for no lock-delay": (
        "limit",
        {
            **_with("take", "check-index C", "cas R", "mark C"),
            "uses_again": "always",
            "attempts": 2,
            "faults": 0,
            "clients": 3,
        },
    ),
    "the front watches the record alone": ("progress", {"watches_prefix": False, "faults": 0, "deaths": 1}),
    "a slot that is ours is not adopted": ("progress", {"judge": _not_adopted}),
    "the rank does not count": (
        "order",
        {"judge": _rank_does_not_count, "clients": 3, "faults": 0},
    ),
    "the dead keep their slots": (
        "progress",
        {"judge": _the_dead_keep_their_slots, "faults": 0, "deaths": 1},
    ),
    "a take forgets the other holders": (
        "limit",
        {"judge": _nobody_prunes, "clients": 3, "limit": 2, "faults": 0},
    ),
    "the limit does not count": ("order", {"judge": _everybody_is_the_front, "faults": 0}),
    "a take asks for no lock-delay": (
        "limit",
        {**_with("take", "check-index C", "cas R", "mark C"), "faults": 0, "kills": 1},
    ),
    "a lease is longer than the lock-delay": ("limit", {"lease_first": False, "faults": 0, "kills": 1}),
    "no timer ends the front's watch": ("progress", {"pauses_end": False, "faults": 0, "kills": 1}),
    "the refused do not count in ranks": (
        "order",
        {"judge": _the_refused_do_not_count, "clients": 4, "limit": 2, "faults": 0, "kills": 1},
    ),
    "a leave removes the dead": (
        "limit",
        {
            **_with("leave", "delete C", "prune R"),
            "clients": 3,
            "limit": 2,
            "attempts": 2,
            "faults": 0,
            "kills": 1,
        },
    ),
    "smaller ones pass": (
        "order",
        {"judge": _smaller_ones_pass, "wants": (2,), "clients": 3, "limit": 2, "faults": 0},
    ),
    "everybody seems to want one slot": (
        "order",
        {"judge": _everybody_wants_one, "wants": (2,), "limit": 2, "faults": 0},
    ),
    "one free slot is enough for two": (
        "order",
        {"judge": _one_free_slot_is_enough, "wants": (2,), "limit": 2, "faults": 0},
    ),
    "a take enters the first of two alone": (
        "all or none",
        {"judge": _the_first_alone_is_entered, "wants": (2,), "limit": 2, "faults": 0},
    ),
    "what is left of two slots is adopted": (
        "limit",
        {"judge": _a_part_is_adopted, "wants": (2,), "limit": 2, "kills": 1},
    ),
    "who wants more than the limit stays": (
        "progress",
        {"judge": _who_wants_too_much_stays, "wants": (2,), "limit": 2, "faults": 0, "lowers": 1},
    ),
    "two slots outlast the first lease": (
        "limit",
        {"one_lost_is_all_lost": False, "wants": (2,), "limit": 2, "faults": 0, "kills": 1},
    ),
    "nobody begins anew when the second session has ended": (
        "progress",
        {"gives_up_without_second": False, "wants": (2,), "limit": 2, "faults": 0, "kills": 1},
    ),
    "giving up destroys the first session alone": (
        "progress",
        {"requests": {**REQUESTS, "drop second": (), "destroy second": ()}, "wants": (2,), "limit": 2},
    ),
    "a resize removes the dead": (
        "limit",
        {"raise_prunes": True, "clients": 3, "faults": 0, "kills": 1, "raises": 1},
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
    explored = explore(SemaphoreModel(**changes))
    assert explored.broken == rule, str(explored)
