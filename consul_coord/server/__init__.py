"""The reference server: a Consul agent in memory, for tests that need a Consul they can trust.

What belongs here: the state machine (``state`` and its parts, pure: the time is an argument, no I/O, no
clock, no threads), the HTTP rules over it (``service``, ``routes`` and ``endpoints``, pure as well) and, on
top, a thin ASGI shell and a server. The pure modules import neither asyncio nor uvicorn, so a simulator can
drive them directly; the names exported here are therefore loaded on first use. Only the server itself needs
the extra, and says so where that is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.extras import needs

if TYPE_CHECKING:
    from consul_coord.server.acl import AclConfig, Rule, Token
    from consul_coord.server.config import ServerConfig
    from consul_coord.server.faults import Effect, Fault, FaultHandle
    from consul_coord.server.reference import ReferenceServer

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

_HOMES = {
    "AclConfig": "consul_coord.server.acl",
    "Effect": "consul_coord.server.faults",
    "Fault": "consul_coord.server.faults",
    "FaultHandle": "consul_coord.server.faults",
    "Rule": "consul_coord.server.acl",
    "Token": "consul_coord.server.acl",
    "ReferenceServer": "consul_coord.server.reference",
    "ServerConfig": "consul_coord.server.config",
}


def __getattr__(name: str) -> object:
    """Load an exported name from its module when it is first asked for."""
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module

    with needs("server"):
        return getattr(import_module(_HOMES[name]), name)
