"""A client that knows of no queue: it contends for the key alone, as the official Go client does.

Rules
- PUT ?acquire, and while that is refused a blocking query on the key. It renews its session by half its TTL,
  and lets go of everything it has when it is told that the world is healed.
- It keeps no lease, and learns of a loss late: whether *it* overlaps with anybody is not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import kv, session
from consul_coord.http.retry import send_once
from consul_coord.models import LOCK_FLAGS, ReadOptions, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.http.messages import Call
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.process import Process

T = TypeVar("T")

_SPEC = SessionSpec(ttl=3.0, lock_delay=1.0)
_RENEW_EVERY = 1.5
_WAIT = 15.0
_TIMEOUT = 5.0


class Foreign:
    """One such client."""

    def __init__(self, process: Process, keys: tuple[str, ...], *, healed: Callable[[], bool]) -> None:
        self._process = process
        self._rng = process.rng
        self._keys = keys
        self._healed = healed
        self._sessions: list[str] = []

    async def run(self, io: SimIO) -> None:
        """Take the keys again and again until the world is healed, then destroy every session made."""
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
        own = await _ask(io, session.create(_SPEC))
        self._sessions.append(own)
        self._process.spawn(lambda io: self._renew(io, own), name="renew")
        while not self._healed():
            key = self._rng.choice(self._keys)
            if await _ask(io, kv.acquire(key, own, value=b"foreign", flags=LOCK_FLAGS)):
                self._process.judge.see("foreign hold")
                await io.sleep(self._rng.uniform(0.0, 1.0))
                await _ask(io, kv.release(key, own, flags=LOCK_FLAGS))
                await io.sleep(self._rng.uniform(0.0, 1.0))
            else:
                await self._wait(io, key)

    async def _wait(self, io: SimIO, key: str) -> None:
        seen = await _ask(io, kv.get(key))
        if seen.value is not None and seen.value.session is not None:
            options = ReadOptions(index=seen.value.modify_index, wait=_WAIT)
            await io.changed(kv.get(key, options=options).request)
        else:
            await io.sleep(0.2)  # free, and refused: a lock-delay

    async def _renew(self, io: SimIO, own: str) -> None:
        while own in self._sessions and not self._healed():
            await io.sleep(_RENEW_EVERY)
            try:
                await _ask(io, session.renew(own))
            except ConsulCoordError:
                continue


async def _ask(io: SimIO, call: Call[T]) -> T:
    return await send_once(io, call, deadline=io.now() + _TIMEOUT)
