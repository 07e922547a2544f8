"""The evidence that a hold is lost, and its consequences.

Rules
- Evidence is a 404 on renew after a consistent read, or a consistent read of a key that is newer than the
  fence. Without permission a session reads as gone, and an old leader shows old data. Any other reading is a
  suspicion, and is followed by a consistent one.
- A write by somebody else is no loss as long as the session stays: it is an event.
- No failure of a query is a loss: the lease alone decides how long contact may be missing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError
from consul_coord.events import Overwritten
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import perform
from consul_coord.models.reply import CONSISTENT

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import KVPair, Result
    from consul_coord.recipes.hold.grant import Grant, KeyWatch
    from consul_coord.recipes.session.keeping import Sessions


class HoldWatch:
    """One key of one hold, as the watching engine has it."""

    def __init__(self, sessions: Sessions, hold: Grant, watch: KeyWatch) -> None:
        self._sessions = sessions
        self._hold = hold
        self._watch = watch
        self.key = watch.key
        self.index = watch.index
        self.seldom = watch.seldom
        self.directory = watch.directory
        self.along: tuple[HoldWatch, ...] = ()
        """Other keys of the hold, which are looked at whenever a query for this one ends."""
        self.over = hold.over
        self.kept = watch.kept or hold.kept
        self.is_member = sessions.is_of_members(self.kept)

    async def seen(self, io: IO, result: Result[KVPair | None], *, consistent: bool) -> None:
        """Take note of a reading of the key. Raises what stands in the way of making sure."""
        hold, pair = self._hold, result.value
        if hold.ended:
            return
        if self._watch.loss(pair) is not None:
            deadline = io.now() + self._sessions.timeout
            if consistent:
                await _conclude(io, self._sessions, hold, self._watch, result, deadline=deadline)
            else:
                await _make_sure(io, self._sessions, hold, self._watch, deadline=deadline)
        elif pair is not None and self.key == hold.key:
            _note_write(io, hold, pair)


def _note_write(io: IO, hold: Grant, pair: KVPair) -> None:
    """Report a write by somebody else, once; one of the hold's own goes on record."""
    if pair.modify_index <= max(hold.last_index, hold.overwritten_at):
        return
    if hold.may_have_written(pair.value):
        hold.written(pair, pair.value)
    else:
        hold.overwritten_at = pair.modify_index
        io.emit(Overwritten(hold.key, hold.session, pair.modify_index))


async def make_sure(io: IO, sessions: Sessions, hold: Grant, *, deadline: float) -> None:
    """End the hold if a consistent reading of what it depends on shows that it has ended."""
    await _make_sure(io, sessions, hold, *hold.kind.watches(hold), deadline=deadline)


async def _make_sure(io: IO, sessions: Sessions, hold: Grant, *watches: KeyWatch, deadline: float) -> None:
    deadline = min(hold.lease.valid_until, deadline)
    for watch in watches:
        call = kv.get(watch.key, options=CONSISTENT)
        result = await perform(io, call, deadline=deadline)
        await _conclude(io, sessions, hold, watch, result, deadline=deadline)


async def _conclude(
    io: IO,
    sessions: Sessions,
    hold: Grant,
    watch: KeyWatch,
    result: Result[KVPair | None],
    *,
    deadline: float,
) -> None:
    """End the hold if a consistent reading, just made, shows that it has ended."""
    pair = result.value
    loss = watch.loss(pair)
    if loss is None:
        return
    if (result.index if pair is None else pair.modify_index) < hold.fence:
        return  # older than the grant: no evidence
    if hold.lease.ended_by is None:
        # SessionNotFound has ended the hold; whatever else is raised, the key itself is evidence enough.
        with suppress(ConsulCoordError):
            await sessions.confirm(io, watch.kept or hold.kept, deadline=deadline)
    hold.lose(loss)
