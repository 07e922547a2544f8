"""An application's module, as a type checker sees it: what the main names return, exactly.

Checked by the tests with mypy and pyright, from outside of the project, so that ``py.typed`` has its effect;
never run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

from consul_coord import (
    AsyncClient,
    AsyncHold,
    AsyncLeaderElection,
    AsyncLeadership,
    AsyncLock,
    AsyncMultiLock,
    AsyncPermit,
    AsyncReadWriteLock,
    AsyncReentrantLock,
    AsyncSemaphore,
    Blocker,
    Client,
    Contender,
    Hold,
    Holder,
    KVPair,
    LeaderElection,
    LeaderInfo,
    Leadership,
    Lock,
    LossReason,
    MultiLock,
    Permit,
    ReadWriteLock,
    ReentrantLock,
    ReleaseOutcome,
    Result,
    Semaphore,
    Sequencer,
    TxnOp,
    TxnResult,
    async_leader,
    leader,
    observe,
)
from consul_coord.protocols import (
    AsyncElectionLike,
    AsyncHoldLike,
    AsyncLockLike,
    ElectionLike,
    HoldLike,
    LockLike,
)
from consul_coord.testing.fakes import AsyncFakeElection, AsyncFakeLock, FakeElection, FakeLock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def blocking(client: Client) -> None:
    lock = Lock(client, "a", value="text", fair=True)
    hold = lock.acquire(timeout=5)
    assert_type(hold, Hold)
    assert_type(hold.fence, int)
    assert_type(hold.sequencer, Sequencer)
    assert_type(hold.reason, LossReason | None)
    assert_type(hold.guard(), tuple[TxnOp, ...])
    assert_type(hold.release(), ReleaseOutcome)
    assert_type(hold.lost.wait(1.0), bool)
    assert_type(lock.try_acquire(), Hold | None)
    assert_type(lock.holder(), Holder | None)
    assert_type(lock.contenders(), tuple[Contender, ...])
    with lock as held:
        assert_type(held, Hold)
    with lock.hold(timeout=5) as held:
        assert_type(held, Hold)
    assert_type(lock.run(lambda hold: hold.fence), int)
    with Semaphore(client, "s", 3) as permit:
        assert_type(permit, Permit)
    assert_type(Semaphore(client, "s", 3).acquire(), Permit)
    assert_type(MultiLock(client, ["a", "b"]).acquire(), Hold)
    assert_type(ReentrantLock(client, "a").acquire(), Hold)
    with ReadWriteLock(client, "a").read.hold() as shared:
        assert_type(shared, Hold)
    assert_type(client.kv.get("a"), Result[KVPair | None])
    assert_type(client.kv.get("a").value, KVPair | None)
    assert_type(client.txn(TxnOp.get("a")), TxnResult)
    assert_type(client.kv.put("a", "b"), bool)


def electing(client: Client) -> None:
    def elected(me: Leadership) -> None:
        assert_type(me.term, int)

    with LeaderElection(client, "e", on_elected=elected) as election:
        assert_type(election, LeaderElection)
        assert_type(election.leadership, Leadership | None)
        assert_type(election.wait_for_leadership(), Leadership)
        assert_type(election.wait_for_loss(), LossReason)
        election.run(elected)
    assert_type(leader(client, "e"), LeaderInfo | None)
    for seen in observe(client, "e"):
        assert_type(seen.value, LeaderInfo | None)


def decorated(client: Client, lock: AsyncLock) -> None:
    @Lock(client, "a").wrap(timeout=5)
    def report(day: str, *, full: bool = False) -> int:
        return len(day) + full

    @lock.wrap(timeout=5)
    async def async_report(day: str, *, full: bool = False) -> int:
        return len(day) + full

    assert_type(report("monday", full=True), int)
    as_typed: Callable[[str], int] = report
    assert_type(as_typed("monday"), int)
    later: Callable[[str], Coroutine[Any, Any, int]] = async_report
    later("monday").close()


async def on_a_loop(client: AsyncClient) -> None:
    lock = AsyncLock(client, "a")
    assert_type(await lock.acquire(timeout=5), AsyncHold)
    assert_type(await lock.try_acquire(), AsyncHold | None)
    async with lock as hold:
        assert_type(hold, AsyncHold)
        assert_type(await hold.lost.wait(1.0), bool)
        assert_type(await hold.release(), ReleaseOutcome)
    async with lock.hold(timeout=5) as hold:
        assert_type(hold, AsyncHold)
    async with AsyncSemaphore(client, "s", 3) as permit:
        assert_type(permit, AsyncPermit)
    async with AsyncLeaderElection(client, "e") as election:
        assert_type(election.leadership, AsyncLeadership | None)
        assert_type(await election.wait_for_leadership(), AsyncLeadership)
    assert_type(await async_leader(client, "e"), LeaderInfo | None)
    assert_type((await client.kv.get("a")).value, KVPair | None)


def takes(lock: LockLike, election: ElectionLike) -> int:
    with lock.hold(timeout=5) as hold:
        assert_type(hold, HoldLike)
        hold.check()
    leadership = election.leadership
    return lock.run(lambda hold: hold.fence) + (0 if leadership is None else leadership.fence)


async def takes_async(lock: AsyncLockLike, election: AsyncElectionLike) -> int:
    async with lock.hold(timeout=5) as hold:
        assert_type(hold, AsyncHoldLike)
        return hold.fence if election.is_leader else 0


def gives(client: Client) -> None:
    election = LeaderElection(client, "e")
    kinds: tuple[LockLike, ...] = (
        Lock(client, "a"),
        ReentrantLock(client, "a"),
        MultiLock(client, ["a", "b"]),
        ReadWriteLock(client, "a").read,
        ReadWriteLock(client, "a").write,
        Semaphore(client, "s", 3),
        FakeLock("a"),
    )
    for lock in kinds:
        takes(lock, election)
    takes(FakeLock("a"), FakeElection("e"))


async def gives_async(client: AsyncClient) -> None:
    election = AsyncLeaderElection(client, "e")
    kinds: tuple[AsyncLockLike, ...] = (
        AsyncLock(client, "a"),
        AsyncReentrantLock(client, "a"),
        AsyncMultiLock(client, ["a", "b"]),
        AsyncReadWriteLock(client, "a").read,
        AsyncReadWriteLock(client, "a").write,
        AsyncSemaphore(client, "s", 3),
        AsyncFakeLock("a"),
    )
    for lock in kinds:
        await takes_async(lock, election)
    await takes_async(AsyncFakeLock("a"), AsyncFakeElection("e"))


def why(blocker: Blocker) -> str:
    match blocker.kind:
        case "held" | "queued":
            return "wait"
        case "lock_delay" | "unreachable":
            return "later"
