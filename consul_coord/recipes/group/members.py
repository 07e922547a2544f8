"""The members of a group as they stand in Consul: pure rules over one reading of them.

A member is a key ``PREFIX/members/ID`` with the group's flags, locked by the member's session; its value is
what the member tells about itself.

Rules
- A key that no session holds is no member: an operator force-released it, or it is another program's.
- Members are in the order in which they joined, which Raft gives.
- A member that left and came back under the same name between two readings is a new member: it may have lost
  its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.errors import InvalidArgument
from consul_coord.http.endpoints._keys import check_name, check_parent
from consul_coord.models.group import GROUP_FLAGS, Member, Members

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.models import KVPair

_DIRECTORY = "/members"


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Which group."""

    prefix: str

    def __post_init__(self) -> None:
        check_parent(self.prefix)

    @property
    def directory(self) -> str:
        """Where the members are, without the slash at its end."""
        return self.prefix + _DIRECTORY

    def key(self, member: str) -> str:
        """Return the key of a member. Raises InvalidArgument and InvalidKey."""
        if not member or "/" in member:
            message = f"a member's id is a string without '/', and not empty: not {member!r}"
            raise InvalidArgument(message)
        return check_name(f"{self.directory}/{member}")

    def read(self, pairs: Iterable[KVPair]) -> tuple[Member, ...]:
        """Return the members that a listing shows, the longest one first."""
        start = self.directory + "/"
        found = [
            Member(name, pair.value, pair.session, pair.create_index)
            for pair in pairs
            if pair.session is not None
            and pair.flags == GROUP_FLAGS
            and pair.key.startswith(start)
            and "/" not in (name := pair.key.removeprefix(start))
        ]
        return tuple(sorted(found, key=lambda member: (member.since_index, member.id)))


def compared(before: tuple[Member, ...], after: tuple[Member, ...]) -> Members:
    """Return a state with what is new in it."""
    known = {_identity(member): member for member in before}
    present = {_identity(member): member for member in after}
    return Members(
        after,
        joined=tuple(member for who, member in present.items() if who not in known),
        left=tuple(member for who, member in known.items() if who not in present),
        changed=tuple(member for who, member in present.items() if known.get(who, member) != member),
    )


def _identity(member: Member) -> tuple[str, str, int]:
    return member.id, member.session, member.since_index
