"""Threads for calls that can't be interrupted: one does those that follow each other, and ends after them."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from consul_coord.http.transport import bounded
from consul_coord.http.transport.bounded import call_aside, call_bounded
from tests.support.sites import eventually
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Callable


class Idle(deque[Any]):
    """The inboxes of idle threads; one that gives up finds that a caller has just taken it."""

    taken: Any = None
    """The call that this caller puts in, then."""
    gone = 0

    def append(self, inbox: Any) -> None:
        time.sleep(0.02)  # the fault: a caller that is woken too early finds no idle thread
        super().append(inbox)

    def remove(self, inbox: Any) -> None:
        super().remove(inbox)
        self.gone += 1
        if self.taken is not None:
            call, self.taken = self.taken, None
            threading.Timer(0.05, lambda: inbox.put(call)).start()
            raise ValueError("it is taken")


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Idle:
    idle = Idle()
    monkeypatch.setattr(bounded, "_idle", idle)
    return idle


@pytest.mark.usefixtures("idle")
def test_calls_that_follow_each_other_are_done_by_one_thread() -> None:
    assert len({call_bounded(threading.current_thread, timeout=10.0) for _ in range(20)}) == 1


def test_a_thread_for_which_no_call_comes_ends_and_is_given_none(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "PATIENCE", 0.01)
    first = call_bounded(threading.current_thread, timeout=10.0)
    first.join(10.0)
    assert not first.is_alive()
    assert not idle
    assert call_bounded(threading.current_thread, timeout=10.0) is not first


def test_a_call_that_is_handed_over_just_when_the_thread_gives_up_is_done(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "PATIENCE", 0.01)
    done_by: list[threading.Thread] = []
    function: Callable[[], None] = lambda: done_by.append(threading.current_thread())  # noqa: E731
    idle.taken = bounded._Call(function)
    thread = call_bounded(threading.current_thread, timeout=10.0)
    eventually(lambda: done_by)
    assert done_by == [thread]
    thread.join(10.0)
    assert idle.gone == 2, "it was idle again, and then gave up"


RAISED = (OSError("made up"), SystemExit(3), KeyboardInterrupt(), GeneratorExit())
WAYS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "blocking": lambda function: call_bounded(function, timeout=20.0),
    "on a loop": lambda function: anyio.run(call_aside, function),
}


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_call_raises_its_caller_gets_at_once_and_the_thread_does_the_next_one(
    way: str, error: BaseException
) -> None:
    called: list[threading.Thread] = []

    def failing() -> None:
        called.append(threading.current_thread())
        raise error

    with lasting(most=10.0), pytest.raises(type(error)) as caught:
        WAYS[way](failing)
    assert caught.value is error
    assert WAYS[way](threading.current_thread) is called[0]
