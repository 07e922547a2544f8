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

from contextlib import suppress
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, ResponseError, TransportError, TxnFailed
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import kv, txn
from consul_coord.http.failures import outcome_unknown, retryable
from consul_coord.http.messages import Retry
from consul_coord.http.retry import send_once, wait_once
from consul_coord.models import ReadOptions, TxnOp
from consul_coord.recipes.cleanup.reaper import RemoveContender
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.obstructed import Obstructed
from consul_coord.recipes.contend.refusals import blocked_by, timed_out
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.contend.timeouts import deadline_of
from consul_coord.recipes.lock.attempt import FIRST_PAUSE, GIVE_UP_BUDGET, LONGEST_PAUSE, WATCH_PACE
from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.recipes.rwlock.kind import RwKind
from consul_coord.recipes.rwlock.queue import Behind, Enter
from consul_coord.recipes.watch.keys import WAIT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.errors import AcquireTimeout
    from consul_coord.io import IO
    from consul_coord.models import KVPair, TxnResult
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.rwlock.lock import RwSide
    from consul_coord.recipes.session.pool import PooledSession


class RwAttempt(Obstructed):
    """One call of ``acquire`` of one side."""

    def __init__(self, io: IO, core: ClientState, side: RwSide, *, timeout: float | None) -> None:
        self.io = io
        self.core = core
        self.side = side
        self.plan = side.plan
        self.sessions = side.sessions(core)
        self.once = timeout == 0
        self.deadline = io.now() + core.timeout if self.once else deadline_of(io, timeout)
        self.session: PooledSession | None = None
        self.own: KVPair | None = None
        """Our contender as last seen; None when the present session has not joined."""
        self._pace = WATCH_PACE

    async def run(self) -> Grant:
        """Get in, or raise why not, leaving nothing behind."""
        self.side.refuse_owner_of_a_hold(self.io.owner())
        hold = None
        try:
            hold = await self._contend()
            return hold
        finally:
            # Also after a KeyboardInterrupt or a cancellation, wherever it struck.
            if hold is None:
                await self._give_up()

    async def _contend(self) -> Grant:
        failures = 0
        while True:
            hold = await self._move_or_note()
            if hold is not None:
                return hold
            failures = failures + 1 if self.blocker.kind == "unreachable" else 0
            if self.once or self.io.now() >= self.deadline:
                raise self._timeout()
            if failures:
                pause = delay(failures, self.io.random(), first=FIRST_PAUSE, most=LONGEST_PAUSE)
                await self.io.sleep(min(pause, max(0.0, self.deadline - self.io.now())))

    async def _move_or_note(self) -> Grant | None:
        """Make a move; a failure to serve is something that stands in the way."""
        try:
            return await self._move()
        except TxnFailed as error:
            self._refused(error)
        except ConsulCoordError as error:
            if not retryable(error):
                raise
            if self.session is not None and not self.session.settled:
                self._drop_session()
            self._block("unreachable", cause=error)
        return None

    async def _move(self) -> Grant | None:
        session = await self._need_session()
        look = await (self._join(session) if self.own is None else self._look())
        verdict = rwqueue.judge(look, session.id, self.side.mode)
        if isinstance(verdict, Enter):
            return self._granted(session, verdict.own)
        if isinstance(verdict, Behind):
            self.own = verdict.own
            self._block("queued", session=verdict.blocker.session, position=verdict.position)
            if not self.once:
                await self._watch(session, verdict.blocker)
        else:
            self._drop_session()  # an operator has removed our contender: queue anew, as somebody new
        return None

    async def _need_session(self) -> PooledSession:
        session = self.session
        if session is None or session.kept.lease.ended_by is not None:
            self._drop_session()
            limit = min(self.deadline, self.io.now() + self.core.timeout)
            session = self.session = await self.sessions.get(self.io, deadline=limit)
        return session

    def _drop_session(self) -> None:
        session, self.session, self.own = self.session, None, None
        if session is not None:
            self.core.discard_session(session.kept)

    async def _join(self, session: PooledSession) -> Look:
        base = self.plan.key
        value = rwqueue.marked(self.side.mode, self.plan.value)
        own = TxnOp.lock(
            waitqueue.contender_key(base, session.id), session.id, value=value, flags=self.plan.flags
        )
        result = await self._ask(own, TxnOp.get_tree(waitqueue.directory(base)))
        return self._read(result[1])

    async def _look(self) -> Look:
        return self._read((await self._ask(TxnOp.get_tree(waitqueue.directory(self.plan.key))))[0])

    def _read(self, pairs: Iterable[KVPair]) -> Look:
        look = waitqueue.read(self.plan.key, pairs)
        for pair in look.dead:
            self.core.reaper.add(RemoveContender(pair.key, pair.modify_index))
        return look

    async def _watch(self, session: PooledSession, blocker: KVPair) -> None:
        self._pace, pause = self._pace.take(self.io.now(), self.io.random())
        if pause:
            await self.io.sleep(pause)
        call = kv.get(blocker.key, options=ReadOptions(index=blocker.modify_index, wait=WAIT))
        await wait_once(self.io, call, until=session.kept.over, deadline=self.deadline)

    async def _ask(self, *ops: TxnOp) -> TxnResult:
        """Send one transaction, taking note when one that locks gets no answer."""
        limit = min(self.deadline, self.io.now() + self.core.timeout)
        locks = any(op.verb == "lock" for op in ops)
        retry = Retry.IDEMPOTENT if locks else None
        try:
            return await send_once(self.io, txn.txn(*ops, retry=retry), deadline=limit)
        except TxnFailed:
            raise
        except BaseException as error:
            refused = isinstance(error, TransportError | ResponseError) and not outcome_unknown(error)
            if locks and self.session is not None and not refused:
                self.session.settled = False
            raise

    def _refused(self, error: TxnFailed) -> None:
        if (
            self.session is not None
            and blocked_by(self.core, self.session.kept, self.plan.key, error) is not None
        ):
            self._drop_session()
            self._block("unreachable", cause=error)

    def _granted(self, session: PooledSession, own: KVPair) -> Grant | None:
        if not session.kept.lease.is_valid(self.io.now()):
            self._drop_session()
            return None
        self.sessions.prepare()
        hold = self.core.grant(
            own,
            kept=session.kept,
            value=own.value,
            flags=self.plan.flags,
            ticket=Ticket(own.key, self.io.owner()),
            kind=RwKind(self.sessions, session, self.side.mode),
        )
        hold.fence = own.create_index
        return hold

    @property
    def wanted(self) -> str:
        """What is wanted, as the user named it."""
        return self.side.name

    def _timeout(self) -> AcquireTimeout:
        session = "" if self.session is None else self.session.id
        return timed_out(self.side.name, session, self.blocker, self.cause)

    async def _give_up(self) -> None:
        """Leave nothing behind: at once if that can be done, else by the reaper."""
        session, own = self.session, self.own
        if session is None:
            return
        gone = False
        try:
            if session.settled and own is not None:
                async with self.io.shield(GIVE_UP_BUDGET) as deadline:
                    with suppress(ConsulCoordError):
                        remove = txn.txn(TxnOp.delete_cas(own.key, own.modify_index))
                        await send_once(self.io, remove, deadline=deadline)
                        gone = True
        finally:
            if gone:
                self.sessions.put_back(session)
            else:
                self.core.discard_session(session.kept)
