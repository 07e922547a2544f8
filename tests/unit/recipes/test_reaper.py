"""Clean-up in the background: until answered, one after the other, and never against somebody's ticket."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.events import Cleaned, Failed, Released
from consul_coord.http.backoff import LONGEST_PAUSE
from consul_coord.io import Signal
from consul_coord.models import LOCK_FLAGS, ReleaseOutcome, SessionSpec, TxnOp
from consul_coord.recipes.cleanup.reaper import ENDS_SOON, Reaper
from consul_coord.recipes.cleanup.tasks import (
    SWEEPS,
    DestroySession,
    RemoveDead,
    RemoveKey,
    RemoveNote,
    Sweep,
)
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.lock.keys import Keys
from tests.support.fake_io import FakeIO, run_at_once
from tests.support.replies import (
    OTHER,
    SESSION,
    entry,
    lost,
    ok,
    pairs,
    refusal,
    txn_done,
    txn_failed,
    unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consul_coord.http.messages import Request, Response
    from consul_coord.io import IO

CONTENDER = f"/v1/kv/k/.wait/{SESSION}"
DONE = txn_done(entry("k", session=None, index=8), entry("k", session=None, index=8))


class Bench:
    def __init__(self) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(), timeout=10.0)
        self.reaper = self.core.reaper

    def run(self) -> None:
        self.io.run_spawned("reaper")

    def keys(self) -> Keys:
        """Return the key with its ticket, as an attempt or a hold of this client has it."""
        keys = Keys(self.core, ["k"], LOCK_FLAGS, "me")
        keys.acts_with(SESSION)
        self.core.tickets.join(keys.ticket("k"))
        return keys

    def give_back(self) -> None:
        """Have a hold with the fence 7 given back."""
        self.keys().give_back(SESSION, fence=7)

    def sweep(self, *, pauses: Sequence[float] | None = None) -> None:
        """Have looked for what a request of the session may still do."""
        Keys(self.core, ["k"], LOCK_FLAGS, "me").sweep_later(SESSION)
        if pauses is not None:
            (task,) = self.reaper.tasks
            assert isinstance(task, Sweep)
            task.pauses = list(pauses)

    def finds(self, *, contender: Response | None = None, key: Response | None = None) -> None:
        """Let the session's contender and the key be looked at."""
        self.io.expect("GET", CONTENDER, contender or pairs())
        self.io.expect("GET", "/v1/kv/k", key or pairs())

    def next_turn(self) -> Ticket:
        ticket = Ticket(self.core.tickets, "k", "next")
        self.core.tickets.join(ticket)
        return ticket


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    looks = [request for request in bench.io.requests if only_reads(request)]
    assert all("consistent" in dict(look.params) for look in looks), "a former leader may know less"


def only_reads(request: Request) -> bool:
    """Return whether a request looks at something and changes nothing."""
    if request.path != "/v1/txn":
        return request.method == "GET"
    verbs = [operation["KV"]["Verb"] for operation in json.loads(request.body or b"[]")]
    return all(verb.startswith(("get", "check-")) for verb in verbs)


@dataclass(eq=False)
class Task:
    """A task that does what it is told, one thing at each step."""

    todo: Sequence[float | Exception | None]
    done_at: list[float] = field(default_factory=list)

    async def step(self, io: IO, *, deadline: float) -> float | None:
        self.done_at.append(io.now())
        what = self.todo[len(self.done_at) - 1]
        if isinstance(what, Exception):
            raise what
        return what


def test_a_key_whose_place_was_left_is_a_later_holds_and_left_alone(bench: Bench) -> None:
    """The session has it again, for another caller: to give it back once more would free that hold."""
    bench.give_back()
    (place,) = bench.core.tickets.queue("k")
    later = bench.next_turn()
    place.leave()
    assert later.acts
    bench.run()
    assert bench.io.requests == []
    assert bench.reaper.pending == 0
    assert later.acts


def test_it_runs_only_while_there_is_something_to_do(bench: Bench) -> None:
    assert bench.io.spawned == []
    bench.reaper.add(Task([None]))
    bench.reaper.add(Task([None]))
    assert {each.name for each in bench.io.spawned} == {"reaper"}
    assert bench.reaper.pending == 2
    bench.run()
    assert bench.reaper.pending == 0
    bench.io.spawned.clear()
    bench.reaper.add(Task([None]))
    assert [each.name for each in bench.io.spawned] == ["reaper"]


def test_started_twice_it_does_one_task_after_the_other(bench: Bench) -> None:
    other = Task([None])

    class Long(Task):
        async def step(self, io: IO, *, deadline: float) -> float | None:
            bench.run()
            assert other.done_at == []
            return await super().step(io, deadline=deadline)

    first = Long([None])
    bench.reaper.add(first)
    bench.reaper.add(other)
    bench.run()
    assert len(first.done_at) == len(other.done_at) == 1
    assert bench.io.seen(Failed) == []


def test_tasks_are_done_when_they_are_due(bench: Bench) -> None:
    late, soon = Task([None]), Task([2.0, None])
    bench.reaper.add(late, after=1.0)
    bench.reaper.add(soon)
    bench.run()
    assert soon.done_at == [1000.0, 1002.0]
    assert late.done_at == [1001.0]


def test_a_new_task_wakes_it(bench: Bench) -> None:
    late, soon = Task([None]), Task([None])
    bench.reaper.add(late, after=50.0)
    bench.io.at(1003.0, lambda: bench.reaper.add(soon))
    bench.run()
    assert soon.done_at == [1003.0]


def test_a_task_that_fails_comes_again_later_and_later(bench: Bench) -> None:
    task = Task([unreachable()] * 12 + [None])
    bench.reaper.add(task)
    bench.run()
    gaps = [later - earlier for earlier, later in zip(task.done_at, task.done_at[1:], strict=False)]
    assert gaps == pytest.approx(sorted(gaps))
    assert gaps[-1] == pytest.approx(LONGEST_PAUSE / 2)
    assert bench.reaper.pending == 0


def test_a_task_that_went_well_in_between_begins_its_pauses_anew(bench: Bench) -> None:
    failures = [unreachable()] * 6
    task = Task([*failures, 100.0, *failures, None])
    bench.reaper.add(task)
    bench.run()
    gaps = [later - earlier for earlier, later in zip(task.done_at, task.done_at[1:], strict=False)]
    assert gaps[7:] == pytest.approx(gaps[:6])


def test_a_task_that_fails_does_not_hold_up_the_others(bench: Bench) -> None:
    failing, other = Task([unreachable()] * 20 + [None]), Task([None])
    bench.reaper.add(failing)
    bench.reaper.add(other)
    bench.run()
    assert other.done_at == [1000.0]


def test_a_bug_in_a_task_is_reported_and_ends_nothing(bench: Bench) -> None:
    task, other = Task([ZeroDivisionError(), None]), Task([None])
    bench.reaper.add(task)
    bench.reaper.add(other)
    bench.run()
    assert [event.where for event in bench.io.seen(Failed)] == ["reaper"]
    assert len(task.done_at) == 2
    assert len(other.done_at) == 1


def test_a_task_that_arrives_while_it_chooses_ends_nothing(bench: Bench) -> None:
    late = Task([None])

    class Nosy:
        """An entry at which another thread adds a task just while it is looked at."""

        task = Task([None])
        failures = 0
        under_way = nullcontext

        @property
        def due(self) -> float:
            if not late.done_at and bench.reaper.pending == 2:
                bench.reaper.add(late)
            return 1000.0

    bench.reaper._entries[Nosy.task] = Nosy()  # type: ignore[assignment]
    bench.reaper.add(Task([None]))
    bench.run()
    assert late.done_at == [1000.0]


def test_many_tasks_cost_no_more_each_than_few(bench: Bench) -> None:
    """An agent that hangs for a day leaves thousands of them."""

    def seconds(number: int) -> float:
        for _ in range(number):
            bench.reaper.add(Task([unreachable(), None]))
        began = time.process_time()
        bench.run()
        return time.process_time() - began

    few, many = seconds(200), seconds(4_000)
    assert bench.reaper.pending == 0
    assert many < 60 * few, f"20 times as many took {many / few:.0f} times as long"


def test_what_is_seen_again_while_it_can_not_be_removed_is_removed_once(bench: Bench) -> None:
    for _ in range(50):
        for task in (RemoveKey("k/.wait/a", 7), RemoveKey("k/.wait/b", 7), RemoveDead((TxnOp.delete("k"),))):
            bench.reaper.add(task)
    bench.reaper.add(RemoveKey("k/.wait/a", 9))  # another one of that name, made since
    assert bench.reaper.pending == 4
    bench.io.expect("DELETE", "/v1/kv/k/.wait/a", ok(value=True))
    bench.io.expect("DELETE", "/v1/kv/k/.wait/b", ok(value=True))
    bench.io.expect("PUT", "/v1/txn", txn_done())
    bench.io.expect("DELETE", "/v1/kv/k/.wait/a", ok(value=True))
    bench.run()
    assert [dict(each.params).get("cas") for each in bench.io.requests] == ["7", "7", None, "9"]


def test_what_is_asked_for_while_it_is_under_way_is_done_once_more(bench: Bench) -> None:
    """The request under way may have been applied before there was something to remove again."""

    def ask_again(request: Request) -> Response:
        bench.reaper.add(RemoveKey("k/.wait/a"))
        return ok(value=True)

    bench.reaper.add(RemoveKey("k/.wait/a"))
    bench.io.expect("DELETE", "/v1/kv/k/.wait/a", ask_again, ok(value=True))
    bench.run()
    assert bench.reaper.pending == 0
    assert len(bench.io.requests) == 2


@pytest.mark.parametrize("amid", ["taking it out", "adding it"])
def test_what_another_thread_asks_for_just_as_it_is_done_is_done_once_more(bench: Bench, amid: str) -> None:
    task = Task([None] * 2)

    class Shared(dict[Any, Any]):
        """The tasks, with another thread's turn at the worst moment."""

        def pop(self, key: Any, *default: Any) -> Any:
            if amid == "taking it out" and len(task.done_at) == 1:
                bench.reaper.add(task)
            return super().pop(key, *default)

        def setdefault(self, key: Any, new: Any = None, /) -> Any:
            entry = super().setdefault(key, new)
            if amid == "adding it" and entry is not new and not task.done_at:
                bench.run()  # the background does the task, and takes it out
            return entry

    bench.reaper._entries = Shared()
    bench.reaper.add(task)
    if amid == "adding it":
        bench.reaper.add(task)
    bench.run()
    assert len(task.done_at) == 2
    assert bench.reaper.pending == 0


@pytest.mark.parametrize("found", [b"mine", b"another's", None])
def test_a_note_is_removed_as_the_present_leader_has_it_if_it_is_ones_own(
    bench: Bench, found: bytes | None
) -> None:
    note = [] if found is None else [entry("k/.note", session=None, index=9, value=found)]
    bench.reaper.add(RemoveNote("k/.note", b"mine"))
    bench.io.expect("GET", "/v1/kv/k/.note", pairs(*note))
    if found == b"mine":
        bench.io.expect("DELETE", "/v1/kv/k/.note", ok(value=True))
    bench.run()
    assert [dict(each.params)["cas"] for each in bench.io.requests[1:]] == ["9"] * (found == b"mine")
    assert (bench.reaper.pending, list(bench.io.steps)) == (0, [])


def test_a_note_that_may_still_be_written_is_looked_at_again(bench: Bench) -> None:
    bench.reaper.add(RemoveNote("k/.note", b"mine", (TxnOp.check_session("k", SESSION),)))
    bench.io.expect("PUT", "/v1/txn", txn_done(entry("k")), txn_failed((0, "session check failed")))
    bench.io.expect("GET", "/v1/kv/k/.note", pairs(entry("k/.note", session=None, index=9, value=b"mine")))
    bench.io.expect("DELETE", "/v1/kv/k/.note", ok(value=True))
    bench.run()
    assert (bench.reaper.pending, list(bench.io.steps)) == (0, [])
    assert bench.io.now() == pytest.approx(1000 + SWEEPS[0], abs=0.1)


def test_who_takes_a_task_out_just_before_its_try_is_told_that_there_is_none(bench: Bench) -> None:
    """As a hand-over does in another thread, which would wait for the whole time of a try."""
    waited_for: list[Signal] = []

    class Raced(dict[Any, Any]):
        def get(self, task: Task, default: Any = None) -> Any:
            entry = self.pop(task, default)
            waited_for.extend(entry.tries)
            return None

    task = Task([None])
    bench.reaper._entries = Raced()
    bench.reaper.add(task)
    bench.run()
    assert task.done_at == []
    assert [each.is_set() for each in waited_for] == [True]


def test_what_closing_has_done_meanwhile_is_not_done_again(bench: Bench) -> None:
    class Closing:
        closed = False

        async def step(self, io: IO, *, deadline: float) -> float | None:
            if not self.closed:
                self.closed = True
                await bench.reaper.finish(io, deadline=deadline)
            return None

    later = Task([None])
    bench.reaper.add(Closing())
    bench.reaper.add(later)
    bench.run()
    assert len(later.done_at) == 1
    assert bench.reaper.pending == 0


@pytest.mark.parametrize("hangs", [False, True])
def test_closing_lets_the_background_end_its_try_for_a_moment(bench: Bench, *, hangs: bool) -> None:
    bench.reaper.add(DestroySession(SESSION))
    (entry,) = bench.reaper._entries.values()
    with entry.under_way():
        (over,) = entry.tries

        def end() -> None:
            del bench.reaper._entries[entry.task]
            over.set()

        if hangs:
            bench.io.expect("PUT", "/v1/session/destroy/", ok(value=True))
        else:
            bench.io.at(bench.io.time + 0.1, end)
        bench.io.run(bench.reaper.finish(bench.io, deadline=1005.0))
    assert bench.io.sent_at == [1000.0 + ENDS_SOON] * hangs
    assert bench.reaper.pending == 0


def test_what_closing_gives_back_at_the_same_time_is_told_once(bench: Bench) -> None:
    def close_now(_: Request) -> Response:
        bench.io.run(bench.reaper.finish(bench.io, deadline=1005.0))
        return pairs()

    bench.give_back()
    bench.io.expect("GET", CONTENDER, close_now, pairs())
    bench.io.expect("GET", "/v1/kv/k", pairs(), pairs())
    bench.run()
    assert len(bench.io.seen(Released)) == 1
    assert bench.reaper.pending == 0


def test_giving_back_goes_on_until_answered_and_then_passes_the_turn_on(bench: Bench) -> None:
    bench.give_back()
    follower = bench.next_turn()
    bench.finds(key=pairs(entry("k")))
    bench.io.expect("PUT", "/v1/txn", *[lost()] * 3)
    bench.io.expect("PUT", "/v1/txn", lambda _: DONE if not follower.ready.is_set() else lost())
    bench.run()
    assert follower.ready.is_set()
    assert bench.reaper.pending == 0
    assert [event.outcome for event in bench.io.seen(Released)] == [ReleaseOutcome.RELEASED]


def test_giving_back_a_key_that_is_gone_is_done(bench: Bench) -> None:
    bench.give_back()
    follower = bench.next_turn()
    bench.finds()
    bench.run()
    assert follower.ready.is_set()


def test_a_key_is_given_back_at_the_index_that_is_found_and_with_its_value(bench: Bench) -> None:
    bench.give_back()
    bench.finds(key=pairs(entry("k", index=9, value=b"theirs")))
    bench.io.expect("PUT", "/v1/txn", DONE)
    bench.run()
    check, unlock = (op["KV"] for op in json.loads(bench.io.requests[-1].body or b""))
    assert check["Index"] == 9
    assert (unlock["Verb"], unlock["Value"], unlock["Session"]) == ("unlock", "dGhlaXJz", SESSION)


def test_what_was_given_back_twice_frees_no_later_hold(bench: Bench) -> None:
    keys = bench.keys()
    keys.give_back(SESSION)
    keys.give_back(SESSION)
    follower = bench.next_turn()
    bench.finds()
    bench.run()
    assert follower.ready.is_set()
    assert bench.reaper.pending == 0


def test_who_gave_up_may_queue_behind_the_clean_up(bench: Bench) -> None:
    bench.give_back()
    again = Ticket(bench.core.tickets, "k", "me")
    bench.core.tickets.join(again)
    assert not again.ready.is_set()


def test_a_sweep_looks_four_times(bench: Bench) -> None:
    bench.sweep()
    for _ in SWEEPS:
        bench.finds()
    bench.run()
    looks = [time for time, path in zip(bench.io.sent_at, bench.io.paths, strict=True) if path == "/v1/kv/k"]
    assert looks == pytest.approx([1001.0, 1005.0, 1015.0, 1060.0])
    assert [event.found for event in bench.io.seen(Cleaned)] == [False] * 4


def test_a_sweep_removes_what_came_late(bench: Bench) -> None:
    bench.sweep(pauses=[])
    bench.io.expect("GET", CONTENDER, pairs(entry(f"k/.wait/{SESSION}", index=31)))
    bench.io.expect("DELETE", CONTENDER, ok(value=True))
    bench.io.expect("GET", "/v1/kv/k", pairs(entry("k", index=32)))
    bench.io.expect("PUT", "/v1/txn", DONE)
    bench.run()
    assert bench.io.requests[1].params == (("cas", "31"),)
    assert [event.found for event in bench.io.seen(Cleaned)] == [True]
    assert bench.next_turn().ready.is_set()


def test_a_sweep_that_fails_counts_as_none(bench: Bench) -> None:
    bench.sweep()
    bench.io.expect("GET", CONTENDER, refusal(403), refusal(403))
    for _ in SWEEPS:
        bench.finds()
    bench.run()
    assert len(bench.io.seen(Cleaned)) == 4
    assert bench.next_turn().ready.is_set()


@pytest.mark.parametrize("until", [1030.2, 1200.2])
@pytest.mark.parametrize("session", ["", SESSION])
def test_a_sweep_looks_soon_after_somebody_has_acted_on_the_key_with_its_session(
    bench: Bench, session: str, until: float
) -> None:
    holder = bench.next_turn()
    holder.session = session
    bench.sweep()
    bench.io.at(until, holder.leave)
    for _ in SWEEPS:
        bench.finds()
    bench.run()
    assert len(bench.io.seen(Cleaned)) == len(SWEEPS)
    assert until < bench.io.sent_at[0] <= until + SWEEPS[0]


def test_a_sweep_cleans_beside_who_acts_with_another_session(bench: Bench) -> None:
    holder = bench.next_turn()
    holder.session = OTHER
    bench.sweep(pauses=[])
    bench.finds()
    bench.run()
    assert len(bench.io.seen(Cleaned)) == 1
    assert holder.acts


def test_closing_tries_each_task_once_sessions_last_and_no_sweep(bench: Bench) -> None:
    bench.reaper.add(DestroySession(SESSION))
    bench.sweep()
    bench.give_back()
    bench.finds(key=pairs(entry("k")))
    bench.io.expect("PUT", "/v1/txn", DONE)
    bench.io.expect("PUT", "/v1/session/destroy/", ok(value=True))
    bench.io.run(bench.reaper.finish(bench.io, deadline=1005.0))
    assert bench.reaper.pending == 0


def test_closing_removes_what_stays_as_long_as_a_session_once_that_is_destroyed(bench: Bench) -> None:
    bench.reaper.add(RemoveNote("k/.note", b"mine", (TxnOp.check_session("k", SESSION),)))
    bench.reaper.add(DestroySession(SESSION))
    bench.io.expect("PUT", "/v1/session/destroy/", ok(value=True))
    bench.io.expect("PUT", "/v1/txn", txn_failed((0, "session check failed")))
    bench.io.expect("GET", "/v1/kv/k/.note", pairs(entry("k/.note", session=None, index=9, value=b"mine")))
    bench.io.expect("DELETE", "/v1/kv/k/.note", ok(value=True))
    bench.io.run(bench.reaper.finish(bench.io, deadline=1005.0))
    assert (bench.reaper.pending, list(bench.io.steps)) == (0, [])
    assert "/session/destroy/" in bench.io.paths[0]


def test_what_has_failed_is_given_back_before_its_session_is_destroyed(bench: Bench) -> None:
    """The other way round, the key would get the lock-delay."""
    bench.give_back()
    bench.io.expect("GET", CONTENDER, refusal(403, "Permission denied"))
    bench.io.at(bench.io.time + 0.01, lambda: bench.reaper.add(DestroySession(SESSION)))
    bench.finds(key=pairs(entry("k")))
    bench.io.expect("PUT", "/v1/txn", DONE)
    bench.io.expect("PUT", "/v1/session/destroy/", ok(value=True))
    bench.run()
    assert not bench.io.steps
    assert not bench.reaper.tasks


def test_what_a_session_may_have_locked_is_looked_for_before_it_is_destroyed(bench: Bench) -> None:
    """It would get the lock-delay. The next look would be too late."""
    bench.sweep(pauses=[])
    bench.reaper.add(DestroySession(SESSION))
    bench.finds(key=pairs(entry("k")))
    bench.io.expect("PUT", "/v1/txn", DONE)
    bench.io.expect("PUT", "/v1/session/destroy/", ok(value=True))
    bench.run()
    assert not bench.io.steps
    assert bench.io.sent_at == [bench.io.time] * 4


@pytest.mark.parametrize("closes", [False, True])
def test_a_session_is_destroyed_when_no_other_thread_still_unlocks_for_it(
    bench: Bench, *, closes: bool
) -> None:
    """The background and who closes do the same tasks, each in a thread of its own."""
    bench.sweep(pauses=[])
    sweep, ends_at = bench.reaper._entries[bench.reaper.tasks[0]], bench.io.time + 0.3
    other = bench.next_turn()  # acts on the key as the session, so nobody else does
    other.session = SESSION
    with sweep.under_way():
        (ended,) = sweep.tries
        bench.io.at(ends_at, other.leave)
        bench.io.at(ends_at, ended.set)
        bench.reaper.add(DestroySession(SESSION))
        if closes:
            bench.finds()
            bench.io.expect("PUT", "/v1/session/destroy/", ok(value=True))
            bench.io.run(bench.reaper.finish(bench.io, deadline=ends_at + 5.0))
        else:
            bench.io.expect("PUT", "/v1/session/destroy/", ok(value=True))
            bench.finds()  # at the sweep's own time
            bench.run()
    assert not bench.io.steps
    assert bench.io.sent_at[0] == ends_at


def test_a_session_is_destroyed_though_its_key_can_not_be_given_back(bench: Bench) -> None:
    bench.give_back()
    bench.reaper.add(DestroySession(SESSION))
    bench.io.expect("GET", CONTENDER, *[refusal(403, "Permission denied")] * 2)
    bench.io.expect("PUT", "/v1/session/destroy/", ok(value=True))
    bench.finds()
    bench.run()
    assert not bench.io.steps


def test_a_contender_that_a_late_join_has_made_is_removed_after_its_session(bench: Bench) -> None:
    contender = f"k/.wait/{SESSION}"
    keys: set[str] = set()

    def destroyed(_: Request) -> Response:
        keys.add(contender)  # the join was applied just before
        return ok(value=True)

    def deleted(_: Request) -> Response:
        keys.discard(contender)
        return ok(value=True)

    bench.reaper.add(DestroySession(SESSION, contender))
    bench.io.expect("DELETE", CONTENDER, deleted)
    bench.io.expect("PUT", "/v1/session/destroy/", destroyed)
    bench.io.expect("DELETE", CONTENDER, deleted)
    bench.run()
    assert not keys
    assert bench.reaper.pending == 0


def test_what_closing_could_not_do_stays_counted(bench: Bench) -> None:
    bench.reaper.add(DestroySession(SESSION))
    bench.io.expect("PUT", "/v1/session/destroy/", unreachable())
    bench.io.run(bench.reaper.finish(bench.io, deadline=1005.0))
    assert bench.reaper.pending == 1
    bench.reaper.add(Task([None]))
    bench.io.run(bench.reaper.finish(bench.io, deadline=999.0))
    assert bench.reaper.pending == 2


def test_closing_gives_no_task_more_than_its_own_time(bench: Bench) -> None:
    given: list[float] = []

    class Curious(Task):
        async def step(self, io: IO, *, deadline: float) -> float | None:
            given.append(deadline)
            return await super().step(io, deadline=deadline)

    bench.reaper.add(Curious([None]))
    bench.io.run(bench.reaper.finish(bench.io, deadline=bench.io.now() + 3.0))
    bench.reaper.add(Curious([None]))
    bench.io.run(bench.reaper.finish(bench.io, deadline=bench.io.now() + 60.0))
    assert given == [bench.io.now() + 3.0, bench.io.now() + 10.0]


def test_what_has_failed_is_tried_once_more_before_its_session_is_let_go() -> None:
    bench = Bench()

    def let_go() -> None:
        run_at_once(bench.reaper.let_go(bench.io, SESSION, deadline=bench.io.time + 5.0))

    bench.give_back()
    bench.io.expect("GET", CONTENDER, refusal(403, "Permission denied"))
    bench.io.at(bench.io.time + 0.01, let_go)
    bench.finds()
    bench.run()
    assert bench.io.sent_at == [1000.0, 1000.01, 1000.01]
    assert not bench.io.steps
    assert not bench.reaper.tasks


def test_a_key_is_let_go_of_also_when_the_hand_over_is_interrupted(bench: Bench) -> None:
    bench.give_back()
    follower = bench.next_turn()

    def interrupted(_: Request) -> Response:
        raise KeyboardInterrupt

    bench.io.expect("GET", CONTENDER, interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.io.run(bench.reaper.let_go(bench.io, SESSION, deadline=bench.io.time + 5.0))
    assert follower.ready.is_set()
    assert not bench.reaper.tasks


@pytest.mark.parametrize(("lasts", "waited"), [(7.0, 7.0), (60.0, 10.0)])
def test_a_hand_over_waits_for_a_try_that_is_under_way_as_long_as_that_may_take(
    bench: Bench, lasts: float, waited: float
) -> None:
    """Its request can't be taken back: it would act as the session when another client has that."""
    bench.give_back()
    (entry,) = bench.reaper._entries.values()
    under_way, began = Signal(), bench.io.time
    entry.tries.append(under_way)
    bench.io.at(began + lasts, under_way.set)
    bench.io.run(bench.reaper.let_go(bench.io, SESSION, deadline=began + 5.0))
    assert bench.io.time == began + waited
    assert not bench.reaper.tasks


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("task", "is_left"),
    [
        (RemoveKey(CONTENDER.removeprefix("/v1/kv/")), True),
        (RemoveKey(CONTENDER.removeprefix("/v1/kv/"), 7), False),  # as another saw it, whose it is not
        (RemoveKey(f"k/.wait/{OTHER}"), False),
        (RemoveNote("k/.note", b"mine"), False),
    ],
    ids=repr,
)
def test_what_acts_as_a_session_is_left_undone_once_that_is_another_clients(
    task: RemoveKey | RemoveNote, *, is_left: bool, later: bool
) -> None:
    io, handed_over = FakeIO(), set[str]()
    reaper = Reaper(io, timeout=10.0, closing=Signal(), handed_over=handed_over)
    if later:
        handed_over.add(SESSION)
        reaper.add(task)
    else:
        reaper.add(task)
        reaper.drop(SESSION)
    assert reaper.tasks == ([] if is_left else [task])
