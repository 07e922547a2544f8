"""Clean-up that could not be done at once: kept until the server has answered for it.

Rules
- A request without an answer was applied, or was not, or will be later: seen on a real agent, up to the
  moment it went on after a pause. So giving up an attempt is not over with one look; its key, or the list of
  sessions, is looked at again after a while, several times.
- One program does all duties, one after the other, each with a bounded request; a duty that fails comes
  again, later and later.
- Who cleans a key has that key's ticket, or somebody else has it and will leave the key in order himself. But
  he does so for his own session only, and may be waiting behind what another session of this client has left:
  that is cleaned beside him.
- Duties are small values: what they concern may have been forgotten by everybody else.
- A closing client can't wait for a minute. What a create that was just given up makes is there within a
  moment, mostly: it is looked for several times in a second.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from consul_coord.errors import ConsulCoordError, PermissionDenied
from consul_coord.events import Cleaned, Failed, Released
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.retry import send_once
from consul_coord.io import Signal
from consul_coord.models import ReadOptions
from consul_coord.recipes.cleanup.unlock import remove, unlock, withdraw
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.on_demand import OnDemand

if TYPE_CHECKING:
    from typing import Self

    from consul_coord.io import IO
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.hold.grant import Grant

SWEEPS = (1.0, 4.0, 10.0, 45.0)
"""Seconds from an unanswered request to the first look at its key, and from each look to the next.

A minute in all.
"""
LAST_LOOKS = (0.05, 0.15, 0.3, 0.5)
"""Seconds between the looks for a session that was just being made when the client closes."""
_CONSISTENT = ReadOptions(consistency="consistent")
LONGEST_PAUSE = 15.0
"""Seconds between two tries of a duty that fails, at most."""


class CleanupTask(Protocol):
    """Something to be done until the server has answered."""

    async def step(self, io: IO, core: ClientState, *, deadline: float) -> float | None:
        """Do it.

        Returns None when it is done, or in how many seconds to come again. Raises what goes wrong.
        """
        ...


@dataclass(slots=True, eq=False)
class Unlock:
    """Unlock a key whose hold was given up without an answer, or forgotten."""

    key: str
    session: str
    index: int
    value: bytes
    flags: int
    ticket: Ticket
    fence: int

    def __post_init__(self) -> None:
        self.ticket.disown()

    @classmethod
    def of(cls, hold: Grant) -> Self:
        """Take over from a hold."""
        return cls(hold.key, hold.session, hold.last_index, hold.value, hold.flags, hold.ticket, hold.fence)

    async def step(self, io: IO, core: ClientState, *, deadline: float) -> float | None:
        """Unlock the key, and let the next one have its ticket."""
        unlocked = await unlock(
            io,
            key=self.key,
            session=self.session,
            index=self.index,
            value=self.value,
            flags=self.flags,
            deadline=deadline,
            uncertain=True,
            read_queue=self.key not in core.without_queue,
        )
        core.note_queue(unlocked.queue, self.session)
        core.queues.leave(self.ticket)
        io.emit(Released(self.key, self.session, self.fence, unlocked.outcome))
        return None


@dataclass(slots=True, eq=False)
class Sweep:
    """Look, now and later, whether an unanswered request has locked a key, or queued for it, for nobody."""

    key: str
    session: str
    flags: int
    pauses: list[float] = field(default_factory=lambda: list(SWEEPS[1:]))

    async def step(self, io: IO, core: ClientState, *, deadline: float) -> float | None:
        """Remove what the session has at the key, unless somebody here acts on it with that session."""
        ticket = Ticket(self.key, None)
        if core.queues.join_beside(ticket, self.session):
            try:
                found = await withdraw(
                    io, key=self.key, session=self.session, flags=self.flags, deadline=deadline
                )
            finally:
                core.queues.leave(ticket)
            io.emit(Cleaned(self.key, self.session, found))
        return self.pauses.pop(0) if self.pauses else None


@dataclass(slots=True, eq=False)
class Withdraw:
    """Finish giving up an attempt, and let the next one have the key's ticket then."""

    key: str
    session: str
    flags: int
    ticket: Ticket

    def __post_init__(self) -> None:
        self.ticket.disown()

    async def step(self, io: IO, core: ClientState, *, deadline: float) -> float | None:
        """Remove what the attempt has left."""
        found = await withdraw(io, key=self.key, session=self.session, flags=self.flags, deadline=deadline)
        core.queues.leave(self.ticket)
        io.emit(Cleaned(self.key, self.session, found))
        return None


@dataclass(slots=True, eq=False)
class RemoveContender:
    """Remove a contender that stands for nobody."""

    key: str
    index: int | None = None
    """At which it is to be removed: another's, that nobody may have touched since. None for one's own, that
    anybody may have written a note to.
    """

    async def step(self, io: IO, core: ClientState, *, deadline: float) -> float | None:  # noqa: ARG002 - a CleanupTask's
        """Remove it."""
        await remove(io, key=self.key, index=self.index, deadline=deadline)
        return None


@dataclass(slots=True, eq=False)
class DestroySession:
    """Destroy a session that nobody here relies on any more."""

    session: str

    async def step(self, io: IO, core: ClientState, *, deadline: float) -> float | None:  # noqa: ARG002 - a CleanupTask's
        """Destroy it; harmless when it is gone."""
        await send_once(io, session_endpoint.destroy(self.session), deadline=deadline)
        return None


@dataclass(slots=True, eq=False)
class StraySession:
    """Look, now and later, whether an unanswered create has made a session, and destroy it."""

    name: str
    """Its name, which no other session has."""
    has_ttl: bool
    """Whether it ends by itself, sooner or later."""
    pauses: list[float] = field(default_factory=lambda: list(SWEEPS[1:]))

    async def step(self, io: IO, core: ClientState, *, deadline: float) -> float | None:  # noqa: ARG002 - a CleanupTask's
        """Find it by its name. Where sessions may not be read there is none to be found: its TTL ends it."""
        session = await self._find(io, deadline)
        if session is None:
            return self.pauses.pop(0) if self.pauses else None
        await send_once(io, session_endpoint.destroy(session), deadline=deadline)
        io.emit(Cleaned("", session, found=True))
        return None

    def hurry(self) -> None:
        """Have the next looks follow each other soon, if there was none yet."""
        if len(self.pauses) == len(SWEEPS) - 1:
            self.pauses = [*LAST_LOOKS, *self.pauses]

    async def _find(self, io: IO, deadline: float) -> str | None:
        call = session_endpoint.list_sessions(options=_CONSISTENT)
        with suppress(PermissionDenied):
            found = (await send_once(io, call, deadline=deadline)).value
            return next((session.id for session in found if session.name == self.name), None)
        return None


@dataclass(slots=True, eq=False)
class _Entry:
    duty: CleanupTask
    due: float
    failures: int = 0


class Reaper:
    """Does the duties of one client in the background, for as long as there are any."""

    def __init__(self, core: ClientState) -> None:
        self._core = core
        self._entries: dict[_Entry, None] = {}
        self._more = Signal()
        self._program = OnDemand(core.host, self._run, has_work=lambda: self._entries, name="reaper")

    @property
    def pending(self) -> int:
        """How many duties are not done."""
        return len(self._entries)

    def owes_unlocks(self, session: str) -> bool:
        """Return whether something that a session holds is still to be given back."""
        duties = [entry.duty for entry in list(self._entries)]
        return any(isinstance(duty, Unlock | Withdraw) and duty.session == session for duty in duties)

    def add(self, duty: CleanupTask, *, after: float = 0.0) -> None:
        """Take on a duty; from any thread, also the garbage collector's."""
        self._entries[_Entry(duty, self._core.host.now() + after)] = None
        self._more.set()
        if not self._core.closing.is_set():
            self._program.start()

    async def _run(self, io: IO) -> None:
        while self._entries:
            self._more = Signal()
            # A copy: another thread, or the garbage collector, may add a duty just now.
            entry = min(list(self._entries), key=lambda one: one.due)
            if entry.due <= io.now():
                await self._do(io, entry, deadline=io.now() + self._core.timeout)
            else:
                await io.wait(self._more, deadline=entry.due)

    async def _do(self, io: IO, entry: _Entry, *, deadline: float) -> None:
        try:
            again = await entry.duty.step(io, self._core, deadline=deadline)
        except Exception as error:  # noqa: BLE001 - whatever one duty raises, the others must be done
            if not isinstance(error, ConsulCoordError):
                io.emit(Failed("reaper", f"{type(error).__name__}: {error}"))
            entry.failures += 1
            again = delay(entry.failures, io.random(), most=LONGEST_PAUSE)
        else:
            entry.failures = 0
        if again is None:
            self._entries.pop(entry, None)
        else:
            entry.due = io.now() + again

    async def finish(self, io: IO, *, deadline: float) -> None:
        """Try each duty once more, now: the client closes. Those too that come up meanwhile.

        Sessions are destroyed last, and with that the sweeps are settled: a late request is refused then.
        What a late create makes nobody renews: its TTL ends it, if it has one.
        """
        tried: set[_Entry] = set()
        new: deque[_Entry] = deque()
        while io.now() < deadline:
            new = new or self._but(tried)
            entry = new.popleft() if new else self._next_soon(io.now())
            if entry is None:
                break
            if entry in tried:
                await io.sleep(max(0.0, min(entry.due, deadline) - io.now()))
            elif isinstance(entry.duty, StraySession):
                entry.duty.hurry()
            tried.add(entry)
            await self._do(io, entry, deadline=min(deadline, io.now() + self._core.timeout))
        for entry in list(self._entries):
            looked = isinstance(entry.duty, StraySession) and entry.duty.has_ttl and not entry.failures
            if isinstance(entry.duty, Sweep) or (looked and entry in tried):
                self._entries.pop(entry, None)

    def _but(self, tried: set[_Entry]) -> deque[_Entry]:
        """Return what has not been tried yet, in the order for that."""
        left = (entry for entry in list(self._entries) if entry not in tried)
        return deque(sorted(left, key=lambda one: isinstance(one.duty, DestroySession)))

    def _next_soon(self, now: float) -> _Entry | None:
        """Return what was done without a failure, but comes again so soon that closing can wait for it."""
        soon = (one for one in list(self._entries) if not one.failures and one.due <= now + max(LAST_LOOKS))
        return min(soon, key=lambda one: one.due, default=None)
