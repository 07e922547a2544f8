"""What a hold is a hold of: how it is watched, how its value is kept, and how it is given back.

A hold brings its kind with it from the grant. So whoever releases, watches, closes or cleans up does so for
every kind of hold alike, and a new kind is one more implementation of ``HoldKind``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.io import IO
    from consul_coord.models import KVPair, LossReason, ReleaseOutcome, TxnOp
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.contend.tickets import Ticket
    from consul_coord.recipes.hold.grant import Grant


@dataclass(frozen=True, slots=True)
class KeyWatch:
    """One key whose changes may mean that a hold is lost.

    Must not refer to the hold, which it may outlive.
    """

    key: str
    index: int
    """ModifyIndex to watch from."""
    loss: Callable[[KVPair | None], LossReason | None]
    """Returns what a reading of the key, newer than the fence, says of the hold: None when it goes on."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What giving back a hold came to. ``loss`` is why it was not ours any more, where that was found."""

    outcome: ReleaseOutcome
    loss: LossReason | None = None


class HoldKind(Protocol):
    """See the module."""

    @property
    def sole(self) -> bool:
        """Whether the session has no other hold: watching its keys then tells the session's end as well."""
        ...

    def watches(self, hold: Grant) -> tuple[KeyWatch, ...]:
        """Return what is to be watched, the hold's own key first."""
        ...

    def guard(self, hold: Grant) -> tuple[TxnOp, ...]:
        """Return what makes sure, besides the hold's own key, that it lasts."""
        ...

    def words_for(self, loss: LossReason) -> str | None:
        """Return what a loss means for this hold, where it is not what it means for any."""
        ...

    def tickets(self, hold: Grant) -> tuple[Ticket, ...]:
        """Return the tickets at keys, in this client, that it has until all of it is given back."""
        ...

    def kept_as(self, value: bytes) -> bytes:
        """Return how a value is kept in the key; asked before each write."""
        ...

    async def give_back(self, io: IO, core: ClientState, hold: Grant, *, deadline: float) -> Ending:
        """Give the hold back on the server; raises ConsulCoordError when that is not known to be done."""
        ...

    def abandon(self, core: ClientState, hold: Grant) -> None:
        """Have a hold given back in the background; from any thread, also the garbage collector's."""
        ...

    def lost(self, core: ClientState, hold: Grant) -> None:
        """Let go of what a lost hold still has; from any thread."""
        ...
