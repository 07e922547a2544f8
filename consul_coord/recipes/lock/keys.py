"""The keys that one attempt or hold of a lock acts on: the tickets for them, and how they are given back.

Rules
- A hold stands on all its keys: the loss of one is its loss, and what is still locked is then given back.
- They are given back in one transaction; where one of several keys has changed, each by itself.
- The keys' tickets go on when that is answered, so that no new attempt on a key by this client begins before.
- The tickets of an attempt are one claim. It is entered before the first of them joins a queue, so that an
  interrupted call leaves none behind.
- Cleaning a key needs its name, its session and its ticket: whatever an attempt or a hold did, the session's
  contender is removed and the key is unlocked if the session has it.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.models import LossReason, ReleaseOutcome, TxnOp
from consul_coord.recipes.cleanup.tasks import SWEEPS, GiveBack, Sweep
from consul_coord.recipes.cleanup.unlock import Locked, unlock, unlock_together
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.limits import LONGEST, check_value
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.hold.grant import (
    OVERDUE,
    Ending,
    KeyOfSession,
    KeyWatch,
    loss_of,
    rewriting,
    watch_of,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from consul_coord.io import IO
    from consul_coord.recipes.cleanup.unlock import Unlocked
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Grant

_OF_ONE_KEY = {LossReason.KEY_DELETED, LossReason.RELEASED_BY_OTHER, LossReason.TAKEN_OVER}
"""Losses after which the session may still hold other keys."""


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
        """The values with which the keys are deleted when they are given back; empty where they are kept."""
        self.note: str | None = None
        """A key that a take writes beside the lock, and that goes with it; None without one."""
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
        for name, ticket in self.tickets.copy().items():
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
                    note=self.note,
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
                note=self.note,
            )
            self._client.reaper.add(sweep, after=SWEEPS[0])

    @contextmanager
    def _alone(self, name: str, session: str) -> Generator[bool]:
        ticket = Ticket(self._client.tickets, name, None)
        try:
            closed = session in self._client.sessions.closed
            yield self._client.tickets.join_beside(ticket, session, closed=closed)
        finally:
            ticket.leave()

    def _contender(self, name: str, session: str) -> str | None:
        return waitqueue.contender_key(name, session) if len(self.names) == 1 else None


class LockKind(KeyOfSession):
    """One key."""

    _others: tuple[Locked, ...] = ()
    """The keys besides the hold's own, as they were granted."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def kept_as(self, hold: Grant, value: bytes) -> bytes:
        """Return the value, which is kept as it is. Raises ValueTooLarge."""
        rewrite = partial(rewriting, hold.key, hold.session, index=LONGEST, flags=hold.flags)
        return check_value(self._keys.names, value, (rewrite, partial(self._unlocking, hold)))

    def _unlocking(self, hold: Grant, value: bytes) -> tuple[TxnOp, ...]:
        """Return the longest request that gives all keys back, with a new value of the hold's own."""
        own = Locked(hold.key, LONGEST, value, remove=bool(self._keys.remove))
        return tuple(op for one in (own, *self._others) for op in one.unlocking(hold.session, hold.flags))

    def ended(self, hold: Grant) -> None:  # noqa: ARG002 - a HoldKind's
        """Let the holder queue behind what is still to be given back."""
        self._keys.disown()

    async def give_back(self, io: IO, hold: Grant, *, deadline: float) -> Ending:
        """Unlock the key."""
        found = await unlock(io, self._own(hold), session=hold.session, flags=hold.flags, deadline=deadline)
        self._keys.leave()
        return _ending(hold, found)

    def _own(self, hold: Grant) -> Locked:
        return Locked(hold.key, hold.last_index, hold.value, remove=bool(self._keys.remove))

    def abandon(self, hold: Grant) -> None:
        """Leave the unlocking to the reaper, which has the tickets until then."""
        fence = None if hold.reason in OVERDUE else hold.fence  # which is told to be released
        self._keys.give_back(hold.session, fence=fence, value=hold.value)

    def lost(self, hold: Grant) -> None:  # noqa: ARG002 - a HoldKind's
        """Let the next one have the key."""
        self._keys.leave()


class MultiLockKind(LockKind):
    """Several keys, held as one: the hold's own, which is the first, and others as they were granted."""

    def __init__(self, keys: Keys, others: tuple[Locked, ...]) -> None:
        super().__init__(keys)
        self._others = others

    def named(self, hold: Grant) -> str:  # noqa: ARG002 - a HoldKind's
        """Return all keys."""
        return ", ".join(map(repr, self._keys.names))

    def watches(self, hold: Grant) -> tuple[KeyWatch, ...]:
        """Return a watch on every key."""
        own = watch_of(hold)
        return (own, *(KeyWatch(other.key, other.index, own.loss) for other in self._others))

    def guard(self, hold: Grant) -> tuple[TxnOp, ...]:
        """Return the checks of the other keys."""
        return tuple(
            op
            for other in self._others
            for op in (
                TxnOp.check_session(other.key, hold.session),
                TxnOp.check_index(other.key, other.index),
            )
        )

    async def give_back(self, io: IO, hold: Grant, *, deadline: float) -> Ending:
        """Unlock all keys."""
        found = await unlock_together(
            io,
            (self._own(hold), *self._others),
            session=hold.session,
            flags=hold.flags,
            deadline=deadline,
        )
        self._keys.leave()
        lost = next((one for one in found if not one.ours), found[0])
        return _ending(hold, lost)

    def lost(self, hold: Grant) -> None:
        """Let others have the keys: at once, or when the reaper has unlocked what is still locked."""
        if hold.reason in _OF_ONE_KEY:
            self._keys.give_back(hold.session)
        else:
            self._keys.leave()


def _ending(hold: Grant, found: Unlocked) -> Ending:
    if found.ours:
        return Ending(ReleaseOutcome.RELEASED)
    return Ending(ReleaseOutcome.ALREADY_LOST, loss_of(hold.session, found.pair))
