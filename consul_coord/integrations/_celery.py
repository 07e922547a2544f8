"""The part of Celery that the scheduler uses: the real names at run time, types for checkers without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.extras import needs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    class ScheduleEntry:
        name: str
        last_run_at: datetime
        total_run_count: int

    class App:
        conf: Mapping[str, object]

    class Scheduler:
        app: App
        schedule: dict[str, ScheduleEntry]
        _heap: list[object] | None

        def setup_schedule(self) -> None: ...

        def tick(self, **options: object) -> float: ...

        def apply_entry(self, entry: ScheduleEntry, producer: object = None) -> None: ...

        def close(self) -> None: ...

else:
    with needs("celery"):
        from celery.beat import ScheduleEntry, Scheduler

__all__ = ["ScheduleEntry", "Scheduler"]
