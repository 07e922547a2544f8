"""One attempt to become leader: a fair waiter's attempt to take the key, with two additions.

Rules
- The head lets an heir go first while the heir's note counts, and no longer than ``HONOURED`` seconds after
  it saw the note. The take itself names the note it knows of, or none: so a note written in between is never
  passed over unseen, and is deleted by the very transaction that elects.
- A blocking query that ends without a change is asked again, without a look at the queue: waiting costs two
  requests a minute.
- Once the client closes no new session is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ClientClosed, TxnFailed
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import wait_once
from consul_coord.models import ReadOptions, TxnOp
from consul_coord.recipes.cleanup.reaper import RemoveContender
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.queue import Adopt, Lead
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.election import notes
from consul_coord.recipes.lock.attempt import Attempt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.io import IO
    from consul_coord.models import KVPair, Result
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.lock.lock import LockObject


class Candidate(Attempt):
    """One attempt of one candidate."""

    def __init__(self, io: IO, core: ClientState, lock: LockObject, *, timeout: float | None) -> None:
        super().__init__(io, core, lock, timeout=timeout)
        # Nobody's: the leadership belongs to the election, not to the background task that got it.
        self.ticket = Ticket(lock.plan.key, None)
        self._heir: KVPair | None = None
        """The heir's note, as the last look found it."""
        self._heir_until = 0.0
        self._may_delete: KVPair | None = None
        """The same, if it does not stand in our way."""

    async def _need_session(self) -> None:
        if self.core.closing.is_set():
            raise ClientClosed("the client is closed")
        await super()._need_session()

    def _read(self, pairs: Iterable[KVPair]) -> Look:
        found = tuple(pairs)
        before, self._heir = self._heir, notes.find(notes.heir_key(self.plan.key), found)
        if self._heir is not None and self._heir != before:
            self._heir_until = self.io.now() + notes.HONOURED
        return super()._read(found)

    async def _follow_up(self, look: Look) -> Grant | None:
        verdict = waitqueue.judge(look, self.session)
        heir, position = self._heir, look.position(self.session)
        honoured = heir is not None and self.io.now() < self._heir_until and notes.counts(heir, look)
        self._may_delete = None if honoured else heir
        if heir is None or not honoured or position is None or isinstance(verdict, Adopt):
            return await super()._follow_up(look)
        if notes.heir_of(heir) == self.session:
            self._may_delete = heir
            self.contender = look.live[position]
            return await self._lead(None if look.pair is None else self._holder(look.pair))
        if isinstance(verdict, Lead) and verdict.held is None:
            self.contender = verdict.own
            await self._let_go_first(look, heir)
            return None
        return await super()._follow_up(look)

    async def _let_go_first(self, look: Look, heir: KVPair) -> None:
        """Wait until the heir is elected, does not queue any more, or has had its time."""
        self._block("queued", session=notes.heir_of(heir), position=1)
        own = next(pair for pair in look.live if waitqueue.session_of(pair) == notes.heir_of(heir))
        call = kv.get(own.key, options=ReadOptions(index=own.modify_index, wait=notes.HONOURED))
        until = None if self.kept is None else self.kept.over
        await wait_once(self.io, call, until=until, deadline=self._heir_until)

    async def _watch(self, key: str, index: int) -> Result[KVPair | None] | None:
        while True:
            seen = await super()._watch(key, index)
            if seen is None or seen.value is None or seen.value.modify_index != index:
                return seen

    async def _take(self) -> Grant | None:
        contender, heir, key = self.contender, self._may_delete, self.plan.key
        if contender is None:
            return None
        note = notes.heir_key(key)
        ops = (
            TxnOp.check_index(contender.key, contender.modify_index),
            TxnOp.check_not_exists(note) if heir is None else TxnOp.check_index(note, heir.modify_index),
            self._lock_op(key),
            TxnOp.delete(contender.key),
            TxnOp.delete(note),
            TxnOp.delete(notes.term_key(key)),
        )
        try:
            result = await self._ask(*ops)
        except TxnFailed as error:
            self._refused(error)
            return None
        self.contender = None
        self.joined = False
        return await self._granted(result[2][0])

    async def _withdraw(self, deadline: float) -> bool:
        heir = self._heir
        if heir is not None and notes.heir_of(heir) == self.session:
            self.core.reaper.add(RemoveContender(heir.key, heir.modify_index))
        return await super()._withdraw(deadline)
