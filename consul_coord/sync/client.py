"""The client for blocking code: its settings. ``endpoints`` has what it offers, ``runner`` does it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from consul_coord.config import Settings
from consul_coord.errors import ConfigError
from consul_coord.http.transport.build import async_transport, fleet_of, sync_transport
from consul_coord.http.transport.pool import Pool
from consul_coord.sync.endpoints import Endpoints
from consul_coord.sync.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import httpx

    from consul_coord.clock import Clock
    from consul_coord.config import TLSConfig
    from consul_coord.events import Observer
    from consul_coord.models import SessionSpec


class Client(Endpoints):
    """A client of one Consul cluster, and the owner of the sessions and holds made with it.

    It works with and without ``with``. Any number of threads may share it.
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
        http_client: httpx.Client | None = None,
        background_http_client: httpx.AsyncClient | None = None,
    ) -> None:
        """Settle the settings, without I/O.

        A setting without an argument comes from the CONSUL_* variables of Consul's command line, then from
        its default.

        - ``address``: one agent, as ``host:port``, a URL or ``unix:///path``; or a list of agents of one
          cluster. All requests go to one of them until it does not serve, then to the next. The client
          checks each agent before its first use, and refuses one of another cluster or datacenter.
        - ``token``, ``token_file``: the ACL token, or a file with it. The client reads the file again when
          it changes.
        - ``http_auth``: user and password for HTTP basic authentication.
        - ``datacenter``, ``namespace``, ``partition``: where requests act; None for the agent's own.
        - ``tls``: certificates and their verification.
        - ``timeout``: the seconds that one call may take, with its retries.
        - ``session``: the settings of the session that all locks and elections share, unless they have their
          own.
        - ``client_name``: the value of locks, permits and candidates that have none; None for ``host:pid``.
        - ``observer``: an object whose ``on_event`` is called with each event.
        - ``clock``: the clock of leases, for tests.
        - ``http_client``, ``background_http_client``: carry all traffic instead of the client's own
          connections, the second one for the background thread. Give both or neither. You close them.

        Raises ConfigError for a setting that can't be used, for several addresses together with an
        ``http_client``, and in a process that gevent or eventlet has patched.
        """
        if (http_client is None) != (background_http_client is None):
            message = (
                "give both http_client (for calls) and background_http_client (for the rest), or neither"
            )
            raise ConfigError(message)
        if background_http_client is not None:
            from consul_coord.http.transport.user_clients import check_kind

            check_kind("background_http_client", background_http_client, "AsyncClient")
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
        pool, fleet = Pool(), fleet_of(settings, http_client)
        super().__init__(
            Runner(
                settings,
                sync_transport(settings, pool=pool, fleet=fleet, http_client=http_client),
                partial(
                    async_transport, settings, pool=pool, fleet=fleet, http_client=background_http_client
                ),
                agents=None if fleet is None else fleet.agents,
                kind=type(self).__name__,
                session=session,
                observer=observer,
                clock=clock,
                name=client_name,
            )
        )
