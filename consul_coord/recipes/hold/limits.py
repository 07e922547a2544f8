"""Holds that end before their session does: after ``max_hold``, or for want of a beat.

Rules
- Such a hold ends for its holder first, who may be stuck, and go on without having noticed. Its key stays
  locked. A plain unlock imposes no lock-delay: the next holder would be at work beside the one that is stuck.
- So the session's lock-delay is kept here, from the loss on; then the key is given back in the background.
- A holder that has left is at work no more: its key is given back at once.
- The session goes on meanwhile, as other holds may depend on it; one that was made elsewhere, too. When it
  ends, by whatever, the servers keep the lock-delay, and there is nothing to give back. So it is when the
  client closes, or the process dies.
- Until the session is known to be gone, the key keeps its ticket, so that no clean-up unlocks it.
- One program looks after all of them while there are any. A beat that comes in time wakes nobody.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from consul_coord.io import OnDemand, Signal
from consul_coord.models import LossReason

if TYPE_CHECKING:
    from consul_coord.io import IO, Host
    from consul_coord.recipes.hold.grant import Grant

LOOK = 1.0
"""Seconds between two looks at the clock, at most: timers stand still while a machine is suspended."""


class Limits:
    """See the module."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._limited: dict[Grant, None] = {}
        """Those that have a limit, and have not ended as far as is known."""
        self._owed: dict[Grant, float] = {}
        """Those that are lost by it, and when their keys are given back."""
        self._more = Signal()
        self._wakes_at = math.inf
        self._program = OnDemand(host, self._run, has_work=self._has_work, name="limits of holds")

    def __len__(self) -> int:
        return len(self._owed)

    def _has_work(self) -> bool:
        return bool(self._limited or self._owed)

    def watch(self, hold: Grant) -> None:
        """Have a hold's loss noticed when its limit comes; from any thread."""
        self._limited[hold] = None
        self._wake(hold.limited_until)

    def owe(self, hold: Grant) -> None:
        """Have the key of a hold that is lost by its limit given back, in time; repeatable."""
        self._owed.setdefault(hold, self._host.now() + hold.kept.lock_delay)
        hold.kept.users.add(hold)
        if hold.left:
            self._give_back(hold)
        else:
            self._wake(self._owed.get(hold, math.inf))

    def holder_left(self, hold: Grant) -> None:
        """Give a hold's key back at once if it is owed, and its holder is at work no more."""
        if hold.left:
            self._give_back(hold)

    def give_up(self) -> None:
        """Owe nothing any more: the client closes, and has ended the sessions."""
        self._owed.clear()

    def _wake(self, by: float) -> None:
        if by < self._wakes_at:
            self._more.set()
        self._program.start()

    def _give_back(self, hold: Grant) -> None:
        if self._owed.pop(hold, None) is None:
            return
        hold.kept.users.discard(hold)
        if hold.lease.ended_by is None and not hold.kept.exported:
            hold.kind.abandon(hold)
        else:
            hold.kind.lost(hold)

    async def _run(self, io: IO) -> None:
        while self._has_work():
            # Nothing is known to be planned until all were looked at: whoever comes meanwhile wakes us.
            self._more, self._wakes_at = Signal(), math.inf
            for hold in list(self._limited):
                if not hold.is_held(io.now()):
                    self._limited.pop(hold, None)
            for hold, due in self._owed.copy().items():
                if io.now() >= due or hold.lease.ended_by is LossReason.SESSION_GONE:
                    self._give_back(hold)
            limits = [hold.limited_until for hold in list(self._limited)]
            self._wakes_at = min([io.now() + LOOK, *limits, *list(self._owed.values())])
            await io.wait(self._more, deadline=self._wakes_at)
