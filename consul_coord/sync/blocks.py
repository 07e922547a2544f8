# Made from consul_coord/aio/blocks.py by `python tools/make_sync.py`: change that one.
"""The blocks on one object that have been entered, for blocking code; ``body`` tells how one ends.

Rules
- An object may be entered any number of times, also at once and by several; the blocks of each nest, so the
  latest ends first.
- A block that is left by another than entered it ends all the same, if there is no doubt which one it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from consul_coord.sync.body import Body, misused

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from consul_coord.sync.client import Client
    from consul_coord.sync.hold import Hold

H = TypeVar("H", bound="Hold")


class Blocks(Generic[H]):
    """The blocks of one object."""

    def __init__(self, client: Client, key: str, kind: type[Body] = Body) -> None:
        self._client = client
        self._key = key
        self._kind = kind
        self._entered: list[Body] = []

    def enter(self, hold: H) -> H:
        """Begin the caller's block on a hold, and return the hold."""
        self._entered.append(self._kind(self._client, hold))
        return hold

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the caller's latest block; raises what its end raises, or RuntimeError if it can't be told."""
        body = self._latest()
        self._entered.remove(body)
        body.leave(kind, error, trace)

    def _latest(self) -> Body:
        """Return the caller's latest block or, by misuse, that of one who has ended or is the only one."""
        entered = self._entered[::-1]
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

    def __init__(self, client: Client, key: str, take: Callable[[], H]) -> None:
        self._take = take
        self._blocks = Blocks[H](client, key)

    def __enter__(self) -> H:
        return self._blocks.enter(self._take())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks.leave(kind, error, trace)
