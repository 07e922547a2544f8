# Made from consul_coord/aio/watch.py by `python tools/make_sync.py`: change that one.
"""Watches for blocking code: what ``client.kv.watch`` and its kin return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from consul_coord.base_client import Entered
from consul_coord.io import Signal

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from consul_coord.models import Result
    from consul_coord.recipes.watch.follow import Follower
    from consul_coord.sync.runner import Runner

T = TypeVar("T")


class Watch(Entered, Generic[T]):
    """Iterates over the states of something on the server: the present one first, then each change once.

    It may skip states between two looks, but never the latest. It retries with growing pauses while the agent
    is away. Raises refusals of the server, and ClientClosed. Leaving it as a context manager closes it.
    """

    def __init__(self, runner: Runner, follower: Follower[T]) -> None:
        self._runner = runner
        self._follower = follower
        self._closed = Signal()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Result[T]:
        if self._closed.is_set():
            raise StopIteration
        self._follower.bound = self._runner.core.watches
        result = self._runner.call(self._follower.change, until=self._closed)
        if result is None:
            raise StopIteration
        return result

    def close(self) -> None:
        """End the iteration within 100 ms, from any thread or task; do nothing if it has ended."""
        self._closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Watch: {'closed' if self._closed.is_set() else 'open'}>"
