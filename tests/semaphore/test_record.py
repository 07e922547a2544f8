"""The record: conflicts, what others have written there, resizing and removing it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    LOCK_FLAGS,
    SEMAPHORE_FLAGS,
    Client,
    ConsulCoordError,
    DecodeError,
    KeyConflict,
    Semaphore,
    SemaphoreLimitConflict,
)
from tests.support.proxy import Fault, FaultProxy, Lose
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.semaphore.conftest import MakeClient, Place


def asked(semaphore: Semaphore) -> list[Callable[[], object]]:
    """Return everything that reads the record."""
    return [
        lambda: semaphore.acquire(timeout=5),
        semaphore.try_acquire,
        semaphore.holders,
        semaphore.contenders,
        semaphore.destroy,
        lambda: semaphore.resize(4),
    ]


def test_another_limit_is_a_conflict_and_leaves_nothing(client: Client, place: Place) -> None:
    written = place.write({"Limit": 5, "Holders": {}})
    with pytest.raises(SemaphoreLimitConflict) as caught:
        Semaphore(client, place.prefix, 2).acquire(timeout=5)
    assert (caught.value.local, caught.value.remote) == (2, 5)
    assert caught.value.key == place.prefix
    eventually(lambda: not place.contenders())
    assert place.operator.entry(place.record)["Value"] == written  # type: ignore[index]


@pytest.mark.parametrize("flags", [0, LOCK_FLAGS, SEMAPHORE_FLAGS + 1])
def test_other_flags_are_a_conflict_unless_accepted(client: Client, place: Place, flags: int) -> None:
    written = place.write({"Limit": 2, "Holders": {}}, flags=flags)
    for ask in asked(Semaphore(client, place.prefix, 2)):
        with pytest.raises(KeyConflict) as caught:
            ask()
        assert caught.value.flags == flags
    eventually(lambda: not place.contenders())
    entry = place.operator.entry(place.record)
    assert entry is not None
    assert entry["Value"] == written
    permit = Semaphore(client, place.prefix, 2, accept_flags=(flags,)).acquire(timeout=5)
    entry = place.operator.entry(place.record)
    assert entry is not None
    assert entry["Flags"] == flags, "its owners must find it as they left it"
    permit.release()


@pytest.mark.parametrize(
    "value", [b"{", b"null", b"[1]", b'{"Limit":"2"}', b'{"Limit":2,"Holders":"me"}', b"\xff"]
)
def test_what_is_no_record_is_never_written(client: Client, place: Place, value: bytes) -> None:
    place.write(value)
    semaphore = Semaphore(client, place.prefix, 2)
    for ask in asked(semaphore):
        with pytest.raises(DecodeError):
            ask()
    eventually(lambda: not place.contenders())
    entry = place.operator.entry(place.record)
    assert entry is not None
    assert entry["Value"] == value


def test_an_empty_record_counts_as_none(client: Client, place: Place) -> None:
    place.write(b"")
    with Semaphore(client, place.prefix, 2) as permit:
        assert place.read() == {"Limit": 2, "Holders": {permit.session: True}}


def test_a_list_of_holders_and_unknown_fields_are_kept(client: Client, place: Place) -> None:
    peer = place.foreign()
    place.write({"Limit": 2, "Holders": [peer], "Owner": {"team": "ops"}}, flags=0)
    semaphore = Semaphore(client, place.prefix, 2, accept_flags=(0,))
    permit = semaphore.acquire(timeout=5)
    assert place.read() == {"Limit": 2, "Holders": [peer, permit.session], "Owner": {"team": "ops"}}
    assert semaphore.try_acquire() is None
    permit.release()
    place.operator.destroy(peer)


def test_dead_holders_are_left_out_by_the_next_take(client: Client, place: Place) -> None:
    gone, there = place.operator.create(), place.foreign()
    place.write({"Limit": 2, "Holders": {gone: True, there: True}})
    with Semaphore(client, place.prefix, 2) as permit:
        assert place.read()["Holders"] == {there: True, permit.session: True}
    place.operator.destroy(gone)
    place.operator.destroy(there)


class TestResize:
    def test_growing_lets_waiters_in_at_once(
        self, client: Client, make_client: MakeClient, place: Place
    ) -> None:
        semaphore = Semaphore(client, place.prefix, 1)
        permits = [semaphore.acquire(timeout=5)]
        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(semaphore.acquire, timeout=20) for _ in range(3)]
            eventually(lambda: len(place.contenders()) == 4)
            Semaphore(make_client(), place.prefix, 1).resize(4)
            permits += [call.result(10) for call in calls]
        assert len(semaphore.holders()) == 4
        for permit in permits:
            permit.release()
        with pytest.raises(SemaphoreLimitConflict):
            semaphore.acquire(timeout=5)

    def test_shrinking_expels_nobody_and_admits_nobody(self, client: Client, place: Place) -> None:
        semaphore = Semaphore(client, place.prefix, 3)
        permits = [semaphore.acquire(timeout=5) for _ in range(3)]
        semaphore.resize(1)
        assert (semaphore.limit, place.read()["Limit"]) == (1, 1)
        for permit in permits[:-1]:
            assert semaphore.try_acquire() is None
            assert permit.is_held
            permit.release()
        assert semaphore.try_acquire() is None
        permits[-1].release()
        last = semaphore.try_acquire()
        assert last is not None
        last.release()

    @pytest.mark.parametrize("limit", [2, 3, 4])
    def test_an_unused_semaphore_can_be_resized(self, client: Client, place: Place, limit: int) -> None:
        """Also to what this object takes for its limit: others hear of it by the record alone."""
        semaphore = Semaphore(client, place.prefix, 3)
        semaphore.resize(limit)
        assert place.read() == {"Limit": limit, "Holders": {}}
        assert semaphore.limit == limit

    def test_a_call_that_has_read_nothing_yet_goes_on_with_the_new_limit_of_its_object(
        self, proxy: FaultProxy, make_client: MakeClient, place: Place
    ) -> None:
        semaphore = Semaphore(make_client(address=proxy.address), place.prefix, 2)
        joins = proxy.add(Fault(lose=Lose.REQUEST, path="/v1/txn", times=1_000))
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(semaphore.acquire, timeout=20)
            assert joins.hit.wait(5)
            semaphore.resize(3)
            proxy.clear()
            call.result(20).release()
        assert place.read() == {"Limit": 3, "Holders": {}}

    def test_what_was_remembered_from_before_is_not_written(
        self, make_client: MakeClient, place: Place
    ) -> None:
        ours = Semaphore(make_client(), place.prefix, 2)
        ours.run(lambda _: None)
        Semaphore(make_client(), place.prefix, 2).resize(5)
        with pytest.raises(SemaphoreLimitConflict):
            ours.acquire(timeout=5)
        assert place.read() == {"Limit": 5, "Holders": {}}

    def test_under_load_the_limit_then_in_force_is_kept(self, make_client: MakeClient, place: Place) -> None:
        operator = Semaphore(make_client(), place.prefix, 4)
        workers = Semaphore(make_client(), place.prefix, 4)
        stop, entries = threading.Event(), [0]
        lock = threading.Lock()

        def work() -> None:
            while not stop.is_set():
                try:
                    with workers.hold(timeout=20), lock:
                        entries[0] += 1
                except SemaphoreLimitConflict as conflict:
                    assert conflict.local != conflict.remote  # noqa: PT017 - it comes and goes
                    stop.wait(0.005)

        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(work) for _ in range(8)]
            try:
                for limit in (1, 6, 2, 4) * 3:
                    before = entries[0]
                    operator.resize(limit)
                    record = place.read()
                    assert record["Limit"] == limit
                    workers.resize(limit)
                    eventually(lambda: entries[0] > before + 5)  # noqa: B023 - used at once
            finally:
                stop.set()
            for call in calls:
                call.result(10)
        eventually(lambda: not place.contenders())

    @pytest.mark.parametrize("lose", [Lose.REQUEST, Lose.REPLY])
    def test_an_unanswered_write_is_settled_by_reading(
        self, make_client: MakeClient, place: Place, proxy: FaultProxy, lose: Lose
    ) -> None:
        semaphore = Semaphore(make_client(address=proxy.address), place.prefix, 2)
        semaphore.run(lambda _: None)
        proxy.add(Fault(lose=lose, method="PUT", path=f"/v1/kv/{place.record}"))
        semaphore.resize(7)
        assert place.read()["Limit"] == semaphore.limit == 7

    @pytest.mark.parametrize("method", ["GET", "PUT"])
    @pytest.mark.parametrize(
        "fault",
        [
            {"lose": Lose.AGENT, "status": 403, "body": b"Permission denied"},
            {"lose": Lose.AGENT, "status": 500, "body": b"No cluster leader"},
            {"lose": Lose.REQUEST},
        ],
        ids=["forbidden", "out of service", "no answer"],
    )
    def test_one_that_changes_nothing_changes_nothing_here_either(
        self, make_client: MakeClient, place: Place, proxy: FaultProxy, method: str, fault: dict[str, Any]
    ) -> None:
        semaphore = Semaphore(make_client(address=proxy.address, timeout=0.5), place.prefix, 2)
        semaphore.run(lambda _: None)
        proxy.add(Fault(method=method, path="/v1/kv/", times=1_000, **fault))
        with pytest.raises(ConsulCoordError):
            semaphore.resize(7)
        proxy.clear()
        assert place.read()["Limit"] == semaphore.limit == 2
        with semaphore.hold(timeout=20):
            pass

    def test_it_goes_by_its_index_and_keeps_who_came_meanwhile(
        self, make_client: MakeClient, place: Place, proxy: FaultProxy
    ) -> None:
        semaphore = Semaphore(make_client(address=proxy.address), place.prefix, 2)
        semaphore.run(lambda _: None)
        late = proxy.add(Fault(lose=Lose.TIME, method="PUT", path=f"/v1/kv/{place.record}"))
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(semaphore.resize, 5)
            assert late.hit.wait(10)
            permit = Semaphore(make_client(), place.prefix, 2).acquire(timeout=5)
            late.let_go()
            call.result(10)
        assert place.read() == {"Limit": 5, "Holders": {permit.session: True}}
        assert permit.verify()
        permit.release()


class TestDestroy:
    def test_an_unused_record_goes(self, client: Client, place: Place) -> None:
        semaphore = Semaphore(client, place.prefix, 2)
        assert semaphore.destroy()
        semaphore.run(lambda _: None)
        assert semaphore.destroy()
        assert place.operator.under(place.prefix) == []
        semaphore.run(lambda _: None)

    def test_a_used_one_stays(self, client: Client, place: Place) -> None:
        semaphore = Semaphore(client, place.prefix, 1)
        permit = semaphore.acquire(timeout=5)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(semaphore.acquire, timeout=20)
            eventually(lambda: len(place.contenders()) == 2)
            assert not semaphore.destroy()
            permit.release()
            call.result(10).release()
        assert semaphore.destroy()

    def test_it_goes_by_its_index_only(
        self, make_client: MakeClient, place: Place, proxy: FaultProxy
    ) -> None:
        semaphore = Semaphore(make_client(address=proxy.address), place.prefix, 2)
        semaphore.run(lambda _: None)
        late = proxy.add(Fault(lose=Lose.TIME, method="DELETE", path=f"/v1/kv/{place.record}"))
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(semaphore.destroy)
            assert late.hit.wait(10)
            permit = Semaphore(make_client(), place.prefix, 2).acquire(timeout=5)
            late.let_go()
            assert call.result(10) is False
        assert permit.verify()
        permit.release()


def test_the_record_is_json_that_go_reads(client: Client, place: Place) -> None:
    semaphore = Semaphore(client, place.prefix, 3)
    permits = [semaphore.acquire(timeout=5) for _ in range(3)]
    entry = place.operator.entry(place.record)
    assert entry is not None
    pairs: list[list[tuple[str, Any]]] = []
    json.loads(entry["Value"], object_pairs_hook=pairs.append)
    assert [{value for _, value in pairs[0]}, [name for name, _ in pairs[1]]] == [
        {True},
        ["Limit", "Holders"],
    ]
    for permit in permits:
        permit.release()
