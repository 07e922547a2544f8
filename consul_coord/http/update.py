"""Changing a key's value by a function of what it was: read, compute, write if nobody wrote in between.

Rules
- The write names the index of the reading that the new value was computed from, so no other write is lost.
- A write whose outcome is unknown is sent again as it was: at the same index, so that it is applied once
  however many copies arrive. When the key has then moved on, nobody can tell whether one of them was applied
  before. That is raised: to compute again would count twice what was counted already.
- After a refusal the present leader is asked: an old one may go on to give the value of before.
- Each refused write costs the servers a Raft entry. So the pauses between tries grow, and are random over
  their whole length: writers that met once do not meet again.
- A refusal to serve (429, no leader) is no loss of the race; the same write is sent again after a pause.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, RequestTimeout, TxnFailed
from consul_coord.http.endpoints import kv
from consul_coord.http.failures import again, bare, outcome_unknown, raise_if_denied
from consul_coord.http.retry import Failures, perform, send_once
from consul_coord.models import TxnOp
from consul_coord.models._validate import as_bytes, plain, refuse_kind, seconds
from consul_coord.models.reply import CONSISTENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.io import IO
    from consul_coord.models import KVPair

FIRST_PAUSE = 0.02
"""Seconds within which a writer tries again that lost its first race; doubled with each more."""
LONGEST_PAUSE = 0.5


async def update(
    io: IO,
    key: str,
    fn: Callable[[bytes | None], bytes | str | None],
    *,
    timeout: float,
    attempt: float,
) -> KVPair | None:
    """Write what ``fn`` returns for the present value, and return the key as it is then.

    One request takes ``attempt`` seconds at most. See the module for what is raised.
    """
    seconds("timeout", timeout, minimum=0)
    if fn is None:
        refuse_kind("fn", fn, "a function")
    plain(fn=fn)
    deadline = io.now() + (timeout or attempt)
    lost = 0
    while True:
        call = kv.get(key, options=CONSISTENT if lost else None)
        pair = (await perform(io, call, deadline=deadline, attempt=attempt)).value
        new = fn(None if pair is None else pair.value)
        if new is None:
            return pair
        written = await _write(io, key, pair, as_bytes(new), deadline=deadline)
        if written is not None:
            return written
        lost += 1
        pause = io.random() * min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(lost - 1, 30))
        if not timeout or io.now() + pause >= deadline:
            raise _outrun(key, lost, timeout)
        await io.sleep(pause)


async def _write(
    io: IO,
    key: str,
    pair: KVPair | None,
    value: bytes,
    *,
    deadline: float,
) -> KVPair | None:
    """Write a value over the one that was read; None when somebody else wrote before."""
    index, flags = (0, 0) if pair is None else (pair.modify_index, pair.flags)
    call = kv.txn(TxnOp.cas(key, value, index, flags=flags))
    failures, doubt = Failures(io, deadline), None
    while True:
        try:
            result = await send_once(io, call, deadline=deadline)
        except TxnFailed as error:
            raise_if_denied(key, error)
            if doubt is not None:
                raise _in_doubt(key, doubt) from error
            if {failure.kind for failure in error.failures} != {"stale_index"}:
                raise
            return None
        except ConsulCoordError as error:
            if outcome_unknown(error):
                doubt = doubt or bare(error)
            try:
                await failures.pause(error)
            except ConsulCoordError as last:
                raise again(last if doubt is None else _in_doubt(key, doubt)) from None
        else:
            return replace(result[0][0], value=value)


def _in_doubt(key: str, doubt: ConsulCoordError) -> ConsulCoordError:
    doubt.add_note(
        f"The update of {key!r} may have been applied: a write got no answer, and another one may have "
        "followed it. Read the key before you repeat the update."
    )
    return doubt


def _outrun(key: str, lost: int, timeout: float) -> RequestTimeout:
    message = (
        f"{key!r} was not updated within {timeout:g} s: others wrote it first, {lost} "
        f"time{'s' if lost > 1 else ''} in a row"
    )
    return RequestTimeout(message, method="PUT", path="/v1/txn", outcome_unknown=False)
