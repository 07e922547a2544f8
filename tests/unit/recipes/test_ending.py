"""A watch goes on after a failure, and ends as soon as it is told to, whatever it asks or waits for then.

Each row is a watch: what begins it, what ends it, and what it asks, in order. Each of its requests hangs in
one of the tests, and each fails in another one: then the watch pauses, and is told to end in the pause, or
when it has asked again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.http.endpoints import kv
from consul_coord.models import SessionSpec
from consul_coord.models.group import GROUP_FLAGS
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend.changes import Changes
from consul_coord.recipes.election.following import Following
from consul_coord.recipes.election.leader import LeaderFollower
from consul_coord.recipes.partition.partitioning import Partitioning
from consul_coord.recipes.watch.follow import Follower
from tests.support.counted import Counted
from tests.support.fake_io import FakeIO, Step
from tests.support.plans import GROUP, PARTITIONS
from tests.support.replies import OTHER, entry, ok, pairs, refusal, session, txn_done

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consul_coord.http.messages import Response

HANGS = 50.0
"""Seconds that a reply takes."""
SOON = 0.01
"""Seconds after which the watch is told to end: in the shortest pause, or while a reply is due."""
LATER = 5.0
"""Seconds after which a watch is told to end that has gone on after a pause."""
KEY, SESSION_INFO, TXN = "/v1/kv/k", "/v1/session/info/", "/v1/txn"


class Begun:
    """A client, and one watch of it that has not run yet."""

    def __init__(self) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(ttl=15.0), timeout=10.0)
        self.until = Counted()
        self.signals = [self.until]
        self.program: Coroutine[Any, Any, object]
        self.ends = 0.0
        """When it is told to end."""

    def have_renewal_due(self) -> None:
        """Have a session whose renewal is due just now, which nobody makes."""
        self.io.expect("PUT", "/v1/session/create", ok({"ID": OTHER}))
        kept = self.io.run(self.core.sessions.shared.live(self.io, deadline=1010.0))
        self.io.time = kept.due
        kept.renewed = Counted()
        self.signals.append(kept.renewed)

    def ends_in_time(self) -> None:
        """Run the watch to its end, which comes as it is told to, and leaves nothing."""
        self.io.run(self.program)
        assert self.io.time == self.ends
        assert not self.io.steps, "a request was not made"
        assert [signal.listening for signal in self.signals] == [0] * len(self.signals)


def following(begun: Begun, follower: Follower[Any], *, bound: bool = True) -> None:
    """Have a user's watch show what comes, until it is closed."""
    if bound:
        follower.bound = begun.core.watches

    async def show() -> None:
        while await follower.change(begun.io, until=begun.until) is not None:
            pass

    begun.program = show()


def of_a_key(begun: Begun, *, bound: bool = True) -> None:
    following(begun, Follower(partial(kv.watch, "k")), bound=bound)


def of_a_leader(begun: Begun) -> None:
    following(begun, LeaderFollower("k"))


def of_a_candidate(begun: Begun) -> None:
    """A candidate that tells of each leader follows the key beside its own attempts."""
    following = Following(
        begun.core,
        "k",
        own=lambda: None,
        changes=Changes(),
        stopping=begun.until,
        tell=lambda _: None,
        failed=lambda _: None,
    )
    following.begin()
    begun.program = spawned(begun.io, "follow the leader")


def of_a_partitioner(begun: Begun) -> None:
    sharing = Partitioning(begun.core, PARTITIONS, lambda: "me", None, keeps=None)  # type: ignore[arg-type]
    sharing.stopping = begun.until
    begun.program = sharing._follow(begun.io)


def waiting_for(begun: Begun, *, below: bool) -> None:
    """A waiting call watches a key, or all keys below one."""
    wait = begun.core.watches.change_below if below else begun.core.watches.change
    begun.program = wait(begun.io, "k", 7, until=begun.until, deadline=2000.0)


async def spawned(io: FakeIO, name: str) -> None:
    """Run a background program here."""
    task = next(each for each in io.spawned if each.name.startswith(name))
    await task.program(io)


@dataclass(frozen=True)
class Watch:
    """One row."""

    begin: Callable[[Begun], object]
    asks: tuple[Step, ...]
    outlasts: tuple[int, ...] = (500,)
    """The failures after which it goes on."""


def get(path: str, answer: Response) -> Step:
    return Step("GET", path, answer)


HELD = pairs(entry("k", index=7), index=7)
CHANGED = pairs(entry("k", index=9), index=9)
MEMBER = {**entry(GROUP.key("a"), index=9), "Flags": GROUP_FLAGS}
LEADER = (
    get(KEY, HELD),
    Step("PUT", TXN, txn_done(entry("k", index=7))),
    get(SESSION_INFO, ok([session()])),
    get(KEY, HELD),
)
FOLDER = f"/v1/kv/{GROUP.directory}"
WATCHES = {
    "a key": Watch(of_a_key, (get(KEY, HELD), get(KEY, CHANGED))),
    "a key, not counted": Watch(partial(of_a_key, bound=False), (get(KEY, HELD), get(KEY, CHANGED))),
    "a leader": Watch(of_a_leader, LEADER),
    "the leader, of a candidate": Watch(of_a_candidate, LEADER, outlasts=(500, 403)),
    "members": Watch(
        of_a_partitioner,
        (get(FOLDER, ok([f"{FOLDER}/"], index=9)), get(FOLDER, pairs(MEMBER, index=9))),
        outlasts=(500, 403),
    ),
    "a waiting call": Watch(partial(waiting_for, below=False), (get(KEY, CHANGED),), outlasts=()),
    "a waiting call, below": Watch(partial(waiting_for, below=True), (get(KEY, CHANGED),), outlasts=()),
}
MAY_BE_HIDDEN = ("the leader, of a candidate", 2, 403)
"""A leader's session may be hidden from the token: that is no failure."""
ROWS = [(name, number) for name, watch in WATCHES.items() for number in range(len(watch.asks))]


def begun(name: str, number: int, *, renewal_due: bool = False, ends_after: float = SOON) -> Begun:
    """Return a watch that is answered until the request of this number, and then told to end."""
    made, watch = Begun(), WATCHES[name]
    if renewal_due:
        made.have_renewal_due()
    made.io.steps.extend(watch.asks[:number])
    watch.begin(made)
    made.ends = made.io.time + ends_after
    made.io.at(made.ends, made.until.set)
    return made


@pytest.mark.parametrize(("name", "number"), ROWS)
def test_it_ends_at_once_while_a_request_is_not_answered(name: str, number: int) -> None:
    watch = begun(name, number)
    watch.io.steps.append(replace(WATCHES[name].asks[number], takes=HANGS))
    watch.ends_in_time()


FAILURES = pytest.mark.parametrize(
    ("name", "number", "status"),
    [
        (*row, status)
        for row in ROWS
        for status in WATCHES[row[0]].outlasts
        if (*row, status) != MAY_BE_HIDDEN
    ],
)


@FAILURES
def test_it_ends_at_once_in_the_pause_after_a_failure(name: str, number: int, status: int) -> None:
    watch = begun(name, number)
    watch.io.steps.append(replace(WATCHES[name].asks[number], answer=refusal(status)))
    watch.ends_in_time()


@FAILURES
def test_after_the_pause_it_asks_for_the_present_state(name: str, number: int, status: int) -> None:
    watch = begun(name, number, ends_after=LATER)
    first, failing = WATCHES[name].asks[0], WATCHES[name].asks[number]
    watch.io.steps += [replace(failing, answer=refusal(status)), replace(first, takes=HANGS)]
    watch.ends_in_time()
    assert "index" not in dict(watch.io.requests[-1].params)


@pytest.mark.parametrize(
    ("name", "answered"),
    [
        ("a key", 1),
        ("a leader", 3),
        ("the leader, of a candidate", 3),
        ("a waiting call", 0),
        ("a waiting call, below", 0),
    ],
)
def test_it_ends_at_once_while_a_renewal_goes_first(name: str, answered: int) -> None:
    watch = begun(name, answered, renewal_due=True)
    watch.ends_in_time()
