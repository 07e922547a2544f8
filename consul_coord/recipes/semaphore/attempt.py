"""One attempt to get a semaphore's slot: take at once, or queue and wait for the turn; and giving up.

Rules, each with what happens without it
- Each attempt has a session of its own, and its contender is made once. When the contender has gone, the
  attempt starts over with another session: the record may still name this one, so a join would make a holder
  of it, while another client that saw the contender missing gives the slot away.
- Joining and listing are one transaction; repeated, it keeps the place.
- A list counts only with the contender that this join made. Any other is read again from a leader that is
  sure of being it: an old one may show the hold before.
- A take names the index of its contender: that of a session which ended, or gave up, takes nothing. It writes
  the contender, too, which wakes the one behind.
- A take, or the list it was judged by, without an answer is followed by a list, never by itself.
- A limit other than ours is a conflict when it is seen at the join, and a resize when it changes afterwards.
- Giving up deletes the contender if every request was answered, else destroys the session: late requests are
  refused then, and nothing needs to be looked for later.
- With checks in its session a holder may lose its slot before it can know. So a slot whose holder vanished is
  left alone for the grace that all clients of the semaphore agreed on.
- *Taking at once*: if the record has not changed since this client left it, with a slot free and nobody
  waiting, then nobody has come or gone: one transaction takes the slot, without a place in the queue. It
  fails on the record's index if anything happened. Each record is tried once, so that each waiter is passed
  once in all. Without an answer the session is destroyed: the late take would come true for a client that
  waits behind others, for whom it would be waited in ticket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from consul_coord.errors import (
    ConsulCoordError,
    PermissionDenied,
    RequestTimeout,
    SemaphoreLimitConflict,
    TxnFailed,
)
from consul_coord.http.backoff import delay
from consul_coord.http.blocking import Pace
from consul_coord.http.endpoints import kv, txn
from consul_coord.http.failures import outcome_unknown, retryable
from consul_coord.http.retry import send_once, wait_once
from consul_coord.models import ReadOptions, TxnOp
from consul_coord.recipes.cleanup.reaper import RemoveContender
from consul_coord.recipes.contend.obstructed import Obstructed
from consul_coord.recipes.contend.refusals import blocked_by, timed_out
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.contend.timeouts import deadline_of
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.semaphore.kind import PermitKind
from consul_coord.recipes.semaphore.slots import Follow, Front, Gone, Held

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.http.messages import Call
    from consul_coord.io import IO
    from consul_coord.models import KVPair, TxnResult
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.semaphore.semaphore import SemaphoreObject
    from consul_coord.recipes.semaphore.slots import Listing, Record, Take, Verdict
    from consul_coord.recipes.session.pool import PooledSession

T = TypeVar("T")

WAIT = 30.0
"""Seconds that one blocking query lasts at most: below the idle limits of usual load balancers."""
FIRST_PAUSE = 0.1
"""Seconds to the second try after a failure; grows to LONGEST_PAUSE."""
LONGEST_PAUSE = 1.0
GIVE_UP_BUDGET = 0.08
"""Seconds that giving up may take before the reaper takes over: a cancelled call ends within 100 ms."""
WATCH_PACE = Pace(interval=0.01, burst=20)
"""How fast watches may follow each other: enough for a front that is woken by every newcomer."""
_CONSISTENT = ReadOptions(consistency="consistent")


class PermitAttempt(Obstructed):
    """One call of ``acquire``."""

    def __init__(
        self, io: IO, core: ClientState, semaphore: SemaphoreObject, *, timeout: float | None
    ) -> None:
        self.io = io
        self.core = core
        self.semaphore = semaphore
        self.plan = semaphore.plan
        self.memory = semaphore.memory(core)
        self.once = timeout == 0
        self.deadline = io.now() + core.timeout if self.once else deadline_of(io, timeout)
        self.session: PooledSession | None = None
        self.own: KVPair | None = None
        """Our contender as last seen; None when the present session has not joined."""
        self.born = 0
        """CreateIndex of our contender, as the join made it."""
        self.limit: int | None = None
        """The limit in force; None before the first list."""
        self.upcoming: Listing | None = None
        """What a watch has brought, to be judged next."""
        self.dead_since: dict[str, float] = {}
        self._pace = WATCH_PACE

    # -- the whole attempt

    async def run(self) -> Grant:
        """Get a slot, or raise why not, leaving nothing behind."""
        hold = None
        self.semaphore.attempts[self] = None
        try:
            hold = await self._contend()
            return hold
        finally:
            # Also after a KeyboardInterrupt or a cancellation, wherever it struck.
            self.semaphore.attempts.pop(self, None)
            if hold is None:
                await self._give_up()

    async def _contend(self) -> Grant:
        """Make one move after the other until a slot is ours, or the deadline comes."""
        failures = 0
        while True:
            self.cause = None
            hold = await self._move_or_note()
            if hold is not None:
                return hold
            failures = failures + 1 if self._is_stuck() else 0
            if self.io.now() >= self.deadline or (self.once and failures):
                raise self._timeout()
            if failures:
                pause = delay(failures, self.io.random(), first=FIRST_PAUSE, most=LONGEST_PAUSE)
                await self.io.sleep(min(pause, max(0.0, self.deadline - self.io.now())))

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

    def _is_stuck(self) -> bool:
        """Return whether the last move failed, rather than showing somebody in the way."""
        return self.cause is not None

    async def _move(self) -> Grant | None:
        """Do what is next; None when it did not bring a slot."""
        await self._need_session()
        if self.own is None:
            hold = await self._take_at_once()
            if hold is not None:
                return hold
            listing = await self._join()
        else:
            listing, self.upcoming = self.upcoming or await self._list(), None
        return None if listing is None else await self._follow_up(listing)

    async def _need_session(self) -> None:
        session = self.session
        if session is not None and session.kept.lease.is_valid(self.io.now()):
            return
        self._drop_session()
        self.session = await self.memory.sessions.get(self.io, deadline=self._limit())

    def _drop_session(self) -> None:
        """Let go of the present session for good; its end removes whatever it has left."""
        session, self.session = self.session, None
        self.own = self.upcoming = None
        if session is not None:
            self.core.discard_session(session.kept)

    @property
    def session_id(self) -> str:
        """The id of the present session; empty when there is none."""
        return "" if self.session is None else self.session.id

    @property
    def _own_key(self) -> str:
        return slots.contender_key(self.plan.prefix, self.session_id)

    def _limit(self) -> float:
        return min(self.deadline, self.io.now() + self.core.timeout)

    # -- listing

    async def _join(self) -> Listing | None:
        """Queue at the end, or keep the place, and return what the semaphore looks like."""
        prefix = slots.directory(self.plan.prefix)
        try:
            result = await self._ask(self._lock_own(slots.waiting(self.plan.value)), TxnOp.get_tree(prefix))
        except TxnFailed as error:
            self._refused(error)
            return None
        own = result[0][0]
        self.own, self.born = own, own.create_index
        listing = self._read(result[1], index=own.modify_index)
        if self.session_id not in listing.live:
            needed = (f'key:read on the prefix "{prefix}"',)
            message = f"the semaphore {self.plan.prefix!r} can't be read: the token needs {needed[0]}"
            raise PermissionDenied(message, needed=needed, method="PUT", path="/v1/txn", status=200)
        return listing

    async def _list(self, options: ReadOptions | None = None) -> Listing:
        call = kv.list_pairs(slots.directory(self.plan.prefix), options=options)
        result = await send_once(self.io, call, deadline=self._limit())
        return self._read(result.value, index=result.index)

    def _read(self, pairs: Iterable[KVPair], *, index: int) -> Listing:
        """Sort a list, and take note of what it tells besides: limit, leftovers, resting sessions, dead."""
        plan, limit = self.plan, self.semaphore.limit
        listing = slots.read(plan.prefix, pairs, limit=limit, flags=plan.flags, index=index)
        record = listing.record
        self.semaphore.check_flags(record)
        if self.limit is None and record.limit != limit:
            message = (
                f"the semaphore {plan.prefix!r} has the limit {record.limit}, not {limit}: "
                f"give that one, or change it for all with resize({limit})"
            )
            raise SemaphoreLimitConflict(message, key=plan.prefix, local=limit, remote=record.limit)
        self.limit = record.limit
        self.memory.sessions.saw(record)
        for pair in listing.leftovers:
            self.core.reaper.add(RemoveContender(pair.key, pair.modify_index))
        return self._spare_the_dead(listing)

    def _spare_the_dead(self, listing: Listing) -> Listing:
        now = self.io.now()
        self.dead_since = {one: self.dead_since.get(one, now) for one in listing.dead}
        return listing.sparing(
            [one for one, since in self.dead_since.items() if now < self._spared_until(since)]
        )

    def _spared_until(self, since: float) -> float:
        return since + (self.plan.grace or 0.0)

    # -- acting

    async def _follow_up(self, listing: Listing) -> Grant | None:
        verdict = self._judge(listing)
        if isinstance(verdict, Gone):
            verdict = self._judge(await self._list(_CONSISTENT))
        if isinstance(verdict, Gone):
            self._drop_session()
            return None
        self.own = verdict.own
        if isinstance(verdict, Front):
            await self._wait_at_the_front(listing)
            return None
        if isinstance(verdict, Follow):
            await self._wait_behind(verdict)
            return None
        if isinstance(verdict, Held):
            return self._granted(listing.record, verdict.own, alone=False)
        return await self._take(verdict, alone=not listing.wanted(but_by=self.session_id))

    def _judge(self, listing: Listing) -> Verdict:
        return slots.judge(listing, self.session_id, born=self.born)

    async def _wait_at_the_front(self, listing: Listing) -> None:
        self._block("held", session=next(iter(listing.held), None), position=0)
        options = ReadOptions(index=max(listing.index, 1), wait=WAIT)
        call = kv.list_pairs(slots.directory(self.plan.prefix), options=options)
        over = (self._spared_until(self.dead_since[one]) for one in listing.spared)
        found = await self._watch(call, deadline=min([self.deadline, *over]))
        if found is not None:
            self.upcoming = self._read(found.value, index=found.index)

    async def _wait_behind(self, verdict: Follow) -> None:
        ahead = verdict.predecessor
        self._block("queued", session=slots.session_of(ahead), position=verdict.position)
        options = ReadOptions(index=ahead.modify_index, wait=WAIT)
        await self._watch(kv.get(ahead.key, options=options), deadline=self.deadline)

    async def _watch(self, call: Call[T], *, deadline: float) -> T | None:
        """Wait for a change; None when the session ended or the deadline came, or only one try is wanted."""
        if self.once:
            raise self._timeout()
        self._pace, pause = self._pace.take(self.io.now(), self.io.random())
        if pause:
            await self.io.sleep(pause)
        until = None if self.session is None else self.session.kept.over
        return await wait_once(self.io, call, until=until, deadline=deadline)

    async def _take(self, verdict: Take, *, alone: bool) -> Grant | None:
        own = verdict.own
        try:
            result = await self._ask(
                TxnOp.check_index(own.key, own.modify_index), *self._take_ops(verdict.record)
            )
        except TxnFailed as error:
            self._refused(error)
            return None
        return self._granted(verdict.record, result[2][0], alone=alone)

    async def _take_at_once(self) -> Grant | None:
        """Take without queueing where nothing has happened since this client left; None to queue."""
        left = None if self.plan.fair or self.session is None else self.memory.recall()
        if left is None or self.limit is not None or left.limit != self.semaphore.limit:
            return None
        record = left.with_holders((*left.holders, self.session_id))
        try:
            result = await self._ask(*self._take_ops(record))
        except TxnFailed as error:
            self.memory.quick_take.failed()
            self._refused(error)
            await self._need_session()
            return None
        except BaseException:
            self._drop_session()
            raise
        self.memory.quick_take.succeeded()
        return self._granted(record, result[1][0], alone=True)

    def _take_ops(self, record: Record) -> tuple[TxnOp, TxnOp]:
        key = slots.record_key(self.plan.prefix)
        return (
            TxnOp.cas(key, record.encode(), record.index, flags=record.flags),
            self._lock_own(slots.holding(self.plan.value)),
        )

    def _granted(self, record: Record, own: KVPair, *, alone: bool) -> Grant | None:
        """Register the permit; None when its session can't be relied on any more."""
        session = self.session
        if session is None or not session.kept.lease.is_valid(self.io.now()):
            self._drop_session()
            return None
        taken = record.at(own.modify_index)
        self.memory.sessions.saw(taken)
        self.memory.sessions.prepare()
        return self.core.grant(
            own,
            kept=session.kept,
            value=slots.holding(self.plan.value),
            flags=self.plan.flags,
            ticket=Ticket(own.key, self.io.owner()),
            kind=PermitKind(self.memory, session, taken, alone=alone),
        )

    # -- asking

    def _lock_own(self, value: bytes) -> TxnOp:
        return TxnOp.lock(self._own_key, self.session_id, value=value, flags=self.plan.flags)

    async def _ask(self, *ops: TxnOp) -> TxnResult:
        """Send one transaction, taking note when it gets no answer."""
        try:
            return await send_once(self.io, txn.txn(*ops), deadline=self._limit())
        except TxnFailed:
            raise
        except BaseException as error:
            if self.session is not None and outcome_unknown(error):
                self.session.settled = False
            raise

    def _refused(self, error: TxnFailed) -> None:
        """Take note of why a slot could not be taken. Raises what can't be waited out."""
        if self.session is None:
            return
        if blocked_by(self.core, self.session.kept, self._own_key, error) is None:
            self._block("held")  # by whoever was faster
        else:
            self._drop_session()
            self._block("unreachable", cause=error)

    @property
    def wanted(self) -> str:
        """What is wanted, as the user named it."""
        return self.plan.prefix

    def _timeout(self) -> ConsulCoordError:
        return timed_out(self.plan.prefix, self.session_id, self.blocker, self.cause)

    # -- giving up

    async def _give_up(self) -> None:
        """Leave nothing behind: at once if that can be done, else by the reaper."""
        session, self.session = self.session, None
        if session is None:
            return
        gone = False
        try:
            if session.settled:
                async with self.io.shield(GIVE_UP_BUDGET) as deadline:
                    gone = await self._leave_queue(deadline)
        finally:
            if gone:
                self.memory.sessions.put_back(session)
            else:
                self.core.discard_session(session.kept)

    async def _leave_queue(self, deadline: float) -> bool:
        """Delete the contender as it was last seen; returns whether it is surely gone."""
        own = self.own
        if own is None:
            return True
        try:
            await send_once(self.io, txn.txn(TxnOp.delete_cas(own.key, own.modify_index)), deadline=deadline)
        except ConsulCoordError:
            return False
        return True
