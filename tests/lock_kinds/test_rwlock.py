"""``ReadWriteLock``: many readers or one writer, in the order of the queue."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

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
    Semaphore,
)
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.rwlock import queue as rwqueue
from tests.lock.conftest import spec
from tests.support.proxy import Fault, FaultProxy, Lose
from tests.support.sites import eventually
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from consul_coord import Hold
    from tests.lock.conftest import MakeClient
    from tests.support.sites import Site

A, B, C = (f"{digit * 8}-0000-0000-0000-000000000000" for digit in "abc")


def judge(look: waitqueue.Look, session: str, mode: rwqueue.Mode) -> rwqueue.Verdict:
    born = next(pair.create_index for pair in look.live if pair.session == session)
    return rwqueue.judge(look, session, mode, born=born)


def queue(*marks: tuple[str, rwqueue.Mode], dead: str = "") -> waitqueue.Look:
    pairs = (
        KVPair(
            waitqueue.contender_key("k", session),
            rwqueue.marked(mode, b"v"),
            session=None if session in dead else session,
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
    entered = [s for s, mode in marks if isinstance(judge(look, s, mode), rwqueue.Enter)]
    assert entered == inside


def test_a_reader_waits_for_the_nearest_writer_and_a_writer_for_whoever_is_before_it() -> None:
    look = queue((A, "write"), (B, "read"), (C, "read"))
    behind = judge(look, C, "read")
    assert isinstance(behind, rwqueue.Behind)
    assert behind.blocker.session == A
    behind = judge(queue((A, "read"), (B, "read"), (C, "write")), C, "write")
    assert isinstance(behind, rwqueue.Behind)
    assert behind.blocker.session == B


def test_who_died_inside_is_in_the_way_and_in_until_removed() -> None:
    look = queue((A, "write"), (B, "read"), dead=A)
    behind = judge(look, B, "read")
    assert isinstance(behind, rwqueue.Behind)
    assert behind.blocker == look.dead[0]
    assert rwqueue.inside(look) == look.dead
    assert [(op.verb, op.key, op.session) for op in rwqueue.removal(look.dead[0], by=B)] == [
        ("lock", waitqueue.contender_key("k", A), B),
        ("delete", waitqueue.contender_key("k", A), None),
    ]


def test_who_died_waiting_never_was_in() -> None:
    look = queue((A, "write"), (B, "write"), (C, "read"), dead=B)
    assert look.dead[0] not in rwqueue.inside(look)


def test_a_contender_of_an_earlier_hold_is_not_ours() -> None:
    # As an old leader may show it: its place was given back long ago.
    look = queue((A, "write"))
    assert isinstance(rwqueue.judge(look, A, "write", born=9), waitqueue.Rejoin)


def test_the_holder_of_a_side_is_the_writer_or_the_first_reader(site: Site, make_client: MakeClient) -> None:
    locks = [ReadWriteLock(make_client(), site.key) for _ in range(3)]
    sides = (locks[0].read, locks[0].write)
    assert [side.holder() for side in sides] == [None, None]
    with locks[1].read.hold(timeout=5) as first, locks[2].read.hold(timeout=5) as second:
        assert [holder.session for holder in locks[0].holders()] == [first.session, second.session]
        for side in sides:
            holder = side.holder()
            assert holder is not None
            assert (holder.session, side.locked()) == (first.session, True)
    with locks[2].write.hold(timeout=5) as writer:
        for side in sides:
            holder = side.holder()
            assert holder is not None
            assert holder.session == writer.session
    assert [side.locked() for side in sides] == [False, False]


@pytest.mark.parametrize("mode", rwqueue.MODES)
def test_a_holder_that_writes_its_value_is_shown_with_the_fence_that_it_knows_itself(
    site: Site, make_client: MakeClient, mode: Literal["read", "write"]
) -> None:
    ours, theirs = (ReadWriteLock(make_client(), site.key) for _ in range(2))
    side = ours.read if mode == "read" else ours.write
    with side.hold(timeout=5) as hold:
        hold.put(b"new")
        (shown,) = theirs.holders()
        assert (shown.session, shown.value, shown.fence) == (hold.session, b"new", hold.fence)
        assert shown.since_index > shown.fence


def test_readers_share_and_a_writer_is_alone(site: Site, make_client: MakeClient) -> None:
    ours, theirs = (ReadWriteLock(make_client(), site.key) for _ in range(2))
    with ours.read as first, theirs.read.hold(timeout=5) as second:
        assert {holder.session for holder in ours.holders()} == {first.session, second.session}
        assert ReadWriteLock(make_client(), site.key).write.try_acquire() is None
    with ours.write.hold(timeout=5) as writer:
        assert writer.fence > second.fence > first.fence
        writer.put("written later")
        (holder,) = theirs.holders()
        assert holder.fence == writer.fence < holder.since_index
        assert theirs.read.try_acquire() is None
        with pytest.raises(AcquireTimeout) as told:
            theirs.write.acquire(timeout=0.5)
        assert (told.value.key, told.value.blocker.session) == (site.key, writer.session)
    assert ours.holders() == ()
    assert ours.contenders() == ()


def test_whether_it_is_locked_is_told_of_both_sides(site: Site, client: Client) -> None:
    lock = ReadWriteLock(client, site.key)
    assert not lock.read.locked()
    with lock.write:
        assert lock.read.locked()
        assert lock.write.locked()
    assert not lock.write.locked()


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


@pytest.mark.parametrize("inner", ["read", "write"])
@pytest.mark.parametrize("outer", ["read", "write"])
def test_who_is_in_does_not_enter_again_by_whichever_object(
    site: Site, client: Client, outer: str, inner: str
) -> None:
    lock = ReadWriteLock(client, site.key)
    other = ReadWriteLock(client, site.key)
    with getattr(lock, outer).hold(timeout=5) as hold:
        for again in (lock, other):
            with pytest.raises(AlreadyHeld, match=f"already, to {outer}") as caught:
                getattr(again, inner).acquire(timeout=1)
            assert (caught.value.key, caught.value.session) == (site.key, hold.session)
        with ThreadPoolExecutor(1) as pool, pytest.raises(AcquireTimeout):
            pool.submit(ReadWriteLock(client, site.key).write.acquire, timeout=0).result()
        getattr(ReadWriteLock(client, f"{site.key}/else"), inner).acquire(timeout=5).release()
    getattr(other, inner).acquire(timeout=5).release()


@pytest.mark.parametrize("mode", rwqueue.MODES)
def test_who_has_just_dropped_a_hold_may_enter_again(client: Client, site: Site, mode: rwqueue.Mode) -> None:
    lock = ReadWriteLock(client, site.key)
    dropped = getattr(lock, mode).hold(timeout=5)
    dropped.__enter__()
    del dropped
    lock.write.acquire(timeout=5).release()


def test_a_reader_whose_session_ends_is_told_and_lets_the_writer_in(
    site: Site, make_client: MakeClient
) -> None:
    session = spec(site, lock_delay=1.0)
    reader = ReadWriteLock(make_client(), site.key, session=session).read.acquire(timeout=5)
    site.operator.destroy(reader.session)
    assert reader.lost.wait(5)
    assert reader.reason is LossReason.SESSION_GONE
    assert reader.release() is ReleaseOutcome.ALREADY_LOST
    with ReadWriteLock(make_client(), site.key).write.hold(timeout=10) as writer:
        assert writer.is_held


@pytest.mark.parametrize(("dead", "next_one"), [("write", "read"), ("write", "write"), ("read", "write")])
def test_whoever_died_inside_keeps_others_out_for_as_long_as_its_client_trusts_it(
    site: Site, make_client: MakeClient, dead: str, next_one: str
) -> None:
    session = spec(site, lock_delay=2.0)
    with FaultProxy(site.address) as proxy:
        client = make_client(address=proxy.address)
        held: Hold = getattr(ReadWriteLock(client, site.key, session=session), dead).acquire(timeout=5)
        other = getattr(ReadWriteLock(make_client(), site.key, session=session), next_one)
        proxy.go_down()
        site.operator.destroy(held.session)
        with pytest.raises(AcquireTimeout) as caught:
            other.acquire(timeout=0)
        assert (caught.value.blocker.kind, caught.value.blocker.session) == ("lock_delay", held.session)
        assert held.remaining()
        with other.hold(timeout=10):
            assert not held.remaining()
        proxy.come_up()
    assert eventually(lambda: site.operator.under(f"{site.key}/") == [])


def test_a_dead_reader_keeps_no_reader_out_and_is_removed_in_time(
    site: Site, make_client: MakeClient
) -> None:
    session = spec(site, lock_delay=0.5)
    dead = ReadWriteLock(make_client(), site.key, session=session).read.acquire(timeout=5)
    site.operator.destroy(dead.session)
    other = ReadWriteLock(make_client(), site.key, session=session)
    with lasting(most=5.0):
        other.read.acquire(timeout=20).release()

    def removed() -> bool:
        with other.read:
            return site.operator.entry(dead.key) is None

    assert eventually(removed)


def test_whose_place_was_given_back_keeps_nobody_out(site: Site, make_client: MakeClient) -> None:
    session = spec(site, lock_delay=30.0)
    other = ReadWriteLock(make_client(), site.key, session=session)
    forgotten = [ReadWriteLock(make_client(), site.key, session=session).write.acquire(timeout=5)]
    forgotten.clear()
    gc.collect()
    with lasting(most=8.0), other.write.hold(timeout=20):
        pass


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_a_join_that_arrives_after_the_release_keeps_nobody_out(
    site: Site, make_client: MakeClient, proxy: FaultProxy, kind: str
) -> None:
    """Its session was used again, and had the late contender for ever."""

    def taken(client: Client) -> Any:
        return ReadWriteLock(client, site.key).write if kind == "lock" else Semaphore(client, site.key, 1)

    late = proxy.add(Fault(lose=Lose.TIME, method="PUT", path="/v1/txn", containing=b'"lock"'))
    own = taken(make_client(address=proxy.address, timeout=1.0))
    own.acquire(timeout=20).release()
    late.let_go()
    assert late.passed_on.wait(10)
    taken(make_client()).acquire(timeout=10).release()
    own.acquire(timeout=10).release()


def test_sessions_may_have_checks_but_come_from_no_outside(site: Site, make_client: MakeClient) -> None:
    checked = spec(site, node_checks=("serfHealth",))
    with ReadWriteLock(make_client(), site.key, session=checked).write:
        pass
    with pytest.raises(InvalidArgument, match="for each hold"):
        ReadWriteLock(make_client(), "k", session="0" * 8)  # type: ignore[arg-type]


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


def test_it_can_be_destroyed_when_nobody_holds_either_side_or_waits(
    site: Site, make_client: MakeClient
) -> None:
    both = ReadWriteLock(make_client(), site.key)
    sides = both.read, both.write
    with both.read.hold(timeout=5):
        assert [side.destroy() for side in sides] == [False, False]
    assert [side.destroy() for side in sides] == [True, True]
    with both.write.hold(timeout=5):
        assert [side.destroy() for side in sides] == [False, False]
