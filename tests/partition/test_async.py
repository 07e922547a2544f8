"""The async twin, on asyncio and on trio."""

from __future__ import annotations

import anyio
import pytest

from consul_coord import AsyncClient, AsyncGroup, AsyncHold, AsyncPartitioner
from tests.partition.conftest import SPEC


@pytest.mark.anyio
async def test_work_that_is_awaited_is_cancelled_before_another_begins(address: str, prefix: str) -> None:
    working: dict[str, str] = {}
    twice: list[str] = []
    shared = anyio.Event()

    def owner(name: str) -> dict[str, object]:
        async def work(partition: str, hold: AsyncHold) -> None:
            if partition in working:
                twice.append(partition)
            working[partition] = name
            if len(working) == 8 and len({*working.values()}) == 2:
                shared.set()
            await anyio.sleep_forever()

        async def end(partition: str, hold: AsyncHold) -> None:
            await anyio.sleep(0.01)
            del working[partition]

        return {"on_acquired": work, "on_released": end, "settle": 0.1}

    async with (
        AsyncClient(address=address, session=SPEC) as one_client,
        AsyncClient(address=address, session=SPEC) as other_client,
        AsyncGroup(one_client, prefix, id="one") as one,
        AsyncPartitioner(one, 8, **owner("one")),  # type: ignore[arg-type]
        AsyncGroup(other_client, prefix, id="other") as other,
        AsyncPartitioner(other, 8, **owner("other")) as partitioner,  # type: ignore[arg-type]
    ):
        with anyio.fail_after(30):
            await shared.wait()
        held = {partition for partition, name in working.items() if name == "other"}
        assert set(partitioner.owned) == held
        assert twice == []
    assert working == {}
