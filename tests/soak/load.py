"""A process under constant load, that measures itself: locks, semaphores, elections and watches, both ways.

Run as a program: ``python -m tests.soak.load ADDRESS SECONDS``. It prints one JSON object a line: samples
while the load is on, and at last what is left after both clients were closed.

Rules
- The load is constant: every worker makes one cycle after the other, with the same pause between. What varies
  is who waits for whom, so that waiting, giving up in time, and handing over are all part of it.
- Measured is what can leak: threads, files, sockets, memory, tasks of any event loop, objects that wait to be
  cleaned up, sessions and keys at the server. Of the latter only its own: others use the server, too, and
  what they leave is no finding here.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from consul_coord import (
    AcquireTimeout,
    AsyncClient,
    AsyncLeaderElection,
    AsyncLock,
    AsyncSemaphore,
    Client,
    LeaderElection,
    Lock,
    Semaphore,
    SessionSpec,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consul_coord.base_client import BaseClient

SAMPLES: Final = 60
"""How often a run measures itself, whatever its length."""
WORKERS: Final = frozenset(
    prefix + name
    for prefix in ("", "async ")
    for name in ("lock", "impatient lock", "semaphore", "election", "watch")
)
_PAUSE: Final = 0.1
"""Seconds between two cycles of one worker."""
_SHORT: Final = 0.02
"""Seconds after which some give up."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_NAME: Final = f"soak {os.getpid()}"
"""What this run's sessions are called."""
_PREFIX: Final = f"soak-{os.getpid()}"
"""What this run's keys are under."""


@dataclass(slots=True)
class Load:
    """What all workers share."""

    over: threading.Event = field(default_factory=threading.Event)
    cycles: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])

    def repeat(self, name: str, cycle: Callable[[], object]) -> threading.Thread:
        """Start a thread that makes one cycle after the other."""

        def run() -> None:
            while not self.over.wait(_PAUSE):
                try:
                    cycle()
                except AcquireTimeout:
                    self.cycles["gave up"] += 1
                except Exception as error:  # noqa: BLE001 - reported, and fails the test
                    self.failures.append(f"{name}: {error!r}")
                self.cycles[name] += 1

        thread = threading.Thread(target=run, name=name)
        thread.start()
        return thread

    async def repeat_async(self, name: str, cycle: Callable[[], Awaitable[object]]) -> None:
        """Make one cycle after the other."""
        while not self.over.is_set():
            await asyncio.sleep(_PAUSE)
            try:
                await cycle()
            except AcquireTimeout:
                self.cycles["gave up"] += 1
            except Exception as error:  # noqa: BLE001 - reported, and fails the test
                self.failures.append(f"{name}: {error!r}")
            self.cycles[name] += 1


def threads_of(load: Load, client: Client) -> list[threading.Thread]:
    """Start the workers of the sync client."""

    def lock(timeout: float) -> Callable[[], object]:
        shared = Lock(client, f"{_PREFIX}/lock")

        def cycle() -> None:
            with shared.hold(timeout=timeout) as hold:
                hold.put(b"mine")

        return cycle

    def semaphore() -> None:
        with Semaphore(client, f"{_PREFIX}/slots", 2).hold(timeout=10):
            time.sleep(0.005)

    def election() -> None:
        with (
            LeaderElection(client, f"{_PREFIX}/leader") as candidacy,
            candidacy.wait_for_leadership(timeout=10),
        ):
            pass

    def watch() -> None:
        with client.kv.watch(f"{_PREFIX}/watched") as seen:
            next(seen)
            client.kv.put(f"{_PREFIX}/watched", str(time.monotonic()))
            next(seen)

    return [
        load.repeat("lock", lock(10)),
        load.repeat("lock", lock(10)),
        load.repeat("impatient lock", lock(_SHORT)),
        load.repeat("semaphore", semaphore),
        load.repeat("semaphore", semaphore),
        load.repeat("semaphore", semaphore),
        load.repeat("election", election),
        load.repeat("watch", watch),
    ]


def tasks_of(load: Load, client: AsyncClient) -> list[asyncio.Task[None]]:
    """Start the workers of the async client."""

    def lock(timeout: float) -> Callable[[], Awaitable[object]]:
        shared = AsyncLock(client, f"{_PREFIX}/lock")

        async def cycle() -> None:
            async with shared.hold(timeout=timeout) as hold:
                await hold.put(b"mine")

        return cycle

    async def semaphore() -> None:
        async with AsyncSemaphore(client, f"{_PREFIX}/slots", 2).hold(timeout=10):
            await asyncio.sleep(0.005)

    async def election() -> None:
        async with AsyncLeaderElection(client, f"{_PREFIX}/leader") as candidacy:
            leadership = await candidacy.wait_for_leadership(timeout=10)
            await leadership.release()

    async def watch() -> None:
        async with client.kv.watch(f"{_PREFIX}/watched-async") as seen:
            await anext(seen)
            await client.kv.put(f"{_PREFIX}/watched-async", str(time.monotonic()))
            await anext(seen)

    cycles = (
        ("async lock", lock(10)),
        ("async lock", lock(10)),
        ("async impatient lock", lock(_SHORT)),
        ("async semaphore", semaphore),
        ("async semaphore", semaphore),
        ("async election", election),
        ("async watch", watch),
    )
    return [asyncio.create_task(load.repeat_async(name, cycle)) for name, cycle in cycles]


def measure() -> dict[str, float]:
    """Return what this process has of everything that can leak."""
    gc.collect()
    links = [_link(file) for file in Path("/proc/self/fd").iterdir()]
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "threads": threading.active_count(),
        "files": sum(not link.startswith("socket:") for link in links),
        "sockets": sum(link.startswith("socket:") for link in links),
        "memory_kib": pages * _PAGE / 1024,
        "blocks": sys.getallocatedblocks(),
        "tasks": sum(not task.done() for task in _tasks()),
    }


def _tasks() -> list[asyncio.Task[object]]:
    """Return the tasks of all event loops.

    Not by way of the garbage collector: it would hand out objects that other threads are just making.
    """
    names = ("_scheduled_tasks", "_all_tasks")  # of Python 3.12, and before
    registry: Any = next(found for name in names if (found := getattr(asyncio.tasks, name, None)) is not None)
    while True:
        try:
            return list(registry)
        except RuntimeError:  # changed by another thread meanwhile
            continue


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:  # closed since, as that of the listing itself
        return "socket:"


def at_server(client: Client, *clients: BaseClient[Any]) -> dict[str, float]:
    """Return how many sessions and keys the server has of this run, and what its clients still have to do."""
    return {
        "sessions": len(client.session.named(_NAME)),
        "keys": len(client.kv.keys(f"{_PREFIX}/").value),
        "pending_cleanup": sum(each.pending_cleanup for each in clients),
    }


async def run(address: str, seconds: float) -> None:
    """Put the load on, measure, take it off, and measure what is left."""
    load = Load()
    before = measure()
    began = time.monotonic()
    spec = SessionSpec(name=_NAME)
    async with AsyncClient(address=address, session=spec) as async_client:
        with Client(address=address, session=spec) as client:
            threads = threads_of(load, client)
            tasks = tasks_of(load, async_client)
            for number in range(1, SAMPLES + 1):
                await asyncio.sleep(max(0.0, began + seconds * number / SAMPLES - time.monotonic()))
                server = await asyncio.to_thread(at_server, client, client, async_client)
                tell("sample", measure() | server | {"cycles": load.cycles.total()})
            load.over.set()
            await asyncio.gather(*tasks)
            for thread in threads:
                await asyncio.to_thread(thread.join)
    await asyncio.get_running_loop().shutdown_default_executor()
    with Client(address=address) as reader:
        server = at_server(reader, client, async_client)
        for session in reader.session.named(_NAME):
            sys.stderr.write(f"left behind: {session}\n")
    after = measure()
    left = {name: after[name] - before[name] for name in after if name != "memory_kib"}
    tell("left", left | server)
    tell("cycles", dict(load.cycles))
    tell("failures", dict(Counter(load.failures)))


def tell(kind: str, figures: dict[str, float] | dict[str, int]) -> None:
    """Print one line for whoever started this."""
    print(json.dumps({"kind": kind, "at": time.monotonic(), "figures": figures}), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], float(sys.argv[2])))
