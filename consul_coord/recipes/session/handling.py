"""Sessions that users keep themselves: opening, resuming after a restart, handing over, closing, cleaning up.

Rules
- Resuming renews first: the lease begins with that, and a session that is gone is refused. Passing trouble is
  sat out: nobody else renews the session meanwhile.
- A session that was exported belongs to whoever resumes it: closing only stops its renewal, and its locks
  stay locked until it is resumed or its TTL is over. It may be resumed where it is, too: then who had it here
  before has it no longer, and its locks are taken again like anywhere else. One that this client is about to
  destroy is not resumed: it would end in use, with the lock-delay.
- Cleaning up by name spares what this client keeps itself. Of the others Consul does not tell whether they
  have an owner: that is for who chose the name to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, InvalidArgument, SessionNotFound
from consul_coord.http.endpoints import session as endpoint
from consul_coord.http.retry import Failures, ask, may_repeat, perform
from consul_coord.models import LossReason, SessionSpec, _validate
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.session.keeping import KeptSession, SessionSource, is_lasting, renew, vet_node
from consul_coord.recipes.session.names import means

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import Session
    from consul_coord.recipes.session.keeping import Sessions

_FORMAT = "consul-coord-session:1:"


async def open_session(io: IO, sessions: Sessions, spec: SessionSpec, *, resume: str | None) -> KeptSession:
    """Create a session, or go on with one from ``export``, and keep it renewed.

    Raises SessionNotFound when the one to resume is gone, InvalidArgument when the text is not an export's.
    """
    _validate.instance("spec", spec, SessionSpec)
    deadline = io.now() + sessions.timeout
    if resume is None:
        return await _open_new(io, sessions, spec, deadline)
    kept = KeptSession(parse(resume), spec, outside=False)
    session = await _renewed(io, sessions, kept, deadline)
    if is_lasting(spec, session):
        await vet_node(io, sessions, spec, deadline)
    sessions.check_open(kept.id)
    own = sessions.get(kept.id)
    if own is not None:  # only now: where it can't be resumed, who has it keeps it
        _let_go(sessions, own)
    try:
        sessions.adopt(kept)
        sessions.handed_over.discard(kept.id)
    except BaseException:
        _let_go(sessions, kept)  # perhaps nobody renews it
        raise
    return kept


async def _renewed(io: IO, sessions: Sessions, kept: KeptSession, deadline: float) -> Session:
    failures = Failures(io, deadline)
    while True:
        try:
            return await renew(io, sessions, kept, deadline=deadline)
        except SessionNotFound as error:
            message = f"session {kept.id} can't be resumed: it has ended. Open a new one"
            raise SessionNotFound(message, session=kept.id) from error
        except ConsulCoordError as error:
            await failures.pause(error)


async def _open_new(io: IO, sessions: Sessions, spec: SessionSpec, deadline: float) -> KeptSession:
    source = SessionSource(sessions, spec)
    failures = Failures(io, deadline)
    try:
        while True:
            try:
                return await source.live(io, deadline=deadline)
            except ConsulCoordError as error:
                if not may_repeat(endpoint.create(spec).request, error):
                    raise
                await failures.pause(error)
    except BaseException:
        source.give_up()  # it may be made yet
        raise


def export(kept: KeptSession) -> str:
    """Hand the session over to whoever resumes it from the returned text.

    Raises SessionNotFound when it has ended without having been exported.
    """
    if kept.lease.ended_by is not None and not kept.exported:
        what = "is the parent's" if kept.lease.ended_by is LossReason.FORKED else "has ended"
        message = f"session {kept.id} can't be exported: it {what}. Open a new one with client.keep_session"
        raise SessionNotFound(message, session=kept.id)
    kept.exported = True
    return _FORMAT + kept.id


def _let_go(sessions: Sessions, kept: KeptSession) -> None:
    """End an exported session here, with its holds, and leave it alone on the server."""
    kept.exported = True
    sessions.end(kept, LossReason.CLIENT_CLOSED)


def parse(text: str) -> str:
    """Return the session id from an exported text. Raises InvalidArgument."""
    session_id = _validate.text("resume", text).removeprefix(_FORMAT)
    if session_id == text or not session_id:
        message = f"this is no exported session: {text[:60]!r}; it begins with {_FORMAT!r}"
        raise InvalidArgument(message)
    return session_id


async def named(io: IO, name: str, *, timeout: float) -> tuple[Session, ...]:
    """Return the sessions of a name, as the leader has them; those that the token may read."""
    _validate.text("name", name)
    call = endpoint.list_sessions(options=CONSISTENT)
    found = await ask(io, call, timeout=timeout)
    return tuple(session for session in found.value if means(name, session.name))


async def destroy_named(io: IO, sessions: Sessions, name: str, *, timeout: float) -> tuple[Session, ...]:
    """Destroy the sessions of a name but those of this client, and return them.

    Raises InvalidArgument for an empty name, which all sessions have that were given none.
    """
    if not name:
        message = "name the sessions to be destroyed: those without a name are other programs'"
        raise InvalidArgument(message)
    deadline = io.now() + timeout
    found = await named(io, name, timeout=timeout)
    stale = tuple(each for each in found if sessions.get(each.id) is None)
    for session in stale:
        call = endpoint.destroy(session.id)
        await perform(io, call, deadline=deadline)
    return stale
