"""How holds, waiters and their clients stand: states, reasons, outcomes, and who is in whose way."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast
from urllib.parse import quote, unquote

from consul_coord.errors import InvalidArgument
from consul_coord.models import _validate
from consul_coord.models.kv import KVPair
from consul_coord.models.reply import CONSISTENT, ReadOptions
from consul_coord.value import Value

if TYPE_CHECKING:
    from consul_coord.models.reply import Result


class HoldState(StrEnum):
    """Where a hold stands in its life."""

    HELD = "held"
    """Ours, as far as a client can know."""
    JEOPARDY = "jeopardy"
    """Still ours, but renewals fail: lost when the lease ends, held again if one gets through before."""
    LOST = "lost"
    RELEASED = "released"


class LossReason(StrEnum):
    """Why a hold was lost."""

    EXPIRED = "expired"
    """The lease ended without a successful renewal."""
    SESSION_GONE = "session_gone"
    """Consul no longer knows the session."""
    RELEASED_BY_OTHER = "released_by_other"
    KEY_DELETED = "key_deleted"
    TAKEN_OVER = "taken_over"
    """Another session holds the key."""
    SLOT_REMOVED = "slot_removed"
    """The semaphore's record no longer names the session."""
    FORKED = "forked"
    """This process is a forked child; the hold is its parent's."""
    CLIENT_CLOSED = "client_closed"
    RESIGNED = "resigned"
    """A leadership was given up here; never the state of a hold, which is RELEASED then."""
    MAX_HOLD = "max_hold"
    """It lasted for its ``max_hold``."""
    STALLED = "stalled"
    """Its holder made no progress: no beat came in the time promised, or its health check failed."""


class ReleaseOutcome(StrEnum):
    """The result of a release."""

    RELEASED = "released"
    ALREADY_LOST = "already_lost"
    UNKNOWN = "unknown"
    """No answer in time; clean-up goes on in the background."""


MOST_NAMED = 3
"""How many holders a message names."""
LONGEST_NAME = 60
"""How many characters of a holder's value a message shows."""
BlockerKind: TypeAlias = Literal["held", "queued", "lock_delay", "unreachable"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Holder(Value):
    """The holder of a lock or a slot."""

    session: str
    """Empty when nobody holds it, and a lock-delay keeps everybody from it."""
    node: str | None = None
    """The session's node, or None when it may not be read."""
    value: bytes = b""
    fence: int = 0
    """The fence of its hold. If the value of a lock or slot was written since, the index of that write."""
    since_index: int = 0
    """The index of the last write to the key; the fence, unless somebody has written since."""
    lock_delay_active: bool = False
    """Whether its last holder's session ended so short a time ago that nobody can have it yet."""

    def describe(self, *, node: bool = False) -> str:
        """Return the holder's name for people; with ``node``, a node that is not known is said to be."""
        value = self.value.decode(errors="replace")
        shown = value if value.isprintable() and " " not in value else repr(value)
        if len(shown) > LONGEST_NAME:
            shown = shown[:LONGEST_NAME] + "…"
        where = f"node {self.node or 'unknown'}, " if node or self.node else ""
        return f"{shown or 'an unnamed client'} ({where}session {self.session})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Blocker(Value):
    """The reason why an acquisition had to wait, or failed."""

    kind: BlockerKind
    session: str | None = None
    """The session that the caller waited for, if it is known: of the holder, or of the waiter ahead."""
    position: int | None = None
    """The caller's place in the queue, counted from 1; None outside a queue."""
    holders: tuple[Holder, ...] = ()
    """The holders as the caller last read them while it waited; empty if it could not read any."""

    def describe(self, cause: object = None, *, nodes: bool = False) -> str:
        """Return the reason as a clause for people.

        ``cause`` is what the server or the network said. ``nodes``: the holders' nodes were looked for, so a
        missing one is unknown.
        """
        more = len(self.holders) - MOST_NAMED
        names = [holder.describe(node=nodes) for holder in self.holders[:MOST_NAMED]]
        holders = ", ".join(names) + (f" and {more} more" if more > 0 else "")
        place = "" if self.position is None else f"; place {self.position} in the queue"
        if self.kind == "held":
            return f"held by {holders or 'another client (unknown)'}{place}"
        if self.kind == "queued":
            return (f"held by {holders}" if holders else "other waiters are first") + place
        if self.kind == "lock_delay":
            return "its last holder's session ended, and the lock-delay is still in force"
        said = "" if cause is None else f": {cause}"
        seen = f"; last seen held by {holders}" if holders else ""
        return f"Consul could not be reached, or could not serve{said}{seen}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Contender(Value):
    """A waiter for a lock or a slot."""

    session: str
    position: int
    """The place in the queue, counted from 1."""
    node: str | None = None
    value: bytes = b""
    create_index: int = 0
    modify_index: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LeaderInfo(Value):
    """The leader of an election."""

    value: bytes
    """The text that the leader shows to followers."""
    session: str
    node: str | None = None
    """The session's node, or None when it may not be read."""
    term: int = 0
    """The leadership's fence: higher than that of every leader before."""
    since_index: int = 0
    """The index of the last write to the key: when the value was advertised, or the leader elected."""

    @property
    def text(self) -> str:
        """The value as UTF-8 text. Raises UnicodeDecodeError for other bytes."""
        return self.value.decode()

    def json(self) -> Any:  # noqa: ANN401 - what JSON holds is the reader's to know
        """Return the value read as JSON. Raises ValueError for anything else."""
        return json.loads(self.value)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Stats(Value):
    """Counters of one client since it was made."""

    requests: int = 0
    retries: int = 0
    failures: int = 0
    """Requests, each try counted, that were not answered, or not served (5xx, 429)."""
    wakeups: int = 0
    """Answers to blocking queries."""
    sessions_created: int = 0
    renewals: int = 0
    renewal_failures: int = 0
    acquired: int = 0
    released: int = 0
    lost: int = 0
    pending_cleanup: int = 0
    """Leftovers on the servers that the client may still have to remove."""


class _KV(Protocol):
    def get(self, key: str, *, options: ReadOptions | None = None) -> Result[KVPair | None]: ...


class _Client(Protocol):
    @property
    def kv(self) -> _KV: ...


class _AsyncKV(Protocol):
    async def get(self, key: str, *, options: ReadOptions | None = None) -> Result[KVPair | None]: ...


class _AsyncClient(Protocol):
    @property
    def kv(self) -> _AsyncKV: ...


_TEXT_FORM = re.compile(r"([0-9]{1,20}):([!-9;-~]*):([!-9;-~]*)")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sequencer(Value):
    """A hold in three values, for a server that wants to know whether the sender still holds the lock.

    ``str(sequencer)`` is printable ASCII without spaces, so that it fits a header; ``parse`` reads it back
    exactly, whatever the key. A plain write to the key, by anybody, sets its lock index to 0: a sequencer
    made before stops matching.
    """

    key: str
    lock_index: int
    session: str

    def __post_init__(self) -> None:
        for name in ("key", "session"):
            if not isinstance(value := cast("object", getattr(self, name)), str):
                _validate.refuse_kind(name, value, "a string")
        _validate.count("lock_index", self.lock_index)

    def __str__(self) -> str:
        return f"{self.lock_index}:{_escape(self.session)}:{_escape(self.key)}"

    @classmethod
    def parse(cls, text: str) -> Sequencer:
        """Read the text form; raise InvalidArgument for anything that ``str`` does not produce."""
        if not isinstance(cast("object", text), str):
            _validate.refuse_kind("text", text, "the string that str(sequencer) gives")
        if match := _TEXT_FORM.fullmatch(text):
            index, session, key = match.groups()
            sequencer = cls(_unescape(key), int(index), _unescape(session))
            if str(sequencer) == text:
                return sequencer
        message = f"not a sequencer (index:session:key, percent-encoded): {text[:200]!r}"
        raise InvalidArgument(message)

    def matches(self, pair: KVPair | None) -> bool:
        """Return whether a key, as it was read, is held by this very hold."""
        if pair is not None:
            _validate.instance("pair", pair, KVPair)
        return pair is not None and (pair.session, pair.lock_index) == (self.session, self.lock_index)

    def verify(self, client: _Client) -> bool:
        """Return whether the hold still stood when the leader answered, by one consistent read.

        True says nothing about a moment later: a fence that the resource itself compares is the stronger
        check. Raises what ``client.kv.get`` raises, and InvalidArgument for what is no ``Client``.
        """
        _check_client(client, "Client", other="averify")
        return self.matches(client.kv.get(self.key, options=CONSISTENT).value)

    async def averify(self, client: _AsyncClient) -> bool:
        """Return what ``verify`` returns, for an async client. Raises InvalidArgument for another one."""
        _check_client(client, "AsyncClient", other="verify")
        return self.matches((await client.kv.get(self.key, options=CONSISTENT)).value)


def _check_client(client: object, kind: str, *, other: str) -> None:
    """Refuse what has no keys to read, or reads them in the other way."""
    get = getattr(getattr(client, "kv", None), "get", None)
    if not callable(get):
        _validate.refuse_kind("client", client, f"of the class {kind}")
    if _validate.is_awaited(get) != (kind == "AsyncClient"):
        _validate.refuse_kind("client", client, f"of the class {kind} (or call {other})")


# Lone surrogates are kept: a sequencer must come back equal even for a key that could never have been locked.
def _escape(part: str) -> str:
    return quote(part, safe="/", errors="surrogatepass")


def _unescape(part: str) -> str:
    try:
        return unquote(part, errors="surrogatepass")
    except UnicodeDecodeError:
        return ""
