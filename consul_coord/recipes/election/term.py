"""The term of a leader that writes its key: noted beside the key, whose index tells it no more.

Rules
- Written once a leadership, before the first write of the key.
- A write that is refused is made up for at the next one; until then the election's note tells the term.
- Removed once the key is given back, unless a later leader has written it; also if the write got no answer.
  Until then that write may still come, and without the note followers would take the index of the key, which
  is higher, for the term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import TxnFailed
from consul_coord.http.endpoints import kv
from consul_coord.http.messages import Retry
from consul_coord.http.retry import ask
from consul_coord.models import TxnOp
from consul_coord.recipes.cleanup.tasks import SWEEPS, RemoveKey, RemoveNote
from consul_coord.recipes.election import notes

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Grant


class Term:
    """The note of one candidate's terms."""

    def __init__(self, client: Shared) -> None:
        self._client = client
        self._sent = 0
        """The latest term of which a note was sent."""
        self._noted = 0
        """The same, with an answer that it was written."""

    async def note(self, io: IO, hold: Grant) -> None:
        """Write down the term once, before the key's own index stops telling it."""
        if self._noted == hold.fence:
            return
        # The guard keeps a late copy out of a later leadership of the same session.
        note = TxnOp.set(notes.term_key(hold.key), notes.term_value(hold.session, hold.fence))
        self._sent = hold.fence
        try:
            call = kv.txn(*hold.guard(), note, retry=Retry.IDEMPOTENT)
            await ask(io, call, timeout=self._client.timeout)
        except TxnFailed:
            # Not permitted, or not the leader any more, which the write of the value will find. Or somebody
            # else has written the key: the election's own note goes on to tell the term.
            return
        self._noted = hold.fence

    def remove(self, hold: Grant) -> None:
        """Have the note of a leadership removed, unless a later leader has written it."""
        key, reaper = notes.term_key(hold.key), self._client.reaper
        if self._sent == hold.fence:
            task = RemoveNote(key, notes.term_value(hold.session, hold.fence), hold.guard())
            reaper.add(task, after=SWEEPS[0])  # when the key is given back, mostly
        if self._noted != hold.fence:
            # The election wrote it, so the fence is its index.
            reaper.add(RemoveKey(key, hold.fence))
