"""Raising LockLost into a block of the main thread, at the moment of the loss.

Rules
- CPython runs signal handlers in the main thread only, between any two instructions there; and a signal ends
  a system call that sleeps or reads. So a loss sends the main thread ``SIGNAL``, and the handler raises.
- It raises into the innermost block whose hold is lost: once for each block, after the block was entered and
  before it is left. It does not raise while this package gives something back, in whichever block. The signal
  is sent again until it has raised, or the block is left.
- The handler is there while such a block is, and then the one before it again. A signal that somebody else
  sends goes to that one.
- The interpreter drops what is raised in a finalizer, or in the callback of a weak reference, and tells
  ``sys.unraisablehook``. A loss that was dropped there is raised again, unless that code caught it, or raised
  something else in its place.
- ``SIGNAL`` is one that does nothing by default: one that comes late does no harm.
- A forked child has none of its parent's blocks to interrupt.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from consul_coord.errors import InvalidArgument
from consul_coord.io import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType

    from consul_coord.errors import LockLost
    from consul_coord.io import IO, Host

SIGNAL: signal.Signals | None = getattr(signal, "SIGURG", None)
"""The signal that is sent to the main thread at a loss; None where there is no such thing."""
AGAIN = 0.01
"""Seconds after which it is sent again, when it could not raise."""
LONGEST_PAUSE = 1.0
"""Seconds, at most, between two looks at whether there is something to raise still."""
_MOST_CAUSES = 10
_LEFT_ALONE = frozenset(
    {"__exit__", "leave", "release", "give_back", "close", "_give_up", "stop", "resign", "record", "dropped"}
)
"""The functions of this package that no loss is raised into.

They give something back, record a run, or hear of an exception that the interpreter has dropped.
"""


class Block(Protocol):
    """A block that may be interrupted."""

    def is_inside(self) -> bool:
        """Return whether its body runs: it was entered, and is not being left."""
        ...

    def loss(self) -> LockLost | None:
        """Return the error of the loss of its hold, if that is lost."""
        ...


class Interruption:
    """The object that raises a loss into one block, which keeps it for as long as it lasts."""

    def __init__(self, block: Block, over: Signal, host: Host) -> None:
        self._block = weakref.ref(block)
        self._news = Signal()
        """Raised when the hold, or the block, has ended."""
        self._unsubscribe = over.subscribe(self._news.set)
        self.ended = False
        """Whether the block is left."""
        self._raised: weakref.ref[LockLost] | None = None
        """The error that it has raised; None again when that was dropped."""
        self.was_dropped = Signal()
        """Raised when the present error is dropped."""
        _open.append(weakref.ref(self, _gone))
        _install()
        host.spawn(_knocking(weakref.ref(self), self._news), name="interrupt a block at its loss")

    def due(self) -> LockLost | None:
        """Return what is to be raised into the body now, if anything."""
        block = self._block()
        done = self.ended or not self.is_pending()
        return None if done or block is None or not block.is_inside() else block.loss()

    def raising(self, error: LockLost) -> LockLost:
        """Take note that an error is raised; returns it."""
        self._raised = weakref.ref(error)
        return error

    def dropped(self, error: BaseException | None) -> bool:
        """Raise the loss again, if the interpreter has dropped that very error; returns whether it did."""
        if error is None or self.ended or self._raised is None or self._raised() is not error:
            return False
        news, self.was_dropped = self.was_dropped, Signal()
        self._raised = None
        news.set()
        return True

    def is_pending(self) -> bool:
        """Return whether it has raised nothing, or the interpreter has dropped that."""
        return self._raised is None

    def is_over(self) -> bool:
        """Return whether it will raise nothing more: the block is left, or its error has arrived."""
        block = self._block()
        arrived = self._raised is not None and self._raised() is None
        return self.ended or arrived or block is None or block.loss() is None

    def end(self) -> None:
        """Be done, and let the former handler have its place. Repeatable."""
        self.ended = True
        self._unsubscribe()
        self._news.set()
        _restore()
        with suppress(ValueError):
            _open.remove(weakref.ref(self))  # so that no callback runs, where an interrupt would be lost


_open: list[weakref.ref[Interruption]] = []
"""Those whose blocks there are, the innermost last."""
_former: list[Callable[[int, FrameType | None], object] | int] = []
"""The handler in whose place ours is; empty when ours is not there."""
_sent: dict[None, None] = {}
"""Not empty when the signal was sent here, and not received so far."""


def _gone(ref: weakref.ref[Interruption]) -> None:
    """Forget one whose block is gone. Where its end was interrupted, this is what puts the handler back."""
    with suppress(ValueError):
        _open.remove(ref)
    _restore()


def require_main_thread() -> None:
    """Return if a block here can be interrupted. Raises InvalidArgument."""
    if SIGNAL is None or not hasattr(signal, "pthread_kill"):
        why = "this system can't send a signal to one thread"
    elif threading.current_thread() is not threading.main_thread():
        why = "this is another thread, and Python runs signal handlers in the main thread only"
    elif signal.getsignal(SIGNAL) is None:
        why = f"{SIGNAL.name} is handled by something that is not Python, which could not be put back"
    else:
        return
    message = f"interrupt=True works in the main thread only: {why}. Look at hold.lost or call hold.check()"
    raise InvalidArgument(message)


def _install() -> None:
    if SIGNAL is not None and not _former:
        former = signal.getsignal(SIGNAL)  # noted before ours takes its place: it can't get lost
        _former.append(signal.SIG_DFL if former is None else former)
    if SIGNAL is not None:
        signal.signal(SIGNAL, _received)
    _listen()


class _Hook:
    """A ``sys.unraisablehook`` that has a loss raised again, and passes on all else."""

    def __init__(self, former: Callable[[sys.UnraisableHookArgs], object]) -> None:
        self.former = former

    def dropped(self, unraisable: sys.UnraisableHookArgs) -> None:
        error, causes = unraisable.exc_value, 0
        # Another loss may have been raised from it, by an inner block.
        while error is not None and causes < _MOST_CAUSES and not _is_raised_again(error):
            error, causes = error.__cause__, causes + 1
        if error is None or causes:
            self.former(unraisable)

    __call__ = dropped


def _is_raised_again(error: BaseException) -> bool:
    return any(one is not None and one.dropped(error) for one in [ref() for ref in _open.copy()])


def _listen() -> None:
    """Have the hook be ours, unless it is. Others may take it away again, and put back what they found."""
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)


def _restore() -> None:
    """Put the former handler back if no block needs ours; from another thread, have the main thread do so."""
    needed = any(one is not None and not one.ended for one in [ref() for ref in _open.copy()])
    former = _former.copy()  # a signal that comes in the midst of this empties it
    if SIGNAL is None or not former or needed:
        return
    if threading.current_thread() is not threading.main_thread():
        _send()
        return
    hook = sys.unraisablehook
    if isinstance(hook, _Hook):
        sys.unraisablehook = hook.former
    signal.signal(SIGNAL, former[0])
    _former.clear()


def _send() -> None:
    ident = threading.main_thread().ident
    if SIGNAL is not None and ident is not None:
        _sent[None] = None
        signal.pthread_kill(ident, SIGNAL)


def _received(number: int, frame: FrameType | None) -> None:
    """Raise what is due, into whatever runs; else let the former handler have the signal."""
    ours = _sent.pop(None, _sent) is None
    former = _former[0] if _former else signal.SIG_DFL
    for ref in reversed(_open.copy()):
        interruption = ref()
        error = None if interruption is None else interruption.due()
        if interruption is not None and error is not None:
            if _is_left_alone(frame):
                return
            _listen()  # another may have taken its place since the block was entered
            try:
                raise interruption.raising(error)
            finally:
                # Its traceback keeps this frame, which would keep it: a circle, and all of the body in it.
                del error, interruption
    _restore()
    if not ours and callable(former):
        former(number, frame)


def _is_left_alone(frame: FrameType | None) -> bool:
    """Return whether a function of this package that is not to be interrupted is on the stack."""
    while frame is not None:
        if frame.f_code.co_name in _LEFT_ALONE and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False


_PACKAGE = __name__.partition(".")[0] + "."


def _knocking(
    interruption: weakref.ref[Interruption], news: Signal
) -> Callable[[IO], Coroutine[Any, Any, None]]:
    async def knock(io: IO) -> None:
        await io.wait(news)
        pause = AGAIN
        while (one := interruption()) is not None and not one.is_over():
            was_dropped = one.was_dropped
            if one.is_pending():
                pause = AGAIN
                _send()
            del one
            await io.wait(was_dropped, deadline=io.now() + pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    return knock


def _forked() -> None:
    _open.clear()
    with suppress(ValueError):  # the child's thread is not its main one
        _restore()


os.register_at_fork(after_in_child=_forked)
