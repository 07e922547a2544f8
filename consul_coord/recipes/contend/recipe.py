"""The state of each lock and semaphore object: attempts, waiting calls, and holds of threads and tasks.

Rules
- ``release()`` of the object means the latest hold of the caller: each is *noted* here, by a weak reference.
- A hold that ``acquire`` returns is *kept* here, too, for as long as that thread or task lives: its caller
  may drop it. A hold that only an ended thread had is given back. The block keeps the hold of a ``with``
  block.
- Keeping is the last thing that an acquire does, in a line that calls nothing: CPython runs no signal handler
  within it. So a call that raises keeps nothing, and what nobody keeps is given back.
- A user's event that ends a waiting call need not notify, and a signal handler may set it. So the background
  looks at it again and again while the call waits.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from consul_coord.errors import AcquireCancelled, AcquireTimeout, LockLost, NotHeld
from consul_coord.io import Interrupt
from consul_coord.models import _validate
from consul_coord.recipes.hold.asking import check
from consul_coord.recipes.hold.grant import Handle
from consul_coord.recipes.hold.holds import release

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consul_coord.io import IO
    from consul_coord.models import ReleaseOutcome
    from consul_coord.recipes.contend.attempt import Attempt
    from consul_coord.recipes.contend.shared import Shared


S = TypeVar("S")

LOOK = 0.05
"""Seconds between two looks at a user's event."""


class Flag(Protocol):
    """An event of ``threading``, ``multiprocessing``, ``asyncio``, ``anyio`` or another with ``is_set``."""

    def is_set(self) -> bool:
        """Return whether it is set."""
        ...


class Waiting(Interrupt):
    """The end of one waiting call: by ``cancel`` of its object, or by an event of the user's."""

    __slots__ = ("about", "flag")

    def __init__(self, about: Cancellable, flag: Flag | None = None) -> None:
        super().__init__()
        if flag is not None:
            _validate.has_method("cancel", flag, "is_set")
        self.about = about
        self.flag = flag

    def heed(self, flag: Flag, io: IO, client: Shared) -> None:
        """Let an event end the call, until it is over. Raises AcquireCancelled when it is set already."""
        if flag.is_set():
            raise self.about.cancelled()
        io.spawn(partial(self._look, flag, client), name=f"heed an event for {self.about.name}")

    async def _look(self, flag: Flag, client: Shared, io: IO) -> None:
        while self in client.calls:
            if flag.is_set():
                self.fire(self.about.cancelled)
            await io.sleep(LOOK)


class Cancellable:
    """Something named that calls wait for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cancel(self, client: Shared) -> None:
        """End the waiting calls with AcquireCancelled."""
        for call in client.calls.under_way():
            if isinstance(call, Waiting) and call.about is self:
                call.fire(self.cancelled)

    def cancelled(self) -> AcquireCancelled:
        """Return what a call raises that was ended."""
        return AcquireCancelled(f"waiting for {self.name!r} was cancelled", key=self.name)


class Owners:
    """The holds of one object, by the thread or task that has them."""

    def __init__(self) -> None:
        self._noted: dict[object, list[weakref.ref[Handle]]] = {}
        self._kept: dict[Handle, object] = {}

    def note(self, owner: object, handle: Handle) -> None:
        """Remember a hold as its owner's latest, for as long as something keeps it."""
        before = [ref for ref in self._noted.get(owner, ()) if _is_wanted(ref())]
        self._noted[owner] = [*before, weakref.ref(handle)]

    def keep(self, owner: object, handle: Handle) -> None:
        """Note a hold, and keep it while its owner lives; the last thing that an acquire does."""
        self.note(owner, handle)
        handle.grant.depth += handle.again
        self._kept[handle] = owner

    def latest(self, owner: object) -> Handle | None:
        """Return the owner's latest hold that it is not done with."""
        for ref in reversed(self._noted.get(owner, ())):
            handle = ref()
            if handle is not None and not handle.grant.left:
                return handle
        return None

    def forget_ended(self, is_over: Callable[[object], bool]) -> None:
        """Forget the holds of owners that have ended, and what living ones are done with."""
        for handle, owner in self._kept.copy().items():
            if handle.grant.left or is_over(owner):
                self._kept.pop(handle, None)
        # Those of living owners stay, a few: one may note another hold at this very moment.
        for owner in list(self._noted):
            if is_over(owner):
                self._noted.pop(owner, None)


def _is_wanted(handle: Handle | None) -> bool:
    return handle is not None and not handle.grant.left


class Acquirable(Protocol):
    """The target of ``acquire``: a recipe's object, or a number of a semaphore's slots."""

    @property
    def owners(self) -> Owners:
        """The holds of its object."""
        ...

    @property
    def reentrant(self) -> bool:
        """Whether its owner may acquire it again."""
        ...

    def attempt(self, io: IO, client: Shared, *, timeout: float | None) -> Attempt:
        """Return one call of ``acquire``, not begun yet."""
        ...


class Recipe(Cancellable, ABC, Generic[S]):
    """One object of a user's: ``name`` is what it is about, ``one`` what a holder has."""

    def __init__(self, name: str, *, one: str, reentrant: bool = False) -> None:
        super().__init__(name)
        self.reentrant = reentrant
        self.owners = Owners()
        self._one = one
        self._begun: tuple[Shared, S] | None = None

    @abstractmethod
    def attempt(self, io: IO, client: Shared, *, timeout: float | None) -> Attempt:
        """Return one call of ``acquire``, not begun yet."""

    @abstractmethod
    def _begin(self, client: Shared) -> S:
        """Make what the object has with one client's state."""

    def with_client(self, client: Shared) -> S:
        """Return what the object has with a client: the same for as long as the client's state is."""
        if self._begun is None or self._begun[0] is not client:
            client.owners.add(self.owners)
            self._begun = (client, self._begin(client))
        return self._begun[1]

    def held_by(self, owner: object) -> Handle:
        """Return the owner's latest hold that was not given up. Raises NotHeld."""
        handle = self.owners.latest(owner)
        if handle is None:
            message = (
                f"this thread or task has no {self._one} of {self.name!r}; release the hold of another one "
                f"with {self._one}.release(), from any thread or task"
            )
            raise NotHeld(message, key=self.name)
        return handle


def acquire(
    io: IO,
    client: Shared,
    recipe: Acquirable,
    *,
    timeout: float | None,
    max_hold: float | None = None,
    waiting: Waiting | None = None,
) -> Coroutine[Any, Any, Handle]:
    """Acquire within ``timeout`` seconds (None for ever, 0 for one try), and hold for ``max_hold`` at most.

    The caller keeps the handle at its very end: with ``recipe.owners``, or with a block that notes it there.
    Raises AlreadyHeld, AcquireTimeout, AcquireCancelled, KeyConflict, InvalidArgument, and what the server
    refuses.
    """
    if max_hold is not None:
        check_max_hold(max_hold)
    if waiting is not None and waiting.flag is not None:
        waiting.heed(waiting.flag, io, client)
    again = recipe.owners.latest(io.owner()) if recipe.reentrant else None
    if again is None or again.grant.refused_again:
        program = recipe.attempt(io, client, timeout=timeout).run()
    else:
        _validate.patience(timeout)
        program = _enter_again(io, again)
    return program if max_hold is None else _limited(client, program, max_hold)


def check_max_hold(max_hold: float | None) -> None:
    """Raise InvalidArgument for what is no time to hold."""
    if max_hold is not None:
        _validate.span("max_hold", max_hold, positive=True, none=", or None for no limit")


async def _limited(client: Shared, program: Coroutine[Any, Any, Handle], max_hold: float) -> Handle:
    handle = await program
    client.holds.limit(handle.grant, max_hold)
    return handle


async def _enter_again(io: IO, handle: Handle) -> Handle:
    try:
        check(handle.grant, io.now())
    except LockLost:
        handle.grant.refused_again = True
        raise
    return Handle(handle.grant, handle, again=True)


async def try_acquire(
    io: IO, client: Shared, recipe: Acquirable, *, max_hold: float | None = None
) -> Handle | None:
    """Acquire if that can be done at once; None when somebody else has it, or a lock-delay is in force.

    Raises what stands in the way of asking.
    """
    try:
        return await acquire(io, client, recipe, timeout=0, max_hold=max_hold)
    except AcquireTimeout as error:
        if error.blocker.kind == "unreachable" and error.__cause__ is not None:
            raise error.__cause__ from None
        return None


async def release_own(io: IO, client: Shared, recipe: Recipe[Any]) -> ReleaseOutcome:
    """Release what the calling thread or task holds. Raises NotHeld."""
    return await release(io, client.holds, recipe.held_by(io.owner()).grant)
