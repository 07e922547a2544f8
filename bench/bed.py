"""What every measure is given: the agent, and how much time there is."""

from __future__ import annotations

import contextlib
import http.client
import json
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")


class Unavailable(Exception):
    """A contender or a measure can't be run here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """One agent and one kind of run."""

    address: str
    """The agent's HTTP address, as ``http://host:port``."""
    quick: bool
    folder: Path
    """For files that live as long as the run."""
    smoke: bool = False
    """Only see that it runs: one round of what is repeated for the sake of its times."""

    def pick(self, *, full: T, quick: T) -> T:
        """Return the one that suits this run."""
        return quick if self.quick else full

    def rounds(self, *, full: int, quick: int) -> int:
        """Return how often contenders take turns in this run."""
        return 1 if self.smoke else self.pick(full=full, quick=quick)

    def behind(self, address: str) -> Bed:
        """Return the same bed with its agent behind another address."""
        return replace(self, address=address)

    @property
    def host(self) -> str:
        """The agent's host."""
        return urlsplit(self.address).hostname or ""

    @property
    def port(self) -> int:
        """The agent's port."""
        return urlsplit(self.address).port or 0

    def agent(self) -> dict[str, Any]:
        """Return what the agent says about itself."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/agent/self")
            return cast("dict[str, Any]", json.loads(connection.getresponse().read()))

    def raft_index(self) -> int:
        """Return the last index of the server's Raft log. The agent must be a server."""
        return int(self.agent()["Stats"]["raft"]["last_log_index"])

    def key(self) -> str:
        """Return a key that nobody uses."""
        return f"bench/{uuid.uuid4()}"
