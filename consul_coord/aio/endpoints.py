"""Consul's endpoints as methods to await: each makes one call and hands it to ``perform``.

``perform`` sends the request and reads the reply; it owns timeouts, retries and the token. Every method
raises what it raises: InvalidArgument before anything is sent, then TransportError, ResponseError or
DecodeError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from consul_coord.http.endpoints import agent, catalog, health, kv, session, status
from consul_coord.http.endpoints import query as _query

if TYPE_CHECKING:
    from consul_coord.http.messages import Call
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
        ReadOptions,
        Registration,
        Result,
        Session,
        SessionSpec,
        WriteOptions,
    )

T = TypeVar("T")


class AsyncPerform(Protocol):
    """Carry out one call and return its answer."""

    async def __call__(self, call: Call[T], /) -> T:
        """Send the request and read the reply."""
        ...


class AsyncKV:
    """The key-value store.

    Keys that Consul would clean, redirect or refuse raise InvalidKey; values over 512 KiB raise
    ValueTooLarge.
    """

    def __init__(self, perform: AsyncPerform) -> None:
        self._perform = perform

    async def get(self, key: str, *, options: ReadOptions | None = None) -> Result[KVPair | None]:
        """Read one key; the value is None when it is absent."""
        return await self._perform(kv.get(key, options=options))

    async def get_raw(self, key: str, *, options: ReadOptions | None = None) -> Result[bytes | None]:
        """Read the bytes of one key; None when it is absent."""
        return await self._perform(kv.get_raw(key, options=options))

    async def list(self, prefix: str, *, options: ReadOptions | None = None) -> Result[tuple[KVPair, ...]]:
        """Read every key that starts with the prefix, sorted by its bytes; nothing without permission."""
        return await self._perform(kv.list_pairs(prefix, options=options))

    async def keys(
        self, prefix: str, *, separator: str | None = None, options: ReadOptions | None = None
    ) -> Result[tuple[str, ...]]:
        """Read the names of the keys that start with the prefix.

        With a separator, names are cut after its first occurrence behind the prefix, and each is given once.
        """
        return await self._perform(kv.keys(prefix, separator=separator, options=options))

    async def put(
        self,
        key: str,
        value: bytes | str,
        *,
        flags: int = 0,
        cas: int | None = None,
        options: WriteOptions | None = None,
    ) -> bool:
        """Write a key, whoever holds it, and return whether it was written.

        With ``cas`` it is written only if its ModifyIndex is that, or if it is absent for 0. Without ``cas``
        the answer is always true, and a request whose reply got lost may be repeated, perhaps over what
        another client wrote in between. A plain write to a held key leaves its holder but sets its lock index
        to 0.
        """
        return await self._perform(kv.put(key, value, flags=flags, cas=cas, options=options))

    async def delete(self, key: str, *, cas: int | None = None, options: WriteOptions | None = None) -> bool:
        """Delete a key, whoever holds it, and return whether it is gone; true also when it was absent.

        With ``cas`` only if its ModifyIndex is that. Without, a lost reply may lead to a repeat, as with
        ``put``.
        """
        return await self._perform(kv.delete(key, cas=cas, options=options))

    async def delete_tree(self, prefix: str, *, options: WriteOptions | None = None) -> bool:
        """Delete every key that starts with the prefix, also held ones; the empty prefix means all keys."""
        return await self._perform(kv.delete_tree(prefix, options=options))

    async def acquire(
        self,
        key: str,
        session: str,
        *,
        value: bytes | str = b"",
        flags: int = 0,
        options: WriteOptions | None = None,
    ) -> bool:
        """Write a key and have the session hold it; return whether it does.

        False when another session holds it, and while the lock-delay runs. SessionNotFound when there is no
        such session. This is the bare operation; ``Lock`` knows how to wait, to renew and to notice a loss.
        """
        return await self._perform(kv.acquire(key, session, value=value, flags=flags, options=options))

    async def release(
        self,
        key: str,
        session: str,
        *,
        value: bytes | str = b"",
        flags: int = 0,
        options: WriteOptions | None = None,
    ) -> bool:
        """Overwrite a key's value and flags and end the session's hold on it; return whether that happened.

        False when the session does not hold the key. After a lost reply the request is repeated, so that
        false may also mean that the first one did it.
        """
        return await self._perform(kv.release(key, session, value=value, flags=flags, options=options))


class AsyncSessions:
    """Sessions, which hold keys for as long as they last."""

    def __init__(self, perform: AsyncPerform) -> None:
        self._perform = perform

    async def create(self, spec: SessionSpec | None = None, *, options: WriteOptions | None = None) -> str:
        """Make a session and return its id; nobody renews it but the caller.

        SessionCheckFailed when a health check that it names is missing or critical. After an error whose
        outcome is unknown a session may be left over, until twice its TTL has passed.
        """
        return await self._perform(session.create(spec, options=options))

    async def destroy(self, id: str, *, options: WriteOptions | None = None) -> bool:
        """End a session; true also when there was none.

        What it still holds is released or deleted, and stays locked to everybody for its lock-delay.
        """
        return await self._perform(session.destroy(id, options=options))

    async def renew(self, id: str, *, options: WriteOptions | None = None) -> Session:
        """Start a session's TTL anew and return the session; SessionNotFound when it has ended."""
        return await self._perform(session.renew(id, options=options))

    async def info(self, id: str, *, options: ReadOptions | None = None) -> Result[Session | None]:
        """Read a session; None when there is none, and also when the token may not read it."""
        return await self._perform(session.info(id, options=options))

    async def list(self, *, options: ReadOptions | None = None) -> Result[tuple[Session, ...]]:
        """Read all sessions that the token may read."""
        return await self._perform(session.list_sessions(options=options))

    async def node(self, name: str, *, options: ReadOptions | None = None) -> Result[tuple[Session, ...]]:
        """Read the sessions of one node."""
        return await self._perform(session.node(name, options=options))


class AsyncAgent:
    """The agent that answers, and the health checks that it keeps.

    It answers from its own state: results have index 0, and options that choose a consistency or wait do
    nothing.
    """

    def __init__(self, perform: AsyncPerform) -> None:
        self._perform = perform

    async def info(self, *, options: ReadOptions | None = None) -> Result[AgentInfo]:
        """Read who answers."""
        return await self._perform(agent.info(options=options))

    async def checks(self, *, options: ReadOptions | None = None) -> Result[dict[str, HealthCheck]]:
        """Read the checks that this agent keeps, by id."""
        return await self._perform(agent.checks(options=options))

    async def register_check(self, spec: CheckSpec, *, options: WriteOptions | None = None) -> None:
        """Have the agent keep a check; critical at first, unless the spec says otherwise."""
        return await self._perform(agent.register_check(spec, options=options))

    async def deregister_check(self, id: str, *, options: WriteOptions | None = None) -> None:
        """Have the agent forget a check; every session that names it ends."""
        return await self._perform(agent.deregister_check(id, options=options))

    async def pass_check(self, id: str, *, note: str = "", options: WriteOptions | None = None) -> None:
        """Set a TTL check to passing, and start its time anew."""
        return await self._perform(agent.pass_check(id, note=note, options=options))

    async def warn_check(self, id: str, *, note: str = "", options: WriteOptions | None = None) -> None:
        """Set a TTL check to warning, which ends no session, and start its time anew."""
        return await self._perform(agent.warn_check(id, note=note, options=options))

    async def fail_check(self, id: str, *, note: str = "", options: WriteOptions | None = None) -> None:
        """Set a TTL check to critical; every session that names it ends."""
        return await self._perform(agent.fail_check(id, note=note, options=options))

    async def update_check(
        self, id: str, status: CheckStatus, *, output: str = "", options: WriteOptions | None = None
    ) -> None:
        """Set a TTL check's state and output."""
        return await self._perform(agent.update_check(id, status, output=output, options=options))


class AsyncCatalog:
    """Nodes and what is registered on them."""

    def __init__(self, perform: AsyncPerform) -> None:
        self._perform = perform

    async def nodes(self, *, options: ReadOptions | None = None) -> Result[tuple[Node, ...]]:
        """Read all nodes that the token may read."""
        return await self._perform(catalog.nodes(options=options))

    async def node(self, name: str, *, options: ReadOptions | None = None) -> Result[CatalogNode | None]:
        """Read a node with its services; None when it is not registered."""
        return await self._perform(catalog.node(name, options=options))

    async def register(self, registration: Registration, *, options: WriteOptions | None = None) -> bool:
        """Enter a node, with a service and checks if given, or overwrite what is there."""
        return await self._perform(catalog.register(registration, options=options))

    async def deregister(
        self,
        node: str,
        *,
        check_id: str | None = None,
        service_id: str | None = None,
        options: WriteOptions | None = None,
    ) -> bool:
        """Remove one check, or one service with its checks, or else the whole node; true also for none such.

        Sessions end with their node, and with any check that they name.
        """
        return await self._perform(
            catalog.deregister(node, check_id=check_id, service_id=service_id, options=options)
        )


class AsyncHealth:
    """Health checks of all nodes, as the servers know them."""

    def __init__(self, perform: AsyncPerform) -> None:
        self._perform = perform

    async def node(self, name: str, *, options: ReadOptions | None = None) -> Result[tuple[HealthCheck, ...]]:
        """Read the checks of one node; none when it is not registered."""
        return await self._perform(health.node(name, options=options))

    async def state(
        self, state: HealthState, *, options: ReadOptions | None = None
    ) -> Result[tuple[HealthCheck, ...]]:
        """Read the checks that are in one state."""
        return await self._perform(health.state(state, options=options))


class AsyncQuery:
    """Prepared queries, which may be bound to a session and are then deleted with it."""

    def __init__(self, perform: AsyncPerform) -> None:
        self._perform = perform

    async def create(self, query: PreparedQuery, *, options: WriteOptions | None = None) -> str:
        """Store a query and return its id; SessionNotFound when it names a session that does not exist."""
        return await self._perform(_query.create(query, options=options))

    async def get(self, id: str, *, options: ReadOptions | None = None) -> Result[PreparedQuery | None]:
        """Read one query; None when there is none."""
        return await self._perform(_query.get(id, options=options))

    async def list(self, *, options: ReadOptions | None = None) -> Result[tuple[PreparedQuery, ...]]:
        """Read all queries that the token may read."""
        return await self._perform(_query.list_queries(options=options))

    async def delete(self, id: str, *, options: WriteOptions | None = None) -> None:
        """Delete a query."""
        return await self._perform(_query.delete(id, options=options))


class AsyncStatus:
    """The servers' Raft state; needs no permission."""

    def __init__(self, perform: AsyncPerform) -> None:
        self._perform = perform

    async def leader(self, *, options: ReadOptions | None = None) -> str | None:
        """Read the address of the servers' leader; None when there is none."""
        return await self._perform(status.leader(options=options))

    async def peers(self, *, options: ReadOptions | None = None) -> tuple[str, ...]:
        """Read the addresses of the servers."""
        return await self._perform(status.peers(options=options))
