"""``ReadWriteLock``: many readers or one writer, in the order of the queue."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import anyio
import pytest

from consul_coord import (
    AcquireTimeout,
    AlreadyHeld,
    AsyncClient,
    AsyncReadWriteLock,
    Client,
    InvalidArgument,
    KVPair,
    LossReason,
    ReadWriteLock,
    ReleaseOutcome,
    SessionSpec,
)
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.rwlock import queue as rwqueue
from tests.lock.conftest import spec
from tests.support.sites import eventually

if TYPE_CHECKING:
    from tests.lock.conftest import MakeClient
    from tests.support.sites import Site

A, B, C = (f"{digit * 8}-0000-0000-0000-000000000000" for digit in "abc")


def queue(*marks: tuple[str, rwqueue.Mode]) -> waitqueue.Look:
    pairs = (
        KVPair(
            waitqueue.contender_key("k", session),
            rwqueue.marked(mode, b"v"),
            session=session,
            create_index=place,
            modify_index=place,
        )
        for place, (session, mode) in enumerate(marks, start=1)
    )
    return waitqueue.read("k", pairs)


@pytest.mark.parametrize(
    ("marks", "inside"),
    [
        ([], []),
        ([(A, "write"), (B, "read")], [A]),
        ([(A, "read"), (B, "read"), (C, "write")], [A, B]),
        ([(A, "read"), (B, "write"), (C, "read")], [A]),
    ],
)
def test_place_alone_decides_who_is_in(marks: list[tuple[str, rwqueue.Mode]], inside: list[str]) -> None:
    look = queue(*marks)
    assert [pair.session for pair in rwqueue.inside(look)] == inside
    entered = [s for s, mode in marks if isinstance(rwqueue.judge(look, s, mode), rwqueue.Enter)]
    assert entered == inside


def test_a_reader_waits_for_the_nearest_writer_and_a_writer_for_whoever_is_before_it() -> None:
    look = queue((A, "write"), (B, "read"), (C, "read"))
    behind = rwqueue.judge(look, C, "read")
    assert isinstance(behind, rwqueue.Behind)
    assert behind.blocker.session == A
    behind = rwqueue.judge(queue((A, "read"), (B, "read"), (C, "write")), C, "write")
    assert isinstance(behind, rwqueue.Behind)
    assert behind.blocker.session == B


def test_readers_share_and_a_writer_is_alone(site: Site, make_client: MakeClient) -> None:
    ours, theirs = (ReadWriteLock(make_client(), site.key) for _ in range(2))
    with ours.read as first, theirs.read.hold(timeout=5) as second:
        assert {holder.session for holder in ours.holders()} == {first.session, second.session}
        assert ReadWriteLock(make_client(), site.key).write.try_acquire() is None
    with ours.write.hold(timeout=5) as writer:
        assert writer.fence > second.fence > first.fence
        assert theirs.read.try_acquire() is None
        with pytest.raises(AcquireTimeout) as told:
            theirs.write.acquire(timeout=0.2)
        assert (told.value.key, told.value.blocker.session) == (site.key, writer.session)
    assert ours.holders() == ()
    assert ours.contenders() == ()


def test_an_object_for_each_call_costs_no_session_for_each_call(site: Site, make_client: MakeClient) -> None:
    client = make_client()
    for _ in range(20):
        with ReadWriteLock(client, site.key).write.hold(timeout=5):
            pass
    # One in use, and one made ahead.
    assert len(list(client._runner.core.sessions)) <= 2


def test_a_reader_that_comes_later_waits_behind_a_waiting_writer(site: Site, make_client: MakeClient) -> None:
    locks = [ReadWriteLock(make_client(), site.key) for _ in range(3)]
    order: list[str] = []

    def enter(name: str, lock: ReadWriteLock) -> None:
        with getattr(lock, name).hold(timeout=10):
            order.append(name)

    with ThreadPoolExecutor(2) as pool:
        with locks[0].read.hold(timeout=5):
            writer = pool.submit(enter, "write", locks[1])
            assert eventually(lambda: len(locks[0].contenders()) == 1)
            reader = pool.submit(enter, "read", locks[2])
            assert eventually(lambda: len(locks[0].contenders()) == 2)
            assert order == []
        writer.result(10)
        reader.result(10)
    assert order == ["write", "read"]


def test_nobody_is_in_beside_a_writer_under_contention(site: Site, make_client: MakeClient) -> None:
    clients = [make_client() for _ in range(2)]
    guard, inside, wrong = threading.Lock(), {"read": 0, "write": 0}, list[str]()
    fences: list[int] = []

    def work(number: int) -> None:
        lock = ReadWriteLock(clients[number % 2], site.key)
        for turn in range(6):
            mode = "write" if (number + turn) % 3 == 0 else "read"
            with getattr(lock, mode).hold(timeout=20) as hold:
                with guard:
                    if inside["write"] or (mode == "write" and inside["read"]):
                        wrong.append(f"{mode} beside {inside}")
                    inside[mode] += 1
                    if mode == "write":
                        fences.append(hold.fence)
                with guard:
                    inside[mode] -= 1

    with ThreadPoolExecutor(6) as pool:
        for call in [pool.submit(work, number) for number in range(6)]:
            call.result(40)
    assert wrong == []
    assert fences == sorted(fences)
    assert len(fences) == 12


def test_who_is_in_does_not_enter_again(site: Site, client: Client) -> None:
    lock = ReadWriteLock(client, site.key)
    with lock.read.hold(timeout=5), pytest.raises(AlreadyHeld):
        lock.write.acquire(timeout=1)


def test_a_reader_whose_session_ends_is_told_and_lets_the_writer_in(
    site: Site, make_client: MakeClient
) -> None:
    reader = ReadWriteLock(make_client(), site.key).read.acquire(timeout=5)
    site.operator.destroy(reader.session)
    assert reader.lost.wait(5)
    assert reader.reason is LossReason.SESSION_GONE
    assert reader.release() is ReleaseOutcome.ALREADY_LOST
    with ReadWriteLock(make_client(), site.key).write.hold(timeout=5) as writer:
        assert writer.is_held


def test_sessions_with_checks_are_refused(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="without checks"):
        ReadWriteLock(client, "k", session=SessionSpec.liveness())


@pytest.mark.anyio
async def test_on_an_event_loop(site: Site) -> None:
    async with (
        AsyncClient(address=site.address, session=spec(site)) as ours,
        AsyncClient(address=site.address, session=spec(site)) as theirs,
    ):
        lock, other = AsyncReadWriteLock(ours, site.key), AsyncReadWriteLock(theirs, site.key)
        async with lock.read.hold(timeout=5), other.read.hold(timeout=5):
            assert len(await lock.holders()) == 2
        with anyio.fail_after(10):
            async with other.write as hold:
                assert hold.is_held
                assert await lock.read.try_acquire() is None
