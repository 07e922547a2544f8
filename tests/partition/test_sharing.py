"""Members that share partitions: one owner each, told in order; on the reference server and a real agent."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    LOCK_FLAGS,
    AsyncGroup,
    Client,
    Group,
    Hold,
    InvalidArgument,
    InvalidKey,
    Lock,
    LossReason,
    Member,
    Partitioner,
    SessionSpec,
    TxnOp,
)
from consul_coord.recipes.partition.partitioning import AT_ONCE
from consul_coord.recipes.partition.rendezvous import Rendezvous
from tests.election.waiting import Told, until
from tests.group.seeing import Seen
from tests.partition.conftest import SPEC
from tests.support.proxy import Fault, FaultProxy, Lose
from tests.support.sites import never

if TYPE_CHECKING:
    from tests.partition.conftest import MakeMember


class Diary:
    """What owners were told, in order; checked for two owners of one partition at each entry."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, str, int]] = []
        self.owners: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def of(self, name: str) -> dict[str, Any]:
        def acquired(partition: str, hold: Hold) -> None:
            with self._lock:
                self.entries.append(("acquired", name, partition, hold.fence))
                if partition in self.owners:
                    self.wrong.append(f"{partition}: {self.owners[partition]} and {name}")
                if hold.fence <= self.fences.get(partition, 0):
                    self.wrong.append(f"{partition}: fence {hold.fence} after {self.fences[partition]}")
                self.owners[partition], self.fences[partition] = name, hold.fence

        def released(partition: str, hold: Hold) -> None:
            with self._lock:
                self.entries.append(("released", name, partition, hold.fence))
                if self.owners.pop(partition, None) != name:
                    self.wrong.append(f"{partition}: released by {name}, who did not own it")

        return {"on_acquired": acquired, "on_released": released}


def all_owned(*members: Partitioner) -> None:
    """Wait until each member owns what it is to own."""
    by_id = {one.group.id: one for one in members}
    owners = Rendezvous(members[0].partitions).owners(dict.fromkeys(by_id, 1.0))
    wanted = {one: {part for part, owner in owners.items() if owner == one} for one in by_id}
    until(lambda: {one: set(by_id[one].owned) for one in by_id} == wanted, "all own what they are to own")


def test_a_single_member_owns_all(member: MakeMember) -> None:
    one = member("one")
    all_owned(one)
    assert list(one.owned) == [*map(str, range(8))] == list(one.partitions)
    assert all(hold.is_held for hold in one.owned.values())
    owners = one.owners()
    told = {partition: holder and holder.value for partition, holder in owners.items()}
    assert told == dict.fromkeys(one.partitions, b"one")
    assert {hold.fence for hold in one.owned.values()} == {
        holder.fence for holder in owners.values() if holder
    }


def test_members_share_and_are_told_in_order(member: MakeMember) -> None:
    diary = Diary()
    one = member("one", **diary.of("one"))
    all_owned(one)
    first = set(one.owned)
    other = member("other", **diary.of("other"))
    all_owned(one, other)
    assert set(one.owned) | set(other.owned) == first
    moved = set(other.owned)
    other.stop()
    other.group.leave()
    all_owned(one)
    until(lambda: len(diary.owners) == 8, "all owners were told")
    assert diary.wrong == []
    # Nothing moved but what the other member took, and left.
    told = [partition for what, name, partition, _ in diary.entries if name == "one" and what == "released"]
    assert sorted(told) == sorted(moved)


def test_the_owner_may_finish_under_the_guard_before_another_has_the_partition(member: MakeMember) -> None:
    finished: dict[str, int] = {}
    taken: dict[str, float] = {}

    def finish(partition: str, hold: Hold) -> None:
        time.sleep(0.02)
        client.txn(*hold.guard(), TxnOp.set(f"tests/offsets/{partition}", b"42"))
        finished[partition] = hold.fence
        ended[partition] = time.monotonic()

    def begin(partition: str, hold: Hold) -> None:
        taken[partition] = time.monotonic()

    ended: dict[str, float] = {}
    one = member("one", on_released=finish)
    client = Client(address=address_of(one), session=SPEC)
    with client:
        all_owned(one)
        fences = {partition: hold.fence for partition, hold in one.owned.items()}
        other = member("other", on_acquired=begin)
        all_owned(one, other)
        until(lambda: set(taken) == set(other.owned), "the new owner was told")
        assert finished == {partition: fences[partition] for partition in other.owned}
        assert all(ended[partition] <= taken[partition] for partition in taken)
        assert all(hold.fence > finished[partition] for partition, hold in other.owned.items())


def address_of(partitioner: Partitioner) -> str:
    address: str = partitioner._runner._settings.address
    return address


def test_an_owner_that_does_not_finish_is_not_waited_for_for_ever(member: MakeMember) -> None:
    go_on = threading.Event()
    one = member("one", on_released=lambda *_: go_on.wait(30), handover=0.05)
    all_owned(one)
    try:
        other = member("other")
        all_owned(one, other)
    finally:
        go_on.set()


def test_a_partition_that_is_to_come_back_while_it_is_handed_over_does(member: MakeMember) -> None:
    """The member that was to have it has gone before it got it."""
    go_on, handed_over = threading.Event(), list[Hold]()

    def finish(_: str, hold: Hold) -> None:
        handed_over.append(hold)
        go_on.wait(30)

    one = member("one", on_released=finish, handover=30.0)
    all_owned(one)
    try:
        other = member("other")
        until(lambda: bool(handed_over), "a partition is being handed over")
        other.stop()
        other.group.leave()
        until(lambda: len(one.group.members()) == 1, "the other one has gone")
        time.sleep(1.0)  # no event tells that the group has settled: if it has not, the test proves less
    finally:
        go_on.set()
    until(lambda: not any(hold.is_held for hold in handed_over), "they were handed over")
    all_owned(one)


def test_members_that_come_together_cause_one_round_of_moves(member: MakeMember) -> None:
    diary, settle = Diary(), 0.5
    one = member("one", 32, settle=settle, **diary.of("one"))
    all_owned(one)
    began = time.monotonic()
    others = [member(f"other {number}", 32, settle=settle, **diary.of(f"{number}")) for number in range(4)]
    rounds = 1 + int((time.monotonic() - began) / settle)  # more only where the machine is busy
    all_owned(one, *others)
    until(lambda: len(diary.owners) == 32, "all owners were told")
    released = Counter(partition for what, _, partition, _ in diary.entries if what == "released")
    assert max(released.values()) <= rounds
    assert diary.wrong == []


def test_a_lost_partition_is_told_and_taken_again(member: MakeMember) -> None:
    diary = Diary()
    one = member("one", **diary.of("one"))
    all_owned(one)
    lost = one.owned["3"]
    with Client(address=address_of(one), session=SPEC) as operator:
        operator.kv.delete(lost.key)
    until(lambda: ("released", "one", "3", lost.fence) in diary.entries, "the loss was told")
    assert lost.reason is LossReason.KEY_DELETED
    all_owned(one)
    assert one.owned["3"].fence > lost.fence
    until(lambda: len(diary.owners) == 8, "the owner was told")
    assert diary.wrong == []


def test_another_client_that_has_the_lock_is_waited_for(address: str, member: MakeMember) -> None:
    """The Go client's lock has these flags. So its users and a partition's owner exclude each other."""
    one = member("one")
    all_owned(one)
    lost = one.owned["3"]
    with Client(address=address, session=SPEC) as other:
        session = other.session.create(SPEC)
        other.txn(TxnOp.unlock(lost.key, lost.session), TxnOp.lock(lost.key, session, flags=LOCK_FLAGS))
        until(lambda: "3" not in one.owned, "the loss was told")
        assert lost.reason in {LossReason.TAKEN_OVER, LossReason.RELEASED_BY_OTHER}
        holder = one.owners()["3"]
        assert holder is not None
        assert holder.session == session
        assert other.kv.release(lost.key, session, flags=LOCK_FLAGS)
        all_owned(one)
        assert one.owned["3"].fence > lost.fence
        assert not other.kv.acquire(lost.key, session, flags=LOCK_FLAGS)


def test_as_many_as_are_taken_at_once_that_others_hold_keep_no_other_from_being_taken(
    address: str, member: MakeMember
) -> None:
    one = member("one", AT_ONCE + 2)
    all_owned(one)
    keys = [hold.key for _, hold in sorted(one.owned.items(), key=lambda owned: int(owned[0]))]
    one.stop()
    with Client(address=address, session=SPEC) as other:
        session = other.session.create(SPEC)
        for key in keys[:AT_ONCE]:
            assert other.kv.acquire(key, session, flags=LOCK_FLAGS)
        one.start()
        until(lambda: {hold.key for hold in one.owned.values()} == {*keys[AT_ONCE:]}, "those that are free")


def test_as_many_as_are_taken_at_once_without_an_answer_keep_nobody_from_handing_over(
    address: str, member: MakeMember
) -> None:
    released = threading.Event()
    slow = [f"slow-{number}" for number in range(AT_ONCE + 1)]
    with FaultProxy(address) as proxy, Client(address=proxy.address, session=SPEC, timeout=120) as client:
        fault = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b"/slow-", times=1000))
        one = member("one", ["first", *slow], client=client, on_released=lambda *_: released.set())
        until(lambda: fault.hits == AT_ONCE, "it takes as many as it may")
        assert one.owned.keys() == {"first"}
        one.stop(timeout=0)
        assert released.wait(30)
        proxy.clear()
        one.group.leave()


def test_a_partition_whose_owner_cannot_begin_is_given_up_and_taken_again(
    address: str, member: MakeMember
) -> None:
    tries: list[int] = []
    told = Told()

    def begin(partition: str, hold: Hold) -> None:
        if partition == "2":
            tries.append(hold.fence)
            if len(tries) < 3:
                raise ValueError("made up")

    with Client(address=address, session=SPEC, observer=told) as client:
        one = member("one", client=client, on_acquired=begin)
        until(lambda: len(tries) == 3, "tried again")
        all_owned(one)
        assert sorted(tries) == tries
        assert any("made up" in str(event) for event in told.events)
        one.stop()
        one.group.leave()


def test_an_owner_that_releases_gets_it_again_after_pauses(member: MakeMember) -> None:
    fences: list[int] = []

    def begin(partition: str, hold: Hold) -> None:
        fences.append(hold.fence)
        hold.release()

    one = member("one", 1, on_acquired=begin)
    until(lambda: len(fences) >= 2, "it is taken again")
    never(lambda: len(fences) > 20, within=1.0)
    assert fences == sorted(set(fences))
    one.stop()


def test_who_is_no_member_owns_nothing(member: MakeMember, prefix: str) -> None:
    one = member("one")
    all_owned(one)
    with (
        Client(address=address_of(one), session=SPEC) as client,
        Partitioner(Group(client, prefix, id="watcher"), 8, settle=0.1) as watcher,
    ):
        owners = watcher.owners()
        assert {holder.value for holder in owners.values() if holder} == {b"one"}
        assert watcher.owned == {}
    assert len(one.owned) == 8


def test_who_only_has_the_id_of_a_member_owns_nothing(member: MakeMember, prefix: str) -> None:
    """Such as a process that waits in ``join`` until its former life has ended."""
    one = member("one")
    all_owned(one)
    with (
        Client(address=address_of(one), session=SPEC) as client,
        Partitioner(Group(client, prefix, id="one"), 8, settle=0.1) as namesake,
        Seen(one.group) as seen,
    ):
        one.stop()
        until(lambda: seen.states, "the group is seen")
        one.group.update("new")  # all share out again
        until(lambda: seen.states[-1].changed, "it is seen")
        never(lambda: namesake.owned, within=0.5)
        one.group.leave()
        namesake.group.join(timeout=30)
        until(lambda: len(namesake.owned) == 8, "it is a member now")


@pytest.mark.parametrize(
    ("weights", "owns"),
    [
        ((1e100, 1e100), (True, True)),
        ((1e-100, 1e-100), (True, True)),
        ((1, float("nan")), (True, False)),
        ((1, float("inf")), (True, False)),
        ((1, -1), (True, False)),
        ((1, 1e-101), (True, False)),
        ((1, 1e101), (True, False)),
        ((1, 10**400), (True, True)),  # it raises, and counts as 1
    ],
)
@pytest.mark.parametrize("bound", [None, 1.5])
def test_a_weight_that_can_not_be_is_reported_and_keeps_nobody_from_owning(
    address: str,
    member: MakeMember,
    weights: tuple[float, float],
    owns: tuple[bool, bool],
    bound: float | None,
) -> None:
    def weight(one: Member) -> float:
        return weights[one.id == "other"]

    told = Told()
    with Client(address=address, session=SPEC, observer=told) as client:
        one = member("one", client=client, weight=weight, bound=bound)
        other = member("other", weight=weight, bound=bound)
        until(lambda: (bool(one.owned), bool(other.owned)) == owns, "shared by weight")
        if not all(1e-100 <= each <= 1e100 for each in weights):
            odd = "weight of the member 'other'"
            until(lambda: any(odd in str(event) for event in told.events), "it was reported")
        one.stop()
        one.group.leave()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_whatever_a_weight_function_raises_is_reported_and_ends_nothing(
    address: str, member: MakeMember, prefix: str, error: type[BaseException]
) -> None:
    def weight(_one: Member) -> float:
        raise error("made up")

    told = Told()
    with Client(address=address, session=SessionSpec(ttl=15.0, lock_delay=15.0), observer=told) as client:
        hold = Lock(client, f"{prefix}/beside").acquire(timeout=30)
        one = member("one", client=client, weight=weight)
        until(lambda: len(one.owned) == 8, "it counts as 1")
        until(lambda: any("made up" in str(event) for event in told.events), "it was reported")
        one.group.update("new")  # all share out again
        until(lambda: sum("made up" in str(event) for event in told.events) > 1, "it was asked again")
        assert hold.is_held
        one.stop()
        one.group.leave()


def test_a_weight_function_that_does_not_return_costs_no_hold(
    address: str, member: MakeMember, prefix: str
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def weight(_one: Member) -> float:
        asked.set()
        go_on.wait()
        return 1.0

    with Client(address=address, session=SPEC) as client:
        hold = Lock(client, f"{prefix}/beside").acquire(timeout=30)
        one = member("one", client=client, weight=weight)
        try:
            assert asked.wait(30)
            renewed = hold.deadline()
            until(lambda: hold.deadline() > renewed, "it is renewed meanwhile")
            assert one.owned == {}
        finally:
            go_on.set()
        until(lambda: len(one.owned) == 8, "shared out")
        one.stop()
        one.group.leave()


def test_a_weight_function_that_does_not_return_keeps_nobody_from_stopping(member: MakeMember) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def weight(_one: Member) -> float:
        asked.set()
        go_on.wait()
        return 1.0

    one = member("one", weight=weight)
    try:
        assert asked.wait(30)
        started = time.monotonic()
        one.stop(timeout=60)
        assert time.monotonic() - started < 30
    finally:
        go_on.set()


def test_a_member_of_weight_0_hands_over_and_owns_nothing(member: MakeMember) -> None:

    def weight(one: Member) -> float:
        return 0 if one.value == b"draining" else 1

    one, other = member("one", weight=weight), member("other", weight=weight)
    all_owned(one, other)
    one.group.update("draining")
    until(lambda: len(other.owned) == 8, "the other has all")
    assert one.owned == {}


def test_it_may_be_stopped_and_started_again(member: MakeMember) -> None:
    one = member("one")
    for _ in range(2):
        all_owned(one)
        one.stop()
        assert one.owned == {}
        assert set(one.owners().values()) == {None}
        one.start()
    all_owned(one)


def test_an_owner_may_stop_it_and_still_finishes_under_its_locks(member: MakeMember) -> None:
    held: list[bool] = []

    def begin(_: str, hold: Hold) -> None:
        partitioner.stop(timeout=0)

    def end(_: str, hold: Hold) -> None:
        held.append(hold.is_held)

    partitioner = member("one", 1, on_acquired=begin, on_released=end)
    until(lambda: held, "it is told")
    assert held == [True]


def test_closing_the_client_tells_and_gives_back(address: str, prefix: str) -> None:
    diary = Diary()
    with Client(address=address, session=SPEC) as client:
        Group(client, prefix, id="one").join()
        one = Partitioner(Group(client, prefix, id="one"), 8, settle=0.1, **diary.of("one"))
        one.start()
        all_owned(one)
        until(lambda: len(diary.owners) == 8, "told")
    assert diary.owners == {}
    with Client(address=address, session=SPEC) as client:
        assert client.kv.keys(prefix).value == ()


@pytest.mark.parametrize(
    ("partitions", "settings"),
    [
        (0, {}),
        ("abc", {}),
        ([], {}),
        (["a", "a"], {}),
        (["a/b"], {}),
        ([""], {}),
        (1, {"settle": -1}),
        (1, {"handover": float("inf")}),
        (1, {"bound": 0.5}),
        (True, {}),
        (3.5, {}),
        (None, {}),
        ([1, 2], {}),
        ([b"a"], {}),
        (range(3), {}),
        ([["a"]], {}),
        (1, {"settle": "1"}),
        (1, {"bound": "2"}),
        (1, {"weight": 5}),
        (1, {"on_acquired": 5}),
        (1, {"on_released": 5}),
    ],
)
def test_what_can_not_be_shared_is_refused(client_only: Client, partitions: Any, settings: Any) -> None:
    with pytest.raises(InvalidArgument):
        Partitioner(Group(client_only, "workers"), partitions, **settings)


def test_names_that_consul_would_refuse_are_refused(client_only: Client) -> None:
    with pytest.raises(InvalidKey):
        Partitioner(Group(client_only, "workers"), ["a "])
    with pytest.raises(InvalidArgument, match="needs a group"):
        Partitioner(AsyncGroup, 3)  # type: ignore[arg-type]


@pytest.fixture
def client_only() -> Client:
    return Client(address="http://127.0.0.1:1")
