"""The calls of a lock: taking and giving it back, asking who has it, breaking and removing it.

``attempt`` takes it, ``hold.release`` gives it back. A call that asks several things has the client's time
for all of them.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from consul_coord.errors import PermissionDenied, TxnFailed
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.endpoints._keys import check_key, check_name, check_parent
from consul_coord.http.messages import Retry
from consul_coord.http.retry import ask, perform
from consul_coord.models import Holder, KVPair, TxnOp
from consul_coord.models._validate import breaking, uint64
from consul_coord.models.reply import CONSISTENT
from consul_coord.models.session import check_spec
from consul_coord.recipes.cleanup.unlock import Locked, read, unlock
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.limits import check_value
from consul_coord.recipes.contend.recipe import Recipe
from consul_coord.recipes.lock.attempt import LockAttempt

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import Contender
    from consul_coord.recipes.contend.attempt import Attempt
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.lock.plan import LockPlan
    from consul_coord.recipes.session.keeping import SessionSource


class LockObject(Recipe["SessionSource"]):
    """One lock on a key, or on several."""

    def __init__(self, plan: LockPlan) -> None:
        super().__init__(plan.key, one="hold", reentrant=plan.reentrant)
        check_spec(plan.session, ids=True)
        uint64("flags", plan.flags)
        queued = check_parent if len(plan.keys) == 1 else check_name
        for key in plan.keys:
            (check_key if plan.any_key else queued)(key)
        check_value(plan.keys, plan.value or b"", plan.carriers())
        self.plan = plan

    def attempt(self, io: IO, client: Shared, *, timeout: float | None) -> Attempt:
        """Return one call of ``acquire``, not begun yet."""
        kind = LockAttempt
        if len(self.plan.keys) > 1:
            from consul_coord.recipes.lock.multi import MultiLockAttempt  # start-up counts

            kind = MultiLockAttempt
        return kind(io, client, self.plan, self.with_client(client), timeout=timeout)

    def _begin(self, client: Shared) -> SessionSource:
        """Return where its session comes from."""
        return client.source(self.plan.session)


async def holder(io: IO, client: Shared, lock: LockObject) -> Holder | None:
    """Return who holds the key, or the first held one of several, as the leader has it.

    When nobody does: a Holder without a session if a lock-delay keeps a key from everybody, else None.
    """
    deadline = io.now() + client.timeout
    pairs = {key: await read(io, key, deadline) for key in lock.plan.keys}
    for pair in pairs.values():
        if pair is not None and pair.session is not None:
            info = session_endpoint.info(pair.session, options=CONSISTENT)
            session = (await perform(io, info, deadline=deadline)).value
            return _holder(pair, node=None if session is None else session.node)
    for key, pair in pairs.items():
        if await _is_delayed(io, key, deadline):
            return _holder(KVPair(key) if pair is None else pair, lock_delay_active=True)
    return None


async def is_locked(io: IO, client: Shared, lock: LockObject) -> bool:
    """Return whether anybody holds the key, or one of several."""
    deadline = io.now() + client.timeout
    pairs = [await read(io, key, deadline) for key in lock.plan.keys]
    return any(pair is not None and pair.session is not None for pair in pairs)


def _holder(pair: KVPair, *, node: str | None = None, lock_delay_active: bool = False) -> Holder:
    return Holder(
        pair.session or "",
        node=node,
        value=pair.value,
        fence=pair.modify_index,
        since_index=pair.modify_index,
        lock_delay_active=lock_delay_active,
    )


async def _is_delayed(io: IO, key: str, deadline: float) -> bool:
    """Return whether a lock-delay is in force for a key that nobody holds; False when that can't be known.

    Asked by what can't succeed: locking it with a session that does not exist. Consul looks at the delay
    before it looks for the session.
    """
    call = kv.txn(TxnOp.lock(key, session_endpoint.NO_SESSION), retry=Retry.IDEMPOTENT)
    try:
        await perform(io, call, deadline=deadline)
    except TxnFailed as error:
        return any(failure.kind == "lock_delay" for failure in error.failures)
    except PermissionDenied:
        return False
    return False


async def destroy(io: IO, client: Shared, lock: LockObject) -> bool:
    """Delete each key that nobody holds.

    False while one is in use. Raises KeyConflict for one that is no lock.
    """
    deadline, destroyed = io.now() + client.timeout, True
    for key in lock.plan.keys:
        pair = await read(io, key, deadline)
        if pair is None:
            continue
        lock.plan.check_flags(pair)
        delete = kv.delete(key, cas=pair.modify_index)
        destroyed &= pair.session is None and await perform(io, delete, deadline=deadline)
    return destroyed


async def contenders(io: IO, client: Shared, lock: LockObject) -> tuple[Contender, ...]:
    """Return who queues for the key, or the first of several, the next one first.

    Foreign clients don't queue, nor does who wants several keys.
    """
    call = kv.list_pairs(waitqueue.directory(lock.plan.key), options=CONSISTENT)
    pairs = (await ask(io, call, timeout=client.timeout)).value
    return waitqueue.shown(waitqueue.read(lock.plan.key, pairs).live, attrgetter("value"))


async def break_lock(
    io: IO, client: Shared, lock: LockObject, expected_session: str, *, how: Literal["release", "destroy"]
) -> bool:
    """Take what the lock covers from a session that has it; False when that session has none of it.

    Raises InvalidArgument.
    """
    breaking(expected_session, how)
    deadline = io.now() + client.timeout
    pairs = [pair for key in lock.plan.keys if (pair := await read(io, key, deadline)) is not None]
    held = [pair for pair in pairs if pair.session == expected_session]
    if how == "destroy" and held:
        call = session_endpoint.destroy(expected_session)
        return await perform(io, call, deadline=deadline)
    broken = False
    for pair in held:
        unlocked = await unlock(
            io,
            Locked(pair.key, pair.modify_index, pair.value),
            session=expected_session,
            flags=pair.flags,
            deadline=deadline,
        )
        broken = broken or unlocked.ours
    return broken
