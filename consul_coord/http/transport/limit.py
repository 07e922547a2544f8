"""The agent's limit on connections from one address, as a client comes to know it.

Rules
- An agent that has all the connections it takes (``limits.http_max_conns_per_client``, 200 by default)
  accepts one more and closes it at once; newer ones answer 429 first. A connection that ends so soon, before
  any byte of a reply, is taken for that; over TLS, one that ends amid the handshake. A lost reply looks the
  same: only a second refusal is reported.
- An outage behind a proxy looks the same, too, but ends the open connections as well, which the limit leaves
  alone. Since an open one has ended, and until one is answered, a refusal is not put down to the limit. Then
  no pause exceeds ``LEAST`` seconds, so that a call is served soon after an outage.
- A renewal whose client has no other connection is not held back: it asks at its own pace, its hold learns of
  each failure, and contact that is back is noticed at once.
- Open connections stay open, and requests take turns on them. New connections are tried again after pauses
  that grow to ``MOST`` seconds, with jitter, one try for all requests of a client. From then on the pauses
  shrink again, to ``LEAST`` seconds: of those who wait for room, the ones that have waited longest try most
  often, so that nobody waits for much longer than the others.
- Near the limit, and beside a blocking query of one's own, a new connection is tried with a reading first: a
  request that may be applied once only would leave its outcome unknown.
- A client that steps aside for others tries again after a moment, and after that when they have had their
  tries.
- It is forgotten at the next connection that is answered and kept, and ``REMEMBERED`` seconds after the last
  refusal.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from consul_coord.http.backoff import delay

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = 0.1
MOST = 4.0
"""Seconds between two tries to connect, at first and at most."""
LEAST = 1.0
"""Seconds between two tries of those who have waited for long."""
ASIDE = 0.3
"""Seconds for which a client that gives up its place does not try to connect, on average."""
PATIENT = 5
"""So many refusals lead to the longest pause at the next one."""
REMEMBERED = 30.0
SOON = 1.0
"""A connection that was refused has ended within so many seconds; one that ended later was in use."""
STEP = 0.02
"""Seconds until a request looks again whether another one of its client is done with a connection."""
ALONE = 0.05
"""The same where its client has no other connection: it may be cancelled meanwhile."""
TOO_MANY = (
    "it may have all the connections that it takes from one address "
    "(limits.http_max_conns_per_client, 200 by default), or this is not its HTTP port"
)


HANGS_UP = "it ends the connections in use as well: it does not serve, or a proxy on the way to it"


def nobody() -> None:
    """Take no note."""


class Limit:
    """See the module. Times are those of its pool."""

    def __init__(self, random: Callable[[], float] = random.random) -> None:
        self._random = random
        self.on_refusal: Callable[[], object] = nobody
        """Called at each refusal after a first one, from any thread."""
        self._refusals = 0
        self._refused_at = -math.inf
        self._next_try = -math.inf
        self._ended_at = -math.inf

    def ended(self, now: float) -> None:
        """Take note that the other side has ended a connection on which it had answered before."""
        self._ended_at = now
        self._next_try = min(self._next_try, now + LEAST * self._random())

    def is_blamed(self, now: float) -> bool:
        """Return whether a refusal is put down to the limit."""
        return now >= self._ended_at + REMEMBERED

    def is_near(self, now: float) -> bool:
        """Return whether a connection was refused lately."""
        return now < self._refused_at + REMEMBERED

    def has_refused_since(self, then: float) -> bool:
        """Return whether a connection was refused then or later."""
        return self._refused_at >= then

    def refused(self, now: float) -> None:
        """Take note of a refusal."""
        self._refusals += 1
        self._refused_at = now
        waited = max(0, self._refusals - PATIENT - 1)
        most = max(LEAST, MOST - waited) if self.is_blamed(now) else LEAST
        self._next_try = now + delay(self._refusals, self._random(), first=FIRST, most=most)
        if self._refusals > 1 and self.is_blamed(now):
            self.on_refusal()

    def step_aside(self, now: float) -> None:
        """Try again in a moment, and after that most seldom of all."""
        self._refusals = max(self._refusals, PATIENT)
        self._next_try = now + ASIDE * (0.5 + self._random())

    def admitted(self) -> None:
        """Take note of a new connection that was answered: there is room."""
        self._refusals, self._refused_at, self._ended_at = 0, -math.inf, -math.inf

    def pause(self, now: float, *, others: bool) -> float:
        """Return the seconds until a request looks again, 0 when it may connect.

        ``others``: its client has connections in use, of which one may become free.
        """
        left = self._next_try - now
        return min(left, STEP if others else ALONE) if left > 0 else 0.0
