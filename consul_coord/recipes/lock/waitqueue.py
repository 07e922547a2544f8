"""The meaning of a reading of a lock and its queue for one of its waiters: pure rules.

Rules
- The server alone decides who gets the key. The queue decides who asks, and when.
- The first waiter of the queue watches the key. Each other waiter watches the contender right before its own.
- The index that a watch begins from is taken from the reading that was judged: whatever changed since then
  ends the watch at once.
- A take deletes its contender in the transaction that locks the key. Suppose that the contender right before
  ours was deleted at the very index at which its session got the key. Then it took the key in its turn, and
  nobody is before us any more. No reading of the queue, however long that is, would say anything else. A
  client that leaves the queue in any other way, or adopts a key that it had barged for, deletes its contender
  at another index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.recipes.contend.queue import Rejoin
from consul_coord.value import Value

if TYPE_CHECKING:
    from consul_coord.models import KVPair
    from consul_coord.recipes.contend.queue import Look


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Adopt(Value):
    """The key is ours already: the reply to the request that took it was lost."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Follow(Value):
    """Somebody is before us: watch the nearest."""

    own: KVPair
    predecessor: KVPair
    position: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lead(Value):
    """We are the head: take the key, or watch it while ``held`` is there."""

    own: KVPair
    held: KVPair | None


Verdict = Adopt | Rejoin | Follow | Lead


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Gone(Value):
    """The contender right before ours, which has been deleted."""

    session: str
    index: int
    """That of its deletion; 0 if unknown."""


def is_head(look: Look, own: KVPair, before: Gone) -> bool:
    """Return whether a reading of the key and our own contender alone shows that we are the head now."""
    pair = look.pair
    took = pair is not None and (pair.session, pair.modify_index) == (before.session, before.index)
    return took and [one.modify_index for one in look.live] == [own.modify_index]


def judge(look: Look, session: str) -> Verdict:
    """Return what a reading means for a session that queues and has no hold on the key registered."""
    if look.pair is not None and look.pair.session == session:
        return Adopt()
    position = look.position(session)
    if position is None:
        return Rejoin()
    own = look.live[position]
    if position > 0:
        return Follow(own, look.live[position - 1], position)
    held = look.pair if look.pair is not None and look.pair.session is not None else None
    return Lead(own, held)
