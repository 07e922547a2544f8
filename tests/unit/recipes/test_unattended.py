"""Attempts of background programs: closing the client waits for them as for calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import ClientClosed, PermissionDenied
from consul_coord.models import LOCK_FLAGS, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.lock.unattended import UnattendedAttempt
from tests.support.fake_io import FakeIO
from tests.support.replies import SESSION, ok, refusal

if TYPE_CHECKING:
    from consul_coord.http.messages import Request, Response

PLAN = LockPlan(keys=("k",), value=b"me", flags=LOCK_FLAGS, fair=False, session=None)


class Bench:
    """A client, and one attempt of its background."""

    def __init__(self) -> None:
        self.io = FakeIO()
        self.client = ClientState(self.io, spec=SessionSpec(ttl=15.0), timeout=10.0)
        self.attempt = UnattendedAttempt(self.io, self.client, PLAN, self.client.sessions.shared, timeout=1.0)

    def run(self) -> None:
        self.io.run(self.attempt.run())


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_is_a_call_while_it_lasts(bench: Bench) -> None:
    seen: list[int] = []

    def reply(_: Request) -> Response:
        seen.append(len(bench.client.calls))
        return refusal(403, "Permission denied")

    bench.io.expect("PUT", "/v1/session/create", reply)
    with pytest.raises(PermissionDenied):
        bench.run()
    assert seen == [1]
    assert not bench.client.calls


def test_it_does_not_begin_once_the_client_refuses_calls(bench: Bench) -> None:
    bench.client.calls.refuse(ClientClosed)
    with pytest.raises(ClientClosed):
        bench.run()
    assert not bench.io.requests
    assert bench.client.calls.over.is_set()


def test_it_goes_on_to_nothing_once_the_client_closes(bench: Bench) -> None:
    """Though its session lives until closing has come to that."""
    bench.io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    bench.io.run(bench.client.sessions.shared.live(bench.io, deadline=bench.io.time + 10.0))
    bench.client.closing.set()
    with pytest.raises(ClientClosed):
        bench.run()
    assert len(bench.io.requests) == 1
