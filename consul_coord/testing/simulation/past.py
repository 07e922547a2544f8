"""The past of the servers: what stood in the store at each moment of a run.

Rules
- A reading is right if it shows the state of some moment of its call. Where an old leader may answer, that of
  a moment shortly before will do, unless the reading asks for consistency.
- Two writes at one moment leave a state in between that nobody has seen: what overlaps it is not judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from consul_coord.server.records import Entry, SessionRecord
    from consul_coord.testing.simulation.cluster import Cluster


class Moment(NamedTuple):
    """The state from one write to the next."""

    since: float
    keys: Mapping[str, Entry]
    """In the order of their names."""
    sessions: Mapping[str, SessionRecord]
    blurred: bool
    """Whether several writes led here at once."""

    def under(self, prefix: str) -> list[Entry]:
        """Return the keys that begin with a prefix."""
        return [entry for key, entry in self.keys.items() if key.startswith(prefix)]


class Past:
    """The keys below a prefix, and the sessions, at each moment."""

    def __init__(self, cluster: Cluster, prefix: str, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._now = now
        self._index = 0
        self._moments = [Moment(0.0, {}, {}, blurred=False)]

    @property
    def present(self) -> Moment:
        """The last state."""
        return self._moments[-1]

    def look(self) -> None:
        """Take note of a write."""
        store = self._cluster.state.store
        keys = {entry.key: entry for entry in self._cluster.under(self._prefix)}
        sessions = {session.id: session for session in store.sessions}
        blurred = store.raft_index > self._index + 1
        self._index = store.raft_index
        if blurred or keys != self.present.keys or sessions != self.present.sessions:
            self._moments.append(Moment(self._now(), keys, sessions, blurred))

    def during(self, since: float) -> list[Moment] | None:
        """Return the states from a time on until now, the present one last; None if one is not known."""
        found: list[Moment] = []
        for moment in reversed(self._moments):
            found.append(moment)
            if moment.since < since:
                break
            if moment.blurred:
                return None
        return found[::-1]
