"""Choose the transport: our own, or one over the client that the user brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.http.transport.direct import DirectTransport

if TYPE_CHECKING:
    import httpx

    from consul_coord.config import Settings
    from consul_coord.http.transport.base import AsyncTransport, Transport
    from consul_coord.http.transport.pool import Pool


def sync_transport(
    settings: Settings, *, pool: Pool | None = None, http_client: httpx.Client | None = None
) -> Transport:
    """Return a blocking transport for the agent of these settings; ``pool`` is shared with others.

    Does no I/O.
    """
    if http_client is None:
        return DirectTransport(settings, pool=pool)
    from consul_coord.http.transport.user_clients import UserClientTransport

    return UserClientTransport(settings, http_client)


def async_transport(
    settings: Settings, *, pool: Pool | None = None, http_client: httpx.AsyncClient | None = None
) -> AsyncTransport:
    """Return a transport on the caller's event loop for the agent of these settings.

    ``pool`` is shared with others. Does no I/O.
    """
    if http_client is not None:
        from consul_coord.http.transport.user_clients import AsyncUserClientTransport

        return AsyncUserClientTransport(settings, http_client)
    from consul_coord.http.transport.streams import StreamTransport

    return StreamTransport(settings, pool=pool)
