"""Clean-up that could not be done at once: kept until the server has answered for it.

Rules
- One program does all tasks, one after the other, each with a bounded request; a task that fails comes again,
  later and later.
- The same task twice is one task: each reading of a queue asks for the removal of the dead it has seen, and
  what can't be removed for a while is seen many times. If it is added while a try is under way, it is tried
  once more.
- A session that was handed over is another client's: what is still to be done as that session is left undone,
  or it would undo what the other client does. So is what comes up later, as by a call that gives up then.
- Before a session is destroyed, each lock of its that is owed, or that an unanswered request may have taken,
  is tried once more: it would get the lock-delay. A try under way, as by another thread, ends first.
- As soon as the client closes, the background begins no try any more: ``finish`` does what is left. It waits
  a moment for a try under way, which may be hanging, and does what that one has not done.
- A closing client can't wait for a minute. A create that was just given up makes its session within a
  moment, mostly: the reaper looks for it several times in a second.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError
from consul_coord.events import Failed
from consul_coord.http.backoff import LONGEST_PAUSE, delay
from consul_coord.io import OnDemand, Signal
from consul_coord.recipes.cleanup.tasks import (
    LAST_LOOKS,
    AtKey,
    DestroySession,
    GiveBack,
    RemoveNote,
    StraySession,
    Sweep,
    is_by,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from consul_coord.io import IO, Host
    from consul_coord.recipes.cleanup.tasks import CleanupTask

ENDS_SOON = 0.5
"""Seconds for which a closing client waits for a try that the background has begun. Most end sooner."""


@dataclass(slots=True, eq=False)
class _Entry:
    task: CleanupTask
    due: float
    failures: int = 0
    tries: list[Signal] = field(default_factory=list[Signal])
    """Those under way, by the background or by who closes; each is raised when that has ended."""
    again: bool = False
    """Whether the same task was added again while a try was under way, which may have come too early."""

    @contextmanager
    def under_way(self) -> Generator[None]:
        """Let others wait for the try inside."""
        over = Signal()
        self.tries.append(over)
        try:
            yield
        finally:
            over.set()
            self.tries.remove(over)


def _turn(entry: _Entry) -> int:
    """Return the turn of a task as the client closes: sessions come last, then what needs their end."""
    match entry.task:
        case RemoveNote(guard=guard) if guard:
            return 2
        case DestroySession():
            return 1
        case _:
            return 0


class Reaper:
    """Does the tasks of one client in the background, for as long as there are any."""

    def __init__(
        self, host: Host, *, timeout: float, closing: Signal, handed_over: Collection[str] = ()
    ) -> None:
        self._host = host
        self._timeout = timeout
        self._closing = closing
        self._handed_over = handed_over
        """The sessions, as of each moment, that are other clients'."""
        self._entries: dict[CleanupTask, _Entry] = {}
        self._more = Signal()
        self._program = OnDemand(host, self._run, has_work=self._has_work, name="reaper")

    @property
    def pending(self) -> int:
        """How many tasks are not done."""
        return len(self._entries)

    @property
    def tasks(self) -> list[CleanupTask]:
        """The tasks that are not done, the oldest first."""
        return list(self._entries)

    def owes_unlocks(self, session: str) -> bool:
        """Return whether something that a session holds, or may hold, is still to be given back."""
        return any(isinstance(task, AtKey) and task.session == session for task in self.tasks)

    def add(self, task: CleanupTask, *, after: float = 0.0) -> None:
        """Take on a task, unless it is one already; from any thread, also the garbage collector's."""
        new = _Entry(task, self._host.now() + after)
        while (entry := self._entries.setdefault(task, new)) is not new and not entry.again:
            entry.again = True  # then look again: the background may have removed the entry just before
        if is_by(task, self._handed_over):
            self._leave_undone(entry)
            return
        self._more.set()
        if self._has_work():
            self._program.start()

    async def let_go(self, io: IO, session: str, *, deadline: float) -> None:
        """Act as a session no more. Locks that nobody has are given back first, in one try.

        A try that is under way has its own time: it can't be taken back.
        """
        for entry in self._by(session):
            try:
                self._entries.pop(entry.task, None)  # so that no other try begins
                if entry.tries:
                    await self._let_end(io, entry, until=math.inf)
                elif isinstance(entry.task, GiveBack):
                    await self._do(io, entry, deadline=deadline)
            finally:
                self._leave_undone(entry)

    def drop(self, session: str) -> None:
        """Leave undone what would be done as a session."""
        for entry in self._by(session):
            self._leave_undone(entry)

    def _leave_undone(self, entry: _Entry) -> None:
        self._entries.pop(entry.task, None)
        if isinstance(entry.task, GiveBack):
            entry.task.place.leave()

    def _by(self, session: str) -> list[_Entry]:
        return [entry for entry in list(self._entries.values()) if is_by(entry.task, (session,))]

    def _has_work(self) -> bool:
        """Return whether the background has anything to do."""
        return bool(self._entries) and not self._closing.is_set()

    async def _run(self, io: IO) -> None:
        while self._has_work():
            self._more = Signal()
            # A copy: another thread, or the garbage collector, may add a task just now.
            entries = sorted(self._entries.values(), key=lambda one: one.due)
            due = [one for one in entries if one.due <= io.now()]
            for entry in due:
                await self._do_if_wanted(io, entry)
            if entries and not due:
                await io.wait(self._more, deadline=entries[0].due)

    async def _do_if_wanted(self, io: IO, entry: _Entry) -> None:
        """Do what nobody has done, or taken out, meanwhile."""
        # Said before it looks: whoever takes the entry out just now waits for this, or is seen here.
        with entry.under_way():
            if self._has_work() and self._has(entry):
                await self._do_in_order(io, entry, until=math.inf)

    async def _do_in_order(
        self, io: IO, entry: _Entry, *, until: float, tried: Collection[_Entry] = ()
    ) -> None:
        """Do a task, after what must be done before it and was not ``tried``."""
        if isinstance(entry.task, DestroySession):
            for one in self._by(entry.task.session):
                if one.tries:
                    await self._let_end(io, one, until=until)
                elif isinstance(one.task, AtKey) and one not in tried:
                    await self._do(io, one, deadline=min(until, io.now() + self._timeout))
        await self._do(io, entry, deadline=min(until, io.now() + self._timeout))

    async def _let_end(self, io: IO, entry: _Entry, *, until: float) -> None:
        """Wait for the tries under way: they can't be taken back, and have their own time."""
        for over in list(entry.tries):
            await io.wait(over, deadline=min(until, io.now() + self._timeout))

    async def _do(self, io: IO, entry: _Entry, *, deadline: float) -> None:
        entry.again = False
        with entry.under_way():
            try:
                again = await entry.task.step(io, deadline=deadline)
            except Exception as error:  # noqa: BLE001 - whatever one task raises, the others must be done
                if not isinstance(error, ConsulCoordError):
                    io.emit(Failed("reaper", f"{type(error).__name__}: {error}"))
                entry.failures += 1
                again = delay(entry.failures, io.random(), most=LONGEST_PAUSE)
            else:
                entry.failures = 0
        if again is not None:
            entry.due = io.now() + again
        elif self._has(entry):
            self._entries.pop(entry.task, None)
            if entry.again:  # only now: until its removal, another thread may have added the task
                self.add(entry.task)

    def _has(self, entry: _Entry) -> bool:
        return self._entries.get(entry.task) is entry

    async def finish(self, io: IO, *, deadline: float) -> None:
        """Try each task once more, now: the client closes. Those too that come up meanwhile.

        Sessions are destroyed after the rest, and with that the sweeps are settled: a late request is refused
        then. Notes that stay as long as a session has its key come last.
        Nobody renews the session of a late create: its TTL ends it, if it has one.
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
            elif isinstance(entry.task, StraySession):
                entry.task.hurry()
            tried.add(entry)
            await self._let_end(io, entry, until=min(deadline, io.now() + ENDS_SOON))
            if self._has(entry):
                await self._do_in_order(io, entry, until=deadline, tried=tried)
        for entry in list(self._entries.values()):
            looked = isinstance(entry.task, StraySession) and entry.task.has_ttl and not entry.failures
            if isinstance(entry.task, Sweep) or (looked and entry in tried):
                self._entries.pop(entry.task, None)

    def _but(self, tried: set[_Entry]) -> deque[_Entry]:
        """Return what has not been tried yet, in the order for that."""
        left = (entry for entry in list(self._entries.values()) if entry not in tried)
        return deque(sorted(left, key=_turn))

    def _next_soon(self, now: float) -> _Entry | None:
        """Return what was done without a failure, but comes again so soon that closing can wait for it."""
        entries = list(self._entries.values())
        soon = (one for one in entries if not one.failures and one.due <= now + max(LAST_LOOKS))
        return min(soon, key=lambda one: one.due, default=None)
