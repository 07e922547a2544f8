"""The refusals of the state: errors that carry the text Consul answers with."""

from __future__ import annotations


class StateError(Exception):
    """An operation that the leader refuses; the text is the body of the reply, whose status is 500."""


class Refusal(Exception):
    """A reply other than success, decided by an endpoint or by the checks around it."""

    def __init__(self, status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


class LeadersRefusal(Refusal):
    """A reply that the leader decides on, or a server near it: what lies between adds to its text."""
