"""The rows of the state: immutable, so that a copy of a table is a snapshot and a rollback is a pointer.

Lock-delays are kept in nanoseconds and TTLs as text, because that is what Consul stores and echoes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PASSING = "passing"
WARNING = "warning"
CRITICAL = "critical"

SERF_CHECK = "serfHealth"

RELEASE = "release"
DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of the KV store; ``session`` is empty when nobody holds it."""

    key: str
    value: bytes = b""
    flags: int = 0
    session: str = ""
    lock_index: int = 0
    create_index: int = 0
    modify_index: int = 0

    def same_content(self, other: Entry) -> bool:
        """Tell whether writing ``other`` over this entry would change nothing but indexes."""
        return (
            self.value == other.value
            and self.flags == other.flags
            and self.session == other.session
            and self.lock_index == other.lock_index
        )


@dataclass(frozen=True, slots=True)
class ServiceCheck:
    """A reference from a session to a service's check."""

    id: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as stored; a list is None when the client sent none or null."""

    id: str
    name: str
    node: str
    lock_delay: int
    behavior: str
    ttl: str
    node_checks: tuple[str, ...] | None
    service_checks: tuple[ServiceCheck, ...] | None = None
    checks: tuple[str, ...] = ()
    create_index: int = 0
    modify_index: int = 0

    @property
    def check_ids(self) -> tuple[str, ...]:
        """Return every check that can invalidate the session."""
        return self.checks + (self.node_checks or ()) + tuple(check.id for check in self.service_checks or ())


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node of the catalog."""

    name: str
    id: str
    address: str
    datacenter: str
    tagged_addresses: tuple[tuple[str, str], ...] | None = None
    meta: tuple[tuple[str, str], ...] | None = None
    create_index: int = 0
    modify_index: int = 0


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A service instance on a node.

    ``weights`` are for passing and for warning; ``proxy`` is kept as the JSON text that is shown, empty for
    none; ``native`` says that the service speaks Connect by itself.
    """

    node: str
    id: str
    service: str
    tags: tuple[str, ...] = ()
    address: str = ""
    port: int = 0
    meta: tuple[tuple[str, str], ...] | None = None
    kind: str = ""
    tagged_addresses: tuple[tuple[str, str, int], ...] = ()
    weights: tuple[int, int] = (1, 1)
    enable_tag_override: bool = False
    proxy: str = ""
    native: bool = False
    create_index: int = 0
    modify_index: int = 0


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """A health check of a node or of one of its services; ``definition`` is the JSON text that is shown."""

    node: str
    id: str
    name: str
    status: str = CRITICAL
    notes: str = ""
    output: str = ""
    service_id: str = ""
    service_name: str = ""
    service_tags: tuple[str, ...] = ()
    type: str = ""
    definition: str = ""
    create_index: int = 0
    modify_index: int = 0


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """A prepared query; ``service`` is its service block as the client sent it, kept as JSON text."""

    id: str
    name: str
    session: str
    token: str = field(repr=False)
    service: str
    dns_ttl: str = ""
    template_type: str = ""
    template_regexp: str = ""
    template_remove_empty_tags: bool = False
    create_index: int = 0
    modify_index: int = 0


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """An ACL policy; without ``datacenters`` it holds in all of them."""

    id: str
    name: str
    description: str = ""
    rules: str = ""
    datacenters: tuple[str, ...] = ()
    create_index: int = 0
    modify_index: int = 0


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """An ACL token with the ids of its policies, of which some may have been deleted since.

    ``digest`` is its hash as of when it was written, ``created`` its time as Consul shows it.
    """

    accessor: str
    secret: str = field(repr=False)
    description: str = ""
    policies: tuple[str, ...] = ()
    local: bool = False
    created: str = ""
    digest: str = ""
    create_index: int = 0
    modify_index: int = 0
