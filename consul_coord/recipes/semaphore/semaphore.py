"""What can be done with a semaphore: getting slots and giving them back, asking who has them, resizing.

How a slot is got is told in ``slot_contend``, how it is given back in ``slot_hold``, the format in ``slots``.

Rules
- Its sessions vanish with their keys, and have no checks unless asked for: then the holder's own deadline
  (the TTL) comes before anybody else's (twice the TTL). With checks a session may end at any moment, and only
  the grace that takers observe keeps a slot from being used twice: it bounds the lease, and is required.
- The limit is changed on the record alone, by its index; holders stay as they are. Who holds when it shrinks
  keeps the slot until leaving.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consul_coord.errors import (
    ConsulCoordError,
    InvalidKey,
    KeyConflict,
    NotHeld,
    RequestTimeout,
    UnsafeSession,
)
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.endpoints._keys import check_name
from consul_coord.http.failures import retryable
from consul_coord.http.retry import perform, send_once
from consul_coord.models import Contender, Holder, ReadOptions, SessionSpec, _validate
from consul_coord.models.session import LONGEST_LOCK_DELAY
from consul_coord.recipes.contend.attempts import carry_out, or_none
from consul_coord.recipes.contend.waiting import WaitingCalls
from consul_coord.recipes.hold import release
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.semaphore.attempt import PermitAttempt
from consul_coord.recipes.semaphore.kind import Memory

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import ReleaseOutcome
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.semaphore.slots import Listing, Record

_CONSISTENT = ReadOptions(consistency="consistent")


@dataclass(frozen=True, slots=True, kw_only=True)
class SemaphorePlan:
    """What slots are of, and how they are to be held."""

    prefix: str
    value: bytes
    flags: int
    accept_flags: frozenset[int]
    fair: bool
    session: SessionSpec | None
    grace: float | None


class SemaphoreObject(WaitingCalls):
    """What one semaphore object has besides its plan: its limit, and its attempts and permits."""

    def __init__(self, plan: SemaphorePlan, limit: int) -> None:
        super().__init__(plan.prefix)
        check_name(plan.prefix)
        if plan.prefix.endswith("/"):
            message = f"prefix {plan.prefix!r} can't be used: it ends with '/', which is added: leave it out"
            raise InvalidKey(message, key=plan.prefix)
        if plan.grace is not None:
            _validate.seconds("grace", plan.grace, minimum=0, maximum=LONGEST_LOCK_DELAY)
        self.plan = plan
        self.limit = self.check_limit(limit)
        self._spec = None if plan.session is None else slot_spec(plan.session, plan.grace, plan.prefix)
        self._memory: tuple[ClientState, Memory] | None = None
        self.attempts: dict[PermitAttempt, None] = {}
        """The calls under way."""
        self._held: dict[object, list[Grant]] = {}

    def check_limit(self, limit: int) -> int:
        """Return a limit that this semaphore can have. Raises InvalidArgument, ValueTooLarge."""
        return slots.check_limit(self.plan.prefix, limit, value=self.plan.value)

    def memory(self, core: ClientState) -> Memory:
        """Return what is remembered: the same for as long as the client's coordinator is."""
        if self._memory is None or self._memory[0] is not core:
            plain = replace(core.spec, node_checks=(), service_checks=())
            spec = self._spec or slot_spec(plain, None, self.plan.prefix)
            self._memory = (core, Memory(core, self.plan.prefix, spec, self.plan.flags))
        return self._memory[1]

    def check_flags(self, record: Record) -> None:
        """Raise KeyConflict when a record that exists is not a semaphore's of ours."""
        if record.index and record.flags not in {self.plan.flags, *self.plan.accept_flags}:
            key = slots.record_key(self.plan.prefix)
            message = (
                f"{key!r} is not a semaphore's record: its flags are {record.flags:#x}, not "
                f"{self.plan.flags:#x}. Use another prefix or, if it is meant, "
                f"accept_flags=({record.flags:#x},)"
            )
            raise KeyConflict(message, key=key, flags=record.flags)

    def keep(self, owner: object, hold: Grant) -> None:
        """Remember a permit as its owner's latest; those that have ended are forgotten by and by."""
        self._held = {
            one: lasting
            for one, holds in list(self._held.items())
            if (lasting := [hold for hold in holds if not hold.released])
        }
        self._held.setdefault(owner, []).append(hold)

    def held_by(self, owner: object) -> Grant:
        """Return the owner's latest permit that was not released. Raises NotHeld."""
        for hold in reversed(self._held.get(owner, [])):
            if not hold.released:
                return hold
        message = (
            f"this thread or task has no permit of {self.plan.prefix!r}; "
            "what another one took is released with permit.release(), from any thread or task"
        )
        raise NotHeld(message, key=self.plan.prefix)


def slot_spec(spec: SessionSpec, grace: float | None, prefix: str) -> SessionSpec:
    """Return what the sessions of a semaphore are like. Raises UnsafeSession."""
    checked = spec.node_checks or spec.service_checks
    if checked and not grace and not spec.allow_unbounded:
        message = (
            f"a check may end a session of the semaphore {prefix!r} at any moment, and its slot would be "
            "given away at once: leave the checks out, or give all its clients the same grace"
        )
        raise UnsafeSession(message, key=prefix)
    # What a lock-delay is to a lock, the grace is to a slot: so it bounds the lease in the same way.
    return replace(spec, behavior="delete", lock_delay=(grace or 0.0) if checked else spec.lock_delay)


async def acquire(io: IO, core: ClientState, semaphore: SemaphoreObject, *, timeout: float | None) -> Grant:
    """Get a slot, waiting up to ``timeout`` seconds (None: for ever; 0: one try).

    Raises AcquireTimeout, SemaphoreLimitConflict, KeyConflict, DecodeError, and what the server refuses.
    """
    hold = await carry_out(io, PermitAttempt(io, core, semaphore, timeout=timeout))
    semaphore.keep(io.owner(), hold)
    return hold


async def try_acquire(io: IO, core: ClientState, semaphore: SemaphoreObject) -> Grant | None:
    """Get a slot if one is free and nobody waits for it; None otherwise.

    Raises what stands in the way of asking.
    """
    return await or_none(acquire(io, core, semaphore, timeout=0))


async def release_own(io: IO, core: ClientState, semaphore: SemaphoreObject) -> ReleaseOutcome:
    """Release the latest permit of the calling thread or task. Raises NotHeld."""
    return await release.release(io, core, semaphore.held_by(io.owner()))


async def read(io: IO, core: ClientState, semaphore: SemaphoreObject) -> Listing:
    """Return the semaphore as the leader has it. Raises KeyConflict, DecodeError."""
    plan = semaphore.plan
    call = kv.list_pairs(slots.directory(plan.prefix), options=_CONSISTENT)
    result = await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)
    listing = slots.read(
        plan.prefix, result.value, limit=semaphore.limit, flags=plan.flags, index=result.index
    )
    semaphore.check_flags(listing.record)
    return listing


async def holders(io: IO, core: ClientState, semaphore: SemaphoreObject) -> tuple[Holder, ...]:
    """Return who holds a slot, the longest holder first, as the leader has it."""
    listing = await read(io, core, semaphore)
    sessions = session_endpoint.list_sessions()
    found = (await perform(io, sessions, deadline=io.now() + core.timeout, attempt=core.timeout)).value
    nodes = {session.id: session.node for session in found}
    pairs = sorted((listing.live[one] for one in listing.held), key=lambda pair: pair.modify_index)
    return tuple(
        Holder(
            session := slots.session_of(pair),
            node=nodes.get(session),
            value=slots.value_of(pair),
            fence=pair.modify_index,
            since_index=pair.modify_index,
        )
        for pair in pairs
    )


async def contenders(io: IO, core: ClientState, semaphore: SemaphoreObject) -> tuple[Contender, ...]:
    """Return who queues for a slot, the next one first.

    Foreign clients don't queue, and are not among them.
    """
    listing = await read(io, core, semaphore)
    return tuple(
        Contender(
            slots.session_of(pair),
            place,
            value=slots.value_of(pair),
            create_index=pair.create_index,
            modify_index=pair.modify_index,
        )
        for place, pair in enumerate(listing.waiters)
    )


async def position(io: IO, core: ClientState, semaphore: SemaphoreObject) -> int | None:
    """Return the best place in the queue among this object's waiting calls, 0 for the next one; or None."""
    ours = {attempt.session_id for attempt in list(semaphore.attempts)}
    if not ours:
        return None
    queue = await contenders(io, core, semaphore)
    return next((one.position for one in queue if one.session in ours), None)


async def resize(io: IO, core: ClientState, semaphore: SemaphoreObject, new_limit: int) -> None:
    """Change the limit for everybody, and for this object.

    Repeats until the record has it. Raises RequestTimeout when that was not seen in time, and what the server
    refuses.
    """
    limit = semaphore.check_limit(new_limit)
    deadline = io.now() + core.timeout
    failures = 0
    while True:
        record = (await read(io, core, semaphore)).record
        if record.index and record.limit == limit:
            semaphore.limit = limit
            return
        if io.now() >= deadline:
            message = f"the limit of {semaphore.plan.prefix!r} was not seen changed to {limit} in time"
            raise RequestTimeout(message, method="PUT", path="/v1/kv/", outcome_unknown=True)
        try:
            await _write(io, semaphore, replace(record, limit=limit), deadline)
        except ConsulCoordError as error:
            if not retryable(error):
                raise
            failures += 1
            await io.sleep(delay(failures, io.random()))


async def _write(io: IO, semaphore: SemaphoreObject, record: Record, deadline: float) -> None:
    """Write the record if it is still at its index."""
    key = slots.record_key(semaphore.plan.prefix)
    await send_once(io, kv.put(key, record.encode(), flags=record.flags, cas=record.index), deadline=deadline)


async def destroy(io: IO, core: ClientState, semaphore: SemaphoreObject) -> bool:
    """Delete the record if nobody holds a slot or waits for one.

    False while it is in use. Raises KeyConflict when it is not a semaphore's.
    """
    listing = await read(io, core, semaphore)
    if listing.held or listing.wanted():
        return False
    if not listing.record.index:
        return True
    delete = kv.delete(slots.record_key(semaphore.plan.prefix), cas=listing.record.index)
    return await perform(io, delete, deadline=io.now() + core.timeout, attempt=core.timeout)
