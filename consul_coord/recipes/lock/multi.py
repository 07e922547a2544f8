"""Taking several keys at once: all in one transaction, or none.

Rules
- One transaction locks all keys for one session: at no moment are some held and others waited for, so takers
  that name the same keys in different order can't block each other. The fence is the index of that
  transaction, the same for all keys.
- In this client nobody waits for one key's ticket while having another's, for the same reason: who finds one
  busy gives up the others, waits for that, and goes on from there.
- Who is refused watches the key that was in the way, and tries again when it is free. There is no queue and
  no promise of order: a taker of many keys may be passed by takers of one.
- A try without an answer may have locked everything, or will: each key's ticket goes to the reaper, who finds
  out, and who looks at the keys again for a while.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, InvalidArgument, TxnFailed
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import kv, txn
from consul_coord.http.failures import outcome_unknown, retryable
from consul_coord.http.messages import Retry
from consul_coord.http.retry import send_once, wait_once
from consul_coord.models import ReadOptions, TxnOp
from consul_coord.recipes.cleanup.reaper import SWEEPS, Sweep, Withdraw
from consul_coord.recipes.cleanup.unlock import unlock
from consul_coord.recipes.contend.obstructed import Obstructed
from consul_coord.recipes.contend.refusals import blocked_by, timed_out
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.contend.timeouts import deadline_of
from consul_coord.recipes.lock.attempt import FIRST_PAUSE, LONGEST_PAUSE, SPREAD
from consul_coord.recipes.lock.multi_kind import Member, MultiLockKind
from consul_coord.recipes.watch.keys import WAIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.errors import AcquireTimeout
    from consul_coord.io import IO
    from consul_coord.models import KVPair
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.lock.lock import LockObject
    from consul_coord.recipes.session.keeping import KeptSession

MOST_KEYS = 32
"""A release checks and unlocks every key in one transaction, of 64 operations at most."""


def checked_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys in their order of locking. Raises InvalidArgument."""
    if isinstance(keys, str) or not 1 <= len(set(keys)) <= MOST_KEYS:
        message = f"keys must be a sequence of 1 to {MOST_KEYS} different keys, not {keys!r}"
        raise InvalidArgument(message)
    return tuple(sorted(set(keys)))


class MultiLockAttempt(Obstructed):
    """One call of ``acquire`` of a MultiLock."""

    def __init__(self, io: IO, core: ClientState, lock: LockObject, *, timeout: float | None) -> None:
        self.io = io
        self.core = core
        self.lock = lock
        self.plan = lock.plan
        self.keys = lock.plan.keys
        self.owner = io.owner()
        self.once = timeout == 0
        self.deadline = deadline_of(io, timeout)
        self.session = ""
        self._blocking_key = self.keys[0]
        self._blocking_index = 0
        self._tickets: tuple[Ticket, ...] = ()
        self._unanswered: set[str] = set()
        """Sessions for which a try has got no answer."""

    async def run(self) -> Grant:
        """Lock all keys, or raise why not, leaving nothing behind."""
        try:
            return await self._contend()
        finally:
            for session in self._unanswered:
                for key in self.keys:
                    self.core.reaper.add(Sweep(key, session, self.plan.flags), after=SWEEPS[0])

    async def _contend(self) -> Grant:
        failures: Counter[str] = Counter()
        if self.once:
            self.deadline = self.io.now() + self.core.timeout
        while True:
            hold = await self._cycle()
            if hold is not None:
                return hold
            kind = self.blocker.kind
            if self.once:
                raise self._timeout()
            if kind == "held":
                failures.clear()
                await self._wait_for_key()
            else:
                failures[kind] += 1
                pause = delay(failures[kind], self.io.random(), first=FIRST_PAUSE, most=LONGEST_PAUSE)
                await self.io.sleep(min(pause, max(0.0, self.deadline - self.io.now())))
            if self.io.now() >= self.deadline:
                raise self._timeout()

    async def _cycle(self) -> Grant | None:
        """Get all tickets, try once and, without success, give the tickets up."""
        hold = None
        unanswered = False
        try:
            await self._get_tickets()
            hold = await self._try()
        except TxnFailed:
            raise
        except ConsulCoordError as error:
            unanswered = outcome_unknown(error)
            if not retryable(error):
                raise
            self._block("unreachable", cause=error)
        except BaseException:
            unanswered = bool(self.session)
            raise
        finally:
            if unanswered and self.session:
                self._unanswered.add(self.session)
            if hold is None:
                self._give_up_tickets(to_reaper=unanswered)
        return hold

    async def _get_tickets(self) -> None:
        """Get the ticket at every key, waiting only for one while having none."""
        busy: str | None = None
        while True:
            if busy is not None:
                await self._wait_for_turn(busy)
            had = {ticket.key for ticket in self._tickets}
            tickets = {key: Ticket(key, self.owner) for key in self.keys if key not in had}
            tickets.update((ticket.key, ticket) for ticket in self._tickets)
            self._tickets = tuple(tickets[key] for key in self.keys)
            busy = next((key for key in self.keys if key not in had and self._is_busy(tickets[key])), None)
            if busy is None:
                return
            self._give_up_tickets(to_reaper=False)

    def _is_busy(self, ticket: Ticket) -> bool:
        return not self.core.queues.join_if_idle(ticket)

    async def _wait_for_turn(self, key: str) -> None:
        """Get the ticket at one key, and keep it.

        Who gave it up again, to begin anew, might meet himself for ever.
        """
        ticket = Ticket(key, self.owner)
        self._tickets = (ticket,)
        self.core.queues.join(ticket)
        if ticket.ready.is_set():
            return
        self._block("queued", position=self.core.queues.position(ticket))
        if self.once or not await self.io.wait(ticket.ready, deadline=self.deadline):
            raise self._timeout()

    def _give_up_tickets(self, *, to_reaper: bool) -> None:
        for ticket in self._tickets:
            if to_reaper and ticket.ready.is_set():
                self.core.reaper.add(Withdraw(ticket.key, self.session, self.plan.flags, ticket))
            else:
                self.core.queues.leave(ticket)
        self._tickets = ()

    async def _try(self) -> Grant | None:
        limit = min(self.deadline, self.io.now() + self.core.timeout)
        kept = await self.lock.source(self.core).live(self.io, deadline=limit)
        self.session = kept.id
        if not await self._are_locks(limit):
            return None
        ops = (TxnOp.lock(key, kept.id, value=self.plan.value, flags=self.plan.flags) for key in self.keys)
        try:
            result = await send_once(self.io, txn.txn(*ops, retry=Retry.IDEMPOTENT), deadline=limit)
        except TxnFailed as error:
            await self._refused(kept, error, limit)
            return None
        return await self._granted(kept, [pairs[0] for pairs in result], limit)

    async def _are_locks(self, limit: float) -> bool:
        """Look at the keys that this client has not held yet; returns whether none of them is in the way."""
        for key in self.keys:
            if self.core.last_fence(key) is None and not await self._is_free(key, limit):
                return False
        return True

    async def _is_free(self, key: str, limit: float) -> bool:
        pair = (await send_once(self.io, kv.get(key), deadline=limit)).value
        if pair is not None:
            self.lock.check_flags(pair)
            if pair.session not in {None, self.session}:
                self._blocking_key, self._blocking_index = key, pair.modify_index
                self._block("held", session=pair.session)
                return False
        return True

    async def _refused(self, kept: KeptSession, error: TxnFailed, limit: float) -> None:
        number = error.failures[0].op_index
        key = self.keys[number] if number < len(self.keys) else self.keys[0]
        kind = blocked_by(self.core, kept, key, error)
        self._blocking_key, self._blocking_index = key, 0
        if kind == "held":
            self._block("held")
            await self._is_free(key, limit)
        elif kind is not None:
            self._block(kind, cause=error if kind == "unreachable" else None)

    async def _granted(self, kept: KeptSession, pairs: list[KVPair], limit: float) -> Grant | None:
        """Register the hold; None when what was granted can't be one: an unlock before was never applied."""
        stale = [pair for pair in pairs if pair.modify_index == self.core.last_fence(pair.key)]
        if stale or not kept.lease.is_valid(self.io.now()):
            for pair in pairs:
                await unlock(
                    self.io,
                    key=pair.key,
                    session=kept.id,
                    index=pair.modify_index,
                    value=self.plan.value,
                    flags=self.plan.flags,
                    deadline=limit,
                )
            return None
        members = tuple(
            Member(pair.key, pair.modify_index, self.plan.value, ticket)
            for pair, ticket in zip(pairs[1:], self._tickets[1:], strict=True)
        )
        for pair in pairs:
            self.core.remember_fence(pair.key, pair.modify_index)
        return self.core.grant(
            pairs[0],
            kept=kept,
            value=self.plan.value,
            flags=self.plan.flags,
            ticket=self._tickets[0],
            kind=MultiLockKind(members),
            source=self.lock.source(self.core),
        )

    async def _wait_for_key(self) -> None:
        """Return when the key that was in the way may be free, or at the deadline."""
        if self._blocking_index:
            call = kv.get(self._blocking_key, options=ReadOptions(index=self._blocking_index, wait=WAIT))
            try:
                await wait_once(self.io, call, deadline=self.deadline)
            except ConsulCoordError as error:
                if not retryable(error):
                    raise
                self._block("unreachable", cause=error)
        await self.io.sleep(self.io.random() * SPREAD)

    @property
    def wanted(self) -> str:
        """What is wanted, as the user named it."""
        return self._blocking_key

    def _timeout(self) -> AcquireTimeout:
        return timed_out(self._blocking_key, self.session, self.blocker, self.cause)
