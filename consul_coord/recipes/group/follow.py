"""Following who is in a group, at a cost that a group of a thousand can bear.

Rules
- The waiting query is one for a folder name, folded: its answer has a few bytes, whatever the number of
  members. All groups of a client share it (``watch.together``). Only then are the members read.
- The members of a small group are listed. In a large group each bucket is asked for its index, which takes a
  few bytes, and only those that have changed are listed: a sixteenth of the members after one change.
- The reading comes after a random pause, a millisecond for each member: the watchers of a small group hear at
  once. Those of a large one do not all ask at the same moment, and further changes meanwhile cost nothing.
- A listing that is older than the reported change comes from a former leader of the servers. It is read again
  consistently. The buckets' indexes are read consistently, since an old one would hide a change for good.
- The index of a bucket can hide a deletion once Consul has forgotten it, after 15 minutes. So a follower
  whose folder was not asked for for a while, or that starts again after a failure, lists all.
- A follower that starts again looks consistently. The shared query may have reported changes that a former
  leader does not know of, and it reports none twice.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from consul_coord.http.endpoints import kv
from consul_coord.http.messages import Call
from consul_coord.http.retry import wait_once
from consul_coord.io import Signal
from consul_coord.models import Result
from consul_coord.models.group import Members
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.group.members import BUCKETS, bucket_of, compared, in_order
from consul_coord.recipes.watch.follow import Follower
from consul_coord.recipes.watch.places import Folder

if TYPE_CHECKING:
    from consul_coord.http.messages import Response
    from consul_coord.io import IO
    from consul_coord.models import KVPair, Member
    from consul_coord.recipes.group.members import GroupPlan

SPREAD_PER_MEMBER: Final = 0.001
"""Seconds by which a reading is put off for each member, half of them at least."""
LARGE = 128
"""So many members are read bucket by bucket."""
_NOBODY = Members(())


class MembersFollower(Follower[Members]):
    """Follows the members of a group: the present state first, then each change once."""

    def __init__(self, plan: GroupPlan) -> None:
        folder = Folder(plan.directory)
        super().__init__(partial(_first_look, folder))
        self._plan = plan
        self._folder = folder
        self._read_at: dict[str, int] = {}
        """The index of each bucket that its members are known at."""
        self._members: dict[str, tuple[Member, ...]] = {}
        """The members of each bucket."""

    async def _ask(self, io: IO, until: Signal | None) -> Result[Members] | None:
        asked, known, folder = self._tracker.index, self._tracker.last, self._folder
        before = () if known is None else known[0].all
        if asked and self.bound is not None:
            if not await self.bound.together.change(io, folder, until=until):
                return None
        elif await self._look(io, until) is None:
            return None
        else:
            folder.hear(folder.told, io.now())
        if before:
            pause = SPREAD_PER_MEMBER * len(before) * (1 + io.random()) / 2
            if await io.wait(Signal() if until is None else until, deadline=io.now() + pause):
                return None
        changed_at, reports = folder.at, folder.reports
        everything, folder.is_doubtful = folder.is_doubtful or not asked or len(before) < LARGE, False
        read: Result[tuple[object, ...]] | None = None
        try:
            read = await (
                self._read_all(io, changed_at, until) if everything else self._read_buckets(io, until)
            )
        finally:
            if read is None:
                folder.is_doubtful = True
        if read is None:
            return None
        self._failures = 0
        folder.known = max(changed_at, read.index) if read.value else changed_at
        if read.value and not folder.at and folder.reports == reports:
            folder.at = (
                folder.known
            )  # a former leader took it for empty: that is no news until it is said again
        members = in_order(chain.from_iterable(self._members.values()))
        index = max(changed_at, read.index, 1)
        return Result(compared(before, members), index, read.known_leader, read.last_contact)

    async def _read_all(
        self, io: IO, at_least: int, until: Signal | None
    ) -> Result[tuple[KVPair, ...]] | None:
        """List all members; None when ``until`` was raised. ``at_least``: 0 when there should be none."""
        found = await self._list(io, self._plan.directory, at_least or math.inf, until)
        if found is None:
            return None
        self._members = dict.fromkeys(BUCKETS, ())
        for member in self._plan.read(found.value):
            self._members[bucket_of(member.id)] += (member,)
        self._read_at = dict.fromkeys(BUCKETS, found.index)
        return found

    async def _read_buckets(self, io: IO, until: Signal | None) -> Result[tuple[str, ...]] | None:
        """List the buckets that have changed; None as above."""
        told = await self._look_at(io, self._plan.directory, until)
        if told is None:
            return None
        for bucket in BUCKETS:
            place = self._plan.bucket(bucket)
            look = await self._look_at(io, place, until)
            if look is None:
                return None
            if look.index > self._read_at[bucket]:
                found = await self._list(io, place, look.index, until)
                if found is None:
                    return None
                self._members[bucket], self._read_at[bucket] = self._plan.read(found.value), found.index
        return told

    async def _look_at(self, io: IO, place: str, until: Signal | None) -> Result[tuple[str, ...]] | None:
        """Ask a folder for the index of its latest change; None when ``until`` was raised."""
        return await wait_once(io, kv.keys(place, separator="/", options=CONSISTENT), until=until)

    async def _list(
        self, io: IO, place: str, at_least: float, until: Signal | None
    ) -> Result[tuple[KVPair, ...]] | None:
        """Return what is in a folder as of ``at_least`` or later; None when ``until`` was raised."""
        found = await wait_once(io, kv.list_pairs(f"{place}/"), until=until)
        if found is not None and found.index < at_least:
            return await wait_once(io, kv.list_pairs(f"{place}/", options=CONSISTENT), until=until)
        return found


def _first_look(folder: Folder, *, index: int, wait: float) -> Call[Result[Members]]:  # noqa: ARG001 - a Query's
    """Return the request for the index of a folder, as a follower begins, or begins again."""
    call = kv.keys(folder.path, separator="/", options=CONSISTENT if folder.reports else None)

    def decode(response: Response) -> Result[Members]:
        result = call.decode(response)
        folder.told = result.index if result.value else 0
        return Result(_NOBODY, result.index, result.known_leader, result.last_contact)

    return Call(call.request, decode)
