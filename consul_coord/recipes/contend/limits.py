"""How long a value may be that is locked with: it has to fit into the request that unlocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ValueTooLarge
from consul_coord.http.endpoints import txn
from consul_coord.models import LOCK_FLAGS, TxnOp
from consul_coord.recipes.cleanup.unlock import Locked
from consul_coord.recipes.contend import queue

if TYPE_CHECKING:
    from collections.abc import Sequence

SURELY_SMALL = 64 * 1024
"""A value of fewer bytes fits into any transaction."""


def check_value(keys: Sequence[str], value: bytes) -> bytes:
    """Return a value that can be locked with, and be carried along when unlocking. Raises ValueTooLarge."""
    if len(value) * len(keys) < SURELY_SMALL:
        return value
    try:
        _unlock_size(keys, value)
    except ValueTooLarge as error:
        # Base64 makes 4 bytes of 3, once for each key.
        most = (error.limit - _unlock_size(keys, b"")) // len(keys) // 4 * 3
        others = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        message = (
            f"the value of {keys[0]!r}{others} has {len(value)} bytes, and may have {most} bytes: unlocking "
            f"carries it along, and Consul takes {error.limit} bytes of that. Keep it elsewhere, and put a "
            "reference to it here"
        )
        raise ValueTooLarge(message, size=error.size, limit=error.limit) from None
    return value


def _unlock_size(keys: Sequence[str], value: bytes) -> int:
    """Return the bytes of the longest request that may unlock these keys. Raises ValueTooLarge."""
    session = "0" * 36
    ops = [op for key in keys for op in Locked(key, 2**64 - 1, value).unlocking(session, LOCK_FLAGS)]
    tree = (TxnOp.get_tree(queue.directory(keys[0])),) if len(keys) == 1 else ()
    return len(txn.txn(*ops, *tree).request.body or b"")
