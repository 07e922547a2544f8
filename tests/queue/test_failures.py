"""What happens to a queue when somebody fails: the table of docs/wait-queue.md; and what a hold costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import AcquireTimeout
from consul_coord.models import LossReason
from tests.queue.stage import KEY, SOON, TTL, Fate

if TYPE_CHECKING:
    from consul_coord.recipes.hold.grant import Grant
    from tests.queue.stage import Player, Program, Stage

EXPIRED = 2 * TTL + SOON
"""Seconds after which the session of a client that crashed has ended for sure."""


def hand_on(stage: Stage, waiters: list[Player], calls: list[Program[Grant]]) -> list[int]:
    """Let each waiter in turn have the key and give it back; return the fences."""
    fences = []
    for waiter, call in zip(waiters, calls, strict=True):
        stage.until(call.done.is_set)
        assert stage.holder == waiter.name
        fences.append(call.value.fence)
        waiter.give_back(call.value)
    assert stage.holder is None
    assert not any(stage.queue), "but for what the dead have left"
    assert fences == sorted(set(fences))
    return fences


@pytest.mark.parametrize("place", range(4))
def test_a_waiter_that_crashes_is_passed_over(stage: Stage, place: int) -> None:
    first = stage.player("first")
    hold = first.get()
    waiters = [stage.player(f"waiter{number}") for number in range(4)]
    calls = [waiter.queue() for waiter in waiters]
    waiters.pop(place).die()
    calls.pop(place)
    stage.rest(EXPIRED)
    first.give_back(hold)
    hand_on(stage, waiters, calls)
    first.give_back(first.get())  # which finds what the dead one has left
    stage.rest()
    assert stage.queue == []


def test_a_head_that_crashes_before_its_take_holds_the_queue_up_until_its_session_ends(stage: Stage) -> None:
    first, head, other = stage.player("first"), stage.player("head"), stage.player("other")
    hold = first.get()
    head.queue()
    waiting = other.queue()
    take = stage.trap(head, Fate.LOST, "take")
    first.give_back(hold)
    stage.until(lambda: take.sprung)
    head.die()
    stage.rest(TTL)
    assert not waiting.done.is_set()
    stage.until(waiting.done.is_set, within=EXPIRED - TTL)
    hand_on(stage, [other], [waiting])


def test_a_head_that_crashes_in_a_lock_delay_is_passed_over(stage: Stage) -> None:
    first = stage.player("first", lock_delay=60.0)
    head, other = stage.player("head", chance=0.5), stage.player("other", chance=0.5)
    first.get()
    head.queue()
    waiting = other.queue()
    stage.ask("PUT", f"/v1/session/destroy/{first.session}")
    stage.rest(1.0)
    head.die()
    stage.until(waiting.done.is_set, within=60.0 + SOON)
    hand_on(stage, [other], [waiting])


def test_a_holder_that_crashes_is_succeeded_after_the_lock_delay(stage: Stage) -> None:
    first = stage.player("first", lock_delay=5.0)
    head, other = stage.player("head", chance=0.5), stage.player("other")
    hold = first.get()
    waiting, last = head.queue(), other.queue()
    first.die()
    stage.rest(TTL)
    assert stage.holder == "first"
    stage.until(waiting.done.is_set, within=EXPIRED - TTL + 5.0 + 1.0)
    assert waiting.value.fence > hold.fence
    hand_on(stage, [head, other], [waiting, last])


def test_a_deleted_key_goes_to_the_head_and_its_holder_is_told(stage: Stage) -> None:
    first, head, other = stage.player("first"), stage.player("head"), stage.player("other")
    hold = first.get()
    waiting, last = head.queue(), other.queue()
    stage.ask("DELETE", f"/v1/kv/{KEY}")
    stage.until(waiting.done.is_set)
    assert waiting.value.fence > hold.fence
    stage.until(hold.lost.is_set)
    assert hold.look(stage.clock.now())[1] in {LossReason.KEY_DELETED, LossReason.TAKEN_OVER}
    hand_on(stage, [head, other], [waiting, last])


def test_a_deleted_contender_lets_its_follower_move_up(stage: Stage) -> None:
    first, head, robbed, other = (stage.player(name) for name in ("first", "head", "robbed", "other"))
    hold = first.get()
    calls = {each: each.queue() for each in (head, robbed, other)}
    stage.ask("DELETE", f"/v1/kv/{robbed.contender}")
    stage.rest()
    first.give_back(hold)
    stage.until(calls[head].done.is_set)
    head.give_back(calls[head].value)
    stage.until(calls[other].done.is_set)
    other.give_back(calls[other].value)
    # Its watch was on the contender before its own, so it is there that it finds its own missing.
    hand_on(stage, [robbed], [calls[robbed]])


@pytest.mark.parametrize("place", range(3))
def test_a_waiter_that_gives_up_leaves_the_others_in_order(stage: Stage, place: int) -> None:
    first = stage.player("first")
    hold = first.get()
    waiters = [stage.player(f"waiter{number}") for number in range(3)]
    calls = [waiter.queue(timeout=1.0 if each == place else None) for each, waiter in enumerate(waiters)]
    stage.until(calls[place].done.is_set, within=1.0 + SOON)
    assert isinstance(calls[place].error, AcquireTimeout)
    stage.rest()
    waiters.pop(place)
    calls.pop(place)
    first.give_back(hold)
    hand_on(stage, waiters, calls)


def test_a_head_out_of_time_with_the_key_just_freed_lets_its_follower_have_it(stage: Stage) -> None:
    first, head, other = stage.player("first"), stage.player("head"), stage.player("other")
    hold = first.get()
    gave_up = head.queue(timeout=1.0)
    waiting = other.queue()
    stage.trap(head, Fate.LOST, "take", times=99)
    first.give_back(hold)
    stage.until(gave_up.done.is_set, within=1.0 + SOON)
    assert isinstance(gave_up.error, AcquireTimeout)
    hand_on(stage, [other], [waiting])


KINDS = ("barge", "join", "look", "watch", "take", "unlock", "remove")


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.REPLY_LOST], ids=lambda fate: fate.name)
@pytest.mark.parametrize("kind", KINDS)
def test_one_lost_message_of_any_kind_costs_nobody_the_lock(stage: Stage, kind: str, fate: Fate) -> None:
    first = stage.player("first")
    waiters = [stage.player(f"waiter{number}") for number in range(3)]
    for player in (first, *waiters):
        stage.trap(player, fate, kind)
    call = first.acquire()
    stage.until(call.done.is_set, within=2.0)
    calls = [waiter.acquire() for waiter in waiters]
    stage.until(lambda: len(stage.queue) == 3, within=2.0)
    stage.rest(1.0)
    first.release(call.value)
    fences = [call.value.fence]
    while waiters:
        stage.until(lambda: any(each.done.is_set() for each in calls), within=2.0)
        (done,) = [each for each in calls if each.done.is_set()]
        at = calls.index(done)
        assert stage.holder == waiters[at].name
        fences.append(done.value.fence)
        waiters.pop(at).release(calls.pop(at).value)
    stage.until(lambda: (stage.holder, stage.queue) == (None, []), within=2.0)
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("waiters", [2, 10, 40])
def test_a_hold_is_three_writes_however_many_wait(stage: Stage, waiters: int) -> None:
    first = stage.player("first")
    hold = first.get()
    players = [stage.player(f"waiter{number}") for number in range(waiters)]
    calls = [player.queue() for player in players]
    joined = stage.service.state.store.raft_index
    first.give_back(hold)
    hand_on(stage, players, calls)
    # The joins before; a take and an unlock each, and the first one's unlock.
    assert stage.service.state.store.raft_index - joined == 2 * waiters + 1
    writes = [
        kind for player in players for kind in stage.kinds(player) if kind in {"join", "take", "unlock"}
    ]
    assert sorted(writes) == sorted(["join", "take", "unlock"] * waiters)


def test_a_hold_without_contention_is_two_writes(stage: Stage) -> None:
    client = stage.player("client")
    client.give_back(client.get())
    since = len(stage.served)
    for _ in range(5):
        client.give_back(client.get())
    assert stage.kinds(client, since=since) == ["barge", "unlock"] * 5
