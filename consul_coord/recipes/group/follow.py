"""Following who is in a group, at a cost that a group of a thousand can bear.

Rules
- The waiting query is one for the group's folder name, folded: its answer has a few bytes, whatever the
  number of members. Only then are the members listed.
- The listing comes after a random pause, a millisecond for each member: the watchers of a small group hear at
  once. Those of a large one do not all ask at the same moment, and further changes meanwhile cost nothing.
- A listing that is older than the reported change comes from a former leader of the servers. It is read again
  consistently.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.http.endpoints import kv
from consul_coord.http.messages import Call
from consul_coord.http.retry import wait_once
from consul_coord.io import Signal
from consul_coord.models import ReadOptions, Result
from consul_coord.models.group import Members
from consul_coord.recipes.group.members import compared
from consul_coord.recipes.watch.follow import WAIT, Follower

if TYPE_CHECKING:
    from consul_coord.http.messages import Response
    from consul_coord.io import IO
    from consul_coord.recipes.group.members import GroupPlan

SPREAD_PER_MEMBER = 0.001
"""Seconds by which a listing is put off for each member, half of them at least."""
_CONSISTENT = ReadOptions(consistency="consistent")
_NOBODY = Members(())


class MembersFollower(Follower[Members]):
    """Follows the members of a group: the present state first, then each change once."""

    def __init__(self, plan: GroupPlan, *, wait: float = WAIT) -> None:
        super().__init__(partial(_told_of_changes, plan.directory), wait=wait)
        self._plan = plan

    async def _ask(self, io: IO, until: Signal | None) -> Result[Members] | None:
        asked, known = self._tracker.index, self._tracker.last
        before = _NOBODY if known is None else known[0]
        told = await super()._ask(io, until)
        if told is None:
            return None
        if known is not None and told.index == asked:
            return replace(told, value=before)  # the wait is over, and nothing has changed
        if known is not None and before.all:
            pause = SPREAD_PER_MEMBER * len(before.all) * (1 + io.random()) / 2
            if await io.wait(Signal() if until is None else until, deadline=io.now() + pause):
                return None
        found = await wait_once(io, kv.list_pairs(self._plan.directory + "/"), until=until)
        if found is not None and found.index < told.index:
            call = kv.list_pairs(self._plan.directory + "/", options=_CONSISTENT)
            found = await wait_once(io, call, until=until)
        if found is None:
            return None
        members = compared(before.all, self._plan.read(found.value))
        return replace(told, value=members, index=max(told.index, found.index))


def _told_of_changes(directory: str, *, index: int, wait: float) -> Call[Result[Members]]:
    """Return the query for whether anything in a folder has changed since ``index``."""
    options = ReadOptions(index=index, wait=wait) if index else None
    call = kv.keys(directory, separator="/", options=options)

    def decode(response: Response) -> Result[Members]:
        result = call.decode(response)
        return Result(_NOBODY, result.index, result.known_leader, result.last_contact)

    return Call(call.request, decode)
