"""The skeleton of an attempt: moves, what stands in the way, deadline, giving up.

Rules
- An attempt makes one move after the other until it has what is wanted, or the deadline comes. A move returns
  the hold, or None when something stands in the way; ``_block`` has said what.
- A name that not every release of Consul takes is read before anything is written. Some refuse it in reads
  only, and a hold whose key can't be read could not be watched.
- A failure to serve stands in the way like a holder does: the attempt pauses and moves again.
- A single try (``timeout=0``) never waits for a change.
- Shortly before its deadline a waiter looks once more, and reads on which nodes the holders are, see
  ``last_look``. So the error that it raises names them without a request after the deadline.
- A recipe may read something besides its moves, before its hold counts. That has the attempt's time.
- Leaving without a hold leaves nothing behind: at once if the server answers soon, otherwise by the reaper.
- A claim is entered before anything is sent. If the call is interrupted, even while it gives up, the register
  has the rest done.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from consul_coord.errors import (
    AcquireTimeout,
    BrokenReply,
    ConsulCoordError,
    PermissionDenied,
    RequestTimeout,
    TxnFailed,
)
from consul_coord.events import TimedOut, Waiting
from consul_coord.http.backoff import delay
from consul_coord.http.blocking import Pace
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints._keys import is_safe
from consul_coord.http.failures import bare, outcome_unknown, retryable
from consul_coord.http.retry import send_once
from consul_coord.models import Blocker, _validate
from consul_coord.recipes.contend import last_look
from consul_coord.recipes.contend.refusals import timed_out
from consul_coord.recipes.hold.asking import check
from consul_coord.recipes.hold.holds import BUDGET, release

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from consul_coord.http.messages import Call, Retry
    from consul_coord.io import IO
    from consul_coord.models import BlockerKind, Holder, KVPair, Result, TxnOp, TxnResult
    from consul_coord.recipes.contend.last_look import Nodes
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Grant, Handle, HoldKind
    from consul_coord.recipes.hold.holds import Holds
    from consul_coord.recipes.session.keeping import KeptSession

T = TypeVar("T")

FIRST_PAUSE = 0.1
"""Seconds to the second try in a lock-delay or after a failure; grows to LONGEST_PAUSE."""
LONGEST_PAUSE = 1.0
GIVE_UP_BUDGET = 0.08
"""Seconds that giving up may take before the reaper takes over: a cancelled call ends within 100 ms."""
SPREAD = 0.02
"""Where nobody queues, waiters take a key that became free after a random part of this many seconds."""
READABLE_FOR = 60.0
"""Seconds for which a name that was read counts as readable: the agent may be exchanged for a newer one."""
_PACE = Pace(interval=0.01, burst=20)
"""How fast watches may follow each other: enough for a waiter that is passed by newcomers again and again."""
_VERB = attrgetter("verb")
_PAUSES = {"lock_delay", "unreachable"}
"""The blockers that end without an event: the attempt pauses, and tries again."""


async def let_go(io: IO, holds: Holds, hold: Grant, *, until: float) -> None:
    """Give back what a call was granted, in what is left of its time; the rest is done in the background."""
    await release(io, holds, hold, budget=min(BUDGET, max(GIVE_UP_BUDGET, until - io.now())))


def deadline_of(io: IO, timeout: float | None) -> float:
    """Return when ``timeout`` seconds will have passed.

    Never for None. Raises InvalidArgument for what is no time.
    """
    return math.inf if timeout is None else io.now() + _validate.patience(timeout)


class Attempt(ABC):
    """One call of ``acquire``."""

    __slots__ = (
        "__weakref__",
        "_last_look",
        "_must_pause",
        "_nodes",
        "_pace",
        "_reported",
        "asked",
        "began",
        "blocker",
        "cause",
        "client",
        "deadline",
        "holders",
        "io",
        "kept",
        "kind",
        "names",
        "once",
        "session",
        "wanted",
    )

    def __init__(self, io: IO, client: Shared, names: tuple[str, ...], *, timeout: float | None) -> None:
        self.io = io
        self.client = client
        self.names = names
        """The keys that are wanted, or the prefix, as the user named them."""
        self.wanted = names[0]
        """The one that an error names."""
        self.once = timeout == 0
        self.began = io.now()
        self.deadline = io.now() + client.timeout if self.once else deadline_of(io, timeout)
        self._last_look = self.deadline if timeout is None else last_look.due(self.deadline, timeout)
        self._nodes: Nodes | None = None
        """The node of each session that holds, once they were read."""
        self.holders: tuple[Holder, ...] = ()
        """The holders as they were last read."""
        self.kept: KeptSession | None = None
        """The present session."""
        self.session = ""
        """Its id; empty before there was one."""
        self.kind: HoldKind | None = None
        """The kind of hold that is about to be registered."""
        self.blocker = Blocker("unreachable")
        self.cause: ConsulCoordError | None = None
        """The error of the server or the network, where that is in the way."""
        self._reported: tuple[BlockerKind, int | None] | None = None
        self.asked: bool = False
        """Whether the present session may have something on the server."""
        self._must_pause = False
        self._pace = _PACE

    # -- what a recipe adds

    @abstractmethod
    def _begin(self) -> Awaitable[None]:
        """Enter the claim, and wait for others of this client."""

    @abstractmethod
    async def _move(self) -> Handle | None:
        """Do what is next; None when it did not bring the hold."""

    @abstractmethod
    async def _withdraw(self, deadline: float) -> bool:
        """Remove what was left on the server; returns whether that is surely done."""

    @abstractmethod
    def _settle(self) -> None:
        """Take note that nothing is left on the server."""

    @abstractmethod
    def _abandon(self) -> None:
        """Have removed in the background what may be left. Repeatable."""

    @abstractmethod
    def _unanswered(self) -> None:
        """Take note that a request that locks got no answer: it may be applied later."""

    # -- the whole attempt

    async def run(self) -> Handle:
        """Get what is wanted, or raise why not, leaving nothing behind."""
        io, failures = self.io, 0
        handle: Handle | None = None
        try:
            await self._begin()
            while True:
                self._must_pause = False
                try:
                    await self._read_names()
                    handle = await self._move()
                except ConsulCoordError as error:
                    if not retryable(error):
                        raise
                    self._note(error)
                if handle is not None:
                    return handle
                failures = failures + 1 if self._must_pause else 0
                await self._pause(failures)
        except AcquireTimeout as error:
            io.emit(TimedOut(error.key, error.blocker, error.waited))
            raise
        finally:
            # Also after a KeyboardInterrupt or a cancellation, wherever it struck.
            # What is about to be a hold is the register's to give back.
            if handle is None and self.kind is None:
                await self._give_up()

    async def until_answered(self, call: Call[T], hold: Grant | None = None) -> T:
        """Send what is read before or after the attempt until it is answered; ``hold`` is what it has got.

        Raises AcquireTimeout when the time is up, the LockLost of the hold, and what the server refuses.
        """
        try:
            return await self._answer(call, hold)
        except AcquireTimeout as error:
            self.io.emit(TimedOut(error.key, error.blocker, error.waited))
            raise

    async def _answer(self, call: Call[T], hold: Grant | None = None) -> T:
        """Return the answer to a reading besides the moves; without one, ``run`` reports the end of time."""
        failures, self._reported = 0, None  # the moves are over, and so is their blocker
        while True:
            if hold is not None:
                check(hold, self.io.now())
            try:
                answer = await send_once(self.io, call, deadline=self.limit)
            except ConsulCoordError as error:
                if not retryable(error):
                    raise
                self._note(error)
            else:
                self._reported = self.cause = None  # an earlier failure is over
                return answer
            failures += 1
            await self._pause(failures)

    async def _pause(self, failures: int) -> None:
        """Wait after so many failures in a row, 0 for none. Raises AcquireTimeout when the time is up."""
        io = self.io
        if io.now() >= self.deadline or (self.once and failures):
            raise self._timeout()
        lost = isinstance(self.cause, BrokenReply)  # one broken exchange is made up for at once
        if failures > lost:
            pause = delay(failures, io.random(), first=FIRST_PAUSE, most=LONGEST_PAUSE)
            await io.sleep(min(pause, max(0.0, self.deadline - io.now())))

    def _note(self, error: ConsulCoordError) -> None:
        """Take a failure to serve for something that stands in the way."""
        # A request cut short by the caller's own deadline says nothing new.
        if not (isinstance(error, RequestTimeout) and self.io.now() >= self.deadline and self._reported):
            self._block("unreachable", cause=error)

    def _block(
        self,
        kind: BlockerKind,
        *,
        session: str | None = None,
        position: int | None = None,
        cause: ConsulCoordError | None = None,
    ) -> None:
        """Take note of what is in the way, and report it when it is something else than before."""
        self.blocker = Blocker(kind, session, position, self.holders)
        self.cause = cause and bare(cause)
        self._must_pause = kind in _PAUSES
        if self._reported != (kind, position):
            self._reported = (kind, position)
            self.io.emit(Waiting(self.wanted, self.blocker, "" if cause is None else str(cause)))

    def _timeout(self) -> AcquireTimeout:
        return timed_out(
            self.wanted,
            self.session,
            last_look.with_nodes(replace(self.blocker, holders=self.holders), self._nodes),
            self.cause,
            waited=self.io.now() - self.began,
        )

    async def _give_up(self) -> None:
        settled = False
        try:
            async with self.io.shield(GIVE_UP_BUDGET) as deadline:
                settled = await self._withdraw(deadline)
        finally:
            if settled:
                self._settle()
            else:
                self._abandon()

    # -- asking

    async def _read_names(self) -> None:
        """Return if all that is wanted can be read. Raises InvalidRequest for a name that Consul refuses."""
        known, now = self.client.readable, self.io.now()
        for name in self.names:
            if is_safe(name) or now < known.get(name, -math.inf) + READABLE_FOR:
                continue
            with suppress(PermissionDenied):
                await send_once(self.io, kv.get(name), deadline=self.limit)
            known.remember(name, now)

    @property
    def limit(self) -> float:
        """When one request is over at the latest."""
        return min(self.deadline, self.io.now() + self.client.timeout)

    async def _ask(self, *ops: TxnOp, retry: Retry | None = None) -> TxnResult:
        """Send one transaction. ``asked`` tells from before one that locks until it is known to be undone."""
        before = self.asked
        locks = "lock" in map(_VERB, ops)
        self.asked, deadline = before or locks, self.limit
        try:
            begins = self.client.has_only_this_call if locks and not before else None
            return await send_once(self.io, kv.txn(*ops, retry=retry, begins=begins), deadline=deadline)
        except TxnFailed:
            self.asked = before
            raise
        except BaseException as error:
            if locks and outcome_unknown(error):
                self._unanswered()
            else:
                self.asked = before
            raise

    async def _watch(
        self,
        key: str,
        index: int,
        *,
        first: bool = False,
        to_the_end: bool = False,
        deadline: float | None = None,
    ) -> Result[KVPair | None] | None:
        """Wait until a key is no longer at ``index``; None when the session ended or the deadline came.

        ``first``: others wait on this attempt. ``to_the_end``: see ``Watches.change``.

        A blocking query that ends without a change is asked again. Raises AcquireTimeout in a single try.
        """
        while True:
            await self._before_a_watch()
            until = None if self.kept is None else self.kept.over
            seen = await self.client.watches.change(
                self.io,
                key,
                index,
                until=until,
                deadline=deadline or self._watch_until,
                first=first,
                to_the_end=to_the_end,
            )
            if seen is None or seen.value is None or seen.value.modify_index != index:
                return seen

    @property
    def _watch_until(self) -> float:
        """When a watch ends at the latest: for the last look, or at the deadline."""
        return self._last_look if self._nodes is None else self.deadline

    async def _before_a_watch(self) -> None:
        if self.once:
            raise self._timeout()
        if self._nodes is None and self.io.now() >= self._last_look:
            self._nodes = await last_look.read_nodes(self.io, self.holders, deadline=self.deadline)
        self._pace, pause = self._pace.take(self.io.now(), self.io.random())
        if pause:
            await self.io.sleep(pause)
