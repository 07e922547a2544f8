"""Waiting for what a test expects, and writing down what it is told."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from tests.support.sites import rest

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import LeaderElection
    from consul_coord.events import Event

PATIENCE = 30.0
"""Seconds after which something that should have happened has not."""


def until(condition: Callable[[], object], what: str, *, within: float = PATIENCE) -> None:
    """Wait for what gives no notice."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + within, f"{what}: not within {within} s"
        rest(began)


def queued(election: LeaderElection, count: int) -> None:
    """Wait until so many candidates wait."""
    until(lambda: len(election.candidates()) == count, f"{count} candidates wait")


class Told:
    """What callbacks were told, in order; an ``Observer`` too."""

    def __init__(self) -> None:
        self.news: list[Any] = []
        self.events: list[Event] = []
        self.threads: set[str] = set()

    def say(self, *what: Any) -> None:
        self.news.append(what[0] if len(what) == 1 else what)
        self.threads.add(threading.current_thread().name)

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def seen(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def wait_for(self, *news: Any) -> None:
        """Wait until exactly this was told."""
        until(lambda: len(self.news) >= len(news), f"{news}, so far {self.news}")
        assert self.news == list(news)
