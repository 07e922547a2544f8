"""Do something at each line that a module runs, as another thread does there.

The simulator and the scripted IO let nothing happen while a program goes on. A client's threads do: what one
of them is told may come between its look and its wait.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, ModuleType


class Line:
    """One line of a run, counted from 0."""

    def __init__(self, number: int, module: ModuleType) -> None:
        self.number = number
        self.reached = ""
        """Where that is; empty if the run ended before."""
        self._file = module.__file__
        self._left = number
        self._act: Callable[[], object] | None = None

    def run(self, program: Callable[[], object], *, act: Callable[[], object]) -> None:
        """Run a program, and do something else just before this line of it."""
        self._act = act
        was = sys.gettrace()
        sys.settrace(self._called)
        try:
            program()
        finally:
            sys.settrace(was)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        return self._at if frame.f_code.co_filename == self._file else None

    def _at(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        if event == "line" and not self.reached:
            self._left -= 1
            if self._left < 0 and self._act is not None:
                self.reached = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                self._act()
        return self._at


def each_line(module: ModuleType) -> Iterator[Line]:
    """Yield one line after the other, until a run ends before one."""
    for number in itertools.count():
        line = Line(number, module)
        yield line
        if not line.reached:
            assert number, "the module ran"
            return
