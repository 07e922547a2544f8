"""What one client remembers of the queues that it contends in.

Rules
- It is bounded: the oldest is forgotten first. What is forgotten costs a request, never correctness.
- A missing permission is not remembered for ever: a token may get its rights.
"""

from __future__ import annotations

MOST_REMEMBERED = 10_000
WITHOUT_QUEUE = 60.0
"""Seconds for which a key counts as one whose queue the token may not use."""


class QueueMemory:
    """See the module."""

    def __init__(self) -> None:
        self._must_queue: dict[str, float] = {}
        self._without_queue: dict[str, float] = {}

    def saw_waiters(self, key: str, *, waiting: bool) -> None:
        """Take note of whether others waited when this client released the key."""
        self._must_queue.pop(key, None)
        if waiting:
            _remember(self._must_queue, key, 0.0)

    def must_queue(self, key: str) -> bool:
        """Return whether the client's next attempt queues, because it saw others wait."""
        return key in self._must_queue

    def may_not_queue(self, key: str, now: float) -> None:
        """Take note that the token may not write or read the key's queue."""
        self._without_queue.pop(key, None)
        _remember(self._without_queue, key, now + WITHOUT_QUEUE)

    def without_queue(self, key: str, now: float) -> bool:
        """Return whether the token was lately found not to be allowed to use the key's queue."""
        return self._without_queue.get(key, now) > now


def _remember(memory: dict[str, float], key: str, until: float) -> None:
    memory[key] = until
    if len(memory) > MOST_REMEMBERED:
        memory.pop(next(iter(memory)), None)
