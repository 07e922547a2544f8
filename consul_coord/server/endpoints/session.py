"""/v1/session/: create, destroy, renew and look at sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consul_coord.server import gojson, sessions
from consul_coord.server.call import Read, Seen
from consul_coord.server.failures import Refusal
from consul_coord.server.gotext import SECOND, GoParseError, parse_duration
from consul_coord.server.records import SERF_CHECK, ServiceCheck
from consul_coord.server.sessions import SessionDraft
from consul_coord.server.store import SESSIONS, fold

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.server.call import Call
    from consul_coord.server.records import SessionRecord
    from consul_coord.server.store import Store
    from consul_coord.server.tables import Mark
    from consul_coord.server.wire import Reply

_SECONDS_BELOW = 1_000  # a lock-delay of fewer nanoseconds than this is taken for seconds


def describe(session: SessionRecord) -> dict[str, object]:
    """Return a session as the API shows it."""
    shown: dict[str, object] = {
        "ID": session.id,
        "Name": session.name,
        "Node": session.node,
        "LockDelay": session.lock_delay,
        "Behavior": session.behavior,
        "TTL": session.ttl,
        "NodeChecks": None if session.node_checks is None else list(session.node_checks),
        "ServiceChecks": None
        if session.service_checks is None
        else [{"ID": check.id, "Namespace": check.namespace} for check in session.service_checks],
    }
    if session.checks:
        shown["Checks"] = list(session.checks)
    shown["CreateIndex"] = session.create_index
    shown["ModifyIndex"] = session.modify_index
    return shown


def create(call: Call) -> Reply:
    """Create a session; a body without Content-Length is not read."""
    body = call.request.body if call.request.content_length else b""
    try:
        fields = _fields(gojson.decode(body)) if body else {}
    except GoParseError as error:
        message = f"Request decode failed: {error}"
        raise Refusal(400, message) from None
    given: dict[str, Any] = {"node": call.state.node, **_checks(fields), **_renamed(fields)}
    draft = SessionDraft(**given)
    if draft.node:
        call.authorizer.require("session", draft.node, "write")
    return call.json({"ID": call.state.create_session(draft, call.now)})


def destroy(call: Call) -> Reply:
    """Destroy a session; an unknown one is fine."""
    name = _required(call, "Missing session")
    _require_write(call, name)
    call.state.destroy_session(name, call.now)
    return call.json(value=True)


def renew(call: Call) -> Reply:
    """Restart a session's TTL."""
    name = _required(call, "Missing session")
    _require_write(call, name)
    session = call.state.renew_session(name, call.now)
    if session is None:
        raise Refusal(404, f"Session id '{name}' not found")
    return call.json([describe(session)])


def info(call: Call) -> Read:
    """Read one session, as a list of one or none."""
    name = _required(call, "Missing session")

    def look(store: Store) -> Seen:
        found = sessions.find(store, name)
        mark = (SESSIONS, found.id if found else name.lower())
        return _seen(call, store, [found] if found else [], mark)

    return Read(look)


def of_node(call: Call) -> Read:
    """Read the sessions of a node."""
    node = _required(call, "Missing node name")
    return Read(
        lambda store: _seen(call, store, sessions.of_node(store, node), (SESSIONS, "node", fold(node)))
    )


def list_all(call: Call) -> Read:
    """Read all sessions, in order of their ids."""
    return Read(lambda store: _seen(call, store, store.sessions.sorted(), (SESSIONS,)))


def _seen(call: Call, store: Store, found: Iterable[SessionRecord], mark: Mark) -> Seen:
    shown = [describe(session) for session in found if call.authorizer.may("session", session.node, "read")]
    return Seen(store.index_of(SESSIONS), call.json(shown), (mark,))


def _require_write(call: Call, session: str) -> None:
    found = sessions.find(call.state.store, session)
    if found is not None:
        call.authorizer.require("session", found.node, "write")


def _required(call: Call, missing: str) -> str:
    if not call.tail:
        raise Refusal(400, missing)
    return call.tail


def _lock_delay(value: object, where: str) -> int:
    if isinstance(value, gojson.Number):
        nanoseconds = gojson.truncated(value, where)
    elif isinstance(value, str):
        nanoseconds = parse_duration(value)
    else:
        nanoseconds = 0
    return _wrapped(nanoseconds * SECOND) if nanoseconds < _SECONDS_BELOW else nanoseconds


def _wrapped(number: int) -> int:
    """Return a number as an int64 that has overflown."""
    return (number + 2**63) % 2**64 - 2**63


def _check_ids(value: object, where: str) -> tuple[str, ...]:
    return gojson.texts(gojson.items(value, where, "[]types.CheckID"), where)


def _service_checks(value: object, where: str) -> tuple[ServiceCheck, ...]:
    read = [
        gojson.read_object(
            item, _SERVICE_CHECK, struct="ServiceCheck", type_name="structs.ServiceCheck", where=where
        )
        for item in gojson.items(value, where, "[]structs.ServiceCheck")
    ]
    return tuple(ServiceCheck(item.get("ID", ""), item.get("Namespace", "")) for item in read)


def _fields(value: object) -> dict[str, Any]:
    fields = gojson.read_object(value, FIELDS, struct="", type_name=_BODY)
    return fields | {name: _NULL_LISTS[name] for name in gojson.nulls(value, *_NULL_LISTS)}


_BODY = "struct { LockDelay interface {}; *structs.Alias }"
_SERVICE_CHECK: dict[str, gojson.Reader] = {"ID": gojson.text, "Namespace": gojson.text}
_NULL_LISTS: dict[str, tuple[str, ...] | None] = {"NodeChecks": None, "Checks": ()}

FIELDS: dict[str, gojson.Reader] = {
    "Name": gojson.text,
    "Node": gojson.text,
    "LockDelay": _lock_delay,
    "Behavior": gojson.text,
    "TTL": gojson.text,
    "NodeChecks": gojson.texts,
    "ServiceChecks": _service_checks,
    "Checks": _check_ids,
}

_NAMES = {
    "Name": "name",
    "Node": "node",
    "LockDelay": "lock_delay",
    "Behavior": "behavior",
    "TTL": "ttl",
    "ServiceChecks": "service_checks",
}


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {_NAMES[name]: value for name, value in fields.items() if name in _NAMES and value is not None}


def _checks(fields: dict[str, Any]) -> dict[str, tuple[str, ...] | None]:
    """Work out which checks count when the deprecated ``Checks`` is given along with ``NodeChecks``."""
    node_checks: tuple[str, ...] | None = fields.get("NodeChecks", (SERF_CHECK,))
    checks: tuple[str, ...] | None = fields.get("Checks")
    if checks is None or checks == (SERF_CHECK,):
        return {"node_checks": node_checks}
    if not checks or not node_checks:
        return {"node_checks": ()}
    return {"node_checks": node_checks, "checks": checks}
