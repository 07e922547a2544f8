# Made from consul_coord/aio/lock.py by `python tools/make_sync.py`: change that one.
"""Locks for blocking code: names, parameters and documentation; the logic is in ``recipes.lock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from consul_coord.base_client import require
from consul_coord.models import LOCK_FLAGS
from consul_coord.models._validate import bytes_or_none
from consul_coord.recipes.lock import lock as recipe
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.sync.blocks import Holdable
from consul_coord.sync.client import Client
from consul_coord.sync.hold import Hold

if TYPE_CHECKING:
    from collections.abc import Collection

    from consul_coord.models import Contender, Holder, SessionSpec


class Lock(Holdable[Hold]):
    """A lock on one key, for any number of threads, tasks and processes.

    Guarantees: at most one hold at a time whose client believes in it, as ``Hold`` says; each hold's
    ``fence`` above all earlier ones; a holder that dies is succeeded after at most ``failover_bound(spec)``
    seconds; nothing stays locked after a timed-out, cancelled or failed acquire; waiters are served in order,
    and a release wakes one of them. Does not guarantee: that a paused holder stops in time (use the fence);
    order where clients take part that know nothing of the queue, such as ``consul lock``.

    Compatible with the official Go client's ``api.Lock`` on the same key, and with ``consul lock PREFIX`` on
    ``PREFIX/.lock``. One object may be used by many threads or tasks; each has a hold of its own, and they
    are served in order.
    """

    _reentrant = False
    _any_key = False
    _keys: tuple[str, ...] = ()
    """Set where there are several."""

    def __init__(
        self,
        client: Client,
        key: str,
        *,
        value: bytes | str | None = None,
        session: SessionSpec | str | None = None,
        fair: bool = False,
        flags: int = LOCK_FLAGS,
        accept_flags: Collection[int] = (),
        remove: bool = False,
    ) -> None:
        """Describe the lock; no I/O.

        ``value`` is written to the key for operators to see. ``session``: None for the client's shared one, a
        spec for one of its own, or the id of one made elsewhere. ``fair``: never pass others who wait; else
        this client may take a free lock past the queue, unless it saw others wait when it released.
        ``accept_flags``: further flags that an existing key may carry. ``remove``: delete the key at release,
        for locks with generated names; a key that somebody else wrote to is kept, and so is that of a holder
        that crashed. Raises InvalidKey, and InvalidArgument for a client of the other kind.
        """
        self._runner = require(client, Client, type(self).__name__)
        self._lock = recipe.LockObject(
            LockPlan(
                keys=self._keys or (key,),
                value=bytes_or_none(value),
                flags=flags,
                accept_flags=frozenset(accept_flags),
                fair=fair,
                reentrant=self._reentrant,
                session=session,
                remove=remove,
                any_key=self._any_key,
            )
        )
        super().__init__(self._lock, Hold)

    @property
    def key(self) -> str:
        """The key that is locked."""
        return self._lock.plan.key

    def holder(self) -> Holder | None:
        """Return who holds the lock, as the leader has it, or None; a consistent read.

        When nobody does, but its last holder's session ended and the lock-delay is in force: a ``Holder``
        with ``lock_delay_active`` and an empty ``session``. To tell that, a transaction is sent that can't
        succeed; a token that may not write the key gets None.
        """
        return self._runner.call(recipe.holder, self._runner.core, self._lock)

    def locked(self) -> bool:
        """Return whether anybody holds the lock, as the leader has it; a consistent read, and old at once."""
        return self._runner.call(recipe.is_locked, self._runner.core, self._lock)

    def contenders(self) -> tuple[Contender, ...]:
        """Return who queues for the lock, the next one first; a consistent read.

        Clients that know nothing of the queue, such as ``consul lock``, are not among them.
        """
        return self._runner.call(recipe.contenders, self._runner.core, self._lock)

    def break_lock(self, expected_session: str, *, how: Literal["release", "destroy"] = "release") -> bool:
        """Take the lock from the session that has it; returns False when it is not ``expected_session``.

        ``release`` frees this key at once, without lock-delay: its holder may still be at work, and is told
        of the loss. ``destroy`` ends the session and with it all its holds; their keys stay locked for the
        lock-delay.
        """
        return self._runner.call(recipe.break_lock, self._runner.core, self._lock, expected_session, how=how)

    def destroy(self) -> bool:
        """Delete the key if nobody holds it.

        Returns False while it is in use. Raises KeyConflict when it is not a lock.
        """
        return self._runner.call(recipe.destroy, self._runner.core, self._lock)

    def __repr__(self) -> str:
        return f"<Lock on {self.key!r} of {self._runner!r}>"


class ReentrantLock(Lock):
    """A lock that the thread or task which holds it may take again.

    Each acquire returns the same hold, with the same fence, and is undone by one release; the last one gives
    the lock up. A hold that was lost can't be entered again: that raises LockLost.
    """

    _reentrant = True
