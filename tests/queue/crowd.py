"""Many waiters in a few processes: ``python -m tests.queue.crowd ADDRESS KEY LOG WAITERS ROUNDS FAIR``.

Rules
- Each waiter is a client of its own, with a session of its own; all of a process share one event loop.
- A process says when its waiters have their sessions, and waits for a line on stdin before they contend: so a
  test knows when all of them begin. It says when they are done, and waits for another before it closes.
- What happens is appended to one log that all processes share: ``in SESSION FENCE``, ``out SESSION FENCE``.
  One write is one line, in the order in which things happened.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consul_coord import AsyncClient, AsyncLock, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from tests.support.sites import Site

TTL: Final = 15.0
PATIENCE: Final = 60.0


async def wait_in_turn(client: AsyncClient, key: str, log: int, *, rounds: int, fair: bool) -> None:
    lock = AsyncLock(client, key, fair=fair)
    for _ in range(rounds):
        async with lock.hold(timeout=10 * PATIENCE) as hold:
            os.write(log, f"in {hold.session} {hold.fence}\n".encode())
            await asyncio.sleep(0)
            os.write(log, f"out {hold.session} {hold.fence}\n".encode())


@dataclass(frozen=True, slots=True)
class Plan:
    """What the waiters of one process do; the command line, in order."""

    address: str
    key: str
    log: str
    waiters: int
    rounds: int
    fair: bool

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Self:
        address, key, log, waiters, rounds, fair = arguments
        return cls(address, key, log, int(waiters), int(rounds), fair == "True")

    def command(self) -> list[str]:
        given = (self.address, self.key, self.log, self.waiters, self.rounds, self.fair)
        return [sys.executable, "-W", "error", "-m", "tests.queue.crowd", *map(str, given)]


async def run(plan: Plan) -> None:
    log = os.open(plan.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    spec = SessionSpec(ttl=TTL, lock_delay=0, name=plan.key.partition("/")[0], allow_unbounded=True)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncClient(address=plan.address, session=spec, timeout=PATIENCE))
            for _ in range(plan.waiters)
        ]
        for number, client in enumerate(clients):
            async with AsyncLock(client, f"{plan.key}/warm/{os.getpid()}/{number}"):
                pass
        await tell("ready")
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(wait_in_turn(client, plan.key, log, rounds=plan.rounds, fair=plan.fair))
        await tell("done")
    os.close(log)


async def tell(word: str) -> None:
    """Say something, and wait for a line."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)


@dataclass(frozen=True, slots=True)
class Ticket:
    """One hold, as its holder has written it down."""

    session: str
    fence: int


class Crowd:
    """The processes, as a test sees them; a context manager that ends with their end."""

    def __init__(
        self, site: Site, folder: Path, *, waiters: int, rounds: int, fair: bool, processes: int = 4
    ) -> None:
        self._log = folder / f"log-{waiters}"
        self._turns = waiters * rounds
        sizes = [waiters // processes + (each < waiters % processes) for each in range(processes)]
        plans = [Plan(site.address, site.key, str(self._log), size, rounds, fair) for size in sizes]
        self._processes = [
            subprocess.Popen(plan.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for plan in plans
        ]

    def __enter__(self) -> Self:
        self._hear("ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            if error is not None:
                process.kill()
            process.communicate()

    def begin(self) -> None:
        """Let them contend."""
        self._answer()

    def finish(self) -> None:
        """Wait until all of them have had all their turns."""
        self._hear("done")

    def turns(self) -> list[Ticket]:
        """Return the holds in order, with all processes ended; AssertionError if two overlapped."""
        self._answer()
        for process in self._processes:
            assert process.wait(PATIENCE) == 0
        lines = [line.split() for line in self._log.read_text().splitlines()]
        assert [each[0] for each in lines] == ["in", "out"] * self._turns, "two held it at once"
        assert [each[1:] for each in lines[::2]] == [each[1:] for each in lines[1::2]]
        turns = [Ticket(session, int(fence)) for _, session, fence in lines[::2]]
        fences = [turn.fence for turn in turns]
        assert fences == sorted(set(fences)), "fences do not rise"
        return turns

    def _hear(self, word: str) -> None:
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{word}\n"

    def _answer(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()


if __name__ == "__main__":
    asyncio.run(run(Plan.parse(sys.argv[1:])))
