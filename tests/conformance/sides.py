"""The two sides of the differential test, and what it takes for their replies to be the same.

Rules
- Each operation goes to the agent first; ids that it makes are then made by the reference as well, so ids are
  equal.
- Indexes differ in value and must agree in order: equal where equal, rising where rising (``Indexes``). That
  holds as long as nobody else writes to the agent: it must be one of its own.
- Blocking queries are in flight all the while: those that the reference answers after an operation must be
  answered by the agent alike. Those on absent things may be woken early by the agent, as Consul does.
- The reference's time stands still until it is told what passed at the agent.
"""

from __future__ import annotations

import bisect
import contextlib
import http.client
import json
import re
import socket
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from consul_coord.server import ServerConfig
from consul_coord.server.service import Service
from consul_coord.server.state import ConsulState
from consul_coord.server.wire import Blocked, Reply, Request

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT: Final = 20.0
WAIT: Final = "10m"  # longer than any run: no blocking query ends by itself
WOKEN_WITHIN: Final = 10.0
MOST_WATCHES: Final = 16
UNKNOWN: Final = "11111111-2222-3333-4444-555555555555"
Side = int
"""Which of a pair of indexes is meant."""
OURS: Final[Side] = 0
THEIRS: Final[Side] = 1
TAGS: Final = frozenset({"Tags", "ServiceTags"})
INDEX_FIELDS: Final = frozenset({"CreateIndex", "ModifyIndex"})
INDEX_IN_TEXT: Final = re.compile(r"(?<=current modify index )\d+")
# As the tests' agents are configured: a TTL that runs out while one waits.
CONFIG: Final = ServerConfig(session_ttl_min=0.2)


@dataclass
class Indexes:
    """Which index of the agent belongs to which of the reference; grows in order, or something is wrong."""

    pairs: list[tuple[int, int]] = field(default_factory=list)

    def match(self, ours: int, theirs: int) -> None:
        position = bisect.bisect_left(self.pairs, (ours, -1))
        at = self.pairs[position : position + 1]
        if at and at[0][0] == ours:
            assert at[0][1] == theirs, f"index {ours} was {at[0][1]} and is {theirs} now; pairs {self.pairs}"
            return
        before, after = self.pairs[:position][-1:], at
        assert not before or before[0][1] < theirs, f"{ours}:{theirs} is not above {before}"
        assert not after or theirs < after[0][1], f"{ours}:{theirs} is not below {after}"
        self.pairs.insert(position, (ours, theirs))

    def pick(self, number: int) -> tuple[int, int]:
        """Return one of the latest pairs, or (1, 1), an index that nothing has."""
        return self.pairs[-1 - number] if number < len(self.pairs) else (1, 1)


@dataclass(frozen=True)
class Answer:
    """What counts of a reply."""

    status: int
    body: Any
    index: int | None

    @property
    def shows_nothing(self) -> bool:
        """Whether it is a 404 or an empty list."""
        return not self.body


@dataclass
class Watch:
    """A blocking query in flight on both sides."""

    ticket: int
    theirs: Future[Answer]
    path: str
    before: Answer  # what both showed, with the reference's indexes
    shown: Answer  # the same, with the agent's

    @property
    def absent(self) -> bool:
        """Whether it may end early: an absent thing hangs on its surroundings in Consul's trees."""
        return self.before.shows_nothing

    @property
    def by_table(self) -> bool:
        """Whether its index is that of whole tables, and so moves without news for it."""
        return not self.path.startswith("/v1/kv/")

    def was_early(self, ours: Answer, theirs: Answer) -> bool:
        """Whether the agent answered before the news that woke the reference, so that both can't be compared.

        It does that for absent things, and where it got to the watch after an index had moved without news.
        """
        if self.absent and theirs.shows_nothing:
            return True
        return self.by_table and theirs.body == self.shown.body and ours.body != self.before.body


class Agent:
    """The real side: one connection for calls, one each for blocking queries."""

    def __init__(self, address: str) -> None:
        self._place = address.removeprefix("http://")
        self._connection = http.client.HTTPConnection(self._place, timeout=TIMEOUT)
        self._pool = ThreadPoolExecutor(max_workers=4 * MOST_WATCHES)
        self._watching: set[socket.socket] = set()

    def ask(self, method: str, target: str, body: bytes = b"") -> Answer:
        self._connection.request(method, target, body)
        return self._read(self._connection)

    def watch(self, target: str) -> Future[Answer]:
        """Send a blocking query at once, and let a thread wait for its reply."""
        with contextlib.ExitStack() as unless_it_waits:
            connection = http.client.HTTPConnection(self._place)
            unless_it_waits.callback(connection.close)
            connection.request("GET", target)
            self._watching.add(connection.sock)
            waiting = self._pool.submit(self._reply_to, connection, connection.sock)
            unless_it_waits.pop_all()
        return waiting

    def close(self) -> None:
        """End everything, blocking queries in flight included."""
        self._connection.close()
        for sock in list(self._watching):
            with contextlib.suppress(OSError):  # it may end by itself at this moment
                sock.shutdown(socket.SHUT_RDWR)
        self._pool.shutdown()

    def _reply_to(self, connection: http.client.HTTPConnection, sock: socket.socket) -> Answer:
        try:
            return self._read(connection)
        finally:
            self._watching.discard(sock)
            connection.close()

    @staticmethod
    def _read(connection: http.client.HTTPConnection) -> Answer:
        with connection.getresponse() as reply:
            return read(reply.status, reply.read(), reply.headers["X-Consul-Index"])


class Reference:
    """Our side: the pure service, at a time that is told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.next_id = UNKNOWN
        state = ConsulState(now=self.now, new_id=lambda: self.next_id, config=CONFIG)
        self._service = Service(state, random=lambda: 0.0)

    def ask(self, method: str, target: str, body: bytes = b"") -> Answer:
        outcome = self._service.handle(Request.make(method, target, body), self.now)
        assert isinstance(outcome, Reply), f"{target} blocks"
        return answer(outcome)

    def watch(self, target: str) -> Blocked | None:
        """Send a blocking query; None when it is answered at once."""
        outcome = self._service.handle(Request.make("GET", target), self.now)
        return outcome if isinstance(outcome, Blocked) else None

    def cancel(self, ticket: int) -> None:
        self._service.cancel(ticket)

    def ready(self) -> dict[int, Answer]:
        """Return the blocking queries answered since the last call."""
        return {ticket: answer(reply) for ticket, reply in self._service.ready()}

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._service.run_timers(self.now)


class Sides:
    """Both sides, asked the same."""

    def __init__(self, address: str) -> None:
        self.agent = Agent(address)
        self.reference = Reference()
        self.indexes = Indexes()
        self.watches: list[Watch] = []
        self.said: list[str] = []
        """All that both were asked, for whoever looks for the cause of a difference."""
        self.woken = 0

    def both(self, method: str, path: str, body: object = b"") -> Answer:
        """Ask both, and return the agent's reply, which the reference's is found to be equal to."""
        return self.each(lambda _: (method, path, body))

    def each(self, call: Callable[[Side], tuple[str, str, object]]) -> Answer:
        """Ask both what is to be asked of each, which differs by the indexes in it."""
        method, path, body = call(THEIRS)
        return self.follow(self.agent.ask(method, path, encoded(body)), *call(OURS))

    def follow(self, theirs: Answer, method: str, path: str, body: object = b"") -> Answer:
        """Ask the reference what the agent has answered."""
        made = theirs.body.get("ID") if isinstance(theirs.body, dict) else None
        self.reference.next_id = made or str(uuid.uuid4())
        sent = encoded(body)
        self.said.append(f"{method} {path} {sent!r}: {theirs.status}")
        self._same(self.said[-1], self.reference.ask(method, path, sent), theirs)
        self.collect()
        return theirs

    def watch(self, path: str) -> None:
        """Start a blocking query with the index just read, so that it waits on both sides."""
        if len(self.watches) >= MOST_WATCHES:
            return
        theirs = self.both("GET", path)
        ours = self.reference.ask("GET", path)
        assert ours.index is not None
        waiting = self.reference.watch(f"{path}index={ours.index}&wait={WAIT}")
        if waiting is None:
            return
        future = self.agent.watch(f"{path}index={theirs.index}&wait={WAIT}")
        self.watches.append(Watch(waiting.ticket, future, path, ours, theirs))

    def pass_time(self, seconds: float) -> None:
        """Let time pass at the reference, as it has at the agent."""
        self.said.append(f"{seconds} s pass")
        self.reference.pass_time(seconds)
        self.collect()

    def collect(self) -> None:
        """Compare the blocking queries that the reference has just answered.

        Forget those that ended early.
        """
        ready = self.reference.ready()
        for watch in list(self.watches):
            if watch.ticket in ready:
                self.watches.remove(watch)
                ours, theirs = ready[watch.ticket], watch.theirs.result(WOKEN_WITHIN)
                if not watch.was_early(ours, theirs):
                    self._same(f"watch {watch.path}", ours, theirs)
                    self.woken += 1
            elif watch.theirs.done():
                self.watches.remove(watch)
                self.reference.cancel(watch.ticket)
                theirs = watch.theirs.result()
                may = watch.absent or self._came_late(watch, theirs)
                assert may, f"the agent woke {watch.path}: {theirs}"

    def close(self) -> None:
        self.agent.close()

    def _came_late(self, watch: Watch, theirs: Answer) -> bool:
        """Tell whether the agent may have got to a watch only after its index had moved, without news for it.

        With news for it, the reference should have answered as well: unless what it watches has gone since,
        under an index that is lower than the watch's, so that both wait on for something absent.
        """
        now = self.reference.ask("GET", watch.path)
        assert now.index is not None
        if watch.by_table and now.shows_nothing and theirs.shows_nothing:
            return True
        assert watch.before.index is not None
        return watch.by_table and now.index > watch.before.index and now.body == watch.before.body

    def _same(self, what: str, ours: Answer, theirs: Answer) -> None:
        told = f"{what}: {ours} and not {theirs}"
        assert ours.status == theirs.status, told
        assert (ours.index is None) == (theirs.index is None), told
        assert self._level(ours.body, theirs.body) == theirs.body, told
        if ours.index is not None and theirs.index is not None:
            self.indexes.match(ours.index, theirs.index)

    def _level(self, ours: Any, theirs: Any) -> Any:
        """Return our body with its indexes, once they are found to match, replaced by theirs."""
        if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
            return [self._level(a, b) for a, b in zip(ours, theirs, strict=True)]
        if isinstance(ours, dict) and isinstance(theirs, dict) and list(ours) == list(theirs):
            return {name: self._level_field(name, ours[name], theirs[name]) for name in ours}
        if isinstance(ours, str) and isinstance(theirs, str):
            for a, b in zip(INDEX_IN_TEXT.findall(ours), INDEX_IN_TEXT.findall(theirs), strict=False):
                self.indexes.match(int(a), int(b))
            # The number that was asked for differs as well; both were made from one pair.
            return theirs if without_indexes(ours) == without_indexes(theirs) else ours
        return ours

    def _level_field(self, name: str, ours: Any, theirs: Any) -> Any:
        if name in INDEX_FIELDS:
            self.indexes.match(ours, theirs)
            return theirs
        if name in TAGS and not ours and not theirs:  # null until somebody reads it elsewhere, then []
            return theirs
        return self._level(ours, theirs)


def encoded(body: object) -> bytes:
    """Return a body as it is sent: bytes as they are, all else as JSON."""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def without_indexes(text: str) -> str:
    return re.sub(r"(?<=current modify index )\d+ != \d+", "", text)


def read(status: int, body: bytes, index: str | None) -> Answer:
    try:
        value = json.loads(body)
    except ValueError:
        value = body.decode()
    return Answer(status, value, int(index) if index else None)


def answer(reply: Reply) -> Answer:
    return read(reply.status, reply.body, reply.header("X-Consul-Index"))
