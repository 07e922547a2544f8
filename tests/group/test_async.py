"""The async twin, on asyncio and on trio."""

from __future__ import annotations

import anyio
import pytest

from consul_coord import AcquireTimeout, AsyncClient, AsyncGroup
from tests.group.conftest import SPEC


@pytest.mark.anyio
async def test_members_come_and_go(address: str, prefix: str) -> None:
    async with AsyncClient(address=address, session=SPEC) as client:
        watch = AsyncGroup(client, prefix).watch()
        assert (await anext(watch)).value.all == ()
        async with AsyncGroup(client, prefix, id="one", value="x") as group:
            assert [member.id for member in (await anext(watch)).value.joined] == ["one"]
            await group.update("y")
            assert [member.text for member in (await anext(watch)).value.changed] == ["y"]
            with pytest.raises(AcquireTimeout):
                await AsyncGroup(client, prefix, id="one").join(timeout=0.05)
        assert [member.id for member in (await anext(watch)).value.left] == ["one"]


@pytest.mark.anyio
async def test_a_cancelled_join_leaves_nothing(address: str, prefix: str) -> None:
    async with AsyncClient(address=address, session=SPEC) as one, AsyncClient(address=address) as other:
        first, second = AsyncGroup(one, prefix, id="one"), AsyncGroup(other, prefix, id="one")
        async with first:
            with anyio.move_on_after(0.05):
                await second.join()
            assert not second.joined
        assert await first.members() == ()
        await second.join(timeout=30)
        assert second.joined
