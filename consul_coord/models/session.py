"""Sessions: what to ask for, what Consul made of it, and how long its holder may trust it.

Rules
- The *horizon* of a session is the time for which nobody else can get what it holds, counted from the sending
  of its last successful renewal: the smaller of its TTL and its lock-delay. The servers wait for the TTL, and
  longer, before they end a session that nobody renews. But every session may end before that: with its node
  (autopilot, ``consul leave`` and ``force-leave`` remove nodes), by a health check, by an operator. Then the
  lock-delay alone keeps others out.
- A *coordination node* is in the catalog without any agent, so nothing removes it by itself. Sessions there
  have a horizon of the whole TTL. Their lock-delay is as long unless it is set, so that somebody who destroys
  such a session or removes the node brings no second holder either.
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
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self, Unpack

Behavior: TypeAlias = Literal["release", "delete"]
"""The fate of held keys when the session ends."""

DEFAULT_TTL = 15.0
DEFAULT_LOCK_DELAY = 15.0
"""The servers' default."""
LONGEST_LOCK_DELAY = 60.0
LONGEST_TTL = 86_400.0
# Consul takes a lock-delay under 1000 ns for a number of seconds, and a TTL of 0 for none.
SHORTEST_DELAY = 1e-6
SHORTEST_TTL = 1e-6
SHORTEST_HORIZON = 0.05
"""A lease that is shorter is over before its holder has heard of it: as good as none."""
SERF_HEALTH = "serfHealth"
COORDINATION_NODE = "consul-coord"
_FAILOVER_SLACK = 1.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Session(Value):
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


class _AnyNode(TypedDict, total=False):
    ttl: float | None
    lock_delay: float | None
    behavior: Behavior
    node_checks: Sequence[str]
    service_checks: Sequence[str]
    name: str | None
    drift: float
    allow_unbounded: bool


class SessionSettings(_AnyNode, total=False):
    """The settings of a ``SessionSpec``, each optional."""

    node: str | None
    register_node: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class SessionSpec(Value):
    """The settings of a session.

    A hold lasts for ``1 - drift`` times ``lease_horizon`` after the last renewal was sent. So give ``ttl``
    and ``lock_delay`` together: the smaller one counts. Raises InvalidArgument for a setting out of its
    range. Raises UnsafeSession without a TTL or with a lock-delay of 0, unless ``allow_unbounded`` is set:
    nothing would then keep others out while a holder may still trust its session.
    """

    ttl: float | None = DEFAULT_TTL
    """Seconds until an unrenewed session may end (up to 86400); None for never."""
    lock_delay: float | None = None
    """Seconds (0 to 60) for which keys stay locked after the session ended; None for the servers' 15."""
    behavior: Behavior = "release"
    """Whether its end unlocks the keys that it holds (``"release"``) or deletes them (``"delete"``)."""
    node: str | None = None
    """The registered node it belongs to; None for the agent's own."""
    register_node: bool = False
    """Whether ``node`` is a coordination node: no agent owns it, and it is registered if it is missing."""
    node_checks: Sequence[str] = ()
    """Health checks of the node, by id: the session ends as soon as one of them is critical."""
    service_checks: Sequence[str] = ()
    """The same for checks of services on the node. Consul before 1.7 knows none."""
    name: str | None = None
    """The session's name, for people and ``consul-coord sessions``; None for ``consul-coord``."""
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
        if self.register_node and (self.node is None or self.node_checks or self.service_checks):
            message = "register_node needs the name of a node, and no checks: a coordination node has none"
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
        lock_delay = effective_lock_delay(self)
        if self.allow_unbounded or horizon(self.ttl, lock_delay, lasting=self.register_node):
            return
        message = (
            "this session would give its holder no time to notice a loss: "
            f"{no_horizon(self.ttl, lock_delay)}. Set both ttl and lock_delay, or allow_unbounded=True to go "
            "without the guarantee"
        )
        raise UnsafeSession(message)

    @property
    def lease_horizon(self) -> float | None:
        """Seconds that a renewal gives the lease, before ``drift``: the smaller of TTL and lock-delay.

        On a coordination node: the TTL. With ``allow_unbounded``, where there would be none: the TTL, without
        the guarantee, and None without a TTL.
        """
        return horizon(self.ttl, effective_lock_delay(self), lasting=self.register_node) or self.ttl

    @classmethod
    def liveness(cls, **changes: Unpack[SessionSettings]) -> Self:
        """Make a spec that also ends when its node's agent dies: ``serfHealth`` is added to the node checks.

        Others take over sooner when a node dies, and more sessions end by mistake when the network is bad.
        """
        checks = (SERF_HEALTH, *_validate.texts("node_checks", changes.get("node_checks", ())))
        changes["node_checks"] = tuple(dict.fromkeys(checks))
        return cls(**changes)

    @classmethod
    def coordination(cls, node: str = COORDINATION_NODE, **changes: Unpack[_AnyNode]) -> Self:
        """Make a spec for sessions on a coordination node: one in the catalog that no agent owns.

        Their holds outlive the restart, ``leave`` and removal of the agent that they were made through.
        The first client that needs ``node`` registers it, for which its token needs ``node:write``. A node
        that has an agent is refused with UnsafeSession. ``lock_delay`` is the TTL (at most 60 s) unless it is
        given. Removing the node ends all sessions on it.
        """
        ttl = changes.get("ttl", DEFAULT_TTL)
        if changes.get("lock_delay") is None and isinstance(ttl, int | float):
            changes["lock_delay"] = min(ttl, LONGEST_LOCK_DELAY)
        return cls(node=node, register_node=True, **changes)


def check_spec(session: object, *, name: str = "session", ids: bool = False, none: bool = True) -> None:
    """Refuse what says nothing of a session: ``ids`` and ``none`` say what else it may be.

    Raises InvalidArgument.
    """
    if isinstance(session, SessionSpec) or (ids and isinstance(session, str)) or (none and session is None):
        return
    _validate.refuse_kind(name, session, f"a SessionSpec{', the id of a session' * ids}{', or None' * none}")


def effective_lock_delay(spec: SessionSpec) -> float:
    """Return the lock-delay in seconds that the servers will use."""
    return DEFAULT_LOCK_DELAY if spec.lock_delay is None else spec.lock_delay


def horizon(ttl: float | None, lock_delay: float, *, lasting: bool = False) -> float:
    """Return the seconds for which a renewed session surely keeps others out; 0 when there is no such time.

    ``lasting``: it is on a coordination node.
    """
    if ttl is None:
        return 0.0
    granted = ttl if lasting else min(ttl, lock_delay, LONGEST_LOCK_DELAY)
    return granted if granted >= SHORTEST_HORIZON else 0.0


def no_horizon(ttl: float | None, lock_delay: float) -> str:
    """Return why a session has no horizon."""
    if ttl is None:
        return "it has no TTL"
    if lock_delay <= 0:
        return "its lock-delay is 0, so another client may get its keys when it ends, perhaps at any time"
    what, seconds = min(("TTL", ttl), ("lock-delay", lock_delay), key=lambda each: each[1])
    least = f"{SHORTEST_HORIZON:g} s is the least"
    return f"its {what} of {seconds:g} s is over before a request is answered: {least}"


def failover_bound(spec: SessionSpec, *, leader_changes: int = 0) -> float:
    """Return the seconds within which another client can acquire after a holder died.

    It holds for a lock, a leadership, a slot of a semaphore and a place in a read-write lock. The servers end
    a session at most 2 x TTL after its last renewal, and then keep its keys locked for the lock-delay.
    ``leader_changes`` says how many new leaders to allow for in that time: each one restarts the timers of
    all sessions, which costs up to 2 x TTL more. Returns ``inf`` without a TTL. Raises InvalidArgument when
    ``leader_changes`` is not a whole number of 0 or more.
    """
    _validate.instance("spec", spec, SessionSpec)
    _validate.count("leader_changes", leader_changes)
    if spec.ttl is None:
        return math.inf
    return 2 * spec.ttl * (1 + leader_changes) + effective_lock_delay(spec) + _FAILOVER_SLACK
