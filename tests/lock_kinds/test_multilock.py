"""``MultiLock``: all its keys or none, in one transaction, and lost as a whole."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import anyio.lowlevel
import pytest

from consul_coord import (
    AcquireTimeout,
    AlreadyHeld,
    AsyncClient,
    AsyncMultiLock,
    Client,
    InvalidArgument,
    KeyConflict,
    Lock,
    LockLost,
    LossReason,
    MultiLock,
    NotHeld,
    ReadWriteLock,
    ReentrantLock,
    ReleaseOutcome,
    Semaphore,
    TxnFailed,
    TxnOp,
)
from consul_coord.recipes.contend.tickets import Ticket
from tests.lock.conftest import spec
from tests.lock.test_async import eventually as eventually_so
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Hold
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site


def keys(site: Site, names: str = "abc") -> list[str]:
    return [f"{site.unique}/{name}" for name in names]


def holders(site: Site, names: str = "abc") -> list[str | None]:
    return [site.operator.holder(key) for key in keys(site, names)]


NOBODY = [None, None, None]


def test_all_keys_are_held_by_one_grant(site: Site, client: Client) -> None:
    lock = MultiLock(client, keys(site, "cab"), value="me")
    assert lock.keys == tuple(keys(site))
    with lock.hold(timeout=5) as hold:
        assert holders(site) == [hold.session] * 3
        entries = [site.operator.entry(key) or {} for key in keys(site)]
        assert {entry["ModifyIndex"] for entry in entries} == {hold.fence}
        assert {entry["Value"] for entry in entries} == {b"me"}
        assert hold.verify()
        hold.put(b"mine")
        assert (site.operator.entry(keys(site)[0]) or {})["Value"] == b"mine"
        assert hold.is_held
    assert holders(site) == NOBODY
    assert lock.acquire(timeout=5).fence > hold.fence


def test_its_keys_are_one_to_thirty_two(client: Client) -> None:
    for wrong in ([], [f"k{number}" for number in range(33)], "abc"):
        with pytest.raises(InvalidArgument):
            MultiLock(client, wrong)
    assert MultiLock(client, ["a", "a", "b"]).keys == ("a", "b")


def test_thirty_two_keys_fit_into_each_transaction(site: Site, client: Client) -> None:
    many = [f"{site.unique}/{number:02}" for number in range(32)]
    with MultiLock(client, many) as hold:
        assert {site.operator.holder(key) for key in many} == {hold.session}
    assert {site.operator.holder(key) for key in many} == {None}


@pytest.mark.parametrize("shared", [True, False], ids=["one client", "a client each"])
def test_takers_of_overlapping_keys_neither_overlap_nor_block_each_other(
    site: Site, make_client: MakeClient, shared: bool
) -> None:
    one, chance = make_client(), random.Random(7)
    inside = {key: threading.Semaphore(1) for key in keys(site, "abcde")}
    plans = [[chance.sample([*inside], chance.randint(2, 4)) for _ in range(5)] for _ in range(8)]

    def work(plan: list[list[str]]) -> list[int]:
        client, fences = one if shared else make_client(), list[int]()
        for each in plan:
            with MultiLock(client, each).hold(timeout=40) as hold:
                for key in each:
                    assert inside[key].acquire(blocking=False), f"two hold {key}"
                fences.append(hold.fence)
                for key in each:
                    inside[key].release()
        return fences

    with ThreadPoolExecutor(8) as pool:
        fences = [fence for each in pool.map(work, plans, timeout=40) for fence in each]
    assert len(set(fences)) == 40
    assert holders(site, "abcde") == [None] * 5
    assert len(one._runner.core.tickets) == 0


@pytest.mark.parametrize("held", range(3))
def test_destroying_deletes_each_key_that_nobody_holds(site: Site, client: Client, held: int) -> None:
    names = keys(site)
    lock = MultiLock(client, names)
    with lock:
        pass
    with Lock(client, names[held]):
        assert lock.destroy() is False
        assert [key for key in names if client.kv.get(key).value is not None] == [names[held]]
    assert lock.destroy() is True


@pytest.mark.parametrize("place", range(3))
def test_while_one_key_is_held_none_of_the_others_is_taken(
    site: Site, make_client: MakeClient, place: int
) -> None:
    busy = keys(site)[place]
    other = Lock(make_client(), busy).acquire(timeout=5)
    expected = [other.session if key == busy else None for key in keys(site)]
    lock = MultiLock(make_client(), keys(site))
    assert lock.try_acquire() is None
    with pytest.raises(AcquireTimeout) as told:
        lock.acquire(timeout=0.5)
    assert (told.value.key, told.value.blocker.kind) == (busy, "held")
    assert told.value.blocker.session == other.session
    assert busy in str(told.value)
    assert holders(site) == expected

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock.acquire, timeout=20)
        other.release()
        assert waiting.result(20).fence > other.fence
    assert len(set(holders(site))) == 1


@pytest.mark.slow
def test_a_lock_delay_on_one_key_is_named_and_waited_out(site: Site, make_client: MakeClient) -> None:
    delayed = keys(site)[1]
    hold = Lock(make_client(lock_delay=2.5), delayed).acquire(timeout=5)
    lock = MultiLock(make_client(), keys(site))
    assert lock.try_acquire() is None  # its session is made
    site.operator.destroy(hold.session)
    with pytest.raises(AcquireTimeout) as told:
        lock.acquire(timeout=1)
    assert (told.value.key, told.value.blocker.kind) == (delayed, "lock_delay")
    assert holders(site) == NOBODY
    assert lock.acquire(timeout=5).is_held


# -- loss

CAUSES: dict[str, tuple[LossReason, Callable[[Site, str, Hold], object]]] = {
    "deleted": (LossReason.KEY_DELETED, lambda site, key, hold: site.operator.delete(key)),
    "released": (
        LossReason.RELEASED_BY_OTHER,
        lambda site, key, hold: site.operator.put(key, b"", release=hold.session),
    ),
    "session": (LossReason.SESSION_GONE, lambda site, key, hold: site.operator.destroy(hold.session)),
}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("cause", CAUSES)
def test_the_loss_of_one_key_is_the_loss_of_all(site: Site, client: Client, cause: str, place: int) -> None:
    reason, happens = CAUSES[cause]
    hold = MultiLock(client, keys(site)).acquire(timeout=5)
    happens(site, keys(site)[place], hold)
    assert hold.lost.wait(5)
    assert hold.reason is reason
    with pytest.raises(LockLost):
        hold.check()
    # What is still locked is of no use to anybody.
    eventually(lambda: holders(site) == NOBODY)
    assert hold.release() is ReleaseOutcome.ALREADY_LOST
    assert eventually(lambda: client.pending_cleanup == 0)


def test_after_a_loss_the_same_client_can_take_them_again(site: Site, client: Client) -> None:
    lock = MultiLock(client, keys(site))
    hold = lock.acquire(timeout=5)
    site.operator.delete(keys(site)[1])
    assert hold.lost.wait(5)
    again = lock.acquire(timeout=5)
    assert again.fence > hold.fence
    assert eventually(lambda: client.pending_cleanup == 0)
    assert again.verify()


def test_who_hears_of_the_loss_of_one_may_queue_for_all_again(site: Site, client: Client) -> None:
    hold = MultiLock(client, keys(site)).acquire(timeout=5)
    positions = []

    def queue() -> None:
        for key in keys(site):
            turn = Ticket(client._runner.core.tickets, key, threading.main_thread())
            client._runner.core.tickets.join(turn)
            positions.append(client._runner.core.tickets.position(turn))
            client._runner.core.tickets.leave(turn)

    hold._hold.over.subscribe(queue)
    site.operator.delete(keys(site)[1])
    assert hold.lost.wait(5)
    assert eventually(lambda: positions == [1, 1, 1]), positions


def test_the_block_is_told_of_the_loss_of_a_member(site: Site, client: Client) -> None:
    with pytest.raises(LockLost) as told, MultiLock(client, keys(site)):
        site.operator.delete(keys(site)[2])
    assert told.value.reason is LossReason.KEY_DELETED
    eventually(lambda: holders(site) == NOBODY)


@pytest.mark.parametrize("place", range(3))
def test_its_guard_covers_every_key(site: Site, client: Client, place: int) -> None:
    hold = MultiLock(client, keys(site)).acquire(timeout=5)
    result = f"{site.unique}/result"
    client.txn(*hold.guard(), TxnOp.set(result, b"1"))
    site.operator.put(keys(site)[place], b"by a stranger")
    with pytest.raises(TxnFailed):
        client.txn(*hold.guard(), TxnOp.set(result, b"2"))
    assert (site.operator.entry(result) or {})["Value"] == b"1"
    assert hold.release() is ReleaseOutcome.RELEASED, "a written value is no loss"
    assert holders(site) == NOBODY


# -- requests and lost messages


def test_it_takes_and_gives_back_in_one_request_each(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    lock = MultiLock(make_client(address=proxy.address), keys(site))
    with lock:
        pass
    before = len(proxy.requests)
    with lock:
        pass
    sent = [(each.method, each.path.split("?")[0]) for each in proxy.requests[before:]]
    assert [each for each in sent if each[0] == "PUT"] == [("PUT", "/v1/txn")] * 2


@pytest.mark.parametrize("lose", [Lose.REPLY, Lose.REQUEST])
def test_a_lost_transaction_is_repeated(
    site: Site, proxy: FaultProxy, make_client: MakeClient, lose: Lose
) -> None:
    lock = MultiLock(make_client(address=proxy.address), keys(site))
    fault = proxy.add(Fault(lose=lose, path="/v1/txn", containing=b'"lock"'))
    hold = lock.acquire(timeout=5)
    assert fault.hits == 1
    assert holders(site) == [hold.session] * 3
    fault = proxy.add(Fault(lose=lose, path="/v1/txn", containing=b'"unlock"'))
    hold.release()
    assert fault.hits == 1
    eventually(lambda: holders(site) == NOBODY)


def test_a_transaction_whose_reply_is_lost_leaves_nothing(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address)
    fault = proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn", containing=b'"lock"', times=99))
    with pytest.raises(AcquireTimeout) as told:
        MultiLock(client, keys(site)).acquire(timeout=0.5)
    assert told.value.blocker.kind == "unreachable"
    assert fault.hits > 0
    eventually(lambda: holders(site) == NOBODY)
    proxy.clear()
    assert MultiLock(client, keys(site)).acquire(timeout=5).verify()


def test_a_transaction_that_is_applied_late_leaves_nothing(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address, timeout=0.3)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"lock"', times=99))
    with pytest.raises(AcquireTimeout):
        MultiLock(client, keys(site)).acquire(timeout=1)
    eventually(lambda: len(client._runner.core.tickets) == 0)
    late.let_go()
    assert late.passed_on.wait(5)
    eventually(lambda: holders(site) == NOBODY)


# -- refusals


@pytest.mark.parametrize("held_before", range(3))
def test_a_key_used_for_something_else_stops_all(site: Site, client: Client, held_before: int) -> None:
    first, _, last = keys(site)
    for key in (first, last)[:held_before]:
        Lock(client, key).acquire(timeout=5).release()
    site.operator.put(keys(site)[1], b"a setting", flags=7)
    with pytest.raises(KeyConflict) as told:
        MultiLock(client, keys(site)).acquire(timeout=5)
    assert (told.value.key, told.value.flags) == (keys(site)[1], 7)
    assert holders(site) == NOBODY
    assert (site.operator.entry(keys(site)[1]) or {})["Value"] == b"a setting"
    assert len(client._runner.core.tickets) == 0
    with MultiLock(client, keys(site), accept_flags=(7,)).hold(timeout=5) as hold:
        assert holders(site) == [hold.session] * 3


@pytest.mark.parametrize("place", range(3))
def test_who_holds_one_of_the_keys_can_not_wait_for_all(site: Site, client: Client, place: int) -> None:
    mine = keys(site)[place]
    with Lock(client, mine) as hold:
        with pytest.raises(AlreadyHeld) as told:
            MultiLock(client, keys(site)).acquire(timeout=5)
        assert told.value.key == mine
        assert holders(site) == [hold.session if key == mine else None for key in keys(site)]
        assert client._runner.core.tickets.queue(mine)
    with MultiLock(client, keys(site)), pytest.raises(AlreadyHeld):
        Lock(client, mine).acquire(timeout=5)
    assert len(client._runner.core.tickets) == 0


def test_only_its_holder_releases_it(site: Site, client: Client) -> None:
    lock = MultiLock(client, keys(site))
    lock.acquire(timeout=5)
    with ThreadPoolExecutor(1) as pool, pytest.raises(NotHeld):
        pool.submit(lock.release).result(10)
    assert lock.release() is ReleaseOutcome.RELEASED


def test_a_forgotten_hold_is_given_back(site: Site, client: Client) -> None:
    MultiLock(client, keys(site)).acquire(timeout=5)
    eventually(lambda: holders(site) == NOBODY)


def test_operators_can_break_and_destroy_it(site: Site, make_client: MakeClient) -> None:
    hold = MultiLock(make_client(), keys(site)).acquire(timeout=5)
    lock = MultiLock(make_client(), keys(site))
    holder = lock.holder()
    assert holder is not None
    assert holder.session == hold.session
    assert lock.destroy() is False
    assert lock.break_lock(hold.session)
    assert hold.lost.wait(5)
    eventually(lambda: holders(site) == NOBODY)
    assert lock.destroy()
    assert site.operator.under(f"{site.unique}/") == []


# -- on an event loop


@pytest.mark.anyio
async def test_tasks_take_overlapping_keys_in_turn(site: Site) -> None:
    chance, inside, done = random.Random(3), set[str](), 0

    async def work(client: AsyncClient, plan: list[list[str]]) -> None:
        nonlocal done
        for each in plan:
            async with AsyncMultiLock(client, each).hold(timeout=40):
                assert not inside & set(each)
                inside.update(each)
                await anyio.lowlevel.checkpoint()
                inside.difference_update(each)
                done += 1

    async with (
        AsyncClient(address=site.address, session=spec(site)) as one,
        AsyncClient(address=site.address, session=spec(site)) as two,
        anyio.create_task_group() as group,
    ):
        for client in (one, one, one, two, two):
            plan = [chance.sample(keys(site, "abcd"), 2) for _ in range(4)]
            group.start_soon(work, client, plan)
    assert done == 20
    assert site.left_behind() == []


@pytest.mark.anyio
async def test_the_loss_of_a_member_cancels_the_body(site: Site) -> None:
    async def work(client: AsyncClient) -> None:
        async with AsyncMultiLock(client, keys(site)):
            await anyio.to_thread.run_sync(site.operator.delete, keys(site)[1])
            await anyio.sleep(5)

    async with AsyncClient(address=site.address, session=spec(site)) as client:
        with pytest.raises(LockLost) as told:
            await work(client)
        assert told.value.reason is LossReason.KEY_DELETED
        await eventually_so(lambda: holders(site) == NOBODY)


def test_it_shows_what_it_is_and_all_its_keys() -> None:
    with Client("127.0.0.1:1") as client:
        assert (
            repr(MultiLock(client, ["b", "a"])) == "<MultiLock on 'a', 'b' of <Client of http://127.0.0.1:1>>"
        )
        assert repr(ReentrantLock(client, "a")).startswith("<ReentrantLock on 'a' of")
        assert repr(Lock(client, "a")).startswith("<Lock on 'a' of")
        both = ReadWriteLock(client, "a")
        assert repr(both) == "<ReadWriteLock on 'a' of <Client of http://127.0.0.1:1>>"
        assert repr(both.read) == "<RwSide to read 'a' of <Client of http://127.0.0.1:1>>"
        assert repr(both.write).startswith("<RwSide to write 'a' of")


@pytest.mark.parametrize(
    ("kind", "named"),
    [("read", "'{0}'"), ("write", "'{0}'"), ("slots", "'{0}'"), ("multi", "'{0}-1', '{0}-2'")],
)
def test_the_error_of_a_hold_names_what_its_user_named(
    site: Site, client: Client, kind: str, named: str
) -> None:
    both = ReadWriteLock(client, site.key)
    locks: dict[str, Callable[[], Hold]] = {
        "read": both.read.acquire,
        "write": both.write.acquire,
        "slots": Semaphore(client, site.key, 1).acquire,
        "multi": MultiLock(client, [f"{site.key}-1", f"{site.key}-2"]).acquire,
    }
    released = locks[kind]()
    released.release()
    lost = locks[kind]()
    site.operator.destroy(lost.session)
    assert lost.lost.wait(10)
    for hold, error, what in ((released, NotHeld, "released"), (lost, LockLost, "lost")):
        with pytest.raises(error) as told:
            hold.check()
        assert str(told.value).startswith(
            f"the hold of {named.format(site.key)} (fence {hold.fence}) was {what}: "
        )
