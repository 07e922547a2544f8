"""The queue of one client's threads and tasks."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord.errors import AlreadyHeld
from consul_coord.recipes.contend import tickets as module
from consul_coord.recipes.contend.tickets import Ticket, Tickets

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


@pytest.fixture
def queues() -> Tickets:
    return Tickets(threading.RLock())


def joined(queues: Tickets, owner: object, key: str = "k") -> Ticket:
    ticket = Ticket(queues, key, owner)
    queues.join(ticket)
    return ticket


def test_tickets_come_in_order(queues: Tickets) -> None:
    tickets = [joined(queues, owner) for owner in "abc"]
    assert [queues.position(ticket) for ticket in tickets] == [0, 1, 2]
    for number, ticket in enumerate(tickets):
        assert [each.ready.is_set() for each in tickets[number:]] == [True] + [False] * (2 - number)
        queues.leave(ticket)
    assert [queues.position(ticket) for ticket in tickets] == [None] * 3


def test_keys_do_not_stand_in_each_others_way(queues: Tickets) -> None:
    joined(queues, "a", "one")
    assert joined(queues, "b", "two").ready.is_set()


def test_one_who_waits_may_leave(queues: Tickets) -> None:
    first, second, third = (joined(queues, owner) for owner in "abc")
    queues.leave(second)
    queues.leave(first)
    assert third.ready.is_set()
    assert not second.ready.is_set()


def test_leaving_twice_or_without_joining_does_nothing(queues: Tickets) -> None:
    first, second, third = (joined(queues, owner) for owner in "abc")
    queues.leave(Ticket(queues, "k", "a"))
    queues.leave(Ticket(queues, "elsewhere", "a"))
    queues.leave(first)
    queues.leave(first)
    assert second.ready.is_set()
    assert not third.ready.is_set()


def test_who_has_the_turn_may_not_queue_behind_itself(queues: Tickets) -> None:
    ticket = joined(queues, "a")
    with pytest.raises(
        AlreadyHeld, match=r"'k' is already held by this thread or task.*ReentrantLock"
    ) as told:
        joined(queues, "a")
    assert told.value.key == "k"
    assert joined(queues, "a", "another").ready.is_set()
    queues.leave(ticket)
    assert joined(queues, "a").ready.is_set()


def test_who_only_waits_is_not_said_to_have_the_turn(queues: Tickets) -> None:
    """As with a wait that was interrupted, and whose ticket is still there when its thread tries again."""
    first, interrupted, again = (joined(queues, owner) for owner in "abb")
    queues.leave(interrupted)
    queues.leave(first)
    assert again.ready.is_set()
    with pytest.raises(AlreadyHeld):
        joined(queues, "b")


def test_a_refused_turn_is_in_nobodys_way(queues: Tickets) -> None:
    ticket = joined(queues, "a")
    with pytest.raises(AlreadyHeld):
        joined(queues, "a")
    queues.leave(ticket)
    assert joined(queues, "b").ready.is_set()


def test_clean_ups_have_no_owner_and_queue_like_others(queues: Tickets) -> None:
    joined(queues, None)
    assert not joined(queues, None).ready.is_set()


def test_only_an_idle_key_is_joined_if_idle(queues: Tickets) -> None:
    ticket = Ticket(queues, "k", None)
    assert queues.join_if_idle(ticket)
    assert ticket.ready.is_set()
    late = Ticket(queues, "k", None)
    assert not queues.join_if_idle(late)
    assert queues.position(late) is None
    queues.leave(ticket)
    assert queues.join_if_idle(late)


def test_threads_pass_every_turn_on(queues: Tickets) -> None:
    served: list[int] = []
    running = threading.Semaphore(1)

    def work(number: int) -> None:
        for _ in range(25):
            ticket = joined(queues, object())
            done = threading.Event()
            ticket.ready.subscribe(done.set)
            assert done.wait(5)
            assert running.acquire(blocking=False), "two had the ticket"
            served.append(number)
            running.release()
            queues.leave(ticket)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(served) == 150


def test_a_place_beside_is_next_and_only_for_another_session(queues: Tickets) -> None:
    head, waiting, beside = Ticket(queues, "k", "one"), Ticket(queues, "k", "two"), Ticket(queues, "k", None)
    queues.join(head)
    queues.join(waiting)
    assert not queues.join_beside(beside, "s")  # whose the head's is, is not known yet
    closed = Ticket(queues, "k", None)
    assert queues.join_beside(closed, "s", closed=True)  # that one it is not
    queues.leave(closed)
    head.session = "s"
    assert not queues.join_beside(beside, "s")
    assert not queues.join_beside(beside, "s", closed=True)
    assert queues.join_beside(beside, "t")
    assert head.acts
    assert beside.acts
    assert not waiting.acts
    assert not queues.join_beside(Ticket(queues, "k", None), "t")  # which acts already
    queues.leave(head)
    assert not waiting.ready.is_set()
    queues.leave(beside)
    assert waiting.ready.is_set()


def test_a_waiting_ticket_that_acts_beside_goes_past_no_other_one_twice(queues: Tickets) -> None:
    head, waiting, beside = (Ticket(queues, "k", name) for name in ("one", "two", "three"))
    for each in (head, waiting, beside):
        queues.join(each)
    head.session = "s"
    assert queues.join_beside(beside, "t")
    assert queues.queue("k") == [head, beside, waiting]
    with pytest.raises(AlreadyHeld):
        queues.join(Ticket(queues, "k", "three"))
    queues.leave(beside)
    assert queues.queue("k") == [head, waiting]
    assert not beside.acts


def test_a_place_beside_nobody_is_the_turn(queues: Tickets) -> None:
    beside = Ticket(queues, "k", None)
    assert queues.join_beside(beside, "s")
    assert beside.ready.is_set()


def test_the_first_one_acts_though_an_interrupted_leave_has_not_told_it(
    queues: Tickets, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    first, second, third = (joined(queues, owner) for owner in "abc")
    monkeypatch.setattr(queues, "_tell_first", interrupt)
    with pytest.raises(KeyboardInterrupt):
        queues.leave(first)
    monkeypatch.undo()
    assert [each.acts for each in (first, second, third)] == [False, True, False]
    queues.heal()
    assert second.ready.is_set()
    assert not third.ready.is_set()


class Mutex:
    """A mutex that tells when somebody begins to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.moved = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.moved.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Crowd:
    """A queue at which two threads make one call each, the second amid the first."""

    def __init__(self, waiting: int) -> None:
        self.mutex = Mutex()
        self.queues = Tickets(self.mutex)
        self.there = [joined(self.queues, f"there {number}") for number in range(waiting + 1)]
        self.there[0].session = "s"
        if not waiting:
            self.queues.leave(self.there[0])
        self.came = [Ticket(self.queues, "k", owner) for owner in "ab"]
        self.found: list[object] = [None, None]

    def call(self, number: int, name: str) -> None:
        self.found[number] = CALLS[name](self.queues, self.came[number], self.there[0])

    def outcome(self) -> tuple[object, ...]:
        queue = self.queues.queue("k")
        everybody = [*self.there, *self.came]
        return (
            *self.found,
            tuple(map(everybody.index, queue)),
            tuple(each.ready.is_set() and each in queue for each in everybody),
        )

    def meet(self, one: str, other: str, *, at: int) -> bool:
        """Make both calls, the other one when the first has done so much; returns whether it does so much."""
        steps, second = itertools.count(1), threading.Thread(target=self._second, args=[other])
        before = sys.gettrace()

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if frame.f_code.co_filename != module.__file__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and next(steps) == at:
                second.start()
                self.mutex.moved.wait()
            return trace

        sys.settrace(trace)
        try:
            self.call(0, one)
        finally:
            sys.settrace(before)
        if second.ident is None:
            return False
        second.join()
        return True

    def _second(self, name: str) -> None:
        self.call(1, name)
        self.mutex.moved.set()


CALLS: Final[dict[str, Callable[[Tickets, Ticket, Ticket], object]]] = {
    "join": lambda queues, ours, _: queues.join(ours),
    "join if idle": lambda queues, ours, _: queues.join_if_idle(ours),
    "join beside": lambda queues, ours, _: queues.join_beside(ours, "t"),
    "leave": lambda queues, _, first: queues.leave(first),
    "heal": lambda queues, *_: queues.heal(),
}


@pytest.mark.parametrize("waiting", [0, 1], ids=["idle", "busy"])
@pytest.mark.parametrize("one", CALLS)
def test_two_calls_of_one_key_come_one_after_the_other_wherever_they_meet(one: str, waiting: int) -> None:
    for other in CALLS:
        serial = set()
        for first, second in ((0, 1), (1, 0)):
            crowd = Crowd(waiting)
            for number in (first, second):
                crowd.call(number, (one, other)[number])
            serial.add(crowd.outcome())
        at = 0
        for at in itertools.count(1):
            crowd = Crowd(waiting)
            if not crowd.meet(one, other, at=at):
                break
            assert crowd.outcome() in serial, (other, at)
        assert at > 5
