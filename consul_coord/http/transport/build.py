"""Choose the transport: our own, to one agent or several, or one over the client that the user brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ConfigError
from consul_coord.http.transport.dial import is_one
from consul_coord.http.transport.exchange import DirectTransport

if TYPE_CHECKING:
    import httpx

    from consul_coord.config import Settings
    from consul_coord.http.transport.base import AsyncTransport, Transport
    from consul_coord.http.transport.pool import Pool
    from consul_coord.http.transport.several import Fleet


def fleet_of(settings: Settings, http_client: httpx.Client | httpx.AsyncClient | None) -> Fleet | None:
    """Return what the transports to several agents share; None for one agent, and over a user's client.

    Does no I/O. Raises ConfigError for several addresses with a user's client.
    """
    if http_client is not None and settings.others:
        message = (
            "address names several agents, and http_client carries requests to one: give one address, or no "
            "http_client"
        )
        raise ConfigError(message)
    if http_client is not None or (not settings.others and is_one(settings)):
        return None
    from consul_coord.http.transport.several import Fleet

    return Fleet(settings)


def sync_transport(
    settings: Settings,
    *,
    pool: Pool | None = None,
    fleet: Fleet | None = None,
    http_client: httpx.Client | None = None,
) -> Transport:
    """Return a blocking transport for the agent of these settings, or all of a ``fleet``.

    ``pool`` and ``fleet`` are shared with others. Does no I/O.
    """
    if http_client is not None:
        from consul_coord.http.transport.user_clients import UserClientTransport

        return UserClientTransport(settings, http_client)
    if fleet is not None:
        from consul_coord.http.transport.several import SeveralTransport

        return SeveralTransport(fleet)
    return DirectTransport(settings, pool=pool)


def async_transport(
    settings: Settings,
    *,
    pool: Pool | None = None,
    fleet: Fleet | None = None,
    http_client: httpx.AsyncClient | None = None,
) -> AsyncTransport:
    """Return a transport on the caller's event loop for the agent of these settings, or all of a ``fleet``.

    ``pool`` and ``fleet`` are shared with others. Does no I/O.
    """
    if http_client is not None:
        from consul_coord.http.transport.user_clients import AsyncUserClientTransport

        return AsyncUserClientTransport(settings, http_client)
    if fleet is not None:
        from consul_coord.http.transport.several_async import AsyncSeveralTransport

        return AsyncSeveralTransport(fleet)
    from consul_coord.http.transport.streams import StreamTransport

    return StreamTransport(settings, pool=pool)
