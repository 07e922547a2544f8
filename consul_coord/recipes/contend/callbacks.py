"""How the functions that users give are called: never by the program itself, which would wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from consul_coord.io import Signal

if TYPE_CHECKING:
    from collections.abc import Callable


class Callbacks(Protocol):
    """Calls users' functions, never two at once in order.

    ``until`` ends a function that can be ended, because it is being awaited.
    """

    def in_order(
        self,
        function: Callable[[], object],
        failed: Callable[[BaseException], object],
        *,
        until: Signal | None = None,
    ) -> None:
        """Call a function when those handed over before have ended; what it raises goes to ``failed``."""
        ...

    def ask(
        self,
        function: Callable[[], object],
        answered: Callable[[object], object],
        failed: Callable[[BaseException], object],
        *,
        until: Signal,
    ) -> None:
        """Call a function soon; what it returns goes to ``answered``, what it raises to ``failed``."""
        ...


class Answer:
    """The outcome of a function that was asked: a value or an error, or None as long as it has not ended."""

    def __init__(self) -> None:
        self.given = Signal()
        self.value: object = None
        self.error: BaseException | None = None

    def give(self, value: object) -> None:
        """Take what it has returned."""
        self.value = value
        self.given.set()

    def fail(self, error: BaseException) -> None:
        """Take what it has raised."""
        self.error = error
        self.given.set()
