"""The view of a test: the state of this moment, as immutable values, never the tables themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.host import Host
    from consul_coord.server.records import CheckRecord, Entry, NodeRecord, SessionRecord
    from consul_coord.server.service import Service

T = TypeVar("T")


class StateView:
    """A read-only view of a running server; each property is one consistent look, taken when it is read."""

    __slots__ = ("_host",)

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def index(self) -> int:
        """Return the last Raft index."""
        return self._look(lambda service, _: service.state.store.raft_index)

    @property
    def leader(self) -> str:
        """Return the leader's address, empty when there is none."""
        return self._look(lambda service, _: service.state.leader)

    @property
    def kv(self) -> dict[str, Entry]:
        """Return every key's entry, in order of the keys."""
        return self._look(lambda service, _: {entry.key: entry for entry in service.state.store.kv.sorted()})

    @property
    def sessions(self) -> dict[str, SessionRecord]:
        """Return every session, by id."""
        return self._look(lambda service, _: dict(service.state.store.sessions.rows))

    @property
    def nodes(self) -> dict[str, NodeRecord]:
        """Return every node, by name."""
        return self._look(lambda service, _: {node.name: node for node in service.state.store.nodes})

    @property
    def checks(self) -> dict[tuple[str, str], CheckRecord]:
        """Return every check, by node and id."""
        return self._look(
            lambda service, _: {(check.node, check.id): check for check in service.state.store.checks}
        )

    @property
    def lock_delays(self) -> dict[str, float]:
        """Return how many seconds each lock-delay still runs, by key."""
        return self._look(
            lambda service, now: {key: end - now for key, end in service.state.delays.running(now).items()}
        )

    @property
    def blocked(self) -> int:
        """Return how many requests wait for a reply."""
        return self._look(lambda service, _: service.blocked)

    def session_expires_in(self, session: str) -> float | None:
        """Return in how many seconds a session expires unless renewed; None without a TTL or when unknown."""

        def look(service: Service, now: float) -> float | None:
            deadline = service.state.session_deadline(session)
            return None if deadline is None else deadline - now

        return self._look(look)

    def _look(self, look: Callable[[Service, float], T]) -> T:
        return self._host.do(lambda now: look(self._host.service, now))
