"""One attempt to get into a read-write lock: queue, wait for who is in the way; and giving up.

Rules, each with what happens without it
- Joining and reading the queue are one transaction, repeated until answered; a repeat keeps the place.
- Each attempt has a session of its own, without checks and with behaviour ``delete``: its contender is named
  after it and vanishes with it, and several threads of one client may read at once. No lock-delay protects a
  place, but a holder's lease (TTL) is over before the servers end its session (up to 2 x TTL).
- Whatever has no answer is settled by destroying the session: a late join is refused then.
- A session whose requests were all answered, and whose contender is surely gone, may queue again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import TxnFailed
from consul_coord.http.messages import Retry
from consul_coord.models import Holder, TxnOp
from consul_coord.recipes.cleanup.tasks import RemoveKey
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.pooled import PooledAttempt
from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.recipes.rwlock.kind import RwKind
from consul_coord.recipes.rwlock.queue import Behind, Enter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.io import IO
    from consul_coord.models import KVPair
    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Handle
    from consul_coord.recipes.rwlock.queue import Mode
    from consul_coord.recipes.session.pool import PooledSession, SessionPool


class RwAttempt(PooledAttempt):
    """One call of ``acquire`` of one side. ``base`` is the key whose queue it is."""

    def __init__(
        self,
        io: IO,
        client: Shared,
        pool: SessionPool,
        *,
        base: str,
        mode: Mode,
        value: bytes,
        flags: int,
        timeout: float | None,
    ) -> None:
        super().__init__(io, client, rwqueue.key_of(base), pool, timeout=timeout)
        self.base = base
        self.mode: Mode = mode
        self.value = rwqueue.marked(mode, value)
        self.flags = flags

    async def _move(self) -> Handle | None:
        pooled = await self._need_session()
        try:
            look = await (self._join(pooled) if self.own is None else self._look())
        except TxnFailed as error:
            self._blocked(self.base, error)
            return None
        verdict = rwqueue.judge(look, pooled.id, self.mode)
        if isinstance(verdict, Enter):
            self.own = verdict.own
            return self._granted(pooled, verdict.own)
        if isinstance(verdict, Behind):
            self.own = verdict.own
            blocker, inside = verdict.blocker, rwqueue.inside(look)
            self.holders = tuple(
                Holder(waitqueue.session_of(pair), value=rwqueue.value_of(pair), fence=pair.create_index)
                for pair in inside
            )
            self._block("queued", session=blocker.session, position=verdict.position + 1 - len(inside))
            await self._watch(blocker.key, blocker.modify_index, first=verdict.position == 1)
        else:
            self._drop_session()  # an operator has removed our contender: queue again, as somebody new
        return None

    async def _join(self, pooled: PooledSession) -> Look:
        contender = waitqueue.contender_key(self.base, pooled.id)
        own = TxnOp.lock(contender, pooled.id, value=self.value, flags=self.flags)
        tree = TxnOp.get_tree(waitqueue.directory(self.base))
        return self._read((await self._ask(own, tree, retry=Retry.IDEMPOTENT))[1])

    async def _look(self) -> Look:
        return self._read((await self._ask(TxnOp.get_tree(waitqueue.directory(self.base))))[0])

    def _read(self, pairs: Iterable[KVPair]) -> Look:
        look = waitqueue.read(self.base, pairs)
        for pair in look.dead:
            self.client.reaper.add(RemoveKey(pair.key, pair.modify_index))
        return look

    def _granted(self, pooled: PooledSession, own: KVPair) -> Handle | None:
        if not pooled.kept.lease.is_valid(self.io.now()):
            self._drop_session()
            return None
        self.kind = RwKind(self.pool, pooled, self.mode)
        handle = self.client.holds.grant(
            own,
            kept=pooled.kept,
            value=own.value,
            flags=self.flags,
            kind=self.kind,
            fence=own.create_index,
        )
        self.client.holds.register.remove(pooled)
        self.pool.prepare()
        return handle
