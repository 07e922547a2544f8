"""A queue of waiters, as it stands in Consul: pure rules over one reading of it.

A waiter of session S for the key K has a *contender* ``K/.wait/S``, held by S itself: so it vanishes, or
loses its session, when S ends. The order is that of the contenders' CreateIndex, which Raft gives. The first
one, the *head*, watches K; each other waiter watches the contender right before its own. So a release wakes
one waiter, a take one more, and a death its follower.

Rules
- All that one judgement needs comes from one transaction: a reading is a moment, not a mixture.
- A contender is live while its own session holds it; without a session it is dead, and to be removed, at the
  index it was read with. Other names under the prefix are left alone.
- The server alone decides who gets the key. The queue decides who asks, and when.
- The index that a watch begins from is taken from the reading that was judged: whatever changed since then
  ends the watch at once.

Source: the predecessor watch is that of Hunt et al., "ZooKeeper" (2010), section 2.4, and of etcd's
concurrency package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.models import Contender
from consul_coord.recipes.hold.holds import Latest
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from consul_coord.models import KVPair, TxnOp

DIRECTORY = "/.wait/"
"""Follows a key in the names of its contenders."""
WITHOUT_QUEUE = 60.0
"""Seconds for which a key counts as one whose queue the token may not use."""
SESSION_ID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def directory(key: str) -> str:
    """Return the prefix under which the contenders for a key are."""
    return key + DIRECTORY


def contender_key(key: str, session: str) -> str:
    """Return the key of one session's contender."""
    return directory(key) + session


def session_of(contender: KVPair | TxnOp) -> str:
    """Return the session that a contender, or an operation on one, stands for."""
    return contender.key.rpartition("/")[2]


def shown(waiters: Iterable[KVPair], value_of: Callable[[KVPair], bytes]) -> tuple[Contender, ...]:
    """Return waiters as users see them; ``value_of`` gives the user's value in a contender."""
    return tuple(
        Contender(
            session_of(pair),
            place,
            value=value_of(pair),
            create_index=pair.create_index,
            modify_index=pair.modify_index,
        )
        for place, pair in enumerate(waiters, 1)
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Look(Value):
    """One reading of a lock and its queue."""

    key: str
    pair: KVPair | None
    """The lock itself; None when it is absent."""
    live: tuple[KVPair, ...]
    """The live contenders, the head first."""
    dead: tuple[KVPair, ...]
    """The leftover contenders of ended sessions."""

    def position(self, session: str) -> int | None:
        """Return a session's place, 0 for the head; None when it does not queue."""
        return next((place for place, pair in enumerate(self.live) if pair.session == session), None)

    @property
    def places(self) -> tuple[KVPair, ...]:
        """All contenders, the dead too, in the order of the queue."""
        return tuple(sorted((*self.live, *self.dead), key=_place))

    def others(self, session: str) -> bool:
        """Return whether anybody else queues."""
        return any(pair.session != session for pair in self.live)


def read(key: str, pairs: Iterable[KVPair]) -> Look:
    """Sort what a transaction gave for a key and its queue; the key itself may be missing."""
    prefix = directory(key)
    lock = None
    live: list[KVPair] = []
    dead: list[KVPair] = []
    for pair in pairs:
        name = pair.key.removeprefix(prefix)
        if pair.key == key:
            lock = pair
        elif pair.key == name or not SESSION_ID.fullmatch(name):
            continue
        elif pair.session is None:
            dead.append(pair)
        elif pair.session == name:
            live.append(pair)
    live.sort(key=_place)
    return Look(key, lock, tuple(live), tuple(dead))


def _place(pair: KVPair) -> tuple[int, str]:
    return pair.create_index, pair.key


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rejoin(Value):
    """The verdict of a reading without our contender: join again, at the end."""


class QueueMemory:
    """One client's memory of the queues that it contends in.

    A forgotten entry costs a request, never correctness. A missing permission is not remembered for ever: a
    token may get its rights.
    """

    def __init__(self) -> None:
        self.crowded: Latest[None] = Latest()
        """Keys for which others were seen to wait: this client's next attempt queues."""
        self.closed: Latest[float] = Latest()
        """Keys whose queue the token was found not to be allowed to use, and until when that counts."""

    def saw_waiters(self, key: str, *, waiting: bool) -> None:
        """Take note of whether others waited or held when this client barged or joined."""
        if waiting:
            self.crowded.remember(key, None)
        else:
            self.crowded.pop(key, None)

    def may_not_queue(self, key: str, now: float) -> None:
        """Take note that the token may not write or read the key's queue."""
        self.closed.remember(key, now + WITHOUT_QUEUE)
