"""A leadership, as code on an event loop sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.aio import backend
from consul_coord.aio.body import Body
from consul_coord.aio.hold import AsyncHold, AsyncLossEvent
from consul_coord.models._validate import as_bytes
from consul_coord.recipes.election import election as recipe
from consul_coord.recipes.election.leadership import End, LeadershipView, resigned, told_as_leadership

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from consul_coord.aio.client import AsyncClient
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.election.election import Candidacy
    from consul_coord.recipes.hold.grant import Grant


class LeaderBody(Body):
    """A block that is cancelled also when its leadership is given up elsewhere."""

    def __init__(self, client: AsyncClient, core: ClientState, hold: Grant) -> None:
        super().__init__(client, core, hold)
        wake = backend.current_waker()
        self._forget = hold.over.subscribe(lambda: wake(self._scope.cancel))

    @property
    def task(self) -> object:
        """The task that entered the block."""
        return self._task

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Resign, then raise LeadershipLost in the place of the block's own cancellation."""
        self._forget()
        given_up = self._hold.released
        with told_as_leadership(self._hold):
            await super().leave(kind, error, trace)
        if given_up and self._scope.cancelled_caught:
            raise resigned(self._hold)


class AsyncLeadership(LeadershipView, AsyncHold):
    """One term of leading: a hold of the election's key.

    Guarantees what ``Hold`` does, and raises LeadershipLost where that raises LockLost. As a context manager
    it resigns at the end of the block, and then raises LeadershipLost if it was lost meanwhile, with the
    block's exception as its cause. At a loss nothing interrupts blocking code; on an event loop the block is
    cancelled. The candidacy goes on.
    """

    def __init__(self, client: AsyncClient, candidacy: Candidacy, hold: Grant) -> None:
        super().__init__(client, candidacy.core, hold)
        self._candidacy = candidacy
        self._bodies: list[LeaderBody] = []

    @property
    def lost(self) -> AsyncLossEvent:
        """The event to wait on for its end, by a loss or by resigning."""
        return AsyncLossEvent(self._client, End(self._hold))

    async def ensure(self, seconds: float) -> None:
        """Make sure that at least ``seconds`` of the lease are left, renewing it if need be.

        Raises LeadershipLost, InvalidArgument when the lease is never that long, and what the renewal raises.
        """
        with told_as_leadership(self._hold):
            await super().ensure(seconds)

    async def put(self, value: bytes | str) -> None:
        """Change what the leader advertises; the term stays.

        Raises LeadershipLost when it does not lead any more, and what the write raises.
        """
        data = as_bytes(value)
        await self._client.call(lambda io: recipe.proclaim(io, self._candidacy, self._hold, data))

    async def __aenter__(self) -> Self:
        self._bodies.append(LeaderBody(self._client, self._core, self._hold))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The latest of this task; if there is none, any will say what is wrong.
        task = backend.current_task()
        body = next((body for body in reversed(self._bodies) if body.task is task), self._bodies[-1])
        self._bodies.remove(body)
        await body.leave(kind, error, trace)
