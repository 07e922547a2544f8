"""Connections under an agent's limit: the clients' own pool and exchange, over simulated sockets.

Rules
- A client's pool, its exchange, its reader of replies and its knowledge of the limit are those that ship.
  Only the socket below them and the agent's door are simulated. Each process has one engine, as an event loop
  has.
- All processes of a run share one address. The agent takes a number of connections from it, and accepts one
  more only to end it at once: without a reply, by a reset or, as newer agents do, after a 429.
- A connection keeps its place until the agent knows that it was closed, and has answered the blocking query
  on it, whether or not anybody waits for the answer.
- A connection carries one request at a time. The fate of each is drawn as everywhere else.
- For a while strangers may take each place that is free, as other programs of the host do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, NoReturn, cast

from consul_coord.config import Settings
from consul_coord.errors import ConsulCoordError, TransportError
from consul_coord.http.transport.exchange import LOST, Engine
from consul_coord.http.transport.pool import READ_SIZE, Pool
from consul_coord.http.transport.pool import Link as PooledLink
from consul_coord.http.transport.wire import Outgoing
from consul_coord.recipes.watch.engine import CROWDED
from consul_coord.testing.simulation.network import Exchange

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.exchange import Attempt
    from consul_coord.io import Signal
    from consul_coord.server import wire
    from consul_coord.testing.simulation.dice import Dice
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.network import Link
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.program import Wakeup

_REFUSAL_TEXT = b"Your IP is issuing too many concurrent connections, please rate limit your calls\n"
_REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
    len(_REFUSAL_TEXT),
    _REFUSAL_TEXT,
)
_PLENTY = 1_000
_ADDRESS = "http://127.0.0.1:8500"


class Room:
    """The agent's places for connections from the address of all processes."""

    def __init__(self, most: int, rng: Dice) -> None:
        self.most = most
        self.places: dict[SimSocket, None] = {}
        """The connections that have one."""
        self._rng = rng
        self._strangers = 0
        self._greedy = False
        """Whether strangers take each place that becomes free."""

    def enter(self, sock: SimSocket) -> bool:
        """Give a connection a place, if there is one; return whether there was."""
        if len(self.places) + self._strangers >= self.most:
            return False
        self.places[sock] = None
        return True

    def has(self, who: str) -> bool:
        """Return whether a process has a connection."""
        return any(sock.who == who for sock in self.places)

    def refusal(self) -> tuple[bytes, bool]:
        """Draw what a connection without a place gets: some bytes and an end, which may be a reset."""
        return self._rng.choice(((b"", False), (b"", True), (_REFUSAL, False)))

    def leave(self, sock: SimSocket) -> None:
        """Take a place back."""
        if sock in self.places:
            del self.places[sock]
            self._strangers += self._greedy

    def crowd(self, *, greedy: bool) -> None:
        """Let strangers take all places that are left and, if they are greedy, those that become free."""
        self._strangers = max(0, self.most - len(self.places))
        self._greedy = greedy

    def thin_out(self) -> None:
        """Let the strangers go."""
        self._strangers, self._greedy = 0, False

    def widen(self) -> None:
        """Take more connections than there can be."""
        self.most = _PLENTY

    def break_all(self) -> None:
        """End all connections: the agent stops."""
        for sock in list(self.places):
            sock.end()
        self.places.clear()
        self.thin_out()


class SimSocket:
    """One connection of a process: the part of a socket that the clients' code uses."""

    def __init__(self, room: Room, link: Link) -> None:
        self.who = link.who
        self.used_at = link.network.scheduler.now
        """True time of its last request or reply."""
        self.query = False
        """Whether it carries a blocking query."""
        self.busy = False
        """Whether a reply is due."""
        self._room = room
        self._link = link
        self._keeps = True
        """Whether the last request is no reason to close it."""
        self._received = bytearray()
        self._refused = False
        """Whether the agent had no place for it."""
        self._ended = False
        self._reset = False
        self._closed = False
        self._gone = False
        """Whether the agent knows that it was closed."""
        self._queries = 0
        """Blocking queries on it that the agent has not answered."""
        self._wake: Callable[[Callable[[], object]], object] | None = None
        self._exchange: Exchange | None = None
        """The present one, or the last."""

    # -- opening and closing

    def connect(self, fire: Callable[[Callable[[], object]], object]) -> None:
        """Ask the agent for a connection; ``fire`` gets what becomes of it."""
        network = self._link.network
        self.busy = True
        if (rules := network.judge.room) is not None:
            rules.opens(self.who)

        def knock() -> None:
            if network.cluster.down:
                self._deliver(lambda: fire(_refuse))
            elif not self._link.cut:
                self._refused = not self._room.enter(self)
                self._deliver(lambda: self._connected(fire))
                if self._gone:
                    self._leave()

        network.scheduler.after(network.latency(), knock)

    def _connected(self, fire: Callable[[Callable[[], object]], object]) -> None:
        self.busy = False
        fire(_nothing)
        self.used_at = self._link.network.scheduler.now
        if self._refused:
            judge = self._link.network.judge
            judge.see("connection refused at the limit")
            judge.promises.trouble(self.who, lasts=CROWDED)
            data, self._reset = self._room.refusal()
            self._deliver(lambda: self._receive(data, ended=True))

    def close(self) -> None:
        """Close it; the agent hears of that a moment later."""
        rules = self._link.network.judge.room
        if rules is not None and self.carries_nothing and self._exchange is not None and not self._closed:
            rules.closes(self.who, idle=self._link.network.scheduler.now - self.used_at, keeps=self._keeps)
        self._give_up()
        self._closed = self._ended = True
        self._say_so()

    def shutdown(self) -> None:
        """End it, and wake whoever reads from it."""
        self._give_up()
        self.end()
        self._say_so()

    def _give_up(self) -> None:
        rules = self._link.network.judge.room
        if rules is not None and self.busy and self._exchange is not None and not self.query:
            rules.gave_up(self.who)

    def _say_so(self) -> None:
        if self._exchange is not None:
            self._link.parked.pop(self._exchange, None)
        network = self._link.network
        network.scheduler.after(network.latency(), self._be_gone)

    def _be_gone(self) -> None:
        self._gone = True
        self._leave()

    def _leave(self) -> None:
        if self._gone and not self._queries:
            self._room.leave(self)

    @property
    def is_closed(self) -> bool:
        """Whether its process has closed it."""
        return self._closed

    @property
    def asks(self) -> str:
        """The key, folder or session for which the agent has a blocking query on it; empty without one."""
        return self._exchange.about if self._queries and self._exchange is not None else ""

    @property
    def carries_nothing(self) -> bool:
        """Whether its process keeps it open, and no reply is due on it."""
        return not (self.busy or self._ended)

    # -- requests and replies

    def send(self, request: Request) -> None:
        """Send a request. One over a connection that the agent has ended, or will, arrives nowhere."""
        self.used_at = self._link.network.scheduler.now
        self.query, self._keeps = request.hold_open > 0, request.keep != 0
        self.busy = True
        if not (self._ended or self._refused):
            self._exchange = exchange = _Carried(self, self._link, request)
            self._queries += self.query and exchange.arrives
            exchange.begin()

    def answered(self) -> None:
        """Take note that the agent has answered a blocking query."""
        self._queries -= 1
        self._leave()

    def take(self, outcome: Callable[[], object]) -> None:
        """Take what becomes of a request."""
        try:
            response = cast("Response", outcome())
        except TransportError:
            self.end()
        else:
            self._receive(_in_bytes(response))

    def end(self) -> None:
        """Have it ended by the other side, or on the way."""
        self._receive(b"", ended=True)

    def _receive(self, data: bytes, *, ended: bool = False) -> None:
        if self._closed:
            return
        rules = self._link.network.judge.room
        if rules is not None and data and not self._refused:
            rules.answered(self.who)
        self._received += data
        self._ended = self._ended or ended
        self.used_at, self.busy = self._link.network.scheduler.now, False
        wake, self._wake = self._wake, None
        if wake is not None:
            wake(_nothing)

    def _deliver(self, what: Callable[[], object]) -> None:
        network = self._link.network
        network.scheduler.after(
            network.latency(), lambda: None if self._link.cut else what(), gate=self._link.gate
        )

    # -- as a socket

    def has_input(self, timeout: int = 0) -> bool:  # noqa: ARG002 - a poll's
        """Return whether there is something to read, an end included."""
        return bool(self._received) or self._ended

    def when_readable(self, fire: Callable[[Callable[[], object]], object]) -> None:
        """Call ``fire`` once there is something to read."""
        if self.has_input():
            fire(_nothing)
        else:
            self._wake = fire

    def settimeout(self, seconds: float) -> None:
        """Do nothing: it never waits."""

    def recv(self, size: int) -> bytes:
        """Return what has come, ``b""`` at the end. Raises ``BlockingIOError``, or as a reset does."""
        if self._received:
            data = bytes(self._received[:size])
            del self._received[:size]
            return data
        if self._reset:
            raise ConnectionResetError
        if not self._ended:
            raise BlockingIOError
        return b""


class _Carried(Exchange):
    """A request and its reply on one connection, which nobody else uses meanwhile."""

    __slots__ = ("_sock",)

    def __init__(self, sock: SimSocket, link: Link, request: Request) -> None:
        super().__init__(link, request, sock.take)
        self._sock = sock

    @property
    def arrives(self) -> bool:
        """Whether the agent gets to see it."""
        return self._course.arrives

    def _answer(self, reply: wire.Reply | None) -> None:
        if self._request.hold_open:
            self._sock.answered()
        super()._answer(reply)


class SimLink(PooledLink):
    """An open connection, as the pool keeps it."""

    __slots__ = ()

    def _look(self) -> Callable[[int], object]:
        return _simulated(self.sock).has_input

    def cut_off(self) -> None:
        """End the present exchange, and wake who waits for its reply."""
        self.is_cut = True
        _simulated(self.sock).shutdown()


class Stopped(BaseException):
    """The end of a wait that nobody wants any more; the error of an interrupt is its cause."""


class Call:
    """How one call waits while its request is under way."""

    def __init__(self, io: SimIO, until: Signal | None = None, deadline: float | None = None) -> None:
        """Describe it: ``until`` or ``deadline`` stop the call."""
        self._io = io
        self._until = until
        self._deadline = deadline

    async def wait(
        self, attempt: Attempt, begin: Callable[[Wakeup], object], *, seconds: float = math.inf
    ) -> None:
        """Wait for what ``begin`` starts, or for so many seconds.

        Raises what that brings, ``Stopped``, and ``TimeoutError`` at the end of its time for that.
        """
        io = self._io
        try:
            wakeup = io.suspend()
            io.end_by(wakeup, self._until, self._deadline, _stop)
            io.end_by(wakeup, None, attempt.connect_by, _time_up)
            io.end_by(wakeup, None, io.now() + seconds, _nothing)
            begin(wakeup)
            await wakeup
        except ConsulCoordError as error:
            # An interrupt's own. To the exchange it is a cancellation, as on an event loop.
            raise Stopped from error


class _Message(bytes):
    """A request as it goes over the wire, which still knows what it was made of."""

    request: Request


class _Outgoing(Outgoing):
    def encode(self, request: Request, now: float) -> bytes:
        message = _Message(super().encode(request, now))
        message.request = request
        return message


class SimEngine(Engine):
    """The engine of one process."""

    parks = True
    link: ClassVar[type[PooledLink]] = SimLink

    def __init__(self, process: Process, room: Room) -> None:
        settings = Settings.resolve(address=_ADDRESS, environ={})
        super().__init__(settings, pool=Pool(now=process.clock.now, random=process.rng.random))
        self._outgoing = _Outgoing(settings)
        self._room = room
        self._process_link = process.link
        self._calls: dict[Attempt, Call] = {}

    async def send(self, call: Call, request: Request, *, timeout: float) -> Response:
        """Return the whole reply. Raises as the clients' transports do, and what stops the call."""
        attempt = self._begin(request, timeout)
        self._calls[attempt] = call
        try:
            return await self._exchange(attempt)
        except LOST as error:
            raise self._failed(attempt, error) from error
        except Stopped as stopped:
            if stopped.__cause__ is not None:
                raise stopped.__cause__ from None
            raise
        finally:
            del self._calls[attempt]

    def sweep(self) -> float:
        """Close what lies idle too long; see ``Transport.sweep``."""
        return self._sweep()

    def close(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        self._close()

    def die(self) -> None:
        """Close everything, as the end of a process does."""
        for link in self.pool.open.all():
            link.close()

    async def _connect(self, attempt: Attempt) -> socket.socket:
        sock = SimSocket(self._room, self._process_link)
        try:
            await self._calls[attempt].wait(attempt, lambda wakeup: sock.connect(wakeup.fire))
        except BaseException:
            sock.close()
            raise
        return cast("socket.socket", sock)

    async def _write(self, sock: socket.socket, attempt: Attempt) -> bool:
        attempt.sent = True
        _simulated(sock).send(cast("_Message", attempt.data).request)
        return True

    async def _read(self, sock: socket.socket, attempt: Attempt) -> bytes:
        simulated = _simulated(sock)
        await self._calls[attempt].wait(attempt, lambda wakeup: simulated.when_readable(wakeup.fire))
        return simulated.recv(READ_SIZE)

    async def _pause(self, attempt: Attempt, seconds: float) -> None:
        await self._calls[attempt].wait(attempt, _nothing_begins, seconds=seconds)


def _simulated(sock: socket.socket) -> SimSocket:
    """Return a socket as what it is here."""
    return cast("SimSocket", sock)


def _in_bytes(response: Response) -> bytes:
    """Return a reply as it comes over the wire."""
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    headers["content-length"] = str(len(response.body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {response.status} x\r\n{lines}\r\n".encode("latin-1") + response.body


def _refuse() -> NoReturn:
    raise ConnectionRefusedError


def _stop() -> NoReturn:
    raise Stopped


def _time_up() -> NoReturn:
    raise TimeoutError


def _nothing_begins(wakeup: Wakeup) -> None:
    """Begin nothing: only time passes."""


def _nothing() -> None:
    return None
