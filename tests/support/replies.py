"""What a Consul agent answers, as values: for scripts of ``FakeIO``."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

from consul_coord.errors import BrokenReply, ConnectFailed
from consul_coord.http.messages import Response
from consul_coord.models import LOCK_FLAGS

if TYPE_CHECKING:
    from tests.support.fake_io import FakeIO

SESSION: Final = "11111111-1111-1111-1111-111111111111"
OTHER: Final = "22222222-2222-2222-2222-222222222222"


def ok(value: object, *, index: int = 1) -> Response:
    """Return a success with a JSON body."""
    return Response(200, {"x-consul-index": str(index)}, json.dumps(value).encode())


def refusal(status: int, text: str = "") -> Response:
    """Return a refusing reply."""
    return Response(status, {}, text.encode())


def lost(path: str = "/v1/txn", *, method: str = "PUT") -> BrokenReply:
    """Return what a transport raises when the request was sent and no reply came."""
    return BrokenReply("the connection ended", method=method, path=path, outcome_unknown=True)


def unreachable(path: str = "/v1/txn", *, method: str = "PUT") -> ConnectFailed:
    """Return what a transport raises when nothing was sent."""
    return ConnectFailed("connection refused", method=method, path=path, outcome_unknown=False)


def entry(
    key: str, *, session: str | None = SESSION, index: int = 7, lock_index: int = 1, value: bytes = b""
) -> dict[str, object]:
    """Return a key as Consul shows it."""
    fields: dict[str, object] = {
        "Key": key,
        "Value": base64.b64encode(value).decode() or None,
        "Flags": LOCK_FLAGS,
        "CreateIndex": 5,
        "ModifyIndex": index,
        "LockIndex": lock_index,
    }
    return fields if session is None else fields | {"Session": session}


def pairs(*entries: dict[str, object], index: int = 20) -> Response:
    """Return the reply to a read of keys; none is a 404."""
    if not entries:
        return Response(404, {"x-consul-index": str(index)}, b"")
    return ok(list(entries), index=index)


def txn_done(*entries: dict[str, object]) -> Response:
    """Return the reply to a transaction that was applied."""
    return ok({"Results": [{"KV": each} for each in entries], "Errors": None})


def txn_failed(*failures: tuple[int, str]) -> Response:
    """Return the reply to a transaction that was rolled back, for the operations at these places."""
    errors = [{"OpIndex": place, "What": text} for place, text in failures]
    return Response(409, {}, json.dumps({"Results": None, "Errors": errors}).encode())


def session(session_id: str = SESSION, *, ttl: str = "15s", **changes: object) -> dict[str, object]:
    """Return a session as Consul shows it."""
    return {
        "ID": session_id,
        "Name": "",
        "Node": "node1",
        "LockDelay": 15_000_000_000,
        "Behavior": "release",
        "TTL": ttl,
        "NodeChecks": [],
        "ServiceChecks": None,
        "CreateIndex": 4,
        "ModifyIndex": 4,
        **changes,
    }


def renewed(**changes: object) -> Response:
    """Return the reply to a renewal."""
    return ok([session(**changes)])  # type: ignore[arg-type]


def expect_gone(io: FakeIO) -> None:
    """Script what shows that a session is gone: 404 on renew, and again once the leader has caught up."""
    io.expect("PUT", "/v1/session/renew/", refusal(404, "Session id 'x' not found"))
    io.expect("GET", "/v1/session/info/", ok([]))
    io.expect("PUT", "/v1/session/renew/", refusal(404, "Session id 'x' not found"))
