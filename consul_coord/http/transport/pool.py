"""The connections of one client to one agent: which one a request gets, and how long one is kept.

Rules
- A connection is a socket, and belongs to no thread and no loop: callers and the background share one pool.
- One connection carries one exchange at a time. Kept ones lie in a deque whose ends are popped and pushed
  atomically: there is no lock, and the last used one is used first. One on which there is something to read
  has ended, or gone mad: it is not used.
- Connections are scarce: an agent takes 200 from one address. A kept one is closed within seconds of its last
  use, by ``sweep``, which a client's background calls, or at the latest when the next request looks for one.
  A request may ask for its connection to be kept for longer, or not at all: a renewal has that of the next
  one kept, which finds it open then.
- The agent goes on with a blocking query that nobody waits for any more, and counts its connection until it
  has answered, also when that is closed. So it is *parked* for a moment: it may be all that the client can
  have, and once its reply has come, it is used again. So is the connection of any other request whose caller
  has stopped waiting for the reply.
- Clients that use their connections without a break would never let others in that are beyond the agent's
  limit. So a client that begins something, with nothing to lose yet, first exchanges a connection older than
  ``STAY`` seconds for a new one. If there is no room for that, it closes the old one, too, and *steps aside*.
- A renewal waits a moment for a connection that is about to come back. Only then does it open one, and cuts
  off a blocking query that is overdue: not before, as it may be refused another connection.
"""

from __future__ import annotations

import math
import os
import random
import select
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from consul_coord.http.transport.limit import Limit
from consul_coord.http.transport.wire import Garbled
from consul_coord.weak import Alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord.http.transport.exchange import Attempt
    from consul_coord.http.transport.wire import ReplyReader

MAX_IDLE = 16
"""How many connections are kept."""
KEEP = 4.0
"""How long one is kept after its last use, in seconds."""
KEEP_PARKED = 0.5
"""How long one is kept on which a reply is due that nobody waits for, in seconds."""
STAY = 4.0
"""How long a connection is used, in seconds, before another client may have its place."""
LATE = 2.0
"""Seconds by which a reply may come later than it is due: on its way, and by a clock of another rate."""
LOOK = 1.0
"""Seconds between two sweeps while there is anything that could be parked."""
READ_SIZE = 64 * 1024
PATIENCE = 0.5
"""How long a renewal waits for a connection that is about to come back, in seconds at most."""
PATIENCE_PART = 1 / 8
"""The part of its time for which it does so at most."""


class Link:
    """One open connection. Times are those of its pool."""

    __slots__ = (
        "__weakref__",
        "back_by",
        "has_input",
        "home",
        "in_use",
        "is_cut",
        "is_proven",
        "is_query",
        "kept_until",
        "reader",
        "sock",
        "stays_until",
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.kept_until = 0.0
        """When it is closed unless it was used again."""
        self.stays_until = math.inf
        """When it may be given up for others."""
        self.is_proven = False
        """Whether there is room for it: the agent has answered on it, or the limit was not near."""
        self.in_use = False
        """Whether there is an exchange under way that somebody waits for."""
        self.back_by = 0.0
        """When the agent sends its reply at the latest."""
        self.is_cut = False
        """Whether this side has ended it."""
        self.is_query = False
        """Whether it is a blocking query."""
        self.reader: ReplyReader | None = None
        """The reader of the reply that is still due, while the connection is parked."""
        self.home: Alive[Link] | None = None
        """The set of open connections that it is one of: another one when it was let go of."""
        self.has_input = self._look()
        """Called with 0: whether there is something to read, an end or an error included."""

    def _look(self) -> Callable[[int], object]:
        """Return ``has_input``."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return poll.poll

    def close(self) -> None:
        """Close without a goodbye."""
        self.sock.close()
        if self.home is not None:
            self.home.discard(self)

    def cut_off(self) -> None:
        """End the present exchange; who waits for its reply is woken, which closing would not do."""
        self.is_cut = True
        # A TLS socket's own shutdown() drops the TLS layer, which the waiting task is using.
        with suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def disconnect(self) -> None:
        """Put nothing in the descriptor's place, so that its owners, alive or not, can still close it.

        In a forked child, where no other thread can take its place.
        """
        descriptor = self.sock.fileno()
        if descriptor >= 0:
            os.close(descriptor)  # first: there may be no other one left, nor a file to open
            nothing = socket.socket().detach()
            if nothing != descriptor:
                os.dup2(nothing, descriptor, inheritable=False)
                os.close(nothing)

    def has_answered(self) -> bool:
        """Read what has come of a parked reply; return whether it is whole.

        Raises ``OSError`` or ``Garbled`` when the connection is of no more use.
        """
        reader = self.reader
        if reader is not None and self.has_input(0):
            self.sock.settimeout(0)
            try:
                while not reader.feed(self.sock.recv(READ_SIZE)):
                    pass
            except OSError as error:
                if not would_block(error):
                    raise
            else:
                self.reader = None
                if not reader.reusable:
                    raise ConnectionError("closed after this reply")
        return self.reader is None


def would_block(error: OSError) -> bool:
    """Return whether a socket that never waits has told that it would have to."""
    if isinstance(error, BlockingIOError):
        return True
    ssl = sys.modules.get("ssl")  # not loaded where nobody speaks TLS
    return ssl is not None and isinstance(error, (ssl.SSLWantReadError, ssl.SSLWantWriteError))


class Pool:
    """See the module."""

    def __init__(
        self, *, now: Callable[[], float] = time.monotonic, random: Callable[[], float] = random.random
    ) -> None:
        """Begin without a connection; ``now`` and ``random`` are the simulator's own in its runs."""
        self.now = now
        self.idle: deque[Link] = deque()
        self.parked: deque[Link] = deque()
        self.open: Alive[Link] = Alive()
        """All of them, to be let go of in a forked child."""
        self.engines: dict[object, None] = {}
        """Those that send over it: it is closed when none is left."""
        self.cut_at = -math.inf
        """When all that was under way was cut off."""
        self._random = random
        self.limit = Limit(random)
        self._swept_at = -math.inf
        self.waiting: dict[Attempt, None] = {}
        """The requests that wait for a connection: blocking queries let them go first."""

    def take(self, now: float) -> Link | None:
        """Take out a connection that can be used at once."""
        while True:
            try:
                link = self.idle.pop()
            except IndexError:  # none, or another thread was quicker
                parked = self._answered()
                if parked is not None:
                    # Kept as any other: a request that wants none kept must not close it under the others.
                    parked.kept_until = max(parked.kept_until, now + KEEP)
                return parked
            if now < link.kept_until:
                if not link.has_input(0):
                    return link
                self.limit.ended(now)
            link.close()

    def _answered(self) -> Link | None:
        """Take out a parked connection whose reply has come."""
        for _ in range(len(self.parked)):
            try:
                link = self.parked.popleft()
            except IndexError:
                break
            try:
                if link.has_answered():
                    return link
            except (OSError, Garbled):
                link.close()
            else:
                self.parked.append(link)
        return None

    def park(self, link: Link, reader: ReplyReader, now: float) -> None:
        """Keep a connection on which a reply is still due."""
        link.reader, link.in_use = reader, False
        link.kept_until = now + KEEP_PARKED
        self.parked.append(link)

    def wait_for_one(self, now: float, until: float) -> float:
        """Return how long a renewal waits before it looks for a connection again, 0 to open one."""
        if now < until and any(link.in_use and link.back_by <= until for link in self.open.all()):
            return min(until - now, 0.01)
        return 0.0

    def cut_overdue(self, now: float) -> None:
        """Cut off the blocking queries that have not returned in time: there is another connection now."""
        for link in self.open.all():
            if link.in_use and link.is_query and link.back_by + PATIENCE_PART < now:
                link.cut_off()

    def has_in_use(self) -> bool:
        """Return whether there are connections in use."""
        return any(True for _ in self._taken())

    def has_another(self) -> bool:
        """Return whether there is a connection beside one that has just been used.

        Near the limit a new one does not count before it was answered: the agent may have no room for it.
        """
        return bool(self.idle) or any(link.is_proven for link in self._taken())

    def has_query(self) -> bool:
        """Return whether a blocking query is under way: its connection becomes free."""
        return any(link.is_query for link in self._taken())

    def _taken(self) -> Iterator[Link]:
        """Yield the connections with an exchange under way, or with a reply due that nobody waits for."""
        return (link for link in self.open.all() if link.in_use or link.reader is not None)

    def stay(self, link: Link, now: float) -> None:
        """Take note of a new connection. Those of clients that began together are not given up together."""
        link.stays_until = now + STAY * (0.75 + 0.5 * self._random())

    def step_aside(self, now: float) -> None:
        """Close what is not in use, and let other clients connect first."""
        for links in (self.idle, self.parked):
            while links:
                with suppress(IndexError):  # in use, once more
                    links.pop().close()
        self.limit.step_aside(now)

    def cut(self) -> None:
        """End all exchanges that are under way: the agent is given up.

        One that has begun and has no connection yet ends as soon as it has one.
        """
        self.cut_at = self.now()
        for link in self._taken():
            link.cut_off()

    def sweep(self, now: float, *, most: int = MAX_IDLE) -> float:
        """Close what was kept too long, or is too much; return the seconds until there may be more."""
        may_be_parked = any(link.is_query and link.in_use for link in self.open.all())
        next_at = now + (LOOK if may_be_parked or self.parked else KEEP)
        if self.limit.is_near(now):
            while (link := self._answered()) is not None:
                # Its reply has come since it was parked, and since the last sweep.
                link.kept_until = max(link.kept_until - KEEP_PARKED, self._swept_at) + KEEP
                self.idle.appendleft(link)
        self._swept_at = now
        for links, limit in ((self.idle, most), (self.parked, MAX_IDLE)):
            for _ in range(len(links)):
                try:
                    link = links.popleft()
                except IndexError:  # in use, once more
                    break
                needed_until = link.back_by + LATE
                is_needed = links is self.parked and now < needed_until and self.limit.is_near(now)
                if (link.kept_until <= now and not is_needed) or len(links) >= limit:
                    link.close()
                else:
                    links.append(link)
                    next_at = min(next_at, needed_until if is_needed else link.kept_until)
        return next_at - now

    def forget(self) -> None:
        """Let go of a parent process's sockets without sending anything; its engines send no more."""
        links, self.open = self.open.all(), Alive()
        for link in links:
            link.disconnect()
            if not link.in_use:
                link.sock.close()
        self.idle.clear()
        self.parked.clear()
        self.engines.clear()
