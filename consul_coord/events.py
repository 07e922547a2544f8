"""Typed events of a client: for an ``Observer``, and for the log.

Rules
- An event is a frozen fact with seconds as float and no token in it.
- ``describe`` returns a sentence that names the key. It says what happened, since when, and what to do if
  something has to be done. The log and the command line show it.
- The log has a loss or a failing agent as a warning, a bug as an error, and everything else for debugging.
- An outage is two lines for each client: ``OutageBegan`` as a warning, ``OutageEnded`` as information. The
  events of each session, ``Jeopardy`` and ``Renewed``, are for debugging.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Protocol

from consul_coord.value import Value

if TYPE_CHECKING:
    from consul_coord.models import Blocker, LossReason, ReleaseOutcome

logger = logging.getLogger("consul_coord")
MOST_NAMED = 3
"""How many keys a sentence names."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Event(Value):
    """Base of all events."""

    level: ClassVar[int] = logging.DEBUG
    """How the log ranks events of this kind, at the most."""

    @property
    def rank(self) -> int:
        """How the log ranks this one."""
        return self.level

    def describe(self) -> str:
        """Return one sentence for people: the log and the command line show it."""
        parts = (f"{f.name}={getattr(self, f.name)}" for f in fields(self))
        return f"{type(self).__name__} " + " ".join(parts)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Waiting(Event):
    """An acquire did not succeed at once."""

    key: str
    blocker: Blocker
    error: str = ""
    """Why Consul could not be asked; empty if it could."""

    def describe(self) -> str:
        """Return one sentence."""
        return f"waiting for {self.key}: {self.blocker.describe(self.error or None)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Acquired(Event):
    """A hold was granted."""

    key: str
    session: str
    fence: int
    waited: float

    def describe(self) -> str:
        """Return one sentence."""
        return f"acquired {self.key} after {self.waited:.2f} s (fence {self.fence}, session {self.session})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TimedOut(Event):
    """An acquire or a single try gave up: its time was over, and this stood in the way."""

    key: str
    blocker: Blocker
    waited: float

    def describe(self) -> str:
        """Return one sentence."""
        return f"gave up waiting for {self.key} after {self.waited:.2f} s: {self.blocker.describe()}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OutageBegan(Event):
    """A renewal failed, the first one of an outage: the client retries until contact is back."""

    level: ClassVar[int] = logging.WARNING
    error: str
    silent: float
    """Seconds since the last successful renewal was sent."""
    remaining: float
    """Seconds until the first of ``keys`` is lost."""
    keys: tuple[str, ...] = ()
    """The keys that the client holds, in all its sessions."""

    def describe(self) -> str:
        """Return one sentence."""
        held = _held(self.keys, self.remaining)
        then = " unless contact comes back" if self.keys else ", and tries again"
        return f"no contact with Consul for {self.silent:.1f} s ({self.error}): {held}{then}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OutageEnded(Event):
    """Consul renews the client's sessions again; the holds that were lost meanwhile have been reported."""

    level: ClassVar[int] = logging.INFO
    seconds: float
    """How long the outage lasted."""
    remaining: float
    """Seconds until the first of ``keys`` would be lost."""
    keys: tuple[str, ...] = ()
    """The keys that the client still holds."""

    def describe(self) -> str:
        """Return one sentence."""
        return f"contact with Consul is back after {self.seconds:.1f} s: {_held(self.keys, self.remaining)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Renewed(Event):
    """A session's lease was extended; ``remaining`` seconds are left now.

    ``recovered``: after renewals that failed.
    """

    session: str
    remaining: float
    recovered: bool = False
    keys: tuple[str, ...] = ()
    """The keys that the session holds for this client, if it ``recovered``."""

    def describe(self) -> str:
        """Return one sentence."""
        again = " again" if self.recovered else ""
        return f"renewed session {self.session}{again}: its lease lasts another {self.remaining:.1f} s"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Jeopardy(Event):
    """A renewal failed; the lease still has ``remaining`` seconds.

    ``repeated``: so did the one before it.
    """

    session: str
    remaining: float
    error: str
    repeated: bool = False
    keys: tuple[str, ...] = ()
    """The keys that the session holds for this client."""
    silent: float = 0.0
    """Seconds since the last successful renewal was sent."""

    def describe(self) -> str:
        """Return one sentence."""
        return (
            f"did not renew session {self.session} for {self.silent:.1f} s ({self.error}): its lease lasts "
            f"another {self.remaining:.1f} s"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lost(Event):
    """A hold ended without being released."""

    level: ClassVar[int] = logging.WARNING
    key: str
    session: str
    fence: int
    reason: LossReason

    def describe(self) -> str:
        """Return one sentence."""
        reason = self.reason.replace("_", " ")
        return f"lost {self.key} (fence {self.fence}, session {self.session}): {reason}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Released(Event):
    """A hold was given up."""

    key: str
    session: str
    fence: int
    outcome: ReleaseOutcome

    def describe(self) -> str:
        """Return one sentence."""
        outcome = {
            "released": "released",
            "already_lost": "released too late, as it was lost before:",
            "unknown": "sent no answered release yet, and goes on trying, for",
        }[self.outcome]
        return f"{outcome} {self.key} (fence {self.fence}, session {self.session})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HandedOver(Event):
    """A hold goes on without this client, for whoever resumes its exported session."""

    key: str
    session: str
    fence: int

    def describe(self) -> str:
        """Return one sentence."""
        return f"left {self.key} (fence {self.fence}) to the client that resumes session {self.session}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FencesRestarted(Event):
    """A hold got a lower fence than an earlier one: the servers' data were restored or rebuilt."""

    level: ClassVar[int] = logging.WARNING
    key: str
    last: int
    fence: int

    def describe(self) -> str:
        """Return one sentence."""
        return (
            f"the fence of {self.key} fell from {self.last} to {self.fence}: the servers' data were restored "
            "or rebuilt, so reset the highest fence that your resource remembers"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Elected(Event):
    """A candidate of this client leads now."""

    key: str
    session: str
    term: int

    def describe(self) -> str:
        """Return one sentence."""
        return f"elected leader of {self.key} (term {self.term}, session {self.session})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Resigned(Event):
    """A leader of this client gives its leadership up."""

    key: str
    session: str
    term: int

    def describe(self) -> str:
        """Return one sentence."""
        return f"resigned as leader of {self.key} (term {self.term}, session {self.session})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Joined(Event):
    """This client is a member of a group now; ``again``: it had been one, and had lost that."""

    level: ClassVar[int] = logging.INFO
    key: str
    session: str
    index: int
    again: bool = False

    @property
    def rank(self) -> int:
        """INFO only when it had been lost, which was a warning."""
        return self.level if self.again else logging.DEBUG

    def describe(self) -> str:
        """Return one sentence."""
        verb = "joined again as" if self.again else "joined as"
        return f"{verb} {self.key} (session {self.session})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Forgotten(Event):
    """A hold was dropped without being released; it is given back in the background."""

    level: ClassVar[int] = logging.WARNING
    key: str
    session: str
    fence: int

    def describe(self) -> str:
        """Return one sentence."""
        return (
            f"the hold of {self.key} (fence {self.fence}) was dropped without a release: "
            "use `with`, or call its release()"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Overwritten(Event):
    """Somebody else wrote the value of a held key; the hold itself goes on."""

    level: ClassVar[int] = logging.WARNING
    key: str
    session: str
    modify_index: int

    def describe(self) -> str:
        """Return one sentence."""
        return f"another client wrote the value of {self.key}, which is still held here"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SessionDiffers(Event):
    """The server keeps a session with other settings than were asked for."""

    level: ClassVar[int] = logging.WARNING
    session: str
    setting: str
    asked: str
    got: str

    def describe(self) -> str:
        """Return one sentence."""
        return f"Consul gave session {self.session} the {self.setting} {self.got} instead of {self.asked}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShortHorizon(Event):
    """A session's TTL or lock-delay is under 1 s: it is renewed at two fifths of these ``horizon`` seconds.

    Each client reports each such time once.
    """

    level: ClassVar[int] = logging.WARNING
    session: str
    horizon: float

    def describe(self) -> str:
        """Return one sentence."""
        return (
            f"the TTL or lock-delay of session {self.session} is only {self.horizon:g} s: a stall that long "
            "loses what it holds"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SlotAhead(Event):
    """A job did not run because its record names a slot in the future: a clock is wrong, here or there."""

    level: ClassVar[int] = logging.WARNING

    key: str
    slot: str
    by: str
    """The client that ran the slot."""
    seconds: float
    """How far ahead of this machine's clock the slot begins."""

    def describe(self) -> str:
        """Return one line of text, with the way out."""
        return (
            f"the job {self.key!r} did not run: {self.by} has already run its slot {self.slot}, which begins "
            f"in {self.seconds:.0f} s by this machine's clock. Set the clock that is wrong. If it was that "
            f"of {self.by}, delete the key {self.key}/.once"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FailedOver(Event):
    """Requests go to another agent from now on: the address of the one that served, and the new one's."""

    level: ClassVar[int] = logging.WARNING
    old: str
    new: str

    def describe(self) -> str:
        """Return one sentence."""
        return f"the agent at {self.old} does not serve: requests go to {self.new} from now on"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ConnectionsRefused(Event):
    """The agent takes no more connections from this address, by ``limits.http_max_conns_per_client``.

    The client goes on with its open connections. Reported once until half a minute passed without a refusal.
    """

    level: ClassVar[int] = logging.WARNING
    address: str

    def describe(self) -> str:
        """Return one sentence."""
        return (
            f"the agent at {self.address} takes no more connections from this host: this client goes on with "
            "those it has, and tries again. Raise limits.http_max_conns_per_client (200 by default), or run "
            "fewer clients"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AgentRefused(Event):
    """One of several addresses leads to another cluster or datacenter: it is not used."""

    level: ClassVar[int] = logging.WARNING
    address: str
    reason: str

    def describe(self) -> str:
        """Return one sentence."""
        return f"{self.reason}. It is not used: correct the list of addresses"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Retried(Event):
    """A request is sent again."""

    method: str
    path: str
    error: str

    def describe(self) -> str:
        """Return one sentence."""
        request = f"{self.method} {self.path}: "
        return f"retrying {request}{self.error.replace(request, '', 1)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cleaned(Event):
    """The client looked for leftovers of an ended attempt, and removed them.

    ``key`` is empty when it was a session that nobody knew of.
    """

    key: str
    session: str
    found: bool

    def describe(self) -> str:
        """Return one sentence."""
        what = self.key or "a session without an owner"
        return f"cleaned up {what}" if self.found else f"found nothing to clean up at {what}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Failed(Event):
    """A background program or a user's callback raised: a bug there, which ended nothing else."""

    level: ClassVar[int] = logging.ERROR
    where: str
    error: str

    def describe(self) -> str:
        """Return one sentence."""
        return f"{self.where} raised {self.error}"


def _held(keys: tuple[str, ...], remaining: float) -> str:
    """Return what a client holds, with its verb."""
    if not keys:
        return "this client holds nothing"
    more = len(keys) - MOST_NAMED
    names = ", ".join(keys[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    lasts = "" if remaining == math.inf else f" for another {remaining:.1f} s"
    return f"{names} {'stays' if len(keys) == 1 else 'stay'} held{lasts}"


class Observer(Protocol):
    """Receives every event, on the callback thread or in the event loop; errors that it raises are logged."""

    def on_event(self, event: Event) -> None:
        """Take notice of an event."""
        ...
