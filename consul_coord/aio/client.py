"""The client for event loops: settings, endpoints, and what its recipes share.

Rules
- Constructing does no I/O and needs no loop. Entering starts one supervisor task, whose children all
  background programs are.
- A failure in the background is reported and never cancels the user's tasks.
- In a forked child the inherited holds are lost, and the client must be entered anew.
"""

from __future__ import annotations

import os
import weakref
from contextlib import nullcontext
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, TypeVar

from consul_coord.aio import backend, endpoints
from consul_coord.aio.driver import AsyncIO, Supervisor
from consul_coord.aio.session import AsyncKeptSession
from consul_coord.aio.watch import AsyncWatch
from consul_coord.base_client import BaseClient
from consul_coord.host import BaseHost
from consul_coord.http.endpoints import kv, session, txn
from consul_coord.http.retry import perform
from consul_coord.http.transport.build import async_transport
from consul_coord.io import Interrupt, Signal
from consul_coord.recipes import client as coordinator
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.session import handling as session_ops
from consul_coord.recipes.watch.follow import Follower

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractContextManager
    from os import PathLike
    from types import TracebackType
    from typing import Self

    import httpx

    from consul_coord.aio.driver import BackgroundTask
    from consul_coord.clock import Clock
    from consul_coord.config import TLSConfig
    from consul_coord.events import Observer
    from consul_coord.http.messages import Call
    from consul_coord.io import IO
    from consul_coord.models import KVPair, ReadOptions, Session, SessionSpec, TxnOp, TxnResult, WriteOptions

T = TypeVar("T")


class AsyncHost(BaseHost):
    """The host of an async client: its supervisor, once that is started."""

    supervisor: Supervisor | None = None

    def __init__(self, *, clock: Clock, observer: Observer | None) -> None:
        super().__init__(clock=clock, observer=observer)
        self._callbacks: dict[Signal, None] = {}
        """What is raised when a callback that was handed over has ended."""

    def mutex(self) -> AbstractContextManager[object]:
        """Return what does nothing: all happens in one loop."""
        return nullcontext()

    def running(self) -> Supervisor:
        """Return the supervisor. Raises RuntimeError before the client was entered."""
        if self.supervisor is None:
            message = "enter the AsyncClient first: 'async with AsyncClient(...) as client:'"
            raise RuntimeError(message)
        return self.supervisor

    def spawn(self, program: Callable[[IO], Awaitable[object]], *, name: str) -> BackgroundTask:
        """Run a program as a child of the supervisor."""
        return self.running().spawn(program, name=name)

    def call_back(self, function: Callable[[], object]) -> None:
        """Run a user's callback in the loop, soon; one that returns an awaitable becomes a task."""
        ended = Signal()
        self._callbacks[ended] = None
        ended.subscribe(lambda: self._callbacks.pop(ended, None))
        if self.supervisor is None:
            self._run(function, ended)
        else:
            self.supervisor.wake(lambda: self._run(function, ended))

    def _run(self, function: Callable[[], object], ended: Signal) -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - a user's bug must not end the loop's other work
            self.report_failure("a callback", error)
            result = None
        if isawaitable(result):

            async def finish(_: IO) -> None:
                await result

            task = self.spawn(finish, name="a callback")
            if task.done.is_set() and iscoroutine(result):
                result.close()  # too late to be begun
            task.done.subscribe(ended.set)
        else:
            ended.set()

    async def stop(self, io: IO, *, deadline: float) -> None:
        """Stop, when callbacks have ended or the deadline comes."""
        supervisor = self.running()
        while self._callbacks and not supervisor.runs_this():
            if not await io.wait(next(iter(self._callbacks)), deadline=deadline):
                break
        await supervisor.stop()


class AsyncKV(endpoints.AsyncKV):
    """The key-value store, with watches."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client.perform)
        self._client = client

    def watch(self, key: str, *, wait: float = 30.0, min_interval: float = 0.0) -> AsyncWatch[KVPair | None]:
        """Return a watch on one key; its state is None while the key is absent.

        ``wait``: seconds that one blocking query lasts at most. ``min_interval``: seconds between two looks
        at least.
        """
        return AsyncWatch(
            self._client, Follower(partial(kv.watch, key), wait=wait, min_interval=min_interval)
        )

    def watch_tree(
        self, prefix: str, *, wait: float = 30.0, min_interval: float = 0.0
    ) -> AsyncWatch[tuple[KVPair, ...]]:
        """Return a watch on all keys that begin with ``prefix``, in order; see ``watch``."""
        return AsyncWatch(
            self._client, Follower(partial(kv.watch_tree, prefix), wait=wait, min_interval=min_interval)
        )


class AsyncSessions(endpoints.AsyncSessions):
    """Sessions, with watches, and found by name."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client.perform)
        self._client = client

    def watch(self, id: str, *, wait: float = 30.0, min_interval: float = 0.0) -> AsyncWatch[Session | None]:
        """Return a watch on one session.

        Its state is None when it is gone, or can't be read with this token.
        """
        return AsyncWatch(
            self._client, Follower(partial(session.watch, id), wait=wait, min_interval=min_interval)
        )

    async def named(self, name: str) -> tuple[Session, ...]:
        """Return the sessions of a name: what ``SessionSpec.name`` says, or ``consul-coord`` without one.

        ``*`` and ``?`` stand for other characters; the mark that a client puts to each name need not be
        given. A consistent read. Empty, too, when the token may not read sessions.
        """
        core = self._client.core
        return await self._client.call(lambda io: session_ops.named(io, core, name))

    async def destroy_named(self, name: str) -> tuple[Session, ...]:
        """Destroy the sessions of a name, left by processes that are gone, and return them.

        Spares those of this client. Consul does not tell whether the others are still in use: give the
        processes names of their own, for example with the host's, where they shall not end each other's. What
        they held stays locked for their lock-delay. Raises InvalidArgument for an empty name, and what a
        request raises.
        """
        core = self._client.core
        return await self._client.call(lambda io: session_ops.destroy_named(io, core, name))


class AsyncClient(BaseClient):
    """A client of one Consul agent, and the owner of the sessions, holds and tasks that its recipes need.

    Runs on asyncio and on trio. Enter it with ``async with`` before using recipes or watches; single endpoint
    calls work without. It may be entered in one task and left in another. All its use is in one event loop.
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
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        """Settle the settings: arguments, then the official CLI's CONSUL_* variables, then defaults. No I/O.

        ``timeout``: seconds that one call may take, with its repeats. ``session``: what the shared session is
        like. ``http_client`` carries all traffic when given, and stays the caller's to close. Raises
        ConfigError for a setting that can't be used.
        """
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
        self._http_client = http_client
        self._begin()
        self.kv = AsyncKV(self)
        self.session = AsyncSessions(self)
        self.agent = endpoints.AsyncAgent(self.perform)
        self.catalog = endpoints.AsyncCatalog(self.perform)
        self.health = endpoints.AsyncHealth(self.perform)
        self.query = endpoints.AsyncQuery(self.perform)
        self.status = endpoints.AsyncStatus(self.perform)
        _clients.add(self)

    def _begin(self) -> None:
        """Start afresh, at first and in a forked child."""
        self._transport = async_transport(self._settings, http_client=self._http_client)
        self._host = AsyncHost(clock=self.clock, observer=self._observer)
        self._closed_by: dict[None, object] = {}
        """Which call closes it, or has."""
        self.core = ClientState(self._host, spec=self._spec, timeout=self._settings.timeout)

    def forked(self) -> None:
        """Leave what was inherited to the parent, without any I/O; called in a forked child."""
        self._transport.forget()
        inherited = self.core
        self._begin()
        inherited.forked(self._host)

    # -- performing

    async def call(
        self,
        program: Callable[[IO], Coroutine[Any, Any, T]],
        *,
        interrupt: Interrupt | None = None,
        closing: bool = False,
    ) -> T:
        """Run a recipe's program in this task, for this package's own use.

        ``closing`` allows it on a closed client.
        """
        if not closing:
            self._host.running()
        return await self._call(program, interrupt or Interrupt(), closing=closing)

    async def _call(
        self, program: Callable[[IO], Coroutine[Any, Any, T]], interrupt: Interrupt, *, closing: bool = False
    ) -> T:
        core = self.core
        if not closing:
            core.enter(interrupt)
        try:
            return await program(AsyncIO(self._host, self._transport, interrupt=interrupt))
        finally:
            core.leave(interrupt)

    async def perform(self, call: Call[T], /) -> T:
        """Carry out one endpoint's call, for this package's own use."""
        timeout = self._settings.timeout
        return await self._call(
            lambda io: perform(io, call, deadline=io.now() + timeout, attempt=timeout), Interrupt()
        )

    async def txn(self, *ops: TxnOp, options: ReadOptions | WriteOptions | None = None) -> TxnResult:
        """Apply up to 64 operations as one, or none of them.

        Returns the pairs that each operation gave, by its place. Raises TxnFailed with each refusal,
        ValueTooLarge, and what a request raises. A transaction that writes is not repeated when its outcome
        is unknown.
        """
        return await self.perform(txn.txn(*ops, options=options))

    async def keep_session(self, spec: SessionSpec, *, resume: str | None = None) -> AsyncKeptSession:
        """Open a session of the user's own and keep it renewed; a context manager.

        ``resume``: what ``export`` of an earlier one returned; its settings are then the server's. Raises
        SessionNotFound when that has ended, SessionCheckFailed, and what a request raises.
        """
        core = self.core
        kept = await self.call(lambda io: session_ops.open_session(io, core, spec, resume=resume))
        return AsyncKeptSession(self, core, kept)

    async def close(self, *, timeout: float = 5.0) -> None:
        """End waiting calls with ClientClosed, release holds, destroy sessions, stop; in ``timeout`` seconds.

        What could not be done is left to the sessions' TTL, and counted in ``pending_cleanup``. Callbacks
        have as long to end. Harmless when done before. A call that failed may be repeated, and goes on.
        """
        mine = object()
        try:
            if self._closed_by.setdefault(None, mine) is mine:
                # Whoever cancels it meanwhile cancels the task once that is done.
                await backend.uncancelled(lambda: self._close(timeout))
        except Exception:
            if self._closed_by.get(None) is mine:
                self._closed_by.clear()
            raise

    async def _close(self, timeout: float) -> None:
        core = self.core
        core.begin_close()
        io = AsyncIO(self._host, self._transport)
        deadline = io.now() + timeout
        await coordinator.close(io, core, deadline=deadline)
        if self._host.supervisor is not None:
            await self._host.stop(io, deadline=deadline)
            await coordinator.close_late(io, core, deadline=deadline)
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        if self._host.supervisor is None:
            supervisor = Supervisor(self._host, self._transport)
            await supervisor.start()
            self._host.supervisor = supervisor
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


_clients: weakref.WeakSet[AsyncClient] = weakref.WeakSet()


def _forked() -> None:
    for client in list(_clients):
        client.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
