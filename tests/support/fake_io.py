"""An ``IO`` for one program at a time: time is virtual, replies are scripted, nothing suspends.

Rules
- A reply is scripted for a method and the beginning of a path, in order; a request that nobody expected is
  ``Unexpected``, and so is waiting for what can never come.
- Each request has an end, and so has each wait: a deadline beyond ``LONGEST`` is ``Unexpected``. A program
  that waits without an end says so, with None, and then something else has to end it.
- A request names an index of a key only if an answer has shown the key at that index. No query waits for a
  change from an index before the latest one: it would be answered at once.
- A query whose ``until`` is raised before its reply comes has ended then, without one.
- Time passes only while the program waits or a reply takes its time. What else happens meanwhile is set with
  ``at``, and happens in order.
- Programs that are spawned do not run until the test runs them, but for those that somebody waits for: a
  session that is to be created, is, as soon as a program waits.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections import Counter, deque
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from consul_coord.errors import RequestTimeout
from consul_coord.http.messages import Response
from consul_coord.io import Contact, Signal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractContextManager

    from consul_coord.events import Event
    from consul_coord.http.messages import Request
    from consul_coord.io import IO

T = TypeVar("T")
E = TypeVar("E")

Answer = Response | Exception
CREATION = "create a session"
"""The name of the background program that makes a session for whoever waits for one."""


LONGEST = 3600.0
"""Seconds that no request and no wait takes."""


class Unexpected(BaseException):
    """A request that no test expects. No program survives it, as some survive any Exception."""


def expect(is_so: bool, otherwise: str) -> None:
    """Raise Unexpected unless something is so."""
    if not is_so:
        raise Unexpected(otherwise)


@dataclass(frozen=True, slots=True)
class Step:
    """One expected request and what becomes of it, after ``takes`` seconds."""

    method: str
    path: str
    answer: Answer | Callable[[Request], Answer]
    takes: float = 0.0


@dataclass(slots=True)
class Spawned:
    """A background program that has not been run."""

    name: str
    program: Callable[[IO], Awaitable[object]]
    done: Signal = field(default_factory=Signal)
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


def _key_of(request: Request) -> str:
    return unquote(request.path.removeprefix("/v1/kv/"))


def _indexes(answer: Response) -> list[tuple[str, int]]:
    """Return the keys in an answer, each with its ModifyIndex."""
    try:
        found = json.loads(answer.body or b"null")
    except ValueError:
        return []
    entries = found.get("Results") if isinstance(found, dict) else found
    fields = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    pairs = [each.get("KV", each) for each in fields]
    return [(pair["Key"], pair["ModifyIndex"]) for pair in pairs if pair and "Key" in pair]


def _named(request: Request) -> list[tuple[str, int]]:
    """Return the indexes at which a request expects keys to be, but 0, which stands for no key."""
    cas = dict(request.params).get("cas")
    named = [(_key_of(request), int(cas))] if cas else []
    if request.path == "/v1/txn":
        ops = [each.get("KV", {}) for each in json.loads(request.body or b"[]")]
        named += [(op["Key"], op["Index"]) for op in ops if op.get("Index")]
    return [(key, index) for key, index in named if index]


def run_at_once(program: Coroutine[Any, Any, T]) -> T:
    """Return the result of a program that awaits nothing but its IO."""
    try:
        program.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("the program awaited something other than its IO")


class FakeIO:
    """See the module."""

    def __init__(self, *, start: float = 1000.0, random: float = 0.0) -> None:
        self.time = start
        self.randomness = random
        self.caller: object = "caller"
        self.steps: deque[Step] = deque()
        self.requests: list[Request] = []
        self.sent_at: list[float] = []
        self.events: list[Event] = []
        self.spawned: list[Spawned] = []
        self.counts: Counter[str] = Counter()
        self.contact = Contact(self.now)
        self.shown: dict[str, list[int]] = {}
        """The indexes of each key, in the order in which answers have shown them."""
        self._order = itertools.count()
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []

    # -- for the test

    def expect(
        self, method: str, path: str, *answers: Answer | Callable[[Request], Answer], takes: float = 0.0
    ) -> None:
        """Script the replies to the next requests of this kind."""
        self.steps.extend(Step(method, path, answer, takes) for answer in answers)

    def at(self, time: float, happens: Callable[[], object]) -> None:
        """Let something happen when the clock gets there."""
        heapq.heappush(self._agenda, (time, next(self._order), happens))

    def run(self, program: Coroutine[Any, Any, T]) -> T:
        """Drive a program to its end."""
        return run_at_once(program)

    def run_spawned(self, name: str) -> None:
        """Run the first spawned program whose name begins so."""
        spawned = next(each for each in self.spawned if each.name.startswith(name))
        self.spawned.remove(spawned)

        async def program() -> None:
            await spawned.program(self)

        self.run(program())
        spawned.done.set()

    def seen(self, kind: type[E]) -> list[E]:
        """Return the events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def paths(self) -> list[str]:
        """The paths asked for so far."""
        return [request.path for request in self.requests]

    # -- Host

    def now(self) -> float:
        return self.time

    def random(self) -> float:
        return self.randomness

    @property
    def has_background(self) -> bool:
        return True

    def mutex(self) -> AbstractContextManager[object]:
        return nullcontext()

    def spawn(self, program: Callable[[IO], Awaitable[object]], *, name: str) -> Spawned:
        spawned = Spawned(name, program)
        self.spawned.append(spawned)
        return spawned

    def has_ended(self, owner: object) -> bool:
        return False

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def counted(self, what: str) -> int:
        return self.counts[what]

    def emit(self, event: Event, *, cause: BaseException | None = None) -> None:
        self.count(type(event).__name__)
        self.events.append(event)

    def call_back(self, function: Callable[[], object]) -> None:
        function()

    # -- IO

    def owner(self) -> object:
        return self.caller

    async def begin(self, program: Callable[[IO], Awaitable[object]], *, name: str, deadline: float) -> None:
        self.spawn(program, name=name)

    async def send(self, request: Request, *, deadline: float) -> Response:
        answer = self._exchange(request, deadline)
        assert answer is not None
        return answer

    def _exchange(self, request: Request, deadline: float, until: Signal | None = None) -> Response | None:
        """Return the reply; None when ``until`` was raised before it came."""
        asked = f"{request.method} {request.path}"
        expect(deadline <= self.time + LONGEST, f"{asked} may take for ever")
        if deadline <= self.time:
            message = f"{asked} was not sent: its time was over before"
            raise RequestTimeout(message, method=request.method, path=request.path, outcome_unknown=False)
        expect(bool(self.steps), f"nobody expected {asked}")
        step = self.steps.popleft()
        expected = f"{step.method} {step.path}"
        expect(asked.startswith(expected), f"{asked}, where {expected} was expected")
        self._check_indexes(request)
        self.requests.append(request)
        self.sent_at.append(self.time)
        self._advance(min(self.time + step.takes, deadline), until)
        if until is not None and until.is_set():
            return None
        if self.sent_at[-1] + step.takes > deadline:
            raise RequestTimeout("no reply", method=request.method, path=request.path, outcome_unknown=True)
        answer = step.answer(request) if callable(step.answer) else step.answer
        if isinstance(answer, Exception):
            raise answer
        for key, index in _indexes(answer):
            self.shown.setdefault(key, []).append(index)
        return answer

    def _check_indexes(self, request: Request) -> None:
        """Let no request name an index of a key that no answer has shown.

        Let no query wait for a change that an answer has shown: it would be answered at once, always.
        """
        for key, index in _named(request):
            shown = self.shown.get(key, ())
            expect(not shown or index in shown, f"no answer has shown {key!r} at {index}")
        latest = self.shown.get(_key_of(request), [0])[-1]
        since = int(dict(request.params).get("index", latest)) if request.hold_open else latest
        expect(since >= latest, f"{request.path} at {since} is answered at once, always")

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        if until is not None and until.is_set():
            return None
        end = math.inf if deadline is None else deadline
        try:
            return self._exchange(request, min(end, self.time + LONGEST), until)
        except RequestTimeout:
            if self.time >= end:
                return None
            raise

    async def wait(self, signal: Signal, *, deadline: float | None = None) -> bool:
        end = math.inf if deadline is None else deadline
        expect(math.isinf(end) or end <= self.time + LONGEST, "waiting for ever")
        while not signal.is_set() and self.time < end:
            if any(each.name == CREATION for each in self.spawned):
                self.run_spawned(CREATION)
                continue
            upcoming = self._agenda[0][0] if self._agenda else math.inf
            expect(min(upcoming, end) < math.inf, "waiting for what can never come")
            self._advance(min(upcoming, end))
        return signal.is_set()

    async def sleep(self, seconds: float) -> None:
        self._advance(self.time + seconds)

    def shield(self, seconds: float) -> AbstractAsyncContextManager[float]:
        return nullcontext(self.time + seconds)

    def _advance(self, target: float, until: Signal | None = None) -> None:
        while self._agenda and self._agenda[0][0] <= target:
            when, _, happens = heapq.heappop(self._agenda)
            self.time = max(self.time, when)
            happens()
            if until is not None and until.is_set():
                return
        self.time = max(self.time, target)
