"""/v1/event/: fire user events, and list those that the agent has kept."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from consul_coord.server.call import Read, Seen
from consul_coord.server.events import EVENTS, Event, index_of
from consul_coord.server.failures import Refusal

if TYPE_CHECKING:
    from consul_coord.server.call import Call
    from consul_coord.server.store import Store
    from consul_coord.server.wire import Reply


def describe(event: Event) -> dict[str, object]:
    """Return an event as the API shows it."""
    return {
        "ID": event.id,
        "Name": event.name,
        "Payload": base64.b64encode(event.payload).decode("ascii") if event.payload else None,
        "NodeFilter": event.node_filter,
        "ServiceFilter": event.service_filter,
        "TagFilter": event.tag_filter,
        "Version": 1,
        "LTime": event.time,
    }


def fire(call: Call) -> Reply:
    """Fire an event."""
    if not call.tail:
        raise Refusal(400, "Missing name")
    call.authorizer.require("event", call.tail, "write")
    given = call.params.get
    filters = given("node"), given("service"), given("tag")
    return call.json(describe(call.state.fire(call.tail, call.request.body, *filters)))


def list_all(call: Call) -> Read:
    """Read the events that the agent has kept, or those of a name."""

    def look(_: Store) -> Seen:
        found = [
            event
            for event in call.state.events.named(call.params.get("name"))
            if call.authorizer.may("event", event.name, "read")
        ]
        reply = call.json([describe(event) for event in found])
        return Seen(index_of(found), reply, (EVENTS,), local=True)

    return Read(look)
