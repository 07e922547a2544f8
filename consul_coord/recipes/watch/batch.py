"""Reading many keys in a few transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import TxnFailed
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import perform
from consul_coord.models import TxnOp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.io import IO
    from consul_coord.models import KVPair, ReadOptions

BATCH = 60
"""Keys read in one transaction: it takes 64 operations at most."""


async def read_together(
    io: IO, keys: Sequence[str], *, deadline: float, options: ReadOptions | None = None
) -> dict[str, KVPair]:
    """Return those of up to ``BATCH`` keys that exist, as of one moment. Raises what a transaction raises."""
    ops = [TxnOp.get(key) for key in keys]
    try:
        result = await perform(io, kv.txn(*ops, options=options), deadline=deadline)
    except TxnFailed as error:
        # A missing key fails the whole reading, and all missing ones are named: read the others.
        missing = {failure.op_index for failure in error.failures if failure.kind == "missing"}
        if not missing:
            raise
        rest = [key for number, key in enumerate(keys) if number not in missing]
        return await read_together(io, rest, deadline=deadline, options=options) if rest else {}
    return {pair.key: pair for pairs in result for pair in pairs}
