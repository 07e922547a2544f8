"""Candidates of low priority: they queue in the vacancy that they waited for, and in no later one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import AcquireTimeout, PermissionDenied
from consul_coord.models import LOCK_FLAGS, Blocker, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.election import candidacy
from consul_coord.recipes.election.candidate import Candidate
from consul_coord.recipes.lock.plan import LockPlan
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, ok, pairs, refusal, txn_done, txn_failed, unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.http.messages import Request, Response
    from consul_coord.io import IO

CHANGED = {7: 'failed index check for key "k", current modify index 9 != 7', 0: 'key "k" exists'}


@pytest.mark.parametrize("vacancy", CHANGED)
def test_it_does_not_queue_if_somebody_has_led_since_it_looked(vacancy: int) -> None:
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=15.0), timeout=10.0)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    if vacancy:
        io.expect("PUT", "/v1/txn", txn_done(entry("k", index=vacancy, session=None)))
    else:
        io.expect("PUT", "/v1/txn", txn_failed((0, 'key "k" doesn\'t exist')), txn_done())
    io.expect("PUT", "/v1/txn", txn_failed((1, CHANGED[vacancy])))
    plan = LockPlan(keys=("k",), value=b"me", flags=LOCK_FLAGS, fair=True, session=None)
    candidate = Candidate(
        io,
        client,
        plan,
        client.sessions.shared,
        timeout=1.0,
        vacancy=vacancy,
        saw=lambda _: None,
        follows=lambda: False,
    )
    with pytest.raises(AcquireTimeout):
        io.run(candidate.run())
    assert io.time < 1000.5, "it gave way at once"
    join, check = (op["KV"] for op in json.loads(io.requests[-1].body or b"")[:2])
    assert join["Verb"] == "lock"
    expected = ("check-index", vacancy) if vacancy else ("check-not-exists", None)
    assert (check["Verb"], check.get("Index"), check["Key"]) == (*expected, "k")


DELAY = 30.0
NOBODY, FREE, FREED, LED = (
    pairs(index=6),
    pairs(entry("k", session=None, index=7), index=7),
    pairs(entry("k", session=None, index=9), index=9),
    pairs(entry("k", session=OTHER, index=8), index=8),
)
UNREACHABLE = unreachable("/v1/kv/k", method="GET")


class Queued:
    """Stands for what queues: it notes when that was and for which vacancy, and gives way at once."""

    seen: tuple[tuple[float, object, object], ...] = ()

    def __init__(self, io: IO, *_: object, timeout: float | None, vacancy: int | None, **__: object) -> None:
        Queued.seen += ((io.now(), vacancy, timeout),)

    async def run(self) -> None:
        blocker = Blocker("held")
        raise AcquireTimeout("others came first", key="k", blocker=blocker)


@pytest.mark.parametrize(
    ("readings", "vacancy", "takes"),
    [
        ([NOBODY, NOBODY], 0, DELAY),
        ([FREE, FREE], 7, DELAY),
        ([LED, FREED, FREED], 9, DELAY),
        ([FREE, LED, LED, FREED, FREED], 9, 2 * DELAY),
        ([FREE, FREED, FREED, FREED], 9, 2 * DELAY),
        ([FREE, NOBODY, NOBODY, NOBODY], 0, 2 * DELAY),
        ([UNREACHABLE, FREE, FREE], 7, DELAY),
        ([FREE, UNREACHABLE, FREE, FREE], 7, 2 * DELAY),
        ([FREE, UNREACHABLE, LED, FREED, FREED], 9, 2 * DELAY),
    ],
    ids=str,
)
def test_it_queues_once_nobody_has_led_for_the_whole_delay_and_in_that_vacancy_alone(
    monkeypatch: pytest.MonkeyPatch, readings: Sequence[Response | Exception], vacancy: int, takes: float
) -> None:
    monkeypatch.setattr(candidacy, "Candidate", Queued)
    monkeypatch.setattr(Queued, "seen", ())
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=15.0), timeout=0.02)  # no time for a second try
    plan = candidacy.ElectionPlan(
        key="k",
        retry_wait=(1.0, 1.0),
        priority_delay=DELAY,
        health_interval=1.0,
        on_elected=None,
        on_lost=None,
        on_change=None,
        health=None,
    )
    lock = candidacy.lock_of(key="k", value=b"", session=None, accept_flags=())
    candidate = candidacy.Candidacy(client, plan, lock, None, keeps=None)  # type: ignore[arg-type]
    stood: list[object] = []

    def refuse(_: Request) -> Response:
        stood.append(candidate.attempt)
        return refusal(403, "Permission denied")

    io.expect("GET", "/v1/kv/k", *readings, *readings, refuse)
    with pytest.raises(PermissionDenied):
        io.run(candidate._attempt(io))
    assert not io.steps
    assert stood == [None], "what it says of a past attempt is out of date"
    (first, *found), (second, *after) = Queued.seen
    assert found == after == [vacancy, candidacy.LOW_PRIORITY_ATTEMPT]
    assert (first - 1000.0, second - first) == pytest.approx((takes, takes), abs=1.0)
