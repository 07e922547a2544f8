"""Calling users' functions for blocking code: on the client's callback thread, one after the other.

Rules
- Nothing awaits here, so a coroutine function is refused where it is given. A function that can't be known as
  one is refused by its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from consul_coord.errors import InvalidArgument
from consul_coord.models import _validate

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.io import Signal
    from consul_coord.recipes.client import ClientState

T = TypeVar("T")


def check_callbacks(**given: object) -> None:
    """Refuse what can't be called, or would have to be awaited; None stands for no function."""
    _validate.plain(_validate.BLOCKING, **given)


def check_work(name: str, function: object) -> None:
    """Refuse what can't be called, and what would not be done when the call returns."""
    _validate.work(name, function)
    _validate.plain(_validate.BLOCKING, **{name: function})


def outcome(name: str, result: T) -> T:
    """Return what work came to. Raises InvalidArgument for what is still to be awaited."""
    _validate.done(name, result)
    return result


def finish(name: str, result: object) -> InvalidArgument | None:
    """Take what work has returned; what is still to be awaited is refused by what this returns."""
    try:
        _validate.done(name, result)
    except InvalidArgument as refusal:
        return refusal
    return None


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
                answer = outcome("a callback", function())
            except BaseException as error:  # noqa: BLE001 - a user's bug, for its owner to report
                failed(error)
            else:
                answered(answer)

        self._core.host.call_back(call)
