"""A member that is lost joins again, as often as that happens, and keeps nothing of each time."""

from __future__ import annotations

import base64
import json
import weakref
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import AcquireCancelled, AcquireTimeout, LockLost, PermissionDenied
from consul_coord.events import Failed, Joined, TimedOut
from consul_coord.http.backoff import LONGEST_PAUSE, delay
from consul_coord.io import Signal
from consul_coord.models import LossReason, ReleaseOutcome, SessionSpec
from consul_coord.models.group import GROUP_FLAGS
from consul_coord.recipes.cleanup.tasks import GiveBack
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.group import membership
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.group.membership import LOOK, Membership
from tests.support.counted import Counted
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, lost, ok, pairs, refusal, txn_done, unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consul_coord.http.messages import Request, Response
    from consul_coord.io import IO
    from tests.support.fake_io import Spawned

TIMES = 3


def member_of(io: FakeIO, *, ttl: float = 60.0) -> Membership:
    """Return one that has joined."""
    core = ClientState(io, spec=SessionSpec(ttl=ttl), timeout=10.0)
    member = Membership(core, GroupPlan("g"), "one", b"", evictable=False, keeps=None)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", f"/v1/kv/{member.key}", pairs())
    io.expect("PUT", "/v1/txn", txn_done(entry(member.key) | {"Flags": GROUP_FLAGS}))
    io.run(member.join(io, timeout=5.0))
    return member


def test_a_member_that_joins_again_keeps_nothing_of_each_time() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    member = Membership(core, GroupPlan("g"), "one", b"", evictable=False, keeps=None)
    stopping = member.stopping = Counted()
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    for number in range(1 + TIMES):
        joined = entry(member.key, index=10 * (number + 1)) | {"Flags": GROUP_FLAGS}
        io.expect("GET", f"/v1/kv/{member.key}", pairs())
        io.expect("PUT", "/v1/txn", txn_done(joined))
    io.run(member.join(io, timeout=5.0))

    def lose() -> None:
        assert member.hold is not None
        member.hold.lose(LossReason.KEY_DELETED)

    def leave() -> None:
        assert member.hold is not None
        stopping.set()
        member.hold.begin_release()

    for number in range(TIMES):
        io.at(io.time + number + 0.1, lose)
        io.at(io.time + number + 0.2, lambda: io.run_spawned("join again"))
    io.at(io.time + TIMES, leave)
    io.run_spawned("stay a member")
    assert not io.steps
    assert stopping.listening == 0
    told = [(each.key, each.session, each.index, each.again) for each in io.seen(Joined)]
    assert told == [(member.key, SESSION, 10 * (1 + number), number > 0) for number in range(1 + TIMES)]


@pytest.mark.usefixtures("more_than_asked")
def test_a_value_that_was_given_while_it_joined_again_is_written_as_often_as_it_takes() -> None:
    io, answered_from = FakeIO(), 1_003.0
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=0.5)
    member = Membership(core, GroupPlan("g"), "one", b"old", evictable=False, keeps=None)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    for index in (10, 20):
        io.expect("GET", f"/v1/kv/{member.key}", pairs())
        io.expect("PUT", "/v1/txn", txn_done(entry(member.key, index=index) | {"Flags": GROUP_FLAGS}))
    io.run(member.join(io, timeout=5.0))

    def lose() -> None:
        assert member.hold is not None
        member.hold.lose(LossReason.KEY_DELETED)

    def join_again() -> None:
        io.run_spawned("join again")
        member.value = b"new"

    def answer(_: Request) -> Response | Exception:
        if io.time < answered_from:
            return unreachable()
        io.at(io.time + 1.0, leave)
        return txn_done(entry(member.key, index=20), entry(member.key, index=30, value=b"new"))

    def leave() -> None:
        member.stopping.set()
        assert member.hold is not None
        member.hold.begin_release()

    for _ in range(40):
        io.expect("PUT", "/v1/txn", answer)
    io.at(io.time + 0.1, lose)
    io.at(io.time + 0.2, join_again)
    io.run_spawned("stay a member")
    assert member.hold is not None
    assert (member.hold.value, member.problem) == (b"new", None)
    assert io.time >= answered_from
    assert len(io.seen(Failed)) == 1, "once for each reason"


def test_a_join_that_was_left_amid_its_grant_waits_for_no_release_that_gets_no_answer() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    member = Membership(core, GroupPlan("g"), "one", b"", evictable=False, keeps=None)

    def grant(_: Request) -> Response:
        member.stopping.set()
        return txn_done(entry(member.key) | {"Flags": GROUP_FLAGS})

    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", f"/v1/kv/{member.key}", pairs())
    io.expect("PUT", "/v1/txn", grant)
    io.expect("PUT", "/v1/txn", lost(), takes=100.0)
    began = io.time
    with pytest.raises(AcquireCancelled):
        io.run(member.join(io, timeout=None))
    assert io.time - began <= 0.1
    assert core.reaper.pending == 1, "the rest is done in the background"


def test_a_call_that_waits_for_its_id_joins_with_the_value_that_was_given_meanwhile() -> None:
    io = FakeIO()
    member = member_of(io)
    assert member.hold is not None
    member.hold.lose(LossReason.KEY_DELETED)
    theirs = entry(member.key, session=OTHER, index=9) | {"Flags": GROUP_FLAGS}
    io.expect("GET", f"/v1/kv/{member.key}", pairs(theirs))
    io.expect("GET", f"/v1/kv/{member.key}", pairs(), takes=2.0)
    io.expect("PUT", "/v1/txn", txn_done(entry(member.key, index=11) | {"Flags": GROUP_FLAGS}))

    def give() -> None:
        with pytest.raises(LockLost):
            io.run(membership.update(io, member, member.key, b"new"))

    io.at(io.time + 1.0, give)
    io.run(member.join(io, timeout=5.0))
    (lock,) = json.loads(io.requests[-1].body or b"")
    assert base64.b64decode(lock["KV"]["Value"]) == member.hold.value == b"new"


def test_a_value_that_was_given_at_the_last_moment_of_a_calls_join_is_written() -> None:
    io = FakeIO()
    member = member_of(io)
    assert member.hold is not None
    io.at(1001.0, partial(member.hold.lose, LossReason.KEY_DELETED))
    io.expect("GET", f"/v1/kv/{member.key}", refusal(403, "Permission denied"), pairs())
    io.at(1002.0, partial(io.run_spawned, "join again"))

    def joined(_: Request) -> Response:
        with pytest.raises(LockLost):
            io.run(membership.update(io, member, member.key, b"new"))
        return txn_done(entry(member.key, index=11) | {"Flags": GROUP_FLAGS})

    def written(_: Request) -> Response:
        io.at(io.time + 1.0, partial(member.stopping.set))
        io.at(io.time + 1.0, lambda: member.hold and member.hold.begin_release())
        return txn_done(entry(member.key, index=11), entry(member.key, index=12, value=b"new"))

    io.expect("PUT", "/v1/txn", joined, written)
    io.at(1002.01, lambda: io.run(member.join(io, timeout=5.0)))
    io.run_spawned("stay a member")
    assert not io.steps
    assert (member.hold.value, member.problem) == (b"new", None)


@pytest.mark.usefixtures("more_than_asked")
def test_what_a_call_that_gave_up_has_left_is_deleted_with_each_value_that_it_gave() -> None:
    io = FakeIO()
    member = member_of(io)
    assert member.hold is not None
    member.hold.lose(LossReason.KEY_DELETED)
    member.value = b"one"

    def lose_it(_: Request) -> Exception:
        member.value = b"two"
        return lost()

    for _ in range(2):
        io.expect("GET", f"/v1/kv/{member.key}", pairs())
        io.expect("PUT", "/v1/txn", lose_it)
    io.expect("GET", f"/v1/kv/{member.key}", *[unreachable()] * 100)
    with pytest.raises(AcquireTimeout):
        io.run(member.join(io, timeout=5.0))
    (task,) = (each for each in member.client.reaper.tasks if isinstance(each, GiveBack))
    assert {b"one", b"two"} <= set(task.remove)


@pytest.mark.parametrize("refused", [1, 3])
def test_a_member_that_is_refused_tries_again_and_says_why_until_it_has_joined(refused: int) -> None:
    io = FakeIO()
    member = member_of(io)
    assert member.hold is not None
    io.expect("GET", f"/v1/kv/{member.key}", *[refusal(403, "Permission denied")] * refused, pairs())
    io.expect("PUT", "/v1/txn", txn_done(entry(member.key, index=9) | {"Flags": GROUP_FLAGS}))
    io.at(1001.0, partial(member.hold.lose, LossReason.KEY_DELETED))
    problems: list[Exception | None] = []

    def try_to_join() -> None:
        io.run_spawned("join again")
        problems.append(member.problem)

    def leave() -> None:
        assert member.is_joined(io.time)
        assert member.hold is not None
        member.stopping.set()
        member.hold.begin_release()

    for number in range(refused + 1):
        io.at(1002.0 + 5.0 * number, try_to_join)
    io.at(1050.0, leave)
    io.run_spawned("stay a member")
    assert [type(each) for each in problems] == [*[PermissionDenied] * refused, type(None)]
    assert len(io.seen(Failed)) == 1


@pytest.mark.usefixtures("more_than_asked")
@pytest.mark.parametrize("before", [0, 5])
def test_a_member_that_is_refused_again_and_again_tries_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Whether an earlier loss was made up for at once or not: that is over."""
    io, tried_at = FakeIO(), list[float]()
    member = member_of(io, ttl=600.0)
    spawn = io.spawn

    def spawn_and_run(program: Callable[[IO], Awaitable[object]], *, name: str) -> Spawned:
        if name.startswith("join again"):
            tried_at.append(io.time)
            io.at(io.time, partial(io.run_spawned, name))
        return spawn(program, name=name)

    monkeypatch.setattr(io, "spawn", spawn_and_run)
    refusals = [refusal(403, "Permission denied")] * 100
    io.expect("GET", f"/v1/kv/{member.key}", *refusals[:before], pairs())
    io.expect("PUT", "/v1/txn", txn_done(entry(member.key, index=9) | {"Flags": GROUP_FLAGS}))
    io.expect("GET", f"/v1/kv/{member.key}", *refusals)

    def lose() -> None:
        assert member.hold is not None
        assert member.hold.lose(LossReason.KEY_DELETED)

    io.at(1001.0, lose)
    io.at(1050.0, lose)
    io.at(1074.0, member.stopping.set)
    io.run_spawned("stay a member")
    pauses = [later - sooner for sooner, later in pairwise(at for at in tried_at if at >= 1050.0)]
    growing = [delay(failures, 0.0, most=LONGEST_PAUSE) for failures in range(1, len(pauses) + 1)]
    assert pauses == pytest.approx(growing)
    assert len(pauses) == 10, "in 24 s"


def test_why_it_can_not_join_again_is_reported_once_for_each_reason() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    member = Membership(core, GroupPlan("g"), "one", b"", evictable=False, keeps=None)
    for error in (unreachable(), unreachable(), lost(), unreachable()):
        member._refused(error)
        assert member.problem is error
    reasons = [each.error.partition(":")[0] for each in io.seen(Failed)]
    assert reasons == ["ConnectFailed", "BrokenReply", "ConnectFailed"]
    assert all(member.key in each.where for each in io.seen(Failed))


@pytest.mark.parametrize("timeout", [0.0, LOOK / 2, LOOK * 1.5])
def test_a_join_beside_another_one_waits_for_its_timeout_and_no_longer(timeout: float) -> None:
    io, theirs = FakeIO(), Signal()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    member = Membership(core, GroupPlan("g"), "one", b"", evictable=False, keeps=None)
    member._tried = weakref.ref(theirs)
    with pytest.raises(AcquireTimeout) as raised:
        io.run(member.join(io, timeout=timeout))
    assert io.time == pytest.approx(1000.0 + timeout)
    assert raised.value.waited == pytest.approx(timeout)
    assert not io.requests


@pytest.mark.parametrize("timeout", [0.0, 3.0])
def test_leaving_while_it_joins_again_ends_that_attempt_and_waits_for_it_no_longer_than_its_timeout(
    timeout: float,
) -> None:
    io = FakeIO()
    member = member_of(io)
    assert member.hold is not None
    io.at(1001.0, partial(member.hold.lose, LossReason.KEY_DELETED))
    outcomes = []

    def leave_meanwhile() -> None:
        again = next(each for each in io.spawned if each.name.startswith("join again"))
        outcomes.append(io.run(membership.leave(io, member, timeout=timeout)))
        assert again.cancelled
        assert io.time == 1002.0 + timeout
        again.done.set()

    io.at(1002.0, leave_meanwhile)
    io.run_spawned("stay a member")
    assert outcomes == [ReleaseOutcome.ALREADY_LOST]
    assert not io.steps


def test_a_value_that_was_given_while_the_id_was_waited_for_is_the_one_that_it_joins_with() -> None:
    io = FakeIO()
    member = member_of(io)
    assert member.hold is not None

    def give(_: Request) -> Response:
        member.value = b"new"
        return pairs(entry(member.key, session=None, index=9) | {"Flags": GROUP_FLAGS})

    io.expect(
        "GET", f"/v1/kv/{member.key}", pairs(entry(member.key, session=OTHER) | {"Flags": GROUP_FLAGS}), give
    )
    io.expect("PUT", "/v1/txn", txn_done(entry(member.key, index=12) | {"Flags": GROUP_FLAGS}))
    member.hold.lose(LossReason.TAKEN_OVER)
    assert io.run(member._try(io, timeout=None, again=True))
    lock = json.loads(io.requests[-1].body or b"")[0]["KV"]
    assert (lock["Verb"], base64.b64decode(lock["Value"])) == ("lock", b"new")
    assert member.hold.value == b"new"


def test_a_join_that_makes_its_own_attempt_after_another_one_says_how_long_it_has_waited_in_all() -> None:
    io, theirs = FakeIO(), Signal()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    member = Membership(core, GroupPlan("g"), "one", b"", evictable=False, keeps=None)
    member._tried = weakref.ref(theirs)
    held = pairs(entry(member.key, session=OTHER) | {"Flags": GROUP_FLAGS})
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", f"/v1/kv/{member.key}", held)
    io.expect("GET", f"/v1/kv/{member.key}", held, takes=100.0)
    io.expect("GET", f"/v1/kv/{member.key}", held)
    io.expect("GET", "/v1/session/info/", ok([]))
    io.expect("GET", f"/v1/kv/{member.key}", held, takes=100.0)
    io.at(1003.0, theirs.set)
    with pytest.raises(AcquireTimeout) as raised:
        io.run(member.join(io, timeout=5.0))
    assert raised.value.blocker.session == OTHER
    assert raised.value.waited == pytest.approx(5.0)
    assert [each.waited for each in io.seen(TimedOut)] == [raised.value.waited]


def test_a_join_that_is_granted_as_this_leaves_is_given_back_and_told_as_cancelled() -> None:
    """The call that leaves has seen no membership, and gives back none."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    member = Membership(core, GroupPlan("g"), "one", b"", evictable=False, keeps=None)
    joined = entry(member.key) | {"Flags": GROUP_FLAGS}

    def granted(_: Request) -> Response:
        member.stopping.set()
        return txn_done(joined)

    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", f"/v1/kv/{member.key}", pairs())
    io.expect("PUT", "/v1/txn", granted)
    io.expect("PUT", "/v1/txn", txn_done(joined))  # it is deleted
    with pytest.raises(AcquireCancelled):
        io.run(member.join(io, timeout=5.0))
    assert not io.steps
    assert member.hold is not None
    assert member.hold.released


def test_a_member_that_changed_its_value_is_deleted_also_where_that_is_left_to_the_background() -> None:
    """Its key would stay, without a session."""
    io = FakeIO()
    member = member_of(io)
    hold = member.hold
    assert hold is not None
    told = entry(member.key, index=9, value=b"new") | {"Flags": GROUP_FLAGS}
    io.expect("PUT", "/v1/txn", txn_done(told, told))
    io.run(membership.update(io, member, member.key, b"new"))
    io.expect("PUT", "/v1/txn", *[unreachable()] * 50)
    assert io.run(membership.leave(io, member, timeout=1.0)) is ReleaseOutcome.UNKNOWN
    io.steps.clear()
    io.expect("GET", f"/v1/kv/{member.key}", pairs(), pairs(told))
    io.expect("PUT", "/v1/txn", txn_done(told))
    io.run_spawned("reaper")
    deletes = json.loads(io.requests[-1].body or b"")[-1]["KV"]
    assert (deletes["Verb"], deletes["Key"]) == ("delete", member.key)
