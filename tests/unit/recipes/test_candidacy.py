"""The pauses of a candidate: after refusals they grow, after a leadership they are random, and begin anew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import PermissionDenied
from consul_coord.events import Elected, Failed, Lost, Resigned
from consul_coord.io import Signal
from consul_coord.models import LOCK_FLAGS, KVPair, LossReason, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.election import asking
from consul_coord.recipes.election.candidacy import Candidacy, ElectionPlan, lock_of
from consul_coord.recipes.lock.keys import Keys, LockKind
from tests.support.fake_io import FakeIO
from tests.support.replies import SESSION, ok

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.io import IO
    from consul_coord.recipes.hold.grant import Handle

TICK = 0.125
"""Seconds between two looks at whether it makes an attempt."""
REFUSED = PermissionDenied("denied", method="PUT", path="/v1/txn", status=403)
LEADS = "leads"
LED = "was elected, and has lost that by now"
RESIGNS = "leads, and resigns"


class Twice(Signal):
    """One that two threads raise at once."""

    def subscribe(self, callback: Callable[[], object]) -> Callable[[], object]:
        return super().subscribe(lambda: (callback(), callback()))


class Scripted(Candidacy):
    """One whose attempts end as they are told to; a leadership is lost at once."""

    def __init__(
        self, io: FakeIO, *todo: object, retry_wait: tuple[float, float] = (1.0, 1.0), aside: float = 0.0
    ) -> None:
        self.todo = list(todo)
        self.aside = aside
        """Seconds for which a leader is asked to stand aside, right before its leadership ends."""
        self.tried_at: list[float] = []
        core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
        io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
        self.kept = io.run(core.sessions.shared.live(io, deadline=io.time + 10))
        plan = ElectionPlan(
            key="k",
            retry_wait=retry_wait,
            priority_delay=0.0,
            health_interval=1.0,
            on_elected=None,
            on_lost=None,
            on_change=None,
            health=None,
        )
        lock = lock_of(key="k", value=b"", session=None, accept_flags=())
        super().__init__(core, plan, lock, None, keeps=None)  # type: ignore[arg-type]
        self._io = io

    def granted(self) -> Handle:
        """Return the key, as it is granted."""
        pair = KVPair("k", session=SESSION, modify_index=7, lock_index=1)
        kind = LockKind(Keys(self.client, ["k"], LOCK_FLAGS, "me"))
        return self.client.holds.grant(pair, kept=self.kept, value=b"", flags=LOCK_FLAGS, kind=kind)

    async def _attempt(self, io: IO) -> Handle:
        self.tried_at.append(io.now())
        what = self.todo.pop(0)
        if not self.todo:
            self.stop()
        if isinstance(what, PermissionDenied):
            raise what
        handle = self.granted()

        def end() -> None:
            if self.aside:
                self.stand_aside(self.aside)
            if what is RESIGNS:
                handle.grant.begin_release()
                handle.grant.wake()
            else:
                handle.grant.lose(LossReason.KEY_DELETED)

        handle.grant.over = Twice()
        if what is LED:
            end()
        else:
            self._io.at(io.now() + (2 * TICK if self.aside else 0.0), end)  # once it leads
        return handle

    def pauses(self) -> list[float]:
        """Run it to its end; return the seconds between its attempts, to a tick."""

        def look() -> None:
            if any(each.name.startswith("candidate for") for each in self._io.spawned):
                self._io.run_spawned("candidate for")
            self._io.at(self._io.time + TICK, look)

        look()
        self._io.run(self.run(self._io))
        assert self not in self.client.standing
        return [later - before for before, later in zip(self.tried_at, self.tried_at[1:], strict=False)]


def test_the_pauses_after_refusals_grow_and_begin_anew_after_a_leadership() -> None:
    io = FakeIO()
    refusals = [REFUSED] * 4
    pauses = Scripted(io, *refusals, LEADS, *refusals, REFUSED).pauses()
    assert pauses[:4] == pytest.approx([0.5, 1.0, 2.0, 4.0], abs=2 * TICK)
    assert pauses[5:] == pytest.approx([0.5, 1.0, 2.0, 4.0], abs=2 * TICK)


@pytest.mark.parametrize(("random", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.75, 4.0)])
def test_the_pause_after_a_leadership_is_random_between_its_bounds(random: float, expected: float) -> None:
    io = FakeIO(random=random)
    pauses = Scripted(io, LEADS, LEADS, REFUSED, retry_wait=(1.0, 5.0)).pauses()
    assert pauses == pytest.approx([expected] * 2, abs=2 * TICK)


@pytest.mark.parametrize(("aside", "pause"), [(0.0, 1.0), (0.5, 1.0), (60.0, 60.0)])
def test_the_pause_that_a_leader_was_asked_for_outlasts_the_one_after_each_leadership(
    aside: float, pause: float
) -> None:
    pauses = Scripted(FakeIO(), LEADS, REFUSED, aside=aside).pauses()
    assert pauses == pytest.approx([pause], abs=3 * TICK)


def test_no_election_is_reported_after_the_loss_of_what_it_has_won() -> None:
    """As where the process stands still just when its answer comes."""
    io = FakeIO()
    Scripted(io, LED, LEADS, REFUSED, aside=TICK).pauses()
    told = [type(event) for event in io.events if isinstance(event, Elected | Lost)]
    assert told == [Lost, Elected, Lost]


def test_a_resignation_is_reported_once() -> None:
    io = FakeIO()
    Scripted(io, RESIGNS, LEADS, RESIGNS, REFUSED).pauses()
    assert len(io.seen(Resigned)) == 2


def test_a_refusal_is_reported_when_it_is_a_new_one_and_the_candidate_still_stands() -> None:
    io = FakeIO()
    other = PermissionDenied("denied otherwise", method="PUT", path="/v1/txn", status=403)
    last = PermissionDenied("denied at last", method="PUT", path="/v1/txn", status=403)
    Scripted(io, REFUSED, REFUSED, other, last).pauses()
    assert [event.error.partition("denied")[2] for event in io.seen(Failed)] == ["", " otherwise"]


def test_one_that_can_not_begin_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when no thread can be started: whoever waits for it would wait for ever."""
    io = FakeIO()
    candidacy = Scripted(io, REFUSED)

    def spawn(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(io, "spawn", spawn)
    with pytest.raises(RuntimeError):
        io.run(asking.start(io, candidacy))
    assert candidacy.is_over


class AtOnce:
    """Calls what it is to ask, at once."""

    def ask(
        self,
        function: Callable[[], object],
        answered: Callable[[object], object],
        failed: Callable[[BaseException], object],
        *,
        until: object,
    ) -> None:
        try:
            answer = function()
        except ValueError as error:
            failed(error)
        else:
            answered(answer)


def test_a_health_that_raises_is_reported_once_in_a_row() -> None:
    io, answers = FakeIO(), [ValueError, ValueError, True, ValueError, False, ValueError]
    candidacy = Scripted(io, REFUSED)

    def health() -> object:
        answer = answers.pop(0)
        if not answers:
            candidacy.stop()
        if answer is ValueError:
            raise ValueError("it is not known")
        return answer

    candidacy.plan = replace(candidacy.plan, health=health)
    candidacy.calls = AtOnce()  # type: ignore[assignment]
    io.run(candidacy._watch_health(io))
    assert [event.error for event in io.seen(Failed)] == ["ValueError: it is not known"] * 3


class InTime:
    """Calls what it is to ask after some time."""

    def __init__(self, io: FakeIO, seconds: float) -> None:
        self.io, self.seconds = io, seconds

    def ask(
        self,
        function: Callable[[], object],
        answered: object,
        failed: Callable[[BaseException], object],
        **_: object,
    ) -> None:
        """Ask, and fail."""
        self.io.at(self.io.time + self.seconds, lambda: failed(ValueError("it is not known")))


def test_a_health_that_fails_after_an_election_in_its_time_may_mean_that_the_leader_is_stuck() -> None:
    io = FakeIO()
    candidacy = Scripted(io, REFUSED)
    candidacy.plan = replace(candidacy.plan, health=lambda: True)
    candidacy.calls = InTime(io, 2.0)  # type: ignore[assignment]

    def elect() -> None:
        candidacy.handle = candidacy.granted()

    io.at(io.time + 1.0, elect)
    io.at(io.time + 3.0, candidacy.stop)
    io.run(candidacy._watch_health(io))
    assert candidacy.hold is not None
    assert candidacy.hold.reason is LossReason.STALLED


class Queue:
    """Keeps what it is to call, until it is told to."""

    def __init__(self) -> None:
        self.functions: list[Callable[[], object]] = []

    def in_order(self, function: Callable[[], object], *_: object, **__: object) -> None:
        """Call it after those before it."""
        self.functions.append(function)


@pytest.mark.parametrize(("late", "told"), [(0.0, ["elected", "lost"]), (60.0, [])])
def test_who_has_stopped_before_its_turn_hears_of_no_election_and_of_no_loss(
    late: float, told: list[str]
) -> None:
    io, calls, heard = FakeIO(), Queue(), list[str]()
    candidacy = Scripted(io, REFUSED)
    candidacy.plan = replace(
        candidacy.plan, on_elected=lambda *_: heard.append("elected"), on_lost=lambda _: heard.append("lost")
    )
    candidacy.calls = calls  # type: ignore[assignment]
    handle = candidacy.granted()
    candidacy._begin(handle)
    handle.grant.lose(LossReason.KEY_DELETED)
    candidacy.stop()
    io.run(candidacy.run(io))
    io.time += late
    for function in calls.functions:
        function()
    assert heard == told


class Never:
    """Calls nothing, as where a function hangs."""

    def ask(self, *_: object, until: object) -> None:
        """Ask in vain."""


def test_a_candidate_that_stops_waits_for_no_health_that_hangs() -> None:
    io = FakeIO()
    candidacy = Scripted(io, REFUSED)
    candidacy.plan = replace(candidacy.plan, health=lambda: True)
    candidacy.calls = Never()  # type: ignore[assignment]
    began = io.time
    io.at(began + 1.0, candidacy.stop)
    io.run(candidacy._watch_health(io))
    assert io.time == began + 1.0
