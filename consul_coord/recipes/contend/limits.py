"""How long a value may be that is locked with: it has to fit into each request that carries it.

Rules
- The requests are counted as they are sent, with the longest index and flags. So a value that passes here is
  never refused later by the transaction's own limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ValueTooLarge
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints._call import BODY_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consul_coord.models import TxnOp

    Carrier = Callable[[bytes], Sequence[TxnOp]]
    """A transaction that carries a value."""

SURELY_SMALL = 48 * 1024
"""A value of fewer bytes fits into any transaction, with keys of fewer than ``SHORT`` characters in all.

Also as text in JSON, which takes eight bytes for some of its bytes, with base64.
"""
SHORT = 4 * 1024
ANY_SESSION = "0" * 36
LONGEST = 2**64 - 1
"""The index, or the flags, of the most digits."""
_SHOWN = 100
"""Characters of a key that an error shows."""


def check_value(keys: Sequence[str], value: bytes, carriers: Sequence[Carrier]) -> bytes:
    """Return a value that fits into each of the transactions that carry it. Raises ValueTooLarge."""
    if len(value) * len(keys) < SURELY_SMALL and sum(map(len, keys)) < SHORT:
        return value
    size, largest = max((_size(carrier(value)), at) for at, carrier in enumerate(carriers))
    if size <= BODY_LIMIT:
        return value
    most = min(map(_most, carriers))
    if 0 < len(value) <= most:  # some of its bytes take more room than others
        empty = _size(carriers[largest](b""))
        most = len(value) * (BODY_LIMIT - empty) // (size - empty) - 3
    name = repr(keys[0] if len(keys[0]) <= _SHOWN else f"{keys[0][:_SHOWN]}...")
    if len(keys) > 1:
        name += f" and {len(keys) - 1} more"
    message = (
        f"the value of {name} has {len(value)} bytes, and may have {most} bytes: Consul takes {BODY_LIMIT} "
        "bytes with one request. Keep it elsewhere, and put a reference to it here"
    )
    if most <= 0:
        message = (
            f"the key {name} is too long, with {sum(map(len, keys))} characters: a request to lock it has "
            f"{size} bytes, and Consul takes {BODY_LIMIT}. Use a shorter key"
        )
    raise ValueTooLarge(message, size=size, limit=BODY_LIMIT)


def _most(carrier: Carrier) -> int:
    """Return the most bytes of a value that fit into a transaction, perhaps several times; 0 if none do."""
    empty = carrier(b"")
    marks = [len(op.value or b"") for op, other in zip(empty, carrier(b"v"), strict=True) if op != other]
    room = BODY_LIMIT - _size(empty) + sum(map(as_base64, marks))
    if not marks:
        return room
    return max(room // len(marks) // 4 * 3 - max(marks), 0)  # base64 makes 4 bytes of 3


def as_base64(size: int) -> int:
    """Return how many bytes so many take as base64."""
    return (size + 2) // 3 * 4


def _size(ops: Sequence[TxnOp]) -> int:
    """Return the bytes of a request, also of one that is too large."""
    try:
        return len(kv.txn(*ops).request.body or b"")
    except ValueTooLarge as error:
        return error.size
