"""A Consul behind the scripted agent: requests go through to it, except where a test's rules say otherwise.

So a test can lose, spoil or forge single replies, and still ask in the end what is really locked.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.wire.agents import HANGS_UP, Reply, ScriptedAgent, Seen, hang_up
from tests.wire.servers import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.clock import SystemClock
    from consul_coord.server import ReferenceServer

    Rule = Callable[[Seen], Reply | None]
    """Returns a reply of its own, or None to leave the request to others."""
    Wanted = Callable[[Seen], object]

PASSED_ON = ("content-type", "x-consul-index", "x-consul-knownleader", "x-consul-lastcontact")


class RelayedConsul:
    """The Consul behind a scripted agent."""

    def __init__(self, agent: ScriptedAgent, server: ReferenceServer[SystemClock]) -> None:
        self.agent = agent
        self.server = server
        self._connections: set[HTTPConnection] = set()
        self._lock = threading.Lock()
        agent.answer = self.ask

    @property
    def address(self) -> str:
        """Where it can be reached past the scripted agent."""
        return self.server.address

    def locked(self) -> dict[str, str]:
        """Return which keys are locked, and by which session."""
        return {each.key: each.session for each in self.server.state.kv.values() if each.session}

    def settles(self, wanted: dict[str, str]) -> bool:
        """Return whether just these keys are locked, as soon as they are.

        Clean-up that takes too long is left to the background.
        """
        deadline = time.monotonic() + PATIENCE
        while (locked := self.locked()) != wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        return locked == wanted

    # -- rules

    def follow(self, *rules: Rule) -> None:
        """Let the first rule that has a reply give it, and Consul all others."""
        self.agent.answer = lambda seen: (
            next((reply for rule in rules if (reply := rule(seen)) is not None), None) or self.ask(seen)
        )

    def spoil(self, wanted: Wanted, reply: Reply, *, applied: bool = True, times: int = 1) -> Rule:
        """Return a rule that spoils the reply to the first requests of a kind, carried out or not."""
        left = [reply] * times

        def rule(seen: Seen) -> Reply | None:
            if not (wanted(seen) and left):
                return None
            spoilt = left.pop()
            if applied:
                self.ask(seen)
            return spoilt

        return rule

    # -- passing on

    def ask(self, seen: Seen) -> Reply:
        """Pass a request on, and return the reply."""
        connection = HTTPConnection(urlsplit(self.address).netloc, timeout=10 * PATIENCE)
        with self._lock:
            self._connections.add(connection)
        try:
            connection.request(seen.method, seen.target, seen.body, {"Content-Length": str(len(seen.body))})
            response = connection.getresponse()
            headers = {name: value for name, value in response.headers.items() if name.lower() in PASSED_ON}
            return Reply(response.status, response.read(), headers)
        except (OSError, HTTPException):
            return HANGS_UP
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def end(self) -> None:
        """Break off what still waits for a reply."""
        with self._lock, suppress(AttributeError):
            for connection in self._connections:
                hang_up(connection.sock)


def always(reply: Reply, wanted: Wanted) -> Rule:
    """Return a rule that forges the reply to every request of a kind."""
    return lambda seen: reply if wanted(seen) else None


def creates_session(seen: Seen) -> bool:
    return seen.path == "/v1/session/create"


def renews(seen: Seen) -> bool:
    return seen.path.startswith("/v1/session/renew/")


def does(*verbs: str) -> Wanted:
    """Return what tells transactions of just these operations."""
    return lambda seen: seen.verbs == list(verbs)


barges = does("check-not-exists", "lock", "get-tree")
joins = does("lock", "get", "get-tree")
takes = does("check-index", "lock", "delete")
unlocks = does("check-index", "unlock")
