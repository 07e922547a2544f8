"""The holders and waiters below a prefix: pure, from one listing of it.

Rules
- The flags of a key say what it is, as in Consul's own clients. An election is a lock in Consul. It is shown
  as an election by the note that its leader leaves beside the queue.
- Positions count from 1: the first waiter is the next one to get it.
- Holders are a lock's session, or the sessions in a semaphore's record whose own keys live.
- A read-write lock is nothing but a queue. A session with nobody in its way is in; the kind says how.
- Keys of no such kind are shown while a session holds them.
- A fence is the index of the last write to the holder's key. After another write to that key it is
  no longer the hold's own, except for a leader, whose term is kept in a note.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from consul_coord import GROUP_FLAGS, LOCK_FLAGS, SEMAPHORE_FLAGS, DecodeError
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.election import notes
from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.session.names import without_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from consul_coord import KVPair, Session

Kind = Literal["lock", "election", "semaphore", "reading", "writing", "member", "key"]


@dataclass(frozen=True, slots=True)
class Held:
    """A holder, as far as the token may see it."""

    key: str
    """The key that is locked: of a semaphore, the holder's own."""
    session: str
    value: bytes
    fence: int
    node: str | None = None
    session_name: str | None = None


@dataclass(frozen=True, slots=True)
class Waits:
    """A waiter, as far as the token may see it."""

    position: int
    """The place in the queue, counted from 1."""
    key: str
    """The waiter's own key."""
    session: str
    value: bytes
    node: str | None = None
    session_name: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """One lock, election, semaphore, or other key that is held."""

    kind: Kind
    key: str
    holders: tuple[Held, ...]
    waiters: tuple[Waits, ...] = ()
    """The queue, in its order; clients that know nothing of the queue are not in it."""
    limit: int = 1
    problem: str = ""
    """Why it can't be read."""

    @property
    def in_use(self) -> bool:
        """Whether anybody holds it or waits for it, or nobody can tell."""
        return bool(self.holders or self.waiters or self.problem)


def survey(pairs: Iterable[KVPair], sessions: Mapping[str, Session]) -> tuple[Place, ...]:
    """Return what there is below a prefix, in the order of the keys; ``sessions`` by id."""
    by_key = {pair.key: pair for pair in pairs}
    queues: dict[str, list[KVPair]] = defaultdict(list)
    slotted: dict[str, list[KVPair]] = defaultdict(list)
    rest: list[KVPair] = []
    for key, pair in by_key.items():
        before, queue, _ = key.rpartition(waitqueue.DIRECTORY)
        if queue:
            queues[before].append(pair)
        elif pair.flags == SEMAPHORE_FLAGS:
            slotted[key.rpartition("/")[0]].append(pair)
        else:
            rest.append(pair)
    shared = {base: queue for base, queue in queues.items() if rwqueue.key_of(base) != base}
    plain = {pair.key for pair in rest if pair.flags == LOCK_FLAGS or pair.session} | queues.keys()
    places = [
        *(_shared(base, queue, sessions) for base, queue in shared.items()),
        *(_locked(key, by_key.get(key), queues.get(key, []), sessions) for key in plain - shared.keys()),
        *(_semaphore(prefix, found, sessions) for prefix, found in slotted.items()),
    ]
    return tuple(sorted(places, key=lambda place: place.key))


def _locked(key: str, pair: KVPair | None, queue: list[KVPair], sessions: Mapping[str, Session]) -> Place:
    held: tuple[Held, ...] = ()
    note = notes.find(notes.term_key(key), queue)
    if pair is not None and pair.session is not None:
        held = (_held(pair, pair.session, pair.value, notes.term_of(pair, note), sessions),)
    kind: Kind = "lock" if queue or (pair is not None and pair.flags == LOCK_FLAGS) else "key"
    waiters = _waiting(waitqueue.read(key, queue).live, sessions)
    if note is not None or notes.find(notes.heir_key(key), queue) is not None:
        kind = "election"
    elif pair is not None and pair.flags == GROUP_FLAGS:
        kind = "member"
    return Place(kind, key, held, waiters)


def _shared(base: str, pairs: list[KVPair], sessions: Mapping[str, Session]) -> Place:
    look = waitqueue.read(base, pairs)
    inside = rwqueue.inside(look)
    writes = any(rwqueue.mode_of(pair) == "write" for pair in inside)
    held = tuple(
        _held(pair, waitqueue.session_of(pair), rwqueue.value_of(pair), pair.create_index, sessions)
        for pair in inside
    )
    kind: Kind = "writing" if writes else "reading"
    queue = [pair for pair in look.live if pair not in inside]
    return Place(kind, rwqueue.key_of(base), held, _waiting(queue, sessions, value=rwqueue.value_of))


def _semaphore(prefix: str, pairs: list[KVPair], sessions: Mapping[str, Session]) -> Place:
    try:
        listing = slots.read(prefix, pairs, limit=0, flags=SEMAPHORE_FLAGS, index=0)
    except DecodeError as error:
        return Place("semaphore", prefix, (), limit=0, problem=str(error))
    holders = tuple(
        _held(pair, session, slots.value_of(pair), pair.modify_index, sessions)
        for session, pair in _holding(listing)
    )
    waiters = _waiting(listing.waiters, sessions, value=slots.value_of)
    return Place("semaphore", prefix, holders, waiters, limit=listing.record.limit)


def _holding(listing: slots.Listing) -> Iterator[tuple[str, KVPair]]:
    """Yield who holds a slot, the longest holder first."""
    found = [(session, listing.live[session]) for session in listing.held]
    yield from sorted(found, key=lambda each: each[1].modify_index)


def _waiting(
    queue: Iterable[KVPair],
    sessions: Mapping[str, Session],
    *,
    value: Callable[[KVPair], bytes] = lambda pair: pair.value,
) -> tuple[Waits, ...]:
    found: list[Waits] = []
    for position, pair in enumerate(queue, start=1):
        session = pair.session or ""
        found.append(Waits(position, pair.key, session, value(pair), *_owner(session, sessions)))
    return tuple(found)


def _held(pair: KVPair, session: str, value: bytes, fence: int, sessions: Mapping[str, Session]) -> Held:
    return Held(pair.key, session, value, fence, *_owner(session, sessions))


def _owner(session: str, sessions: Mapping[str, Session]) -> tuple[str | None, str | None]:
    """Return the node and the name of a session, as far as the token may see it."""
    known = sessions.get(session)
    return (None, None) if known is None else (known.node, without_mark(known.name))
