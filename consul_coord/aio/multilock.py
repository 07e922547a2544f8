"""Several locks as one, for event loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.aio.lock import AsyncLock
from consul_coord.models import LOCK_FLAGS
from consul_coord.recipes.lock.multi import checked_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from consul_coord.aio.client import AsyncClient
    from consul_coord.models import SessionSpec


class AsyncMultiLock(AsyncLock):
    """A lock on several keys, taken all together or not at all.

    Guarantees what ``AsyncLock`` does for each of its keys, and that takers of overlapping sets never block
    each other for ever, in whatever order they name them. A hold covers all keys: its ``fence`` is the same
    for each, ``guard()`` checks each, and the loss of one is its loss. ``put`` and ``contenders`` concern the
    first key in order. Does not guarantee any order: a taker of many keys may be passed by takers of one of
    them.
    """

    def __init__(
        self,
        client: AsyncClient,
        keys: Sequence[str],
        *,
        value: bytes | str | None = None,
        session: SessionSpec | str | None = None,
        flags: int = LOCK_FLAGS,
        accept_flags: Collection[int] = (),
        remove: bool = False,
    ) -> None:
        """Describe the lock, without I/O.

        - ``client``: the client to use.
        - ``keys``: the keys to lock, 1 to 32 different ones, in any order.
        - ``value``, ``session``, ``flags``, ``accept_flags``, ``remove``: as for ``AsyncLock``, for each key.

        Raises InvalidArgument, InvalidKey and ValueTooLarge.
        """
        self._keys = checked_keys(keys)
        super().__init__(
            client,
            self._keys[0],
            value=value,
            session=session,
            flags=flags,
            accept_flags=accept_flags,
            remove=remove,
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order in which they are locked."""
        return self._keys

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {', '.join(map(repr, self._keys))} of {self._runner!r}>"
