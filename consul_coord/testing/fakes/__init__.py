"""Fakes of locks, elections and jobs, in memory, for tests of code that takes ``consul_coord.protocols``.

They need no server, no client and no clock, and the test says what happens: ``lose()``, ``elect()``.
They keep these promises: one holder at a time within the process (for a semaphore, as many as its limit), and
rising fences. They raise the same errors, also when a ``with`` block ends. On an event loop, a loss cancels
the block.

What they do not do
- Nothing outside of the process takes part, and two fakes know nothing of each other, whatever their keys.
- No lease runs out: ``remaining()`` is infinite until ``lose()`` is called.
- No network fails, nothing takes time, waiters are served in no particular order.
- No ``guard()``, ``put()``, ``verify()``, ``holder()``, sequencers or callbacks of elections.

So they show that code copes with a lock it gets late, not at all, or loses; not that it uses Consul rightly.
For that there is the embedded server (the fixture ``consul_server``), which starts in milliseconds too.
"""

from __future__ import annotations

from consul_coord.testing.fakes.blocking import (
    FakeElection,
    FakeHold,
    FakeLock,
    FakeOnce,
    FakeOnceRun,
    FakeSemaphore,
)
from consul_coord.testing.fakes.coroutine import (
    AsyncFakeElection,
    AsyncFakeHold,
    AsyncFakeLock,
    AsyncFakeOnce,
    AsyncFakeOnceRun,
    AsyncFakeSemaphore,
)

__all__ = [
    "AsyncFakeElection",
    "AsyncFakeHold",
    "AsyncFakeLock",
    "AsyncFakeOnce",
    "AsyncFakeOnceRun",
    "AsyncFakeSemaphore",
    "FakeElection",
    "FakeHold",
    "FakeLock",
    "FakeOnce",
    "FakeOnceRun",
    "FakeSemaphore",
]
