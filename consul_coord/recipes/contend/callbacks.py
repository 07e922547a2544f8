"""How the functions that users give are called: never by the program itself, which would wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.io import Signal


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
