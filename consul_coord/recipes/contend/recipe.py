"""What every lock and semaphore object has: attempts, the holds of its threads and tasks, waiting calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from consul_coord.errors import InvalidArgument, LockLost, NotHeld
from consul_coord.recipes.contend.attempt import or_none
from consul_coord.recipes.contend.owners import Owners
from consul_coord.recipes.contend.waiting import WaitingCalls
from consul_coord.recipes.hold.asking import check
from consul_coord.recipes.hold.grant import Handle
from consul_coord.recipes.hold.release import release

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import ReleaseOutcome
    from consul_coord.recipes.contend.attempt import Attempt
    from consul_coord.recipes.contend.shared import Shared


class Recipe(WaitingCalls, ABC):
    """One object of a user's: ``name`` is what it is about, ``one`` what a holder has."""

    def __init__(self, name: str, *, one: str, reentrant: bool = False) -> None:
        super().__init__(name)
        self.name = name
        self.reentrant = reentrant
        self.owners = Owners()
        self._one = one

    @abstractmethod
    def attempt(self, io: IO, client: Shared, *, timeout: float | None) -> Attempt:
        """Return one call of ``acquire``, not begun yet."""

    def held_by(self, owner: object) -> Handle:
        """Return the owner's latest hold that was not given up. Raises NotHeld."""
        handle = self.owners.latest(owner)
        if handle is None:
            message = (
                f"this thread or task has no {self._one} of {self.name!r}; what another one took is released "
                f"with {self._one}.release(), from any thread or task"
            )
            raise NotHeld(message, key=self.name)
        return handle


async def acquire(
    io: IO, client: Shared, recipe: Recipe, *, timeout: float | None, max_hold: float | None = None
) -> Handle:
    """Acquire, waiting up to ``timeout`` seconds (None: for ever; 0: one try), for ``max_hold`` at most.

    The caller keeps the handle at its very end: with ``recipe.owners``, or with a block. Raises AlreadyHeld,
    AcquireTimeout, KeyConflict, InvalidArgument, and what the server refuses.
    """
    check_max_hold(max_hold)
    owner = io.owner()
    again = recipe.owners.latest(owner) if recipe.reentrant else None
    if again is None or again.grant.refused_again:
        client.attend(recipe.owners)
        handle = await recipe.attempt(io, client, timeout=timeout).run()
    else:
        handle = _enter_again(io, again)
    client.holds.limit(handle.grant, max_hold)
    recipe.owners.note(owner, handle)
    return handle


def check_max_hold(max_hold: float | None) -> None:
    """Raise InvalidArgument for what is no time to hold."""
    if max_hold is not None and not max_hold > 0:  # also true of nan
        message = f"max_hold must be more than 0 seconds, or None for no limit, not {max_hold!r}"
        raise InvalidArgument(message)


def _enter_again(io: IO, handle: Handle) -> Handle:
    try:
        check(handle.grant, io.now())
    except LockLost:
        handle.grant.refused_again = True
        raise
    return Handle(handle.grant, handle, again=True)


async def try_acquire(
    io: IO, client: Shared, recipe: Recipe, *, max_hold: float | None = None
) -> Handle | None:
    """Acquire if that can be done at once; None when somebody else has it, or a lock-delay is in force.

    Raises what stands in the way of asking.
    """
    return await or_none(acquire(io, client, recipe, timeout=0, max_hold=max_hold))


async def release_own(io: IO, client: Shared, recipe: Recipe) -> ReleaseOutcome:
    """Release what the calling thread or task holds. Raises NotHeld."""
    return await release(io, client.holds, recipe.held_by(io.owner()).grant)
