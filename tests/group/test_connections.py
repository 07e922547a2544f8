"""One connection for any number of groups of a client, and what it costs to hear of a change over it."""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from consul_coord import AsyncClient, AsyncGroup, Client, Group, Partitioner, SessionSpec
from consul_coord.events import Joined, Lost
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.watch import places, together
from tests.election.waiting import PATIENCE, Told, until
from tests.group.seeing import Seen
from tests.support.sites import eventually
from tests.support.sockets import connections_to, needs_proc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.group.conftest import MakeClient
    from tests.support.proxy import FaultProxy

pytestmark = needs_proc

MANY = 12
TTL = 2.0
ROUND = 0.43 * TTL
"""Seconds between two renewals of a session, at most."""
QUIET = 0.2
"""Seconds without a request by which a client at rest is known."""
AFTERWARDS = 10.0
"""Seconds after which a client that was in groups has no connection any more."""


class Count:
    """Counts the connections to a proxy, over which only the client of the test goes."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._address = proxy.address

    def now(self) -> int:
        return len(connections_to(self._address))

    def rests_at(self, most: int) -> bool:
        """Wait until there are no more than that, for two rounds of renewals and queries."""
        end = time.monotonic() + 30
        quiet_since = time.monotonic()
        while time.monotonic() < min(end, quiet_since + 2 * ROUND):
            time.sleep(0.02)
            if self.now() > most:
                quiet_since = time.monotonic()
        return time.monotonic() < end


@pytest.fixture
def count(proxy: FaultProxy) -> Count:
    return Count(proxy)


@contextmanager
def many(client: Client, prefixes: list[str]) -> Iterator[tuple[list[Group], list[Seen]]]:
    """Join and watch groups in these places."""
    with ExitStack() as stack:
        groups = [stack.enter_context(Group(client, place, id="one")) for place in prefixes]
        seen = [stack.enter_context(Seen(Group(client, place))) for place in prefixes]
        yield groups, seen


def until_at_rest(client: Client) -> None:
    """Wait until the looks after a change are over: then requests are further apart than this."""
    asked, quiet_since = client.stats().requests, time.monotonic()
    deadline = quiet_since + PATIENCE
    while time.monotonic() < quiet_since + QUIET:
        time.sleep(0.01)
        if (now := client.stats().requests) != asked:
            asked, quiet_since = now, time.monotonic()
        assert time.monotonic() < deadline, "it goes on asking"


def prefixes_for(prefix: str, where: str) -> list[str]:
    folder, number = prefix.rsplit("/", 1)
    together = [f"{prefix}/team-{each}" for each in range(MANY)]
    apart = [f"apart-{each}-{folder.replace('/', '-')}-{number}/web" for each in range(5)]
    return {"together": together, "apart": apart, "one in another": [prefix, *together[:3]]}[where]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["together", "apart", "one in another"])
def test_any_number_of_groups_has_one_connection_and_none_afterwards(
    make_client: MakeClient, proxy: FaultProxy, prefix: str, count: Count, where: str
) -> None:
    """Also while it hears of members that come and go."""
    prefixes, other = prefixes_for(prefix, where), make_client()
    with make_client(address=proxy.address) as client:
        with many(client, prefixes) as (groups, seen):
            for each in seen:
                each.until_present("one")
            assert count.rests_at(1)
            with Group(other, prefixes[-1], id="other"):
                seen[-1].until_present("one", "other")
            seen[-1].until_present("one")
            assert count.rests_at(1)
            assert all(group.joined for group in groups)
        assert eventually(lambda: count.now() == 0, within=AFTERWARDS)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("address", ["reference_address"], indirect=True)
async def test_an_async_client_has_one_too(
    make_client: MakeClient, proxy: FaultProxy, prefix: str, count: Count
) -> None:
    both_seen = threading.Event()

    async def follow(group: AsyncGroup) -> None:
        async with group.watch() as watch:
            async for result in watch:
                if len(result.value.all) == 2:
                    both_seen.set()

    async with AsyncClient(address=proxy.address, session=SessionSpec(ttl=TTL, lock_delay=TTL)) as client:
        groups = [AsyncGroup(client, f"{prefix}/{number}", id="one") for number in range(10)]
        for group in groups:
            await group.join()
        async with anyio.create_task_group() as tasks:
            for group in groups:
                tasks.start_soon(follow, group)
            assert await anyio.to_thread.run_sync(count.rests_at, 1)
            with Group(make_client(), f"{prefix}/7", id="other"):
                assert await anyio.to_thread.run_sync(both_seen.wait, 30)
            tasks.cancel_scope.cancel()
        for group in groups:
            await group.leave()
        assert await anyio.to_thread.run_sync(lambda: eventually(lambda: count.now() == 0, within=AFTERWARDS))


@pytest.mark.slow
def test_a_partitioner_adds_only_the_connections_of_its_locks(
    make_client: MakeClient, proxy: FaultProxy, prefix: str, count: Count
) -> None:
    client = make_client(address=proxy.address)
    with Group(client, prefix) as group, Partitioner(group, 1, settle=0.05) as partitioner:
        until(lambda: partitioner.owned, "the only partition is owned")
        assert count.rests_at(2)


@pytest.mark.parametrize("where", ["together", "apart"])
def test_a_change_is_heard_of_soon(make_client: MakeClient, prefix: str, where: str) -> None:
    """With a common folder at once, and otherwise within the round."""
    prefixes, client, other = prefixes_for(prefix, where), make_client(), make_client()
    took = []
    with many(client, prefixes) as (_, seen):
        for each in seen:
            each.until_present("one")
        until_at_rest(client)
        for each, place in list(zip(seen, prefixes, strict=True))[:5]:
            started = time.monotonic()
            with Group(other, place, id="other"):
                each.until_present("one", "other")
                took.append(time.monotonic() - started)
    assert statistics.median(took) < {"together": 1.0, "apart": 3.0}[where]


LOSSES = {
    "its session is destroyed": lambda client, key, session: client.session.destroy(session),
    "its key is deleted": lambda client, key, session: client.kv.delete(key),
    "its key is released": lambda client, key, session: client.kv.release(key, session),
}


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("where", ["together", "apart", "one in another"])
def test_a_lost_member_joins_again(make_client: MakeClient, prefix: str, where: str, how: str) -> None:
    told, operator = Told(), make_client()
    with ExitStack() as stack:
        client = make_client(observer=told)
        groups = [
            stack.enter_context(Group(client, place, id="one")) for place in prefixes_for(prefix, where)
        ]
        until(lambda: len(told.seen(Joined)) == len(groups), "all have joined")
        started = time.monotonic()
        plan, session = GroupPlan(groups[1].prefix), groups[1].members()[0].session
        LOSSES[how](operator, plan.key("one"), session)
        expected = len(groups) if "destroyed" in how else 1
        until(lambda: len(told.seen(Joined)) == len(groups) + expected, "all lost ones have joined again")
        assert time.monotonic() - started < 5.0
        assert len(told.seen(Lost)) == expected
        assert all(group.joined for group in groups)


@pytest.mark.slow
def test_a_busy_folder_does_not_cost_a_request_for_each_write(make_client: MakeClient, prefix: str) -> None:
    """The groups in it take turns then, and hear of changes as before."""
    client, other = make_client(), make_client()
    with many(client, [f"{prefix}/a", f"{prefix}/b", f"{prefix}/c"]) as (_, seen):
        for each in seen:
            each.until_present("one")
        until_at_rest(client)
        before, writes = client.stats().requests, 0
        began = time.monotonic()
        while (lasted := time.monotonic() - began) < 4.0 or writes < 200:
            other.kv.put(f"{prefix}/elsewhere", str(writes))
            writes += 1
        asked = client.stats().requests - before
        # At first a few rounds of looks; then a query for each group in two seconds, and renewals.
        assert asked < 12 * 5 + lasted * (3 / 2 + 2) + 10
        with Group(other, f"{prefix}/b", id="other"):
            seen[1].until_present("one", "other")


def test_a_watch_that_rests_for_a_while_misses_nothing(
    make_client: MakeClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is not asked for meanwhile."""
    for module in (places, together):
        monkeypatch.setattr(module, "LINGER", 0.2)
    client, other = make_client(), make_client()
    with Group(client, f"{prefix}/b").watch() as kept, Group(client, f"{prefix}/a").watch() as watch:
        assert next(watch).value.all == next(kept).value.all == ()
        with Group(other, f"{prefix}/a", id="one"):
            assert [member.id for member in next(watch).value.all] == ["one"]
            shared = client._runner.core.watches.together
            until(lambda: not shared._folders, "no folder is asked for")
        assert next(watch).value.all == ()
