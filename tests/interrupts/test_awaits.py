"""The harness of cancellations itself: it cancels at the n-th suspension, and tells whether that came out."""

from __future__ import annotations

import anyio
import pytest

from tests.interrupts.awaits import WAYS, strike

passed: list[str] = []


async def act() -> None:
    for number in range(3):
        event = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)
            event.set()
        passed.append(f"{number}")


@pytest.mark.parametrize(("backend", "way"), [(backend, way) for backend in WAYS for way in WAYS[backend]])
def test_it_cancels_at_every_suspension(backend: str, way: str) -> None:
    places = anyio.run(strike, act, None, way, backend=backend).places
    assert places >= 3
    for at in range(places):
        passed.clear()
        struck = anyio.run(strike, act, at, way, backend=backend)
        assert struck.raised
        assert "test_awaits.py" in struck.at
        assert len(passed) < 3
    assert not anyio.run(strike, act, places, way, backend=backend).raised


async def deaf() -> None:
    with anyio.CancelScope(shield=True):
        await anyio.sleep(0.001)


@pytest.mark.parametrize("backend", WAYS)
def test_it_tells_that_a_call_was_deaf(backend: str) -> None:
    struck = anyio.run(strike, deaf, 0, "scope", backend=backend)
    assert struck.at
    assert not struck.raised
