"""Many tasks that wait for one lock in one client: little is kept of each."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from consul_coord import AcquireCancelled, AsyncClient, AsyncLock
from tests.lock.conftest import spec

if TYPE_CHECKING:
    from tests.support.sites import Site

TASKS = 500
MOST_EACH = 6.0
"""KiB: ten thousand of them take 60 MiB at most."""


@pytest.mark.slow
def test_a_task_that_waits_keeps_a_few_kib(site: Site) -> None:
    async def kib_of_each() -> float:
        async with AsyncClient(address=site.address, session=spec(site, ttl=30)) as client:
            lock = AsyncLock(client, site.key)
            async with lock:
                gc.collect()
                tracemalloc.start()
                try:
                    tasks = [asyncio.create_task(lock.acquire()) for _ in range(TASKS)]
                    while client._runner.core.host.counted("Waiting") < TASKS:  # noqa: ASYNC110 - no event
                        await asyncio.sleep(0.01)
                    gc.collect()
                    kept = tracemalloc.get_traced_memory()[0] / TASKS / 1024
                finally:
                    tracemalloc.stop()
                lock.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [end for end in ends if not isinstance(end, AcquireCancelled)] == []
        return kept

    assert asyncio.run(kib_of_each()) <= MOST_EACH
