"""Noticing a loss that happens on the server: by blocking queries, off the acquire's path.

Rules
- A hold is watched only once it has lasted a moment: most are released before, and cost nothing here.
- One blocking query per session tells its end to all its holds. One per key tells what operators do to the
  keys that a hold depends on, as long as there are no more than ``MOST_WATCHES`` keys; with more, all of them
  are read in batches every ``BATCH_PERIOD`` seconds: not a connection each, nor an answer each when their
  session ends, to be read before the one that counts. When half as many are left, each has its own query
  again. A session with one hold only is not watched: its keys tell its end.
- Evidence is a 404 on renew after a consistent read, or a consistent read of a key that is newer than the
  fence: without permission a session reads as gone, and an old leader shows old data. Watches read
  consistently, so that no other read has to come between a loss and its news; batches do not, and what they
  show is a suspicion.
- A write by somebody else is no loss as long as the session stays: it is an event.
- No failure of a query is a loss: the lease alone decides how long contact may be missing.
- What waits refers to a hold weakly, and in no frame that outlasts a look: a forgotten hold must be found.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, PermissionDenied, RequestTimeout, SessionNotFound
from consul_coord.events import Overwritten
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.retry import perform
from consul_coord.io import Signal
from consul_coord.models import ReadOptions
from consul_coord.recipes.on_demand import OnDemand
from consul_coord.recipes.session import keeping as sessions
from consul_coord.recipes.watch.batch import BATCH, read_together
from consul_coord.recipes.watch.follow import Follower

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import KVPair, Result, Session
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.hold.kind import KeyWatch
    from consul_coord.recipes.session.keeping import KeptSession

SETTLING = 0.05
"""Seconds that a hold must have lasted before it is watched."""
IDLE_TICKS = 20
"""After so many looks without a new hold the monitor ends; the next hold starts it again."""
MOST_WATCHES = 32
BATCH_PERIOD = 1.0
_CONSISTENT = ReadOptions(consistency="consistent")


class Monitor:
    """Starts what watches the holds of one client."""

    def __init__(self, core: ClientState) -> None:
        self._core = core
        self._fresh: deque[tuple[float, weakref.ref[Grant], KeptSession]] = deque()
        self._batch: dict[tuple[weakref.ref[Grant], KeyWatch], None] = {}
        self._watched: dict[tuple[weakref.ref[Grant], KeyWatch], Signal] = {}
        """The keys that have a query of their own, each with what ends that."""
        self._confirming: dict[str, Signal] = {}
        """The sessions that are just being renewed to see whether they have ended."""
        self._watched_sessions: set[str] = set()
        self._starter = OnDemand(core.host, self._start_watches, has_work=lambda: self._fresh, name="monitor")
        self._reader = OnDemand(
            core.host, self._read_batches, has_work=lambda: self._batch, name="batch monitor"
        )

    def add(self, hold: Grant, kept: KeptSession) -> None:
        """Watch a hold, if it lasts.

        On the acquire's path: wakes the background only when that is at rest.
        """
        self._fresh.append((hold.granted_at + SETTLING, weakref.ref(hold), kept))
        self._starter.start()

    async def _start_watches(self, io: IO) -> None:
        idle = 0
        while idle < IDLE_TICKS:
            await io.sleep(SETTLING)
            idle = 0 if self._fresh else idle + 1
            while self._fresh and self._fresh[0][0] <= io.now():
                _, reference, kept = self._fresh.popleft()
                self._watch(io, reference, kept)

    def _watch(self, io: IO, reference: weakref.ref[Grant], kept: KeptSession) -> None:
        hold = reference()
        if hold is None or hold.ended:
            return
        if not hold.kind.sole and kept.id not in self._watched_sessions:
            self._watched_sessions.add(kept.id)
            io.spawn(lambda io: self._watch_session(io, kept), name=f"watch session {kept.id}")
        for watch in hold.kind.watches(hold):
            if not self._batch and len(self._watched) < MOST_WATCHES:
                self._watch_alone(io, reference, watch)
            else:
                self._read_with_all(reference, watch)

    def _watch_alone(self, io: IO, reference: weakref.ref[Grant], watch: KeyWatch) -> None:
        stop = self._watched[reference, watch] = Signal()
        io.spawn(partial(self._watch_key, reference, watch, stop), name=f"watch {watch.key}")

    def _read_with_all(self, reference: weakref.ref[Grant], watch: KeyWatch) -> None:
        """Have one key more than can be watched read in batches, and all the others with it."""
        watched, self._watched = self._watched, {}
        self._batch |= dict.fromkeys([*watched, (reference, watch)])
        for stop in watched.values():
            stop.set()
        self._reader.start()

    # -- one blocking query per session

    async def _watch_session(self, io: IO, kept: KeptSession) -> None:
        try:
            await self._follow_session(io, kept)
        finally:
            self._watched_sessions.discard(kept.id)

    async def _follow_session(self, io: IO, kept: KeptSession) -> None:
        query = partial(session_endpoint.watch, kept.id, options=_CONSISTENT)
        follower: Follower[Session | None] = Follower(query)
        while self._core.has_holds_of(kept):
            try:
                seen = await follower.next(io, until=kept.over)
                if seen is None:
                    return
                if seen.value is None:
                    # Gone, or not to be read with this token: a renewal tells.
                    await self._confirm(io, kept)
                    return
            except (PermissionDenied, SessionNotFound):
                return
            except ConsulCoordError:
                await follower.pause(io)

    # -- one blocking query per key

    async def _watch_key(self, reference: weakref.ref[Grant], watch: KeyWatch, stop: Signal, io: IO) -> None:
        try:
            await self._follow_key(io, reference, watch, stop)
        finally:
            # Meanwhile the key may have been read with others, and got another watch.
            if self._watched.get((reference, watch)) is stop:
                del self._watched[reference, watch]

    async def _follow_key(self, io: IO, reference: weakref.ref[Grant], watch: KeyWatch, stop: Signal) -> None:
        hold = reference()
        if hold is None:
            return
        hold.over.subscribe(stop.set)
        query = partial(kv.watch, watch.key, options=_CONSISTENT)
        follower: Follower[KVPair | None] = Follower(query, index=watch.index)
        del hold  # a watch must not keep a forgotten hold alive
        while not stop.is_set():
            try:
                seen = await follower.next(io, until=stop)
                if seen is None:
                    return
                await self._judge(io, reference, watch, seen.value, consistent=seen)
            except PermissionDenied:
                return
            except ConsulCoordError:
                await follower.pause(io)

    # -- many keys in one transaction

    async def _read_batches(self, io: IO) -> None:
        while self._batch:
            await io.sleep(BATCH_PERIOD)
            self._batch = {entry: None for entry in self._batch if _lasts(entry[0])}
            if len(self._batch) <= MOST_WATCHES // 2:
                alone, self._batch = self._batch, {}
                for entry in alone:
                    self._watch_alone(io, *entry)
                return
            entries: defaultdict[str, list[tuple[weakref.ref[Grant], KeyWatch]]] = defaultdict(list)
            for reference, watch in self._batch:
                entries[watch.key].append((reference, watch))
            keys = list(entries)
            for start in range(0, len(keys), BATCH):
                part = keys[start : start + BATCH]
                try:
                    found = await read_together(io, part, timeout=self._core.timeout)
                except ConsulCoordError:
                    continue
                for reference, watch in (entry for key in part for entry in entries[key]):
                    # What can't be made sure of now can be at the next reading.
                    with suppress(ConsulCoordError):
                        await self._judge(io, reference, watch, found.get(watch.key))

    # -- evidence

    async def _judge(
        self,
        io: IO,
        reference: weakref.ref[Grant],
        watch: KeyWatch,
        pair: KVPair | None,
        *,
        consistent: Result[KVPair | None] | None = None,
    ) -> None:
        """Take note of a reading of a key; a ``consistent`` one is evidence.

        Raises what stands in the way of making sure.
        """
        hold = reference()
        if hold is None or hold.ended:
            return
        if watch.loss(pair) is not None:
            if consistent is None:
                await self._make_sure(io, hold, watch)
            else:
                await self._conclude(io, hold, watch, consistent)
        elif pair is not None and watch.key == hold.key:
            self._note_write(io, hold, pair.modify_index)

    def _note_write(self, io: IO, hold: Grant, index: int) -> None:
        if index > max(hold.last_index, hold.overwritten_at) and not hold.writing:
            hold.overwritten_at = index
            io.emit(Overwritten(hold.key, hold.session, index))

    async def make_sure(self, io: IO, hold: Grant) -> None:
        """End the hold if a consistent reading of what it depends on shows that it has ended."""
        for watch in hold.kind.watches(hold):
            await self._make_sure(io, hold, watch)

    async def _make_sure(self, io: IO, hold: Grant, watch: KeyWatch) -> None:
        result = await perform(
            io,
            kv.get(watch.key, options=_CONSISTENT),
            deadline=self._limit(io, hold),
            attempt=self._core.timeout,
        )
        await self._conclude(io, hold, watch, result)

    def _limit(self, io: IO, hold: Grant) -> float:
        return min(hold.lease.valid_until, io.now() + self._core.timeout)

    async def _conclude(self, io: IO, hold: Grant, watch: KeyWatch, result: Result[KVPair | None]) -> None:
        """End the hold if a consistent reading, just made, shows that it has ended."""
        pair = result.value
        loss = watch.loss(pair)
        if loss is None:
            return
        if (result.index if pair is None else pair.modify_index) < hold.fence:
            return  # older than the grant: no evidence
        kept = self._core.session_of(hold)
        if kept is not None:
            # SessionNotFound has ended the hold; whatever else is raised, the key itself is evidence enough.
            with suppress(ConsulCoordError):
                await self._confirm(io, kept)
        hold.lose(loss)

    async def _confirm(self, io: IO, kept: KeptSession) -> None:
        """End the session if it has ended on the server, right after a consistent read; asked once at a time.

        Raises SessionNotFound if so, and what stands in the way of knowing.
        """
        deadline = min(kept.lease.valid_until, io.now() + self._core.timeout)
        last = kept.lease.sent_at
        while (confirming := self._confirming.get(kept.id)) is not None:
            if not await io.wait(confirming, deadline=deadline):
                message = f"no renewal of session {kept.id} was answered in time"
                raise RequestTimeout(message, method="PUT", path="/v1/session/renew", outcome_unknown=False)
            if kept.lease.ended_by is not None or kept.lease.sent_at != last:
                return
            # Who asked got no answer: the next one asks.
        mine = self._confirming[kept.id] = Signal()
        try:
            await sessions.renew(io, self._core, kept, deadline=deadline, caught_up=True)
        finally:
            del self._confirming[kept.id]
            mine.set()


def _lasts(reference: weakref.ref[Grant]) -> bool:
    """Return whether somebody has the hold, and it has not ended."""
    hold = reference()
    return hold is not None and not hold.ended
