"""Calling users' functions for blocking code: on the client's callback thread, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.io import Signal
    from consul_coord.recipes.client import ClientState


class Callbacks:
    """The functions of one user. The thread itself keeps the order."""

    def __init__(self, core: ClientState) -> None:
        self._core = core

    def in_order(
        self,
        function: Callable[[], object],
        failed: Callable[[BaseException], object],
        *,
        until: Signal | None = None,
    ) -> None:
        """Call a function when those handed over before have ended; what it raises goes to ``failed``."""
        self.ask(function, lambda _: None, failed, until=until)

    def ask(
        self,
        function: Callable[[], object],
        answered: Callable[[object], object],
        failed: Callable[[BaseException], object],
        *,
        until: Signal | None,  # noqa: ARG002 - nothing interrupts blocking code
    ) -> None:
        """Call a function soon; what it returns goes to ``answered``, what it raises to ``failed``."""

        def call() -> None:
            try:
                answer = function()
            except BaseException as error:  # noqa: BLE001 - a user's bug, for its owner to report
                failed(error)
            else:
                answered(answer)

        self._core.host.call_back(call)
