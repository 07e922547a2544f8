"""The keys that one attempt or hold of a lock acts on: the tickets for them, and how they are cleaned.

Rules
- The tickets of an attempt are one claim. It is entered before the first of them joins a queue, so that an
  interrupted call leaves none behind.
- Cleaning a key needs its name, its session and its ticket: whatever an attempt or a hold did, the session's
  contender is removed and the key is unlocked if the session has it.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.recipes.cleanup.tasks import SWEEPS, GiveBack, RemoveKey, Sweep
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.tickets import Ticket

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from consul_coord.models import KVPair
    from consul_coord.recipes.contend.shared import Shared


class Keys:
    """The tickets at the keys of one attempt or hold."""

    def __init__(
        self,
        client: Shared,
        names: Sequence[str],
        flags: int,
        owner: object,
        *,
        remove: tuple[bytes, ...] = (),
    ) -> None:
        self._client = client
        self.remove = remove
        """What the keys may hold to be deleted when they are given back; nothing where they are kept."""
        self.names = names
        self._flags = flags
        self._owner = owner
        self.tickets: dict[str, Ticket] = {}
        self.session = ""
        """That of the last request that may have locked something; empty when there was none."""

    # -- tickets

    def ticket(self, name: str) -> Ticket:
        """Make a ticket for one key; it is this one's from now on, but in no queue yet."""
        ticket = self.tickets[name] = Ticket(self._client.tickets, name, self._owner)
        ticket.session = self.session
        return ticket

    def acts_with(self, session: str) -> None:
        """Take note of the session before a request is sent with it."""
        self.session = session
        for ticket in list(self.tickets.values()):
            ticket.session = session

    def disown(self) -> None:
        """Leave the keys to the clean-up: the former owner may queue behind that."""
        self._owner = None
        for ticket in list(self.tickets.values()):
            ticket.owner = None

    def leave(self) -> None:
        """Let the next one have each key."""
        for ticket in list(self.tickets.values()):
            self._client.tickets.leave(ticket)

    # -- cleaning

    def abandon(self) -> None:
        """Have cleaned what may be left, now and later: the attempt was interrupted."""
        if self.session:
            self.sweep_later(self.session)
        self.give_back(self.session)

    def give_back(self, session: str, *, fence: int | None = None, value: bytes | None = None) -> None:
        """Have removed what the session has at each key whose ticket was first; leave the others.

        ``value``: what its hold wrote last.
        """
        remove = self.remove if value is None or not self.remove else (*self.remove, value)
        for name, ticket in list(self.tickets.items()):
            ticket.owner = None  # who held it may queue behind the clean-up
            if session and ticket.ready.is_set():
                task = GiveBack(
                    key=name,
                    session=session,
                    flags=self._flags,
                    contender=self._contender(name, session),
                    place=ticket,
                    fence=fence,
                    remove=remove,
                )
                self._client.reaper.add(task)
            else:
                ticket.leave()
            self.tickets.pop(name, None)

    def sweep_later(self, session: str) -> None:
        """Have looked for what a request without an answer may still do."""
        for name in self.names:
            sweep = Sweep(
                key=name,
                session=session,
                flags=self._flags,
                contender=self._contender(name, session),
                alone=partial(self._alone, name, session),
                remove=self.remove,
            )
            self._client.reaper.add(sweep, after=SWEEPS[0])

    @contextmanager
    def _alone(self, name: str, session: str) -> Generator[bool]:
        ticket = Ticket(self._client.tickets, name, None)
        try:
            yield self._client.tickets.join_beside(ticket, session)
        finally:
            ticket.leave()

    def _contender(self, name: str, session: str) -> str | None:
        return waitqueue.contender_key(name, session) if len(self.names) == 1 else None

    # -- the queue on the server

    def queue_to_read(self, name: str) -> str | None:
        """Return the prefix of the key's queue, where this client may read it."""
        client = self._client
        if client.queue_memory.without_queue(name, client.host.now()):
            return None
        return waitqueue.directory(name)

    def saw_queue(self, name: str, session: str, tree: Iterable[KVPair]) -> None:
        """Take note of who waited when this client released a key, and have leftovers removed."""
        pairs = tuple(tree)
        if not pairs:
            self._client.queue_memory.saw_waiters(name, waiting=False)
            return
        look = waitqueue.read(name, pairs)
        self._client.queue_memory.saw_waiters(name, waiting=look.others(session))
        stray = (pair for pair in look.live if pair.session == session)
        for pair in (*look.dead, *stray):
            self._client.reaper.add(RemoveKey(pair.key, pair.modify_index))
