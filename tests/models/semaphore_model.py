"""The semaphore as a model: clients that follow the project's own rules, and a tiny Consul.

The judgement of a listing is the recipes' own (`consul_coord.recipes.semaphore.slots`), as is what a take
writes. The requests, and what an answer or none leads to, are tables here, as in
`consul_coord.recipes.semaphore.attempt`.

Rules
- As in the model of the lock: a request is answered, or its reply is lost, or it is lost, or it is late; no
  wait ends by itself; who dies loses the session at once; indexes are numbered anew after each step.
- A client has a session for each attempt. It uses the last one again if every request of that was answered
  and the record was seen without it, and else has it destroyed, which is what giving up does, too. A
  destroyed session's contender is gone, and late requests of it are refused.
- A session may be killed while its client knows nothing of it: destroyed, or gone with its node. The client
  believes until its lease ends, which it does at any time, but before the lock-delay: that closes the name of
  every contender whose session ends while it has it.
- A take that is refused for a lock-delay is judged again by the same list. The front that was refused watches
  until something changes, or its pause is over.
- An operator may delete a contender, and raise or lower the limit. A client may keep its slot for ever:
  others get the free ones all the same.
- A client that wants two slots has two sessions for each attempt. The first one queues; both have a slot, or
  none has. Either may be killed, and what is removed or destroyed of both is so one after the other, except
  by a leave.

Looked at: never more slots believed in than the limit, but for those whom an operator deposed; whoever takes
has all the slots that it wants; no waiter of a lower rank is passed; and from everywhere an end can be
reached in which nobody waits and nothing is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from consul_coord.models import SEMAPHORE_FLAGS, KVPair
from consul_coord.recipes.contend.queue import session_of
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.semaphore.slots import Follow, Front, Gone, Held, Prune, Take, TooSmall
from tests.models.explorer import Broken, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from consul_coord.recipes.semaphore.slots import Listing, Verdict

PREFIX: Final = "p"
_ATTEMPTS: Final = 8
"""Most sessions of one client."""
_SECOND: Final = 1_000
"""What is added to the number of an attempt's session for its second one."""


class Contender(NamedTuple):
    """A contender's key, as its session holds it."""

    created: int
    modified: int
    waits: int = 1
    """How many slots it waits for; 0 for a holder's."""


class Seen(NamedTuple):
    """A list, kept to be judged again."""

    holders: tuple[int, ...]
    record: int
    limit: int
    contenders: tuple[tuple[int, Contender], ...]
    changed: int


class Client(NamedTuple):
    """One client: what it does next, what it knows, and what it has left to do."""

    doing: str
    attempts: int
    session: int
    """Its present session; numbers are the client's own."""
    other: int = -1
    """The session whose contender is watched."""
    at: int = 0
    """What its watch begins from, or the index of the record that its take names."""
    place: int = 0
    """ModifyIndex of its contender as last listed."""
    born: int = 0
    """CreateIndex of its contender, as its join's reply gave it."""
    holders: tuple[int, ...] = ()
    """Whom its take names as holders."""
    settled: bool = True
    """Whether every request of its session was answered."""
    deposed: bool = False
    """Whether an operator deleted its contender in this attempt."""
    removed: tuple[int, ...] = ()
    """The dead holders that its take removes."""
    refused: tuple[int, ...] = ()
    """Those that it could not remove, until its pause is over."""
    seen: Seen | None = None
    wants: int = 1
    """How many slots it takes at once: it has as many sessions."""

    @property
    def sessions(self) -> tuple[int, ...]:
        """Its sessions, the one that queues first."""
        return (self.session, self.session + _SECOND)[: self.wants]


class Request(NamedTuple):
    """What a client sends, and all that it names."""

    session: int
    name: str
    place: int = 0
    at: int = 0
    """The index of the record."""
    holders: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    sessions: tuple[int, ...] = ()
    """All that are to have a slot."""


class World(NamedTuple):
    """Everything there is. Sessions are numbers: ``client * 8 + attempt``, the second one 1000 more."""

    holders: tuple[int, ...]
    """Whom the record names."""
    record: int
    """The record's ModifyIndex; 0 while there is none."""
    limit: int
    raises: int
    lowers: int
    contenders: tuple[tuple[int, Contender], ...]
    ended: frozenset[int]
    clients: tuple[Client, ...]
    late: tuple[Request, ...]
    faults: int
    deaths: int
    kills: int
    deletions: int
    give_ups: int
    delays: frozenset[int]
    """The sessions whose contenders' names are closed by a lock-delay."""
    changed: int
    """The index of the last change under the prefix."""
    now: int


Ops = tuple[str, ...]
REQUESTS: Final[Mapping[str, Ops]] = {
    "join": ("lock C",),
    "take": ("remove the dead", "check-index C", "cas R", "mark C"),
    "leave": ("delete C",),
    "drop": ("delete first C",),
    "destroy": ("destroy",),
    "drop second": ("delete second C",),
    "destroy second": ("destroy second",),
}
UNANSWERED: Final[Mapping[str, str]] = {
    "join": "join",
    "take": "list",
    "leave": "drop",
    "drop": "destroy",
    "destroy": "destroy",
    "drop second": "destroy second",
    "destroy second": "destroy second",
}


Ours = tuple[str, ...]
"""A client's sessions, the one that queues first."""


@dataclass(frozen=True)
class SemaphoreModel:
    """A semaphore with some clients, each of which takes a slot, or two, a number of times."""

    clients: int = 2
    wants: tuple[int, ...] = ()
    """How many slots each client takes at once; one where nothing is said."""
    limit: int = 1
    attempts: int = 1
    faults: int = 1
    deaths: int = 0
    kills: int = 0
    """How often a session ends while its client believes."""
    deletions: int = 0
    """How often an operator deletes a contender."""
    give_ups: int = 0
    requests: Mapping[str, Ops] = field(default_factory=lambda: REQUESTS)
    unanswered: Mapping[str, str] = field(default_factory=lambda: UNANSWERED)
    judge: Callable[[Listing, Ours, int, frozenset[str]], Verdict] = lambda listing, ours, born, refused: (
        slots.judge(listing, ours[0], born=born, refused=refused, others=ours[1:])
    )
    lease_first: bool = True
    """Whether no lock-delay is over before its holder's lease is."""
    pauses_end: bool = True
    raise_prunes: bool = False
    """Whether raising the limit leaves the dead out of the record."""
    uses_again: str = "when seen without"
    """When a session is used again: ``when seen without``, or ``always``."""
    keeps: frozenset[int] = frozenset()
    """Who never gives a slot back."""
    raises: int = 0
    """How often an operator raises the limit by one."""
    lowers: int = 0
    """How often an operator lowers the limit by one."""
    gives_up_without_second: bool = True
    """Whether a take that is refused as the second session has ended is given up."""
    one_lost_is_all_lost: bool = True
    """Whether the lease is over when that of any session is."""
    watches_prefix: bool = True
    """Whether the front watches all, and not the record alone."""

    # -- the model

    def first(self) -> World:
        return World(
            holders=(),
            record=0,
            limit=self.limit,
            raises=self.raises,
            lowers=self.lowers,
            contenders=(),
            ended=frozenset(),
            clients=tuple(
                Client("idle", self.attempts, who * _ATTEMPTS, wants=[*self.wants, *[1] * self.clients][who])
                for who in range(self.clients)
            ),
            late=(),
            faults=self.faults,
            deaths=self.deaths,
            kills=self.kills,
            deletions=self.deletions,
            give_ups=self.give_ups,
            delays=frozenset(),
            changed=0,
            now=0,
        )

    def is_good_end(self, world: World) -> bool:
        kept = {
            one
            for who, client in enumerate(world.clients)
            if self._keeps(who, client)
            for one in client.sessions
        }
        done = all(
            client.doing == "dead" or (client.doing == "idle" and not client.attempts)
            for client in world.clients
            if client.session not in kept
        )
        return done and not world.late and kept.issuperset(session for session, _ in world.contenders)

    def _keeps(self, who: int, client: Client) -> bool:
        return who in self.keeps and client.doing == "hold"

    def steps(self, world: World) -> Iterator[Step[World]]:
        for who, client in enumerate(world.clients):
            for name, after in self._moves(world, who, client):
                yield Step(f"{who} {name}", _renumbered(after) if isinstance(after, World) else after)
            yield from self._ends_of(world, who, client)
        for number, late in enumerate(world.late):
            rest = world._replace(late=world.late[:number] + world.late[number + 1 :])
            yield Step(f"{late.session} late {late.name} vanishes", _renumbered(rest))
            applied = self._apply(rest, late)
            if applied is not None:
                after = _renumbered(applied) if isinstance(applied, World) else applied
                yield Step(f"{late.session} late {late.name} is applied", after)
        yield from self._delays_end(world)
        yield from self._operator(world)

    def _ends_of(self, world: World, who: int, client: Client) -> Iterator[Step[World]]:
        """Yield the ends that a client's session may come to without its doing."""
        if client.doing not in {"dead", "idle"}:
            if world.deaths:
                after = world._replace(deaths=world.deaths - 1)
                for session in client.sessions:
                    after = _destroy(after, session)
                dead = Client("dead", 0, client.session, wants=client.wants)
                yield Step(f"{who} dies", _renumbered(_put(after, who, dead)))
            for session in client.sessions:
                if world.kills and session not in world.ended:
                    after = _destroy(world._replace(kills=world.kills - 1), session)
                    name = "is killed" if session == client.session else "is killed, the second"
                    yield Step(f"{who} {name}", _renumbered(after))

    def _delays_end(self, world: World) -> Iterator[Step[World]]:
        for session in sorted(world.delays):
            owner = world.clients[_owner(session)]
            leased = owner.sessions if self.one_lost_is_all_lost else owner.sessions[:1]
            if not (self.lease_first and owner.doing == "hold" and session in leased):
                after = world._replace(delays=world.delays - {session})
                yield Step(f"{session} lock-delay is over", _renumbered(after))

    def _operator(self, world: World) -> Iterator[Step[World]]:
        if world.raises and world.record:
            raised = world._replace(limit=world.limit + 1, raises=world.raises - 1, now=world.now + 1)
            if self.raise_prunes:
                raised = _prune(raised, Request(-1, "raise"))
            yield Step("- the limit is raised", _renumbered(_changed(raised._replace(record=raised.now))))
        if world.lowers and world.record:
            lowered = world._replace(limit=world.limit - 1, lowers=world.lowers - 1, now=world.now + 1)
            yield Step("- the limit is lowered", _renumbered(_changed(lowered._replace(record=lowered.now))))
        if world.deletions:
            for session, _ in world.contenders:
                after = _changed(_without(world, session))._replace(deletions=world.deletions - 1)
                who = _owner(session)
                client = after.clients[who]
                deposed = client.deposed or session in client.sessions
                after = _put(after, who, client._replace(deposed=deposed))
                yield Step(f"{session} is deleted by an operator", _renumbered(after))

    def _moves(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        moves: Mapping[str, Callable[[World, int, Client], Iterator[tuple[str, World | Broken]]]] = {
            "idle": self._begins,
            "list": self._lists,
            "front": self._woken,
            "follow": self._woken,
            "hold": self._ends,
            "dead": lambda *_: iter(()),
        }
        yield from moves.get(client.doing, self._ask)(world, who, client)
        if world.give_ups and client.doing in {"join", "list", "front", "follow", "take"}:
            spent = world._replace(give_ups=world.give_ups - 1)
            yield "gives up", _put(spent, who, client._replace(doing="drop", seen=None))

    def _begins(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        if client.attempts:
            yield "begins", _put(world, who, client._replace(doing="join", attempts=client.attempts - 1))

    def _lists(self, world: World, who: int, _client: Client) -> Iterator[tuple[str, World | Broken]]:
        yield "lists", self._judged(world, who)

    def _woken(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        """Yield the end of a watch: only what changed since its index ends it."""
        if client.doing == "front":
            name, seen = "is woken at the front", world.changed if self.watches_prefix else world.record
        else:
            ahead = _contender(world, client.other)
            name, seen = "is woken by the one before", 0 if ahead is None else ahead.modified
        if seen != client.at:
            yield name, _put(world, who, client._replace(doing="list", seen=None))
        if client.refused and client.doing == "front" and self.pauses_end and client.seen is not None:
            rested = _put(world, who, client._replace(refused=(), seen=None))
            yield "ends its pause", self._judged(rested, who, client.seen)

    def _ends(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        if not self._keeps(who, client):
            yield "gives back", _put(world, who, client._replace(doing="leave"))
        if not all(one in world.holders and _contender(world, one) is not None for one in client.sessions):
            yield "is told of the loss", _put(world, who, client._replace(doing="destroy"))

    def _judged(self, world: World, who: int, seen: Seen | None = None) -> World:
        """Return what becomes of a client that judges a list: the present one, or one that it has kept."""
        client = world.clients[who]
        ours = tuple(map(_id, client.sessions))
        seen = seen or Seen(world.holders, world.record, world.limit, world.contenders, world.changed)
        listing = slots.read(
            PREFIX, _pairs(seen), limit=self.limit, flags=SEMAPHORE_FLAGS, index=seen.changed
        )
        client = client._replace(refused=tuple(one for one in client.refused if _id(one) in listing.dead))
        verdict = self.judge(listing, ours, client.born, frozenset(map(_id, client.refused)))
        if isinstance(verdict, Gone | TooSmall):
            attempts = client.attempts + isinstance(verdict, Gone)
            again = client._replace(doing="drop", attempts=attempts, refused=(), seen=None)
            return _put(world, who, again)
        client = client._replace(place=verdict.own.modify_index, seen=None)
        return _put(world, who, self._next(seen, client, verdict))

    def _next(self, seen: Seen, client: Client, verdict: Held | Take | Prune | Front | Follow) -> Client:
        assert not isinstance(verdict, Prune), "so many are never dead here"
        if isinstance(verdict, Held):
            return client._replace(doing="hold", refused=())
        if isinstance(verdict, Take):
            record = verdict.record
            taken, removed = (tuple(sorted(map(_number, ids))) for ids in (record.holders, verdict.removed))
            kept = seen if removed else None
            return client._replace(doing="take", at=record.index, holders=taken, removed=removed, seen=kept)
        if isinstance(verdict, Front):
            index = seen.changed if self.watches_prefix else seen.record
            return client._replace(doing="front", at=index, seen=seen if client.refused else None)
        ahead = verdict.predecessor
        other = _number(session_of(ahead))
        return client._replace(doing="follow", other=other, at=ahead.modify_index, refused=())

    def _ask(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        name = client.doing
        removed = client.removed if name == "take" else ()
        request = Request(
            client.session, name, client.place, client.at, client.holders, removed, client.sessions
        )
        applied = self._apply(world, request)
        if isinstance(applied, Broken):
            yield name, applied
            return
        done = applied is not None
        yield f"{name} {'done' if done else 'refused'}", self._answered(applied or world, who, done=done)
        if not world.faults:
            return
        spent = world._replace(faults=world.faults - 1)
        lost = client._replace(doing=self.unanswered[name], settled=False, removed=(), seen=None)
        yield f"{name} lost", _put(spent, who, lost)
        yield f"{name} late", _put(spent._replace(late=tuple(sorted((*world.late, request)))), who, lost)
        if applied is not None:
            yield f"{name} reply lost", _put(applied._replace(faults=world.faults - 1), who, lost)

    def _answered(self, world: World, who: int, *, done: bool) -> World | Broken:
        client = world.clients[who]
        name = client.doing
        if name == "join":
            if not done:
                return _put(world, who, client._replace(doing="drop", attempts=client.attempts + 1))
            own = _contender(world, client.session)
            return self._judged(_put(world, who, client._replace(born=own.created if own else 0)), who)
        if name == "take":
            return _taken(world, who) if done else self._refused(world, who)
        if name == "leave":
            without = not set(client.sessions) & set(world.holders)
            again = self.uses_again == "always" or (without and client.settled)
            return _put(world, who, _fresh(client) if again else client._replace(doing="drop"))
        second = {"destroy": "drop second"} if client.wants > 1 else {}
        goes_on = {"drop": "destroy", "drop second": "destroy second", **second}.get(name)
        if goes_on is not None:
            return _put(world, who, client._replace(doing=goes_on))
        return _put(world, who, _fresh(client)._replace(session=client.session + 1, settled=True))

    def _refused(self, world: World, who: int) -> World:
        """Return what becomes of a client whose take was refused."""
        client, delayed = world.clients[who], _delayed(world, world.clients[who].removed)
        kept, client = client.seen, client._replace(removed=(), seen=None)
        if self.gives_up_without_second and world.ended.intersection(client.sessions[1:]):
            return _put(world, who, client._replace(doing="drop", attempts=client.attempts + 1, refused=()))
        if not delayed or "remove the dead" not in self.requests["take"]:
            return _put(world, who, client._replace(doing="list"))
        if set(client.sessions) & world.delays:  # its own delay is named as well: its session has ended
            return _put(world, who, client._replace(doing="drop", attempts=client.attempts + 1, refused=()))
        refused = tuple(sorted({*client.refused, *delayed}))
        return self._judged(_put(world, who, client._replace(refused=refused)), who, kept)

    def _apply(self, world: World, request: Request) -> World | Broken | None:
        """Return the state after a request; None when it was refused."""
        after: World | None = world._replace(now=world.now + 1)
        for op in self.requests[request.name]:
            if after is None:
                return None
            after = _OPS[op](after, request)
        if after is not None and request.name == "take" and _passed_over(world, request):
            return Broken("order")
        return after


def _taken(world: World, who: int) -> World | Broken:
    """Return what becomes of a client that was told that its take is done."""
    client = world.clients[who]
    after = _put(world, who, client._replace(doing="hold", removed=(), refused=(), seen=None))
    if not set(client.sessions) <= set(after.holders):
        return Broken("all or none")
    return Broken("limit") if _holding(after) > world.limit else after


def _passed_over(world: World, take: Request) -> bool:
    """Return whether as many wait who were there before as there are slots besides these holders'."""
    own = _contender(world, take.session)
    before = sum(
        one.waits
        for other, one in world.contenders
        if other not in take.holders and (own is None or one.created < own.created)
    )
    return before > world.limit - len(take.holders)


# -- the server


def _lock(world: World, request: Request) -> World | None:
    if request.session in world.ended:
        return None
    own = _contender(world, request.session)
    wants = max(1, len(request.sessions))
    made = Contender(world.now, world.now, wants) if own is None else own._replace(modified=world.now)
    return _changed(_contends(world, request.session, made))


def _mark(world: World, request: Request) -> World | None:
    if world.ended.intersection(request.sessions):
        return None
    for session in request.sessions:
        own = _contender(world, session)
        created = world.now if own is None else own.created
        world = _contends(world, session, Contender(created, world.now, waits=0))
    return _changed(world)


def _delayed(world: World, removed: tuple[int, ...]) -> tuple[int, ...]:
    """Return whom a take can't remove: a lock-delay is in force, or the contender is there again."""
    there = {session for session, _ in world.contenders}
    return tuple(one for one in removed if one in world.delays or one in there)


def _prune(world: World, request: Request) -> World:
    """Leave the dead out of the record, and the session that asks for it."""
    there = {session for session, _ in world.contenders}
    kept = tuple(one for one in world.holders if one in there and one not in request.sessions)
    return world if kept == world.holders else _changed(world._replace(holders=kept, record=world.now))


def _check(world: World, request: Request) -> World | None:
    own = _contender(world, request.session)
    return world if own is not None and own.modified == request.place else None


def _set_record(world: World, request: Request) -> World:
    return _changed(world._replace(holders=request.holders, record=world.now))


_OPS: Final[Mapping[str, Callable[[World, Request], World | None]]] = {
    "lock C": _lock,
    "mark C": _mark,
    "check-index C": _check,
    "cas R": lambda world, request: _set_record(world, request) if world.record == request.at else None,
    "set R": _set_record,
    "remove the dead": lambda world, request: None if _delayed(world, request.removed) else world,
    "prune R": _prune,
    "delete C": lambda world, request: _delete(world, request.sessions),
    "delete first C": lambda world, request: _delete(world, request.sessions[:1]),
    "delete second C": lambda world, request: _delete(world, request.sessions[1:]),
    "destroy": lambda world, request: _destroy(world, request.session),
    "destroy second": lambda world, request: _destroy(world, request.session + _SECOND),
}


def _delete(world: World, sessions: tuple[int, ...]) -> World:
    there = [one for one in sessions if _contender(world, one) is not None]
    for one in there:
        world = _without(world, one)
    return _changed(world) if there else world


def _destroy(world: World, session: int) -> World:
    gone = world._replace(ended=world.ended | {session}, now=world.now + 1)
    if session in world.ended or _contender(world, session) is None:
        return gone
    return _changed(_without(gone, session))._replace(delays=world.delays | {session})


def _contender(world: World, session: int) -> Contender | None:
    return next((one for other, one in world.contenders if other == session), None)


def _contends(world: World, session: int, made: Contender) -> World:
    rest = _without(world, session).contenders
    return world._replace(contenders=tuple(sorted((*rest, (session, made)))))


def _without(world: World, session: int) -> World:
    return world._replace(
        contenders=tuple(one for one in world.contenders if one[0] != session), now=world.now + 1
    )


def _changed(world: World) -> World:
    return world._replace(changed=world.now)


# -- states


def _holding(world: World) -> int:
    """Return how many slots are believed in, but by those whom an operator has deposed."""
    return sum(client.wants for client in world.clients if client.doing == "hold" and not client.deposed)


def _fresh(client: Client) -> Client:
    return Client("idle", client.attempts, client.session, settled=client.settled, wants=client.wants)


def _put(world: World, who: int, client: Client) -> World:
    return world._replace(clients=(*world.clients[:who], client, *world.clients[who + 1 :]))


def _renumbered(world: World) -> World:
    """Return the state with its indexes as small as they can be, in the same order."""
    used = {0, world.record, world.changed}
    for _, one in world.contenders:
        used.update(one[:2])
    for client in world.clients:
        used.update((client.at, client.place, client.born))
        if client.seen is not None:
            used.update((client.seen.record, client.seen.changed))
            for _, one in client.seen.contenders:
                used.update(one[:2])
    for late in world.late:
        used.update((late.place, late.at))
    rank = {index: place for place, index in enumerate(sorted(used))}
    return world._replace(
        record=rank[world.record],
        changed=rank[world.changed],
        contenders=_ranked(world.contenders, rank),
        clients=tuple(
            one._replace(
                at=rank[one.at],
                place=rank[one.place],
                born=rank[one.born],
                seen=one.seen
                and one.seen._replace(
                    record=rank[one.seen.record],
                    changed=rank[one.seen.changed],
                    contenders=_ranked(one.seen.contenders, rank),
                ),
            )
            for one in world.clients
        ),
        late=tuple(one._replace(place=rank[one.place], at=rank[one.at]) for one in world.late),
        now=len(rank) - 1,
    )


def _ranked(
    contenders: tuple[tuple[int, Contender], ...], rank: Mapping[int, int]
) -> tuple[tuple[int, Contender], ...]:
    return tuple(
        (session, Contender(rank[one.created], rank[one.modified], one.waits)) for session, one in contenders
    )


def _id(session: int) -> str:
    return f"{session:08x}-0000-0000-0000-000000000000"


def _owner(session: int) -> int:
    """Return whose session it is."""
    return session % _SECOND // _ATTEMPTS


def _number(session: str) -> int:
    return int(session[:8], 16)


def _pairs(world: Seen) -> list[KVPair]:
    """Return what a listing of the prefix gives."""
    found = [
        KVPair(
            slots.contender_key(PREFIX, _id(session)),
            slots.waiting(b"", permits=one.waits) if one.waits else slots.holding(b""),
            flags=SEMAPHORE_FLAGS,
            session=_id(session),
            create_index=one.created,
            modify_index=one.modified,
        )
        for session, one in world.contenders
    ]
    if world.record:
        record = slots.Record(world.limit, tuple(map(_id, world.holders)))
        key = slots.record_key(PREFIX)
        found.append(KVPair(key, record.encode(), SEMAPHORE_FLAGS, modify_index=world.record))
    return found
