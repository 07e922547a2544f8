"""Have something done in the main thread at any place where CPython may run a signal handler.

The interpreter looks for signals when a function is entered, after a call into C, and at a jump backward.
Up to Python 3.12 it looks for *pending calls* at the same places, in the same breath. So a pending call that
asks to be called again, each time, is called at every such place, and what it does there a signal handler
could do: raise an exception, or call the client. Later versions call it a few times only. There
``sys.monitoring`` reports entries, returns from C and jumps, and its callback may do the same.

Rules
- Places in the tests' own code do not count: what an application does there is its own affair. Nor do those
  in ``logging``, which up to Python 3.12 keeps a handler locked when it is interrupted at the wrong moment.
- One run is struck once. What is raised is new each time, so that it keeps nothing of an earlier run alive.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_OWN = str(Path(__file__).parent)
_LEFT_OUT = (_OWN, str(Path(logging.__file__).parent))
_add = ctypes.pythonapi.Py_AddPendingCall
_add.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
# Called with an object, it calls that object's __bool__ and hands on what it raises.
_IS_TRUE = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
_monitoring: Any = getattr(sys, "monitoring", None)  # since Python 3.12
_TOOL = 3
"""Of ``sys.monitoring``: one that neither a debugger nor a profiler nor coverage takes."""


class Struck(BaseException):
    """As a KeyboardInterrupt."""


class StruckError(Exception):
    """As what a time limit of a task queue raises."""


@dataclass(frozen=True, slots=True)
class Strike:
    """What became of one run."""

    places: int
    """How many places it passed."""
    at: str
    """Where it was struck; empty when it was over before."""
    raised: bool
    """Whether the exception came out of it. The interpreter drops one that a finalizer raises."""


class _Places(ABC):
    """The places that a run passes, and the one where it is struck."""

    def __init__(self, at: int | None, handler: Callable[[], object]) -> None:
        self.armed = True
        self.active = False
        self.calls = 0
        self.struck = ""
        self._left = -1 if at is None else at * _CALLS_PER_PLACE
        self._handler = handler

    def passed(self, frame: FrameType) -> None:
        """Take note of a place; do there what is to be done if it is the one."""
        if self.active and not frame.f_code.co_filename.startswith(_LEFT_OUT):
            self.calls += 1
            if self.calls > self._left >= 0:
                self.active = self.armed = False
                self.struck = _told(frame)
                self._handler()

    @abstractmethod
    def begin(self) -> None:
        """Be called at places from now on, as long as it is armed."""

    @abstractmethod
    def end(self) -> None:
        """Be called no more."""


class _Pending(_Places):
    """Is found by pending calls."""

    def begin(self) -> None:
        _add(_IS_TRUE, id(self))

    def end(self) -> None:
        # Pass places enough for the last pending call to be gone before its object is.
        for _ in range(100):
            pass

    def __bool__(self) -> bool:
        if self.armed:
            self.passed(sys._getframe(1))
        if self.armed:
            self.begin()
        return False


class _Monitored(_Places):
    """Is found by ``sys.monitoring``, which reports the places of all threads."""

    def begin(self) -> None:
        self._thread, events = threading.get_ident(), _monitoring.events
        _monitoring.use_tool_id(_TOOL, "interrupts")
        for event in (events.PY_START, events.PY_RESUME, events.C_RETURN):
            _monitoring.register_callback(_TOOL, event, self._passed)
        _monitoring.register_callback(_TOOL, events.JUMP, self._jumped)
        # Returns from C are reported along with calls, or not at all.
        calls = events.CALL | events.C_RETURN | events.C_RAISE
        _monitoring.set_events(_TOOL, events.PY_START | events.PY_RESUME | calls | events.JUMP)

    def end(self) -> None:
        _monitoring.set_events(_TOOL, 0)
        _monitoring.free_tool_id(_TOOL)

    def _passed(self, *_: object) -> None:
        if self.active and threading.get_ident() == self._thread:
            self.passed(sys._getframe(1))

    def _jumped(self, _: object, origin: int, destination: int) -> None:
        if destination < origin and self.active and threading.get_ident() == self._thread:
            self.passed(sys._getframe(1))


def _told(frame: FrameType | None) -> str:
    lines: list[str] = []
    while frame is not None and not frame.f_code.co_filename.startswith(_OWN):
        code = frame.f_code
        path = code.co_filename.partition("consul_coord/")[2] or Path(code.co_filename).name
        lines.append(f"{path}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return " < ".join(lines)


def raises(kind: type[BaseException] = Struck) -> None:
    """Do what most signal handlers do."""
    raise kind


_KIND = _Pending if sys.version_info < (3, 13) else _Monitored


def strike(act: Callable[[], object], at: int | None, *, handler: Callable[[], object] = raises) -> Strike:
    """Run ``act``, and the handler at its ``at``-th place, counted from 0; never for None."""
    places = _KIND(at, handler)
    raised = False
    collects = gc.isenabled()
    gc.disable()  # whose finalizers would run at other places each time
    places.begin()
    try:
        places.active = True
        act()
        places.active = False
    except (Struck, StruckError):
        raised = True
    finally:
        places.active = places.armed = False
        places.end()
        if collects:
            gc.enable()
    return Strike(places.calls // _CALLS_PER_PLACE, places.struck, raised)


_CALLS_PER_PLACE = 1
"""How often one place is reported by this version of CPython: it may call pending calls several times."""


def _measured() -> int:
    if sys.getprofile() is not None:  # each pending call would make the next one due before it is over
        pytest.skip("a profiler runs", allow_module_level=True)
    namespace: dict[str, Callable[[], object]] = {}
    exec(compile("def entered(): pass", "elsewhere", "exec"), namespace)  # one place: its entry
    return strike(namespace["entered"], None).places


_CALLS_PER_PLACE = _measured()
