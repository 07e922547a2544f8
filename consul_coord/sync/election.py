# Made from consul_coord/aio/election.py by `python tools/make_sync.py`: change that one.
"""Leader election for blocking code: names, parameters and documentation.

The logic is in ``recipes.election`` and ``recipes.leader``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from consul_coord.base_client import Entered, require
from consul_coord.errors import AcquireCancelled, InvalidArgument, LeadershipLost
from consul_coord.models._validate import as_bytes, bytes_or_none, plain
from consul_coord.recipes.election import asking as recipe
from consul_coord.recipes.election.candidacy import Candidacy, ElectionPlan, lock_of
from consul_coord.recipes.election.leader import LeaderFollower
from consul_coord.recipes.election.leader import leader as read_leader
from consul_coord.recipes.lock import lock as lock_recipe
from consul_coord.sync.blocks import Held
from consul_coord.sync.body import LeaderBody, require_interruptible
from consul_coord.sync.callbacks import Callbacks, check_callbacks, check_work, finish
from consul_coord.sync.client import Client
from consul_coord.sync.leadership import Leadership
from consul_coord.sync.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType
    from typing import Self

    from consul_coord.models import Contender, LeaderInfo, LossReason, ReleaseOutcome, SessionSpec
    from consul_coord.recipes.hold.grant import Grant


class LeaderElection(Entered):
    """A candidate for the leadership of a key, which stands, leads and stands again in the background.

    Guarantees:

    - Two clients never both consider themselves the leader, as ``Hold`` says.
    - Each ``term`` is higher than all before it.
    - After a leader's crash, the next one leads within ``failover_bound(spec)`` seconds; after a
      resignation, at once.
    - ``is_leader`` and ``leadership`` are computed from the lease on each call. So a process that was
      stopped never sees itself leading after its time.
    - Candidates are elected in order, and a change wakes one of them.
    - Callbacks are called in order, one at a time, ``on_lost`` once after each ``on_elected``.

    Not guaranteed:

    - that a paused leader stops in time (use the term, or ``guard()``);
    - that a callback runs before its news is old;
    - an order among candidates that do not know the queue.

    Candidates of other clients take part if they acquire the same key with a session, with the flags of the
    Go client's locks or with flags of ``accept_flags``. Many threads or tasks may use one object.
    """

    def __init__(
        self,
        client: Client,
        key: str,
        *,
        value: bytes | str | None = None,
        session: SessionSpec | str | None = None,
        on_elected: Callable[[Leadership], object] | None = None,
        on_lost: Callable[[LossReason], object] | None = None,
        on_change: Callable[[LeaderInfo | None], object] | None = None,
        health: Callable[[], bool] | None = None,
        health_interval: float = 1.0,
        max_hold: float | None = None,
        priority_delay: float = 0.0,
        retry_wait: tuple[float, float] = (0.5, 2.0),
        accept_flags: Collection[int] = (),
    ) -> None:
        """Describe the candidate, without I/O.

        - ``client``: the client to use.
        - ``key``: the key of the election.
        - ``value``: text that followers see while this candidate leads. None stands for the client's name,
          ``host:pid`` by default, read at each attempt; ``b""`` writes none.
        - ``session``: None for the client's shared session, a spec for a separate one, or the id of a
          session made elsewhere, for this client only.
        - ``on_elected``: called with the leadership at each election. The end of the leadership
          cancels it if it still awaits something. If it raises, the leader resigns.
        - ``on_lost``: called with the reason at the end of each leadership; RESIGNED if this candidate
          resigned.
        - ``on_change``: called with the present leader first, then at each change. It gets None if there is
          no leader, or if, without contact to Consul, a leader that is cut off too must have stopped.
        - ``health``: called every ``health_interval`` seconds. While it returns False, raises, or has not
          answered for 10 s, this candidate does not stand. A leader resigns if it returns False. If it
          raises or does not answer, the leader may be stuck: the leadership is lost, as STALLED. The client
          then releases the key when the leader's block has ended or ``on_lost`` has returned, or after the
          lock-delay.
        - ``health_interval``: seconds between two calls of ``health``.
        - ``max_hold``: seconds after which each leadership is lost in the same way, as MAX_HOLD.
        - ``priority_delay``: stand only after the leadership has been vacant for so many seconds.
        - ``retry_wait``: the least and the most seconds, drawn at random, from the end of a leadership to
          the next attempt.
        - ``accept_flags``: further flags that an existing key may carry, such as 0.

        Callbacks run on the client's callback thread, or in its event loop, where they may be coroutine
        functions. Keep them short; let ``run`` do the leader's work. The client logs a callback that raises,
        and reports it as ``Failed``. Raises InvalidKey, ValueTooLarge and InvalidArgument.
        """
        self._runner = require(client, Client, type(self).__name__)
        self._lock = lock_of(
            key=key,
            value=bytes_or_none(value),
            session=session,
            accept_flags=accept_flags,
        )
        check_callbacks(on_elected=on_elected, on_lost=on_lost, on_change=on_change, health=health)
        self._plan = ElectionPlan(
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
        self._shown: tuple[Grant, Leadership] | None = None

    @property
    def key(self) -> str:
        """The key of the election."""
        return self._plan.key

    # -- the candidacy

    def start(self) -> None:
        """Stand for election in the background; do nothing if it stands already. Raises ClientClosed."""
        core = self._runner.core
        with core.mutex:  # the core's: after a fork there is a new one
            candidacy = self._current()
            if candidacy is None or candidacy.is_over:
                calls = Callbacks(core) if candidacy is None else candidacy.calls
                earlier = None if candidacy is None else candidacy.latest
                if candidacy is not None:
                    candidacy.stop()  # an earlier stop may have been interrupted
                candidacy = Candidacy(core, self._plan, self._lock, calls, keeps=self, earlier=earlier)
                self._candidacy = candidacy
            self._runner.call(recipe.start, candidacy=candidacy)

    def stop(self, *, timeout: float = 5.0) -> None:
        """Resign if it leads, and stand no longer; do nothing if it does not stand.

        It waits up to ``timeout`` seconds, and the client does the rest in the background. You may start the
        candidacy again.
        """
        candidacy = self._current()
        if candidacy is not None:
            self._runner.finish(recipe.stop, candidacy, timeout=timeout)

    def _current(self) -> Candidacy | None:
        """Return the candidacy, unless it is a parent process's."""
        candidacy = self._candidacy
        return candidacy if candidacy is not None and candidacy.client is self._runner.core else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def problem(self) -> Exception | None:
        """The reason why this candidate can't lead at present, or None; no I/O.

        For example PermissionDenied or KeyConflict if the last attempt was refused, or RequestTimeout if
        Consul has not answered for 3 s. Attempts go on.
        """
        candidacy = self._candidacy
        return None if candidacy is None else candidacy.problem

    @property
    def leader(self) -> LeaderInfo | None:
        """The leader that this candidate saw last; None without a leader, or before a first look. No I/O.

        The client follows the leader from the first call on, or from the start if there is an ``on_change``,
        while this candidate stands. Before that, it is the leader that the last attempt saw. Without contact
        to Consul it becomes None one TTL after it was seen, because a leader that is cut off too must have
        stopped by then.
        """
        candidacy = self._seeing()
        return None if candidacy is None else candidacy.following.leader(self._runner.now())

    @property
    def leader_age(self) -> float | None:
        """Seconds since the candidate last saw whether somebody leads; None before its first look. No I/O.

        0 while this leads. While it is followed and Consul answers, at most about a third of the leader's
        TTL.
        """
        candidacy = self._seeing()
        return None if candidacy is None else candidacy.following.age(self._runner.now())

    def _seeing(self) -> Candidacy | None:
        candidacy = self._current()
        if candidacy is None or candidacy.is_over:
            return None
        candidacy.following.begin()
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
    def leadership(self) -> Leadership | None:
        """The present leadership, or None when this does not lead; no I/O."""
        candidacy = self._candidacy
        hold = None if candidacy is None else candidacy.leading(self._runner.now())
        return None if candidacy is None or hold is None else self._view(candidacy, hold)

    def _hold(self) -> Grant | None:
        candidacy = self._candidacy
        return None if candidacy is None else candidacy.leading(self._runner.now())

    def _view(self, candidacy: Candidacy, hold: Grant) -> Leadership:
        shown = self._shown
        if shown is None or shown[0] is not hold:
            self._shown = shown = (hold, Leadership(self._runner, candidacy, hold))
        return shown[1]

    def wait_for_leadership(self, *, timeout: float | None = None) -> Leadership:
        """Return the leadership once there is one, within ``timeout`` seconds; None waits for ever.

        Raises AcquireTimeout, AcquireCancelled if the candidacy was not started or is stopped, and
        ClientClosed.
        """
        candidacy, hold = self._runner.call(
            recipe.wait_for_leadership, candidacy=self._current(), key=self.key, timeout=timeout
        )
        return self._view(candidacy, hold)

    def wait_for_loss(self, *, timeout: float | None = None) -> LossReason:
        """Return the reason once the latest leadership has ended; RESIGNED if this candidate resigned.

        ``timeout`` is in seconds; None waits for ever. Raises TimeoutError, NotHeld if there was no
        leadership, and ClientClosed.
        """
        candidacy = self._candidacy
        return self._runner.call(recipe.wait_for_loss, candidacy, key=self.key, timeout=timeout)

    def run(
        self,
        fn: Callable[[Leadership], object],
        *,
        until: Callable[[], bool] | None = None,
        interrupt: bool = False,
    ) -> None:
        """Call ``fn(leadership)`` at each election, in this thread or task, until the candidacy stops.

        - ``fn``: the leader's work. A loss cancels a coroutine. A blocking ``fn`` should wait on
          ``leadership.lost`` or call ``leadership.check()``, and may let LeadershipLost pass.
        - ``until``: called after each ``fn``; ``run`` returns when it returns True.
        - ``interrupt``: in the main thread, a loss raises LeadershipLost into ``fn``, as ``Lock.hold`` says.

        It resigns when ``fn`` returns or raises. It logs an Exception, and reports it as ``Failed``; any
        other exception passes. It returns when the candidacy is stopped, too. It starts the candidacy if
        necessary, and then stops it at the end. Raises ClientClosed and InvalidArgument: also when ``fn`` has
        returned an awaitable in blocking code, or none in async code.
        """
        check_work("fn", fn)
        plain(until=until)
        if interrupt:
            require_interruptible()
        candidacy = self._current()
        if candidacy is None or candidacy.is_over or candidacy.task is None:
            with self:
                self._run(fn, until, interrupt=interrupt)
        else:
            self._run(fn, until, interrupt=interrupt)

    def _run(
        self,
        fn: Callable[[Leadership], object],
        until: Callable[[], bool] | None,
        *,
        interrupt: bool,
    ) -> None:
        while True:
            try:
                leadership = self.wait_for_leadership()
            except AcquireCancelled:
                return
            misuse: InvalidArgument | None = None
            try:
                block = Held(
                    self.key, functools.partial(_given, leadership), interrupt=interrupt, kind=LeaderBody
                )
                with block:
                    misuse = finish("fn", fn(leadership))
            except LeadershipLost as lost:
                # That it was lost is told by on_lost; what else the work raised is its own error.
                error = lost.__cause__ if lost.fence == leadership.term else lost
            except Exception as raised:  # noqa: BLE001 - a user's bug, which ends no candidacy
                error = raised
            else:
                error = None
            if misuse is not None:
                raise misuse
            recipe.report_work(self._candidacy, error)
            del error  # which refers to all that the work had
            if until is not None and until():
                return

    def leading(self, fn: Callable[[Leadership], object]) -> Callable[[], None]:
        """Decorate a function, so that calling it means ``run`` with it. Raises InvalidArgument."""
        check_work("fn", fn)

        @functools.wraps(fn)
        def led() -> None:
            self.run(fn)

        return led

    def resign(self, *, pause: float = 0.0) -> ReleaseOutcome:
        """Resign: the next candidate leads at once, without a lock-delay.

        After ``pause`` seconds and ``retry_wait``, this candidate stands again. With a ``pause``, a
        candidate that does not lead also stays out for that long. Returns RELEASED, ALREADY_LOST if it did
        not lead, or UNKNOWN if no answer came within 8 s; the client then goes on in the background. A
        second call for the same leadership returns the first outcome.
        """
        candidacy = self._current()
        return self._runner.finish(recipe.resign, candidacy, pause=pause)

    def proclaim(self, value: bytes | str) -> None:
        """Change the value that followers see, while leading.

        The next term begins with the constructor's ``value``. Raises NotHeld if this candidate does not
        lead, LeadershipLost if it no longer leads, and the errors of the write.
        """
        candidacy, hold = recipe.leadership_of(self._current(), self._runner.now(), key=self.key)
        data = as_bytes(value)
        self._runner.call(recipe.proclaim, candidacy, hold, data)

    def transfer_to(self, session: str) -> None:
        """Resign, and let the candidate with this session, one of ``candidates()``, lead next.

        The others let it go first, for 5 s at most. Candidates of other clients ignore this. Raises
        SessionNotFound if no such candidate waits, and ValueTooLarge if the candidate right before it has a
        value of more than about 190 kB, and then goes on leading. Raises NotHeld, LeadershipLost, and the
        errors of the requests.
        """
        candidacy, hold = recipe.leadership_of(self._current(), self._runner.now(), key=self.key)
        self._runner.call(recipe.transfer, candidacy, hold, session)

    def candidates(self) -> tuple[Contender, ...]:
        """Return the waiters for the leadership, the next one first, as the servers' leader has them.

        Candidates of clients that do not know the queue are not among them, nor those that stand aside.
        """
        return self._runner.call(lock_recipe.contenders, self._runner.core, self._lock)

    def __repr__(self) -> str:
        role = f"leading, term {self.term}" if self.is_leader else "not leading"
        return f"<LeaderElection of {self.key!r}: {role}>"


def _given(leadership: Leadership) -> Leadership:
    return leadership


def leader(client: Client, key: str) -> LeaderInfo | None:
    """Return who leads the election on ``key``, as the servers' leader has it, or None.

    Raises InvalidKey, and the errors of the requests.
    """
    runner = require(client, Client, "leader")
    return runner.call(read_leader, runner.core, key)


def observe(client: Client, key: str) -> Watch[LeaderInfo | None]:
    """Return an iterator over the leaders of ``key``: the present one or None first, then each change once.

    A change is another leader, another term of the same one, or another value. It may skip states between two
    looks, but never the latest. It retries while the agent is away. Raises InvalidKey.
    """
    return Watch(require(client, Client, "observe"), LeaderFollower(key))
