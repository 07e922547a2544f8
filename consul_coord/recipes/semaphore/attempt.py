"""One attempt to get a semaphore's slot: take at once, or queue and wait for the turn; and giving up.

Rules, each with what happens without it
- Each attempt has a session of its own, and its contender is made once. When the contender has gone, the
  attempt starts over with another session. The record may still name this one, so a join would make a holder
  of it, while another client that saw the contender missing gives the slot away.
- Joining and listing are one transaction; repeated, it keeps the place.
- A list counts only with the contender that this join made. Any other is read again from a leader that is
  sure of being it: an old one may show the hold before.
- A take names the index of its contender: that of a session which ended, or gave up, takes nothing. It writes
  the contender, too, which wakes the one behind.
- A take, or the list it was judged by, without an answer is followed by a list, never by itself.
- A limit other than ours is a conflict when it is seen at the join, and a resize when it changes afterwards.
  Ours is that of the user's object at that moment, or the one that its own resize is bringing about.
- Giving up deletes the contender, and destroys the session unless every request was answered: late requests
  are refused then, and nothing needs to be looked for later.
- A take that Consul refuses because of a dead holder's lock-delay is judged again at once, with the refused
  ids counted as holders. The reply names all of them, so the next take, if there is one, names none. The
  front then watches the prefix for a pause only, and tries the refused again: the end of a lock-delay is not
  an event. With the pause alone, without the watch, it would sleep while other slots get free.
- An attempt for several slots queues with the first of its sessions. Its take enters all of them, and locks a
  contender for each, or nothing. So it never holds a part, and two such attempts can't wait for each other.
  When any of the sessions has ended, it starts over with others. It lets go of a part that it finds in the
  record, which a take without an answer has brought.
- *Taking at once*: suppose that the record has not changed since this client left it, with a slot free and
  nobody waiting. Then nobody has come or gone, and one transaction takes the slot, without a place in the
  queue. It fails on the record's index if anything happened. Each record is tried once, so that each waiter
  is passed once in all. Without an answer the session is destroyed: the late take would come true for a
  client that waits behind others, and these would wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import PermissionDenied, SemaphoreLimitConflict, TxnFailed
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import send_once
from consul_coord.models import Holder, ReadOptions, TxnOp
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.cleanup.tasks import RemoveKey
from consul_coord.recipes.contend.attempt import FIRST_PAUSE, LONGEST_PAUSE
from consul_coord.recipes.contend.pooled import PooledAttempt
from consul_coord.recipes.contend.queue import session_of
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.semaphore.kind import PermitKind
from consul_coord.recipes.semaphore.slots import Follow, Front, Gone, Held, Prune, TooSmall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from consul_coord.io import IO
    from consul_coord.models import KVPair, TxnResult
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Handle
    from consul_coord.recipes.semaphore.kind import Memory
    from consul_coord.recipes.semaphore.plan import SemaphorePlan
    from consul_coord.recipes.semaphore.slots import Listing, Record, Take, Verdict
    from consul_coord.recipes.session.keeping import KeptSession
    from consul_coord.recipes.session.pool import PooledSession


class PermitAttempt(PooledAttempt):
    """One call of ``acquire``."""

    __slots__ = (
        "_limit_seen",
        "_limits",
        "_options",
        "_pause_over",
        "_pauses",
        "born",
        "memory",
        "permits",
        "plan",
        "refused",
        "upcoming",
        "value",
    )

    def __init__(
        self,
        io: IO,
        client: Shared,
        plan: SemaphorePlan,
        memory: Memory,
        *,
        limits: Callable[[], tuple[int, int]],
        timeout: float | None,
        permits: int,
    ) -> None:
        super().__init__(io, client, plan.prefix, memory.sessions, timeout=timeout, places=permits)
        self.permits = permits
        self.plan = plan
        self.value = client.name if plan.value is None else plan.value
        self.memory = memory
        self.born = 0
        """CreateIndex of our contender, as the join made it."""
        self._limits = limits
        """Returns the limit of the user's object, and the one that a resize of it is bringing about."""
        self._limit_seen: int | None = None
        """The limit in force; None before the first list."""
        self.upcoming: Listing | None = None
        """The listing that a watch has brought, to be judged next."""
        self.refused: frozenset[str] = frozenset()
        """Dead holders whose lock-delay was in force when they were tried; forgotten after a pause."""
        self._options: ReadOptions | None = None
        """How the next listing is to be read."""
        self._pauses = 0
        """How many pauses there were since the first refusal."""
        self._pause_over = 0.0

    async def _move(self) -> Handle | None:
        """Do what is next; None when it did not bring a slot."""
        await self._need_session()
        if self.own is None:
            hold = await self._take_at_once()
            if hold is not None:
                return hold
            await self._need_session()  # another one, if that has ended
            listing = await self._join()
        else:
            listing, self.upcoming = self.upcoming or await self._list(self._options), None
            self._options = None
        return None if listing is None else await self._follow_up(listing)

    def _drop_session(self) -> None:
        self.upcoming = None
        super()._drop_session()

    def contender_of(self, session: str) -> str:
        """Return the key of a session's contender."""
        return self.memory.directory + session

    # -- listing

    async def _join(self) -> Listing | None:
        """Queue at the end, or keep the place, and return what the semaphore looks like."""
        prefix = self.memory.directory
        try:
            wait = self._lock(self.session, slots.waiting(self.value, permits=self.permits))
            result = await self._ask(wait, TxnOp.get_tree(prefix))
        except TxnFailed as error:
            self._refused(error)
            return None
        own = result[0][0]
        self.own, self.born = own, own.create_index
        listing = self._read(result[1], index=own.modify_index)
        if self.session not in listing.live:
            needed = (f'key:read on the prefix "{prefix}"',)
            message = f"the semaphore {self.plan.prefix!r} can't be read: the token needs {needed[0]}"
            raise PermissionDenied(message, needed=needed, method="PUT", path="/v1/txn", status=200)
        return listing

    async def _list(self, options: ReadOptions | None = None) -> Listing:
        call = kv.list_pairs(self.memory.directory, options=options)
        result = await send_once(self.io, call, deadline=self.limit)
        return self._read(result.value, index=result.index)

    def _read(self, pairs: Iterable[KVPair], *, index: int) -> Listing:
        """Sort a list, and take note of what it tells besides: limit, leftovers, resting sessions."""
        plan, (limit, coming) = self.plan, self._limits()
        listing = slots.read(plan.prefix, pairs, limit=limit, flags=plan.flags, index=index)
        record = listing.record
        plan.check_flags(record)
        if self._limit_seen is None and record.limit not in {limit, coming}:
            use = f"use {record.limit}, or " if record.limit > 0 else ""
            message = (
                f"the semaphore {plan.prefix!r} has the limit {record.limit}, not {limit}: "
                f"{use}change it for all clients with resize({limit}) or `consul-coord resize`"
            )
            raise SemaphoreLimitConflict(message, key=plan.prefix, local=limit, remote=record.limit)
        self._limit_seen = record.limit
        self.holders = tuple(
            Holder(one, value=slots.value_of(pair), fence=pair.modify_index)
            for one in listing.held
            if (pair := listing.live.get(one)) is not None
        )
        self.pool.saw(record.index, record.holders)
        for pair in listing.leftovers:
            self.client.reaper.add(RemoveKey(pair.key, pair.modify_index))
        return listing

    # -- acting

    async def _follow_up(self, listing: Listing) -> Handle | None:
        in_pause = self.io.now() < self._pause_over
        self.refused = self.refused.intersection(listing.dead) if in_pause else frozenset()
        verdict = self._judge(listing)
        if isinstance(verdict, Gone):
            listing = await self._list(CONSISTENT)
            verdict = self._judge(listing)
        if isinstance(verdict, Gone):
            self._drop_session()
            return None
        if isinstance(verdict, TooSmall):
            raise self._too_small(verdict.limit)
        self.own = verdict.own
        if isinstance(verdict, Front):
            await self._wait_at_the_front(listing)
            return None
        if isinstance(verdict, Follow):
            await self._wait_behind(verdict)
            return None
        if isinstance(verdict, Held):
            contenders = tuple(listing.live[pooled.id] for pooled in self.mine)
            return self._granted(listing.record, contenders, alone=False)
        return await self._write(verdict, listing)

    def _judge(self, listing: Listing) -> Verdict:
        others = [pooled.id for pooled in self.mine[1:]]
        return slots.judge(listing, self.session, born=self.born, refused=self.refused, others=others)

    def _too_small(self, limit: int) -> SemaphoreLimitConflict:
        message = (
            f"the limit of the semaphore {self.plan.prefix!r} is {limit} by now, and this call wants "
            f"permits={self.permits}. Raise the limit with resize({self.permits}), or ask for fewer"
        )
        return SemaphoreLimitConflict(message, key=self.plan.prefix, local=self._limits()[0], remote=limit)

    async def _wait_at_the_front(self, listing: Listing) -> None:
        if self.refused:
            self._block("lock_delay", session=min(self.refused), position=1)
            self._must_pause = False  # the watch is the pause
        else:
            self._block("held", session=next(iter(listing.held), None), position=1)
        await self._before_a_watch()
        found = await self.client.watches.change_below(
            self.io,
            self.memory.directory,
            listing.index,
            until=None if self.kept is None else self.kept.over,
            deadline=min(self._watch_until, self._pause_over) if self.refused else self._watch_until,
        )
        if found is not None:
            self.upcoming = self._read(found.value, index=found.index)
        elif self.refused:
            self.upcoming = listing  # nothing has changed

    async def _wait_behind(self, verdict: Follow) -> None:
        ahead = verdict.predecessor
        self._pause_over, self._pauses = 0.0, 0
        self._block("queued", session=session_of(ahead), position=verdict.position + 1)
        await self._watch(ahead.key, ahead.modify_index)

    async def _write(self, verdict: Take | Prune, listing: Listing) -> Handle | None:
        """Write the record as judged; None when it was refused, or took no slot."""
        own, record = verdict.own, verdict.record
        removal = slots.removal(self.plan.prefix, verdict.removed, by=self.session)
        check = TxnOp.check_index(own.key, own.modify_index)
        write = (self._write_record(record),) if isinstance(verdict, Prune) else self._take_ops(record)
        try:
            result = await self._ask(*removal, check, *write)
        except TxnFailed as error:
            self._refused(error, removing=len(removal), listing=listing)
            self._options = CONSISTENT  # an old leader would show the same again
            return None
        if isinstance(verdict, Prune):
            return None
        alone = not listing.wanted(but_by=self.session)
        return self._granted(record, self._locked_by(result), alone=alone)

    async def _take_at_once(self) -> Handle | None:
        """Take without queueing where nothing has happened since this client left; None to queue."""
        left = None if self.plan.fair or not self.session else self.memory.recall(self.permits)
        if left is None or self._limit_seen is not None or left.limit != self._limits()[0]:
            return None
        record = left.with_holders((*left.holders, *[pooled.id for pooled in self.mine]))
        try:
            result = await self._ask(*self._take_ops(record))
        except TxnFailed as error:
            self.memory.quick_take.failed()
            self._refused(error)
            return None
        except BaseException:
            self._drop_session()
            raise
        self.memory.quick_take.succeeded()
        return self._granted(record, self._locked_by(result), alone=True)

    def _take_ops(self, record: Record) -> tuple[TxnOp, ...]:
        """Return the operations that enter us in the record and lock our contenders, which come last."""
        value = slots.holding(self.value)
        return self._write_record(record), *[self._lock(pooled.id, value) for pooled in self.mine]

    def _locked_by(self, take: TxnResult) -> tuple[KVPair, ...]:
        """Return our contenders, as a take has locked them."""
        return tuple([locked[0] for locked in take.entries[-len(self.mine) :]])

    def _write_record(self, record: Record) -> TxnOp:
        return TxnOp.cas(self.memory.record_key, record.encode(), record.index, flags=record.flags)

    def _granted(self, record: Record, contenders: tuple[KVPair, ...], *, alone: bool) -> Handle | None:
        """Register the permit; None when a session of it can't be relied on any more."""
        if not self.mine or not self._all_valid():
            self._drop_session()
            return None
        own, *further = contenders
        taken = record.at(own.modify_index)
        self.pool.saw(taken.index, taken.holders)
        self.kind = PermitKind(
            self.client, self.memory, tuple(self.mine), taken, further=tuple(further), alone=alone
        )
        first, *others = self.mine
        handle = self.client.holds.grant(
            own,
            kept=first.kept,
            value=slots.holding(self.value),
            flags=self.plan.flags,
            kind=self.kind,
            others=tuple(map(_kept_of, others)),
            began=self.began,
        )
        for pooled in self.mine:
            self.client.holds.register.remove(pooled)
        self.pool.prepare()
        return handle

    # -- asking

    def _lock(self, session: str, value: bytes) -> TxnOp:
        return TxnOp.lock(self.contender_of(session), session, value=value, flags=self.plan.flags)

    def _refused(self, error: TxnFailed, *, removing: int = 0, listing: Listing | None = None) -> None:
        """Take note of why a slot could not be taken. Raises what can't be waited out.

        The first ``removing`` operations were to remove dead holders of ``listing``.
        """
        delayed = {
            failure.op_index: session_of(failure.op)
            for failure in error.failures
            if failure.op_index < removing and failure.op and failure.kind in {"lock_delay", "held"}
        }
        if delayed:
            self._refuse(delayed.values())
        others = tuple(failure for failure in error.failures if failure.op_index not in delayed)
        if delayed and not others:
            # To be judged again without the refused. If it has changed since, the next take is refused for
            # that, or the watch ends at once.
            self.upcoming = listing
        elif not self._blocked(self.memory.directory, TxnFailed(str(error), failures=others)):
            self._block("held")  # by whoever was faster

    def _refuse(self, dead: Iterable[str]) -> None:
        """Count dead holders as holders until a pause is over."""
        if not self.refused:
            self._pauses += 1
            pause = delay(self._pauses, self.io.random(), first=FIRST_PAUSE, most=LONGEST_PAUSE)
            self._pause_over = self.io.now() + pause
        self.refused = self.refused.union(dead)


def _kept_of(pooled: PooledSession) -> KeptSession:
    return pooled.kept
