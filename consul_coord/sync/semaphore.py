# Made from consul_coord/aio/semaphore.py by `python tools/make_sync.py`: change that one.
"""Semaphores for blocking code: names, parameters, documentation; the logic is in ``recipes.semaphore``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from consul_coord.base_client import require
from consul_coord.models import SEMAPHORE_FLAGS
from consul_coord.models._validate import bytes_or_none, flag_set
from consul_coord.recipes.contend.recipe import Waiting, acquire
from consul_coord.recipes.semaphore import semaphore as recipe
from consul_coord.recipes.semaphore.plan import SemaphorePlan
from consul_coord.sync.blocks import Held, Holdable, wrapping
from consul_coord.sync.callbacks import check_work, outcome
from consul_coord.sync.client import Client
from consul_coord.sync.hold import Hold

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from consul_coord.models import Contender, Holder, SessionSpec
    from consul_coord.recipes.contend.recipe import Flag

T = TypeVar("T")
P = ParamSpec("P")


class Permit(Hold):
    """A hold of a semaphore's slot, or of several that were acquired in one take.

    - Until ``deadline()`` no other client has the slot, if the rates of their clocks differ by less than the
      session's drift (5 %). An operator who deletes the record or this permit's key may let another client
      in earlier; the holder is notified.
    - The holder knows of a loss by ``deadline()`` at the latest, even without contact to Consul.
    - ``key`` is the permit's own key below the prefix. ``fence`` is the record's ModifyIndex at the grant,
      above that of each earlier permit. ``guard()`` covers the key, not the record.
    - The client uses sessions again, so ``sequencer`` may match a later permit of this client. ``fence`` and
      ``guard()`` never do.
    - With several slots it has a key and a session for each. ``key`` and ``session`` are the first ones,
      ``guard()`` covers all, and the loss of one is the loss of all.
    """

    @property
    def permits(self) -> int:
        """The number of slots that it holds."""
        return len(self._hold.all_kept)


class Semaphore(Holdable[Permit]):
    """A number of slots under one prefix, for any number of threads, tasks and processes.

    Guarantees:

    - At most ``limit`` clients at a time consider themselves holders, as ``Permit`` says, whatever ends
      their sessions.
    - After a holder's crash, its slot is free within ``failover_bound`` of its session.
    - A release, and a timed-out, cancelled or failed acquire, leave nothing behind except the record.
    - Waiters get a slot in order, and a release wakes one of them.
    - ``acquire(permits=n)`` gets all n slots at once or none, in its turn. Two such calls never wait for each
      other.

    Not guaranteed:

    - that a paused holder stops in time (use the fence);
    - an order among Go clients and ``consul lock -n``, or that they leave a vanished holder's slot alone for
      its lock-delay;
    - the limit, just after an operator deleted the record or a holder's key.

    It works beside the Go client's ``api.Semaphore`` and ``consul lock -n LIMIT PREFIX``. Many threads or
    tasks may use one object. Each may have several permits, each with its own session.
    """

    def __init__(
        self,
        client: Client,
        prefix: str,
        limit: int,
        *,
        value: bytes | str | None = None,
        fair: bool = False,
        session: SessionSpec | None = None,
        flags: int = SEMAPHORE_FLAGS,
        accept_flags: Collection[int] = (),
    ) -> None:
        """Describe the semaphore, without I/O.

        - ``client``: the client to use.
        - ``prefix``: the prefix of its keys, without a slash at the end.
        - ``limit``: the number of slots, the same for all clients of the semaphore.
        - ``value``: text for others to see. None stands for the client's name, ``host:pid`` by default, read
          at each acquire; ``b""`` writes none.
        - ``fair``: always queue, even if a slot is free.
        - ``session``: the settings of its sessions; None for the client's. Its keys always vanish with their
          session.
        - ``flags``: the flags to write.
        - ``accept_flags``: further flags that an existing record may carry, such as 0 of hand-written
          clients.

        Raises InvalidKey and InvalidArgument. Raises ValueTooLarge if a record with so many holders does not
        fit.
        """
        self._runner = require(client, Client, type(self).__name__)
        self._semaphore = recipe.SemaphoreObject(
            SemaphorePlan(
                prefix=prefix,
                value=bytes_or_none(value),
                flags=flags,
                accept_flags=flag_set("accept_flags", accept_flags),
                fair=fair,
                session=session,
            ),
            limit,
        )
        super().__init__(self._semaphore, Permit)

    @property
    def prefix(self) -> str:
        """The prefix of its keys, without the slash."""
        return self._semaphore.plan.prefix

    @property
    def limit(self) -> int:
        """The number of slots that this object knows; no I/O."""
        return self._semaphore.limit

    def acquire(
        self,
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,
        cancel: Flag | None = None,
    ) -> Permit:
        """Acquire one slot, or ``permits`` slots in one take, and return the permit.

        - ``permits``: the number of slots, from 1 to the limit, and 31 at most. The call gets all of them at
          once or none. While it waits, no later waiter passes it, even if fewer slots are free.
        - ``timeout``: the longest wait in seconds; None waits for ever, 0 tries once. It covers the whole
          call, with the retries of failed requests.
        - ``max_hold``: seconds after which the permit is lost, as MAX_HOLD, though its sessions go on. The
          client releases the slots once the lock-delay is over, or the holder has released them.
        - ``cancel``: an event, or any object with ``is_set()``. Setting it ends the wait with
          AcquireCancelled within 100 ms, as ``cancel()`` does.

        Raises InvalidArgument for ``permits`` that can't be had, AcquireTimeout, which names a holder,
        AcquireCancelled, and KeyConflict if another program uses the prefix. Raises SemaphoreLimitConflict if
        the record has another limit, or one that was lowered to 0 or below ``permits`` during the wait.
        Raises DecodeError if the record can't be parsed, ClientClosed, and the errors of the requests.
        """
        what = self._semaphore.of(permits)
        # As ``acquire`` of a lock: one frame less in each traceback.
        core, waiting = self._runner.core, Waiting(self._semaphore, cancel)
        handle = self._runner.run(
            waiting, acquire, core, what, timeout=timeout, max_hold=max_hold, waiting=waiting
        )
        return self._kept(core, handle)

    def try_acquire(self, *, permits: int = 1, max_hold: float | None = None) -> Permit | None:
        """Acquire ``permits`` slots if so many are free; return None if not, or while others wait for slots.

        Returns None, too, while a lock-delay keeps a slot closed. ``max_hold`` as for ``acquire``, in
        seconds. Raises InvalidArgument, KeyConflict, SemaphoreLimitConflict, DecodeError, ClientClosed and
        the errors of the requests: TransportError if the agent does not answer.
        """
        return self._try_acquire(self._semaphore.of(permits), max_hold=max_hold)

    def hold(
        self,
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> Held[Permit]:
        """Return a context manager that acquires when you enter it, and releases when you leave it.

        ``permits``, ``timeout``, ``max_hold`` and ``cancel`` as for ``acquire``, whose errors entering
        raises. ``interrupt``: raise LockLost in the block at the moment of a loss. In blocking code this
        works only in the main thread, by a signal (SIGURG, whose handler is restored afterwards). It
        interrupts sleeping, reading and computing, but not a long call into C code. In any other thread,
        entering raises InvalidArgument. Code on an event loop is always cancelled at a loss.

        Leaving releases first. Then it raises LockLost if the permit was lost meanwhile, with the body's
        exception as its cause. A KeyboardInterrupt, SystemExit or cancellation passes unchanged.
        """
        what = self._semaphore.of(permits)
        take = functools.partial(self._taken, what, timeout, max_hold=max_hold, cancel=cancel)
        return Held(self._semaphore.name, take, interrupt=interrupt, owners=self._semaphore.owners)

    def run(
        self,
        fn: Callable[[Permit], T],
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> T:
        """Call ``fn(permit)`` between acquire and release, and return what it returns.

        The other parameters are those of ``hold``. Raises the errors of ``fn``, and of entering and leaving
        ``hold``.
        """
        check_work("fn", fn)
        with self.hold(
            permits=permits, timeout=timeout, max_hold=max_hold, interrupt=interrupt, cancel=cancel
        ) as permit:
            return outcome("fn", fn(permit))

    def wrap(
        self,
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Return a decorator that makes a function run between acquire and release; its signature is kept.

        The parameters are those of ``hold``.
        """
        return wrapping(
            lambda: self.hold(
                permits=permits, timeout=timeout, max_hold=max_hold, interrupt=interrupt, cancel=cancel
            )
        )

    def holders(self) -> tuple[Holder, ...]:
        """Return the holders of slots, the longest holder first, as the servers' leader has them.

        A permit of several slots is there once for each. ``since_index`` is the index of the last write to
        the holder's key.
        """
        return self._runner.call(recipe.holders, self._runner.core, self._semaphore)

    def contenders(self) -> tuple[Contender, ...]:
        """Return the waiters for a slot, the next one first, as the servers' leader has them.

        Clients that do not know the queue, such as ``consul lock -n``, are not among them.
        """
        return self._runner.call(recipe.contenders, self._runner.core, self._semaphore)

    def position(self) -> int | None:
        """Return the best place in the queue among this object's waiting calls, counted from 1.

        Returns None if none of them queues.
        """
        return self._runner.call(recipe.position, self._runner.core, self._semaphore)

    def resize(self, new_limit: int) -> None:
        """Change the limit for all clients, and for this object.

        A smaller limit takes no slot away: holders keep theirs until they release. Waiting calls with
        another limit go on with the new one, and the next acquire of their object raises
        SemaphoreLimitConflict. A waiting call for more permits than the new limit raises it at once. Raises
        InvalidArgument, ValueTooLarge, KeyConflict, DecodeError, and the errors of the requests.
        """
        self._runner.call(recipe.resize, self._runner.core, self._semaphore, new_limit)

    def destroy(self) -> bool:
        """Delete the record if no client holds a slot or waits for one; return False while it is in use.

        Raises KeyConflict if another program uses the prefix.
        """
        return self._runner.call(recipe.destroy, self._runner.core, self._semaphore)

    def __repr__(self) -> str:
        return f"<Semaphore of {self.limit} on {self.prefix!r} of {self._runner!r}>"
