"""Ten workers in a process of their own: ``python -m proof.chaos.worker PART``.

Rules
- They use the public API only, as applications do, and each in its own way: with and without ``with`` blocks,
  in threads or in tasks, on one of two clients.
- An error that the API names makes a worker try again later. Any other is written down as a bug.
- SIGTERM ends the process as programs end: everybody finishes his turn, the clients are closed. What is left
  of them then, in threads, files or clean-ups, is written down.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from consul_coord import (
    AsyncClient,
    AsyncLeaderElection,
    AsyncLock,
    AsyncSemaphore,
    Client,
    ConsulCoordError,
    LeaderElection,
    Lock,
    LockLost,
    Semaphore,
)
from consul_coord.clock import SystemClock
from consul_coord.testing.history import Record
from proof.chaos.diary import BUG, CLOSED, Diary
from proof.chaos.journal import Journal
from proof.chaos.plan import SLOTS, Part, Role, roles
from proof.chaos.register import Register

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from consul_coord.recipes.hold.view import HoldView

T = TypeVar("T")

_TIMEOUT: Final = 3.0
"""Seconds for one request."""
_LOOK: Final = 0.1
"""Mean seconds between two looks at a hold."""
_WORK: Final = 0.25
_LEAD: Final = 4.0
"""Mean seconds of a turn; of a leadership."""
_THINK: Final = 0.8
"""Mean seconds between two turns."""
_RETRY: Final = (0.05, 0.3)
_SETTLE: Final = 10.0
"""Seconds that threads and files have to go away once the clients are closed."""


class Desk:
    """What all workers of a process share."""

    def __init__(self, part: Part, *, diary: type[Diary] = Diary) -> None:
        self.part = part
        self.clock = SystemClock()
        self._diary = diary
        self._folder = Path(part.folder)
        self._journal = Journal(self._folder / f"history-{part.name}-{part.life}.jsonl")

    def diary(self, role: Role) -> Diary:
        """Return the diary of a worker."""
        key = self.key(role)
        return self._diary(
            self._journal,
            Register.of(self._folder, key),
            process=self.part.name,
            actor=role.name,
            key=key,
            now=self.clock.now,
            life=self.part.life,
        )

    def key(self, role: Role) -> str:
        """Return what a worker contends for."""
        return f"{self.part.prefix}/{role.key}"

    def note(self, detail: str) -> None:
        """Write down something about the process as a whole."""
        record = Record(at=self.clock.now(), process=self.part.name, kind="note", detail=detail)
        self._journal.add(record)

    def close(self) -> None:
        """End the history."""
        self._journal.close()


class Habits:
    """How long a worker does what, by chance."""

    def __init__(self, seed: int, role: Role) -> None:
        self._chance = random.Random(f"{seed} {role.name}")  # noqa: S311 - the times of a test
        self._turn = _LEAD if role.kind == "lead" else _WORK

    def think(self) -> float:
        """Return the seconds until the next turn."""
        return self._chance.expovariate(1 / _THINK)

    def patience(self) -> float:
        """Return the seconds to wait for a turn."""
        return self._chance.uniform(2.0, 20.0)

    def turn(self) -> float:
        """Return the seconds that a turn lasts."""
        return min(self._chance.expovariate(1 / self._turn), 4 * self._turn)

    def look(self) -> float:
        """Return the seconds until the next look at a hold."""
        return self._chance.uniform(0.5, 1.5) * _LOOK


# -- in threads


class Blocking:
    """Workers in threads."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._stop = threading.Event()

    def run(self) -> int:
        """Work until SIGTERM; returns how much there was still to clean up before the clients were closed."""

        def stop(_number: int, _frame: FrameType | None) -> None:
            self._stop.set()

        signal.signal(signal.SIGTERM, stop)
        part = self._desk.part
        clients = tuple(Client(address=part.address, session=part.spec, timeout=_TIMEOUT) for _ in range(2))
        workers = [
            threading.Thread(target=self._work, args=(clients[each % 2], role))
            for each, role in enumerate(roles(part.place))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        pending = _settled(lambda: sum(client.pending_cleanup for client in clients), 0, within=part.drain)
        for client in clients:
            client.close()
        return pending

    def _work(self, client: Client, role: Role) -> None:
        diary = self._desk.diary(role)
        habits = Habits(self._desk.part.seed, role)
        try:
            if role.kind == "lead":
                self._stand(client, role, diary, habits)
            else:
                self._contend(client, role, diary, habits)
        except Exception as error:  # noqa: BLE001 - written down, whatever it is
            self._desk.note(f"{BUG}{role.name}: {error!r}")

    def _contend(self, client: Client, role: Role, diary: Diary, habits: Habits) -> None:
        key = self._desk.key(role)
        thing: Lock | Semaphore
        if role.kind == "lock":
            thing = Lock(client, key, fair=role.fair)
        else:
            thing = Semaphore(client, key, SLOTS[role.key], fair=role.fair, session=self._desk.part.spec)
        while not self._stop.wait(habits.think()):
            diary.say("waiting")
            try:
                hold = thing.acquire(timeout=habits.patience())
            except ConsulCoordError as error:
                diary.say("gave_up", detail=type(error).__name__)
                continue
            diary.begin("acquired", hold)
            diary.end(self._use(hold, diary, habits, "released"), hold)
            hold.release()

    def _stand(self, client: Client, role: Role, diary: Diary, habits: Habits) -> None:
        with LeaderElection(client, self._desk.key(role), value=role.name, retry_wait=_RETRY) as election:
            while not self._stop.is_set():
                diary.say("waiting")
                try:
                    hold = election.wait_for_leadership(timeout=habits.patience())
                except ConsulCoordError as error:
                    diary.say("gave_up", detail=type(error).__name__)
                    continue
                diary.begin("elected", hold)
                diary.end(self._use(hold, diary, habits, "resigned"), hold)
                with suppress(ConsulCoordError):
                    election.resign(pause=habits.think())

    def _use(self, hold: HoldView, diary: Diary, habits: Habits, ending: str) -> str:
        """Work under a hold; returns how that ended."""
        until = time.monotonic() + habits.turn()
        while diary.work(hold):
            if time.monotonic() > until or self._stop.is_set():
                return ending
            self._stop.wait(habits.look())
        return "lost"


# -- in tasks


class Tasks:
    """Workers in tasks of one event loop."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._stop = asyncio.Event()

    def run(self) -> int:
        """Work until SIGTERM; returns how much there was still to clean up before the clients were closed."""
        return asyncio.run(self._main())

    async def _main(self) -> int:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        part = self._desk.part

        def client() -> AsyncClient:
            return AsyncClient(address=part.address, session=part.spec, timeout=_TIMEOUT)

        async with client() as one, client() as other:
            async with asyncio.TaskGroup() as group:
                for each, role in enumerate(roles(part.place)):
                    group.create_task(self._work((one, other)[each % 2], role))
            return await asyncio.to_thread(
                _settled, lambda: one.pending_cleanup + other.pending_cleanup, 0, within=part.drain
            )

    async def _work(self, client: AsyncClient, role: Role) -> None:
        diary = self._desk.diary(role)
        habits = Habits(self._desk.part.seed, role)
        try:
            if role.kind == "lead":
                await self._stand(client, role, diary, habits)
            else:
                await self._contend(client, role, diary, habits)
        except Exception as error:  # noqa: BLE001 - written down, whatever it is
            self._desk.note(f"{BUG}{role.name}: {error!r}")

    async def _contend(self, client: AsyncClient, role: Role, diary: Diary, habits: Habits) -> None:
        key = self._desk.key(role)
        thing: AsyncLock | AsyncSemaphore
        if role.kind == "lock":
            thing = AsyncLock(client, key, fair=role.fair)
        else:
            thing = AsyncSemaphore(client, key, SLOTS[role.key], fair=role.fair, session=self._desk.part.spec)
        while not await self._stopped(habits.think()):
            diary.say("waiting")
            held: HoldView | None = None
            try:
                async with thing.hold(timeout=habits.patience()) as hold:
                    held = hold
                    diary.begin("acquired", hold)
                    ending = await self._use(hold, diary, habits, "released")
                    diary.end(ending, hold)
            except LockLost:
                if held is None:
                    raise
                diary.end("lost", held)
            except ConsulCoordError as error:
                if held is not None:
                    raise
                diary.say("gave_up", detail=type(error).__name__)

    async def _stand(self, client: AsyncClient, role: Role, diary: Diary, habits: Habits) -> None:
        election = AsyncLeaderElection(client, self._desk.key(role), value=role.name, retry_wait=_RETRY)
        async with election:
            while not self._stop.is_set():
                diary.say("waiting")
                try:
                    hold = await election.wait_for_leadership(timeout=habits.patience())
                except ConsulCoordError as error:
                    diary.say("gave_up", detail=type(error).__name__)
                    continue
                diary.begin("elected", hold)
                diary.end(await self._use(hold, diary, habits, "resigned"), hold)
                with suppress(ConsulCoordError):
                    await election.resign(pause=habits.think())

    async def _use(self, hold: HoldView, diary: Diary, habits: Habits, ending: str) -> str:
        """Work under a hold; returns how that ended."""
        until = time.monotonic() + habits.turn()
        while diary.work(hold):
            if time.monotonic() > until or self._stop.is_set():
                return ending
            await self._stopped(habits.look())
        return "lost"

    async def _stopped(self, within: float) -> bool:
        """Wait for the end; returns whether it has come."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), within)
        return self._stop.is_set()


# -- the process


def main(argument: str, *, diary: type[Diary] = Diary) -> None:
    """Work as a part says, until SIGTERM."""
    part = Part.from_json(argument)
    desk = Desk(part, diary=diary)
    files = _open_files()
    pending = (Blocking(desk) if part.blocking else Tasks(desk)).run()
    left = {
        "clean-ups": pending if part.drain else 0,
        "threads": _settled(threading.active_count, 1, within=_SETTLE) - 1,
        "files": _settled(_open_files, files, within=_SETTLE) - files,
    }
    for what, number in left.items():
        if number > 0:
            desk.note(f"{BUG}{number} {what} left in the end")
    desk.note(CLOSED)
    desk.close()


def _settled(count: Callable[[], int], most: int, *, within: float) -> int:
    """Return a count as soon as it is as low as it should be, or as it is after some seconds."""
    deadline = time.monotonic() + within
    while (found := count()) > most and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


if __name__ == "__main__":
    main(sys.argv[1])
