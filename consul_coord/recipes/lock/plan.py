"""The keys to be locked, the options, and the transactions that carry a lock's value: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.errors import KeyConflict
from consul_coord.models import LOCK_FLAGS, SEMAPHORE_FLAGS, TxnOp
from consul_coord.recipes.cleanup.unlock import Locked
from consul_coord.recipes.contend.limits import ANY_SESSION, LONGEST
from consul_coord.recipes.contend.queue import contender_key
from consul_coord.value import Value

if TYPE_CHECKING:
    from consul_coord.models import KVPair, SessionSpec
    from consul_coord.recipes.contend.limits import Carrier


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class LockPlan(Value):
    """The keys to be locked, and the options."""

    keys: tuple[str, ...]
    """One, or several to be locked together, in their order."""
    value: bytes | None
    """The value of the keys; None for the client's name."""
    flags: int = LOCK_FLAGS
    accept_flags: frozenset[int] = frozenset()
    fair: bool = False
    reentrant: bool = False
    session: SessionSpec | str | None = None
    polite: bool = False
    """Whether a newcomer queues if it sees others wait, and takes a free lock at once otherwise."""
    reads: tuple[TxnOp, ...] = ()
    """The last operations of each transaction that grants the lock: what is read with it."""
    remove: bool = False
    """Whether the keys are deleted when they are given back."""
    any_key: bool = False
    """Whether the keys may have names that nothing new should get: to look at old ones, and to break them."""

    @property
    def key(self) -> str:
        """The key, or the first of several."""
        return self.keys[0]

    def check_flags(self, pair: KVPair) -> None:
        """Raise KeyConflict when a key that exists is not a lock of ours."""
        if pair.flags != self.flags and pair.flags not in self.accept_flags:
            if pair.flags == SEMAPHORE_FLAGS:
                message = f"{pair.key!r} is not a lock, but a semaphore's record. Use another key"
            else:
                message = (
                    f"{pair.key!r} is not a lock: its flags are {pair.flags:#x}, not {self.flags:#x}. "
                    f"Use another key, or accept_flags=({pair.flags:#x},) if it is a lock of another client"
                )
            raise KeyConflict(message, key=pair.key, flags=pair.flags)

    def taking(self, session: str, value: bytes, *, index: int) -> tuple[TxnOp, ...]:
        """Return the operations that take the lock for a contender at an index, and remove the contender."""
        contender = contender_key(self.key, session)
        return (
            TxnOp.check_index(contender, index),
            TxnOp.lock(self.key, session, value=value, flags=self.flags),
            TxnOp.delete(contender),
        )

    def carriers(self) -> tuple[Carrier, ...]:
        """Return the longest transactions by which the lock is got and given back."""
        return self._longest_take, self._longest_unlock

    def _longest_take(self, value: bytes) -> tuple[TxnOp, ...]:
        if len(self.keys) > 1:
            return tuple(TxnOp.lock(key, ANY_SESSION, value=value, flags=self.flags) for key in self.keys)
        return (*self.taking(ANY_SESSION, value, index=LONGEST), *self.reads)

    def _longest_unlock(self, value: bytes) -> tuple[TxnOp, ...]:
        all_locked = (Locked(key, LONGEST, value, remove=self.remove) for key in self.keys)
        return tuple(op for locked in all_locked for op in locked.unlocking(ANY_SESSION, self.flags))
