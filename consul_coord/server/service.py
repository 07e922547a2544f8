"""The whole agent as a pure function of requests and time: what the ASGI shell and a simulator both drive.

Rules
- ``handle(request, now)`` answers with a ``Reply``, or with ``Blocked``: the reply then comes from
  ``ready()`` under the same ticket, after whichever later call caused it. Ask ``ready()`` after every call.
- ``next_timer()`` tells when ``run_timers(now)`` has something to do: a TTL, a blocking query's end. Whatever
  was due before a request arrives happens before it, unless whoever drives this sets a limit.
- A read blocks when it names an index and the answer's index is not above it; up to a sixteenth of its wait
  is added at random. It is looked at again when what it watches changes; an index above all others therefore
  waits its full time.
- A reply describes the leader as of the last look for the answer, not as of the end of the wait.
- Without a leader a request waits for one, and is refused when its patience ends; watches end at once.
- Each hop between this agent and the leader adds its words to the leader's errors. The last hop is spared
  where the nearest server answers: stale reads, other datacenters, and that there is no leader.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consul_coord.server import routes
from consul_coord.server.call import Call, Read, Seen
from consul_coord.server.failures import LeadersRefusal, Refusal, StateError
from consul_coord.server.params import (
    Params,
    ReadOptions,
    check_enterprise,
    check_target,
    is_here,
    read_options,
    token_of,
)
from consul_coord.server.state import CAUGHT_UP, LEADER, RESTORED
from consul_coord.server.tokens import authorizer_of
from consul_coord.server.waiting import Waiter, WaitingRoom
from consul_coord.server.wire import Blocked, Reply, text_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from consul_coord.server.routes import Route
    from consul_coord.server.state import ConsulState
    from consul_coord.server.wire import Headers, Request

_JITTER = 1 / 16
_HOP = "rpc error making call: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """Whether a leader is known, and how long nothing has been heard of it."""

    leader: bool
    milliseconds: int = 0


_NOBODY = Contact(leader=False)


class Service:
    """An agent that serves requests over a state; ``random`` (0 to 1) gives blocking queries their jitter."""

    def __init__(self, state: ConsulState, *, random: Callable[[], float]) -> None:
        self.state = state
        self._dialect = state.config.dialect
        self._random = random
        self._waiting = WaitingRoom(spurious=state.config.spurious_wakeups)
        self._tickets = itertools.count(1)
        self._ready: list[tuple[int, Reply]] = []
        self._asked: set[tuple[str, str]] = set()
        self._said: dict[Hashable, Reply] | None = None
        """The answers in this round of news, by request: thousands may have asked the same."""

    def handle(self, request: Request, now: float, *, timers: int | None = None) -> Reply | Blocked:
        """Answer a request, or let it wait; ``timers`` limits what is done first of what was due."""
        self.run_timers(now, most=timers)
        outcome = self._answer(request, now)
        self.publish(now)
        if isinstance(outcome, Reply):
            return outcome
        ticket = next(self._tickets)
        self._waiting.add(ticket, outcome)
        return Blocked(ticket, outcome.until)

    def ready(self) -> list[tuple[int, Reply]]:
        """Return the replies to waiting requests that have come since the last call, by ticket."""
        ready, self._ready = self._ready, []
        return ready

    def cancel(self, ticket: int) -> None:
        """Forget a waiting request whose client has gone."""
        self._waiting.drop(ticket)

    @property
    def blocked(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    def next_timer(self) -> float | None:
        """Return when ``run_timers`` next has something to do, or None."""
        times = [when for when in (self.state.next_timer(), self._waiting.earliest()) if when is not None]
        return min(times, default=None)

    def run_timers(self, now: float, *, most: int | None = None) -> None:
        """Let everything happen that was due by ``now``, in order; ``most`` of it, if that is given."""
        left = math.inf if most is None else most
        while left > 0 and (when := self.next_timer()) is not None and when <= now:
            left -= self.state.run_timers(when, most=left)
            self.publish(when)
            while left > 0 and (ended := self._waiting.expire(when)) is not None:
                self._ready.append(ended)
                left -= 1

    def dismiss(self, now: float) -> None:
        """Answer every waiting request with what there is, as an agent does that is being stopped."""
        self._ready += self._waiting.dismiss(now)

    def restore(self, data: bytes, now: float) -> None:
        """Go back to a snapshot; watches end at once, and indexes may have gone backwards."""
        self.state.restore(data, now)
        self.publish(now)

    def publish(self, now: float) -> None:
        """Look again at waiting requests after the state was changed directly."""
        news = self.state.take_news()
        while news and self._waiting:
            if RESTORED in news:
                self.dismiss(now)
            self._said = {}
            self._ready += self._waiting.tell(news, now)
            self._said = None
            news = self.state.take_news()  # held requests that went through may have written

    def _answer(self, request: Request, now: float) -> Reply | Waiter:
        try:
            route, tail = routes.find(request, self._dialect)
        except Refusal as refused:
            return replace(self._refuse(refused), varies=False)
        try:
            handler = routes.handler_of(route, request.method)
            if route.of_acls and self.state.config.acl is None:
                raise Refusal(401, "ACL support disabled")
            call = self._call(route, request, tail, now)
            if route.needs_leader and not self.state.leader and not call.options.stale:
                waits = self._dialect.waits_for_leader and call.options.index
                patience = call.options.wait if waits else self.state.config.leaderless_hold
                return self._hold(request, now + patience)
            outcome = handler(call)
            answer = self._read(call, outcome, now) if isinstance(outcome, Read) else outcome
            return self._cached(request, answer) if route.cached and "cached" in call.params else answer
        except (Refusal, StateError) as refused:
            return self._refuse(refused, self._hops(request) if route.needs_leader else 0)

    def _cached(self, request: Request, answer: Reply | Waiter) -> Reply | Waiter:
        """Say how a cached answer was come by; here, it is a new one all the same."""
        if not isinstance(answer, Reply):
            return answer
        known = (request.path, request.query) in self._asked
        self._asked.add((request.path, request.query))
        told = (("X-Cache", "HIT"), ("Age", "0")) if known else (("X-Cache", "MISS"),)
        return Reply(answer.status, answer.body, (*answer.headers, *told))

    def _hops(self, request: Request) -> int:
        params = Params(request.query)
        nearest = "stale" in params or "max_stale" in params or not is_here(params, self.state.datacenter)
        return max(0, self.state.config.hops - nearest)

    def _call(self, route: Route, request: Request, tail: str, now: float) -> Call:
        params = Params(request.query)
        if route.namespaced:
            check_enterprise(params, self._dialect)
        reads = request.method in route.options
        options = read_options(params, self.state.config) if reads else ReadOptions()
        if route.placed:
            check_target(params, self.state.datacenter)
        pretty = self.state.config.pretty or "pretty" in params
        secret = token_of(params, request.headers) if route.needs_leader or route.authorized else ""
        authorizer = authorizer_of(self.state.store, self.state.config, secret, self.state.datacenter)
        return Call(self.state, request, params, tail, now, pretty, options, authorizer)

    def _read(self, call: Call, read: Read, now: float) -> Reply | Waiter:
        wait = call.options.wait
        until = now + wait + self._random() * wait * _JITTER if call.options.index else now
        return self._ask(call, read, until, now)

    def _ask(self, call: Call, read: Read, until: float, now: float) -> Reply | Waiter:
        stale = call.options.stale
        same = (call.request.path, call.request.query, call.authorizer.token, call.store.raft_index)
        if self._said is not None and (said := self._said.get(same)) is not None:
            return said
        contact = self._contact(now)
        seen = self._look(call, read)
        if not contact.leader and not stale and not (isinstance(seen, Seen) and seen.local):
            if self._dialect.waits_for_leader:
                return self._hold(call.request, until)
            return text_reply(500, f"{_HOP * max(1, self.state.config.hops)}EOF")
        if isinstance(seen, Reply):
            return seen
        if not seen.waits or not 0 < max(seen.index, 1) <= call.options.index:
            reply = self._with_meta(seen, call, contact)
            if self._said is not None:
                self._said[same] = reply
            return reply
        marks = (*seen.marks, CAUGHT_UP if stale else LEADER)
        return Waiter(
            lambda later: self._ask(call, read, until, later),
            lambda _: self._now(call, read, contact),
            marks,
            until,
        )

    def _now(self, call: Call, read: Read, contact: Contact) -> Reply:
        seen = self._look(call, read)
        return seen if isinstance(seen, Reply) else self._with_meta(seen, call, contact)

    def _contact(self, now: float) -> Contact:
        if self.state.leader:
            return Contact(leader=True)
        return Contact(leader=False, milliseconds=round((now - self.state.leader_since) * 1_000))

    def _look(self, call: Call, read: Read) -> Seen | Reply:
        try:
            return read.look(call.store)
        except Refusal as refused:
            return self._refuse(refused, self._hops(call.request))
        except StateError as error:
            return self._refuse(error, self._hops(call.request), _meta(1, _NOBODY))

    def _with_meta(self, seen: Seen, call: Call, contact: Contact) -> Reply:
        reply, meta = seen.reply, _meta(seen.index, contact)
        meta = meta[:1] if seen.local else meta
        if self._dialect.tells_backend and not seen.local:
            meta = (*meta, ("X-Consul-Query-Backend", "blocking-query"))
        if seen.effective:
            meta = (("X-Consul-Effective-Consistency", _consistency(call)), *meta)
        return Reply(reply.status, reply.body, (*reply.headers, *meta))

    def _refuse(self, error: Refusal | StateError, hops: int = 0, meta: Headers = ()) -> Reply:
        if isinstance(error, StateError):
            return text_reply(500, f"{_HOP * hops}{self._dialect.said(str(error))}", meta)
        if isinstance(error, LeadersRefusal):
            return text_reply(error.status, f"{_HOP * hops}{error.text}", error.headers)
        if any(name == "Content-Type" for name, _ in error.headers):
            return Reply(error.status, error.text.encode(), error.headers)
        return text_reply(error.status, error.text, error.headers)

    def _hold(self, request: Request, until: float) -> Waiter:
        def again(now: float) -> Reply | Waiter:
            return self._answer(request, now) if self.state.leader else self._hold(request, until)

        refused = text_reply(500, f"{_HOP * max(0, self.state.config.hops - 1)}No cluster leader")
        return Waiter(again, lambda _: refused, (LEADER,), until)


def _meta(index: int, contact: Contact) -> Headers:
    return (
        ("X-Consul-Index", str(max(index, 1))),
        ("X-Consul-Knownleader", "true" if contact.leader else "false"),
        ("X-Consul-Lastcontact", str(contact.milliseconds)),
    )


def _consistency(call: Call) -> str:
    if call.options.stale:
        return "stale"
    return "consistent" if call.options.consistent else "leader"
