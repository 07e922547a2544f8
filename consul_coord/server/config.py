"""Settings of the reference server; the defaults are those of a Consul 1.8.7 server.

Durations are seconds, sizes are bytes. Everything that a test may want to shorten or loosen is a value here,
so that no rule of the server has a hidden constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from consul_coord.errors import ConfigError
from consul_coord.server.dialects import Dialect, dialect_of
from consul_coord.server.services import problem_with_meta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.server.acl import AclConfig

_NUMBERS = frozenset({int, float})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Say how the server behaves.

    ``session_ttl_min``/``session_ttl_max`` bound a session's TTL and ``lock_delay_max`` caps its lock-delay.
    A session ends ``session_ttl_factor`` times its TTL after its last renewal: Consul takes twice as long as
    it says, but promises only the TTL itself.
    ``default_wait`` and ``max_wait`` rule blocking queries, ``leaderless_hold`` is how long a request waits
    for a leader before it is refused. ``spurious_wakeups`` makes watches of absent keys answer early on any
    KV write, as Consul sometimes does. ``http_max_conns_per_client`` closes further connections of one
    address (0: no limit). ``enable_script_checks`` lets clients register checks that run a program here.
    ``control`` opens the control endpoint, ``acl`` switches ACLs on, ``allow_remote`` permits listening on an
    address other than loopback. ``tls_cert`` and ``tls_key`` name PEM files and make it HTTPS; with
    ``tls_client_ca``, a PEM file too, clients must show a certificate that it vouches for.
    ``version`` selects the answers of Consul 1.8 or of the newest version (all from 1.9 on), where they
    differ; the server says that it is this version. ``txn_max_ops`` of 0 is that version's limit.
    ``hops`` is how far from the leader the agent is: 0 the leader itself, 1 a follower, 2 a client agent that
    talks to a follower. So often does the text of the leader's errors begin with
    ``rpc error making call: ``.
    ``write_time`` is how long a write takes. An agent first writes to its disk, and requests on other
    connections overtake it meanwhile; with 0 a write is done at once.
    ``node_meta`` is the metadata of the agent's own node, which ``?node-meta=`` and filters can ask for.
    """

    session_ttl_min: float = 10.0
    session_ttl_max: float = 86_400.0
    lock_delay_max: float = 60.0
    session_ttl_factor: float = 2.0
    kv_max_value_size: int = 524_288
    txn_max_req_len: int = 524_288
    txn_max_ops: int = 0
    default_wait: float = 300.0
    max_wait: float = 600.0
    leaderless_hold: float = 7.0
    write_time: float = 0.0
    tombstone_ttl: float = 900.0
    tombstone_granularity: float = 30.0
    spurious_wakeups: bool = False
    http_max_conns_per_client: int = 200
    enable_script_checks: bool = False
    gzip: bool = True
    pretty: bool = False
    version: str = "1.8.7"
    dialect: Dialect = field(init=False, repr=False, compare=False)
    hops: int = 0
    node_meta: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    allow_remote: bool = False
    control: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    acl: AclConfig | None = None

    def __post_init__(self) -> None:
        """Select the table of answers; ``ConfigError`` for what no agent has."""
        for name in (each.name for each in fields(self) if type(each.default) in _NUMBERS):
            value = getattr(self, name)
            # A negative time would be no time, and a negative size would refuse everything.
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} must be a number of 0 or more, not {value!r}")
        if why := problem_with_meta(tuple(self.node_meta.items())):
            message = f"node_meta: {why}"
            raise ConfigError(message)
        object.__setattr__(self, "dialect", dialect_of(self.version))

    @property
    def most_txn_ops(self) -> int:
        """Return how many operations a transaction may have."""
        return self.txn_max_ops or self.dialect.txn_ops
