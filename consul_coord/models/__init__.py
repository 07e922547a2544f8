"""The values that callers give and get: frozen, slotted dataclasses and enumerations, without any I/O.

Rules
- Values are ``bytes``; parameters named ``value`` also take ``str`` and store it as UTF-8.
- Indices and flags are exact 64-bit integers; durations are seconds as ``float``.
- An argument that can never work is refused when the object is made, with an error that says what would.
- Dataclasses are expensive to make, so each module is loaded when one of its names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.lazy import lazily as _lazily

if TYPE_CHECKING:
    from consul_coord.models.catalog import (
        AgentInfo,
        CatalogNode,
        CheckSpec,
        CheckStatus,
        HealthCheck,
        HealthState,
        Node,
        PreparedQuery,
        QueryResult,
        Registration,
        Service,
        ServiceInstance,
    )
    from consul_coord.models.group import GROUP_FLAGS, Member, Members
    from consul_coord.models.kv import (
        LOCK_FLAGS,
        SEMAPHORE_FLAGS,
        FailureKind,
        KVPair,
        TxnFailure,
        TxnOp,
        TxnResult,
        Verb,
    )
    from consul_coord.models.reply import Consistency, ReadOptions, Result, WriteOptions
    from consul_coord.models.session import Behavior, Session, SessionSettings, SessionSpec, failover_bound
    from consul_coord.models.state import (
        Blocker,
        BlockerKind,
        Contender,
        Holder,
        HoldState,
        LeaderInfo,
        LossReason,
        ReleaseOutcome,
        Sequencer,
        Stats,
    )
else:  # type checkers know the names above, and report every other one
    __getattr__, __dir__ = _lazily(
        __name__,
        {
            "catalog": """
                AgentInfo CatalogNode CheckSpec CheckStatus HealthCheck HealthState Node PreparedQuery
                QueryResult Registration Service ServiceInstance
            """,
            "group": "GROUP_FLAGS Member Members",
            "kv": "LOCK_FLAGS SEMAPHORE_FLAGS FailureKind KVPair TxnFailure TxnOp TxnResult Verb",
            "reply": "Consistency ReadOptions Result WriteOptions",
            "session": "Behavior Session SessionSettings SessionSpec failover_bound",
            "state": """
                Blocker BlockerKind Contender Holder HoldState LeaderInfo LossReason ReleaseOutcome
                Sequencer Stats
            """,
        },
    )

__all__ = [
    "GROUP_FLAGS",
    "LOCK_FLAGS",
    "SEMAPHORE_FLAGS",
    "AgentInfo",
    "Behavior",
    "Blocker",
    "BlockerKind",
    "CatalogNode",
    "CheckSpec",
    "CheckStatus",
    "Consistency",
    "Contender",
    "FailureKind",
    "HealthCheck",
    "HealthState",
    "HoldState",
    "Holder",
    "KVPair",
    "LeaderInfo",
    "LossReason",
    "Member",
    "Members",
    "Node",
    "PreparedQuery",
    "QueryResult",
    "ReadOptions",
    "Registration",
    "ReleaseOutcome",
    "Result",
    "Sequencer",
    "Service",
    "ServiceInstance",
    "Session",
    "SessionSettings",
    "SessionSpec",
    "Stats",
    "TxnFailure",
    "TxnOp",
    "TxnResult",
    "Verb",
    "WriteOptions",
    "failover_bound",
]
