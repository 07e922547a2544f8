"""The engine on an event loop, asyncio's or trio's, through anyio. Import it late: anyio is heavy.

Rules
- Short requests take turns, so that a crowd of tasks opens no crowd of connections; renewals and blocking
  queries wait for no turn.
- The whole exchange runs in one cancel scope with the attempt's deadline.
- A cancelled blocking query leaves its connection parked: the pool reads the reply when it comes.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import RunVar

from consul_coord.errors import ClientClosed
from consul_coord.http.failures import again, bare
from consul_coord.http.transport.bounded import call_aside
from consul_coord.http.transport.dial import UNDER_WAY, Place, is_known, made, places_of, tls_name
from consul_coord.http.transport.exchange import LOST, Engine
from consul_coord.http.transport.pool import MAX_IDLE, READ_SIZE, would_block

if TYPE_CHECKING:
    import ssl

    from consul_coord.config import Settings
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.exchange import Attempt
    from consul_coord.http.transport.pool import Pool

MAX_SHORT = 48
"""How many short requests go on at one time; the next wait for their turn, within their own timeout."""
FULL_PAUSE = 0.02
"""Seconds until a unix socket is tried again on which too many wait to be accepted."""

_loop_mark: RunVar[object] = RunVar("consul_coord_loop")


class StreamTransport(Engine):
    """Suspends the calling task for its request; see ``AsyncTransport``."""

    parks = True

    def __init__(self, settings: Settings, *, pool: Pool | None = None, max_short: int = MAX_SHORT) -> None:
        super().__init__(settings, pool=pool)
        self._max_short = max_short
        # As many as there are turns: tasks that send one request after the other all come back at once.
        self.most = max(MAX_IDLE, max_short)
        self._loop: object = None
        self._turns: anyio.Semaphore | None = None

    async def send(self, request: Request, *, timeout: float) -> Response:
        """Return the whole reply; see ``AsyncTransport.send``."""
        attempt = self._begin(request, timeout)
        if (loop := _current_loop()) is not self._loop:
            self._loop, self._turns = loop, anyio.Semaphore(self._max_short, fast_acquire=True)
        turns = None if request.hold_open or request.urgent else self._turns
        with anyio.move_on_after(timeout):
            try:
                async with turns or nullcontext():
                    if self._closed:
                        raise ClientClosed("the client was closed meanwhile")
                    return await self._exchange(attempt)
            except (*LOST, anyio.ClosedResourceError) as error:
                raise self._failed(attempt, error) from error
        raise self._failed(attempt, TimeoutError())

    async def sweep(self) -> float:
        """Close what lies idle too long; see ``AsyncTransport.sweep``."""
        return self._sweep()

    async def aclose(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        self._close()

    async def _connect(self, attempt: Attempt) -> socket.socket:
        context = self._tls_context()
        sock = await self._connect_any(attempt)
        if context is None:
            return sock
        try:
            speaking = context.wrap_socket(
                sock, server_hostname=tls_name(self._settings), do_handshake_on_connect=False
            )
        except BaseException:
            sock.close()
            raise
        try:
            with anyio.fail_after(attempt.remaining()):
                await _shake_hands(speaking)
        except BaseException:
            speaking.close()
            raise
        return speaking

    async def _connect_any(self, attempt: Attempt) -> socket.socket:
        """Try every address that the name has, in the resolver's order, each with its share of the time."""
        places, last_error = await self._places(attempt), OSError("the name has no address")
        for tried, place in enumerate(places):
            try:
                with anyio.move_on_after(attempt.remaining() / (len(places) - tried)):
                    return await _connect_to(place)
                last_error = OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            except OSError as error:
                last_error = bare(error)
        raise again(last_error)

    async def _places(self, attempt: Attempt) -> list[Place]:
        settings = self._settings
        if is_known(settings):
            return places_of(settings)
        with anyio.fail_after(attempt.remaining()):
            return await call_aside(partial(places_of, settings))

    async def _write(self, sock: socket.socket, attempt: Attempt) -> bool:
        sock.settimeout(0)
        rest = memoryview(attempt.data)
        while rest:
            try:
                count = sock.send(rest)
            except OSError as error:
                if would_block(error):
                    await _wait_for(sock, error)
                elif not attempt.sent:
                    raise
                else:
                    return False
            else:
                attempt.sent = True
                rest = rest[count:]
        return True

    async def _read(self, sock: socket.socket, attempt: Attempt) -> bytes:  # noqa: ARG002 - its time is the scope's
        while True:
            # Also where the reply has come already: a task that asks on and on must let others run.
            if not getattr(sock, "pending", _nothing)():
                await anyio.wait_readable(sock)
            try:
                return sock.recv(READ_SIZE)
            except OSError as error:
                if not would_block(error):
                    raise

    async def _read_soon(self, sock: socket.socket, attempt: Attempt) -> bytes:
        with anyio.fail_after(attempt.remaining()):
            return await self._read(sock, attempt)

    async def _pause(self, attempt: Attempt, seconds: float) -> None:  # noqa: ARG002 - as above
        await anyio.sleep(seconds)


def _nothing() -> int:
    """Return how many bytes a socket without TLS has decrypted ahead."""
    return 0


async def _connect_to(place: Place) -> socket.socket:
    family, address = place
    sock = made(family)
    try:
        code = sock.connect_ex(address)
        while code == errno.EAGAIN:  # the unix socket's queue is full: try again
            await anyio.sleep(FULL_PAUSE)
            code = sock.connect_ex(address)
        if code in UNDER_WAY:
            await anyio.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


async def _shake_hands(sock: ssl.SSLSocket) -> None:
    while True:
        try:
            sock.do_handshake()
        except OSError as error:
            if not would_block(error):
                raise
            await _wait_for(sock, error)
        else:
            return


async def _wait_for(sock: socket.socket, error: OSError) -> None:
    """Wait until a socket can go on where it would have blocked. TLS may have to read before it writes."""
    if type(error).__name__ == "SSLWantReadError":
        await anyio.wait_readable(sock)
    else:
        await anyio.wait_writable(sock)


def _current_loop() -> object:
    """Return something that is the same for as long as the same event loop runs."""
    try:
        return _loop_mark.get()
    except LookupError:
        mark = object()
        _loop_mark.set(mark)
        return mark
