"""The slots of a semaphore, and the options of their holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.errors import KeyConflict
from consul_coord.recipes.semaphore import slots
from consul_coord.value import Value

if TYPE_CHECKING:
    from consul_coord.models import SessionSpec
    from consul_coord.recipes.semaphore.slots import Record


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class SemaphorePlan(Value):
    """The slots of a semaphore, and the options of their holds."""

    prefix: str
    value: bytes | None
    """The value of the own key; None for the client's name."""
    flags: int
    accept_flags: frozenset[int]
    fair: bool
    session: SessionSpec | None

    def check_flags(self, record: Record) -> None:
        """Raise KeyConflict when a record that exists is not a semaphore's of ours."""
        if record.index and record.flags not in {self.flags, *self.accept_flags}:
            key = slots.record_key(self.prefix)
            message = (
                f"{key!r} is not a semaphore's record: its flags are {record.flags:#x}, not "
                f"{self.flags:#x}. Use another prefix or, if another client wrote it, "
                f"accept_flags=({record.flags:#x},)"
            )
            raise KeyConflict(message, key=key, flags=record.flags)
