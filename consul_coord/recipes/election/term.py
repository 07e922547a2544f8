"""The term of a leader that writes its key: noted beside the key, whose index tells it no more.

Rules
- Written once a leadership, before the first write of the key.
- Removed with the leadership, unless a later leader has written it; also if the write got no answer, or gets
  it only afterwards. As long as the key is not given back, that write may still come.
- A leadership that has lasted too long ends before its key is given back. Its note stays until then, or
  followers would take the index of the key, which is higher, for its term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import TxnFailed
from consul_coord.http.endpoints import kv
from consul_coord.http.messages import Retry
from consul_coord.http.retry import ask
from consul_coord.models import TxnOp
from consul_coord.recipes.cleanup.tasks import RemoveKey, RemoveNote
from consul_coord.recipes.election import notes
from consul_coord.recipes.hold.grant import OVERDUE

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Grant


class Term:
    """The note of one candidate's terms."""

    def __init__(self, client: Shared) -> None:
        self._client = client
        self._noted = 0
        """The term that the note on the server tells, if it was written."""
        self._index = 0
        self._doubtful: dict[int, RemoveNote] = {}
        """The removal of a note that may have been written, by its term."""

    async def note(self, io: IO, hold: Grant) -> None:
        """Write down the term once, before the key's own index stops telling it."""
        if self._noted == hold.fence:
            return
        # The guard keeps a late copy out of a later leadership of the same session.
        key, value, guard = notes.term_key(hold.key), notes.term_value(hold.session, hold.fence), hold.guard()
        call = kv.txn(*guard, TxnOp.set(key, value), retry=Retry.IDEMPOTENT)
        self._doubtful = {hold.fence: RemoveNote(key, value, guard)}
        try:
            result = await ask(io, call, timeout=self._client.timeout)
        except TxnFailed:
            return  # not permitted, or not the leader any more, which the write of the value will find
        self._index = result[-1][0].modify_index
        self._noted, self._doubtful = hold.fence, {}

    def remove(self, hold: Grant) -> None:
        """Have the note of a leadership removed, unless a later leader has written it."""
        key, noted = notes.term_key(hold.key), self._noted == hold.fence
        if noted and hold.reason in OVERDUE:
            value = notes.term_value(hold.session, hold.fence)
            self._client.reaper.add(RemoveNote(key, value, hold.guard()))
            return
        # The transaction that elected wrote it, so its index was the fence. A proclaim has written it again.
        self._client.reaper.add(RemoveKey(key, self._index if noted else hold.fence))
        if hold.fence in self._doubtful:
            self._client.reaper.add(self._doubtful[hold.fence])
