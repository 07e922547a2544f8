"""Tasks of the clean-up: small values, done again and again until the server has answered.

Rules
- A request without an answer was applied, or was not, or will be later: seen on a real agent, up to the
  moment it went on after a pause. So giving up an attempt is not over with one look; its key, or the list of
  sessions, is looked at again after a while, several times.
- A task that cleans a key has the key's ticket, or another ticket is first and its owner leaves the key in
  order. But it does so for its own session only, and may be waiting behind what another session of this
  client has left: that is cleaned beside it.
- A task may be the last object that knows of its key or session.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from consul_coord.errors import ConsulCoordError, PermissionDenied, TxnFailed
from consul_coord.events import Cleaned, Released
from consul_coord.http.backoff import LONGEST_PAUSE, delay
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.retry import perform, send_once
from consul_coord.models import ReleaseOutcome, TxnOp
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.cleanup.unlock import withdraw
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractContextManager

    from consul_coord.io import IO
    from consul_coord.models import Session

SWEEPS = (1.0, 4.0, 10.0, 45.0)
"""Seconds from an unanswered request to the first look at its key, and from each look to the next.

A minute in all.
"""
LAST_LOOKS = (0.05, 0.15, 0.3, 0.5)
"""Seconds between the looks for a session that was just being made when the client closes."""
LISTING_KEPT = 4.0
"""Seconds for which one list of the sessions serves all tasks that look for one."""


class CleanupTask(Protocol):
    """Something to be done until the server has answered."""

    async def step(self, io: IO, *, deadline: float) -> float | None:
        """Do it.

        Returns None when it is done, or in how many seconds to come again. Raises what goes wrong.
        """
        ...


class Place(Protocol):
    """The right of this client's queue to act on a key."""

    @property
    def acts(self) -> bool:
        """Whether it may act on the key now."""
        ...

    def leave(self) -> bool:
        """Let the next one act; returns whether it had a place until now."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class AtKey:
    """A session's leftovers at a key: its contender and the lock."""

    key: str
    session: str
    flags: int
    contender: str | None
    remove: tuple[bytes, ...] = ()
    """With one of these values the key is deleted, instead of unlocked."""
    note: str | None = None
    """A key that a take of this one has written as well."""

    async def _withdraw(self, io: IO, deadline: float) -> bool:
        """Remove them; returns whether there were any."""
        return await withdraw(
            io,
            key=self.key,
            session=self.session,
            flags=self.flags,
            contender=self.contender,
            deadline=deadline,
            remove=self.remove,
            note=self.note,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class GiveBack(AtKey):
    """Remove what a session has at a key, its contender and the lock; then let the next one have the key.

    Does nothing when the place was left before, so that a second task for the same hold frees no later one.
    """

    place: Place
    fence: int | None = None
    """That of the hold, if there was one."""

    async def step(self, io: IO, *, deadline: float) -> float | None:
        """Remove it."""
        if not self.place.acts:
            return None
        found = await self._withdraw(io, deadline)
        if not self.place.leave():
            return None  # closing has done this meanwhile, and told of it
        if self.fence is None:
            io.emit(Cleaned(self.key, self.session, found))
        else:
            io.emit(Released(self.key, self.session, self.fence, ReleaseOutcome.RELEASED))
        return None


@dataclass(slots=True, eq=False, kw_only=True)
class Sweep(AtKey):
    """Look, now and later, whether an unanswered request has locked a key, or queued for it, for nobody."""

    alone: Callable[[], AbstractContextManager[bool]]
    """Keeps this client from acting on the key with the session; gives whether that was possible."""
    pauses: list[float] = field(default_factory=lambda: list(SWEEPS[1:]))

    async def step(self, io: IO, *, deadline: float) -> float | None:
        """Remove what the session has at the key, once nobody here acts on it with that session."""
        with self.alone() as alone:
            if not alone:
                return SWEEPS[0]  # no look: what it has blocks others when whoever acts on the key is done
            found = await self._withdraw(io, deadline)
            io.emit(Cleaned(self.key, self.session, found))
        return self.pauses.pop(0) if self.pauses else None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RemoveKey(Value):
    """Remove a contender or a note that stands for nobody."""

    key: str
    index: int | None = None
    """At which it is to be removed: another's, that nobody may have touched since. None for one's own, that
    anybody may have written a note to, at any index.
    """

    async def step(self, io: IO, *, deadline: float) -> float | None:
        """Remove it."""
        await perform(io, kv.delete(self.key, cas=self.index), deadline=deadline)
        return None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RemoveNote(Value):
    """Remove a note, or a contender, if it has a value that one write alone may have given it."""

    key: str
    value: bytes
    guard: tuple[TxnOp, ...] = ()
    """While these conditions hold, the note stays: it is needed, or its write may still come."""

    async def step(self, io: IO, *, deadline: float) -> float | None:
        """Look at it, and remove it."""
        if self.guard:
            with suppress(TxnFailed):
                await perform(io, kv.txn(*self.guard, options=CONSISTENT), deadline=deadline)
                return SWEEPS[0]
        pair = (await perform(io, kv.get(self.key, options=CONSISTENT), deadline=deadline)).value
        if pair is not None and pair.value == self.value:
            await perform(io, kv.delete(self.key, cas=pair.modify_index), deadline=deadline)
        return None


def is_by(task: CleanupTask, sessions: Collection[str]) -> bool:
    """Return whether a task acts as one of the sessions: on what that has at a key."""
    if isinstance(task, RemoveKey):
        return task.index is None and task.key.rpartition("/")[2] in sessions
    return isinstance(task, AtKey) and task.session in sessions


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RemoveDead(Value):
    """Remove a dead contender that is in nobody's way, if its lock-delay is over: one try."""

    removal: tuple[TxnOp, ...]

    async def step(self, io: IO, *, deadline: float) -> float | None:
        """Remove it; whoever sees it next tries again."""
        with suppress(ConsulCoordError):
            await send_once(io, kv.txn(*self.removal), deadline=deadline)
        return None


async def delete_once(io: IO, contender: str, *others: str, deadline: float) -> None:
    """Delete the contenders of sessions that are about to be destroyed, in one try of half the time left.

    It only spares others the lock-delay. A key has its session's name, so nobody else can have made it; a
    copy of the request that comes late finds nothing.
    """
    until = io.now() + (deadline - io.now()) / 2
    with suppress(ConsulCoordError):
        if others:
            await send_once(io, kv.txn(*map(TxnOp.delete, (contender, *others))), deadline=until)
        else:
            await send_once(io, kv.delete(contender), deadline=until)


@dataclass(slots=True, eq=False)
class DestroySession:
    """Destroy a session that nobody here relies on any more, and remove its contender where it has one."""

    session: str
    contender: str | None = None
    """The key to delete, so that no lock-delay closes what it stands for; None to leave all locked."""
    gone: Callable[[str], object] | None = None
    """Called with the session once it is destroyed."""

    async def step(self, io: IO, *, deadline: float) -> float | None:
        """Destroy it; harmless when it is gone.

        A join that is still under way may be applied just before the end of the session: its contender would
        be dead, and closed for the lock-delay. Only then can it not come any more.
        """
        if self.contender is not None:
            await delete_once(io, self.contender, deadline=deadline)
        await send_once(io, session_endpoint.destroy(self.session), deadline=deadline)
        if self.gone is not None:
            self.gone(self.session)
        if self.contender is not None:
            await delete_once(io, self.contender, deadline=deadline)
        return None


@dataclass(slots=True, eq=False)
class Listing:
    """A list of all sessions, for all tasks of a client that look for one: it may be long."""

    asked_at: float = -math.inf
    read_at: float = -math.inf
    """When it was answered. Its age counts from then, because a long list takes long to read."""
    by_name: Mapping[str, str] = field(default_factory=dict[str, str])
    """Their ids."""
    failures: int = 0
    """How often in a row it could not be read."""
    rests_until: float = -math.inf
    """When it is read again after a failure: once, however many tasks wait for it."""


@dataclass(slots=True, eq=False)
class StraySession:
    """Look, now and later, whether an unanswered create has made a session, and destroy it."""

    name: str
    """Its name, which no other session has."""
    has_ttl: bool
    """Whether it ends by itself, sooner or later."""
    listing: Listing
    given_up_at: float
    """When the create was given up: no earlier list tells anything."""
    fresh: float = LISTING_KEPT
    """For how many seconds a list that another task has read will do."""
    pauses: list[float] = field(default_factory=lambda: list(SWEEPS[1:]))
    hurries: bool = False
    """Whether the client closes: this is the last chance."""

    async def step(self, io: IO, *, deadline: float) -> float | None:
        """Find it by its name. Where sessions may not be read there is none to be found: its TTL ends it."""
        if not self.hurries and io.now() < self.listing.rests_until:
            return self.listing.rests_until - io.now()
        session = await self._find(io, deadline)
        if session is None:
            return self.pauses.pop(0) if self.pauses else None
        await send_once(io, session_endpoint.destroy(session), deadline=deadline)
        io.emit(Cleaned("", session, found=True))
        return None

    def hurry(self) -> None:
        """Have the next looks follow each other soon, if there was none yet."""
        self.hurries = True
        if len(self.pauses) == len(SWEEPS) - 1:
            self.pauses = [*LAST_LOOKS, *self.pauses]
            self.fresh = LAST_LOOKS[0] / 2

    async def _find(self, io: IO, deadline: float) -> str | None:
        listing, now = self.listing, io.now()
        if listing.asked_at < self.given_up_at or now >= listing.read_at + self.fresh:
            call = session_endpoint.list_sessions(options=CONSISTENT)
            found: tuple[Session, ...] = ()
            try:
                found = (await send_once(io, call, deadline=deadline)).value
            except PermissionDenied:
                pass
            except ConsulCoordError:
                listing.failures += 1
                pause = delay(listing.failures, io.random(), most=LONGEST_PAUSE)
                listing.rests_until = io.now() + pause
                raise
            listing.failures = 0
            listing.asked_at, listing.read_at = now, io.now()
            listing.by_name = {session.name: session.id for session in found}
        return listing.by_name.get(self.name)
