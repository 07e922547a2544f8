"""Joining, staying and leaving, on the reference server and on a real agent."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    GROUP_FLAGS,
    AcquireCancelled,
    AcquireTimeout,
    Group,
    InvalidArgument,
    InvalidKey,
    KeyConflict,
    LockLost,
    NotHeld,
    PermissionDenied,
    ReleaseOutcome,
    TxnOp,
    ValueTooLarge,
)
from consul_coord.events import Joined, Lost, Waiting
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.group.membership import MemberAttempt
from tests.election.waiting import Told, until
from tests.group.seeing import Seen
from tests.support.proxy import Fault, Lose
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from consul_coord import Client
    from consul_coord.recipes.hold.grant import Handle
    from tests.group.conftest import MakeClient
    from tests.support.proxy import FaultProxy


def test_members_see_each_other_with_their_values(make_client: MakeClient, prefix: str) -> None:
    one = Group(make_client(), prefix, id="one", value="10.0.0.1:80")
    other = Group(make_client(), prefix, id="other", value=b"\x00")
    with one, other:
        members = one.members()
        assert [(member.id, member.value) for member in members] == [
            ("one", b"10.0.0.1:80"),
            ("other", b"\x00"),
        ]
        assert members[0].text == "10.0.0.1:80"
        assert members == other.members()
        assert members[0].since_index < members[1].since_index
        assert len({member.session for member in members}) == 2
    assert one.members() == ()


def test_leaving_removes_the_key(client: Client, prefix: str) -> None:
    group = Group(client, prefix, id="one")
    group.join()
    assert group.leave() is ReleaseOutcome.RELEASED
    assert not group.joined
    assert client.kv.get(GroupPlan(prefix).key("one")).value is None
    assert group.leave() is ReleaseOutcome.RELEASED
    assert Group(client, prefix).leave() is ReleaseOutcome.ALREADY_LOST


def test_it_may_be_joined_again(client: Client, prefix: str) -> None:
    group = Group(client, prefix, id="one")
    for _ in range(3):
        with group:
            assert [member.id for member in group.members()] == ["one"]


def test_closing_the_client_leaves(make_client: MakeClient, prefix: str) -> None:
    client = make_client()
    Group(client, prefix, id="one").join()
    client.close()
    watcher = make_client()
    assert watcher.kv.list(prefix).value == ()
    assert watcher.session.list().value == () or prefix not in str(watcher.session.list().value)


def test_an_id_that_somebody_has_is_waited_for(make_client: MakeClient, prefix: str) -> None:
    first = Group(make_client(), prefix, id="one")
    second = Group(make_client(), prefix, id="one", value="second")
    with first:
        held_by = first.members()[0].session
        with pytest.raises(AcquireTimeout):
            second.join(timeout=0)
        with pytest.raises(AcquireTimeout) as caught:
            second.join(timeout=0.5)
        assert caught.value.blocker.session == held_by
        joined = threading.Thread(target=second.join)
        joined.start()
    joined.join(timeout=30)
    assert second.joined
    assert [member.text for member in second.members()] == ["second"]


def test_who_waits_for_another_call_that_joins_waits_for_its_own_timeout(
    make_client: MakeClient, prefix: str
) -> None:
    told = Told()
    first = Group(make_client(), prefix, id="one")
    second = Group(make_client(observer=told), prefix, id="one")
    with first:
        joined = threading.Thread(target=second.join)
        joined.start()
        until(lambda: any(isinstance(event, Waiting) for event in told.events), "it waits")
        with lasting(least=0.3, most=0.6), pytest.raises(AcquireTimeout) as caught:
            second.join(timeout=0.3)
        assert caught.value.key.endswith("/one")
        assert caught.value.waited >= 0.3
    joined.join(timeout=30)
    assert second.joined


@pytest.mark.parametrize(
    "in_time", [True, False], ids=["while the other one stays", "as the other one leaves"]
)
def test_leaving_ends_a_join_that_waits(make_client: MakeClient, prefix: str, *, in_time: bool) -> None:
    told = Told()
    first = Group(make_client(), prefix, id="one")
    second = Group(make_client(observer=told), prefix, id="one")
    with first, ThreadPoolExecutor(1) as pool:
        join = pool.submit(second.join, timeout=30)
        until(lambda: any(isinstance(event, Waiting) for event in told.events), "it waits")
        assert second.leave() is ReleaseOutcome.ALREADY_LOST
        if in_time:
            assert isinstance(join.exception(5), AcquireCancelled)
        first.leave()
        assert isinstance(join.exception(30), AcquireCancelled)
        assert not second.joined
        assert not second.members()
    second.join(timeout=30)
    assert second.joined


def test_two_members_of_one_client_never_have_one_id(client: Client, prefix: str) -> None:
    first, second = Group(client, prefix, id="one"), Group(client, prefix, id="one")
    with first, pytest.raises(AcquireTimeout):
        second.join(timeout=0.1)
    second.join(timeout=30)
    assert second.leave() is ReleaseOutcome.RELEASED


def test_joining_twice_at_once_is_one_join(client: Client, prefix: str) -> None:
    group = Group(client, prefix, id="one")
    threads = [threading.Thread(target=group.join, kwargs={"timeout": 30}) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert group.joined
    assert client.stats().acquired == 1


def test_a_member_without_an_id_gets_one_that_nobody_has(client: Client, prefix: str) -> None:
    groups = [Group(client, prefix) for _ in range(3)]
    for group in groups:
        group.join()
    assert {member.id for member in groups[0].members()} == {group.id for group in groups}
    assert len({group.id for group in groups}) == 3


def test_a_value_is_changed_in_place(client: Client, prefix: str) -> None:
    with Group(client, prefix, id="one", value="old") as group:
        (before,) = group.members()
        group.update("new")
        (after,) = group.members()
        assert after.text == "new"
        assert (after.session, after.since_index) == (before.session, before.since_index)


def test_a_value_that_was_changed_is_that_of_the_next_membership(client: Client, prefix: str) -> None:
    group = Group(client, prefix, id="one", value="old")
    for value in ("old", "new", "newer"):
        with group:
            assert [member.text for member in group.members()] == [value]
            group.update({"old": "new", "new": "newer", "newer": ""}[value])


def test_only_a_member_has_a_value_to_change(client: Client, prefix: str) -> None:
    group = Group(client, prefix, id="one")
    for _ in ("before it joins", "after it has left"):
        with pytest.raises(NotHeld, match="join first"):
            group.update("new")
        group.join()
        group.update("newer")
        group.leave()


MANY = 6
"""Failures after which its next try is some seconds away."""
LOSSES = {
    "its session is destroyed": lambda client, key, session: client.session.destroy(session),
    "its key is deleted": lambda client, key, session: client.kv.delete(key),
    "its key is released": lambda client, key, session: client.kv.release(key, session),
}


@pytest.mark.parametrize("how", LOSSES)
def test_after_a_loss_it_joins_again_with_an_event(make_client: MakeClient, prefix: str, how: str) -> None:
    told = Told()
    group = Group(make_client(observer=told), prefix, id="one", value="old")
    operator = make_client()
    with group:
        group.update("new")
        (before,) = group.members()
        LOSSES[how](operator, GroupPlan(prefix).key("one"), before.session)
        until(lambda: len(told.seen(Joined)) == 2, "joined again")
        (after,) = group.members()
        assert after.text == "new"
        assert group.joined
        assert len(told.seen(Lost)) == 1
        last = told.seen(Joined)[-1]
        assert isinstance(last, Joined)
        assert (last.again, last.session) == (True, after.session)
        assert group.problem is None


def test_one_that_leaves_just_as_it_joins_again_has_left(
    make_client: MakeClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, join = Group(make_client(), prefix, id="one"), MemberAttempt.run
    left = threading.Event()

    async def join_and_leave(attempt: MemberAttempt) -> Handle:
        handle = await join(attempt)
        leaving = threading.Thread(target=group.leave, kwargs={"timeout": 0})
        leaving.start()
        leaving.join()
        left.set()
        return handle

    group.join()
    monkeypatch.setattr(MemberAttempt, "run", join_and_leave)
    other = make_client()
    other.session.destroy(group.members()[0].session)
    assert left.wait(20.0)
    until(lambda: not Group(other, prefix).members(), "it has left")
    assert not group.joined


def test_a_join_that_another_thread_ends_keeps_to_its_time(
    make_client: MakeClient, prefix: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, join = Group(make_client(address=proxy.address), prefix, id="one"), MemberAttempt.run

    async def join_and_leave(attempt: MemberAttempt) -> Handle:
        handle = await join(attempt)
        proxy.add(Fault(lose=Lose.TIME, times=1_000))
        leaving = threading.Thread(target=group.leave, kwargs={"timeout": 0})
        leaving.start()
        leaving.join()
        return handle

    monkeypatch.setattr(MemberAttempt, "run", join_and_leave)
    began = time.monotonic()
    with pytest.raises(AcquireCancelled):
        group.join(timeout=1.0)
    assert time.monotonic() - began < 4.0
    assert not group.joined


def test_while_it_can_not_join_again_its_problem_says_why(make_client: MakeClient, prefix: str) -> None:
    group = Group(make_client(), prefix, id="one")
    operator, key = make_client(), GroupPlan(prefix).key("one")
    with group:
        taker = operator.session.create()
        operator.txn(TxnOp.delete(key), TxnOp.lock(key, taker, flags=GROUP_FLAGS))
        until(lambda: isinstance(group.problem, AcquireTimeout), "it has a problem")
        assert taker in str(group.problem)
        with pytest.raises(AcquireTimeout, match=taker):
            group.join(timeout=0.3)
        operator.kv.delete(key)
        until(lambda: group.joined, "it has joined again")
        until(lambda: group.problem is None, "it has none any more")


@pytest.mark.slow
def test_without_an_answer_the_problem_says_so(
    make_client: MakeClient, prefix: str, proxy: FaultProxy
) -> None:
    group = Group(make_client(address=proxy.address), prefix, id="one")
    with group:
        proxy.go_down()
        until(lambda: not group.joined, "the lease is over")
        until(lambda: isinstance(group.problem, AcquireTimeout), "it has a problem")
        with pytest.raises(AcquireTimeout, match="could not be reached") as raised:
            group.join(timeout=0.3)
        assert raised.value.blocker is not None
        assert raised.value.blocker.kind == "unreachable"
        proxy.come_up()
        until(lambda: group.joined and group.problem is None, "it has joined again")


def test_a_value_given_while_lost_counts_from_the_next_join(make_client: MakeClient, prefix: str) -> None:
    told = Told()
    group = Group(make_client(observer=told), prefix, id="one")
    operator, key = make_client(), GroupPlan(prefix).key("one")
    with group:
        taking = TxnOp.lock(key, operator.session.create(), flags=GROUP_FLAGS)
        operator.txn(TxnOp.delete(key), taking)
        until(lambda: not group.joined, "the loss is noticed")
        with pytest.raises(LockLost):
            group.update("new")
        operator.kv.delete(key)
        until(lambda: group.joined, "it has joined again")
        until(lambda: [member.text for member in group.members()] == ["new"], "the new value counts")


def test_an_update_that_succeeds_ends_the_problem_of_an_earlier_one(
    make_client: MakeClient, prefix: str, proxy: FaultProxy
) -> None:
    operator = make_client()
    with Group(make_client(address=proxy.address), prefix, id="one", value="old") as group:
        joins = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"lock"'))
        operator.kv.delete(GroupPlan(prefix).key("one"))
        until(joins.hit.is_set, "it joins again")
        with suppress(LockLost):
            group.update("given meanwhile")
        refused = Fault(lose=Lose.AGENT, path="/v1/txn", containing=b'"lock"', status=403, times=1_000)
        proxy.add(refused)
        joins.let_go()
        until(lambda: group.joined and refused.hits > MANY, "its value can't be written")
        assert isinstance(group.problem, PermissionDenied)
        proxy.clear()
        group.update("new")
        until(lambda: group.problem is None, "it has no problem any more")
        assert group.members()[0].text == "new"


def test_a_key_that_is_used_for_something_else_is_a_conflict(client: Client, prefix: str) -> None:
    client.kv.put(GroupPlan(prefix).key("one"), b"mine")
    with pytest.raises(KeyConflict):
        Group(client, prefix, id="one").join(timeout=5)
    assert Group(client, prefix).members() == ()


def test_any_number_of_groups_of_a_client_share_one_session(client: Client, prefix: str) -> None:
    groups = [Group(client, f"{prefix}/{number}", id="one") for number in range(20)]
    for group in groups:
        group.join()
    assert len({group.members()[0].session for group in groups}) == 1
    assert client.stats().sessions_created == 1


@pytest.mark.parametrize("id", ["", ".", "..", "a/b", 5, b"one", "\x00", "\ud800"])
def test_an_id_that_can_not_be_is_refused(client: Client, id: Any) -> None:
    with pytest.raises((InvalidArgument, InvalidKey)):
        Group(client, "workers", id=id)


def test_a_value_of_the_greatest_size_is_seen_and_changed(make_client: MakeClient, prefix: str) -> None:
    largest, client = 350_000, make_client()
    with Group(client, prefix, id="one", value=b"a" * largest) as group:
        with Seen(Group(make_client(), prefix)) as seen:
            until(lambda: seen.states, "seen")
            group.update(b"b" * largest)
            until(lambda: seen.states[-1].changed, "the new value is seen")
            assert [member.value for member in seen.states[-1].all] == [b"b" * largest]
        with pytest.raises(ValueTooLarge):
            group.update(b"c" * 400_000)
        assert [member.value for member in group.members()] == [b"b" * largest]
    with group:
        assert [member.value for member in group.members()] == [b"b" * largest]
    with pytest.raises(ValueTooLarge):
        Group(client, prefix, id="two", value=b"c" * 400_000).join()


def test_a_group_may_lie_within_another_ones_folders(make_client: MakeClient, prefix: str) -> None:
    """None takes the members of another for its own, or is woken for ever by them."""
    places = [prefix, f"{prefix}/members", f"{prefix}/members/0", f"{prefix}/partitions", f"{prefix}x"]
    client = make_client()
    with ExitStack() as stack:
        for number, place in enumerate(places):
            stack.enter_context(Group(client, place, id=f"one-{number}"))
        seen = [stack.enter_context(Seen(Group(make_client(), place))) for place in places]
        for number, each in enumerate(seen):
            each.until_present(f"one-{number}")
        before = client.stats().requests
        with Group(client, places[2], id="other"):
            seen[2].until_present("one-2", "other")
        seen[2].until_present("one-2")
        assert client.stats().requests - before < 60
        assert all(len(each.states) <= 1 + 2 * (each is seen[2]) for each in seen)
