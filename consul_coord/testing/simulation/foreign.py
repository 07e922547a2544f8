"""Clients that know of no queue: they contend as the official Go client does, for keys or for slots.

Rules
- For a key: PUT ?acquire, and while that is refused a blocking query on the key.
- For a slot it makes a contender, and lists the prefix as it is given, without a slash. It leaves out the
  holders that are no session of any listed key, and writes the record by its index, with the fields that Go
  knows. It gives a slot back by writing the record again, then deletes the contender.
- Each renews its session by half its TTL, and lets go of everything it has when it learns that the world is
  healed. It keeps no lease, and learns of a loss late: whether *it* overlaps with anybody is not looked at.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeVar

from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import kv, session
from consul_coord.http.retry import send_once
from consul_coord.models import LOCK_FLAGS, SEMAPHORE_FLAGS, ReadOptions, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.http.messages import Call
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.process import Process

T = TypeVar("T")

_RENEW_EVERY = 1.5
_WAIT = 15.0
_TIMEOUT = 5.0


class Foreign(ABC):
    """One such client."""

    spec: ClassVar[SessionSpec]

    def __init__(self, process: Process, names: tuple[str, ...], *, healed: Callable[[], bool]) -> None:
        self._process = process
        self._rng = process.rng
        self._names = names
        self._healed = healed
        self._sessions: list[str] = []

    async def run(self, io: SimIO) -> None:
        """Contend again and again until the world is healed, then destroy every session made."""
        while not self._healed():
            try:
                await self._rounds(io)
            except ConsulCoordError:
                await io.sleep(self._rng.uniform(0.1, 1.0))
        while self._sessions:
            try:
                await _ask(io, session.destroy(self._sessions[-1]))
            except ConsulCoordError:
                await io.sleep(0.5)
            else:
                self._sessions.pop()

    async def _rounds(self, io: SimIO) -> None:
        own = await _ask(io, session.create(self.spec))
        self._sessions.append(own)
        self._process.spawn(lambda io: self._renew(io, own), name="renew")
        while not self._healed():
            await self._round(io, own, self._rng.choice(self._names))

    @abstractmethod
    async def _round(self, io: SimIO, own: str, name: str) -> None:
        """Try once to get a hold, and use it."""

    async def _hold(self, io: SimIO) -> None:
        await io.sleep(self._rng.uniform(0.0, 1.0))

    async def _renew(self, io: SimIO, own: str) -> None:
        while own in self._sessions and not self._healed():
            await io.sleep(_RENEW_EVERY)
            try:
                await _ask(io, session.renew(own))
            except ConsulCoordError:
                continue


class ForeignLock(Foreign):
    """A client that contends for keys."""

    spec = SessionSpec(ttl=3.0, lock_delay=1.0)

    async def _round(self, io: SimIO, own: str, name: str) -> None:
        if await _ask(io, kv.acquire(name, own, value=b"foreign", flags=LOCK_FLAGS)):
            self._process.judge.see("foreign hold")
            await self._hold(io)
            await _ask(io, kv.release(name, own, flags=LOCK_FLAGS))
            await self._hold(io)
        else:
            await self._wait(io, name)

    async def _wait(self, io: SimIO, key: str) -> None:
        seen = await _ask(io, kv.get(key))
        if seen.value is not None and seen.value.session is not None:
            options = ReadOptions(index=seen.value.modify_index, wait=_WAIT)
            await io.changed(kv.get(key, options=options).request)
        else:
            await io.sleep(0.2)  # free, and refused: a lock-delay


class ForeignSemaphore(Foreign):
    """A client that contends for slots, with a limit that it takes from the record."""

    spec = SessionSpec(ttl=3.0, behavior="delete", lock_delay=0.0, allow_unbounded=True)

    async def _round(self, io: SimIO, own: str, name: str) -> None:
        contender, record = f"{name}/{own}", f"{name}/.lock"
        if not await _ask(io, kv.acquire(contender, own, flags=SEMAPHORE_FLAGS)):
            await io.sleep(0.5)
            return
        try:
            if await self._take(io, own, name, record):
                self._process.judge.see("foreign slot")
                await self._hold(io)
                await self._give_back(io, own, record)
        finally:
            await _ask(io, kv.delete(contender))
        await self._hold(io)

    async def _take(self, io: SimIO, own: str, name: str, record: str) -> bool:
        index = 0
        while not self._healed():
            options = ReadOptions(index=index, wait=_WAIT) if index else None
            response = await io.changed(kv.list_pairs(name, options=options).request)
            if response is None:
                return False
            listed = kv.list_pairs(name, options=options).decode(response)
            found = next((pair for pair in listed.value if pair.key == record), None)
            if found is None or found.flags != SEMAPHORE_FLAGS:
                return False  # it would have to bring a limit of its own: it leaves that to others
            fields = json.loads(found.value)
            alive = {pair.session for pair in listed.value}
            holders = {one: True for one in fields["Holders"] if one in alive}
            if len(holders) < fields["Limit"]:
                wanted: dict[str, object] = {"Limit": fields["Limit"], "Holders": {**holders, own: True}}
                if await self._write(io, record, wanted, found.modify_index):
                    return True
                index = 0
            else:
                index = listed.index
        return False

    async def _give_back(self, io: SimIO, own: str, record: str) -> None:
        while True:
            found = (await _ask(io, kv.get(record))).value
            if found is None:
                return
            fields = json.loads(found.value)
            holders = {one: True for one in fields["Holders"] if one != own}
            if await self._write(
                io, record, {"Limit": fields["Limit"], "Holders": holders}, found.modify_index
            ):
                return

    @staticmethod
    async def _write(io: SimIO, record: str, fields: dict[str, object], index: int) -> bool:
        value = json.dumps(fields).encode()
        return await _ask(io, kv.put(record, value, flags=SEMAPHORE_FLAGS, cas=index))


async def _ask(io: SimIO, call: Call[T]) -> T:
    return await send_once(io, call, deadline=io.now() + _TIMEOUT)
