"""Threads and tasks of one client queue here first, before any of them asks the server.

Rules
- They share a session, and the server grants a key to its session again and again: without this queue two
  threads would both hold it. So each attempt, hold, release and clean-up has the key's ticket while it acts
  on the key, and only the first ticket of a key acts.
- Another one may act beside it, by a session that nobody acts with: whoever has the key by that session can
  give it back, for which the first one may be waiting.
- First come, first served, and no request is sent while waiting.
- ``leave`` may be called at any time and more than once.
- Each step is one atomic operation on a dict, so that a signal handler, or an exception at any line, finds
  the queue whole. ``heal`` mends what an interrupted ``leave`` left undone: a first ticket that was not told.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from consul_coord.errors import AlreadyHeld
from consul_coord.io import Signal

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Ticket:
    """A place in the queue of one key; ``ready`` is raised when its owner may act on the key."""

    __slots__ = ("_tickets", "key", "owner", "ready", "session")

    def __init__(self, tickets: Tickets, key: str, owner: object) -> None:
        self._tickets = tickets
        self.key = key
        self.owner = owner
        """The thread or task that acts; None for the clean-up, behind which its former owner may queue."""
        self.session = ""
        """The one session that its owner acts on the key with; empty when that is not known."""
        self.ready = Signal()

    @property
    def acts(self) -> bool:
        """Whether its owner may act on the key now: it is the first one, or acts beside that."""
        position = self._tickets.position(self)
        return position == 0 or (position is not None and self.ready.is_set())

    def leave(self) -> bool:
        """Give up the place, and let the next one have it; returns whether it had one."""
        return self._tickets.leave(self)


class Tickets:
    """The queues of all keys that this client acts on."""

    def __init__(self, mutex: AbstractContextManager[object]) -> None:
        self._mutex = mutex
        self._queues: dict[str, dict[Ticket, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, list(self._queues.values())))

    def queue(self, key: str) -> list[Ticket]:
        """Return the tickets of a key, the first one first."""
        return list(self._queues.get(key, ()))

    def join(self, ticket: Ticket) -> bool:
        """Take a place at the end; returns whether it is the first one.

        Raises AlreadyHeld when the same thread or task acts on the key: it would wait for itself.
        """
        with self._mutex:
            queue = self.queue(ticket.key)
            if ticket.owner is not None and any(one.owner == ticket.owner for one in _acting(queue)):
                message = (
                    f"{ticket.key!r} is already held by this thread or task: release it first, "
                    "or use one ReentrantLock object for both if your code acquires it twice"
                )
                raise AlreadyHeld(message, key=ticket.key)
            # An empty queue stays until ``heal``, so that nobody is put into one that was just dropped.
            self._queues.setdefault(ticket.key, {})[ticket] = None
            if not queue:
                ticket.ready.set()
            return not queue

    def join_if_idle(self, ticket: Ticket) -> bool:
        """Take the first place if nobody acts on the key; returns whether that was so."""
        with self._mutex:
            if self.queue(ticket.key):
                return False
            self.join(ticket)
            return True

    def join_beside(self, ticket: Ticket, session: str, *, closed: bool = False) -> bool:
        """Act on the key with ``session``, unless another ticket may be doing that; returns whether it may.

        Nobody here begins to act on the key with that session until this one leaves; with one that is
        ``closed`` nobody begins anyway.
        """
        with self._mutex:
            queue = self.queue(ticket.key)
            acting = _acting(queue)
            if any(one.session == session or not (one.session or closed) for one in acting):
                return False
            ticket.session = session
            self._queues[ticket.key] = dict.fromkeys([*acting, ticket, *queue])
            ticket.ready.set()
            return True

    def position(self, ticket: Ticket) -> int | None:
        """Return the place in the queue, 0 for the first one, or None when it is not there."""
        queue = self.queue(ticket.key)
        return queue.index(ticket) if ticket in queue else None

    def leave(self, ticket: Ticket) -> bool:
        """Give up the place, and let the next one have it; returns whether there was one."""
        with self._mutex:
            queue = self._queues.get(ticket.key, {})
            had_one = ticket in queue
            queue.pop(ticket, None)
            self._tell_first(ticket.key)
        return had_one

    def heal(self) -> None:
        """Tell each first ticket that it is first, and drop empty queues."""
        with self._mutex:
            for key in list(self._queues):
                self._tell_first(key)
                if not self._queues[key]:
                    del self._queues[key]

    def _tell_first(self, key: str) -> None:
        # A copy, in one operation: a signal handler may change the queue meanwhile.
        for ticket in [*self._queues.get(key, ())][:1]:
            ticket.ready.set()  # also again: whoever was about to tell it may have been interrupted


def _acting(queue: list[Ticket]) -> list[Ticket]:
    """Return the tickets at the front whose owners may act: the first one, and those beside it."""
    return queue[:1] + list(takewhile(lambda one: one.ready.is_set(), queue[1:]))
