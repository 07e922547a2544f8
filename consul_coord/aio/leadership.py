"""A leadership, as code on an event loop sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.aio.blocks import Blocks
from consul_coord.aio.body import LeaderBody
from consul_coord.aio.hold import AsyncHold, AsyncLossEvent
from consul_coord.models._validate import as_bytes
from consul_coord.recipes.election import asking as recipe
from consul_coord.recipes.election.leadership import End, LeadershipView, told_as_leadership

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from consul_coord.aio.runner import AsyncRunner
    from consul_coord.recipes.election.candidacy import Candidacy
    from consul_coord.recipes.hold.grant import Grant


class AsyncLeadership(LeadershipView, AsyncHold):
    """One term of leading: a hold of the election's key.

    Guarantees what ``Hold`` does, and raises LeadershipLost where that raises LockLost. As a context manager
    it resigns at the end of the block, and then raises LeadershipLost if it was lost meanwhile, with the
    block's exception as its cause. At a loss nothing interrupts blocking code; on an event loop the block is
    cancelled. The candidacy goes on.
    """

    def __init__(self, runner: AsyncRunner, candidacy: Candidacy, hold: Grant) -> None:
        super().__init__(runner, candidacy.client, hold)
        self._candidacy = candidacy
        self._blocks = Blocks[AsyncLeadership](hold.key, LeaderBody)

    @property
    def lost(self) -> AsyncLossEvent:
        """The event to wait on for its end, by a loss or by resigning."""
        return AsyncLossEvent(self._runner, End(self._hold))

    async def ensure(self, seconds: float) -> None:
        """Make sure that at least ``seconds`` of the lease are left, and renew it if necessary.

        It retries through passing trouble, for the client's ``timeout`` at most.

        Raises LeadershipLost, also after a resignation, InvalidArgument if the lease is never that long, and
        the errors of the renewal.
        """
        with told_as_leadership(self._hold):
            await super().ensure(seconds)

    async def put(self, value: bytes | str) -> None:
        """Change the value that followers see; the term stays.

        Raises LeadershipLost, also after a resignation, ValueTooLarge, and the errors of the write.
        """
        data = as_bytes(value)
        await self._runner.call(recipe.proclaim, self._candidacy, self._hold, data)

    async def __aenter__(self) -> Self:
        self._blocks.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._blocks.leave(kind, error, trace)
