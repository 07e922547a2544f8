# Made from consul_coord/aio/once.py by `python tools/make_sync.py`: change that one.
"""Jobs that run once in each slot, for blocking code; the logic is in ``recipes.once``."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from consul_coord.base_client import require
from consul_coord.errors import ConsulCoordError, LockLost
from consul_coord.models._validate import bytes_or_none, patience
from consul_coord.models.once import OnceResult
from consul_coord.periods import check_period
from consul_coord.recipes.contend.recipe import Waiting, check_max_hold
from consul_coord.recipes.once import once as recipe
from consul_coord.recipes.once.record import Record, asked
from consul_coord.sync.blocks import Held
from consul_coord.sync.body import require_interruptible
from consul_coord.sync.callbacks import check_work, outcome
from consul_coord.sync.client import Client
from consul_coord.sync.hold import Hold

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from consul_coord.models import SessionSpec
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.sync.runner import Runner

P = ParamSpec("P")
T = TypeVar("T")


class OnceRun(Hold):
    """The right to run one slot of a job now: a hold of its lock, until the end of the run is recorded."""

    def __init__(self, runner: Runner, core: Shared, once: recipe.OnceObject, turn: recipe.Turn) -> None:
        super().__init__(runner, core, turn.handle.grant, turn.handle)
        self._shared = core
        self._once = once
        self._turn = turn

    @property
    def slot(self) -> str:
        """The slot to run."""
        return self._turn.slot

    def record(self, *, failed: bool = False) -> OnceResult[Any]:
        """Record that the run has succeeded, or ``failed``, and return the record; the lock is still held.

        It repeats the write until Consul answers or the hold is over. A success that is recorded, or may be
        because the call ended without an answer, is final: later calls write and return it, also with
        ``failed``. Raises LockLost if the hold is over: another caller may have run the slot since. Raises
        NotHeld after the release.
        """
        at = self._runner.wall()
        record = self._runner.call(recipe.finish, self._shared, self._once, self._turn, at=at, failed=failed)
        return record.result(ran=True)


class Once:
    """A job that runs once in each slot, however many processes try.

    Guarantees: at most one run of a slot succeeds, over all processes; a run has succeeded when its record is
    written, which only the holder of the lock can do. A run whose process crashed is taken over by the next
    caller, after at most ``failover_bound(spec)`` seconds. A slot that is not above the recorded one never
    runs again, whatever a clock says. One record is kept for each job.

    Does not guarantee: that the function is *begun* only once in a slot. A process may crash after the work
    and before the record, or be paused until another one has taken over. Give the hold's ``fence`` to what
    the work changes, or write in a transaction with ``hold.guard()``.

    The lock is the one of ``Lock(client, key)``; the record is the value of ``KEY/.once``.
    """

    def __init__(
        self,
        client: Client,
        key: str,
        *,
        value: bytes | str | None = None,
        retry_failed: bool = True,
        session: SessionSpec | str | None = None,
    ) -> None:
        """Describe the job, without I/O.

        - ``client``: the client to use.
        - ``key``: the key of the job's lock.
        - ``value``: text for others to see while the job runs, and in its record. None stands for the
          client's name, ``host:pid`` by default.
        - ``retry_failed``: whether the next caller runs a slot again whose run raised.
        - ``session``: as for ``Lock``.

        Raises InvalidKey, ValueTooLarge, and InvalidArgument for a client of the other kind.
        """
        self._runner = require(client, Client, type(self).__name__)
        self._once = recipe.OnceObject(key, value=bytes_or_none(value), session=session)
        self._retry_failed = retry_failed

    @property
    def key(self) -> str:
        """The key of the job's lock."""
        return self._once.key

    def run(
        self,
        fn: Callable[[OnceRun], T],
        *,
        slot: str | None = None,
        period: float | timedelta | None = None,
        align: bool = True,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
    ) -> OnceResult[T]:
        """Call ``fn(run)`` if no run of this slot, or of a later one, has succeeded yet.

        Give a ``slot`` or a ``period``.

        - ``slot``: the name of what is to be done once: a date, a version. Slots rise: numbers in their names
          compare by value, the rest by its characters.
        - ``period``: whole seconds, or a timedelta. The slot is then the present period, counted from 1970 in
          UTC, so an hour begins with the clock's hour.
        - ``align``: with False, a period begins with the last recorded run.
        - ``timeout``: the seconds until the run begins, at most, including the wait for another process that
          runs the job. None waits for ever, 0 tries once. The run itself and its record take their own time.
        - ``max_hold``: the seconds that the run may take, as for ``Lock.hold``.
        - ``interrupt``: what a loss does to the run, as for ``Lock.hold``.

        Returns who ran which slot when, and with ``ran=True`` what ``fn`` returned. An exception
        of ``fn`` is recorded as a failure, and passes. A KeyboardInterrupt, SystemExit or cancellation counts
        as a crash. Raises LockLost if the lock was lost before the run was recorded, KeyConflict and
        DecodeError if ``KEY/.once`` is not a record, and the errors of ``Lock.acquire``. With a
        ``period`` it also raises KeyConflict if the record names a slot of your own that comes after all
        times. If an error says that the outcome of a request is unknown, call again: the record then has the
        answer.
        """
        check_work("fn", fn)
        if interrupt:
            require_interruptible()
        begun = self.begin(slot=slot, period=period, align=align, timeout=timeout, max_hold=max_hold)
        if isinstance(begun, OnceResult):
            return begun

        def taken() -> OnceRun:
            return begun

        result: OnceResult[T] | None = None
        try:
            with Held(self.key, taken, interrupt=interrupt) as run:
                try:
                    value = outcome("fn", fn(run))
                except Exception:
                    with suppress(ConsulCoordError):
                        run.record(failed=True)
                    raise
                result = replace(run.record(), value=value)
        except LockLost:
            if result is None:  # else it was recorded before: nobody runs that slot again
                raise
        return result

    def begin(
        self,
        *,
        slot: str | None = None,
        period: float | timedelta | None = None,
        align: bool = True,
        timeout: float | None = None,
        max_hold: float | None = None,
    ) -> OnceRun | OnceResult[Any]:
        """Return the right to run now or, if the slot has had its turn, the record of that.

        This is for work that does not fit into a function. The parameters are those of ``run``. Call
        ``record()`` of the returned run when the work is done, and ``release()`` in any case: the lock is
        held until then. Raises KeyConflict and DecodeError if ``KEY/.once`` is not a record, and the errors
        of ``Lock.acquire``.
        """
        ask = asked(
            self.key,
            slot=slot,
            period=period,
            align=align,
            now=self._runner.wall(),
            retry_failed=self._retry_failed,
        )
        core = self._runner.core
        turn = self._runner.run(
            Waiting(self._once), recipe.begin, core, self._once, ask, timeout=timeout, max_hold=max_hold
        )
        if isinstance(turn, Record):
            return turn.result()
        return OnceRun(self._runner, core, self._once, turn)

    def last(self) -> OnceResult[Any] | None:
        """Return the record of the last run as the servers' leader has it, or None before the first."""
        record = self._runner.call(recipe.last, self._runner.core, self._once)
        return None if record is None else record.result()

    def forget(self) -> bool:
        """Delete the record, so that every slot may run again; return whether there was one.

        Use it after a host whose clock is far ahead has run a slot of the future. It does not stop a run that
        goes on.
        """
        return self._runner.call(recipe.forget, self._runner.core, self._once)

    def cancel(self) -> None:
        """End all waiting calls of this object with AcquireCancelled, within 100 ms.

        You may call it from any thread, and from a signal handler.
        """
        self._once.cancel(self._runner.core)

    def __repr__(self) -> str:
        return f"<Once on {self.key!r} of {self._runner!r}>"


def every(
    client: Client,
    key: str,
    *,
    period: float | timedelta,
    align: bool = True,
    value: bytes | str | None = None,
    retry_failed: bool = True,
    session: SessionSpec | str | None = None,
    timeout: float | None = None,
    max_hold: float | None = None,
    interrupt: bool = False,
) -> Callable[[Callable[P, T]], Callable[P, OnceResult[T]]]:
    """Return a decorator: a call runs the function if it has not run yet in this period, anywhere.

    It starts nothing by itself: call the function from a timer, a scheduler or a loop, in every process.
    ``period``, ``align``, ``timeout``, ``max_hold`` and ``interrupt`` as for ``Once.run``, the other
    parameters as for ``Once``. The function's own parameters are kept; it returns an ``OnceResult``.
    Raises InvalidArgument and InvalidKey.
    """
    once = Once(client, key, value=value, retry_failed=retry_failed, session=session)
    check_period(period)
    patience(timeout)
    check_max_hold(max_hold)

    def decorate(function: Callable[P, T]) -> Callable[P, OnceResult[T]]:
        check_work("function", function)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> OnceResult[T]:
            def call(_: OnceRun) -> T:
                return outcome("function", function(*args, **kwargs))

            return once.run(
                call, period=period, align=align, timeout=timeout, max_hold=max_hold, interrupt=interrupt
            )

        return run

    return decorate
