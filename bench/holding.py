"""A process that holds many locks, or stands in many elections, and says what that costs it.

``python -m bench.holding WORLD PREFIX HOLDS ADDRESS REST [--trace]`` takes the locks ``PREFIX/0`` and so on,
prints what it found as one line of JSON, and keeps holding them until its standard input ends.
``measures.held`` runs it.

Rules
- Memory is what taking the locks added on a client that had taken one before: traced by Python's own
  allocator with ``--trace``, else by the process's size.
- In the world ``waiting`` it holds ``PREFIX/held/0`` and so on, and waits for ``PREFIX/0`` and so on, which
  another process has. In the world ``crowd`` as many tasks wait for ``PREFIX/0``, which it holds itself.
- CPU is what the process used in REST seconds in which nobody called it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import threading
import time
import tracemalloc
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from bench.hearing import Waiters
from consul_coord import AsyncClient, AsyncLock, Client, LeaderElection, Lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SETTLING = 1.5
"""Seconds after the last grant until watches and batched reads have started."""
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Held:
    """What the holds cost."""

    kib: float
    """KiB that were added by all holds together."""
    threads: int
    """Threads alive, the main one included."""
    cpu: float
    """Share of one core used at rest, from 0 to 1."""


class _Gauge:
    """Looks at the process before and after."""

    def __init__(self, *, trace: bool) -> None:
        gc.collect()
        if trace:
            tracemalloc.start()
        self._trace = trace
        self._before = self._memory()

    def _memory(self) -> float:
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] if self._trace else _resident()) / _KIB

    def settled(self) -> tuple[float, int, float]:
        """Return memory added and threads alive now, and the CPU time so far."""
        return self._memory() - self._before, threading.active_count(), _cpu()


def _resident() -> int:
    """Return the process's resident bytes (Linux)."""
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123 - no file, a look at the kernel
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu() -> float:
    times = os.times()
    return times.user + times.system


def _report(kib: float, threads: int, cpu: float, *, rest: float) -> None:
    print(json.dumps(asdict(Held(kib, threads, (_cpu() - cpu) / rest))), flush=True)


def hold_sync(address: str, keys: Sequence[str], *, rest: float, trace: bool) -> None:
    """Take the locks one after the other, on one thread."""
    with Client(address=address) as client:
        first = Lock(client, keys[0]).acquire()
        gauge = _Gauge(trace=trace)
        holds = [Lock(client, key).acquire() for key in keys[1:]]
        time.sleep(SETTLING)
        found = gauge.settled()
        time.sleep(rest)
        _report(*found, rest=rest)
        sys.stdin.read()
        for hold in (first, *holds):
            hold.release()


def hold_async(address: str, keys: Sequence[str], *, rest: float, trace: bool) -> None:
    """Take the locks all at once, a task each."""
    asyncio.run(_hold_async(address, keys, rest=rest, trace=trace))


async def _hold_async(address: str, keys: Sequence[str], *, rest: float, trace: bool) -> None:
    async with AsyncClient(address=address) as client:
        first = await AsyncLock(client, keys[0]).acquire()
        gauge = _Gauge(trace=trace)
        holds = await asyncio.gather(*(AsyncLock(client, key).acquire() for key in keys[1:]))
        await asyncio.sleep(SETTLING)
        found = gauge.settled()
        await asyncio.sleep(rest)
        _report(*found, rest=rest)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for hold in (first, *holds):
            await hold.release()


def hold_and_wait(address: str, keys: Sequence[str], *, rest: float, trace: bool) -> None:
    """Take as many locks of its own as others have, a task each; then wait for those of the others."""
    asyncio.run(_hold_and_wait(address, keys, rest=rest, trace=trace))


async def _hold_and_wait(address: str, keys: Sequence[str], *, rest: float, trace: bool) -> None:
    waiters = Waiters()
    async with AsyncClient(address=address, observer=waiters.observer()) as client:
        own = [f"{key.rpartition('/')[0]}/held/{number}" for number, key in enumerate(keys)]
        first = await AsyncLock(client, own[0]).acquire()
        gauge = _Gauge(trace=trace)
        holds = await asyncio.gather(*(AsyncLock(client, key).acquire() for key in own[1:]))
        waiting = [asyncio.create_task(AsyncLock(client, key).acquire()) for key in keys[1:]]
        await waiters.all(len(waiting))
        await asyncio.sleep(SETTLING)
        found = gauge.settled()
        await asyncio.sleep(rest)
        _report(*found, rest=rest)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for hold in (first, *holds):
            await hold.release()


def wait_in_a_crowd(address: str, keys: Sequence[str], *, rest: float, trace: bool) -> None:
    """Take one lock, and wait for it as often as there are keys, a task each."""
    asyncio.run(_wait_in_a_crowd(address, keys, rest=rest, trace=trace))


async def _wait_in_a_crowd(address: str, keys: Sequence[str], *, rest: float, trace: bool) -> None:
    async with AsyncClient(address=address) as client:
        lock = AsyncLock(client, keys[0])
        first = await lock.acquire()
        gauge = _Gauge(trace=trace)
        waiting = [asyncio.create_task(lock.acquire()) for _ in keys[1:]]
        await asyncio.sleep(SETTLING)
        found = gauge.settled()
        await asyncio.sleep(rest)
        _report(*found, rest=rest)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        lock.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await first.release()


def stand(address: str, keys: Sequence[str], *, rest: float, trace: bool) -> None:
    """Be a candidate for each key, alone, and lead it."""
    with Client(address=address) as client:
        first = LeaderElection(client, keys[0])
        first.start()
        first.wait_for_leadership()
        gauge = _Gauge(trace=trace)
        elections = [LeaderElection(client, key) for key in keys[1:]]
        for election in elections:
            election.start()
        for election in elections:
            election.wait_for_leadership()
        time.sleep(SETTLING)
        found = gauge.settled()
        time.sleep(rest)
        _report(*found, rest=rest)
        sys.stdin.read()


WORLDS: Mapping[str, Callable[..., None]] = {
    "sync": hold_sync,
    "async": hold_async,
    "waiting": hold_and_wait,
    "crowd": wait_in_a_crowd,
    "elections": stand,
}


def main() -> None:
    """Hold, report, and wait."""
    parser = argparse.ArgumentParser(prog="bench.holding")
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("prefix")
    parser.add_argument("holds", type=int)
    parser.add_argument("address")
    parser.add_argument("rest", type=float)
    parser.add_argument("--trace", action="store_true")
    arguments = parser.parse_args()
    keys = [f"{arguments.prefix}/{number}" for number in range(arguments.holds + 1)]
    WORLDS[arguments.world](arguments.address, keys, rest=arguments.rest, trace=arguments.trace)


if __name__ == "__main__":
    main()
