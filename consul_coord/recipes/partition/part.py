"""One partition that this process is to own: taking it over, and handing it over.

===========  ==================================================  ==========
from         what                                                to
===========  ==================================================  ==========
waiting      its lock is granted                                 owned
owned        another member is to own it, or the process stops   leaving
owned        its lock is lost                                    waiting
owned        ``on_acquired`` has raised                          leaving
owned        its owner has released the lock                     waiting
leaving      ``on_released`` has returned, or had its time       waiting, or over
===========  ==================================================  ==========

Rules
- The lock decides who owns it, and nobody takes it for owned before. So views of the group that differ never
  make two owners.
- A member that hands over is notified first, while it still holds the lock. It may finish its work, and write
  that down under the guard. Only then is the lock given up. A function that does not return in time cannot
  keep the partition for ever: it is given up all the same, and its hold says so.
- ``on_released`` is called once after each ``on_acquired``, also when the lock was lost; then at once, by
  whoever notices. Neither is called if an earlier function ends only after the lock was given back, or after
  this program has ended.
- An ``on_acquired`` that is still being awaited when the partition has to go is cancelled.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from consul_coord.errors import ConsulCoordError
from consul_coord.http.backoff import LONGEST_PAUSE, delay
from consul_coord.io import Once, Signal
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.lock.unattended import UnattendedAttempt

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import BlockerKind
    from consul_coord.recipes.contend.callbacks import Callbacks
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Grant, Handle
    from consul_coord.recipes.session.keeping import SessionSource


class Told(Protocol):
    """How an owner is notified."""

    handover: float
    """Seconds that it has to finish."""

    def acquired(self, partition: str, hold: Grant) -> object:
        """Tell that a partition is owned now."""
        ...

    def released(self, partition: str, hold: Grant) -> object:
        """Tell that a partition is not owned any more, or in a moment."""
        ...

    def report(self, where: str, error: BaseException) -> object:
        """Report what a user's function, or an attempt, has raised."""
        ...


class Ownership:
    """One time of owning the partition."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.ending = Signal()
        """Raised when the owner is to finish, or has lost it."""
        self.failed = False
        """Whether ``on_acquired`` has raised, or the owner has released the lock."""
        self.finished = Signal()
        """Raised when ``on_released`` has ended."""
        self.told: Once[str] = Once()
        """Settled when its end was reported."""
        self.called: Once[str] = Once()
        """Settled when ``on_released`` is called, or is not to be called."""


class Part:
    """See the module."""

    def __init__(
        self, client: Shared, partition: str, *, key: str, value: bytes, told: Told, calls: Callbacks
    ) -> None:
        self.client = client
        self.partition = partition
        self.owned: Ownership | None = None
        self.tried = Signal()
        """Raised when it is known whether the lock was to be had at once."""
        self.leaving = Signal()
        """Raised when another member is to own it."""
        self._told = told
        self._has_ended = False
        """Whether the program has ended."""
        self._calls = calls
        self._plan = LockPlan(keys=(key,), value=value, remove=True)

    def leave(self) -> None:
        """Have it handed over: from any thread, returns at once."""
        self.leaving.set()
        if self.owned is not None:
            self.owned.ending.set()

    @property
    def hold(self) -> Grant | None:
        """The lock, while it is owned."""
        return None if self.owned is None else self.owned.handle.grant

    # -- the program

    async def run(self, io: IO) -> None:
        """Own the partition whenever that is possible, until it is to be left."""
        failures = 0
        try:
            while not self._is_over:
                handle = await self._acquire(io)
                if handle is not None and await self._own(io, handle):
                    failures = 0
                elif not self._is_over:
                    failures += 1
                    pause = delay(failures, io.random(), first=0.1, most=LONGEST_PAUSE)
                    await io.wait(self.leaving, deadline=io.now() + pause)
        finally:
            self._has_ended = True
            self.tried.set()

    @property
    def _is_over(self) -> bool:
        return self.leaving.is_set() or self.client.closing.is_set()

    async def _acquire(self, io: IO) -> Handle | None:
        """Acquire the lock, in a task of its own, which ends when the partition is to be left."""
        granted: list[Handle] = []

        async def attempt(io: IO) -> None:
            source = self.client.source(None)
            try:
                granted.append(await _Attempt(io, self.client, self._plan, source, self.tried).run())
            except ConsulCoordError as error:
                if not self._is_over:
                    self._told.report(f"taking the partition {self.partition!r}", error)

        task = io.spawn(attempt, name=f"take {self._plan.key}")
        unsubscribe = self.leaving.subscribe(task.cancel)
        await io.wait(task.done)
        unsubscribe()
        return granted[0] if granted else None

    async def _own(self, io: IO, handle: Handle) -> bool:
        """Own the partition until it is lost or to be left; returns False when its owner could not begin."""
        hold = handle.grant
        if self._is_over:
            await release(io, self.client.holds, hold)
            return True
        owned = self.owned = Ownership(handle)
        self._calls.in_order(
            partial(self._tell_beginning, owned),
            partial(self._failed, owned),
            until=owned.ending,
        )
        hold.over.subscribe(partial(self._tell_end, owned))
        self.tried.set()
        while not (hold.ended or owned.ending.is_set() or self._is_over):
            await io.wait(owned.ending, deadline=hold.lease.valid_until)
            hold.look(io.now())
        self._tell_end(owned)
        if not hold.ended:
            await io.wait(owned.finished, deadline=io.now() + self._told.handover)
            await release(io, self.client.holds, hold)
        elif hold.released:
            owned.failed = True  # by the owner, who would get it back at once, and release it again
        self.owned = None
        return not owned.failed

    def _failed(self, owned: Ownership, error: BaseException) -> None:
        self._told.report(f"on_acquired of the partition {self.partition!r}", error)
        owned.failed = True
        owned.ending.set()

    def _tell_beginning(self, owned: Ownership) -> object:
        """Call ``on_acquired``; if the lock is gone before its turn, neither that nor ``on_released``."""
        hold = owned.handle.grant
        if hold.released or (hold.ended and self._has_ended):
            owned.called.settle(self.partition)
            return None
        return self._told.acquired(self.partition, hold)

    def _tell_end(self, owned: Ownership) -> None:
        """Tell of the end, once: called by whoever ends the hold, or is about to; again if interrupted."""
        owned.ending.set()
        if not owned.told:
            released = partial(self._told.released, self.partition, owned.handle.grant)
            where = f"on_released of the partition {self.partition!r}"
            self._calls.in_order(
                lambda: released() if owned.called.settle(self.partition) else None,
                partial(self._told.report, where),
            )
            self._calls.in_order(owned.finished.set, partial(self._told.report, where))
            owned.told.settle(self.partition)


class _Attempt(UnattendedAttempt):
    """One that says when it has to wait."""

    def __init__(
        self, io: IO, client: Shared, plan: LockPlan, source: SessionSource, has_to_wait: Signal
    ) -> None:
        super().__init__(io, client, plan, source, timeout=None)
        self._has_to_wait = has_to_wait

    def _block(
        self,
        kind: BlockerKind,
        *,
        session: str | None = None,
        position: int | None = None,
        cause: ConsulCoordError | None = None,
    ) -> None:
        super()._block(kind, session=session, position=position, cause=cause)
        self._has_to_wait.set()
