"""The calls of a transport, and the limits that all of them keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.errors import TransportError
    from consul_coord.http.messages import Request, Response


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Limits(Value):
    """How large a reply may be, in bytes. Beyond a limit the connection is closed."""

    max_body: int = 64 * 1024 * 1024
    """A successful reply's body; a larger one is a ``BrokenReply``."""
    max_error_body: int = 64 * 1024
    """Another reply's body; what exceeds it is cut off."""
    max_head: int = 64 * 1024
    """Status line and headers together."""
    max_headers: int = 100


DEFAULT_LIMITS = Limits()


class Abandoned(ConnectionAbortedError):
    """The attempt was cancelled from outside."""


class SendCancelled(Exception):
    """A sync ``send`` was stopped by its cancellation. ``error`` says what is known of the request."""

    def __init__(self, error: TransportError) -> None:
        super().__init__(str(error))
        self.error = error


class Cancellation(Protocol):
    """Something that may be set once, by any thread."""

    def subscribe(self, callback: Callable[[], object], /) -> Callable[[], object]:
        """Have ``callback`` called once it is set, by the thread that sets it, or at once if it is set.

        Returns how to unsubscribe.
        """
        ...


class Transport(Protocol):
    """Sends requests, blocking the caller. Any number of threads may share one."""

    def send(self, request: Request, *, timeout: float, cancel: Cancellation | None = None) -> Response:
        """Return the whole reply, whatever its status.

        ``timeout``: seconds for the whole exchange. Raises ``ConnectFailed``, ``RequestTimeout``,
        ``BrokenReply``, ``ClientClosed``, and ``SendCancelled`` within 100 ms of ``cancel`` being set.
        """
        ...

    def sweep(self) -> float:
        """Close connections that lie idle too long, from any thread.

        Returns the seconds until there may be more, ``math.inf`` for never.
        """
        ...

    def close(self) -> None:
        """Close what is idle now and what is in use when it comes back. May be called again."""
        ...

    def listen(self, on_refusal: Callable[[], object]) -> None:
        """Have ``on_refusal`` called at each connection that the agent has no room for, from any thread."""
        ...

    def forget(self) -> None:
        """In a forked child: let go of the parent's sockets without sending anything."""
        ...


class AsyncTransport(Protocol):
    """Sends requests from tasks of one event loop at a time."""

    async def send(self, request: Request, *, timeout: float) -> Response:
        """Return the whole reply, whatever its status.

        ``timeout``: seconds for the whole exchange. Raises ``ConnectFailed``, ``RequestTimeout``,
        ``BrokenReply`` and ``ClientClosed``. A cancelled call's connection is used again after its reply,
        or closed.
        """
        ...

    async def sweep(self) -> float:
        """Close connections that lie idle too long.

        Returns the seconds until there may be more, ``math.inf`` for never.
        """
        ...

    async def aclose(self) -> None:
        """Close what is idle now and what is in use when it comes back. May be called again."""
        ...

    def listen(self, on_refusal: Callable[[], object]) -> None:
        """Have ``on_refusal`` called at each connection that the agent has no room for, from any thread."""
        ...

    def forget(self) -> None:
        """In a forked child, or for a loop that is gone: let go of its sockets without sending anything."""
        ...
