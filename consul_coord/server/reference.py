"""``ReferenceServer``: the agent on a socket, in a thread of its own, as a context manager.

Rules
- It listens on loopback or on a unix socket; another address is refused unless the configuration permits it.
- Without entering it nothing runs, but ``app`` already serves: for an ASGI transport in the same process.
- On a stepped clock the server's time, blocking queries included, moves only when the clock is advanced; on
  another one it moves by itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
import threading
import uuid
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import anyio.to_thread

from consul_coord.clock import Clock, SystemClock
from consul_coord.models import _validate
from consul_coord.server.app import App
from consul_coord.server.config import ServerConfig
from consul_coord.server.faults import Faults
from consul_coord.server.host import Host
from consul_coord.server.ids import is_uuid
from consul_coord.server.service import Service
from consul_coord.server.state import ConsulState
from consul_coord.server.tls import context_of
from consul_coord.server.transport import Listener
from consul_coord.server.view import StateView

if TYPE_CHECKING:
    import os
    import ssl
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

C = TypeVar("C", bound=Clock)

_GRACE = 1.0


class ReferenceServer(Generic[C]):
    """A Consul agent in memory, for tests.

    ``with ReferenceServer() as server`` serves at ``server.address`` until the block ends; stopping answers
    every pending blocking query with what there is. ``tls`` makes it HTTPS, as do the files that ``config``
    may name instead. ``node_id`` is the id of the agent's own node, a UUID; random when it is not given.
    Raises ``ValueError`` for an address that is not loopback and for a ``node_id`` that is no UUID; starting
    raises ``OSError`` when the address is taken, or a file for TLS is missing or none.
    """

    @overload
    def __init__(
        self: ReferenceServer[SystemClock],
        *,
        host: str = ...,
        port: int = ...,
        uds: os.PathLike[str] | str | None = ...,
        node: str = ...,
        node_id: str = ...,
        datacenter: str = ...,
        config: ServerConfig | None = ...,
        clock: None = None,
        tls: ssl.SSLContext | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        host: str = ...,
        port: int = ...,
        uds: os.PathLike[str] | str | None = ...,
        node: str = ...,
        node_id: str = ...,
        datacenter: str = ...,
        config: ServerConfig | None = ...,
        clock: C,
        tls: ssl.SSLContext | None = ...,
    ) -> None: ...

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        uds: os.PathLike[str] | str | None = None,
        node: str = "node1",
        node_id: str = "",
        datacenter: str = "dc1",
        config: ServerConfig | None = None,
        clock: Clock | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if config is not None:
            _validate.instance("config", config, ServerConfig)
        self.config = config or ServerConfig()
        _check_host(host, permitted=self.config.allow_remote)
        self._clock = clock or SystemClock()
        state = ConsulState(
            now=self._clock.now(),
            new_id=lambda: str(uuid.uuid4()),
            node=node,
            node_id=node_id and _uuid(node_id),
            datacenter=datacenter,
            config=self.config,
        )
        self._host = Host(Service(state, random=random.random), self._clock)
        self.faults = Faults()
        self.app = App(self._host, self.faults)
        self.state = StateView(self._host)
        self._place = (host, port)
        self._uds = Path(uds).absolute() if uds is not None else None
        self._tls = tls
        self._address: str | None = None
        self._thread: threading.Thread | None = None
        self._stop_serving: Callable[[], object] = _nothing

    @property
    def clock(self) -> C:
        """Return the server's clock."""
        return self._clock  # type: ignore[return-value]

    @property
    def address(self) -> str:
        """Return where the server listens: ``http://127.0.0.1:PORT``, ``https://...`` or ``unix:///path``."""
        if self._address is None:
            message = "the server has no address before it is started: use it as a context manager"
            raise RuntimeError(message)
        return self._address

    def start(self) -> None:
        """Listen and serve; returns when requests are answered."""
        if self._thread is not None:
            raise RuntimeError("the server is already running")
        self._tls = self._tls or context_of(self.config)
        listening = self._bind()
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(listening, started), name="consul-reference-server", daemon=True
        )
        self._thread.start()
        try:
            started.result()
        except Exception:
            self.stop()
            raise

    def stop(self) -> None:
        """Answer what is pending and stop; harmless when not running."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stop_serving()
        thread.join()
        self._address = None
        if self._uds is not None:
            self._uds.unlink(missing_ok=True)

    def lose_leader(self) -> None:
        """Be without a leader: requests wait for one and are then refused, nothing expires."""
        self._host.do(self._host.service.state.lose_leader)

    def elect_leader(self) -> None:
        """Have a new leader, which starts the TTL of each session again."""
        self._host.do(self._host.service.state.elect_leader)

    def lag(self) -> None:
        """Let stale reads be answered by a follower that stops here, until ``catch_up``."""
        self._host.do(lambda _: self._host.service.state.lag())

    def catch_up(self) -> None:
        """Let stale reads see the present data again."""
        self._host.do(lambda _: self._host.service.state.catch_up())

    def snapshot(self) -> bytes:
        """Return everything that Consul replicates: not lock-delays, not the time a session has left."""
        return self._host.do(lambda _: self._host.service.state.snapshot())

    def restore(self, data: bytes) -> None:
        """Go back to a snapshot; watches end at once. Raises ``ValueError`` when the data is no snapshot."""
        self._host.do(lambda now: self._host.service.restore(data, now))

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    async def __aenter__(self) -> Self:
        """Start the server."""
        await anyio.to_thread.run_sync(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.stop)

    def _bind(self) -> socket.socket:
        if self._uds is not None:
            listening = _bound(str(self._uds), socket.AF_UNIX)
            self._address = f"unix://{self._uds}"
            return listening
        family, _, protocol, _, place = socket.getaddrinfo(*self._place, type=socket.SOCK_STREAM)[0]
        listening = _bound(place, family, protocol)  # asyncio sets TCP_NODELAY only where TCP is named
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self._address = f"{'https' if self._tls else 'http'}://{shown}:{port}"
        return listening

    def _run(self, listening: socket.socket, started: Future[None]) -> None:
        with listening:
            try:
                asyncio.run(self._serve(listening, started))
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)

    async def _serve(self, listening: socket.socket, started: Future[None]) -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        listener = Listener(
            self.app,
            max_conns_per_client=self.config.http_max_conns_per_client,
            told=bool(self.config.dialect.too_many_connections),
        )
        await listener.start(listening, self._tls)
        self._stop_serving = lambda: loop.call_soon_threadsafe(stopping.set)
        started.set_result(None)
        await stopping.wait()
        await listener.stop(self._host.dismiss, _GRACE)
        self._host.close()
        self._stop_serving = _nothing

    def __repr__(self) -> str:
        return f"<ReferenceServer at {self._address or 'rest'}>"


def _nothing() -> None:
    """Stop nothing: nothing runs."""


def _bound(place: Any, family: int, protocol: int = 0) -> socket.socket:  # noqa: ANN401 - by the family
    listening = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
    except BaseException:
        listening.close()
        raise
    return listening


def _uuid(text: str) -> str:
    if not is_uuid(text):
        message = f"node_id {text!r} is no UUID, such as {uuid.uuid4()}"
        raise ValueError(message)
    return text.lower()


def _check_host(host: str, *, permitted: bool) -> None:
    if permitted or host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        message = f"{host!r} is not loopback; set ServerConfig(allow_remote=True) to listen there"
        raise ValueError(message)
