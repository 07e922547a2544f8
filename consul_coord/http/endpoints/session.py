"""Sessions: ``/v1/session``.

The checks are always sent as ``NodeChecks`` and ``ServiceChecks``, empty ones too: without them Consul would
add ``serfHealth``, and the older ``Checks`` overrides them in surprising ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.http.endpoints import _call, _durations, _json, _keys
from consul_coord.http.messages import Retry
from consul_coord.models import Session, SessionSpec
from consul_coord.models._validate import instance
from consul_coord.models.session import DEFAULT_LOCK_DELAY

if TYPE_CHECKING:
    from consul_coord.http.messages import Call
    from consul_coord.models import ReadOptions, Result, WriteOptions

NO_SESSION = "00000000-0000-0000-0000-000000000000"
"""An id that no session has."""
_ROOT = "/v1/session/"
_WRITE = ("session:write on the session's node",)
_READ = ("session:read on the session's node",)


def _check_id(what: str, value: object) -> str:
    return _json.Fields(what, value).get("ID", _json.text)


def session(what: str, value: object) -> Session:
    """Read one session; releases before 1.7 list the node checks as ``Checks``."""
    fields = _json.Fields(what, value)
    return Session(
        fields.get("ID", _json.text),
        name=fields.get("Name", _json.text, ""),
        node=fields.get("Node", _json.text, ""),
        ttl=fields.get("TTL", _json.duration, 0.0) or None,
        lock_delay=fields.get("LockDelay", _json.nanoseconds, DEFAULT_LOCK_DELAY),
        behavior=fields.get("Behavior", _json.text, "release"),
        node_checks=fields.get("NodeChecks", _json.texts, fields.get("Checks", _json.texts, ())),
        service_checks=fields.get("ServiceChecks", _json.list_of(_check_id), ()),
        create_index=fields.get("CreateIndex", _json.integer, 0),
    )


_sessions = _json.list_of(session)


def _first_or_none(what: str, value: object) -> Session | None:
    return next(iter(_sessions(what, value)), None)


def _first(what: str, value: object) -> Session:
    if (found := _first_or_none(what, value)) is not None:
        return found
    raise _json.ShapeError(f"{what} holds no session")


def create(spec: SessionSpec | None = None, *, options: WriteOptions | None = None) -> Call[str]:
    """Make a session and return its id. A repeat would make another one, left until 2 x TTL has passed."""
    spec = SessionSpec() if spec is None else spec
    instance("spec", spec, SessionSpec)
    wanted = {
        "Name": spec.name,
        "Node": spec.node,
        "LockDelay": None if spec.lock_delay is None else _durations.to_text(spec.lock_delay),
        "Behavior": spec.behavior,
        "TTL": None if spec.ttl is None else _durations.to_text(spec.ttl),
        "NodeChecks": list(spec.node_checks),
        "ServiceChecks": [{"ID": check} for check in spec.service_checks],
    }
    node = "the agent's own node" if spec.node is None else f'node "{spec.node}"'
    needed = (f"session:write on {node}",)
    body = _json.dump_set(wanted)
    return _call.write(
        "PUT", _ROOT + "create", options, _call.new_id, body=body, retry=Retry.NEVER, needed=needed
    )


def destroy(id: str, *, options: WriteOptions | None = None) -> Call[bool]:
    """End a session; true also when there is none. Its keys are locked to everybody for the lock-delay."""
    path = _path("destroy", id)
    return _call.write("PUT", path, options, _call.boolean, retry=Retry.IDEMPOTENT, needed=_WRITE)


def renew(id: str, *, options: WriteOptions | None = None, keep: float | None = None) -> Call[Session]:
    """Restart a session's TTL and return the session. Raises SessionNotFound when it has ended.

    ``keep`` is ``Request.keep``.
    """
    read = _call.answer(_first)
    path = _path("renew", id)
    return _call.write(
        "PUT", path, options, read, retry=Retry.IDEMPOTENT, needed=_WRITE, urgent=True, keep=keep
    )


def info(id: str, *, options: ReadOptions | None = None) -> Call[Result[Session | None]]:
    """Read a session; None when there is none, and also when the token may not read it."""
    return _call.get(_path("info", id), options, _first_or_none, needed=_READ)


def _path(verb: str, id: str) -> str:
    return _keys.path(f"{_ROOT}{verb}/", _keys.check_id("session", id))


def watch(
    id: str, *, index: int, wait: float, options: ReadOptions | None = None
) -> Call[Result[Session | None]]:
    """Read a session when any is newer than ``index``, or after ``wait`` seconds; at once for index 0."""
    return info(id, options=_call.blocking(options, index=index, wait=wait))


def list_sessions(*, options: ReadOptions | None = None) -> Call[Result[tuple[Session, ...]]]:
    """Read all sessions that the token may read."""
    return _call.get(_ROOT + "list", options, _sessions, needed=_READ)


def node(name: str, *, options: ReadOptions | None = None) -> Call[Result[tuple[Session, ...]]]:
    """Read the sessions of one node."""
    path = _keys.path(_ROOT + "node/", _keys.check_id("node", name))
    return _call.get(path, options, _sessions, needed=(f'session:read on node "{name}"',))
