"""The sessions of one semaphore: one for each attempt and slot, and when one may be used again.

Rules, each with what happens without it
- A session stands for one attempt or hold at a time, as its contender is named after it.
- It may be used again on the same prefix under three conditions. (1) The deletion of its contender was
  answered. (2) It has not taken a slot since the record was last seen without it. (3) Each request of it was
  answered. Otherwise it is destroyed, which settles everything at once.
  Without (1) and (3) a late request could bring its contender back, for nobody: the queue would stop behind
  it. Without (2) a join would make a holder of it, because the record still names it. Meanwhile another
  client that saw its contender missing gives the slot away: one holder too many.
- A record says that a session is not named any more only if it is newer than the session's own take: an old
  leader may show the record from before.
- One session is made ahead, off the caller's path, so that the next attempt need not wait for it. A
  session that comes after its caller has given up is kept only if the stock is empty.
- A session that is idle for ``IDLE`` seconds is destroyed.
- A session is the caller's from before it leaves the stock: the register knows who answers for it. One that
  is made for a caller goes into the stock first.
- All objects of one client for one prefix share their sessions. Otherwise each call that makes its own
  object would leave two sessions behind for that time.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.retry import perform
from consul_coord.io import OnDemand
from consul_coord.models import LossReason
from consul_coord.recipes.session.keeping import Creation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from consul_coord.io import IO, Signal
    from consul_coord.models import SessionSpec
    from consul_coord.models.session import Behavior
    from consul_coord.recipes.session.keeping import KeptSession, Sessions

IDLE = 60.0
"""Seconds for which a session is kept that nobody uses."""


class PooledSession:
    """A session with what matters of its past on the prefix."""

    __slots__ = ("_sessions", "contender", "id", "idle_since", "kept", "settled", "taken_at")

    def __init__(self, sessions: Sessions, kept: KeptSession) -> None:
        self._sessions = sessions
        self.kept = kept
        self.id = kept.id
        self.settled = True
        """Whether every request of it was answered."""
        self.taken_at = 0
        """Index of its last take; 0 when the record was seen without it since."""
        self.contender: str | None = None
        """A key that it may have, to be deleted before the session is destroyed.

        Otherwise the lock-delay would keep what that key stands for from others.
        """
        self.idle_since = 0.0

    async def destroy(self, io: IO, *, deadline: float) -> None:
        """Destroy it; raises ConsulCoordError when that is not known to be done."""
        await perform(io, session_endpoint.destroy(self.id), deadline=deadline)
        self._sessions.end(self.kept, LossReason.CLIENT_CLOSED)

    def abandon(self) -> None:
        """Have it destroyed: that ends whatever it has left."""
        self._sessions.discard(self.kept, self.contender)


class SessionPool:
    """Gives out sessions, and takes them back."""

    def __init__(
        self, sessions: Sessions, spec: SessionSpec | None, *, behavior: Behavior = "release"
    ) -> None:
        self._sessions = sessions
        self._spec = spec
        self._behavior: Behavior = behavior
        self._mutex = sessions.host.mutex()
        self._fit: list[PooledSession] = []
        """Those that may join at once; the longest idle one first."""
        self._resting: list[PooledSession] = []
        """Those that the record may still name."""
        self._made_ahead: Signal | None = None
        """Raised when the one that is made ahead is made, or can't be."""
        self._tidier = OnDemand(sessions.host, self._tidy, has_work=self._idle, name="idle sessions")

    @property
    def spec(self) -> SessionSpec:
        """The settings of the session that is made next: the client's, if none were given."""
        return replace(self._spec or self._sessions.spec, behavior=self._behavior)

    async def get(
        self, io: IO, claim: Callable[[PooledSession], object], *, deadline: float
    ) -> PooledSession:
        """Return a session that may join; a new one when there is none.

        ``claim`` is called before it leaves the stock. Raises what creating one raises.
        """
        while True:
            session = self._take_fit(claim)
            if session is None:
                deadline = min(deadline, io.now() + self._sessions.timeout)
                creation = Creation()
                try:
                    await io.begin(partial(self._make, creation), name="create a session", deadline=deadline)
                    await creation.wait(io, deadline=deadline)
                finally:
                    creation.given_up = not creation.done.is_set()
            elif session.kept.lease.is_fit(io.now()):
                return session
            else:
                session.abandon()

    def put_back(self, session: PooledSession) -> None:
        """Take back a session whose contender is gone for sure; what can't be used again is destroyed."""
        session.contender = None
        if not session.settled or session.kept.lease.ended_by is not None:
            session.abandon()
            return
        session.idle_since = self._sessions.host.now()
        with self._mutex:
            (self._resting if session.taken_at else self._fit).append(session)
        self._tidier.start()

    def saw(self, index: int, named: Collection[str]) -> None:
        """Take note of a reading of the record: it may show that resting sessions are not named any more."""
        if not self._resting or not index:
            return
        with self._mutex:
            for session in list(self._resting):
                if index > session.taken_at and session.id not in named:
                    session.taken_at = 0
                    self._resting.remove(session)
                    self._fit.append(session)

    def prepare(self) -> None:
        """Have a session made ahead if there is none in stock, and none on its way there."""
        on_its_way = self._made_ahead is not None and not self._made_ahead.is_set()
        if not on_its_way and not self._idle() and not self._sessions.closing.is_set():
            task = self._sessions.host.spawn(partial(self._make, Creation()), name="create a session")
            self._made_ahead = task.done

    def _idle(self) -> list[PooledSession]:
        return self._fit + self._resting

    def _take_fit(self, claim: Callable[[PooledSession], object]) -> PooledSession | None:
        with self._mutex:
            for session in self._fit[:1]:
                claim(session)
                self._fit.remove(session)
                return session
        return None

    async def _make(self, creation: Creation, io: IO) -> None:
        """Make a session for the stock."""
        try:
            kept = await self._sessions.create(io, self.spec)
            session = PooledSession(self._sessions, kept)
            if creation.given_up and self._idle():
                session.abandon()
            else:
                self.put_back(session)
            creation.settle(kept)
        except Exception as error:  # noqa: BLE001 - raised in the one that waits
            creation.settle(error)

    async def _tidy(self, io: IO) -> None:
        while idle := self._idle():
            await io.sleep(max(0.0, min(one.idle_since for one in idle) + IDLE - io.now()))
            for session in self._idle_too_long(io.now()):
                session.abandon()

    def _idle_too_long(self, now: float) -> list[PooledSession]:
        with self._mutex:
            found = [one for one in self._idle() if one.idle_since + IDLE <= now]
            self._fit = [one for one in self._fit if one not in found]
            self._resting = [one for one in self._resting if one not in found]
        return found


class SessionPools:
    """The pools of one client, by what their sessions are for: one object while it is in use."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._mutex = sessions.host.mutex()
        self._pools: weakref.WeakValueDictionary[tuple[str, SessionSpec | None], SessionPool] = (
            weakref.WeakValueDictionary()
        )

    def pool(self, directory: str, spec: SessionSpec | None, *, behavior: Behavior) -> SessionPool:
        """Return what gives the sessions for all under ``directory``; the client's for None."""
        with self._mutex:
            found = self._pools.get((directory, spec))
            if found is None:
                found = SessionPool(self._sessions, spec, behavior=behavior)
                self._pools[directory, spec] = found
            return found
