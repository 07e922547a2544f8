# Made from consul_coord/aio/semaphore.py by `python tools/make_sync.py`: change that one.
"""Semaphores for blocking code: names, parameters, documentation; the logic is in ``recipes.semaphore``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.base_client import require
from consul_coord.models import SEMAPHORE_FLAGS
from consul_coord.models._validate import bytes_or_none
from consul_coord.recipes.semaphore import semaphore as recipe
from consul_coord.recipes.semaphore.plan import SemaphorePlan
from consul_coord.sync.blocks import Holdable
from consul_coord.sync.client import Client
from consul_coord.sync.hold import Hold

if TYPE_CHECKING:
    from collections.abc import Collection

    from consul_coord.models import Contender, Holder, SessionSpec


class Permit(Hold):
    """A hold of one slot: what it guarantees, and what not.

    - Until ``deadline()`` its slot is nobody else's, as long as clocks run at rates that differ by less than
      the session's drift (5 %), and no operator deletes the record or this permit's key, or takes it out of
      the record: it is told of that, but others may have taken the slot by then.
    - A loss is known here by ``deadline()`` at the latest, without any contact to the server.
    - ``key`` is its own key below the prefix, ``fence`` the record's ModifyIndex at the take: above that of
      every earlier permit of the semaphore. ``guard()`` covers the key only, not the record.
    - Sessions are used again, so ``sequencer`` may match a later permit of this client: ``fence`` and
      ``guard()`` never do.
    """


class Semaphore(Holdable[Permit]):
    """A number of slots under one prefix, for any number of threads, tasks and processes.

    Guarantees: at most ``limit`` permits at a time whose clients believe in them, as ``Permit`` says,
    whatever ends their sessions; a holder that dies is succeeded within ``failover_bound`` of its session;
    nothing stays behind after a release, or a timed-out, cancelled or failed acquire, but for the record;
    waiters are served in order, and a release wakes one of them. Does not guarantee: that a paused holder
    stops in time (use the fence); order among Go clients and ``consul lock -n``, nor that they leave the slot
    of a holder whose session has ended alone for its lock-delay; the limit while an operator's deletion of
    the record or of a holder's key is not yet known to the holders.

    Compatible with the official Go client's ``api.Semaphore`` and with ``consul lock -n LIMIT PREFIX``. One
    object may be used by many threads or tasks, and each may have several permits, every one with a session
    of its own.
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
        """Describe the semaphore; no I/O.

        ``limit`` has to be the same for all its clients. ``value`` is written to the own key for operators to
        see. ``fair``: never take a slot without queueing. ``session``: what the sessions are like, None for
        the client's settings; keys always vanish with them. ``accept_flags``: further flags that an existing
        record may carry, such as 0 for hand-written clients. Raises InvalidKey, InvalidArgument,
        ValueTooLarge when the record of so many holders can't be kept.
        """
        self._runner = require(client, Client, type(self).__name__)
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
        super().__init__(self._semaphore, Permit)

    @property
    def prefix(self) -> str:
        """What its keys begin with, without the slash."""
        return self._semaphore.plan.prefix

    @property
    def limit(self) -> int:
        """The number of slots, as this object has it; no I/O."""
        return self._semaphore.limit

    def holders(self) -> tuple[Holder, ...]:
        """Return who holds a slot, the longest holder first; a consistent read.

        ``since_index`` tells the age: the index of the last write to the holder's key.
        """
        return self._runner.call(recipe.holders, self._runner.core, self._semaphore)

    def contenders(self) -> tuple[Contender, ...]:
        """Return who queues for a slot, the next one first; a consistent read.

        Clients that know nothing of the queue, such as ``consul lock -n``, are not among them.
        """
        return self._runner.call(recipe.contenders, self._runner.core, self._semaphore)

    def position(self) -> int | None:
        """Return the best place in the queue among this object's waiting calls, 0 for the next one.

        None when none of them queues. A consistent read.
        """
        return self._runner.call(recipe.position, self._runner.core, self._semaphore)

    def resize(self, new_limit: int) -> None:
        """Change the limit for everybody, and for this object.

        Nobody is expelled: who holds when it shrinks keeps the slot until leaving. Objects made with another
        limit, here or elsewhere, go on waiting with the new one, and find a conflict at their next acquire.
        Raises InvalidArgument, ValueTooLarge, KeyConflict, DecodeError, and what a request raises.
        """
        self._runner.call(recipe.resize, self._runner.core, self._semaphore, new_limit)

    def destroy(self) -> bool:
        """Delete the record if nobody holds a slot or waits for one.

        Returns False while it is in use. Raises KeyConflict when it is not a semaphore's.
        """
        return self._runner.call(recipe.destroy, self._runner.core, self._semaphore)

    def __repr__(self) -> str:
        return f"<Semaphore of {self.limit} on {self.prefix!r} of {self._runner!r}>"
