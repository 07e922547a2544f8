"""What one client has under way: its end, in what order it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import ClientClosed
from consul_coord.events import Lost
from consul_coord.io import Interrupt
from consul_coord.models import HoldState, KVPair, LossReason, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend.tickets import Ticket
from tests.support.fake_io import FakeIO
from tests.support.replies import SESSION, ok

if TYPE_CHECKING:
    from consul_coord.recipes.hold.grant import Grant

CLOSED = (HoldState.LOST, LossReason.CLIENT_CLOSED)


class Bench:
    """A coordinator with a session and a hold of ``k``."""

    def __init__(self) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(ttl=15.0), timeout=10.0)
        self.io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
        self.kept = self.io.run(self.core.shared.live(self.io, deadline=1010.0))
        self.hold = self.grant("k")

    def grant(self, key: str) -> Grant:
        pair = KVPair(key, session=SESSION, modify_index=7, lock_index=1)
        return self.core.grant(pair, kept=self.kept, value=b"", flags=0, ticket=Ticket(key, "me"))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_who_is_woken_by_the_closing_finds_the_holds_ended_by_it(bench: Bench) -> None:
    found = []
    bench.core.closing.subscribe(lambda: found.append(bench.hold.look(bench.io.time)))
    bench.core.begin_close()
    assert found == [CLOSED]
    assert bench.io.seen(Lost) == [], "what closes gives it back: that is no loss of the lock"
    assert bench.core.given_up() == [bench.hold]


def test_a_hold_that_is_granted_while_closing_begins_ends_with_the_others(bench: Bench) -> None:
    late = []
    bench.core.closing.subscribe(lambda: late.append(bench.grant("late")))
    bench.core.begin_close()
    assert late[0].look(bench.io.time) == CLOSED
    assert bench.core.given_up() == [bench.hold, *late]


def test_nothing_begins_once_closing_has_begun(bench: Bench) -> None:
    refused = []

    def begin() -> None:
        with pytest.raises(ClientClosed):
            bench.core.enter(Interrupt())
        refused.append(True)

    bench.hold.over.subscribe(begin)
    assert bench.core.begin_close()
    assert refused
    assert not bench.core.begin_close(), "once"
