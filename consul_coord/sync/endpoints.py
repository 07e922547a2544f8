# Made from consul_coord/aio/endpoints.py by `python tools/make_sync.py`: change that one.
"""Consul's endpoints as methods that block: each makes one call and hands it to the client's runner.

That sends the request and reads the reply; it owns timeouts, retries and the token. Every method raises what
it raises: InvalidArgument before anything is sent, then TransportError, ResponseError or
DecodeError. ``timeout`` is the seconds that the whole call may take, with its repeats; None stands for the
client's own timeout.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from consul_coord.base_client import BaseClient, Entered
from consul_coord.http.endpoints import agent, catalog, health, kv, session, status
from consul_coord.http.endpoints import query as _query
from consul_coord.http.update import update
from consul_coord.recipes.session import handling
from consul_coord.recipes.watch.follow import Follower
from consul_coord.sync.runner import CLOSE_TIMEOUT, Runner
from consul_coord.sync.session import KeptSession
from consul_coord.sync.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from consul_coord.models import (
        AgentInfo,
        CatalogNode,
        CheckSpec,
        CheckStatus,
        HealthCheck,
        HealthState,
        KVPair,
        Node,
        PreparedQuery,
        QueryResult,
        ReadOptions,
        Registration,
        Result,
        Service,
        ServiceInstance,
        Session,
        SessionSpec,
        TxnOp,
        TxnResult,
        WriteOptions,
    )


class KV:
    """The key-value store.

    ``timeout``: the seconds that a call may take, with its repeats; None for those of the client.
    Keys that Consul would clean, redirect or refuse raise InvalidKey; values over 512 KiB raise
    ValueTooLarge.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def get(
        self, key: str, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[KVPair | None]:
        """Read one key; the value is None when it is absent."""
        return self._runner.perform(kv.get(key, options=options), timeout=timeout)

    def get_raw(
        self, key: str, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[bytes | None]:
        """Read the bytes of one key; None when it is absent."""
        return self._runner.perform(kv.get_raw(key, options=options), timeout=timeout)

    def list(
        self, prefix: str, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[tuple[KVPair, ...]]:
        """Read every key that starts with the prefix, sorted by its bytes; nothing without permission."""
        return self._runner.perform(kv.list_pairs(prefix, options=options), timeout=timeout)

    def keys(
        self,
        prefix: str,
        *,
        separator: str | None = None,
        options: ReadOptions | None = None,
        timeout: float | None = None,
    ) -> Result[tuple[str, ...]]:
        """Read the names of the keys that start with the prefix.

        With a separator, names are cut after its first occurrence behind the prefix, and each is given once.
        """
        return self._runner.perform(kv.keys(prefix, separator=separator, options=options), timeout=timeout)

    def put(
        self,
        key: str,
        value: bytes | str,
        *,
        flags: int = 0,
        cas: int | None = None,
        options: WriteOptions | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Write a key, whoever holds it, and return whether it was written.

        With ``cas`` it is written only if its ModifyIndex is that, or if it is absent for 0. Without ``cas``
        the answer is always true, and a request whose reply got lost may be repeated, perhaps over what
        another client wrote in between. A plain write to a held key leaves its holder but sets its lock index
        to 0.
        """
        return self._runner.perform(
            kv.put(key, value, flags=flags, cas=cas, options=options), timeout=timeout
        )

    def update(
        self,
        key: str,
        fn: Callable[[bytes | None], bytes | str | None],
        *,
        timeout: float = 10.0,
    ) -> KVPair | None:
        """Write what ``fn`` returns for the present value, unless another client wrote in between.

        ``fn`` gets None for an absent key, and is called again with the new value each time another client
        was faster. When it returns None, nothing is written. Flags are kept. ``timeout``: seconds for the
        whole call, with pauses that grow under contention; 0 tries once. The value may have about 380 KiB.

        Returns the key as written, or as read if nothing was written. Raises RequestTimeout if others
        were faster all the time, PermissionDenied, and the errors of ``fn``. The client retries a write that
        got no answer, so that it is applied once at most. If another client wrote meanwhile, or no answer
        comes, it can't know whether the write was applied, and raises its error. On a held key this is a
        plain write: the holder stays, and its guard no longer matches.
        """
        attempt = self._runner.core.timeout
        return self._runner.alone(update, key, fn, timeout=timeout, attempt=attempt)

    def delete(
        self,
        key: str,
        *,
        cas: int | None = None,
        options: WriteOptions | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Delete a key, whoever holds it, and return whether it is gone; true also when it was absent.

        With ``cas`` only if its ModifyIndex is that. Without, a lost reply may lead to a repeat, as with
        ``put``.
        """
        return self._runner.perform(kv.delete(key, cas=cas, options=options), timeout=timeout)

    def delete_tree(
        self, prefix: str, *, options: WriteOptions | None = None, timeout: float | None = None
    ) -> bool:
        """Delete every key that starts with the prefix, also held ones; the empty prefix means all keys."""
        return self._runner.perform(kv.delete_tree(prefix, options=options), timeout=timeout)

    def acquire(
        self,
        key: str,
        session: str,
        *,
        value: bytes | str = b"",
        flags: int = 0,
        options: WriteOptions | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Write a key and have the session hold it; return whether it does.

        Returns False if another session holds it, or the lock-delay runs. Raises SessionNotFound if there is
        no such session. This is the bare operation; ``Lock`` knows how to wait, to renew and to notice a
        loss.
        """
        return self._runner.perform(
            kv.acquire(key, session, value=value, flags=flags, options=options), timeout=timeout
        )

    def release(
        self,
        key: str,
        session: str,
        *,
        value: bytes | str = b"",
        flags: int = 0,
        options: WriteOptions | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Overwrite a key's value and flags and end the session's hold on it; return whether that happened.

        Returns False if the session does not hold the key. After a lost reply the client repeats the request,
        so False may also mean that the first one did it.
        """
        return self._runner.perform(
            kv.release(key, session, value=value, flags=flags, options=options), timeout=timeout
        )

    def watch(self, key: str, *, wait: float = 30.0, min_interval: float = 0.0) -> Watch[KVPair | None]:
        """Return a watch on one key; its state is None while the key is absent.

        ``wait``: seconds that one blocking query lasts at most. ``min_interval``: seconds between two looks
        at least.
        """
        return Watch(self._runner, Follower(partial(kv.watch, key), wait=wait, min_interval=min_interval))

    def watch_tree(
        self, prefix: str, *, wait: float = 30.0, min_interval: float = 0.0
    ) -> Watch[tuple[KVPair, ...]]:
        """Return a watch on all keys that begin with ``prefix``, in order; see ``watch``."""
        return Watch(
            self._runner, Follower(partial(kv.watch_tree, prefix), wait=wait, min_interval=min_interval)
        )


class Sessions:
    """Sessions, which hold keys for as long as they last.

    ``timeout``: the seconds that a call may take, with its repeats; None for those of the client.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def create(
        self,
        spec: SessionSpec | None = None,
        *,
        options: WriteOptions | None = None,
        timeout: float | None = None,
    ) -> str:
        """Make a session and return its id; the caller has to renew it.

        Raises SessionCheckFailed if a health check that it names is missing or critical, and
        NodeNotRegistered if its node is not in the catalog. After an error whose outcome is unknown a session
        may be left over, until twice its TTL has passed.
        """
        return self._runner.perform(session.create(spec, options=options), timeout=timeout)

    def destroy(self, id: str, *, options: WriteOptions | None = None, timeout: float | None = None) -> bool:
        """End a session; true also when there was none.

        Its keys are released or deleted, and stay closed to all clients for its lock-delay.
        """
        return self._runner.perform(session.destroy(id, options=options), timeout=timeout)

    def renew(self, id: str, *, options: WriteOptions | None = None, timeout: float | None = None) -> Session:
        """Start a session's TTL again. Raises SessionNotFound if it has ended."""
        return self._runner.perform(session.renew(id, options=options), timeout=timeout)

    def info(
        self, id: str, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[Session | None]:
        """Read a session; None when there is none, and also when the token may not read it."""
        return self._runner.perform(session.info(id, options=options), timeout=timeout)

    def list(
        self, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[tuple[Session, ...]]:
        """Read all sessions that the token may read."""
        return self._runner.perform(session.list_sessions(options=options), timeout=timeout)

    def node(
        self, name: str, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[tuple[Session, ...]]:
        """Read the sessions of one node."""
        return self._runner.perform(session.node(name, options=options), timeout=timeout)

    def watch(self, id: str, *, wait: float = 30.0, min_interval: float = 0.0) -> Watch[Session | None]:
        """Return a watch on one session.

        Its state is None when it is gone, or can't be read with this token.
        """
        return Watch(self._runner, Follower(partial(session.watch, id), wait=wait, min_interval=min_interval))

    def named(self, name: str, *, timeout: float | None = None) -> tuple[Session, ...]:
        """Return the sessions with this name, as the servers' leader has them.

        ``name``: that of their ``SessionSpec``, or ``consul-coord`` for those without one. Leave out the mark
        that a client adds to each name. ``*`` and ``?`` are wildcards. Returns nothing if the token may not
        read sessions.
        """
        return self._runner.call(handling.named, name, timeout=self._runner.seconds_for(timeout))

    def destroy_named(self, name: str, *, timeout: float | None = None) -> tuple[Session, ...]:
        """Destroy the sessions with this name, left by processes that are gone, and return them.

        ``name`` as for ``named``. The sessions of this client stay. Consul can't say whether the others are
        still in use. So give each process its own name, for example with the host's. Keys of the destroyed
        sessions stay locked for their lock-delay. Raises InvalidArgument for an empty name, and the errors of
        the requests.
        """
        return self._runner.call(
            handling.destroy_named,
            self._runner.core.sessions,
            name,
            timeout=self._runner.seconds_for(timeout),
        )


class Agent:
    """The agent that answers, and the health checks that it keeps.

    ``timeout``: the seconds that a call may take, with its repeats; None for those of the client.
    It answers from its own state: results have index 0, and options that choose a consistency or wait do
    nothing.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def info(self, *, options: ReadOptions | None = None, timeout: float | None = None) -> Result[AgentInfo]:
        """Read the agent's node, datacenter, version and settings."""
        return self._runner.perform(agent.info(options=options), timeout=timeout)

    def checks(
        self, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[dict[str, HealthCheck]]:
        """Read the checks that this agent keeps, by id."""
        return self._runner.perform(agent.checks(options=options), timeout=timeout)

    def register_check(
        self, spec: CheckSpec, *, options: WriteOptions | None = None, timeout: float | None = None
    ) -> None:
        """Have the agent keep a check; critical at first, unless the spec says otherwise."""
        return self._runner.perform(agent.register_check(spec, options=options), timeout=timeout)

    def deregister_check(
        self, id: str, *, options: WriteOptions | None = None, timeout: float | None = None
    ) -> None:
        """Have the agent forget a check; every session that names it ends."""
        return self._runner.perform(agent.deregister_check(id, options=options), timeout=timeout)

    def pass_check(
        self, id: str, *, note: str = "", options: WriteOptions | None = None, timeout: float | None = None
    ) -> None:
        """Set a TTL check to passing, and start its time again."""
        return self._runner.perform(agent.pass_check(id, note=note, options=options), timeout=timeout)

    def warn_check(
        self, id: str, *, note: str = "", options: WriteOptions | None = None, timeout: float | None = None
    ) -> None:
        """Set a TTL check to warning, which ends no session, and start its time again."""
        return self._runner.perform(agent.warn_check(id, note=note, options=options), timeout=timeout)

    def fail_check(
        self, id: str, *, note: str = "", options: WriteOptions | None = None, timeout: float | None = None
    ) -> None:
        """Set a TTL check to critical; every session that names it ends."""
        return self._runner.perform(agent.fail_check(id, note=note, options=options), timeout=timeout)

    def update_check(
        self,
        id: str,
        status: CheckStatus,
        *,
        output: str = "",
        options: WriteOptions | None = None,
        timeout: float | None = None,
    ) -> None:
        """Set a TTL check's state and output."""
        return self._runner.perform(
            agent.update_check(id, status, output=output, options=options), timeout=timeout
        )

    def register_service(
        self,
        service: Service,
        *,
        checks: Sequence[CheckSpec] = (),
        options: WriteOptions | None = None,
        timeout: float | None = None,
    ) -> None:
        """Have the agent keep a service with its checks, or overwrite what it keeps under this id.

        ``checks`` are bound to the service whatever their ``service_id``, and critical at first unless their
        spec says otherwise; checks that the service had besides are forgotten. The agent enters the service
        into the catalog a moment later.
        """
        return self._runner.perform(
            agent.register_service(service, checks=checks, options=options), timeout=timeout
        )

    def deregister_service(
        self, id: str, *, options: WriteOptions | None = None, timeout: float | None = None
    ) -> None:
        """Have the agent forget a service with its checks; every session that names one of these ends."""
        return self._runner.perform(agent.deregister_service(id, options=options), timeout=timeout)


class Catalog:
    """Nodes and what is registered on them.

    ``timeout``: the seconds that a call may take, with its repeats; None for those of the client.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def nodes(
        self, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[tuple[Node, ...]]:
        """Read all nodes that the token may read."""
        return self._runner.perform(catalog.nodes(options=options), timeout=timeout)

    def node(
        self, name: str, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[CatalogNode | None]:
        """Read a node with its services; None when it is not registered."""
        return self._runner.perform(catalog.node(name, options=options), timeout=timeout)

    def service(
        self, name: str, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[tuple[ServiceInstance, ...]]:
        """Read the instances of a service, with their nodes and without checks; none when it is unknown."""
        return self._runner.perform(catalog.service(name, options=options), timeout=timeout)

    def register(
        self, registration: Registration, *, options: WriteOptions | None = None, timeout: float | None = None
    ) -> bool:
        """Enter a node, with a service and checks if given, or overwrite what is there.

        It acts in the client's datacenter, unless ``options`` name another one. Returns True.
        """
        return self._runner.perform(
            catalog.register(registration, options=self._runner.placed(options)), timeout=timeout
        )

    def deregister(
        self,
        node: str,
        *,
        check_id: str | None = None,
        service_id: str | None = None,
        options: WriteOptions | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Remove one check, or one service with its checks, or the whole node; True also if it is absent.

        Sessions end with their node, and with any check that they name.
        """
        return self._runner.perform(
            catalog.deregister(
                node, check_id=check_id, service_id=service_id, options=self._runner.placed(options)
            ),
            timeout=timeout,
        )


class Health:
    """Health checks of all nodes, as the servers know them.

    ``timeout``: the seconds that a call may take, with its repeats; None for those of the client.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def node(
        self, name: str, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[tuple[HealthCheck, ...]]:
        """Read the checks of one node; none when it is not registered."""
        return self._runner.perform(health.node(name, options=options), timeout=timeout)

    def state(
        self, state: HealthState, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[tuple[HealthCheck, ...]]:
        """Read the checks that are in one state."""
        return self._runner.perform(health.state(state, options=options), timeout=timeout)

    def service(
        self,
        name: str,
        *,
        passing: bool = False,
        tag: str | None = None,
        options: ReadOptions | None = None,
        timeout: float | None = None,
    ) -> Result[tuple[ServiceInstance, ...]]:
        """Read the instances of a service, with their nodes and checks.

        ``passing`` leaves out those with a check that is not passing, their node's included; ``tag`` those
        without that tag.
        """
        return self._runner.perform(
            health.service(name, passing=passing, tag=tag, options=options), timeout=timeout
        )


class Query:
    """Prepared queries, which may be bound to a session and are then deleted with it.

    ``timeout``: the seconds that a call may take, with its repeats; None for those of the client.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def create(
        self, query: PreparedQuery, *, options: WriteOptions | None = None, timeout: float | None = None
    ) -> str:
        """Store a query and return its id. Raises SessionNotFound if its session does not exist."""
        return self._runner.perform(_query.create(query, options=options), timeout=timeout)

    def get(
        self, id: str, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[PreparedQuery | None]:
        """Return one query, or None if it does not exist. Raises InvalidRequest for an invalid id."""
        return self._runner.perform(_query.get(id, options=options), timeout=timeout)

    def list(
        self, *, options: ReadOptions | None = None, timeout: float | None = None
    ) -> Result[tuple[PreparedQuery, ...]]:
        """Read all queries that the token may read."""
        return self._runner.perform(_query.list_queries(options=options), timeout=timeout)

    def execute(
        self,
        id_or_name: str,
        *,
        limit: int | None = None,
        options: ReadOptions | None = None,
        timeout: float | None = None,
    ) -> Result[QueryResult | None]:
        """Carry out a query; None when no query has that id or name.

        A template answers for every name that begins with its own. Instances with a critical check are left
        out; ``limit`` bounds how many are returned. It never waits: an index in the options does nothing.
        """
        return self._runner.perform(_query.execute(id_or_name, limit=limit, options=options), timeout=timeout)

    def delete(self, id: str, *, options: WriteOptions | None = None, timeout: float | None = None) -> None:
        """Delete a query. Raises NotFound if it does not exist."""
        return self._runner.perform(_query.delete(id, options=options), timeout=timeout)


class Status:
    """The servers' Raft state; needs no permission.

    ``timeout``: the seconds that a call may take, with its repeats; None for those of the client.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def leader(self, *, options: ReadOptions | None = None, timeout: float | None = None) -> str | None:
        """Read the address of the servers' leader; None when there is none."""
        return self._runner.perform(status.leader(options=options), timeout=timeout)

    def peers(self, *, options: ReadOptions | None = None, timeout: float | None = None) -> tuple[str, ...]:
        """Read the addresses of the servers."""
        return self._runner.perform(status.peers(options=options), timeout=timeout)


class Endpoints(Entered, BaseClient[Runner]):
    """A client without its settings."""

    __slots__ = {
        "agent": "The agent that answers, and its health checks.",
        "catalog": "Nodes and services.",
        "health": "Health checks of all nodes.",
        "kv": "The key-value store.",
        "query": "Prepared queries.",
        "session": "Sessions, as the server has them.",
        "status": "The servers' Raft state.",
    }

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self.agent = Agent(runner)
        self.catalog = Catalog(runner)
        self.health = Health(runner)
        self.kv = KV(runner)
        self.query = Query(runner)
        self.session = Sessions(runner)
        self.status = Status(runner)

    def txn(
        self, *ops: TxnOp, options: ReadOptions | WriteOptions | None = None, timeout: float | None = None
    ) -> TxnResult:
        """Apply up to 64 operations as one, or none of them.

        ``timeout``: the seconds that the call may take, with its repeats; None for the client's. Returns the
        pairs that each operation gave, by its place. Raises TxnFailed with each refusal, ValueTooLarge, and
        the errors of the request. The client does not repeat a transaction that writes if its outcome is
        unknown.
        """
        return self._runner.perform(kv.txn(*ops, options=options), timeout=timeout)

    def keep_session(self, spec: SessionSpec, *, resume: str | None = None) -> KeptSession:
        """Open a session of your own, and keep it renewed until you close it; a context manager.

        - ``spec``: its settings.
        - ``resume``: the text that ``export`` of an earlier session returned. That session goes on, with the
          settings that the server has.

        Raises SessionNotFound if the earlier session has ended, InvalidArgument if the text is no export,
        UnsafeSession, SessionCheckFailed, and the errors of the requests.
        """
        core = self._runner.core
        kept = self._runner.call(handling.open_session, core.sessions, spec, resume=resume)
        return KeptSession(self._runner, core, kept)

    def close(self, *, timeout: float = CLOSE_TIMEOUT) -> None:
        """End waiting calls with ClientClosed, release holds, destroy sessions, and stop.

        ``timeout``: the seconds that this may take. Callbacks have as long to end. ``pending_cleanup`` counts
        the releases that got no answer; the sessions' TTL ends them. Does nothing if the client is closed.
        You may repeat a call that failed, and it goes on.
        """
        self._runner.close(timeout)

    def __enter__(self) -> Self:
        self._runner.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
