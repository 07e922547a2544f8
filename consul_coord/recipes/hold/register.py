"""Who answers for what this client has, or may have, on the server: one register, by weak references.

Rules
- A *claim* is entered before the request that makes it true is sent, with an object that answers for it: the
  attempt, then the hold's handle, then the call that releases it. When that object is gone and the claim is
  still entered, nobody will give it back: the sweep does.
- So whatever interrupts a call, at whichever line, needs no more than the end of its frames. There is no
  finalizer to be interrupted in its turn.
- The sweep runs in the background, while anything is entered, every ``SWEEP`` seconds.
- Entering, passing on and removing are each one atomic operation on a dict: from any thread, and from a
  signal handler.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

SWEEP = 0.5
"""Seconds between two sweeps."""


class Claim(Protocol):
    """Something that this client has, or may have, on the server."""

    def abandon(self) -> None:
        """Have it given back in the background: nobody answers for it any more. Repeatable."""
        ...


class Register:
    """The claims of one client."""

    def __init__(self) -> None:
        self._claims: dict[Claim, weakref.ref[object]] = {}

    def enter(self, claim: Claim, answerer: object) -> None:
        """Enter a claim, or pass it on: ``answerer`` answers for it from now on."""
        self._claims[claim] = weakref.ref(answerer)

    def remove(self, claim: Claim) -> None:
        """Remove a claim that is settled; harmless when it is not entered."""
        self._claims.pop(claim, None)

    def all(self, kind: type[T]) -> Iterator[T]:
        """Iterate over the claims of one kind."""
        return (claim for claim in list(self._claims) if isinstance(claim, kind))

    def sweep(self) -> None:
        """Abandon the claims that nobody answers for."""
        for claim, answerer in list(self._claims.items()):
            if answerer() is None and self._claims.get(claim) is answerer:
                claim.abandon()
                self.remove(claim)

    def __len__(self) -> int:
        return len(self._claims)
