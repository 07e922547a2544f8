"""Running programs in virtual time: each is resumed by events, and suspends until the next one.

Rules
- A program suspends at one ``Wakeup`` at a time. The first one that fires it decides its result; the program
  goes on in an event of its own, never inside the other's.
- A program is never closed, always thrown into: at a cancellation, at a Ctrl-C, at the crash of its process.
- A cancellation waits for the end of a shield, as on an event loop. A Ctrl-C does not, as in blocking code.
- Where a process has crashed, every step of what is left of its programs raises ``Crashed``, and none has any
  effect on the world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from consul_coord.io import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from consul_coord.testing.simulation.diary import Diary
    from consul_coord.testing.simulation.scheduler import Event
    from consul_coord.testing.simulation.threads import Threads

T = TypeVar("T")


class Cancelled(BaseException):
    """The task was cancelled from outside."""


class Crashed(BaseException):
    """The process is no more."""


class Runner(Protocol):
    """The runner of programs: a process."""

    @property
    def crashed(self) -> bool:
        """Whether it is no more."""
        ...

    running: SimTask | None
    """The task that goes on, or went on last."""
    threads: Threads | None
    """Its threads, if one of them may stand still amid a step."""

    def soon(self, action: Callable[[], object], *, thread: object = None) -> Event:
        """Have something happen as soon as the process comes to it, or that thread of it."""
        ...


class Wakeup:
    """One suspension of a program, ended by the first ``fire``."""

    __slots__ = ("_outcome", "_task", "undo")

    def __init__(self, task: SimTask) -> None:
        self._task = task
        self._outcome: Callable[[], Any] | None = None
        self.undo: list[Callable[[], object]] = []
        """The function to be called once the program goes on."""

    def fire(self, outcome: Callable[[], object]) -> None:
        """End the suspension: ``outcome()`` gives what the program gets, or raises it."""
        if self._outcome is None:
            self._outcome = outcome
            self._task.runner.soon(self._task.step, thread=self._task.thread)

    def __await__(self) -> Generator[None, None, Any]:
        self._task.parked_at = self
        try:
            yield
        finally:
            self._task.parked_at = None
            while self.undo:
                self.undo.pop(0)()
        # A reply that is still to come may refer to this, and the outcome to all that the call has.
        outcome, self._outcome = self._outcome, _over
        if self._task.runner.crashed or outcome is None:
            raise Crashed
        return outcome()


def _over() -> None:
    """Stand for an outcome that the program has got."""


class SimTask:
    """One program of a process, from its start to its end."""

    def __init__(
        self, runner: Runner, name: str, *, on_failure: Callable[[str, BaseException], object]
    ) -> None:
        self.runner = runner
        self.name = name
        self.done = Signal()
        self.sent = 0
        """How many requests it has sent."""
        self.has_waited = False
        """Whether it has begun to: one that was started twice ends before that."""
        self.wants_present = False
        """Whether its present call is to answer by what is so now, whatever an old leader knows."""
        self.diary: Diary | None = None
        """Where its present call's requests are written down, if that is judged by them."""
        self.shields = 0
        """How many clean-ups are under way, one within the other."""
        self.parked_at: Wakeup | None = None
        self.thread: object = self
        """The thread that runs it: one of its own, if it is a user's."""
        self._on_failure = on_failure
        self._program: Coroutine[Any, Any, object] | None = None
        self._started = False
        self._cancelled = False

    def start(self, program: Coroutine[Any, Any, object]) -> None:
        """Begin, in an event of its own."""
        self._program = program
        self.runner.soon(self.step, thread=self.thread)

    def cancel(self) -> None:
        """Ask the program to end, after what is shielded; every later step outside a shield says so again."""
        self._cancelled = True
        if self.parked_at is not None and not self.shields:
            self.parked_at.fire(_raise_cancelled)

    def uncancel(self) -> None:
        """Forget the cancellation: the program has dealt with it."""
        self._cancelled = False

    def strike(self) -> None:
        """Raise a KeyboardInterrupt where the program waits, shielded or not."""
        if self.parked_at is not None:
            self.parked_at.fire(_raise_interrupt)

    def suspend(self) -> Wakeup:
        """Return what the program is to await next; raises what keeps it from waiting."""
        if self.runner.crashed:
            raise Crashed
        if self._cancelled and not self.shields:
            raise Cancelled
        return Wakeup(self)

    def step(self) -> None:
        """Go on until the next suspension, or the end."""
        program = self._program
        if program is None:
            return
        self._started = True
        self.runner.running = self
        threads = self.runner.threads
        try:
            if threads is None:
                program.send(None)
            else:
                threads.send(program)
        except StopIteration:
            self._end()
        except (Cancelled, Crashed, KeyboardInterrupt):
            self._end()
        except Exception as error:  # noqa: BLE001 - reported, as every driver does
            self._end()
            self._on_failure(self.name, error)

    def abandon(self) -> None:
        """Let what is left of the program run out: its process has crashed."""
        if self._program is not None and not self._started:
            self._program.close()  # without a frame yet: nothing in it runs
            self._end()
        while self._program is not None:
            self.step()

    def _end(self) -> None:
        self._program = None
        self.done.set()


def _raise_cancelled() -> NoReturn:
    raise Cancelled


def _raise_interrupt() -> NoReturn:
    raise KeyboardInterrupt
