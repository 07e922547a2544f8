"""Unlocking and removing on the server, so that it can be repeated and never frees a later hold.

Rules
- An unlock is bound to the index of the hold's own last write: a late copy of it can then never free a later
  hold of the same session. If somebody else wrote the value meanwhile, the key is read and unlocked at the
  index found.
- The value and the flags are carried along: an unlock replaces both. A value that somebody else wrote, and
  that no transaction can carry, is left out: the next holder would overwrite it anyway.
- A key that is not to be kept is deleted at that same index, instead of unlocked. If somebody else wrote to
  it, it is unlocked and stays.
- Unanswered unlocks are repeated until answered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, TxnFailed, ValueTooLarge
from consul_coord.http.endpoints import kv
from consul_coord.http.failures import raise_if_denied
from consul_coord.http.retry import Failures, perform, send_once
from consul_coord.models import TxnOp
from consul_coord.models.reply import CONSISTENT
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from consul_coord.io import IO
    from consul_coord.models import KVPair


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Locked(Value):
    """A key as a hold last wrote it."""

    key: str
    index: int
    value: bytes
    remove: bool = False
    """Whether the key is deleted when it is given back."""

    def unlocking(self, session: str, flags: int) -> tuple[TxnOp, TxnOp]:
        """Return the operations that unlock it, or delete it, at that index."""
        unlock = TxnOp.unlock(self.key, session, value=self.value, flags=flags)
        return (
            TxnOp.check_index(self.key, self.index),
            TxnOp.delete(self.key) if self.remove else unlock,
        )

    def found(self, pair: KVPair, flags: int) -> Locked:
        """Return what a reading leaves to give back: a key that somebody else wrote to is kept."""
        same = (pair.value, pair.flags) == (self.value, flags)
        return Locked(pair.key, pair.modify_index, pair.value, remove=self.remove and same)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unlocked(Value):
    """The state that unlocking a key found."""

    ours: bool
    """Whether the session had it, or had it until an earlier unlock without an answer."""
    pair: KVPair | None = None
    """The key as it was found, where it was not ours."""


async def unlock(
    io: IO,
    locked: Locked,
    *,
    session: str,
    flags: int,
    deadline: float,
    uncertain: bool = False,
) -> Unlocked:
    """Unlock a key held by ``session``; repeats until answered.

    ``uncertain`` says that an earlier unlock got no answer, so that finding the key free means that it was
    applied. Raises PermissionDenied, and the last failure when no answer came by ``deadline``.
    """
    failures = Failures(io, deadline)
    while True:
        try:
            await send_once(io, kv.txn(*locked.unlocking(session, flags)), deadline=deadline)
        except TxnFailed as error:
            raise_if_denied(locked.key, error)
            pair = await read(io, locked.key, deadline)
            if pair is None or pair.session != session:
                return Unlocked(uncertain or failures.doubt, pair)
            locked = locked.found(pair, flags)
            await failures.moved()
        except ValueTooLarge:
            if not locked.value:
                raise
            locked = replace(locked, value=b"")
        except ConsulCoordError as error:
            await failures.pause(error)
        else:
            return Unlocked(ours=True)


async def unlock_together(
    io: IO, all_locked: Sequence[Locked], *, session: str, flags: int, deadline: float
) -> list[Unlocked]:
    """Unlock several keys in one transaction; where one of them has changed, each by itself."""
    failures = Failures(io, deadline)
    while True:
        ops = [op for locked in all_locked for op in locked.unlocking(session, flags)]
        try:
            await send_once(io, kv.txn(*ops), deadline=deadline)
        except TxnFailed:
            return [
                await unlock(
                    io, one, session=session, flags=flags, deadline=deadline, uncertain=failures.doubt
                )
                for one in all_locked
            ]
        except ConsulCoordError as error:
            await failures.pause(error)
        else:
            return [Unlocked(ours=True) for _ in all_locked]


async def withdraw(
    io: IO,
    *,
    key: str,
    session: str,
    flags: int,
    contender: str | None,
    deadline: float,
    remove: Collection[bytes] = (),
    note: str | None = None,
) -> bool:
    """Remove a session's contender, then unlock the key if it has that; returns whether it had either.

    A key that still has a value of ``remove`` is deleted, instead of unlocked. In this order: with the
    contender gone, no take under way can succeed any more. ``note``, a key that the take has written as well,
    is deleted before the unlock: if that fails, the next try still finds the lock. The caller has the key's
    ticket, so no hold is meant by what is found. Raises the last failure when no answer came by ``deadline``.
    """
    queued = contender is not None and await _remove_own(io, contender, session, deadline)
    pair = await read(io, key, deadline)
    if pair is None or pair.session != session:
        return queued
    if note is not None:
        await perform(io, kv.delete(note, cas=pair.modify_index), deadline=deadline)
    ours = pair.value in remove and pair.flags == flags
    locked = Locked(key, pair.modify_index, pair.value, remove=ours)
    await unlock(io, locked, session=session, flags=flags, deadline=deadline)
    return True


async def _remove_own(io: IO, key: str, session: str, deadline: float) -> bool:
    while (pair := await read(io, key, deadline)) is not None and pair.session in {session, None}:
        call = kv.delete(key, cas=pair.modify_index)
        if await perform(io, call, deadline=deadline):
            return True
    return False


async def read(io: IO, key: str, deadline: float) -> KVPair | None:
    """Read a key consistently; repeats until answered."""
    call = kv.get(key, options=CONSISTENT)
    return (await perform(io, call, deadline=deadline)).value
