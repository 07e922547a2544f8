"""Naming an heir: who leads writes down whom the queue is to let go first.

Rules
- The heir queues where it did, and the leader still leads, or nothing is written: one transaction checks
  both. One that has joined again has another candidate before it, which is the one that has to be written.
- The heir may watch a candidate before it and not the note. So that one's contender is written, with its own
  value: the heir wakes up and looks.
- A queue that changes meanwhile is read again, a few times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import AcquireTimeout, SessionNotFound, TxnFailed, ValueTooLarge
from consul_coord.http.endpoints import kv
from consul_coord.http.messages import Retry
from consul_coord.http.retry import perform
from consul_coord.models import Blocker, TxnOp
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.election import notes
from consul_coord.recipes.election.leadership import check
from consul_coord.recipes.hold.evidence import make_sure

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import KVPair
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Grant

HAND_OVER_TRIES = 5
"""How often a transfer starts over when the queue changes meanwhile."""


async def name(io: IO, client: Shared, hold: Grant, heir: str) -> None:
    """Write down that the candidate of the session ``heir`` leads next.

    Raises SessionNotFound when no candidate of that session queues, ValueTooLarge when the value of the one
    before it does not fit into the request twice, LeadershipLost, and AcquireTimeout when the queue kept
    changing.
    """
    key, deadline = hold.key, io.now() + client.timeout
    for _ in range(HAND_OVER_TRIES):
        call = kv.list_pairs(waitqueue.directory(key), options=CONSISTENT)
        look = waitqueue.read(key, (await perform(io, call, deadline=deadline)).value)
        position = look.position(heir)
        if position is None:
            message = f"no candidate of the session {heir!r} waits to lead {key!r}: candidates() lists them"
            raise SessionNotFound(message, session=heir)
        ops = [
            TxnOp.check_session(key, hold.session),
            TxnOp.check_index(look.live[position].key, look.live[position].modify_index),
            TxnOp.set(notes.heir_key(key), heir),
        ]
        if position > 0:
            # It watches the one before it: a write there wakes it, and then it sees the note. What is written
            # twice the same is no change to Consul, and wakes nobody: so another value comes in between.
            ahead = look.live[position - 1]
            ops.append(TxnOp.cas(ahead.key, ahead.value + b"\n", ahead.modify_index, flags=ahead.flags))
            ops.append(TxnOp.set(ahead.key, ahead.value, flags=ahead.flags))
        try:
            naming = kv.txn(*ops, retry=Retry.IDEMPOTENT)
        except ValueTooLarge as error:
            raise _too_large_to_pass(key, look.live[position - 1], error) from None
        try:
            await perform(io, naming, deadline=deadline)
        except TxnFailed as error:
            if all(failure.op_index > 0 and failure.kind != "denied" for failure in error.failures):
                continue  # the queue has changed since it was read
            await make_sure(io, client.sessions, hold, deadline=deadline)
            check(hold, io.now())
            raise
        return
    message = f"the queue of {key!r} kept changing: no heir was named, and this client still leads"
    raise AcquireTimeout(message, key=key, session=hold.session, blocker=Blocker("queued", heir))


def _too_large_to_pass(key: str, ahead: KVPair, error: ValueTooLarge) -> ValueTooLarge:
    message = (
        f"the leadership of {key!r} was not transferred: the request writes the value of the candidate "
        f"before the heir (session {waitqueue.session_of(ahead)}) twice, and that has {len(ahead.value)} "
        "bytes. "
        "Transfer to the first one of candidates(), or give candidates a value of less than 190 kB"
    )
    return ValueTooLarge(message, size=error.size, limit=error.limit)
