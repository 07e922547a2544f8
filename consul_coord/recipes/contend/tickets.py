"""Threads and tasks of one client queue here first, before any of them asks the server.

Rules
- They share a session, and the server grants a key to its session again and again: without this queue two
  threads would both hold it. So whoever acts on a key (an attempt, a hold, a release under way, a clean-up)
  has that key's ticket meanwhile.
- First come, first served, and no request is sent for the waiting.
- ``leave`` may be called at any time and more than once: by who never got the ticket, or gave it up already.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from consul_coord.errors import AlreadyHeld
from consul_coord.io import Signal

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Ticket:
    """A place in the queue of one key; ``ready`` is raised when it is at the head."""

    __slots__ = ("key", "owner", "ready", "session")

    def __init__(self, key: str, owner: object) -> None:
        self.key = key
        self.owner = owner
        self.session = ""
        """The one session that its owner acts on the key with; empty when that is not known."""
        self.ready = Signal()

    def disown(self) -> None:
        """Leave it to what gives the key back: who had it may then queue behind that."""
        self.owner = None


class Tickets:
    """The queues of all keys that this client acts on."""

    def __init__(self, mutex: AbstractContextManager[object]) -> None:
        self._mutex = mutex
        self._queues: dict[str, deque[Ticket]] = {}

    def join(self, ticket: Ticket) -> None:
        """Take a place at the end.

        Raises AlreadyHeld when the same thread or task has the ticket, as it would wait for itself.
        """
        with self._mutex:
            queue = self._queues.setdefault(ticket.key, deque())
            if queue and ticket.owner is not None and queue[0].owner == ticket.owner:
                message = (
                    f"{ticket.key!r} is held by this thread or task already: release it first, "
                    "or use ReentrantLock if it is meant to be taken twice"
                )
                raise AlreadyHeld(message, key=ticket.key)
            queue.append(ticket)
            if queue[0] is ticket:
                ticket.ready.set()

    def join_if_idle(self, ticket: Ticket) -> bool:
        """Take the ticket if nobody acts on the key; returns whether that was so."""
        with self._mutex:
            if self._queues.get(ticket.key):
                return False
            self.join(ticket)
            return True

    def join_beside(self, ticket: Ticket, session: str) -> bool:
        """Take the ticket if nobody acts on the key, or the next one if who does has another session.

        Nobody here begins to act on the key with ``session`` then. Returns whether it was so.
        """
        with self._mutex:
            queue = self._queues.get(ticket.key)
            if not queue:
                self.join(ticket)
                return True
            if queue[0].session in {"", session}:
                return False
            queue.insert(1, ticket)
            return True

    def position(self, ticket: Ticket) -> int | None:
        """Return the place in the queue, 0 for the head, or None when it is not there."""
        with self._mutex:
            queue = self._queues.get(ticket.key, deque())
            return queue.index(ticket) if ticket in queue else None

    def leave(self, ticket: Ticket) -> None:
        """Give up the ticket or the place, and let the next one have it."""
        with self._mutex:
            queue = self._queues.get(ticket.key)
            if queue is None or ticket not in queue:
                return
            queue.remove(ticket)
            if not queue:
                del self._queues[ticket.key]
            else:
                queue[0].ready.set()
