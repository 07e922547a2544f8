"""Locks, leader election and semaphores on Consul, for blocking and async code.

The async names are loaded when first used: with them comes an event loop, which blocking programs may never
need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from consul_coord._version import __version__
from consul_coord.clock import Clock, SystemClock
from consul_coord.config import TLSConfig
from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
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
    TransportError,
    TxnFailed,
    UnsafeSession,
    ValueTooLarge,
)
from consul_coord.events import Event, Observer
from consul_coord.models import (
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
    Node,
    PreparedQuery,
    ReadOptions,
    Registration,
    ReleaseOutcome,
    Result,
    Sequencer,
    Service,
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
from consul_coord.sync.client import Client
from consul_coord.sync.election import LeaderElection, leader, observe
from consul_coord.sync.hold import Hold, LossEvent
from consul_coord.sync.leadership import Leadership
from consul_coord.sync.lock import Lock, ReentrantLock
from consul_coord.sync.multilock import MultiLock
from consul_coord.sync.rwlock import ReadWriteLock
from consul_coord.sync.semaphore import Permit, Semaphore
from consul_coord.sync.session import KeptSession
from consul_coord.sync.watch import Watch

if TYPE_CHECKING:
    from consul_coord.aio.client import AsyncClient
    from consul_coord.aio.election import AsyncLeaderElection, async_leader, async_observe
    from consul_coord.aio.hold import AsyncHold, AsyncLossEvent
    from consul_coord.aio.leadership import AsyncLeadership
    from consul_coord.aio.lock import AsyncLock, AsyncReentrantLock
    from consul_coord.aio.multilock import AsyncMultiLock
    from consul_coord.aio.rwlock import AsyncReadWriteLock
    from consul_coord.aio.semaphore import AsyncPermit, AsyncSemaphore
    from consul_coord.aio.session import AsyncKeptSession
    from consul_coord.aio.watch import AsyncWatch

_ASYNC = {
    "AsyncClient": "consul_coord.aio.client",
    "AsyncHold": "consul_coord.aio.hold",
    "AsyncLeaderElection": "consul_coord.aio.election",
    "AsyncLeadership": "consul_coord.aio.leadership",
    "AsyncLossEvent": "consul_coord.aio.hold",
    "AsyncLock": "consul_coord.aio.lock",
    "AsyncReentrantLock": "consul_coord.aio.lock",
    "AsyncMultiLock": "consul_coord.aio.multilock",
    "AsyncReadWriteLock": "consul_coord.aio.rwlock",
    "AsyncPermit": "consul_coord.aio.semaphore",
    "AsyncSemaphore": "consul_coord.aio.semaphore",
    "AsyncKeptSession": "consul_coord.aio.session",
    "AsyncWatch": "consul_coord.aio.watch",
    "async_leader": "consul_coord.aio.election",
    "async_observe": "consul_coord.aio.election",
}


def __getattr__(name: str) -> object:
    if name in _ASYNC:
        return getattr(import_module(_ASYNC[name]), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


__all__ = [
    "LOCK_FLAGS",
    "SEMAPHORE_FLAGS",
    "AcquireCancelled",
    "AcquireTimeout",
    "AgentInfo",
    "AlreadyHeld",
    "AsyncClient",
    "AsyncHold",
    "AsyncKeptSession",
    "AsyncLeaderElection",
    "AsyncLeadership",
    "AsyncLock",
    "AsyncLossEvent",
    "AsyncMultiLock",
    "AsyncPermit",
    "AsyncReadWriteLock",
    "AsyncReentrantLock",
    "AsyncSemaphore",
    "AsyncWatch",
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
    "MultiLock",
    "NoLeader",
    "Node",
    "NotFound",
    "NotHeld",
    "Observer",
    "PayloadTooLarge",
    "PermissionDenied",
    "Permit",
    "PreparedQuery",
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
    "Session",
    "SessionCheckFailed",
    "SessionNotFound",
    "SessionSettings",
    "SessionSpec",
    "Stats",
    "SystemClock",
    "TLSConfig",
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
    "async_leader",
    "async_observe",
    "failover_bound",
    "leader",
    "observe",
]
