"""Taking several keys at once: all in one transaction, or none.

Rules
- One transaction locks all keys for one session: at no moment are some held and others waited for, so takers
  that name the same keys in different order can't block each other. The fence is the index of that
  transaction, the same for all keys.
- In this client nobody waits for one key's ticket while having another's, for the same reason: who finds one
  busy gives up the others, waits for that, and goes on from there.
- A taker that is refused watches the key that was in the way, and tries again when it is free. There is no
  queue and no promise of order: a taker of many keys may be passed by takers of one.
- A try without an answer may have locked everything, or will: each key's ticket goes to the reaper, who finds
  out, and who looks at the keys again for a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from consul_coord.errors import InvalidArgument, TxnFailed
from consul_coord.http.endpoints._keys import check_key
from consul_coord.http.messages import Retry
from consul_coord.models import _validate
from consul_coord.recipes.contend.attempt import SPREAD
from consul_coord.recipes.contend.refusals import blocked_by
from consul_coord.recipes.lock.attempt import LockAttempt
from consul_coord.recipes.watch.batch import read_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.models import KVPair
    from consul_coord.recipes.hold.grant import Handle

MOST_KEYS = 32
"""A release checks and unlocks every key in one transaction, of 64 operations at most."""


def checked_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys in their order of locking. Raises InvalidArgument."""
    found = {check_key(cast("str", each)) for each in _validate.several(keys) or ()}
    if not 1 <= len(found) <= MOST_KEYS:
        given = len(found) or repr(keys)
        message = f"keys must be a sequence of 1 to {MOST_KEYS} different keys, not {given}"
        raise InvalidArgument(message)
    return tuple(sorted(found))


class MultiLockAttempt(LockAttempt):
    """One call of ``acquire`` of a MultiLock."""

    _in_the_way: KVPair | None = None
    """The key that was in the way of the last try, as read then; None when it was not read."""

    async def _wait_in_line(self) -> None:
        """Wait for nothing: each move gets the tickets, and gives them up again."""

    async def _move(self) -> Handle | None:
        handle: Handle | None = None
        self._in_the_way = None
        try:
            await self._get_tickets()
            await self._need_session()
            handle = await self._try()
        finally:
            # A hold is given back by the register: it has ended before its keys are free.
            if handle is None and self.kind is None:
                self._give_up_tickets()
        if handle is None and self.blocker.kind == "held":
            await self._wait_for_key()
        return handle

    async def _get_tickets(self) -> None:
        """Get the ticket at every key, waiting only for one while having none."""
        busy: str | None = None
        while True:
            if busy is not None:
                # Kept from then on: to give it up again, and begin anew, might go on for ever.
                await self._wait_for_ticket(busy)
            kept, busy = busy, None
            for key in self.plan.keys:
                if key != kept and not await self._get_ticket(key):
                    busy = key
                    break
            if busy is None:
                return
            self.keys.leave()

    async def _get_ticket(self, key: str) -> bool:
        """Get the ticket at a key if that takes no waiting; returns whether it did."""
        tickets, ticket = self.client.tickets, self.keys.ticket(key)
        if tickets.join_if_idle(ticket):
            return True
        return await self._has(key) and tickets.join_beside(ticket, self._given)

    def _give_up_tickets(self) -> None:
        if self.asked:
            # Not when the call ends: it may wait for whoever in this client waits for what it has locked.
            self._sweep_unanswered()
            self.keys.give_back(self.session)
        else:
            self.keys.leave()
        self.asked = False

    async def _try(self) -> Handle | None:
        if not await self._are_locks():
            return None
        try:
            result = await self._ask(*map(self._lock_op, self.plan.keys), retry=Retry.IDEMPOTENT)
        except TxnFailed as error:
            await self._refused_one(error)
            return None
        return await self._granted([pairs[0] for pairs in result])

    async def _are_locks(self) -> bool:
        """Look at the keys that this client has not held yet; returns whether none of them is in the way."""
        unknown = [key for key in self.plan.keys if key not in self.client.holds.fences]
        if not unknown:
            return True
        found = await read_together(self.io, unknown, deadline=self.limit)
        for pair in found.values():
            if self._holder(pair) is not None:
                self._held_by(pair)
                return False
        return True

    def _held_by(self, pair: KVPair) -> None:
        self._in_the_way, self.wanted = pair, pair.key
        self._block("held", session=pair.session)

    async def _refused_one(self, error: TxnFailed) -> None:
        if self.kept is None:
            return
        number = error.failures[0].op_index
        key = self.wanted = self.plan.keys[number if number < len(self.plan.keys) else 0]
        kind = blocked_by(self.client.sessions, self.kept, key, error)
        if kind == "held":
            self._block("held")
            pair = await self._read_refused(key)
            if self._holder(pair) is not None and pair is not None:
                self._held_by(pair)
        elif kind is not None:
            self._block(kind, cause=error if kind == "unreachable" else None)

    async def _wait_for_key(self) -> None:
        """Return when the key that was in the way may be free, or at the deadline."""
        if self.once:
            raise self._timeout()
        if self._in_the_way is not None:
            await self._watch(self._in_the_way.key, self._in_the_way.modify_index)
        await self.io.sleep(self.io.random() * SPREAD)

    async def _withdraw(self, deadline: float) -> bool:  # noqa: ARG002 - an Attempt's
        """Return whether nothing was left: each move cleans up after itself."""
        return not self.asked
