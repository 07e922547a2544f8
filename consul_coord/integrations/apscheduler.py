"""An executor for APScheduler 3: schedulers tick in every process, and the leader's jobs run.

Rules
- Each run is written down under the leader's fence *before* it begins, by its job's id. So two processes
  never begin one run, however long one of them was paused. A process that dies between the two leaves that
  run out.
- A new leader reads when each job was begun last, and begins the jobs that were due since, by APScheduler's
  own rules for late runs (``coalesce``, ``misfire_grace_time``).
- A job that runs when the leadership ends goes on: it should look at ``executor.leadership`` between steps.
- A scheduler that is shut down keeps the leadership until its last job has ended, also if nobody waits for
  that. So no other scheduler begins a job beside one that still runs.
"""

from __future__ import annotations

import logging
from concurrent.futures import wait as wait_for
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING

from consul_coord import ConsulCoordError, LeaderElection, PermissionDenied, ReadOptions, TxnOp
from consul_coord.integrations._apscheduler import ThreadPoolExecutor, run_job
from consul_coord.integrations._names import name_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from consul_coord import Client, Leadership
    from consul_coord.integrations._apscheduler import BaseScheduler, Job

_CONSISTENT = ReadOptions(consistency="consistent")

logger = logging.getLogger(__name__)


class LeaderExecutor(ThreadPoolExecutor):
    """Runs jobs in threads while this process leads, and leaves them to the leader otherwise.

    ``BackgroundScheduler(executors={"default": LeaderExecutor(client, "service/scheduler")})``. The jobs must
    have ids that are the same in all processes. The scheduler starts and stops the election. The
    records of the jobs are below ``KEY/jobs/``.
    """

    def __init__(self, client: Client, key: str, *, max_workers: int = 10) -> None:
        """Describe the executor; no I/O. Raises InvalidKey."""
        super().__init__(max_workers)
        self._client = client
        self._jobs = f"{key}/jobs/"
        self._election = LeaderElection(client, key, on_elected=self._elected)
        self._alias = ""
        self._submitted: set[Future[Sequence[object]]] = set()
        """Those that have not ended."""

    @property
    def leadership(self) -> Leadership | None:
        """The present leadership, or None when this process does not lead; no I/O."""
        return self._election.leadership

    def start(self, scheduler: BaseScheduler, alias: str) -> None:
        """Begin to stand for election; the scheduler calls it."""
        super().start(scheduler, alias)
        self._alias = alias
        self._election.start()

    def shutdown(self, wait: bool = True) -> None:  # noqa: FBT001, FBT002 - APScheduler's
        """Let the jobs end, then give up the leadership; the scheduler calls it.

        Without ``wait`` it returns at once, and the leadership lasts until the jobs have ended. If you close
        the client before, it ends then.
        """
        try:
            super().shutdown(wait)
        finally:
            running = tuple(self._submitted)
            if running:  # nobody waited, or the wait was interrupted
                Thread(target=self._resign_after, args=(running,), name="consul-coord-apscheduler").start()
            else:
                self._election.stop()

    def _resign_after(self, running: Sequence[Future[Sequence[object]]]) -> None:
        wait_for(running)
        self._election.stop()

    # -- running jobs

    def _do_submit_job(self, job: Job, run_times: Sequence[datetime]) -> None:
        def ended(future: Future[Sequence[object]]) -> None:
            self._submitted.discard(future)
            error = future.exception()
            if error is None:
                self._run_job_success(job.id, future.result())
            else:
                self._run_job_error(job.id, error, error.__traceback__)

        future = self._pool.submit(self._run, job, run_times)
        self._submitted.add(future)
        future.add_done_callback(ended)

    def _run(self, job: Job, run_times: Sequence[datetime]) -> Sequence[object]:
        leadership = self._election.leadership
        if leadership is None:
            return ()
        try:
            last = self._last_begun(job)
            due = [time for time in run_times if last is None or time > last]
            if not due:
                return ()
            key, value = self._key(job), due[-1].astimezone(UTC).isoformat()
            self._client.txn(*leadership.guard(), TxnOp.set(key, value))
        except ConsulCoordError as error:
            logger.warning("%s was not begun, since it could not be written down: %s", job.id, error)
            return ()
        return run_job(job, job._jobstore_alias, due, self._logger.name)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

    # -- what was begun

    def _key(self, job: Job) -> str:
        return self._jobs + name_of(job.id)

    def _last_begun(self, job: Job) -> datetime | None:
        pair = self._client.kv.get(self._key(job), options=_CONSISTENT).value
        try:
            return None if pair is None else datetime.fromisoformat(pair.value.decode())
        except ValueError:
            logger.warning("%s does not hold a time: starting without one", self._key(job))
            return None

    def _elected(self, leadership: Leadership) -> None:  # noqa: ARG002 - each job is begun under the latest one
        """Have begun what was due while nobody led.

        Raises an error of passing trouble: then this resigns, and the next leader looks.
        """
        now = datetime.now(UTC)
        for job in self._scheduler.get_jobs():
            try:
                last = self._last_begun(job) if job.executor == self._alias else None
                missed = None if last is None else job.trigger.get_next_fire_time(last, last)
                if missed is not None and missed <= now and job.next_run_time is not None:
                    job.modify(next_run_time=missed)
            except (PermissionDenied, LookupError) as error:  # the job may just have been removed
                logger.warning("%s was not looked at for a missed run: %s", job.id, error)
