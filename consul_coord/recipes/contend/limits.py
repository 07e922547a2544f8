"""How long a value may be that is locked with: it has to fit into each request that carries it.

Rules
- The requests are counted as they are sent, with the longest index and flags. So a value that passes here is
  never refused later by the transaction's own limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ValueTooLarge
from consul_coord.http.endpoints import txn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consul_coord.models import TxnOp

    Carrier = Callable[[bytes], Sequence[TxnOp]]
    """A transaction that carries a value."""

SURELY_SMALL = 64 * 1024
"""A value of fewer bytes fits into any transaction."""
ANY_SESSION = "0" * 36
LONGEST = 2**64 - 1
"""The index, or the flags, of the most digits."""


def check_value(keys: Sequence[str], value: bytes, carriers: Sequence[Carrier]) -> bytes:
    """Return a value that fits into each of the transactions that carry it. Raises ValueTooLarge."""
    if len(value) * len(keys) < SURELY_SMALL:
        return value
    try:
        for carrier in carriers:
            _size(carrier(value))
    except ValueTooLarge as error:
        most = min(_most(carrier, error.limit) for carrier in carriers)
        others = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        message = (
            f"the value of {keys[0]!r}{others} has {len(value)} bytes, and may have {most} bytes: Consul "
            f"takes {error.limit} bytes with one request. Keep it elsewhere, and put a reference to it here"
        )
        raise ValueTooLarge(message, size=error.size, limit=error.limit) from None
    return value


def _most(carrier: Carrier, limit: int) -> int:
    """Return the most bytes of a value that fit into a transaction, perhaps several times."""
    empty = carrier(b"")
    marks = [len(op.value or b"") for op, other in zip(empty, carrier(b"v"), strict=True) if op != other]
    if not marks:
        return limit
    room = limit - _size(empty) + sum(map(_as_base64, marks))
    return room // len(marks) // 4 * 3 - max(marks)  # base64 makes 4 bytes of 3


def _as_base64(size: int) -> int:
    return (size + 2) // 3 * 4


def _size(ops: Sequence[TxnOp]) -> int:
    """Return the bytes of a request. Raises ValueTooLarge."""
    return len(txn.txn(*ops).request.body or b"")
