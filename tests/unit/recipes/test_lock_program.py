"""One attempt at a lock, before it queues: it takes the key past others only if it may."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import AcquireTimeout, AlreadyHeld, InvalidRequest, SessionNotFound
from consul_coord.events import Acquired, Cleaned, Lost, TimedOut, Waiting
from consul_coord.models import LOCK_FLAGS, LossReason, ReleaseOutcome, SessionSpec
from consul_coord.recipes.cleanup.tasks import SWEEPS
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import queue, recipe
from consul_coord.recipes.contend.attempt import SPREAD
from consul_coord.recipes.contend.last_look import NODES_BUDGET
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.plan import LockPlan
from tests.support.fake_io import FakeIO
from tests.support.replies import (
    OTHER,
    SESSION,
    entry,
    lost,
    ok,
    pairs,
    refusal,
    renewed,
    session,
    txn_done,
    txn_failed,
    unreachable,
)

if TYPE_CHECKING:
    from consul_coord.http.messages import Request, Response

TXN = "/v1/txn"


@dataclass(frozen=True)
class Try:
    """One try: what the lock is asked to be, what this client knows, and what the server shows."""

    fair: bool = False
    polite: bool = False
    crowded: bool = False
    known: bool = False
    """Whether this client had the key before."""
    no_queue: bool = False
    """Whether the token may not queue."""
    holder: str | None = None
    unlocked: bool = False
    """Whether the key is there, and nobody holds it."""
    waits: bool = True
    """Whether somebody else queues."""

    @property
    def has_to_queue(self) -> bool:
        return self.fair or self.polite or self.crowded


def tried_once(row: Try) -> tuple[FakeIO, str]:
    """Try for a key once; returns what came of it."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    plan = LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS, fair=row.fair, polite=row.polite)
    core.queue_memory.saw_waiters("k", waiting=row.crowded)
    if row.known:
        core.holds.fences.remember("k", 3)
    if row.no_queue:
        core.queue_memory.may_not_queue("k", io.now())
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    waiters = [entry(queue.directory("k") + OTHER, session=OTHER)] if row.waits else []
    there = [entry("k", session=row.holder)] if row.holder or row.unlocked else []
    refused = row.holder is not None or (row.has_to_queue and row.waits)
    if row.no_queue:
        io.expect("PUT", TXN, txn_done(entry("k")))
    elif row.has_to_queue:
        if not there:
            io.expect("PUT", TXN, txn_failed((0, 'key "k" doesn\'t exist')))
        io.expect("PUT", TXN, txn_done(*there, *waiters))
    elif not row.known:
        io.expect("GET", "/v1/kv/k", pairs(*there))
    if not row.no_queue and not refused:
        io.expect("PUT", TXN, txn_done(entry("k"), *waiters))
    try:
        handle = io.run(recipe.acquire(io, core, LockObject(plan), timeout=0))
    except AcquireTimeout as error:
        return io, f"{error.blocker.kind} by {error.blocker.session}"
    return io, "taken" if handle.grant.is_held(io.now()) else "lost"


QUEUED, HELD = f"queued by {OTHER}", f"held by {OTHER}"
TRIES: dict[str, tuple[Try, str]] = {
    "any": (Try(), "taken"),
    "fair": (Try(fair=True), QUEUED),
    "polite": (Try(polite=True), QUEUED),
    "crowded": (Try(crowded=True), QUEUED),
    "fair and crowded": (Try(fair=True, crowded=True), QUEUED),
    "fair, nobody waits": (Try(fair=True, waits=False), "taken"),
    "polite, nobody waits": (Try(polite=True, waits=False), "taken"),
    "crowded, nobody waits any more": (Try(crowded=True, waits=False), "taken"),
    "unlocked": (Try(unlocked=True), "taken"),
    "unlocked and fair": (Try(unlocked=True, fair=True), QUEUED),
    "unlocked and fair, nobody waits": (Try(unlocked=True, fair=True, waits=False), "taken"),
    "known": (Try(known=True), "taken"),
    "known and fair": (Try(known=True, fair=True), QUEUED),
    "known and polite": (Try(known=True, polite=True), QUEUED),
    "known and crowded": (Try(known=True, crowded=True), QUEUED),
    "held": (Try(holder=OTHER), HELD),
    "held and fair": (Try(holder=OTHER, fair=True), HELD),
    "held and polite, nobody waits": (Try(holder=OTHER, polite=True, waits=False), HELD),
    "no queue": (Try(no_queue=True), "taken"),
    "no queue though fair": (Try(no_queue=True, fair=True), "taken"),
    "no queue though crowded": (Try(no_queue=True, crowded=True, known=True), "taken"),
}


@pytest.mark.parametrize("name", TRIES)
def test_one_try_passes_waiters_only_if_it_may(name: str) -> None:
    row, expected = TRIES[name]
    io, came_of_it = tried_once(row)
    assert came_of_it == expected
    assert not io.steps, "a request was not made"


def test_one_try_refused_for_a_late_join_of_its_own_client_does_not_say_that_consul_was_silent() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    core.holds.fences.remember("k", 3)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, txn_failed((0, f'key "{queue.directory("k") + SESSION}" exists')))
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))
    with pytest.raises(AcquireTimeout, match="'k' was not acquired at once: other waiters are first"):
        io.run(recipe.acquire(io, core, lock, timeout=0))
    assert [each.blocker.kind for each in io.seen(Waiting)] == ["queued"]


TIMEOUT = 5.0


OWN = entry(queue.directory("k") + SESSION, index=8)


def waiting(io: FakeIO) -> tuple[ClientState, LockObject]:
    """Return a lock that another session holds, and whose waiter watches it until its last look."""
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    held = entry("k", session=OTHER)
    io.expect("GET", "/v1/kv/k", pairs(held))
    io.expect("PUT", TXN, txn_done(OWN, held, OWN))
    io.expect("GET", "/v1/kv/k", pairs(held), takes=100.0)
    io.expect("PUT", TXN, txn_done(held, OWN))
    return core, LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))


def test_a_holder_whose_node_is_not_told_takes_no_time_from_the_last_look() -> None:
    io = FakeIO()
    core, lock = waiting(io)
    io.expect("GET", "/v1/session/info/", ok([]), takes=100.0)
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=None, index=9)))
    io.expect("PUT", TXN, txn_done(OWN, entry("k", index=12)))
    handle = io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    assert handle.grant.is_held(io.now())
    assert io.time < 1000.0 + TIMEOUT - NODES_BUDGET / 2


def test_a_take_names_the_contender_as_it_is_by_then() -> None:
    """Its key was made at another index: somebody has written to it since, or a join was repeated."""
    io = FakeIO()
    core, lock = waiting(io)
    io.expect("GET", "/v1/session/info/", ok([]))
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=None, index=9)))
    io.expect("PUT", TXN, txn_done(OWN, entry("k", index=12)))
    io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    check = json.loads(io.requests[-1].body or b"")[0]["KV"]
    assert OWN["CreateIndex"] != OWN["ModifyIndex"]
    assert (check["Verb"], check["Key"], check["Index"]) == ("check-index", OWN["Key"], OWN["ModifyIndex"])


def test_nothing_is_waited_for_beyond_the_timeout_when_nothing_is_answered() -> None:
    io = FakeIO()
    core, lock = waiting(io)
    io.expect("GET", "/v1/session/info/", ok([]), takes=100.0)
    io.expect("GET", "/v1/kv/k/.wait/", pairs(), takes=100.0)
    with pytest.raises(AcquireTimeout):
        io.run(recipe.acquire(io, core, lock, timeout=0.5))
    assert io.sent_at[-1] == 1000.0 + 0.5


@pytest.mark.usefixtures("more_than_asked")
@pytest.mark.parametrize("timeout", [0.25, 1.0, 3.1])
def test_no_pause_between_failures_goes_beyond_the_timeout(timeout: float) -> None:
    io = FakeIO(random=0.99)
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    for _ in range(20):
        io.expect("PUT", "/v1/session/create", refusal(429))
    with pytest.raises(AcquireTimeout, match="429"):
        io.run(recipe.acquire(io, core, LockObject(LockPlan(keys=("k",), value=b"")), timeout=timeout))
    assert io.now() == pytest.approx(1000.0 + timeout)


def test_a_loss_that_another_thread_is_still_announcing_is_in_the_way_of_no_acquire() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", "/v1/kv/k", pairs())
    io.expect("PUT", TXN, txn_done(entry("k", index=8)))
    kept = io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    first = kept.grant
    with pytest.raises(AlreadyHeld):
        io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    assert first.settle_loss(LossReason.KEY_DELETED)  # as the other thread has, which stands still here
    io.expect("PUT", TXN, txn_done(entry("k", index=12)))
    again = io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT)).grant
    assert again.is_held(io.now())
    first.wake()
    first.announce_end()
    assert [one.reason for one in io.seen(Lost)] == [LossReason.KEY_DELETED]


def test_queries_that_all_end_at_once_follow_each_other_at_a_pace() -> None:
    """A proxy ends them so that lets none wait."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    held = entry("k", session=OTHER)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", "/v1/kv/k", pairs(held))
    io.expect("PUT", TXN, txn_done(OWN, held, OWN))
    io.expect("GET", "/v1/kv/k", *[pairs(held)] * 200, pairs(entry("k", session=None, index=9)))
    io.expect("PUT", TXN, txn_done(OWN, entry("k", index=12)))
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))
    assert io.run(recipe.acquire(io, core, lock, timeout=60.0)).grant.is_held(io.now())
    assert 200 / 150 < io.time - 1000.0 < 200 / 50, "a hundred a second, the first ones aside"


@pytest.mark.usefixtures("more_than_asked")
def test_a_timeout_names_the_holder_with_the_fence_of_its_hold() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    held = entry("k", session=OTHER, index=9) | {"CreateIndex": 5, "LockIndex": 3}
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", "/v1/kv/k", pairs(held))
    io.expect("GET", "/v1/session/info/", ok([]))
    lock = LockObject(LockPlan(keys=("k",), value=b""))
    with pytest.raises(AcquireTimeout) as raised:
        io.run(recipe.acquire(io, core, lock, timeout=0))
    assert [(one.session, one.fence) for one in raised.value.blocker.holders] == [(OTHER, 9)]


def test_what_is_in_the_way_is_reported_once_and_how_it_ended() -> None:
    io = FakeIO()
    core, lock = waiting(io)
    io.expect("GET", "/v1/session/info/", ok([]))
    io.expect("GET", "/v1/kv/k", pairs(), takes=100.0)
    io.expect("GET", "/v1/kv/k/.wait/", pairs(), takes=100.0)
    with pytest.raises(AcquireTimeout) as raised:
        io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    waits = [(each.key, each.blocker.kind, each.blocker.session) for each in io.seen(Waiting)]
    assert waits == [("k", "held", OTHER)]
    ends = [(each.key, each.blocker.kind, each.waited) for each in io.seen(TimedOut)]
    assert ends == [("k", "held", raised.value.waited)]


def without_a_queue(io: FakeIO, *then: tuple[str, str, Response, float], timeout: float) -> bool:
    """Acquire a key for which the token may not queue: somebody holds it for 2 s."""
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    core.queue_memory.may_not_queue("k", io.now())
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=OTHER)))
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=None, index=9)), takes=2.0)
    for method, path, answer, takes in then:
        io.expect(method, path, answer, takes=takes)
    plan = LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS)
    return io.run(recipe.acquire(io, core, LockObject(plan), timeout=timeout)).grant.is_held(io.now())


def test_without_a_queue_the_key_is_watched_and_taken_a_random_moment_after_it_is_free() -> None:
    """All who wait hear of it at once, and the others shall not all lose against the first."""
    io = FakeIO(random=0.5)
    assert without_a_queue(io, ("PUT", TXN, txn_done(entry("k", index=11)), 0.0), timeout=5.0)
    assert not io.steps
    assert io.sent_at[-1] == pytest.approx(io.sent_at[-2] + 2.0 + 0.5 * SPREAD)
    assert queue.directory("k").encode() not in (io.requests[-1].body or b"")


def test_without_a_queue_the_present_leader_says_whether_the_key_is_taken() -> None:
    """An old one may go on to call it free: each try would be refused, and the next one follow at once."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    core.queue_memory.may_not_queue("k", io.now())

    def key(request: Request) -> Response:
        taken = entry("k", session=OTHER, index=9)
        return pairs(taken if ("consistent", "") in request.params else entry("k", session=None))

    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", "/v1/kv/k", key)
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=None, index=11)), takes=2.0)
    io.expect("PUT", TXN, txn_done(entry("k", index=12)))
    plan = LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS)
    assert io.run(recipe.acquire(io, core, LockObject(plan), timeout=5.0)).grant.fence == 12
    assert io.sent_at[-1] >= 1002.0


def test_without_a_queue_nothing_is_tried_while_the_key_is_held() -> None:
    io, held = FakeIO(), pairs(entry("k", session=OTHER))
    last_look = (
        ("GET", "/v1/kv/k", held, 0.0),
        ("GET", "/v1/session/info/", ok([session(OTHER)]), 0.0),
        ("GET", "/v1/kv/k", held, 2.0),
    )
    with pytest.raises(AcquireTimeout) as told:
        without_a_queue(io, *last_look, timeout=1.0)
    assert told.value.blocker.session == OTHER
    assert TXN not in io.paths


def test_a_join_refused_for_the_lock_delay_of_ones_own_contender_is_tried_with_a_new_session() -> None:
    """Its key has the session's name, so no other session can have lost it: the session has ended."""
    io, new = FakeIO(), "33333333-3333-4333-8333-333333333333"
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    held, delayed = entry("k", session=OTHER), f'failed to lock key "{OWN["Key"]}" due to lock delay'
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", "/v1/kv/k", pairs(held))
    io.expect("PUT", TXN, txn_failed((0, delayed)))
    io.expect("PUT", "/v1/session/create", ok({"ID": new}))
    io.expect("GET", "/v1/kv/k", pairs(held))
    contender = entry(queue.directory("k") + new, session=new)
    io.expect("PUT", TXN, txn_done(contender, entry("k", session=None, index=9), contender))
    io.expect("PUT", TXN, txn_done(contender, entry("k", session=new, index=12)))
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))
    assert io.run(recipe.acquire(io, core, lock, timeout=5.0)).grant.session == new


def test_a_waiter_that_finds_the_key_free_takes_nothing_with_a_session_that_has_ended() -> None:
    """One that was handed over would get the key, for nobody."""
    io, new = FakeIO(), "33333333-3333-4333-8333-333333333333"
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    held, free = entry("k", session=OTHER), entry("k", session=None, index=9)
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))

    def freed(_: Request) -> Response:
        for kept in core.sessions:
            core.sessions.discard(kept)
        return pairs(free)

    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", "/v1/kv/k", pairs(held))
    io.expect("PUT", TXN, txn_done(OWN, held, OWN))
    io.expect("GET", "/v1/kv/k", freed)
    io.expect("PUT", "/v1/session/create", ok({"ID": new}))
    io.expect("GET", "/v1/kv/k", pairs(free))
    contender = entry(queue.directory("k") + new, session=new)
    io.expect("PUT", TXN, txn_done(contender, free, contender))
    io.expect("PUT", TXN, txn_done(contender, entry("k", session=new, index=12)))
    assert io.run(recipe.acquire(io, core, lock, timeout=5.0)).grant.session == new


def test_what_is_granted_just_as_another_thread_hands_the_session_over_is_left_alone() -> None:
    """An unlock would free the key for others, though the next client may have it by then."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)

    class HandedOver(set[str]):
        def __contains__(self, session: object) -> bool:
            found, kept = super().__contains__(session), core.sessions.get(SESSION)
            if kept is not None and io.requests[-1].path == TXN:
                kept.exported = True
                self.add(SESSION)
                core.sessions.end(kept, LossReason.CLIENT_CLOSED)
            return found

    core.sessions.handed_over = HandedOver()
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS, session=SESSION))
    io.expect("PUT", "/v1/session/renew/", ok([session()]))
    io.expect("GET", "/v1/kv/k", pairs())
    io.expect("PUT", TXN, txn_done(entry("k")))
    handle = io.run(recipe.acquire(io, core, lock, timeout=5.0))
    assert not handle.grant.is_held(io.now())
    assert [type(task) for task in core.reaper.tasks] == []


def test_who_gives_up_just_as_a_session_made_elsewhere_is_taken_up_again_leaves_the_queue() -> None:
    """Its lease was over here. Its place stayed, as the session lived on in Consul."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    held, place = entry("k", session=OTHER), f"/v1/kv/{queue.directory('k')}{SESSION}"
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS, session=SESSION))

    def expires(_: Request) -> Response:
        for kept in core.sessions:
            core.sessions.end(kept, LossReason.EXPIRED)
        return pairs(held)

    def interrupted(_: Request) -> Response:
        raise KeyboardInterrupt

    io.expect("PUT", "/v1/session/renew/", ok([session()]))
    io.expect("GET", "/v1/kv/k", pairs(held))
    io.expect("PUT", TXN, txn_done(OWN, held, OWN))
    io.expect("GET", "/v1/kv/k", expires)
    io.expect("PUT", "/v1/session/renew/", ok([session()]))
    io.expect("GET", "/v1/kv/k", interrupted)
    io.expect("GET", place, pairs(OWN))
    io.expect("DELETE", place, ok(value=True))
    io.expect("GET", "/v1/kv/k", pairs(held))
    with pytest.raises(KeyboardInterrupt):
        io.run(recipe.acquire(io, core, lock, timeout=5.0))
    assert not io.steps


@pytest.mark.parametrize("ended", [False, True])
def test_what_is_granted_after_the_end_of_the_lease_is_given_back_and_is_no_hold(*, ended: bool) -> None:
    """The process stood still, or the reply was late: others may have the key soon, or have it by now."""
    io, new = FakeIO(), "33333333-3333-4333-8333-333333333333"
    core = ClientState(io, spec=SessionSpec(ttl=10.0), timeout=30.0)

    def late(_: Request) -> Response:
        if ended:
            for kept in core.sessions:
                core.sessions.end(kept, LossReason.EXPIRED)
        return txn_done(entry("k"))

    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", "/v1/kv/k", pairs())
    io.expect("PUT", TXN, late, takes=0.0 if ended else 12.0)
    io.expect("PUT", TXN, txn_done(entry("k"), entry("k", session=None, index=9)))
    io.expect("PUT", TXN, txn_failed((0, f'invalid session "{SESSION}"')))  # it queues meanwhile
    io.expect("PUT", "/v1/session/create", ok({"ID": new}))
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=None, index=9)))
    contender = entry(queue.directory("k") + new, session=new)
    io.expect("PUT", TXN, txn_done(contender, entry("k", session=None, index=9), contender))
    io.expect("PUT", TXN, txn_done(contender, entry("k", session=new, index=12)))
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))
    hold = io.run(recipe.acquire(io, core, lock, timeout=60.0)).grant
    assert hold.is_held(io.now())
    assert (hold.session, hold.fence) == (new, 12)
    unlocked = [json.loads(request.body or b"") for request in io.requests if request.path == TXN][1]
    assert [op["KV"]["Verb"] for op in unlocked] == ["check-index", "unlock"]
    assert [event.fence for event in io.seen(Acquired)] == [12]


@pytest.mark.parametrize(("again", "ends"), [(2.0, 2.0), (9.0, 5.0), (None, 5.0)])
def test_what_is_acquired_again_ends_no_later_than_was_said_before(again: float | None, ends: float) -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0, lock_delay=60.0), timeout=10.0)
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS, reentrant=True))
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", "/v1/kv/k", pairs())
    io.expect("PUT", TXN, txn_done(entry("k")))
    first = io.run(recipe.acquire(io, core, lock, timeout=5.0, max_hold=5.0))
    lock.owners.note(io.owner(), first)
    second = io.run(recipe.acquire(io, core, lock, timeout=5.0, max_hold=again))
    assert second.grant is first.grant
    assert second.grant.valid_until == 1000.0 + ends


def test_a_waiter_with_a_new_session_is_behind_whoever_came_before_that() -> None:
    """The one that was before its former session has taken the key in its turn meanwhile."""
    io, new = FakeIO(), "33333333-3333-4333-8333-333333333333"
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    first, second = "44444444-4444-4444-8444-444444444444", "55555555-5555-4555-8555-555555555555"
    ahead, own, before, again = (
        entry(queue.directory("k") + each, session=each, index=place) | {"CreateIndex": place}
        for place, each in enumerate((first, SESSION, second, new), 6)
    )
    held, taken = entry("k", session=OTHER, index=5), entry("k", session=first, index=30)

    def taken_as_the_session_ends(_: Request) -> Response:
        for kept in core.sessions:
            core.sessions.discard(kept)
        return pairs(index=30)

    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", "/v1/kv/k", pairs(held))
    io.expect("PUT", TXN, txn_done(own, held, own, ahead))
    io.expect("GET", f"/v1/kv/{ahead['Key']}", taken_as_the_session_ends)
    io.expect("PUT", "/v1/session/create", ok({"ID": new}))
    io.expect("GET", "/v1/kv/k", pairs(taken))
    io.expect("PUT", TXN, txn_done(again, taken, again, before))
    io.expect("GET", f"/v1/kv/{before['Key']}", pairs(before), takes=50.0)
    io.expect("PUT", TXN, txn_done(taken, again, before))  # the last look
    io.expect("GET", f"/v1/session/info/{first}", ok([session(first)]))
    io.expect("GET", f"/v1/kv/{before['Key']}", pairs(before), takes=50.0)
    io.expect("GET", f"/v1/kv/{again['Key']}", pairs())  # it withdraws
    io.expect("GET", "/v1/kv/k", pairs(taken))
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))
    with pytest.raises(AcquireTimeout) as told:
        io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    assert (told.value.blocker.kind, told.value.blocker.position) == ("queued", 2)
    assert not io.steps


def test_a_try_without_an_answer_is_looked_for_after_a_later_one_has_brought_the_lock() -> None:
    """It may be applied when that hold has ended, and would lock the key for nobody."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    free = entry("k", session=None, index=6)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", "/v1/kv/k", pairs(free))
    io.expect("PUT", TXN, lost())
    io.expect("GET", "/v1/kv/k", pairs(free))
    io.expect("PUT", TXN, txn_done(OWN, free, OWN), txn_done(OWN, entry("k", index=12)))
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))
    handle = io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    begin = [request.begins is not None for request in io.requests if request.path == TXN]
    assert begin == [True, False, False], "since the first one there is something to be lost"
    io.expect("PUT", TXN, txn_done(entry("k", index=12), entry("k", session=None, index=13)))
    assert io.run(release(io, core.holds, handle.grant)) is ReleaseOutcome.RELEASED
    late = entry("k", index=20)
    io.expect("GET", f"/v1/kv/{OWN['Key']}", pairs())
    io.expect("GET", "/v1/kv/k", pairs(late))
    io.expect("PUT", TXN, txn_done(late, entry("k", session=None, index=21)))
    for _ in SWEEPS[1:]:
        io.expect("GET", f"/v1/kv/{OWN['Key']}", pairs())
        io.expect("GET", "/v1/kv/k", pairs(entry("k", session=None, index=21)))
    io.run_spawned("reaper")
    assert not io.steps
    assert [event.found for event in io.seen(Cleaned)] == [True, *[False] * len(SWEEPS[1:])]


def test_what_is_granted_to_a_session_that_was_handed_over_meanwhile_is_left_to_who_resumes_it() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)

    def handed_over(_: Request) -> Response:
        core.sessions.handed_over.add(SESSION)
        for kept in core.sessions:
            core.sessions.end(kept, LossReason.CLIENT_CLOSED)
        return txn_done(entry("k"))

    io.expect("PUT", f"/v1/session/renew/{SESSION}", renewed())
    io.expect("GET", "/v1/kv/k", pairs())
    io.expect("PUT", TXN, handed_over)
    io.expect("PUT", TXN, txn_done(OWN, entry("k"), OWN), txn_done(entry("k")))
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS, session=SESSION))
    with pytest.raises(SessionNotFound, match="was exported and closed"):
        io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    assert not io.steps
    assert not any(b'"unlock"' in (request.body or b"") for request in io.requests)
    assert not io.seen(Acquired)


def test_a_name_that_could_not_be_read_is_read_before_anything_is_written() -> None:
    """Some releases take a name in writes alone: such a hold could not be watched."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    io.expect("GET", "/v1/kv/", unreachable(method="GET"), refusal(400, "Invalid key name"))
    lock = LockObject(LockPlan(keys=("a key: ~",), value=b"", flags=LOCK_FLAGS))
    with pytest.raises(InvalidRequest):
        io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    assert not io.steps


def test_the_pauses_in_a_lock_delay_begin_anew_after_a_wait_without_one() -> None:
    io, delayed = FakeIO(), txn_failed((0, 'failed to lock key "k" due to lock delay'))
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    core.queue_memory.may_not_queue("k", io.now())
    free, tries = pairs(entry("k", session=None, index=9)), 5
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    for _ in range(tries):
        io.expect("GET", "/v1/kv/k", free)
        io.expect("PUT", TXN, delayed)
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=OTHER, index=10)))
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=None, index=11)), takes=2.0)
    io.expect("PUT", TXN, txn_failed((0, 'failed to lock key "k", lock is already held')))
    io.expect("GET", "/v1/kv/k", free)
    io.expect("PUT", TXN, delayed)
    io.expect("GET", "/v1/kv/k", free)
    io.expect("PUT", TXN, txn_done(entry("k", index=12)))
    lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))
    io.run(recipe.acquire(io, core, lock, timeout=50.0))
    tried = [at for at, path in zip(io.sent_at, io.paths, strict=True) if path == TXN]
    pauses = [later - before for before, later in pairwise(tried)]
    assert pauses[tries - 2] == pytest.approx(8 * pauses[0]), "longer each time"
    assert pauses[-1] == pytest.approx(pauses[0])


def test_what_a_waiter_has_left_is_removed_though_an_interrupt_ends_its_withdrawal() -> None:
    io = FakeIO()
    core, lock = waiting(io)

    def interrupted(_: Request) -> Response:
        raise KeyboardInterrupt

    io.expect("GET", "/v1/session/info/", ok([]))
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=OTHER)), takes=100.0)
    io.expect("GET", f"/v1/kv/{OWN['Key']}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    io.expect("GET", f"/v1/kv/{OWN['Key']}", pairs(OWN))
    io.expect("DELETE", f"/v1/kv/{OWN['Key']}", ok(value=True))
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=OTHER)))
    io.run_spawned("reaper")
    assert not io.steps
    assert core.reaper.pending == 0
