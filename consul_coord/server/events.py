"""User events: fired through the agent, and kept by it if they concern its node.

Rules
- An event concerns a node whose name fits its node filter and which has a service whose name fits its service
  filter, with a tag that fits its tag filter. The filters are regular expressions.
- The agent keeps the last 256. They are no part of what is replicated.
- The index of a list is made of its last event's id.
"""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consul_coord.server.failures import StateError
from consul_coord.server.gotext import GoParseError
from consul_coord.server.regexps import compiled

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator

    from consul_coord.server.records import ServiceRecord
    from consul_coord.server.tables import Mark

EVENTS: Final[Mark] = ("events",)

_KEPT: Final = 256
_HALF: Final = 2**64


@dataclass(frozen=True, slots=True)
class Event:
    """One user event."""

    id: str
    name: str
    payload: bytes = b""
    node_filter: str = ""
    service_filter: str = ""
    tag_filter: str = ""
    time: int = 0


class Events:
    """The events that an agent keeps."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._kept: deque[Event] = deque(maxlen=_KEPT)
        self._fired = 1

    def fire(self, event: Event, services: Iterable[ServiceRecord]) -> bool:
        """Take an event, and tell whether it is kept; raise ``StateError`` for bad filters."""
        filters = {
            name: _filter(name, text)
            for name, text in (
                ("node", event.node_filter),
                ("service", event.service_filter),
                ("tag", event.tag_filter),
            )
        }
        if event.tag_filter and not event.service_filter:
            raise StateError("Cannot provide tag filter without service filter")
        self._fired += 1
        if not filters["node"].search(self._node):
            return False
        if event.service_filter and not any(
            filters["service"].search(service.service)
            and (not event.tag_filter or any(map(filters["tag"].search, service.tags)))
            for service in services
        ):
            return False
        stamped = Event(
            event.id,
            event.name,
            event.payload,
            event.node_filter,
            event.service_filter,
            event.tag_filter,
            self._fired,
        )
        self._kept.append(stamped)
        return True

    def named(self, name: str) -> Iterator[Event]:
        """Return the events of a name, or all if none is given, in order."""
        return (event for event in self._kept if name in ("", event.name))


def index_of(events: Iterable[Event]) -> int:
    """Return the index of a list of events."""
    last = next(reversed(list(events)), None)
    if last is None:
        return 0
    high, low = divmod(uuid.UUID(last.id).int, _HALF)
    return high ^ low


def _filter(name: str, text: str) -> re.Pattern[str]:
    try:
        return compiled(text)
    except GoParseError as error:
        message = f"Invalid {name} filter: {error}"
        raise StateError(message) from None
