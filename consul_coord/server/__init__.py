"""The reference server: a Consul agent in memory, for tests that need a Consul they can trust.

The state machine (``state`` and its parts) is pure: the time is an argument, and there is no I/O, no clock
and no thread. The HTTP rules over it (``service``, ``routes`` and ``endpoints``) are pure as well. On top are
a thin ASGI shell and a server. The pure modules import neither asyncio nor uvicorn, so a simulator can drive
them directly; the names exported here are therefore loaded on first use. Only the server itself needs the
extra, and says so where that is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.extras import needs
from consul_coord.lazy import lazily as _lazily

if TYPE_CHECKING:
    from consul_coord.server.acl import AclConfig, Rule, Token
    from consul_coord.server.config import ServerConfig
    from consul_coord.server.faults import Effect, Fault, FaultHandle
    from consul_coord.server.reference import ReferenceServer
else:
    __getattr__, __dir__ = _lazily(
        __name__,
        {
            "acl": "AclConfig Rule Token",
            "config": "ServerConfig",
            "faults": "Effect Fault FaultHandle",
            "reference": "ReferenceServer",
        },
        loading=lambda _: needs("server"),
    )

__all__ = [
    "AclConfig",
    "Effect",
    "Fault",
    "FaultHandle",
    "ReferenceServer",
    "Rule",
    "ServerConfig",
    "Token",
]
