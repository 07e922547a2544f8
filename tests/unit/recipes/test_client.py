"""What one client has under way: its end, in what order it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import ClientClosed
from consul_coord.events import Lost, Released
from consul_coord.io import PATIENCE, Interrupt, Signal
from consul_coord.models import LOCK_FLAGS, HoldState, KVPair, LossReason, ReleaseOutcome, SessionSpec
from consul_coord.recipes.cleanup.tasks import SWEEPS
from consul_coord.recipes.client import AGAIN, CALLS_END, INTEREST, QUIET, ClientState, close, close_session
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.lock.keys import Keys, LockKind
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, ok, pairs, txn_done, unreachable

if TYPE_CHECKING:
    from consul_coord.events import Event
    from consul_coord.http.messages import Request, Response
    from consul_coord.recipes.hold.grant import Grant, Handle
    from consul_coord.recipes.session.keeping import SessionSource

INFO, TXN = "/v1/session/info/", "/v1/txn"
CLOSED = (HoldState.LOST, LossReason.CLIENT_CLOSED)


class Bench:
    """A client with a session and a hold of ``k``."""

    def __init__(self) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(ttl=15.0), timeout=10.0)
        self.io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
        self.kept = self.io.run(self.core.sessions.shared.live(self.io, deadline=1010.0))
        self.handles: list[Handle] = []
        self.hold = self.grant("k")

    def grant(self, key: str) -> Grant:
        """Return a hold that is kept for as long as the bench is."""
        pair = KVPair(key, session=SESSION, modify_index=7, lock_index=1)
        self.keys = Keys(self.core, [key], LOCK_FLAGS, "me")
        kind = LockKind(self.keys)
        handle = self.core.holds.grant(pair, kept=self.kept, value=b"", flags=LOCK_FLAGS, kind=kind)
        self.handles.append(handle)
        return handle.grant


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_closing_waits_for_a_release_of_another_call_until_its_deadline_and_no_longer(bench: Bench) -> None:
    bench.hold.begin_release("another call")
    bench.core.begin_close()
    bench.io.run(close(bench.io, bench.core, deadline=1003.0))
    assert bench.io.time == 1003.0


@pytest.mark.parametrize("holds", [1, 2, 5])
@pytest.mark.usefixtures("more_than_asked")
def test_closing_ends_at_its_deadline_however_many_holds_a_silent_agent_has(bench: Bench, holds: int) -> None:
    for number in range(1, holds):
        bench.grant(f"k{number}")
    bench.core.begin_close()
    bench.io.expect("PUT", "/v1/", *[ok(value=True)] * 20, takes=60.0)
    bench.io.run(close(bench.io, bench.core, deadline=1003.0))
    assert bench.io.time == pytest.approx(1003.0)


@pytest.mark.parametrize(("time", "waits"), [(5.0, CALLS_END), (CALLS_END / 2, CALLS_END / 2)])
@pytest.mark.usefixtures("more_than_asked")
def test_closing_waits_a_moment_for_a_call_that_does_not_end_and_not_beyond_its_deadline(
    bench: Bench, time: float, waits: float
) -> None:
    bench.core.calls.enter(Interrupt())
    bench.core.begin_close()
    bench.io.expect("PUT", TXN, txn_done(*[entry("k", session=None, index=8)] * 2))
    bench.io.expect("PUT", f"/v1/session/destroy/{SESSION}", ok(value=True))
    bench.io.run(close(bench.io, bench.core, deadline=1000.0 + time))
    assert bench.io.time == 1000.0 + waits
    assert bool(bench.io.steps) == (waits == time), "the hold is given back if time is left"


@pytest.mark.parametrize("lost", [False, True])
def test_a_hold_that_is_over_is_no_claim_any_more_and_closing_does_nothing_for_it(
    bench: Bench, *, lost: bool
) -> None:
    """Also if something still refers to it."""
    if lost:
        bench.hold.lose(LossReason.KEY_DELETED)
    else:
        bench.io.expect("PUT", TXN, txn_done(*[entry("k", session=None, index=8)] * 2))
        bench.io.run(release(bench.io, bench.core.holds, bench.hold))
    assert not list(bench.core.register.all(object))
    bench.core.begin_close()
    bench.io.expect("PUT", f"/v1/session/destroy/{SESSION}", ok(value=True))
    bench.io.run(close(bench.io, bench.core, deadline=1005.0))
    assert not bench.io.steps
    assert not bench.core.reaper.pending


@pytest.mark.parametrize("interrupted", [False, True])
def test_closing_again_gives_back_what_was_not_given_back_and_nothing_twice(
    bench: Bench, *, interrupted: bool
) -> None:
    other = bench.grant("other")
    bench.core.tickets.join(bench.keys.ticket("other"))
    unlocked = {key: txn_done(*[entry(key, session=None, index=8)] * 2) for key in ("k", "other")}

    def interrupt(_: Request) -> Response:
        raise KeyboardInterrupt

    def close_it() -> None:
        bench.core.begin_close()
        bench.io.run(close(bench.io, bench.core, deadline=bench.io.time + 5.0))

    bench.io.expect("PUT", TXN, unlocked["k"])
    if interrupted:
        bench.io.expect("PUT", TXN, interrupt)
        with pytest.raises(KeyboardInterrupt):
            close_it()
        bench.io.expect("GET", f"/v1/kv/other/.wait/{SESSION}", pairs())  # the reaper looks first
        bench.io.expect("GET", "/v1/kv/other", pairs(entry("other", session=SESSION, index=7)))
    bench.io.expect("PUT", TXN, unlocked["other"])
    bench.io.expect("PUT", f"/v1/session/destroy/{SESSION}", ok(value=True))
    for _ in range(2):
        close_it()
    assert not bench.io.steps
    unknown = [("other", ReleaseOutcome.UNKNOWN)] if interrupted else []
    released = [(key, ReleaseOutcome.RELEASED) for key in ("k", "other")]
    assert told(bench) == [released[0], *unknown, released[1]]
    assert other.ended


def test_closing_gives_back_what_its_user_has_released_just_then(bench: Bench) -> None:
    """For the user it was lost by then: the key would get the lock-delay."""
    bench.core.begin_close()
    assert bench.io.run(release(bench.io, bench.core.holds, bench.hold)) is ReleaseOutcome.ALREADY_LOST
    bench.io.expect("PUT", TXN, txn_done(*[entry("k", session=None, index=8)] * 2))
    bench.io.expect("PUT", f"/v1/session/destroy/{SESSION}", ok(value=True))
    bench.io.run(close(bench.io, bench.core, deadline=bench.io.time + 5.0))
    assert not bench.io.steps


def test_closing_that_is_interrupted_when_it_has_given_a_hold_back_says_so_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(event: Event) -> None:
        bench.io.events.append(event)
        monkeypatch.undo()
        raise KeyboardInterrupt

    bench.core.begin_close()
    monkeypatch.setattr(bench.io, "emit", tell)
    bench.io.expect("PUT", TXN, txn_done(*[entry("k", session=None, index=8)] * 2))
    with pytest.raises(KeyboardInterrupt):
        bench.io.run(close(bench.io, bench.core, deadline=bench.io.time + 5.0))
    bench.io.expect("PUT", f"/v1/session/destroy/{SESSION}", ok(value=True))
    bench.io.run(close(bench.io, bench.core, deadline=bench.io.time + 5.0))
    assert told(bench) == [("k", ReleaseOutcome.RELEASED)]


def told(bench: Bench) -> list[tuple[str, ReleaseOutcome]]:
    return [(each.key, each.outcome) for each in bench.io.seen(Released)]


def test_a_closed_session_is_forgotten_once_the_background_has_destroyed_it(bench: Bench) -> None:
    bench.io.expect("PUT", TXN, txn_done(entry("k", session=None)))
    bench.io.expect("PUT", "/v1/session/destroy/", *[unreachable("/v1/session/destroy/")] * 100)
    bench.io.run(close_session(bench.io, bench.core, bench.kept))
    assert SESSION in bench.core.sessions.closed
    bench.io.steps.clear()
    bench.io.expect("PUT", "/v1/session/destroy/", ok(True))
    bench.io.run_spawned("reaper")
    assert not bench.core.sessions.closed


def test_who_is_woken_by_the_closing_finds_the_holds_ended_by_it(bench: Bench) -> None:
    found = []
    bench.core.closing.subscribe(lambda: found.append(bench.hold.look(bench.io.time)))
    bench.core.begin_close()
    assert found == [CLOSED]
    assert bench.io.seen(Lost) == [], "what closes gives it back: that is no loss of the lock"
    assert bench.core.holds.given_up() == [bench.hold]


def test_a_hold_that_is_granted_while_closing_begins_ends_with_the_others(bench: Bench) -> None:
    late = []
    bench.core.closing.subscribe(lambda: late.append(bench.grant("late")))
    bench.core.begin_close()
    assert late[0].look(bench.io.time) == CLOSED
    assert bench.core.holds.given_up() == [bench.hold, *late]


def test_nothing_begins_once_closing_has_begun(bench: Bench) -> None:
    refused = []

    def begin() -> None:
        with pytest.raises(ClientClosed):
            bench.core.calls.enter(Interrupt())
        refused.append(True)

    bench.hold.over.subscribe(begin)
    assert bench.core.begin_close()
    assert refused
    assert not bench.core.begin_close(), "once"


def test_a_session_of_its_own_ends_when_nobody_refers_to_the_lock_or_a_hold_any_more(bench: Bench) -> None:
    bench.io.expect("PUT", "/v1/session/create", ok({"ID": OTHER}))
    source: SessionSource | None = bench.core.source(SessionSpec(name="own"))
    assert source is not None
    kept = bench.io.run(source.live(bench.io, deadline=1010.0))
    bench.core.register.sweep()
    assert kept.lease.is_valid(bench.io.time)
    source = None
    bench.core.register.sweep()
    assert kept.lease.ended_by is LossReason.CLIENT_CLOSED
    assert bench.core.reaper.pending == 1, "it is destroyed"


@pytest.mark.parametrize("session", ["", SESSION])
def test_an_attempt_that_was_interrupted_anywhere_leaves_nothing_behind(bench: Bench, session: str) -> None:
    keys = Keys(bench.core, ["k"], LOCK_FLAGS, "me")
    bench.core.register.enter(keys, attempt := Signal())
    bench.core.tickets.join(keys.ticket("k"))
    if session:
        keys.acts_with(session)
    bench.core.register.sweep()
    assert bench.core.tickets.queue("k"), "the attempt goes on"
    del attempt
    bench.core.register.sweep()
    if session:
        for _ in ("at once", *SWEEPS):
            bench.io.expect("GET", f"/v1/kv/k/.wait/{SESSION}", pairs())
            bench.io.expect("GET", "/v1/kv/k", pairs())
        bench.io.run_spawned("reaper")
        assert not bench.io.steps, "what was asked for may be applied late"
    assert bench.core.tickets.queue("k") == []
    assert bench.core.reaper.pending == 0


def test_a_hold_that_nobody_refers_to_is_given_back_and_no_other(bench: Bench) -> None:
    other = bench.grant("other")
    bench.handles.remove(next(handle for handle in bench.handles if handle.grant is bench.hold))
    bench.core.register.sweep()
    assert bench.hold.released
    assert other.is_held(bench.io.time)


# -- contact


def asked_while_looked_at(bench: Bench, *, answered: bool) -> list[float]:
    """Look once whether there is contact, and return when the client asked for that, in seconds."""

    def answer(_: object) -> Response | Exception:
        if answered:
            bench.io.contact.heard()
            return ok([])
        return unreachable(INFO, method="GET")

    bench.io.expect("GET", INFO, *[answer] * 100)
    if not answered:
        bench.io.contact.asked()
        bench.io.time += PATIENCE
    began, before = bench.io.time, len(bench.io.sent_at)
    assert bench.core.connected is answered
    bench.io.run_spawned("contact")
    assert bench.io.time == pytest.approx(began + INTEREST, abs=AGAIN)
    return [at - began for at in bench.io.sent_at[before:]]


@pytest.mark.usefixtures("more_than_asked")
def test_a_client_that_is_looked_at_asks_when_it_has_heard_nothing_for_a_while(bench: Bench) -> None:
    bench.io.contact.heard()
    assert asked_while_looked_at(bench, answered=True) == pytest.approx([10.0, 20.0, 30.0, 40.0, 50.0])


@pytest.mark.usefixtures("more_than_asked")
def test_without_contact_it_asks_every_second(bench: Bench) -> None:
    asked = asked_while_looked_at(bench, answered=False)
    assert asked == pytest.approx([AGAIN * number for number in range(60)])


@pytest.mark.usefixtures("more_than_asked")
def test_an_agent_that_has_just_gone_is_asked_every_second_too(bench: Bench) -> None:
    bench.io.contact.heard()
    bench.io.expect("GET", INFO, *[unreachable(INFO, method="GET")] * 100)
    assert bench.core.connected
    bench.io.at(bench.io.time + QUIET + 5.5 * AGAIN, bench.core.begin_close)
    began, before = bench.io.time, len(bench.io.sent_at)
    bench.io.run_spawned("contact")
    asked = [at - began for at in bench.io.sent_at[before:]]
    assert asked == pytest.approx([QUIET + AGAIN * number for number in range(6)])


def test_a_request_that_its_caller_has_given_up_is_no_loss_of_contact(bench: Bench) -> None:
    bench.io.contact.heard()
    assert bench.core.connected
    bench.io.expect("GET", INFO, ok([]))
    given_up_at = bench.io.time + 5 * AGAIN
    bench.io.at(given_up_at, bench.io.contact.asked)
    present: list[bool] = []
    bench.io.at(given_up_at + PATIENCE, lambda: present.append(bench.io.contact.is_present))
    bench.io.at(given_up_at + PATIENCE, bench.core.begin_close)
    bench.io.run_spawned("contact")
    assert present == [True]


def test_a_client_that_is_closed_asks_no_more(bench: Bench) -> None:
    assert bench.core.connected
    bench.io.at(bench.io.time + AGAIN / 2, bench.core.begin_close)
    bench.io.run_spawned("contact")
    assert bench.io.time == pytest.approx(1000.0 + AGAIN / 2)
    assert not bench.core.connected
