"""Agents, nodes, services, health checks and prepared queries, as far as coordination has to do with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from consul_coord.errors import InvalidArgument
from consul_coord.models import _validate
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CheckStatus: TypeAlias = Literal["passing", "warning", "critical"]
"""Only ``critical`` ends the sessions that name the check."""

HealthState: TypeAlias = Literal["any", "passing", "warning", "critical"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AgentInfo(Value):
    """The agent that answers."""

    node: str
    datacenter: str = ""
    node_id: str = ""
    version: str = ""
    server: bool = False
    session_ttl_min: float | None = None
    """The shortest TTL of a session that this agent is set to take, in seconds; None where it does not tell.

    The servers' own setting decides, and may differ from that of a client agent.
    """


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HealthCheck(Value):
    """A health check with its present state."""

    id: str
    name: str = ""
    node: str = ""
    status: str = ""
    notes: str = ""
    output: str = ""
    service_id: str = ""
    service_name: str = ""
    create_index: int = 0
    modify_index: int = 0

    def __post_init__(self) -> None:
        _validate.all_texts(
            id=self.id,
            name=self.name,
            node=self.node,
            status=self.status,
            notes=self.notes,
            output=self.output,
            service_id=self.service_id,
            service_name=self.service_name,
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class CheckSpec(Value):
    """A health check for the agent to keep: exactly one of ``ttl``, ``http`` or ``tcp`` says how.

    Raises InvalidArgument otherwise. Durations in seconds.
    """

    name: str
    id: str | None = None
    """None for the name."""
    ttl: float | None = None
    """Becomes critical when nobody passes it for this long."""
    http: str | None = None
    """Passing while a GET of this URL gives 2xx; needs ``interval``."""
    tcp: str | None = None
    """Passing while a connection to this ``host:port`` can be made; needs ``interval``."""
    interval: float | None = None
    timeout: float | None = None
    status: CheckStatus | None = None
    """The state to begin with; None for critical, with which no session can be made."""
    notes: str = ""
    service_id: str | None = None
    deregister_after: float | None = None
    """Remove the check's service when it was critical for this long."""

    def __post_init__(self) -> None:
        _validate.texts_or_none(
            name=self.name,
            id=self.id,
            http=self.http,
            tcp=self.tcp,
            notes=self.notes,
            service_id=self.service_id,
        )
        if not self.name:
            message = "a check needs a name"
            raise InvalidArgument(message)
        kinds = [kind for kind in ("ttl", "http", "tcp") if getattr(self, kind) is not None]
        if len(kinds) != 1:
            message = f"a check needs exactly one of ttl, http and tcp, not {', '.join(kinds) or 'none'}"
            raise InvalidArgument(message)
        if kinds != ["ttl"] and self.interval is None:
            message = f"a check by {kinds[0]} needs an interval"
            raise InvalidArgument(message)
        for duration in ("ttl", "interval", "timeout", "deregister_after"):
            if (value := getattr(self, duration)) is not None:
                _validate.seconds(duration, value, minimum=0.001)
        if self.status is not None:
            _validate.choice("status", self.status, get_args(CheckStatus))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node(Value):
    """A node of the catalog."""

    name: str
    address: str = ""
    id: str = ""
    datacenter: str = ""
    meta: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    create_index: int = 0
    modify_index: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Service(Value):
    """A service of a node."""

    name: str
    id: str = ""
    address: str = ""
    port: int = 0
    tags: Sequence[str] = ()
    meta: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)

    def __post_init__(self) -> None:
        _validate.all_texts(name=self.name, id=self.id, address=self.address)
        _validate.count("port", self.port)
        object.__setattr__(self, "tags", _validate.texts("tags", self.tags))
        object.__setattr__(self, "meta", _validate.text_map("meta", self.meta))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CatalogNode(Value):
    """A node with its services, by service id."""

    node: Node
    services: tuple[Service, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServiceInstance(Value):
    """One instance of a service, with its node; ``checks`` are those of both, where they are asked for."""

    node: Node
    service: Service
    checks: tuple[HealthCheck, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryResult(Value):
    """The result of an executed query: the instances of its service that are not critical."""

    service: str
    instances: tuple[ServiceInstance, ...] = ()
    datacenter: str = ""
    """The one that answered."""
    failovers: int = 0
    """How many datacenters were asked in vain before."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Registration(Value):
    """An entry for the catalog: a node, and perhaps a service and checks on it.

    For what no agent looks after; an agent overwrites entries about its own node.
    """

    node: str
    address: str
    node_id: str | None = None
    node_meta: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    service: Service | None = None
    checks: Sequence[HealthCheck] = ()
    skip_node_update: bool = False
    """Leave the node's own data alone when it is registered already."""

    def __post_init__(self) -> None:
        for name in ("node", "address"):
            if not _validate.text(name, getattr(self, name)):
                message = f"a registration needs the {name} of its node"
                raise InvalidArgument(message)
        _validate.texts_or_none(node_id=self.node_id)
        object.__setattr__(self, "node_meta", _validate.text_map("node_meta", self.node_meta))
        if self.service is not None:
            _validate.instance("service", self.service, Service)
        object.__setattr__(self, "checks", _validate.instances("checks", self.checks, HealthCheck))


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class PreparedQuery(Value):
    """A stored query for a service; one that names a session is deleted with it."""

    service: str
    name: str = ""
    session: str = ""
    id: str = ""
    """Given by Consul."""
    tags: Sequence[str] = ()
    only_passing: bool = False
    near: str = ""

    def __post_init__(self) -> None:
        _validate.all_texts(
            service=self.service, name=self.name, session=self.session, id=self.id, near=self.near
        )
        object.__setattr__(self, "tags", _validate.texts("tags", self.tags))
