"""What an operator does by force, and which holds that may end without their holder's knowing.

Rules
- Force is written down before it is used. What it may have ended counts as relied upon until then only:
  nobody can protect a holder from an operator.
- Where Consul can be told exactly what to end, it is: a key is released or deleted at the index that was
  seen, which ends a hold with a fence up to that index, and no later one, however late the request is
  applied.
- A session that is destroyed, and a node that is deregistered with all its sessions, can't be named so. What
  they hold until the answer is exempt; without an answer, for good.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from consul_coord.models import LOCK_FLAGS
from consul_coord.recipes.session.names import means

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from consul_coord.testing.agent import RealAgent
    from consul_coord.testing.history.spans import Hold

_OK: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Force:
    """One act: when it began, when it was surely over, and which holds it may have ended.

    Those that fit all that is given: the key, the session, the fence at most ``upto``, one of the processes.
    """

    at: float = -math.inf
    done: float = math.inf
    key: str = ""
    session: str = ""
    upto: int | None = None
    processes: tuple[str, ...] = ()

    def hits(self, hold: Hold) -> bool:
        """Return whether a hold may have been ended."""
        return (
            hold.relied.began <= self.done
            and hold.relied.ended > self.at
            and self.key in {"", hold.key}
            and self.session in {"", hold.session}
            and (self.upto is None or hold.fence is None or hold.fence <= self.upto)
            and (not self.processes or hold.process in self.processes)
        )


def save(forces: Iterable[Force], path: Path) -> None:
    """Write acts down, a line each."""
    path.write_text("".join(json.dumps(asdict(force)) + "\n" for force in forces))


def restore(path: Path) -> list[Force]:
    """Return the acts that a file holds; none when there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [Force(**each | {"processes": tuple(each["processes"])}) for each in found]


class Operator:
    """Somebody with the HTTP API of one agent. What gets no answer raises one of ``UNANSWERED``."""

    def __init__(self, agent: RealAgent) -> None:
        self._agent = agent

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Send one request and return status and body."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self._agent.request(method, path, data)

    def read(self, path: str) -> Any:  # noqa: ANN401 - JSON
        """Return what a read has found, None when there is nothing."""
        status, body = self.ask("GET", path)
        return json.loads(body) if status == _OK else None

    def entry(self, key: str) -> dict[str, Any] | None:
        """Return a key as Consul shows it."""
        found = self.read(f"/v1/kv/{key}?consistent")
        return found[0] if found else None

    def under(self, prefix: str) -> list[dict[str, Any]]:
        """Return the keys that begin with a prefix."""
        return self.read(f"/v1/kv/{prefix}?recurse&consistent") or []

    def sessions(self, name: str) -> list[str]:
        """Return the ids of the sessions of one name, with whatever mark a client has put to it."""
        found: list[dict[str, Any]] = self.read("/v1/session/list?consistent") or []
        return [each["ID"] for each in found if means(name, each["Name"])]

    def destroy(self, session: str) -> None:
        """Destroy a session."""
        self.ask("PUT", f"/v1/session/destroy/{session}")

    def delete(self, key: str, index: int) -> None:
        """Delete a key as it was seen."""
        self.ask("DELETE", f"/v1/kv/{key}?cas={index}")

    def release(self, key: str, session: str, index: int) -> None:
        """Take a key from its holder, as it was seen."""
        self.ask("PUT", "/v1/txn", [_op("check-index", key, Index=index), _op("unlock", key, session)])

    def overwrite(self, key: str) -> None:
        """Write to a key as somebody who knows nothing of locks."""
        self.ask("PUT", f"/v1/kv/{key}?flags={LOCK_FLAGS}", b"overwritten")

    def deregister(self, node: str) -> dict[str, Any] | None:
        """Remove a node with all its sessions; returns what it takes to register it again."""
        found = self.read(f"/v1/catalog/node/{node}?consistent")
        if not found:
            return None
        self.ask("PUT", "/v1/catalog/deregister", {"Node": node})
        node_of = found["Node"]
        return {
            "ID": node_of["ID"],
            "Node": node,
            "Address": node_of["Address"],
            "TaggedAddresses": node_of["TaggedAddresses"],
            "NodeMeta": node_of["Meta"],
            "Check": {
                "CheckID": "serfHealth",
                "Name": "Serf Health Status",
                "Status": "passing",
                "Node": node,
            },
        }

    def register(self, node: dict[str, Any]) -> None:
        """Register a node again."""
        self.ask("PUT", "/v1/catalog/register", node)


def _op(verb: str, key: str, session: str = "", **more: object) -> dict[str, Any]:
    value = base64.b64encode(b"").decode()
    kv = {"Verb": verb, "Key": key, "Session": session, "Value": value, "Flags": LOCK_FLAGS, **more}
    return {"KV": {name: each for name, each in kv.items() if each != "" or name == "Value"}}


UNANSWERED: Final = (OSError, http.client.HTTPException)
"""What an operator's request raises when nobody answers it."""
