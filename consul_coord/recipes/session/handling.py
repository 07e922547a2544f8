"""Sessions that users keep themselves: opening, resuming after a restart, handing over, closing, cleaning up.

Rules
- Resuming renews first: the lease begins with that, and a session that is gone is refused.
- Closing releases what the session holds, then destroys it: the other way round would impose the lock-delay.
- A session that was exported belongs to whoever resumes it: closing only stops its renewal, and its locks
  stay locked until it is resumed or its TTL is over. It may be resumed where it is, too: then who had it here
  before has it no longer, and its locks are taken again like anywhere else.
- Cleaning up by name spares what this client keeps itself. Of the others Consul does not tell whether they
  have an owner: that is for who chose the name to know.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, InvalidArgument, SessionNotFound
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import session as endpoint
from consul_coord.http.retry import may_repeat, perform
from consul_coord.models import LossReason, ReadOptions
from consul_coord.recipes.cleanup.reaper import DestroySession
from consul_coord.recipes.hold.release import BUDGET, release
from consul_coord.recipes.session import keeping as sessions
from consul_coord.recipes.session.names import means

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import Session, SessionSpec
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.session.keeping import KeptSession

_CONSISTENT = ReadOptions(consistency="consistent")
_FORMAT = "consul-coord-session:1:"


async def open_session(io: IO, core: ClientState, spec: SessionSpec, *, resume: str | None) -> KeptSession:
    """Create a session, or go on with one that ``export`` told of, and keep it renewed.

    Raises SessionNotFound when the one to resume is gone, InvalidArgument when the text is not an export's.
    """
    deadline = io.now() + core.timeout
    if resume is None:
        return await _open_new(io, core, spec, deadline)
    kept = sessions.KeptSession(parse(resume), spec, outside=False)
    own = core.session(kept.id)
    if own is not None:
        _let_go(core, own)
    try:
        session = await sessions.renew(io, core, kept, deadline=deadline)
    except SessionNotFound as error:
        message = f"session {kept.id} can't be resumed: it has ended. Open a new one"
        raise SessionNotFound(message, session=kept.id) from error
    if sessions.is_lasting(spec, session):
        await sessions.vet_node(io, core, spec, deadline)
    core.adopt_session(kept)
    return kept


async def _open_new(io: IO, core: ClientState, spec: SessionSpec, deadline: float) -> KeptSession:
    source = sessions.SessionSource(core, spec)
    failures = 0
    while True:
        try:
            return await source.live(io, deadline=deadline)
        except ConsulCoordError as error:
            failures += 1
            pause = delay(failures, io.random())
            if not may_repeat(endpoint.create(spec).request, error) or io.now() + pause >= deadline:
                raise
            await io.sleep(pause)


def export(kept: KeptSession) -> str:
    """Hand the session over to whoever resumes it from the returned text."""
    kept.exported = True
    return _FORMAT + kept.id


def _let_go(core: ClientState, kept: KeptSession) -> None:
    """End an exported session here, with its holds, and leave it alone on the server."""
    kept.exported = True
    core.end_session(kept, LossReason.CLIENT_CLOSED)


def parse(text: str) -> str:
    """Return the session id from an exported text. Raises InvalidArgument."""
    session_id = text.removeprefix(_FORMAT)
    if session_id == text or not session_id:
        message = f"this is no exported session: {text[:60]!r}; it begins with {_FORMAT!r}"
        raise InvalidArgument(message)
    return session_id


async def close_session(io: IO, core: ClientState, kept: KeptSession) -> None:
    """Release what the session holds and destroy it, or only stop renewing it when it was exported."""
    if kept.lease.ended_by is not None:
        return
    if kept.ours_to_destroy:
        for hold in list(core.holds_of(kept)):
            await release(io, core, hold)
    core.end_session(kept, LossReason.CLIENT_CLOSED)
    if not kept.ours_to_destroy:
        return
    if core.reaper.owes_unlocks(kept.id):
        # What was forgotten or lost: unlocked first, or it would get the lock-delay.
        core.reaper.add(DestroySession(kept.id))
        return
    destroyed = False
    try:
        async with io.shield(BUDGET) as deadline:
            with suppress(ConsulCoordError):
                await perform(io, endpoint.destroy(kept.id), deadline=deadline, attempt=core.timeout)
                destroyed = True
    finally:
        if not destroyed:
            core.reaper.add(DestroySession(kept.id))


async def named(io: IO, core: ClientState, name: str) -> tuple[Session, ...]:
    """Return the sessions of a name, as the leader has them; those that the token may read."""
    call = endpoint.list_sessions(options=_CONSISTENT)
    found = await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)
    return tuple(session for session in found.value if means(name, session.name))


async def destroy_named(io: IO, core: ClientState, name: str) -> tuple[Session, ...]:
    """Destroy the sessions of a name but those of this client, and return them.

    Raises InvalidArgument for an empty name, which all sessions have that were given none.
    """
    if not name:
        message = "name the sessions to be destroyed: those without a name are other programs'"
        raise InvalidArgument(message)
    stale = tuple(each for each in await named(io, core, name) if core.session(each.id) is None)
    for session in stale:
        call = endpoint.destroy(session.id)
        await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)
    return stale
