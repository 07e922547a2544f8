"""The blocks on one object that have been entered, for event loops; ``body`` tells how one ends.

Rules
- An object may be entered any number of times, also at once and by several; the blocks of each nest, so the
  latest ends first.
- A block that is left by another than entered it ends all the same, if there is no doubt which one it is.
- A block keeps its hold by one line that calls nothing, so that no signal handler comes in between. One that
  is interrupted while it ends has let go of it before.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from consul_coord.aio.body import Body, misused, require_interruptible
from consul_coord.aio.callbacks import check_work, outcome
from consul_coord.aio.driver import current_owner
from consul_coord.base_client import OUTAGES, AsyncEntered, Block
from consul_coord.recipes.contend.recipe import Waiting, acquire, release_own, try_acquire
from consul_coord.recipes.hold.view import handle_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from types import TracebackType

    from consul_coord.aio.hold import AsyncHold
    from consul_coord.aio.runner import AsyncRunner
    from consul_coord.models import ReleaseOutcome
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.contend.recipe import Acquirable, Flag, Owners, Recipe
    from consul_coord.recipes.hold.grant import Handle

H = TypeVar("H", bound="AsyncHold")
T = TypeVar("T")
P = ParamSpec("P")


class Blocks(Generic[H]):
    """The blocks of one object."""

    def __init__(self, key: str, kind: type[Body] = Body, *, owners: Owners | None = None) -> None:
        self._key = key
        self._owners = owners
        self._kind = kind
        self._entered: dict[Body, None] = {}

    def enter(self, hold: H, *, interrupt: bool = False) -> H:
        """Begin the caller's block on a hold, which keeps it from then on, and return the hold."""
        body, handle = self._kind(hold), handle_of(hold)
        if interrupt:
            body.interrupt_at_loss(functools.partial(_has, weakref.ref(self)))
        if handle is not None:
            if self._owners is not None:
                self._owners.note(body.owner, handle)
            handle.grant.depth += handle.again
        self._entered[body] = None  # with nothing called since, nothing comes in between
        return hold

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the caller's latest block.

        Raises the errors of its end, and RuntimeError if it is not clear which block is meant.
        """
        body = self._latest()
        self._entered.pop(body, None)
        await body.leave(kind, error, trace)

    def _latest(self) -> Body:
        """Return the caller's latest block or, by misuse, the only one, or one whose owner has ended."""
        entered = list(reversed(self._entered))
        for body in entered:
            if body.is_mine():
                return body
        candidates = [body for body in entered if body.is_orphan()] or entered
        if len({id(body.owner) for body in candidates}) != 1:
            raise misused(self._key)
        return candidates[0]

    def has(self, body: Body) -> bool:
        """Return whether a block was entered, and is not being left."""
        return body in self._entered


def _has(blocks: weakref.ref[Blocks[Any]], body: Body) -> bool:
    found = blocks()
    return found is not None and found.has(body)


class AsyncHeld(AsyncEntered, Block, Generic[H]):
    """A context manager that takes something when it is entered, and gives it back when it is left.

    ``hold`` of a lock or a semaphore returns it. It may be entered any number of times, also at once.
    """

    _ways = "'async with lock.hold(...) as hold', or 'hold = await lock.acquire(...)'"

    def __init__(
        self,
        key: str,
        take: Callable[[], Awaitable[H]],
        *,
        interrupt: bool,
        kind: type[Body] | None = None,
        owners: Owners | None = None,
    ) -> None:
        self._take = take
        self._interrupt = interrupt
        self._blocks = Blocks[H](key, kind or Body, owners=owners)

    async def __aenter__(self) -> H:
        if self._interrupt:
            require_interruptible()
        try:
            return self._blocks.enter(await self._take(), interrupt=self._interrupt)
        except OUTAGES as error:  # the caller's own lines say where
            raise error.with_traceback(None) from error.__cause__

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._blocks.leave(kind, error, trace)


class AsyncHoldable(AsyncEntered, Generic[H]):
    """The methods that a lock and a semaphore have in common."""

    _runner: AsyncRunner

    def __init__(self, recipe: Recipe[Any], view: type[H]) -> None:
        self._recipe = recipe
        self._blocks = Blocks[H](recipe.name, owners=recipe.owners)
        self._view = view

    async def acquire(
        self, *, timeout: float | None = None, max_hold: float | None = None, cancel: Flag | None = None
    ) -> H:
        """Acquire it, and return the hold.

        - ``timeout``: the longest wait in seconds; None waits for ever, 0 tries once. It covers the whole
          call, with the retries of failed requests.
        - ``max_hold``: seconds after which the hold is lost, as MAX_HOLD, though its session goes on. The
          client releases the key or slot once the lock-delay is over, or the holder has released it.
        - ``cancel``: an event, or any object with ``is_set()``. Setting it ends the wait with
          AcquireCancelled within 100 ms, as ``cancel()`` does.

        Raises AcquireTimeout, which names the holder, AcquireCancelled, and AlreadyHeld if this thread or
        task holds the lock. Raises KeyConflict if another program uses the key. For a semaphore, raises
        SemaphoreLimitConflict if the record has another limit, and DecodeError if it can't be parsed. Raises
        ClientClosed and the errors of the requests.
        """
        core, waiting = self._runner.core, Waiting(self._recipe, cancel)
        handle = await self._runner.run(
            waiting, acquire, core, self._recipe, timeout=timeout, max_hold=max_hold, waiting=waiting
        )
        return self._kept(core, handle)

    def _kept(self, core: ClientState, handle: Handle) -> H:
        """Return a hold that the calling thread or task keeps from now on."""
        hold = self._view(self._runner, core, handle.grant, handle)
        self._recipe.owners.keep(current_owner(), handle)
        return hold

    async def try_acquire(self, *, max_hold: float | None = None) -> H | None:
        """Acquire it if it is free; return None if not, or while a lock-delay is in force.

        A semaphore's slot is not free while others wait for one. ``max_hold`` as for ``acquire``, in seconds.
        Raises AlreadyHeld, KeyConflict, ClientClosed and the errors of the requests: TransportError if the
        agent does not answer.
        """
        return await self._try_acquire(self._recipe, max_hold=max_hold)

    async def _try_acquire(self, what: Acquirable, *, max_hold: float | None) -> H | None:
        """Acquire at once, for the calling thread or task to keep; None when that can't be done."""
        core, waiting = self._runner.core, Waiting(self._recipe)
        handle = await self._runner.run(waiting, try_acquire, core, what, max_hold=max_hold)
        return None if handle is None else self._kept(core, handle)

    async def release(self) -> ReleaseOutcome:
        """Release the latest hold of the calling thread or task, as ``Hold.release`` does. Raises NotHeld."""
        return await self._runner.finish(release_own, self._runner.core, self._recipe)

    def cancel(self) -> None:
        """End all waiting calls of this object with AcquireCancelled, within 100 ms.

        You may call it from any thread, and from a signal handler.
        """
        self._recipe.cancel(self._runner.core)

    def hold(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> AsyncHeld[H]:
        """Return a context manager that acquires when you enter it, and releases when you leave it.

        ``timeout``, ``max_hold`` and ``cancel`` as for ``acquire``, whose errors entering raises.
        ``interrupt``: raise LockLost in the block at the moment of a loss. In blocking code this works only
        in the main thread, by a signal (SIGURG, whose handler is restored afterwards). It interrupts
        sleeping, reading and computing, but not a long call into C code. In any other thread, entering
        raises InvalidArgument. Code on an event loop is always cancelled at a loss.

        Leaving releases first. Then it raises LockLost if the hold was lost meanwhile, with the body's
        exception as its cause. A KeyboardInterrupt, SystemExit or cancellation passes unchanged.
        """
        take = functools.partial(self._taken, self._recipe, timeout, max_hold=max_hold, cancel=cancel)
        return AsyncHeld(self._recipe.name, take, interrupt=interrupt, owners=self._recipe.owners)

    async def __aenter__(self) -> H:
        return self._blocks.enter(await self._taken(self._recipe, None))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._blocks.leave(kind, error, trace)

    async def _taken(
        self,
        what: Acquirable,
        timeout: float | None,
        *,
        max_hold: float | None = None,
        cancel: Flag | None = None,
    ) -> H:
        """Take it, for a block that is to keep it."""
        core, waiting = self._runner.core, Waiting(self._recipe, cancel)
        handle = await self._runner.run(
            waiting, acquire, core, what, timeout=timeout, max_hold=max_hold, waiting=waiting
        )
        return self._view(self._runner, core, handle.grant, handle)

    async def run(
        self,
        fn: Callable[[H], Awaitable[T]],
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> T:
        """Await ``fn(hold)`` between acquire and release, and return what it returns.

        The other parameters are those of ``hold``. Raises the errors of ``fn``, and of entering and leaving
        ``hold``.
        """
        check_work("fn", fn)
        async with self.hold(timeout=timeout, max_hold=max_hold, interrupt=interrupt, cancel=cancel) as hold:
            return await outcome("fn", fn(hold))

    def wrap(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Return a decorator that makes a function run between acquire and release; its signature is kept.

        The parameters are those of ``hold``.
        """
        return wrapping(
            lambda: self.hold(timeout=timeout, max_hold=max_hold, interrupt=interrupt, cancel=cancel)
        )


def wrapping(
    hold: Callable[[], AsyncHeld[Any]],
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a decorator that makes a function run in a block of its own, with its signature kept."""

    def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        check_work("function", function)

        @functools.wraps(function)
        async def holding(*args: P.args, **kwargs: P.kwargs) -> T:
            async with hold():
                return await outcome("function", function(*args, **kwargs))

        return holding

    return decorate
