"""One attempt to get into a read-write lock: queue, wait for who is in the way; and giving up.

Rules, each with what happens without it
- Joining and reading the queue are one transaction, repeated until answered; a repeat keeps the place.
- Each attempt has a session of its own: its contender is named after it, and several threads of one client
  may read at once. Its behaviour is ``release``: when it ends, the contender stays where it was, without a
  session, and behind its lock-delay. Otherwise nobody would know that its holder may still trust its hold.
- A dead contender in the way is removed by a transaction that its lock-delay refuses. The end of a lock-delay
  is not an event, so that is tried again after a pause; meanwhile a watch tells if another waiter was faster.
- Dead readers are in no reader's way. Each one that is seen gets one try in the background, so that they
  don't pile up.
- Whatever has no answer is settled by deleting the contender and destroying the session: a late join is
  refused then.
- A session whose requests were all answered, and whose contender is surely gone, may queue again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import TxnFailed
from consul_coord.http.backoff import delay
from consul_coord.http.messages import Retry
from consul_coord.models import Holder, TxnOp
from consul_coord.recipes.cleanup.tasks import RemoveDead, RemoveKey
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.attempt import FIRST_PAUSE, LONGEST_PAUSE
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

    __slots__ = ("_pauses", "base", "born", "flags", "mode", "value")

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
        self.born = 0
        """CreateIndex of our contender, as the join made it."""
        self._pauses = 0
        """How often a dead contender in the way could not be removed."""

    def contender_of(self, session: str) -> str:
        """Return the key of a session's contender."""
        return waitqueue.contender_key(self.base, session)

    async def _move(self) -> Handle | None:
        pooled = await self._need_session()
        try:
            look = await (self._join(pooled) if self.own is None else self._look())
        except TxnFailed as error:
            self._blocked(f"{self.base}/", error)
            return None
        verdict = rwqueue.judge(look, pooled.id, self.mode, born=self.born)
        if isinstance(verdict, Enter):
            self.own = verdict.own
            return self._granted(pooled, verdict.own)
        if not isinstance(verdict, Behind):
            self._drop_session()  # an operator has removed our contender: queue again, as somebody new
            return None
        self.own = verdict.own
        blocker = verdict.blocker
        inside = [pair for pair in rwqueue.inside(look) if pair.session is not None]
        self.holders = tuple(
            Holder(waitqueue.session_of(pair), value=rwqueue.value_of(pair), fence=pair.create_index)
            for pair in inside
        )
        if blocker.session is None:
            await self._remove(blocker, pooled.id)
        else:
            self._pauses = 0
            self._block("queued", session=blocker.session, position=verdict.position + 1 - len(inside))
            await self._watch(blocker.key, blocker.modify_index, first=verdict.position == 1)
        return None

    async def _remove(self, dead: KVPair, session: str) -> None:
        """Remove a dead contender that is in the way, or wait a while for the end of its lock-delay."""
        try:
            await self._ask(*rwqueue.removal(dead, by=session))
        except TxnFailed as error:
            if not {failure.kind for failure in error.failures} <= {"lock_delay", "held"}:
                self._blocked(dead.key, error)
                return
        else:
            return
        self._block("lock_delay", session=waitqueue.session_of(dead))
        self._must_pause = False  # the watch is the pause
        self._pauses += 1
        pause = delay(self._pauses, self.io.random(), first=FIRST_PAUSE, most=LONGEST_PAUSE)
        await self._watch(dead.key, dead.modify_index, deadline=min(self.deadline, self.io.now() + pause))

    async def _join(self, pooled: PooledSession) -> Look:
        join = rwqueue.joining(self.base, pooled.id, self.value, flags=self.flags)
        result = await self._ask(*join, retry=Retry.IDEMPOTENT)
        self.born = result[0][0].create_index
        return self._read(result[1], pooled.id)

    async def _look(self) -> Look:
        return self._read((await self._ask(TxnOp.get_tree(waitqueue.directory(self.base))))[0])

    def _read(self, pairs: Iterable[KVPair], joined: str = "") -> Look:
        """Sort a reading, and have the dead removed that are in nobody's way.

        ``joined`` is our session, if our join gave the reading.
        """
        look = waitqueue.read(self.base, pairs)
        inside = rwqueue.inside(look) if look.dead else ()
        for pair in look.dead:
            if pair not in inside:
                self.client.reaper.add(RemoveKey(pair.key, pair.modify_index))
            elif joined and self.mode == "read" and rwqueue.mode_of(pair) == "read":
                self.client.reaper.add(RemoveDead(rwqueue.removal(pair, by=joined)))
        return look

    def _granted(self, pooled: PooledSession, own: KVPair) -> Handle | None:
        if not pooled.kept.lease.is_valid(self.io.now()):
            self._drop_session()
            return None
        key, owner = rwqueue.key_of(self.base), self.io.owner()
        self.kind = RwKind(key, self.pool, pooled, self.mode, owner=owner)
        handle = self.client.holds.grant(
            own,
            kept=pooled.kept,
            value=own.value,
            flags=self.flags,
            kind=self.kind,
            fence=own.create_index,
            began=self.began,
        )
        self.client.holds.register.remove(pooled)
        self.pool.prepare()
        return handle
