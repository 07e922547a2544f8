# Made from consul_coord/aio/rwlock.py by `python tools/make_sync.py`: change that one.
"""One writer or many readers, for blocking code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from consul_coord.base_client import require
from consul_coord.models import LOCK_FLAGS
from consul_coord.models._validate import bytes_or_none
from consul_coord.recipes.rwlock import lock as recipe
from consul_coord.sync.blocks import Holdable
from consul_coord.sync.client import Client
from consul_coord.sync.hold import Hold
from consul_coord.sync.lock import Lock

if TYPE_CHECKING:
    from consul_coord.models import Contender, Holder, SessionSpec


class ReadWriteLock:
    """A lock that many may hold to read, or one to write.

    Guarantees:

    - A writer is alone, whatever ends the session of a holder. Waiters get in in order, so writers do not
      starve.
    - ``fence`` rises from each writer to the next holder.
    - A holder notices a loss as with ``Lock``.

    It does not exclude a ``Lock`` on the same key, or clients in other languages, because it has its
    own queue, under ``KEY/.rw/``. A thread or task must release its side before it acquires either side
    again. Each hold uses its own session, which the client keeps for the next one.
    """

    def __init__(
        self,
        client: Client,
        key: str,
        *,
        value: bytes | str | None = None,
        session: SessionSpec | None = None,
        flags: int = LOCK_FLAGS,
    ) -> None:
        """Describe the lock, without I/O.

        - ``client``: the client to use.
        - ``key``: the key that stands for the lock.
        - ``value``: text for others to see. None stands for the client's name, ``host:pid`` by default, read
          at each acquire; ``b""`` writes none.
        - ``session``: the settings of its sessions; None for the client's.
        - ``flags``: the flags to write.

        Raises InvalidKey, ValueTooLarge and InvalidArgument.
        """
        self._runner = require(client, Client, type(self).__name__)
        self._key = key
        read, write = recipe.sides(key, value=bytes_or_none(value), flags=flags, session=session)
        self._side = read
        self._read = RwSide(client, key, read)
        self._write = RwSide(client, key, write)

    @property
    def key(self) -> str:
        """The key that stands for the lock; nothing is written to it."""
        return self._key

    @property
    def read(self) -> RwSide:
        """The side for readers, with the methods of a ``Lock``."""
        return self._read

    @property
    def write(self) -> RwSide:
        """The side for writers, with the methods of a ``Lock``."""
        return self._write

    def holders(self) -> tuple[Holder, ...]:
        """Return the holders, one writer or all readers, as the servers' leader has them."""
        return self._runner.call(recipe.holders, self._runner.core, self._side)

    def contenders(self) -> tuple[Contender, ...]:
        """Return the waiters, the next one first, as the servers' leader has them."""
        return self._runner.call(recipe.contenders, self._runner.core, self._side)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._key!r} of {self._runner!r}>"


class RwSide(Lock):
    """One side of a ``ReadWriteLock``."""

    def __init__(self, client: Client, key: str, side: recipe.RwSide) -> None:
        self._key = key  # first: the base class asks for it
        super().__init__(client, key)
        self._side = side
        Holdable.__init__(self, side, Hold)  # pyright: ignore[reportUnknownMemberType]

    @property
    def key(self) -> str:
        """The key that stands for the lock."""
        return self._key

    def holder(self) -> Holder | None:
        """Return the holder of either side, the first of several readers, or None.

        It is as the servers' leader has it.
        """
        holders = self._runner.call(recipe.holders, self._runner.core, self._side)
        return holders[0] if holders else None

    def locked(self) -> bool:
        """Return whether any client holds either side, as the servers' leader has it.

        The answer may be old when you read it.
        """
        return self.holder() is not None

    def contenders(self) -> tuple[Contender, ...]:
        """Return the waiters for either side, the next one first, as the servers' leader has them."""
        return self._runner.call(recipe.contenders, self._runner.core, self._side)

    def break_lock(self, expected_session: str, *, how: Literal["release", "destroy"] = "release") -> bool:
        """Take its side from a session; return False if ``expected_session`` holds neither side.

        ``how`` as for ``Lock.break_lock``. Raises InvalidArgument for what is no session or no such
        ``how``.
        """
        return self._runner.call(recipe.break_in, self._runner.core, self._side, expected_session, how=how)

    def destroy(self) -> bool:
        """Return whether no client holds either side or waits. In that case no key is left on the server."""
        return self._runner.call(recipe.is_unused, self._runner.core, self._side)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._side.mode} {self._key!r} of {self._runner!r}>"
