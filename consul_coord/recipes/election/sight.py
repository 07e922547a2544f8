"""The leader as a candidate has seen it last, and for how long that says anything.

Rules
- A look counts for one TTL of the leader's session. A leader that is cut off as this client is has stopped
  by then: its lease ends no later. One that still has contact may go on, unseen.
- Where the token may not read the leader's session, the TTL is taken to be the candidate's own. A session
  without a TTL never runs out.
- One thread writes; what was seen is replaced as a whole, so any thread may read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.value import Value

if TYPE_CHECKING:
    from consul_coord.models import LeaderInfo


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sight(Value):
    """One look at the leadership."""

    leader: LeaderInfo | None = None
    seen_at: float = -math.inf
    """When it was seen; minus infinity before the first look."""
    ttl: float | None = None
    """The TTL of the leader's session; None when it has none."""

    @property
    def good_until(self) -> float:
        """When a leader that is cut off since then has stopped."""
        return math.inf if self.leader is None or self.ttl is None else self.seen_at + self.ttl

    def at(self, now: float) -> LeaderInfo | None:
        """Return the leader, unless it must have stopped by now if it is cut off."""
        return self.leader if now < self.good_until else None

    def age(self, now: float) -> float | None:
        """Return the seconds since the look; None before the first one."""
        return None if self.seen_at == -math.inf else now - self.seen_at
