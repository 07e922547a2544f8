"""Semaphores for event loops: names, parameters, documentation; the logic is in ``recipes.semaphore``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.aio.blocks import AsyncHoldable
from consul_coord.aio.client import AsyncClient
from consul_coord.aio.hold import AsyncHold
from consul_coord.base_client import require
from consul_coord.models import SEMAPHORE_FLAGS
from consul_coord.models._validate import bytes_or_none
from consul_coord.recipes.semaphore import semaphore as recipe
from consul_coord.recipes.semaphore.plan import SemaphorePlan

if TYPE_CHECKING:
    from collections.abc import Collection

    from consul_coord.models import Contender, Holder, SessionSpec


class AsyncPermit(AsyncHold):
    """A hold of a semaphore's slot.

    - Until ``deadline()`` no other client has the slot, if the rates of their clocks differ by less than the
      session's drift (5 %). An operator who deletes the record or this permit's key may let another client
      in earlier; the holder is notified.
    - The holder knows of a loss by ``deadline()`` at the latest, even without contact to Consul.
    - ``key`` is the permit's own key below the prefix. ``fence`` is the record's ModifyIndex at the grant,
      above that of each earlier permit. ``guard()`` covers the key, not the record.
    - The client uses sessions again, so ``sequencer`` may match a later permit of this client. ``fence`` and
      ``guard()`` never do.
    """


class AsyncSemaphore(AsyncHoldable[AsyncPermit]):
    """A number of slots under one prefix, for any number of threads, tasks and processes.

    Guarantees:

    - At most ``limit`` clients at a time consider themselves holders, as ``Permit`` says, whatever ends
      their sessions.
    - After a holder's crash, its slot is free within ``failover_bound`` of its session.
    - A release, and a timed-out, cancelled or failed acquire, leave nothing behind except the record.
    - Waiters get a slot in order, and a release wakes one of them.

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
        client: AsyncClient,
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
        self._runner = require(client, AsyncClient, type(self).__name__)
        self._semaphore = recipe.SemaphoreObject(
            SemaphorePlan(
                prefix=prefix,
                value=bytes_or_none(value),
                flags=flags,
                accept_flags=frozenset(accept_flags),
                fair=fair,
                session=session,
            ),
            limit,
        )
        super().__init__(self._semaphore, AsyncPermit)

    @property
    def prefix(self) -> str:
        """The prefix of its keys, without the slash."""
        return self._semaphore.plan.prefix

    @property
    def limit(self) -> int:
        """The number of slots that this object knows; no I/O."""
        return self._semaphore.limit

    async def holders(self) -> tuple[Holder, ...]:
        """Return the holders of slots, the longest holder first, as the servers' leader has them.

        ``since_index`` is the index of the last write to the holder's key.
        """
        return await self._runner.call(recipe.holders, self._runner.core, self._semaphore)

    async def contenders(self) -> tuple[Contender, ...]:
        """Return the waiters for a slot, the next one first, as the servers' leader has them.

        Clients that do not know the queue, such as ``consul lock -n``, are not among them.
        """
        return await self._runner.call(recipe.contenders, self._runner.core, self._semaphore)

    async def position(self) -> int | None:
        """Return the best place in the queue among this object's waiting calls, counted from 1.

        Returns None if none of them queues.
        """
        return await self._runner.call(recipe.position, self._runner.core, self._semaphore)

    async def resize(self, new_limit: int) -> None:
        """Change the limit for all clients, and for this object.

        A smaller limit takes no slot away: holders keep theirs until they release. Waiting calls with
        another limit go on with the new one, and the next acquire of their object raises
        SemaphoreLimitConflict. Raises InvalidArgument, ValueTooLarge, KeyConflict, DecodeError, and the
        errors of the requests.
        """
        await self._runner.call(recipe.resize, self._runner.core, self._semaphore, new_limit)

    async def destroy(self) -> bool:
        """Delete the record if no client holds a slot or waits for one; return False while it is in use.

        Raises KeyConflict if another program uses the prefix.
        """
        return await self._runner.call(recipe.destroy, self._runner.core, self._semaphore)

    def __repr__(self) -> str:
        return f"<AsyncSemaphore of {self.limit} on {self.prefix!r} of {self._runner!r}>"
