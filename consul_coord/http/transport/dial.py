"""Open a blocking connection to the agent: look-up, connect, TLS handshake, all within one attempt's time.

Rules
- Every address that the name has is tried, in the resolver's order, each with its share of the time left.
- The resolver can be neither interrupted nor bounded, so a name, unlike an IP address, is looked up on a
  thread.
- A brake, when there is one, stops any of it.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any

from consul_coord.http.transport.bounded import call_bounded
from consul_coord.http.transport.outgoing import tls_name

if TYPE_CHECKING:
    import ssl

    from consul_coord.config import Settings
    from consul_coord.http.transport.attempt import Attempt
    from consul_coord.http.transport.brake import Brake

BRAKE_CHECK = 0.02
"""How often a connect looks at its brake: seconds. Not every system lets a connecting socket be shut down."""
TRY_AGAIN = 0.02
"""Seconds until a unix socket is tried again whose listener is too busy."""

_Place = tuple[int, Any]
"""Address family and socket address."""


def dial(
    settings: Settings, attempt: Attempt, context: ssl.SSLContext | None, brake: Brake | None
) -> socket.socket:
    """Return a connected socket, speaking TLS if a ``context`` is given.

    Raises ``OSError``; of these ``TimeoutError`` when the attempt's time is up.
    """
    sock = _connect_any(_places(settings, attempt, brake), attempt, brake)
    if context is None:
        return sock
    return _start_tls(sock, tls_name(settings), context, attempt, brake)


def _places(settings: Settings, attempt: Attempt, brake: Brake | None) -> list[_Place]:
    if settings.uds is not None:
        return [(socket.AF_UNIX, settings.uds)]
    look_up = functools.partial(socket.getaddrinfo, settings.host, settings.port, type=socket.SOCK_STREAM)
    if _is_ip_address(settings.host):
        found = look_up()
    else:
        found = call_bounded(look_up, timeout=attempt.remaining(), cancel=brake.cancel if brake else None)
    return [(family, address) for family, _, _, _, address in found]


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _connect_any(places: list[_Place], attempt: Attempt, brake: Brake | None) -> socket.socket:
    last_error: OSError | None = None
    for tried, place in enumerate(places):
        share = attempt.remaining() / (len(places) - tried)
        try:
            return _connect(place, time.monotonic() + share, brake)
        except OSError as error:
            last_error = error
    raise last_error or OSError("the name has no address")


def _connect(place: _Place, deadline: float, brake: Brake | None) -> socket.socket:
    family, address = place
    sock = socket.socket(family, socket.SOCK_STREAM)
    is_local = family == getattr(socket, "AF_UNIX", None)
    try:
        if not is_local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(0)
        while (code := sock.connect_ex(address)) == errno.EAGAIN and is_local:
            # Too many wait to be accepted. Unlike over TCP, nothing is under way: it has to be tried anew.
            _until_the_next_try(deadline, brake)
        if code in {errno.EINPROGRESS, errno.EWOULDBLOCK}:
            _wait_until_writable(sock, deadline, brake)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


def _until_the_next_try(deadline: float, brake: Brake | None) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    time.sleep(min(left, TRY_AGAIN))
    _look_at(brake)


def _look_at(brake: Brake | None) -> None:
    if brake is not None and brake.pulled:
        raise ConnectionAbortedError(errno.ECONNABORTED, "cancelled")


def _wait_until_writable(sock: socket.socket, deadline: float, brake: Brake | None) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_WRITE)
        while (left := deadline - time.monotonic()) > 0:
            if selector.select(left if brake is None else min(left, BRAKE_CHECK)):
                return
            _look_at(brake)
    raise TimeoutError


def _start_tls(
    sock: socket.socket, name: str, context: ssl.SSLContext, attempt: Attempt, brake: Brake | None
) -> socket.socket:
    try:
        sock.settimeout(attempt.remaining())
        speaking = context.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        if brake is not None:
            brake.hold(speaking)
        speaking.do_handshake()
    except BaseException:
        speaking.close()
        raise
    return speaking
