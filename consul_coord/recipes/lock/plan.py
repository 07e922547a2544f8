"""The keys to be locked, and the options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.errors import KeyConflict

if TYPE_CHECKING:
    from consul_coord.models import KVPair, SessionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    """The keys to be locked, and the options."""

    keys: tuple[str, ...]
    """One, or several to be locked together, in their order."""
    value: bytes | None
    """The value of the keys; None for the client's name."""
    flags: int
    accept_flags: frozenset[int]
    fair: bool
    reentrant: bool
    session: SessionSpec | str | None
    polite: bool = False
    """Whether a newcomer queues if it sees others wait, and takes a free lock at once otherwise."""
    reads: str = ""
    """A prefix that is read in each transaction which grants the lock; empty for none."""
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
            message = (
                f"{pair.key!r} is not a lock: its flags are {pair.flags:#x}, not {self.flags:#x}. "
                f"Use another key, or accept_flags=({pair.flags:#x},) if it is a lock of another client"
            )
            raise KeyConflict(message, key=pair.key, flags=pair.flags)
