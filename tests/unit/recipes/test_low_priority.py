"""Candidates of low priority: they queue in the vacancy that they waited for, and in no later one."""

from __future__ import annotations

import json

import pytest

from consul_coord.errors import AcquireTimeout
from consul_coord.models import LOCK_FLAGS, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.election.candidate import Candidate
from consul_coord.recipes.lock.plan import LockPlan
from tests.support.fake_io import FakeIO
from tests.support.replies import SESSION, entry, ok, txn_done, txn_failed

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
