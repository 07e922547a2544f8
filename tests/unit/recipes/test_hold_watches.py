"""Noticing a loss on the server: what is evidence, what a suspicion, and what is kept alive meanwhile."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import ConnectFailed, LockLost, NotHeld, TransportError, TxnFailed
from consul_coord.events import Failed, Overwritten
from consul_coord.io import Signal
from consul_coord.models import LOCK_FLAGS, HoldState, KVPair, LossReason, SessionSpec
from consul_coord.recipes.client import SETTLING, ClientState
from consul_coord.recipes.hold import asking as hold_ops
from consul_coord.recipes.hold.grant import Grant, Handle, KeyWatch, watch_of
from consul_coord.recipes.hold.holds import SWEEP
from consul_coord.recipes.lock.keys import Keys, LockKind
from consul_coord.recipes.watch import engine
from tests.support.fake_io import FakeIO
from tests.support.replies import (
    OTHER,
    SESSION,
    entry,
    expect_gone,
    lost,
    ok,
    pairs,
    refusal,
    renewed,
    session,
    txn_done,
    txn_failed,
    unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.http.messages import Request, Response
    from consul_coord.recipes.session.keeping import KeptSession

RENEW, INFO, KEY = "/v1/session/renew/", "/v1/session/info/", "/v1/kv/k"
NOTICED_FROM = 0.6
"""The age from which a hold's loss is noticed within milliseconds, as guarantees.md says."""


class Enough(BaseException):
    """Ends the attending program, which goes on for as long as there are holds."""


class Bench:
    """A session and one hold of ``k`` at fence 7; its watches have just been started."""

    def __init__(self, *, keys: tuple[str, ...] = ("k",)) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(ttl=15.0), timeout=10.0)
        self.io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
        self.kept: KeptSession = self.io.run(self.core.sessions.shared.live(self.io, deadline=1010.0))
        self.handles: dict[str, Handle] = {}
        self.holds = {key: self.grant(key) for key in keys}
        if keys:
            self.attend()

    def grant(self, key: str) -> Grant:
        """Return a hold that is kept until its handle is dropped."""
        keys = Keys(self.core, [key], LOCK_FLAGS, "me")
        self.core.tickets.join(keys.ticket(key))
        pair = KVPair(key, session=SESSION, modify_index=7, lock_index=1)
        kind = LockKind(keys)
        self.core.attend()
        self.handles[key] = self.core.holds.grant(
            pair, kept=self.kept, value=b"", flags=LOCK_FLAGS, kind=kind
        )
        return self.handles[key].grant

    def attend(self, seconds: float = 0.2) -> None:
        """Let the client attend to its holds for so long."""

        def enough() -> None:
            raise Enough

        self.io.at(self.io.time + seconds, enough)
        with suppress(Enough):
            self.io.run_spawned("attend")

    def forget(self) -> None:
        """Drop all handles, and have that found."""
        self.handles.clear()
        self.core.register.sweep()

    @property
    def hold(self) -> Grant:
        return self.holds["k"]

    @property
    def state(self) -> tuple[HoldState, LossReason | None]:
        return self.hold.look(self.io.time)

    @property
    def spawned(self) -> list[str]:
        return sorted(each.name for each in self.io.spawned)

    @property
    def watches(self) -> list[str]:
        return [name for name in self.spawned if name.startswith("watch ")]

    def watch_key(self) -> None:
        self.io.run_spawned("watch k")

    def watch_session(self) -> None:
        self.io.run_spawned("watch session")

    def read_together(self) -> None:
        self.io.run_spawned("shared readings")

    def released_by_reply(self, reply: Response) -> Response:
        """End the watch after this reply, as a release does."""
        self.hold.begin_release()
        return reply


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything share readings, as if there were many holds."""
    monkeypatch.setattr(engine, "MOST", 0)


def test_a_hold_that_lasts_is_watched_by_its_key(bench: Bench) -> None:
    assert bench.watches == ["watch k"]


@pytest.mark.usefixtures("many")
def test_of_many_holds_the_session_is_watched_once_and_their_keys_are_read_together() -> None:
    bench = Bench(keys=("k", "k2"))
    assert bench.watches == [f"watch session {SESSION}"]
    assert "shared readings" in bench.spawned


def test_a_hold_that_was_released_at_once_costs_nothing() -> None:
    bench = Bench(keys=())
    bench.grant("k").begin_release()
    bench.attend()
    assert bench.watches == []
    assert bench.io.paths == ["/v1/session/create"]


def test_so_does_one_that_was_granted_shortly_after_another() -> None:
    bench = Bench(keys=())
    bench.grant("k")

    def grant_another() -> None:
        bench.io.at(bench.io.time + 0.8 * SETTLING, bench.grant("k2").begin_release)

    bench.io.at(bench.io.time + 0.6 * SETTLING, grant_another)
    bench.attend()
    assert bench.watches == ["watch k"]


@pytest.mark.parametrize("often", [False, True])
def test_holds_are_swept_now_and_then_however_many_are_granted(
    monkeypatch: pytest.MonkeyPatch, often: bool
) -> None:
    bench, swept = Bench(keys=()), list[float]()
    monkeypatch.setattr(bench.core.register, "sweep", lambda: swept.append(bench.io.time))
    began = bench.io.time
    bench.grant("k")
    for number in range(1, 100 if often else 1):
        bench.io.at(began + number / 10, partial(bench.grant, f"k{number}"))
    bench.attend(10.0)
    assert 10.0 / SWEEP - 2 <= len(swept) <= 10.0 / SWEEP


@pytest.mark.parametrize("rested", [0.0, 0.5, 10.0])
@pytest.mark.parametrize("count", [1, 5, 30])
def test_a_hold_of_so_many_is_watched_when_it_is_as_old_as_was_promised(count: int, rested: float) -> None:
    """However many are granted at once, and however long the client has held another one."""
    bench, keys = Bench(keys=()), [f"k{number}" for number in range(count)]
    bench.grant("first")

    def grant_all() -> None:
        for key in keys:
            bench.grant(key)

    bench.io.at(bench.io.time + rested, grant_all)
    bench.attend(rested + NOTICED_FROM)
    assert set(bench.watches) == {f"watch {key}" for key in ("first", *keys)}


def test_the_key_is_watched_from_the_grant_on(bench: Bench) -> None:
    bench.io.expect("GET", KEY, lambda _: bench.released_by_reply(pairs(entry("k"))))
    bench.watch_key()
    assert ("index", "7") in bench.io.requests[-1].params


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (pairs(index=21), LossReason.KEY_DELETED),
        (pairs(entry("k", session=None, index=21)), LossReason.RELEASED_BY_OTHER),
        (pairs(entry("k", session=OTHER, index=21)), LossReason.TAKEN_OVER),
    ],
)
def test_a_loss_is_confirmed_by_a_consistent_read_and_a_renewal(
    bench: Bench, seen: Response, reason: LossReason
) -> None:
    bench.io.expect("GET", KEY, seen)
    bench.io.expect("PUT", RENEW, renewed())
    bench.watch_key()
    assert bench.state == (HoldState.LOST, reason)
    assert ("consistent", "") in bench.io.requests[1].params


def test_a_session_that_is_gone_is_the_reason_rather_than_what_it_left(bench: Bench) -> None:
    bench.io.expect("GET", KEY, pairs(entry("k", session=OTHER, index=21)))
    expect_gone(bench.io)
    bench.watch_key()
    assert bench.state == (HoldState.LOST, LossReason.SESSION_GONE)
    assert not bench.io.steps


def test_what_several_watches_suspect_is_asked_once(bench: Bench) -> None:
    others = bench.core.sessions._confirming[SESSION] = Signal()

    def answered() -> None:
        bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
        others.set()

    bench.io.at(bench.io.time + 0.5, answered)
    bench.io.expect("GET", KEY, pairs(entry("k", session=OTHER, index=21)))
    bench.watch_key()
    assert bench.state == (HoldState.LOST, LossReason.SESSION_GONE)


@pytest.mark.usefixtures("many")
def test_a_suspicion_is_asked_about_again_when_the_one_that_asked_got_no_answer() -> None:
    bench = Bench()
    others = bench.core.sessions._confirming[SESSION] = Signal()

    def unanswered() -> None:
        del bench.core.sessions._confirming[SESSION]
        others.set()

    bench.io.at(bench.io.time + 0.5, unanswered)
    bench.io.expect("GET", INFO, ok([], index=21))
    expect_gone(bench.io)
    bench.watch_session()
    assert bench.state == (HoldState.LOST, LossReason.SESSION_GONE)


@pytest.mark.usefixtures("many")
def test_a_suspicion_is_settled_by_the_answer_that_another_got() -> None:
    bench = Bench()
    others = bench.core.sessions._confirming[SESSION] = Signal()

    def answered() -> None:
        del bench.core.sessions._confirming[SESSION]
        bench.kept.lease.confirm(sent_at=bench.io.time, horizon=15.0)
        others.set()

    bench.io.at(bench.io.time + 0.5, answered)
    bench.io.expect("GET", INFO, ok([], index=21))
    bench.watch_session()
    assert bench.state == (HoldState.HELD, None)
    assert not bench.io.steps


def test_evidence_at_the_key_is_enough_where_no_renewal_gets_through(bench: Bench) -> None:
    bench.io.expect("GET", KEY, pairs(entry("k", session=OTHER, index=21)))
    bench.io.expect("PUT", RENEW, unreachable())
    bench.watch_key()
    assert bench.state == (HoldState.LOST, LossReason.TAKEN_OVER)


@pytest.mark.parametrize("old", [pairs(index=6), pairs(entry("k", session=None, index=6))])
def test_a_reading_older_than_the_fence_is_no_evidence(bench: Bench, old: Response) -> None:
    bench.io.expect("GET", KEY, old, old)
    bench.io.expect("GET", KEY, lambda _: bench.released_by_reply(pairs(entry("k"))))
    bench.watch_key()
    assert not bench.hold.lost.is_set()


@pytest.mark.usefixtures("many")
def test_a_suspicion_that_a_consistent_read_refutes_is_none() -> None:
    bench = Bench()
    bench.io.expect("PUT", "/v1/txn", txn_failed((0, 'key "k" doesn\'t exist')))
    bench.io.expect("GET", KEY, lambda _: bench.released_by_reply(pairs(entry("k"))))
    bench.read_together()
    assert ("consistent", "") in bench.io.requests[-1].params
    assert not bench.hold.lost.is_set()


def test_a_strangers_write_is_an_event_told_once_and_no_loss(bench: Bench) -> None:
    seen = pairs(entry("k", index=9, value=b"x"))
    bench.io.expect("GET", KEY, seen, seen)
    bench.io.expect("GET", KEY, lambda _: bench.released_by_reply(seen))
    bench.watch_key()
    assert [event.modify_index for event in bench.io.seen(Overwritten)] == [9]
    assert not bench.hold.lost.is_set()


def test_what_a_reading_shows_once_the_hold_is_being_released_is_no_event(bench: Bench) -> None:
    of_the_next_hold = pairs(entry("k", index=9, value=b"x"))
    bench.io.expect("GET", KEY, lambda _: bench.released_by_reply(of_the_next_hold))
    bench.watch_key()
    assert not bench.io.seen(Overwritten)


def test_an_ended_hold_is_verified_without_a_request(bench: Bench) -> None:
    bench.hold.begin_release()
    assert bench.io.run(hold_ops.verify(bench.io, bench.core.sessions, bench.hold)) is False
    assert not bench.io.steps


@pytest.mark.parametrize("seconds", [1.0, 14.0])
def test_an_ended_hold_is_ensured_without_a_request(bench: Bench, seconds: float) -> None:
    bench.hold.lose(LossReason.TAKEN_OVER)
    with pytest.raises(LockLost):
        bench.io.run(hold_ops.ensure(bench.io, bench.core.sessions, bench.hold, seconds=seconds))


@pytest.mark.parametrize("left", [3.0, 0.5])
def test_ensuring_a_hold_of_which_nothing_is_heard_ends_with_its_lease(bench: Bench, left: float) -> None:
    """The agent takes the renewal, and does not answer it."""
    end = bench.hold.lease.valid_until
    bench.io.time = end - left
    bench.io.expect("PUT", RENEW, renewed(), takes=60.0)
    with pytest.raises(LockLost) as told:
        bench.io.run(hold_ops.ensure(bench.io, bench.core.sessions, bench.hold, seconds=10.0))
    assert told.value.reason is LossReason.EXPIRED
    assert bench.io.time == end


@pytest.mark.parametrize("ends", ["lost", "released", "lost with its session"])
def test_what_ends_while_it_is_ensured_is_told_though_the_renewal_is_answered(
    bench: Bench, ends: str
) -> None:
    hold, io = bench.hold, bench.io
    happens: dict[str, Callable[[], object]] = {
        "lost": lambda: hold.lose(LossReason.KEY_DELETED),
        "released": hold.begin_release,
        "lost with its session": lambda: bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE),
    }
    io.time += 8.0
    io.at(io.time + 0.5, happens[ends])
    io.expect("PUT", RENEW, renewed(), takes=1.0)
    with pytest.raises(NotHeld if ends == "released" else LockLost):
        io.run(hold_ops.ensure(io, bench.core.sessions, hold, seconds=10.0))


def test_an_own_write_is_no_event(bench: Bench) -> None:
    bench.hold.written(KVPair("k", session=SESSION, modify_index=9), b"x")
    bench.io.expect("GET", KEY, lambda _: pairs(entry("k", index=9)))
    bench.io.expect("GET", KEY, lambda _: bench.released_by_reply(pairs(entry("k", index=9))))
    bench.watch_key()
    assert not bench.io.seen(Overwritten)


@pytest.mark.parametrize(
    "trouble", [lost(KEY, method="GET"), unreachable(), refusal(500), refusal(429)], ids=repr
)
def test_trouble_with_a_watch_is_no_loss(bench: Bench, trouble: object) -> None:
    bench.io.expect("GET", KEY, trouble, trouble)  # type: ignore[arg-type]
    bench.io.expect("GET", KEY, lambda _: bench.released_by_reply(pairs(entry("k"))))
    bench.watch_key()
    assert not bench.hold.lost.is_set()
    assert bench.io.seen(Failed) == []


def test_a_watch_without_permission_goes_on_when_the_token_gets_its_rights(bench: Bench) -> None:
    bench.io.expect("GET", KEY, refusal(403, "Permission denied"), refusal(403, "Permission denied"))
    bench.io.expect("GET", KEY, pairs(entry("k", session=None, index=30)))
    bench.io.expect("PUT", RENEW, unreachable())
    bench.watch_key()
    assert bench.hold.look(bench.io.time) == (HoldState.LOST, LossReason.RELEASED_BY_OTHER)


@pytest.mark.usefixtures("many")
def test_a_session_that_is_gone_ends_its_holds() -> None:
    bench = Bench(keys=("k", "k2"))
    bench.io.expect("GET", INFO, ok([], index=21))
    expect_gone(bench.io)
    bench.watch_session()
    assert ("consistent", "") in bench.io.requests[-4].params, "a former leader may not know of the end"
    for hold in bench.holds.values():
        assert hold.look(bench.io.time) == (HoldState.LOST, LossReason.SESSION_GONE)


@pytest.mark.usefixtures("many")
def test_a_session_that_may_not_be_read_is_no_loss() -> None:
    bench = Bench()
    bench.io.expect("GET", INFO, ok([], index=21))
    bench.io.expect("PUT", RENEW, renewed())
    bench.watch_session()
    assert bench.state == (HoldState.HELD, None)


@pytest.mark.usefixtures("many")
def test_a_suspicion_about_the_session_outlasts_a_hiccup() -> None:
    bench = Bench()
    bench.io.expect("GET", INFO, ok([session()]), ok([], index=21))
    bench.io.expect("PUT", RENEW, refusal(500))
    bench.io.expect("GET", INFO, ok([], index=21))
    expect_gone(bench.io)
    bench.watch_session()
    assert bench.state == (HoldState.LOST, LossReason.SESSION_GONE)


# -- what a watch keeps alive


def test_the_watch_of_a_forgotten_hold_ends(bench: Bench) -> None:
    def forgotten(_: object) -> Response:
        bench.forget()
        return pairs(entry("k"))

    bench.io.expect("GET", KEY, forgotten)
    bench.watch_key()
    assert "reaper" in bench.spawned


def test_a_hold_that_is_forgotten_while_its_watch_starts_is_found() -> None:
    bench = Bench(keys=())
    bench.grant("k")
    bench.io.at(1000.3, bench.handles.clear)
    bench.io.run_spawned("attend")
    assert "reaper" in bench.spawned, "nobody found that it was forgotten"


@pytest.mark.usefixtures("many")
def test_reading_together_keeps_no_forgotten_hold_alive() -> None:
    bench = Bench(keys=("k2",))

    def forgotten(_: object) -> Response:
        bench.forget()
        assert "reaper" in bench.spawned, "the hold is still alive"
        return txn_done(entry("k2"))

    bench.io.expect("PUT", "/v1/txn", forgotten)
    bench.read_together()


# -- many holds


def test_many_keys_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST", 1)
    bench = Bench(keys=("k", "k2", "k3"))
    assert {"watch k", "shared readings"} <= {*bench.spawned}
    bench.watch_key()  # ends at once: it is read with the others
    missing = txn_failed((0, 'key "k2" doesn\'t exist'))
    bench.io.expect("PUT", "/v1/txn", missing, txn_done(entry("k3"), entry("k")))
    bench.io.expect("GET", "/v1/kv/k2", pairs())
    bench.io.expect("PUT", RENEW, renewed())
    both = txn_done(entry("k3"), entry("k"))
    bench.io.expect("PUT", "/v1/txn", lambda _: end(bench, "k", end(bench, "k3", both)))
    bench.read_together()
    assert bench.holds["k2"].look(bench.io.time) == (HoldState.LOST, LossReason.KEY_DELETED)
    assert not bench.holds["k3"].lost.is_set()


def end(bench: Bench, key: str, reply: Response) -> Response:
    bench.holds[key].begin_release()
    return reply


def test_when_few_are_left_each_key_is_watched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST", 2)
    bench = Bench(keys=("k", "k2", "k3"))
    for key in ("k", "k2"):
        bench.io.run_spawned(f"watch {key}")
    three = txn_done(entry("k"), entry("k2"), entry("k3"))
    bench.io.expect("PUT", "/v1/txn", lambda _: end(bench, "k2", end(bench, "k3", three)))
    bench.read_together()
    assert bench.watches == ["watch k", f"watch session {SESSION}"]
    bench.grant("k4")
    bench.attend()
    assert "watch k4" in bench.watches
    bench.io.expect("GET", KEY, pairs(index=21))
    bench.io.expect("PUT", RENEW, renewed())
    bench.watch_key()
    assert bench.state == (HoldState.LOST, LossReason.KEY_DELETED)


def test_a_watch_that_is_slow_to_make_room_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST", 2)
    bench = Bench(keys=("k", "k2", "k3"))
    bench.io.run_spawned("watch k2")
    others = txn_done(entry("k2"), entry("k3"))
    bench.io.expect("PUT", "/v1/txn", lambda _: end(bench, "k2", end(bench, "k3", others)))
    bench.read_together()
    bench.watch_key()  # ends only now, when there is room again
    assert "watch k" in bench.watches
    bench.io.expect("GET", KEY, pairs(index=21))
    bench.io.expect("PUT", RENEW, renewed())
    bench.watch_key()
    assert bench.state == (HoldState.LOST, LossReason.KEY_DELETED)


@pytest.mark.usefixtures("many")
def test_trouble_while_making_sure_of_one_of_many_is_no_bug() -> None:
    bench = Bench(keys=("k2", "k3"))
    missing = txn_failed((0, 'key "k2" doesn\'t exist'), (1, 'key "k3" doesn\'t exist'))
    bench.io.expect("PUT", "/v1/txn", missing)
    bench.io.expect("GET", "/v1/kv/k2", refusal(403, "Permission denied"))
    bench.io.expect("GET", "/v1/kv/k3", pairs())
    bench.io.expect("PUT", RENEW, renewed())
    bench.io.expect("PUT", "/v1/txn", lambda _: end(bench, "k2", txn_done(entry("k2"))))
    bench.read_together()
    assert bench.holds["k3"].look(bench.io.time) == (HoldState.LOST, LossReason.KEY_DELETED)
    assert not bench.holds["k2"].lost.is_set()


# -- how long a query for a hold lasts


def test_a_query_lasts_no_longer_than_the_hold_was_watched_and_longer_each_time(bench: Bench) -> None:
    began, lasted = bench.io.time, list[tuple[float, float]]()

    def answer(request: Request) -> Response:
        lasted.append((bench.io.time - began, request.hold_open))
        bench.io.time += request.hold_open
        if bench.io.time < began + 2.0:
            bench.io.expect("GET", KEY, answer)
            return pairs(entry("k"))
        return bench.released_by_reply(pairs(entry("k")))

    bench.io.expect("GET", KEY, answer)
    bench.watch_key()
    longest = [(max(engine.SHORTEST_HELD, watched), seconds) for watched, seconds in lasted]
    assert all(0.8 * most <= seconds <= most for most, seconds in longest), lasted
    assert lasted[-1][1] > 2 * lasted[0][1]


def queries_for_the_session(bench: Bench, *, goes_on: Callable[[], bool]) -> list[tuple[float, float]]:
    """Return when each query was sent and for how long it could last; ``goes_on`` is asked after each."""
    sent: list[tuple[float, float]] = []

    def answer(request: Request) -> Response:
        sent.append((bench.io.time, request.hold_open))
        bench.io.time += request.hold_open
        if goes_on():
            bench.io.expect("GET", INFO, answer)
        else:
            bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
        return ok([session()])

    bench.io.expect("GET", INFO, answer)
    bench.watch_session()
    return sent


@pytest.mark.usefixtures("many")
def test_neither_does_the_query_for_the_session_of_a_hold_that_shares_readings() -> None:
    """Where the agent has no room for another connection, the hold's release waits for its end."""
    bench = Bench()
    began = bench.hold.granted_at
    sent = queries_for_the_session(bench, goes_on=lambda: bench.io.time < began + 2.0)
    assert all(seconds <= max(engine.SHORTEST_HELD, at - began) for at, seconds in sent), sent
    assert sent[-1][1] > 2 * sent[1][1] > 0.0


@pytest.mark.usefixtures("many")
def test_the_query_for_a_session_is_as_short_as_its_youngest_hold_is_young() -> None:
    """However long the session has been watched, for others."""
    bench, young_since = Bench(), math.inf
    began = bench.io.time

    def goes_on() -> bool:
        nonlocal young_since
        if bench.io.time >= began + 1.5 and math.isinf(young_since):
            bench.holds["j"], young_since = bench.grant("j"), bench.io.time
            bench.hold.begin_release()
            bench.attend()
        return bench.io.time < young_since + 1.0

    sent = queries_for_the_session(bench, goes_on=goes_on)
    after = [(at - young_since, seconds) for at, seconds in sent if at >= young_since]
    assert after
    assert all(seconds <= max(engine.SHORTEST_HELD, held) for held, seconds in after), sent


def test_the_watch_of_a_hold_ends_with_it_while_a_query_is_not_answered(bench: Bench) -> None:
    bench.io.expect("GET", KEY, pairs(entry("k")), takes=50.0)
    bench.io.at(1002.0, bench.hold.begin_release)
    bench.watch_key()
    assert bench.io.time == 1002.0


def test_the_watch_of_a_hold_ends_with_it_in_the_pause_after_a_failure(bench: Bench) -> None:
    bench.io.expect("GET", KEY, refusal(500))
    ends = bench.io.time + 0.01
    bench.io.at(ends, bench.hold.begin_release)
    bench.watch_key()
    assert bench.io.time == ends


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("fails", [False, True])
def test_the_watch_of_a_session_ends_with_it(*, fails: bool) -> None:
    bench = Bench()
    bench.io.expect("GET", INFO, refusal(500) if fails else ok([session()]), takes=0.0 if fails else 50.0)
    ends = bench.io.time + 0.01
    bench.io.at(ends, lambda: bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE))
    bench.watch_session()
    assert bench.io.time == ends


class InAFolder(LockKind):
    """A hold that depends on a whole folder, as a permit does."""

    def watches(self, hold: Grant) -> tuple[KeyWatch, ...]:
        return (replace(watch_of(hold), directory="k"),)


@pytest.mark.parametrize(("quiet", "apart"), [(False, 2 * engine.LONGEST_HELD), (True, engine.LONGEST_HELD)])
def test_a_busy_folder_is_left_alone_for_longer_and_a_quiet_one_is_not(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, apart: float
) -> None:
    monkeypatch.setattr(f"{__name__}.LockKind", InAFolder)
    bench = Bench(keys=())
    hold, folder, left_at = bench.grant("k"), list[float](), list[float]()
    bench.attend()

    def answer(request: Request) -> Response:
        below, io = "recurse" in dict(request.params), bench.io
        if below and left_at:
            hold.begin_release()
            folder.append(io.time)
            return pairs(entry("k"))
        bench.io.expect("GET", "/v1/kv/k", answer)
        if not below:
            io.time += request.hold_open
            return pairs(entry("k"))
        folder.append(io.time)
        io.time += request.hold_open * quiet
        changes = len(folder) > 1 and (not quiet or io.time > folder[0] + engine.LONGEST_APART)
        if changes:
            left_at.append(io.time)
        return pairs(entry("k"), index=8 + changes)

    bench.io.expect("GET", "/v1/kv/k", answer)
    bench.watch_key()
    assert folder[-1] - left_at[0] == pytest.approx(apart, abs=engine.LONGEST_HELD / 2)


@pytest.mark.usefixtures("more_than_asked")
def test_a_folder_that_the_token_may_not_list_is_asked_for_less_and_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{__name__}.LockKind", InAFolder)
    bench = Bench(keys=())
    hold, folder = bench.grant("k"), list[float]()
    bench.attend()

    def answer(request: Request) -> Response:
        bench.io.expect("GET", "/v1/kv/k", answer)
        if "recurse" in dict(request.params):
            folder.append(bench.io.time)
            return refusal(403, "Permission denied")
        bench.io.time += request.hold_open
        if bench.io.time > 1600.0:
            hold.begin_release()
        return pairs(entry("k"))

    bench.io.expect("GET", "/v1/kv/k", answer)
    bench.watch_key()
    gaps = [after - before for before, after in pairwise(folder)]
    assert gaps[0] >= 2 * engine.LONGEST_HELD
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(engine.LONGEST_APART, abs=2 * engine.LONGEST_HELD)


# -- writes by the holder


class Witness(Grant):
    """A hold that notes whether a write was announced while its result came in."""

    announced = False

    def written(self, pair: KVPair, value: bytes) -> None:
        type(self).announced = bool(self.writing)
        super().written(pair, value)


def test_a_write_is_announced_until_its_index_is_known(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consul_coord.recipes.hold.holds.Grant", Witness)
    hold = bench.grant("k2")
    bench.io.expect("PUT", "/v1/txn", txn_done(entry("k2"), entry("k2", index=9)))
    bench.io.run(hold_ops.put(bench.io, bench.core.sessions, hold, b"new"))
    assert Witness.announced
    assert not hold.writing
    assert (hold.last_index, hold.value, hold.fence) == (9, b"new", 7)


def test_of_two_writes_at_once_the_latest_counts_and_neither_is_taken_for_a_strangers(bench: Bench) -> None:
    io, hold = bench.io, bench.hold

    def put(value: bytes) -> None:
        io.run(hold_ops.put(io, bench.core.sessions, hold, value))

    def answer_late(_: Request) -> Response:
        io.expect("PUT", "/v1/txn", txn_done(entry("k"), entry("k", index=9)))
        put(b"another thread's")
        assert hold.writing, "the first write is still under way"
        return txn_done(entry("k"), entry("k", index=8))

    io.expect("PUT", "/v1/txn", answer_late)
    put(b"mine")
    assert not hold.writing
    assert (hold.last_index, hold.value) == (9, b"another thread's")


@pytest.mark.parametrize("value", [b"new", b"an operator's"])
@pytest.mark.parametrize("trouble", [lost("/v1/txn"), KeyboardInterrupt()], ids=["no reply", "interrupted"])
def test_a_write_that_gave_up_without_an_answer_is_known_when_it_is_seen(
    bench: Bench, trouble: BaseException, value: bytes
) -> None:
    """Only what somebody else has written is reported; and a guard goes on with the own write."""

    def applied_but_not_answered(_: Request) -> Response:
        raise trouble

    bench.io.expect("PUT", "/v1/txn", applied_but_not_answered)
    bench.io.expect("PUT", "/v1/txn", *[unreachable("/v1/txn")] * 50)
    with pytest.raises((TransportError, KeyboardInterrupt)):
        bench.io.run(hold_ops.put(bench.io, bench.core.sessions, bench.hold, b"new"))
    seen = pairs(entry("k", index=9, value=value))
    bench.io.steps.clear()
    bench.io.expect("GET", KEY, seen, lambda _: bench.released_by_reply(seen))
    bench.watch_key()
    own = value == b"new"
    assert [event.modify_index for event in bench.io.seen(Overwritten)] == ([] if own else [9])
    assert (bench.hold.last_index, bench.hold.value) == ((9, b"new") if own else (7, b""))


def test_writes_that_gave_up_without_an_answer_cost_little_memory(bench: Bench) -> None:
    """There may be one after the other, each of them large."""

    def interrupted(_: Request) -> Response:
        raise KeyboardInterrupt

    for byte in range(10):
        bench.io.expect("PUT", "/v1/txn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.io.run(hold_ops.put(bench.io, bench.core.sessions, bench.hold, bytes([byte]) * 100_000))
    assert bench.hold.may_have_written(bytes(100_000))
    assert sum(map(sys.getsizeof, bench.hold.doubtful)) < 1_000


@pytest.mark.parametrize("value", [b"new", b"an operator's"])
def test_a_strangers_write_amid_an_own_one_is_told_from_that(bench: Bench, value: bytes) -> None:
    def seen_before_the_reply(_: Request) -> Response:
        seen = pairs(entry("k", index=9, value=value))
        bench.io.expect("GET", KEY, seen, lambda _: bench.released_by_reply(seen))
        bench.watch_key()
        return txn_done(entry("k"), entry("k", index=9 if value == b"new" else 11))

    bench.io.expect("PUT", "/v1/txn", seen_before_the_reply)
    bench.io.run(hold_ops.put(bench.io, bench.core.sessions, bench.hold, b"new"))
    assert len(bench.io.seen(Overwritten)) == (value != b"new")


def test_a_write_that_succeeds_ends_the_doubt_about_earlier_ones(bench: Bench) -> None:
    """An operator may write the value that an earlier write of the hold had."""
    bench.io.expect("PUT", "/v1/txn", lost("/v1/txn"), *[unreachable("/v1/txn")] * 50)
    with pytest.raises(TransportError):
        bench.io.run(hold_ops.put(bench.io, bench.core.sessions, bench.hold, b"old"))
    bench.io.steps.clear()
    bench.io.expect("PUT", "/v1/txn", txn_done(entry("k"), entry("k", index=9)))
    bench.io.run(hold_ops.put(bench.io, bench.core.sessions, bench.hold, b"new"))
    bench.io.shown.clear()  # the query begins before that write
    seen = pairs(entry("k", index=11, value=b"old"))
    bench.io.expect("GET", KEY, seen, lambda _: bench.released_by_reply(seen))
    bench.watch_key()
    assert [event.modify_index for event in bench.io.seen(Overwritten)] == [11]


REFUSED = ("PUT", "/v1/txn", txn_failed((0, "failed index check for key")))
APPLIED = ("PUT", "/v1/txn", txn_done(entry("k"), entry("k", index=11)))
AS_LEFT = ("GET", KEY, pairs(entry("k", index=7)))
WRITTEN = ("GET", KEY, pairs(entry("k", index=9, value=b"an operator's")))
ANOTHERS = ("GET", KEY, pairs(entry("k", session=OTHER, index=21)))


@pytest.mark.parametrize(
    ("steps", "index"),
    [
        ([REFUSED, AS_LEFT], None),
        ([REFUSED, ANOTHERS, AS_LEFT], None),
        ([REFUSED, WRITTEN, APPLIED], 11),
        ([REFUSED, WRITTEN, REFUSED, WRITTEN], None),
    ],
    ids=["as it was left", "another's for a moment", "written to", "written to, and refused again"],
)
def test_a_write_that_is_refused_is_made_again_where_that_can_help_and_raises_otherwise(
    bench: Bench, steps: list[tuple[str, str, Response]], index: int | None
) -> None:
    for method, path, answer in steps:
        bench.io.expect(method, path, answer)
    with nullcontext() if index else pytest.raises(TxnFailed):
        bench.io.run(hold_ops.put(bench.io, bench.core.sessions, bench.hold, b"new"))
    assert not bench.io.steps
    assert not bench.hold.ended
    assert bench.hold.last_index == (index or 7)
    assert bench.io.time < 1001.0


@pytest.mark.usefixtures("more_than_asked")
def test_a_write_that_may_have_been_applied_says_so_also_where_the_read_after_it_fails(bench: Bench) -> None:
    bench.io.expect("PUT", "/v1/txn", lost(), txn_failed((0, "failed index check for key")))
    bench.io.expect("GET", KEY, *[unreachable(KEY, method="GET")] * 50)
    with pytest.raises(ConnectFailed) as caught:
        bench.io.run(hold_ops.put(bench.io, bench.core.sessions, bench.hold, b"new"))
    assert caught.value.outcome_unknown


def test_a_write_that_is_refused_ends_a_hold_that_is_gone(bench: Bench) -> None:
    bench.io.expect("PUT", "/v1/txn", txn_failed((0, "failed index check for key")))
    bench.io.expect("GET", KEY, *[pairs(entry("k", session=OTHER, index=21))] * 2)
    bench.io.expect("PUT", RENEW, renewed())
    with pytest.raises(Exception, match="another session holds the key now"):
        bench.io.run(hold_ops.put(bench.io, bench.core.sessions, bench.hold, b"new"))
    assert bench.state == (HoldState.LOST, LossReason.TAKEN_OVER)
    assert not bench.hold.writing


@pytest.mark.parametrize("lost", [False, True])
def test_a_write_whose_hold_ends_while_it_looks_is_not_made_under_a_later_one(
    bench: Bench, *, lost: bool
) -> None:
    """Another thread has released it, and its session has the key again, for another caller."""

    def ended(_: Request) -> Response:
        if lost:
            bench.hold.lose(LossReason.MAX_HOLD)
        else:
            bench.hold.begin_release()
        return pairs(entry("k", index=21, value=b"another caller's"))

    bench.io.expect(*REFUSED)
    bench.io.expect("GET", KEY, ended)
    with pytest.raises(LockLost if lost else NotHeld):
        bench.io.run(hold_ops.put(bench.io, bench.core.sessions, bench.hold, b"new"))
    assert not bench.io.steps


def test_ensuring_time_for_a_hold_renews_each_session_that_it_depends_on() -> None:
    bench = Bench(keys=())
    io, sessions = bench.io, bench.core.sessions
    io.expect("PUT", "/v1/session/create", ok({"ID": OTHER}))
    further = io.run(sessions.create(io, SessionSpec(ttl=15.0)))
    keys = Keys(bench.core, ["k"], LOCK_FLAGS, "me")
    granted = KVPair("k", session=SESSION, modify_index=7, lock_index=1)
    kind = LockKind(keys)
    handle = bench.core.holds.grant(
        granted, kept=bench.kept, others=(further,), value=b"", flags=LOCK_FLAGS, kind=kind
    )
    io.time += 8.0
    io.expect("PUT", RENEW + SESSION, renewed())
    io.expect("PUT", RENEW + OTHER, ok([session(OTHER)]))
    io.run(hold_ops.ensure(io, sessions, handle.grant, seconds=10.0))
    assert handle.grant.lease.remaining(io.time) >= 10.0
    assert not io.steps
