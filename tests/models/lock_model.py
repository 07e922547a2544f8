"""The wait queue of a lock as a model: clients that follow the project's own rules, and a tiny Consul.

The judgement of a reading is the recipes' own (`consul_coord.recipes.lock.waitqueue`). What a client sends,
and what it does with an answer or with none, is in tables here, as in `consul_coord.recipes.lock.attempt`,
so that a test can take one guard away.

Rules
- A request is answered, or its reply is lost, or it is lost itself, or it is late: its client has hung up,
  and it is applied at any later time or never. Each of the last three uses up one of the run's faults.
- No wait ends by itself: whoever waits for something that never changes waits for ever, and the explorer says
  so.
- A client that dies stops at once; its session ends at once, and its keys with it. That a session ends late
  is in the model all the same: whoever is alive may be slow, without bound.
- Indexes are numbered anew after each step: only which is older, and which are the same, makes a state.

Looked at: nobody takes the key out of turn but by barging; who believes to hold the key is named by it;
fences rise; and from everywhere a good end is reached, in which nobody waits and nothing is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from consul_coord.models import KVPair
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.queue import Rejoin
from consul_coord.recipes.lock.waitqueue import Adopt, Follow, Gone, is_head, judge
from tests.models.explorer import Broken, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.lock.waitqueue import Verdict

KEY: Final = "k"


class Contender(NamedTuple):
    """A place in the queue; ``live`` while its session is."""

    created: int
    modified: int
    live: bool = True


class Client(NamedTuple):
    """One client: what it does next, what it knows, and what it has left to do."""

    doing: str
    attempts: int
    other: int = -1
    """The client whose contender is watched; -1 for the key."""
    at: int = 0
    """The index that its next request or watch names."""
    place: int = 0
    """ModifyIndex of its contender as last read."""
    fence: int = 0
    """Of its last hold."""
    polite: bool = False
    unanswered: bool = False
    """Whether a request of this attempt got no answer."""


class World(NamedTuple):
    """Everything there is."""

    holder: int
    """Who has the key; -1 for nobody."""
    modified: int
    """The key's ModifyIndex."""
    delayed: bool
    """Whether the lock-delay runs."""
    contenders: tuple[Contender | None, ...]
    gone: tuple[int, ...]
    """At which index the contender of each was last deleted; 0 where nobody asks."""
    clients: tuple[Client, ...]
    late: tuple[tuple[int, str, int], ...]
    """Requests on their way that nobody waits for: whose, which, and the index that they name."""
    faults: int
    deaths: int
    give_ups: int
    now: int
    """The last index given out."""


# What a request does, in order: all of it, or nothing. K is the key, C the own contender.
Ops = tuple[str, ...]
REQUESTS: Final[Mapping[str, Ops]] = {
    "barge": ("check-not-exists C", "lock K"),
    "join": ("lock C",),
    "take": ("check-index C", "lock K", "delete C"),
    "adopt": ("check-session K", "delete C"),
    "unlock": ("check-index K", "unlock K"),
    "withdraw": ("delete C",),
}
# What a client does next when a request was not answered.
UNANSWERED: Final[Mapping[str, str]] = {
    "barge": "join",
    "join": "join",
    "take": "look",
    "adopt": "look",
    "unlock": "unlock",
    "withdraw": "withdraw",
}


@dataclass(frozen=True)
class LockModel:
    """A lock with some clients, each of which takes it a number of times."""

    clients: int = 2
    attempts: int = 1
    faults: int = 1
    deaths: int = 0
    give_ups: int = 0
    """How often anybody may give up: without a bound, giving up would be a way out of every deadlock."""
    requests: Mapping[str, Ops] = field(default_factory=lambda: REQUESTS)
    unanswered: Mapping[str, str] = field(default_factory=lambda: UNANSWERED)
    judge: Callable[[Look, str], Verdict] = judge
    is_head: Callable[[Look, KVPair, Gone], bool] = is_head
    read: Callable[[str, list[KVPair]], Look] = waitqueue.read
    sweeps: bool = True
    watches_from_the_look: bool = True
    retries_in_lock_delay: bool = True

    # -- the model

    def first(self) -> World:
        return World(
            holder=-1,
            modified=0,
            delayed=False,
            contenders=(None,) * self.clients,
            gone=(0,) * self.clients,
            clients=(Client("idle", self.attempts),) * self.clients,
            late=(),
            faults=self.faults,
            deaths=self.deaths,
            give_ups=self.give_ups,
            now=0,
        )

    def is_good_end(self, world: World) -> bool:
        return (
            all(client.doing in {"idle", "dead"} for client in world.clients)
            and not any(client.attempts for client in world.clients if client.doing == "idle")
            and not any(client.unanswered for client in world.clients)
            and world.holder == -1
            and not any(contender and contender.live for contender in world.contenders)
            and not world.late
        )

    def steps(self, world: World) -> Iterator[Step[World]]:
        for who, client in enumerate(world.clients):
            for name, after in self._moves(world, who, client):
                yield Step(f"{who} {name}", _renumbered(after) if isinstance(after, World) else after)
            if world.deaths and client.doing != "dead":
                yield Step(f"{who} dies", _renumbered(_died(world, who)))
        for number, (who, name, index) in enumerate(world.late):
            rest = world._replace(late=world.late[:number] + world.late[number + 1 :])
            yield Step(f"{who} late {name} vanishes", _renumbered(rest))
            applied = self._apply(rest, who, name, index)
            if applied is not None:
                yield Step(
                    f"{who} late {name} is applied",
                    _renumbered(applied) if isinstance(applied, World) else applied,
                )
        if world.delayed:
            yield Step("- lock-delay ends", world._replace(delayed=False))

    # -- what a client can do

    def _moves(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        moves: Mapping[str, Callable[[World, int, Client], Iterator[tuple[str, World | Broken]]]] = {
            "idle": self._idle,
            "look": self._looks,
            "read what to watch": self._arms,
            "follow": self._woken,
            "glance": self._glances,
            "hold": self._releases,
            "settle": self._settles,
            "take": self._takes,
            "dead": lambda *_: iter(()),
        }
        yield from moves.get(client.doing, self._ask)(world, who, client)
        if world.give_ups and client.doing in {"look", "follow", "glance", "take", "join"}:
            spent = world._replace(give_ups=world.give_ups - 1)
            yield "gives up", _put(spent, who, client._replace(doing="withdraw"))

    def _looks(self, world: World, who: int, _client: Client) -> Iterator[tuple[str, World | Broken]]:
        yield "looks", self._judged(world, who)

    def _arms(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        at = _index_of(world, client.other)
        yield "watches from now", _put(world, who, client._replace(doing="follow", at=at))

    def _releases(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        yield "releases", _put(world, who, client._replace(doing="unlock", at=client.fence))

    def _takes(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        if not world.delayed:
            yield from self._ask(world, who, client)
        elif not self.retries_in_lock_delay:
            watch = client._replace(doing="follow", other=-1, at=world.modified)
            yield "watches in the lock-delay", _put(world, who, watch)

    def _idle(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        if client.unanswered and self.sweeps and not any(late[0] == who for late in world.late):
            yield "sweeps", _put(world, who, client._replace(doing="withdraw", unanswered=False))
        if client.unanswered and not self.sweeps:
            yield "forgets", _put(world, who, client._replace(unanswered=False))
        if client.attempts:
            begun = client._replace(attempts=client.attempts - 1)
            yield "begins to queue", _put(world, who, begun._replace(doing="join"))
            if not client.polite and world.holder == -1:
                yield "begins to barge", _put(world, who, begun._replace(doing="barge"))

    def _woken(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        """Yield the end of a watch: only what changed since its index ends it."""
        if client.other >= 0:
            if _index_of(world, client.other) != client.at:
                gone = world.contenders[client.other] is None
                after = (
                    client._replace(doing="glance", at=world.gone[client.other])
                    if gone
                    else client._replace(doing="look")
                )
                yield "is woken by the one before", _put(world, who, after)
        elif world.modified != client.at and world.holder in {-1, who}:
            yield "is woken by the key", _put(world, who, client._replace(doing="take", at=client.place))
        elif world.modified != client.at:
            yield "sees the key change", _put(world, who, client._replace(at=world.modified))

    def _glances(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        """Yield what comes of reading the key and the own contender alone."""
        key = waitqueue.contender_key(KEY, _id(who))
        own = KVPair(key, session=_id(who), modify_index=client.place)
        look = self.read(KEY, [pair for pair in _pairs(world) if pair.key in {KEY, key}])
        if self.is_head(look, own, Gone(_id(client.other), client.at)):
            yield "glances and leads", self._judged(world, who, look)
        else:
            yield "glances in vain", _put(world, who, client._replace(doing="look"))

    def _judged(self, world: World, who: int, look: Look | None = None) -> World:
        """Return what follows from a reading: by default of all there is."""
        client = world.clients[who]
        verdict = self.judge(look or self.read(KEY, _pairs(world)), _id(who))
        if isinstance(verdict, Adopt):
            return _put(world, who, client._replace(doing="adopt"))
        if isinstance(verdict, Rejoin):
            return _put(world, who, client._replace(doing="join"))
        client = client._replace(place=verdict.own.modify_index)
        if isinstance(verdict, Follow):
            ahead = verdict.predecessor
            doing = "follow" if self.watches_from_the_look else "read what to watch"
            watch = client._replace(doing=doing, other=_who(ahead), at=ahead.modify_index)
            return _put(world, who, watch)
        if verdict.held is not None:
            watch = client._replace(doing="follow", other=-1, at=verdict.held.modify_index)
            return _put(world, who, watch)
        return _put(world, who, client._replace(doing="take", at=client.place))

    def _settles(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        """Yield what becomes of who gave up and reads the key: it may have come to it after all."""
        if world.holder == who:
            after = client._replace(doing="unlock", at=world.modified)
        else:
            after = client._replace(doing="idle", at=0, place=0, other=-1)
        yield "reads the key", _put(world, who, after)

    def _ask(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        """Yield what can become of the client's request."""
        name = client.doing
        applied = self._apply(world, who, name, client.at)
        if isinstance(applied, Broken):
            yield name, applied
            return
        yield (
            f"{name} {'done' if applied is not None else 'refused'}",
            self._answered(world if applied is None else applied, who, done=applied is not None),
        )
        if not world.faults:
            return
        spent = world._replace(faults=world.faults - 1)
        lost = client._replace(doing=self.unanswered[name], unanswered=True)
        yield f"{name} lost", _put(spent, who, lost)
        yield (
            f"{name} late",
            _put(spent._replace(late=tuple(sorted((*world.late, (who, name, client.at))))), who, lost),
        )
        if applied is not None:
            yield f"{name} reply lost", _put(applied._replace(faults=world.faults - 1), who, lost)

    def _answered(self, world: World, who: int, *, done: bool) -> World | Broken:
        client = world.clients[who]
        name = client.doing
        others = _others_wait(world, who)
        if name == "join":  # its reply is a reading
            polite = others or world.holder not in {-1, who}
            return self._judged(_put(world, who, client._replace(polite=polite)), who)
        if name == "unlock":
            return self._unlocked(world, who, client, done=done)
        if name == "withdraw":
            return _put(world, who, client._replace(doing="settle"))
        if not done:
            return _put(world, who, client._replace(doing="join" if name == "barge" else "look"))
        if world.modified <= client.fence:
            return Broken("fences")
        client = client._replace(polite=others if name == "barge" else client.polite)
        return _put(world, who, client._replace(doing="hold", fence=world.modified, at=0, place=0, other=-1))

    def _unlocked(self, world: World, who: int, client: Client, *, done: bool) -> World:
        if not done and world.holder == who:  # somebody wrote the value: again, with the index found
            return _put(world, who, client._replace(at=world.modified))
        return _put(world, who, client._replace(doing="idle", at=0, place=0, other=-1))

    # -- the server

    def _apply(self, world: World, who: int, name: str, index: int) -> World | Broken | None:
        """Return the state after a request; None when it was refused."""
        if world.clients[who].doing == "dead":
            return None
        after: World | None = world._replace(now=world.now + 1)
        for op in self.requests[name]:
            if after is None:
                return None
            after = _OPS[op](after, who, index)
        if after is None:
            return None
        if name == "take" and _passed_over(world, who):
            return Broken("order")
        for other, client in enumerate(after.clients):
            if client.doing == "hold" and after.holder != other:
                return Broken("exclusion")
        return after


def _others_wait(world: World, who: int) -> bool:
    return any(one and one.live for other, one in enumerate(world.contenders) if other != who)


def _passed_over(world: World, who: int) -> bool:
    own = world.contenders[who]
    return any(
        contender and contender.live and (own is None or contender.created < own.created)
        for other, contender in enumerate(world.contenders)
        if other != who
    )


# -- the server's operations


def _lock_key(world: World, who: int, _index: int) -> World | None:
    if world.delayed or world.holder not in {-1, who}:
        return None
    return world._replace(holder=who, modified=world.now)


def _unlock_key(world: World, who: int, _index: int) -> World | None:
    return world._replace(holder=-1, modified=world.now) if world.holder == who else None


def _lock_contender(world: World, who: int, _index: int) -> World:
    own = world.contenders[who]
    created = world.now if own is None else own.created
    return _contends(world, who, Contender(created, world.now))


def _check_contender(world: World, who: int, index: int) -> World | None:
    own = world.contenders[who]
    return world if own is not None and own.modified == index else None


_OPS: Final[Mapping[str, Callable[[World, int, int], World | None]]] = {
    "check-not-exists C": lambda world, who, _: world if world.contenders[who] is None else None,
    "check-index C": _check_contender,
    "check-exists C": lambda world, who, _: world if world.contenders[who] is not None else None,
    "check-index K": lambda world, _who, index: world if world.modified == index else None,
    "check-session K": lambda world, who, _: world if world.holder == who else None,
    "lock K": _lock_key,
    "lock C": _lock_contender,
    "unlock K": _unlock_key,
    "delete C": lambda world, who, _: _contends(world, who, None),
}


def _contends(world: World, who: int, contender: Contender | None) -> World:
    if contender is None and world.contenders[who] is not None:
        world = world._replace(gone=_with(world.gone, who, world.now))
    return world._replace(contenders=_with(world.contenders, who, contender))


def _died(world: World, who: int) -> World:
    own = world.contenders[who]
    world = world._replace(deaths=world.deaths - 1, now=world.now + 1)
    if own is not None:
        world = _contends(world, who, Contender(own.created, world.now, live=False))
    if world.holder == who:
        world = world._replace(holder=-1, modified=world.now, delayed=True)
    return _put(world, who, Client("dead", 0))


# -- states


def _index_of(world: World, who: int) -> int:
    """Return the ModifyIndex of a contender; 0 when it is absent."""
    found = world.contenders[who]
    return 0 if found is None else found.modified


def _put(world: World, who: int, client: Client) -> World:
    return world._replace(clients=_with(world.clients, who, client))


def _with(values: tuple, who: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:who], value, *values[who + 1 :])


def _renumbered(world: World) -> World:
    """Return the state with its indexes as small as they can be, in the same order."""
    asked = {client.other for client in world.clients if client.doing == "follow"}
    gone = tuple(index if who in asked else 0 for who, index in enumerate(world.gone))
    used = {0, world.modified, *gone}
    for contender in world.contenders:
        if contender is not None:
            used.update(contender[:2])
    for client in world.clients:
        used.update((client.at, client.place, client.fence))
    used.update(late[2] for late in world.late)
    rank = {index: place for place, index in enumerate(sorted(used))}
    return world._replace(
        modified=rank[world.modified],
        gone=tuple(rank[index] for index in gone),
        contenders=tuple(
            one and Contender(rank[one.created], rank[one.modified], one.live) for one in world.contenders
        ),
        clients=tuple(
            one._replace(at=rank[one.at], place=rank[one.place], fence=rank[one.fence])
            for one in world.clients
        ),
        late=tuple(sorted((who, name, rank[index]) for who, name, index in world.late)),
        now=len(rank) - 1,
    )


def _id(who: int) -> str:
    return f"{who:08x}-0000-0000-0000-000000000000"


def _who(pair: KVPair) -> int:
    return int(waitqueue.session_of(pair)[:8], 16)


def _pairs(world: World) -> list[KVPair]:
    """Return what a transaction reads of the key and its queue."""
    holder = None if world.holder < 0 else _id(world.holder)
    found = (
        [KVPair(KEY, session=holder, create_index=1, modify_index=world.modified)] if world.modified else []
    )
    found += (
        KVPair(
            waitqueue.contender_key(KEY, _id(who)),
            session=_id(who) if one.live else None,
            create_index=one.created,
            modify_index=one.modified,
        )
        for who, one in enumerate(world.contenders)
        if one is not None
    )
    return found
