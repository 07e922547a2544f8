"""The holds, waits and faults of a history, from its records. Pure.

Rules
- A hold begins with ``acquired`` or ``elected`` and ends with ``lost``, ``released`` or ``resigned`` of the
  same process, actor, key and fence, or with the end of its process, or with the history.
- It counts as relied upon until its end was written, but no longer than its lease. The lease ends at the
  ``until`` of the record that ends the hold, if that has one. For a process that died it ends at the last
  ``until`` known of the hold.
- An ``ended`` record with the detail ``forced`` is an operator's doing. A hold of its session (and of its
  key, if it names one) counts as relied upon until then only: nobody can protect a holder from an operator.
- A wait ends with the hold that comes of it, or with ``gave_up``, or with its process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from consul_coord.testing.history.record import Record

BEGINS: Final = frozenset({"acquired", "elected"})
ENDS: Final = frozenset({"lost", "released", "resigned"})
FORCED: Final = "forced"
_NEWS: Final = frozenset({"valid", "jeopardy", "recovered"})


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of time, in seconds on the history's clock."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold: of whom, how long it was relied upon, and what it went through.

    ``relied`` is the time in which the holder relied on it, ``told`` when its end was written.
    ``jeopardy`` and ``dead`` are the parts of ``relied`` in which it could not be renewed, and in which its
    session had ended at the server. ``got`` is the kind of the record that began it, ``how`` that of the one
    that ended it, or ``open``.
    """

    process: str
    actor: str
    key: str
    session: str
    fence: int | None
    relied: Span
    told: float
    got: str
    how: str
    jeopardy: tuple[Span, ...]
    dead: Span | None


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait for a key. ``how`` is the kind of the record that ended it, ``died``, or ``open``."""

    process: str
    actor: str
    key: str
    span: Span
    how: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that was put on a process or agent, from then until it was healed."""

    process: str
    detail: str
    span: Span
    lasts: bool


@dataclass(frozen=True, slots=True)
class Spans:
    """All that lasts in one history, each kind in the order of its beginnings."""

    holds: tuple[Hold, ...]
    waits: tuple[Wait, ...]
    faults: tuple[Fault, ...]
    whole: Span


def read(records: Iterable[Record]) -> Spans:
    """Return what lasts in a history, given in the order of time.

    An end of what never began is left out, as is the beginning of what had begun already.
    """
    reader = _Reader()
    for record in records:
        reader.read(record)
    return reader.spans()


class _OpenHold:
    """A hold whose end has not been read."""

    def __init__(self, first: Record) -> None:
        self.first = first
        self.until = first.until
        self._jeopardy: list[Span] = []
        self._since: float | None = None

    def news(self, record: Record) -> None:
        self.until = self.until if record.until is None else record.until
        if record.kind != "jeopardy":
            self._out_of_jeopardy(record.at)
        elif self._since is None:
            self._since = record.at

    def _out_of_jeopardy(self, at: float) -> None:
        if self._since is not None:
            self._jeopardy.append(Span(self._since, max(at, self._since)))
            self._since = None

    def close(self, *, at: float, how: str, until: float | None) -> Hold:
        first = self.first
        ended = max(first.at, at if until is None else min(at, until))
        self._out_of_jeopardy(ended)
        return Hold(
            process=first.process,
            actor=first.actor,
            key=first.key,
            session=first.session,
            fence=first.fence,
            relied=Span(first.at, ended),
            told=max(at, ended),
            got=first.kind,
            how=how,
            jeopardy=tuple(self._jeopardy),
            dead=None,
        )


class _Reader:
    """Reads records one by one; what each kind means is in one table."""

    def __init__(self) -> None:
        self._holding: dict[tuple[str, str, str, int | None], _OpenHold] = {}
        self._waiting: dict[tuple[str, str, str], Record] = {}
        self._faulty: dict[tuple[str, str], Record] = {}
        self._holds: list[Hold] = []
        self._waits: list[Wait] = []
        self._faults: list[Fault] = []
        self._ended: dict[str, list[Record]] = {}
        self._first = self._last = 0.0
        self._empty = True
        self._by_kind: Mapping[str, Callable[[Record], None]] = {
            "waiting": self._begin_waiting,
            "gave_up": self._end_waiting,
            "fault": self._begin_fault,
            "healed": self._end_fault,
            "ended": self._session_ended,
            "died": self._died,
            **dict.fromkeys(BEGINS, self._begin_hold),
            **dict.fromkeys(ENDS, self._end_hold),
            **dict.fromkeys(_NEWS, self._news),
        }

    def read(self, record: Record) -> None:
        if self._empty:
            self._first, self._empty = record.at, False
        self._last = record.at
        act = self._by_kind.get(record.kind)
        if act is not None:
            act(record)

    def spans(self) -> Spans:
        for open_hold in self._holding.values():
            self._holds.append(open_hold.close(at=self._last, how="open", until=open_hold.until))
        for waiting in self._waiting.values():
            self._waits.append(_wait(waiting, at=self._last, how="open"))
        for fault in self._faulty.values():
            self._faults.append(_fault(fault, None))
        return Spans(
            holds=tuple(sorted(map(self._with_session, self._holds), key=lambda hold: hold.relied.began)),
            waits=tuple(sorted(self._waits, key=lambda wait: wait.span.began)),
            faults=tuple(sorted(self._faults, key=lambda fault: fault.span.began)),
            whole=Span(self._first, self._last),
        )

    def _begin_waiting(self, record: Record) -> None:
        self._waiting.setdefault(_place(record), record)

    def _end_waiting(self, record: Record) -> None:
        waiting = self._waiting.pop(_place(record), None)
        if waiting is not None:
            self._waits.append(_wait(waiting, at=record.at, how=record.kind))

    def _begin_hold(self, record: Record) -> None:
        self._end_waiting(record)
        self._holding.setdefault((*_place(record), record.fence), _OpenHold(record))

    def _news(self, record: Record) -> None:
        held = self._holding.get((*_place(record), record.fence))
        if held is not None:
            held.news(record)

    def _end_hold(self, record: Record) -> None:
        held = self._holding.pop((*_place(record), record.fence), None)
        if held is not None:
            self._holds.append(held.close(at=record.at, how=record.kind, until=record.until))

    def _died(self, record: Record) -> None:
        for name in [name for name in self._holding if name[0] == record.process]:
            held = self._holding.pop(name)
            self._holds.append(held.close(at=record.at, how=record.kind, until=held.until))
        for place in [place for place in self._waiting if place[0] == record.process]:
            self._waits.append(_wait(self._waiting.pop(place), at=record.at, how=record.kind))

    def _begin_fault(self, record: Record) -> None:
        earlier = self._faulty.pop((record.process, record.detail), None)
        if earlier is not None:
            self._faults.append(_fault(earlier, None))
        self._faulty[record.process, record.detail] = record

    def _end_fault(self, record: Record) -> None:
        fault = self._faulty.pop((record.process, record.detail), None)
        if fault is not None:
            self._faults.append(_fault(fault, record.at))

    def _session_ended(self, record: Record) -> None:
        self._ended.setdefault(record.session, []).append(record)

    def _with_session(self, hold: Hold) -> Hold:
        """Return the hold with the time in which its session had ended already."""
        for end in self._ended.get(hold.session, ()) if hold.session else ():
            if end.key in {"", hold.key} and hold.relied.began <= end.at < hold.relied.ended:
                if end.detail == FORCED:
                    return replace(hold, relied=Span(hold.relied.began, end.at))
                return replace(hold, dead=Span(end.at, hold.relied.ended))
        return hold


def _place(record: Record) -> tuple[str, str, str]:
    return record.process, record.actor, record.key


def _wait(first: Record, *, at: float, how: str) -> Wait:
    return Wait(process=first.process, actor=first.actor, key=first.key, span=Span(first.at, at), how=how)


def _fault(first: Record, healed: float | None) -> Fault:
    ended = first.at if healed is None else healed
    return Fault(
        process=first.process, detail=first.detail, span=Span(first.at, ended), lasts=healed is not None
    )
