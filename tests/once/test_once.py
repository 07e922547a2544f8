"""``Once`` and ``every``: who runs, who does not, and what is left of that in Consul."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
    AsyncClient,
    AsyncLock,
    AsyncOnce,
    Client,
    DecodeError,
    InvalidArgument,
    KeyConflict,
    Lock,
    LockLost,
    LossReason,
    NoLeader,
    NotHeld,
    Once,
    OnceResult,
    OnceRun,
    RequestTimeout,
    TransportError,
    TxnOp,
    async_every,
    every,
    period_slot,
)
from consul_coord.clock import VirtualClock
from consul_coord.recipes.once.record import ONCE_FLAGS
from consul_coord.server import ReferenceServer
from tests.lock.conftest import spec
from tests.support.proxy import Fault, Lose
from tests.support.sites import PATIENCE, eventually
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Hold
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site

RECORDING = b'"set"'


def recorded(site: Site) -> dict[str, Any] | None:
    found = site.operator.entry(f"{site.key}/.once")
    return None if found is None else json.loads(found["Value"])


class Job:
    """Counts its runs, and what it was given."""

    def __init__(self) -> None:
        self.fences: list[int] = []

    def __call__(self, hold: Hold) -> str:
        self.fences.append(hold.fence)
        return f"run {len(self.fences)}"

    @property
    def runs(self) -> int:
        return len(self.fences)


@pytest.fixture
def job() -> Job:
    return Job()


# -- who runs


def test_a_slot_runs_once_and_later_callers_are_told_of_it(
    site: Site, make_client: MakeClient, job: Job
) -> None:
    first = Once(make_client(), site.key, value="first").run(job, slot="2026-11-22")
    assert (first.ran, first.slot, first.by, first.value) == (True, "2026-11-22", "first", "run 1")
    second = Once(make_client(), site.key).run(job, slot="2026-11-22")
    assert second == OnceResult(ran=False, slot=first.slot, by="first", at=first.at, fence=first.fence)
    assert job.fences == [first.fence]
    assert recorded(site) == {
        "slot": "2026-11-22",
        "outcome": "done",
        "by": "first",
        "at": first.at,
        "fence": first.fence,
    }


def test_slots_rise_and_never_fall_back(site: Site, client: Client, job: Job) -> None:
    once = Once(client, site.key)
    assert [once.run(job, slot=slot).ran for slot in ("9", "10", "9", "10", "11")] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert once.run(job, slot="2").slot == "11"
    assert job.fences == sorted(set(job.fences))


def test_a_thousand_slots_leave_one_record(site: Site, client: Client, job: Job) -> None:
    once = Once(client, site.key)
    for slot in range(30):
        once.run(job, slot=str(slot))
    assert site.operator.under(site.key) == [site.key, f"{site.key}/.once"]


def test_many_callers_at_once_and_one_run(site: Site, make_client: MakeClient, job: Job) -> None:
    clients = [make_client() for _ in range(4)]
    with ThreadPoolExecutor(12) as pool:
        calls = [
            pool.submit(Once(client, site.key).run, job, slot="1", timeout=30)
            for client in clients
            for _ in range(3)
        ]
        results = [call.result(40) for call in calls]
    assert job.runs == 1
    assert sorted(result.ran for result in results) == [False] * 11 + [True]
    assert {result.fence for result in results} == {job.fences[0]}
    assert site.operator.holder(site.key) is None


def test_what_raises_is_recorded_and_run_again_by_the_next_caller(
    site: Site, client: Client, job: Job
) -> None:
    once = Once(client, site.key, value="me")
    with pytest.raises(ZeroDivisionError):
        once.run(lambda _: 1 / 0, slot="1")
    found = recorded(site)
    assert found is not None
    assert (found["slot"], found["outcome"]) == ("1", "failed")
    assert once.run(job, slot="1").ran
    assert not once.run(job, slot="1").ran


@pytest.mark.parametrize("status", [403, 500], ids=["refused", "unanswered"])
def test_what_raises_passes_whatever_comes_of_its_record(
    site: Site, proxy: FaultProxy, make_client: MakeClient, status: int
) -> None:
    client = make_client(address=proxy.address, timeout=0.5)
    fault = Fault(lose=Lose.AGENT, path="/v1/txn", containing=RECORDING, status=status, times=99)
    proxy.add(fault)
    with pytest.raises(ZeroDivisionError):
        Once(client, site.key).run(lambda _: 1 / 0, slot="1")
    assert fault.hits
    assert recorded(site) is None


def test_what_raises_without_the_lock_is_the_cause_of_the_loss(site: Site, client: Client) -> None:
    def work(run: OnceRun) -> None:
        site.operator.destroy(run.session)
        raise ZeroDivisionError

    with pytest.raises(LockLost) as lost:
        Once(client, site.key).run(work, slot="1")
    assert isinstance(lost.value.__cause__, ZeroDivisionError)
    assert recorded(site) is None


def test_or_left_alone_until_the_next_slot(site: Site, client: Client, job: Job) -> None:
    once = Once(client, site.key, retry_failed=False)
    with pytest.raises(ZeroDivisionError):
        once.run(lambda _: 1 / 0, slot="1")
    left = once.run(job, slot="1")
    assert (left.ran, left.failed, job.runs) == (False, True, 0)
    assert once.run(job, slot="2").ran


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_process_counts_as_a_crash(
    site: Site, client: Client, job: Job, end: type[BaseException]
) -> None:
    def interrupted(_: Hold) -> None:
        raise end

    once = Once(client, site.key, retry_failed=False)
    with pytest.raises(end):
        once.run(interrupted, slot="1")
    assert recorded(site) is None
    assert once.run(job, slot="1").ran


def test_a_waiting_caller_takes_over_when_the_runners_session_ends(
    site: Site, make_client: MakeClient, job: Job
) -> None:
    running, go = threading.Event(), threading.Event()
    sessions: list[str] = []

    def stuck(hold: Hold) -> None:
        sessions.append(hold.session)
        running.set()
        assert go.wait(30)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Once(make_client(), site.key, value="first").run, stuck, slot="1")
        assert running.wait(30)
        second = pool.submit(Once(make_client(), site.key, value="second").run, job, slot="1")
        eventually(lambda: site.operator.under(f"{site.key}/.wait/"))
        site.operator.destroy(sessions[0])
        assert second.result(30).ran
        go.set()  # the first has done the work as well, and it does not count
        with pytest.raises(LockLost) as lost:
            first.result(30)
    assert lost.value.reason in {LossReason.SESSION_GONE, LossReason.TAKEN_OVER, LossReason.RELEASED_BY_OTHER}
    found = recorded(site)
    assert found is not None
    assert (found["by"], found["fence"]) == ("second", job.fences[0])


@pytest.mark.slow
@pytest.mark.parametrize("survivors", [1, 0])
def test_a_slot_is_done_unless_all_its_callers_have_died(
    site: Site, make_client: MakeClient, survivors: int
) -> None:
    callers, over = 4, threading.Event()
    began: list[str] = []

    def work(run: OnceRun) -> None:
        began.append(run.session)
        if len(began) <= callers - survivors:
            assert over.wait(PATIENCE)  # it is as good as dead: its session ends in the midst of the work

    with ThreadPoolExecutor(callers) as pool:
        # A lease that a busy machine can bear: one that is lost by a stall is one more caller that died.
        jobs = [Once(make_client(lock_delay=1.5), site.key, value=f"host {n}") for n in range(callers)]
        calls = [pool.submit(each.run, work, slot="1", timeout=PATIENCE) for each in jobs]
        for dead in range(callers - survivors):
            eventually(lambda dead=dead: len(began) > dead)  # type: ignore[misc]
            assert recorded(site) is None
            site.operator.destroy(began[dead])
        if survivors:
            eventually(lambda: recorded(site))
        over.set()
        errors = [type(call.exception(PATIENCE)) for call in calls]
    assert errors.count(LockLost) == callers - survivors
    assert sum(call.result().ran for call in calls if call.exception() is None) == survivors
    found = recorded(site)
    assert (found is not None) == bool(survivors)
    assert len(began) == callers
    with Lock(make_client(), site.key).hold(timeout=PATIENCE):
        pass  # nobody is left in the way of the next slot


def test_a_run_that_is_stuck_is_ended_and_the_next_caller_runs(
    site: Site, make_client: MakeClient, job: Job
) -> None:
    def stuck(_: Hold) -> None:
        time.sleep(PATIENCE)

    once = Once(make_client(), site.key)
    with pytest.raises(LockLost) as caught:
        once.run(stuck, slot="1", timeout=5, max_hold=0.1, interrupt=True)
    assert caught.value.reason is LossReason.MAX_HOLD
    assert Once(make_client(), site.key).run(job, slot="1", timeout=PATIENCE).ran
    calls: list[Callable[[], object]] = [
        lambda: once.run(job, slot="2", max_hold=0),
        lambda: once.begin(slot="2", max_hold=-1),
        lambda: every(make_client(), site.key, period=60, max_hold=0),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="max_hold"):
            call()
    assert job.runs == 1


def test_the_guard_of_a_run_taken_over_is_closed(site: Site, make_client: MakeClient, job: Job) -> None:
    client = make_client()
    written = f"{site.key}/result"

    def work(hold: Hold) -> None:
        site.operator.destroy(hold.session)
        assert Once(make_client(), site.key).run(job, slot="1", timeout=20).ran
        client.txn(*hold.guard(), TxnOp.set(written, "too late"))

    with pytest.raises(LockLost):
        Once(client, site.key).run(work, slot="1")
    assert site.operator.entry(written) is None
    assert recorded(site) is not None


def test_a_loss_after_the_record_does_not_undo_the_run(
    site: Site, proxy: FaultProxy, make_client: MakeClient, job: Job
) -> None:
    unlocking = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"unlock"'))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(Once(make_client(address=proxy.address), site.key).run, job, slot="1")
        assert unlocking.hit.wait(20)
        session = site.operator.holder(site.key)
        assert session
        site.operator.destroy(session)
        unlocking.let_go()
        assert call.result(20).ran


def test_a_success_that_the_run_has_recorded_is_final(site: Site, client: Client, job: Job) -> None:
    once = Once(client, site.key)

    def work(run: OnceRun) -> None:
        done = run.record()
        assert run.record(failed=True) == done
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        once.run(work, slot="1")
    result = once.run(job, slot="1")
    assert (result.ran, result.failed, job.runs) == (False, False, 0)


def test_a_failure_that_the_run_has_recorded_is_not(site: Site, client: Client) -> None:
    once = Once(client, site.key)
    assert once.run(lambda run: run.record(failed=True), slot="1").ran
    last = once.last()
    assert last is not None
    assert not last.failed


def test_a_loss_after_the_run_has_recorded_its_success_does_not_undo_that(
    site: Site, make_client: MakeClient, job: Job
) -> None:
    once = Once(make_client(), site.key)

    def work(run: OnceRun) -> None:
        run.record()
        site.operator.destroy(run.session)
        assert run.lost.wait(20)

    assert once.run(work, slot="1").ran
    assert not Once(make_client(), site.key).run(job, slot="1").ran


def test_an_operators_write_to_the_key_keeps_no_run_from_its_record(site: Site, client: Client) -> None:
    def work(_: Hold) -> None:
        site.operator.put(site.key, b"a note")

    assert Once(client, site.key).run(work, slot="1").ran
    assert recorded(site)


# -- waiting


def test_a_single_try_names_whoever_runs(site: Site, make_client: MakeClient, job: Job) -> None:
    with Lock(make_client(), site.key) as hold, pytest.raises(AcquireTimeout) as told:
        Once(make_client(), site.key).run(job, slot="1", timeout=0)
    assert told.value.blocker.session == hold.session
    assert job.runs == 0


def test_cancel_ends_the_wait(site: Site, make_client: MakeClient, job: Job) -> None:
    once = Once(make_client(), site.key)
    with Lock(make_client(), site.key), ThreadPoolExecutor(1) as pool:
        call = pool.submit(once.run, job, slot="1")
        eventually(lambda: site.operator.under(f"{site.key}/.wait/"))
        once.cancel()
        with pytest.raises(AcquireCancelled):
            call.result(10)


def test_a_job_that_runs_itself_is_told(site: Site, client: Client, job: Job) -> None:
    once = Once(client, site.key)
    with pytest.raises(AlreadyHeld):
        once.run(lambda _: once.run(job, slot="1"), slot="1")


# -- what it costs


def requests_since(number: int, proxy: FaultProxy) -> int:
    """Return how many requests there were, apart from those that depend on how long a hold lasts."""
    sent = [each.path for each in proxy.requests[number:]]
    return sum("index=" not in path and "/renew/" not in path for path in sent)


def test_requests_and_raft_entries(site: Site, proxy: FaultProxy, make_client: MakeClient, job: Job) -> None:
    once = Once(make_client(address=proxy.address), site.key)
    once.run(job, slot="1")
    for slot in "23456789":
        others, before, index = written_by_others(site), len(proxy.requests), last_index(site)
        assert once.run(job, slot=slot).ran
        assert requests_since(before, proxy) == 4
        entries = last_index(site) - index
        if written_by_others(site) == others:
            assert entries == 3
            break
    else:
        pytest.fail("others write all the time")
    before = len(proxy.requests)
    assert not once.run(job, slot=slot).ran
    assert requests_since(before, proxy) == 1


def written_by_others(site: Site) -> list[object]:
    """Return what no request of a run changes, though each change of it is an entry of Raft's log, too.

    An agent writes its coordinate every 20 s, and its node soon after it has started. Sessions of earlier
    tests expire.
    """
    tables = "coordinate/nodes", "catalog/nodes", "session/list"
    return [site.operator.done("GET", f"/v1/{table}") for table in tables]


def last_index(site: Site) -> int:
    """Return the index of a write made now; that write itself is not counted."""
    site.operator.put(f"{site.key}-index", str(threading.get_ident()).encode() + b"%d" % len(_WRITES))
    _WRITES.append(None)
    found = site.operator.entry(f"{site.key}-index")
    assert found is not None
    return int(found["ModifyIndex"]) - len(_WRITES)


_WRITES: list[None] = []


def test_a_client_that_is_new_to_the_job_sends_as_few(
    site: Site, proxy: FaultProxy, make_client: MakeClient, job: Job
) -> None:
    Once(make_client(), site.key).run(job, slot="1")
    client = make_client(address=proxy.address)
    with Lock(client, f"{site.key}-other"):
        pass  # a session is at hand
    before = len(proxy.requests)
    assert Once(client, site.key).run(job, slot="2").ran
    assert requests_since(before, proxy) == 4


# -- faults


@pytest.mark.parametrize("lose", [Lose.REQUEST, Lose.REPLY, Lose.AGENT])
def test_a_lost_record_is_written_again(
    site: Site, proxy: FaultProxy, make_client: MakeClient, job: Job, lose: Lose
) -> None:
    fault = proxy.add(Fault(lose=lose, path="/v1/txn", containing=RECORDING, times=2))
    assert Once(make_client(address=proxy.address), site.key).run(job, slot="1").ran
    assert fault.hits == 2
    assert recorded(site)
    assert job.runs == 1


def test_a_record_that_was_written_counts_though_the_lock_is_lost_before_its_answer(
    site: Site, proxy: FaultProxy, make_client: MakeClient, job: Job
) -> None:
    client = make_client(address=proxy.address)
    lost = proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn", containing=RECORDING))
    again = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=RECORDING))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(Once(client, site.key).run, job, slot="1")
        assert again.hit.wait(20)
        assert lost.hits == 1
        # An operator's write closes the guard, so that the second try is refused.
        site.operator.put(site.key, b"a note")
        again.let_go()
        assert call.result(20).ran
    assert job.runs == 1


def test_a_run_whose_lock_was_written_to_is_recorded_after_an_outage(
    site: Site, proxy: FaultProxy, make_client: MakeClient, job: Job
) -> None:
    """The record waits for the hold's value to be written again, which finds no agent for a while."""
    client = make_client(address=proxy.address, timeout=0.5)

    def work(hold: Hold) -> str:
        site.operator.put(site.key, b"a note")
        proxy.add(Fault(lose=Lose.AGENT, path="/v1/txn", containing=b'"Verb":"lock"', times=9))
        return job(hold)

    assert Once(client, site.key).run(work, slot="1", timeout=20).ran
    assert recorded(site)
    assert job.runs == 1


@pytest.mark.parametrize("lose", [Lose.REQUEST, Lose.REPLY])
@pytest.mark.parametrize("containing", [b'"get"', b'"check-not-exists"'], ids=["the look", "the take"])
def test_lost_requests_before_the_run_do_no_harm(
    proxy: FaultProxy, make_client: MakeClient, site: Site, lose: Lose, containing: bytes
) -> None:
    job, fault = Job(), proxy.add(Fault(lose=lose, path="/v1/txn", containing=containing))
    assert Once(make_client(address=proxy.address), site.key).run(job, slot="1", timeout=20).ran
    assert fault.hits == 1
    assert job.runs == 1


def test_a_late_record_of_a_run_that_gave_up_is_refused(
    site: Site, proxy: FaultProxy, make_client: MakeClient, job: Job
) -> None:
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=RECORDING))
    client = make_client(address=proxy.address, timeout=0.5)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(Once(client, site.key, value="slow").run, job, slot="1")
        assert late.hit.wait(20)
        session = site.operator.holder(site.key)
        assert session
        site.operator.destroy(session)
        with pytest.raises((LockLost, TransportError)):
            call.result(30)
    assert Once(make_client(), site.key, value="next").run(job, slot="2", timeout=20).ran
    late.let_go()
    assert late.passed_on.wait(10)
    found = recorded(site)
    assert found is not None
    assert found["by"] == "next"


def test_an_agent_that_cannot_be_reached_is_told_in_time(
    site: Site, proxy: FaultProxy, make_client: MakeClient, job: Job
) -> None:
    once = Once(make_client(address=proxy.address), site.key)
    proxy.go_down()
    with pytest.raises(AcquireTimeout) as told:
        once.run(job, slot="1", timeout=0.5)
    assert told.value.blocker.kind == "unreachable"
    proxy.come_up()
    assert once.run(job, slot="1", timeout=10).ran


@pytest.mark.parametrize("lose", [Lose.TIME, Lose.AGENT])
@pytest.mark.parametrize("what", ["the look", "the record alone", "all after the grant"])
def test_the_timeout_covers_all_until_the_job_begins(
    site: Site, proxy: FaultProxy, make_client: MakeClient, what: str, lose: Lose
) -> None:
    job = Job()
    client = make_client(address=proxy.address)
    with Lock(client, f"{site.key}-other"):
        pass  # a session is at hand
    alone = f"/v1/kv/{site.key}/.once"
    if what == "the look":
        proxy.add(Fault(lose=lose, path="/v1/txn", containing=b'"get"', times=99))
    else:
        proxy.add(Fault(lose=lose, path=alone, times=99))
    if what == "all after the grant":
        proxy.add(Fault(lose=lose, path="/v1/txn", containing=b'"unlock"', times=99))
        proxy.add(Fault(lose=lose, path="/v1/status/", times=99))
    with lasting(least=1.0, most=1.1), pytest.raises(AcquireTimeout) as late:
        Once(client, site.key).run(job, slot="1", timeout=1)
    assert late.value.blocker.kind == "unreachable"
    assert isinstance(late.value.__cause__, RequestTimeout if lose is Lose.TIME else NoLeader)
    assert late.value.waited >= 1.0
    assert job.runs == 0
    proxy.clear()
    eventually(lambda: site.operator.holder(site.key) is None)
    assert Once(client, site.key).run(job, slot="1", timeout=PATIENCE).ran


def test_a_single_try_that_fails_after_the_grant_does_not_wait_for_its_release(
    site: Site, proxy: FaultProxy, make_client: MakeClient, job: Job
) -> None:
    client = make_client(address=proxy.address)
    with Lock(client, f"{site.key}-other"):
        pass  # a session is at hand
    proxy.add(Fault(lose=Lose.AGENT, path=f"/v1/kv/{site.key}/.once", times=99))
    proxy.add(Fault(lose=Lose.AGENT, path="/v1/txn", containing=b'"unlock"', times=99))
    with lasting(least=0.0, most=0.5), pytest.raises(AcquireTimeout):
        Once(client, site.key).run(job, slot="1", timeout=0)
    proxy.clear()
    eventually(lambda: site.operator.holder(site.key) is None)


def test_a_failure_that_is_over_is_not_what_stood_in_the_way(
    site: Site, proxy: FaultProxy, make_client: MakeClient, job: Job
) -> None:
    client = make_client(address=proxy.address)
    with Lock(client, site.key) as hold, ThreadPoolExecutor(1) as pool:
        failed = proxy.add(Fault(lose=Lose.AGENT, path="/v1/txn", containing=b'"get"'))
        error = pool.submit(Once(client, site.key).run, job, slot="1", timeout=3).exception(PATIENCE)
    assert failed.hits == 1
    assert isinstance(error, AcquireTimeout)
    assert (error.blocker.kind, error.__cause__) == ("queued", None)
    assert [holder.session for holder in error.blocker.holders] == [hold.session]


def test_a_slot_that_another_has_run_meanwhile_is_told_of_within_the_timeout(
    site: Site, proxy: FaultProxy, make_client: MakeClient, job: Job
) -> None:
    client = make_client(address=proxy.address)
    proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"unlock"', times=99))
    with ThreadPoolExecutor(1) as pool:
        run = Once(make_client(), site.key).begin(slot="1")
        assert isinstance(run, OnceRun)
        with lasting(most=2.1):
            waiting = pool.submit(Once(client, site.key).run, job, slot="1", timeout=2)
            eventually(lambda: site.operator.under(f"{site.key}/.wait/"))
            run.record()
            run.release()
            assert not waiting.result(PATIENCE).ran
    proxy.clear()
    eventually(lambda: site.operator.holder(site.key) is None)
    assert job.runs == 0


# -- the record


@pytest.mark.parametrize(
    "record",
    [b"{", rb'{"slot":"\ud800","outcome":"failed","by":"","at":1,"fence":1}'],
    ids=["broken", "no text"],
)
def test_a_record_that_cannot_be_read_stops_the_job(
    site: Site, client: Client, job: Job, record: bytes
) -> None:
    site.operator.put(f"{site.key}/.once", record, flags=ONCE_FLAGS)
    with pytest.raises(DecodeError, match="can't be read, and the job does not run"):
        Once(client, site.key).run(job, slot="1")
    assert job.runs == 0


def test_something_else_in_its_place_is_a_conflict(site: Site, client: Client, job: Job) -> None:
    site.operator.put(f"{site.key}/.once", b"mine")
    with pytest.raises(KeyConflict):
        Once(client, site.key).run(job, slot="1")
    with pytest.raises(KeyConflict):
        Once(client, site.key).forget()


@pytest.mark.parametrize("align", [True, False], ids=["aligned", "since the last run"])
def test_a_period_after_a_slot_that_is_above_all_times_is_a_conflict(
    site: Site, client: Client, job: Job, *, align: bool
) -> None:
    once = Once(client, site.key)
    assert once.run(job, slot="nightly-7").ran
    with pytest.raises(KeyConflict, match=f"nightly-7.*delete the key '{site.key}/.once'"):
        once.run(job, period=1, align=align)
    assert job.runs == 1
    once.forget()
    assert once.run(job, period=1, align=align).ran


def test_a_key_whose_name_begins_with_the_records_is_none(site: Site, client: Client, job: Job) -> None:
    site.operator.put(f"{site.key}/.once-notes", b"mine")
    assert Once(client, site.key).run(job, slot="1").ran
    assert not Once(client, site.key).run(job, slot="1").ran


def test_a_foreign_key_in_the_locks_place_is_a_conflict(site: Site, client: Client, job: Job) -> None:
    site.operator.put(site.key, b"mine")
    with pytest.raises(KeyConflict):
        Once(client, site.key).run(job, slot="1")


def test_the_last_run_can_be_asked_for_and_forgotten(site: Site, client: Client, job: Job) -> None:
    once = Once(client, site.key)
    assert once.last() is None
    assert once.forget() is False
    result = once.run(job, slot="7")
    last = once.last()
    assert last is not None
    assert (last.ran, last.slot, last.fence) == (False, "7", result.fence)
    assert once.forget() is True
    assert once.run(job, slot="1").ran


# -- periods


def test_every_runs_once_in_each_period() -> None:
    with ReferenceServer(clock=VirtualClock()) as server:
        clients = [Client(address=server.address, clock=server.clock) for _ in range(2)]
        runs: list[str] = []

        def report(name: str) -> str:
            """Report."""
            runs.append(name)
            return name

        one, two = (every(each, "jobs/report", period=3600)(report) for each in clients)
        assert one.__doc__ == "Report."
        for hour in range(3):
            assert [one(f"one {hour}").ran, two(f"two {hour}").ran, one("again").ran] == [True, False, False]
            server.clock.advance(3600)
        assert two("late").value == "late"
        assert runs == ["one 0", "one 1", "one 2", "late"]
        for client in clients:
            client.close()


def test_every_takes_what_the_job_and_its_run_take(site: Site, make_client: MakeClient) -> None:
    client, day, began = make_client(), 86_400, list[str]()

    def decorated(name: str, **settings: Any) -> Callable[[Callable[[], object]], Callable[[], Any]]:
        return every(client, f"{site.key}/{name}", period=day, **settings)

    @decorated("stuck", max_hold=0.1, interrupt=True)
    def stuck() -> None:
        time.sleep(PATIENCE)
        began.append("it was not interrupted")

    with pytest.raises(LockLost) as caught:
        stuck()
    assert caught.value.reason is LossReason.MAX_HOLD
    assert began == []

    @decorated("failing", retry_failed=False)
    def failing() -> None:
        began.append("failing")
        raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert failing().failed
    assert began == ["failing"]

    named = decorated("named", value="host-7", align=False)(lambda: None)()
    assert (named.ran, named.by) == (True, "host-7")
    assert named.slot != period_slot(day, at=named.at), "it begins with the run"

    with Lock(make_client(), f"{site.key}/busy"), pytest.raises(AcquireTimeout):
        decorated("busy", timeout=0)(lambda: None)()


@pytest.mark.anyio
async def test_every_on_an_event_loop_takes_what_the_job_and_its_run_take(site: Site) -> None:
    import anyio

    async def stuck() -> None:
        await anyio.sleep(PATIENCE)

    async def failing() -> None:
        raise KeyError

    async def nothing() -> None:
        pass

    async with AsyncClient(address=site.address, session=spec(site)) as client:

        def decorated(name: str, **settings: Any) -> Any:
            return async_every(client, f"{site.key}/{name}", period=86_400, **settings)

        with pytest.raises(LockLost) as caught:
            await decorated("stuck", max_hold=0.1)(stuck)()
        assert caught.value.reason is LossReason.MAX_HOLD
        job = decorated("failing", retry_failed=False)(failing)
        with pytest.raises(KeyError):
            await job()
        assert (await job()).failed
        named = await decorated("named", value="host-7", align=False)(nothing)()
        assert (named.ran, named.by) == (True, "host-7")
        assert named.slot != period_slot(86_400, at=named.at)
        async with AsyncClient(address=site.address) as other, AsyncLock(other, f"{site.key}/busy"):
            with pytest.raises(AcquireTimeout):
                await decorated("busy", timeout=0)(nothing)()


def test_a_period_that_is_not_aligned_begins_with_the_last_run() -> None:
    with (
        ReferenceServer(clock=VirtualClock()) as server,
        Client(address=server.address, clock=server.clock) as client,
    ):
        once = Once(client, "jobs/report")

        def runs() -> bool:
            return once.run(lambda _: None, period=3600, align=False).ran

        server.clock.advance(1800)
        assert runs()
        server.clock.advance(3599)
        assert not runs()
        server.clock.advance(1)
        assert runs()


def test_a_clock_that_is_behind_is_told_and_runs_nothing(
    site: Site, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    Once(client, site.key, value="host-7").run(lambda _: None, slot="2999-01-01T00:00:00Z")
    assert not Once(client, site.key).run(lambda _: None, period=60).ran
    (told,) = [each.getMessage() for each in caplog.records if "did not run" in each.getMessage()]
    assert "host-7 has already run its slot 2999-01-01T00:00:00Z" in told


def test_the_present_period_has_a_name(client: Client, site: Site) -> None:
    slot = period_slot(86400)
    once = Once(client, site.key)
    assert once.run(lambda _: None, slot=slot).ran
    with suppress(AssertionError):  # midnight
        assert not once.run(lambda _: None, period=86400).ran


# -- on an event loop


@pytest.mark.anyio
async def test_async_twins_do_the_same(site: Site) -> None:
    runs: list[int] = []

    async def job(hold: Any) -> str:
        runs.append(hold.fence)
        return "done"

    async with AsyncClient(address=site.address, session=spec(site)) as client:
        once = AsyncOnce(client, site.key, value="me")
        first = await once.run(job, slot="1")
        assert (first.ran, first.value, first.by) == (True, "done", "me")
        assert not (await once.run(job, slot="1")).ran
        assert (await once.last()) == OnceResult(ran=False, slot="1", by="me", at=first.at, fence=first.fence)
        assert await once.forget()

        @async_every(client, f"{site.key}/every", period=86400)
        async def daily(number: int) -> int:
            return number

        assert (await daily(7)).value == 7


@pytest.mark.anyio
async def test_a_loss_cancels_the_run_and_nothing_is_recorded(site: Site) -> None:
    import anyio

    async def job(hold: Any) -> None:
        await anyio.to_thread.run_sync(site.operator.destroy, hold.session)
        await anyio.sleep(60)

    async with AsyncClient(address=site.address, session=spec(site)) as client:
        with pytest.raises(LockLost):
            await AsyncOnce(client, site.key).run(job, slot="1")
    assert recorded(site) is None


# -- step by step


def test_a_run_can_be_begun_and_recorded_step_by_step(site: Site, make_client: MakeClient) -> None:
    once = Once(make_client(), site.key, value="me")
    run = once.begin(slot="1")
    assert isinstance(run, OnceRun)
    assert (run.slot, run.is_held) == ("1", True)
    result = run.record()
    assert (result.ran, result.slot, result.fence) == (True, "1", run.fence)
    assert run.is_held
    run.release()
    with pytest.raises(NotHeld):
        run.record()
    again = once.begin(slot="1")
    assert again == replace(result, ran=False)


def test_a_run_released_without_a_record_counts_as_a_crash(site: Site, client: Client, job: Job) -> None:
    once = Once(client, site.key)
    run = once.begin(slot="1")
    assert isinstance(run, OnceRun)
    run.release()
    assert once.run(job, slot="1").ran


@pytest.mark.parametrize("which", [{}, {"slot": "1", "period": 60}, {"period": 0.5}, {"slot": ""}])
def test_either_a_slot_or_a_period_is_given(client: Client, site: Site, which: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Once(client, site.key).run(lambda _: None, **which)


def test_a_run_that_is_stuck_loses_the_lock_and_is_taken_over(
    site: Site, make_client: MakeClient, job: Job
) -> None:
    go = threading.Event()

    def stuck(run: OnceRun) -> None:
        assert run.lost.wait(30)
        assert go.wait(30)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(Once(make_client(), site.key).run, stuck, slot="1", max_hold=0.3)
        eventually(lambda: site.operator.holder(site.key))
        assert Once(make_client(), site.key).run(job, slot="1", timeout=30).ran
        go.set()
        with pytest.raises(LockLost) as lost:
            first.result(30)
    assert lost.value.reason is LossReason.MAX_HOLD
    found = recorded(site)
    assert found is not None
    assert found["fence"] == job.fences[0]
