"""The members of a group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from consul_coord.value import Value

GROUP_FLAGS: Final = 0x67726F7570636B31
"""The flags of a member's key, which tell it from other keys."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Member(Value):
    """One member of a group."""

    id: str
    """Its name, which no other member has at the same time."""
    value: bytes = b""
    """Its own value, such as its address."""
    session: str = ""
    """The session that keeps it a member."""
    since_index: int = 0
    """The index at which it joined: higher than that of all who joined before."""

    @property
    def text(self) -> str:
        """The value as UTF-8 text. Raises UnicodeDecodeError when it is not UTF-8."""
        return self.value.decode()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Members(Value):
    """The members of a group at one moment, and what has changed since the state seen before."""

    all: tuple[Member, ...]
    """The longest member first."""
    joined: tuple[Member, ...] = field(default=(), compare=False)
    """The new ones; all of them in the first state that a watch gives."""
    left: tuple[Member, ...] = field(default=(), compare=False)
    """The former ones, as last seen. A member that went and came back between two looks is in both."""
    changed: tuple[Member, ...] = field(default=(), compare=False)
    """Those with another value."""
