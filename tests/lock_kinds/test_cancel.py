"""An event of the user's, given as ``cancel``, ends a call that waits, of any kind, and nothing else."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from consul_coord import AcquireCancelled, AsyncClient, AsyncLock, Lock
from consul_coord.events import Waiting
from consul_coord.recipes.contend.recipe import LOOK
from tests.lock.conftest import spec
from tests.lock.test_acquire import PROMPT
from tests.lock.test_hold import Notes
from tests.lock_kinds.test_limits import KINDS, RIVALS
from tests.support.sites import eventually
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site

PATIENCE = 30.0
EVENTS: dict[str, Callable[[], Any]] = {
    "threading": threading.Event,
    "multiprocessing": multiprocessing.get_context("spawn").Event,
    "anyio": anyio.Event,
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_ends_a_call_that_waits_at_once(site: Site, make_client: MakeClient, kind: str) -> None:
    stop = threading.Event()
    notes = Notes()
    lock = KINDS[kind](make_client(observer=notes), site.key)
    with RIVALS[kind](make_client(), site.key).hold(timeout=PATIENCE), ThreadPoolExecutor(1) as pool:
        call = pool.submit(lock.acquire, timeout=PATIENCE, cancel=stop)
        eventually(lambda: notes.of(Waiting))
        with lasting(most=LOOK + PROMPT, calls=1):
            stop.set()
            with pytest.raises(AcquireCancelled, match=site.key):
                call.result(PATIENCE)
    with lock.hold(timeout=PATIENCE) as hold:
        assert hold.is_held


@pytest.mark.parametrize("event", EVENTS)
def test_any_event_will_do(site: Site, make_client: MakeClient, event: str) -> None:
    stop = EVENTS[event]()
    with Lock(make_client(), site.key), ThreadPoolExecutor(1) as pool:
        call = pool.submit(Lock(make_client(), site.key).acquire, timeout=PATIENCE, cancel=stop)
        assert eventually(lambda: site.operator.under(f"{site.key}/") or call.done())
        stop.set()
        with pytest.raises(AcquireCancelled):
            call.result(PATIENCE)


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_is_set_lets_nothing_begin(
    site: Site, make_client: MakeClient, proxy: FaultProxy, kind: str
) -> None:
    stop = threading.Event()
    stop.set()
    lock = KINDS[kind](make_client(address=proxy.address), site.key)
    with pytest.raises(AcquireCancelled):
        lock.acquire(timeout=PATIENCE, cancel=stop)
    assert proxy.requests == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_stays_held(site: Site, make_client: MakeClient, kind: str) -> None:
    stop = threading.Event()
    lock = KINDS[kind](make_client(), site.key)
    with lock.hold(timeout=PATIENCE, cancel=stop) as hold:
        stop.set()
        assert not hold.lost.wait(3 * LOOK)
        assert hold.verify()


@pytest.mark.anyio
async def test_on_an_event_loop_too(site: Site, make_client: MakeClient) -> None:
    stop, ended = anyio.Event(), anyio.Event()
    async with AsyncClient(address=site.address, session=spec(site)) as client:
        lock = AsyncLock(client, site.key)

        async def wait() -> None:
            with pytest.raises(AcquireCancelled):
                await lock.acquire(timeout=PATIENCE, cancel=stop)
            ended.set()

        with Lock(make_client(), site.key):
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await anyio.to_thread.run_sync(
                    lambda: eventually(lambda: site.operator.under(f"{site.key}/"))
                )
                stop.set()
                with anyio.fail_after(PATIENCE):
                    await ended.wait()
