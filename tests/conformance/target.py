"""Something that speaks Consul's HTTP API, looked at with the standard library's client and nothing else.

The cases are written against this and run twice: on the reference server and on a real agent. What both must
answer is written down in the cases; neither is ever compared with the other here.
"""

from __future__ import annotations

import http.client
import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT = 20.0
UNKNOWN = "11111111-2222-3333-4444-555555555555"


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, read."""

    status: int
    body: bytes
    headers: http.client.HTTPMessage

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def index(self) -> int:
        return int(self.headers["X-Consul-Index"])


class Target:
    """One server under test; keys made by ``key`` are this test's own."""

    def __init__(self, kind: str, address: str, node: str) -> None:
        self.kind = kind
        self.node = node
        self.unique = uuid.uuid4().hex[:12]
        self._place = address.removeprefix("http://")

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection of its own."""
        return http.client.HTTPConnection(self._place, timeout=TIMEOUT)

    def ask(
        self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request and read the reply; a body that is not bytes is sent as JSON."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connect()
        try:
            connection.request(method, target, sent, dict(headers or {}))
            reply = connection.getresponse()
            return Answer(reply.status, reply.read(), reply.headers)
        finally:
            connection.close()

    def get(self, target: str) -> Answer:
        return self.ask("GET", target)

    def put(self, target: str, body: object = b"") -> Answer:
        return self.ask("PUT", target, body)

    def delete(self, target: str) -> Answer:
        return self.ask("DELETE", target)

    def key(self, name: str = "k") -> str:
        """Return a key under this test's own prefix."""
        return f"conformance/{self.unique}/{name}"

    def entry(self, key: str) -> dict[str, Any]:
        """Return a key as the API shows it."""
        shown: dict[str, Any] = self.get(f"/v1/kv/{key}").json[0]
        return shown

    def session(self, **fields: object) -> str:
        """Create a session, without checks unless asked for."""
        answer = self.put("/v1/session/create", {"NodeChecks": [], **fields})
        assert answer.status == 200, answer.text
        created: str = answer.json["ID"]
        return created

    def info(self, session: str) -> list[dict[str, Any]]:
        """Return what the API shows of a session."""
        shown: list[dict[str, Any]] = self.get(f"/v1/session/info/{session}").json
        return shown

    def txn(self, *ops: Mapping[str, object]) -> Answer:
        """Send a KV transaction."""
        return self.put("/v1/txn", [{"KV": dict(op)} for op in ops])

    def node_with_check(self, name: str) -> str:
        """Register a node of this test with a passing check ``c1``; return its name."""
        node = f"{name}-{self.unique}"
        check = {"CheckID": "c1", "Name": "c1", "Status": "passing"}
        assert self.put("/v1/catalog/register", {"Node": node, "Address": "10.0.0.2", "Check": check}).json
        return node
