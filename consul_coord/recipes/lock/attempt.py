"""One attempt to take a lock: barge, or queue and wait for the turn; and giving up without leaving anything.

Rules, each with what happens without it
- A newcomer may take a free key past the queue (*barge*), unless the lock is fair, or this client's last
  release saw others wait: else a loop that releases and takes again would starve them. The barge is bound to
  having no contender: a late copy of it would else take the key for a client that by then sits in the middle
  of the queue, behind a head that waits for the key.
- Joining and reading the queue are one transaction; repeated, it keeps the place.
- A take names the index of the very contender it is made for: a late copy would else take the key for nobody,
  or out of turn. A take without an answer is followed by a look, never by itself: the copy would fail on the
  contender although the key is ours.
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

from collections import Counter
from typing import TYPE_CHECKING

from consul_coord.errors import (
    AcquireTimeout,
    ConsulCoordError,
    RequestTimeout,
    TxnFailed,
)
from consul_coord.events import FencesRestarted
from consul_coord.http.backoff import delay
from consul_coord.http.blocking import Pace
from consul_coord.http.endpoints import kv, txn
from consul_coord.http.failures import outcome_unknown, retryable
from consul_coord.http.messages import Retry
from consul_coord.http.retry import send_once
from consul_coord.models import TxnOp
from consul_coord.recipes.cleanup.reaper import SWEEPS, RemoveContender, Sweep, Withdraw
from consul_coord.recipes.cleanup.unlock import unlock, withdraw
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.obstructed import Obstructed
from consul_coord.recipes.contend.queue import Adopt, Follow, Rejoin
from consul_coord.recipes.contend.refusals import blocked_by, timed_out
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.contend.timeouts import deadline_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.io import IO
    from consul_coord.models import KVPair, Result, TxnResult
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.lock.lock import LockObject
    from consul_coord.recipes.session.keeping import KeptSession

SPREAD = 0.02
"""Without a queue, waiters take a key that became free after a random part of this many seconds."""
FIRST_PAUSE = 0.1
"""Seconds to the second try in a lock-delay or after a failure; grows to LONGEST_PAUSE."""
LONGEST_PAUSE = 1.0
GIVE_UP_BUDGET = 0.08
"""Seconds that giving up may take before the reaper takes over: a cancelled call ends within 100 ms."""
WATCH_PACE = Pace(interval=0.01, burst=20)
"""How fast watches may follow each other: enough for a head that is passed by newcomers again and again."""


class Attempt(Obstructed):
    """One call of ``acquire``."""

    def __init__(self, io: IO, core: ClientState, lock: LockObject, *, timeout: float | None) -> None:
        self.io = io
        self.core = core
        self.lock = lock
        self.plan = lock.plan
        self.once = timeout == 0
        self.deadline = deadline_of(io, timeout)
        self.ticket = Ticket(lock.plan.key, io.owner())
        self.kept: KeptSession | None = None
        self.contender: KVPair | None = None
        """Our contender as last seen; None when we do not queue, or do not know."""
        self.joined = False
        """Whether a join was ever sent for the present session."""
        self._missed: KVPair | None = None
        """Our contender, which the last look did not show: gone, or not to be seen without permission."""
        self.may_barge = not lock.plan.fair
        self.unanswered: set[str] = set()
        """Sessions for which a request that could lock something has got no answer."""
        self._pace = WATCH_PACE

    # -- the whole attempt

    async def run(self) -> Grant:
        """Take the lock, or raise why not, leaving nothing behind."""
        hold: Grant | None = None
        try:
            await self._get_ticket()
            hold = await (self._try_once() if self.once else self._contend())
            return hold
        finally:
            # Also after a KeyboardInterrupt or a cancellation, wherever it struck.
            if hold is None:
                await self._give_up()
            for session in self.unanswered:
                self.core.reaper.add(Sweep(self.plan.key, session, self.plan.flags), after=SWEEPS[0])

    async def _get_ticket(self) -> None:
        self.core.queues.join(self.ticket)
        if self.ticket.ready.is_set():
            return
        self._block("queued", position=self.core.queues.position(self.ticket))
        if self.once or not await self.io.wait(self.ticket.ready, deadline=self.deadline):
            raise self._timeout()

    async def _contend(self) -> Grant:
        """Make one move after the other until the lock is ours, or the deadline comes."""
        failures: Counter[str] = Counter()
        while True:
            hold = await self._move_or_note()
            if hold is not None:
                return hold
            kind = self.blocker.kind
            if kind in {"lock_delay", "unreachable"}:
                failures[kind] += 1
                pause = delay(failures[kind], self.io.random(), first=FIRST_PAUSE, most=LONGEST_PAUSE)
                await self.io.sleep(min(pause, max(0.0, self.deadline - self.io.now())))
            else:
                failures.clear()
            if self.io.now() >= self.deadline:
                raise self._timeout()

    async def _move_or_note(self) -> Grant | None:
        """Make a move; a failure to serve is something that stands in the way."""
        try:
            return await self._move()
        except ConsulCoordError as error:
            if not retryable(error):
                raise
            # A request cut short by the caller's own deadline says nothing new.
            if not (isinstance(error, RequestTimeout) and self.io.now() >= self.deadline and self._told):
                self._block("unreachable", cause=error)
            return None

    async def _move(self) -> Grant | None:
        """Do what is next; None when it did not bring the lock."""
        await self._need_session()
        if self.plan.key in self.core.without_queue:
            return await self._move_without_queue()
        if self.contender is None:
            hold = await self._barge_if_allowed()
            if hold is not None:
                return hold
            look = await self._join()
            if look is None:
                return None
        else:
            look = await self._look()
        return await self._follow_up(look)

    async def _try_once(self) -> Grant:
        """Take the lock if it is free and nobody is to be let go first."""
        self.deadline = self.io.now() + self.core.timeout
        try:
            await self._need_session()
            hold = await self._barge_once()
        except ConsulCoordError as error:
            if not retryable(error):
                raise
            self._block("unreachable", cause=error)
            hold = None
        if hold is None:
            raise self._timeout()
        return hold

    # -- session

    async def _need_session(self) -> None:
        kept = await self.lock.source(self.core).live(self.io, deadline=self._limit())
        if self.kept is not kept:
            self.kept = kept
            self.ticket.session = kept.id
            self.contender = self._missed = None
            self.joined = False

    @property
    def session(self) -> str:
        """The id of the present session; empty before there was one."""
        return "" if self.kept is None else self.kept.id

    def _limit(self) -> float:
        return min(self.deadline, self.io.now() + self.core.timeout)

    # -- past the queue

    async def _barge_if_allowed(self) -> Grant | None:
        allowed, self.may_barge = self.may_barge and self.plan.key not in self.core.polite, False
        if self.core.last_fence(self.plan.key) is None:
            # Never held by this client, or long ago: what else might the key be?
            look = await self._look()
            if waitqueue.judge(look, self.session) == Adopt():
                return await self._adopt()
            allowed = allowed and (look.pair is None or look.pair.session is None)
        return await self._barge() if allowed else None

    async def _barge_once(self) -> Grant | None:
        if self.plan.key in self.core.without_queue:
            return await self._barge()
        if self.plan.fair or self.plan.key in self.core.polite or self.core.last_fence(self.plan.key) is None:
            look = await self._look()
            if waitqueue.judge(look, self.session) == Adopt():
                return await self._adopt()
            if look.pair is not None and look.pair.session is not None:
                self._block("held", session=look.pair.session)
                return None
            if look.others(self.session) and (self.plan.fair or self.plan.key in self.core.polite):
                self._block("queued", session=look.live[0].session, position=len(look.live))
                return None
        return await self._barge()

    async def _barge(self) -> Grant | None:
        own = waitqueue.contender_key(self.plan.key, self.session)
        check = () if self.plan.key in self.core.without_queue else (TxnOp.check_not_exists(own),)
        try:
            result = await self._ask(*check, self._lock_op(self.plan.key), retry=Retry.IDEMPOTENT)
        except TxnFailed as error:
            if check and self._denied_at(error, 0):
                self.core.without_queue.add(self.plan.key)
                return await self._barge()
            self._refused(error)
            return None
        return await self._granted(result[len(check)][0])

    # -- the queue

    async def _join(self) -> Look | None:
        """Queue at the end, or keep the place, and return what the queue looks like.

        None without permission for it.
        """
        key, directory = self.plan.key, waitqueue.directory(self.plan.key)
        own = self._lock_op(waitqueue.contender_key(key, self.session))
        reads = (TxnOp.get(key), TxnOp.get_tree(directory))
        self.joined = True
        try:
            try:
                result = await self._ask(own, *reads, retry=Retry.IDEMPOTENT)
            except TxnFailed as error:
                if {failure.kind for failure in error.failures} != {"missing"}:
                    raise
                result = await self._ask(own, *reads[1:], retry=Retry.IDEMPOTENT)
        except TxnFailed as error:
            if self._denied_at(error, 0):
                self.core.without_queue.add(key)
                return None
            self._refused(error)
            return None
        self.contender = result[0][0]
        look = self._read(pair for pairs in list(result)[1:] for pair in pairs)
        if look.position(self.session) is None:
            # Written, but not to be read: to take that for being the head would make everybody the head.
            self.core.without_queue.add(key)
            await self._withdraw(self._limit())
            return None
        return look

    async def _look(self) -> Look:
        """Read the key and its queue as they are at one moment."""
        key, directory = self.plan.key, waitqueue.directory(self.plan.key)
        try:
            result = await self._ask(TxnOp.get(key), TxnOp.get_tree(directory))
        except TxnFailed as error:
            if error.failures[0].kind != "missing":
                raise
            result = await self._ask(TxnOp.get_tree(directory))
        return self._read(pair for pairs in result for pair in pairs)

    def _read(self, pairs: Iterable[KVPair]) -> Look:
        look = waitqueue.read(self.plan.key, pairs)
        if look.pair is not None:
            self.lock.check_flags(look.pair)
        for pair in look.dead:
            self.core.reaper.add(RemoveContender(pair.key, pair.modify_index))
        return look

    async def _follow_up(self, look: Look) -> Grant | None:
        verdict = waitqueue.judge(look, self.session)
        if isinstance(verdict, Adopt):
            return await self._adopt()
        if isinstance(verdict, Rejoin):
            self._missed, self.contender = self.contender, None
            return None
        self.contender = verdict.own
        if isinstance(verdict, Follow):
            ahead = verdict.predecessor
            self._block("queued", session=ahead.session, position=verdict.position)
            await self._watch_out(ahead)
            return None
        return await self._lead(verdict.held)

    async def _lead(self, held: KVPair | None) -> Grant | None:
        """As the head, watch the key until it is free, and take it then."""
        while held is not None:
            self._block("held", session=held.session, position=0)
            seen = await self._watch(self.plan.key, held.modify_index)
            if seen is None:
                return None
            held = self._holder(seen.value)
        return await self._take()

    def _holder(self, pair: KVPair | None) -> KVPair | None:
        """Return the key if somebody else holds it."""
        if pair is None:
            return None
        self.lock.check_flags(pair)
        return pair if pair.session is not None and pair.session != self.session else None

    async def _take(self) -> Grant | None:
        contender = self.contender
        if contender is None:
            return None
        ops = (
            TxnOp.check_index(contender.key, contender.modify_index),
            self._lock_op(self.plan.key),
            TxnOp.delete(contender.key),
        )
        try:
            result = await self._ask(*ops)
        except TxnFailed as error:
            self._refused(error)
            return None
        self.contender = None
        self.joined = False
        return await self._granted(result[1][0])

    async def _adopt(self) -> Grant | None:
        """Make a hold of what a lost reply had granted."""
        own = waitqueue.contender_key(self.plan.key, self.session)
        try:
            result = await self._ask(TxnOp.check_session(self.plan.key, self.session), TxnOp.delete(own))
        except TxnFailed:
            return None
        self.contender = None
        self.joined = False
        return await self._granted(result[0][0])

    # -- without a queue

    def _leave_queue(self) -> None:
        """Have removed what this client may not see any more: whoever came after it waits behind that.

        At whatever index: it was perhaps named heir meanwhile, and this client never queues here again.
        """
        own = waitqueue.contender_key(self.plan.key, self.session)
        if self.contender is not None or self._missed is not None:
            self.core.reaper.add(RemoveContender(own))
        self.contender = self._missed = None

    async def _move_without_queue(self) -> Grant | None:
        self._leave_queue()
        seen = await send_once(self.io, kv.get(self.plan.key), deadline=self._limit())
        held = self._holder(seen.value)
        while held is not None:
            self._block("held", session=held.session)
            changed = await self._watch(self.plan.key, held.modify_index)
            if changed is None:
                return None
            held = self._holder(changed.value)
            if held is None:
                await self.io.sleep(self.io.random() * SPREAD)
        return await self._barge()

    # -- asking

    def _lock_op(self, key: str) -> TxnOp:
        return TxnOp.lock(key, self.session, value=self.plan.value, flags=self.plan.flags)

    async def _ask(self, *ops: TxnOp, retry: Retry | None = None) -> TxnResult:
        """Send one transaction, taking note when one that locks gets no answer."""
        locks = any(op.verb == "lock" for op in ops)
        try:
            return await send_once(self.io, txn.txn(*ops, retry=retry), deadline=self._limit())
        except TxnFailed:
            raise
        except BaseException as error:
            if locks and outcome_unknown(error):
                self.unanswered.add(self.session)
            raise

    async def _watch_out(self, ahead: KVPair) -> None:
        """Wait until the one ahead has changed, the session ended, or the deadline came.

        A blocking query that ends without a change is no reason to read the queue.
        """
        seen = await self._watch(ahead.key, ahead.modify_index)
        while seen is not None and seen.value == ahead:
            seen = await self._watch(ahead.key, ahead.modify_index)

    async def _watch(self, key: str, index: int) -> Result[KVPair | None] | None:
        """Wait for a change; None when the session ended or the deadline came."""
        self._pace, pause = self._pace.take(self.io.now(), self.io.random())
        if pause:
            await self.io.sleep(pause)
        until = None if self.kept is None else self.kept.over
        return await self.core.waits.change(self.io, key, index, until=until, deadline=self.deadline)

    async def _granted(self, pair: KVPair) -> Grant | None:
        """Register the hold; None when what was granted can't be one."""
        kept, plan, last = self.kept, self.plan, self.core.last_fence(self.plan.key)
        if kept is None:
            return None
        if pair.modify_index == last or not kept.lease.is_valid(self.io.now()):
            self.unanswered.add(kept.id)
            await unlock(
                self.io,
                key=plan.key,
                session=kept.id,
                index=pair.modify_index,
                value=plan.value,
                flags=plan.flags,
                deadline=self._limit(),
            )
            return None
        if last is not None and pair.modify_index < last:
            # The servers' indices started anew (a restored snapshot, a rebuilt cluster): so do the fences.
            self.io.emit(FencesRestarted(plan.key, last, pair.modify_index))
        self.core.remember_fence(plan.key, pair.modify_index)
        return self.core.grant(
            pair,
            kept=kept,
            value=plan.value,
            flags=plan.flags,
            ticket=self.ticket,
            source=self.lock.source(self.core),
        )

    # -- refusals

    @staticmethod
    def _denied_at(error: TxnFailed, op_index: int) -> bool:
        return any(failure.kind == "denied" and failure.op_index == op_index for failure in error.failures)

    def _refused(self, error: TxnFailed) -> None:
        """Take note of why the key could not be taken. Raises what can't be waited out."""
        if self.kept is None:
            return
        kind = blocked_by(self.core, self.kept, self.plan.key, error)
        if kind is not None:
            self._block(kind, cause=error if kind == "unreachable" else None)

    @property
    def wanted(self) -> str:
        """What is wanted, as the user named it."""
        return self.plan.key

    def _timeout(self) -> AcquireTimeout:
        return timed_out(self.plan.key, self.session, self.blocker, self.cause)

    # -- giving up

    async def _give_up(self) -> None:
        """Leave nothing behind.

        At once if that can be done, else by the reaper, who then has the key's ticket.
        """
        settled = not self.joined and self.session not in self.unanswered
        try:
            if not settled and self.ticket.ready.is_set():
                async with self.io.shield(GIVE_UP_BUDGET) as deadline:
                    settled = await self._withdraw(deadline)
        finally:
            if settled or not self.ticket.ready.is_set():
                self.core.queues.leave(self.ticket)
            else:
                self.core.reaper.add(Withdraw(self.plan.key, self.session, self.plan.flags, self.ticket))

    async def _withdraw(self, deadline: float) -> bool:
        """Remove the contender, then unlock the key should we have it.

        Returns whether the server answered.
        """
        plan = self.plan
        try:
            await withdraw(self.io, key=plan.key, session=self.session, flags=plan.flags, deadline=deadline)
        except ConsulCoordError:
            return False
        self.contender = None
        self.joined = False
        return True
