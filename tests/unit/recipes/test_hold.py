"""The state machine of one hold, row by row."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import AlreadyHeld, LockLost, NotHeld
from consul_coord.events import Acquired, Forgotten, Lost
from consul_coord.models import (
    LOCK_FLAGS,
    HoldState,
    KVPair,
    LossReason,
    ReleaseOutcome,
    Sequencer,
    SessionSpec,
)
from consul_coord.recipes.cleanup.tasks import DestroySession
from consul_coord.recipes.client import ClientState, close
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.hold import asking as hold_ops
from consul_coord.recipes.hold.grant import Grant, Handle, error_at_exit, loss_of, lost_error
from consul_coord.recipes.lock.keys import Keys, LockKind
from consul_coord.recipes.session.keeping import KeptSession
from tests.support.fake_io import FakeIO, run_at_once
from tests.support.replies import ok
from tests.unit.recipes.test_signals import THREADS, race, repeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.events import Event

GRANTED = KVPair("k", session="s", modify_index=7, lock_index=2)
HELD, JEOPARDY, LOST, RELEASED = HoldState.HELD, HoldState.JEOPARDY, HoldState.LOST, HoldState.RELEASED


class Bench:
    """A hold whose session is confirmed at 0 for 10 s, and what was told of it."""

    def __init__(self, sessions: int = 1, *, at: int = 0) -> None:
        """``sessions``: so many that it depends on. The one whose end is played has the place ``at``."""
        self.told: list[Grant] = []
        self.io = FakeIO(start=0.0)
        self.core = ClientState(self.io, spec=SessionSpec(), timeout=10.0)
        self.kept = KeptSession("s", SessionSpec(drift=0.0), outside=False)
        self.lease = self.kept.lease
        self.lease.confirm(sent_at=0.0, horizon=10.0)
        depends_on = [KeptSession(f"s{n}", SessionSpec(drift=0.0), outside=False) for n in range(sessions)]
        for each in depends_on:
            each.lease.confirm(sent_at=0.0, horizon=1000.0)
        depends_on[at] = self.kept
        self.keys = Keys(self.core, ["k"], LOCK_FLAGS, "owner")
        self.hold = Grant(
            GRANTED,
            kept=depends_on[0],
            value=b"v",
            flags=1,
            kind=LockKind(self.keys),
            now=0.0,
            announcer=self,
            others=tuple(depends_on[1:]),
        )

    def ended(self, hold: Grant) -> None:
        self.told.append(hold)

    def abandoned(self, hold: Grant) -> None:
        raise AssertionError(hold)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def lose_contact(bench: Bench) -> None:
    bench.lease.in_contact = False


def get_contact(bench: Bench) -> None:
    bench.lease.confirm(sent_at=1.0, horizon=10.0)


ROWS: list[tuple[list[Callable[[Bench], object]], float, tuple[HoldState, LossReason | None]]] = [
    ([], 0.0, (HELD, None)),
    ([lose_contact], 0.0, (JEOPARDY, None)),
    ([lose_contact, get_contact], 10.5, (HELD, None)),
    ([], 10.0, (LOST, LossReason.EXPIRED)),
    ([lose_contact], 10.0, (LOST, LossReason.EXPIRED)),
    ([lambda b: b.lease.end(LossReason.SESSION_GONE)], 0.0, (LOST, LossReason.SESSION_GONE)),
    ([lose_contact, lambda b: b.lease.end(LossReason.FORKED)], 0.0, (LOST, LossReason.FORKED)),
    ([lambda b: b.hold.lose(LossReason.KEY_DELETED)], 0.0, (LOST, LossReason.KEY_DELETED)),
    ([lambda b: b.hold.begin_release()], 0.0, (RELEASED, None)),
    ([lose_contact, lambda b: b.hold.begin_release()], 0.0, (RELEASED, None)),
    ([lambda b: b.hold.begin_release()], 99.0, (RELEASED, None)),
    ([lambda b: b.hold.begin_release(), lambda b: b.hold.lose(LossReason.EXPIRED)], 0.0, (RELEASED, None)),
    (
        [lambda b: b.hold.lose(LossReason.EXPIRED), lambda b: b.hold.begin_release()],
        0.0,
        (LOST, LossReason.EXPIRED),
    ),
    (
        [lambda b: b.hold.lose(LossReason.KEY_DELETED), lambda b: b.lease.end(LossReason.SESSION_GONE)],
        99.0,
        (LOST, LossReason.KEY_DELETED),
    ),
]


@pytest.mark.parametrize(("sessions", "at"), [(1, 0), (3, 0), (3, 1), (3, 2)])
@pytest.mark.parametrize(("steps", "now", "expected"), ROWS)
def test_states(
    sessions: int,
    at: int,
    steps: list[Callable[[Bench], object]],
    now: float,
    expected: tuple[HoldState, LossReason | None],
) -> None:
    """They depend on each session of the hold in the same way, whichever has which place."""
    bench = Bench(sessions, at=at)
    for step in steps:
        step(bench)
    assert bench.hold.look(now) == expected
    state, reason = expected
    assert bench.hold.is_held(now) is (state in {HELD, JEOPARDY})
    assert bench.hold.lost.is_set() is (state is LOST)
    assert bench.hold.over.is_set() is bench.hold.ended is (state in {LOST, RELEASED})
    assert bench.hold.released is (state is RELEASED)
    assert bench.hold.loss(now) is reason
    assert bench.told == ([bench.hold] if state is LOST else [])


ENDS: dict[str, Callable[[Grant], object]] = {
    "lost": lambda hold: hold.lose(LossReason.EXPIRED),
    "released": lambda hold: hold.begin_release(),
}


@pytest.mark.parametrize("end", ENDS)
def test_who_hears_of_the_end_of_his_hold_may_queue_for_the_key_again(bench: Bench, end: str) -> None:
    queues = bench.core.tickets
    mine, again = bench.keys.ticket("k"), Ticket(bench.core.tickets, "k", "owner")
    queues.join(mine)
    with pytest.raises(AlreadyHeld):
        queues.join(again)
    bench.hold.over.subscribe(lambda: queues.join(again))
    ENDS[end](bench.hold)
    assert queues.position(again) == 1, "behind what has still to be given back"
    queues.leave(mine)
    assert again.ready.is_set()


def test_a_paused_process_reads_its_loss_at_the_first_look(bench: Bench) -> None:
    assert not bench.hold.lost.is_set()
    assert not bench.hold.is_held(10.0)
    assert bench.hold.lost.is_set()
    assert bench.told == [bench.hold]


def test_a_lease_that_is_extended_after_the_loss_brings_nothing_back(bench: Bench) -> None:
    bench.hold.look(10.0)
    bench.lease.confirm(sent_at=11.0, horizon=10.0)
    assert bench.hold.look(11.0) == (LOST, LossReason.EXPIRED)


def test_of_many_threads_one_settles_the_end() -> None:
    def one_race() -> None:
        bench, won = Bench(), list[HoldState]()
        hold = bench.hold

        def release() -> None:
            if hold.begin_release():
                won.append(RELEASED)

        def lose(reason: LossReason) -> None:
            if hold.lose(reason):
                won.append(LOST)

        losses = [partial(lose, reason) for reason in list(LossReason)[: THREADS - 2]]
        race(release, partial(hold.look, 99.0), *losses)
        state = hold.look(0.0)[0]
        assert bench.told == ([hold] if state is LOST else [])
        assert won in ([], [state])
        assert hold.lost.is_set() is (state is LOST)

    repeat(100, one_race)


def test_each_callback_is_taken_once_among_threads() -> None:
    def one_race() -> None:
        hold, taken = Bench().hold, list[object]()
        callbacks = [partial(print, number) for number in range(20)]
        for callback in callbacks:
            hold.on_lost(callback)
        race(*[lambda: taken.extend(hold.take_lost_callbacks())] * 4)
        assert len(taken) == len(callbacks)
        assert set(taken) == set(callbacks)

    repeat(100, one_race)


def test_callbacks_come_in_the_order_they_were_given(bench: Bench) -> None:
    callbacks = [lambda _, n=n: n for n in range(3)]
    for callback in callbacks:
        bench.hold.on_lost(callback)
    assert bench.hold.take_lost_callbacks() == callbacks
    assert bench.hold.take_lost_callbacks() == []


def test_one_callback_given_twice_is_called_twice(bench: Bench) -> None:
    bench.hold.on_lost(print)
    bench.hold.on_lost(print)
    assert bench.hold.take_lost_callbacks() == [print, print]


def test_callbacks_are_called_though_another_thread_takes_the_last_of_them_just_then(bench: Bench) -> None:
    class Contested(dict[Any, Any]):
        def popitem(self) -> tuple[Any, Any]:
            if len(self) == 1:
                self.clear()
            return super().popitem()

    bench.hold._lost_callbacks = Contested()
    for callback in (print, repr, str):
        bench.hold.on_lost(callback)
    assert bench.hold.take_lost_callbacks() == [repr, str]


def test_a_beat_that_comes_too_late_finds_the_hold_stalled_though_nobody_has_looked(bench: Bench) -> None:
    bench.core.holds.beat(bench.hold, 1.0)
    bench.io.time = 0.9
    bench.core.holds.beat(bench.hold, 1.0)
    bench.io.time = 2.0
    with pytest.raises(LockLost) as told:
        bench.core.holds.beat(bench.hold, 1.0)
    assert told.value.reason is LossReason.STALLED
    assert bench.hold.look(0.0) == (LOST, LossReason.STALLED)


def test_the_first_outcome_of_a_release_stays(bench: Bench) -> None:
    assert bench.hold.finish_release(ReleaseOutcome.UNKNOWN) is ReleaseOutcome.UNKNOWN
    later = bench.hold.finish_release(ReleaseOutcome.ALREADY_LOST, LossReason.TAKEN_OVER)
    assert later is ReleaseOutcome.UNKNOWN
    assert bench.hold.loss_found is None
    assert bench.hold.settled.is_set()


def test_a_loss_that_only_the_release_found_is_told(bench: Bench) -> None:
    bench.hold.begin_release()
    bench.hold.finish_release(ReleaseOutcome.ALREADY_LOST, LossReason.TAKEN_OVER)
    assert bench.hold.look(0.0) == (RELEASED, None)
    assert bench.hold.loss(0.0) is LossReason.TAKEN_OVER


def test_own_writes_move_guard_and_sequencer_but_never_the_fence(bench: Bench) -> None:
    hold = bench.hold
    assert hold.sequencer == Sequencer("k", 2, "s")
    assert [(op.verb, op.key, op.session, op.index) for op in hold.guard()] == [
        ("check-session", "k", "s", None),
        ("check-index", "k", None, 7),
    ]
    hold.written(KVPair("k", session="s", modify_index=9, lock_index=3), b"w")
    assert hold.sequencer == Sequencer("k", 3, "s")
    assert hold.guard()[1].index == 9
    assert (hold.fence, hold.value) == (7, b"w")


def granted(bench: Bench) -> Handle:
    """Return a hold as an attempt does, with the key's ticket."""
    bench.core.tickets.join(bench.keys.ticket("k"))
    kind = LockKind(bench.keys)
    return bench.core.holds.grant(GRANTED, kept=bench.kept, value=b"v", flags=LOCK_FLAGS, kind=kind)


class EndsAtOnce:
    """A host whose client closes, in another thread, just as the beginning of a hold is reported."""

    def __init__(self, bench: Bench, *, interrupted: bool) -> None:
        self._bench = bench
        self._interrupted = interrupted
        self._emit = bench.io.emit

    def __call__(self, event: Event) -> None:
        if isinstance(event, Acquired):
            self._bench.core.holds.give_up()
            if self._interrupted:
                raise KeyboardInterrupt
        self._emit(event)


def acquired(bench: Bench) -> Handle:
    """Return a hold of an attempt that began at 0."""
    kind = LockKind(bench.keys)
    return bench.core.holds.grant(
        GRANTED, kept=bench.kept, value=b"v", flags=LOCK_FLAGS, kind=kind, began=0.0
    )


@pytest.mark.parametrize("closing", [False, True])
def test_no_end_is_reported_before_the_beginning(
    bench: Bench, closing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(hold: Grant) -> None:  # as soon as anything in the background knows of the hold
        hold.lose(LossReason.SESSION_GONE)

    if closing:
        monkeypatch.setattr(bench.core.holds._host, "emit", EndsAtOnce(bench, interrupted=False))
    else:
        monkeypatch.setattr(bench.core.holds, "_watch", end)
    handle = acquired(bench)
    told = [type(event) for event in bench.io.events if isinstance(event, Acquired | Lost)]
    assert told == ([Acquired] if closing else [Acquired, Lost])
    assert bench.core.holds.given_up() == ([handle.grant] if closing else [])


def test_closing_amid_the_report_of_a_hold_gives_it_back_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a signal handler, or a handler of the log: the report goes on when the client is closed."""
    holds, given_back = bench.core.holds, list[str]()

    def close(event: Event) -> None:
        for hold in holds.given_up():
            hold.finish_release(ReleaseOutcome.RELEASED)
            holds.given_back(hold)
            given_back.append(type(event).__name__)

    monkeypatch.setattr(holds._host, "emit", close)
    assert not acquired(bench).grant.is_held(0.0)
    assert given_back == ["Acquired"], "while that was reported"
    assert not holds.given_up(), "it is not given back again"


def test_a_hold_that_closing_ends_amid_an_interrupted_call_is_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.core.holds._host, "emit", EndsAtOnce(bench, interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        acquired(bench)
    bench.core.register.sweep()
    assert [hold.key for hold in bench.core.holds.given_up()] == ["k"]


def test_a_hold_that_is_dropped_unreleased_says_so_and_is_given_back(bench: Bench) -> None:
    handle = granted(bench)
    bench.core.register.sweep()
    assert not bench.io.events, "somebody still refers to it"
    hold = handle.grant
    del handle
    bench.core.register.sweep()
    assert [event.key for event in bench.io.seen(Forgotten)] == ["k"]
    assert hold.released
    assert bench.core.reaper.pending == 1
    bench.core.register.sweep()
    assert bench.core.reaper.pending == len(bench.io.seen(Forgotten)) == 1, "once"


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("exported", [False, True])
def test_a_release_that_was_interrupted_has_an_outcome_whatever_becomes_of_the_session(
    bench: Bench, *, ended: bool, exported: bool
) -> None:
    """Calls that wait for the outcome get it, and the next thread or task may act on the key."""
    handle = granted(bench)
    hold = handle.grant
    assert hold.begin_release()
    bench.kept.exported = exported
    if ended:
        bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    del handle
    bench.core.register.sweep()
    assert hold.settled.is_set()
    assert hold.outcome.value is ReleaseOutcome.UNKNOWN
    assert bench.core.reaper.pending == 1, "it is given back, or that proves needless"
    assert len(bench.core.register) == 0


@pytest.mark.parametrize("end", [Grant.begin_release, partial(Grant.lose, reason=LossReason.EXPIRED)])
def test_who_waits_for_an_end_is_woken_though_the_caller_that_ended_it_was_interrupted(
    bench: Bench, end: Callable[[Grant], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = granted(bench)
    hold = handle.grant

    def interrupted(hold: Grant) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(hold.kind, "ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        end(hold)
    del handle
    bench.core.holds.announce_losses()
    bench.core.register.sweep()
    assert hold.over.is_set()
    assert hold.lost.is_set() is (hold.reason is not None)


@pytest.mark.parametrize("reason", [None, LossReason.EXPIRED])
def test_a_hold_that_has_ended_is_dropped_silently(bench: Bench, reason: LossReason | None) -> None:
    handle = granted(bench)
    if reason is None:
        assert handle.grant.begin_release()
        handle.grant.finish_release(ReleaseOutcome.RELEASED)
    else:
        handle.grant.lose(reason)
    del handle
    bench.core.register.sweep()
    assert not bench.io.seen(Forgotten)
    assert bench.core.reaper.pending == 0


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (None, LossReason.KEY_DELETED),
        (KVPair("k"), LossReason.RELEASED_BY_OTHER),
        (KVPair("k", session="other"), LossReason.TAKEN_OVER),
    ],
)
def test_what_a_key_tells_of_its_loss(pair: KVPair | None, reason: LossReason) -> None:
    assert loss_of("s", pair) is reason


@pytest.mark.parametrize("reason", LossReason)
def test_every_reason_is_told_in_words(bench: Bench, reason: LossReason) -> None:
    error = lost_error(bench.hold, reason)
    assert (error.key, error.session, error.fence, error.reason) == ("k", "s", 7, reason)
    assert "'k' (fence 7) was lost: " in str(error)


def test_check_raises_once_lost_and_not_before(bench: Bench) -> None:
    hold_ops.check(bench.hold, 9.9)
    with pytest.raises(LockLost) as told:
        hold_ops.check(bench.hold, 10.0)
    assert told.value.reason is LossReason.EXPIRED
    assert (told.value.key, told.value.session, told.value.fence) == ("k", "s", 7)


def test_check_raises_once_released_and_names_the_way_out(bench: Bench) -> None:
    bench.hold.begin_release()
    with pytest.raises(NotHeld, match=r"'k' \(fence 7\) was released: acquire the lock again") as told:
        hold_ops.check(bench.hold, 9.9)
    assert (told.value.key, told.value.session) == ("k", "s")
    with pytest.raises(NotHeld):
        hold_ops.check(bench.hold, 10.0)  # its end was settled before the lease's


def own_loss(bench: Bench) -> LockLost:
    return lost_error(bench.hold, LossReason.EXPIRED)


def test_what_leaving_a_block_raises(bench: Bench) -> None:
    hold = bench.hold
    anything: tuple[BaseException | None, ...] = (None, ValueError(), KeyboardInterrupt())
    for raised in anything:
        assert error_at_exit(hold, 0.0, raised) is None
    hold.lose(LossReason.SESSION_GONE)
    for raised in anything[:2]:
        error = error_at_exit(hold, 0.0, raised)
        assert error is not None
        assert error.reason is LossReason.SESSION_GONE
    for going_on in (KeyboardInterrupt(), SystemExit(), GeneratorExit(), own_loss(bench)):
        assert error_at_exit(hold, 0.0, going_on) is None


def test_the_news_of_another_loss_does_not_hide_this_one(bench: Bench) -> None:
    bench.hold.lose(LossReason.SESSION_GONE)
    other = LockLost("another", key="k2", fence=7, reason=LossReason.EXPIRED)
    earlier = LockLost("an earlier hold", key="k", fence=6, reason=LossReason.EXPIRED)
    assert error_at_exit(bench.hold, 0.0, other) is not None
    assert error_at_exit(bench.hold, 0.0, earlier) is not None


def test_closing_unlocks_nothing_under_a_holder_that_may_still_be_at_work(bench: Bench) -> None:
    """Its key gets the lock-delay, also where a clean-up would look for what an earlier request did."""
    bench.core.sessions.adopt(bench.kept)
    bench.keys.acts_with("s")
    handle = granted(bench)
    bench.keys.sweep_later("s")
    handle.grant.lose(LossReason.MAX_HOLD)
    bench.io.expect("PUT", "/v1/session/destroy/s", ok(value=True))
    bench.io.run(close(bench.io, bench.core, deadline=5.0))
    assert not bench.io.steps


def test_nothing_is_unlocked_under_a_stuck_holder_whose_session_expires(bench: Bench) -> None:
    """As above, where contact is lost, too: the session is destroyed with what it has."""
    bench.core.sessions.adopt(bench.kept)
    bench.keys.acts_with("s")
    handle, reaper = granted(bench), bench.core.reaper
    bench.keys.sweep_later("s")
    handle.grant.lose(LossReason.MAX_HOLD)
    bench.core.sessions.end(bench.kept, LossReason.EXPIRED)
    (destroys,) = (one for one in reaper._entries.values() if isinstance(one.task, DestroySession))
    bench.io.expect("PUT", "/v1/session/destroy/s", ok(value=True))
    bench.io.at(bench.kept.lock_delay / 2, lambda: run_at_once(reaper._do_if_wanted(bench.io, destroys)))
    bench.io.run_spawned("limits of holds")
    assert not bench.io.steps
    assert bench.io.time >= bench.kept.lock_delay


def test_a_stuck_holder_whose_session_is_gone_keeps_nobody_from_the_queue(bench: Bench) -> None:
    """There is nothing to unlock any more, and the servers keep the lock-delay."""
    handle = granted(bench)
    handle.grant.lose(LossReason.MAX_HOLD)
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    follower = Ticket(bench.core.tickets, "k", None)
    bench.core.tickets.join(follower)
    bench.io.run_spawned("limits of holds")
    assert follower.acts
    assert bench.io.time < bench.kept.lock_delay
