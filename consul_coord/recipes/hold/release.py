"""Giving up a hold, and saying truthfully what came of it.

Rules
- The hold ends here first, then on the server: nobody believes in it while the key is given away.
- How it is given back is its kind's affair.
- RELEASED: it was ours and was given back. ALREADY_LOST: it was not ours any more. UNKNOWN: no answer came in
  time, and the reaper goes on.
- From its first line the call answers for the hold. Whatever interrupts it, the register finds that out.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError
from consul_coord.events import Released
from consul_coord.io import Signal
from consul_coord.models import ReleaseOutcome
from consul_coord.recipes.hold.grant import Ending

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.hold.holds import Holds

BUDGET = 8.0
"""Seconds for which a release waits for its answer before it leaves the rest to the reaper.

Where the agent has no room for another connection, the release waits for the end of a blocking query: more
than that lasts.
"""
_UNKNOWN = Ending(ReleaseOutcome.UNKNOWN)


async def release(io: IO, holds: Holds, hold: Grant) -> ReleaseOutcome:
    """Give up a hold, or the latest of several acquires that it stands for.

    Idempotent: later calls return the first outcome. Raises nothing of the server's or the network's.
    """
    owner = io.owner()
    if hold.released and hold.released_by.value == owner:
        # By a signal handler perhaps, in the midst of that release: it can't wait for its own thread.
        return hold.outcome.value or ReleaseOutcome.UNKNOWN
    if hold.depth > 1 and hold.is_held(io.now()):
        hold.depth -= 1
        return ReleaseOutcome.RELEASED
    if hold.is_held(io.now()):
        this_call = Signal()
        holds.register.enter(hold, this_call)
        hold.released_by.settle(owner)
        if hold.begin_release():
            return await give_back(io, holds, hold, budget=BUDGET)
    if not hold.released:
        hold.depth, hold.refused_again = max(0, hold.depth - 1), False
        holds.limits.holder_left(hold)
        return hold.finish_release(ReleaseOutcome.ALREADY_LOST)
    async with io.shield(BUDGET) as deadline:
        await io.wait(hold.settled, deadline=deadline)
    return hold.outcome.value or ReleaseOutcome.UNKNOWN


async def give_back(io: IO, holds: Holds, hold: Grant, *, budget: float) -> ReleaseOutcome:
    """Give back on the server what has ended here, within ``budget`` seconds or in the background."""
    ending = _UNKNOWN
    try:
        async with io.shield(budget) as deadline:
            with suppress(ConsulCoordError):
                ending = await hold.kind.give_back(io, hold, deadline=deadline)
    finally:
        # Also after a KeyboardInterrupt: the hold ends one way or the other.
        if ending.outcome is ReleaseOutcome.UNKNOWN:
            hold.kind.abandon(hold)
        hold.finish_release(ending.outcome, ending.loss)
        holds.forget(hold)
        io.emit(Released(hold.key, hold.session, hold.fence, ending.outcome))
    return ending.outcome
