"""The executor for APScheduler: several schedulers, of which the leader's runs jobs."""

from __future__ import annotations

import importlib
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import Client, LeaderElection, Lock
from tests.election.waiting import until
from tests.integrations.programs import Served, serving
from tests.support.proxy import Fault, FaultProxy, Lose
from tests.support.sites import never

pytest.importorskip("apscheduler", reason="needs apscheduler: nox -s integrations")

from consul_coord.integrations.apscheduler import LeaderExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PROGRAM = """
import sys, threading, time
from apscheduler.schedulers.blocking import BlockingScheduler
from consul_coord import Client, SessionSpec
from consul_coord.integrations.apscheduler import LeaderExecutor

client = Client(session=SessionSpec(ttl=1.0, lock_delay=1.0))
executor = LeaderExecutor(client, "service/scheduler")
scheduler = BlockingScheduler(timezone="UTC", executors={"default": executor})

@scheduler.scheduled_job("cron", second="*", id="each second", coalesce=True, misfire_grace_time=60)
def work():
    me = executor.leadership
    print("ran", time.monotonic(), me.term if me else None, flush=True)

print("starting", flush=True)
scheduler.start()
"""
KEY = "service/scheduler"


def background_scheduler(executor: LeaderExecutor) -> Any:
    """Return a scheduler of this process; APScheduler has no types."""
    module: Any = importlib.import_module("apscheduler.schedulers.background")
    return module.BackgroundScheduler(timezone="UTC", executors={"default": executor})


@pytest.fixture
def process(tmp_path: Path, agent_address: str) -> Iterator[Callable[[], Served]]:
    with Client(address=agent_address) as client:
        client.kv.delete_tree(KEY)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    with ExitStack() as stack:

        def start() -> Served:
            command = [sys.executable, str(program)]
            return stack.enter_context(serving(command, folder=tmp_path, address=agent_address))

        yield start


def ran(process: Served) -> list[float]:
    """Return when a process ran the job."""
    lines = [line.split() for line in process.said]
    return [float(words[1]) for words in lines if words[:1] == ["ran"]]


@pytest.mark.slow
def test_one_process_runs_jobs_and_after_its_death_another(process: Callable[[], Served]) -> None:
    first = process()
    until(lambda: ran(first), "the first one runs the job")
    second = process()
    second.wait_for("starting")
    until(lambda: len(ran(first)) >= 3, "it goes on")
    assert ran(second) == []
    first.process.kill()
    until(lambda: len(ran(second)) >= 2, "the second one took over")
    assert max(ran(first)) < min(ran(second))


def test_what_was_due_while_nobody_led_is_run_once(address: str) -> None:
    runs: list[datetime] = []
    with Client(address=address) as client:
        executor = LeaderExecutor(client, "jobs")
        scheduler = background_scheduler(executor)
        last = datetime.now(UTC) - timedelta(hours=3)
        client.kv.put("jobs/jobs/hourly", last.isoformat())

        late = {"coalesce": True, "misfire_grace_time": 86_400}
        hourly = {"hours": 1, "start_date": last, "id": "hourly"}
        scheduler.add_job(lambda: runs.append(datetime.now(UTC)), "interval", **hourly, **late)
        scheduler.start()
        try:
            until(lambda: runs, "the missed run")
            until(lambda: client.kv.get("jobs/jobs/hourly").value is not None, "it was written down")
        finally:
            scheduler.shutdown()
        assert len(runs) == 1
        pair = client.kv.get("jobs/jobs/hourly").value
        assert pair is not None
        assert datetime.fromisoformat(pair.value.decode()) > last + timedelta(hours=2)


def test_a_job_that_can_not_be_looked_at_keeps_no_other_from_its_run(address: str) -> None:
    runs: list[str] = []
    with FaultProxy(address) as proxy, Client(address=proxy.address) as client:
        executor = LeaderExecutor(client, "jobs")
        scheduler = background_scheduler(executor)
        last = datetime.now(UTC) - timedelta(hours=3)
        late = {"coalesce": True, "misfire_grace_time": 86_400, "hours": 1, "start_date": last}
        for name in ("denied", "hourly"):
            client.kv.put(f"jobs/jobs/{name}", last.isoformat())
            scheduler.add_job(runs.append, "interval", args=(name,), id=name, **late)
        denied: dict[str, Any] = {"status": 403, "body": b"Permission denied", "times": 10_000}
        proxy.add(Fault(lose=Lose.AGENT, method="GET", path="/v1/kv/jobs/jobs/denied", **denied))
        scheduler.start()
        try:
            until(lambda: runs, "the missed run")
        finally:
            scheduler.shutdown()
        assert runs == ["hourly"]


def test_a_paused_job_stays_paused_though_a_run_of_it_was_missed(address: str) -> None:
    runs: list[str] = []
    with FaultProxy(address) as proxy, Client(address=proxy.address) as client:
        scheduler = background_scheduler(LeaderExecutor(client, "jobs"))
        last = datetime.now(UTC) - timedelta(hours=3)
        late = {"coalesce": True, "misfire_grace_time": 86_400, "hours": 1, "start_date": last}
        jobs: list[Any] = []
        for name in ("hourly", "paused", "third"):
            client.kv.put(f"jobs/jobs/{name}", last.isoformat())
            pausing = {} if name == "hourly" else {"next_run_time": None}
            job = scheduler.add_job(runs.append, "interval", args=(name,), id=name, **late, **pausing)
            jobs.append(job)
        scheduler.start()
        try:
            until(lambda: runs, "the missed run")
            until(lambda: proxy.count("GET", "/v1/kv/jobs/jobs/third"), "all have been looked at")
            assert jobs[1].next_run_time is None
        finally:
            scheduler.shutdown()
        assert runs == ["hourly"]


def test_who_does_not_wait_at_the_shutdown_leads_until_the_job_has_ended(address: str) -> None:
    began, go_on = Event(), Event()
    seen: list[bool] = []
    with Client(address=address) as client, Client(address=address) as other:
        executor, next_executor = LeaderExecutor(client, "jobs"), LeaderExecutor(other, "jobs")
        scheduler, next_scheduler = background_scheduler(executor), background_scheduler(next_executor)

        def job() -> None:
            began.set()
            assert go_on.wait(30)
            seen.append(executor.leadership is not None)

        scheduler.add_job(job, "interval", seconds=0.02, id="long")
        scheduler.start()
        try:
            assert began.wait(30)
            next_scheduler.start()
            until(lambda: len(Lock(other, "jobs").contenders()) == 1, "the next one waits")
            scheduler.shutdown(wait=False)
            never(lambda: next_executor.leadership is not None, within=0.3)
            assert executor.leadership is not None
        finally:
            go_on.set()
        until(lambda: next_executor.leadership is not None, "the next one leads")
        next_scheduler.shutdown(wait=False)
        until(lambda: next_executor.leadership is None, "it has resigned")
        assert seen == [True]


def test_without_the_leadership_nothing_runs(address: str) -> None:
    runs: list[str] = []
    with Client(address=address) as leading, Client(address=address) as client:
        executor = LeaderExecutor(client, "jobs")
        scheduler = background_scheduler(executor)
        scheduler.add_job(lambda: runs.append("ran"), "interval", seconds=0.02, id="often")
        with LeaderElection(leading, "jobs") as other:
            other.wait_for_leadership(timeout=30)
            scheduler.start()
            until(lambda: len(Lock(leading, "jobs").contenders()) == 1, "it waits for the leadership")
            assert executor.leadership is None
            assert runs == []
        until(lambda: runs, "it runs as the leader")
        scheduler.shutdown()
        assert executor.leadership is None
        assert client.kv.get("jobs").value is not None


def test_a_run_that_was_begun_elsewhere_is_left_out(address: str) -> None:
    runs: list[str] = []
    with Client(address=address) as client:
        later = datetime.now(UTC) + timedelta(hours=1)
        client.kv.put("jobs/jobs/often", later.isoformat())
        executor = LeaderExecutor(client, "jobs")
        scheduler = background_scheduler(executor)
        scheduler.add_job(lambda: runs.append("often"), "interval", seconds=0.02, id="often")
        scheduler.add_job(lambda: runs.append("other"), "interval", seconds=0.02, id="an/other")
        scheduler.start()
        try:
            until(lambda: len(runs) >= 3, "the other job runs")
        finally:
            scheduler.shutdown()
        assert "often" not in runs
        assert client.kv.get("jobs/jobs/~616e2f6f74686572").value is not None


def test_a_run_that_was_begun_is_not_begun_again(address: str) -> None:
    runs: list[str] = []
    with Client(address=address) as client:
        executor: Any = LeaderExecutor(client, "jobs")
        scheduler = background_scheduler(executor)
        often = {"id": "job", "misfire_grace_time": None, "max_instances": 9}
        job = scheduler.add_job(lambda: runs.append("ran"), "interval", hours=1, **often)
        scheduler.start()
        try:
            until(lambda: executor.leadership is not None, "it leads")
            first = datetime.now(UTC)
            for number in range(3):
                due = [first + timedelta(seconds=at) for at in range(number + 1)]
                executor.submit_job(job, due)
                until(lambda number=number: len(runs) > number, "the run that is due")  # type: ignore[misc]
        finally:
            scheduler.shutdown()
    assert len(runs) == 3
