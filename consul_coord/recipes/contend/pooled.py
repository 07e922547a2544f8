"""Attempts with a session of their own, from a pool: the semaphore's and the read-write lock's.

Rules
- The session is the claim: destroying it ends whatever the attempt has left. It is destroyed unless every
  request of it was answered and its contender is surely gone; then the pool has it back.
- The contender is made once for each session. When it has gone, the attempt starts over with another session.
- A session that may have its contender is destroyed after that was deleted: otherwise Consul's lock-delay
  would keep the name closed, and with it what others may be waiting for.
- A lock-delay on the own contender is that of its own session, which has ended.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import txn
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

    def __init__(
        self, io: IO, client: Shared, wanted: str, pool: SessionPool, *, timeout: float | None
    ) -> None:
        super().__init__(io, client, wanted, timeout=timeout)
        self.pool = pool
        self.pooled: PooledSession | None = None
        self.own: KVPair | None = None
        """Our contender as last seen; None when the present session has not joined."""

    @abstractmethod
    def contender_of(self, session: str) -> str:
        """Return the key of a session's contender."""

    async def _begin(self) -> None:
        """Do nothing: the session is claimed when the pool gives it."""

    async def _need_session(self) -> PooledSession:
        pooled = self.pooled
        if pooled is None or not pooled.kept.lease.is_valid(self.io.now()):
            self._drop_session()
            pooled = await self.pool.get(self.io, self._claim, deadline=self.limit)
            self.pooled, self.kept, self.session = pooled, pooled.kept, pooled.id
        return pooled

    def _claim(self, pooled: PooledSession) -> None:
        self.client.attend()  # not long before: making a session may have taken its time
        pooled.contender = self.contender_of(pooled.id)
        self.client.holds.register.enter(pooled, self)

    def _drop_session(self) -> None:
        """Let go of the present session for good; its end removes whatever it has left."""
        pooled, self.pooled, self.kept, self.own = self.pooled, None, None, None
        self.session = ""
        asked, self.asked = self.asked, False
        if pooled is not None:
            if not asked:
                pooled.contender = None
            pooled.abandon()
            self.client.holds.register.remove(pooled)

    def _unanswered(self) -> None:
        if self.pooled is not None:
            self.pooled.settled = False

    def _blocked(self, key: str, error: TxnFailed) -> bool:
        """Take note of a refusal; returns whether it ended the session. Raises what can't be waited out."""
        if self.kept is None:
            return False
        if blocked_by(self.client.sessions, self.kept, key, error) is None:
            return False
        self._drop_session()
        self._block("unreachable", cause=error)
        return True

    # -- giving up

    async def _withdraw(self, deadline: float) -> bool:
        """Delete the contender as it was last seen."""
        own, pooled = self.own, self.pooled
        if pooled is None or not self.asked:
            return True
        if own is None or not pooled.settled:
            return False
        try:
            await send_once(self.io, txn.txn(TxnOp.delete_cas(own.key, own.modify_index)), deadline=deadline)
        except ConsulCoordError:
            return False
        return True

    def _settle(self) -> None:
        pooled = self.pooled
        if pooled is not None:
            self.pool.put_back(pooled)
            self.client.holds.register.remove(pooled)

    def _abandon(self) -> None:
        self._drop_session()
