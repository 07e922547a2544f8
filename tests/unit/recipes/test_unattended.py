"""A background program's attempt takes nothing for a client that closes, even with a session at hand."""

from __future__ import annotations

import pytest

from consul_coord.errors import ClientClosed
from consul_coord.models import SessionSpec
from consul_coord.models.group import GROUP_FLAGS
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.group.membership import Membership
from tests.support.fake_io import FakeIO
from tests.support.replies import SESSION, entry, ok, pairs, txn_done


def test_nobody_joins_by_a_session_of_a_client_that_closes() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    first, second = (
        Membership(core, GroupPlan("g"), name, b"", evictable=False, keeps=None) for name in ("one", "two")
    )
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", f"/v1/kv/{first.key}", pairs())
    io.expect("PUT", "/v1/txn", txn_done(entry(first.key) | {"Flags": GROUP_FLAGS}))
    io.run(first.join(io, timeout=5.0))
    core.closing.set()
    with pytest.raises(ClientClosed):
        io.run(second.join(io, timeout=5.0))
    assert second.hold is None
