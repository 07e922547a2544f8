"""A semaphore as it stands in Consul: pure rules over one reading of its prefix.

Under the prefix ``P`` are the *record* ``P/.lock``, which names the limit and the holders, and one
*contender* ``P/S`` for each session S that waits or holds. S itself locks it, so it vanishes when S ends. The
format is that of Consul's own clients: ``{"Limit":3,"Holders":{"<session>":true}}``.

Rules, each with what happens without it
- All that one judgement needs comes from one listing: a listing is a moment, not a mixture.
- A contender is live while the session that it is named after holds it. A holder that the record names, but
  whose contender is not live, is dead. A key with a contender's name that nobody holds is a leftover, to be
  removed at the index it was read with.
- The client of a dead holder may still trust its permit, for as long as the lock-delay lasts. So a take that
  removes a dead holder from the record also locks and deletes that holder's contender key, which Consul
  refuses while the lock-delay of that key is in force. Nothing else removes another's id from the record: the
  id is all that a later take can know it by. A refused id counts as a holder until it is tried again, also
  for ranks: otherwise a later waiter passes the front. One take removes at most ``most_removed`` ids, because
  a transaction has 64 operations.
- The value of a contender begins with a mark: this package's waiters queue by CreateIndex, among themselves.
  Foreign clients carry no mark. They are counted as holders, never as waiters: they take a slot by writing
  the record alone, so whoever watched such a contender would sleep through it.
- As many waiters as there are free slots may take at once. The first of the others, the *front*, watches the
  whole prefix: it alone sees a leave, a resize, and the death of a holder, which changes no record. Everybody
  else watches the contender right before his own. A take changes that contender, so that it wakes its
  follower.
- A waiter may want several slots. It has as many sessions, because the record names each session once. The
  *first* of them queues, with a mark that says how many slots are wanted; one take enters all of them. A
  waiter takes when what it wants is free besides what all before it want: otherwise a stream of small ones
  passes a large one for ever. Nobody holds a part while waiting for the rest: so no two wait for each other.
  A waiter that wants more than the limit, as after a resize, leaves: otherwise all wait behind it for ever.
- A take names the index of the record that was judged, so that nothing older can admit or remove anybody.
- A record is written back in the form it was found in: its flags, a list where it had a list, and what is
  not known here. A record that can't be read is never written.

Source: the predecessor watch is that of Hunt et al., "ZooKeeper" (2010), section 2.4; the format is that of
Consul's Go client and of its guide to semaphores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from consul_coord.errors import DecodeError, InvalidArgument, ValueTooLarge
from consul_coord.http.endpoints import _json
from consul_coord.http.endpoints._call import BODY_LIMIT
from consul_coord.models import SEMAPHORE_FLAGS, TxnOp
from consul_coord.recipes.contend.limits import as_base64
from consul_coord.recipes.contend.queue import SESSION_ID
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from consul_coord.models import KVPair

_RECORD = ".lock"
_WAITING = b"consul-coord:wait"
_HOLDING = b"consul-coord:held"
_BETWEEN = b"\n"
_WANTS = re.compile(rb"consul-coord:wait(?: ([1-9][0-9]{0,3}))?")
_HOLDER_BYTES = len('"11111111-1111-1111-1111-111111111111":true,')
_ENVELOPE = 2_000
"""Bytes of a take besides its two values and the prefix: verbs, session ids, indexes."""
_PREFIXES = 3
"""How often a take names the prefix."""
MOST_PERMITS = 31
"""Slots that one permit has at most: leaving takes two operations for each, and two more, of Consul's 64."""
_FURTHER = 300
"""Bytes of the operation that locks one further slot, besides the prefix and the value."""
_REMOVAL = 400
"""Bytes of the two operations that remove a dead holder, besides the prefix, which they name twice."""


def most_removed(permits: int = 1) -> int:
    """Return how many dead holders a take removes at most.

    Two operations for each, one for each slot that it takes, and two more, of Consul's 64.
    """
    return (62 - permits) // 2


def directory(prefix: str) -> str:
    """Return what all keys of a semaphore begin with."""
    return prefix + "/"


def record_key(prefix: str) -> str:
    """Return the key of the record."""
    return directory(prefix) + _RECORD


def contender_key(prefix: str, session: str) -> str:
    """Return the key of one session's contender."""
    return directory(prefix) + session


def removal(prefix: str, removed: Iterable[str], *, by: str) -> tuple[TxnOp, ...]:
    """Return the operations that let a transaction fail while the lock-delay of a removed holder lasts.

    Two for each, in turn. A text that is no session's id never had a session, nor a lock-delay.
    """
    keys = [contender_key(prefix, one) for one in removed if SESSION_ID.fullmatch(one)]
    return tuple(op for key in keys for op in (TxnOp.lock(key, by), TxnOp.delete(key)))


# -- the contender's value
# ------------------------------------------------------------------------------------------------------


def waiting(value: bytes, *, permits: int = 1) -> bytes:
    """Return a waiter's value with its mark, which says how many slots it wants if that is more than one."""
    wanted = b" %d" % permits if permits > 1 else b""
    return _WAITING + wanted + _BETWEEN + value


def holding(value: bytes) -> bytes:
    """Return a holder's value with its mark."""
    return _HOLDING + _BETWEEN + value


def wanted_by(contender: KVPair) -> int:
    """Return how many slots one of this package's waiters wants; 0 for any other contender."""
    found = _WANTS.fullmatch(contender.value.partition(_BETWEEN)[0])
    return int(found[1] or 1) if found else 0


def value_of(contender: KVPair) -> bytes:
    """Return a contender's value without its mark; a foreign one's as it is."""
    mark, _, value = contender.value.partition(_BETWEEN)
    return value if mark == _HOLDING or _WANTS.fullmatch(mark) else contender.value


# -- the record
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Record(Value):
    """The content of a semaphore's record, and how it was written."""

    limit: int
    holders: tuple[str, ...] = ()
    index: int = 0
    """ModifyIndex of the reading, 0 when there is no record: what a write has to name."""
    flags: int = SEMAPHORE_FLAGS
    as_list: bool = False
    """Whether the holders are a list, as hand-written clients have them."""
    unknown: Mapping[str, object] = field(default_factory=dict[str, object])
    """Fields that this package does not know."""

    def encode(self) -> bytes:
        """Return the record's value."""
        holders = list(self.holders) if self.as_list else dict.fromkeys(self.holders, True)
        return _json.dump({"Limit": self.limit, "Holders": holders, **self.unknown})

    def at(self, index: int) -> Record:
        """Return the record as written at an index."""
        return replace(self, index=index)

    def with_holders(self, holders: Iterable[str]) -> Record:
        """Return the record with other holders."""
        return replace(self, holders=tuple(holders))

    def without(self, sessions: Collection[str]) -> Record:
        """Return the record without some holders."""
        return self.with_holders(holder for holder in self.holders if holder not in sessions)


def read_record(pair: KVPair | None, *, limit: int, flags: int) -> Record:
    """Read the record; without one, or with an empty one, it is that of an unused semaphore of ``limit``.

    A missing limit is 0, missing holders are an empty list, and the names of fields may be of any case: all
    as the Go client has it. Raises DecodeError when it can't be read, and must not be written then.
    """
    if pair is None:
        return Record(limit, flags=flags)
    if not pair.value:
        return Record(limit, index=pair.modify_index, flags=pair.flags)
    try:
        fields = _json.Fields("it", _json.parse(pair.value))
        members = {_spelled(name): value for name, value in fields.members.items()}
        known = _json.Fields("it", members)
        holders = members.pop("Holders", None)
        return Record(
            known.get("Limit", _limit, 0),
            _holders(holders),
            index=pair.modify_index,
            flags=pair.flags,
            as_list=isinstance(holders, list),
            unknown={name: value for name, value in members.items() if name != "Limit"},
        )
    except _json.ShapeError as error:
        message = (
            f"the record {pair.key!r} can't be read as a semaphore's: {error}. It is left as it is: "
            "repair it, or delete it when nobody uses it"
        )
        body = pair.value.decode(errors="replace")
        raise DecodeError(message, path=pair.key, body=body) from error


def _spelled(name: str) -> str:
    return {"limit": "Limit", "holders": "Holders"}.get(name.lower(), name)


def _limit(what: str, value: object) -> int:
    return _json.integer(what, value, minimum=-(2**63), maximum=2**63 - 1)


def _holders(value: object) -> tuple[str, ...]:
    """Return whom the holders name: the names in an object, whatever their values, or a list's strings."""
    if isinstance(value, list):
        return tuple(dict.fromkeys(_json.texts("it.Holders", cast("object", value))))
    return tuple(_json.mapping("it.Holders", value, lambda _what, held: held))


def check_limit(prefix: str, limit: object, *, value: bytes = b"", permits: int = 1) -> int:
    """Return a limit that can be worked with, for permits of so many slots.

    Raises InvalidArgument when it is no limit, ValueTooLarge when the record could outgrow what Consul takes.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        message = f"limit must be an integer of 1 or more, not {limit!r}"
        raise InvalidArgument(message)
    removed = most_removed(permits)
    size = _ENVELOPE + removed * _REMOVAL + (permits - 1) * _FURTHER
    size += (_PREFIXES + permits - 1 + 2 * removed) * len(_json.dump(prefix))
    size += as_base64(limit * _HOLDER_BYTES) + permits * as_base64(len(holding(value)))
    if size > BODY_LIMIT:
        message = (
            f"the semaphore {prefix!r} can't have {limit} holders and a value of {len(value)} bytes: "
            f"with all slots taken, a take has {size} bytes, and Consul takes {BODY_LIMIT}"
        )
        raise ValueTooLarge(message, size=size, limit=BODY_LIMIT)
    return limit


def check_permits(prefix: str, permits: object, *, limit: int, value: bytes) -> int:
    """Return a number of slots that one permit can have. Raises InvalidArgument, ValueTooLarge."""
    most = min(limit, MOST_PERMITS)
    if isinstance(permits, bool) or not isinstance(permits, int) or not 1 <= permits <= most:
        why = f"the limit of {prefix!r}" if most == limit else "as many as fit into one transaction"
        message = f"permits must be an integer from 1 to {most}, {why}, not {permits!r}"
        raise InvalidArgument(message)
    check_limit(prefix, limit, value=value, permits=permits)
    return permits


# -- the listing
# ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Listing(Value):
    """One reading of a semaphore."""

    record: Record
    live: Mapping[str, KVPair]
    """The live contenders, by session."""
    index: int
    """Where a watch on the prefix begins from: whatever changed after this reading ends it at once."""
    leftovers: tuple[KVPair, ...] = ()
    """Contenders that nobody holds."""

    @property
    def held(self) -> tuple[str, ...]:
        """The holders that are live."""
        return tuple(one for one in self.record.holders if one in self.live)

    @property
    def dead(self) -> tuple[str, ...]:
        """The holders that the record names, but whose contender is not live."""
        return tuple(one for one in self.record.holders if one not in self.live)

    @property
    def waiters(self) -> tuple[KVPair, ...]:
        """This package's waiters, the first one first."""
        found = (
            pair
            for session, pair in self.live.items()
            if session not in self.record.holders and wanted_by(pair)
        )
        return tuple(sorted(found, key=lambda pair: (pair.create_index, pair.key)))

    def wanted(self, *, but_by: str = "") -> bool:
        """Return whether anybody, except one session, is there without holding a slot; foreign ones too."""
        return any(one != but_by and one not in self.record.holders for one in self.live)


def read(prefix: str, pairs: Iterable[KVPair], *, limit: int, flags: int, index: int) -> Listing:
    """Sort what a listing gave. Raises DecodeError for a record that can't be read."""
    record = None
    live: dict[str, KVPair] = {}
    leftovers: list[KVPair] = []
    for pair in pairs:
        name = pair.key.removeprefix(directory(prefix))
        if name == _RECORD:
            record = pair
        elif pair.session is not None and pair.session == name:
            live[name] = pair
        elif pair.session is None and pair.flags == flags and SESSION_ID.fullmatch(name):
            leftovers.append(pair)
    return Listing(read_record(record, limit=limit, flags=flags), live, index, tuple(leftovers))


# -- the judgement
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Held(Value):
    """We hold our slots already: the reply to the request that took it was lost."""

    own: KVPair


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Gone(Value):
    """Our contender is not there, or is not the one that we made: start over, with another session."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TooSmall(Value):
    """We want more slots than there are: leave the queue."""

    limit: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Take(Value):
    """There is room for us: write this record, at its index, with ``removal`` of the dead it leaves out."""

    own: KVPair
    record: Record
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prune(Value):
    """So many are dead that one take can't remove enough: write this record first, which takes nothing."""

    own: KVPair
    record: Record
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Front(Value):
    """We are the first in the queue, and there is not enough for us: watch the prefix."""

    own: KVPair


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Follow(Value):
    """Somebody waits before us: watch the nearest."""

    own: KVPair
    predecessor: KVPair
    position: int


Verdict = Held | Gone | TooSmall | Take | Prune | Front | Follow


def judge(
    listing: Listing,
    session: str,
    *,
    born: int,
    refused: Collection[str] = frozenset(),
    others: Sequence[str] = (),
) -> Verdict:
    """Return what a listing means for a session whose contender was made at the index ``born``.

    A contender with another CreateIndex belongs to an earlier hold, as an old leader shows it, or was made by
    a request that had been given up. ``refused`` are dead holders whose lock-delay is in force. ``others``
    are the sessions that are to hold a slot each besides.
    """
    own = listing.live.get(session)
    if own is None or own.create_index != born:
        return Gone()
    ours = (session, *others)
    if session in listing.record.holders:
        # A part of what we want is what is left of a take that was given up for lost.
        return Held(own) if listing.live.keys() >= set(ours) <= set(listing.record.holders) else Gone()
    if len(ours) > listing.record.limit:
        return TooSmall(listing.record.limit)
    return _judge_place(listing, own, ours, refused)


def _judge_place(listing: Listing, own: KVPair, ours: tuple[str, ...], refused: Collection[str]) -> Verdict:
    """Return what a listing means for a waiter."""
    record, waiters = listing.record, listing.waiters
    rank = next((rank for rank, pair in enumerate(waiters) if pair.session == ours[0]), None)
    if rank is None:
        return Gone()  # somebody overwrote the mark: nobody would follow us
    dead = [one for one in listing.dead if one not in refused]
    removed = tuple(dead[: most_removed(len(ours))])
    kept = tuple(one for one in record.holders if one not in removed)
    wanted_before = sum(map(wanted_by, waiters[:rank]))
    if wanted_before + len(ours) <= record.limit - len(kept):
        return Take(own, record.with_holders((*kept, *ours)), removed)
    if rank == 0 and len(dead) > len(removed):
        return Prune(own, record.with_holders(kept), removed)
    return Front(own) if rank == 0 else Follow(own, waiters[rank - 1], rank)
