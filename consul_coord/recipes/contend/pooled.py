"""Attempts with a session of their own, from a pool: the semaphore's and the read-write lock's.

Rules
- The session is the claim: destroying it ends whatever the attempt has left. It is destroyed unless every
  request of it was answered and its contender is surely gone; then the pool has it back.
- An attempt that wants several places has a session for each. The first one queues for all. They are used,
  and let go of, together: when one has ended, the attempt starts over with others.
- The contender is made once for each session. When it has gone, the attempt starts over with another session.
- A session that may have its contender is destroyed after that was deleted: otherwise Consul's lock-delay
  would keep the name closed, and with it what others may be waiting for.
- A lock-delay on the own contender is that of its own session, which has ended.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import send_once
from consul_coord.models import TxnOp
from consul_coord.recipes.contend.attempt import Attempt
from consul_coord.recipes.contend.refusals import blocked_by

if TYPE_CHECKING:
    from consul_coord.errors import TxnFailed
    from consul_coord.io import IO
    from consul_coord.models import KVPair
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.session.pool import PooledSession, SessionPool


class PooledAttempt(Attempt):
    """See the module."""

    __slots__ = ("_places", "mine", "own", "pool")

    def __init__(
        self,
        io: IO,
        client: Shared,
        wanted: str,
        pool: SessionPool,
        *,
        timeout: float | None,
        places: int = 1,
    ) -> None:
        super().__init__(io, client, (wanted,), timeout=timeout)
        self.pool = pool
        self.mine: list[PooledSession] = []
        """The present sessions, the one that queues first."""
        self._places = places
        self.own: KVPair | None = None
        """Our contender as last seen; None when the present session has not joined."""

    @abstractmethod
    def contender_of(self, session: str) -> str:
        """Return the key of a session's contender."""

    async def _begin(self) -> None:
        """Do nothing: the session is claimed when the pool gives it."""

    async def _need_session(self) -> PooledSession:
        if not self._all_valid():
            self._drop_session()
        while len(self.mine) < self._places:
            self.mine.append(await self.pool.get(self.io, self._claim, deadline=self.deadline))
        first = self.mine[0]
        self.kept, self.session = first.kept, first.id
        return first

    def _all_valid(self) -> bool:
        """Return whether all present sessions may be relied on."""
        now = self.io.now()
        return not [pooled for pooled in self.mine if not pooled.kept.lease.is_valid(now)]

    def _claim(self, pooled: PooledSession) -> None:
        self.client.attend()  # not long before: making a session may have taken its time
        pooled.contender = self.contender_of(pooled.id)
        self.client.holds.register.enter(pooled, self)

    def _drop_session(self) -> None:
        """Let go of the present session for good; its end removes whatever it has left."""
        mine, self.mine, self.kept, self.own = self.mine, [], None, None
        self.session = ""
        asked, self.asked = self.asked, False
        for pooled in mine:
            if not asked:
                pooled.contender = None
            pooled.abandon()
            self.client.holds.register.remove(pooled)

    def _unanswered(self) -> None:
        for pooled in self.mine:
            pooled.settled = False

    def _blocked(self, key: str, error: TxnFailed) -> bool:
        """Take note of a refusal; returns whether it ended the session. Raises what can't be waited out."""
        if not self.mine:
            return False
        unknown = {one.op.session for one in error.failures if one.op and one.kind == "invalid_session"}
        ended = next((pooled for pooled in self.mine if pooled.id in unknown), self.mine[0])
        if blocked_by(self.client.sessions, ended.kept, key, error) is None:
            return False
        self._drop_session()
        self._block("unreachable", cause=error)
        return True

    # -- giving up

    async def _withdraw(self, deadline: float) -> bool:
        """Delete the contender as it was last seen."""
        own = self.own
        if not self.mine or not self.asked:
            return True
        if own is None or not all(pooled.settled for pooled in self.mine):
            return False
        try:
            await send_once(self.io, kv.txn(TxnOp.delete_cas(own.key, own.modify_index)), deadline=deadline)
        except ConsulCoordError:
            return False
        return True

    def _settle(self) -> None:
        for pooled in self.mine:
            self.pool.put_back(pooled)
            self.client.holds.register.remove(pooled)
        if self.own is not None:
            self.client.watches.changed_here(self.own.key)

    def _abandon(self) -> None:
        self._drop_session()
