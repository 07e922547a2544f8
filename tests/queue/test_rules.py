"""The rules of docs/wait-queue.md, one by one, as histories in which they matter.

That each of them can fail is shown in ``test_mutations``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import AcquireTimeout
from consul_coord.models import LOCK_FLAGS, ReleaseOutcome
from tests.queue.stage import KEY, NO_QUEUE, SOON, TTL, Fate

if TYPE_CHECKING:
    from tests.queue.stage import Stage

NOTICED = 0.43 * TTL + SOON
"""Seconds within which a client knows that its session has gone: at its next renewal."""


def test_l01_a_late_barge_does_not_get_past_the_queue(stage: Stage) -> None:
    first, head, late = stage.player("first"), stage.player("head"), stage.player("late")
    barge = stage.trap(late, Fate.LATE, "barge")
    behind = late.acquire()
    stage.until(lambda: barge.sprung)
    stage.trap(late, Fate.LOST, "look", "read", "join", "barge")  # the repeat, which comes at once
    hold = first.get()
    waiting = head.queue()
    stage.until(lambda: stage.queue == ["head", "late"])

    take = stage.trap(head, Fate.HELD, "take")
    first.give_back(hold)
    stage.until(lambda: take.sprung)
    stage.deliver(barge)
    assert stage.holder is None
    stage.deliver(take)
    stage.until(waiting.done.is_set)
    head.give_back(waiting.value)
    stage.until(behind.done.is_set)


def test_l01_a_newcomer_takes_a_free_key_past_the_queue(stage: Stage) -> None:
    first, head, newcomer = stage.player("first"), stage.player("head"), stage.player("newcomer")
    hold = first.get()
    head.queue()
    take = stage.trap(head, Fate.HELD, "take")
    first.give_back(hold)
    stage.until(lambda: take.sprung)
    newcomer.get()
    stage.deliver(take)
    stage.rest()
    assert (stage.holder, stage.queue) == ("newcomer", ["head"])


def test_l02_a_join_that_is_repeated_keeps_its_place(stage: Stage) -> None:
    first, one, two = stage.player("first"), stage.player("one"), stage.player("two")
    hold = first.get()
    join = stage.trap(one, Fate.REPLY_LOST, "join")
    waiting = one.acquire()
    stage.until(lambda: join.sprung)
    two.queue()
    stage.until(lambda: stage.kinds(one).count("join") > 1)
    stage.rest()
    assert stage.queue == ["one", "two"]
    first.give_back(hold)
    stage.until(waiting.done.is_set)


def test_l02_joining_and_looking_are_one_moment(stage: Stage) -> None:
    first, head, follower = stage.player("first"), stage.player("head"), stage.player("follower")
    hold = first.get()
    join = stage.trap(follower, Fate.HELD, "join")
    follower.acquire()
    stage.until(lambda: join.sprung)
    head.queue()
    stage.deliver(join)
    stage.rest()

    take = stage.trap(head, Fate.HELD, "take")
    first.give_back(hold)
    stage.rest()
    assert stage.holder is None, "who joined second has taken it"
    stage.deliver(take)
    assert stage.holder == "head"


def test_l03_a_key_that_is_ours_by_a_lost_reply_is_adopted(stage: Stage) -> None:
    first, head = stage.player("first"), stage.player("head")
    hold = first.get()
    waiting = head.queue()
    take = stage.trap(head, Fate.REPLY_LOST, "take")
    first.give_back(hold)
    stage.until(lambda: take.sprung)
    assert stage.holder == "head"
    stage.until(waiting.done.is_set)
    assert waiting.value.fence == (stage.entry() or {})["ModifyIndex"]
    assert stage.queue == []


def test_l03_the_remains_of_a_dead_waiter_are_removed(stage: Stage) -> None:
    first, dead, other = stage.player("first"), stage.player("dead"), stage.player("other")
    hold = first.get()
    dead.queue()
    dead.die()
    stage.until(lambda: stage.queue == [None], within=2 * TTL + SOON)
    waiting = other.queue()
    stage.until(lambda: stage.queue == ["other"])
    first.give_back(hold)
    stage.until(waiting.done.is_set)


def test_l03_who_finds_its_contender_missing_joins_at_the_end(stage: Stage) -> None:
    first, robbed, other = stage.player("first"), stage.player("robbed"), stage.player("other")
    hold = first.get()
    last = robbed.queue()
    waiting = other.queue()
    stage.ask("DELETE", f"/v1/kv/{robbed.contender}")
    stage.rest()
    first.give_back(hold)
    stage.until(waiting.done.is_set)
    stage.until(lambda: stage.queue == ["robbed"])
    other.give_back(waiting.value)
    stage.until(last.done.is_set)


def test_l03_a_release_wakes_the_head_and_a_take_its_follower_and_nobody_else(stage: Stage) -> None:
    first = stage.player("first")
    hold = first.get()
    waiters = [stage.player(f"waiter{number}") for number in range(5)]
    calls = [waiter.queue() for waiter in waiters]
    since = len(stage.served)
    first.give_back(hold)
    stage.until(calls[0].done.is_set)
    stage.rest()
    woken = [stage.kinds(waiter, since=since) for waiter in waiters]
    assert woken[0][:1] == ["take"]
    assert woken[1] == ["glance", "watch"]
    assert woken[2:] == [[], [], []]


def test_l03_what_changes_between_look_and_watch_ends_the_watch_at_once(stage: Stage) -> None:
    first, brief, follower = stage.player("first"), stage.player("brief"), stage.player("follower")
    follower.give_back(follower.get())  # so that it knows the key, and reads nothing before it joins
    hold = first.get()
    gave_up = brief.queue(timeout=SOON / 2)
    watch = stage.trap(follower, Fate.HELD, "watch", "read")
    waiting = follower.acquire()
    stage.until(lambda: watch.sprung)
    stage.until(gave_up.done.is_set)
    first.give_back(hold)
    stage.deliver(watch)
    stage.until(waiting.done.is_set)


def test_l04_the_head_takes_the_key_without_another_look(stage: Stage) -> None:
    first, head = stage.player("first"), stage.player("head")
    hold = first.get()
    waiting = head.queue()
    since = len(stage.served)
    first.give_back(hold)
    stage.until(waiting.done.is_set)
    assert stage.kinds(head, since=since) == ["take"]


def test_l04_the_head_goes_on_watching_when_a_held_key_is_written(stage: Stage) -> None:
    first, head = stage.player("first"), stage.player("head")
    hold = first.get()
    waiting = head.queue()
    since = len(stage.served)
    stage.ask("PUT", f"/v1/kv/{KEY}?flags={LOCK_FLAGS}", b"by a stranger")
    stage.rest()
    assert stage.kinds(head, since=since) == ["watch"]
    assert first.give_back(hold) is ReleaseOutcome.RELEASED
    stage.until(waiting.done.is_set)


def test_l05_a_take_that_comes_after_giving_up_is_refused(stage: Stage) -> None:
    first, head = stage.player("first"), stage.player("head")
    hold = first.get()
    waiting = head.queue(timeout=1.0)
    take = stage.trap(head, Fate.HELD, "take")
    first.give_back(hold)
    stage.until(waiting.done.is_set, within=1.0 + SOON)
    assert isinstance(waiting.error, AcquireTimeout)
    stage.deliver(take)
    assert (stage.holder, stage.queue) == (None, [])


def test_l05_a_take_of_an_earlier_attempt_does_not_use_the_place_of_a_later_one(stage: Stage) -> None:
    first, head, late = stage.player("first"), stage.player("head"), stage.player("late")
    hold = first.get()
    attempt = late.queue(timeout=1.0)
    old = stage.trap(late, Fate.HELD, "take")
    first.give_back(hold)
    stage.until(attempt.done.is_set, within=1.0 + SOON)

    hold = first.get()
    waiting = head.queue()
    late.queue()
    take = stage.trap(head, Fate.HELD, "take")
    first.give_back(hold)
    stage.until(lambda: take.sprung)
    stage.deliver(old)
    assert stage.holder is None, "out of turn"
    stage.deliver(take)
    stage.until(waiting.done.is_set)


def test_l05_an_unanswered_take_is_followed_by_a_look(stage: Stage) -> None:
    first, head = stage.player("first"), stage.player("head")
    hold = first.get()
    waiting = head.queue()
    stage.trap(head, Fate.REPLY_LOST, "take")
    since = len(stage.served)
    first.give_back(hold)
    stage.until(waiting.done.is_set)
    assert stage.kinds(head, since=since) == ["take", "look", "adopt"]


def test_l06_the_head_alone_waits_a_lock_delay_out_by_trying_now_and_then(stage: Stage) -> None:
    delay = 5.0
    first = stage.player("first", lock_delay=delay)
    head, other = stage.player("head", chance=0.5), stage.player("other")
    first.get()
    waiting = head.queue()
    other.queue()
    since, began = len(stage.served), stage.clock.now()
    stage.ask("PUT", f"/v1/session/destroy/{first.session}")
    stage.until(waiting.done.is_set, within=delay + 1.0 + SOON)
    assert stage.clock.now() - began >= delay
    tries = stage.kinds(head, since=since).count("take")
    assert 5 <= tries <= 20
    assert "take" not in stage.kinds(other, since=since)


def test_l07_a_late_unlock_does_not_free_the_next_hold_of_the_session(stage: Stage) -> None:
    client = stage.player("client")
    unlock = stage.trap(client, Fate.LATE, "unlock")
    assert client.give_back(client.get()) is ReleaseOutcome.RELEASED
    assert len(stage.kinds(client)) == stage.kinds(client).index("unlock") + 1
    second = client.get()
    stage.deliver(unlock)
    assert stage.holder == "client"
    assert client.give_back(second) is ReleaseOutcome.RELEASED


def test_l07_an_unanswered_unlock_is_repeated_until_answered(stage: Stage) -> None:
    client = stage.player("client", chance=0.5)
    hold = client.get()
    unlock = stage.trap(client, Fate.LOST, "unlock", times=4)
    releasing = client.release(hold)
    stage.until(releasing.done.is_set, within=5.0)
    assert releasing.value is ReleaseOutcome.RELEASED
    assert (len(unlock.caught), stage.holder) == (4, None)


def test_l07_nothing_new_begins_before_the_unlock_is_answered(stage: Stage) -> None:
    client = stage.player("client")
    hold = client.get()
    unlock = stage.trap(client, Fate.HELD, "unlock")
    client.release(hold)
    stage.until(lambda: unlock.sprung)
    since = len(stage.served)
    again = client.acquire(owner="another thread")
    stage.rest(1.0)
    assert stage.kinds(client, since=since) == []
    stage.deliver(unlock)
    stage.until(again.done.is_set)
    assert again.value.fence > hold.fence


def test_l08_who_barged_past_others_joins_the_queue(stage: Stage) -> None:
    greedy, waiter = stage.player("greedy"), stage.player("waiter")
    hold = greedy.get()
    waiting = waiter.queue()
    early = stage.trap(waiter, Fate.HELD, "take")
    greedy.give_back(hold)
    hold = greedy.get()
    stage.deliver(early)
    stage.rest()

    take = stage.trap(waiter, Fate.HELD, "take")
    greedy.give_back(hold)
    again = greedy.acquire()
    stage.rest()
    assert (stage.holder, stage.queue) == (None, ["waiter", "greedy"])
    stage.deliver(take)
    stage.until(waiting.done.is_set)
    waiter.give_back(waiting.value)
    stage.until(again.done.is_set)


def test_l08_who_had_to_wait_joins_the_queue_until_it_finds_nobody(stage: Stage) -> None:
    first, waiter = stage.player("first"), stage.player("waiter")
    hold = first.get()
    waiting = waiter.queue()
    first.give_back(hold)
    stage.until(waiting.done.is_set)
    waiter.give_back(waiting.value)
    since = len(stage.served)
    waiter.give_back(waiter.get())
    assert stage.kinds(waiter, since=since) == ["join", "take", "unlock"]
    since = len(stage.served)
    waiter.get()
    assert stage.kinds(waiter, since=since) == ["barge"]


def test_l09_a_take_under_way_can_not_slip_into_the_giving_up(stage: Stage) -> None:
    first, head = stage.player("first"), stage.player("head")
    hold = first.get()
    waiting = head.queue(timeout=1.0)
    take = stage.trap(head, Fate.HELD, "take")
    first.give_back(hold)
    stage.until(lambda: take.sprung)
    since = len(stage.served)

    def at_the_turn() -> bool:
        """Whether the first of its two steps is done: the contender removed, or the key read."""
        sent = [each for each in stage.served[since:] if each.player is head]
        return any(each.kind == "remove" or (each.kind, each.key) == ("read", KEY) for each in sent)

    stage.until(at_the_turn, within=1.0 + SOON)
    stage.deliver(take)
    stage.until(waiting.done.is_set)
    assert (stage.holder, stage.queue) == (None, [])


def test_l09_a_key_that_was_got_unknowingly_is_given_back(stage: Stage) -> None:
    first, head, other = stage.player("first"), stage.player("head"), stage.player("other")
    hold = first.get()
    waiting = head.queue(timeout=1.0)
    next_one = other.queue()
    stage.trap(head, Fate.REPLY_LOST, "take")
    stage.trap(head, Fate.LOST, "look", times=99)
    first.give_back(hold)
    stage.until(lambda: stage.holder == "head")
    stage.until(waiting.done.is_set, within=1.0 + SOON)
    assert isinstance(waiting.error, AcquireTimeout)
    stage.until(next_one.done.is_set)


def test_l10_a_join_that_comes_after_giving_up_is_swept(stage: Stage) -> None:
    first, late, other = stage.player("first"), stage.player("late"), stage.player("other")
    hold = first.get()
    join = stage.trap(late, Fate.LATE, "join", times=9)
    attempt = late.acquire(timeout=0.3)
    stage.until(attempt.done.is_set)
    assert isinstance(attempt.error, AcquireTimeout)
    stage.deliver(join)
    assert stage.queue == ["late"]
    waiting = other.queue()
    first.give_back(hold)
    stage.until(waiting.done.is_set, within=1.0 + SOON)


@pytest.mark.parametrize(("comes", "swept"), [(0.5, 1.0), (3.0, 5.0), (10.0, 15.0), (50.0, 60.0)])
@pytest.mark.parametrize("kind", ["join", "barge"])
def test_l10_sweeps_go_on_for_a_minute(stage: Stage, kind: str, comes: float, swept: float) -> None:
    first, late = stage.player("first"), stage.player("late")
    first.give_back(first.get())
    trap = stage.trap(late, Fate.LATE, "join", "barge", times=9)
    attempt = late.acquire(timeout=0.3, fair=kind == "join")
    stage.until(attempt.done.is_set)
    ended = stage.clock.now()
    stage.rest(comes)
    stage.deliver(trap)
    assert stage.queue or stage.holder
    stage.until(lambda: not stage.queue and not stage.holder, within=swept - comes + SOON)
    assert stage.clock.now() - ended <= swept + SOON


def test_l11_the_same_fence_twice_is_an_unlock_that_was_never_applied(stage: Stage) -> None:
    client = stage.player("client")
    hold = client.get()
    before = stage.service.state.snapshot()
    client.give_back(hold)
    stage.service.restore(before, stage.clock.now())
    assert stage.holder == "client"
    again = client.get()
    assert again.fence > hold.fence
    assert stage.holder == "client"
    client.give_back(again)
    assert stage.holder is None


def test_l12_who_lost_its_session_gets_a_new_one_and_joins_at_the_end(stage: Stage) -> None:
    first, unlucky, other = stage.player("first"), stage.player("unlucky"), stage.player("other")
    hold = first.get()
    last = unlucky.queue()
    waiting = other.queue()
    old = unlucky.session
    stage.ask("PUT", f"/v1/session/destroy/{old}")
    stage.until(lambda: stage.queue == ["other", "unlucky"], within=NOTICED)
    assert unlucky.session != old
    first.give_back(hold)
    stage.until(waiting.done.is_set)
    other.give_back(waiting.value)
    stage.until(last.done.is_set)


def test_l12_a_session_that_a_request_finds_gone_is_replaced_at_once(stage: Stage) -> None:
    first, unlucky = stage.player("first"), stage.player("unlucky")
    hold = first.get()
    waiting = unlucky.queue()
    stage.ask("PUT", f"/v1/session/destroy/{unlucky.session}")
    first.give_back(hold)
    stage.until(waiting.done.is_set)
    assert waiting.value.session == unlucky.session


def test_l13_foreign_clients_contend_for_the_key_and_the_queue_stays(stage: Stage) -> None:
    first, head, other = stage.player("first"), stage.player("head"), stage.player("other")
    foreign = stage.ask("PUT", "/v1/session/create", {"LockDelay": "0s", "NodeChecks": []})["ID"]
    hold = first.get()
    waiting, last = head.queue(), other.queue()
    take = stage.trap(head, Fate.HELD, "take")
    first.give_back(hold)
    stage.until(lambda: take.sprung)
    assert stage.ask("PUT", f"/v1/kv/{KEY}?acquire={foreign}&flags={LOCK_FLAGS}", b"")
    stage.deliver(take)
    since = len(stage.served)
    stage.rest()
    assert (stage.holder, stage.queue) == (foreign, ["head", "other"])
    assert len(stage.kinds(head, since=since)) <= 2
    assert stage.ask("PUT", f"/v1/kv/{KEY}?release={foreign}&flags={LOCK_FLAGS}", b"")
    stage.until(waiting.done.is_set)
    head.give_back(waiting.value)
    stage.until(last.done.is_set)


def test_l13_a_fair_newcomer_queues_behind_ours(stage: Stage) -> None:
    first, head, newcomer = stage.player("first"), stage.player("head"), stage.player("newcomer")
    hold = first.get()
    waiting = head.queue()
    take = stage.trap(head, Fate.HELD, "take")
    first.give_back(hold)
    stage.until(lambda: take.sprung)
    newcomer.acquire(fair=True)
    stage.rest()
    assert (stage.holder, stage.queue) == (None, ["head", "newcomer"])
    stage.deliver(take)
    stage.until(waiting.done.is_set)


def test_l14_without_permission_for_the_queue_the_key_is_watched(stage: Stage) -> None:
    first = stage.player("first")
    others = [stage.player(f"other{number}", token=NO_QUEUE, chance=number / 3) for number in range(3)]
    hold = first.get()
    calls = [other.acquire() for other in others]
    stage.rest()
    assert not [call for call in calls if call.done.is_set()]
    assert stage.queue == []
    first.give_back(hold)
    fences = [hold.fence]
    for other, call in zip(others, calls, strict=True):
        stage.until(call.done.is_set)
        assert call.error is None
        assert [each.done.is_set() for each in calls].count(True) == len(fences)
        fences.append(call.value.fence)
        other.give_back(call.value)
    assert fences == sorted(set(fences))


def test_l14_who_can_not_read_the_queue_is_not_its_head(stage: Stage) -> None:
    first, head, blind = (
        stage.player("first"),
        stage.player("head"),
        stage.player("blind", blind=True, chance=0.5),
    )
    hold = first.get()
    waiting = head.queue()
    last = blind.acquire()
    stage.rest()
    assert stage.queue == ["head"], "a contender that its owner can't see is withdrawn"
    first.give_back(hold)
    stage.until(waiting.done.is_set)
    head.give_back(waiting.value)
    stage.until(last.done.is_set)


def test_l15_a_contender_ends_with_the_session_that_was_to_take_the_lock(stage: Stage) -> None:
    first, unlucky, other = stage.player("first"), stage.player("unlucky"), stage.player("other")
    hold = first.get()
    unlucky.queue()
    waiting = other.queue()
    stage.ask("PUT", f"/v1/session/destroy/{unlucky.session}")
    first.give_back(hold)
    stage.until(waiting.done.is_set)
    assert waiting.value.session == other.session


def test_l16_a_handoff_lists_the_queue_nowhere(stage: Stage) -> None:
    first = stage.player("first")
    hold = first.get()
    waiters = [stage.player(f"waiter{number}") for number in range(5)]
    calls = [waiter.queue() for waiter in waiters]
    since = len(stage.served)
    first.give_back(hold)
    for waiter, call in zip(waiters, calls, strict=True):
        stage.until(call.done.is_set)
        stage.rest()  # until the next one has moved up
        waiter.give_back(call.value)
    verbs = [verb for parcel in stage.served[since:] for verb, _ in parcel.ops]
    assert "get-tree" not in verbs


def test_l16_who_follows_one_that_gave_up_is_not_the_head(stage: Stage) -> None:
    first, head, brief, last = (stage.player(name) for name in ("first", "head", "brief", "last"))
    hold = first.get()
    head.queue()
    gave_up = brief.queue(timeout=1.0)
    last.queue()
    stage.until(gave_up.done.is_set, within=1.0 + SOON)
    stage.rest()
    stage.trap(head, Fate.HELD, "take")
    first.give_back(hold)
    stage.rest()
    assert (stage.holder, stage.queue) == (None, ["head", "last"])


def test_l16_who_follows_one_that_had_barged_is_not_the_head(stage: Stage) -> None:
    first, head, newcomer, last = (stage.player(name) for name in ("first", "head", "newcomer", "last"))
    newcomer.give_back(newcomer.get())
    hold = first.get()
    head.queue()
    early = stage.trap(head, Fate.HELD, "take")
    first.give_back(hold)
    stage.until(lambda: early.sprung)

    stage.trap(newcomer, Fate.REPLY_LOST, "barge")
    adopt = stage.trap(newcomer, Fate.HELD, "adopt")
    barged = newcomer.acquire()
    stage.until(lambda: adopt.sprung)
    last.queue()
    assert (stage.holder, stage.queue) == ("newcomer", ["head", "newcomer", "last"])
    stage.deliver(adopt)
    stage.deliver(early)  # which is refused
    stage.until(barged.done.is_set)
    stage.rest()

    stage.trap(head, Fate.HELD, "take")
    newcomer.give_back(barged.value)
    stage.rest()
    assert (stage.holder, stage.queue) == (None, ["head", "last"])
