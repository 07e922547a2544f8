# Made from consul_coord/aio/leadership.py by `python tools/make_sync.py`: change that one.
"""A leadership, as blocking code sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.models._validate import as_bytes
from consul_coord.recipes.election import asking as recipe
from consul_coord.recipes.election.leadership import End, LeadershipView, told_as_leadership
from consul_coord.sync.blocks import Blocks
from consul_coord.sync.body import LeaderBody
from consul_coord.sync.hold import Hold, LossEvent

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from consul_coord.recipes.election.candidacy import Candidacy
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.sync.runner import Runner


class Leadership(LeadershipView, Hold):
    """One term of leading: a hold of the election's key.

    Guarantees what ``Hold`` does, and raises LeadershipLost where that raises LockLost. As a context manager
    it resigns at the end of the block, and then raises LeadershipLost if it was lost meanwhile, with the
    block's exception as its cause. At a loss nothing interrupts blocking code; on an event loop the block is
    cancelled. The candidacy goes on.
    """

    def __init__(self, runner: Runner, candidacy: Candidacy, hold: Grant) -> None:
        super().__init__(runner, candidacy.client, hold)
        self._candidacy = candidacy
        self._blocks = Blocks[Leadership](hold.key, LeaderBody)

    @property
    def lost(self) -> LossEvent:
        """The event to wait on for its end, by a loss or by resigning."""
        return LossEvent(self._runner, End(self._hold))

    def ensure(self, seconds: float) -> None:
        """Make sure that at least ``seconds`` of the lease are left, and renew it if necessary.

        It retries through passing trouble, for the client's ``timeout`` at most.

        Raises LeadershipLost, also after a resignation, InvalidArgument if the lease is never that long, and
        the errors of the renewal.
        """
        with told_as_leadership(self._hold):
            super().ensure(seconds)

    def put(self, value: bytes | str) -> None:
        """Change the value that followers see; the term stays.

        Raises LeadershipLost, also after a resignation, ValueTooLarge, and the errors of the write.
        """
        data = as_bytes(value)
        self._runner.call(recipe.proclaim, self._candidacy, self._hold, data)

    def __enter__(self) -> Self:
        self._blocks.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks.leave(kind, error, trace)
