"""The client for event loops: its settings. ``endpoints`` has what it offers, ``runner`` does it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from consul_coord.aio.endpoints import AsyncEndpoints
from consul_coord.aio.runner import AsyncRunner
from consul_coord.config import Settings
from consul_coord.http.transport.build import async_transport, fleet_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import httpx

    from consul_coord.clock import Clock
    from consul_coord.config import TLSConfig
    from consul_coord.events import Observer
    from consul_coord.models import SessionSpec


class AsyncClient(AsyncEndpoints):
    """A client of a Consul agent, and the owner of the sessions, holds and tasks that its recipes need.

    Runs on asyncio and on trio. Enter it with ``async with`` before using recipes or watches; single endpoint
    calls work without. It may be entered in one task and left in another. All its use is in one event loop.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        token_file: PathLike[str] | str | None = None,
        http_auth: tuple[str, str] | None = None,
        datacenter: str | None = None,
        namespace: str | None = None,
        partition: str | None = None,
        tls: TLSConfig | None = None,
        timeout: float = 10.0,
        session: SessionSpec | None = None,
        client_name: str | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        """Settle the settings: arguments, then the official CLI's CONSUL_* variables, then defaults. No I/O.

        ``address``: that of one agent, or a list of agents of one cluster. All requests go to one of them
        until it does not serve, and then to the next. Each is checked before its first use: an agent of
        another cluster or datacenter is refused. The token and TLS settings are the same for all.
        ``timeout``: seconds that one call may take, with its repeats. ``session``: what the shared session
        is like. ``http_client`` carries all traffic when given, and stays the caller's to close. Raises
        ConfigError for a setting that can't be used, and for several addresses together with
        ``http_client``.
        """
        settings = Settings.resolve(
            address=address,
            token=token,
            token_file=token_file,
            http_auth=http_auth,
            datacenter=datacenter,
            namespace=namespace,
            partition=partition,
            tls=tls,
            timeout=timeout,
        )
        fleet = fleet_of(settings, http_client)
        super().__init__(
            AsyncRunner(
                settings,
                partial(async_transport, settings, fleet=fleet, http_client=http_client),
                agents=None if fleet is None else fleet.agents,
                kind=type(self).__name__,
                session=session,
                observer=observer,
                clock=clock,
                name=client_name,
            )
        )
