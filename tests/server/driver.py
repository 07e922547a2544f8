"""Drive the pure service by hand: requests, and a time that the test moves."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consul_coord.server.service import Service
from consul_coord.server.state import ConsulState
from consul_coord.server.wire import Blocked, Reply, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.server.config import ServerConfig


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply with its body read."""

    status: int
    body: bytes
    index: int | None

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Driver:
    """One agent at a time of its own, with counted ids."""

    def __init__(self, config: ServerConfig | None = None, *, jitter: float = 0.0) -> None:
        self.now = 100.0
        numbers = itertools.count(1)
        state = ConsulState(
            now=self.now, new_id=lambda: f"00000000-0000-0000-0000-{next(numbers):012d}", config=config
        )
        self.service = Service(state, random=lambda: jitter)
        self.state = state
        self._late: dict[int, Reply] = {}

    def ask(
        self, method: str, target: str, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request that is answered at once."""
        outcome = self.start(method, target, body, headers)
        assert not isinstance(outcome, Blocked), f"{method} {target} blocks"
        return outcome

    def block(self, target: str, method: str = "GET", body: object = b"") -> Blocked:
        """Send a request that must block."""
        outcome = self.start(method, target, body)
        assert isinstance(outcome, Blocked), f"{target} does not block"
        return outcome

    def start(
        self, method: str, target: str, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> Answer | Blocked:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        outcome = self.service.handle(Request.make(method, target, raw, headers), self.now)
        self._collect()
        return outcome if isinstance(outcome, Blocked) else _answer(outcome)

    def advance(self, seconds: float) -> None:
        """Let time pass, running what falls due."""
        self.now += seconds
        self.service.run_timers(self.now)
        self._collect()

    def late(self, blocked: Blocked) -> Answer | None:
        """Return the reply to a blocked request, if it has come."""
        reply = self._late.get(blocked.ticket)
        return None if reply is None else _answer(reply)

    def session(self, **fields: object) -> str:
        """Create a session."""
        created: str = self.ask("PUT", "/v1/session/create", fields).json["ID"]
        return created

    def entry(self, key: str) -> dict[str, Any]:
        """Return a key as the API shows it."""
        shown: dict[str, Any] = self.ask("GET", f"/v1/kv/{key}").json[0]
        return shown

    def txn(self, *ops: Mapping[str, object]) -> Answer:
        """Send a KV transaction."""
        return self.ask("PUT", "/v1/txn", [{"KV": op} for op in ops])

    def _collect(self) -> None:
        self._late.update(self.service.ready())


def _answer(reply: Reply) -> Answer:
    index = reply.header("X-Consul-Index")
    return Answer(reply.status, reply.body, int(index) if index else None)
