"""The leader as one candidate sees it: by its looks at the queue, or by a query of its own.

Rules
- A candidate's own leadership is read off its hold, which knows of it sooner than the key shows it, and
  knows of its end no later than anybody else.
- A reading from before an own leadership says nothing after it.
- Once a query follows the leader, the looks at the queue count no more: they may be older.
- ``tell`` gets each leader once, in order, and None when nobody is known to lead: also because what was seen
  is too old.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError
from consul_coord.http.failures import retryable
from consul_coord.io import Once
from consul_coord.models import LeaderInfo
from consul_coord.recipes.election.leader import LeaderFollower
from consul_coord.recipes.election.sight import Sight
from consul_coord.recipes.watch.follow import WAIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.io import IO, Signal
    from consul_coord.recipes.contend.changes import Changes
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Grant

FOLLOWING_WAIT = 10.0
"""Seconds until the leader is looked at again without a change, at most."""


class Following:
    """The leader, as far as one candidate has seen."""

    def __init__(
        self,
        client: Shared,
        key: str,
        *,
        own: Callable[[], Grant | None],
        changes: Changes,
        stopping: Signal,
        tell: Callable[[LeaderInfo | None], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        self._client = client
        self._key = key
        self._own = own
        """Returns the candidate's latest leadership."""
        self._changes = changes
        self._stopping = stopping
        self._tell = tell
        self._failed = failed
        self._sight = Sight()
        self._asked_at = -math.inf
        """When the reading began that showed the leader."""
        self._told: list[LeaderInfo | None] = []
        """The last value given to ``tell``; empty before the first time."""
        self._begun: Once[bool] = Once()

    def leader(self, now: float) -> LeaderInfo | None:
        """Return who leads."""
        hold, seen = self._own(), self._sight.at(now)
        ours = (
            seen is not None and hold is not None and (seen.session, seen.term) == (hold.session, hold.fence)
        )
        if hold is not None and hold.is_held(now):
            # The key may show this leadership later than the grant does.
            return seen if ours else LeaderInfo(hold.value, hold.session, None, hold.fence, hold.last_index)
        return None if ours or (hold is not None and self._is_before(hold, seen)) else seen

    def _is_before(self, hold: Grant, seen: LeaderInfo | None) -> bool:
        """Return whether what was seen is older than one's own leadership.

        In a rebuilt cluster a later leader may have a lower term.
        """
        return seen is not None and seen.term < hold.fence and self._asked_at < hold.granted_at

    def age(self, now: float) -> float | None:
        """Return the seconds since the leader was seen; 0 for one's own leadership."""
        hold = self._own()
        return 0.0 if hold is not None and hold.is_held(now) else self._sight.age(now)

    def begin(self) -> None:
        """Follow the leader from now on, until the candidate stops; from any thread."""
        if not self._is_over and self._begun.settle(True):  # noqa: FBT003 - the value says nothing
            for program, name in (
                (self._watch_leader, "follow the leader"),
                (self._watch_age, "watch the age of the leader"),
            ):
                self._client.host.spawn(program, name=f"{name} of {self._key}")

    def has_begun(self) -> bool:
        """Return whether it follows the leader."""
        return bool(self._begun)

    @property
    def wait(self) -> float:
        """How many seconds another query for the key may last so that the two can share one.

        The leader's TTL is taken to be this client's own.
        """
        ttl = self._client.sessions.spec.ttl
        return min(FOLLOWING_WAIT, WAIT if ttl is None else ttl / 2) if self.has_begun() else WAIT

    def saw_in_queue(self, leader: LeaderInfo | None) -> None:
        """Take note of what an attempt to be elected sees."""
        if not self.has_begun():
            # An attempt reads before its own leadership begins, and ends with it.
            self._saw(leader)

    @property
    def _is_over(self) -> bool:
        return self._stopping.is_set() or self._client.closing.is_set()

    def _leads(self) -> bool:
        hold = self._own()
        return hold is not None and hold.is_held(self._client.host.now())

    async def _watch_leader(self, io: IO) -> None:
        follower = LeaderFollower(self._key, wait=FOLLOWING_WAIT, confirming=True, leads=self._leads)
        follower.bound = self._client.watches
        while not self._is_over:
            try:
                seen = await follower.next(io, until=self._stopping)
            except ConsulCoordError as error:
                if not retryable(error):
                    self._failed(error)
                await follower.pause(io, until=self._stopping)
                continue
            if seen is not None:
                self._saw(seen.value, follower.ttl, follower.asked_at)
                self._tell_change(io)

    async def _watch_age(self, io: IO) -> None:
        """Tell that nobody is known to lead any more when what was seen is too old."""
        while not self._is_over:
            with self._changes.watching() as changed:
                if self._told:
                    self._tell_change(io)
                until = self._sight.good_until
                if not self._is_over:
                    await io.wait(changed, deadline=until if io.now() < until else None)

    def _saw(
        self, leader: LeaderInfo | None, ttl: float | None = None, asked_at: float | None = None
    ) -> None:
        """Note the leader that a reading has shown; the reading began at ``asked_at``, or just now."""
        known = self._sight.leader
        if leader is not None and leader.node is None and _same(leader, known):
            leader, ttl = known, ttl or self._sight.ttl
        self._asked_at = self._client.host.now() if asked_at is None else asked_at
        self._sight = Sight(leader, self._client.host.now(), ttl or self._client.sessions.spec.ttl)
        self._changes.tell()

    def _tell_change(self, io: IO) -> None:
        leader = self.leader(io.now())
        news = not self._told or not _same(leader, self._told[0])
        self._told = [leader]
        if news:
            self._tell(leader)


def _same(one: LeaderInfo | None, other: LeaderInfo | None) -> bool:
    """Return whether two readings show the same leader. Its node may be missing in the first one."""
    if one is None or other is None:
        return one is other
    return replace(one, node=None) == replace(other, node=None)
