"""The options of a request, and the facts that come with an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar, get_args

from consul_coord.errors import InvalidArgument
from consul_coord.models import _validate
from consul_coord.value import Value

T_co = TypeVar("T_co", covariant=True)

Consistency: TypeAlias = Literal["default", "consistent", "stale"]
"""How fresh a read must be.

``default`` asks the leader, with a tiny window in which a deposed one may still answer; ``consistent`` makes
the leader confirm first that it leads; ``stale`` takes any server's answer, however old.
"""

SHORTEST_WAIT = 0.001
LONGEST_WAIT = 600.0
SHORTEST_STALE = 0.001
"""Consul takes 0, and what rounds to 0 ns, for no limit."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result(Value, Generic[T_co]):
    """The answer to a read."""

    value: T_co
    index: int = 0
    """Where the servers' state stood, for a blocking query; 0 when the reply did not say."""
    known_leader: bool | None = None
    """Whether the server knew a leader; None when the reply did not say."""
    last_contact: float | None = None
    """Seconds since the answering server heard from the leader; None when the reply did not say."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class ReadOptions(Value):
    """How to read. Raises InvalidArgument for what Consul would refuse or silently change."""

    index: int = 0
    """Wait until there is something newer than this index; 0 answers at once."""
    wait: float | None = None
    """How long to wait, in seconds (0.001 to 600), when ``index`` is set; None for 30."""
    consistency: Consistency = "default"
    max_stale: float | None = None
    """With ``stale``: ask the leader after all when the answer would be older than this, in seconds.

    At least 0.001: Consul takes 0 for no limit. It keeps to the limit in the catalog, in health and in
    executed queries. In reads of keys and sessions it does not: there, look at ``Result.last_contact``.
    """
    datacenter: str | None = None
    namespace: str | None = None
    partition: str | None = None
    near: str | None = None
    """Sort lists of nodes and checks by the distance from this node (``_agent``: the agent's own)."""

    def __post_init__(self) -> None:
        _validate.texts_or_none(
            datacenter=self.datacenter, namespace=self.namespace, partition=self.partition, near=self.near
        )
        _validate.uint64("index", self.index)
        if self.wait is not None:
            _validate.seconds("wait", self.wait, minimum=SHORTEST_WAIT, maximum=LONGEST_WAIT)
        _validate.choice("consistency", self.consistency, get_args(Consistency))
        if self.max_stale is not None:
            _validate.seconds("max_stale", self.max_stale, minimum=SHORTEST_STALE)
            if self.consistency != "stale":
                message = "max_stale goes with consistency='stale' only"
                raise InvalidArgument(message)


CONSISTENT = ReadOptions(consistency="consistent")
"""The leader answers, after asking the others whether it still leads."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class WriteOptions(Value):
    """Where to write. None leaves it to the client's settings and the agent. Raises InvalidArgument."""

    datacenter: str | None = None
    namespace: str | None = None
    partition: str | None = None

    def __post_init__(self) -> None:
        _validate.texts_or_none(
            datacenter=self.datacenter, namespace=self.namespace, partition=self.partition
        )
