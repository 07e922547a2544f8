"""The promises to users about leases, losses and calls, judged by the traffic and the clock.

Rules
- Nobody believes longer than the TTL or the lock-delay, less the drift, counted from when the last answered
  create or renewal was *sent*, by the clock of the process that sent it.
- A deadline never moves back while its hold is relied on.
- A holder knows soon that its hold is over on the server, as long as it can ask. Each failed request lets it
  pause for longer, and after one that was never answered it may not hear for as long as a query lasts.
- A call that has a time limit, or was cancelled, ends a moment later at most. No client waits for a reply for
  longer than one request may take. Few things never come in a run, which alone would show that. So nothing
  is waited for that might last longer, whether it comes or not.
- ``on_change`` reports soon who leads, and a watch shows soon what has changed, under the same conditions.
  A candidate that has heard nothing of the leader for one TTL reports none.
- A client that has closed runs nothing.
- A client is no flood, whatever goes wrong: it sends less than ``MOST_SENT`` requests in ``PACE`` seconds,
  and less than ``MOST_ALIKE`` that are alike. While nobody writes anything, it asks for a thing now and then.
- A call leaves nothing behind. A client at rest, whose users hold nothing and wait for nothing, has no
  blocking query under way, and no place in a queue. It sends renewals alone. It has no more tasks
  than its sessions and its clean-up need. At no time do more than two tasks do the same, except those that
  make a session. Locks, elections and jobs share one session, besides those that
  have their own.
- A client counts what it sends, what fails, and what it is woken by.

Nothing here knows how the recipes do it: no name of theirs, and no order of their requests.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from consul_coord.testing.simulation.diary import ODD
from consul_coord.testing.simulation.threads import BACKGROUND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord.http.messages import Request, Response
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.network import Exchange
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.program import SimTask
    from consul_coord.testing.simulation.shapes import Shape

DRIFT = 0.05
"""The part of a TTL that is left out for clocks of another rate."""
ROUNDING = 1e-6
"""Seconds by which two times may differ that are the same."""
NOTICED_WITHIN = 1.5
"""Seconds within which a loss is noticed by who can ask, when nothing has gone wrong lately."""
NOTICED_CALMLY = 0.7
"""The same where nothing goes wrong but what operators do: a hold is watched when it is half a second old."""
SEEN_CALMLY = 1.0
"""Likewise, within which a candidate learns who leads, though leaders follow each other quickly."""
FADED_WITHIN = 0.2
"""Seconds within which a candidate says that it knows of no leader, once what it has heard counts no more."""
SEEN_IN_TURN = 2.0
"""Seconds more, as documented, where groups are in several folders, which take turns."""
SEEN_IN_A_LARGE_GROUP = 1.0
"""Seconds more in a large group, which is read in parts, and after a pause."""
UNSHARED = 30
"""With so many watches in a client, and a few other things that it waits for, each has a query of its own."""
SEEN_TOGETHER = 1.3
"""Seconds more, about as documented, where there are more than these."""
SEEN_SURELY = 2.0 + NOTICED_WITHIN
"""Seconds within which a candidate learns who leads."""
FAIL_ONCE = 3
"""So many different requests of one program fail one after the other, where each of them fails once."""
PAUSE = 0.3
LONGEST_PAUSE = 15.0
"""Seconds for which a watch rests after one failure, and after many; each doubles it."""
UNANSWERED = 45.0
"""Seconds for which it may wait for a reply that never comes."""
MEMORY = 30.0
"""Seconds after which a failure is forgotten."""
READ_WITHIN = 0.05
"""Seconds from the arrival of a reply until its reader looks at the clock, at most."""
PACE = 2.0
MOST_SENT = 300
"""Requests of one process in so many seconds: more than twice what the busiest of a hundred runs needs."""
ACTS_AMID = 150
"""So many more, where operators also act amid requests: each act costs further requests."""
MOST_ALIKE = 75
"""Likewise, of those that ask the same of the same key or session."""
STILL = 10.0
MOST_STILL, MOST_STILL_OF_TREES = 8, 16
"""Blocking queries for one thing in so many seconds, while that stays as it is; two or three more for
each renewal and each join. Those for folders of groups follow what others of the client follow, too."""
_REMEMBERED = 200
CALMLY_SENT = 160
CALMLY_ALIKE = 35
"""The same, where nothing goes wrong but what operators do."""
CALLED_ALIKE = 15
"""So many more of each user of plain calls, who may update one key again and again."""
ENDED_WITHIN = 0.15
"""Seconds after its limit, or its cancellation, by which a call has ended."""
AT_REST = 11.0
"""Seconds after the end of the last call by which nothing of it goes on: longer than a shared query lasts,
which begins in their first half at the latest, by any clock."""
TASKS_AT_REST = 5
"""Tasks of a client at rest, besides one for each session: clean-up, and looking after what is idle."""
MOST_ALIKE_TASKS = 2
"""Programs of a client's background that do the same, at most, for two of its users."""
MAKES_A_SESSION = "create a session"
"""The name of those of which there may be more: each makes one."""
MOST_SLOTS, AHEAD = 3, 3
"""Slots that a user has at once, each by a session of its own; and sessions of a semaphore that are ready for
the next call, or were of one that was cut short."""
RELEASED_WITHIN = 8.0
"""Seconds after which a release without an answer is left to the background."""
MOST_QUERIES = 33
"""Of a client at once: 32, and one for all groups."""
KEY_AND_INDEX = 2
"""So many things a blocking query for one key names."""
NOTHING = object()
"""The news before the first one."""
_KEEPING = frozenset({"renew", "destroy"})
_OK = 200
_ANSWERS = {_OK, 404}
"""The statuses of what is there and of what is not; others refuse."""
_TRIAL = "other /v1/status/leader"
"""The request that tries out a new connection."""
_TOO_MANY = 429
_NOT_SERVED = b"cluster leader", b"rpc error", b"rate limit"
"""Parts of the texts by which servers do not serve; other texts refuse."""
_TAKES = frozenset({"take", "slot-take", "locking"})
"""Requests that a waiting call repeats while a lock-delay lasts."""
_STARTS_QUERIES = frozenset({"renew", "join"})
"""Requests after which queries start: those that made room for a renewal, and those of a new waiter."""
OF_THE_AGENT = "/v1/status/"
"""The requests that an agent answers by itself: they say nothing of the servers."""
_FAILS = 500
_FORBIDDEN, _DENIED = 403, b"Permission denied"


@dataclass(slots=True)
class Contact:
    """The failures between one process and the agent."""

    troubled_until: float = 0.0
    failures: list[float] = field(default_factory=list[float])
    answered_from: float = 0.0
    """From when on a request, except a blocking query, is answered or has failed."""
    served_from: float = 0.0
    """From when on requests are served again, whatever pauses their senders make."""
    in_a_row: int = 10
    """So many failures in a row make a pause grow, at most."""
    blind: bool = False
    """Whether it may look no more after what it holds: it was refused once."""

    def fail(self, now: float, *, lasts: float, fails_within: float, over_in: float) -> None:
        """Take note of something that went wrong, and can be felt for so many seconds.

        ``fails_within`` so many, a request has failed that gets no answer. ``over_in`` so many, requests are
        served again.
        """
        self.failures = [*(one for one in self.failures if one > now - MEMORY), now]
        self.troubled_until = max(self.troubled_until, now + lasts)
        self.answered_from = max(self.answered_from, now + fails_within)
        self.served_from = max(self.served_from, now + over_in)

    def patience(self) -> float:
        """Return the seconds for which a loss may go unnoticed, besides those that it takes to notice."""
        rest = PAUSE * 2 ** min(len(self.failures), self.in_a_row) if self.failures else 0.0
        return min(rest, LONGEST_PAUSE)


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call that somebody waits for."""

    process: Process
    what: str
    deadline: float
    """The true time by which it has to end."""
    now: Callable[[], float]
    task: SimTask | None = None
    """The task that waits for it."""
    limit: float = math.inf
    """The true time at which its time is over, whether it is cancelled or not."""
    gives_back: bool = False
    """Whether it does nothing but give back, which nothing cuts short: its limit is for that."""
    last: float = 0.0
    """Seconds that its last part has for itself, also if its process stood still before."""
    cancelled: bool = False
    lag: float = field(init=False)
    """For how many seconds threads of its process had stood still before."""

    def __post_init__(self) -> None:
        self.lag = self.process.lag

    @property
    def lagged(self) -> float:
        """For how many seconds threads of its process have stood still since it began."""
        return self.process.lag - self.lag

    def cancel(self) -> None:
        """Have it end at once."""
        if not self.cancelled:
            self.cancelled = True
            self.deadline = min(self.deadline, self.now())


@dataclass(slots=True, eq=False)
class Sighting:
    """The last news of something that is followed: a leader by ``on_change``, or a state by a watch."""

    process: Process
    what: str
    truth: Callable[[], object]
    """Returns the news that should be there by now."""
    wrong_since: float
    """Since when it is not as the server has it, as seen after each event; infinite while it is."""
    told: object = NOTHING
    _judged: tuple[int, object] | None = None
    """The index of the last write, and the news, when they were last compared."""
    _is_right: bool = False
    _about: str = ""
    """The key that the news is about, where it counts for a while only."""
    _good_for: float = math.inf
    """For so many seconds, while nothing is heard of that."""
    _heard_at: float = 0.0

    def fade(self, about: str, *, after: float) -> None:
        """Let the news count only so long after the last answer about a key."""
        self._about, self._good_for = about, after

    def hear(self, shape: Shape, now: float) -> None:
        """Take note of an answer."""
        if shape.name == "watch-session" or shape.about.startswith(self._about):
            self.know(now)

    def know(self, now: float) -> None:
        """Take note that the news counts from now on again."""
        self._heard_at = now

    @property
    def fades(self) -> bool:
        """Whether the news is of somebody, and counts for a while only."""
        return self._good_for < math.inf and self.told is not None and self.told is not NOTHING

    def is_stale(self, now: float, stretch: float) -> bool:
        """Return whether such news is so old that it counts no more."""
        heard_at = max(self._heard_at, self.process.awake_since)
        return now > heard_at + self._good_for * stretch + FADED_WITHIN

    def is_right(self, index: int) -> bool:
        """Return whether the news is right, as of a write."""
        if self._judged is None or self._judged[0] != index or self._judged[1] is not self.told:
            self._judged, self._is_right = (index, self.told), self.told == self.truth()
        return self._is_right


class Promises:
    """The judge of time and traffic."""

    def __init__(self, judge: Judge, plan: Plan) -> None:
        self._judge = judge
        self._ttl = plan.spec.ttl or 0.0
        self._ttls: dict[str, float] = {}
        """The TTL of each session that was seen."""
        self._timeout = max(plan.timeout, RELEASED_WITHIN)
        """Seconds within which a request is given up that gets no answer."""
        own = len(plan.keys) + plan.several + len(plan.elections) + len(plan.jobs)
        slots = len(plan.pools) * (MOST_SLOTS if plan.permits else 1)
        own += plan.users * slots + AHEAD * len(plan.pools)
        self._most_sessions = math.inf if plan.rwlocks or plan.sharing or plan.guests else 1 + own
        self._confirmed: dict[tuple[str, str], float] = {}
        """When the last answered request was sent that gave a process a session's lease, by its clock."""
        self._renewed_in_time: dict[tuple[str, str], float] = {}
        """The same, of those whose answer was surely read before the lease was over."""
        self._undisturbed = plan.calm or plan.has_only_acts or not plan.has_old_leader
        """Whether nobody is held up by anything, except where that is noted."""
        self._ids = frozenset(plan.ids)
        self._is_crowded = plan.crowd > UNSHARED
        more = SEEN_IN_A_LARGE_GROUP * bool(plan.large) + SEEN_TOGETHER * self._is_crowded
        self._in_turn = SEEN_IN_TURN * (len(plan.group_folders) > 1)
        self._seen_calmly, self._seen_surely = SEEN_CALMLY + self._in_turn + more, SEEN_SURELY + more
        # Each watch without a query reads once a second, and all begin at once. Some keys are gone.
        self._more = 6 * plan.crowd + ACTS_AMID * bool(plan.amid), CALLED_ALIKE * plan.callers
        """Requests more that a process may send: in all, and of those that ask the same."""
        self._contacts: dict[str, Contact] = {}
        self._in_a_row = FAIL_ONCE + plan.twice if plan.once else 10
        self._all_troubled_until = 0.0
        self._sent: dict[tuple[str, str], deque[float]] = {}
        """The times of each process's latest requests, of all and of those alike."""
        self._asked: Counter[str] = Counter()
        self._counted: Counter[tuple[str, str]] = Counter()
        """The requests and answers of each process, by the names that its client's counters have."""
        self._agents = plan.agents
        """Each may be asked as often."""
        self._queries: dict[tuple[SimTask | None, tuple[Any, ...]], deque[float]] = {}
        """The times at which each task has asked for each thing as it is at an index."""
        # Who watches a leader asks twice in a TTL, to hear of it in time.
        self._most_still = max(MOST_STILL, 2 * STILL / (plan.own_spec.ttl or STILL) + 2)
        self._wakes_for_nothing = plan.spurious
        self._query_starts: dict[str, deque[float]] = {}
        """When each process has sent its latest renewals and joins, after which queries start."""
        self._acted: dict[str, float] = {}
        """When each process has ended queries: by a take, or by anything else over a shared connection."""
        # Several agents are looked after; at a limit on connections, what was put off comes late.
        self._is_quiet = plan.agents == 1 and not plan.connections
        self._sightings: dict[Sighting, None] = {}
        self._calls: dict[PendingCall, None] = {}
        self._heard_at: dict[str, float] = {}
        """When each process was answered last, by its clock."""
        self._any_heard_at: dict[str, float] = {}
        """The same, also by an agent that knows of no servers."""
        self._forgiven = 0
        """Up to which index holds were granted before time went back."""

    # -- traffic

    def sent(self, process: Process, request: Request, shape: Shape) -> None:
        """Judge that a process sends something."""
        self._asked[process.name] += shape.name not in _KEEPING
        self._counted[process.name, "requests"] += 1
        for alike, most in () if process.foreign else self._most_sent(str(shape)):
            self._count(process, alike, most, shape)
        if shape.name in _STARTS_QUERIES:
            starts = self._query_starts.setdefault(process.name, deque(maxlen=_REMEMBERED))
            starts.append(self._judge.now)
        if shape.name in _TAKES or (self._judge.room is not None and shape.name != "renew"):
            self._acted[process.name] = self._judge.now
        self._judge.sessions.sent(process, shape)
        if self._judge.room is not None:
            self._judge.room.sent(process, request)

    def _most_sent(self, alike: str) -> tuple[tuple[str, int], tuple[str, int]]:
        more, more_alike = self._more
        if self._judge.calm:
            return (("", CALMLY_SENT + more), (alike, CALMLY_ALIKE + more_alike))
        # Near a limit, a write goes over no new connection before that has been tried out.
        tries_out = alike == _TRIAL and self._judge.room is not None
        return (("", MOST_SENT + more), (alike, MOST_SENT if tries_out else MOST_ALIKE * self._agents))

    def _count(self, process: Process, alike: str, most: int, shape: Shape) -> None:
        now, times = self._judge.now, self._sent.setdefault((process.name, alike), deque())
        times.append(now)
        while times[0] < now - PACE:
            times.popleft()
        if len(times) > most:
            text = f"{process.name} sends {len(times)} requests in {PACE:g} s, the last of them {shape}"
            self._judge.convict("pace", text)

    def asks(self, who: str, query: Exchange, *, beside: Exchange | None) -> None:
        """Judge that a client begins a blocking query, where another one for the same is under way.

        One for a key serves all who wait for that, so a candidate with ``on_change`` needs no other one.
        """
        process = self._judge.process(who)
        if process is None or process.foreign or not self._is_quiet:
            return
        if len(process.link.parked) >= MOST_QUERIES:
            self._judge.convict("rest", f"{who} asks {len(process.link.parked) + 1} queries at once: {query}")
        self._count_queries(process, query)
        if beside is None:
            return
        if len(query.asks_for) > KEY_AND_INDEX:
            return  # of a tree
        is_due = query.began_at < beside.due_at <= query.due_at and not process.is_behind
        if is_due and beside.is_consistent >= query.is_consistent and query.began_at > beside.began_at:
            text = f"{who} asks twice at once for {query}, and the first answer is due as early"
            self._judge.convict("rest", text)

    def _count_queries(self, process: Process, query: Exchange) -> None:
        """Judge how often a task asks for something as it has seen it, while nothing goes wrong."""
        asked = self._queries.setdefault((process.running, query.asks_for), deque())
        asked.append(query.began_at)
        troubled = max(self.troubled(process.name), self._acted.get(process.name, 0.0), process.awake_since)
        while asked[0] < max(query.began_at - STILL, troubled) and len(asked) > 1:
            asked.popleft()
        starts = sum(at >= asked[0] for at in self._query_starts.get(process.name, ()))
        most = self._most_still if len(query.asks_for) == KEY_AND_INDEX else MOST_STILL_OF_TREES
        # A query before a renewal ends early by a slow clock, and so does the one for the rest of that time.
        per_start = 2 if self._judge.bounded else 3
        # A candidate of low priority joins the queue for a second at a time, with new watches.
        is_modest = any(query.asks_for[0].startswith(f"/v1/kv/{key}/") for key in process.modest)
        if len(asked) > most * (1 + is_modest) + per_start * starts and not self._wakes_for_nothing:
            text = f"{process.name} asks {len(asked)} times in {STILL:g} s, though nothing changes: {query}"
            self._judge.convict("pace", text)

    def heard(
        self, process: Process, shape: Shape, sent_at: float, response: Response, *, waited: bool
    ) -> None:
        """Take note of a reply that reaches its sender."""
        fails = response.status >= _FAILS or response.status == _TOO_MANY
        if fails or response.status == _FORBIDDEN or _DENIED in response.body:
            self._judge.sessions.failed(process, shape)
        else:
            self._judge.sessions.succeeded(process, shape, waited=waited)
        if fails:
            self._counted[process.name, "failures"] += any(text in response.body for text in _NOT_SERVED)
        else:
            self._counted[process.name, "wakeups"] += waited and response.status in _ANSWERS
            if not shape.about.startswith(OF_THE_AGENT):
                self.answered(process)
            self._any_heard_at[process.name] = process.clock.now()
        for sighting in self._sightings:
            if sighting.process is process:
                sighting.hear(shape, self._judge.now)
        if response.status != _OK or shape.name not in {"create", "renew"} or ODD in response.headers:
            return
        session = json.loads(response.body)["ID"] if shape.name == "create" else shape.about
        mark = process.name, session
        self._confirmed[mark] = max(sent_at, self._confirmed.get(mark, sent_at))
        before = self._renewed_in_time.get(mark)
        cluster, cover = self._judge.cluster, 0.0
        if cluster.lives(session):
            self._ttls[session] = cluster.ttl(session) or self._ttl
            cover = cluster.lock_delay(session)
        ttl = self._ttls.get(session, self._ttl)
        horizon = min(ttl, cover or ttl)
        renewed = shape.name == "renew"
        self._judge.sessions.heard(process, session, sent_at, horizon, renewed=renewed)
        longest = (1 - DRIFT) * horizon
        if before is None or process.clock.now() < before + longest - READ_WITHIN:
            self._renewed_in_time[mark] = max(sent_at, before or sent_at)

    def answered(self, process: Process) -> None:
        """Take note that a process has an answer, be it a refusal."""
        self._heard_at[process.name] = process.clock.now()

    def heard_at(self, process: Process) -> float:
        """Return when a process was answered last, by its clock."""
        return self._heard_at.get(process.name, -math.inf)

    def any_heard_at(self, process: Process) -> float:
        """Return the same, also by an agent that knows of no servers: a user may ask that."""
        return max(self.heard_at(process), self._any_heard_at.get(process.name, -math.inf))

    def waited(self, process: Process, shape: Shape, *, since: float) -> None:
        """Judge for how long a client has waited for a reply, whether that came or not."""
        seconds = process.clock.now() - since
        most = max(process.core.timeout, RELEASED_WITHIN) + ENDED_WITHIN
        late = process.slept or process.awake_since >= process.clock.true(since) or not process.able
        if seconds > most and self._is_quiet and not (late or process.foreign):
            self._judge.convict("in time", f"{process.name} has waited {seconds:.3f} s for a reply: {shape}")

    def may_wait(self, process: Process, task: SimTask, what: str, *, until: float | None) -> None:
        """Judge until when a task is ready to wait, by its process's clock; None for as long as it takes."""
        calls = (one for one in self._calls if one.task is task and (one.gives_back or not task.shields))
        awake = process.awake_since
        limit = min((max(one.limit + one.lagged, awake + one.last) for one in calls), default=math.inf)
        if math.isinf(limit) or process.foreign:
            return
        ends = math.inf if until is None else process.clock.true(until)
        if ends > max(limit, self._judge.now) + ENDED_WITHIN:
            text = (
                f"{process.name} is ready to wait {what}, {ends - limit:.1f} s beyond the limit of its call"
            )
            self._judge.convict("in time", text)

    def may_take(self, process: Process, what: str, *, seconds: float) -> None:
        """Judge for how many seconds a client is ready to wait for a reply."""
        most = max(process.core.timeout, RELEASED_WITHIN) + ENDED_WITHIN
        if seconds > most and not process.foreign:
            self._judge.convict("in time", f"{process.name} is ready to wait {seconds:.1f} s {what}")

    def confirmed(self, process: Process, session: str) -> float | None:
        """Return when the request was sent that gave a session its lease, by its process's clock."""
        return self._confirmed.get((process.name, session))

    def renewed_in_time(self, process: Process, session: str) -> float | None:
        """Return the same, without the requests whose answer was read when the lease was over, or nearly."""
        return self._renewed_in_time.get((process.name, session))

    def horizon(self, claim: Claim) -> float:
        """Return for how many seconds after that a claim is safe, drift and all."""
        return min(self._ttls.get(claim.session, self._ttl), claim.covered)

    def contact(self, who: str) -> Contact:
        """Return what went wrong for a process."""
        known = self._contacts.get(who)
        if known is None:
            known = self._contacts[who] = Contact(self._all_troubled_until, in_a_row=self._in_a_row)
        return known

    def troubled(self, who: str) -> float:
        """Return the time until which a process may have been held up by what went wrong."""
        contact = self.contact(who)
        return max(contact.troubled_until, *contact.failures, 0.0)

    def undisturbed_since(self, process: Process) -> float:
        """Return since when a process could do what it wants: nothing holds it up, and no pause lasts."""
        rest = self.contact(process.name).patience()
        return max(self.troubled(process.name), process.awake_since) + rest

    def failed(self, who: str, *, silent: bool, slow: bool) -> None:
        """Take note that a request went wrong; nothing tells its sender so if it is ``silent``."""
        lasts = UNANSWERED if silent else 7.0 if slow else 0.0
        fails_within = self._timeout if silent else lasts
        contact = self.contact(who)
        contact.fail(self._judge.now, lasts=lasts, fails_within=fails_within, over_in=fails_within)

    def trouble(self, who: str | None, *, lasts: float, over_in: float = math.inf) -> None:
        """Take note of trouble of one process or, without a name, of all, which goes on for some seconds.

        Requests are served again when it is over, or before that, and their senders may still rest.
        """
        over_in = min(lasts, over_in)
        if who is None:
            self._all_troubled_until = max(self._all_troubled_until, self._judge.now + lasts)
        for name in [who] if who is not None else self._judge.names():
            self.contact(name).fail(self._judge.now, lasts=lasts, fails_within=lasts, over_in=over_in)

    def refuse(self, *, lasts: float) -> None:
        """Take note that clients are refused something for so long; they may watch no hold after that."""
        self.trouble(None, lasts=lasts)
        for name in self._judge.names():
            self.contact(name).blind = True

    def went_back(self, index: int) -> None:
        """Take note that the state is an earlier one: what shows a loss may be older than the hold."""
        self._forgiven = max(self._forgiven, index)

    def is_forgiven(self, fence: int) -> bool:
        """Return whether a hold was granted before time went back."""
        return fence <= self._forgiven

    # -- claims

    def look_at(self, claim: Claim, *, stands: bool, seldom: float) -> None:
        """Judge one claim that nobody has found to be over yet.

        ``seldom``: for how many seconds its holder need not look at what it lacks.
        """
        judge, process = self._judge, claim.process
        confirmed = self.confirmed(process, claim.session)
        lease, believed = (1 - DRIFT) * self.horizon(claim), claim.believed()
        if believed and (confirmed is None or claim.lease.valid_until > confirmed + lease + ROUNDING):
            seconds = math.inf if confirmed is None else claim.lease.valid_until - confirmed
            judge.convict("lease", f"{claim} is relied on for {seconds:.3f} s after the sending")
        self._check_deadline(claim, believed=believed)
        ends = min(claim.limits.values(), default=math.inf)
        if believed and process.clock.now() > ends + ROUNDING:
            judge.convict("told", f"{claim} is relied on beyond its time, which its user has limited")
        hold = claim.reference()
        says = claim.lease.valid_until if hold is None else hold.valid_until
        if believed and says > min(claim.lease.valid_until, ends) + ROUNDING:
            judge.convict("told", f"{claim} says that it lasts until {says:.3f}, which is too long")
        if stands:
            claim.gone_since = claim.seldom = None
            return
        claim.gone_since = judge.now if claim.gone_since is None else claim.gone_since
        if claim.seldom is None or claim.seldom > seldom:  # what it lacks now may be gone since this moment
            claim.lacks_since = judge.now
        claim.seldom = seldom
        contact = self.contact(process.name)
        began = max(claim.lacks_since, contact.troubled_until, process.awake_since)
        # Whose requests have all been answered for a while is not held up either.
        is_free = judge.calm or not contact.failures
        within = NOTICED_CALMLY if is_free and not self._is_crowded else NOTICED_WITHIN
        # Members hear of their own keys by their folder, which an old leader may show.
        within += (judge.plain.behind + self._in_turn) * (claim.of in self._ids)
        limit = began + (seldom + within + contact.patience()) * judge.stretch
        may_see = process.able and not contact.blind and not self.is_forgiven(claim.fence)
        if judge.now > limit and may_see and believed:
            text = f"{claim} is over for {judge.now - claim.gone_since:.2f} s, and its holder can ask"
            judge.convict("noticed", text)

    def _check_deadline(self, claim: Claim, *, believed: bool) -> None:
        """Judge that what a user may have read of a lease still counts.

        No deadline moves back, and none moves on that has passed, whether anybody has looked or not.
        """
        until, before = claim.lease.valid_until, claim.promised_until
        since = claim.process.clock.now() - before
        if believed and math.isfinite(since) and since > ROUNDING and not claim.process.is_behind:
            text = f"{claim} was over {since:.3f} s ago, and goes on by a reply that came too late"
            self._judge.convict("lost for good", text)
        claim.promised_until = max(until, before)
        if believed and until < before - ROUNDING:
            self._judge.convict("lease", f"{claim} ends {before - until:.3f} s before its deadline")

    # -- what is followed

    def follows(self, process: Process, what: str, truth: Callable[[], object]) -> Sighting:
        """Take note of somebody that wants to know how something stands."""
        sighting = Sighting(process, what, truth, self._judge.now)
        self._sightings[sighting] = None
        return sighting

    def follows_no_more(self, sighting: Sighting) -> None:
        """Take note that nobody wants to know it any more."""
        self._sightings.pop(sighting, None)

    def _look_at_sightings(self) -> None:
        judge, index = self._judge, self._judge.cluster.state.store.raft_index
        for sighting in self._sightings:
            process = sighting.process
            if process.core.closing.is_set():
                continue
            if sighting.fades:
                self._look_at_fading(sighting)
            if sighting.is_right(index):
                sighting.wrong_since = math.inf
                continue
            sighting.wrong_since = min(sighting.wrong_since, judge.now)
            contact = self.contact(process.name)
            began = max(sighting.wrong_since, contact.troubled_until, process.awake_since)
            calm = self._undisturbed and not contact.failures
            within = self._seen_calmly if calm else self._seen_surely + contact.patience()
            if process.able and judge.now > began + within * judge.stretch:
                seconds = judge.now - sighting.wrong_since
                text = f"{process.name}'s {sighting.what} is wrong for {seconds:.2f} s: {sighting.told}"
                judge.convict("sight", text)

    def _look_at_fading(self, sighting: Sighting) -> None:
        judge, process = self._judge, sighting.process
        if self._is_own(sighting):
            sighting.know(judge.now)
        elif sighting.is_stale(judge.now, judge.stretch) and process.able:
            text = f"{process.name}'s {sighting.what} is still {sighting.told}, of which it hears nothing"
            judge.convict("sight", text)

    @staticmethod
    def _is_own(sighting: Sighting) -> bool:
        """Return whether it is a process's own leadership."""
        told = sighting.told
        session = cast("tuple[object, ...]", told)[0] if isinstance(told, tuple) else told
        return isinstance(session, str) and sighting.process.core.sessions.get(session) is not None

    # -- calls

    def called(
        self, process: Process, what: str, timeout: float | None, *, gives_back: bool = False
    ) -> PendingCall:
        """Take note of a call that has to end in time; ``gives_back``: it does nothing but that."""
        call = self.due(process, what, timeout)
        call.task, call.limit, call.gives_back = process.running, call.deadline, gives_back
        return call

    def due(self, process: Process, what: str, timeout: float | None) -> PendingCall:
        """Take note of something else that has to come in time."""
        limit = math.inf if timeout is None else process.clock.true(process.clock.now() + timeout)
        call = PendingCall(process, what, limit, lambda: self._judge.now)
        self._calls[call] = None
        return call

    def ended(self, call: PendingCall) -> None:
        """Take note that a call has ended, however it did."""
        self._calls.pop(call, None)

    def asked(self, process: Process) -> int:
        """Return how many requests a process has sent, besides those that keep its sessions."""
        return self._asked[process.name]

    def rests(self, process: Process, *, asked: float) -> None:
        """Judge a process whose users have nothing, and want nothing.

        ``asked``: how many requests it had sent a while ago, as ``asked`` says; infinite for a clean-up then.
        """
        core = process.core
        # Clean-up has places, too, and so has a stuck holder whose client has closed.
        places = 0 if core.reaper.pending or core.closing.is_set() else len(core.tickets)
        sessions, waits = len(list(core.sessions)), ", ".join(map(str, process.link.parked))
        # A renewal that another thread's destroying overtakes has one look at whether the session lives.
        tasks, more = len(process.tasks), self.asked(process) - asked - (process.lag > 0)
        findings = (
            (waits, f"still asks {waits}"),
            (
                more > 0 and self._is_quiet and not core.reaper.pending,
                f"has sent {more:.0f} requests in the last seconds",
            ),
            (tasks > sessions + TASKS_AT_REST, f"has {tasks} tasks for {sessions} sessions"),
            (sessions > self._most_sessions, f"has {sessions} sessions"),
            (places, f"has {places} places in queues of its own threads"),
            (core.calls, f"counts {len(core.calls)} calls"),
            (core.standing, f"counts {len(core.standing)} candidates"),
            *self._miscounted(process),
        )
        for broken, how in findings:
            if broken:
                self._judge.convict("rest", f"{process.name} has nothing to do, and {how}")

    def _miscounted(self, process: Process) -> Iterator[tuple[bool, str]]:
        """Compare a client's counters with what was seen of it; more may have happened than can be seen."""
        stats = process.core.stats()
        for name in ("requests", "failures", "wakeups") if self._is_quiet and not process.foreign else ():
            seen, said = self._counted[process.name, name], getattr(stats, name)
            yield said < seen, f"counts {said} {name}, and had {seen}"

    def runs(self, process: Process, task: SimTask) -> None:
        """Judge a program that begins to wait."""
        if task.thread is not BACKGROUND or task.name == MAKES_A_SESSION:
            return
        # Where requests are slow, each hold that is over may leave one that has yet to hear of its session.
        most = MOST_ALIKE_TASKS * (1 + (self._judge.now < self.troubled(process.name)))
        if (alike := process.runs(task.name)) > most:
            self._judge.convict("rest", f"{process.name} runs {alike} programs at once: {task.name}")

    def is_gone(self, process: Process) -> None:
        """Judge a process whose client has closed some time ago."""
        if process.tasks and process.able:
            tasks = ", ".join(process.tasks)
            self._judge.convict("nothing left", f"{process.name} has closed, and runs {tasks}")

    def look(self) -> None:
        """Judge the calls that go on, and what candidates know."""
        self._look_at_sightings()
        for call in self._calls:
            process = call.process
            # A process that stood still comes to it when it goes on; timers sleep with their machine.
            late = self._judge.now - max(
                call.deadline + process.slept + call.lagged, process.awake_since + call.last
            )
            if late > ENDED_WITHIN and process.able:
                why = "cancelled" if call.cancelled else "over"
                text = f"{process.name} {call.what}: {why} for {late:.3f} s, and still waiting"
                self._judge.convict("in time", text)
                return
