"""The holds of one object by their owners: what ``release()`` means, while the background sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from consul_coord.recipes.contend.recipe import Owners
from consul_coord.recipes.hold.grant import Handle

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.recipes.hold.grant import Grant

ME = "this thread"


class Stage:
    """A hold that was released, and the moment in which the sweep first looks at anything."""

    depth = 0

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = [then]

    @property
    def left(self) -> bool:
        self.is_over(ME)
        return True

    def is_over(self, _: object) -> bool:
        if self._then:
            self._then.pop()()
        return False


class Held:
    """A hold."""

    left = False
    depth = 1


def handle(grant: object) -> Handle:
    return Handle(cast("Grant", grant), None)


def test_holds_are_released_from_the_latest_to_the_first_without_those_that_are_left() -> None:
    """As a thread that has several permits of one semaphore releases them, in whichever order they end."""
    owners, holds = Owners(), [Held() for _ in range(4)]
    handles = [handle(hold) for hold in holds]
    for each in handles[:3]:
        owners.note(ME, each)
    holds[1].left = True
    owners.note(ME, handles[3])
    for number in (3, 2, 0):
        assert owners.latest(ME) is handles[number]
        holds[number].left = True
    assert owners.latest(ME) is None


def test_what_an_owner_acquires_amid_a_sweep_is_its_latest_hold() -> None:
    owners, held = Owners(), handle(Held())
    stage = Stage(lambda: owners.note(ME, held))
    before = handle(stage)
    owners.note(ME, before)
    owners.forget_ended(stage.is_over)
    assert owners.latest(ME) is held


def test_an_owner_that_has_ended_is_forgotten() -> None:
    owners, held = Owners(), handle(Held())
    for owner in (ME, "another"):
        owners.note(owner, held)
    owners.forget_ended(lambda owner: owner == ME)
    assert owners.latest(ME) is None
    assert owners.latest("another") is held


def test_an_owner_has_all_its_holds_the_latest_first_until_it_is_done_with_each() -> None:
    owners, grants = Owners(), [Held() for _ in range(3)]
    handles = [handle(grant) for grant in grants]
    for each in handles:
        owners.note(ME, each)
    for grant, each in zip(reversed(grants), reversed(handles), strict=True):
        assert owners.latest(ME) is each
        grant.left = True
    assert owners.latest(ME) is None


def test_an_owner_that_acquires_again_and_again_keeps_nothing_of_what_it_is_done_with() -> None:
    owners, wanted = Owners(), handle(Held())
    owners.note(ME, wanted)
    grants = [Held() for _ in range(3)]
    handles = [handle(grant) for grant in grants]
    for grant, each in zip(grants, handles, strict=True):
        owners.note(ME, each)
        grant.left = True
    owners.note(ME, handle(Held()))  # its caller drops it at once
    assert owners.latest(ME) is wanted
    owners.note(ME, latest := handle(Held()))
    assert [noted() for noted in owners._noted[ME]] == [wanted, latest]
