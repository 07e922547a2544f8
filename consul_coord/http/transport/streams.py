"""The engine on an event loop, asyncio's or trio's, through anyio. Import it late: anyio is heavy.

Rules
- Requests of each kind have connections of their own: blocking queries, as many as there are watches; urgent
  ones, which wait for nothing; and all others, which take turns on a few connections.
- Connections belong to the loop that opened them. Another loop starts with none.
- The whole exchange runs in one cancel scope with the attempt's deadline.
"""

from __future__ import annotations

import os
import weakref
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import anyio
import anyio.abc
from anyio.lowlevel import RunVar

from consul_coord.errors import ClientClosed
from consul_coord.http.transport.exchange import READ_SIZE, Engine, Lane, Link
from consul_coord.http.transport.outgoing import tls_name

if TYPE_CHECKING:
    from consul_coord.config import Settings
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.outgoing import Attempt

MAX_SHORT = 48
"""How many short requests go on at one time; the next wait for their turn, within their own timeout."""
KEEP_URGENT = 10.0
"""How long that of urgent requests is kept: the next renewal of a TTL of up to 30 s still finds it."""

_loop_mark: RunVar[object] = RunVar("consul_coord_loop")


class StreamLink(Link):
    """A connection on a stream of anyio's."""

    __slots__ = ("_stream",)

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream = stream
        super().__init__(stream.extra(anyio.abc.SocketAttribute.raw_socket))  # noqa: S610 - this is no Django

    async def write(self, attempt: Attempt) -> bool:
        """See ``Link.write``."""
        attempt.sent = True
        try:
            await self._stream.send(attempt.data)
        except (OSError, anyio.BrokenResourceError):
            return False
        return True

    async def read(self, attempt: Attempt) -> bytes:  # noqa: ARG002 - its time is the scope's
        """See ``Link.read``."""
        with suppress(anyio.EndOfStream):
            return await self._stream.receive(READ_SIZE)
        return b""

    async def close(self) -> None:
        """See ``Link.close``. Works also when the task is being cancelled."""
        await anyio.aclose_forcefully(self._stream)

    def disconnect(self) -> None:
        """Put nothing in the descriptor's place, so that its owners, alive or not, can still close it."""
        descriptor = self.sock.fileno()
        if descriptor >= 0:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, descriptor, inheritable=False)
            os.close(nothing)


class StreamTransport(Engine[StreamLink]):
    """Suspends the calling task for its request; see ``AsyncTransport``."""

    lost = (*Engine.lost, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)

    def __init__(self, settings: Settings, *, max_short: int = MAX_SHORT) -> None:
        super().__init__(settings)
        self._max_short = max_short
        self._owner: tuple[int, object] | None = None

    async def send(self, request: Request, *, timeout: float) -> Response:
        """Return the whole reply; see ``AsyncTransport.send``."""
        attempt = self._begin(request, timeout)
        owner = (os.getpid(), _current_loop())
        if owner != self._owner:
            self.forget()
            self._owner = owner
            turns = anyio.Semaphore(self._max_short, fast_acquire=True)
            self._short: Lane[StreamLink] = Lane(turns=turns)
            self._urgent: Lane[StreamLink] = Lane(KEEP_URGENT)
            self._held_open: Lane[StreamLink] = Lane()
            self._lanes = (self._short, self._urgent, self._held_open)
        lane = self._held_open if request.hold_open else self._urgent if request.urgent else self._short
        with anyio.move_on_after(timeout):
            try:
                async with lane.turns or nullcontext():
                    if self._closed:
                        raise ClientClosed("the client was closed meanwhile")
                    return await self._exchange(lane, attempt)
            except self.lost as error:
                raise attempt.failed(error) from error
        raise attempt.failed(TimeoutError())

    async def sweep(self) -> float:
        """Close what lies idle too long; see ``AsyncTransport.sweep``."""
        return await self._sweep()

    async def aclose(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        self._closed = True
        await self._sweep()

    def forget(self) -> None:
        """Let go of the sockets of a parent process or of a loop that is gone, without a word on them."""
        self._lanes = ()
        self._owner = None
        links, self._open = self._open, weakref.WeakSet()
        for link in list(links):
            link.disconnect()

    async def _connect(self, attempt: Attempt) -> StreamLink:  # noqa: ARG002 - its time is the scope's
        settings, context = self._settings, self._tls_context()
        if settings.uds is not None:
            plain: anyio.abc.SocketStream = await anyio.connect_unix(settings.uds)
        else:
            plain = await anyio.connect_tcp(settings.host, settings.port)
        if context is None:
            return StreamLink(plain)
        from anyio.streams.tls import TLSStream

        try:
            speaking = await TLSStream.wrap(
                plain, hostname=tls_name(settings), ssl_context=context, standard_compatible=False
            )
        except BaseException:
            await anyio.aclose_forcefully(plain)
            raise
        return StreamLink(speaking)


def _current_loop() -> object:
    """Return something that is the same for as long as the same event loop runs."""
    try:
        return _loop_mark.get()
    except LookupError:
        mark = object()
        _loop_mark.set(mark)
        return mark
