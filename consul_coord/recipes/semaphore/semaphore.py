"""The calls of a semaphore: getting slots and giving them back, asking who has them, resizing.

``attempt`` gets a slot, ``kind`` gives it back, and ``slots`` has the format.

Rules
- Its sessions are like the client's others, but their keys vanish with them.
- The limit is changed on the record alone, by its index; holders stay as they are. If it shrinks, a
  holder keeps its slot until it leaves.
- Nothing here removes a dead holder from the record without its lock-delay: not a resize, and not the
  deletion of the record, which needs a session for that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, RequestTimeout, TxnFailed
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.endpoints._keys import check_parent
from consul_coord.http.failures import raise_if_denied
from consul_coord.http.retry import Failures, perform, send_once
from consul_coord.models import Holder, TxnOp
from consul_coord.models._validate import uint64
from consul_coord.models.reply import CONSISTENT
from consul_coord.models.session import check_spec
from consul_coord.recipes.contend.queue import session_of, shown
from consul_coord.recipes.contend.recipe import Recipe
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.semaphore.attempt import PermitAttempt
from consul_coord.recipes.semaphore.kind import Memory
from consul_coord.weak import Alive

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import Contender
    from consul_coord.recipes.contend.recipe import Acquirable
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.semaphore.plan import SemaphorePlan
    from consul_coord.recipes.semaphore.slots import Listing, Record


class SemaphoreObject(Recipe[Memory]):
    """The state of a semaphore object besides its plan: its limit, and its attempts and permits."""

    def __init__(self, plan: SemaphorePlan, limit: int) -> None:
        super().__init__(plan.prefix, one="permit")
        check_spec(plan.session)
        uint64("flags", plan.flags)
        check_parent(plan.prefix)
        self.plan = plan
        self.limit = self.coming_limit = self.check_limit(limit)
        self.attempts: Alive[PermitAttempt] = Alive()
        """The calls under way."""

    def check_limit(self, limit: int) -> int:
        """Return a limit that this semaphore can have. Raises InvalidArgument, ValueTooLarge."""
        return slots.check_limit(self.plan.prefix, limit, value=self.plan.value or b"")

    def of(self, permits: int) -> Acquirable:
        """Return what gives so many slots in one take. Raises InvalidArgument, ValueTooLarge."""
        if type(permits) is int and permits == 1:
            return self
        value = self.plan.value or b""
        return Several(self, slots.check_permits(self.plan.prefix, permits, limit=self.limit, value=value))

    def attempt(self, io: IO, client: Shared, *, timeout: float | None, permits: int = 1) -> PermitAttempt:
        """Return one call of ``acquire``, not begun yet."""
        attempt = PermitAttempt(
            io,
            client,
            self.plan,
            self.with_client(client),
            limits=lambda: (self.limit, self.coming_limit),
            timeout=timeout,
            permits=permits,
        )
        self.attempts.add(attempt)
        return attempt

    def _begin(self, client: Shared) -> Memory:
        """Return what is remembered of it."""
        directory = slots.directory(self.plan.prefix)
        pool = client.pools.pool(directory, self.plan.session, behavior="delete")
        return Memory(pool, self.plan.prefix, self.plan.flags)


class Several:
    """A number of a semaphore's slots, to be acquired in one take."""

    reentrant = False

    def __init__(self, semaphore: SemaphoreObject, permits: int) -> None:
        self._semaphore = semaphore
        self._permits = permits
        self.owners = semaphore.owners

    def attempt(self, io: IO, client: Shared, *, timeout: float | None) -> PermitAttempt:
        """Return one call of ``acquire``, not begun yet."""
        return self._semaphore.attempt(io, client, timeout=timeout, permits=self._permits)


async def read(io: IO, semaphore: SemaphoreObject, *, deadline: float) -> Listing:
    """Return the semaphore as the leader has it. Raises KeyConflict, DecodeError."""
    plan = semaphore.plan
    call = kv.list_pairs(slots.directory(plan.prefix), options=CONSISTENT)
    result = await perform(io, call, deadline=deadline)
    listing = slots.read(
        plan.prefix, result.value, limit=semaphore.limit, flags=plan.flags, index=result.index
    )
    semaphore.plan.check_flags(listing.record)
    return listing


async def holders(io: IO, client: Shared, semaphore: SemaphoreObject) -> tuple[Holder, ...]:
    """Return who holds a slot, the longest holder first, as the leader has it."""
    deadline = io.now() + client.timeout
    listing = await read(io, semaphore, deadline=deadline)
    found = (await perform(io, session_endpoint.list_sessions(options=CONSISTENT), deadline=deadline)).value
    nodes = {session.id: session.node for session in found}
    pairs = sorted((listing.live[one] for one in listing.held), key=lambda pair: pair.modify_index)
    return tuple(
        Holder(
            session := session_of(pair),
            node=nodes.get(session),
            value=slots.value_of(pair),
            fence=pair.modify_index,
            since_index=pair.modify_index,
        )
        for pair in pairs
    )


async def contenders(io: IO, client: Shared, semaphore: SemaphoreObject) -> tuple[Contender, ...]:
    """Return who queues for a slot, the next one first.

    Foreign clients don't queue, and are not among them.
    """
    listing = await read(io, semaphore, deadline=io.now() + client.timeout)
    return shown(listing.waiters, slots.value_of)


async def position(io: IO, client: Shared, semaphore: SemaphoreObject) -> int | None:
    """Return the best place in the queue among this object's waiting calls, counted from 1; or None."""
    ours = {attempt.session for attempt in semaphore.attempts.all() if attempt.client is client}
    if not ours:
        return None
    queue = await contenders(io, client, semaphore)
    return next((one.position for one in queue if one.session in ours), None)


async def resize(io: IO, client: Shared, semaphore: SemaphoreObject, new_limit: int) -> None:
    """Change the limit for everybody, and for this object.

    Repeats until the record has it. Raises RequestTimeout when that was not seen in time, and what the server
    refuses.
    """
    limit = semaphore.check_limit(new_limit)
    # From now on calls of this object may see it, and once it was sent also if this call fails.
    semaphore.coming_limit = limit
    deadline = io.now() + client.timeout
    failures = Failures(io, deadline)
    while True:
        try:
            record = (await read(io, semaphore, deadline=deadline)).record
        except ConsulCoordError as error:
            raise failures.with_doubt(error) from error.__cause__
        if record.index and record.limit == limit:
            semaphore.limit = limit
            return
        if io.now() >= deadline:
            message = f"the limit of {semaphore.plan.prefix!r} was not seen changed to {limit} in time"
            raise RequestTimeout(message, method="PUT", path="/v1/kv/", outcome_unknown=True)
        try:
            await _write(io, semaphore, replace(record, limit=limit), deadline)
        except ConsulCoordError as error:
            await failures.pause(error)


async def _write(io: IO, semaphore: SemaphoreObject, record: Record, deadline: float) -> None:
    """Write the record if it is still at its index."""
    key = slots.record_key(semaphore.plan.prefix)
    await send_once(io, kv.put(key, record.encode(), flags=record.flags, cas=record.index), deadline=deadline)


async def destroy(io: IO, client: Shared, semaphore: SemaphoreObject) -> bool:
    """Delete the record if nobody holds a slot or waits for one.

    False while it is in use, the lock-delay of a holder that died included. Raises KeyConflict when it is not
    a semaphore's.
    """
    deadline = io.now() + client.timeout
    listing = await read(io, semaphore, deadline=deadline)
    if listing.held or listing.wanted():
        return False
    if not listing.record.index:
        return True
    if not listing.dead:
        delete = kv.delete(slots.record_key(semaphore.plan.prefix), cas=listing.record.index)
        return await perform(io, delete, deadline=deadline)
    source = client.source(semaphore.with_client(client).sessions.spec)
    client.attend()
    try:
        kept = await source.live(io, deadline=deadline)
        return await _bury(io, semaphore, listing.record, by=kept.id, deadline=deadline)
    finally:
        source.give_up()


async def _bury(io: IO, semaphore: SemaphoreObject, record: Record, *, by: str, deadline: float) -> bool:
    """Delete a record that names dead holders only, if no lock-delay of theirs is in force."""
    prefix = semaphore.plan.prefix
    key = slots.record_key(prefix)
    while True:
        removed = record.holders[: slots.most_removed()]
        rest = record.with_holders(record.holders[len(removed) :])
        write = (
            TxnOp.cas(key, rest.encode(), rest.index, flags=rest.flags)
            if rest.holders
            else TxnOp.delete_cas(key, rest.index)
        )
        call = kv.txn(*slots.removal(prefix, removed, by=by), write)
        try:
            result = await send_once(io, call, deadline=deadline)
        except TxnFailed as error:
            raise_if_denied(slots.directory(prefix), error)
            return False
        if not rest.holders:
            return True
        record = rest.at(result[-1][0].modify_index)
