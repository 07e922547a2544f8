"""The read-write lock as a model: clients that follow the project's own rules, and a tiny Consul.

The judgement of a reading is the recipes' own (`consul_coord.recipes.rwlock.queue`). The requests, and what
an answer or none leads to, are as in `consul_coord.recipes.rwlock.attempt` and ``kind``.

Rules
- As in the model of the semaphore: a request is answered, or its reply is lost, or it is lost, or it is late;
  no wait ends by itself, but for the pause before a dead contender is tried again.
- A session may be killed while its client believes. Its contender stays, dead, and a lock-delay closes its
  name; the client's lease ends before that.
- Whoever reads the queue has the dead removed that were not in, by their index.

Looked at: nobody believes beside a writer; and from everywhere an end can be reached in which nobody waits
and only the dead have left something.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from consul_coord.models import KVPair
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.recipes.rwlock.queue import Behind, Enter
from tests.models.explorer import Broken, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.rwlock.queue import Mode, Verdict

KEY: Final = "k"
_SESSIONS: Final = 8
"""Most sessions of one client."""
_AFTER_SILENCE: Final = {"join": "join", "remove": "look", "leave": "drop", "drop": "destroy"}


class Contender(NamedTuple):
    """A contender's key, and whether its session has it."""

    created: int
    modified: int
    alive: bool = True


class Client(NamedTuple):
    """One client: what it does next, and what it knows."""

    doing: str
    attempts: int
    session: int
    other: int = -1
    """The session whose contender is watched, or removed."""
    at: int = 0
    born: int = 0
    settled: bool = True


class Request(NamedTuple):
    """What a client sends."""

    session: int
    name: str
    other: int = -1


class World(NamedTuple):
    """Everything there is. Sessions are numbers: ``client * 8 + attempt``."""

    contenders: tuple[tuple[int, Contender], ...]
    ended: frozenset[int]
    delays: frozenset[int]
    clients: tuple[Client, ...]
    late: tuple[Request, ...]
    faults: int
    kills: int
    give_ups: int
    now: int


@dataclass(frozen=True)
class RwModel:
    """A read-write lock with a client for each mode."""

    modes: tuple[Mode, ...]
    attempts: int = 1
    faults: int = 0
    kills: int = 0
    give_ups: int = 0
    judge: Callable[[Look, str, Mode, int], Verdict] = lambda look, session, mode, born: rwqueue.judge(
        look, session, mode, born=born
    )
    inside: Callable[[Look], tuple[KVPair, ...]] = rwqueue.inside
    asks_delay: bool = True
    lease_first: bool = True
    pauses_end: bool = True
    vanishes: bool = False
    """Whether a contender vanishes with its session."""

    def first(self) -> World:
        clients = tuple(
            Client("idle", self.attempts, place * _SESSIONS) for place, _ in enumerate(self.modes)
        )
        nothing = frozenset[int]()
        return World((), nothing, nothing, clients, (), self.faults, self.kills, self.give_ups, 0)

    def is_good_end(self, world: World) -> bool:
        done = all(client.doing == "idle" and not client.attempts for client in world.clients)
        return done and not world.late and not any(one.alive for _, one in world.contenders)

    def steps(self, world: World) -> Iterator[Step[World]]:
        for who, client in enumerate(world.clients):
            for name, after in self._moves(world, who, client):
                yield Step(f"{who} {name}", _renumbered(after) if isinstance(after, World) else after)
            if world.kills and client.doing != "idle" and client.session not in world.ended:
                yield Step(
                    f"{who} is killed",
                    _renumbered(self._end(world._replace(kills=world.kills - 1), client.session)),
                )
        for session in sorted(world.delays):
            owner = world.clients[session // _SESSIONS]
            if not (self.lease_first and owner.doing == "hold" and owner.session == session):
                yield Step(f"{session} lock-delay is over", world._replace(delays=world.delays - {session}))
        for number, late in enumerate(world.late):
            rest = world._replace(late=world.late[:number] + world.late[number + 1 :])
            yield Step(f"{late.session} late {late.name} vanishes", rest)
            applied = self._apply(rest, late)
            if applied is not None:
                yield Step(f"{late.session} late {late.name} is applied", _renumbered(applied))

    def _moves(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        if client.doing == "idle":
            if client.attempts:
                yield "begins", _put(world, who, client._replace(doing="join", attempts=client.attempts - 1))
        elif client.doing == "look":
            yield "looks", self._judged(world, who)
        elif client.doing in {"follow", "pause"}:
            ahead = _find(world, client.other)
            if ahead is None or ahead.modified != client.at:
                yield "is woken", _put(world, who, client._replace(doing="look"))
            elif client.doing == "pause" and self.pauses_end:
                yield "ends its pause", _put(world, who, client._replace(doing="look"))
        elif client.doing == "hold":
            yield "gives back", _put(world, who, client._replace(doing="leave"))
            own = _find(world, client.session)
            if own is None or not own.alive:
                yield "is told of the loss", _put(world, who, client._replace(doing="destroy"))
        else:
            yield from self._ask(world, who, client)
        if world.give_ups and client.doing in {"join", "look", "follow", "pause", "remove"}:
            spent = world._replace(give_ups=world.give_ups - 1)
            yield "gives up", _put(spent, who, client._replace(doing="drop"))

    def _ask(self, world: World, who: int, client: Client) -> Iterator[tuple[str, World | Broken]]:
        name = client.doing
        request = Request(client.session, name, client.other)
        applied = self._apply(world, request)
        done = applied is not None
        after = self._answered(applied or world, who, done=done)
        yield f"{name} {'done' if done else 'refused'}", after
        if not world.faults:
            return
        spent = world._replace(faults=world.faults - 1)
        lost = client._replace(doing=_AFTER_SILENCE.get(name, name), settled=False)
        yield f"{name} lost", _put(spent, who, lost)
        yield f"{name} late", _put(spent._replace(late=tuple(sorted((*world.late, request)))), who, lost)
        if applied is not None:
            yield f"{name} reply lost", _put(applied._replace(faults=world.faults - 1), who, lost)

    def _answered(self, world: World, who: int, *, done: bool) -> World | Broken:
        client = world.clients[who]
        if client.doing == "join" and done:
            own = _find(world, client.session)
            return self._judged(_put(world, who, client._replace(born=own.created if own else 0)), who)
        if client.doing == "remove" and not done and client.session not in world.ended:
            return _put(world, who, client._replace(doing="pause"))
        if client.doing == "leave" and done and client.settled:
            return _put(world, who, Client("idle", client.attempts, client.session))
        if client.doing == "destroy":
            return _put(world, who, Client("idle", client.attempts, client.session + 1))
        again = client.doing in {"join", "remove"} and not done  # with another session
        following = {"join": "drop", "remove": "drop" if not done else "look", "drop": "destroy"}
        after = client._replace(doing=following.get(client.doing, "drop"), attempts=client.attempts + again)
        return _put(world, who, after)

    def _judged(self, world: World, who: int) -> World | Broken:
        client, mode = world.clients[who], self.modes[who]
        look = waitqueue.read(KEY, self._pairs(world))
        inside = self.inside(look)
        for dead in look.dead:
            if dead not in inside:
                world = _without(world, _number(dead))
        verdict = self.judge(look, _id(client.session), mode, client.born)
        if isinstance(verdict, Enter):
            after = _put(world, who, client._replace(doing="hold"))
            believers = [self.modes[place] for place, one in enumerate(after.clients) if one.doing == "hold"]
            return Broken("exclusion") if "write" in believers and len(believers) > 1 else after
        if not isinstance(verdict, Behind):
            return _put(world, who, client._replace(doing="drop", attempts=client.attempts + 1))
        blocker = verdict.blocker
        doing = "remove" if blocker.session is None else "follow"
        return _put(world, who, client._replace(doing=doing, other=_number(blocker), at=blocker.modify_index))

    # -- the server

    def _apply(self, world: World, request: Request) -> World | None:
        world = world._replace(now=world.now + 1)
        own = _find(world, request.session)
        if request.name == "destroy":
            return self._end(world, request.session)
        if request.name in {"leave", "drop"}:
            return _without(world, request.session) if own is not None else world
        if request.session in world.ended:
            return None
        if request.name == "remove":
            dead = _find(world, request.other)
            if self.asks_delay and (request.other in world.delays or (dead is not None and dead.alive)):
                return None
            return _without(world, request.other)
        made = Contender(world.now, world.now) if own is None else own._replace(modified=world.now)
        return _with(world, request.session, made)

    def _end(self, world: World, session: int) -> World:
        own = _find(world, session)
        ended = world._replace(ended=world.ended | {session}, now=world.now + 1)
        if own is None or not own.alive:
            return ended
        ended = ended._replace(delays=ended.delays | {session})
        if self.vanishes:
            return _without(ended, session)
        return _with(ended, session, own._replace(alive=False, modified=ended.now))

    def _pairs(self, world: World) -> list[KVPair]:
        return [
            KVPair(
                waitqueue.contender_key(KEY, _id(session)),
                rwqueue.marked(self.modes[session // _SESSIONS], b""),
                session=_id(session) if one.alive else None,
                create_index=one.created,
                modify_index=one.modified,
            )
            for session, one in world.contenders
        ]


def _find(world: World, session: int) -> Contender | None:
    return next((one for other, one in world.contenders if other == session), None)


def _with(world: World, session: int, made: Contender) -> World:
    rest = _without(world, session).contenders
    return world._replace(contenders=tuple(sorted((*rest, (session, made)))))


def _without(world: World, session: int) -> World:
    return world._replace(contenders=tuple(one for one in world.contenders if one[0] != session))


def _put(world: World, who: int, client: Client) -> World:
    return world._replace(clients=(*world.clients[:who], client, *world.clients[who + 1 :]))


def _renumbered(world: World) -> World:
    """Return the state with its indexes as small as they can be, in the same order."""
    used = {0, *(index for _, one in world.contenders for index in one[:2])}
    for client in world.clients:
        used.update((client.at, client.born))
    rank = {index: place for place, index in enumerate(sorted(used))}
    return world._replace(
        contenders=tuple(
            (session, Contender(rank[one.created], rank[one.modified], one.alive))
            for session, one in world.contenders
        ),
        clients=tuple(one._replace(at=rank[one.at], born=rank[one.born]) for one in world.clients),
        now=len(rank) - 1,
    )


def _id(session: int) -> str:
    return f"{session:08x}-0000-0000-0000-000000000000"


def _number(contender: KVPair) -> int:
    return int(waitqueue.session_of(contender)[:8], 16)
