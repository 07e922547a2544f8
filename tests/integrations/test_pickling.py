"""What belongs to one process refuses to be pickled, and says why; what is a value does not."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from consul_coord import (
    AsyncClient,
    AsyncLeaderElection,
    AsyncLock,
    AsyncSemaphore,
    Client,
    LeaderElection,
    Lock,
    MultiLock,
    ReadWriteLock,
    ReentrantLock,
    Semaphore,
    Sequencer,
    SessionSpec,
    observe,
)
from consul_coord.server import ReferenceServer

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 30.0
CLIENT = "Client can't be pickled: make one in each process, and locks from it"
HOLD = "can't be pickled: it is this process's; pass on its fence, or its sequencer"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ReferenceServer() as server:
        yield server.address


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address=address) as client:
        yield client


def refused(thing: Any, why: str) -> None:
    for duplicate in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=why):
            duplicate(thing)


def test_clients_and_what_belongs_to_them(client: Client) -> None:
    rw = ReadWriteLock(client, "rw")
    lock = Lock(client, "a")
    for thing in (
        client,
        client.kv,
        lock,
        lock.hold(),
        ReentrantLock(client, "a"),
        MultiLock(client, ["a", "b"]),
        rw,
        rw.read,
        Semaphore(client, "s", 2),
        LeaderElection(client, "e"),
        observe(client, "e"),
    ):
        refused(thing, CLIENT)
    with client.keep_session(SessionSpec()) as kept:
        refused(kept, CLIENT)


def test_holds(client: Client) -> None:
    with (
        Lock(client, "a") as hold,
        Semaphore(client, "s", 2) as permit,
        LeaderElection(client, "e") as election,
    ):
        leadership = election.wait_for_leadership(timeout=PATIENCE)
        for thing in (hold, permit, leadership):
            refused(thing, HOLD)
        refused(hold.lost, CLIENT)
        # What they say to pass on instead:
        assert pickle.loads(pickle.dumps(hold.fence)) == hold.fence
        assert pickle.loads(pickle.dumps(hold.sequencer)) == Sequencer.parse(str(hold.sequencer))


def test_on_an_event_loop(address: str) -> None:
    async def main() -> None:
        async with AsyncClient(address=address) as loop_client:
            for thing in (
                loop_client,
                AsyncLock(loop_client, "a"),
                AsyncSemaphore(loop_client, "s", 2),
                AsyncLeaderElection(loop_client, "e"),
            ):
                refused(thing, f"Async{CLIENT}")
            async with AsyncLock(loop_client, "b") as hold:
                refused(hold, f"AsyncHold {HOLD}")

    anyio.run(main)


def test_a_process_pool_says_so_to_its_caller(client: Client) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        submitted = pool.submit(repr, Lock(client, "a"))
        with pytest.raises(TypeError, match=CLIENT):
            submitted.result(PATIENCE)
