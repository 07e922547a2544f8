"""The rules of a key that one client at a time may hold: a lock, or a leadership.

Rules
- At most one process relies on a hold at the same true time, and while it does, no other session has the key.
  After the end of its session, the key may be free until its lock-delay is over.
- Fences rise in the order of the grants, and a resource that has seen a later one never refuses a process
  that relies on its hold. A leadership's fence is its term.
- Among the waiters, the key goes to the first, or to the heir that a leader has named. No client with a fair
  lock goes past them, as far as the token may read and write the queue. Neither does one that had to wait, or
  passed others, when it came last, until it has found nobody there.
- A leader names an heir, which queues at that moment.
- An heir that queues is let go first while its note is young, and gets the key at once if it is able to.
- A lock of several keys knows of no queue, so none of that is asked of it; of each of its keys all else is.
- A candidate of low priority queues only for a key that nobody has held for its delay.
- Exempt from all of these is a client that was refused the queue, and barges since. For it there is no queue,
  and its contender may still stand, because it may not delete that either. No other request is exempt.
- A member or an owner of a partition that gives its key back deletes it, unless an operator has written it.
- At the end no client holds the key, and its queue is empty. Keys that no session holds there (dead
  contenders, a leader's notes) may stay when a client may not see or write the queue any more.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.election import notes
from consul_coord.testing.simulation.rules import Rules
from consul_coord.testing.simulation.trace import short

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.server.records import Entry
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.shapes import Shape


HONOURED = 5.0
"""Seconds for which an heir is let go first, as documented."""
PRIORITY_DELAY = 0.5
"""Seconds of vacancy that a candidate of low priority waits for."""
_SECOND = 2
_YOUNG = 0.9
"""The part of such a time that has surely not passed on anybody's clock."""
_REMEMBERED = 64
"""So many changes of a queue are known."""
_SINCE_ITS_LOOK = 0.2
"""Seconds, at most, from a reading of the queue to the request that follows from it."""


@dataclass(frozen=True, slots=True)
class Before:
    """A key and its queue as they were just before a request."""

    holder: str
    live: tuple[str, ...]
    heir: str
    named_at: int
    """The index at which the heir was named."""


class KeyRules(Rules):
    """The view of one key."""

    def __init__(self, judge: Judge, cluster: Cluster, name: str, *, is_removed: bool = False) -> None:
        super().__init__(judge, cluster, name)
        self._is_removed = is_removed
        """Whether who gives it back deletes it: a member, or a partition."""
        self._is_overwritten = False
        """Whether an operator has written it since it was given last: it is kept then."""
        self._given: list[tuple[int, str]] = []
        """The index of each change of hands, and the session that got the key."""
        self._queue: tuple[str, ...] = ()
        self._queues: deque[tuple[float, tuple[str, ...]]] = deque(maxlen=_REMEMBERED)
        """The latest queues, each with the time until which it stood so."""
        self._left_at: dict[str, float] = {}
        """When a session of each process left the queue last, also if it had come just before."""
        self._came_at: dict[str, float] = {}
        """When each session came to the queue last."""
        self._directory = waitqueue.directory(name)
        self._vacant = [(0.0, math.inf)]
        """Since when nobody has held it, and until when: the last two times."""
        self._heir: tuple[int, str] = (0, "")
        """The heir's note: its index, and whom it names."""
        self._made_at = math.inf
        """When the key was made; infinite while it is not there."""
        self._taken_together_at = -math.inf
        """When somebody took it with other keys last."""
        self._stray: set[str] = set()
        """The sessions whose contender was made while they held the key: a late copy of a request."""
        self._crowded: dict[str, float] = {}
        """When each client has waited in the queue, or passed it, that has not found it empty since."""
        self._joined: dict[str, str] = {}
        """The client that has queued with each session."""
        self._passing: dict[str, float] = {}
        """When each client has passed the queue by a request whose answer its call may not have got."""
        self._latest_join = 0
        """The index of the last contender that was made."""
        self._shown: set[tuple[str, bytes]] = set()
        """The sessions that had the key, each with the values that it had then."""
        self._named_at: dict[str, float] = {}
        """When each session was named the heir last."""
        self._named_since = self._first_since = 0.0
        """Since when that is so, and since when the first of the queue has been first."""

    @property
    def has_register(self) -> bool:
        """Whether writes under its fences are ordered by them."""
        return True

    def before(self, shape: Shape) -> Before:  # noqa: ARG002 - one of Rules
        """Return the state that a request finds."""
        note = self.cluster.entry(notes.heir_key(self.name))
        heir = "" if note is None else note.value.decode()
        named_at = 0 if note is None else note.modify_index
        return Before(self.cluster.holder(self.name), self._live(), heir, named_at)

    def overwritten(self) -> None:
        """Take note that an operator writes what is held."""
        super().overwritten()
        self._is_overwritten = True

    def _live(self) -> tuple[str, ...]:
        live = [
            (entry.create_index, entry.session)
            for entry in self.cluster.under(self._directory)
            if entry.key == self._directory + entry.session
        ]
        self._latest_join = max(self._latest_join, *(index for index, _ in live), 0)
        return tuple(session for _, session in sorted(live))

    def after(self, who: str, shape: Shape, before: Before) -> None:
        """Judge who has got the key."""
        holder = self.cluster.holder(self.name)
        entry = self.cluster.entry(self.name)
        self._check_given_back(who, shape, before)
        if holder == before.holder or not holder or entry is None:
            return
        last = self._given[-1][0] if self._given else 0
        self._given.append((entry.modify_index, holder))
        self._is_overwritten = False
        if shape.name == "several":
            self._taken_together_at = self.judge.now
            self.judge.see("several keys taken past a queue" if before.live else "several keys taken")
            return
        process = self.judge.process(who)
        barges = shape.name == "barge"
        queues = process is None or not process.goes_without_queue(self.name)
        if not queues and not self.cluster.refuses:
            self.judge.convict("order", f"{who} goes without the queue of {self.name}, which it may use")
        if holder in before.live and before.live[0] != holder and (queues or not barges):
            if holder == before.heir:
                self.judge.see("heir elected")
            elif not self._stray.issuperset(before.live[: before.live.index(holder)]):
                queue = ", ".join(map(short, before.live))
                self.judge.convict(
                    "order", f"{who} got {self.name} by {short(holder)}, out of the order {queue}"
                )
        if queues and self._is_passed(before, holder, since=last):
            text = f"{who} got {self.name} past {short(before.heir)}, which had just been named as the heir"
            self.judge.convict("order", text)
        fair = process is not None and process.fair and (queues or not barges)
        if fair and before.live and holder not in before.live:
            text = f"{who}'s lock is fair, and went past {short(before.live[0])} to {self.name}"
            self.judge.convict("fairness", text)

        if barges and process is not None and queues:
            passed = tuple(one for one in before.live if one != holder and self._was_to_be_seen(one))
            self._check_barge(process, passed=passed)

    def _check_given_back(self, who: str, shape: Shape, before: Before) -> None:
        """Judge what is left of a key that has just been given back, if that is so."""
        entry = self.cluster.entry(self.name)
        is_free = shape.name == "unlock" and before.holder and entry is not None and not entry.session
        if is_free and self._is_removed and not self._is_overwritten and entry is not None:
            self.judge.convict("nothing left", f"{who} gives {self.name} back, and leaves {entry.value!r}")

    def _was_to_be_seen(self, session: str) -> bool:
        """Return whether a session queued when a client that takes the key now looked at the queue."""
        looked_at = self.judge.now - _SINCE_ITS_LOOK
        return all(session in queue for until, queue in self._queues if until >= looked_at)

    def _check_barge(self, process: Process, *, passed: tuple[str, ...]) -> None:
        """Judge a client that takes the key without queueing."""
        since = self._crowded.pop(process.name, None)
        if passed and since is not None and not self.judge.answers.excused(process, since=since):
            text = f"{process.name} goes past {short(passed[0])} to {self.name}, and had met others there"
            self.judge.convict("fairness", text)
        self._passing.pop(process.name, None)
        if passed:
            self._passing[process.name] = self.judge.now

    def granted(self, claim: Claim) -> None:
        """Judge a new claim. A client whose call was cancelled instead need not know whom it has passed."""
        super().granted(claim)
        passed_at = self._passing.pop(claim.process.name, None)
        if passed_at is not None:
            self._crowded[claim.process.name] = passed_at

    def _is_passed(self, before: Before, holder: str, *, since: int) -> bool:
        """Return whether an heir that counts, and has queued all the time, was not let go first."""
        queues = self.cluster.entry(self._directory + before.heir)
        return (
            self.judge.prompt
            and queues is not None
            and queues.create_index < before.named_at
            and before.heir in before.live
            and holder != before.heir
            and before.named_at > since
            and self.judge.now < self._named_since + HONOURED * _YOUNG / (1 + self.judge.skew)
        )

    def joined(self, who: str, session: str, *, heard: bool) -> None:
        """Judge a client that queues. Without the reply (``heard``), it does not know the other waiters."""
        # One that found no key a moment ago joins without reading it once more.
        read = self.judge.now > self._made_at + _SINCE_ITS_LOOK
        is_held = read and self.cluster.holder(self.name) not in {"", session}
        meets_others = is_held or any(one != session for one in self._live())
        if heard and meets_others:
            self._crowded[who], self._joined[session] = self.judge.now, who
        elif heard:
            self._crowded.pop(who, None)
        process = self.judge.process(who)
        if process is None or not self.judge.prompt:
            return
        if self.judge.now < process.aside.get(self.name, 0.0):
            self.judge.convict("order", f"{who} has resigned for a while, and queues for {self.name}")
        if self.name not in process.modest or not self.judge.prompt:
            return
        now, delay = self.judge.now, PRIORITY_DELAY * _YOUNG / (1 + self.judge.skew)
        # Another may have been faster since it looked, and may even have resigned again.
        in_time = any(
            min(until, now) - since >= delay and now <= until + _SINCE_ITS_LOOK
            for since, until in self._vacant
        )
        # A key that is not there tells nobody that it was held meanwhile.
        if not in_time and now > self._made_at + _SINCE_ITS_LOOK and session not in self._queue:
            since, until = self._vacant[-1]
            vacant = min(until, now) - since
            text = f"{who} is of low priority, and queues for {self.name}, vacant for {vacant:.3f} s"
            self.judge.convict("order", text)

    def has_queued_since(self, session: str, since: float) -> bool:
        """Return whether a session has queued all the time since then."""
        queues = [*(queue for until, queue in self._queues if until >= since), self._queue]
        return all(session in queue for queue in queues)

    def left_at(self, process: Process) -> float:
        """Return when a session of a process, which it took care of, left the queue last."""
        return self._left_at.get(process.name, -math.inf)

    def came_at(self, session: str) -> float:
        """Return when a session came to the queue last; infinite if it never did."""
        return self._came_at.get(session, math.inf)

    def is_unchanged_since(self, since: float) -> bool:
        """Return whether nobody has come or gone since then."""
        return not any(until >= since for until, _ in self._queues)

    def heir_named_at(self, session: str) -> float:
        """Return when a session was named the heir last, as far as can be seen."""
        if self._heir[1] == session:
            return self.judge.now  # to name it again changes nothing
        return self._named_at.get(session, -math.inf)

    @property
    def queue(self) -> tuple[str, ...]:
        """The sessions that wait, the first one first."""
        return self._queue

    def was_given(self, session: str, fence: int) -> bool:
        """Return whether it was the session's turn when the key had this index."""
        # Somebody may have written to the key before its new holder read the index.
        return next((own for index, own in reversed(self._given) if index <= fence), "") == session

    def has_now(self, session: str, fence: int) -> bool:
        """Return whether the session has the key, and nobody got it after this fence."""
        return self.cluster.holder(self.name) == session and fence >= self._given[-1][0]

    def is_known_to(self, session: str) -> bool:
        """Return whether the client that acts as the session, which has the key, must know that it has it.

        It knows what it was granted, unless the answer is under way. A session that it has resumed may hold
        more than it has asked for.
        """
        claim = self.claim(self._given[-1][0])
        is_left = claim is not None and claim.session == session and claim.exported
        return not is_left and self.judge.now > self._taken_together_at + _SINCE_ITS_LOOK

    def led_by(self) -> tuple[str, int, bytes, int] | None:
        """Return the session that has the key, since which index, and the key's value and index; or None.

        The first index is 0 where nobody can be sure of it.
        """
        entry = self.cluster.entry(self.name)
        if entry is None or not entry.session:
            return None
        term = self._given[-1][0] if self.judge.shows_terms else 0
        return entry.session, term, entry.value, entry.modify_index

    def is_relied_on(self, session: str) -> bool:
        """Return whether a client relies on having the key by a session."""
        return any(claim.session == session and claim.believed() for claim in self.claims)

    def showed(self, session: str, value: bytes) -> bool:
        """Return whether the key ever had this value while the session had it."""
        return (session, value) in self._shown

    def stands(self, claim: Claim) -> bool:
        """Return whether the session has the key."""
        return self.cluster.holder(self.name) == claim.session

    def holders(self) -> frozenset[str]:
        """Return the session that has the key, an empty one if none has."""
        return frozenset({self.cluster.holder(self.name)})

    def check_belief(self, believed: list[Claim]) -> None:
        """Judge which processes rely on a hold at this moment."""
        if len(believed) > 1:
            self.judge.convict("exclusion", " and ".join(map(str, believed)))
        for claim in believed:
            holder = self.cluster.holder(self.name)
            # Of a session that has ended, the key may be free until its lock-delay is over.
            delayed = not self.cluster.lives(claim.session) and self.cluster.in_lock_delay(self.name)
            if holder != claim.session and (holder or not delayed):
                who = f"{short(holder)} has the key" if holder else "anybody could have the key"
                self.judge.convict("exclusion", f"{claim} is relied on, and {who}")

    def had_place(self, session: str, place: int, *, since: float) -> bool:
        """Return whether a session has had a place in the queue since then, counted from 1."""
        if len(self._queues) == _REMEMBERED and self._queues[0][0] > since:
            return True  # that is not known any more
        recent = [queue for until, queue in self._queues if until >= since]
        recent.append(self._queue)
        heirs = {heir for heir, at in self._named_at.items() if at >= since - HONOURED * self.judge.stretch}
        # An heir is first while it is let go first, and the first one second.
        if place == 1 and session in heirs:
            return True
        yields = place == _SECOND and any(queue[:1] == (session,) and heirs & set(queue) for queue in recent)
        return yields or any(queue[place - 1 : place] == (session,) for queue in recent)

    def _check_term(self, entry: Entry | None) -> None:
        """Judge the note of the present leader's term, which is read instead of the key's own index."""
        note = self.cluster.entry(notes.term_key(self.name))
        session, _, term = ("", "", "") if note is None else note.value.decode().partition(" ")
        if entry is not None and session == entry.session and term.isdecimal() and self.judge.shows_terms:
            given = self._given[-1][0] if self._given else 0
            if int(term) < given:
                text = f"the note of {self.name} names term {term}, and {short(session)} got it at {given}"
                self.judge.convict("sight", text)

    def check_queue(self) -> None:
        """See who queues, after something was written."""
        now, held = self.judge.now, bool(self.cluster.holder(self.name))
        entry = self.cluster.entry(self.name)
        if entry is not None and entry.session:
            self._shown.add((entry.session, entry.value))
        if entry is None:
            self._made_at = math.inf
        elif math.isinf(self._made_at):
            self._made_at = now
        since, until = self._vacant[-1]
        if held and math.isinf(until):
            self._vacant[-1] = (since, now)
        elif not held and math.isfinite(until):
            self._vacant = [self._vacant[-1], (now, math.inf)]
        note = self.cluster.entry(notes.heir_key(self.name))
        heir = (note.modify_index, note.value.decode()) if note is not None else (0, "")
        self._check_term(entry)
        before, self._queue = self._queue, self._live()
        if heir != self._heir:
            self._check_naming(heir)
            self._heir, self._named_since = heir, now
            self._named_at[heir[1]] = now
        if before[:1] != self._queue[:1]:
            self._first_since = now
        self._stray &= set(self._queue)
        self._stray |= {self.cluster.holder(self.name)} & (set(self._queue) - set(before))
        if before != self._queue:
            self._queues.append((now, before))
            self._came_at |= dict.fromkeys({*self._queue} - {*before}, now)
            left = map(self.judge.carer, {*before} - {*self._queue})
            self._left_at |= {process.name: now for process in left if process is not None}
            self._given_up({*before} - {*self._queue, self.cluster.holder(self.name)})
            self.note_dead(before, in_lock_delay=self.cluster.in_lock_delay(self.name))

    def _given_up(self, sessions: Iterable[str]) -> None:
        """Forget that a client has met others, if its call may have ended before the join was answered."""
        for session in sessions:
            who = self._joined.pop(session, "")
            if self.judge.now < self._crowded.get(who, -math.inf) + _SINCE_ITS_LOOK:
                del self._crowded[who]

    def _check_naming(self, heir: tuple[int, str]) -> None:
        """Judge a new note: who leads names one who queues."""
        index, session = heir
        if index <= self._heir[0]:
            return  # deleted, or brought back by a snapshot
        if not self.cluster.holder(self.name):
            self.judge.convict("order", f"{short(session)} is named heir of {self.name}, and nobody leads")
        elif session not in self._queue:
            text = f"{short(session)} is named heir of {self.name}, and does not queue"
            self.judge.convict("order", text)

    def waited_for(self) -> str:
        """Return who is first in the queue for a key that is free."""
        if not self._queue or self.cluster.holder(self.name) or self.cluster.in_lock_delay(self.name):
            return ""
        index, heir = self._heir
        # Each head honours the note for as long, from when it first reads it.
        read_at = max(self._named_since, self._first_since)
        if heir in self._queue and self.judge.now < read_at + HONOURED * self.judge.stretch:
            first = heir if not self._given or index > self._given[-1][0] else ""
        else:
            first = self._queue[0]
        return first if first and self.judge.in_care(first) else ""

    def check_left(self) -> None:
        """Judge what is left at the end."""
        if holder := self.cluster.holder(self.name):
            self.judge.convict("nothing left", f"{self.name} is locked by {short(holder)} for nobody")
        # What the dead have left there, and leaders have noted, the next one to queue deletes, if it may.
        spared = self.judge.any_without_queue(self.name)
        for entry in self.cluster.under(self._directory):
            if entry.key == notes.term_key(self.name) and not spared:
                self.judge.convict("nothing left", f"{entry.key} tells the term of nobody")
            if not entry.session and (spared or entry.modify_index > self._latest_join):
                continue
            self.judge.convict("nothing left", f"{entry.key} of {short(entry.session)} queues for nobody")
