"""Taking turns: never too many, first come first served, and no place lost to a cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from consul_coord.http.transport.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

BACKENDS = ("asyncio", "trio")


class Crowd:
    """Tasks that go through one gate, each until it is told to go on or is cancelled."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.inside: list[int] = []
        self.entered: list[int] = []
        self._go_on: dict[int, anyio.Event] = {}
        self._scopes: dict[int, anyio.CancelScope] = {}

    async def visit(self, number: int) -> None:
        self._go_on[number] = anyio.Event()
        with anyio.CancelScope() as self._scopes[number]:
            await self.gate.enter()
            try:
                self.inside.append(number)
                self.entered.append(number)
                await self._go_on[number].wait()
            finally:
                self.inside.remove(number)
                self.gate.leave()

    def finish(self, number: int) -> None:
        self._go_on[number].set()

    def cancel(self, number: int) -> None:
        self._scopes[number].cancel()


def run(
    backend: str, places: float, scenario: Callable[[Crowd, anyio.abc.TaskGroup], Coroutine[None, None, None]]
) -> None:
    async def main() -> None:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                await scenario(Crowd(Gate(places)), group)

    anyio.run(main, backend=backend)


async def settle() -> None:
    for _ in range(10):
        await checkpoint()


async def start(crowd: Crowd, group: anyio.abc.TaskGroup, *numbers: int) -> None:
    """Let them come one after the other, as tasks of trio start in any order."""
    for number in numbers:
        group.start_soon(crowd.visit, number)
        await settle()


@pytest.mark.parametrize("backend", BACKENDS)
def test_first_come_first_served(backend: str) -> None:
    async def scenario(crowd: Crowd, group: anyio.abc.TaskGroup) -> None:
        await start(crowd, group, *range(6))
        assert crowd.inside == [0, 1]
        assert crowd.gate.crowded
        for number in range(6):
            crowd.finish(number)
            await settle()
        assert crowd.entered == list(range(6))
        assert not crowd.gate.crowded

    run(backend, 2, scenario)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nobody_overtakes_who_was_handed_a_place(backend: str) -> None:
    async def scenario(crowd: Crowd, group: anyio.abc.TaskGroup) -> None:
        await start(crowd, group, 0, 1)
        crowd.finish(0)
        while crowd.inside == [0]:
            await checkpoint()
        await start(crowd, group, 2)
        assert crowd.entered == [0, 1]
        crowd.finish(1)
        await settle()
        assert crowd.entered == [0, 1, 2]
        crowd.finish(2)

    run(backend, 1, scenario)


def test_a_place_handed_to_who_is_cancelled_in_the_same_step_goes_to_the_next() -> None:
    async def main() -> None:
        gate = Gate(1)
        await gate.enter()
        first, second = (asyncio.create_task(gate.enter()) for _ in range(2))
        await settle()
        gate.leave()
        first.cancel()
        await asyncio.wait([first, second], timeout=5)
        assert first.cancelled()
        assert second.done()
        assert not gate.crowded

    asyncio.run(main())


@pytest.mark.parametrize("backend", BACKENDS)
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=20))
def test_no_place_is_lost_or_given_twice(backend: str, steps: list[tuple[bool, int]]) -> None:
    async def scenario(crowd: Crowd, group: anyio.abc.TaskGroup) -> None:
        await start(crowd, group, *range(8))
        for patient, number in steps:
            # Without a pause in between, ends and cancellations of several tasks meet.
            (crowd.finish if patient else crowd.cancel)(number)
            if patient:
                await checkpoint()
            assert len(crowd.inside) <= 3
        await settle()
        for number in range(8):
            crowd.finish(number)
        await settle()
        assert not crowd.inside
        assert not crowd.gate.crowded
        with anyio.fail_after(1):
            for _ in range(3):
                await crowd.gate.enter()

    run(backend, 3, scenario)
