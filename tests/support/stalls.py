"""How late the machine itself is: the slack that a bound on punctuality needs while others keep it busy.

Rules
- Measured while the test runs, by a thread that only waits: nobody here could help what it is late.
- On an idle machine it is next to nothing, so that a bound stays a bound.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

NAP: Final = 0.005
WAKE_UPS: Final = 3
"""To tell a thread of something at a time: a timer, an event loop, the thread."""


class Stalls:
    """The longest that a thread has been late."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)

    @property
    def slack(self) -> float:
        """Seconds that the telling of an event may have been held up by the machine."""
        return WAKE_UPS * self._longest

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            self._over.wait(NAP)
            self._longest = max(self._longest, time.monotonic() - began - NAP)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def stalls() -> Generator[Stalls, None, None]:
    """Measure while the block runs."""
    measured = Stalls()
    measured.start()
    try:
        yield measured
    finally:
        measured.stop()


@contextmanager
def lasting(*, least: float = 0.0, most: float, calls: int = 1) -> Generator[None, None, None]:
    """Assert how many seconds the block takes, apart from what the machine is late for each of its calls."""
    with stalls() as measured:
        began = time.monotonic()
        yield
        took = time.monotonic() - began
    bound = most + calls * measured.slack
    assert least <= took < bound, f"{took:.3f} s, not {least} to {bound:.3f}"
