"""What one client has under way: sessions, holds, waiting calls and clean-up, and who hears of what.

Rules
- It knows of a hold, but does not keep it alive: a hold that nobody can reach any more is given back by the
  reaper.
- A hold's end passes through here once: it leaves the register, its kind lets go of what it has, and
  everybody is told.
- A session's end reaches all its holds before anything else is done about it.
- After ``close`` nothing new begins. What is under way may still come to something: a waiting call just gets
  its session, a request is given up without an answer. So the calls end first, then what there is is given
  back, and ``close_late`` does the same once the background has ended.
- A forked child starts with a coordinator of its own, and marks what it inherited as lost.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.errors import ClientClosed
from consul_coord.events import Forgotten, HandedOver, Lost
from consul_coord.io import Interrupt, Once, Signal
from consul_coord.models import LossReason, Stats
from consul_coord.recipes.cleanup.reaper import DestroySession, Reaper, RemoveContender
from consul_coord.recipes.contend.tickets import Tickets
from consul_coord.recipes.hold import release
from consul_coord.recipes.hold.grant import Grant
from consul_coord.recipes.lock.kind import LOCK_KIND
from consul_coord.recipes.session import keeping as sessions
from consul_coord.recipes.session.names import Names
from consul_coord.recipes.session.pool import SessionPool
from consul_coord.recipes.watch.holds import Monitor
from consul_coord.recipes.watch.keys import KeyWaits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord.io import IO, Host
    from consul_coord.models import KVPair, SessionSpec
    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.contend.tickets import Ticket
    from consul_coord.recipes.hold.kind import HoldKind
    from consul_coord.recipes.session.keeping import KeptSession, SessionSource

MOST_REMEMBERED = 10_000
"""Of so many keys the last fence is remembered; of older ones the server is asked again."""
CALLS_END = 0.5
"""Seconds that closing waits for interrupted calls to end.

They do so in a tenth of that; but one that a signal handler has interrupted to close here can't end before.
"""


class ClientState:
    """The state that the recipes of one client share."""

    def __init__(
        self, host: Host, *, spec: SessionSpec, timeout: float, datacenter: str | None = None
    ) -> None:
        self.host = host
        self.timeout = timeout
        """Seconds that one request may take."""
        self.spec = spec
        """What the shared session is like."""
        self.datacenter = datacenter
        """Where the client's requests go, if not to the agent's own one."""
        self.coordination_nodes: set[str] = set()
        """Those that are known to have no agent."""
        self.names = Names(host.random())
        self.queues = Tickets(host.mutex())
        self.shared = sessions.SessionSource(self, spec)
        self.reaper = Reaper(self)
        self.monitor = Monitor(self)
        self.waits = KeyWaits(self)
        self._closed_by: Once[LossReason] = Once()
        """Settled when closing begins: nothing new begins from then on."""
        self.closing = Signal()
        """Raised next, once the holds have ended."""
        self._sessions: dict[str, KeptSession] = {}
        self._short_horizons: set[float] = set()
        self._slot_sessions: weakref.WeakValueDictionary[tuple[str, SessionSpec], SessionPool] = (
            weakref.WeakValueDictionary()
        )
        self.mutex = host.mutex()
        """Keeps the client's other threads out of what must happen once."""
        self._holds: dict[int, weakref.ref[Grant]] = {}
        self._waiting: dict[Interrupt, None] = {}
        self._no_calls = Signal()
        """Raised when the client closes and no call waits any more."""
        self._releasing: dict[Grant, None] = {}
        self._given_up: dict[Grant, None] = {}
        self._fences: dict[str, int] = {}
        self.polite: set[str] = set()
        """Keys for which others were seen waiting at this client's last release: its next attempt queues."""
        self.without_queue: set[str] = set()
        """Keys whose queue this client's token may not write or read."""

    # -- sessions

    def source(self, spec: SessionSpec | str | None) -> SessionSource:
        """Return where a recipe gets its session from: the shared one for None."""
        if spec is None:
            return self.shared
        # A session given by its id has an owner elsewhere, perhaps in this very client.
        kind = sessions.SessionSource if isinstance(spec, str) else sessions.OwnSource
        return kind(self, spec)

    def slot_sessions(self, directory: str, spec: SessionSpec) -> SessionPool:
        """Return what gives the sessions for all under ``directory``: one object while it is in use."""
        with self.mutex:
            mine = self._slot_sessions.get((directory, spec))
            if mine is None:
                mine = self._slot_sessions[directory, spec] = SessionPool(self, spec)
            return mine

    def adopt_session(self, kept: KeptSession) -> None:
        """Take a session into care: it is renewed from now on."""
        self._sessions[kept.id] = kept
        self.host.count("sessions")
        self.host.spawn(lambda io: sessions.keep(io, self, kept), name=f"keep session {kept.id}")

    def end_session(self, kept: KeptSession, reason: LossReason) -> None:
        """End a session for good, telling its holds; harmless when it has ended."""
        if not kept.lease.end(reason):
            return
        for hold in [hold for hold in self.holds_of(kept) if hold.settle_loss(reason)]:
            hold.announce_end()
        self._sessions.pop(kept.id, None)
        kept.over.set()
        if reason is LossReason.EXPIRED and kept.ours_to_destroy:
            self.reaper.add(DestroySession(kept.id))

    def discard_session(self, kept: KeptSession) -> None:
        """End a session that nobody here needs any more, and have it destroyed.

        Harmless when it has ended.
        """
        if kept.lease.ended_by is None:
            self.end_session(kept, LossReason.CLIENT_CLOSED)
            self.reaper.add(DestroySession(kept.id))

    def first_warning_of(self, horizon: float) -> bool:
        """Return whether nobody has been warned of a horizon that short yet."""
        known = horizon in self._short_horizons
        self._short_horizons.add(horizon)
        return not known

    def session(self, session_id: str) -> KeptSession | None:
        """Return a session in care by its id."""
        return self._sessions.get(session_id)

    def session_of(self, hold: Grant) -> KeptSession | None:
        """Return the session in care that a hold depends on, or None when that has ended."""
        return self._sessions.get(hold.session)

    def sessions(self) -> list[KeptSession]:
        """Return the sessions in care."""
        return list(self._sessions.values())

    # -- holds

    def grant(
        self,
        granted: KVPair,
        *,
        kept: KeptSession,
        value: bytes,
        flags: int,
        ticket: Ticket,
        kind: HoldKind = LOCK_KIND,
        source: SessionSource | None = None,
    ) -> Grant:
        """Register a hold that the server has granted.

        ``source`` is kept alive for as long as the hold is.
        """
        hold = Grant(
            granted,
            session=kept.id,
            lease=kept.lease,
            value=value,
            flags=flags,
            ticket=ticket,
            kind=kind,
            source=source,
            now=self.host.now(),
            on_end=self._ended,
            on_forgotten=self._forgotten,
        )
        self._holds[id(hold)] = weakref.ref(hold)
        self.monitor.add(hold, kept)
        return hold

    def holds(self) -> Iterator[Grant]:
        """Iterate over the holds that somebody still refers to."""
        for reference in list(self._holds.values()):
            hold = reference()
            if hold is not None:
                yield hold

    def holds_of(self, kept: KeptSession) -> Iterator[Grant]:
        """Iterate over the holds that depend on a session."""
        return (hold for hold in self.holds() if hold.lease is kept.lease)

    def has_holds_of(self, kept: KeptSession) -> bool:
        """Return whether any hold depends on a session."""
        return next(self.holds_of(kept), None) is not None

    def _ended(self, hold: Grant) -> None:
        self._holds.pop(id(hold), None)
        reason = hold.look(self.host.now())[1]
        if reason is None:
            return  # released: the release does the rest
        self._call_back(hold)
        kept = self.session_of(hold)
        if kept is not None and kept.exported and reason is LossReason.CLIENT_CLOSED:
            for watch in hold.kind.watches(hold):
                # Who goes on with it gets the same fence again, here too: that is no unlock gone astray.
                self._fences.pop(watch.key, None)
            hold.kind.lost(self, hold)
            self.host.emit(HandedOver(hold.key, hold.session, hold.fence))
        elif not (reason is LossReason.CLIENT_CLOSED and self._closed_by.value):  # what closes gives it back
            hold.kind.lost(self, hold)
            self.host.emit(Lost(hold.key, hold.session, hold.fence, reason))

    def _forgotten(self, hold: Grant) -> None:
        """Give back a hold that was dropped without a release.

        Called by the garbage collector, in any thread.
        """
        self._holds.pop(id(hold), None)
        kept, ended_by = self.session_of(hold), hold.lease.ended_by
        if ended_by is not None or (kept is not None and kept.exported):
            # The server frees the key with its session, or that goes on elsewhere: only the ticket is left.
            hold.kind.lost(self, hold)
            if ended_by is None:
                self.host.emit(HandedOver(hold.key, hold.session, hold.fence))
            else:
                self.host.emit(Lost(hold.key, hold.session, hold.fence, ended_by))
            return
        self.host.emit(Forgotten(hold.key, hold.session, hold.fence))
        hold.kind.abandon(self, hold)

    def on_lost(self, hold: Grant, callback: Callable[[LossReason], object]) -> None:
        """Have a callback called at the loss of a hold, at once when it is lost."""
        hold.on_lost(callback)
        if hold.look(self.host.now())[1] is not None:
            self._call_back(hold)

    def _call_back(self, hold: Grant) -> None:
        reason = hold.look(self.host.now())[1]
        if reason is not None:
            for callback in hold.take_lost_callbacks():
                self.host.call_back(partial(callback, reason))

    def healthy(self, slack: float) -> bool:
        """Return whether every live hold has at least ``slack`` seconds of its lease left."""
        now = self.host.now()
        return all(hold.lease.remaining(now) >= slack for hold in self.holds())

    def begin_release(self, hold: Grant) -> None:
        """Take note of a release under way: a session is not destroyed before it is through."""
        self._releasing[hold] = None

    def end_release(self, hold: Grant) -> None:
        """Take note that it is through."""
        self._releasing.pop(hold, None)
        self._given_up.pop(hold, None)

    def releasing(self) -> list[Grant]:
        """Return the holds whose release is under way."""
        return list(self._releasing)

    # -- fences

    def remember_fence(self, key: str, fence: int) -> None:
        """Keep the latest fence got for a key: the next one must be above it."""
        self._fences.pop(key, None)
        self._fences[key] = fence
        if len(self._fences) > MOST_REMEMBERED:
            self._fences.pop(next(iter(self._fences)), None)

    def last_fence(self, key: str) -> int | None:
        """Return the latest fence got for a key, or None when this client has not held it, or long ago."""
        return self._fences.get(key)

    def stats(self) -> Stats:
        """Return the counters."""
        counted = self.host.counted
        return Stats(
            requests=counted("requests"),
            retries=counted("Retried"),
            failures=counted("failures"),
            wakeups=counted("wakeups"),
            sessions_created=counted("sessions"),
            renewals=counted("Renewed"),
            renewal_failures=counted("Jeopardy"),
            acquired=counted("Acquired"),
            released=counted("Released"),
            lost=counted("Lost"),
            pending_cleanup=self.reaper.pending,
        )

    def note_queue(self, look: Look | None, session: str) -> None:
        """Take note of who waited when this client released a key, and have leftovers removed."""
        if look is None:
            return
        if look.others(session):
            self.polite.add(look.key)
        else:
            self.polite.discard(look.key)
        stray = (pair for pair in look.live if pair.session == session)
        for pair in (*look.dead, *stray):
            self.reaper.add(RemoveContender(pair.key, pair.modify_index))

    # -- waiting calls

    def enter(self, interrupt: Interrupt) -> None:
        """Let ``close`` end a call that is about to begin. Raises ClientClosed when it is too late."""
        self._waiting[interrupt] = None
        if self._closed_by.value:
            self.leave(interrupt)
            raise _closed()

    def leave(self, interrupt: Interrupt) -> None:
        """Forget a call that has ended."""
        self._waiting.pop(interrupt, None)
        if self._closed_by.value and not self._waiting:
            self._no_calls.set()

    async def calls_end(self, io: IO, *, deadline: float) -> None:
        """Wait until the calls that closing has interrupted have ended."""
        if self._waiting:
            await io.wait(self._no_calls, deadline=min(deadline, io.now() + CALLS_END))

    def begin_close(self) -> bool:
        """Refuse new calls, end the waiting ones and all holds; returns False when that was done before.

        The holds end first: else whoever is woken by the closing could give up before, for another reason.
        """
        if not self._closed_by.settle(LossReason.CLIENT_CLOSED):
            return False
        self._give_up_holds()
        self.closing.set()
        self._give_up_holds()  # what was granted meanwhile
        for interrupt in list(self._waiting):
            interrupt.fire(_closed)
        return True

    def _give_up_holds(self) -> None:
        for hold in self.holds():
            kept = self.session_of(hold)
            if kept is None or not kept.exported:
                self._given_up[hold] = None  # before it ends: closing may be interrupted, and done again
            if not hold.lose(LossReason.CLIENT_CLOSED):
                self._given_up.pop(hold, None)  # somebody else has ended it, and gives it back

    def given_up(self) -> list[Grant]:
        """End what was granted since closing began, and return all holds that are still to be given back."""
        self._give_up_holds()
        return list(self._given_up)

    def forked(self, host: Host) -> None:
        """Mark everything as the parent's; called in the child, where no other thread is, with its new host.

        What another thread had locked at the fork stays locked for ever here, so no inherited lock is
        touched.
        """
        self.host = host
        self.queues = Tickets(host.mutex())
        self._closed_by.settle(LossReason.FORKED)
        self.closing.set()
        for kept in self.sessions():
            self.end_session(kept, LossReason.FORKED)


def _closed() -> ClientClosed:
    return ClientClosed("the client is closed")


async def close(io: IO, core: ClientState, *, deadline: float) -> None:
    """Release all holds, then destroy all sessions, as far as that can be done by ``deadline``.

    The rest is left to their TTL.
    """
    await core.calls_end(io, deadline=deadline)
    for hold in core.given_up():
        await release.give_back(io, core, hold, budget=max(0.0, deadline - io.now()))
    for hold in core.releasing():
        await io.wait(hold.settled, deadline=deadline)
    await close_late(io, core, deadline=deadline)


async def close_late(io: IO, core: ClientState, *, deadline: float) -> None:
    """Destroy all sessions and do what is still to be done, as far as that can be done by ``deadline``."""
    for kept in core.sessions():
        core.end_session(kept, LossReason.CLIENT_CLOSED)
        if kept.ours_to_destroy:
            core.reaper.add(DestroySession(kept.id))
    await core.reaper.finish(io, deadline=deadline)
