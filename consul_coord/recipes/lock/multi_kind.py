"""The kind of several keys that are held as one, by one session.

Rules
- The hold stands on all its keys: the loss of one is its loss, and what is still locked is then given back.
- Given back in one transaction; where one key has changed, each by itself.
- The keys' tickets go on when that is answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.errors import TxnFailed
from consul_coord.http.endpoints import txn
from consul_coord.http.retry import send_once
from consul_coord.models import LossReason, ReleaseOutcome, TxnOp
from consul_coord.recipes.cleanup.reaper import Unlock, Withdraw
from consul_coord.recipes.cleanup.unlock import unlock
from consul_coord.recipes.hold.kind import Ending, KeyWatch
from consul_coord.recipes.lock.kind import loss_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.io import IO
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.contend.tickets import Ticket
    from consul_coord.recipes.hold.grant import Grant

_OF_ONE_KEY = {LossReason.KEY_DELETED, LossReason.RELEASED_BY_OTHER, LossReason.TAKEN_OVER}
"""Losses that leave the other keys locked."""


@dataclass(frozen=True, slots=True)
class Member:
    """One key of a hold besides its first, as it was granted, and this client's ticket at it."""

    key: str
    index: int
    value: bytes
    ticket: Ticket


class MultiLockKind:
    """The kind of several keys: the hold's own, and its members'."""

    sole = False

    def __init__(self, members: tuple[Member, ...]) -> None:
        self._members = members

    def watches(self, hold: Grant) -> tuple[KeyWatch, ...]:
        """Return a watch on every key."""
        loss = partial(loss_of, hold.session)
        others = (KeyWatch(member.key, member.index, loss) for member in self._members)
        return (KeyWatch(hold.key, hold.last_index, loss), *others)

    def guard(self, hold: Grant) -> tuple[TxnOp, ...]:
        """Return the checks of the members."""
        return tuple(
            op
            for member in self._members
            for op in (
                TxnOp.check_session(member.key, hold.session),
                TxnOp.check_index(member.key, member.index),
            )
        )

    def words_for(self, loss: LossReason) -> str | None:  # noqa: ARG002 - a HoldKind's
        """Return nothing: a loss means what it means for any hold."""
        return None

    def tickets(self, hold: Grant) -> tuple[Ticket, ...]:
        """Return the tickets at all keys."""
        return (hold.ticket, *(member.ticket for member in self._members))

    def kept_as(self, value: bytes) -> bytes:
        """Return the value: it is kept as it is, in the hold's own key."""
        return value

    async def give_back(self, io: IO, core: ClientState, hold: Grant, *, deadline: float) -> Ending:
        """Unlock all keys at once; or each by itself, where one of them has changed."""
        duties = self._duties(hold)
        ops = (
            op
            for duty in duties
            for op in (
                TxnOp.check_index(duty.key, duty.index),
                TxnOp.unlock(duty.key, duty.session, value=duty.value, flags=duty.flags),
            )
        )
        try:
            await send_once(io, txn.txn(*ops), deadline=deadline)
            ending = Ending(ReleaseOutcome.RELEASED)
        except TxnFailed:
            ending = await self._one_by_one(io, duties, deadline)
        for ticket in self.tickets(hold):
            core.queues.leave(ticket)
        return ending

    async def _one_by_one(self, io: IO, duties: Sequence[Unlock], deadline: float) -> Ending:
        ending = Ending(ReleaseOutcome.RELEASED)
        for duty in duties:
            found = await unlock(
                io,
                key=duty.key,
                session=duty.session,
                index=duty.index,
                value=duty.value,
                flags=duty.flags,
                deadline=deadline,
            )
            if found.loss is not None:
                ending = Ending(ReleaseOutcome.ALREADY_LOST, found.loss)
        return ending

    def abandon(self, core: ClientState, hold: Grant) -> None:
        """Leave the unlocking of each key to the reaper, who has its ticket until then."""
        for duty in self._duties(hold):
            core.reaper.add(duty)

    def lost(self, core: ClientState, hold: Grant) -> None:
        """Let others have the keys: at once, or when the reaper has unlocked what is still locked."""
        session_goes_on = hold.look(core.host.now())[1] in _OF_ONE_KEY
        for ticket in self.tickets(hold):
            if session_goes_on:
                core.reaper.add(Withdraw(ticket.key, hold.session, hold.flags, ticket))
            else:
                core.queues.leave(ticket)

    def _duties(self, hold: Grant) -> tuple[Unlock, ...]:
        others = (
            Unlock(
                member.key, hold.session, member.index, member.value, hold.flags, member.ticket, hold.fence
            )
            for member in self._members
        )
        return (Unlock.of(hold), *others)
