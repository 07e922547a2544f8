"""What one worker does with a hold, and writes down of it: the same for blocking and async workers.

Rules
- A time is taken before what it is the time of, where a later one would claim too much: whoever is stopped
  between a look and its record did not look later. The grant is the exception, whose time is that of the
  return; if the lease had run out by then, it is the end of the lease.
- A hold is given up in the diary before it is given up at the servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from consul_coord.testing.history import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.recipes.hold.view import HoldView
    from proof.chaos.journal import Journal
    from proof.chaos.register import Register

BUG: Final = "bug: "
"""Begins the detail of a note about something that must not happen."""
CLOSED: Final = "closed"
"""The detail of the note of a process that ended as it should."""


class Diary:
    """The records of one worker about one key."""

    def __init__(
        self,
        journal: Journal,
        register: Register,
        *,
        process: str,
        actor: str,
        key: str,
        now: Callable[[], float],
        life: int,
    ) -> None:
        self._journal = journal
        self._register = register
        self._process = process
        self._actor = actor
        self._key = key
        self._now = now
        self._life = life
        self._writes = 0

    def say(self, kind: str, *, detail: str = "") -> None:
        """Write down what has nothing to do with a hold."""
        self._add(kind, self._now(), detail=detail)

    def begin(self, kind: str, hold: HoldView) -> None:
        """Write down a grant."""
        until = hold.deadline()
        self._add(kind, min(self._now(), until), hold, until=until)

    def work(self, hold: HoldView) -> bool:
        """Look at the hold, and write to the register if it is valid; returns whether it was."""
        at = self._now()
        until = hold.deadline()
        if not self.believes(hold):
            return False
        self._add("valid", at, hold, until=until)
        self._writes += 1
        name = f"{self._process}.{self._life}-{self._actor}-{self._writes}"
        taken = self._register.write(hold.fence, name)
        if taken is not None:
            self._add("write" if taken else "refused", self._now(), hold, detail=name)
        return True

    def believes(self, hold: HoldView) -> bool:
        """Return whether the worker goes on working under the hold."""
        return hold.is_held

    def until(self, hold: HoldView) -> float | None:
        """Return when the worker stops to believe in the hold by itself; None for never."""
        return hold.deadline()

    def end(self, kind: str, hold: HoldView) -> None:
        """Write down that the hold is not relied upon any more."""
        self._add(kind, self._now(), hold, until=self.until(hold), detail=hold.reason or "")

    def _add(
        self,
        kind: str,
        at: float,
        hold: HoldView | None = None,
        *,
        until: float | None = None,
        detail: str = "",
    ) -> None:
        self._journal.add(
            Record(
                at=at,
                process=self._process,
                actor=self._actor,
                kind=kind,
                key=self._key,
                session=hold.session if hold else "",
                fence=hold.fence if hold else None,
                until=until,
                detail=detail,
            )
        )
