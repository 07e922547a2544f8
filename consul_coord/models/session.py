"""Sessions: what to ask for, what Consul made of it, and how long its holder may trust it.

Rules
- The *horizon* of a session is the time for which nobody else can get what it holds, counted from the sending
  of its last successful renewal: the smaller of its TTL and its lock-delay. The servers wait for the TTL, and
  longer, before they end a session that nobody renews. But every session may end before that: with its node
  (autopilot, ``consul leave`` and ``force-leave`` remove nodes), by a health check, by an operator. Then the
  lock-delay alone keeps others out.
- A session without a horizon gives no local guarantee; it has to be asked for by name (``allow_unbounded``).
  Its lease is then the TTL, which holds as long as nothing but the TTL ends the session.
- Consul's minimum for a TTL is a setting of the servers (10 s unless changed), so it is theirs to enforce.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, get_args

from consul_coord.errors import InvalidArgument, UnsafeSession
from consul_coord.models import _validate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self, Unpack

Behavior: TypeAlias = Literal["release", "delete"]
"""What becomes of held keys when the session ends."""

DEFAULT_LOCK_DELAY = 15.0
"""What the servers use when none is sent."""
LONGEST_LOCK_DELAY = 60.0
LONGEST_TTL = 86_400.0
# Consul takes a lock-delay under 1000 ns for a number of seconds, and a TTL of 0 for none.
SHORTEST_DELAY = 1e-6
SHORTEST_TTL = 1e-6
SERF_HEALTH = "serfHealth"
_FAILOVER_SLACK = 1.0


@dataclass(frozen=True, slots=True)
class Session:
    """A session as Consul keeps it."""

    id: str
    name: str = ""
    node: str = ""
    ttl: float | None = None
    """Seconds, or None when it has none."""
    lock_delay: float = DEFAULT_LOCK_DELAY
    """Seconds, as it was sent; Consul enforces no more than 60."""
    behavior: str = "release"
    node_checks: tuple[str, ...] = ()
    service_checks: tuple[str, ...] = ()
    create_index: int = 0

    @property
    def horizon(self) -> float:
        """Seconds for which a renewal surely keeps others out; 0 when there is no such time."""
        return _horizon(self.ttl, self.lock_delay)


class SessionSettings(TypedDict, total=False):
    """The settings of a ``SessionSpec``, each optional."""

    ttl: float | None
    lock_delay: float | None
    behavior: Behavior
    node: str | None
    node_checks: Sequence[str]
    service_checks: Sequence[str]
    name: str | None
    drift: float
    allow_unbounded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """What a session shall be like.

    A hold lasts for ``1 - drift`` times ``lease_horizon`` after the last renewal was sent. So give ``ttl``
    and ``lock_delay`` together: the smaller one counts. Raises InvalidArgument for a setting out of its
    range. Raises UnsafeSession without a TTL or with a lock-delay of 0, unless ``allow_unbounded`` is set:
    nothing would then keep others out while a holder may still trust its session.
    """

    ttl: float | None = 15.0
    """Seconds until an unrenewed session may end (up to 86400); None for never."""
    lock_delay: float | None = None
    """Seconds (0 to 60) for which keys stay locked after the session ended; None for the servers' 15."""
    behavior: Behavior = "release"
    node: str | None = None
    """The registered node it belongs to; None for the agent's own."""
    node_checks: Sequence[str] = ()
    service_checks: Sequence[str] = ()
    name: str | None = None
    drift: float = 0.05
    """The part of the horizon given away for clocks that run at different speeds; 0 or more, less than 1."""
    allow_unbounded: bool = False
    """Do without the guarantee that two holders never overlap, where the settings leave no time for it."""

    def __post_init__(self) -> None:
        if self.ttl is not None:
            _validate.seconds("ttl", self.ttl, minimum=SHORTEST_TTL, maximum=LONGEST_TTL)
        self._check_lock_delay()
        _validate.choice("behavior", self.behavior, get_args(Behavior))
        for field in ("node_checks", "service_checks"):
            object.__setattr__(self, field, _validate.texts(field, getattr(self, field)))
        for field in ("node", "name"):
            if (value := getattr(self, field)) is not None:
                _validate.text(field, value)
        if self.node == "":
            message = "node must name a registered node; None means the agent's own"
            raise InvalidArgument(message)
        if not 0 <= _validate.number("drift", self.drift) < 1:
            message = f"drift must be 0 or more and less than 1, not {self.drift!r}"
            raise InvalidArgument(message)
        self._check_bounded()

    def _check_lock_delay(self) -> None:
        if self.lock_delay is None:
            return
        _validate.seconds("lock_delay", self.lock_delay, minimum=0, maximum=LONGEST_LOCK_DELAY)
        if 0 < self.lock_delay < SHORTEST_DELAY:
            message = f"lock_delay must be 0, or 0.000001 to 60 seconds, not {self.lock_delay!r}"
            raise InvalidArgument(message)

    def _check_bounded(self) -> None:
        if self.allow_unbounded or _horizon(self.ttl, effective_lock_delay(self)):
            return
        message = (
            f"this session would give its holder no time to notice a loss: {no_horizon(self.ttl)}. Set both "
            "ttl and lock_delay, or allow_unbounded=True to go without the guarantee"
        )
        raise UnsafeSession(message)

    @property
    def lease_horizon(self) -> float | None:
        """Seconds that a renewal gives the lease, before ``drift``: the smaller of TTL and lock-delay.

        With ``allow_unbounded``, where that would be 0: the TTL, without the guarantee; None without a TTL.
        """
        return _horizon(self.ttl, effective_lock_delay(self)) or self.ttl

    @classmethod
    def liveness(cls, **changes: Unpack[SessionSettings]) -> Self:
        """Make a spec that also ends when its node's agent dies: ``serfHealth`` is added to the node checks.

        Others take over sooner when a node dies, and more sessions end by mistake when the network is bad.
        """
        checks = (SERF_HEALTH, *_validate.texts("node_checks", changes.get("node_checks", ())))
        changes["node_checks"] = tuple(dict.fromkeys(checks))
        return cls(**changes)


def effective_lock_delay(spec: SessionSpec) -> float:
    """Return the lock-delay in seconds that the servers will use."""
    return DEFAULT_LOCK_DELAY if spec.lock_delay is None else spec.lock_delay


def _horizon(ttl: float | None, lock_delay: float) -> float:
    return 0.0 if ttl is None else min(ttl, max(0.0, min(lock_delay, LONGEST_LOCK_DELAY)))


def no_horizon(ttl: float | None) -> str:
    """Return why a session has no horizon."""
    if ttl is None:
        return "it has no TTL"
    return (
        "its lock-delay is 0, so another client gets its keys as soon as it ends, which may be at any moment"
    )


def failover_bound(spec: SessionSpec, *, leader_changes: int = 0) -> float:
    """Return the seconds within which another client can acquire after a holder died.

    The servers end a session at most 2 x TTL after its last renewal, and then keep its keys locked for the
    lock-delay. ``leader_changes`` says how many new leaders to allow for in that time: each one restarts the
    timers of all sessions, which costs up to 2 x TTL more. Returns ``inf`` without a TTL. Raises
    InvalidArgument when ``leader_changes`` is not a whole number of 0 or more.
    """
    _validate.count("leader_changes", leader_changes)
    if spec.ttl is None:
        return math.inf
    return 2 * spec.ttl * (1 + leader_changes) + effective_lock_delay(spec) + _FAILOVER_SLACK
