"""The names of APScheduler that the executor uses, and their types for checkers without APScheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.extras import needs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor
    from datetime import datetime

    class Trigger:
        def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None: ...

    class Job:
        id: str
        executor: str
        trigger: Trigger
        next_run_time: datetime | None
        _jobstore_alias: str

        def modify(self, *, next_run_time: datetime) -> object: ...

    class BaseScheduler:
        timezone: object

        def get_jobs(self) -> Sequence[Job]: ...

    class Logger:
        name: str

    class ThreadPoolExecutor:
        _pool: Executor
        _scheduler: BaseScheduler
        _logger: Logger

        def __init__(self, max_workers: int = 10) -> None: ...

        def start(self, scheduler: BaseScheduler, alias: str) -> None: ...

        def shutdown(self, wait: bool = True) -> None: ...  # noqa: FBT001, FBT002 - APScheduler's

        def _run_job_success(self, job_id: str, events: Sequence[object]) -> None: ...

        def _run_job_error(self, job_id: str, error: BaseException, trace: object) -> None: ...

    def run_job(
        job: Job, jobstore_alias: str, run_times: Sequence[datetime], logger_name: str
    ) -> Sequence[object]: ...

else:
    with needs("apscheduler"):
        from apscheduler.executors.base import run_job
        from apscheduler.executors.pool import ThreadPoolExecutor
        from apscheduler.job import Job
        from apscheduler.schedulers.base import BaseScheduler

__all__ = ["BaseScheduler", "Job", "ThreadPoolExecutor", "run_job"]
