"""Have something done in the main thread at any place where CPython may run a signal handler.

The interpreter looks for signals when a function is entered, after a call into C, and at a jump backward. It
looks for *pending calls* at the same places, in the same breath. So a pending call that asks to be called
again, each time, is called at every such place, and what it does there a signal handler could do: raise an
exception, or call the client.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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


class _Pending:
    """Is called at every place, as long as it is armed."""

    def __init__(self, at: int | None, handler: Callable[[], object]) -> None:
        self.armed = True
        self.active = False
        self.calls = 0
        self.struck = ""
        self._left = -1 if at is None else at * _CALLS_PER_PLACE
        self._handler = handler

    def ask(self) -> None:
        _add(_IS_TRUE, id(self))

    def __bool__(self) -> bool:
        if not self.armed:
            return False
        frame = sys._getframe(1)
        if self.active and not frame.f_code.co_filename.startswith(_LEFT_OUT):
            self.calls += 1
            if self.calls > self._left >= 0:
                self.armed = False
                self.struck = _told(frame)
                self._handler()
                return False
        self.ask()
        return False


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


def strike(act: Callable[[], object], at: int | None, *, handler: Callable[[], object] = raises) -> Strike:
    """Run ``act``, and the handler at its ``at``-th place, counted from 0; never for None."""
    pending = _Pending(at, handler)
    raised = False
    collects = gc.isenabled()
    gc.disable()  # whose finalizers would run at other places each time
    pending.ask()
    try:
        pending.active = True
        act()
        pending.active = False
    except (Struck, StruckError):
        raised = True
    finally:
        pending.active = pending.armed = False
        _settle()
        if collects:
            gc.enable()
    return Strike(pending.calls // _CALLS_PER_PLACE, pending.struck, raised)


def _settle() -> None:
    """Pass places enough for the last pending call to be gone before its object is."""
    for _ in range(100):
        pass


_CALLS_PER_PLACE = 1
"""How often a pending call that asks for more is called at one place, by this version of CPython."""


def _measured() -> int:
    if sys.getprofile() is not None:  # each pending call would make the next one due before it is over
        pytest.skip("a profiler runs", allow_module_level=True)
    namespace: dict[str, Callable[[], object]] = {}
    exec(compile("def entered(): pass", "elsewhere", "exec"), namespace)  # one place: its entry
    return strike(namespace["entered"], None).places


_CALLS_PER_PLACE = _measured()
