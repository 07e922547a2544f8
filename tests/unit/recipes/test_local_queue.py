"""The queue of one client's threads and tasks."""

from __future__ import annotations

import threading

import pytest

from consul_coord.errors import AlreadyHeld
from consul_coord.recipes.local_queue import LocalQueues, Turn


@pytest.fixture
def queues() -> LocalQueues:
    return LocalQueues(threading.RLock())


def joined(queues: LocalQueues, owner: object, key: str = "k") -> Turn:
    turn = Turn(key, owner)
    queues.join(turn)
    return turn


def test_turns_come_in_order(queues: LocalQueues) -> None:
    turns = [joined(queues, owner) for owner in "abc"]
    assert [queues.position(turn) for turn in turns] == [0, 1, 2]
    for number, turn in enumerate(turns):
        assert [each.ready.is_set() for each in turns[number:]] == [True] + [False] * (2 - number)
        queues.leave(turn)
    assert [queues.position(turn) for turn in turns] == [None] * 3


def test_keys_do_not_stand_in_each_others_way(queues: LocalQueues) -> None:
    joined(queues, "a", "one")
    assert joined(queues, "b", "two").ready.is_set()


def test_one_who_waits_may_leave(queues: LocalQueues) -> None:
    first, second, third = (joined(queues, owner) for owner in "abc")
    queues.leave(second)
    queues.leave(first)
    assert third.ready.is_set()
    assert not second.ready.is_set()


def test_leaving_twice_or_without_joining_does_nothing(queues: LocalQueues) -> None:
    first, second, third = (joined(queues, owner) for owner in "abc")
    queues.leave(Turn("k", "a"))
    queues.leave(Turn("elsewhere", "a"))
    queues.leave(first)
    queues.leave(first)
    assert second.ready.is_set()
    assert not third.ready.is_set()


def test_who_has_the_turn_may_not_queue_behind_itself(queues: LocalQueues) -> None:
    turn = joined(queues, "a")
    with pytest.raises(
        AlreadyHeld, match=r"'k' is held by this thread or task already.*ReentrantLock"
    ) as told:
        joined(queues, "a")
    assert told.value.key == "k"
    assert joined(queues, "a", "another").ready.is_set()
    queues.leave(turn)
    assert joined(queues, "a").ready.is_set()


def test_a_refused_turn_is_in_nobodys_way(queues: LocalQueues) -> None:
    turn = joined(queues, "a")
    with pytest.raises(AlreadyHeld):
        joined(queues, "a")
    queues.leave(turn)
    assert joined(queues, "b").ready.is_set()


def test_clean_ups_have_no_owner_and_queue_like_others(queues: LocalQueues) -> None:
    joined(queues, None)
    assert not joined(queues, None).ready.is_set()


def test_only_an_idle_key_is_joined_if_idle(queues: LocalQueues) -> None:
    turn = Turn("k", None)
    assert queues.join_if_idle(turn)
    assert turn.ready.is_set()
    late = Turn("k", None)
    assert not queues.join_if_idle(late)
    assert queues.position(late) is None
    queues.leave(turn)
    assert queues.join_if_idle(late)


def test_threads_pass_every_turn_on(queues: LocalQueues) -> None:
    served: list[int] = []
    running = threading.Semaphore(1)

    def work(number: int) -> None:
        for _ in range(25):
            turn = joined(queues, object())
            done = threading.Event()
            turn.ready.subscribe(done.set)
            assert done.wait(5)
            assert running.acquire(blocking=False), "two had the turn"
            served.append(number)
            running.release()
            queues.leave(turn)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(served) == 150


def test_a_place_beside_is_next_and_only_for_another_session(queues: LocalQueues) -> None:
    head, waiting, beside = Turn("k", "one"), Turn("k", "two"), Turn("k", None)
    queues.join(head)
    queues.join(waiting)
    assert not queues.join_beside(beside, "s")  # whose the head's is, is not known yet
    head.session = "s"
    assert not queues.join_beside(beside, "s")
    assert queues.join_beside(beside, "t")
    queues.leave(head)
    assert not waiting.ready.is_set()
    queues.leave(beside)
    assert waiting.ready.is_set()


def test_a_place_beside_nobody_is_the_turn(queues: LocalQueues) -> None:
    beside = Turn("k", None)
    assert queues.join_beside(beside, "s")
    assert beside.ready.is_set()
