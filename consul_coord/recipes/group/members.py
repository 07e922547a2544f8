"""The members of a group as they stand in Consul: pure rules over one reading of them.

A member is a key ``PREFIX/members/BUCKET/ID`` with the group's flags, locked by the member's session; its
value is what the member tells about itself.

Rules
- The bucket is one hexadecimal digit, which follows from the id. Consul says for each prefix when something
  below it has changed, so who knows the members reads only the buckets that have changed.
- A key that no session holds is no member: an operator force-released it, or it is another program's.
- Members are in the order in which they joined, which Raft gives.
- A member that left and came back under the same name between two readings is a new member: it may have lost
  its memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consul_coord.errors import InvalidArgument
from consul_coord.http.endpoints._keys import check_name, check_parent
from consul_coord.models.group import GROUP_FLAGS, Member, Members
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.models import KVPair

BUCKETS: Final = "0123456789abcdef"
_DIRECTORY = "/members"


def bucket_of(member: str) -> str:
    """Return the bucket that a member is in."""
    return hashlib.blake2b(member.encode(), digest_size=1).hexdigest()[0]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupPlan(Value):
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
        if not is_name(member):
            message = f"a member's id is a string without '/', and not empty: not {member!r}"
            raise InvalidArgument(message)
        check_name(f"{self.directory}/{member}")  # its bucket is made of what can be written
        return check_name(f"{self.directory}/{bucket_of(member)}/{member}")

    def bucket(self, bucket: str) -> str:
        """Return where the members of a bucket are, without the slash at its end."""
        return f"{self.directory}/{bucket}"

    def read(self, pairs: Iterable[KVPair]) -> tuple[Member, ...]:
        """Return the members that a listing shows, of all buckets or of one, the longest one first."""
        found = [
            Member(name, pair.value, pair.session, pair.create_index)
            for pair in pairs
            if pair.session is not None
            and pair.flags == GROUP_FLAGS
            and (name := pair.key.rpartition("/")[2])
            and pair.key == f"{self.directory}/{bucket_of(name)}/{name}"
        ]
        return in_order(found)


def is_name(name: object) -> bool:
    """Return whether something can name one thing in a folder."""
    return isinstance(name, str) and bool(name) and "/" not in name


def in_order(members: Iterable[Member]) -> tuple[Member, ...]:
    """Return members, the longest one first."""
    return tuple(sorted(members, key=lambda member: (member.since_index, member.id)))


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
