"""One happening of a run with locks, as a value, and a history of them as JSON lines.

A history is written by whoever takes part in a run, each process to a file of its own, and read by `check`,
which judges it, and by `timeline`, which draws it.

================  ==========================================================================================
kind              what happened
================  ==========================================================================================
``waiting``       the actor began to wait for the key (or for a slot, or to be a candidate)
``acquired``      it got the key or a slot; ``fence`` and ``until`` are the hold's
``elected``       it became the leader; ``fence`` is the term
``valid``         it looked at its hold and found it valid at ``at``; ``until`` is as of then
``jeopardy``      its hold can't be renewed at present, and is still valid
``recovered``     the hold in jeopardy was renewed
``lost``          it learnt that its hold had ended; ``until`` is when the lease ended or ends
``released``      it began to give the key, slot or leadership back: it no longer relies on it
``resigned``      the same, of a leader
``gave_up``       it stopped waiting, with nothing
``write``         a write under ``fence`` was acknowledged by the register; ``detail`` names the write
``refused``       a write under ``fence`` was refused by the register, as one of an older hold
``ended``         the session ended at the server, as an observer saw it; no matter who still believes in it
``started``       a process or an agent came up
``died``          a process or an agent ended, by itself or by force
``fault``         a fault was put on ``process``; ``detail`` names it
``healed``        the fault of that name was taken off again; a fault that does not last has none
``note``          anything else that a reader of the picture should see
================  ==========================================================================================

Rules
- ``at`` and ``until`` are seconds on one clock that all writers share and that never goes back: on one
  machine the package's own lease clock, in a simulation the virtual one. Only differences have a meaning.
- A record tells what its writer knew, when it knew it. ``acquired`` is written after the grant, ``released``
  before the release is sent: what lies between is what the actor relied upon.
- A line is one JSON object with all the fields. A last line without its end was cut off, with the process
  that wrote it: `load` can leave it out, and nothing else.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, fields
from typing import IO, TYPE_CHECKING, Any, Final, cast

from consul_coord.errors import ConsulCoordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

KINDS: Final = frozenset(
    {
        *("waiting", "acquired", "elected", "valid", "jeopardy", "recovered", "lost", "released", "resigned"),
        *("gave_up", "write", "refused", "ended", "started", "died", "fault", "healed", "note"),
    }
)
"""Every kind of record."""


class BadHistory(ConsulCoordError, ValueError):
    """A line that is no record. ``line`` counts from 1; 0 is a value that was never in a file."""

    def __init__(self, message: str, *, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One happening.

    ``process`` is the process or agent, ``actor`` the worker within it (empty: the process as a whole).
    ``key`` and ``session`` are empty, ``fence`` and ``until`` None, where a kind has none. ``until`` is until
    when the actor's hold is valid, as it knew then.

    Raises `BadHistory` for a kind that is not one of ``KINDS`` and for fields that a line could not carry.
    """

    at: float
    process: str
    kind: str
    actor: str = ""
    key: str = ""
    session: str = ""
    fence: int | None = None
    until: float | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadHistory(f"{self.kind!r} is no kind of record")
        for name, fits in _FITS.items():
            if not fits(value := getattr(self, name)):
                raise BadHistory(f"{name} can't be {value!r}")


_GREATEST: Final = sys.float_info.max


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _GREATEST


def _is_fence(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


_FITS: Final[dict[str, Callable[[object], bool]]] = {
    "at": _is_time,
    "process": _is_text,
    "actor": _is_text,
    "key": _is_text,
    "session": _is_text,
    "fence": _is_fence,
    "until": lambda value: value is None or _is_time(value),
    "detail": _is_text,
}
_FIELDS: Final = frozenset(field.name for field in fields(Record))


def to_line(record: Record) -> str:
    """Return a record as one line of JSON, with its end."""
    return json.dumps(asdict(record), separators=(",", ":")) + "\n"


def from_line(line: str, *, number: int = 0) -> Record:
    """Return the record that a line holds.

    Raises `BadHistory`, with ``number``, for anything else.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise BadHistory("not JSON", line=number) from None
    if not isinstance(found, dict) or found.keys() != _FIELDS:
        raise BadHistory(f"not an object with exactly the fields {', '.join(sorted(_FIELDS))}", line=number)
    try:
        return Record(**cast("dict[str, Any]", found))
    except BadHistory as error:
        raise BadHistory(str(error), line=number) from None
    except TypeError:
        raise BadHistory("a field has a value of the wrong type", line=number) from None


def dump(records: Iterable[Record], file: IO[str]) -> None:
    """Append records to a text file, a line each."""
    file.writelines(map(to_line, records))


def load(file: IO[str], *, cut_off: bool = False) -> list[Record]:
    """Return the records of a text file, in its order.

    ``cut_off`` says that the writer may have been killed: a last line without its end is left out.

    Raises `BadHistory` for the first line that is no record.
    """
    return [
        from_line(line, number=number)
        for number, line in enumerate(file, start=1)
        if not (cut_off and not line.endswith("\n"))
    ]


def merge(*histories: Iterable[Record]) -> list[Record]:
    """Return the histories of several writers as one, in the order of time; what is equal keeps its order."""
    return sorted((record for history in histories for record in history), key=lambda record: record.at)
