"""Calling users' functions on an event loop: plain ones, and ones that return something to be awaited.

Rules
- Functions in order begin when the one before has ended, what it returned has been awaited too.
- One that never ends keeps later ones of the same order from being called, and nothing else. Raising
  ``until`` cancels a function that is still awaited.
"""

from __future__ import annotations

from collections import deque
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from consul_coord.aio import backend
from consul_coord.errors import InvalidArgument
from consul_coord.models import _validate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from consul_coord.io import Signal
    from consul_coord.recipes.client import ClientState

T = TypeVar("T")

check_callbacks = _validate.functions
check_work = _validate.work


async def outcome(name: str, result: Awaitable[T]) -> T:
    """Return what work came to. Raises InvalidArgument for what can't be awaited."""
    _check_result(name, result)
    return await result


async def finish(name: str, result: Awaitable[object]) -> InvalidArgument | None:
    """Await what work has returned; what can't be awaited is refused by what this returns."""
    try:
        _check_result(name, result)
    except InvalidArgument as refusal:
        return refusal
    await result
    return None


def _check_result(name: str, result: object) -> None:
    if not isawaitable(result):
        _validate.refuse_kind(
            f"what {name} returns", result, "something to await, as a coroutine function gives"
        )


class AsyncCallbacks:
    """The functions of one user."""

    def __init__(self, core: ClientState) -> None:
        self._core = core
        self._waiting: deque[
            tuple[Callable[[], object], Callable[[BaseException], object], Signal | None]
        ] = deque()
        self._awaiting = False

    def in_order(
        self,
        function: Callable[[], object],
        failed: Callable[[BaseException], object],
        *,
        until: Signal | None = None,
    ) -> None:
        """Call a function when those handed over before have ended; what it raises goes to ``failed``."""
        self._waiting.append((function, failed, until))
        self._core.host.call_back(self._call_waiting)

    def _call_waiting(self) -> Coroutine[Any, Any, None] | None:
        """Call what waits, up to the first that has to be awaited: returns that, for a task of its own."""
        while self._waiting and not self._awaiting:
            function, failed, until = self._waiting.popleft()
            try:
                answer = function()
            except BaseException as error:
                if not backend.is_own(error):
                    raise
                failed(error)
                continue
            if isawaitable(answer):
                self._awaiting = True
                return self._finish(answer, failed, until)
        return None

    async def _finish(
        self, answer: Awaitable[object], failed: Callable[[BaseException], object], until: Signal | None
    ) -> None:
        try:
            await _answer_of(answer, until)
        except BaseException as error:
            if not backend.is_own(error):
                raise
            failed(error)
        finally:
            self._awaiting = False
            self._core.host.call_back(self._call_waiting)

    def ask(
        self,
        function: Callable[[], object],
        answered: Callable[[object], object],
        failed: Callable[[BaseException], object],
        *,
        until: Signal,
    ) -> None:
        """Call a function soon; what it returns goes to ``answered``, what it raises to ``failed``."""

        async def call() -> None:
            try:
                answer = function()
                if isawaitable(answer):
                    answer = await _answer_of(answer, until)
            except BaseException as error:
                if not backend.is_own(error):
                    raise
                failed(error)
            else:
                answered(answer)

        self._core.host.call_back(call)


async def _answer_of(awaitable: Awaitable[object], until: Signal | None) -> object:
    """Return what something comes to; None if it was cancelled because ``until`` was raised."""
    if until is None:
        return await awaitable
    with anyio.CancelScope() as scope:
        wake = backend.current_waker()
        forget = until.subscribe(lambda: wake(scope.cancel))
        try:
            return await awaitable
        finally:
            forget()
    return None
