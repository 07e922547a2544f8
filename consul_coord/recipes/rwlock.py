"""A lock for one writer or many readers: getting in, and giving it back.

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
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from consul_coord.errors import (
    AlreadyHeld,
    ConsulCoordError,
    InvalidArgument,
    ResponseError,
    TransportError,
    TxnFailed,
)
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import kv, txn
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.failures import outcome_unknown, retryable
from consul_coord.http.messages import Retry
from consul_coord.http.retry import perform, send_once, wait_once
from consul_coord.models import (
    Contender,
    Holder,
    LossReason,
    ReadOptions,
    ReleaseOutcome,
    SessionSpec,
    TxnOp,
)
from consul_coord.recipes import rwqueue, waitqueue
from consul_coord.recipes.contend import FIRST_PAUSE, GIVE_UP_BUDGET, LONGEST_PAUSE, WAIT, WATCH_PACE
from consul_coord.recipes.local_queue import Turn
from consul_coord.recipes.lock import LockCore
from consul_coord.recipes.locked_key import watch_of
from consul_coord.recipes.obstructed import Obstructed
from consul_coord.recipes.reaper import RemoveContender
from consul_coord.recipes.refusals import blocked_by, timed_out
from consul_coord.recipes.rwqueue import Behind, Enter
from consul_coord.recipes.slot_sessions import SlotSessions
from consul_coord.recipes.tenure import Ending, KeyWatch
from consul_coord.recipes.timeouts import deadline_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.errors import AcquireTimeout
    from consul_coord.io import IO
    from consul_coord.models import KVPair, TxnResult
    from consul_coord.recipes.coordinator import Coordinator
    from consul_coord.recipes.hold import HoldCore
    from consul_coord.recipes.lock import LockPlan
    from consul_coord.recipes.rwqueue import Mode
    from consul_coord.recipes.slot_sessions import SlotSession
    from consul_coord.recipes.waitqueue import Look

_CONSISTENT = ReadOptions(consistency="consistent")


class SideCore(LockCore):
    """The read or the write side of one lock object.

    Both share their sessions, and know of each other's holds.
    """

    other: SideCore

    def __init__(self, plan: LockPlan, mode: Mode) -> None:
        super().__init__(plan)
        self.mode: Mode = mode
        self.name = rwqueue.key_of(plan.key)
        """The key as the user gave it."""
        self._sessions: tuple[Coordinator, SlotSessions] | None = None

    def attempt(self, io: IO, core: Coordinator, *, timeout: float | None) -> RwAttempt:
        """Return one call of ``acquire``."""
        return RwAttempt(io, core, self, timeout=timeout)

    def sessions(self, core: Coordinator) -> SlotSessions:
        """Return where the sessions come from: the same for as long as the client's coordinator is."""
        if self._sessions is None or self._sessions[0] is not core:
            spec = self.plan.session if isinstance(self.plan.session, SessionSpec) else SessionSpec()
            self._sessions = (core, SlotSessions(core, replace(spec, behavior="delete")))
            self.other._sessions = self._sessions  # noqa: SLF001 - one object in two halves
        return self._sessions[1]

    def refuse_owner_of_a_hold(self, owner: object) -> None:
        """Raise AlreadyHeld when the thread or task is in already.

        It would wait for itself, or let a writer do so.
        """
        for side in (self, self.other):
            hold = side.again(owner)
            if hold is not None and not hold.ended:
                message = (
                    f"this thread or task is in {self.name!r} already, to {side.mode}: release that first"
                )
                raise AlreadyHeld(message, key=self.name, session=hold.session)


def sides(plan: LockPlan) -> tuple[SideCore, SideCore]:
    """Return the read and the write side of one lock object.

    Raises InvalidArgument for a session with checks.
    """
    spec = plan.session
    if isinstance(spec, str) or (spec is not None and (spec.node_checks or spec.service_checks)):
        message = (
            "a ReadWriteLock makes sessions of its own, without checks: these could end one at any moment, "
            "and no lock-delay protects a place in the queue. Give a SessionSpec without checks, or none"
        )
        raise InvalidArgument(message)
    read, write = SideCore(plan, "read"), SideCore(plan, "write")
    read.other, write.other = write, read
    return read, write


class RwAttempt(Obstructed):
    """One call of ``acquire`` of one side."""

    def __init__(self, io: IO, core: Coordinator, side: SideCore, *, timeout: float | None) -> None:
        self.io = io
        self.core = core
        self.side = side
        self.plan = side.plan
        self.sessions = side.sessions(core)
        self.once = timeout == 0
        self.deadline = io.now() + core.timeout if self.once else deadline_of(io, timeout)
        self.session: SlotSession | None = None
        self.own: KVPair | None = None
        """Our contender as last seen; None when the present session has not joined."""
        self._pace = WATCH_PACE

    async def run(self) -> HoldCore:
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

    async def _contend(self) -> HoldCore:
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

    async def _move_or_note(self) -> HoldCore | None:
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

    async def _move(self) -> HoldCore | None:
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

    async def _need_session(self) -> SlotSession:
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

    async def _join(self, session: SlotSession) -> Look:
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

    async def _watch(self, session: SlotSession, blocker: KVPair) -> None:
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

    def _granted(self, session: SlotSession, own: KVPair) -> HoldCore | None:
        if not session.kept.lease.is_valid(self.io.now()):
            self._drop_session()
            return None
        self.sessions.prepare()
        hold = self.core.grant(
            own,
            kept=session.kept,
            value=own.value,
            flags=self.plan.flags,
            turn=Turn(own.key, self.io.owner()),
            tenure=Place(self.sessions, session, self.side.mode),
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


class Place:
    """The tenure of a place in the queue that is in: its contender, held by a session of its own."""

    sole = True

    def __init__(self, sessions: SlotSessions, session: SlotSession, mode: Mode) -> None:
        self._sessions = sessions
        self._session = session
        self._mode: Mode = mode

    def watches(self, hold: HoldCore) -> tuple[KeyWatch, ...]:
        """Return the watch on the contender."""
        return (watch_of(hold),)

    def guard(self, hold: HoldCore) -> tuple[TxnOp, ...]:  # noqa: ARG002 - a Tenure's
        """Return nothing: the place stands and falls with the contender."""
        return ()

    def kept_as(self, value: bytes) -> bytes:
        """Return the value with the mode's mark."""
        return rwqueue.marked(self._mode, value)

    async def give_back(self, io: IO, core: Coordinator, hold: HoldCore, *, deadline: float) -> Ending:
        """Delete the contender; the session is kept for the next attempt."""
        ops = (TxnOp.check_session(hold.key, hold.session), TxnOp.delete_cas(hold.key, hold.last_index))
        try:
            await send_once(io, txn.txn(*ops), deadline=deadline)
        except TxnFailed:
            loss = await self._loss(io, core, hold, deadline)
            if loss is not None:
                core.discard_session(self._session.kept)
                return Ending(ReleaseOutcome.ALREADY_LOST, loss)
            # Somebody has written its value: it ends with its session.
            kept = self._session.kept
            destroy = session_endpoint.destroy(kept.id)
            await perform(io, destroy, deadline=deadline, attempt=core.timeout)
            core.end_session(kept, LossReason.CLIENT_CLOSED)
            return Ending(ReleaseOutcome.RELEASED)
        self._sessions.put_back(self._session)
        return Ending(ReleaseOutcome.RELEASED)

    async def _loss(self, io: IO, core: Coordinator, hold: HoldCore, deadline: float) -> LossReason | None:
        call = kv.get(hold.key, options=_CONSISTENT)
        pair = (await perform(io, call, deadline=deadline, attempt=core.timeout)).value
        return watch_of(hold).loss(pair)

    def abandon(self, core: Coordinator, hold: HoldCore) -> None:  # noqa: ARG002 - a Tenure's
        """Leave the destroying of the session to the reaper: that ends the contender."""
        core.discard_session(self._session.kept)

    lost = abandon


async def holders(io: IO, core: Coordinator, side: SideCore) -> tuple[Holder, ...]:
    """Return who is in, as the leader has it."""
    return tuple(
        Holder(
            waitqueue.session_of(pair),
            value=rwqueue.value_of(pair),
            fence=pair.create_index,
            since_index=pair.modify_index,
        )
        for pair in rwqueue.inside(await _queue(io, core, side))
    )


async def contenders(io: IO, core: Coordinator, side: SideCore) -> tuple[Contender, ...]:
    """Return who waits to get in, the next one first."""
    look = await _queue(io, core, side)
    waiting = look.live[len(rwqueue.inside(look)) :]
    return tuple(
        Contender(
            waitqueue.session_of(pair),
            place,
            value=rwqueue.value_of(pair),
            create_index=pair.create_index,
            modify_index=pair.modify_index,
        )
        for place, pair in enumerate(waiting)
    )


async def break_in(
    io: IO, core: Coordinator, side: SideCore, expected_session: str, *, how: Literal["release", "destroy"]
) -> bool:
    """Put out a session that is in: its place only, or with all it has; False when it is not in."""
    deadline = io.now() + core.timeout
    for pair in rwqueue.inside(await _queue(io, core, side)):
        if pair.session == expected_session:
            call = (
                kv.delete(pair.key, cas=pair.modify_index)
                if how == "release"
                else session_endpoint.destroy(expected_session)
            )
            return await perform(io, call, deadline=deadline, attempt=core.timeout)
    return False


async def is_unused(io: IO, core: Coordinator, side: SideCore) -> bool:
    """Return whether nobody is in and nobody waits: nothing is left on the server then."""
    return not (await _queue(io, core, side)).live


async def _queue(io: IO, core: Coordinator, side: SideCore) -> Look:
    call = kv.list_pairs(waitqueue.directory(side.plan.key), options=_CONSISTENT)
    pairs = (await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)).value
    return waitqueue.read(side.plan.key, pairs)
