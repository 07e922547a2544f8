"""Users who watch: the members of a group, the leader of an election, or what plain calls are about.

Rules
- Soon after each change, a watch has given the present state, as long as its client can ask.
- A watch ends at once when its user ends it, or with the error of a refusal. Some users only ask no more.
- A watch gives no state twice in a row. The members that it names as new, gone or changed are exactly those
  that differ from the state before.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from consul_coord.errors import DecodeError, PermissionDenied, ResponseError, SessionCheckFailed
from consul_coord.http.endpoints import kv, session
from consul_coord.http.endpoints.session import NO_SESSION
from consul_coord.http.failures import retryable
from consul_coord.io import Signal
from consul_coord.recipes.election import leader
from consul_coord.recipes.election.leader import LeaderFollower
from consul_coord.recipes.group.follow import MembersFollower
from consul_coord.recipes.watch.follow import Follower
from consul_coord.testing.simulation.call_rules import session_kept, session_shown, shown
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.holding import Holder
from consul_coord.testing.simulation.views import View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consul_coord.io import IO
    from consul_coord.models import LeaderInfo
    from consul_coord.models.group import Member, Members
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.key_rules import KeyRules
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.promises import PendingCall, Sighting
    from consul_coord.testing.simulation.sharing import Sharing

StateKind: TypeAlias = Literal["key", "tree", "session"]
LONGEST = 8.0
"""Seconds for which a watch lasts, at most."""
VERY_LONG, LONG_SHARE = 40.0, 0.3
"""The same of some watches, which end when all is healed, and how many they are: nothing else than news shows
them what they have missed."""
ASKS_SHARE = 0.3
"""After so many of the news a watcher asks, besides."""
SLOW, SLOW_SHARE = 9.0, 0.15
"""After so many of the news a watcher is busy, for up to so many seconds."""
DROPS_SHARE = 0.1
"""After so many it asks for no more without saying so, like a user who leaves a loop."""
CALM_WATCH = 4.0
"""The same where all is well."""


class Watcher(Holder):
    """A user who watches something, in one process."""

    def __init__(self, process: Process, of: str, *, healed: Callable[[], bool]) -> None:
        super().__init__(process, f"watches {of}", healed=healed)
        self.of = self.asks_about = of
        self._slow = Dice(process.seed, f"{process.name} {of} is slow")

    @abstractmethod
    def follower(self) -> Follower[Any]:
        """Return what watches it."""

    @abstractmethod
    def truth(self) -> object:
        """Return what a watch should show by now."""

    @abstractmethod
    def shown(self, found: Any, before: Any | None) -> object:  # noqa: ANN401 - what is watched
        """Judge what a watch has given after ``before``, and return it in the form of ``truth``."""

    async def run(self, io: SimIO) -> None:
        """Watch now and then, until the world is healed."""
        while not self.healed():
            longest = VERY_LONG if self.more.chance(LONG_SHARE) else LONGEST
            await self._watch(io, self.rng.uniform(0.0, longest))
            await io.sleep(self.rng.uniform(0.0, 2.0))

    async def calm_rounds(self, io: SimIO) -> None:
        """Watch while others take their turns."""
        await self._watch(io, CALM_WATCH)

    async def _watch(self, io: SimIO, seconds: float) -> None:
        process, promises, over = self.process, self.judge.promises, Signal()
        what = f"watches {self.of}, and is stopped"
        calls: list[PendingCall] = []

        def stop() -> None:
            over.set()
            for call in calls:
                call.cancel()

        follower, before = self.follower(), None
        follower.bound = process.core.watches
        sighting = promises.follows(process, f"watch of {self.of}", self.truth)
        call_off = self._in_time(stop, seconds)
        try:
            while not over.is_set():
                calls[:] = [promises.called(process, what, None)]
                try:
                    found = await process.call(io.task, partial(follower.change, until=over))
                finally:
                    promises.ended(calls.pop())
                if found is not None:
                    self._take(sighting, found.value, before)
                    before = [found.value]
                    if not await self._goes_on(io):
                        return
                    sighting = await self._be_busy(io, over, sighting)
                elif not over.is_set():
                    self.judge.convict(
                        "sight", f"{process.name}'s watch of {self.of} ends, and nobody has ended it"
                    )
        except (PermissionDenied, SessionCheckFailed):
            self.judge.see("watch refused")
        except (ResponseError, DecodeError) as error:
            if retryable(error) or not self.judge.plain.odd:
                raise
            self.judge.see("watch refused")
        finally:
            call_off()
            promises.follows_no_more(sighting)

    async def _be_busy(self, io: SimIO, over: Signal, sighting: Sighting) -> Sighting:
        """Ask for no news for a while, perhaps: the watch has to report what comes meanwhile afterwards."""
        promises = self.judge.promises
        if not self._slow.chance(SLOW_SHARE):
            return sighting
        promises.follows_no_more(sighting)
        await io.wait(over, deadline=io.now() + self._slow.uniform(0.0, SLOW))
        again = promises.follows(self.process, sighting.what, self.truth)
        again.told = sighting.told
        return again

    async def _goes_on(self, io: SimIO) -> bool:
        """Do what a user does between two news; returns whether he wants the next one."""
        self.judge.see("watched")
        if self.rng.chance(ASKS_SHARE):
            await self._look_round(io, self.of)
        if self.more.chance(DROPS_SHARE):
            self.judge.see("watch dropped")
            return False
        return True

    def _in_time(self, stop: Callable[[], object], seconds: float) -> Callable[[], None]:
        """Have a watch stopped after so long, or when all is healed if that is very long.

        Returns how to call that off.
        """
        call_off: Callable[[], None]

        def wait(left: float) -> None:
            nonlocal call_off
            part = min(left, LONGEST)
            call_off = self.process.alarm(
                self.process.clock.now() + part,
                stop if left <= LONGEST or self.healed() else partial(wait, left - part),
            )

        def call_off_now() -> None:
            call_off()

        wait(seconds)
        return call_off_now

    def _take(self, sighting: Sighting, value: Any, before: list[Any] | None) -> None:  # noqa: ANN401 - as above
        if before is not None and before[0] == value:
            self.judge.convict("sight", f"{self.process.name}'s watch of {self.of} says twice: {value}")
        sighting.told = self.shown(value, None if before is None else before[0])


class StateWatcher(Watcher):
    """A user who watches a key, a tree of keys, or a session, as the client's plain calls do."""

    def __init__(
        self, process: Process, of: str, *, healed: Callable[[], bool], kind: StateKind = "key"
    ) -> None:
        super().__init__(process, of, healed=healed)
        self._kind: StateKind = kind
        self._session = NO_SESSION

    def follower(self) -> Follower[Any]:
        """Return what watches it."""
        if self._kind == "session":
            living = list(self.judge.plain.past.present.sessions)
            self._session = self.rng.choice(living) if living else NO_SESSION
            return Follower(partial(session.watch, self._session))
        return Follower(partial(kv.watch if self._kind == "key" else kv.watch_tree, self.of))

    def truth(self) -> object:
        """Return it as the servers have it."""
        cluster = self.judge.cluster
        match self._kind:
            case "key":
                return shown(cluster.entry(self.of))
            case "tree":
                return [*map(shown, cluster.under(self.of))]
            case _:
                return session_kept(cluster.state.store.sessions.rows.get(self._session))

    def shown(self, found: Any, before: Any | None) -> object:  # noqa: ANN401, ARG002 - see Watcher
        """Return what a watch has given."""
        match self._kind:
            case "key":
                return shown(found)
            case "tree":
                return [*map(shown, found)]
            case _:
                return session_shown(found)


def led(process: Process, key: str) -> View:
    """Return the question who leads, since when, and with which value."""

    async def ask(io: IO) -> object:
        info = await leader.leader(io, process.core, key)
        found, truth = _leader(info, rules), rules.led_by()
        if info is not None and info.node is None and rules.judge.knows_nodes(info.session):
            text = f"{process.name} asks who leads {key}, and does not hear on which node {info.session} is"
            rules.judge.convict("answers", text)
        if found is not None and truth is not None and not rules.is_relied_on(found[0]):
            # A leader that knows of its end has removed the note of its term, and may have the key yet.
            return (found[0], truth[1], *found[2:])
        return found

    def truth(_: Cluster) -> object:
        return rules.led_by()

    rules = process.judge.keys[key]
    return View(f"asks who leads {key}", ask, truth, requests=2)


def _leader(found: LeaderInfo | None, rules: KeyRules) -> tuple[str, int, bytes, int] | None:
    """Return a leader in the form of ``KeyRules.led_by``."""
    if found is None:
        return None
    return found.session, found.term if rules.judge.shows_terms else 0, found.value, found.since_index


class LeaderWatcher(Watcher):
    """A user who watches the leader of an election."""

    def follower(self) -> LeaderFollower:
        """Return what watches it."""
        return LeaderFollower(self.of)

    def truth(self) -> object:
        """Return the leader, its term, what it advertises, and since when."""
        return self.judge.keys[self.of].led_by()

    def shown(self, found: LeaderInfo | None, before: LeaderInfo | None) -> object:  # noqa: ARG002 - see Watcher
        """Return what a watch has given."""
        return _leader(found, self.judge.keys[self.of])

    def views(self, of: str) -> Sequence[View]:
        """Ask who leads."""
        return (led(self.process, of),)


class GroupWatcher(Watcher):
    """A user who watches the members of a group."""

    def __init__(self, process: Process, sharing: Sharing, *, healed: Callable[[], bool]) -> None:
        super().__init__(process, sharing.prefix, healed=healed)
        self._sharing = sharing

    def follower(self) -> MembersFollower:
        """Return what watches it."""
        return MembersFollower(self._sharing.group)

    def truth(self) -> object:
        """Return the members, the longest one first."""
        return self._sharing.members(self.judge.cluster)

    def shown(self, found: Members, before: Members | None) -> object:
        """Judge what is said to have changed."""
        then, now = set(map(_known, before.all if before else ())), set(map(_known, found.all))
        same = {who for who, _ in then} & {who for who, _ in now}
        changes = {
            "new": (found.joined, {one for one in now if one[0] not in same}),
            "gone": (found.left, {one for one in then if one[0] not in same}),
            "changed": (found.changed, {one for one in now - then if one[0] in same}),
        }
        for what, (said, right) in changes.items():
            if sorted(map(_known, said)) != sorted(right):
                text = f"{self.process.name}'s watch of {self.of} says that {said} are {what}, not {right}"
                self.judge.convict("sight", text)
        return [(one.id, one.session, one.value) for one in found.all]


def _known(member: Member) -> tuple[tuple[str, str, int], bytes]:
    """Return which membership it is, and the value that it shows."""
    return (member.id, member.session, member.since_index), member.value
