"""What slots are of, and how they are to be held."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consul_coord.errors import KeyConflict, UnsafeSession
from consul_coord.recipes.semaphore import slots

if TYPE_CHECKING:
    from consul_coord.models import SessionSpec
    from consul_coord.recipes.semaphore.slots import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SemaphorePlan:
    """What slots are of, and how they are to be held."""

    prefix: str
    value: bytes | None
    """What the own key shows; None for the client's name."""
    flags: int
    accept_flags: frozenset[int]
    fair: bool
    session: SessionSpec | None
    grace: float | None

    def check_flags(self, record: Record) -> None:
        """Raise KeyConflict when a record that exists is not a semaphore's of ours."""
        if record.index and record.flags not in {self.flags, *self.accept_flags}:
            key = slots.record_key(self.prefix)
            message = (
                f"{key!r} is not a semaphore's record: its flags are {record.flags:#x}, not "
                f"{self.flags:#x}. Use another prefix or, if it is meant, "
                f"accept_flags=({record.flags:#x},)"
            )
            raise KeyConflict(message, key=key, flags=record.flags)


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
