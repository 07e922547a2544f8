"""The calls of users on a candidate: start and stop, wait, resign, hand over, advertise.

Rules
- A waiting call looks again at each of the candidacy's ``changes``, and judges the state of that moment.
- Without a candidacy, or before its first leadership, there is nothing to wait for or to give up.
- A candidate's attempt has no deadline, so it makes no last look: the waiting call makes it, in its own time.
  It asks who leads: a candidate that follows another one may not have read that since long before the call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    ClientClosed,
    ConsulCoordError,
    NotHeld,
    TxnFailed,
)
from consul_coord.http.failures import NOT_ANSWERED, next_step
from consul_coord.models import Holder, LossReason, ReleaseOutcome, _validate
from consul_coord.recipes.contend import last_look
from consul_coord.recipes.contend.attempt import deadline_of
from consul_coord.recipes.contend.refusals import within
from consul_coord.recipes.election import heirs, leader
from consul_coord.recipes.election.leadership import check, told_as_leadership, why_over
from consul_coord.recipes.hold import asking as hold_ops
from consul_coord.recipes.hold.holds import release

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.recipes.election.candidacy import Candidacy
    from consul_coord.recipes.hold.grant import Grant


async def start(io: IO, candidacy: Candidacy) -> None:
    """Begin a candidacy in the background; harmless when that was done before. If it can't, it is over."""
    if candidacy.task is None:
        try:
            candidacy.task = io.spawn(candidacy.run, name=f"election {candidacy.plan.key}")
        except BaseException:
            candidacy.stop()
            raise


async def stop(io: IO, candidacy: Candidacy, *, timeout: float) -> None:
    """End a candidacy, resigning first; waits up to ``timeout`` seconds for that."""
    timeout = _validate.span("timeout", timeout)
    candidacy.stop()
    if candidacy.task is not None:
        async with io.shield(timeout) as deadline:
            await io.wait(candidacy.task.done, deadline=deadline)


async def wait_for_leadership(
    io: IO, candidacy: Candidacy | None, *, key: str = "", timeout: float | None
) -> tuple[Candidacy, Grant]:
    """Return the leadership, as soon as there is one; ``key`` is for the message when there is no candidate.

    Raises AcquireTimeout, AcquireCancelled when there is no candidate (any more), and ClientClosed.
    """
    began, deadline = io.now(), deadline_of(io, timeout)
    seen: tuple[Holder, ...] | None = None
    while candidacy is not None:
        with candidacy.changes.watching() as changed:
            hold = candidacy.leading(io.now())
            if hold is not None:
                return candidacy, hold
            if candidacy.client.closing.is_set():
                raise ClientClosed
            if candidacy.is_over:
                break
            until = last_look.due(deadline, timeout) if seen is None else deadline
            if await io.wait(changed, deadline=until):
                continue
        if seen is not None or io.now() >= deadline:
            raise _timeout(candidacy, seen, waited=io.now() - began)
        seen = await _who_leads(io, candidacy, deadline=deadline)
    if candidacy is None:
        message = f"the election on {key!r} was not started in this process: call start()"
        raise AcquireCancelled(message, key=key)
    key = candidacy.plan.key
    raise AcquireCancelled(f"the election on {key!r} was stopped: start() stands again", key=key)


async def _who_leads(io: IO, candidacy: Candidacy, *, deadline: float) -> tuple[Holder, ...]:
    """Read who leads, and on which node; return the holders known before if that takes too long."""
    until = min(deadline, io.now() + last_look.NODES_BUDGET)
    try:
        info = await leader.leader(io, candidacy.client, candidacy.plan.key, deadline=until)
    except ConsulCoordError:
        return candidacy.blocker.holders
    if info is None:
        return ()
    return (Holder(info.session, node=info.node, value=info.value, fence=info.term),)


def _timeout(
    candidacy: Candidacy, seen: tuple[Holder, ...] | None = None, *, waited: float
) -> AcquireTimeout:
    key, attempt, problem = candidacy.plan.key, candidacy.attempt, candidacy.refusal
    blocker = candidacy.blocker if seen is None else replace(candidacy.blocker, holders=seen)
    just_begun = attempt is not None and attempt.blocker.kind == "unreachable" and attempt.cause is None
    if problem is not None and (attempt is None or just_begun):
        why = f"its last attempt was refused: {problem}"
    elif attempt is not None and not just_begun:
        why = f"{blocker.describe(attempt.cause, nodes=True)}{next_step(attempt.cause)}"
    elif attempt is not None:
        why = f"Consul {NOT_ANSWERED} its first request"
    else:
        why = "it does not stand at present: it just started, rests, is not healthy, or has low priority"
    message = f"not elected leader of {key!r} {within(waited)}: {why}"
    session = "" if attempt is None else attempt.session
    error = AcquireTimeout(message, key=key, session=session, blocker=blocker, waited=waited)
    error.__cause__ = problem if attempt is None or attempt.cause is None else attempt.cause
    return error


async def wait_for_loss(
    io: IO, candidacy: Candidacy | None, *, key: str, timeout: float | None
) -> LossReason:
    """Return why the latest leadership of ``key`` has ended, as soon as it has.

    Raises NotHeld when there was none, and TimeoutError.
    """
    if candidacy is None or (hold := candidacy.latest) is None:
        raise _not_leader(key)
    deadline = deadline_of(io, timeout)
    while (reason := why_over(hold, io.now())) is None:
        if io.now() >= deadline:
            message = f"the leadership of {hold.key!r} was not lost in {timeout:g} s"
            raise TimeoutError(message)
        await io.wait(hold.over, deadline=min(deadline, hold.valid_until))
    return reason


def report_work(candidacy: Candidacy | None, error: BaseException | None) -> None:
    """Report what the leader's work has raised, if anything; a cancellation is no error."""
    if candidacy is not None and isinstance(error, Exception):
        candidacy.report("the leader's work", error)


async def resign(io: IO, candidacy: Candidacy | None, *, pause: float) -> ReleaseOutcome:
    """Give up the leadership, and be no candidate for ``pause`` seconds, and a moment at least."""
    pause = _validate.span("pause", pause)
    if candidacy is None:
        return ReleaseOutcome.ALREADY_LOST
    if pause > 0:
        candidacy.stand_aside(pause)
    hold = candidacy.hold
    return ReleaseOutcome.ALREADY_LOST if hold is None else await release(io, candidacy.client.holds, hold)


async def proclaim(io: IO, candidacy: Candidacy, hold: Grant, value: bytes) -> None:
    """Change what the leader advertises. Raises LeadershipLost, and what the write raises."""
    check(hold, io.now())
    with told_as_leadership(hold):
        await candidacy.term.note(io, hold)
        try:
            await hold_ops.put(io, candidacy.client.sessions, hold, value)
        except TxnFailed:
            check(hold, io.now())
            raise


def leadership_of(candidacy: Candidacy | None, now: float, *, key: str) -> tuple[Candidacy, Grant]:
    """Return the present leadership of ``key``.

    Raises LeadershipLost, or NotHeld when there is none to be lost.
    """
    if candidacy is None or candidacy.hold is None or candidacy.hold.released:
        raise _not_leader(key)
    check(candidacy.hold, now)
    return candidacy, candidacy.hold


def _not_leader(key: str) -> NotHeld:
    message = f"this is not the leader of {key!r}: look at is_leader, or call wait_for_leadership() first"
    return NotHeld(message, key=key)


async def transfer(io: IO, candidacy: Candidacy, hold: Grant, heir: str) -> None:
    """Name a queueing candidate as the next leader, and resign.

    Raises SessionNotFound when no candidate of that session queues, ValueTooLarge when the value of the one
    before it does not fit into the request twice, and LeadershipLost.
    """
    await heirs.name(io, candidacy.client, hold, heir)
    await resign(io, candidacy, pause=0.0)
