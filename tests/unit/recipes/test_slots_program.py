"""What an attempt and a permit of a semaphore send, and what they make of each reply."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import AcquireTimeout, LockLost, PermissionDenied, SemaphoreLimitConflict
from consul_coord.events import Waiting
from consul_coord.http.endpoints import kv
from consul_coord.models import SEMAPHORE_FLAGS, HoldState, KVPair, LossReason, ReleaseOutcome, SessionSpec
from consul_coord.recipes.cleanup.tasks import DestroySession, RemoveKey
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import recipe
from consul_coord.recipes.hold import asking as hold_ops
from consul_coord.recipes.hold.holds import BUDGET, release
from consul_coord.recipes.semaphore import semaphore as asking
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.semaphore.plan import SemaphorePlan
from consul_coord.recipes.semaphore.semaphore import SemaphoreObject
from consul_coord.recipes.session.pool import IDLE
from tests.support.fake_io import CREATION, FakeIO
from tests.support.replies import lost, ok, pairs, refusal, txn_done, txn_failed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.http.messages import Request, Response
    from consul_coord.recipes.hold.grant import Grant, Handle
    from tests.support.fake_io import Spawned

P = "api/slots"
US, NEXT, THEM, AHEAD = (f"{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}" for digit in "1234")


def key(name: str, value: bytes, *, at: int, created: int, session: str | None = None) -> dict[str, object]:
    fields: dict[str, object] = {
        "Key": f"{P}/{name}",
        "Value": base64.b64encode(value).decode() or None,
        "Flags": SEMAPHORE_FLAGS,
        "CreateIndex": created,
        "ModifyIndex": at,
        "LockIndex": 1,
    }
    return fields if session is None else fields | {"Session": session}


def contender(session: str, *, at: int, created: int | None = None, held: bool = False) -> dict[str, object]:
    value = slots.holding(b"") if held else slots.waiting(b"")
    return key(session, value, at=at, created=at if created is None else created, session=session)


def record(*holders: str, at: int, limit: int = 1) -> dict[str, object]:
    value = json.dumps({"Limit": limit, "Holders": dict.fromkeys(holders, True)}).encode()
    return key(".lock", value, at=at, created=3)


def in_order(listed: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """Return keys as Consul lists them."""
    return sorted(listed, key=lambda each: str(each["Key"]))


def ops_of(request: Request) -> list[dict[str, Any]]:
    """Return a transaction's operations, their values decoded."""
    ops = [dict(op["KV"]) for op in json.loads(request.body or b"[]")]
    for op in ops:
        if "Value" in op:
            op["Value"] = base64.b64decode(op["Value"])
    return ops


def params_of(request: Request) -> dict[str, str]:
    return dict(request.params)


class Bench:
    """One semaphore of one slot, over scripted replies."""

    def __init__(self, *, fair: bool = False, limit: int = 1) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(), timeout=10.0)
        plan = SemaphorePlan(
            prefix=P,
            value=b"",
            flags=SEMAPHORE_FLAGS,
            accept_flags=frozenset(),
            fair=fair,
            session=None,
        )
        self.semaphore = SemaphoreObject(plan, limit)
        self.handles: list[Handle] = []
        self.ahead: list[Spawned] = []

    def makes(self, *sessions: str) -> None:
        """Let sessions be created."""
        self.io.expect("PUT", "/v1/session/create", *(ok({"ID": session}) for session in sessions))

    def joins(self, *listed: dict[str, object], session: str = US, at: int = 10) -> None:
        """Let a join be answered, with the list as it is then."""
        self.io.expect("PUT", "/v1/txn", txn_done(contender(session, at=at), *in_order(listed)))

    def takes(self, *removed: str, session: str = US, at: int = 20, born: int = 10) -> None:
        """Let a take be answered that removes these dead holders."""
        own = contender(session, at=at, created=born, held=True)
        locked = (key(one, b"", at=at, created=at, session=session) for one in removed)
        self.io.expect("PUT", "/v1/txn", txn_done(*locked, own, record(session, at=at), own))

    def refuses(self, *delayed: int, own: str = US) -> None:
        """Let a take be refused for the lock-delays of what these operations lock."""
        text = f"failed to lock key, session {own!r} refused due to lock delay"
        self.io.expect("PUT", "/v1/txn", txn_failed(*((place, text) for place in delayed)))

    def lists(self, *listed: dict[str, object], index: int = 30) -> None:
        self.io.expect("GET", f"/v1/kv/{P}/", pairs(*in_order(listed), index=index))

    def acquire(self, timeout: float | None = 60.0, *, permits: int = 1) -> Grant:
        """Return a hold. The session that is to be made ahead then is not made unless the test does."""
        what = self.semaphore.of(permits)
        handle = self.io.run(recipe.acquire(self.io, self.core, what, timeout=timeout))
        self.handles.append(handle)
        self.ahead = [one for one in self.io.spawned if one.name == CREATION]
        self.io.spawned = [one for one in self.io.spawned if one.name != CREATION]
        return handle.grant

    def make_ahead(self) -> None:
        """Let the session be made that is to be made ahead."""
        self.io.spawned += self.ahead
        self.io.run_spawned(CREATION)

    def release(self, hold: Grant) -> ReleaseOutcome:
        return self.io.run(release(self.io, self.core.holds, hold))

    def txns(self) -> list[list[dict[str, Any]]]:
        return [ops_of(request) for request in self.io.requests if request.path == "/v1/txn"]

    def verbs(self) -> list[list[str]]:
        return [[op["Verb"] for op in ops] for ops in self.txns()]

    def destroyed(self) -> list[str]:
        """Return the sessions that are destroyed, now or by the reaper."""
        for spawned in list(self.io.spawned):
            if spawned.name == "reaper":
                self.io.spawned.remove(spawned)
                for task in self.core.reaper.tasks:
                    assert isinstance(task, DestroySession)
                    contenders = () if task.contender is None else (ok(True),)
                    self.io.expect("DELETE", f"/v1/kv/{P}/{task.session}", *contenders)
                    self.io.expect("PUT", f"/v1/session/destroy/{task.session}", ok(True))
                    self.io.expect("DELETE", f"/v1/kv/{P}/{task.session}", *contenders)
                self.io.run(self.core.reaper._run(self.io))
        paths = [path for path in self.io.paths if path.startswith("/v1/session/destroy/")]
        return [path.rpartition("/")[2] for path in paths]

    def held(self) -> Grant:
        """Return a hold got in the shortest way, alone."""
        self.makes(US)
        self.joins(contender(US, at=10))
        self.takes()
        return self.acquire()


@pytest.fixture
def bench() -> Bench:
    return Bench()


class TestJoining:
    def test_one_transaction_makes_the_contender_and_lists(self, bench: Bench) -> None:
        bench.held()
        join = bench.txns()[0]
        assert [(op["Verb"], op["Key"]) for op in join] == [("lock", f"{P}/{US}"), ("get-tree", f"{P}/")]
        assert (join[0]["Session"], join[0]["Flags"]) == (US, SEMAPHORE_FLAGS)
        assert join[0]["Value"] == slots.waiting(b"")

    def test_an_unanswered_join_is_repeated_as_it_is(self, bench: Bench) -> None:
        bench.makes(US)
        bench.io.expect("PUT", "/v1/txn", lost())
        bench.joins(contender(US, at=10))
        bench.takes()
        bench.acquire()
        assert bench.txns()[0] == bench.txns()[1]

    def test_a_contender_that_was_there_already_keeps_its_place(self, bench: Bench) -> None:
        bench.makes(US)
        own = contender(US, at=10, created=8)
        bench.io.expect("PUT", "/v1/txn", txn_done(own, own))
        bench.takes(born=8)
        bench.acquire()
        assert bench.verbs() == [["lock", "get-tree"], [op["Verb"] for op in bench.txns()[-1]]]
        assert not bench.io.steps

    def test_it_waits_for_what_changes_after_its_join_also_in_an_earlier_place(self, bench: Bench) -> None:
        """From an earlier index the first query would be answered at once."""
        bench.makes(US)
        own, other = contender(US, at=10, created=8), contender(THEM, at=5, held=True)
        listed = in_order([own, other, record(THEM, at=6)])
        bench.io.expect("PUT", "/v1/txn", txn_done(own, *listed))
        bench.lists(own, record(at=30))
        bench.takes(born=8)
        bench.acquire()
        (query,) = [request for request in bench.io.requests if request.hold_open]
        assert dict(query.params)["index"] == "10"

    def test_another_limit_is_a_conflict_and_the_contender_goes(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(record(at=5, limit=2), contender(US, at=10))
        bench.io.expect("PUT", "/v1/txn", txn_done())
        with pytest.raises(SemaphoreLimitConflict, match=r"the limit 2, not 1: .* resize\(1\)"):
            bench.acquire()
        assert bench.txns()[-1] == [{"Verb": "delete-cas", "Key": f"{P}/{US}", "Index": 10}]

    def test_a_contender_that_can_not_be_read_means_no_permission(self, bench: Bench) -> None:
        # To take an empty list for being first would make everybody first.
        bench.makes(US)
        bench.joins()
        bench.io.expect("PUT", "/v1/txn", txn_done())
        with pytest.raises(PermissionDenied, match="key:read"):
            bench.acquire()

    def test_a_session_that_ended_is_replaced(self, bench: Bench) -> None:
        bench.makes(US)
        bench.io.expect("PUT", "/v1/txn", txn_failed((0, f'invalid session "{US}"')))
        bench.makes(NEXT)
        bench.joins(contender(NEXT, at=10), session=NEXT)
        bench.takes(session=NEXT)
        assert bench.acquire().session == NEXT


class TestTaking:
    def test_it_names_both_indexes_and_changes_the_contender(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(record(THEM, at=7), contender(US, at=10))
        bench.takes(THEM)
        hold = bench.acquire()
        *_, check, cas, lock = bench.txns()[1]
        assert check == {"Verb": "check-index", "Key": f"{P}/{US}", "Index": 10}
        assert (cas["Verb"], cas["Key"], cas["Index"]) == ("cas", f"{P}/.lock", 7)
        assert json.loads(cas["Value"]) == {"Limit": 1, "Holders": {US: True}}
        assert (lock["Verb"], lock["Key"], lock["Value"]) == ("lock", f"{P}/{US}", slots.holding(b""))
        assert lock["Flags"] == cas["Flags"] == SEMAPHORE_FLAGS
        assert hold.fence == 20

    def test_a_dead_holder_is_removed_together_with_its_key(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(record(THEM, AHEAD, "no session", at=7, limit=1), contender(US, at=10))
        bench.takes(THEM, AHEAD)
        bench.acquire()
        lock, delete, *_ = ops = bench.txns()[1]
        assert (lock["Verb"], lock["Key"], lock["Session"]) == ("lock", f"{P}/{THEM}", US)
        assert delete == {"Verb": "delete", "Key": f"{P}/{THEM}"}
        assert [op["Key"] for op in ops] == [
            *(f"{P}/{one}" for one in (THEM, THEM, AHEAD, AHEAD)),
            *(f"{P}/{US}", f"{P}/.lock", f"{P}/{US}"),
        ]
        assert json.loads(ops[-2]["Value"])["Holders"] == {US: True}

    def test_a_refused_one_is_followed_by_a_list_of_the_present_leader(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(contender(US, at=10))
        bench.io.expect("PUT", "/v1/txn", txn_failed((1, f'failed to set key "{P}/.lock", index is stale')))
        bench.lists(record(at=15), contender(US, at=10), contender(AHEAD, at=8, created=6))
        bench.io.expect("GET", f"/v1/kv/{P}/{AHEAD}", pairs(index=16))
        bench.lists(record(at=15), contender(US, at=10))
        bench.takes()
        bench.acquire()
        assert [op["Index"] for op in bench.txns()[-1][:2]] == [10, 15]
        listings = [params_of(each) for each in bench.io.requests if "recurse" in params_of(each)]
        refused, later = ("consistent" in each for each in listings)
        assert refused, "an old one would show what was refused again"
        assert not later, "the leader has to ask the other servers for a consistent one"

    def test_an_unanswered_one_is_followed_by_a_list_which_may_show_it_done(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(contender(US, at=10))
        bench.io.expect("PUT", "/v1/txn", lost())
        bench.lists(record(US, at=20), contender(US, at=20, created=10, held=True))
        hold = bench.acquire()
        assert hold.fence == 20
        assert len(bench.txns()) == 2

    def test_a_session_that_is_over_by_the_answer_is_no_hold(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(contender(US, at=10))
        own = contender(US, at=20, created=10, held=True)
        bench.io.expect("PUT", "/v1/txn", txn_done(own, record(US, at=20), own), takes=9.7)
        bench.io.at(
            bench.io.now() + 1,
            lambda: bench.core.sessions.end(next(iter(bench.core.sessions)), LossReason.EXPIRED),
        )
        bench.makes(NEXT)
        bench.joins(record(US, at=20), contender(NEXT, at=40), session=NEXT, at=40)
        bench.takes(US, session=NEXT, at=41, born=40)
        assert bench.acquire().session == NEXT


class TestTakingSeveral:
    """Two slots by two sessions, the first of which queues."""

    def bench(self) -> Bench:
        bench = Bench(limit=3)
        bench.makes(US, NEXT)
        return bench

    def joins(self, bench: Bench, *listed: dict[str, object]) -> None:
        own = key(US, slots.waiting(b"", permits=2), at=10, created=10, session=US)
        bench.io.expect("PUT", "/v1/txn", txn_done(own, *in_order([*listed, own])))

    def takes(self, bench: Bench) -> None:
        ours = [contender(US, at=20, created=10, held=True), contender(NEXT, at=20, held=True)]
        bench.io.expect("PUT", "/v1/txn", txn_done(ours[0], record(US, NEXT, at=20, limit=3), *ours))

    def held(self) -> tuple[Bench, Grant]:
        bench = self.bench()
        self.joins(bench)
        self.takes(bench)
        return bench, bench.acquire(permits=2)

    def test_one_session_queues_and_its_mark_says_for_how_many(self) -> None:
        bench, _ = self.held()
        join = bench.txns()[0]
        assert [(op["Verb"], op["Key"]) for op in join] == [("lock", f"{P}/{US}"), ("get-tree", f"{P}/")]
        assert join[0]["Value"] == b"consul-coord:wait 2\n"

    def test_one_transaction_takes_all(self) -> None:
        bench, hold = self.held()
        check, cas, first, second = bench.txns()[1]
        assert check == {"Verb": "check-index", "Key": f"{P}/{US}", "Index": 10}
        assert (cas["Verb"], cas["Index"]) == ("cas", 0)
        assert json.loads(cas["Value"]) == {"Limit": 3, "Holders": {US: True, NEXT: True}}
        for lock, session in ((first, US), (second, NEXT)):
            assert (lock["Verb"], lock["Key"], lock["Session"]) == ("lock", f"{P}/{session}", session)
            assert lock["Value"] == slots.holding(b"")
        assert hold.fence == 20
        assert [kept.id for kept in hold.all_kept] == [US, NEXT]

    def test_one_transaction_gives_all_back(self) -> None:
        bench, hold = self.held()
        left = [contender(one, at=20) for one in (US, NEXT)]
        bench.io.expect("PUT", "/v1/txn", txn_done(*left, record(at=25, limit=3), record(at=25, limit=3)))
        assert bench.release(hold) is ReleaseOutcome.RELEASED
        leave = bench.txns()[-1]
        assert [(op["Verb"], op["Key"]) for op in leave] == [
            *(("check-session", f"{P}/{one}") for one in (US, NEXT)),
            ("cas", f"{P}/.lock"),
            *(("delete-cas", f"{P}/{one}") for one in (US, NEXT)),
            ("get-tree", f"{P}/"),
        ]
        assert json.loads(leave[2]["Value"]) == {"Limit": 3, "Holders": {}}
        assert [op["Index"] for op in leave if op["Verb"] == "delete-cas"] == [20, 20]
        assert bench.destroyed() == []

    def test_without_an_answer_all_are_deleted_at_once_then_destroyed(self) -> None:
        bench, hold = self.held()
        bench.io.expect("PUT", "/v1/txn", lost(), txn_done())
        for session in (US, NEXT):
            bench.io.expect("PUT", f"/v1/session/destroy/{session}", ok(True))
        assert bench.release(hold) is ReleaseOutcome.RELEASED
        assert bench.verbs()[-1] == ["delete", "delete"]
        assert bench.destroyed() == [US, NEXT]

    def test_what_was_destroyed_is_not_renewed_any_more(self) -> None:
        bench, hold = self.held()
        bench.io.expect("PUT", "/v1/txn", lost(), txn_done())
        bench.io.expect("PUT", "/v1/session/destroy/", ok(True), ok(True))
        bench.release(hold)
        for session in (US, NEXT):
            bench.io.run_spawned(f"keep session {session}")

    def test_what_guards_it_names_each_contender(self) -> None:
        _, hold = self.held()
        assert [(op.verb, op.key) for op in hold.guard()] == [
            ("check-session", f"{P}/{US}"),
            ("check-index", f"{P}/{US}"),
            ("check-session", f"{P}/{NEXT}"),
        ]

    @pytest.mark.parametrize(("at", "other"), [(0, NEXT), (1, US)])
    def test_the_end_of_any_session_ends_it_and_the_others(self, at: int, other: str) -> None:
        bench, hold = self.held()
        bench.core.sessions.end(hold.all_kept[at], LossReason.SESSION_GONE)
        assert hold.reason is LossReason.SESSION_GONE
        assert bench.destroyed() == [other]
        assert not [path for path in bench.io.paths if path.startswith(f"/v1/kv/{P}/")], "behind its delay"

    @pytest.mark.parametrize("at", [0, 1])
    def test_it_is_valid_for_as_long_as_the_first_to_expire(self, at: int) -> None:
        bench, hold = self.held()
        short, long = hold.all_kept[at], hold.all_kept[1 - at]
        long.lease.confirm(sent_at=bench.io.now() + 5, horizon=15.0)
        assert hold.valid_until == short.lease.valid_until < long.lease.valid_until
        short.lease.in_contact = False
        assert hold.look(bench.io.now())[0] is HoldState.JEOPARDY

    def test_a_session_that_is_unknown_at_the_take_is_found_and_all_are_replaced(self) -> None:
        bench = self.bench()
        self.joins(bench)
        bench.io.expect("PUT", "/v1/txn", txn_failed((3, f'invalid session "{NEXT}"')))
        bench.makes(THEM, AHEAD)
        own = key(THEM, slots.waiting(b"", permits=2), at=30, created=30, session=THEM)
        bench.io.expect("PUT", "/v1/txn", txn_done(own, own))
        ours = [contender(THEM, at=40, created=30, held=True), contender(AHEAD, at=40, held=True)]
        bench.io.expect("PUT", "/v1/txn", txn_done(ours[0], record(THEM, AHEAD, at=40, limit=3), *ours))
        hold = bench.acquire(permits=2)
        assert [kept.id for kept in hold.all_kept] == [THEM, AHEAD]
        assert bench.destroyed() == [US], "the other has ended by itself"
        assert [waiting.blocker.kind for waiting in bench.io.seen(Waiting)] == ["unreachable"]

    def test_who_gives_up_removes_what_queues_and_keeps_both_sessions(self) -> None:
        bench = self.bench()
        self.joins(
            bench, record(THEM, AHEAD, at=7, limit=3), *(contender(one, at=6) for one in (THEM, AHEAD))
        )
        bench.io.expect("PUT", "/v1/txn", txn_done())
        with pytest.raises(AcquireTimeout):
            bench.acquire(timeout=0, permits=2)
        assert bench.txns()[-1] == [{"Verb": "delete-cas", "Key": f"{P}/{US}", "Index": 10}]
        assert bench.destroyed() == []

    def test_where_the_record_is_as_it_was_left_one_transaction_takes_all(self) -> None:
        bench, hold = self.held()
        left = [contender(one, at=20) for one in (US, NEXT)]
        bench.io.expect("PUT", "/v1/txn", txn_done(*left, record(at=25, limit=3), record(at=25, limit=3)))
        bench.release(hold)
        ours = [contender(one, at=30, held=True) for one in (US, NEXT)]
        bench.io.expect("PUT", "/v1/txn", txn_done(record(US, NEXT, at=30, limit=3), *ours))
        bench.acquire(permits=2)
        assert bench.verbs()[-1] == ["cas", "lock", "lock"]

    def test_one_permit_asks_for_one_session_and_what_it_did_before(self) -> None:
        bench = Bench(limit=3)
        bench.held()
        assert [path for path in bench.io.paths if path != "/v1/txn"] == ["/v1/session/create"]
        assert bench.verbs() == [["lock", "get-tree"], ["check-index", "cas", "lock"]]


class TestLockDelay:
    """A dead holder's slot stays closed for as long as its client may trust it."""

    def test_a_refused_holder_counts_and_is_tried_again_after_a_pause(self, bench: Bench) -> None:
        bench.makes(US)
        dead = (record(THEM, at=7), contender(US, at=10))
        bench.joins(*dead)
        for _ in range(2):
            bench.refuses(0)
            bench.io.expect("GET", f"/v1/kv/{P}/", lambda _: pairs(*in_order(dead), index=10), takes=0.2)
        bench.takes(THEM)
        started = bench.io.now()
        bench.acquire()
        # No list but the join's: what the watch waits from is what was judged.
        watches = [params_of(request)["index"] for request in bench.io.requests if request.method == "GET"]
        assert watches == ["10", "10"]
        assert 0.1 <= bench.io.now() - started <= 0.4
        assert bench.verbs()[1:] == [["lock", "delete", "check-index", "cas", "lock"]] * 3

    def test_a_slot_that_gets_free_in_the_pause_is_taken_without_the_refused(self) -> None:
        bench = Bench(limit=2)
        bench.makes(US)
        bench.joins(
            record(THEM, AHEAD, at=7, limit=2), contender(AHEAD, at=3, held=True), contender(US, at=10)
        )
        bench.refuses(0)
        left = (record(THEM, AHEAD, at=7, limit=2), contender(US, at=10))
        bench.lists(*left, index=12)
        bench.takes(AHEAD)
        bench.acquire()
        taken = json.loads(bench.txns()[-1][-2]["Value"])
        assert taken["Holders"] == {THEM: True, US: True}
        assert [op["Key"] for op in bench.txns()[-1][:2]] == [f"{P}/{AHEAD}"] * 2

    def test_who_is_behind_another_waiter_never_passes_it_on_account_of_the_refused(self) -> None:
        bench = Bench(limit=2)
        bench.makes(US)
        dead = record(THEM, at=7, limit=2)
        bench.joins(dead, contender(AHEAD, at=8), contender(US, at=10))
        bench.refuses(0)
        bench.io.expect("GET", f"/v1/kv/{P}/{AHEAD}", pairs(index=11))
        bench.lists(dead, contender(US, at=10), index=12)
        bench.takes(THEM)
        bench.acquire()
        watched = next(request.path for request in bench.io.requests if request.method == "GET")
        assert watched.endswith(AHEAD)

    def test_what_a_dead_waiter_has_left_is_removed_as_it_is_now(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(contender(US, at=10), key(THEM, slots.waiting(b""), at=8, created=3, session=None))
        bench.takes()
        bench.acquire()
        assert RemoveKey(f"{P}/{THEM}", 8) in bench.core.reaper.tasks

    def test_a_holder_is_named_with_the_fence_of_its_hold(self, bench: Bench) -> None:
        bench.makes(US)
        holder = contender(THEM, at=7, created=3, held=True)
        bench.joins(record(THEM, at=7), contender(US, at=10), holder)
        bench.io.expect("PUT", "/v1/txn", txn_done())
        with pytest.raises(AcquireTimeout) as caught:
            bench.acquire(timeout=0)
        assert [(one.session, one.fence) for one in caught.value.blocker.holders] == [(THEM, 7)]

    def test_a_single_try_says_what_is_in_the_way(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(record(THEM, at=7), contender(US, at=10))
        bench.refuses(0)
        bench.io.expect("PUT", "/v1/txn", txn_done())
        with pytest.raises(AcquireTimeout) as caught:
            bench.acquire(timeout=0)
        assert (caught.value.blocker.kind, caught.value.blocker.session) == ("lock_delay", THEM)

    def test_a_delay_on_the_own_contender_means_that_the_own_session_has_ended(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(record(THEM, at=7), contender(US, at=10))
        bench.refuses(0, 4)
        bench.makes(NEXT)
        bench.joins(record(at=30), contender(NEXT, at=40), session=NEXT, at=40)
        bench.takes(session=NEXT, at=41, born=40)
        assert bench.acquire().session == NEXT

    def test_a_dead_holders_name_in_other_hands_is_waited_for_as_well(self, bench: Bench) -> None:
        bench.makes(US)
        dead = (record(THEM, at=7), contender(US, at=10))
        bench.joins(*dead)
        bench.io.expect("PUT", "/v1/txn", txn_failed((0, "failed to lock key, lock is already held")))
        bench.io.expect("GET", f"/v1/kv/{P}/", lambda _: pairs(*in_order(dead), index=10), takes=0.2)
        bench.takes(THEM)
        assert bench.acquire().session == US

    def test_more_dead_than_one_take_can_remove_are_removed_before(self, bench: Bench) -> None:
        many = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(slots.most_removed() + 2)]
        bench.makes(US)
        bench.joins(record(*many, at=7), contender(US, at=10))
        gone, rest = many[: slots.most_removed()], many[slots.most_removed() :]
        locked = [key(one, b"", at=15, created=15, session=US) for one in gone]
        own = contender(US, at=10)
        bench.io.expect("PUT", "/v1/txn", txn_done(*locked, own, record(*rest, at=15)))
        bench.lists(record(*rest, at=15), own, index=15)
        bench.takes(*rest)
        bench.acquire()
        first, second = bench.txns()[1:]
        assert [op["Verb"] for op in first[-2:]] == ["check-index", "cas"]
        assert list(json.loads(first[-1]["Value"])["Holders"]) == rest
        assert json.loads(second[-2]["Value"])["Holders"] == {US: True}


class TestWaiting:
    def test_the_front_watches_the_prefix_from_its_own_index_then_from_the_lists(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(record(THEM, at=7), contender(US, at=10), contender(THEM, at=5, held=True))
        bench.lists(record(THEM, at=7), contender(US, at=10), contender(THEM, at=5, held=True), index=12)
        bench.lists(record(THEM, at=7), contender(US, at=10), index=13)
        bench.takes(THEM)
        bench.acquire()
        watches = [params_of(request) for request in bench.io.requests if request.method == "GET"]
        assert [(watch["index"], "recurse" in watch) for watch in watches] == [("10", True), ("12", True)]

    def test_the_others_watch_who_waits_before_them_from_the_index_of_the_list(self, bench: Bench) -> None:
        bench.makes(US)
        ahead = contender(AHEAD, at=8, created=6)  # its join was repeated
        bench.joins(record(THEM, at=7), contender(US, at=10), ahead, contender(THEM, at=5, held=True))
        bench.io.expect("GET", f"/v1/kv/{P}/{AHEAD}", pairs(index=11))
        bench.lists(contender(US, at=10), record(THEM, at=7))
        bench.takes(THEM)
        bench.acquire()
        watch = next(request for request in bench.io.requests if request.path == f"/v1/kv/{P}/{AHEAD}")
        assert params_of(watch)["index"] == "8"

    def test_a_limit_that_changes_meanwhile_is_adopted(self, bench: Bench) -> None:
        bench.makes(US)
        others = contender(THEM, at=5, held=True)
        bench.joins(record(THEM, at=7), contender(US, at=10), others)
        bench.lists(record(THEM, at=12, limit=2), contender(US, at=10), others, index=12)
        bench.takes()
        bench.acquire()
        assert json.loads(bench.txns()[-1][1]["Value"]) == {"Limit": 2, "Holders": {THEM: True, US: True}}

    def test_a_contender_that_vanished_is_looked_for_once_more_then_replaced(self, bench: Bench) -> None:
        bench.makes(US)
        others = (record(THEM, at=7), contender(THEM, at=5, held=True))
        bench.joins(*others, contender(US, at=10))
        bench.lists(*others, index=12)
        bench.lists(*others, index=12)
        bench.makes(NEXT)
        bench.joins(record(at=13), contender(NEXT, at=14), session=NEXT, at=14)
        bench.takes(session=NEXT, at=15, born=14)
        assert bench.acquire().session == NEXT
        modes = ["consistent" in params_of(each) for each in bench.io.requests if each.method == "GET"]
        assert modes == [False, True]
        assert bench.destroyed() == [US]

    def test_a_slot_that_an_old_leader_does_not_show_is_held_as_the_present_one_shows_it(
        self, bench: Bench
    ) -> None:
        """A take without an answer was applied."""
        bench.makes(US)
        others = (record(THEM, at=7), contender(THEM, at=5, held=True))
        bench.joins(*others, contender(US, at=10))
        bench.lists(*others, index=12)
        bench.lists(record(US, at=20), contender(US, at=20, created=10, held=True), index=20)
        hold = bench.acquire()
        assert (hold.session, hold.fence, hold.is_held(bench.io.now())) == (US, 20, True)

    def test_a_list_with_another_contender_of_ours_is_an_old_leaders(self, bench: Bench) -> None:
        # It shows the hold before this one: the record names us, and the contender is there.
        bench.makes(US)
        others = contender(THEM, at=5, held=True)
        bench.joins(record(THEM, at=7), contender(US, at=10), others)
        bench.lists(record(US, at=4), contender(US, at=4, created=3, held=True), index=4)
        bench.lists(record(at=12), contender(US, at=10), index=12)
        bench.takes()
        assert bench.acquire().fence == 20


class TestGivingUp:
    def test_a_waiter_deletes_its_contender_as_last_seen_and_keeps_the_session(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(record(THEM, at=7), contender(US, at=10), contender(THEM, at=5, held=True))
        bench.io.expect("PUT", "/v1/txn", txn_done())
        with pytest.raises(AcquireTimeout) as caught:
            bench.acquire(timeout=0)
        assert caught.value.blocker.kind == "held"
        assert bench.txns()[-1] == [{"Verb": "delete-cas", "Key": f"{P}/{US}", "Index": 10}]
        bench.joins(contender(US, at=31), at=31)
        bench.takes(at=32, born=31)
        assert bench.acquire().session == US

    @pytest.mark.parametrize(
        "answer", [lost(), txn_failed((0, f'failed to delete key "{P}/{US}", index is stale'))]
    )
    def test_without_that_answer_the_session_is_destroyed(self, bench: Bench, answer: Response) -> None:
        bench.makes(US)
        bench.joins(record(THEM, at=7), contender(US, at=10), contender(THEM, at=5, held=True))
        bench.io.expect("PUT", "/v1/txn", answer)
        with pytest.raises(AcquireTimeout):
            bench.acquire(timeout=0)
        assert bench.destroyed() == [US]

    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_session_that_surely_has_no_contender_is_kept(self, bench: Bench, *, replaced: bool) -> None:
        bench.makes(US)
        if replaced:
            bench.io.expect("PUT", "/v1/txn", txn_failed((0, f'invalid session "{US}"')))
            bench.makes(NEXT)
        bench.io.expect("PUT", "/v1/txn", refusal(403, "Permission denied"))
        with pytest.raises(PermissionDenied):
            bench.acquire()
        assert bench.destroyed() == []
        kept = NEXT if replaced else US
        bench.joins(contender(kept, at=10), session=kept)
        bench.takes(session=kept)
        assert bench.acquire().session == kept

    def test_the_contender_is_deleted_before_its_session_and_after_it(self, bench: Bench) -> None:
        # Destroying the session with it would close the slot for the lock-delay, if a take has come through.
        bench.makes(US)
        bench.joins(contender(US, at=10))
        bench.io.expect("PUT", "/v1/txn", lost())
        with pytest.raises(AcquireTimeout):
            bench.acquire(timeout=0)
        assert bench.destroyed() == [US]
        ends = [(request.method, request.path) for request in bench.io.requests][-3:]
        removal = ("DELETE", f"/v1/kv/{P}/{US}")
        assert ends == [removal, ("PUT", f"/v1/session/destroy/{US}"), removal]

    def test_after_any_unanswered_request_the_session_is_destroyed(self, bench: Bench) -> None:
        # Its repeat was answered all the same: the first one may still arrive.
        bench.makes(US)
        bench.io.expect("PUT", "/v1/txn", lost())
        bench.joins(record(THEM, at=7), contender(US, at=10), contender(THEM, at=5, held=True))
        bench.io.expect("GET", f"/v1/kv/{P}/", pairs(), takes=99.0)
        bench.lists(record(THEM, at=7), contender(US, at=10), contender(THEM, at=5, held=True))
        bench.io.expect("GET", f"/v1/session/info/{THEM}", ok([]))
        bench.io.expect("GET", f"/v1/kv/{P}/", pairs(), takes=99.0)
        with pytest.raises(AcquireTimeout):
            bench.acquire(timeout=3.0)
        assert bench.destroyed() == [US]


def left(*listed: dict[str, object], at: int = 40) -> Any:
    """Return the answer to a tidy leave, with what is there afterwards."""
    own = contender(US, at=20, created=10, held=True)
    return txn_done(own, record(at=at), *in_order([*listed, record(at=at)]))


class TestHolding:
    def test_the_contender_and_the_record_are_watched_from_the_take_on(self, bench: Bench) -> None:
        hold = bench.held()
        watches = hold.kind.watches(hold)
        assert [(watch.key, watch.index) for watch in watches] == [(f"{P}/{US}", 20), (f"{P}/.lock", 20)]
        assert [watch.loss(None) for watch in watches] == [LossReason.KEY_DELETED] * 2

    @pytest.mark.parametrize(
        ("at", "words"),
        [(0, "another client deleted the key"), (1, f"the semaphore's record '{P}/.lock' was deleted")],
    )
    def test_which_key_was_deleted_is_told(self, bench: Bench, at: int, words: str) -> None:
        hold = bench.held()
        loss = hold.kind.watches(hold)[at].loss(None)
        assert loss is not None
        assert hold.lose(loss)
        with pytest.raises(LockLost, match=words):
            hold_ops.check(hold, bench.io.now())


class TestLeaving:
    def test_alone_the_record_is_left_in_order_in_the_same_transaction(self, bench: Bench) -> None:
        hold = bench.held()
        bench.io.expect("PUT", "/v1/txn", left())
        assert bench.release(hold) is ReleaseOutcome.RELEASED
        check, cas, delete, tree = bench.txns()[-1]
        assert (check["Verb"], check["Session"]) == ("check-session", US)
        assert (cas["Index"], json.loads(cas["Value"])) == (20, {"Limit": 1, "Holders": {}})
        assert delete == {"Verb": "delete-cas", "Key": f"{P}/{US}", "Index": 20}
        assert tree == {"Verb": "get-tree", "Key": f"{P}/"}
        assert bench.destroyed() == []

    def test_the_dead_stay_in_the_record(self) -> None:
        # Their ids are all that a take can know them by: it has to wait for their lock-delays.
        bench = Bench(limit=2)
        bench.makes(US)
        bench.joins(record(THEM, at=7, limit=2), contender(US, at=10))
        bench.refuses(0)
        bench.takes()
        hold = bench.acquire()
        bench.io.expect("PUT", "/v1/txn", left())
        bench.release(hold)
        assert json.loads(bench.txns()[-1][1]["Value"])["Holders"] == {THEM: True}

    def test_a_lost_slot_stays_behind_its_lock_delay(self, bench: Bench) -> None:
        hold = bench.held()
        assert hold.lose(LossReason.EXPIRED)
        assert bench.destroyed() == [US]
        assert not [request for request in bench.io.requests if request.method == "DELETE"]

    def test_a_forgotten_slot_is_free_at_once(self, bench: Bench) -> None:
        hold = bench.held()
        hold.abandon()
        assert bench.destroyed() == [US]
        assert [request.method for request in bench.io.requests][-3:] == ["DELETE", "PUT", "DELETE"]

    def test_with_others_there_the_contender_alone_is_deleted(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(contender(US, at=10), contender(THEM, at=11))
        bench.takes()
        hold = bench.acquire()
        own = contender(US, at=20, created=10, held=True)
        bench.io.expect("PUT", "/v1/txn", txn_done(own, record(US, at=20)))
        assert bench.release(hold) is ReleaseOutcome.RELEASED
        assert bench.verbs()[-1] == ["check-session", "get", "delete-cas"]

    def test_a_record_that_changed_is_not_fought_over(self, bench: Bench) -> None:
        hold = bench.held()
        stale = txn_failed((1, f'failed to set key "{P}/.lock", index is stale'))
        own = contender(US, at=20, created=10, held=True)
        bench.io.expect("PUT", "/v1/txn", stale, txn_done(own, record(US, THEM, at=25)))
        assert bench.release(hold) is ReleaseOutcome.RELEASED
        assert bench.verbs()[-1] == ["check-session", "get", "delete-cas"]

    def test_a_record_that_was_seen_to_change_is_not_tried_at_all(self, bench: Bench) -> None:
        hold = bench.held()
        _, watch = hold.kind.watches(hold)
        assert watch.loss(kv.pair("the record", record(US, THEM, at=25))) is None
        own = contender(US, at=20, created=10, held=True)
        bench.io.expect("PUT", "/v1/txn", txn_done(own, record(US, THEM, at=25)))
        assert bench.release(hold) is ReleaseOutcome.RELEASED
        assert bench.verbs()[-1] == ["check-session", "get", "delete-cas"]

    @pytest.mark.parametrize(
        ("answer", "asks_for_session", "loss"),
        [
            (txn_done(contender(US, at=20), record(THEM, at=30)), False, LossReason.SLOT_REMOVED),
            (txn_failed((1, f'key "{P}/.lock" doesn\'t exist')), False, LossReason.KEY_DELETED),
            (
                txn_failed((0, f'failed to check session, key "{P}/{US}" doesn\'t exist')),
                True,
                LossReason.SESSION_GONE,
            ),
        ],
    )
    def test_the_answer_tells_what_was_lost_before(
        self, bench: Bench, answer: Response, asks_for_session: bool, loss: LossReason
    ) -> None:
        hold = bench.held()
        bench.io.expect("PUT", "/v1/txn", txn_failed((1, f'failed to set key "{P}/.lock", index is stale')))
        bench.io.expect("PUT", "/v1/txn", answer)
        if asks_for_session:
            bench.io.expect("PUT", "/v1/session/renew", refusal(404, "Session id 'x' not found"))
            bench.io.expect("GET", "/v1/session/info", ok([]))
            bench.io.expect("PUT", "/v1/session/renew", refusal(404, "Session id 'x' not found"))
        assert bench.release(hold) is ReleaseOutcome.ALREADY_LOST
        assert hold.loss(bench.io.now()) is loss

    def test_the_key_alone_tells_of_a_loss_where_the_session_can_not_be_asked_for(self, bench: Bench) -> None:
        hold = bench.held()
        gone = txn_failed((0, f'failed to check session, key "{P}/{US}" doesn\'t exist'))
        bench.io.expect("PUT", "/v1/txn", gone, gone)
        bench.io.expect("PUT", "/v1/session/renew", refusal(500, "No cluster leader"))
        assert bench.release(hold) is ReleaseOutcome.ALREADY_LOST
        assert hold.loss(bench.io.now()) is LossReason.KEY_DELETED

    def test_without_permission_for_the_keys_the_session_is_destroyed(self, bench: Bench) -> None:
        hold = bench.held()
        denied = txn_failed((0, "Permission denied"), (1, "Permission denied"), (2, "Permission denied"))
        bench.io.expect("PUT", "/v1/txn", denied, denied)
        bench.io.expect("DELETE", f"/v1/kv/{P}/{US}", refusal(403, "Permission denied"))
        bench.io.expect("PUT", "/v1/session/destroy", ok(True))
        assert bench.release(hold) is ReleaseOutcome.RELEASED
        assert hold.kept.over.is_set(), "it is not renewed any more"

    def test_without_an_answer_the_session_is_destroyed_until_that_is_answered(self, bench: Bench) -> None:
        hold = bench.held()
        bench.io.expect("PUT", "/v1/txn", lost())
        bench.io.expect("DELETE", f"/v1/kv/{P}/{US}", lost())
        bench.io.expect("PUT", "/v1/session/destroy", lost(), ok(True))
        assert bench.release(hold) is ReleaseOutcome.RELEASED

    def test_without_any_answer_the_reaper_goes_on(self, bench: Bench) -> None:
        hold = bench.held()
        bench.io.expect("PUT", "/v1/txn", lost())
        bench.io.expect("DELETE", f"/v1/kv/{P}/{US}", lost())
        bench.io.expect("PUT", "/v1/session/destroy", lost(), takes=BUDGET)
        bench.io.expect("GET", "/v1/status/leader", lost())
        assert bench.release(hold) is ReleaseOutcome.UNKNOWN
        assert bench.destroyed()[-1] == US
        assert bench.core.reaper.pending == 0


class TestUsingSessionsAgain:
    def again(
        self, bench: Bench, *listed: dict[str, object], session: str, removed: str | None = None
    ) -> Grant:
        """Acquire once more, with this session, by queueing."""
        bench.joins(*listed, contender(session, at=50), session=session, at=50)
        bench.takes(*([removed] if removed else ()), session=session, at=51, born=50)
        return bench.acquire()

    def test_after_a_tidy_leave_it_is_used_at_once(self) -> None:
        bench = Bench(fair=True)
        hold = bench.held()
        bench.io.expect("PUT", "/v1/txn", left())
        bench.release(hold)
        assert self.again(bench, record(at=40), session=US).session == US

    def test_after_another_leave_it_rests_until_a_newer_record_is_without_it(self, bench: Bench) -> None:
        bench.makes(US)
        bench.joins(contender(US, at=10), contender(THEM, at=11))
        bench.takes()
        hold = bench.acquire()
        bench.io.expect("PUT", "/v1/txn", txn_done(contender(US, at=20), record(US, at=20)))
        bench.release(hold)
        bench.makes(NEXT)
        # The join shows the record still with it, the take writes it without.
        second = self.again(bench, record(US, at=20), contender(THEM, at=55), session=NEXT, removed=US)
        assert second.session == NEXT
        bench.io.expect("PUT", "/v1/txn", txn_done(contender(NEXT, at=51), record(NEXT, at=51)))
        bench.release(second)
        bench.joins(record(NEXT, at=51), contender(US, at=60), session=US, at=60)
        bench.takes(NEXT, session=US, at=61, born=60)
        assert bench.acquire().session == US

    @pytest.mark.parametrize(("at", "again"), [(25, US), (20, NEXT)], ids=["newer", "its own"])
    def test_it_is_enough_to_have_seen_the_record_while_waiting_in_vain(
        self, bench: Bench, at: int, again: str
    ) -> None:
        hold = bench.held()
        bench.io.expect("PUT", "/v1/txn", txn_failed((1, f'failed to set key "{P}/.lock", index is stale')))
        bench.io.expect("PUT", "/v1/txn", txn_done(contender(US, at=20), record(US, at=20)))
        bench.release(hold)
        bench.makes(NEXT)
        inside = contender(THEM, at=24, held=True)
        bench.joins(record(THEM, at=at), inside, contender(NEXT, at=30), session=NEXT, at=30)
        bench.io.expect("PUT", "/v1/txn", txn_done())
        with pytest.raises(AcquireTimeout):
            bench.acquire(timeout=0)
        assert self.again(bench, record(at=40), session=again).session == again

    def test_an_older_record_without_it_says_nothing(self, bench: Bench) -> None:
        sessions = bench.semaphore.with_client(bench.core).sessions
        hold = bench.held()
        bench.io.expect("PUT", "/v1/txn", txn_failed((1, f'failed to set key "{P}/.lock", index is stale')))
        bench.io.expect("PUT", "/v1/txn", txn_done(contender(US, at=20), record(US, at=20)))
        bench.release(hold)
        for index, fit in ((0, 0), (7, 0), (20, 0), (21, 1)):
            sessions.saw(index, ())
            assert len(sessions._fit) == fit

    def test_a_permit_that_wrote_its_value_ends_with_its_session(self, bench: Bench) -> None:
        hold = bench.held()
        own = contender(US, at=30, created=10, held=True)
        bench.io.expect("PUT", "/v1/txn", txn_done(own, own))
        bench.io.run(hold_ops.put(bench.io, bench.core.sessions, hold, b"new"))
        assert bench.txns()[-1][1]["Value"] == slots.holding(b"new")
        bench.io.expect("PUT", "/v1/txn", left())
        assert bench.release(hold) is ReleaseOutcome.RELEASED
        assert bench.destroyed() == [US]

    def test_one_is_made_ahead_when_none_is_left_and_idle_ones_are_destroyed(self, bench: Bench) -> None:
        bench.held()
        bench.makes(NEXT)
        bench.make_ahead()
        assert [one.id for one in bench.semaphore.with_client(bench.core).sessions._fit] == [NEXT]
        started = bench.io.now()
        bench.io.run_spawned("idle sessions")
        assert bench.io.now() == started + IDLE
        assert bench.destroyed() == [NEXT]

    def test_one_made_while_the_client_closes_is_destroyed_at_once(self, bench: Bench) -> None:
        bench.held()

        def closing(_: object) -> Response:
            bench.core.begin_close()
            return ok({"ID": NEXT})

        bench.io.expect("PUT", "/v1/session/create", closing)
        bench.make_ahead()
        bench.io.expect("PUT", f"/v1/session/destroy/{NEXT}", ok(True))
        bench.io.run(bench.core.reaper.finish(bench.io, deadline=bench.io.now() + 5))
        assert not bench.io.steps
        assert bench.semaphore.with_client(bench.core).sessions._idle() == []

    def test_none_is_made_once_the_client_closes(self, bench: Bench) -> None:
        bench.held()
        bench.core.begin_close()
        sent = len(bench.io.requests)
        bench.make_ahead()
        assert len(bench.io.requests) == sent


class TestResizing:
    def test_the_dead_stay_in_the_record(self, bench: Bench) -> None:
        bench.lists(record(THEM, at=7), index=7)
        bench.io.expect("PUT", f"/v1/kv/{P}/.lock", ok(True))
        bench.lists(record(THEM, at=8, limit=3), index=8)
        bench.io.run(asking.resize(bench.io, bench.core, bench.semaphore, 3))
        written = next(request for request in bench.io.requests if request.method == "PUT")
        assert json.loads(written.body or b"") == {"Limit": 3, "Holders": {THEM: True}}


class TestDestroying:
    """The record goes when nobody uses the semaphore, and dead holders count for as long as their delay."""

    def test_a_record_without_dead_holders_is_just_deleted(self, bench: Bench) -> None:
        bench.lists(record(at=7), index=7)
        bench.io.expect("DELETE", f"/v1/kv/{P}/.lock", ok(True))
        assert bench.io.run(asking.destroy(bench.io, bench.core, bench.semaphore))

    @pytest.mark.parametrize(
        "used",
        [
            [record(THEM, at=7), contender(THEM, at=6, held=True)],
            [record(THEM, AHEAD, at=7, limit=2), contender(AHEAD, at=6, held=True)],
            [record(THEM, at=7), contender(THEM, at=6, held=True), contender(AHEAD, at=8)],
            [record(at=7), contender(AHEAD, at=6)],
            [record(THEM, at=7), contender(AHEAD, at=8)],
            [record(at=7), key(AHEAD, b"", at=6, created=6, session=AHEAD)],
        ],
        ids=[
            "held",
            "held beside a dead holder",
            "held and waited for",
            "waited for, and just released",
            "waited for behind a dead holder",
            "waited for by another program",
        ],
    )
    def test_one_that_is_used_stays(self, bench: Bench, used: list[dict[str, object]]) -> None:
        bench.lists(*used, index=8)
        assert not bench.io.run(asking.destroy(bench.io, bench.core, bench.semaphore))
        assert [request.method for request in bench.io.requests] == ["GET"]

    def test_without_permission_it_is_refused_and_not_in_use(self, bench: Bench) -> None:
        bench.lists(record(THEM, at=7), index=7)
        bench.makes(US)
        bench.io.expect("PUT", "/v1/txn", txn_failed((0, "Permission denied")))
        with pytest.raises(PermissionDenied, match=f'key:write on the prefix "{P}/"'):
            bench.io.run(asking.destroy(bench.io, bench.core, bench.semaphore))
        assert bench.destroyed() == [US]

    @pytest.mark.parametrize("in_delay", [True, False])
    def test_the_dead_are_removed_as_a_take_would(self, bench: Bench, in_delay: bool) -> None:
        bench.lists(record(THEM, at=7), index=7)
        bench.makes(US)
        if in_delay:
            bench.refuses(0)
        else:
            bench.io.expect("PUT", "/v1/txn", txn_done(key(THEM, b"", at=9, created=9, session=US)))
        assert bench.io.run(asking.destroy(bench.io, bench.core, bench.semaphore)) is not in_delay
        assert bench.verbs() == [["lock", "delete", "delete-cas"]]
        assert bench.destroyed() == [US]

    def test_more_than_one_transaction_can_remove_are_removed_in_several(self, bench: Bench) -> None:
        many = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(slots.most_removed() + 1)]
        bench.lists(record(*many, at=7), index=7)
        bench.makes(US)
        locked = [key(one, b"", at=9, created=9, session=US) for one in many]
        bench.io.expect(
            "PUT", "/v1/txn", txn_done(*locked[:-1], record(many[-1], at=9)), txn_done(locked[-1])
        )
        assert bench.io.run(asking.destroy(bench.io, bench.core, bench.semaphore))
        assert [op["Verb"] for op in bench.txns()[-1]] == ["lock", "delete", "delete-cas"]
        assert bench.txns()[-1][-1]["Index"] == 9


class TestTakingAtOnce:
    def leave(self, bench: Bench, *listed: dict[str, object], at: int = 40) -> None:
        hold = bench.held()
        bench.io.expect("PUT", "/v1/txn", left(*listed, at=at))
        bench.release(hold)

    def test_one_transaction_takes_what_this_client_left(self, bench: Bench) -> None:
        self.leave(bench)
        own = contender(US, at=60, held=True)
        bench.io.expect("PUT", "/v1/txn", txn_done(record(US, at=60), own))
        hold = bench.acquire()
        cas, lock = bench.txns()[-1]
        assert (cas["Index"], json.loads(cas["Value"])) == (40, {"Limit": 1, "Holders": {US: True}})
        assert (lock["Session"], lock["Value"]) == (US, slots.holding(b""))
        assert hold.fence == 60

    def test_whoever_is_there_is_let_go_first(self, bench: Bench) -> None:
        self.leave(bench, contender(THEM, at=30))
        assert bench.semaphore.with_client(bench.core).recall(1) is None

    def test_the_dead_keep_their_slots(self) -> None:
        bench = Bench(limit=2)
        memory = bench.semaphore.with_client(bench.core)
        listed = [KVPair(f"{P}/.lock", slots.Record(2, (THEM, AHEAD)).encode(), SEMAPHORE_FLAGS)]
        memory.left(memory.read(tuple(listed), 40))
        assert memory.recall(1) is None

    def test_a_fair_semaphore_always_queues(self) -> None:
        bench = Bench(fair=True)
        self.leave(bench)
        bench.joins(record(at=40), contender(US, at=50), at=50)
        bench.takes(at=51, born=50)
        bench.acquire()
        assert bench.verbs()[-2:] == [["lock", "get-tree"], ["check-index", "cas", "lock"]]

    def test_what_was_left_is_recalled_once(self, bench: Bench) -> None:
        self.leave(bench)
        memory = bench.semaphore.with_client(bench.core)
        assert memory.recall(1) is not None
        assert memory.recall(1) is None

    def test_each_record_is_tried_once_and_a_failure_leaves_chances_out(self, bench: Bench) -> None:
        self.leave(bench)
        bench.io.expect("PUT", "/v1/txn", txn_failed((0, f'failed to set key "{P}/.lock", index is stale')))
        bench.joins(record(at=45), contender(US, at=50), at=50)
        bench.takes(at=51, born=50)
        hold = bench.acquire()
        assert bench.verbs()[-3:] == [["cas", "lock"], ["lock", "get-tree"], ["check-index", "cas", "lock"]]
        own = contender(US, at=51, created=50, held=True)
        bench.io.expect("PUT", "/v1/txn", txn_done(own, record(at=70), record(at=70)))
        bench.release(hold)
        bench.joins(record(at=70), contender(US, at=80), at=80)
        bench.takes(at=81, born=80)
        bench.acquire()
        assert bench.verbs()[-2:] == [["lock", "get-tree"], ["check-index", "cas", "lock"]]

    def test_without_an_answer_the_session_is_never_used_again(self, bench: Bench) -> None:
        self.leave(bench)
        bench.io.expect("PUT", "/v1/txn", lost())
        bench.makes(NEXT)
        bench.joins(record(at=45), contender(NEXT, at=50), session=NEXT, at=50)
        bench.takes(session=NEXT, at=51, born=50)
        assert bench.acquire().session == NEXT
        assert bench.destroyed() == [US]

    def test_a_session_that_is_over_by_the_answer_is_replaced(self, bench: Bench) -> None:
        self.leave(bench)
        own = contender(US, at=60, held=True)
        bench.io.expect("PUT", "/v1/txn", txn_done(record(US, at=60), own), takes=9.7)
        bench.io.at(
            bench.io.now() + 1,
            lambda: bench.core.sessions.end(next(iter(bench.core.sessions)), LossReason.EXPIRED),
        )
        bench.makes(NEXT)
        bench.joins(record(US, at=60), contender(NEXT, at=70), session=NEXT, at=70)
        bench.takes(US, session=NEXT, at=71, born=70)
        assert bench.acquire().session == NEXT


@pytest.mark.parametrize("behind", [False, True], ids=["at the front", "behind another"])
def test_a_waiter_whose_session_has_ended_begins_anew_at_once(*, behind: bool) -> None:
    bench = Bench()
    ahead = [contender(AHEAD, at=8)] if behind else []
    own = contender(US, at=10)
    bench.makes(US)
    bench.joins(record(THEM, at=9), contender(THEM, at=5, held=True), *ahead, own)
    bench.io.expect("GET", f"/v1/kv/{P}", pairs(), takes=50.0)
    bench.io.expect("PUT", "/v1/session/create", refusal(403, "Permission denied"))

    def end() -> None:
        for kept in bench.core.sessions:
            bench.core.sessions.end(kept, LossReason.EXPIRED)

    bench.io.at(1001.0, end)
    with pytest.raises(PermissionDenied):
        bench.acquire()
    assert bench.io.sent_at[-1] == 1001.0
    assert not bench.io.steps


def test_a_semaphore_begins_anew_after_a_fork() -> None:
    before, after = Bench(), Bench()
    memory = before.semaphore.with_client(before.core)
    assert before.semaphore.with_client(before.core) is memory
    assert before.semaphore.with_client(after.core) is not memory
