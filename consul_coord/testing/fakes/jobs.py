"""The common part of the fakes of jobs that run once in each slot: the record stays in memory.

Rules
- The rules of a real ``Once`` judge the record, and name slots and periods.
- A test sets the runs of other hosts (``ran_elsewhere``) and the clock (``wall``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from consul_coord.models import HoldState
from consul_coord.recipes.once.record import Record, asked, judge
from consul_coord.testing.fakes.holding import BaseHold

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from consul_coord.models.once import OnceResult
    from consul_coord.recipes.once.record import Ask


class BaseOnceRun(BaseHold):
    """The right to run one slot of a fake job now."""

    once: BaseOnce
    slot: str = ""
    """The slot to run."""
    _done: OnceResult[Any] | None = None
    """The record of its success."""

    def _recorded(self, *, failed: bool) -> OnceResult[Any]:
        """Return the record of its success, or record how it ended while its lock is held."""
        if self._done is None or self.state is HoldState.RELEASED:
            self.check()
            finish = self.once._finish  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            result = finish(self.slot, self.fence, failed=failed)
            self._done = None if failed else result
            return result
        return self._done


class BaseOnce:
    """A job's key and record, and what a test makes of them."""

    def __init__(
        self,
        key: str = "fake",
        *,
        value: str = "fake",
        retry_failed: bool = True,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Begin without a record; ``wall`` returns the time of day in seconds since 1970."""
        self._key = key
        self._value = value
        self._retry_failed = retry_failed
        self._wall = wall
        self._record: Record | None = None

    @property
    def key(self) -> str:
        """The name it was given."""
        return self._key

    def ran_elsewhere(self, slot: str, *, by: str = "elsewhere", failed: bool = False) -> None:
        """Record a run of another host, as successful or ``failed``."""
        self._record = Record(slot, failed, by, self._wall(), fence=0)

    def _asked(self, slot: str | None, period: float | timedelta | None, *, align: bool) -> Ask:
        return asked(
            self._key,
            slot=slot,
            period=period,
            align=align,
            now=self._wall(),
            retry_failed=self._retry_failed,
        )

    def _verdict(self, ask: Ask) -> str | OnceResult[Any]:
        verdict = judge(ask, self._record)
        return verdict.result() if isinstance(verdict, Record) else verdict

    def _finish(self, slot: str, fence: int, *, failed: bool) -> OnceResult[Any]:
        self._record = Record(slot, failed, self._value, round(self._wall(), 3), fence)
        return self._record.result(ran=True)

    def _last(self) -> OnceResult[Any] | None:
        return None if self._record is None else self._record.result()

    def _forget(self) -> bool:
        there, self._record = self._record is not None, None
        return there
