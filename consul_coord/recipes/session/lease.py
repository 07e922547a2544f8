"""How long a client may treat a session as valid: pure arithmetic.

Rules
- ``valid_until = sent_at + (1 - drift) * horizon``: counted from just *before* the renewal was sent, since
  the server restarted its timer at some moment after that. Only a success moves it. It moves backwards only
  when the server turns out to grant less than was assumed.
- Horizon: min(TTL, lock-delay), for every session. The server waits for the TTL (in fact for twice that)
  before it ends a session that is not renewed. But a session may end at once for other reasons, and then
  nobody can take its keys before the lock-delay has passed.
- Drift covers the difference in rate between the two clocks; 5 % is far beyond any working machine.
- A lease that has ended never comes back: the next acquire gets a new session.
- A hold of several sessions has the lease of all: the loss of one is the loss of all.

Sources: Gray and Cheriton, "Leases" (1989), section 2. Burrows, "The Chubby lock service" (2006), section
2.8. For the TTL as a lower bound, Consul's documentation of sessions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from consul_coord.io import Once

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.io import Signal
    from consul_coord.models import LossReason

LEAST_LEFT = 0.25
"""An acquire renews a lease of which less than this part is left: the keeper is late, as after a suspend."""
RENEW_FRACTION = 0.4
"""A session is renewed when this part of its horizon has passed."""
SPREAD_FRACTION = 0.03
"""A renewal may be put off by this part of the horizon."""


class Lease:
    """The local validity of one session, fed by its renewals."""

    __slots__ = ("_drift", "_end", "_horizon", "in_contact", "longest", "sent_at", "valid_until")

    def __init__(self, *, drift: float) -> None:
        self._drift = drift
        self._end: Once[LossReason] = Once()
        self._horizon: float | None = None
        self.sent_at = -math.inf
        """When the last successful renewal was sent."""
        self.valid_until = -math.inf
        self.longest = math.inf
        """The seconds that a renewal can give at most; infinite without a bound."""
        self.in_contact = True
        """Whether the last renewal succeeded."""

    def confirm(self, *, sent_at: float, horizon: float | None) -> None:
        """Take note of a create or renew, sent at ``sent_at``, that succeeded.

        ``horizon`` is what the server grants at least, in seconds; None is a session without any local bound.
        """
        self.in_contact = True
        self.sent_at = max(self.sent_at, sent_at)
        self._horizon = horizon
        self.longest = math.inf if horizon is None else (1 - self._drift) * horizon
        self.valid_until = math.inf if horizon is None else self.sent_at + self.longest

    def end(self, reason: LossReason) -> bool:
        """End the lease for good; returns whether this call did it."""
        return self._end.settle(reason)

    @property
    def ended_by(self) -> LossReason | None:
        """Why the lease was ended, or None while it was not."""
        return self._end.value

    def is_valid(self, now: float) -> bool:
        """Return whether the session is still valid."""
        return not self._end and now < self.valid_until

    def remaining(self, now: float) -> float:
        """Return the seconds left, 0 when there are none, infinite without a bound."""
        return 0.0 if self._end else max(0.0, self.valid_until - now)

    def is_fit(self, now: float) -> bool:
        """Return whether enough of it is left to begin something."""
        return not self._end and self.valid_until - now >= LEAST_LEFT * self.longest

    def renew_at(self, spread: float = 0.0) -> float:
        """Return when the next renewal is due; never when there is nothing to extend.

        ``spread``, from 0 to 1, puts it off a little: with one at random, clients that began together do not
        stay in step.
        """
        if self._horizon is None:
            return math.inf
        return self.sent_at + (RENEW_FRACTION + SPREAD_FRACTION * spread) * self._horizon


class LeaseView(Protocol):
    """The readable state of a lease, or of several together."""

    @property
    def valid_until(self) -> float:
        """When it is over unless it is renewed."""
        ...

    @property
    def in_contact(self) -> bool:
        """Whether the last renewal succeeded."""
        ...

    @property
    def ended_by(self) -> LossReason | None:
        """Why it was ended, or None while it was not."""
        ...

    @property
    def longest(self) -> float:
        """The seconds that a renewal can give at most."""
        ...

    def is_valid(self, now: float) -> bool:
        """Return whether it is still valid."""
        ...

    def remaining(self, now: float) -> float:
        """Return the seconds left."""
        ...


class AllOf:
    """Several leases as one: it is as short as the shortest, and ends with the first."""

    __slots__ = ("_leases",)

    def __init__(self, leases: Iterable[Lease]) -> None:
        self._leases = tuple(leases)

    @property
    def valid_until(self) -> float:
        """When the first is over."""
        return min(one.valid_until for one in self._leases)

    @property
    def in_contact(self) -> bool:
        """Whether each was renewed when that was tried last."""
        return all(one.in_contact for one in self._leases)

    @property
    def ended_by(self) -> LossReason | None:
        """Why the first was ended, or None while all last."""
        return next((one.ended_by for one in self._leases if one.ended_by is not None), None)

    @property
    def longest(self) -> float:
        """The seconds that renewing all can give at most."""
        return min(one.longest for one in self._leases)

    def is_valid(self, now: float) -> bool:
        """Return whether all are still valid."""
        return all(one.is_valid(now) for one in self._leases)

    def remaining(self, now: float) -> float:
        """Return the seconds left of the one that is over first."""
        return min(one.remaining(now) for one in self._leases)


class Losable(Protocol):
    """An object that can be lost: a hold, or a session."""

    @property
    def valid_until(self) -> float:
        """When it is lost unless something prolongs it."""
        ...

    @property
    def over(self) -> Signal:
        """Raised at its end, whichever it is."""
        ...

    def is_lost(self, now: float) -> bool:
        """Return whether it is lost at ``now``."""
        ...
