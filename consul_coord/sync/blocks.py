# Made from consul_coord/aio/blocks.py by `python tools/make_sync.py`: change that one.
"""The blocks on one object that have been entered, for blocking code; ``body`` tells how one ends.

Rules
- An object may be entered any number of times, also at once and by several; the blocks of each nest, so the
  latest ends first.
- A block that is left by another than entered it ends all the same, if there is no doubt which one it is.
- A block keeps its hold by one line that calls nothing, so that no signal handler comes in between. One that
  is interrupted while it ends has let go of it before.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from consul_coord.base_client import OUTAGES, brief
from consul_coord.recipes.contend.recipe import acquire, try_acquire
from consul_coord.recipes.hold.view import handle_of
from consul_coord.sync.body import Body, misused
from consul_coord.sync.driver import current_owner

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from consul_coord.recipes.contend.recipe import Recipe
    from consul_coord.sync.hold import Hold
    from consul_coord.sync.runner import Runner

H = TypeVar("H", bound="Hold")
T = TypeVar("T")
P = ParamSpec("P")


class Blocks(Generic[H]):
    """The blocks of one object."""

    def __init__(self, key: str, kind: type[Body] = Body) -> None:
        self._key = key
        self._kind = kind
        self._entered: dict[Body, None] = {}

    def enter(self, hold: H) -> H:
        """Begin the caller's block on a hold, which keeps it from then on, and return the hold."""
        body, handle = self._kind(hold), handle_of(hold)
        if handle is not None:
            handle.grant.depth += handle.again
        self._entered[body] = None  # with nothing called since, nothing comes in between
        return hold

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the caller's latest block; raises what its end raises, or RuntimeError if it can't be told."""
        body = self._latest()
        self._entered.pop(body, None)
        body.leave(kind, error, trace)

    def _latest(self) -> Body:
        """Return the caller's latest block or, by misuse, that of one who has ended or is the only one."""
        entered = list(reversed(self._entered))
        for body in entered:
            if body.is_mine():
                return body
        candidates = [body for body in entered if body.is_orphan()] or entered
        if len({id(body.owner) for body in candidates}) != 1:
            raise misused(self._key)
        return candidates[0]


class Held(Generic[H]):
    """A context manager that takes something when it is entered, and gives it back when it is left.

    ``hold`` of a lock or a semaphore returns it. It may be entered any number of times, also at once.
    """

    def __init__(self, key: str, take: Callable[[], H]) -> None:
        self._take = take
        self._blocks = Blocks[H](key)

    def __enter__(self) -> H:
        return self._blocks.enter(self._take())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks.leave(kind, error, trace)


class Holdable(Generic[H]):
    """What is taken and given back: the ways to do so that a lock and a semaphore have in common."""

    _runner: Runner
    _recipe: Recipe

    def __init__(self, key: str, view: type[H]) -> None:
        self._blocks = Blocks[H](key)
        self._name = key
        self._view = view

    def hold(self, *, timeout: float | None = None) -> Held[H]:
        """Return a context manager that acquires within ``timeout`` seconds, and releases at the end.

        Entering raises what ``acquire`` raises. Leaving releases first, and then raises LockLost when the
        hold was lost meanwhile, with the body's exception as its cause; a KeyboardInterrupt, SystemExit or
        cancellation goes on unchanged.
        """
        return Held(self._name, functools.partial(self._taken, timeout))

    def __enter__(self) -> H:
        return self._blocks.enter(self._taken(None))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks.leave(kind, error, trace)

    def _taken(self, timeout: float | None) -> H:
        """Take it, for a caller or a block that is to keep it."""
        core = self._runner.core
        try:
            with self._recipe.waiting() as interrupt:
                handle = self._runner.run(interrupt, acquire, core, self._recipe, timeout=timeout)
        except OUTAGES as error:
            raise brief(error) from error.__cause__
        return self._view(self._runner, core, handle.grant, handle)

    def _tried(self) -> H | None:
        """Take it if that can be done at once."""
        core = self._runner.core
        try:
            with self._recipe.waiting() as interrupt:
                handle = self._runner.run(interrupt, try_acquire, core, self._recipe)
        except OUTAGES as error:
            raise brief(error) from error.__cause__
        return None if handle is None else self._view(self._runner, core, handle.grant, handle)

    def _kept(self, hold: H) -> H:
        """Keep the hold for the caller's ``release``: the last thing that an acquire does."""
        owner, handle = current_owner(), handle_of(hold)
        if handle is not None:
            self._recipe.owners.keep(owner, handle)
        return hold

    def run(self, fn: Callable[[H], T], *, timeout: float | None = None) -> T:
        """Call ``fn(hold)`` between acquire and release, and return what it returns.

        Raises what ``hold`` raises.
        """
        with self.hold(timeout=timeout) as hold:
            return fn(hold)

    def wrap(self, *, timeout: float | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Return a decorator that makes a function run between acquire and release; its signature is kept."""

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            @functools.wraps(function)
            def holding(*args: P.args, **kwargs: P.kwargs) -> T:
                with self.hold(timeout=timeout):
                    return function(*args, **kwargs)

            return holding

        return decorate
