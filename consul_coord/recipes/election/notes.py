"""The two notes that candidates of one election leave for each other beside the key: pure rules.

Both are keys of the directory that the queue of waiters is in, ``KEY/.wait/``, where each look at the queue
reads them at no cost. Their names are no session ids, so no client takes them for contenders.

===================  ====================================  ===========================================
note                 value                                 meaning
===================  ====================================  ===========================================
``KEY/.wait/heir``   the session of a queueing candidate   this one leads next
``KEY/.wait/term``   the leader's session, and after its   the key is that of an election; the term of
                     first ``proclaim`` a space and the    the leader that wrote the key again
                     term as a decimal number
===================  ====================================  ===========================================

Rules
- The heir's note is a hint from the leader that hands over. Candidates honour it for ``HONOURED`` seconds
  after they first saw it, on their own clock. The next leader deletes it. Clients that do not know it ignore
  it.
- It counts only while the heir queues, and until a candidate holds the key that got it after the note was
  written.
- The transaction that elects writes the term's note. It is deleted at the end of the leadership, and if the
  leader has written the key, not before that is given back. It stays until the next election after a crash,
  and where its own election got no answer.
- The term in it counts only while the session that it names holds the key. A note without a term was written
  by the election itself, so its own ModifyIndex is the term, whoever has written the key since. Without a
  note the term is the ModifyIndex of the key, which each write changes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from consul_coord.recipes.contend.queue import directory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.models import KVPair
    from consul_coord.recipes.contend.queue import Look

HONOURED = 5.0
"""Seconds for which candidates let an heir go first."""
_TERM = re.compile(r"(\S+) ([0-9]{1,20})")


def heir_key(key: str) -> str:
    """Return the key of the note that names an heir."""
    return directory(key) + "heir"


def term_key(key: str) -> str:
    """Return the key of the note that tells the leader's term."""
    return directory(key) + "term"


def find(note: str, pairs: Iterable[KVPair]) -> KVPair | None:
    """Return a note among what was read of the directory, or None."""
    return next((pair for pair in pairs if pair.key == note), None)


def heir_of(note: KVPair) -> str:
    """Return the session that an heir's note names."""
    return note.value.decode(errors="replace")


def counts(note: KVPair, look: Look) -> bool:
    """Return whether an heir's note still means something for the reading that it is part of."""
    if look.position(heir_of(note)) is None:
        return False
    pair = look.pair
    overtaken = pair is not None and pair.session is not None and pair.modify_index > note.modify_index
    return not overtaken


def term_value(session: str, term: int) -> bytes:
    """Return what the note of a leader's term says."""
    return f"{session} {term}".encode()


def election_value(session: str) -> bytes:
    """Return the note of a leader whose term is its ModifyIndex, as the election writes it."""
    return session.encode()


def term_of(pair: KVPair, note: KVPair | None) -> int:
    """Return the term of the leader that holds ``pair``."""
    said = "" if note is None else note.value.decode(errors="replace")
    if note is not None and said == pair.session:
        return min(note.modify_index, pair.modify_index)
    told = _TERM.fullmatch(said)
    return int(told[2]) if told is not None and told[1] == pair.session else pair.modify_index
