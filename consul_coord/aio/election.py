"""Leader election for event loops: names, parameters and documentation.

The logic is in ``recipes.election`` and ``recipes.leader``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from consul_coord.aio.blocks import AsyncHeld
from consul_coord.aio.body import LeaderBody, require_interruptible
from consul_coord.aio.callbacks import AsyncCallbacks
from consul_coord.aio.client import AsyncClient
from consul_coord.aio.leadership import AsyncLeadership
from consul_coord.aio.watch import AsyncWatch
from consul_coord.base_client import require
from consul_coord.errors import AcquireCancelled, LeadershipLost
from consul_coord.models._validate import as_bytes, bytes_or_none
from consul_coord.recipes.election import election as recipe
from consul_coord.recipes.election.leader import LeaderFollower
from consul_coord.recipes.election.leader import leader as read_leader
from consul_coord.recipes.lock import lock as lock_recipe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine
    from types import TracebackType
    from typing import Self

    from consul_coord.models import Contender, LeaderInfo, LossReason, ReleaseOutcome, SessionSpec
    from consul_coord.recipes.election.election import Candidacy
    from consul_coord.recipes.hold.grant import Grant


class AsyncLeaderElection:
    """A candidate for the leadership of a key, which contends, leads and contends again in the background.

    Guarantees: at most one leader at a time that believes in it, as ``Hold`` says; each ``term`` above all
    earlier ones; a leader that dies is succeeded after at most ``failover_bound(spec)`` seconds, one that
    resigns at once; ``is_leader`` and ``leadership`` are computed from the lease at every look, so a process
    that was stopped never finds itself leading after its time; candidates are served in order, and a change
    of leadership wakes one of them; callbacks are called in order, one at a time, ``on_lost`` once after each
    ``on_elected``. Does not guarantee: that a paused leader stops in time (use the term, or ``guard()``);
    that a callback runs before its news is old; order among candidates that know nothing of the queue.

    Other clients' candidates that acquire the same key with a session take part: those with the flags of the
    official Go client's locks, and those with flags named in ``accept_flags``. One object may be used by many
    threads or tasks.
    """

    def __init__(
        self,
        client: AsyncClient,
        key: str,
        *,
        value: bytes | str | None = None,
        session: SessionSpec | str | None = None,
        on_elected: Callable[[AsyncLeadership], object] | None = None,
        on_lost: Callable[[LossReason], object] | None = None,
        on_change: Callable[[LeaderInfo | None], object] | None = None,
        health: Callable[[], bool | Awaitable[bool]] | None = None,
        health_interval: float = 1.0,
        max_hold: float | None = None,
        priority_delay: float = 0.0,
        retry_wait: tuple[float, float] = (0.5, 2.0),
        accept_flags: Collection[int] = (),
    ) -> None:
        """Describe the candidate; no I/O.

        ``value`` is what it advertises as leader. ``session``: None for the client's shared one, a spec for
        one of its own, or the id of one made elsewhere. ``on_elected(leadership)``, ``on_lost(reason)`` (at
        every end of a leadership; RESIGNED when it was given up) and ``on_change(leader)`` (the present
        leader first, then each change; None when nobody leads, or, without contact to Consul, when a leader
        that is cut off as well must have stopped) are called on the client's callback thread, or in its
        event loop, where they may be coroutine functions. They should be short: what the leader does
        belongs into ``run``. What ``on_elected`` still awaits when its leadership ends is cancelled, so
        that ``on_lost`` follows. A callback that raises is logged and reported as ``Failed``; if it was
        ``on_elected``, the leader resigns. ``health``: asked every ``health_interval`` seconds; while it
        returns False, raises, or has not answered for 10 s, this is no candidate, and no leader. A leader
        that it says False of resigns. If it raises or does not answer, the leader may be stuck: the
        leadership is lost, as STALLED, and the key is given back when its block has ended or ``on_lost`` has
        returned, or else after the lock-delay. ``max_hold``: seconds after which each leadership is lost
        likewise, as MAX_HOLD. ``priority_delay``: seconds for which the leadership must have been vacant
        before this candidate wants it. ``retry_wait``: the least and the most seconds, drawn at random, from
        the end of a leadership to the next attempt. ``accept_flags``: further flags that an existing key may
        carry, such as 0. Raises InvalidKey and InvalidArgument.
        """
        self._runner = require(client, AsyncClient, type(self).__name__)
        self._lock = recipe.lock_of(
            key=key,
            value=bytes_or_none(value),
            session=session,
            accept_flags=accept_flags,
        )
        self._plan = recipe.ElectionPlan(
            key=key,
            retry_wait=retry_wait,
            priority_delay=priority_delay,
            health_interval=health_interval,
            on_elected=None
            if on_elected is None
            else lambda candidacy, hold: on_elected(self._view(candidacy, hold)),
            on_lost=on_lost,
            on_change=on_change,
            health=health,
            max_hold=max_hold,
        )
        self._candidacy: Candidacy | None = None
        self._shown: tuple[Grant, AsyncLeadership] | None = None

    @property
    def key(self) -> str:
        """The key that is led."""
        return self._plan.key

    # -- the candidacy

    async def start(self) -> None:
        """Begin to be a candidate, in the background; harmless when it is one. Raises ClientClosed."""
        core = self._runner.core
        with core.mutex:  # the core's: after a fork there is a new one
            candidacy = self._current()
            if candidacy is None or candidacy.is_over:
                candidacy = recipe.Candidacy(core, self._plan, self._lock, AsyncCallbacks(core), keeps=self)
                self._candidacy = candidacy
            await self._runner.call(recipe.start, candidacy=candidacy)

    async def stop(self, *, timeout: float = 5.0) -> None:
        """Resign if it leads, and be no candidate any more; harmless when it is none.

        Waits up to ``timeout`` seconds; the rest is done in the background. May be started again.
        """
        candidacy = self._current()
        if candidacy is not None:
            await self._runner.finish(recipe.stop, candidacy, timeout=timeout)

    def _current(self) -> Candidacy | None:
        """Return the candidacy, unless it is a parent process's."""
        candidacy = self._candidacy
        return candidacy if candidacy is not None and candidacy.client is self._runner.core else None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def problem(self) -> Exception | None:
        """What is wrong with the candidacy; None if nothing is.

        PermissionDenied or KeyConflict, for example, when the last attempt was refused; RequestTimeout when
        Consul has not answered for 3 s or more. Attempts go on all the same. No I/O.
        """
        candidacy = self._candidacy
        return None if candidacy is None else candidacy.problem

    @property
    def leader(self) -> LeaderInfo | None:
        """Who leads, as this candidate has seen last; None when nobody does, or nobody is known to. No I/O.

        Followed from the first look on, or from the start with ``on_change``, while this is a candidate;
        before, it is what the last attempt saw. Without contact to Consul it becomes None when a leader that
        is cut off as well must have stopped: one TTL of its session after it was seen.
        """
        candidacy = self._seeing()
        return None if candidacy is None else candidacy.leader(self._runner.now())

    @property
    def leader_age(self) -> float | None:
        """Seconds since the leader was last seen, or that there is none; None before the first look. No I/O.

        0 while this leads. While it is followed and Consul answers, at most about a third of the leader's
        TTL.
        """
        candidacy = self._seeing()
        return None if candidacy is None else candidacy.leader_age(self._runner.now())

    def _seeing(self) -> Candidacy | None:
        candidacy = self._current()
        if candidacy is None or candidacy.is_over:
            return None
        candidacy.follow()
        return candidacy

    # -- the leadership

    @property
    def is_leader(self) -> bool:
        """Whether it leads at this moment; no I/O."""
        return self._hold() is not None

    @property
    def term(self) -> int | None:
        """The term of the present leadership, or None when this does not lead; no I/O."""
        hold = self._hold()
        return None if hold is None else hold.fence

    @property
    def leadership(self) -> AsyncLeadership | None:
        """The present leadership, or None when this does not lead; no I/O."""
        candidacy = self._candidacy
        hold = None if candidacy is None else candidacy.leading(self._runner.now())
        return None if candidacy is None or hold is None else self._view(candidacy, hold)

    def _hold(self) -> Grant | None:
        candidacy = self._candidacy
        return None if candidacy is None else candidacy.leading(self._runner.now())

    def _view(self, candidacy: Candidacy, hold: Grant) -> AsyncLeadership:
        shown = self._shown
        if shown is None or shown[0] is not hold:
            self._shown = shown = (hold, AsyncLeadership(self._runner, candidacy, hold))
        return shown[1]

    async def wait_for_leadership(self, *, timeout: float | None = None) -> AsyncLeadership:
        """Return the leadership, as soon as there is one; ``timeout`` seconds at most, None for ever.

        Raises AcquireTimeout, AcquireCancelled when the candidacy was not started or is stopped, and
        ClientClosed.
        """
        candidacy, hold = await self._runner.call(
            recipe.wait_for_leadership, candidacy=self._current(), timeout=timeout
        )
        return self._view(candidacy, hold)

    async def wait_for_loss(self, *, timeout: float | None = None) -> LossReason:
        """Return why the latest leadership has ended, as soon as it has; RESIGNED when it was given up.

        ``timeout`` seconds at most, None for ever. Raises TimeoutError, NotHeld when there was no leadership,
        and ClientClosed.
        """
        candidacy = self._candidacy
        return await self._runner.call(recipe.wait_for_loss, candidacy, key=self.key, timeout=timeout)

    async def run(
        self,
        fn: Callable[[AsyncLeadership], Awaitable[object]],
        *,
        until: Callable[[], bool] | None = None,
        interrupt: bool = False,
    ) -> None:
        """Call ``fn(leadership)`` whenever elected, in this thread or task, while this is a candidate.

        Resigns when ``fn`` returns or raises; an Exception is logged and reported as ``Failed``, anything
        else goes on. At a loss a coroutine is cancelled. A blocking ``fn`` should look at ``leadership.lost``
        or call ``leadership.check()``, whose LeadershipLost it may let out; with ``interrupt``, which needs
        the main thread, LeadershipLost is raised into it, as ``Lock.hold`` says. Returns when ``until()``,
        asked after each call, returns True, or when the candidacy is stopped. Starts the candidacy if need
        be, and stops it then at the end.
        """
        if interrupt:
            require_interruptible()
        if (candidacy := self._current()) is None or candidacy.is_over:
            async with self:
                await self._run(fn, until, interrupt=interrupt)
        else:
            await self._run(fn, until, interrupt=interrupt)

    async def _run(
        self,
        fn: Callable[[AsyncLeadership], Awaitable[object]],
        until: Callable[[], bool] | None,
        *,
        interrupt: bool,
    ) -> None:
        while True:
            try:
                leadership = await self.wait_for_leadership()
            except AcquireCancelled:
                return
            try:
                block = AsyncHeld(
                    self.key, functools.partial(_given, leadership), interrupt=interrupt, kind=LeaderBody
                )
                async with block:
                    await fn(leadership)
            except LeadershipLost as lost:
                # That it was lost is told by on_lost; what else the work raised is its own error.
                error = lost.__cause__ if lost.fence == leadership.term else lost
            except Exception as raised:  # noqa: BLE001 - a user's bug, which ends no candidacy
                error = raised
            else:
                error = None
            recipe.report_work(self._candidacy, error)
            if until is not None and until():
                return

    def leading(
        self, fn: Callable[[AsyncLeadership], Awaitable[object]]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Decorate a function: calling it then means ``run`` with it."""

        @functools.wraps(fn)
        async def led() -> None:
            await self.run(fn)

        return led

    async def resign(self, *, pause: float = 0.0) -> ReleaseOutcome:
        """Give the leadership up: the next candidate takes over at once, without lock-delay.

        Then, after ``pause`` seconds and ``retry_wait``, this is a candidate again. With a ``pause`` a
        candidate that does not lead also stays out for so long. Returns RELEASED, ALREADY_LOST when there was
        nothing to give up, or UNKNOWN when no answer came within 5 s: it is then given up in the background.
        Once more for the same leadership, it returns the first outcome again.
        """
        candidacy = self._current()
        return await self._runner.finish(recipe.resign, candidacy, pause=pause)

    async def proclaim(self, value: bytes | str) -> None:
        """Change what is advertised, while leading; the next term begins with ``value`` of the constructor.

        Raises NotHeld when this does not lead, LeadershipLost when it does not any more, and what the write
        raises.
        """
        candidacy, hold = recipe.leadership_of(self._current(), self._runner.now(), key=self.key)
        data = as_bytes(value)
        await self._runner.call(recipe.proclaim, candidacy, hold, data)

    async def transfer_to(self, session: str) -> None:
        """Resign in favour of the candidate with this session, one of ``candidates()``.

        The others let it go first, for 5 s at most; other clients' candidates know nothing of it. Raises
        SessionNotFound when no such candidate waits (nothing is given up then), NotHeld, LeadershipLost, and
        what the requests raise.
        """
        candidacy, hold = recipe.leadership_of(self._current(), self._runner.now(), key=self.key)
        await self._runner.call(recipe.transfer, candidacy, hold, session)

    async def candidates(self) -> tuple[Contender, ...]:
        """Return who waits for the leadership, the next one first; a consistent read.

        Candidates that know nothing of the queue are not among them, nor those that stand aside.
        """
        return await self._runner.call(lock_recipe.contenders, self._runner.core, self._lock)

    def __repr__(self) -> str:
        role = f"leading, term {self.term}" if self.is_leader else "not leading"
        return f"<AsyncLeaderElection of {self.key!r}: {role}>"


async def _given(leadership: AsyncLeadership) -> AsyncLeadership:
    return leadership


async def async_leader(client: AsyncClient, key: str) -> LeaderInfo | None:
    """Return who leads, as the servers' leader has it, or None; a consistent read.

    Raises InvalidKey, and what the requests raise.
    """
    runner = require(client, AsyncClient, "async_leader")
    return await runner.call(read_leader, runner.core, key)


def async_observe(client: AsyncClient, key: str) -> AsyncWatch[LeaderInfo | None]:
    """Return an iterator over leaderships: the present state first, None for nobody; then each change once.

    A change is another leader, another term of the same one, or another value. States between two looks may
    be skipped, the latest never is. Outages of the agent are ridden out. Raises InvalidKey.
    """
    return AsyncWatch(require(client, AsyncClient, "async_observe"), LeaderFollower(key))
