"""Several clients and a reference server in one thread and virtual time: the test decides what happens when.

Rules
- Everything is in order: what can go on goes on first, then the oldest request on its way is served, then
  time passes. The same test is the same history each time.
- A trap catches requests: lost, their replies lost, or held back until the test delivers them, whether their
  client still waits or has hung up long ago, as a real agent does that goes on after a pause.
- Waiting for what does not come in time is an AssertionError, and so is a history that goes round in circles.
- A bug ends the test, also where the client itself would go on. So a mutation with a bug in it breaks no
  rule.
- A client that dies simply stops: nothing of it is cleaned up, and its session ends by its TTL.
"""

from __future__ import annotations

import enum
import json
import math
from collections import Counter
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from consul_coord.clock import VirtualClock
from consul_coord.errors import BrokenReply, ConsulCoordError, RequestTimeout
from consul_coord.events import Failed
from consul_coord.host import BaseHost, HostedIO
from consul_coord.http.messages import Response
from consul_coord.io import Signal
from consul_coord.models import LOCK_FLAGS, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import recipe
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.server import wire
from consul_coord.server.acl import AclConfig, Rule, Token
from consul_coord.server.config import ServerConfig
from consul_coord.server.service import Service
from consul_coord.server.state import ConsulState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator
    from contextlib import AbstractContextManager
    from typing import Self

    from consul_coord.events import Event
    from consul_coord.http.messages import Request
    from consul_coord.io import IO
    from consul_coord.models import ReleaseOutcome
    from consul_coord.recipes.hold.grant import Grant, Handle

T = TypeVar("T")

KEY: Final = "k"
TTL: Final = 15.0
SOON: Final = 0.5
"""Seconds within which whatever needs no time-out must have happened."""
OPERATOR: Final = "0be7a702-0000-0000-0000-000000000000"
"""The token of who may do everything."""
NO_QUEUE: Final = "0be7a702-0000-0000-0000-000000000001"
"""The token of who may lock the key, and not write below it."""
_ACL: Final = AclConfig(
    tokens={
        OPERATOR: Token(management=True),
        NO_QUEUE: Token((Rule("session", "", "write", prefix=True), Rule("key", KEY, "write"))),
    }
)
_MOST_TURNS: Final = 2_000
"""What can happen at one instant, at most: beyond, it goes round in circles."""


class Killed(BaseException):
    """Ends the programs of a client that dies, and of all clients at the end of the test."""


class _Park:
    """Where a program waits: until something is so, or a deadline."""

    def __init__(self, ready: Callable[[], bool], deadline: float) -> None:
        self.ready = ready
        self.deadline = deadline

    def __await__(self) -> Generator[Self, None, None]:
        yield self


class Program(Generic[T]):
    """A program that runs on the stage: a task, and what came of it."""

    def __init__(self, work: Coroutine[Any, Any, T], name: str) -> None:
        self.name = name
        self.done = Signal()
        self.error: BaseException | None = None
        self._work = work
        self._value: list[T] = []
        self._park = _Park(lambda: True, math.inf)

    @property
    def value(self) -> T:
        """What it returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self._value[0]

    @property
    def wakes_at(self) -> float:
        return self._park.deadline

    def can_go_on(self, now: float) -> bool:
        return self._park.ready() or now >= self._park.deadline

    def go_on(self) -> None:
        try:
            self._park = self._work.send(None)
        except StopIteration as end:
            self._value.append(end.value)
            self.done.set()
        except ConsulCoordError as error:
            self.error = error
            self.done.set()

    def cancel(self) -> None:
        """End it as a death does: its own clean-up does not get to do anything either."""
        while not self.done.is_set():
            try:
                self._work.throw(Killed())
            except (Killed, StopIteration):
                self.done.set()


class Fate(enum.Enum):
    """What becomes of a request that a trap has caught."""

    LOST = enum.auto()
    """The client is told that the connection ended, and the server never sees it."""
    REPLY_LOST = enum.auto()
    """It is served, and the client is told that the connection ended."""
    LATE = enum.auto()
    """The client is told that the connection ended; it is served when the test delivers it."""
    HELD = enum.auto()
    """The client waits; it is served when the test delivers it."""


@dataclass(eq=False)
class Parcel:
    """A request on its way, and its reply."""

    player: Player
    request: Request
    answer: Response | Exception | None = None
    abandoned: bool = False

    @property
    def ops(self) -> tuple[tuple[str, str], ...]:
        """Verb and key of each operation of a transaction."""
        if self.request.path != "/v1/txn":
            return ()
        return tuple(
            (each["KV"]["Verb"], each["KV"]["Key"]) for each in json.loads(self.request.body or b"[]")
        )

    @property
    def kind(self) -> str:
        """What it is to the lock: barge, join, take, unlock, look, watch, remove, read; or its path.

        A "glance" is a look that does not list the queue.
        """
        verbs = dict.fromkeys(verb for verb, _ in self.ops)
        locked = {key for verb, key in self.ops if verb == "lock"}
        if KEY in locked:
            return "take" if "delete" in verbs else "barge"
        if locked:
            return "join"
        if verbs:
            reads = "look" if "get-tree" in verbs else "glance"
            return "unlock" if "unlock" in verbs else "adopt" if "delete" in verbs else reads
        if not self.request.path.startswith("/v1/kv/"):
            return self.request.path
        if self.request.method == "DELETE":
            return "remove"
        return "watch" if any(name == "index" for name, _ in self.request.params) else "read"

    @property
    def key(self) -> str:
        """The key that a watch, a read or a removal is about."""
        return self.request.path.removeprefix("/v1/kv/")


@dataclass(eq=False)
class Trap:
    """Catches the next requests of some kinds by one client."""

    player: Player
    fate: Fate
    kinds: tuple[str, ...]
    times: float
    caught: list[Parcel] = field(default_factory=list)

    def catches(self, parcel: Parcel) -> bool:
        return len(self.caught) < self.times and parcel.player is self.player and parcel.kind in self.kinds

    @property
    def sprung(self) -> bool:
        return bool(self.caught)


class Stage:
    """See the module."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        ids = iter(range(1, 10_000))
        state = ConsulState(
            now=self.clock.now(),
            new_id=lambda: f"00000000-0000-0000-0000-{next(ids):012d}",
            node="node1",
            datacenter="dc1",
            config=ServerConfig(acl=_ACL),
        )
        self.service = Service(state, random=lambda: 0.0)
        self.programs: list[Program[Any]] = []
        self.players: list[Player] = []
        self.served: list[Parcel] = []
        """Every request that reached the server, in order."""
        self._names: dict[str, str] = {}
        self._under_way: list[Parcel] = []
        self._traps: list[Trap] = []
        self._waiting: dict[int, Parcel] = {}

    # -- what a test does

    def player(self, name: str, **settings: Any) -> Player:
        """Add a client."""
        self.players.append(Player(self, name, **settings))
        return self.players[-1]

    def trap(self, player: Player, fate: Fate, *kinds: str, times: float = 1) -> Trap:
        """Catch the next requests of some kinds by one client."""
        trap = Trap(player, fate, kinds, times)
        self._traps.append(trap)
        return trap

    def until(self, condition: Callable[[], object], *, within: float = SOON) -> None:
        """Let things happen until something is so."""
        self._play(condition, self.clock.now() + within)
        assert condition(), f"it was not so within {within} s"

    def rest(self, seconds: float = SOON) -> None:
        """Let things happen for a while."""
        self._play(lambda: False, self.clock.now() + seconds)

    def deliver(self, trap: Trap) -> None:
        """Let the server have what a trap has held back, now; nothing else happens meanwhile."""
        for parcel in trap.caught:
            self._serve(parcel)

    def ask(self, method: str, target: str, body: object = None, *, token: str = "") -> Any:
        """Do something as an operator, at once; returns the JSON, or None for a 404."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        headers = {"X-Consul-Token": token or OPERATOR}
        reply = self.service.handle(wire.Request.make(method, target, data, headers), self.clock.now())
        self._hand_out()
        assert isinstance(reply, wire.Reply)
        assert reply.status in {200, 404}, reply
        return json.loads(reply.body) if reply.status == 200 else None

    def close(self) -> None:
        """End all programs."""
        for player in self.players:
            player.die()

    # -- what a test sees

    def entry(self, key: str = KEY) -> dict[str, Any] | None:
        found = self.ask("GET", f"/v1/kv/{key}")
        return None if found is None else found[0]

    @property
    def holder(self) -> str | None:
        """Who holds the key: a client's name, or a session that is nobody's."""
        return self._name_of((self.entry() or {}).get("Session"))

    @property
    def queue(self) -> list[str | None]:
        """Who is in the queue, in order; None for the remains of who is gone."""
        found = self.ask("GET", f"/v1/kv/{KEY}/.wait/?recurse") or []
        return [
            self._name_of(each.get("Session")) for each in sorted(found, key=lambda each: each["CreateIndex"])
        ]

    def _name_of(self, session: str | None) -> str | None:
        if session is not None and session not in self._names:
            (info,) = self.ask("GET", f"/v1/session/info/{session}")
            self._names[session] = info["Name"].partition(" #")[0] or session
        return None if session is None else self._names[session]

    def kinds(self, player: Player, *, since: int = 0) -> list[str]:
        """What a client has sent to the server, but for renewals and the like."""
        sent = [each.kind for each in self.served[since:] if each.player is player]
        return [kind for kind in sent if not kind.startswith("/v1/")]

    # -- what happens

    def send(self, parcel: Parcel) -> None:
        self._under_way.append(parcel)

    def _play(self, condition: Callable[[], object], end: float) -> None:
        turns: Counter[float] = Counter()
        while not condition():
            now = self.clock.now()
            turns[now] += 1
            assert turns[now] < _MOST_TURNS, "it goes round in circles"
            if self._go_on(now):
                continue
            if now >= end:
                return
            self.clock.advance(max(0.0, min(end, self._next_event()) - now))
            self.service.run_timers(self.clock.now())
            self._hand_out()

    def _go_on(self, now: float) -> bool:
        for program in self.programs:
            if program.can_go_on(now):
                program.go_on()
                if program.done.is_set():
                    self.programs.remove(program)
                return True
        if self._under_way:
            self._carry(self._under_way.pop(0))
            return True
        return False

    def _next_event(self) -> float:
        times = [program.wakes_at for program in self.programs]
        timer = self.service.next_timer()
        return min(times if timer is None else [*times, timer], default=math.inf)

    def _carry(self, parcel: Parcel) -> None:
        trap = next((each for each in self._traps if each.catches(parcel)), None)
        if trap is None:
            self._serve(parcel)
            return
        trap.caught.append(parcel)
        if trap.fate is Fate.REPLY_LOST:
            self._serve(parcel)
        if trap.fate is not Fate.HELD:
            parcel.answer = BrokenReply(
                "the connection ended",
                method=parcel.request.method,
                path=parcel.request.path,
                outcome_unknown=True,
            )

    def _serve(self, parcel: Parcel) -> None:
        request = parcel.request
        target = request.path + ("?" + urlencode(request.params) if request.params else "")
        headers = {"X-Consul-Token": parcel.player.token}
        self.served.append(parcel)
        asked = wire.Request.make(request.method, target, request.body or b"", headers)
        reply = self.service.handle(asked, self.clock.now())
        if isinstance(reply, wire.Blocked):
            self._waiting[reply.ticket] = parcel
        else:
            _answer(parcel, reply)
        self._hand_out()

    def _hand_out(self) -> None:
        for ticket, reply in self.service.ready():
            _answer(self._waiting.pop(ticket), reply)
        for ticket in [ticket for ticket, parcel in self._waiting.items() if parcel.abandoned]:
            del self._waiting[ticket]
            self.service.cancel(ticket)


def _answer(parcel: Parcel, reply: wire.Reply) -> None:
    if parcel.answer is None and not parcel.abandoned:
        headers = {name.lower(): value for name, value in reply.headers}
        body = _without_queue(parcel, reply.body) if parcel.player.blind else reply.body
        parcel.answer = Response(reply.status, headers, body)


def _without_queue(parcel: Parcel, body: bytes) -> bytes:
    """Leave out what reading the queue gave, as for a token that may write it and not read it."""
    if parcel.kind not in {"join", "look"} or not (found := json.loads(body)["Results"]):
        return body
    own = found[:1] if parcel.kind == "join" else []
    rest = [each for each in found[len(own) :] if not each["KV"]["Key"].startswith(f"{KEY}/.wait/")]
    return json.dumps({"Results": own + rest, "Errors": None}).encode()


class PlayerHost(BaseHost):
    """One client's side of what can be done without waiting."""

    def __init__(self, player: Player) -> None:
        super().__init__(clock=player.stage.clock, observer=None)
        self.player = player

    def random(self) -> float:
        return self.player.chance

    def has_ended(self, owner: object) -> bool:
        return False  # owners are names here

    def emit(self, event: Event, *, cause: BaseException | None = None) -> None:
        super().emit(event, cause=cause)
        if isinstance(event, Failed):
            raise TypeError(event)
        self.player.events.append(event)

    def mutex(self) -> AbstractContextManager[object]:
        return nullcontext()

    def spawn(self, program: Callable[[IO], Awaitable[object]], *, name: str) -> Program[object]:
        async def work() -> object:
            return await program(PlayerIO(self, owner=name))

        return self.player.start(work(), name)

    def call_back(self, function: Callable[[], object]) -> None:
        function()


class PlayerIO(HostedIO):
    """The world as one client's program sees it."""

    host: PlayerHost

    def __init__(self, host: PlayerHost, *, owner: object) -> None:
        super().__init__(host)
        self._owner = owner

    def owner(self) -> object:
        return self._owner

    async def send(self, request: Request, *, deadline: float) -> Response:
        parcel = self._post(request)
        await _Park(lambda: parcel.answer is not None, deadline)
        if parcel.answer is None:
            parcel.abandoned = True
            raise RequestTimeout("no reply", method=request.method, path=request.path, outcome_unknown=True)
        return _read(parcel)

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        parcel = self._post(request)
        over = until or Signal()
        await _Park(
            lambda: parcel.answer is not None or over.is_set(), math.inf if deadline is None else deadline
        )
        if parcel.answer is None or over.is_set():
            parcel.abandoned = True
            return None
        return _read(parcel)

    async def wait(self, signal: Signal, *, deadline: float | None = None) -> bool:
        await _Park(signal.is_set, math.inf if deadline is None else deadline)
        return signal.is_set()

    async def sleep(self, seconds: float) -> None:
        await _Park(lambda: False, self.now() + seconds)

    def shield(self, seconds: float) -> AbstractAsyncContextManager[float]:
        return nullcontext(self.now() + seconds)

    def _post(self, request: Request) -> Parcel:
        parcel = Parcel(self.host.player, request)
        self.host.player.stage.send(parcel)
        return parcel


def _read(parcel: Parcel) -> Response:
    answer = parcel.answer
    if isinstance(answer, Exception):
        raise answer
    assert answer is not None
    return answer


class Player:
    """A client with its session and locks, without transport and threads."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        *,
        token: str = OPERATOR,
        lock_delay: float = 0.0,
        chance: float = 0.0,
        timeout: float = 2.0,
        blind: bool = False,
    ) -> None:
        self.stage = stage
        self.name = name
        self.token = token
        self.chance = chance
        self.blind = blind
        """Whether it may write the queue and not read it."""
        self.events: list[Event] = []
        self.host = PlayerHost(self)
        self.core = ClientState(
            self.host,
            spec=SessionSpec(ttl=TTL, lock_delay=lock_delay, name=name, allow_unbounded=not lock_delay),
            timeout=timeout,
        )
        self.alive = True
        self._handles: list[Handle] = []
        """They keep the holds from being given back."""
        self._programs: list[Program[Any]] = []
        self._locks: dict[tuple[bool, bytes], LockObject] = {}

    @property
    def session(self) -> str:
        """The session that its locks are taken with."""
        current = self.core.sessions.shared.current
        assert current is not None
        return current.id

    @property
    def contender(self) -> str:
        return f"{KEY}/.wait/{self.session}"

    def start(self, work: Coroutine[Any, Any, T], name: str) -> Program[T]:
        program = Program(work, f"{self.name}: {name}")
        if self.alive:
            self._programs.append(program)
            self.stage.programs.append(program)
        else:
            work.close()
        return program

    def acquire(
        self, *, timeout: float | None = None, fair: bool = False, value: bytes = b"", owner: object = "main"
    ) -> Program[Grant]:
        """Begin to take the lock."""
        lock = self._locks.setdefault((fair, value), _lock(fair=fair, value=value))
        io = PlayerIO(self.host, owner=owner)

        async def work() -> Grant:
            handle = await recipe.acquire(io, self.core, lock, timeout=timeout)
            self._handles.append(handle)
            return handle.grant

        return self.start(work(), "acquire")

    def release(self, hold: Grant) -> Program[ReleaseOutcome]:
        """Begin to give a hold up."""
        return self.start(release(PlayerIO(self.host, owner="main"), self.core.holds, hold), "release")

    def get(self, **options: Any) -> Grant:
        """Take the lock, soon."""
        call = self.acquire(**options)
        self.stage.until(call.done.is_set)
        return call.value

    def queue(self, **options: Any) -> Program[Grant]:
        """Begin to take the lock, and get as far as waiting in the queue."""
        call = self.acquire(**options)
        self.stage.until(lambda: self.name in self.stage.queue)
        self.stage.rest(0.0)
        return call

    def give_back(self, hold: Grant) -> ReleaseOutcome:
        """Give a hold up, soon."""
        call = self.release(hold)
        self.stage.until(call.done.is_set)
        return call.value

    def die(self) -> None:
        """Stop, as a crash does."""
        self.alive = False
        while self._programs:
            program = self._programs.pop()
            if program in self.stage.programs:
                self.stage.programs.remove(program)
            program.cancel()


def _lock(*, fair: bool, value: bytes) -> LockObject:
    return LockObject(
        LockPlan(
            keys=(KEY,),
            value=value,
            flags=LOCK_FLAGS,
            accept_flags=frozenset(),
            fair=fair,
            reentrant=False,
            session=None,
        )
    )
