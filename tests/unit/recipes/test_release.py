"""Giving up a hold at the very moment of its loss."""

from __future__ import annotations

from consul_coord.io import Signal
from consul_coord.models import LOCK_FLAGS, KVPair, LossReason, ReleaseOutcome, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.lock.keys import Keys, LockKind
from tests.support.fake_io import FakeIO
from tests.support.replies import SESSION, ok


def test_a_release_while_another_thread_tells_of_the_loss_knows_of_it() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=15.0), timeout=10.0)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    kept = io.run(core.sessions.shared.live(io, deadline=1010.0))
    pair = KVPair("k", session=SESSION, modify_index=7, lock_index=1)
    kind = LockKind(Keys(core, ["k"], LOCK_FLAGS, "me"))
    handle = core.holds.grant(pair, kept=kept, value=b"", flags=LOCK_FLAGS, kind=kind)
    hold = handle.grant
    outcomes: list[ReleaseOutcome] = []

    class Telling(Signal):
        """Stands for the moment between the end being settled and everybody being told."""

        def set(self) -> None:
            outcomes.append(io.run(release(io, core.holds, hold)))
            super().set()

    hold.lost = Telling()
    hold.lose(LossReason.TAKEN_OVER)
    assert outcomes == [ReleaseOutcome.ALREADY_LOST]
    assert io.time == 1000.0
