"""Admission to a read-write lock: pure rules over one reading of its queue.

Readers and writers queue as the waiters of a lock do (see ``waitqueue``), under a key of their own, each with
a mark in its contender's value. Place alone decides: a reader is in when no writer is before it, a writer
when nobody is.

Rules
- Those before a contender can only leave: nobody is ever put before it. So who is in stays in until its
  contender ends, and being in needs no further write. A client that comes after a waiting writer waits behind
  it, so writers do not starve.
- A reader waits for the nearest writer before it, a writer for its nearest predecessor: one wake-up each.
- A contender that lost its session is dead, and keeps its place if it was in: its client may still trust its
  hold, for as long as the lock-delay lasts. A client that waits for it locks and deletes its key in
  one transaction, which Consul refuses until then. A dead contender that was not in stands for nothing: those
  that kept it out were there all the time.
- A contender with another CreateIndex than its join made is that of an earlier hold, as an old leader may
  show it.
- The fence is the contender's CreateIndex. It rises in the order of the queue, which for any two that exclude
  each other is the order in which they are in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from consul_coord.models import TxnOp
from consul_coord.recipes.contend.queue import Rejoin, contender_key, directory
from consul_coord.value import Value

if TYPE_CHECKING:
    from consul_coord.models import KVPair
    from consul_coord.recipes.contend.queue import Look

Mode = Literal["read", "write"]

_MARKS: dict[Mode, bytes] = {"read": b"r", "write": b"w"}
MODES = tuple(_MARKS)


_SUFFIX = "/.rw"


def base_of(key: str) -> str:
    """Return the key that stands for the queue of a read-write lock."""
    return key + _SUFFIX


def key_of(base: str) -> str:
    """Return the key whose queue it is."""
    return base.removesuffix(_SUFFIX)


def marked(mode: Mode, value: bytes) -> bytes:
    """Return how a contender keeps its mode and the user's value."""
    return _MARKS[mode] + value


def mode_of(contender: KVPair) -> Mode:
    """Return a contender's mode; one without a mark that is known counts as a writer, which excludes all."""
    return "read" if contender.value[:1] == _MARKS["read"] else "write"


def value_of(contender: KVPair) -> bytes:
    """Return the user's value in a contender."""
    return contender.value[1:]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Enter(Value):
    """Nobody is in the way."""

    own: KVPair


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Behind(Value):
    """Somebody is in the way: watch it, or remove it if it is dead."""

    own: KVPair
    blocker: KVPair
    position: int


Verdict = Enter | Behind | Rejoin


def judge(look: Look, session: str, mode: Mode, *, born: int) -> Verdict:
    """Return what a reading means for a session that joined in a mode, at the index ``born``."""
    position = look.position(session)
    if position is None or look.live[position].create_index != born:
        return Rejoin()
    own = look.live[position]
    before = look.places[: look.places.index(own)]
    in_the_way = [pair for pair in before if mode == "write" or mode_of(pair) == "write"]
    return Behind(own, in_the_way[-1], position) if in_the_way else Enter(own)


def inside(look: Look) -> tuple[KVPair, ...]:
    """Return the contenders that are in, dead ones too: one writer, or the readers before the first one."""
    places = look.places
    if places and mode_of(places[0]) == "write":
        return places[:1]
    first_writer = next((place for place, pair in enumerate(places) if mode_of(pair) == "write"), None)
    return places[:first_writer]


def joining(base: str, session: str, value: bytes, *, flags: int) -> tuple[TxnOp, TxnOp]:
    """Return the operations that queue with a marked value, and read the queue."""
    own = TxnOp.lock(contender_key(base, session), session, value=value, flags=flags)
    return own, TxnOp.get_tree(directory(base))


def removal(dead: KVPair, *, by: str) -> tuple[TxnOp, TxnOp]:
    """Return the operations that remove a dead contender, once its lock-delay is over."""
    return TxnOp.lock(dead.key, by), TxnOp.delete(dead.key)
