"""What is no number of seconds is refused by the parameter's name, before anything is sent or done."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    AsyncClient,
    AsyncLock,
    Client,
    ConfigError,
    Group,
    InvalidArgument,
    LeaderElection,
    Lock,
    MultiLock,
    Once,
    ReadWriteLock,
    Semaphore,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Use = Callable[[Client, Any], object]

NOBODY = "http://127.0.0.1:9"
"""Where no agent is: a request would raise another error."""
ODD: dict[str, object] = {
    "text": "10",
    "with a unit": "5m",
    "timedelta": timedelta(seconds=10),
    "list": [1],
    "bool": True,
    "nan": float("nan"),
    "negative": -1,
    "beyond all floats": 10**400,
}
USES: dict[str, tuple[str, Use]] = {
    "Lock.acquire": ("timeout", lambda client, odd: Lock(client, "k").acquire(timeout=odd)),
    "Lock.hold": ("timeout", lambda client, odd: Lock(client, "k").hold(timeout=odd).__enter__()),
    "Lock.run": ("timeout", lambda client, odd: Lock(client, "k").run(bool, timeout=odd)),
    "Lock.wrap": ("timeout", lambda client, odd: Lock(client, "k").wrap(timeout=odd)(bool)()),
    "max_hold": ("max_hold", lambda client, odd: Lock(client, "k").acquire(max_hold=odd)),
    "MultiLock": ("timeout", lambda client, odd: MultiLock(client, ["k", "l"]).acquire(timeout=odd)),
    "ReadWriteLock": ("timeout", lambda client, odd: ReadWriteLock(client, "k").read.acquire(timeout=odd)),
    "Semaphore": ("timeout", lambda client, odd: Semaphore(client, "k", 2).acquire(timeout=odd)),
    "Group.join": ("timeout", lambda client, odd: Group(client, "k").join(timeout=odd)),
    "Once.run": ("timeout", lambda client, odd: Once(client, "k").run(bool, slot="1", timeout=odd)),
    "election": ("timeout", lambda client, odd: LeaderElection(client, "k").wait_for_leadership(timeout=odd)),
    "priority_delay": ("priority_delay", lambda client, odd: LeaderElection(client, "k", priority_delay=odd)),
    "health_interval": (
        "health_interval",
        lambda client, odd: LeaderElection(client, "k", health_interval=odd),
    ),
    "retry_wait": ("retry_wait", lambda client, odd: LeaderElection(client, "k", retry_wait=odd)),
    "retry_waits": ("retry_wait", lambda client, odd: LeaderElection(client, "k", retry_wait=(odd, odd))),
    "a call": ("timeout", lambda client, odd: client.kv.get("k", timeout=odd)),
    "update": ("timeout", lambda client, odd: client.kv.update("k", lambda value: value, timeout=odd)),
    "watch": ("min_interval", lambda client, odd: client.kv.watch("k", min_interval=odd)),
    "healthy": ("slack", lambda client, odd: client.healthy(slack=odd)),
    "close": ("timeout", lambda client, odd: client.close(timeout=odd)),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(NOBODY) as client:
        yield client


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("use", USES)
def test_is_refused_by_its_name(client: Client, use: str, odd: str) -> None:
    name, call = USES[use]
    with pytest.raises(InvalidArgument, match=rf"^{name} must be .*seconds.*, not "):
        call(client, ODD[odd])


@pytest.mark.parametrize("odd", ODD)
def test_is_refused_on_an_event_loop_too(odd: str) -> None:
    async def main(odd: Any) -> None:
        async with AsyncClient(NOBODY) as client:
            for call in (AsyncLock(client, "k").acquire, client.close):
                with pytest.raises(InvalidArgument, match=r"^timeout must be a number of seconds, 0 or more"):
                    await call(timeout=odd)

    asyncio.run(main(ODD[odd]))


@pytest.mark.parametrize("odd", [*ODD.values(), 0, float("inf")])
def test_is_refused_as_a_setting(odd: Any) -> None:
    with pytest.raises(ConfigError, match=r"^timeout must be a number of seconds, more than 0 and finite"):
        Client(NOBODY, timeout=odd)
