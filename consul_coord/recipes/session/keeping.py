"""Sessions: made on first need, renewed until they end, replaced by a new one for the next need after a loss.

Rules
- A session's end is reported once, to all its holds, with one reason. 404 on renew is that end; anything else
  is tried again until the lease is over. Nothing that a renewal raises ends the renewing.
- One 404 is not enough: a leader that was just elected, or restarted, gives it for living sessions while it
  still applies its log (seen on 1.8.7, for some milliseconds). It is asked again after a consistent read,
  which a leader answers only once it has caught up.
- Each renewal has its own deadline, a part of the lease, so that one request that hangs leaves time for
  another.
- A reply that is read after the lease is over, as after a pause of the process, comes too late. Somebody may
  have found the holds lost, and nobody gives their keys back while the session lives. So the session ends.
- Renewals and blocking queries take turns on one connection: a query lasts until the next renewal at most,
  and is then asked again. One that would begin just before a renewal has that made first, with those of the
  other sessions that are due before long. With many sessions some renewal is always due: they do without.
- The connection of a renewal is kept while holds depend on the session, and closed at once otherwise.
- A hold is valid for its lease, never for the server's 2 x TTL. The client adopts the TTL and lock-delay that
  the server echoes; until the first echo, a lock-delay that was left to the server is taken for its default.
- A horizon so short that renewals follow each other within a fraction of a second is warned of once.
- Sessions are made, renewed and destroyed in the background. An interrupted caller leaves none half made, and
  several callers share one create.
- A session that ended here is destroyed on the server as soon as that can be reached, *without* releasing its
  keys first: their lock-delay then covers what the former holder may still have under way.
- A create that got no answer may have made a session, or will. It is looked for by its name, which no other
  session has, and destroyed.
- A session that was handed over is not taken up again as an outside one: neither by a candidate that goes on
  nor by a call that waits. Two clients would hold its keys then, with the same fence. Nor is one that was
  closed or lost, until it is destroyed: what it takes would be lost at once, and locked for the lock-delay.
- An outside session (given by its id) is renewed while in use, and never destroyed. When a renewal is due and
  nobody here has it any more, it is left to its owner: else a lock of a dead owner would never be free.

Source: https://developer.hashicorp.com/consul/docs/dynamic-app-config/sessions
"""

from __future__ import annotations

import dataclasses
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from consul_coord.errors import (
    ClientClosed,
    ConsulCoordError,
    NodeNotRegistered,
    NotFound,
    PermissionDenied,
    RequestTimeout,
    SessionNotFound,
    UnsafeSession,
)
from consul_coord.events import (
    Failed,
    Jeopardy,
    OutageBegan,
    OutageEnded,
    Renewed,
    SessionDiffers,
    ShortHorizon,
)
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import session as endpoint
from consul_coord.http.failures import NOT_ANSWERED, again, bare, is_consuls, outcome_unknown
from consul_coord.http.retry import send_once
from consul_coord.io import Once, Signal
from consul_coord.models import LossReason, SessionSpec
from consul_coord.models.reply import CONSISTENT
from consul_coord.models.session import effective_lock_delay, horizon, no_horizon
from consul_coord.recipes.session.lease import Lease
from consul_coord.recipes.session.names import Names
from consul_coord.recipes.session.outage import Outages
from consul_coord.weak import Alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from consul_coord.io import IO, Host
    from consul_coord.models import Session

WATCH_SLICE = 1.0
"""While holds depend on it, a keeper looks at the clock this often.

Timers stand still while a machine is suspended.
"""
EARLY = 0.05
EARLY_PART = 0.02
"""A lease is declared over this many seconds before it is, so that the news is not later than the fact."""
TRIES_PER_LEASE = 4
"""A renewal may take this part of the lease at most."""
SHORT_HORIZON = 1.0
"""Seconds. A shorter horizon is warned of."""
TOGETHER = 8
"""So many sessions, at most, are renewed together."""
SOON = 0.1
"""A query does not begin when less than this part of the time between two renewals is left."""
BEFORE_LONG = 0.5
"""A session that is due within this part of it is renewed along with others."""


class Dependent(Protocol):
    """A hold, as far as its session is concerned."""

    key: str

    def settle_loss(self, reason: LossReason, /) -> bool:
        """End it as lost; returns whether this call did it."""
        ...

    def wake(self) -> None:
        """Tell those who wait for its end."""
        ...

    def announce_end(self) -> object:
        """Report the loss."""
        ...


def lose_together(holds: Iterable[Dependent], reason: LossReason) -> None:
    """End holds as lost, each step for all: nobody hears of one loss and sees another hold still held."""
    lost = [hold for hold in list(holds) if hold.settle_loss(reason)]
    for hold in lost:
        hold.wake()
    for hold in lost:
        hold.announce_end()


class Leftovers(Protocol):
    """The fate of sessions that nobody needs any more."""

    def destroy(self, session: str, contender: str | None = None, /) -> object:
        """Have a session destroyed on the server, after this key of its has been deleted."""
        ...

    def destroy_named(self, name: str, /, *, has_ttl: bool) -> object:
        """Have a session of that name looked for, now and later, and destroyed."""
        ...


class KeptSession:
    """One session on the server, from its creation or adoption to its end."""

    __slots__ = (
        "_hastened",
        "_renewing",
        "_wake",
        "checked",
        "dependents",
        "due",
        "exported",
        "id",
        "lease",
        "left_over",
        "lock_delay",
        "outside",
        "over",
        "renewed",
        "spec",
        "users",
    )

    def __init__(self, session_id: str, spec: SessionSpec, *, outside: bool) -> None:
        self.id = session_id
        self.spec = spec
        self.outside = outside
        """Whether it was made elsewhere: it is then never destroyed here."""
        self.users: Alive[object] = Alive()
        """Those that may begin something with it, or have to give something back, where it is outside."""
        self.exported = False
        """Whether somebody else is to go on with it, and with what it holds."""
        self.lease = Lease(drift=spec.drift)
        self.lock_delay = effective_lock_delay(spec)
        """Seconds for which the servers keep its keys locked after its end."""
        self.dependents: dict[Dependent, None] = {}
        """The holds that end with it."""
        self.over = Signal()
        """Raised at its end."""
        self.left_over = False
        """Whether it has expired, and is to be destroyed."""
        self.checked = False
        """Whether the server's idea of the session has been compared with ours."""
        self.due = -math.inf
        """When the next renewal is due."""
        self.renewed = Signal()
        """Raised when the next renewal has been tried, or the session is over."""
        self._hastened = self._renewing = False
        self._wake = Signal()

    def hasten(self) -> None:
        """Have the next renewal made now, unless one is under way."""
        self._hastened = not self._renewing
        self._wake.set()

    def finish(self) -> None:
        """Wake all who wait for what becomes of it."""
        self.over.set()
        self._wake.set()
        self.renewed.set()

    def next_look(self) -> Signal:
        """Return what is raised when its keeper is to look again before its time."""
        self._wake = Signal()
        return self._wake

    def next_try(self, due: float, now: float) -> float:
        """Return when the next renewal is due: at ``due``, or now if it was hastened."""
        self.due = now if self._hastened else due
        return self.due

    def begin_renewal(self) -> None:
        """Take note that the renewal that is due is being made."""
        self._hastened, self._renewing = False, True

    def end_renewal(self, due: float) -> None:
        """Wake all who wait for the renewal; ``due`` is when the next one is."""
        self.due, self._renewing = due, False
        renewed, self.renewed = self.renewed, Signal()
        renewed.set()

    def due_within(self, part: float, now: float) -> bool:
        """Return whether the next renewal is due within a part of the time between two."""
        return self.due - now < part * (self.due - self.lease.sent_at)

    def keys(self) -> tuple[str, ...]:
        """Return the keys of its holds."""
        return tuple(sorted({each.key for each in list(self.dependents)}))

    @property
    def valid_until(self) -> float:
        """When it is lost unless it is renewed."""
        return self.lease.valid_until

    @property
    def ours_to_destroy(self) -> bool:
        """Whether its end is this client's business."""
        return not (self.outside or self.exported)

    @property
    def is_left(self) -> bool:
        """Whether it was made elsewhere, and nobody here uses it any more."""
        return self.outside and not self.dependents and not self.users.all()

    def is_lost(self, now: float) -> bool:
        """Return whether the session is no longer valid, though nobody here ended it."""
        return not self.lease.is_valid(now) and self.lease.ended_by is not LossReason.CLIENT_CLOSED


class Sessions:
    """The sessions in one client's care."""

    def __init__(
        self,
        host: Host,
        spec: SessionSpec,
        leftovers: Leftovers,
        *,
        timeout: float,
        closing: Signal,
        datacenter: str | None = None,
        handed_over: set[str],
    ) -> None:
        self.host = host
        self.datacenter = datacenter
        """Where the client's requests go, if not to the agent's own one."""
        self.coordination_nodes: set[str] = set()
        """Those that are known to have no agent."""
        self.spec = spec
        """The settings of the shared session."""
        self.timeout = timeout
        """Seconds that one request may take."""
        self.closing = closing
        self.leftovers = leftovers
        self.names = Names(host.random())
        self.shared = SessionSource(self, spec)
        self._members: SessionSource | None = None
        self._kept: dict[str, KeptSession] = {}
        self.handed_over = handed_over
        """Ids of sessions that were exported and closed. This client uses one again only if it resumes it."""
        self.closed: set[str] = set()
        """Ids of sessions that are being closed, or were lost, until they are destroyed: not used again."""
        self._short_horizons: set[float] = set()
        self.outages = Outages(host.mutex())
        self._confirming: dict[str, Signal] = {}
        """The sessions that are just being renewed to see whether they have ended."""

    def source(self, spec: SessionSpec | str | None) -> SessionSource:
        """Return where a recipe gets its session from: the shared one for None."""
        # A session given by its id has an owner elsewhere, perhaps in this very client.
        return self.shared if spec is None else SessionSource(self, spec)

    @property
    def members(self) -> SessionSource:
        """The session of members of groups: their keys vanish with it, and can be made again at once."""
        if self._members is None:
            spec = dataclasses.replace(self.spec, behavior="delete", lock_delay=0.0, allow_unbounded=True)
            self._members = SessionSource(self, spec)
        return self._members

    def is_of_members(self, kept: KeptSession) -> bool:
        """Return whether a session is the one of members of groups."""
        return self._members is not None and self._members.current is kept

    def use(self, spec: SessionSpec) -> None:
        """Make the next shared session by other settings."""
        self.spec = spec
        self.shared.use(spec)

    def forked(self, host: Host) -> None:
        """Count no more on what a forked child's parent may have locked."""
        self.host = host
        self.outages = Outages(host.mutex())

    def __iter__(self) -> Iterator[KeptSession]:
        return iter(list(self._kept.values()))

    def get(self, session_id: str) -> KeptSession | None:
        """Return a session in care by its id."""
        return self._kept.get(session_id)

    def check_usable(self, session_id: str) -> None:
        """Raise SessionNotFound for a session that this client has closed, or is closing."""
        if session_id in self.handed_over:
            message = (
                f"session {session_id} was exported and closed: it is left to the client that resumes it. To "
                "go on with it here, resume it with client.keep_session(spec, resume=text)"
            )
            raise SessionNotFound(message, session=session_id)
        self.check_open(session_id)

    def check_open(self, session_id: str) -> None:
        """Raise SessionNotFound for a session that this client has destroyed, or is about to."""
        if session_id in self.closed:
            message = f"session {session_id} was closed, or lost: open a new one with client.keep_session"
            raise SessionNotFound(message, session=session_id)

    def adopt(self, kept: KeptSession) -> None:
        """Take a session into care: it is renewed from now on."""
        kept.due = kept.lease.renew_at()
        self._kept[kept.id] = kept
        self.host.count("sessions")
        self.host.spawn(lambda io: keep(io, self, kept), name=f"keep session {kept.id}")

    def end(self, kept: KeptSession, reason: LossReason) -> None:
        """End a session for good, telling its holds; harmless when it has ended."""
        if kept.lease.end(reason):
            self.settle_end(kept, reason)

    def settle_end(self, kept: KeptSession, reason: LossReason) -> None:
        """Do what the end of a session brings; repeatable, as ``end`` may be interrupted."""
        lose_together(kept.dependents, reason)
        if reason is LossReason.EXPIRED and kept.ours_to_destroy and not kept.left_over:
            self.leftovers.destroy(kept.id)  # first: nobody who hears of the end takes it up again
            kept.left_over = True
        if self._kept.get(kept.id, kept) is kept:
            self.outages.forget(kept.id)
            self._kept.pop(kept.id, None)
        kept.finish()

    def discard(self, kept: KeptSession, contender: str | None = None) -> None:
        """End a session that nobody here needs any more, and have it destroyed.

        ``contender`` is a key of its that is deleted first. Harmless when it has ended.
        """
        if kept.lease.ended_by is None:
            if kept.ours_to_destroy:
                self.leftovers.destroy(kept.id, contender)  # first: if this is interrupted, it is done again
            self.end(kept, LossReason.CLIENT_CLOSED)

    def held(self, now: float) -> tuple[float, tuple[str, ...]]:
        """Return the keys of all holds, and the seconds until the first of them is lost unless renewed."""
        holding = [kept for kept in self if kept.dependents]
        keys = {hold.key for kept in holding for hold in list(kept.dependents)}
        return min((kept.lease.remaining(now) for kept in holding), default=0.0), tuple(sorted(keys))

    def are_idle(self) -> bool:
        """Return whether nothing depends on any session."""
        return self._members is None and not any(kept.dependents for kept in self)

    @property
    def patience(self) -> float:
        """For how many seconds a renewal that is due may wait for a connection, for whichever session."""
        return min((kept.lease.longest for kept in self), default=math.inf) / TRIES_PER_LEASE

    def hasten_failed(self) -> None:
        """Have each renewal that failed tried again now: contact is back, and a lease may be nearly over."""
        for kept in self:
            if not kept.lease.in_contact:
                kept.hasten()

    def first_warning_of(self, horizon: float) -> bool:
        """Return whether nobody has been warned of a horizon that short yet."""
        known = horizon in self._short_horizons
        self._short_horizons.add(horizon)
        return not known

    async def give_way(self, io: IO, *, until: Signal | None, deadline: float) -> float:
        """Return how many seconds a blocking query that begins now may last: until the next renewal.

        Waits for a renewal that is due, until ``until`` is raised or ``deadline`` comes.
        """
        kept_now = list(self._kept.values())
        if not kept_now or len(kept_now) > TOGETHER:
            return math.inf
        now = io.now()
        if any(kept.due_within(SOON, now) for kept in kept_now):
            for kept in kept_now:
                if kept.due_within(BEFORE_LONG, now):
                    await _renew_first(io, kept, until=until, deadline=deadline)
        return max(0.0, min(kept.due for kept in kept_now) - io.now())

    async def create(self, io: IO, spec: SessionSpec, *, deadline: float = math.inf) -> KeptSession:
        """Make a session and take it into care. Raises what the server or the network says."""
        if self.closing.is_set():
            raise ClientClosed
        deadline = min(deadline, io.now() + self.timeout)
        try:
            kept = await self._create_once(io, spec, deadline)
        except NodeNotRegistered as refused:
            from consul_coord.recipes.session import nodes  # seldom needed

            await nodes.provide(io, self, spec, refused, deadline=deadline)
            kept = await self._create_once(io, spec, deadline)
        if spec.register_node:
            try:
                await vet_node(io, self, spec, deadline)
            except BaseException:
                self.leftovers.destroy(kept.id)
                raise
        self.adopt(kept)
        if self.closing.is_set():
            self.discard(kept)
        return kept

    async def _create_once(self, io: IO, spec: SessionSpec, deadline: float) -> KeptSession:
        name = self.names.unique(spec.name)
        sent_at = io.now()
        try:
            call = endpoint.create(dataclasses.replace(spec, name=name))
            session = await send_once(io, call, deadline=deadline)
        except BaseException as error:
            if outcome_unknown(error):
                self.leftovers.destroy_named(name, has_ttl=spec.ttl is not None)
            raise
        kept = KeptSession(session, spec, outside=False)
        _confirm(io, self, kept, sent_at=sent_at, horizon=spec.lease_horizon)
        return kept

    async def confirm(self, io: IO, kept: KeptSession, *, deadline: float) -> None:
        """End the session if it has ended on the server; asked once at a time.

        Raises SessionNotFound if so, and what stands in the way of knowing.
        """
        deadline = min(kept.lease.valid_until, deadline)
        last = kept.lease.sent_at
        while (confirming := self._confirming.get(kept.id)) is not None:
            if not await io.wait(confirming, deadline=deadline):
                message = f"no renewal of session {kept.id} was answered in time"
                raise RequestTimeout(message, method="PUT", path="/v1/session/renew", outcome_unknown=False)
            if kept.lease.ended_by is not None or kept.lease.sent_at != last:
                return
            # The one that asked got no answer: the next one asks.
        mine = self._confirming[kept.id] = Signal()
        try:
            await renew(io, self, kept, deadline=deadline)
        finally:
            del self._confirming[kept.id]
            mine.set()


async def _renew_first(io: IO, kept: KeptSession, *, until: Signal | None, deadline: float) -> None:
    enough, renewed = Signal(), kept.renewed
    unsubscribes = [signal.subscribe(enough.set) for signal in (renewed, until) if signal is not None]
    try:
        if kept.lease.in_contact:  # one that has failed is tried again after its pause
            kept.hasten()
        if kept.lease.ended_by is None:
            longest = kept.lease.longest / TRIES_PER_LEASE
            await io.wait(enough, deadline=min(deadline, io.now() + longest))
    finally:
        for unsubscribe in unsubscribes:
            unsubscribe()


class Creation:
    """A session that is being made: what came of it, for all who wait for it."""

    __slots__ = ("done", "given_up", "result")

    def __init__(self) -> None:
        self.done = Signal()
        self.result: Once[KeptSession | Exception] = Once()
        self.given_up = False
        """Whether its caller has stopped waiting for it."""

    def settle(self, result: KeptSession | Exception) -> None:
        """Wake everybody who waits."""
        self.result.settle(bare(result) if isinstance(result, Exception) else result)
        self.done.set()

    async def wait(self, io: IO, *, deadline: float) -> KeptSession:
        """Return the session. Raises what making it raised, and RequestTimeout at the deadline."""
        if not await io.wait(self.done, deadline=deadline):
            problem = io.contact.problem or io.contact.trouble
            known = f"; {problem}" if problem else ""
            message = f"no session in time: the agent {NOT_ANSWERED} the request to create one{known}"
            raise RequestTimeout(message, method="PUT", path="/v1/session/create", outcome_unknown=False)
        result = self.result.value
        if isinstance(result, KeptSession):
            return result
        if isinstance(result, ConsulCoordError):
            # One for each that waits: several threads that raise the same one mix up their tracebacks.
            raise again(result)
        raise result or ClientClosed()


class SessionSource:
    """Gives the one live session that its users share, made in the background when first asked for."""

    def __init__(self, sessions: Sessions, spec: SessionSpec | str) -> None:
        self._sessions = sessions
        self._spec = spec
        self._creation = Creation()
        self._making = False
        self._is_wanted = True
        self._latest: list[KeptSession] = []

    def use(self, spec: SessionSpec) -> None:
        """Make the next session by other settings."""
        self._spec = spec

    @property
    def current(self) -> KeptSession | None:
        """The latest session."""
        return self._latest[-1] if self._latest else None

    def discarding(self) -> Callable[[], None]:
        """Return what ends the session when nobody uses this source any more; it does not refer to this."""
        sessions, latest = self._sessions, self._latest

        def discard() -> None:
            for kept in latest:
                sessions.discard(kept)

        return discard

    def give_up(self) -> None:
        """End the session, or the one that is being made: nobody is going to use this source again."""
        self._is_wanted = False
        self.discarding()()

    async def live(self, io: IO, *, deadline: float) -> KeptSession:
        """Return a session that is valid now; a new one is asked for once.

        Raises what the server or the network says; RequestTimeout at the deadline, or when a request may take
        no longer.
        """
        while True:
            kept, now = self.current, io.now()
            if kept is not None and isinstance(self._spec, str):
                self._sessions.check_usable(kept.id)
            if kept is not None and kept.lease.is_fit(now):
                return kept
            deadline = min(deadline, now + self._sessions.timeout)
            if kept is not None and kept.lease.is_valid(now):
                if await self._refresh(io, kept, deadline):
                    return kept
                continue
            creation = self._creation
            if not self._making:
                await io.begin(self._make, name="create a session", deadline=deadline)
            await creation.wait(io, deadline=deadline)  # it may have taken most of its lease

    async def _refresh(self, io: IO, kept: KeptSession, deadline: float) -> bool:
        """Renew a lease that runs out; returns whether it is valid afterwards."""
        # What is left of the lease is good even if this fails; at its end the keeper says so.
        with suppress(ConsulCoordError):
            await renew(io, self._sessions, kept, deadline=min(deadline, kept.lease.valid_until))
        return kept.lease.is_valid(io.now())

    async def _make(self, io: IO) -> None:
        """Make a session, once for all who wait for it by then."""
        if self._making:
            return  # started twice before it ran
        self._making = True
        kept = self.current
        result: KeptSession | Exception
        try:
            if kept is None or not kept.lease.is_valid(io.now()):
                kept = await self._open(io)
            self._latest[:] = [kept]
            if not self._is_wanted:
                self._sessions.discard(kept)
            result = kept
        except Exception as error:  # noqa: BLE001 - raised in those who wait
            result = error
        finally:
            self._making = False
        # The next one to ask begins another creation, or finds this one's session.
        creation, self._creation = self._creation, Creation()
        creation.settle(result)

    async def _open(self, io: IO) -> KeptSession:
        sessions, spec = self._sessions, self._spec
        if not isinstance(spec, str):
            return await sessions.create(io, spec)
        sessions.check_usable(spec)
        kept = sessions.get(spec)
        if kept is None:
            found = KeptSession(spec, SessionSpec(), outside=True)
            await renew(io, sessions, found, deadline=io.now() + sessions.timeout)
            sessions.check_usable(spec)
            kept = sessions.get(spec)  # another source may have taken it up meanwhile
            if kept is None:
                sessions.adopt(kept := found)
        kept.users.add(self)
        return kept


async def vet_node(io: IO, sessions: Sessions, spec: SessionSpec, deadline: float) -> None:
    """Return if no agent owns the coordination node of a spec. Raises UnsafeSession."""
    from consul_coord.recipes.session import nodes  # seldom needed

    await nodes.vet(io, sessions, spec, deadline=deadline)


def is_lasting(spec: SessionSpec, session: Session) -> bool:
    """Return whether a session is on the coordination node of a spec: one that is resumed need not be."""
    return spec.register_node and session.node.lower() == (spec.node or "").lower()


async def renew(io: IO, sessions: Sessions, kept: KeptSession, *, deadline: float) -> Session:
    """Renew once, and return the session as the server has it; extends the lease.

    Raises SessionNotFound after ending the session; other errors change nothing.
    """
    try:
        sent_at, session = await _renew_surely(io, kept, deadline)
    except SessionNotFound:
        sessions.end(kept, LossReason.SESSION_GONE)
        raise
    recovered, granted, until = not kept.lease.in_contact, _horizon(kept, session), kept.lease.valid_until
    _confirm(io, sessions, kept, sent_at=sent_at, horizon=granted)
    if recovered:
        sessions.hasten_failed()
    # Read afterwards: whoever found a hold lost by the old deadline has read the clock before.
    if -math.inf < until <= io.now():
        sessions.end(kept, LossReason.EXPIRED)
    kept.lock_delay = session.lock_delay
    if kept.lease.ended_by is None:
        _compare(io, kept, session)
        io.emit(Renewed(kept.id, kept.lease.remaining(io.now()), recovered, kept.keys() if recovered else ()))
    return session


async def _renew_surely(io: IO, kept: KeptSession, deadline: float) -> tuple[float, Session]:
    try:
        return await _renew_once(io, kept, deadline)
    except SessionNotFound:
        lives = await _lives(io, kept, deadline)
    try:
        return await _renew_once(io, kept, deadline)
    except SessionNotFound as error:
        if not lives or is_consuls(error):
            raise
        message = f"{error.method} {error.path}: 404 of something before the agent: the session is there"
        raise NotFound(
            message, method=error.method, path=error.path, status=error.status, body=error.body
        ) from None


async def _renew_once(io: IO, kept: KeptSession, deadline: float) -> tuple[float, Session]:
    sent_at = io.now()
    # One try only: a repeat would have to move sent_at.
    call = endpoint.renew(kept.id, keep=None if kept.dependents else 0.0)
    return sent_at, await send_once(io, call, deadline=deadline)


async def _lives(io: IO, kept: KeptSession, deadline: float) -> bool:
    """Return whether the session is there, once the leader has applied all that was ever agreed on.

    Only such a leader answers this. Permission is not the question: a refusal is an answer as well.
    """
    with suppress(PermissionDenied):
        found = await send_once(io, endpoint.info(kept.id, options=CONSISTENT), deadline=deadline)
        return found.value is not None
    return False


def _horizon(kept: KeptSession, session: Session) -> float | None:
    """Return what the server grants by its own account of the session.

    Raises UnsafeSession for one without a horizon that was not asked for.
    """
    spec = kept.spec
    if granted := horizon(session.ttl, session.lock_delay, lasting=is_lasting(spec, session)):
        return granted
    if spec.allow_unbounded:
        return session.ttl
    message = (
        f"session {kept.id} can't be used: {no_horizon(session.ttl, session.lock_delay)}. Give one with a "
        "TTL and a lock-delay, or let the client make it: SessionSpec(..., allow_unbounded=True)"
    )
    raise UnsafeSession(message, session=kept.id)


def _confirm(io: IO, sessions: Sessions, kept: KeptSession, *, sent_at: float, horizon: float | None) -> None:
    kept.lease.confirm(sent_at=sent_at, horizon=horizon)
    began = sessions.outages.succeeded(kept.id)
    if began is not None:
        io.emit(OutageEnded(io.now() - began, *sessions.held(io.now())))
    if horizon is not None and horizon < SHORT_HORIZON and sessions.first_warning_of(horizon):
        io.emit(ShortHorizon(kept.id, horizon))


def _compare(io: IO, kept: KeptSession, session: Session) -> None:
    """Report once where the server's session differs from what was asked for."""
    if kept.checked or kept.outside:
        return
    kept.checked = True
    asked = kept.spec
    for setting, wanted, got in (
        ("ttl", asked.ttl, session.ttl),
        ("node_checks", tuple(asked.node_checks), session.node_checks),
        ("service_checks", tuple(asked.service_checks), session.service_checks),
        ("behavior", asked.behavior, session.behavior),
    ):
        if wanted != got:
            io.emit(SessionDiffers(kept.id, setting, str(wanted), str(got)))


async def keep(io: IO, sessions: Sessions, kept: KeptSession) -> None:
    """Renew a session until it ends: the background program of each session."""
    lease = kept.lease
    failures = 0
    retry_at = lease.sent_at
    spread = io.random()
    while True:
        wake = kept.next_look()
        if lease.ended_by is not None:
            sessions.settle_end(kept, lease.ended_by)
            return
        now = io.now()
        over = lease.valid_until - min(EARLY, EARLY_PART * lease.longest)
        due = kept.next_try(max(lease.renew_at(spread), retry_at), now)
        if now >= over:
            sessions.end(kept, LossReason.EXPIRED)
        elif now < due:
            look = now + WATCH_SLICE if kept.dependents else due
            await io.wait(wake, deadline=min(due, over, look))
        elif kept.is_left:
            sessions.end(kept, LossReason.CLIENT_CLOSED)
        else:
            kept.begin_renewal()
            try:
                await renew(io, sessions, kept, deadline=min(over, now + lease.longest / TRIES_PER_LEASE))
            except SessionNotFound:
                pass  # it has ended
            except Exception as error:  # noqa: BLE001 - a bug must not end the renewing either
                failures += 1
                _report_failure(io, sessions, kept, error)
                retry_at = io.now() + delay(failures, io.random(), most=max(0.05, lease.longest / 20))
            else:
                failures, spread = 0, io.random()
            finally:
                kept.end_renewal(max(lease.renew_at(spread), retry_at))


def _report_failure(io: IO, sessions: Sessions, kept: KeptSession, error: Exception) -> None:
    text = str(error)
    if not isinstance(error, ConsulCoordError):
        text = f"{type(error).__name__}: {error}"
        io.emit(Failed("renewal", text))
    if kept.lease.ended_by is not None:
        return  # given up while the request was under way
    repeated = not kept.lease.in_contact
    kept.lease.in_contact = False
    now, sent_at = io.now(), kept.lease.sent_at
    io.emit(Jeopardy(kept.id, kept.lease.remaining(now), text, repeated, kept.keys(), now - sent_at))
    renewed_at = max(each.lease.sent_at for each in (kept, *sessions))
    if sessions.outages.failed(kept.id, since=renewed_at):
        io.emit(OutageBegan(text, now - renewed_at, *sessions.held(now)))
