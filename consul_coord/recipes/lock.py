"""Taking a lock: one transaction when the key is free, a blocking query on it when it is not.

Rules
- The server alone decides who holds, on the key itself, so Go clients and ``consul lock`` may contend too.
- Taking is idempotent for one's own session, so a try without an answer is simply made again. An attempt that
  ends with such a try open leaves a sweep behind: the try may be applied after everybody has gone.
- The fence is the ModifyIndex of the granting reply: a Raft index, rising over all holds of a key, also if it
  was deleted in between. It must be above the last one this client got for the key; otherwise the server
  still has the hold before, whose unlock was never applied, and that is unlocked first.
- Every write carries the lock's flags, which tell Go clients what the key is; a key that was found with other
  flags is somebody else's, and not touched.
- A refusal by lock-delay changes nothing on the server, and its end is no event: it is tried again after a
  pause, never watched.
- A hiccup of the server is ridden out until the caller's timeout.

Source: https://developer.hashicorp.com/consul/docs/dynamic-app-config/sessions, sections "Lock delay" and
"K/V integration".
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    ConsulCoordError,
    KeyConflict,
    NotHeld,
    PermissionDenied,
    SessionNotFound,
    TxnFailed,
)
from consul_coord.events import Acquired, Waiting
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import kv, txn
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.endpoints._keys import check_key
from consul_coord.http.failures import retryable
from consul_coord.http.messages import Retry
from consul_coord.http.retry import perform, send_once
from consul_coord.models import Blocker, Holder, LossReason, ReadOptions, TxnOp
from consul_coord.recipes import release
from consul_coord.recipes.local_queue import Turn
from consul_coord.recipes.reaper import SWEEPS, Sweep
from consul_coord.recipes.unlock import unlock

if TYPE_CHECKING:
    from consul_coord.io import IO, Interrupt
    from consul_coord.models import KVPair, ReleaseOutcome, SessionSpec
    from consul_coord.recipes.coordinator import Coordinator
    from consul_coord.recipes.hold import HoldCore
    from consul_coord.recipes.session import KeptSession, SessionSource

_CONSISTENT = ReadOptions(consistency="consistent")
WAIT = 30.0
"""Seconds that one blocking query lasts at most: below the idle limits of usual load balancers."""
SPREAD = 0.02
"""Waiters that see the key become free take it after a random part of this many seconds, not all at once."""
MANY_OWNERS = 64
FIRST_PAUSE = 0.1
"""Seconds to the second try in a lock-delay; grows to LONGEST_PAUSE."""
LONGEST_PAUSE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    """What is to be locked, and how."""

    key: str
    value: bytes
    flags: int
    accept_flags: frozenset[int]
    session: SessionSpec | str | None


class LockCore:
    """What one lock object has besides its plan.

    Its sessions, its waiting calls, and its holds by thread or task.
    """

    def __init__(self, plan: LockPlan) -> None:
        check_key(plan.key)
        self.plan = plan
        self._source: tuple[Coordinator, SessionSource] | None = None
        self._waiting: dict[Interrupt, None] = {}
        self._held: dict[object, HoldCore] = {}

    def source(self, core: Coordinator) -> SessionSource:
        """Return where its session comes from: the same for as long as the client's coordinator is."""
        if self._source is None or self._source[0] is not core:
            self._source = (core, core.source(self.plan.session))
        return self._source[1]

    def enter(self, interrupt: Interrupt) -> None:
        """Let ``cancel`` end a call that is about to wait."""
        self._waiting[interrupt] = None

    def leave(self, interrupt: Interrupt) -> None:
        """Forget a call that has ended."""
        self._waiting.pop(interrupt, None)

    def cancel(self) -> None:
        """End the waiting calls with AcquireCancelled."""
        for interrupt in list(self._waiting):
            interrupt.fire(self._cancelled)

    def check_flags(self, pair: KVPair) -> None:
        """Raise KeyConflict when a key that exists is not a lock of ours."""
        if pair.flags != self.plan.flags and pair.flags not in self.plan.accept_flags:
            message = (
                f"{pair.key!r} is not a lock: its flags are {pair.flags:#x}, not {self.plan.flags:#x}. "
                f"Use another key or, if it is meant, accept_flags=({pair.flags:#x},)"
            )
            raise KeyConflict(message, key=pair.key, flags=pair.flags)

    def _cancelled(self) -> AcquireCancelled:
        return AcquireCancelled(f"waiting for {self.plan.key!r} was cancelled", key=self.plan.key)

    def keep(self, owner: object, hold: HoldCore) -> None:
        """Remember a hold as its owner's; those of owners long gone are forgotten by and by."""
        if len(self._held) >= MANY_OWNERS:
            self._held = {owner: hold for owner, hold in list(self._held.items()) if not hold.ended}
        self._held[owner] = hold

    def held_by(self, owner: object) -> HoldCore:
        """Return the owner's latest hold that was not released. Raises NotHeld."""
        hold = self._held.get(owner)
        if hold is None or hold.released:
            message = f"this thread or task does not hold {self.plan.key!r}"
            raise NotHeld(message, key=self.plan.key)
        return hold


@dataclass(frozen=True, slots=True)
class _Blocked:
    """The key could not be taken now. ``index`` is the key's, where it was read."""

    blocker: Blocker
    index: int = 0
    cause: ConsulCoordError | None = None


async def acquire(io: IO, core: Coordinator, lock: LockCore, *, timeout: float | None) -> HoldCore:
    """Take the lock, waiting up to ``timeout`` seconds (None: for ever; 0: one try).

    Raises AlreadyHeld, AcquireTimeout, KeyConflict, and what the server refuses.
    """
    started = io.now()
    attempt = _Attempt(io, core, lock, deadline=math.inf if timeout is None else started + timeout)
    hold = await attempt.run(once=timeout == 0)
    lock.keep(attempt.turn.owner, hold)
    io.emit(Acquired(hold.key, hold.session, hold.fence, io.now() - started))
    return hold


async def try_acquire(io: IO, core: Coordinator, lock: LockCore) -> HoldCore | None:
    """Take the lock if that can be done at once; None when somebody else has it, or a lock-delay is in force.

    Raises what stands in the way of asking.
    """
    try:
        return await acquire(io, core, lock, timeout=0)
    except AcquireTimeout as error:
        if error.blocker.kind == "unreachable" and error.__cause__ is not None:
            raise error.__cause__ from None
        return None


async def release_own(io: IO, core: Coordinator, lock: LockCore) -> ReleaseOutcome:
    """Release what the calling thread or task holds. Raises NotHeld."""
    return await release.release(io, core, lock.held_by(io.owner()))


async def holder(io: IO, core: Coordinator, lock: LockCore) -> Holder | None:
    """Return who holds the key, as the leader has it, or None."""
    call = kv.get(lock.plan.key, options=_CONSISTENT)
    pair = (await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)).value
    if pair is None or pair.session is None:
        return None
    info = session_endpoint.info(pair.session)
    session = (await perform(io, info, deadline=io.now() + core.timeout, attempt=core.timeout)).value
    return Holder(
        pair.session,
        node=None if session is None else session.node,
        value=pair.value,
        fence=pair.modify_index,
        since_index=pair.modify_index,
    )


async def destroy(io: IO, core: Coordinator, lock: LockCore) -> bool:
    """Delete the key if nobody holds it.

    False while it is in use. Raises KeyConflict when it is not a lock.
    """
    call = kv.get(lock.plan.key, options=_CONSISTENT)
    pair = (await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)).value
    if pair is None:
        return True
    lock.check_flags(pair)
    if pair.session is not None:
        return False
    delete = kv.delete(lock.plan.key, cas=pair.modify_index)
    return await perform(io, delete, deadline=io.now() + core.timeout, attempt=core.timeout)


class _Attempt:
    """One call of ``acquire``."""

    def __init__(self, io: IO, core: Coordinator, lock: LockCore, *, deadline: float) -> None:
        self.io = io
        self.core = core
        self.lock = lock
        self.plan = lock.plan
        self.deadline = deadline
        self.turn = Turn(lock.plan.key, io.owner())
        self.session = ""
        """The session of the latest try."""
        self.unanswered: set[str] = set()
        """Sessions for which a try has got no answer yet."""

    async def run(self, *, once: bool) -> HoldCore:
        hold = None
        try:
            self.core.queues.join(self.turn)
            if not self.turn.ready.is_set():
                await self._wait_for_turn()
            hold = await (self._try_once() if once else self._contend())
        finally:
            if hold is None:
                for session in self.unanswered:
                    self.core.reaper.add(Sweep(self.plan.key, session, self.plan.flags), after=SWEEPS[0])
                self.core.queues.leave(self.turn)
        return hold

    async def _wait_for_turn(self) -> None:
        blocker = Blocker("queued", position=self.core.queues.position(self.turn))
        self.io.emit(Waiting(self.plan.key, blocker))
        if not await self.io.wait(self.turn.ready, deadline=self.deadline):
            raise self._timeout(_Blocked(replace(blocker, position=self.core.queues.position(self.turn))))

    async def _try_once(self) -> HoldCore:
        self.deadline = self.io.now() + self.core.timeout
        result = await self._step(wait=False)
        if isinstance(result, _Blocked):
            raise self._timeout(result) from result.cause
        return result

    async def _contend(self) -> HoldCore:
        """Try and wait in turn until the lock is ours, or the deadline comes."""
        failures: Counter[str] = Counter()
        told = ""
        while True:
            result = await self._step(wait=True)
            if not isinstance(result, _Blocked):
                return result
            kind = result.blocker.kind
            if told != kind:
                told = kind
                self.io.emit(Waiting(self.plan.key, result.blocker))
            if kind == "held":
                failures.clear()
            else:
                failures[kind] += 1
                pause = delay(failures[kind], self.io.random(), first=FIRST_PAUSE, most=LONGEST_PAUSE)
                await self.io.sleep(min(pause, max(0.0, self.deadline - self.io.now())))
            if self.io.now() >= self.deadline:
                raise self._timeout(result) from result.cause

    async def _step(self, *, wait: bool) -> HoldCore | _Blocked:
        """Try once and, if somebody else holds it, wait until that may have changed.

        A failure to serve counts as blocked by an unreachable server.
        """
        try:
            result = await self._try()
            if wait and isinstance(result, _Blocked) and result.blocker.kind == "held":
                await self._wait_for_key(result)
        except ConsulCoordError as error:
            if not retryable(error):
                raise
            return _Blocked(Blocker("unreachable"), cause=error)
        return result

    async def _try(self) -> HoldCore | _Blocked:
        limit = min(self.deadline, self.io.now() + self.core.timeout)
        kept = await self.lock.source(self.core).live(self.io, deadline=limit)
        self.session = kept.id
        if self.core.last_fence(self.plan.key) is None:
            blocked = self._judge(await self._look(limit))
            if blocked is not None:
                return blocked
        return await self._take(kept, limit)

    async def _look(self, limit: float) -> KVPair | None:
        return (await send_once(self.io, kv.get(self.plan.key), deadline=limit)).value

    def _judge(self, pair: KVPair | None) -> _Blocked | None:
        """Return what a reading of the key says against taking it now.

        Raises KeyConflict when it is not a lock of ours.
        """
        if pair is None:
            return None
        self.lock.check_flags(pair)
        if pair.session is None or pair.session == self.session:
            return None
        return _Blocked(Blocker("held", pair.session), pair.modify_index)

    async def _take(self, kept: KeptSession, limit: float) -> HoldCore | _Blocked:
        plan = self.plan
        op = TxnOp.lock(plan.key, kept.id, value=plan.value, flags=plan.flags)
        self.unanswered.add(kept.id)
        try:
            result = await send_once(self.io, txn.txn(op, retry=Retry.IDEMPOTENT), deadline=limit)
        except TxnFailed as error:
            self.unanswered.discard(kept.id)
            return await self._refused(error, kept, limit)
        granted = result[0][0]
        last = self.core.last_fence(plan.key)
        if (last is not None and granted.modify_index <= last) or not kept.lease.is_valid(self.io.now()):
            await unlock(
                self.io,
                key=plan.key,
                session=kept.id,
                index=granted.modify_index,
                value=plan.value,
                flags=plan.flags,
                deadline=limit,
            )
            self.unanswered.discard(kept.id)
            return _Blocked(Blocker("unreachable"))
        hold = self.core.grant(granted, kept=kept, value=plan.value, flags=plan.flags, turn=self.turn)
        self.unanswered.discard(kept.id)
        return hold

    async def _refused(self, error: TxnFailed, kept: KeptSession, limit: float) -> _Blocked:
        """Say what a refusal means. Raises what can't be waited out."""
        failure = error.failures[0]
        if failure.kind == "held":
            pair = await self._look(limit)
            # Free again already: index 0 means that there is nothing to wait for.
            return self._judge(pair) or _Blocked(Blocker("held"), 0)
        if failure.kind == "lock_delay":
            return _Blocked(Blocker("lock_delay"))
        if failure.kind == "invalid_session":
            self.core.end_session(kept, LossReason.SESSION_GONE)
            if not kept.outside:
                return _Blocked(Blocker("unreachable"), cause=error)
            message = f"session {kept.id}, given for {self.plan.key!r}, does not exist (any more)"
            raise SessionNotFound(message, session=kept.id) from error
        if failure.kind == "denied":
            needed = (f'key:write on "{self.plan.key}"',)
            message = f"no permission to lock {self.plan.key!r}: the token needs {needed[0]}"
            raise PermissionDenied(
                message, needed=needed, method="PUT", path="/v1/txn", status=409, body=failure.message
            ) from error
        raise error

    async def _wait_for_key(self, blocked: _Blocked) -> None:
        """Return when the key may be ours to take, or at the deadline."""
        index = blocked.index
        while index:
            call = kv.get(self.plan.key, options=ReadOptions(index=index, wait=WAIT))
            response = await self.io.changed(call.request, deadline=self.deadline)
            if response is None:
                return
            seen = self._judge(call.decode(response).value)
            if seen is None:
                await self.io.sleep(self.io.random() * SPREAD)
                return
            if seen.index == index:
                await self.io.sleep(self.io.random() * SPREAD)  # a spurious wake-up, or a time-out
            index = seen.index

    def _timeout(self, blocked: _Blocked) -> AcquireTimeout:
        why = {
            "held": f"it is held by session {blocked.blocker.session}",
            "queued": "another thread or task of this client has its turn",
            "lock_delay": "its last holder's session ended, and the lock-delay is still in force",
            "unreachable": f"the server could not be reached or could not serve: {blocked.cause}",
        }
        message = f"{self.plan.key!r} was not acquired in time: {why[blocked.blocker.kind]}"
        return AcquireTimeout(message, key=self.plan.key, session=self.session, blocker=blocked.blocker)
