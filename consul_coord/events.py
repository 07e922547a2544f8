"""What happens inside, as typed events: for an ``Observer``, and for the log by default.

Rules
- An event is a frozen fact with seconds as float and no token in it.
- Levels: a loss or a failing agent is a warning, a bug an error, everything else is for debugging. Of an
  outage the first failed renewal is a warning, and the end an information: not each try in between.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from consul_coord.models import Blocker, LossReason, ReleaseOutcome

logger = logging.getLogger("consul_coord")


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    level: ClassVar[int] = logging.DEBUG
    """How the log ranks events of this kind."""

    @property
    def rank(self) -> int:
        """How the log ranks this one."""
        return self.level

    def describe(self) -> str:
        """Return one line of text, e.g. for a log; seconds are rounded to milliseconds."""
        parts = (f"{f.name}={_told(getattr(self, f.name))}" for f in fields(self))
        return f"{type(self).__name__.lower()} " + " ".join(parts)


def _told(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """An acquire did not succeed at once."""

    key: str
    blocker: Blocker


@dataclass(frozen=True, slots=True)
class Acquired(Event):
    """A hold was granted."""

    key: str
    session: str
    fence: int
    waited: float


@dataclass(frozen=True, slots=True)
class TimedOut(Event):
    """An acquire or a single try gave up: its time was over, and this stood in the way."""

    key: str
    blocker: Blocker
    waited: float


@dataclass(frozen=True, slots=True)
class Renewed(Event):
    """A session's lease was extended; ``remaining`` seconds are left now.

    ``recovered``: after renewals that failed.
    """

    session: str
    remaining: float
    recovered: bool = False

    @property
    def rank(self) -> int:
        """INFO at the end of an outage."""
        return logging.INFO if self.recovered else self.level


@dataclass(frozen=True, slots=True)
class Jeopardy(Event):
    """A renewal failed; the lease still has ``remaining`` seconds.

    ``repeated``: so did the one before it.
    """

    level: ClassVar[int] = logging.WARNING
    session: str
    remaining: float
    error: str
    repeated: bool = False

    @property
    def rank(self) -> int:
        """DEBUG when the outage was told before."""
        return logging.DEBUG if self.repeated else self.level


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """A hold ended without being released."""

    level: ClassVar[int] = logging.WARNING
    key: str
    session: str
    fence: int
    reason: LossReason


@dataclass(frozen=True, slots=True)
class Released(Event):
    """A hold was given up."""

    key: str
    session: str
    fence: int
    outcome: ReleaseOutcome


@dataclass(frozen=True, slots=True)
class HandedOver(Event):
    """A hold goes on without this client, for whoever resumes its exported session."""

    key: str
    session: str
    fence: int


@dataclass(frozen=True, slots=True)
class FencesRestarted(Event):
    """A hold got a lower fence than an earlier one: the servers' data were restored or rebuilt."""

    level: ClassVar[int] = logging.WARNING
    key: str
    last: int
    fence: int


@dataclass(frozen=True, slots=True)
class Elected(Event):
    """A candidate of this client leads now."""

    key: str
    session: str
    term: int


@dataclass(frozen=True, slots=True)
class Resigned(Event):
    """A leader of this client gives its leadership up."""

    key: str
    session: str
    term: int


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """This client is a member of a group now; ``again``: it had been one, and had lost that."""

    key: str
    session: str
    index: int
    again: bool = False

    @property
    def rank(self) -> int:
        """INFO when it had been lost, which was a warning."""
        return logging.INFO if self.again else self.level


@dataclass(frozen=True, slots=True)
class Forgotten(Event):
    """A hold was dropped without being released; it is given back in the background."""

    level: ClassVar[int] = logging.WARNING
    key: str
    session: str
    fence: int

    def describe(self) -> str:
        """Return the line with the way out."""
        return f"{Event.describe(self)}: this hold was dropped; use `with`, or call its release()"


@dataclass(frozen=True, slots=True)
class Overwritten(Event):
    """Somebody else wrote the value of a held key; the hold itself goes on."""

    level: ClassVar[int] = logging.WARNING
    key: str
    session: str
    modify_index: int


@dataclass(frozen=True, slots=True)
class SessionDiffers(Event):
    """The server keeps a session with other settings than were asked for."""

    level: ClassVar[int] = logging.WARNING
    session: str
    setting: str
    asked: str
    got: str


@dataclass(frozen=True, slots=True)
class ShortHorizon(Event):
    """A session's TTL or lock-delay is below 1 s: it is renewed every third of these ``horizon`` seconds.

    Each client reports each such time once.
    """

    level: ClassVar[int] = logging.WARNING
    session: str
    horizon: float


@dataclass(frozen=True, slots=True)
class Retried(Event):
    """A request is sent again."""

    method: str
    path: str
    error: str


@dataclass(frozen=True, slots=True)
class Cleaned(Event):
    """What an ended attempt may have left was looked for and, if found, removed.

    ``key`` is empty when it was a session that nobody knew of.
    """

    key: str
    session: str
    found: bool


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """A background program or a user's callback raised: a bug there, which ended nothing else."""

    level: ClassVar[int] = logging.ERROR
    where: str
    error: str


class Observer(Protocol):
    """Receives every event, on the callback thread (async: in the event loop). What it raises is logged."""

    def on_event(self, event: Event) -> None:
        """Take notice of an event."""
        ...


def log(event: Event) -> None:
    """Write an event to the package's logger at its level."""
    if logger.isEnabledFor(event.rank):
        logger.log(event.rank, "%s", event.describe())
