"""The inbox: what wakes the thread that decides."""

from __future__ import annotations

import signal
import threading

from consul_coord.cli.inbox import ChildEnded, Inbox, Signalled


def test_a_signal_that_another_thread_has_received_is_heard_of() -> None:
    """The kernel gives a signal to any thread, as after a stop, and wakes no other one."""
    inbox, received = Inbox(), threading.Event()

    def receive() -> None:
        received.wait(0.5)  # by then the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        if not received.wait(10.0):
            inbox.put(ChildEnded())

    other = threading.Thread(target=receive)
    with inbox.signals({signal.SIGUSR1}):
        other.start()
        fact = inbox.get()
        received.set()
        other.join()
    assert fact == Signalled(signal.SIGUSR1)


def test_a_wait_ends_at_its_time() -> None:
    inbox = Inbox()
    assert inbox.get(0.0) is None
    assert inbox.get(0.5) is None
    inbox.put(ChildEnded())
    assert inbox.get(0.0) == ChildEnded()


def test_signals_are_received_for_as_long_as_asked_and_former_handlers_come_back() -> None:
    received: list[int] = []

    def former(number: int, _: object) -> None:
        received.append(number)

    def kill(number: int) -> None:
        signal.pthread_kill(threading.get_ident(), number)

    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    signal.signal(signal.SIGUSR1, former)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    inbox = Inbox()
    try:
        for _ in range(2):
            with inbox.signals({signal.SIGUSR1, signal.SIGUSR2}):
                kill(signal.SIGUSR1)
                kill(signal.SIGUSR2)
                assert inbox.get(10.0) == Signalled(signal.SIGUSR1)
                assert inbox.get(0.0) is None, "what was ignored stays ignored"
            assert signal.getsignal(signal.SIGUSR1) is former
            assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
        assert received == []
        kill(signal.SIGUSR1)
        assert received == [signal.SIGUSR1]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
