"""More acts of users with a hold: acquire it again, wait for its end, name it to others.

Rules
- A thread or task that holds a lock gets it again only with a re-entrant one: the same hold, with the same
  fence, until it was released as often. Otherwise it is refused at once, and without a request where
  it is one of one key.
- Of several limits that one hold is given, the first counts.
- A value that a thread writes while another releases the hold is written under this hold, or not at all.
- Of two that release a hold at once, both learn what came of it.
- A wait for the loss of a hold says that it is lost only if it is, and gives up only when its time is over or
  the hold was released.
- A callback that is given after the loss is called at once.
- ``healthy`` says whether the lease of each hold lasts for so many seconds.
- A sequencer names the hold as the server has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
    ConsulCoordError,
    LockLost,
    NotHeld,
    PermissionDenied,
    TxnFailed,
)
from consul_coord.http.failures import retryable
from consul_coord.models import LossReason, ReleaseOutcome
from consul_coord.recipes.contend.recipe import Waiting, acquire
from consul_coord.recipes.hold import asking, holds
from consul_coord.testing.simulation.promises import RELEASED_WITHIN

if TYPE_CHECKING:
    from consul_coord.recipes.contend.recipe import Recipe
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.process import Process

AGAIN = 1.0
"""Seconds that acquiring again may take."""
HEARD_WITHIN = 0.02
"""Seconds after which a callback was called that is called at once."""
JUST = 1e-3
"""Seconds by which sums of times may be wrong."""


async def acquire_again(
    process: Process, io: SimIO, what: Recipe[Any], claim: Claim, *, max_hold: float | None
) -> None:
    """Acquire what the caller holds, and release that again; the first of several limits counts."""
    core, hold, before = process.core, claim.reference(), io.task.sent
    # If the hold is lost just before, this waits like any other acquire.
    call, began = process.judge.promises.called(process, f"acquires {claim.of} again", AGAIN), io.now()
    problem = ""
    try:
        handle = await process.call(
            io.task,
            lambda io: acquire(io, core, what, timeout=AGAIN, max_hold=max_hold),
            interrupt=Waiting(what),
        )
        what.owners.keep(io.owner(), handle)
        claim.is_to_last(max_hold)
        outcome = await holds.release(io, core.holds, handle.grant)
        if handle.grant is not hold:
            problem = "has got another hold"
        elif outcome is not ReleaseOutcome.RELEASED:
            problem = "has not released that, it is said"
        process.judge.see("acquired again")
    except AlreadyHeld:
        problem = "was refused, though its lock is re-entrant" if what.reentrant else ""
        if not claim.others and io.now() > began + JUST and not process.is_behind:
            problem = problem or f"was refused after {io.now() - began:.3f} s"
        process.judge.see("acquired again in vain")
    except AcquireTimeout:
        problem = "waited for itself"
    except (LockLost, AcquireCancelled):
        problem = ""
    finally:
        process.judge.promises.ended(call)
    if io.task.sent > before and not claim.others:
        problem = problem or f"has sent {io.task.sent - before} requests for that"
    if problem and claim.believed() and not process.core.closing.is_set():
        process.judge.convict("answers", f"the user of {claim} acquires it again, and {problem}")
    elif what.reentrant and not problem and hold is not None and hold.released:
        process.judge.convict("answers", f"{claim} is over, and was released once less than acquired")


async def release_twice(process: Process, io: SimIO, hold: Grant) -> ReleaseOutcome:
    """Release a hold, as another task of the process does at the same time."""
    mine, outcomes, promises = process.core.holds, list[ReleaseOutcome](), process.judge.promises

    async def also(io: SimIO) -> None:
        call = promises.called(process, f"also releases {hold.key}", RELEASED_WITHIN, gives_back=True)
        try:
            outcomes.append(await holds.release(io, mine, hold))
        finally:
            promises.ended(call)

    other = process.spawn(also, name="another that releases")
    began = io.now()
    outcome = await holds.release(io, mine, hold)
    await io.wait(other.done, deadline=began + RELEASED_WITHIN)
    # Two that end with their time may end at the same moment, and the first one tell more.
    same = {outcome, ReleaseOutcome.UNKNOWN} if io.now() > began + holds.BUDGET - JUST else {outcome}
    if set(outcomes) - same and not process.core.closing.is_set():
        text = f"{process.name} learns of one release of {hold.key}: {outcome} and {outcomes[0]}"
        process.judge.convict("answers", text)
    return outcome


async def put_late(process: Process, io: SimIO, hold: Grant, value: bytes, *, late: float) -> None:
    """Begin to write the value of a hold in another task, by a request that comes so many seconds late.

    It is written under this hold or not at all, also if its session has the key again by then.
    """
    judge, core = process.judge, process.core

    async def put(io: SimIO) -> None:
        call = judge.promises.called(process, f"puts {hold.key} beside its release", core.timeout)
        try:
            await asking.put(io, core.sessions, hold, value)
        except ConsulCoordError as error:
            if not (retryable(error) or isinstance(error, LockLost | NotHeld | TxnFailed | PermissionDenied)):
                raise
        finally:
            judge.promises.ended(call)
        entry, index = judge.cluster.entry(hold.key), hold.sequencer.lock_index
        if entry is not None and entry.session and entry.value.endswith(value) and entry.lock_index != index:
            text = f"{process.name} has written {value!r} to {hold.key}, and its hold was over"
            judge.convict("guard", text)

    process.link.network.delay_next("put", late)
    process.spawn(put, name="puts beside a release")
    await io.sleep(JUST)


async def wait_for_end(process: Process, io: SimIO, hold: Grant, *, seconds: float) -> None:
    """Wait for the loss of a hold, for so long at most."""
    began, judge = io.now(), process.judge
    call = judge.promises.called(process, f"waits for the loss of {hold.key}", seconds)
    try:
        lost = await asking.wait_for_loss(io, hold, timeout=seconds)
    finally:
        judge.promises.ended(call)
    ended = judge.now
    is_over = hold.reason is not None
    if lost is not is_over and judge.now == ended:  # else its thread stood still amid this look
        judge.convict("answers", f"{process.name} has waited for the loss of {hold.key}, and it is {lost}")
    if not hold.ended and io.now() < began + seconds - JUST:
        left = began + seconds - io.now()
        judge.convict("answers", f"{process.name}'s wait for a loss of {hold.key} ended {left:.3f} s early")


def name_to_others(process: Process, hold: Grant) -> None:
    """Give away the sequencer of a hold; where nobody else has written to the key, the server knows it."""
    entry, sequencer = process.judge.cluster.entry(hold.key), hold.sequencer
    if entry is None or (entry.session, entry.modify_index) != (hold.session, hold.last_index):
        return
    if (sequencer.lock_index, sequencer.session) != (entry.lock_index, entry.session):
        process.judge.convict("answers", f"{process.name} names its hold {sequencer}, which is {entry}")


async def hear_late(process: Process, io: SimIO, hold: Grant) -> None:
    """Give a hold that is lost a callback, which is called at once then."""
    heard, began = list[LossReason](), process.judge.now
    process.core.holds.on_lost(hold, heard.append)
    await io.sleep(HEARD_WITHIN)
    able = process.awake_since < began and not process.core.closing.is_set()
    if able and heard != [hold.reason]:
        text = (
            f"{process.name} asks to be notified of the loss of {hold.key}, {hold.reason}, and hears {heard}"
        )
        process.judge.convict("told", text)


def look_at_health(process: Process, *, slack: float) -> None:
    """Ask whether each hold of a client has so many seconds of its lease left."""
    healthy, mine, now = process.core.healthy(slack), process.core.holds, process.clock.now()
    everybodys = (claim for rules in process.judge.rules.values() for claim in rules.claims)
    claims = [claim for claim in everybodys if claim.process is process and claim.believed()]
    left = min((claim.lease.remaining(now) for claim in claims), default=slack)
    known = {claim.reference() for claim in claims}
    if healthy is not (left >= slack) and known.issuperset(mine.all()) and not process.is_behind:
        text = f"{process.name} is healthy for {slack:.3f} s: {healthy}, and a lease lasts {left:.3f}"
        process.judge.convict("answers", text)
