"""One attempt to become leader: a fair waiter's attempt to take the key, with two additions.

Rules
- The head lets an heir go first while the heir's note counts, and no longer than ``HONOURED`` seconds after
  it saw the note. The take itself names the note it knows of, or none: so a note written in between is never
  passed over unseen, and is deleted by the very transaction that elects.
- A candidate of low priority waited for a vacancy. It gives up if somebody has led since, and waits for the
  next one.
- While somebody leads, a candidate that also follows the leader watches the key, at any place in the queue.
  So one query serves both, and its turn can't come before the key changes. While nobody leads, it watches the
  contender before its own, like any waiter, because the key does not show that a waiter has died.
- A blocking query that ends without a change is asked again, without a look at the queue: waiting costs one
  request between two renewals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from consul_coord.models import TxnOp
from consul_coord.recipes.cleanup.tasks import RemoveKey
from consul_coord.recipes.election import notes
from consul_coord.recipes.election.leader import leader_in
from consul_coord.recipes.lock.unattended import UnattendedAttempt
from consul_coord.recipes.lock.waitqueue import Adopt, Lead, judge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from consul_coord.errors import TxnFailed
    from consul_coord.io import IO
    from consul_coord.models import KVPair, LeaderInfo
    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Handle
    from consul_coord.recipes.lock.plan import LockPlan
    from consul_coord.recipes.session.keeping import SessionSource


def electing(
    plan: LockPlan, session: str, value: bytes, *, index: int, heir: int | None
) -> tuple[TxnOp, ...]:
    """Return the operations that elect a candidate whose contender is at an index.

    ``heir`` is the index of the heir's note that they delete, None where they allow none.
    """
    note, term = notes.heir_key(plan.key), notes.term_key(plan.key)
    check, *take = plan.taking(session, value, index=index)
    return (
        check,
        TxnOp.check_not_exists(note) if heir is None else TxnOp.check_index(note, heir),
        *take,
        TxnOp.delete(note),
        TxnOp.delete(term),  # a write that changes nothing would leave its index as it was
        TxnOp.set(term, notes.election_value(session)),
    )


def _index_of(pair: KVPair | None) -> int:
    return 0 if pair is None else pair.modify_index


class Candidate(UnattendedAttempt):
    """One attempt of one candidate."""

    takes_in_turn = False  # an heir goes first

    def __init__(
        self,
        io: IO,
        client: Shared,
        plan: LockPlan,
        source: SessionSource,
        *,
        timeout: float | None,
        vacancy: int | None,
        saw: Callable[[LeaderInfo | None], object],
        follows: Callable[[], bool],
    ) -> None:
        super().__init__(io, client, plan, source, timeout=timeout)
        self.keys.note = notes.term_key(plan.key)
        self._vacancy = vacancy
        """The index of the vacant key, 0 without a key; None to queue also behind a leader."""
        self._index = vacancy
        """The same by the last look."""
        self._saw = saw
        """Called with whom each look at the queue shows to be the leader."""
        self._follows = follows
        """Returns whether its client also follows the leader."""
        self._leads: KVPair | None = None
        """The key, if the last look found it held by somebody else."""
        self._heir: KVPair | None = None
        """The heir's note, as the last look found it."""
        self._heir_until = 0.0
        self._may_delete: KVPair | None = None
        """The same, if it does not stand in our way."""

    def _read(self, results: Iterable[tuple[KVPair, ...]]) -> Look:
        found = [*results]
        pairs = [pair for some in found for pair in some]
        before, self._heir = self._heir, notes.find(notes.heir_key(self.key), pairs)
        if self._heir is not None and self._heir != before:
            self._heir_until = self.io.now() + notes.HONOURED
        look = super()._read(found)
        self._index = _index_of(look.pair)
        self._leads = look.pair if self.holders else None
        self._saw(leader_in(look.pair, notes.find(notes.term_key(self.key), pairs)))
        return look

    def _follow_up(self, look: Look) -> Awaitable[Handle | None]:
        verdict = judge(look, self.session)
        heir, position = self._heir, look.position(self.session)
        honoured = heir is not None and self.io.now() < self._heir_until and notes.counts(heir, look)
        self._may_delete = None if honoured else heir
        if heir is None or not honoured or position is None or isinstance(verdict, Adopt):
            return super()._follow_up(look)
        if notes.heir_of(heir) == self.session:
            self._may_delete = heir
            self.contender = look.live[position]
            return self._lead(None if look.pair is None else self._holder(look.pair))
        if isinstance(verdict, Lead) and verdict.held is None:
            self.contender = verdict.own
            return self._let_go_first(next(pair for pair in look.live if pair.session == notes.heir_of(heir)))
        return super()._follow_up(look)

    async def _join(self) -> Look | None:
        if self._vacancy is not None and self._index != self._vacancy:
            self._give_way()
        return await super()._join()

    def _give_way(self) -> NoReturn:
        """Give up, as there is a leader, or was one since the vacancy that was waited for."""
        self._block("held" if self.holders else "queued")
        raise self._timeout()

    def _while_queueing(self) -> tuple[TxnOp, ...]:
        match self._vacancy:
            case None:
                return ()
            case 0:
                return (TxnOp.check_not_exists(self.key),)
            case index:
                return (TxnOp.check_index(self.key, index),)

    def _refused(self, error: TxnFailed) -> None:
        joins = self.contender is None
        if joins and self._vacancy is not None and {failure.op_index for failure in error.failures} == {1}:
            self._give_way()
        super()._refused(error)

    async def _watch_before(self, ahead: KVPair) -> None:
        led = held = self._leads
        if led is None or not self._follows():
            await super()._watch_before(ahead)
            return
        while held is not None and held.session == led.session:
            seen = await self._watch(self.key, held.modify_index)
            held = None if seen is None else self._holder(seen.value)

    async def _let_go_first(self, heir: KVPair) -> None:
        """Wait until the heir is elected, does not queue any more, or has had its time."""
        self._block("queued", session=heir.session, position=2)
        await self._watch(heir.key, heir.modify_index, first=True, deadline=self._heir_until)

    def _taking(self, contender: KVPair) -> tuple[TxnOp, ...]:
        heir = None if self._may_delete is None else self._may_delete.modify_index
        return electing(self.plan, self.session, self.value, index=contender.modify_index, heir=heir)

    async def _withdraw(self, deadline: float) -> bool:
        heir = self._heir
        if heir is not None and notes.heir_of(heir) == self.session:
            self.client.reaper.add(RemoveKey(heir.key, heir.modify_index))
        return await super()._withdraw(deadline)
