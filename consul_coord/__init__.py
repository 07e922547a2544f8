"""Locks, leader election and semaphores on Consul, for blocking and async code.

Each name is loaded when it is first used. A program pays for what it needs: a blocking one for no event loop,
and one that only names an error for little more than that error.

Rule: a new name goes into the imports for type checkers, into the table below them, and into ``__all__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord._version import __version__
from consul_coord.lazy import lazily as _lazily

if TYPE_CHECKING:
    from consul_coord.aio.client import AsyncClient
    from consul_coord.aio.election import AsyncLeaderElection, async_leader, async_observe
    from consul_coord.aio.group import AsyncGroup
    from consul_coord.aio.hold import AsyncHold, AsyncLossEvent
    from consul_coord.aio.leadership import AsyncLeadership
    from consul_coord.aio.lock import AsyncLock, AsyncReentrantLock
    from consul_coord.aio.multilock import AsyncMultiLock
    from consul_coord.aio.once import AsyncOnce, AsyncOnceRun, async_every
    from consul_coord.aio.partition import AsyncPartitioner
    from consul_coord.aio.rwlock import AsyncReadWriteLock
    from consul_coord.aio.semaphore import AsyncPermit, AsyncSemaphore
    from consul_coord.aio.session import AsyncKeptSession
    from consul_coord.aio.watch import AsyncWatch
    from consul_coord.clock import Clock, SystemClock
    from consul_coord.config import TLSConfig
    from consul_coord.errors import (
        AcquireCancelled,
        AcquireTimeout,
        AlreadyHeld,
        BackgroundFailed,
        BrokenReply,
        CertificateRefused,
        ClientClosed,
        ConfigError,
        ConnectFailed,
        ConsulCoordError,
        CoordinationError,
        DecodeError,
        InvalidArgument,
        InvalidKey,
        InvalidRequest,
        KeyConflict,
        LeadershipLost,
        LockLost,
        NodeNotRegistered,
        NoLeader,
        NotFound,
        NotHeld,
        PayloadTooLarge,
        PermissionDenied,
        RateLimited,
        RequestTimeout,
        ResponseError,
        SemaphoreLimitConflict,
        ServerError,
        SessionCheckFailed,
        SessionNotFound,
        TooManyConnections,
        TransportError,
        TxnFailed,
        UnsafeSession,
        ValueTooLarge,
    )
    from consul_coord.events import Event, Observer
    from consul_coord.models import (
        GROUP_FLAGS,
        LOCK_FLAGS,
        SEMAPHORE_FLAGS,
        AgentInfo,
        Behavior,
        Blocker,
        BlockerKind,
        CatalogNode,
        CheckSpec,
        CheckStatus,
        Consistency,
        Contender,
        FailureKind,
        HealthCheck,
        HealthState,
        Holder,
        HoldState,
        KVPair,
        LeaderInfo,
        LossReason,
        Member,
        Members,
        Node,
        PreparedQuery,
        QueryResult,
        ReadOptions,
        Registration,
        ReleaseOutcome,
        Result,
        Sequencer,
        Service,
        ServiceInstance,
        Session,
        SessionSettings,
        SessionSpec,
        Stats,
        TxnFailure,
        TxnOp,
        TxnResult,
        Verb,
        WriteOptions,
        failover_bound,
    )
    from consul_coord.models.once import OnceResult
    from consul_coord.periods import period_slot
    from consul_coord.sync.client import Client
    from consul_coord.sync.election import LeaderElection, leader, observe
    from consul_coord.sync.group import Group
    from consul_coord.sync.hold import Hold, LossEvent
    from consul_coord.sync.leadership import Leadership
    from consul_coord.sync.lock import Lock, ReentrantLock
    from consul_coord.sync.multilock import MultiLock
    from consul_coord.sync.once import Once, OnceRun, every
    from consul_coord.sync.partition import Partitioner
    from consul_coord.sync.rwlock import ReadWriteLock
    from consul_coord.sync.semaphore import Permit, Semaphore
    from consul_coord.sync.session import KeptSession
    from consul_coord.sync.watch import Watch
else:  # type checkers know the names above, and report every other one
    __getattr__, __dir__ = _lazily(
        __name__,
        {
            "aio.client": "AsyncClient",
            "aio.election": "AsyncLeaderElection async_leader async_observe",
            "aio.group": "AsyncGroup",
            "aio.hold": "AsyncHold AsyncLossEvent",
            "aio.leadership": "AsyncLeadership",
            "aio.lock": "AsyncLock AsyncReentrantLock",
            "aio.multilock": "AsyncMultiLock",
            "aio.once": "AsyncOnce AsyncOnceRun async_every",
            "aio.partition": "AsyncPartitioner",
            "aio.rwlock": "AsyncReadWriteLock",
            "aio.semaphore": "AsyncPermit AsyncSemaphore",
            "aio.session": "AsyncKeptSession",
            "aio.watch": "AsyncWatch",
            "clock": "Clock SystemClock",
            "config": "TLSConfig",
            "errors": """
                AcquireCancelled AcquireTimeout AlreadyHeld BackgroundFailed BrokenReply
                CertificateRefused ClientClosed ConfigError ConnectFailed ConsulCoordError
                CoordinationError DecodeError InvalidArgument InvalidKey InvalidRequest KeyConflict
                LeadershipLost LockLost NoLeader NodeNotRegistered NotFound NotHeld PayloadTooLarge
                PermissionDenied RateLimited RequestTimeout ResponseError SemaphoreLimitConflict
                ServerError SessionCheckFailed SessionNotFound TooManyConnections TransportError TxnFailed
                UnsafeSession ValueTooLarge
            """,
            "events": "Event Observer",
            "models": """
                GROUP_FLAGS LOCK_FLAGS SEMAPHORE_FLAGS AgentInfo Behavior Blocker BlockerKind CatalogNode
                CheckSpec CheckStatus Consistency Contender FailureKind HealthCheck HealthState Holder
                HoldState KVPair LeaderInfo LossReason Member Members Node PreparedQuery QueryResult
                ReadOptions Registration ReleaseOutcome Result Sequencer Service ServiceInstance Session
                SessionSettings SessionSpec Stats TxnFailure TxnOp TxnResult Verb WriteOptions
                failover_bound
            """,
            "models.once": "OnceResult",
            "periods": "period_slot",
            "sync.client": "Client",
            "sync.election": "LeaderElection leader observe",
            "sync.group": "Group",
            "sync.hold": "Hold LossEvent",
            "sync.leadership": "Leadership",
            "sync.lock": "Lock ReentrantLock",
            "sync.multilock": "MultiLock",
            "sync.once": "Once OnceRun every",
            "sync.partition": "Partitioner",
            "sync.rwlock": "ReadWriteLock",
            "sync.semaphore": "Permit Semaphore",
            "sync.session": "KeptSession",
            "sync.watch": "Watch",
        },
    )


__all__ = [
    "GROUP_FLAGS",
    "LOCK_FLAGS",
    "SEMAPHORE_FLAGS",
    "AcquireCancelled",
    "AcquireTimeout",
    "AgentInfo",
    "AlreadyHeld",
    "AsyncClient",
    "AsyncGroup",
    "AsyncHold",
    "AsyncKeptSession",
    "AsyncLeaderElection",
    "AsyncLeadership",
    "AsyncLock",
    "AsyncLossEvent",
    "AsyncMultiLock",
    "AsyncOnce",
    "AsyncOnceRun",
    "AsyncPartitioner",
    "AsyncPermit",
    "AsyncReadWriteLock",
    "AsyncReentrantLock",
    "AsyncSemaphore",
    "AsyncWatch",
    "BackgroundFailed",
    "Behavior",
    "Blocker",
    "BlockerKind",
    "BrokenReply",
    "CatalogNode",
    "CertificateRefused",
    "CheckSpec",
    "CheckStatus",
    "Client",
    "ClientClosed",
    "Clock",
    "ConfigError",
    "ConnectFailed",
    "Consistency",
    "ConsulCoordError",
    "Contender",
    "CoordinationError",
    "DecodeError",
    "Event",
    "FailureKind",
    "Group",
    "HealthCheck",
    "HealthState",
    "Hold",
    "HoldState",
    "Holder",
    "InvalidArgument",
    "InvalidKey",
    "InvalidRequest",
    "KVPair",
    "KeptSession",
    "KeyConflict",
    "LeaderElection",
    "LeaderInfo",
    "Leadership",
    "LeadershipLost",
    "Lock",
    "LockLost",
    "LossEvent",
    "LossReason",
    "Member",
    "Members",
    "MultiLock",
    "NoLeader",
    "Node",
    "NodeNotRegistered",
    "NotFound",
    "NotHeld",
    "Observer",
    "Once",
    "OnceResult",
    "OnceRun",
    "Partitioner",
    "PayloadTooLarge",
    "PermissionDenied",
    "Permit",
    "PreparedQuery",
    "QueryResult",
    "RateLimited",
    "ReadOptions",
    "ReadWriteLock",
    "ReentrantLock",
    "Registration",
    "ReleaseOutcome",
    "RequestTimeout",
    "ResponseError",
    "Result",
    "Semaphore",
    "SemaphoreLimitConflict",
    "Sequencer",
    "ServerError",
    "Service",
    "ServiceInstance",
    "Session",
    "SessionCheckFailed",
    "SessionNotFound",
    "SessionSettings",
    "SessionSpec",
    "Stats",
    "SystemClock",
    "TLSConfig",
    "TooManyConnections",
    "TransportError",
    "TxnFailed",
    "TxnFailure",
    "TxnOp",
    "TxnResult",
    "UnsafeSession",
    "ValueTooLarge",
    "Verb",
    "Watch",
    "WriteOptions",
    "__version__",
    "async_every",
    "async_leader",
    "async_observe",
    "every",
    "failover_bound",
    "leader",
    "observe",
    "period_slot",
]
