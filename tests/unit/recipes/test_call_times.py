"""Calls with a hold, and the time that they take: giving it up, and verifying it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import RequestTimeout
from consul_coord.io import Signal
from consul_coord.models import LOCK_FLAGS, KVPair, LossReason, ReleaseOutcome, SessionSpec
from consul_coord.recipes.cleanup.unlock import Locked
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.hold.asking import verify
from consul_coord.recipes.hold.evidence import make_sure
from consul_coord.recipes.hold.holds import BUDGET, release
from consul_coord.recipes.lock.keys import Keys, LockKind, MultiLockKind
from tests.support.fake_io import FakeIO
from tests.support.replies import SESSION, entry, ok, pairs

if TYPE_CHECKING:
    from consul_coord.recipes.hold.grant import Handle


class Bench:
    """A client that holds the key ``k``, and others with it."""

    def __init__(self, others: tuple[Locked, ...] = ()) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(ttl=15.0), timeout=10.0)
        self.io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
        kept = self.io.run(self.core.sessions.shared.live(self.io, deadline=1010.0))
        pair = KVPair("k", session=SESSION, modify_index=7, lock_index=1)
        keys = Keys(self.core, ["k"], LOCK_FLAGS, "me")
        assert self.core.tickets.join(keys.ticket("k"))
        kind = MultiLockKind(keys, others) if others else LockKind(keys)
        self.handle: Handle = self.core.holds.grant(pair, kept=kept, value=b"", flags=LOCK_FLAGS, kind=kind)
        self.hold = self.handle.grant

    def release(self) -> ReleaseOutcome:
        return self.io.run(release(self.io, self.core.holds, self.hold))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_release_while_another_thread_tells_of_the_loss_knows_of_it(bench: Bench) -> None:
    outcomes: list[ReleaseOutcome] = []

    class Telling(Signal):
        """Stands for the moment between the end being settled and everybody being told."""

        def set(self) -> None:
            outcomes.append(bench.release())
            super().set()

    bench.hold.lost = Telling()
    bench.hold.lose(LossReason.TAKEN_OVER)
    assert outcomes == [ReleaseOutcome.ALREADY_LOST]
    assert bench.io.time == 1000.0


def test_a_release_beside_another_one_waits_for_its_outcome_and_no_longer_than_one_may_take(
    bench: Bench,
) -> None:
    assert bench.hold.begin_release("another thread")
    assert bench.release() is ReleaseOutcome.UNKNOWN
    assert bench.io.time == 1000.0 + BUDGET
    bench.io.at(bench.io.time + 3.0, lambda: bench.hold.finish_release(ReleaseOutcome.RELEASED))
    assert bench.release() is ReleaseOutcome.RELEASED
    assert bench.io.time == 1003.0 + BUDGET


def test_a_release_within_that_call_does_not_wait_for_it(bench: Bench) -> None:
    assert bench.hold.begin_release(bench.io.caller)
    assert bench.release() is ReleaseOutcome.UNKNOWN
    assert bench.io.time == 1000.0


def test_a_release_without_an_answer_takes_its_time_and_no_longer(bench: Bench) -> None:
    bench.io.expect("PUT", "/v1/txn", ok({}), takes=100.0)
    bench.io.expect("GET", "/v1/status/leader", ok("10.0.0.1:8300"))
    assert bench.release() is ReleaseOutcome.UNKNOWN
    assert bench.io.time == 1000.0 + BUDGET
    assert bench.core.reaper.pending == 1


def test_a_release_that_is_answered_late_but_in_time_is_one(bench: Bench) -> None:
    unlocked = {"Results": [{"KV": entry("k", session=None, index=8)}] * 2, "Errors": None}
    bench.io.expect("PUT", "/v1/txn", ok(unlocked), takes=BUDGET - 0.5)
    assert bench.release() is ReleaseOutcome.RELEASED
    assert bench.core.reaper.pending == 0


def test_verifying_a_hold_of_several_keys_takes_the_time_of_one_call() -> None:
    bench = Bench(others=(Locked("l", 9, b""), Locked("m", 9, b"")))
    bench.io.expect("GET", "/v1/kv/k", pairs(entry("k", index=7)), takes=6.0)
    bench.io.expect("GET", "/v1/kv/l", pairs(entry("l", index=9)), takes=100.0)
    bench.io.expect("GET", "/v1/status/leader", ok("10.0.0.1:8300"))
    with pytest.raises(RequestTimeout):
        bench.io.run(verify(bench.io, bench.core.sessions, bench.hold))
    assert bench.io.time == 1000.0 + bench.core.timeout


@pytest.mark.parametrize("used", [0.0, 8.0])
def test_looking_for_a_loss_ends_with_the_lease_or_the_time_of_a_call(bench: Bench, used: float) -> None:
    bench.io.time += used
    ends = min(bench.hold.valid_until, bench.io.time + bench.core.timeout)
    bench.io.expect("GET", "/v1/kv/k", pairs(entry("k")), takes=100.0)
    bench.io.expect("GET", "/v1/status/leader", ok("10.0.0.1:8300"))
    with suppress(RequestTimeout):
        bench.io.run(make_sure(bench.io, bench.core.sessions, bench.hold))
    assert bench.io.time == pytest.approx(ends)
