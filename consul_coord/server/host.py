"""A service with a clock: it lets time pass, and brings late replies to whoever waits for them.

Rules
- All access to the service goes through one lock, so a test's thread may advance a virtual clock, look at the
  state or set faults while an event loop serves requests.
- On a stepped clock an alarm runs the timers in the thread that moves the clock; when ``advance`` returns,
  everything that was due has happened. On any other clock a timer of the event loop that serves requests does
  it.
- A late reply is delivered to the event loop that waits for it, asyncio's or trio's, whichever thread caused
  it.
- Threads perform the agent's own checks, and report the results as if by a request.
- When thousands of timers are due at once on a clock that moves by itself, they run in slices, with requests
  served in between. A request may then meet a session that is just about to end.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio

from consul_coord.clock import SteppedClock
from consul_coord.server.loops import running_loop
from consul_coord.server.wire import Blocked

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.clock import Alarm, Clock
    from consul_coord.server.localagent import Probe
    from consul_coord.server.loops import Loop
    from consul_coord.server.service import Service
    from consul_coord.server.wire import Reply, Request

T = TypeVar("T")

_SLICE = 50
"""How many timers run in one go on a clock that moves by itself."""


@dataclass(slots=True)
class Late:
    """A reply that is yet to come; the loop that waits for it is notified."""

    ticket: int
    loop: Loop
    reply: Reply | None = None
    came: anyio.Event = field(default_factory=anyio.Event)

    def deliver(self, reply: Reply) -> None:
        """Bring the reply; from any thread."""
        self.reply = reply
        self.loop.call(self.came.set)


class Host:
    """Serve requests over a service and a clock."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self.service = service
        self.clock = clock
        self._lock = threading.RLock()
        self._late: dict[int, Late] = {}
        self._slice = None if isinstance(clock, SteppedClock) else _SLICE
        self._wakeup: _Wakeup = (
            _Alarmed(clock, self._wake) if isinstance(clock, SteppedClock) else _Looped(clock, self._wake)
        )

    def begin(self, request: Request) -> Reply | Late:
        """Answer a request, or return what to wait for; must be called in an event loop."""
        with self._lock:
            outcome: Reply | Blocked | Late = self.service.handle(
                request, self.clock.now(), timers=self._slice
            )
            if isinstance(outcome, Blocked):
                outcome = Late(outcome.ticket, _required_loop())
                self._late[outcome.ticket] = outcome
            self._settle()
        return outcome

    def withdraw(self, late: Late) -> None:
        """Forget a waiting request; harmless when it has its reply."""
        with self._lock:
            self._late.pop(late.ticket, None)
            self.service.cancel(late.ticket)

    async def sleep(self, seconds: float) -> None:
        """Wait by the server's clock."""
        if not isinstance(self.clock, SteppedClock):
            await anyio.sleep(seconds)
            return
        loop, over = _required_loop(), anyio.Event()
        alarm = self.clock.alarm(self.clock.now() + seconds, lambda: loop.call(over.set))
        try:
            await over.wait()
        finally:
            alarm.cancel()

    def do(self, action: Callable[[float], T]) -> T:
        """Run an action on the state with the present time, alone, and notify its waiters."""
        with self._lock:
            now = self.clock.now()
            self.service.run_timers(now)
            result = action(now)
            self.service.publish(now)
            self._settle()
            return result

    def dismiss(self) -> None:
        """Answer every waiting request with what there is."""
        self.do(self.service.dismiss)

    def close(self) -> None:
        """Stop the timer."""
        with self._lock:
            self._wakeup.cancel()

    def _probed(self, probe: Probe, status: str, output: str) -> None:
        self.do(lambda now: self.service.state.local.probed(probe, status, output, now))

    def _wake(self) -> None:
        with self._lock:
            self.service.run_timers(self.clock.now(), most=self._slice)
            self._settle()

    def _settle(self) -> None:
        if due := self.service.state.local.take_due():
            from consul_coord.server import probes  # with the HTTP client that it needs

            for probe in due:
                probes.start(probe, self._probed)
        for ticket, reply in self.service.ready():
            late = self._late.pop(ticket, None)
            if late is not None:
                late.deliver(reply)
        self._wakeup.at(self.service.next_timer())


def _required_loop() -> Loop:
    loop = running_loop()
    if loop is None:
        raise RuntimeError("requests are served in an event loop, asyncio's or trio's")
    return loop


class _Wakeup(Protocol):
    """A timer that is moved to the next thing due."""

    def at(self, when: float | None) -> None: ...

    def cancel(self) -> None: ...


class _Alarmed:
    """Wakes by an alarm of a stepped clock."""

    def __init__(self, clock: SteppedClock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._when: float | None = None
        self._alarm: Alarm | None = None

    def at(self, when: float | None) -> None:
        if when == self._when:
            return
        self.cancel()
        if when is not None:
            self._when = when
            self._alarm = self._clock.alarm(when, self._go_off)

    def cancel(self) -> None:
        self._when = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _go_off(self) -> None:
        self._when = self._alarm = None
        self._wake()


class _Looped:
    """Wakes by a timer of the running event loop; without one it sleeps until the next request."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._when: float | None = None
        self._loop: Loop | None = None
        self._cancel: Callable[[], object] | None = None

    def at(self, when: float | None) -> None:
        loop = running_loop()
        if loop is None:
            if self._loop is not None:
                self._loop.call(self._wake)
        elif when != self._when or loop != self._loop:
            self._cancel_in(loop)
            self._loop = loop
            if when is not None:
                self._when = when
                self._cancel = loop.call_later(max(0.0, when - self._clock.now()), self._go_off)

    def cancel(self) -> None:
        self._cancel_in(running_loop())

    def _cancel_in(self, loop: Loop | None) -> None:
        if self._cancel is not None and self._loop == loop:
            self._cancel()
        self._when = self._cancel = None

    def _go_off(self) -> None:
        self._when = self._cancel = None
        self._wake()
