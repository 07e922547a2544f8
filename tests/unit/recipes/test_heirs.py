"""An heir is named only while it queues, by whoever leads, and in a way that wakes it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import AcquireTimeout, ClientClosed, ConnectFailed, LeadershipLost
from consul_coord.events import Waiting
from consul_coord.models import LOCK_FLAGS, Blocker, KVPair, LossReason, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import queue
from consul_coord.recipes.election import heirs, notes
from consul_coord.recipes.election.candidate import Candidate
from consul_coord.recipes.lock.keys import Keys, LockKind
from consul_coord.recipes.lock.plan import LockPlan
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, ok, pairs, renewed, txn_done, txn_failed, unreachable

if TYPE_CHECKING:
    from consul_coord.http.messages import Request, Response
    from consul_coord.recipes.hold.grant import Handle

THIRD = "33333333-3333-3333-3333-333333333333"


def leading(io: FakeIO) -> tuple[ClientState, Handle]:
    """Return a client that leads, and its leadership."""
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    kept = io.run(core.sessions.shared.live(io, deadline=io.time + 10))
    pair = KVPair("k", session=SESSION, modify_index=7, lock_index=1)
    kind = LockKind(Keys(core, ["k"], LOCK_FLAGS, "me"))
    return core, core.holds.grant(pair, kept=kept, value=b"", flags=LOCK_FLAGS, kind=kind)


def candidate(io: FakeIO, *, timeout: float | None = None, follows: bool = False) -> Candidate:
    """Return an attempt of a new client to become leader."""
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    return Candidate(
        io,
        core,
        LockPlan(keys=("k",), value=b"", fair=True),
        core.sessions.shared,
        timeout=timeout,
        vacancy=None,
        saw=lambda _: None,
        follows=lambda: follows,
    )


@pytest.mark.usefixtures("more_than_asked")
def test_naming_is_bound_to_the_leader_the_heir_and_the_one_before_it() -> None:
    io = FakeIO()
    core, handle = leading(io)
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
    assert [(each["Verb"], each["Key"], each.get("Session"), each.get("Index")) for each in ops[:3]] == [
        ("check-session", "k", SESSION, None),
        # It may have left, and joined again at another place: another one is before it then.
        ("check-index", directory + OTHER, None, 12),
        ("set", notes.heir_key("k"), None, None),
    ]
    ahead = directory + THIRD
    assert [(each["Verb"], each["Key"], each.get("Index")) for each in ops[3:]] == [
        ("cas", ahead, 11),
        ("set", ahead, None),
    ]
    assert ops[3]["Value"] != ops[4]["Value"], "the same would be no change, and wake nobody"
    assert [each["Flags"] for each in ops[3:]] == [LOCK_FLAGS] * 2


def test_an_heirs_time_begins_at_the_first_look_at_its_note_and_again_at_a_newer_note() -> None:
    """The heir does not take the key, and its contender changes meanwhile."""
    io, began = FakeIO(), 1000.0
    stands = candidate(io)
    directory = queue.directory("k")
    own, heir = directory + SESSION, directory + OTHER

    def noted(index: int) -> dict[str, object]:
        return entry(notes.heir_key("k"), session=None, index=index, value=OTHER.encode())

    def look(*first: dict[str, object], note: int, heir_at: int) -> None:
        queued = entry(own, index=10), entry(heir, session=OTHER, index=heir_at) | {"CreateIndex": 6}
        io.expect("PUT", "/v1/txn", txn_done(*first, entry("k", session=None), *queued, noted(note)))

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
    handle = io.run(stands.run())
    assert handle.grant.is_held(io.now())
    assert io.time == pytest.approx(began + 4.5 + notes.HONOURED)
    watched = [dict(request.params)["index"] for request in io.requests if request.hold_open]
    assert watched == ["11", "21", "22", "23"], "from any index before, each query would be answered at once"


def test_who_leads_no_more_is_told_so_and_names_no_heir() -> None:
    io = FakeIO()
    core, handle = leading(io)
    heir = entry(queue.directory("k") + OTHER, session=OTHER)
    io.expect("GET", f"/v1/kv/{queue.directory('k')}", pairs(heir))
    io.expect("PUT", "/v1/txn", txn_failed((0, "failed session check for key")))
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=THIRD, index=30)))
    io.expect("PUT", "/v1/session/renew/", renewed())
    with pytest.raises(LeadershipLost) as told:
        io.run(heirs.name(io, core, handle.grant, OTHER))
    assert told.value.reason is LossReason.TAKEN_OVER
    assert not io.steps


NOTE = entry(notes.heir_key("k"), session=None, index=20, value=OTHER.encode())


@pytest.mark.parametrize("changes", range(heirs.HAND_OVER_TRIES + 1))
def test_a_queue_that_changes_is_read_again_a_few_times_and_whether_an_heir_was_named_is_told(
    changes: int,
) -> None:
    io = FakeIO()
    core, leads = leading(io)
    heir, names = entry(queue.directory("k") + OTHER, session=OTHER), changes < heirs.HAND_OVER_TRIES
    tried = [txn_failed((1, "the heir has gone"))] * changes
    for answer in [*tried, txn_done(entry("k"), heir, NOTE)] if names else tried:
        io.expect("GET", f"/v1/kv/{queue.directory('k')}", pairs(heir))
        io.expect("PUT", "/v1/txn", answer)
    error: AcquireTimeout | None = None
    try:
        io.run(heirs.name(io, core, leads.grant, OTHER))
    except AcquireTimeout as raised:
        error = raised
    assert not io.steps
    assert leads.grant.is_held(io.now())
    assert (error is None) == names
    if error is not None:
        assert (error.key, error.session, error.blocker) == ("k", SESSION, Blocker("queued", OTHER))


@pytest.mark.parametrize(
    ("named", "removed"),
    [(None, []), (OTHER, []), (f"{SESSION} ", []), (SESSION, [(f"/v1/kv/{NOTE['Key']}", "20")])],
    ids=["nobody", "another one", "nobody that queues", "this one"],
)
def test_a_candidate_that_leaves_removes_the_note_that_names_it_as_it_saw_it_and_no_other(
    named: str | None, removed: list[tuple[str, str]]
) -> None:
    io = FakeIO()
    stands = candidate(io, timeout=5.0)
    held, own = entry("k", session=OTHER, index=30), entry(queue.directory("k") + SESSION, index=10)
    note = [] if named is None else [entry(notes.heir_key("k"), session=None, index=20, value=named.encode())]
    for first in ([], [own]):  # it looks before it joins, and sees the same then
        io.expect("PUT", "/v1/txn", txn_done(*first, held, own, *note))
    io.expect("GET", "/v1/kv/k", pairs(held), takes=50.0)
    io.expect("PUT", "/v1/txn", txn_done(held, own, *note))
    io.expect("GET", "/v1/session/info/", ok([]))
    io.expect("GET", "/v1/kv/k", pairs(held), takes=50.0)
    io.expect("GET", f"/v1/kv/{own['Key']}", pairs())
    io.expect("GET", "/v1/kv/k", pairs(held))
    with pytest.raises(AcquireTimeout):
        io.run(stands.run())
    io.expect("DELETE", "/v1/kv/", *[ok(value=True)] * len(removed))
    if stands.client.reaper.pending:
        io.run_spawned("reaper")
    deleted = [each for each in io.requests if each.method == "DELETE"]
    assert [(each.path, dict(each.params)["cas"]) for each in deleted] == removed
    assert not io.steps


AHEAD = queue.directory("k") + OTHER
WRITTEN, ANOTHER, FREE = (
    entry("k", session=session, index=index) for session, index in ((THIRD, 35), (OTHER, 40), (None, 45))
)


@pytest.mark.parametrize(
    ("led", "follows", "watched", "places"),
    [
        (False, False, [(AHEAD, 11, None)], [2]),
        (False, True, [(AHEAD, 11, None)], [2]),
        (True, False, [(AHEAD, 11, None), ("k", 30, FREE)], [2, 1]),
        (True, True, [("k", 30, FREE)], [2]),
        (True, True, [("k", 30, WRITTEN), ("k", 35, FREE)], [2]),
        (True, True, [("k", 30, ANOTHER), ("k", 40, FREE)], [2, 1]),
    ],
)
def test_a_candidate_watches_the_one_before_it_or_the_leader_that_it_also_follows_and_not_both(
    *, led: bool, follows: bool, watched: list[tuple[str, int, dict[str, object] | None]], places: list[int]
) -> None:
    """So one that follows nobody reports its new place as soon as the one before it has left."""
    io = FakeIO()
    stands = candidate(io, follows=follows)
    key = entry("k", session=THIRD if led else None, index=30)
    own = entry(queue.directory("k") + SESSION, index=12) | {"CreateIndex": 12}
    for first in ([], [own]):
        io.expect("PUT", "/v1/txn", txn_done(*first, key, own, entry(AHEAD, session=OTHER, index=11)))
    for number, (name, _, seen) in enumerate(watched):
        io.expect("GET", f"/v1/kv/{name}", pairs(index=39) if seen is None else pairs(seen))
        if number == 0 and seen is not WRITTEN:
            io.expect("PUT", "/v1/txn", txn_done(seen or key, own))
    if watched[0][2] is WRITTEN:
        io.expect("PUT", "/v1/txn", txn_done(FREE, own))
    io.expect("PUT", "/v1/txn", txn_done(own, entry("k", index=50), entry(notes.term_key("k"), index=50)))
    assert io.run(stands.run()).grant.is_held(io.now())
    watches = [each for each in io.requests if each.method == "GET"]
    assert [dict(each.params)["index"] for each in watches] == [str(index) for _, index, _ in watched]
    assert [each.blocker.position for each in io.seen(Waiting)] == places
    assert not io.steps


def test_an_election_that_comes_after_the_end_of_the_lease_leaves_no_note() -> None:
    """The key's own index is that of the note: any other one may be of a later leadership."""
    io = FakeIO()
    stands = candidate(io)
    own = entry(queue.directory("k") + SESSION, index=12) | {"CreateIndex": 12}

    def late(_: Request) -> Response:
        for kept in stands.client.sessions:
            stands.client.sessions.end(kept, LossReason.EXPIRED)
        return txn_done(own, entry("k", index=50), entry(notes.term_key("k"), session=None, index=50))

    free = entry("k", session=None)
    io.expect("PUT", "/v1/txn", txn_done(free))
    io.expect("PUT", "/v1/txn", txn_done(own, free, own))
    io.expect("PUT", "/v1/txn", late)

    def unlocked(_: Request) -> Response:
        stands.client.closing.set()
        return txn_done(entry("k"), entry("k", session=None, index=51))

    io.expect("PUT", "/v1/txn", unlocked)
    for key in (own["Key"], "k"):
        io.expect("GET", f"/v1/kv/{key}", pairs())  # it withdraws
    with pytest.raises(ClientClosed):
        io.run(stands.run())
    io.expect("DELETE", f"/v1/kv/{notes.term_key('k')}", ok(value=True))
    for key in (own["Key"], "k"):
        io.expect("GET", f"/v1/kv/{key}", pairs())
    io.expect("PUT", "/v1/session/destroy/", ok(value=True))
    io.run(stands.client.reaper.finish(io, deadline=math.inf))
    (removal,) = [request for request in io.requests if request.method == "DELETE"]
    assert ("cas", "50") in removal.params
