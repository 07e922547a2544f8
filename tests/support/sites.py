"""Where a test runs, a reference server or a real agent, and what an operator can do there.

The operator has nothing of this package in it: what a test does to a lock from outside, and what it finds
left behind, comes from the standard library's HTTP client.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

PATIENCE: Final = 30.0
"""How long anything that must happen may take: seconds."""
TOO_MANY_CONNECTIONS: Final = b"concurrent connections"
_POLL: Final = 0.004
_LONGEST_POLL: Final = 0.05


def rest(began: float) -> None:
    """Pause before the next look: for longer the longer it has taken, as looks take the machine's time."""
    time.sleep(min(_LONGEST_POLL, max(_POLL, (time.monotonic() - began) / 20)))


def eventually(condition: Callable[[], T], *, within: float = PATIENCE) -> T:
    """Return the condition's value as soon as it is true; an AssertionError when that takes too long."""
    began = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() < began + within, "it did not happen in time"
        rest(began)
    return value


def never(condition: Callable[[], object], *, within: float) -> None:
    """Watch for this long that the condition does not become true."""
    began = time.monotonic()
    while time.monotonic() < began + within:
        assert not condition(), "it happened"
        rest(began)


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody with the HTTP API and no lock library."""

    address: str
    token: str | None = None

    def ask(
        self, method: str, path: str, body: object = None, *, timeout: float = PATIENCE
    ) -> tuple[int, bytes]:
        """Send one request and return status and body.

        Raises ``OSError`` if the agent takes no more connections: 1.8 closes them, and later ones answer 429.
        """
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"X-Consul-Token": self.token} if self.token else {}
        connection = http.client.HTTPConnection(self.address.removeprefix("http://"), timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, path, body=data, headers=headers)
            reply = connection.getresponse()
            status, text = reply.status, reply.read()
        if status == http.HTTPStatus.TOO_MANY_REQUESTS and TOO_MANY_CONNECTIONS in text:
            raise ConnectionRefusedError(text)
        return status, text

    def done(self, method: str, path: str, body: object = None) -> Any:
        """Send one request that must succeed, and return its JSON."""
        status, text = self.ask(method, path, body)
        assert status == http.HTTPStatus.OK, (method, path, status, text)
        return json.loads(text)

    def entry(self, key: str) -> dict[str, Any] | None:
        """Return a key as Consul shows it, its value decoded, or None."""
        status, text = self.ask("GET", f"/v1/kv/{key}?consistent")
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        assert status == http.HTTPStatus.OK, (status, text)
        found: dict[str, Any] = json.loads(text)[0]
        return found | {"Value": base64.b64decode(found["Value"] or "")}

    def holder(self, key: str) -> str | None:
        """Return the session that holds a key."""
        found = self.entry(key)
        return None if found is None else found.get("Session")

    def under(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix."""
        status, text = self.ask("GET", f"/v1/kv/{prefix}?keys")
        return [] if status == http.HTTPStatus.NOT_FOUND else json.loads(text)

    def put(self, key: str, value: bytes, **params: object) -> bool:
        query = "&".join(f"{name}={each}" for name, each in params.items())
        return bool(self.done("PUT", f"/v1/kv/{key}?{query}", value))

    def delete(self, key: str) -> None:
        self.done("DELETE", f"/v1/kv/{key}")

    def create(self, *, ttl: str = "60s", lock_delay: str = "0s") -> str:
        """Make a session."""
        spec = {"TTL": ttl, "LockDelay": lock_delay, "NodeChecks": []}
        return str(self.done("PUT", "/v1/session/create", spec)["ID"])

    def destroy(self, session: str) -> None:
        self.done("PUT", f"/v1/session/destroy/{session}")

    def exists(self, session: str) -> bool:
        return bool(self.done("GET", f"/v1/session/info/{session}"))

    def sessions(self, name: str) -> list[str]:
        """Return the ids of the sessions of one name, with whatever mark a client has put to it."""
        found = self.done("GET", "/v1/session/list")
        return [each["ID"] for each in found if each["Name"].partition(" #")[0] == name]


@contextlib.contextmanager
def without_node(operator: Operator, name: str) -> Iterator[None]:
    """Have an agent's node out of the catalog, and put it back whole: its agent would take a minute."""
    node = operator.done("GET", f"/v1/catalog/node/{name}")["Node"]
    checks = operator.done("GET", f"/v1/health/node/{name}")
    serf = next(each for each in checks if each["CheckID"] == "serfHealth")
    operator.done("PUT", "/v1/catalog/deregister", {"Node": name})
    try:
        yield
    finally:
        check = {field: serf[field] for field in ("Node", "CheckID", "Name", "Status")}
        entry = {"Node": name, "ID": node["ID"], "Address": node["Address"], "Check": check}
        operator.done("PUT", "/v1/catalog/register", entry)


@dataclass(frozen=True, slots=True)
class Site:
    """A server under test, and names of the test's own there."""

    kind: str
    address: str
    unique: str

    @classmethod
    def at(cls, kind: str, address: str) -> Site:
        return cls(kind, address, uuid.uuid4().hex[:12])

    @property
    def operator(self) -> Operator:
        return Operator(self.address)

    @property
    def key(self) -> str:
        """A key that nobody else uses."""
        return f"{self.unique}/key"

    def left_behind(self) -> list[str]:
        """Return what is still there of the test's: locked keys, contenders, sessions."""
        locked = [key for key in self.operator.under(self.unique) if self.operator.holder(key)]
        queued = [key for key in self.operator.under(self.unique) if "/.wait/" in key]
        return sorted({*locked, *queued, *self.operator.sessions(self.unique)})
