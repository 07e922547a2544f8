"""One attempt to take a lock: barge, or queue and wait for the turn; and giving up without leaving anything.

Rules, each with what happens without it
- A newcomer may take a free key past the queue (*barge*), unless the lock is fair, or this client saw others
  when it last barged or joined. Otherwise a loop that releases and takes again would starve them. The barge
  is bound to having no contender. Otherwise a late copy of it would take the key for a client that by then
  sits in the middle of the queue, behind a head that waits for the key.
- Joining and reading the queue are one transaction; repeated, it keeps the place.
- A waiter that moves up reads the key and its own contender. It lists the queue only if these two do not show
  that it is the head: else each handoff would cost a listing, however long the queue is.
- A take names the index of the very contender it is made for. Otherwise a late copy would take the key for no
  client, or out of turn. A take without an answer is followed by a look, never by itself: the copy would fail
  on the contender although the key is ours.
- A refusal by lock-delay costs the server nothing, and its end is no event: the head tries again after a
  pause, and never watches.
- Giving up removes the contender first: with it gone, no take under way can succeed. Then the key, should we
  have got it.
- A request without an answer may be applied after all is over: the reaper looks at the key for a while.
- A fence must be above the last one of this key that this client got. If it is the same, the server still has
  the hold before, whose unlock was never applied: that is unlocked, and the attempt starts over.
- Without permission to write and read the queue there is no queue: everybody watches the key, and takes it
  after a random pause.
- Every write carries the lock's flags, which tell Go clients what the key is. A key that was seen with other
  flags is not touched.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from consul_coord.errors import AlreadyHeld, ConsulCoordError, PermissionDenied, TxnFailed
from consul_coord.events import FencesRestarted
from consul_coord.http.endpoints import kv
from consul_coord.http.messages import Retry
from consul_coord.http.retry import send_once
from consul_coord.models import Holder, TxnOp
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.cleanup.tasks import RemoveKey, RemoveNote
from consul_coord.recipes.cleanup.unlock import Locked, unlock, withdraw
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.attempt import SPREAD, Attempt
from consul_coord.recipes.contend.refusals import blocked_by
from consul_coord.recipes.lock.keys import Keys, LockKind, MultiLockKind
from consul_coord.recipes.lock.waitqueue import Adopt, Follow, Gone, is_head, judge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from consul_coord.io import IO
    from consul_coord.models import KVPair, TxnResult
    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.contend.tickets import Ticket
    from consul_coord.recipes.hold.grant import Handle
    from consul_coord.recipes.lock.plan import LockPlan
    from consul_coord.recipes.session.keeping import SessionSource

BESIDE = 1.0
"""Seconds until a caller whose session has the key looks again whether another one here acts by it."""


class LockAttempt(Attempt):
    """One call of ``acquire``."""

    __slots__ = (
        "_gone",
        "_missed",
        "_seen",
        "contender",
        "key",
        "keys",
        "may_barge",
        "plan",
        "queue",
        "read",
        "source",
        "unanswered",
        "value",
    )

    takes_in_turn = True
    """Whether waiters take the key in the order of the queue alone."""

    def __init__(
        self, io: IO, client: Shared, plan: LockPlan, source: SessionSource, *, timeout: float | None
    ) -> None:
        super().__init__(io, client, plan.keys, timeout=timeout)
        self.plan = plan
        self.value = client.name if plan.value is None else plan.value
        self.key = plan.key
        self.queue = plan.key + waitqueue.DIRECTORY
        """The prefix of the contenders."""
        self.source = source
        remove = (self.value,) if plan.remove else ()
        self.keys = Keys(client, plan.keys, plan.flags, self._owner(), remove=remove)
        self.contender: KVPair | None = None
        """Our contender as last seen; None when we do not queue, or do not know."""
        self._gone: Gone | None = None
        """The contender right before ours, if that has just been deleted."""
        self._missed: KVPair | None = None
        """Our contender, which the last look did not show: gone, or not to be seen without permission."""
        self._seen: Look | None = None
        """The caller's reading of the key and its queue, made just before."""
        self.read: tuple[KVPair, ...] = ()
        """The reading of the granting transaction, where the plan asks for one."""
        self.may_barge = not plan.fair
        self.unanswered: set[str] = set()
        """Sessions for which a request that could lock something has got no answer."""

    def _owner(self) -> object:
        return self.io.owner()

    # -- the whole attempt

    def begin_from(self, pairs: Iterable[KVPair]) -> None:
        """Take a reading of the key and its queue, made just now, for the first look."""
        self._seen = self._read([tuple(pairs)])

    def _begin(self) -> Awaitable[None]:
        self.client.holds.register.enter(self.keys, self)
        self.client.attend()
        return self._wait_in_line()

    def _wait_in_line(self) -> Awaitable[None]:
        """Wait until no other thread or task of this client acts on the key."""
        return self._wait_for_ticket(self.key)

    async def _wait_for_ticket(self, key: str) -> None:
        ticket = self.keys.ticket(key)
        try:
            is_first = self.client.tickets.join(ticket)
        except AlreadyHeld:
            # Perhaps the caller has just dropped that hold: it is given back then, and this waits for it. Or
            # the hold is lost, and another thread is about to announce that.
            self.client.holds.register.sweep()
            self.client.holds.announce_losses()
            is_first = self.client.tickets.join(ticket)
        if is_first:
            return
        self._seen = None  # what was seen before the wait is old
        has_it = await self._has(key)
        if ticket.ready.is_set():
            return  # whoever was ahead has left while that was asked
        self._block_in_line(ticket)
        while not (has_it and self.client.tickets.join_beside(ticket, self._given)):
            longest = BESIDE if has_it else math.inf
            until = min(self.deadline, self.io.now() + longest)
            if not self.once and await self.io.wait(ticket.ready, deadline=until):
                break
            if self.once or self.io.now() >= self.deadline:
                self.holders = self._held_here(key)
                self._block_in_line(ticket)
                raise self._timeout()

    @property
    def _given(self) -> str:
        """The session that the caller gave by its id; empty if it gave none."""
        return self.plan.session if isinstance(self.plan.session, str) else ""

    async def _has(self, key: str) -> bool:
        """Return whether the session that the caller gave has a key: whoever is first here waits for that."""
        if not self._given or self.io.now() >= self.deadline:
            return False
        pair = (await self._answer(kv.get(key, options=CONSISTENT))).value
        return pair is not None and pair.session == self._given

    async def _read_refused(self, key: str) -> KVPair | None:
        """Read a key that was not granted, as the servers' leader has it.

        A server that has lost the lead may long call a key free that is taken. Then each try would be
        refused, and the next one follow at once.
        """
        return (await send_once(self.io, kv.get(key, options=CONSISTENT), deadline=self.limit)).value

    def _block_in_line(self, ticket: Ticket) -> None:
        tickets = self.client.tickets
        position = tickets.position(ticket)
        if position == 0:
            return  # its turn has just come
        # Behind the clean-up after its own failure, that failure is what stands in the way.
        if self.cause is None or any(one.owner is not None for one in tickets.queue(ticket.key)[:1]):
            self._block("queued", position=position)

    def _held_here(self, key: str) -> tuple[Holder, ...]:
        """Return the holder of a key if it is another thread or task of this client; no I/O."""
        found = (hold for hold in self.client.holds.all() if hold.key == key)
        return tuple(Holder(hold.session, value=hold.value, fence=hold.fence) for hold in found)

    async def _move(self) -> Handle | None:
        await self._need_session()
        if self.once:
            return await self._take_if_free()
        if self._without_queue:
            return await self._move_without_queue()
        if self.contender is None:
            pass_queue = await self._way_past_the_queue()
            if pass_queue is not None and (handle := await pass_queue()) is not None:
                return handle
            look = await self._join()
            if look is None:
                return None
        else:
            look = await self._look_behind(self.contender) or await self._look()
        step = self._follow_up(look)
        del look  # the queue may be long, and so may the step
        return await step

    async def _need_session(self) -> None:
        kept = await self.source.live(self.io, deadline=self.deadline)
        if self.kept is not kept:
            # One that was made elsewhere may be taken up again after its lease: it has then what it had.
            self.asked = self.asked and kept.id == self.session
            self.kept, self.session = kept, kept.id
            self.keys.acts_with(kept.id)
            self.contender = self._missed = self._gone = None

    # -- past the queue

    async def _way_past_the_queue(self) -> Callable[[], Awaitable[Handle | None]] | None:
        """Return how to get the lock without queueing, if that may be tried."""
        allowed = self.may_barge and self.key not in self.client.queue_memory.crowded
        self.may_barge = False
        if self._needs_look:
            # Never held by this client, or long ago: what else might the key be?
            look = await self._first_look()
            if judge(look, self.session) == Adopt():
                return self._adopt
            lets_go_first = self.plan.polite and look.others(self.session)
            allowed = allowed and not lets_go_first and (look.pair is None or look.pair.session is None)
        return self._barge if allowed else None

    async def _take_if_free(self) -> Handle:
        """Take the lock if it is free and nobody is to be let go first. Raises AcquireTimeout."""
        handle: Handle | None = None
        if await self._may_take_at_once():
            handle = await self._barge(queues=not self._without_queue)
        if handle is None:
            raise self._timeout()
        return handle

    async def _may_take_at_once(self) -> bool:
        must_queue = self.plan.fair or self.plan.polite or self.key in self.client.queue_memory.crowded
        if self._without_queue or not (must_queue or self._needs_look):
            return True
        look = await self._first_look(must_queue=must_queue)
        if look.pair is not None and look.pair.session not in {None, self.session}:
            self._block("held", session=look.pair.session)
            return False
        if look.others(self.session) and must_queue:
            self._block("queued", session=look.live[0].session, position=len(look.live) + 1)
            return False
        return True

    async def _barge(self, *, queues: bool = True) -> Handle | None:
        lock = self._lock_op(self.key)
        check = (TxnOp.check_not_exists(self._own),) if queues else ()
        queue = (TxnOp.get_tree(self.queue),) if queues else ()
        try:
            result = await self._ask(*check, lock, *queue, *self.plan.reads, retry=Retry.IDEMPOTENT)
        except TxnFailed as error:
            if check and _denied_at(error, 0):
                self._may_not_queue()
                return await self._barge(queues=False)
            self._refused(error)
            return None
        self._note_read(result)
        if queue and result.entries[2]:
            self._note_waiters(self._read(result.entries[1:3]))
        return await self._granted(result.entries[len(check)])

    # -- the queue

    async def _join(self) -> Look | None:
        """Queue at the end, or keep the place, and return what the queue looks like.

        None without permission for it.
        """
        try:
            join = self._lock_op(self._own), *self._while_queueing()
            own_pairs, *rest = await self._with_reads(*join, retry=Retry.IDEMPOTENT)
        except TxnFailed as error:
            if _denied_at(error, 0):
                self._may_not_queue()
            else:
                self._refused(error)
            return None
        self.contender = own_pairs[0]
        look = self._read(rest)
        if look.position(self.session) is None:
            # Written, but not to be read: to take that for being the head would make everybody the head.
            self._may_not_queue()
            await self._withdraw(self.limit)
            return None
        self._note_waiters(look)
        return look

    def _while_queueing(self) -> tuple[TxnOp, ...]:
        """Return checks that must hold for it to queue."""
        return ()

    def _note_waiters(self, look: Look) -> None:
        """Remember whether the next attempt has somebody to queue behind."""
        self.client.queue_memory.saw_waiters(
            self.key, waiting=bool(self.holders) or look.others(self.session)
        )

    @property
    def _needs_look(self) -> bool:
        """Whether the key or its queue is to be looked at before a barge."""
        known = self.key in self.client.holds.fences
        return self.plan.polite or self._seen is not None or not known

    async def _first_look(self, *, must_queue: bool = False) -> Look:
        """Read the key, and its queue only where that says what to do: it may be long."""
        look, self._seen = self._seen, None
        if look is not None:
            return look
        if must_queue or self.plan.fair or self.plan.polite:
            return await self._look()
        try:
            pair = (await send_once(self.io, kv.get(self.key), deadline=self.limit)).value
        except PermissionDenied:
            pair = None  # the barge says what is needed: more than to read
        return self._read([() if pair is None else (pair,)])

    async def _look(self) -> Look:
        """Read the key and its queue as they are at one moment."""
        return self._read(await self._with_reads())

    async def _look_behind(self, own: KVPair) -> Look | None:
        """Read the key and our contender; None unless these tell that we are the head."""
        before, self._gone = self._gone, None
        if before is None:
            return None
        try:
            found = await self._ask(TxnOp.get(own.key), TxnOp.get(self.key))
        except TxnFailed:  # one of them is absent
            return None
        look = waitqueue.read(self.key, (pair for pairs in found for pair in pairs))
        return self._read(found) if is_head(look, own, before) else None

    async def _with_reads(self, *ops: TxnOp, retry: Retry | None = None) -> list[tuple[KVPair, ...]]:
        """Apply operations and read the key and its queue, as one; the key may be absent."""
        tree = TxnOp.get_tree(self.queue)
        try:
            return list(await self._ask(*ops, TxnOp.get(self.key), tree, retry=retry))
        except TxnFailed as error:
            if {failure.kind for failure in error.failures} != {"missing"}:
                raise
            return list(await self._ask(*ops, tree, retry=retry))

    def _read(self, results: Iterable[tuple[KVPair, ...]]) -> Look:
        look = waitqueue.read(self.key, (pair for pairs in results for pair in pairs))
        self._holder(look.pair)
        for pair in look.dead:
            self.client.reaper.add(RemoveKey(pair.key, pair.modify_index))
        return look

    def _follow_up(self, look: Look) -> Awaitable[Handle | None]:
        """Return what is next. That may be a long wait, and keeps of the look only what it needs."""
        verdict = judge(look, self.session)
        if isinstance(verdict, Adopt):
            return self._adopt()
        if isinstance(verdict, waitqueue.Rejoin):
            return self._start_over()
        self.contender = verdict.own
        if isinstance(verdict, Follow):
            ahead = verdict.predecessor
            self._block("queued", session=ahead.session, position=verdict.position + 1)
            return self._watch_before(ahead)
        return self._lead(verdict.held)

    async def _start_over(self) -> None:
        """Join again at the next move: our contender has gone, or can't be seen."""
        self._missed, self.contender = self.contender, None

    async def _watch_before(self, ahead: KVPair) -> None:
        """Wait until the contender right before ours changes, and take note of how it has ended."""
        seen = await self._watch(ahead.key, ahead.modify_index, to_the_end=self.takes_in_turn)
        if self.takes_in_turn and seen is not None and seen.value is None:
            self._gone = Gone(waitqueue.session_of(ahead), seen.index)

    async def _lead(self, held: KVPair | None) -> Handle | None:
        """As the head, watch the key until it is free, and take it then."""
        if await self._wait_until_free(held, position=1):
            return await self._take()
        return None

    async def _wait_until_free(self, held: KVPair | None, *, position: int | None = None) -> bool:
        """Watch the key while somebody else holds it; False when the session ended or the deadline came."""
        while held is not None:
            self._block("held", session=held.session, position=position)
            seen = await self._watch(self.key, held.modify_index, first=True)
            if seen is None:
                return False
            held = self._holder(seen.value)
        return True

    def _holder(self, pair: KVPair | None) -> KVPair | None:
        """Return the key if somebody else holds it, and take note of who does."""
        self.holders = ()
        if pair is None:
            return None
        self.plan.check_flags(pair)
        if pair.session is None or pair.session == self.session:
            return None
        self.holders = (Holder(pair.session, value=pair.value, fence=pair.modify_index),)
        return pair

    async def _take(self) -> Handle | None:
        contender, kept = self.contender, self.kept
        if contender is None or kept is None or kept.lease.ended_by is not None:
            return None  # it may have waited for long
        ops = (*self._taking(contender), *self.plan.reads)
        try:
            result = await self._ask(*ops)
        except TxnFailed as error:
            self._refused(error)
            return None
        self._note_read(result)
        return await self._granted(result.entries[ops.index(self._lock_op(self.key))])

    def _note_read(self, result: TxnResult) -> None:
        self.read = result.entries[-1] if self.plan.reads else ()

    def _taking(self, contender: KVPair) -> tuple[TxnOp, ...]:
        return self.plan.taking(self.session, self.value, index=contender.modify_index)

    async def _adopt(self) -> Handle | None:
        """Make a hold of what a lost reply had granted."""
        check, delete = TxnOp.check_session(self.key, self.session), TxnOp.delete(self._own)
        try:
            result = await self._ask(check, delete, *self.plan.reads)
        except TxnFailed as error:
            self._refused(error)
            return None
        self._note_read(result)
        return await self._granted(result.entries[0])

    # -- without a queue

    @property
    def _without_queue(self) -> bool:
        return self.client.queue_memory.closed.get(self.key, -math.inf) > self.io.now()

    def _may_not_queue(self) -> None:
        self.client.queue_memory.may_not_queue(self.key, self.io.now())

    async def _move_without_queue(self) -> Handle | None:
        # Have removed what this client may not see any more: whoever came after it waits behind that. At
        # whatever index: it was perhaps named heir meanwhile.
        if self.contender is not None or self._missed is not None:
            self.client.reaper.add(RemoveKey(self._own))
            self.contender = self._missed = None
        held = self._holder(await self._read_refused(self.key))
        if held is not None:
            if not await self._wait_until_free(held):
                return None
            await self.io.sleep(self.io.random() * SPREAD)
        return await self._barge(queues=False)

    # -- asking

    @property
    def _own(self) -> str:
        """The key of our contender."""
        return self.queue + self.session

    def _lock_op(self, key: str) -> TxnOp:
        return TxnOp.lock(key, self.session, value=self.value, flags=self.plan.flags)

    def _unanswered(self) -> None:
        self.unanswered.add(self.session)

    def _refused(self, error: TxnFailed) -> None:
        """Take note of why the key could not be taken. Raises what can't be waited out."""
        if self.kept is None:
            return
        kind = blocked_by(self.client.sessions, self.kept, self.key, error)
        if kind is None and self.once:
            kind = "queued"  # behind what an earlier call of ours has left in the queue
        if kind is not None:
            self._block(kind, cause=error if kind == "unreachable" else None)

    async def _granted(self, pairs: Sequence[KVPair]) -> Handle | None:
        """Register the hold; None when what was granted can't be one: then it is given back."""
        kept, fences = self.kept, self.client.holds.fences
        self.contender = None
        if kept is None:
            return None
        stale, locked = False, list[Locked]()
        for pair in pairs:
            # The same index as before: the server still has that hold, whose unlock was never applied.
            # Different ones: a late request of an earlier attempt has locked some of the keys.
            stale |= pair.modify_index == fences.get(pair.key) or pair.modify_index != pairs[0].modify_index
            locked.append(Locked(pair.key, pair.modify_index, self.value, remove=self.plan.remove))
        is_valid = kept.lease.is_valid(self.io.now())  # asked first: it ends after it was handed over
        if kept.id in self.client.sessions.handed_over:
            return None  # another client may have the keys by it
        if stale or not is_valid:
            self.unanswered.add(kept.id)
            for one in locked:
                await unlock(self.io, one, session=kept.id, flags=self.plan.flags, deadline=self.limit)
            if self.keys.note is not None:
                self.client.reaper.add(RemoveKey(self.keys.note, pairs[0].modify_index))
            return None
        others = tuple(locked[1:])
        self.kind = MultiLockKind(self.keys, others) if others else LockKind(self.keys)
        for pair in pairs:
            before = fences.get(pair.key, 0)
            if pair.modify_index < before:
                # The servers' indices started afresh (a restored snapshot, a rebuilt cluster): so do fences.
                self.io.emit(FencesRestarted(pair.key, before, pair.modify_index))
            fences.remember(pair.key, pair.modify_index)
        if self.unanswered:
            self._sweep_unanswered()
        handle = self.client.holds.grant(
            pairs[0],
            kept=kept,
            value=self.value,
            flags=self.plan.flags,
            kind=self.kind,
            keeps=self.source,
            began=self.began,
        )
        self.client.holds.register.remove(self.keys)
        self.asked = False
        return handle

    # -- giving up

    async def _withdraw(self, deadline: float) -> bool:
        """Remove the contender, then unlock the key should we have it.

        The key may be another client's already where the session was handed over, and is left alone then.
        """
        if not self.asked:
            return True
        if self.session in self.client.sessions.handed_over:
            self._leave_queue()
            return True
        try:
            await withdraw(
                self.io,
                key=self.key,
                session=self.session,
                flags=self.plan.flags,
                contender=self._own,
                deadline=deadline,
                remove=self.keys.remove,
                note=self.keys.note,
            )
        except ConsulCoordError:
            return False
        self.contender = None
        self.asked = False
        return True

    def _leave_queue(self) -> None:
        """Have our contender removed, but not that of a client that goes on with the session."""
        own = self.contender
        if own is not None:
            self.client.reaper.add(RemoveKey(own.key, own.modify_index))
        elif not self._without_queue:
            self.client.reaper.add(RemoveNote(self._own, self.value))  # it may have been written

    def _settle(self) -> None:
        self._sweep_unanswered()
        self.keys.leave()
        self.client.holds.register.remove(self.keys)

    def _abandon(self) -> None:
        self._sweep_unanswered()
        self.keys.give_back(self.session)
        self.client.holds.register.remove(self.keys)

    def _sweep_unanswered(self) -> None:
        for session in sorted(self.unanswered):
            self.keys.sweep_later(session)
        self.unanswered.clear()


def _denied_at(error: TxnFailed, op_index: int) -> bool:
    return any(failure.kind == "denied" and failure.op_index == op_index for failure in error.failures)
