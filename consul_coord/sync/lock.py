# Made from consul_coord/aio/lock.py by `python tools/make_sync.py`: change that one.
"""Locks for blocking code: names, parameters and documentation; the logic is in ``recipes.lock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from consul_coord.base_client import require
from consul_coord.models import LOCK_FLAGS
from consul_coord.models._validate import bytes_or_none, flag_set
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

    Guarantees:

    - Two clients never both consider themselves the holder, as ``Hold`` says.
    - Each hold has a higher ``fence`` than all before it.
    - After a holder's crash, the next client gets the lock within ``failover_bound(spec)`` seconds.
    - A timed-out, cancelled or failed acquire leaves nothing locked.
    - Waiters get the lock in order, and a release wakes one of them.

    Not guaranteed: that a paused holder stops in time (use the fence), and an order among clients that do
    not know the queue, such as ``consul lock``.

    It excludes the Go client's ``api.Lock`` on the same key, and ``consul lock PREFIX`` on ``PREFIX/.lock``.
    Many threads or tasks may use one object. Each has its own hold, and they get the lock in order.
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
        """Describe the lock, without I/O.

        - ``client``: the client to use.
        - ``key``: the key to lock.
        - ``value``: text for others to see in the key. None stands for the client's name, ``host:pid`` by
          default, read at each acquire; ``b""`` writes none.
        - ``session``: None for the client's shared session, a spec for a separate one, or the id of a
          session made elsewhere, for this client only.
        - ``fair``: always queue. Otherwise the client may take a free lock past the queue, unless it lately
          passed waiters, or had to wait itself.
        - ``flags``: the flags to write to the key.
        - ``accept_flags``: further flags that an existing key may carry.
        - ``remove``: delete the key at the release, for locks with generated names. A key that another
          client wrote to stays, and so does the key of a crashed holder.

        Raises InvalidKey, ValueTooLarge, and InvalidArgument for a client of the other kind.
        """
        self._runner = require(client, Client, type(self).__name__)
        self._lock = recipe.LockObject(
            LockPlan(
                keys=self._keys or (key,),
                value=bytes_or_none(value),
                flags=flags,
                accept_flags=flag_set("accept_flags", accept_flags),
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
        """Return the holder of the lock, as the servers' leader has it, or None.

        If the lock is free but its last holder's lock-delay is in force, return a ``Holder`` with
        ``lock_delay_active`` and an empty ``session``. To find that out, the client sends a transaction that
        can't succeed. With a token that may not write the key, it returns None.
        """
        return self._runner.call(recipe.holder, self._runner.core, self._lock)

    def locked(self) -> bool:
        """Return whether any client holds the lock, as the servers' leader has it.

        The answer may be old when you read it.
        """
        return self._runner.call(recipe.is_locked, self._runner.core, self._lock)

    def contenders(self) -> tuple[Contender, ...]:
        """Return the waiters for the lock, the next one first, as the servers' leader has them.

        Clients that do not know the queue, such as ``consul lock``, are not among them.
        """
        return self._runner.call(recipe.contenders, self._runner.core, self._lock)

    def break_lock(self, expected_session: str, *, how: Literal["release", "destroy"] = "release") -> bool:
        """Take the lock from the session that holds it; return False if that is not ``expected_session``.

        ``how="release"`` frees this key at once, without a lock-delay. The holder is notified, but may still
        be at work. ``how="destroy"`` ends the session and all its holds. Their keys stay locked for the
        lock-delay. Raises InvalidArgument for what is no session or no such ``how``.
        """
        return self._runner.call(recipe.break_lock, self._runner.core, self._lock, expected_session, how=how)

    def destroy(self) -> bool:
        """Delete the key if no client holds it; return False while it is in use.

        Raises KeyConflict if another program uses the key.
        """
        return self._runner.call(recipe.destroy, self._runner.core, self._lock)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.key!r} of {self._runner!r}>"


class ReentrantLock(Lock):
    """A lock that the thread or task which holds it may acquire again.

    Each acquire returns the same hold, with the same fence, and needs one release. The last release frees
    the lock. Once the hold is lost, another acquire raises LockLost.
    """

    _reentrant = True
