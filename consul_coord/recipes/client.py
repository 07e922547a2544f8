"""The state of one client, wired together: sessions, holds, watches, clean-up, waiting calls.

Rules
- This is the only place that knows all rooms. Each room says by a small protocol what it needs of others.
- While the register has entries, one program attends to it: it starts the watches of holds that last, has
  abandoned claims given back, and mends what interrupted calls left undone.
- After ``close`` nothing new begins. Calls under way may still have results: a waiting call just gets its
  session, a request is given up without an answer. So the calls end first, then the client gives back all
  that it has, and ``close_late`` does the same once the background has ended.
- A forked child starts with a state of its own, and marks what it inherited as lost.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from consul_coord.errors import ClientClosed, ConsulCoordError
from consul_coord.events import AgentRefused, ConnectionsRefused, FailedOver
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.retry import perform, send_once
from consul_coord.io import PATIENCE, Calls, OnDemand, Signal
from consul_coord.models import LossReason, ReleaseOutcome, SessionSpec, Stats
from consul_coord.recipes.cleanup.reaper import Reaper
from consul_coord.recipes.cleanup.tasks import SWEEPS, DestroySession, Listing, StraySession
from consul_coord.recipes.contend.queue import QueueMemory
from consul_coord.recipes.contend.tickets import Tickets
from consul_coord.recipes.hold.evidence import HoldWatch
from consul_coord.recipes.hold.holds import BUDGET, SWEEP, Holds, Latest, Register, give_back, release
from consul_coord.recipes.session.keeping import Sessions
from consul_coord.recipes.session.pool import SessionPools
from consul_coord.recipes.watch.engine import Watches
from consul_coord.weak import Alive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.http.agents import Agents
    from consul_coord.io import IO, Host
    from consul_coord.recipes.contend.shared import Owners, Standing
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.session.keeping import KeptSession, SessionSource

CALLS_END = 0.5
"""Seconds that closing waits for interrupted calls to end.

They do so in a tenth of that; but one that a signal handler has interrupted to close here can't end before.
"""
SETTLING = 0.05
"""Seconds that a hold must have lasted before it is watched: most are released before, and cost nothing."""
QUIET = 10.0
"""Seconds without an answer after which a client that is looked at asks for one."""
AGAIN = 1.0
"""Seconds until it looks again at whether it has to ask."""
INTEREST = 60.0
"""Seconds for which it goes on after the last look."""
LINGER = 1.0
"""Seconds for which the attending program stays at hand after the last new hold."""


class ClientState:
    """The state that the recipes of one client share."""

    def __init__(
        self,
        host: Host,
        *,
        spec: SessionSpec,
        timeout: float,
        datacenter: str | None = None,
        name: bytes = b"",
    ) -> None:
        self.host = host
        host.contact.datacenter = datacenter
        self.name = name
        """The value of keys whose user gives none."""
        self.timeout = timeout
        self.closing = Signal()
        """Raised when the client closes, once the holds have ended."""
        self.mutex = host.mutex()
        handed_over = set[str]()
        self.reaper = Reaper(host, timeout=timeout, closing=self.closing, handed_over=handed_over)
        self.sessions = Sessions(
            host,
            spec,
            self,
            timeout=timeout,
            closing=self.closing,
            datacenter=datacenter,
            handed_over=handed_over,
        )
        self.pools = SessionPools(self.sessions)
        self.watches = Watches(host, self.sessions, timeout=timeout)
        self.register = Register()
        self._fresh: deque[Grant] = deque()
        """Holds that are not watched yet."""
        watches = self.watches
        self.holds = Holds(host, self.register, self._fresh.append, watches.waits, watches.changed_here)
        self.tickets = Tickets(host.mutex())
        self.queue_memory = QueueMemory()
        self.readable: Latest[float] = Latest()
        self._listing = Listing()
        self.standing: dict[Standing, None] = {}
        self._looked_at = -math.inf
        """When somebody looked at the contact last."""
        self._asking = OnDemand(host, self._keep_asking, has_work=self._is_looked_at, name="contact")
        self.owners: Alive[Owners] = Alive()
        """The holders of each object that was used with this client."""
        self.attend = OnDemand(host, self._attend, has_work=self._has_work, name="attend to holds").start
        """Have the register swept while anything is entered, and holds watched that last.

        To be called when a claim is entered: what attends goes on for as long as there are any.
        """
        self.calls = Calls()
        """The waiting calls. They are refused when closing begins: nothing new begins from then on."""

    def attach(self, agents: Agents) -> None:
        """Tell of several agents, and let them be checked by a session of this client."""

        def session() -> str | None:
            return next((kept.id for kept in self.sessions if kept.lease.ended_by is None), None)

        agents.session = session
        agents.on_move = lambda old, new: self.host.emit(FailedOver(old, new))
        agents.on_refusal = lambda address, reason: self.host.emit(AgentRefused(address, reason))

    def refused(self, address: str) -> None:
        """Take note that the agent has no room for a connection; from any thread."""
        refused = ConnectionsRefused(address)
        self.host.contact.hindered(refused.describe())
        if self.watches.is_new_trouble():
            self.host.emit(refused)

    # -- sessions

    def destroy(self, session: str, contender: str | None = None) -> None:
        """Have a session destroyed on the server, after this key of its has been deleted."""
        self.sessions.closed.add(session)
        self.reaper.add(DestroySession(session, contender, gone=self.sessions.closed.discard))

    def destroy_named(self, name: str, *, has_ttl: bool) -> None:
        """Have a session of that name looked for, now and later, and destroyed."""
        stray = StraySession(name, has_ttl, self._listing, given_up_at=self.host.now())
        self.reaper.add(stray, after=SWEEPS[0])

    def source(self, spec: SessionSpec | str | None) -> SessionSource:
        """Return where a lock gets its session from; one of its own ends when nobody refers to its source."""
        source = self.sessions.source(spec)
        if isinstance(spec, SessionSpec):
            self.register.enter(_OwnSession(source), source)
        return source

    # -- holds

    def _has_work(self) -> bool:
        return bool(len(self.register) or self._fresh)

    async def _attend(self, io: IO) -> None:
        swept = quiet_since = io.now()
        while self._has_work() or io.now() < quiet_since + LINGER:
            busy = io.now() < quiet_since + LINGER
            await io.sleep(SETTLING if busy else SWEEP)
            while self._fresh and self._fresh[0].granted_at + SETTLING <= io.now():
                quiet_since = io.now()
                self._begin_to_watch(io, self._fresh.popleft())
            if io.now() >= swept + SWEEP:
                swept = io.now()
                self._sweep()

    def _begin_to_watch(self, io: IO, hold: Grant) -> None:
        if not hold.ended:
            all_watches = [HoldWatch(self.sessions, hold, watch) for watch in hold.kind.watches(hold)]
            seldom = tuple(each for each in all_watches if each.seldom)
            for each in all_watches:
                if not each.seldom:
                    each.along = seldom
                    self.watches.watch(io, each)
                    seldom = ()

    def _sweep(self) -> None:
        for owners in self.owners.all():
            owners.forget_ended(self.host.has_ended)
        self.tickets.heal()
        self.holds.announce_losses()
        self.register.sweep()

    def healthy(self, slack: float) -> bool:
        """Return whether every live hold has at least ``slack`` seconds of its lease left."""
        return self.holds.healthy(slack)

    # -- contact

    @property
    def connected(self) -> bool:
        """Whether Consul answers; while this is looked at, a client that is idle asks now and then."""
        self._looked_at = self.host.now()
        if self.closing.is_set() or not self.host.has_background:
            return False
        self._asking.start()
        return self.host.contact.is_present

    def ready(self) -> bool:
        """Return whether Consul answers, renewals succeed, and no candidate has a problem."""
        now = self.host.now()
        return (
            self.connected
            and all(hold.lease.in_contact and hold.lease.is_valid(now) for hold in self.holds.all())
            and all(candidate.problem is None for candidate in list(self.standing))
        )

    def _is_looked_at(self) -> bool:
        return not self.closing.is_set() and self.host.now() < self._looked_at + INTEREST

    async def _keep_asking(self, io: IO) -> None:
        while self._is_looked_at():
            contact = io.contact
            left = QUIET - contact.age
            # Of a request that its caller has given up, nobody hears whether it would have been answered.
            if contact.is_present and left > 0 and contact.missing_for < AGAIN:
                await io.wait(self.closing, deadline=io.now() + min(left, AGAIN))
                continue
            asked_at = io.now()
            # About no session at all: the servers' leader answers, whatever the token may read.
            about = session_endpoint.info(session_endpoint.NO_SESSION)
            with suppress(ConsulCoordError):
                await send_once(io, about, deadline=asked_at + PATIENCE)
            if contact.heard_at < asked_at:
                await io.wait(self.closing, deadline=io.now() + AGAIN)

    # -- counted

    @property
    def pending_cleanup(self) -> int:
        """How many things may still have to be undone on the server."""
        return self.reaper.pending + len(self.holds.limits)

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
            pending_cleanup=self.pending_cleanup,
        )

    def has_only_this_call(self) -> bool:
        """Return whether the client holds nothing, stands for nothing, and no other call of it waits."""
        return len(self.calls) <= 1 and not self.standing and self.sessions.are_idle()

    # -- the end

    def begin_close(self) -> bool:
        """Refuse new calls, end the waiting ones and all holds; returns False when that was done before.

        The holds end first: else whoever is woken by the closing could give up before, for another reason.
        Done again at each call: the one before may have been interrupted.
        """
        first = self.calls.refuse(ClientClosed)
        self.holds.give_up()
        self.closing.set()
        self.holds.give_up()  # what was granted meanwhile
        self.calls.end(ClientClosed)
        return first

    def forked(self, host: Host) -> None:
        """Mark everything as the parent's; called in the child, where no other thread is, with its new host.

        A mutex that another thread had locked at the fork stays locked for ever here, so no inherited mutex
        is touched.
        """
        self.host = host
        self.sessions.forked(host)
        self.holds.forked(host)
        self.tickets = Tickets(host.mutex())
        self.calls.refuse(ClientClosed)
        self.closing.set()
        for kept in self.sessions:
            self.sessions.end(kept, LossReason.FORKED)


class _OwnSession:
    """The claim of a lock on a session of its own."""

    def __init__(self, source: SessionSource) -> None:
        self._discard = source.discarding()

    def abandon(self) -> None:
        """End the session: nobody refers to the lock, or to a hold of it, any more."""
        self._discard()


async def close(io: IO, client: ClientState, *, deadline: float) -> None:
    """Release all holds, then destroy all sessions, as far as that can be done by ``deadline``.

    The rest is left to their TTL.
    """
    if client.calls:
        await io.wait(client.calls.over, deadline=min(deadline, io.now() + CALLS_END))
    for hold in client.holds.given_up():
        await give_back(io, client.holds, hold, budget=max(0.0, deadline - io.now()))
    await _let_releases_end(io, client.holds.releasing(), deadline=deadline)
    await close_late(io, client, deadline=deadline)


async def _let_releases_end(io: IO, releasing: Iterable[Grant], *, deadline: float) -> None:
    """Return when each hold that is being released is given back, or is the reaper's to give back."""
    for hold in releasing:
        if hold.released_by.value == io.owner():
            # A signal handler has interrupted it, and can't wait for its own thread.
            hold.kind.abandon(hold)
            hold.finish_release(ReleaseOutcome.UNKNOWN)
        else:
            await io.wait(hold.settled, deadline=deadline)


async def close_late(io: IO, client: ClientState, *, deadline: float) -> None:
    """Destroy all sessions and do what is still to be done, as far as that can be done by ``deadline``."""
    client.register.sweep()
    for kept in client.sessions:
        client.sessions.end(kept, LossReason.CLIENT_CLOSED)
        if kept.ours_to_destroy:
            client.destroy(kept.id)
    client.holds.limits.give_up()
    await client.reaper.finish(io, deadline=deadline)


async def close_session(io: IO, client: ClientState, kept: KeptSession) -> None:
    """Release what a session holds and destroy it, or only stop renewing it when it was exported.

    Released first: the other way round would impose the lock-delay. If the call is interrupted, the
    background does the rest.
    """
    if kept.lease.ended_by is not None and not _may_live_on(client, kept):
        return
    try:
        await _close_session(io, client, kept)
    except BaseException:
        if kept.lease.ended_by is None or _may_live_on(client, kept):
            client.host.spawn(lambda io: close_session(io, client, kept), name="close a session")
        raise


def _may_live_on(client: ClientState, kept: KeptSession) -> bool:
    """Return whether an exported session that has ended here may be another client's, or still become that.

    It may even have been taken up again here by its id.
    """
    was_resumed = _resumed(client, kept) or kept.id in client.sessions.closed
    return kept.exported and not (was_resumed or client.closing.is_set())


def _resumed(client: ClientState, kept: KeptSession) -> bool:
    """Return whether this client itself has resumed a session that it has exported."""
    current = client.sessions.get(kept.id) or kept
    return current is not kept and not current.outside


async def _close_session(io: IO, client: ClientState, kept: KeptSession) -> None:
    if kept.ours_to_destroy:
        if client.closing.is_set():
            return  # closing does both, in that order
        client.sessions.closed.add(kept.id)  # first: nobody takes what is released with it
        for hold in list(client.holds.all()):
            if hold.kept is kept:
                hold.depth = 1  # however often it was acquired
                await release(io, client.holds, hold)
    releasing = [hold for hold in client.holds.releasing() if hold.session == kept.id]
    async with io.shield(BUDGET) as deadline:
        await _let_releases_end(io, releasing, deadline=deadline)
    if kept.exported:
        await _hand_over(io, client, kept)
        return
    destroyed = False
    try:
        client.sessions.end(kept, LossReason.CLIENT_CLOSED)
        # What was forgotten or lost is unlocked first, by the reaper, or it would get the lock-delay.
        if not client.reaper.owes_unlocks(kept.id):
            async with io.shield(BUDGET) as deadline:
                with suppress(ConsulCoordError):
                    call = session_endpoint.destroy(kept.id)
                    await perform(io, call, deadline=deadline, attempt=client.timeout)
                    destroyed = True
                    client.sessions.closed.discard(kept.id)
    finally:
        if not destroyed:
            client.destroy(kept.id)


async def _hand_over(io: IO, client: ClientState, kept: KeptSession) -> None:
    """Leave a session to the client that resumes it, and do nothing as that session any more."""
    try:
        async with io.shield(BUDGET) as deadline:
            await client.reaper.let_go(io, kept.id, deadline=deadline)
    finally:
        _leave(client, kept)


def _leave(client: ClientState, kept: KeptSession) -> None:
    """Do nothing as an exported session any more, unless this client has resumed it itself."""
    if not _resumed(client, kept):
        current = client.sessions.get(kept.id) or kept
        client.sessions.handed_over.add(kept.id)
        current.exported = True
        client.reaper.drop(kept.id)  # what has come up meanwhile
        client.sessions.end(current, LossReason.CLIENT_CLOSED)
