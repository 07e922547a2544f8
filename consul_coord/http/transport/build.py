"""Choose the transports that serve when the user brings no client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.http.transport.direct import DirectTransport

if TYPE_CHECKING:
    from consul_coord.config import Settings
    from consul_coord.http.transport.base import AsyncTransport, Transport


def sync_transport(settings: Settings) -> Transport:
    """Return a blocking transport for the agent of these settings. Does no I/O."""
    return DirectTransport(settings)


def async_transport(settings: Settings) -> AsyncTransport:
    """Return a transport on the caller's event loop for the agent of these settings. Does no I/O."""
    from consul_coord.http.transport.streams import StreamTransport

    return StreamTransport(settings)
