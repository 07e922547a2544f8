"""Open a blocking connection to the agent: look-up, connect, TLS handshake, all within one attempt's time.

Rules
- Every address that the name has is tried, in the resolver's order, each with its share of the time left.
- The resolver can be neither interrupted nor bounded, so a name, unlike an IP address, is looked up on a
  thread.
- Cancelling the attempt stops any of it.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any

from consul_coord.http.failures import again, bare
from consul_coord.http.transport.base import Abandoned
from consul_coord.http.transport.bounded import call_bounded

if TYPE_CHECKING:
    import ssl

    from consul_coord.config import Settings
    from consul_coord.http.transport.exchange import Attempt

CANCEL_CHECK = 0.02
"""How often a connect looks whether it was cancelled, in seconds.

Not every system lets a connecting socket be shut down.
"""

UNDER_WAY = {errno.EINPROGRESS, errno.EWOULDBLOCK}
"""Codes of a connect that a non-blocking socket has begun."""

Place = tuple[int, Any]
"""Address family and socket address."""


def dial(settings: Settings, attempt: Attempt, context: ssl.SSLContext | None) -> socket.socket:
    """Return a connected socket, speaking TLS if a ``context`` is given.

    Raises ``OSError``; of these ``TimeoutError`` when the attempt's time is up, and ``Abandoned``.
    """
    sock = _connect_any(_places(settings, attempt), attempt)
    return sock if context is None else _start_tls(sock, tls_name(settings), context, attempt)


def tls_name(settings: Settings) -> str:
    """Return the name that is sent to the agent and that its certificate must have."""
    return settings.tls.server_name or settings.host.partition("%")[0]


def is_known(settings: Settings) -> bool:
    """Return whether no name has to be looked up: the agent is at a unix socket, or at an IP address."""
    if settings.uds is not None:
        return True
    try:
        ipaddress.ip_address(settings.dial or settings.host)
    except ValueError:
        return False
    return True


def is_one(settings: Settings) -> bool:
    """Return whether settings stand for one agent: its name, if it has one, is this machine's own."""
    name = settings.host.lower().rstrip(".")
    local = name == "localhost" or name.endswith(".localhost")
    return local or is_known(settings)


def places_of(settings: Settings) -> list[Place]:
    """Return where the agent is. Looking up a name may take long."""
    if settings.uds is not None:
        return [(socket.AF_UNIX, settings.uds)]
    host = (settings.dial or settings.host).encode("ascii")  # text would load the codec of other names
    found = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def made(family: int) -> socket.socket:
    """Return a socket that never waits."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    if family != getattr(socket, "AF_UNIX", None):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.settimeout(0)
    return sock


def _places(settings: Settings, attempt: Attempt) -> list[Place]:
    if is_known(settings):
        return places_of(settings)
    look_up = functools.partial(places_of, settings)
    return call_bounded(look_up, timeout=attempt.remaining(), cancel=attempt.cancellation)


def _connect_any(places: list[Place], attempt: Attempt) -> socket.socket:
    last_error: OSError | None = None
    for tried, place in enumerate(places):
        share = attempt.remaining() / (len(places) - tried)
        try:
            return _connect(place, time.monotonic() + share, attempt)
        except OSError as error:
            last_error = bare(error)
    raise again(last_error) if last_error else OSError("the name has no address")


def _connect(place: Place, deadline: float, attempt: Attempt) -> socket.socket:
    family, address = place
    sock = made(family)
    is_local = family == getattr(socket, "AF_UNIX", None)
    try:
        while (code := sock.connect_ex(address)) == errno.EAGAIN and is_local:
            # Too many wait to be accepted. Unlike over TCP, nothing is under way: it has to be tried anew.
            _pause(None, deadline, attempt)
        if code in UNDER_WAY:
            while not _pause(sock, deadline, attempt):
                pass
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


def _pause(sock: socket.socket | None, deadline: float, attempt: Attempt) -> bool:
    """Wait a moment, or until a socket is connected; return whether it is.

    Raises ``TimeoutError`` and ``Abandoned``.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    poll = select.poll()
    if sock is not None:
        poll.register(sock, select.POLLOUT)
    connected = bool(poll.poll(1000 * min(left, CANCEL_CHECK)))
    if attempt.cancelled:
        raise Abandoned(errno.ECONNABORTED, "cancelled")
    return connected


def _start_tls(sock: socket.socket, name: str, context: ssl.SSLContext, attempt: Attempt) -> socket.socket:
    try:
        sock.settimeout(attempt.remaining())
        speaking = context.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        attempt.hold(speaking)
        speaking.do_handshake()
    except BaseException:
        speaking.close()
        raise
    return speaking
