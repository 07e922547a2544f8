"""A hold as its user has got it, and what can be seen of it from outside.

Rules
- It is relied on until its own deadline on its process's own clock, whether the process runs or not.
- It refers to the hold weakly: one that was dropped without a release must be found.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

from consul_coord.models import LossReason
from consul_coord.testing.simulation.trace import short

if TYPE_CHECKING:
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.process import Process


class Claim:
    """A hold that was reported to a user."""

    __slots__ = (
        "actor",
        "covered",
        "exported",
        "fence",
        "found_lost",
        "gone_since",
        "lacks_since",
        "lease",
        "left",
        "limits",
        "lock_delay",
        "of",
        "others",
        "overwritten",
        "process",
        "promised_until",
        "reference",
        "resumes",
        "said_lost",
        "seldom",
        "session",
        "session_ended",
        "stands",
        "taken_up",
        "told",
        "was_gone",
    )

    def __init__(
        self,
        process: Process,
        hold: Grant,
        *,
        of: str,
        session: str,
        actor: str,
        lock_delay: float,
        covered: float,
    ) -> None:
        self.process = process
        self.actor = actor
        self.of = of
        """The lock's or the election's key, or the semaphore's prefix."""
        self.session = session
        """The one that holds it: a hold of several slots has as many claims, by as many sessions."""
        self.fence = hold.fence
        self.lock_delay = lock_delay
        """That of its session, in seconds, as the server knows it."""
        self.covered = covered
        """For how many seconds after the end of its session the server lets nobody else get it."""
        self.lease = hold.lease
        self.reference = weakref.ref(hold)
        self.exported = False
        """Whether its session was handed over with it."""
        self.taken_up = False
        """Whether somebody has begun to resume it."""
        self.resumes = False
        """Whether it is one that was handed over, for another user."""
        self.told = False
        """Whether its user's callback was called."""
        self.left = False
        """Whether its user is at work no more."""
        self.said_lost = False
        """Whether its user has asked, and learnt that it is lost."""
        self.session_ended: float | None = None
        """When its session was first seen to be gone on the server."""
        self.stands = True
        """Whether the server still has it, as of the last write."""
        self.others: tuple[Claim, ...] = ()
        """The other claims of the same hold: the other keys of a lock of several, or the other slots."""
        self.overwritten = False
        """Whether an operator has written to its key since."""
        self.gone_since: float | None = None
        """When the server was first seen not to have it any more."""
        self.seldom: float | None = None
        """For how many seconds its holder need not look at what it lacks; None while it lacks nothing."""
        self.lacks_since = math.inf
        """Since when it lacks something that its holder looks at as often as that."""
        self.was_gone = False
        """Whether the server was ever seen not to have it."""
        self.promised_until = -math.inf
        """The latest end of its lease that its user could read, by its process's clock."""
        self.limits: dict[LossReason, float] = {}
        """Until when it may last, by its process's clock, as its user has said."""
        self.found_lost: float | None = None
        """When its loss was first seen from outside."""

    @property
    def whole(self) -> tuple[Claim, ...]:
        """All that its hold claims."""
        return (self, *self.others)

    def is_to_last(self, seconds: float | None) -> None:
        """Take note of for how long it may last from now on, as its user says; the first end counts."""
        if seconds is not None:
            until = self.process.host.now() + seconds
            self.limits[LossReason.MAX_HOLD] = min(until, self.limits.get(LossReason.MAX_HOLD, until))

    def believed(self) -> bool:
        """Return whether its user would see it as held."""
        hold = self.reference()
        if hold is None or hold.ended or self.process.crashed:
            return False
        now = self.process.clock.now()
        return self.lease.is_valid(now) and now < hold.valid_until

    @property
    def until(self) -> float:
        """The true time until which it is relied on, as things are."""
        hold = self.reference()
        return self.process.clock.true(self.lease.valid_until if hold is None else hold.valid_until)

    def __str__(self) -> str:
        return f"{self.process.name}'s hold of {self.of} by {short(self.session)} with fence {self.fence}"
