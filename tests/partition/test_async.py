"""The async twin, on asyncio and on trio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from consul_coord import AsyncClient, AsyncGroup, AsyncHold, AsyncPartitioner
from tests.partition.conftest import SPEC

if TYPE_CHECKING:
    from collections.abc import Callable


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


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - it gives no notice
        await anyio.sleep(0.01)


@pytest.mark.anyio
@pytest.mark.parametrize("again", ["taken again", "started again"])
async def test_work_begins_again_only_when_the_end_before_it_has_returned(
    address: str, prefix: str, again: str
) -> None:
    told: list[str] = []
    weights = {"one": 1.0, "other": 0.0}

    async def begin(_: str, hold: AsyncHold) -> None:
        told.append("begin")

    async def end(_: str, hold: AsyncHold) -> None:
        told.append("end")
        await anyio.sleep(1.0)
        told.append("ended")

    async with (
        AsyncClient(address=address, session=SPEC) as client,
        AsyncGroup(client, prefix, id="one") as one,
        AsyncGroup(client, prefix, id="other") as other,
        AsyncPartitioner(
            one,
            1,
            on_acquired=begin,
            on_released=end,
            handover=0.0,
            settle=0.0,
            weight=lambda member: weights[member.id],
        ) as partitioner,
    ):
        with anyio.fail_after(10):
            await until(lambda: partitioner.owned)
            if again == "started again":
                await partitioner.stop()
                await partitioner.start()
            else:
                weights["one"] = 0.0
                await other.update("changed")
                await until(lambda: not partitioner.owned)
                weights["one"] = 1.0
                await other.update("changed again")
            await until(lambda: len(told) >= 4)
    assert told[:4] == ["begin", "end", "ended", "begin"]
