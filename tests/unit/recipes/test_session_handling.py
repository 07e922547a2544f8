"""Sessions that users keep themselves: what is sent to open, resume, hand over, close and clean them up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import BrokenReply, ConnectFailed, InvalidArgument, SessionNotFound, UnsafeSession
from consul_coord.events import Acquired, HandedOver, Lost, Released
from consul_coord.models import LOCK_FLAGS, HoldState, KVPair, LossReason, ReleaseOutcome, SessionSpec
from consul_coord.recipes.cleanup.tasks import DestroySession, GiveBack, StraySession
from consul_coord.recipes.client import ClientState, close, close_session
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.lock.keys import Keys, LockKind
from consul_coord.recipes.session import handling, keeping
from consul_coord.recipes.session.keeping import KeptSession
from consul_coord.recipes.session.lease import Lease
from consul_coord.recipes.session.outage import Outages
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
    txn_done,
    unreachable,
)
from tests.support.replies import session as session_json

if TYPE_CHECKING:
    from consul_coord.events import Event
    from consul_coord.http.messages import Request, Response
    from consul_coord.models import Session
    from consul_coord.recipes.hold.grant import Grant

CREATE, RENEW, DESTROY = "/v1/session/create", "/v1/session/renew/", "/v1/session/destroy/"
LIST = "/v1/session/list"
TEXT = f"consul-coord-session:1:{SESSION}"


class Bench:
    def __init__(self) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(), timeout=10.0)

    def open(self, resume: str | None = None) -> KeptSession:
        spec = SessionSpec(name="importer")
        return self.io.run(handling.open_session(self.io, self.core.sessions, spec, resume=resume))

    def opened(self) -> KeptSession:
        self.io.expect("PUT", CREATE, ok({"ID": SESSION}))
        return self.open()

    def close(self, kept: KeptSession) -> None:
        self.io.run(close_session(self.io, self.core, kept))

    def grant(self, kept: KeptSession, *, began: float | None = None) -> Grant:
        keys = Keys(self.core, ["k"], LOCK_FLAGS, "me")
        self.core.tickets.join(keys.ticket("k"))
        pair = KVPair("k", session=kept.id, modify_index=7, lock_index=1)
        kind = LockKind(keys)
        self.handle = self.core.holds.grant(
            pair, kept=kept, value=b"", flags=LOCK_FLAGS, kind=kind, began=began
        )
        return self.handle.grant

    def destroy_named(self, name: str) -> tuple[Session, ...]:
        return self.io.run(
            handling.destroy_named(self.io, self.core.sessions, name, timeout=self.core.timeout)
        )

    @property
    def tasks(self) -> list[type[object]]:
        return [type(task) for task in self.core.reaper.tasks]

    def is_idle(self) -> bool:
        return self.core.tickets.join_if_idle(Ticket(self.core.tickets, "k", "probe"))


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- closing the client


def test_a_session_that_ends_as_its_client_closes_is_destroyed_after_its_holds_are_given_back(
    bench: Bench,
) -> None:
    kept = bench.opened()
    bench.grant(kept)
    bench.core.begin_close()
    bench.close(kept)  # as at the end of its block, in another thread
    bench.io.expect("PUT", "/v1/txn", txn_done(entry("k", session=None)))
    bench.io.expect("GET", "/v1/kv/k/.wait/", pairs())  # what an acquire may have left
    bench.io.expect("GET", "/v1/kv/k", pairs())
    bench.io.expect("PUT", DESTROY + SESSION, ok(value=True))
    bench.io.run(close(bench.io, bench.core, deadline=bench.io.time + 5.0))
    assert not bench.io.steps


# -- opening and resuming


def test_it_is_created_and_renewed_from_then_on(bench: Bench) -> None:
    kept = bench.opened()
    assert kept.id == SESSION
    assert [each.name for each in bench.io.spawned] == [f"keep session {SESSION}"]


def test_a_create_that_was_surely_not_applied_is_repeated(bench: Bench) -> None:
    bench.io.expect("PUT", CREATE, unreachable(CREATE), unreachable(CREATE), ok({"ID": SESSION}))
    assert bench.open().id == SESSION
    assert bench.tasks == []


def test_a_create_without_an_answer_is_not_repeated_but_looked_after(bench: Bench) -> None:
    bench.io.expect("PUT", CREATE, lost(CREATE))
    with pytest.raises(BrokenReply):
        bench.open()
    assert bench.tasks == [StraySession]


@pytest.mark.usefixtures("more_than_asked")
def test_repeating_ends_with_the_clients_timeout(bench: Bench) -> None:
    bench.io.expect("PUT", CREATE, *[unreachable(CREATE)] * 100)
    began = bench.io.time
    with pytest.raises(ConnectFailed):
        bench.open()
    assert bench.io.time - began < 10.0


def test_resuming_renews_first_and_creates_nothing(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW + SESSION, renewed(ttl="40s", LockDelay=40_000_000_000))
    kept = bench.open(TEXT)
    assert kept.id == SESSION
    assert kept.lease.longest == pytest.approx(0.95 * 40)
    assert kept.ours_to_destroy
    assert bench.core.sessions.get(SESSION) is kept


def test_resuming_sits_out_passing_trouble(bench: Bench) -> None:
    trouble = (refusal(500, "No cluster leader"), lost(RENEW), refusal(429))
    bench.io.expect("PUT", RENEW + SESSION, *trouble, renewed())
    kept = bench.open(TEXT)
    assert kept.lease.sent_at == bench.io.sent_at[-1]
    assert bench.core.sessions.get(SESSION) is kept


@pytest.mark.usefixtures("more_than_asked")
def test_resuming_ends_with_the_clients_timeout(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW + SESSION, *[unreachable(RENEW)] * 100)
    began = bench.io.time
    with pytest.raises(ConnectFailed):
        bench.open(TEXT)
    assert 9.0 < bench.io.time - began < 10.0
    assert list(bench.core.sessions) == []


def test_what_has_ended_can_not_be_resumed(bench: Bench) -> None:
    expect_gone(bench.io)
    with pytest.raises(SessionNotFound, match="resumed") as told:
        bench.open(TEXT)
    assert told.value.session == SESSION
    assert list(bench.core.sessions) == []


@pytest.mark.parametrize(
    "text", ["", SESSION, "consul-coord-session:1:", f"consul-coord-session:2:{SESSION}"]
)
def test_only_an_exports_text_is_resumed(bench: Bench, text: str) -> None:
    with pytest.raises(InvalidArgument):
        bench.open(text)
    assert bench.io.requests == []


def test_an_interrupt_just_as_it_is_resumed_leaves_no_session_that_nobody_renews(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.io.expect("PUT", RENEW + SESSION, renewed())

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(bench.io, "spawn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.open(TEXT)
    assert list(bench.core.sessions) == []
    assert bench.tasks == []


def test_what_is_exported_can_be_resumed(bench: Bench) -> None:
    assert handling.parse(handling.export(bench.opened())) == SESSION


def test_the_client_that_exported_it_may_go_on_with_it_itself(bench: Bench) -> None:
    before = bench.opened()
    hold = bench.grant(before)
    text = handling.export(before)
    bench.io.expect("PUT", RENEW + SESSION, renewed())
    after = bench.open(text)
    assert bench.core.sessions.get(SESSION) is after
    assert hold.look(bench.io.time) == (HoldState.LOST, LossReason.CLIENT_CLOSED)
    assert [event.fence for event in bench.io.seen(HandedOver)] == [7]
    assert bench.is_idle()
    sent = len(bench.io.requests)
    bench.close(before)
    assert len(bench.io.requests) == sent, "whoever had it before ends nothing of it"
    assert after.lease.is_valid(bench.io.time)


# -- closing


def test_closing_releases_then_destroys(bench: Bench) -> None:
    kept = bench.opened()
    hold = bench.grant(kept)
    unlocked = [entry("k", session=None, index=8)] * 2
    bench.io.expect("PUT", "/v1/txn", txn_done(*unlocked))
    bench.io.expect("PUT", DESTROY + SESSION, ok(value=True))
    bench.close(kept)
    assert [event.outcome for event in bench.io.seen(Released)] == [ReleaseOutcome.RELEASED]
    assert hold.look(bench.io.time) == (HoldState.RELEASED, None)
    assert list(bench.core.sessions) == []
    sent = len(bench.io.requests)
    bench.close(kept)
    assert len(bench.io.requests) == sent
    assert not bench.core.sessions.closed


@pytest.mark.usefixtures("more_than_asked")
def test_a_destroy_without_an_answer_goes_to_the_reaper(bench: Bench) -> None:
    kept = bench.opened()
    bench.io.expect("PUT", DESTROY, *[unreachable(DESTROY)] * 100)
    bench.close(kept)
    assert bench.tasks == [DestroySession]


def test_a_refused_destroy_does_so_too(bench: Bench) -> None:
    kept = bench.opened()
    bench.io.expect("PUT", DESTROY, refusal(403, "Permission denied"))
    bench.close(kept)
    assert bench.tasks == [DestroySession]


def test_what_is_still_to_be_unlocked_comes_before_the_destroy(bench: Bench) -> None:
    kept = bench.opened()
    hold = bench.grant(kept)
    hold.begin_release()
    hold.kind.abandon(hold)
    bench.close(kept)
    assert bench.tasks == [GiveBack, DestroySession]


INTERRUPTIBLE = [(Lease, "end"), (Outages, "forget"), (KeptSession, "finish")]


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize(("kind", "name"), INTERRUPTIBLE, ids=[name for _, name in INTERRUPTIBLE])
def test_an_interrupt_just_as_it_ends_leaves_the_rest_to_the_background(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, *, exported: bool
) -> None:
    """A session that stayed in care would let no query last, since its renewal would be due for ever."""
    kept = bench.opened()
    if exported:
        handling.export(kept)
    does = getattr(kind, name)

    def interrupted(*given: object) -> None:
        does(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(kind, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.close(kept)
    assert bench.tasks == ([] if exported else [DestroySession])
    bench.io.run_spawned(f"keep session {SESSION}")
    assert list(bench.core.sessions) == []
    assert kept.over.is_set()


def test_an_interrupt_as_it_is_handed_over_after_its_lease_leaves_the_rest_to_the_background(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = bench.opened()
    handling.export(kept)
    bench.core.sessions.end(kept, LossReason.EXPIRED)

    async def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("consul_coord.recipes.client._let_releases_end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.close(kept)
    bench.io.run_spawned("close a session")
    with pytest.raises(SessionNotFound, match="was exported and closed"):
        bench.core.sessions.check_usable(SESSION)


def test_an_interrupt_just_as_it_ends_amid_a_renewal_leaves_the_rest_to_that(bench: Bench) -> None:
    kept = bench.opened()

    def ends(_: Request) -> Response:
        kept.lease.end(LossReason.CLIENT_CLOSED)  # as far as the interrupted call came
        return refusal(404, "Session id 'x' not found")

    bench.io.expect("PUT", RENEW + SESSION, ends)
    bench.io.expect("GET", "/v1/session/info/", ok([]))
    bench.io.expect("PUT", RENEW + SESSION, refusal(404, "Session id 'x' not found"))
    bench.io.run_spawned(f"keep session {SESSION}")
    assert list(bench.core.sessions) == []
    assert kept.over.is_set()


def test_who_hears_that_a_lease_is_over_can_not_use_the_session_until_it_is_destroyed(bench: Bench) -> None:
    kept, refused = bench.opened(), list[Exception]()

    def use() -> None:
        try:
            bench.core.sessions.check_usable(kept.id)
        except SessionNotFound as error:
            refused.append(error)

    kept.over.subscribe(use)
    bench.core.sessions.end(kept, LossReason.EXPIRED)
    assert [str(error) for error in refused] == [
        f"session {SESSION} was closed, or lost: open a new one with client.keep_session"
    ]


def test_closing_one_that_was_exported_and_resumed_here_leaves_what_the_latter_owes(bench: Bench) -> None:
    """As in two blocks, one in the other."""
    first = bench.opened()
    text = handling.export(first)
    bench.io.expect("PUT", RENEW + SESSION, renewed())
    second = bench.open(text)
    bench.grant(second)
    bench.io.expect("PUT", "/v1/txn", *[unreachable("/v1/txn")] * 20)
    bench.close(second)
    bench.io.steps.clear()
    bench.close(first)
    assert bench.tasks == [GiveBack, DestroySession]


def test_closing_an_exported_one_sends_nothing_and_lets_go_of_its_holds(bench: Bench) -> None:
    kept = bench.opened()
    hold = bench.grant(kept)
    handling.export(kept)
    sent = len(bench.io.requests)
    bench.close(kept)
    assert len(bench.io.requests) == sent
    assert hold.look(bench.io.time) == (HoldState.LOST, LossReason.CLIENT_CLOSED)
    assert [event.fence for event in bench.io.seen(HandedOver)] == [7]
    assert bench.io.seen(Lost) == []
    assert bench.is_idle()
    assert bench.tasks == []


# -- cleaning up by name


def test_the_sessions_of_a_name_are_destroyed_but_for_the_own_ones(bench: Bench) -> None:
    bench.opened()
    listed = [
        session_json(SESSION, Name="importer #0123456789ab-1"),
        session_json(OTHER, Name="importer #ba9876543210-4"),
        session_json("33333333-3333-3333-3333-333333333333", Name="exporter"),
    ]
    bench.io.expect("GET", LIST, ok(listed))
    bench.io.expect("PUT", DESTROY + OTHER, ok(value=True))
    assert [session.id for session in bench.destroy_named("importer")] == [OTHER]
    assert ("consistent", "") in bench.io.requests[1].params


def test_a_destroy_is_repeated_until_answered(bench: Bench) -> None:
    bench.io.expect("GET", LIST, ok([session_json(OTHER, Name="importer")]))
    bench.io.expect("PUT", DESTROY + OTHER, lost(DESTROY), ok(value=True))
    assert [session.id for session in bench.destroy_named("imp*")] == [OTHER]


def test_no_name_means_nobody(bench: Bench) -> None:
    with pytest.raises(InvalidArgument):
        bench.destroy_named("")
    assert bench.io.requests == []


def test_a_session_on_a_node_that_has_an_agent_by_now_is_not_resumed(bench: Bench) -> None:
    """It would count as one that only an operator ends."""
    spec = SessionSpec.coordination("locks")
    answer = renewed(ttl=f"{spec.ttl:g}s", Node="locks", LockDelay=15_000_000_000)
    bench.io.expect("PUT", RENEW + SESSION, answer)
    bench.io.expect("GET", "/v1/health/node/locks", ok([{"Node": "locks", "CheckID": "serfHealth"}]))
    with pytest.raises(UnsafeSession, match="it has an agent"):
        bench.io.run(handling.open_session(bench.io, bench.core.sessions, spec, resume=TEXT))
    assert list(bench.core.sessions) == []


def test_a_session_that_this_client_is_about_to_destroy_is_not_resumed(bench: Bench) -> None:
    """It has expired here in an outage, and the server still has it."""
    kept = bench.opened()
    bench.core.sessions.end(kept, LossReason.EXPIRED)
    bench.io.expect("PUT", RENEW + SESSION, renewed())
    with pytest.raises(SessionNotFound, match="was closed, or lost"):
        bench.open(TEXT)
    assert list(bench.core.sessions) == []
    assert bench.tasks == [DestroySession]


def test_an_end_that_was_interrupted_is_told_to_its_holds_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = bench.opened()
    hold = bench.grant(kept)
    with monkeypatch.context() as patch:
        patch.setattr(keeping, "lose_together", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.core.sessions.end(kept, LossReason.EXPIRED)
    bench.io.run(keeping.keep(bench.io, bench.core.sessions, kept))
    assert hold.lost.is_set()
    assert [event.reason for event in bench.io.seen(Lost)] == [LossReason.EXPIRED]
    assert bench.tasks == [DestroySession]


def test_a_session_whose_discarding_was_interrupted_is_destroyed_at_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, sessions = bench.opened(), bench.core.sessions
    with monkeypatch.context() as patch:
        patch.setattr(keeping, "lose_together", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sessions.discard(kept, "slots/contender")
    sessions.discard(kept, "slots/contender")
    assert bench.tasks == [DestroySession]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_hold_is_told_of_an_end_of_its_session_amid_the_report_of_its_beginning(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, emit = bench.opened(), bench.io.emit

    def emit_slowly(event: Event) -> None:
        emit(event)
        if isinstance(event, Acquired):
            bench.core.sessions.end(kept, LossReason.EXPIRED)

    monkeypatch.setattr(bench.io, "emit", emit_slowly)
    hold = bench.grant(kept, began=bench.io.time)
    assert hold.lost.is_set()
    assert [event.reason for event in bench.io.seen(Lost)] == [LossReason.EXPIRED]
