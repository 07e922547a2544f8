"""The leader of a key: asked once, or followed.

Rules
- The key decides: whoever's session holds it leads. Its value alone means nothing, as it outlives the leader.
- Key and term are read in one transaction, by a consistent read. The node is the session's, where the token
  may read that.
- Following is a blocking query on the key alone. A read completes its answer, and may be newer: the
  state seen next is then the same, and not reported again.
- The query may be answered by an old leader of the servers. So a state that was seen before another one is
  read again.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.errors import PermissionDenied, TxnFailed
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.endpoints._keys import check_parent
from consul_coord.http.messages import Call
from consul_coord.http.retry import perform, wait_once
from consul_coord.models import LeaderInfo, Result, TxnOp
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.election import notes
from consul_coord.recipes.watch.follow import WAIT, Follower

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Protocol, TypeVar

    from consul_coord.http.messages import Response
    from consul_coord.io import IO, Signal
    from consul_coord.models import KVPair, Session
    from consul_coord.recipes.contend.shared import Shared

    T = TypeVar("T")

    class Ask(Protocol):
        """How a call is answered."""

        def __call__(self, call: Call[T], /) -> Awaitable[T]:
            """Return the call's answer. Raises what comes of it."""
            ...


async def leader(io: IO, client: Shared, key: str, *, deadline: float | None = None) -> LeaderInfo | None:
    """Return who leads, as the servers' leader has it, or None; in a request's time, or by a deadline."""
    check_parent(key)
    until = io.now() + client.timeout if deadline is None else deadline

    async def ask(call: Call[T], /) -> T:
        return await perform(io, call, deadline=until)

    return await _read(ask, key)


async def _read(ask: Ask, key: str, told: Callable[[Session], object] = lambda _: None) -> LeaderInfo | None:
    """Return who leads; ``told`` is called with the leader's session, where the token may read it."""
    try:
        result = await ask(kv.txn(TxnOp.get(key), TxnOp.get_tree(notes.term_key(key)), options=CONSISTENT))
    except TxnFailed as error:
        if {failure.kind for failure in error.failures} == {"missing"}:
            return None
        raise
    if not result[0]:
        # Left out for want of permission, which only a plain read says.
        return _provisional((await ask(kv.get(key, options=CONSISTENT))).value)
    info = leader_in(result[0][0], notes.find(notes.term_key(key), result[1]))
    if info is None:
        return None
    with suppress(PermissionDenied):
        session = (await ask(session_endpoint.info(info.session, options=CONSISTENT))).value
        if session is not None:
            told(session)
            return replace(info, node=session.node)
    return info


def _provisional(pair: KVPair | None) -> LeaderInfo | None:
    """Return what the key alone tells."""
    if pair is None or pair.session is None:
        return None
    return LeaderInfo(pair.value, pair.session, term=pair.modify_index, since_index=pair.modify_index)


def leader_in(pair: KVPair | None, note: KVPair | None) -> LeaderInfo | None:
    """Return what the key and the note of the leader's term tell."""
    info = _provisional(pair)
    return None if info is None or pair is None else replace(info, term=notes.term_of(pair, note))


class _Closed(Exception):
    """The follower has been ended."""


class LeaderFollower(Follower[LeaderInfo | None]):
    """Follows the leadership of a key: the present state first, then each change once.

    ``confirming``: each leader is confirmed twice within its session's TTL, also without a change. ``leads``
    returns whether this client itself leads: then this follower shares the query of its hold.
    """

    def __init__(
        self,
        key: str,
        *,
        wait: float = WAIT,
        confirming: bool = False,
        leads: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(partial(_watch, check_parent(key), leads), wait=wait)
        self._confirming = confirming
        self._key = key
        self._known: tuple[LeaderInfo, LeaderInfo | None] | None = None
        """The last state of the key alone, and the result of the read after it."""
        self.asked_at = -math.inf
        """When the query began whose answer was the last to be read."""
        self.ttl: float | None = None
        """The TTL of the session of the latest leader, where the token may read it."""

    async def _ask(self, io: IO, until: Signal | None) -> Result[LeaderInfo | None] | None:
        asked_at = io.now()
        answer = await super()._ask(io, until)
        if answer is None:
            return None
        if answer.value is None:
            self._known = None
            return answer
        if self._known is None or self._known[0] != answer.value:
            self.asked_at, self.ttl = asked_at, None
            try:
                read = await _read(partial(_ask_until, io, until), self._key, self._take_session)
            except _Closed:
                return None
            self._known = (answer.value, read)
        return replace(answer, value=self._known[1])

    def _take_session(self, session: Session) -> None:
        self.ttl = session.ttl
        if self._confirming and session.ttl is not None:
            self._wait = min(self._wait, session.ttl / 2)


def _watch(
    key: str, leads: Callable[[], bool], *, index: int, wait: float
) -> Call[Result[LeaderInfo | None]]:
    call = kv.watch(key, index=index, wait=wait, options=CONSISTENT if leads() else None)

    def decode(response: Response) -> Result[LeaderInfo | None]:
        result = call.decode(response)
        return Result(_provisional(result.value), result.index, result.known_leader, result.last_contact)

    return Call(call.request, decode)


async def _ask_until(io: IO, until: Signal | None, call: Call[T], /) -> T:
    answer = await wait_once(io, call, until=until)
    if answer is None:
        raise _Closed
    return answer
