"""Something that speaks Consul's HTTP API, looked at with the standard library's client and nothing else.

The cases are written against this and run twice: on the reference server and on a real agent. What both must
answer is written down in the cases; neither is ever compared with the other here.

Rules
- The cases hold for every Consul, the reference server being one of 1.8. What differs by version asks
  ``is_1_8``, and says what is known of later ones; nothing is skipped for its version without a word.
- Later versions may show more fields (``shows``), and word errors otherwise (``says``, ``wording.py``).
"""

from __future__ import annotations

import http.client
import json
import time
import uuid
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.conformance import wording

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TIMEOUT = 20.0
DEADLINE = 30.0
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

    def __init__(self, kind: str, address: str, *, token: str = "") -> None:
        self.kind = kind
        self.unique = uuid.uuid4().hex[:12]
        self._place = address.removeprefix("http://")
        self._headers = {"X-Consul-Token": token} if token else {}
        agent = self.get("/v1/agent/self").json["Config"]
        self.node: str = agent["NodeName"]
        self.version: str = agent["Version"]

    @property
    def is_1_8(self) -> bool:
        """Whether it is of the version that every word is known of."""
        return self.version.startswith("1.8.")

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        return self._place

    def connect(self, timeout: float = TIMEOUT) -> http.client.HTTPConnection:
        """Return a connection of its own."""
        return http.client.HTTPConnection(self._place, timeout=timeout)

    def ask(
        self,
        method: str,
        target: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> Answer:
        """Send a request and read the reply; a body that is not bytes is sent as JSON."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with closing(self.connect(timeout)) as connection:
            connection.request(method, target, sent, {**self._headers, **(headers or {})})
            with connection.getresponse() as reply:  # one that ends the connection owns its socket
                return Answer(reply.status, reply.read(), reply.headers)

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

    def shows(self, shown: object, expected: object) -> bool:
        """Tell whether an object is as expected, in a later version with further fields perhaps."""
        if self.is_1_8:
            return shown == expected
        if isinstance(shown, dict) and isinstance(expected, dict):
            return all(name in shown and self.shows(shown[name], value) for name, value in expected.items())
        return shown == expected

    def is_redirect(self, status: int) -> bool:
        """Tell whether a status is Go's redirect: 301, and since Go 1.26 the 307 that keeps the method."""
        return status == 301 or (status == 307 and not self.is_1_8)

    def says(self, text: str, expected: str) -> bool:
        """Tell whether an error is worded as expected of 1.8, or as later versions word the same."""
        return text == expected or (not self.is_1_8 and wording.same(text, expected))

    def node_with_check(self, name: str) -> str:
        """Register a node of this test with a passing check ``c1``; return its name."""
        node = f"{name}-{self.unique}"
        check = {"CheckID": "c1", "Name": "c1", "Status": "passing"}
        assert self.put("/v1/catalog/register", {"Node": node, "Address": "10.0.0.2", "Check": check}).json
        return node


def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds; ``AssertionError`` when that takes too long."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)
