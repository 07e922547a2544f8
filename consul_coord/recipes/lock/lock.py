"""What can be done with a lock: taking and giving it back, asking who has it, breaking and removing it.

How it is taken is told in ``contend``, how it is given back in ``release``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from consul_coord.errors import KeyConflict, NotHeld, PermissionDenied, TxnFailed
from consul_coord.http.endpoints import kv, txn
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.endpoints._keys import check_key, check_name
from consul_coord.http.messages import Retry
from consul_coord.http.retry import perform
from consul_coord.models import Contender, Holder, KVPair, ReadOptions, ReleaseOutcome, TxnOp
from consul_coord.recipes.cleanup.unlock import check_value, unlock
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.attempts import carry_out, or_none
from consul_coord.recipes.contend.waiting import WaitingCalls
from consul_coord.recipes.hold import release
from consul_coord.recipes.hold.asking import check
from consul_coord.recipes.lock.attempt import Attempt
from consul_coord.recipes.lock.multi import MultiLockAttempt

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import SessionSpec
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.contend.attempts import AttemptLike
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.session.keeping import SessionSource

_CONSISTENT = ReadOptions(consistency="consistent")
NO_SESSION = "00000000-0000-0000-0000-000000000000"
"""An id that no session has."""
MANY_OWNERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    """What is to be locked, and how."""

    keys: tuple[str, ...]
    """One, or several to be locked together, in their order."""
    value: bytes
    flags: int
    accept_flags: frozenset[int]
    fair: bool
    reentrant: bool
    session: SessionSpec | str | None
    any_key: bool = False
    """Whether the keys may have names that nothing new should get: to look at old ones, and to break them."""

    @property
    def key(self) -> str:
        """The key, or the first of several."""
        return self.keys[0]


class LockObject(WaitingCalls):
    """What one lock object has besides its plan.

    Its sessions, its waiting calls, and its holds by thread or task.
    """

    def __init__(self, plan: LockPlan) -> None:
        super().__init__(plan.key)
        for key in plan.keys:
            (check_key if plan.any_key else check_name)(key)
        check_value(plan.keys, plan.value)
        self.plan = plan
        self._source: tuple[ClientState, SessionSource] | None = None
        self._held: dict[object, Grant] = {}

    def attempt(self, io: IO, core: ClientState, *, timeout: float | None) -> AttemptLike:
        """Return one call of ``acquire``, not begun yet."""
        kind = Attempt if len(self.plan.keys) == 1 else MultiLockAttempt
        return kind(io, core, self, timeout=timeout)

    def source(self, core: ClientState) -> SessionSource:
        """Return where its session comes from: the same for as long as the client's coordinator is."""
        if self._source is None or self._source[0] is not core:
            self._source = (core, core.source(self.plan.session))
        return self._source[1]

    def check_flags(self, pair: KVPair) -> None:
        """Raise KeyConflict when a key that exists is not a lock of ours."""
        if pair.flags != self.plan.flags and pair.flags not in self.plan.accept_flags:
            message = (
                f"{pair.key!r} is not a lock: its flags are {pair.flags:#x}, not {self.plan.flags:#x}. "
                f"Use another key or, if it is meant, accept_flags=({pair.flags:#x},)"
            )
            raise KeyConflict(message, key=pair.key, flags=pair.flags)

    def keep(self, owner: object, hold: Grant) -> None:
        """Remember a hold as its owner's; those of owners long gone are forgotten by and by."""
        if len(self._held) >= MANY_OWNERS:
            self._held = {owner: hold for owner, hold in list(self._held.items()) if not hold.ended}
        self._held[owner] = hold

    def again(self, owner: object) -> Grant | None:
        """Return the owner's hold that a re-entrant acquire enters once more."""
        hold = self._held.get(owner)
        return None if hold is None or hold.left else hold

    def held_by(self, owner: object) -> Grant:
        """Return the owner's latest hold that was not given up. Raises NotHeld."""
        hold = self._held.get(owner)
        if hold is None or hold.left:
            message = (
                f"this thread or task does not hold {self.plan.key!r}; "
                "what another one took is released with hold.release(), from any thread or task"
            )
            raise NotHeld(message, key=self.plan.key)
        return hold


async def acquire(io: IO, core: ClientState, lock: LockObject, *, timeout: float | None) -> Grant:
    """Take the lock, waiting up to ``timeout`` seconds (None: for ever; 0: one try).

    Raises AlreadyHeld, AcquireTimeout, KeyConflict, and what the server refuses.
    """
    again = lock.again(io.owner()) if lock.plan.reentrant else None
    if again is not None:
        check(again, io.now())
        again.depth += 1
        return again
    hold = await carry_out(io, lock.attempt(io, core, timeout=timeout))
    lock.keep(io.owner(), hold)
    return hold


async def try_acquire(io: IO, core: ClientState, lock: LockObject) -> Grant | None:
    """Take the lock if that can be done at once; None when somebody else has it, or a lock-delay is in force.

    Raises what stands in the way of asking.
    """
    return await or_none(acquire(io, core, lock, timeout=0))


async def release_own(io: IO, core: ClientState, lock: LockObject) -> ReleaseOutcome:
    """Release what the calling thread or task holds. Raises NotHeld."""
    return await release.release(io, core, lock.held_by(io.owner()))


async def holder(io: IO, core: ClientState, lock: LockObject) -> Holder | None:
    """Return who holds the key, or the first held one of several, as the leader has it.

    When nobody does: a Holder without a session if a lock-delay keeps a key from everybody, else None.
    """
    pairs = {key: await _read(io, core, key) for key in lock.plan.keys}
    for pair in pairs.values():
        if pair is not None and pair.session is not None:
            info = session_endpoint.info(pair.session)
            session = (await perform(io, info, deadline=io.now() + core.timeout, attempt=core.timeout)).value
            return _holder(pair, node=None if session is None else session.node)
    for key, pair in pairs.items():
        if await _is_delayed(io, core, key):
            return _holder(KVPair(key) if pair is None else pair, lock_delay_active=True)
    return None


async def is_locked(io: IO, core: ClientState, lock: LockObject) -> bool:
    """Return whether anybody holds the key, or one of several."""
    pairs = [await _read(io, core, key) for key in lock.plan.keys]
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


async def _is_delayed(io: IO, core: ClientState, key: str) -> bool:
    """Return whether a lock-delay is in force for a key that nobody holds; False when that can't be told.

    Asked by what can't succeed: locking it with a session that does not exist. Consul looks at the delay
    before it looks for the session.
    """
    call = txn.txn(TxnOp.lock(key, NO_SESSION), retry=Retry.IDEMPOTENT)
    try:
        await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)
    except TxnFailed as error:
        return any(failure.kind == "lock_delay" for failure in error.failures)
    except PermissionDenied:
        return False
    return False


async def destroy(io: IO, core: ClientState, lock: LockObject) -> bool:
    """Delete each key that nobody holds.

    False while one is in use. Raises KeyConflict for one that is no lock.
    """
    destroyed = True
    for key in lock.plan.keys:
        pair = await _read(io, core, key)
        if pair is None:
            continue
        lock.check_flags(pair)
        delete = kv.delete(key, cas=pair.modify_index)
        destroyed = destroyed and (
            pair.session is None
            and await perform(io, delete, deadline=io.now() + core.timeout, attempt=core.timeout)
        )
    return destroyed


async def contenders(io: IO, core: ClientState, lock: LockObject) -> tuple[Contender, ...]:
    """Return who queues for the key, or the first of several, the next one first.

    Foreign clients don't queue, nor does who wants several keys.
    """
    call = kv.list_pairs(waitqueue.directory(lock.plan.key), options=_CONSISTENT)
    pairs = (await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)).value
    live = waitqueue.read(lock.plan.key, pairs).live
    return tuple(
        Contender(
            waitqueue.session_of(pair),
            place,
            value=pair.value,
            create_index=pair.create_index,
            modify_index=pair.modify_index,
        )
        for place, pair in enumerate(live)
    )


async def break_lock(
    io: IO, core: ClientState, lock: LockObject, expected_session: str, *, how: Literal["release", "destroy"]
) -> bool:
    """Take what the lock covers from a session that has it; False when that session has none of it."""
    pairs = [pair for key in lock.plan.keys if (pair := await _read(io, core, key)) is not None]
    held = [pair for pair in pairs if pair.session == expected_session]
    if how == "destroy" and held:
        call = session_endpoint.destroy(expected_session)
        return await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)
    broken = False
    for pair in held:
        unlocked = await unlock(
            io,
            key=pair.key,
            session=expected_session,
            index=pair.modify_index,
            value=pair.value,
            flags=pair.flags,
            deadline=io.now() + core.timeout,
        )
        broken = broken or unlocked.outcome is ReleaseOutcome.RELEASED
    return broken


async def _read(io: IO, core: ClientState, key: str) -> KVPair | None:
    call = kv.get(key, options=_CONSISTENT)
    return (await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)).value
