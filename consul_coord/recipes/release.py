"""Giving up a hold, and saying truthfully what came of it.

Rules
- The hold ends here first, then on the server: nobody believes in it while the key is given away.
- RELEASED: the key was ours and was given back. ALREADY_LOST: it was not ours any more. UNKNOWN: no answer
  came in time, and the reaper goes on; the key's turn is his until then, so no new attempt on it by this
  client begins before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError
from consul_coord.events import Released
from consul_coord.models import ReleaseOutcome
from consul_coord.recipes.reaper import Unlock
from consul_coord.recipes.unlock import Unlocked, unlock

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.recipes.coordinator import Coordinator
    from consul_coord.recipes.hold import HoldCore

BUDGET = 5.0
"""Seconds for which a release waits for its answer before it leaves the rest to the reaper."""
_UNKNOWN = Unlocked(ReleaseOutcome.UNKNOWN)


async def release(io: IO, core: Coordinator, hold: HoldCore) -> ReleaseOutcome:
    """Give up a hold, or the latest of several acquires that it stands for.

    Idempotent: later calls return the first outcome. Raises nothing of the server's or the network's.
    """
    hold.look(io.now())
    if hold.depth > 1 and not hold.ended:
        hold.depth -= 1
        return ReleaseOutcome.RELEASED
    if not hold.begin_release():
        if hold.lost.is_set():
            return hold.finish_release(ReleaseOutcome.ALREADY_LOST)
        async with io.shield(BUDGET) as deadline:
            await io.wait(hold.settled, deadline=deadline)
        return hold.outcome.value or ReleaseOutcome.UNKNOWN
    found = _UNKNOWN
    try:
        async with io.shield(BUDGET) as deadline:
            found = await _unlock_hold(io, core, hold, deadline)
    finally:
        # Also after a KeyboardInterrupt, wherever it struck: the hold ends one way or the other.
        if found.outcome is ReleaseOutcome.UNKNOWN:
            core.reaper.add(Unlock.of(hold))
        else:
            core.note_queue(found.queue, hold.session)
            core.queues.leave(hold.turn)
        hold.finish_release(found.outcome, found.loss)
        io.emit(Released(hold.key, hold.session, hold.fence, found.outcome))
    return found.outcome


async def _unlock_hold(io: IO, core: Coordinator, hold: HoldCore, deadline: float) -> Unlocked:
    try:
        return await unlock(
            io,
            key=hold.key,
            session=hold.session,
            index=hold.last_index,
            value=hold.value,
            flags=hold.flags,
            deadline=deadline,
            read_queue=hold.key not in core.without_queue,
        )
    except ConsulCoordError:
        return _UNKNOWN
