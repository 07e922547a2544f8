"""The client for blocking code: settings, endpoints, and what its recipes share.

Rules
- Constructing does no I/O and starts no thread. The loop thread starts with the first session or watch.
- Calls run on the caller's thread. ``close`` ends those that wait, in any thread, and does its own I/O where
  it is called.
- ``lifetime`` closes open clients at the end of the process. In a forked child the inherited holds are lost,
  and the client starts afresh, with sockets and sessions of its own.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from consul_coord.base_client import BaseClient
from consul_coord.errors import ConfigError
from consul_coord.http.endpoints import kv, session, txn
from consul_coord.http.retry import perform
from consul_coord.http.transport.build import async_transport, sync_transport
from consul_coord.io import Interrupt, run
from consul_coord.recipes import client as coordinator
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.session import handling as session_ops
from consul_coord.recipes.watch.follow import Follower
from consul_coord.sync import endpoints, green, lifetime
from consul_coord.sync.driver import BlockingIO, ThreadHost
from consul_coord.sync.session import KeptSession
from consul_coord.sync.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from os import PathLike
    from types import TracebackType
    from typing import Self

    import httpx

    from consul_coord.clock import Clock
    from consul_coord.config import TLSConfig
    from consul_coord.events import Observer
    from consul_coord.http.messages import Call
    from consul_coord.http.transport.base import Transport
    from consul_coord.io import IO
    from consul_coord.models import (
        KVPair,
        ReadOptions,
        Session,
        SessionSpec,
        TxnOp,
        TxnResult,
        WriteOptions,
    )

T = TypeVar("T")

CLOSE_TIMEOUT = 5.0


class KV(endpoints.KV):
    """The key-value store, with watches."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.perform)
        self._client = client

    def watch(self, key: str, *, wait: float = 30.0, min_interval: float = 0.0) -> Watch[KVPair | None]:
        """Return a watch on one key; its state is None while the key is absent.

        ``wait``: seconds that one blocking query lasts at most. ``min_interval``: seconds between two looks
        at least.
        """
        return Watch(self._client, Follower(partial(kv.watch, key), wait=wait, min_interval=min_interval))

    def watch_tree(
        self, prefix: str, *, wait: float = 30.0, min_interval: float = 0.0
    ) -> Watch[tuple[KVPair, ...]]:
        """Return a watch on all keys that begin with ``prefix``, in order; see ``watch``."""
        return Watch(
            self._client, Follower(partial(kv.watch_tree, prefix), wait=wait, min_interval=min_interval)
        )


class Sessions(endpoints.Sessions):
    """Sessions, with watches, and found by name."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.perform)
        self._client = client

    def watch(self, id: str, *, wait: float = 30.0, min_interval: float = 0.0) -> Watch[Session | None]:
        """Return a watch on one session.

        Its state is None when it is gone, or can't be read with this token.
        """
        return Watch(self._client, Follower(partial(session.watch, id), wait=wait, min_interval=min_interval))

    def named(self, name: str) -> tuple[Session, ...]:
        """Return the sessions of a name: what ``SessionSpec.name`` says, or ``consul-coord`` without one.

        ``*`` and ``?`` stand for other characters; the mark that a client puts to each name need not be
        given. A consistent read. Empty, too, when the token may not read sessions.
        """
        core = self._client.core
        return self._client.call(lambda io: session_ops.named(io, core, name))

    def destroy_named(self, name: str) -> tuple[Session, ...]:
        """Destroy the sessions of a name, left by processes that are gone, and return them.

        Spares those of this client. Consul does not tell whether the others are still in use: give the
        processes names of their own, for example with the host's, where they shall not end each other's. What
        they held stays locked for their lock-delay. Raises InvalidArgument for an empty name, and what a
        request raises.
        """
        core = self._client.core
        return self._client.call(lambda io: session_ops.destroy_named(io, core, name))


class Client(BaseClient):
    """A client of one Consul agent, and the owner of the sessions, holds and threads that its recipes need.

    Works with or without ``with``. Any number of threads may share it.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        token: str | None = None,
        token_file: PathLike[str] | str | None = None,
        http_auth: tuple[str, str] | None = None,
        datacenter: str | None = None,
        namespace: str | None = None,
        partition: str | None = None,
        tls: TLSConfig | None = None,
        timeout: float = 10.0,
        session: SessionSpec | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        http_client: httpx.Client | None = None,
        background_http_client: httpx.AsyncClient | None = None,
    ) -> None:
        """Settle the settings: arguments, then the official CLI's CONSUL_* variables, then defaults. No I/O.

        ``timeout``: seconds that one call may take, with its repeats. ``session``: what the shared session is
        like. ``http_client`` and ``background_http_client`` carry all traffic when given, both or neither,
        and stay the caller's to close. Raises ConfigError for a setting that can't be used, and in a process
        that gevent or eventlet has patched.
        """
        green.refuse()
        if (http_client is None) != (background_http_client is None):
            message = (
                "give both http_client (for calls) and background_http_client (for the rest), or neither"
            )
            raise ConfigError(message)
        super().__init__(
            address=address,
            token=token,
            token_file=token_file,
            http_auth=http_auth,
            datacenter=datacenter,
            namespace=namespace,
            partition=partition,
            tls=tls,
            timeout=timeout,
            session=session,
            observer=observer,
            clock=clock,
        )
        self._transport = sync_transport(self._settings, http_client=http_client)
        self._make_background = partial(async_transport, self._settings, http_client=background_http_client)
        self._begin()
        self.kv = KV(self)
        self.session = Sessions(self)
        self.agent = endpoints.Agent(self.perform)
        self.catalog = endpoints.Catalog(self.perform)
        self.health = endpoints.Health(self.perform)
        self.query = endpoints.Query(self.perform)
        self.status = endpoints.Status(self.perform)
        lifetime.begin(self)

    def _begin(self) -> None:
        """Start afresh, at first and in a forked child."""
        self._host = ThreadHost(
            clock=self.clock,
            observer=self._observer,
            background=self._make_background,
            foreground=self._transport,
        )
        self.core = ClientState(self._host, spec=self._spec, timeout=self._settings.timeout)
        self._finalizer = weakref.finalize(self, _dropped, self._host, self.core, self._transport)
        self._closed_by: dict[None, object] = {}
        """Which call closes it, or has."""
        self._finalizer.atexit = False  # open clients are closed then, on the main thread

    def forked(self) -> None:
        """Leave what was inherited to the parent, without any I/O, and start afresh.

        Called in a forked child.
        """
        self._transport.forget()
        self._finalizer.detach()
        inherited = self.core
        self._begin()
        inherited.forked(self._host)

    # -- performing

    def call(
        self,
        program: Callable[[IO], Coroutine[Any, Any, T]],
        *,
        interrupt: Interrupt | None = None,
        closing: bool = False,
    ) -> T:
        """Run a program on this thread, for this package's own use.

        ``closing`` allows it on a closed client.
        """
        core = self.core
        interrupt = interrupt or Interrupt()
        if not closing:
            core.enter(interrupt)
        try:
            return run(program(BlockingIO(self._host, self._transport, interrupt=interrupt)))
        finally:
            core.leave(interrupt)

    def perform(self, call: Call[T], /) -> T:
        """Carry out one endpoint's call, for this package's own use."""
        timeout = self._settings.timeout
        return self.call(lambda io: perform(io, call, deadline=io.now() + timeout, attempt=timeout))

    def txn(self, *ops: TxnOp, options: ReadOptions | WriteOptions | None = None) -> TxnResult:
        """Apply up to 64 operations as one, or none of them.

        Returns the pairs that each operation gave, by its place. Raises TxnFailed with each refusal,
        ValueTooLarge, and what a request raises. A transaction that writes is not repeated when its outcome
        is unknown.
        """
        return self.perform(txn.txn(*ops, options=options))

    def keep_session(self, spec: SessionSpec, *, resume: str | None = None) -> KeptSession:
        """Open a session of the user's own and keep it renewed; a context manager.

        ``resume``: what ``export`` of an earlier one returned; its settings are then the server's. Raises
        SessionNotFound when that has ended, SessionCheckFailed, and what a request raises.
        """
        core = self.core
        kept = self.call(lambda io: session_ops.open_session(io, core, spec, resume=resume))
        return KeptSession(self, core, kept)

    def close(self, *, timeout: float = CLOSE_TIMEOUT) -> None:
        """End waiting calls with ClientClosed, release holds, destroy sessions, stop; in ``timeout`` seconds.

        What could not be done is left to the sessions' TTL, and counted in ``pending_cleanup``. Callbacks
        have as long to end. Harmless when done before. A call that failed may be repeated, and goes on.
        """
        mine = object()
        try:
            if self._closed_by.setdefault(None, mine) is mine:
                self._close(timeout)
        except BaseException:
            if self._closed_by.get(None) is mine:
                self._closed_by.clear()
            raise

    def _close(self, timeout: float) -> None:
        core = self.core
        core.begin_close()
        io = BlockingIO(self._host, self._transport)
        deadline = io.now() + timeout
        run(coordinator.close(io, core, deadline=deadline))
        self._host.stop(timeout=timeout)
        run(coordinator.close_late(io, core, deadline=deadline))
        self._transport.close()
        self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _dropped(host: ThreadHost, core: ClientState, transport: Transport) -> None:
    """Close what a client had that nobody refers to any more.

    In the background, for this is the garbage collector.
    """
    core.begin_close()
    if core.sessions() or core.reaper.pending:

        async def close(io: IO) -> None:
            await coordinator.close(io, core, deadline=io.now() + CLOSE_TIMEOUT)
            host.stop(timeout=0)

        host.spawn(close, name="close a dropped client")
    else:
        host.stop(timeout=0)
    transport.close()
