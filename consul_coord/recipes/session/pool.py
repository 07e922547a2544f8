"""The sessions of one semaphore: one for each attempt and slot, and when one may be used again.

Rules, each with what happens without it
- A session stands for one attempt or hold at a time, as its contender is named after it.
- It may be used again on the same prefix only if (1) the deletion of its contender was answered, (2) it has
  not taken a slot since the record was last seen without it, and (3) every request of it was answered. Else
  it is destroyed, which settles everything at once.
  Without (1) and (3) a late request could bring its contender back, for nobody: the queue would stop behind
  it. Without (2) a join would make a holder of it, as the record still names it, while another client that
  saw its contender missing gives the slot away: one holder too many.
- A record says that a session is not named any more only if it is newer than the session's own take: an old
  leader may show the record from before.
- One session is made ahead, off the caller's path, so that the next attempt need not wait for it.
- Who is idle for ``IDLE`` seconds is destroyed.
- All objects of one client for one prefix share their sessions. Else each call that makes an object of its
  own would leave two sessions behind for that time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import session as endpoint
from consul_coord.http.retry import send_once
from consul_coord.models import LossReason
from consul_coord.recipes.on_demand import OnDemand
from consul_coord.recipes.session.keeping import LEAST_LEFT, SessionSource

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import SessionSpec
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.semaphore.slots import Record
    from consul_coord.recipes.session.keeping import KeptSession

IDLE = 60.0
"""Seconds for which a session is kept that nobody uses."""
SPARE_BUDGET = 2.0
"""Seconds that making a session ahead may take: closing the client waits for that."""


class PooledSession:
    """A session with what matters of its past on the prefix."""

    __slots__ = ("idle_since", "kept", "settled", "taken_at")

    def __init__(self, kept: KeptSession) -> None:
        self.kept = kept
        self.settled = True
        """Whether every request of it was answered."""
        self.taken_at = 0
        """Index of its last take; 0 when the record was seen without it since."""
        self.idle_since = 0.0

    @property
    def id(self) -> str:
        """The session's id."""
        return self.kept.id


class SessionPool:
    """Gives out sessions, and takes them back."""

    def __init__(self, core: ClientState, spec: SessionSpec) -> None:
        self._core = core
        self._spec = spec
        self._mutex = core.host.mutex()
        self._fit: list[PooledSession] = []
        """Those that may join at once; the longest idle one first."""
        self._resting: list[PooledSession] = []
        """Those that the record may still name."""
        self._spare = OnDemand(core.host, self._make_spare, has_work=lambda: False, name="spare session")
        self._tidier = OnDemand(core.host, self._tidy, has_work=self._idle, name="idle sessions")

    async def get(self, io: IO, *, deadline: float) -> PooledSession:
        """Return a session that may join; a new one when there is none. Raises what creating one raises."""
        while (session := self._take_fit()) is not None:
            lease = session.kept.lease
            if lease.ended_by is None and lease.remaining(io.now()) >= LEAST_LEFT * lease.longest:
                return session
            self._core.discard_session(session.kept)
        return PooledSession(await self._make(io, deadline))

    def put_back(self, session: PooledSession) -> None:
        """Take back a session whose contender is gone for sure; what can't be used again is destroyed."""
        if not session.settled or session.kept.lease.ended_by is not None:
            self._core.discard_session(session.kept)
            return
        session.idle_since = self._core.host.now()
        with self._mutex:
            (self._resting if session.taken_at else self._fit).append(session)
        self._tidier.start()

    def saw(self, record: Record) -> None:
        """Take note of a reading of the record: it may show that resting sessions are not named any more."""
        if not self._resting or not record.index:
            return
        with self._mutex:
            for session in list(self._resting):
                if record.index > session.taken_at and session.id not in record.holders:
                    session.taken_at = 0
                    self._resting.remove(session)
                    self._fit.append(session)

    def prepare(self) -> None:
        """Have a session made ahead if there is none in stock."""
        if not self._idle() and not self._core.closing.is_set():
            self._spare.start()

    def _idle(self) -> list[PooledSession]:
        return self._fit + self._resting

    def _take_fit(self) -> PooledSession | None:
        with self._mutex:
            return self._fit.pop(0) if self._fit else None

    async def _make(self, io: IO, deadline: float) -> KeptSession:
        return await SessionSource(self._core, self._spec).live(io, deadline=deadline)

    async def _make_spare(self, io: IO) -> None:
        # Shielded, so that a closing client does not leave one behind that is just being made.
        async with io.shield(SPARE_BUDGET) as deadline:
            with suppress(ConsulCoordError):
                kept = await self._make(io, deadline)
                if self._core.closing.is_set():
                    await send_once(io, endpoint.destroy(kept.id), deadline=deadline)
                    self._core.end_session(kept, LossReason.CLIENT_CLOSED)
                else:
                    self.put_back(PooledSession(kept))

    async def _tidy(self, io: IO) -> None:
        while idle := self._idle():
            await io.sleep(max(0.0, min(one.idle_since for one in idle) + IDLE - io.now()))
            for session in self._idle_too_long(io.now()):
                self._core.discard_session(session.kept)

    def _idle_too_long(self, now: float) -> list[PooledSession]:
        with self._mutex:
            found = [one for one in self._idle() if one.idle_since + IDLE <= now]
            self._fit = [one for one in self._fit if one not in found]
            self._resting = [one for one in self._resting if one not in found]
        return found
