"""Following who is in a group, at a cost that a group of a thousand can bear.

Rules
- The waiting query is one for the group's folder name, folded: its answer has a few bytes, whatever the
  number of members. Only then are the members read.
- The members of a small group are listed. In a large group each bucket is asked for its index, which takes a
  few bytes, and only those that have changed are listed: a sixteenth of the members after one change.
- The reading comes after a random pause, a millisecond for each member: the watchers of a small group hear at
  once. Those of a large one do not all ask at the same moment, and further changes meanwhile cost nothing.
- A listing that is older than the reported change comes from a former leader of the servers. It is read again
  consistently. The buckets' indexes are read consistently, since an old one would hide a change for good.
- The index of a bucket can hide a deletion once Consul has forgotten it, after 15 minutes. So a follower that
  has heard nothing for a while, or starts again after a failure, lists all.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from consul_coord.http.endpoints import kv
from consul_coord.http.messages import Call
from consul_coord.http.retry import wait_once
from consul_coord.io import Signal
from consul_coord.models import ReadOptions, Result
from consul_coord.models.group import Members
from consul_coord.recipes.group.members import BUCKETS, bucket_of, compared, in_order
from consul_coord.recipes.watch.follow import WAIT, Follower

if TYPE_CHECKING:
    from consul_coord.http.messages import Response
    from consul_coord.io import IO
    from consul_coord.models import KVPair, Member
    from consul_coord.recipes.group.members import GroupPlan

SPREAD_PER_MEMBER: Final = 0.001
"""Seconds by which a reading is put off for each member, half of them at least."""
LARGE = 128
"""So many members are read bucket by bucket."""
REMEMBERED: Final = 600.0
"""Seconds for which Consul remembers deletions for certain."""
_CONSISTENT = ReadOptions(consistency="consistent")
_NOBODY = Members(())


class MembersFollower(Follower[Members]):
    """Follows the members of a group: the present state first, then each change once."""

    def __init__(self, plan: GroupPlan, *, wait: float = WAIT) -> None:
        super().__init__(partial(_told_of_changes, plan.directory), wait=wait)
        self._plan = plan
        self._heard = -math.inf
        """When the latest answer came."""
        self._read_at: dict[str, int] = {}
        """The index of each bucket that its members are known at."""
        self._members: dict[str, tuple[Member, ...]] = {}
        """The members of each bucket."""

    async def _ask(self, io: IO, until: Signal | None) -> Result[Members] | None:
        asked, known, heard = self._tracker.index, self._tracker.last, self._heard
        before = () if known is None else known[0].all
        told = await super()._ask(io, until)
        if told is None:
            return None
        self._heard = io.now()
        if known is not None and told.index == asked:
            return replace(told, value=known[0])  # the wait is over, and nothing has changed
        if before:
            pause = SPREAD_PER_MEMBER * len(before) * (1 + io.random()) / 2
            if await io.wait(Signal() if until is None else until, deadline=io.now() + pause):
                return None
        if len(before) >= LARGE and 0 < asked < told.index and self._heard - heard < REMEMBERED:
            index = await self._read_buckets(io, until)
        else:
            index = await self._read_all(io, told.index, until)
        if index is None:
            return None
        members = in_order(chain.from_iterable(self._members.values()))
        return replace(told, value=compared(before, members), index=index)

    async def _read_all(self, io: IO, at_least: int, until: Signal | None) -> int | None:
        """List all members; returns the index to wait from, None when ``until`` was raised."""
        found = await self._list(io, self._plan.directory, at_least, until)
        if found is None:
            return None
        self._members = dict.fromkeys(BUCKETS, ())
        for member in self._plan.read(found.value):
            self._members[bucket_of(member.id)] += (member,)
        self._read_at = dict.fromkeys(BUCKETS, found.index)
        return max(at_least, found.index)

    async def _read_buckets(self, io: IO, until: Signal | None) -> int | None:
        """List the buckets that have changed; returns the index to wait from, None as above."""
        told = await self._index(io, self._plan.directory, until)
        if told is None:
            return None
        for bucket in BUCKETS:
            place = self._plan.bucket(bucket)
            index = await self._index(io, place, until)
            if index is None:
                return None
            if index > self._read_at[bucket]:
                found = await self._list(io, place, index, until)
                if found is None:
                    return None
                self._members[bucket], self._read_at[bucket] = self._plan.read(found.value), found.index
        return told

    async def _index(self, io: IO, place: str, until: Signal | None) -> int | None:
        """Return the index of the latest change in a folder; None when ``until`` was raised."""
        found = await wait_once(io, kv.keys(place, separator="/", options=_CONSISTENT), until=until)
        return None if found is None else found.index

    async def _list(
        self, io: IO, place: str, at_least: int, until: Signal | None
    ) -> Result[tuple[KVPair, ...]] | None:
        """Return what is in a folder as of ``at_least`` or later; None when ``until`` was raised."""
        found = await wait_once(io, kv.list_pairs(f"{place}/"), until=until)
        if found is not None and found.index < at_least:
            return await wait_once(io, kv.list_pairs(f"{place}/", options=_CONSISTENT), until=until)
        return found


def _told_of_changes(directory: str, *, index: int, wait: float) -> Call[Result[Members]]:
    """Return the query for whether anything in a folder has changed since ``index``."""
    options = ReadOptions(index=index, wait=wait) if index else None
    call = kv.keys(directory, separator="/", options=options)

    def decode(response: Response) -> Result[Members]:
        result = call.decode(response)
        return Result(_NOBODY, result.index, result.known_leader, result.last_contact)

    return Call(call.request, decode)
