"""Unlocking a key on the server.

Rules
- An unlock is bound to the index of the hold's own last write: a late copy of it can then never free a later
  hold of the same session. If somebody else wrote the value meanwhile, the key is read and unlocked at the
  index found.
- The value and the flags are carried along: an unlock replaces both.
- Unanswered unlocks are repeated until answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, TxnFailed, ValueTooLarge
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import kv, txn
from consul_coord.http.failures import outcome_unknown, retryable
from consul_coord.http.retry import perform, send_once
from consul_coord.models import LOCK_FLAGS, LossReason, ReadOptions, ReleaseOutcome, TxnOp
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.refusals import raise_if_denied
from consul_coord.recipes.hold.grant import reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.io import IO
    from consul_coord.models import KVPair
    from consul_coord.recipes.contend.queue import Look

_CONSISTENT = ReadOptions(consistency="consistent")
SURELY_SMALL = 64 * 1024
"""A value of fewer bytes fits into any transaction."""


@dataclass(frozen=True, slots=True)
class Unlocked:
    """What an unlock found. ``loss`` is why the key was not ours any more, where the outcome says so."""

    outcome: ReleaseOutcome
    loss: LossReason | None = None
    queue: Look | None = None
    """Who waited at that moment, where the answer tells."""


_RELEASED = Unlocked(ReleaseOutcome.RELEASED)


def check_value(keys: Sequence[str], value: bytes) -> None:
    """Raise ValueTooLarge for a value that could be locked with, but not be carried along when unlocking."""
    if len(value) * len(keys) < SURELY_SMALL:
        return
    try:
        _unlock_size(keys, value)
    except ValueTooLarge as error:
        # Base64 makes 4 bytes of 3, once for each key.
        most = (error.limit - _unlock_size(keys, b"")) // len(keys) // 4 * 3
        others = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        message = (
            f"the value of {keys[0]!r}{others} has {len(value)} bytes, and may have {most} bytes: unlocking "
            f"carries it along, and Consul takes {error.limit} bytes of that. Keep it elsewhere, and put a "
            "reference to it here"
        )
        raise ValueTooLarge(message, size=error.size, limit=error.limit) from None


def _unlock_size(keys: Sequence[str], value: bytes) -> int:
    """Return the bytes of the longest request that may unlock these keys. Raises ValueTooLarge."""
    index, session, flags = 2**64 - 1, "0" * 36, LOCK_FLAGS
    checks = (TxnOp.check_index(key, index) for key in keys)
    unlocks = (TxnOp.unlock(key, session, value=value, flags=flags) for key in keys)
    tree = (TxnOp.get_tree(waitqueue.directory(keys[0])),) if len(keys) == 1 else ()
    return len(txn.txn(*checks, *unlocks, *tree).request.body or b"")


async def unlock(
    io: IO,
    *,
    key: str,
    session: str,
    index: int,
    value: bytes,
    flags: int,
    deadline: float,
    uncertain: bool = False,
    read_queue: bool = False,
) -> Unlocked:
    """Unlock a key held by ``session`` and last written by it at ``index``; repeats until answered.

    ``uncertain`` says that an earlier unlock got no answer, so that finding the key free means that it was
    applied. ``read_queue`` asks for those who wait in the same transaction. Raises PermissionDenied, and the
    last failure when no answer came by ``deadline``.
    """
    failures = moved = 0
    tree = (TxnOp.get_tree(waitqueue.directory(key)),) if read_queue else ()
    while True:
        ops = (TxnOp.check_index(key, index), TxnOp.unlock(key, session, value=value, flags=flags), *tree)
        try:
            result = await send_once(io, txn.txn(*ops), deadline=deadline)
        except TxnFailed as error:
            raise_if_denied(key, error)
            pair = await _read(io, key, deadline)
            if pair is None or pair.session != session:
                return _RELEASED if uncertain else Unlocked(ReleaseOutcome.ALREADY_LOST, reason_of(pair))
            index, value = pair.modify_index, pair.value
            moved += 1
            if moved > 1:  # once is somebody's write, more is a writer at work
                await io.sleep(delay(moved, io.random()))
        except ConsulCoordError as error:
            failures += 1
            pause = delay(failures, io.random())
            if not retryable(error) or io.now() + pause >= deadline:
                raise
            uncertain = uncertain or outcome_unknown(error)
            await io.sleep(pause)
        else:
            return Unlocked(ReleaseOutcome.RELEASED, queue=waitqueue.read(key, result[2]) if tree else None)


async def withdraw(io: IO, *, key: str, session: str, flags: int, deadline: float) -> bool:
    """Remove a session's contender, then unlock the key if it has that; returns whether it had either.

    In this order: with the contender gone, no take under way can succeed any more. The caller has the key's
    ticket, so no hold is meant by what is found. Raises the last failure when no answer came by ``deadline``.
    """
    queued = await _remove_own(io, waitqueue.contender_key(key, session), session, deadline)
    pair = await _read(io, key, deadline)
    if pair is None or pair.session != session:
        return queued
    await unlock(
        io,
        key=key,
        session=session,
        index=pair.modify_index,
        value=pair.value,
        flags=flags,
        deadline=deadline,
    )
    return True


async def remove(io: IO, *, key: str, index: int | None, deadline: float) -> None:
    """Delete a key if it is still at the index it was seen with, or gone already; None means at any."""
    await perform(io, kv.delete(key, cas=index), deadline=deadline, attempt=deadline - io.now())


async def _remove_own(io: IO, key: str, session: str, deadline: float) -> bool:
    while (pair := await _read(io, key, deadline)) is not None and pair.session in {session, None}:
        call = kv.delete(key, cas=pair.modify_index)
        if await perform(io, call, deadline=deadline, attempt=deadline - io.now()):
            return True
    return False


async def _read(io: IO, key: str, deadline: float) -> KVPair | None:
    result = await perform(
        io, kv.get(key, options=_CONSISTENT), deadline=deadline, attempt=deadline - io.now()
    )
    return result.value
