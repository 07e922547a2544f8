"""An heir is named only while it queues, by whoever leads, and in a way that wakes it."""

from __future__ import annotations

import json

import pytest

from consul_coord.errors import ConnectFailed
from consul_coord.models import LOCK_FLAGS, KVPair, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import queue
from consul_coord.recipes.election import heirs, notes
from consul_coord.recipes.election.candidate import Candidate
from consul_coord.recipes.lock.keys import Keys, LockKind
from consul_coord.recipes.lock.plan import LockPlan
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, ok, pairs, txn_done, txn_failed, unreachable

THIRD = "33333333-3333-3333-3333-333333333333"


def test_naming_is_bound_to_the_leader_the_heir_and_the_one_before_it() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    kept = io.run(core.sessions.shared.live(io, deadline=io.time + 10))
    pair = KVPair("k", session=SESSION, modify_index=7, lock_index=1)
    kind = LockKind(Keys(core, ["k"], LOCK_FLAGS, "me"))
    handle = core.holds.grant(pair, kept=kept, value=b"", flags=LOCK_FLAGS, kind=kind)
    directory = queue.directory("k")
    waiters = [
        entry(directory + each, session=each, index=index) | {"CreateIndex": index}
        for each, index in ((THIRD, 11), (OTHER, 12))
    ]
    io.expect("GET", f"/v1/kv/{directory}", pairs(*waiters))
    io.expect("PUT", "/v1/txn", txn_failed((1, "the heir has gone")))
    io.expect("GET", f"/v1/kv/{directory}", *[unreachable()] * 100)
    with pytest.raises(ConnectFailed):
        io.run(heirs.name(io, core, handle.grant, OTHER))
    (request,) = [each for each in io.requests if each.path == "/v1/txn"]
    ops = [each["KV"] for each in json.loads(request.body or b"")]
    assert [(each["Verb"], each["Key"], each.get("Session")) for each in ops[:3]] == [
        ("check-session", "k", SESSION),
        ("check-session", directory + OTHER, OTHER),
        ("set", notes.heir_key("k"), None),
    ]
    ahead = directory + THIRD
    assert [(each["Verb"], each["Key"], each.get("Index")) for each in ops[3:]] == [
        ("cas", ahead, 11),
        ("set", ahead, None),
    ]
    assert ops[3]["Value"] != ops[4]["Value"], "the same would be no change, and wake nobody"


def test_an_heirs_time_begins_at_the_first_look_at_its_note_and_again_at_a_newer_note() -> None:
    """The heir does not take the key, and its contender changes meanwhile."""
    io, began = FakeIO(), 1000.0
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    directory = queue.directory("k")
    own, heir = directory + SESSION, directory + OTHER

    def noted(index: int) -> dict[str, object]:
        return entry(notes.heir_key("k"), session=None, index=index, value=OTHER.encode())

    def look(*first: dict[str, object], note: int, heir_at: int) -> None:
        queued = entry(own, index=10), entry(heir, session=OTHER, index=heir_at) | {"CreateIndex": 6}
        io.expect("PUT", "/v1/txn", txn_done(*first, entry("k", session=None), *queued, noted(note)))

    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    look(note=20, heir_at=11)
    look(entry(own, index=10), note=20, heir_at=11)
    for note, heir_at, takes in ((20, 21, 2.0), (20, 22, 2.0), (30, 23, 0.5)):
        changed = entry(heir, session=OTHER, index=heir_at)
        io.expect("GET", f"/v1/kv/{heir}", pairs(changed, index=heir_at), takes=takes)
        look(note=note, heir_at=heir_at)
    io.expect("GET", f"/v1/kv/{heir}", pairs(), takes=50.0)
    look(note=30, heir_at=23)
    taken = [entry(key, index=40) for key in ("k", notes.term_key("k"))]
    io.expect("PUT", "/v1/txn", txn_done(entry(own, index=10), noted(30), *taken))
    candidate = Candidate(
        io,
        core,
        LockPlan(keys=("k",), value=b"", fair=True),
        core.sessions.shared,
        timeout=None,
        vacancy=None,
        saw=lambda _: None,
        follows=lambda: False,
    )
    handle = io.run(candidate.run())
    assert handle.grant.is_held(io.now())
    assert io.time == pytest.approx(began + 4.5 + notes.HONOURED)
