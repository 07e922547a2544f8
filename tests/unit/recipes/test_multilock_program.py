"""What an attempt and a hold of several keys send, and what they make of each reply."""

from __future__ import annotations

import base64
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import AcquireTimeout, AlreadyHeld, KeyConflict, PermissionDenied
from consul_coord.events import Acquired, FencesRestarted, TimedOut
from consul_coord.models import LOCK_FLAGS, HoldState, LossReason, ReleaseOutcome, SessionSpec
from consul_coord.recipes.cleanup.tasks import GiveBack, Sweep
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import recipe
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.lock import lock as locks
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.multi import checked_keys
from consul_coord.recipes.lock.plan import LockPlan
from tests.support.fake_io import FakeIO
from tests.support.replies import (
    OTHER,
    SESSION,
    entry,
    lost,
    ok,
    pairs,
    session,
    txn_done,
    txn_failed,
    unreachable,
)

if TYPE_CHECKING:
    from consul_coord.http.messages import Request, Response
    from consul_coord.recipes.hold.grant import Grant

TXN = "/v1/txn"
KEYS = ("a", "b", "c")
HELD = 'failed to lock key "{}", lock is already held'
DELAYED = 'failed to lock key "{}" due to lock delay'


class Bench:
    """One lock on three keys, over scripted replies."""

    def __init__(self) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(), timeout=10.0)
        self.lock = LockObject(
            LockPlan(
                keys=checked_keys(["c", "a", "b"]),
                value=b"v",
                flags=LOCK_FLAGS,
                accept_flags=frozenset(),
                fair=False,
                reentrant=False,
                session=None,
            )
        )
        self.io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))

    def finds(self, **found: dict[str, object]) -> None:
        """Let the first look at the keys be answered; those not named are absent."""
        missing = [
            (place, f'key "{key}" doesn\'t exist') for place, key in enumerate(KEYS) if key not in found
        ]
        self.io.expect("PUT", TXN, txn_failed(*missing))
        if found:
            self.io.expect("PUT", TXN, txn_done(*(found[key] for key in KEYS if key in found)))

    def locks(self, index: int) -> None:
        """Let the locking transaction succeed."""
        self.io.expect("PUT", TXN, granted(index))

    def acquire(self, timeout: float | None = 60.0) -> Grant:
        self.handle = self.io.run(recipe.acquire(self.io, self.core, self.lock, timeout=timeout))
        return self.handle.grant

    def held(self) -> Grant:
        self.finds()
        self.locks(7)
        return self.acquire()

    def release(self, hold: Grant) -> ReleaseOutcome:
        return self.io.run(release(self.io, self.core.holds, hold))

    def tries(self) -> list[float]:
        """Return when it was tried to lock the keys."""
        sent = zip(self.io.sent_at, self.io.requests, strict=True)
        return [at for at, request in sent if request.path == TXN and ops_of(request)[0]["Verb"] == "lock"]

    def gives_back(self) -> None:
        """Let the reaper give the keys back, and leave out its later looks."""
        for task in self.core.reaper.tasks:
            if isinstance(task, Sweep):
                del self.core.reaper._entries[task]
        self.io.run_spawned("reaper")

    def is_idle(self) -> bool:
        """Whether nobody in this client has a ticket at any of the keys."""
        tickets = [Ticket(self.core.tickets, key, "probe") for key in KEYS]
        free = [self.core.tickets.join_if_idle(ticket) for ticket in tickets]
        for ticket in tickets:
            self.core.tickets.leave(ticket)
        return all(free)

    def tasks(self, kind: type[GiveBack | Sweep]) -> list[str]:
        """Return the keys that the reaper is to clean in a way."""
        return sorted(task.key for task in self.core.reaper.tasks if isinstance(task, kind))


@pytest.mark.usefixtures("more_than_asked")
def test_a_call_whose_time_is_up_names_the_caller_before_it_and_no_failure() -> None:
    """Another thread takes one of the keys, with the session of both, during the last pause."""
    bench = Bench()
    io, core = bench.io, bench.core
    bench.io.steps.clear()
    io.expect("PUT", f"/v1/session/renew/{SESSION}", ok([session()]))
    plan = LockPlan(keys=KEYS, value=b"v", flags=LOCK_FLAGS, session=SESSION)
    for _ in range(20):
        bench.finds()
        io.expect("PUT", TXN, txn_failed((1, DELAYED.format("b"))))
    other = Ticket(core.tickets, "b", "another thread")
    io.at(io.time + 0.9, lambda: core.tickets.join(other))
    with pytest.raises(AcquireTimeout) as raised:
        io.run(recipe.acquire(io, core, LockObject(plan), timeout=1.0))
    assert raised.value.blocker.kind == "queued"


def granted(index: int) -> Response:
    return txn_done(*(entry(key, index=index) for key in KEYS))


def ops_of(request: Request) -> list[dict[str, Any]]:
    """Return a transaction's operations, their values decoded."""
    ops = [dict(op["KV"]) for op in json.loads(request.body or b"[]")]
    for op in ops:
        if "Value" in op:
            op["Value"] = base64.b64decode(op["Value"])
    return ops


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_all_are_locked_in_one_transaction_in_one_order(bench: Bench) -> None:
    hold = bench.held()
    assert [(op["Verb"], op["Key"], op["Value"]) for op in ops_of(bench.io.requests[-1])] == [
        ("lock", key, b"v") for key in KEYS
    ]
    assert (hold.key, hold.fence) == ("a", 7)
    assert [bench.core.holds.fences.get(key) for key in KEYS] == [7, 7, 7]
    assert [event.fence for event in bench.io.seen(Acquired)] == [7]


def test_fences_that_start_again_are_reported_for_each_key_where_they_are_lower(bench: Bench) -> None:
    first, *_ = KEYS
    for number, key in enumerate(KEYS):
        bench.core.holds.fences.remember(key, 3 if key == first else 50 + number)
    bench.io.expect("PUT", TXN, granted(9))
    assert bench.acquire().fence == 9
    assert bench.io.seen(FencesRestarted) == [
        FencesRestarted(key, 50 + number, 9) for number, key in enumerate(KEYS) if key != first
    ]
    assert [bench.core.holds.fences.get(key) for key in KEYS] == [9] * len(KEYS)


def test_keys_that_were_held_before_are_not_looked_at(bench: Bench) -> None:
    hold = bench.held()
    bench.io.expect("PUT", TXN, txn_done(*(entry(key, session=None, index=8) for key in KEYS for _ in "12")))
    bench.release(hold)
    bench.locks(9)
    sent = len(bench.io.requests)
    assert bench.acquire().fence == 9
    assert len(bench.io.requests) == sent + 1


def test_the_key_that_is_held_is_watched_and_all_are_tried_again(bench: Bench) -> None:
    bench.finds()
    bench.io.expect("PUT", TXN, txn_failed((1, HELD.format("b"))))
    bench.io.expect("GET", "/v1/kv/b", pairs(entry("b", session=OTHER, index=30)))
    idle: list[bool] = []

    def freed(_: object) -> Response:
        idle.append(bench.is_idle())
        return pairs(entry("b", session=None, index=31))

    bench.io.expect("GET", "/v1/kv/b", freed)
    # Of a and c the fences are not known yet, so they are looked at again.
    bench.finds()
    bench.locks(40)
    assert bench.acquire().fence == 40
    _, watch = (request for request in bench.io.requests if request.path == "/v1/kv/b")
    assert ("index", "30") in watch.params
    assert idle == [True], "tickets were kept while waiting"


def test_after_a_refusal_the_present_leader_says_whether_the_key_is_taken(bench: Bench) -> None:
    """An old one may go on to call it free: each try would be refused, and the next one follow at once."""

    def key(request: Request) -> Response:
        taken = entry("b", session=OTHER, index=9)
        return pairs(taken if ("consistent", "") in request.params else entry("b", session=None))

    bench.finds()
    bench.io.expect("PUT", TXN, txn_failed((1, HELD.format("b"))))
    bench.io.expect("GET", "/v1/kv/b", key)
    bench.io.expect("GET", "/v1/kv/b", pairs(entry("b", session=None, index=11)), takes=2.0)
    bench.finds(b=entry("b", session=None, index=11))
    bench.locks(12)
    assert bench.acquire().fence == 12
    assert len(bench.tries()) == 2


def test_a_key_that_is_held_at_the_first_look_is_not_tried(bench: Bench) -> None:
    bench.finds(a=entry("a", session=OTHER, index=30))
    with pytest.raises(AcquireTimeout) as told:
        bench.acquire(timeout=0)
    assert (told.value.key, told.value.blocker.session) == ("a", OTHER)
    assert bench.tries() == []
    assert bench.is_idle()
    assert [event.blocker.kind for event in bench.io.seen(TimedOut)] == ["held"]


REFUSED = {
    "held": (HELD, [pairs(entry("b", session=OTHER))]),
    "free by now": (HELD, [pairs(entry("b", session=None))]),
    "deleted by now": (HELD, [pairs()]),
    "in its lock-delay": (DELAYED, []),
}
"""Why a key was not locked, and what it is found to be then."""


@pytest.mark.parametrize("why", REFUSED)
def test_a_single_try_is_one_whatever_has_refused_it(bench: Bench, why: str) -> None:
    refusal, found = REFUSED[why]
    bench.finds()
    bench.io.expect("PUT", TXN, txn_failed((1, refusal.format("b"))))
    bench.io.expect("GET", "/v1/kv/b", *found)
    with pytest.raises(AcquireTimeout) as told:
        bench.acquire(timeout=0)
    assert (told.value.key, len(bench.tries()), bench.io.time) == ("b", 1, 1000.0)
    assert bench.is_idle()
    assert not bench.io.steps


def test_a_lock_delay_is_waited_out_with_growing_pauses(bench: Bench) -> None:
    bench.finds()
    bench.io.expect("PUT", TXN, txn_failed((2, DELAYED.format("c"))))
    for _ in range(3):
        bench.finds()
        bench.io.expect("PUT", TXN, txn_failed((2, DELAYED.format("c"))))
    bench.finds()
    bench.locks(9)
    bench.acquire()
    gaps = [later - earlier for earlier, later in itertools.pairwise(bench.tries())]
    assert gaps == pytest.approx([0.05, 0.1, 0.2, 0.4])
    assert [event.waited for event in bench.io.seen(Acquired)] == [bench.io.time - 1000.0]


def test_another_use_of_a_key_stops_all(bench: Bench) -> None:
    bench.finds(b=entry("b", session=None) | {"Flags": 1})
    with pytest.raises(KeyConflict) as told:
        bench.acquire()
    assert told.value.key == "b"
    assert bench.is_idle()


def test_a_missing_permission_names_the_key(bench: Bench) -> None:
    bench.finds()
    bench.io.expect("PUT", TXN, txn_failed((1, "Permission denied")))
    with pytest.raises(PermissionDenied, match='key:write on "b"'):
        bench.acquire()
    assert bench.is_idle()
    assert bench.core.reaper.pending == 0


# -- without an answer


def test_a_try_without_an_answer_gives_each_key_to_the_reaper(bench: Bench) -> None:
    bench.finds()
    bench.io.expect("PUT", TXN, lost())
    with pytest.raises(AcquireTimeout) as told:
        bench.acquire(timeout=0)
    assert told.value.blocker.kind == "unreachable"
    assert bench.tasks(GiveBack) == list(KEYS)
    assert bench.tasks(Sweep) == list(KEYS)
    assert not bench.is_idle(), "the reaper has the tickets until it has found out"


def test_a_try_that_was_interrupted_does_so_too(bench: Bench) -> None:
    """As by Ctrl-C."""
    bench.finds()

    def interrupted(_: object) -> Response:
        raise KeyboardInterrupt

    bench.io.expect("PUT", TXN, interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.acquire()
    assert bench.tasks(GiveBack) == bench.tasks(Sweep) == list(KEYS)


def test_who_got_the_keys_after_a_try_without_an_answer_is_told_that_he_has_them(bench: Bench) -> None:
    bench.finds()
    bench.io.expect("PUT", TXN, lost())
    for key in KEYS:
        bench.io.expect("GET", f"/v1/kv/{key}", pairs())
    bench.io.at(1000.06, bench.gives_back)
    bench.finds()
    bench.locks(9)
    bench.acquire()
    with pytest.raises(AlreadyHeld):
        bench.acquire(timeout=10)


def test_a_try_that_was_not_sent_leaves_nothing_to_do(bench: Bench) -> None:
    bench.finds()
    bench.io.expect("PUT", TXN, unreachable())
    bench.finds()
    bench.locks(9)
    assert bench.acquire().fence == 9
    assert bench.core.reaper.pending == 0


def test_the_fence_of_the_hold_before_is_an_unlock_that_was_never_applied(bench: Bench) -> None:
    for key in KEYS:
        bench.core.holds.fences.remember(key, 7)
    bench.locks(7)
    bench.io.expect("PUT", TXN, *(txn_done(*[entry(key, session=None)] * 2) for key in KEYS))
    for key in KEYS:
        bench.io.expect("GET", f"/v1/kv/{key}", pairs(entry(key, session=None)))
    bench.io.at(1000.1, bench.gives_back)
    bench.locks(9)
    assert bench.acquire().fence == 9
    verbs = [[(op["Verb"], op["Key"]) for op in ops_of(request)] for request in bench.io.requests[2:5]]
    assert verbs == [[("check-index", key), ("unlock", key)] for key in KEYS]


def test_keys_that_were_locked_at_different_times_are_all_locked_anew(bench: Bench) -> None:
    """A late request has locked some before: others may have had the rest since, under higher fences."""
    bench.finds()
    late, now = entry("a", index=5), [entry(key, index=9) for key in "bc"]
    bench.io.expect("PUT", TXN, txn_done(late, *now))
    bench.io.expect("PUT", TXN, *(txn_done(*[entry(key, session=None)] * 2) for key in KEYS))
    for key in KEYS:
        bench.io.expect("GET", f"/v1/kv/{key}", pairs(entry(key, session=None)))
    bench.io.at(1000.1, bench.gives_back)
    bench.finds()
    bench.locks(12)
    assert bench.acquire().fence == 12


# -- in this client


@pytest.mark.usefixtures("more_than_asked")
def test_who_holds_one_of_the_keys_is_told_so(bench: Bench) -> None:
    bench.core.tickets.join(Ticket(bench.core.tickets, "b", bench.io.caller))
    with pytest.raises(AlreadyHeld):
        bench.acquire()
    assert bench.io.requests == []


@pytest.mark.parametrize("failure", [None, unreachable()], ids=["at once", "after a failure"])
@pytest.mark.parametrize("owner", ["somebody else", None], ids=["behind a call", "behind a clean-up"])
def test_who_waits_in_line_is_told_so_unless_its_own_failure_is_cleaned_up(
    bench: Bench, owner: str | None, failure: Exception | None
) -> None:
    first = Ticket(bench.core.tickets, "b", owner)
    if failure is None:
        bench.core.tickets.join(first)
        bench.io.steps.clear()
    else:
        bench.finds()
        bench.io.expect("PUT", TXN, failure)
        bench.io.at(bench.io.time + 0.01, lambda: bench.core.tickets.join(first))
    with pytest.raises(AcquireTimeout) as told:
        bench.acquire(timeout=2.0)
    blocker, cleaned_up = told.value.blocker, failure is not None and owner is None
    assert (blocker.kind, blocker.position) == (("unreachable", None) if cleaned_up else ("queued", 1))
    assert told.value.__cause__ is (failure if cleaned_up else None)
    assert not bench.io.steps


@pytest.mark.usefixtures("more_than_asked")
def test_one_turn_is_waited_for_while_having_no_other(bench: Bench) -> None:
    busy = Ticket(bench.core.tickets, "b", "somebody else")
    bench.core.tickets.join(busy)
    others: list[bool] = []

    def free() -> None:
        others.extend(
            bench.core.tickets.join_if_idle(Ticket(bench.core.tickets, key, "probe")) for key in ("a", "c")
        )
        bench.core.tickets.leave(busy)

    bench.io.at(1003.0, free)
    with pytest.raises(AcquireTimeout) as told:
        bench.acquire(timeout=10)
    assert others == [True, True]
    assert told.value.blocker.kind == "queued"
    assert bench.io.requests == []


# -- giving back


def test_all_are_unlocked_in_one_transaction_with_their_value(bench: Bench) -> None:
    hold = bench.held()
    bench.io.expect("PUT", TXN, txn_done(*(entry(key, session=None, index=8) for key in KEYS for _ in "12")))
    assert bench.release(hold) is ReleaseOutcome.RELEASED
    ops = ops_of(bench.io.requests[-1])
    assert [(op["Verb"], op["Key"]) for op in ops] == [
        (verb, key) for key in KEYS for verb in ("check-index", "unlock")
    ]
    assert {op["Value"] for op in ops if op["Verb"] == "unlock"} == {b"v"}
    assert {op["Flags"] for op in ops if op["Verb"] == "unlock"} == {LOCK_FLAGS}
    assert bench.is_idle()


def test_where_one_has_changed_each_is_unlocked_by_itself(bench: Bench) -> None:
    hold = bench.held()
    unlocked = [txn_done(entry(key, session=None), entry(key, session=None)) for key in KEYS]
    bench.io.expect("PUT", TXN, txn_failed((2, "failed index check")), unlocked[0])
    bench.io.expect("PUT", TXN, txn_failed((0, "failed index check")))
    bench.io.expect("GET", "/v1/kv/b", pairs(entry("b", session=OTHER, index=50)))
    bench.io.expect("PUT", TXN, unlocked[2])
    assert bench.release(hold) is ReleaseOutcome.ALREADY_LOST
    assert hold.loss(bench.io.time) is LossReason.TAKEN_OVER
    assert bench.is_idle()


def test_the_loss_of_one_has_the_others_given_back(bench: Bench) -> None:
    hold = bench.held()
    hold.lose(LossReason.RELEASED_BY_OTHER)
    assert bench.tasks(GiveBack) == list(KEYS)
    assert hold.look(bench.io.time) == (HoldState.LOST, LossReason.RELEASED_BY_OTHER)


def test_with_its_session_everything_is_gone(bench: Bench) -> None:
    hold = bench.held()
    (kept,) = list(bench.core.sessions)
    bench.core.sessions.end(kept, LossReason.SESSION_GONE)
    assert hold.look(bench.io.time) == (HoldState.LOST, LossReason.SESSION_GONE)
    assert bench.core.reaper.pending == 0
    assert bench.is_idle()


def test_a_guard_and_the_watches_are_on_every_key(bench: Bench) -> None:
    hold = bench.held()
    assert [(op.verb, op.key) for op in hold.guard()] == [
        (verb, key) for key in KEYS for verb in ("check-session", "check-index")
    ]
    watches = hold.kind.watches(hold)
    assert [(watch.key, watch.index) for watch in watches] == [(key, 7) for key in KEYS]
    assert [watch.loss(None) for watch in watches] == [LossReason.KEY_DELETED] * 3


@pytest.mark.usefixtures("more_than_asked")
def test_looking_at_the_keys_takes_no_longer_than_the_call_may(bench: Bench) -> None:
    bench.io.expect("PUT", TXN, txn_failed((1, 'key "b" doesn\'t exist')), takes=6.0)
    bench.io.expect("PUT", TXN, lost(), takes=20.0)
    bench.io.expect("GET", "/v1/status/leader", lost())
    began = bench.io.now()
    with pytest.raises(AcquireTimeout):
        bench.acquire(timeout=8.0)
    assert bench.io.now() - began <= 8.2


@pytest.mark.parametrize("gone", ["a", "c"])
def test_a_lock_of_several_keys_is_broken_if_one_of_them_was_taken_from_its_session(
    bench: Bench, gone: str
) -> None:
    """It is given back as it is found: another program may know it by its flags."""
    bench.io.steps.clear()
    found = {key: entry(key, session=OTHER, index=9, value=b"theirs") | {"Flags": 5} for key in "ac"}
    free = entry(gone, session=None, index=12)
    for key in KEYS:
        bench.io.expect("GET", f"/v1/kv/{key}", pairs(found[key]) if key in found else pairs())
    for key in "ac":
        if key == gone:
            bench.io.expect("PUT", TXN, txn_failed((0, "failed index check")))
            bench.io.expect("GET", f"/v1/kv/{key}", pairs(free))
        else:
            bench.io.expect("PUT", TXN, txn_done(found[key], found[key]))
    breaking = locks.break_lock(bench.io, bench.core, bench.lock, OTHER, how="release")
    assert bench.io.run(breaking) is True
    unlocks = [ops_of(request)[1] for request in bench.io.requests if request.path == TXN]
    assert [(op["Verb"], op["Key"], op["Value"], op["Flags"]) for op in unlocks] == [
        ("unlock", key, b"theirs", 5) for key in "ac"
    ]
