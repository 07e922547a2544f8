"""The largest value that a recipe takes works in each of its requests; a longer one is refused before any."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    Client,
    Group,
    LeaderElection,
    Lock,
    MultiLock,
    Once,
    ReadWriteLock,
    ReleaseOutcome,
    Semaphore,
    ValueTooLarge,
)
from consul_coord.models.once import LONGEST_SLOT
from consul_coord.recipes.lock.multi import MOST_KEYS
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Hold
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site

    Make = Callable[[Client, str, bytes], Any]

LOCKS: dict[str, Make] = {
    "lock": lambda client, key, value: Lock(client, key, value=value),
    "lock, in turn": lambda client, key, value: Lock(client, key, value=value, fair=True),
    "lock that is removed": lambda client, key, value: Lock(client, key, value=value, remove=True),
    "two keys": lambda client, key, value: MultiLock(client, [key, key + "-"], value=value),
    "two that are removed": lambda client, key, value: MultiLock(
        client, [key, key + "-"], value=value, remove=True
    ),
    "as many as there may be": lambda client, key, value: MultiLock(client, _most(key), value=value),
    "as many that are removed": lambda client, key, value: MultiLock(
        client, _most(key), value=value, remove=True
    ),
    "read": lambda client, key, value: ReadWriteLock(client, key, value=value).read,
    "write": lambda client, key, value: ReadWriteLock(client, key, value=value).write,
}


def _most(key: str) -> list[str]:
    return [f"{key}{number:02}" for number in range(MOST_KEYS)]


def largest(use: Callable[[bytes], object]) -> bytes:
    """Return the largest value, as the refusal of a larger one names it."""
    with pytest.raises(ValueTooLarge, match=r"Keep it elsewhere, and put a reference to it here$") as refused:
        use(b"v" * 600_000)
    assert refused.value.size > refused.value.limit == 512 * 1024
    most = int(re.findall(r"has 600000 bytes, and may have (\d+) bytes", str(refused.value))[0])
    with pytest.raises(ValueTooLarge, match=f"has {most + 1} bytes, and may have {most} bytes"):
        use(b"v" * (most + 1))
    return b"v" * most


def transactions(proxy: FaultProxy) -> int:
    """Return how many were sent: the background's renewals and queries are none."""
    return sum("/v1/txn" in seen.path for seen in proxy.requests)


@pytest.mark.parametrize("name", LOCKS)
def test_of_a_lock(site: Site, make_client: MakeClient, proxy: FaultProxy, name: str) -> None:
    make, client = LOCKS[name], make_client(address=proxy.address)
    value = largest(lambda value: make(client, site.key, value))
    assert proxy.requests == []
    lock = make(client, site.key, value)
    rivals = make(make_client(), site.key, b"").acquire(timeout=5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock.acquire, timeout=20)
        eventually(lambda: waiting.done() or any("index=" in seen.path for seen in proxy.requests))
        rivals.release()
        assert waiting.result().release() is ReleaseOutcome.RELEASED
    hold: Hold = lock.acquire(timeout=5)
    before = transactions(proxy)
    longest = largest(hold.put)
    assert transactions(proxy) == before
    hold.put(longest)
    assert hold.release() is ReleaseOutcome.RELEASED


def test_of_a_permit(site: Site, client: Client) -> None:
    with Semaphore(client, site.key, 2).hold(timeout=5) as permit:
        permit.put(largest(permit.put))


def test_of_a_candidate(site: Site, make_client: MakeClient, proxy: FaultProxy) -> None:
    client = make_client(address=proxy.address)
    value = largest(lambda value: LeaderElection(client, site.key, value=value))
    assert proxy.requests == []
    with LeaderElection(client, site.key, value=value) as election:
        election.wait_for_leadership(timeout=20)
        election.proclaim(largest(election.proclaim))


def test_of_a_member(site: Site, make_client: MakeClient, proxy: FaultProxy) -> None:
    client = make_client(address=proxy.address)
    value = largest(lambda value: Group(client, site.key, id="m", value=value).join(timeout=5))
    assert proxy.requests == []
    group = Group(client, site.key, id="m", value=value)
    group.join(timeout=5)
    group.update(largest(group.update))
    group.leave()


def test_of_a_job(site: Site, client: Client) -> None:
    value = largest(lambda value: Once(client, site.key, value=value))
    slot = "\0" * LONGEST_SLOT  # which JSON makes six times as long
    assert Once(client, site.key, value=value).run(lambda run: run.fence, slot=slot, timeout=5).ran


@pytest.mark.parametrize("size", [65_535, 300_000])
def test_of_a_job_whose_record_makes_it_longer(client: Client, size: int) -> None:
    with pytest.raises(ValueTooLarge) as refused:
        Once(client, "k", value=b"\0" * size)
    most = int(re.findall(r"and may have (\d+) bytes", str(refused.value))[0])
    assert 60_000 < most < size
    Once(client, "k", value=b"\0" * most)


@pytest.mark.parametrize("name", LOCKS)
def test_a_key_that_no_request_can_carry_is_refused_by_its_beginning(client: Client, name: str) -> None:
    with pytest.raises(ValueTooLarge, match=r"^the key 'k{50,}[.]{3}'.* is too long, with") as refused:
        LOCKS[name](client, "k" * 600_000, b"")
    assert len(str(refused.value)) < 300
