"""The screen of ``top``, and how keys change it: pure, from places and times to lines.

Rules
- Every line fits the screen. Rows that don't fit are announced, and scrolled to.
- A filter keeps the rows that have its text anywhere, in whatever case.
- Consul tells no times. How long something has been held is counted from when it was first seen here; what
  was there at the first look has been held for longer, which is marked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.cli import holders, tables
from consul_coord.cli.tables import Column

if TYPE_CHECKING:
    from consul_coord.cli.survey import Place

COLUMNS = (*holders.COLUMNS, Column("HELD"))
_HEAD = 3
"""Lines above the rows: the title, a problem, the names of the columns."""
_KEY, _PLACE, _SESSION, _FENCE = 1, 2, 4, 6


class View:
    """The places seen last, as somebody wants to see them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._places: tuple[Place, ...] | None = None
        self._rows: list[tuple[str, ...]] = []
        self._ages = _Ages()
        self._top = 0
        """How many rows are above the screen."""
        self._page = 1
        self._filter = ""
        self._typing = False

    def see(self, places: tuple[Place, ...], now: float) -> None:
        """Show these places from now on."""
        self._places = places
        self._rows = holders.rows(places)
        self._ages.see(self._rows, now)

    def press(self, key: str) -> bool:
        """Do what a key is for; returns False when that is to end."""
        if self._typing:
            self._type(key)
        elif key in {"q", "Q"}:
            return False
        elif key == "/":
            self._typing = True
        elif key == "ESCAPE":
            self._filter = ""
        else:
            self._top += {
                "UP": -1,
                "DOWN": 1,
                "PAGE UP": -self._page,
                "PAGE DOWN": self._page,
                "HOME": -self._top,
                "END": len(self._rows),
            }.get(key, 0)
        return True

    def _type(self, key: str) -> None:
        if key in {"ENTER", "ESCAPE"}:
            self._typing = False
            self._filter = self._filter if key == "ENTER" else ""
        elif key == "BACKSPACE":
            self._filter = self._filter[:-1]
        elif key.isprintable() and len(key) == 1:
            self._filter += key
        self._top = 0

    def lines(self, size: tuple[int, int], *, now: float, clock: str, problem: str) -> list[str]:
        """Return the lines: title, problem, names of columns, rows, and what keys do."""
        width, height = size
        rows = [(*row, self._ages.of(row, now)) for row in self._rows if self._wanted(row)]
        self._page = max(1, height - _HEAD - 1)
        self._top = max(0, min(self._top, len(rows) - self._page))
        # All rows, so that the columns stand still while they are scrolled.
        head, *body = tables.fitted(COLUMNS, rows, width)
        shown = body[self._top : self._top + self._page]
        shown += [""] * (self._page - len(shown))
        title = f"{self._prefix or '(everything)'}: {self._counts()}   {clock}"
        lines = [title, self._warning(problem), head, *shown, self._bottom(len(rows))]
        return [tables.cut(line, width) for line in lines]

    def _warning(self, problem: str) -> str:
        if not problem:
            return ""
        return f"no answer{'' if self._places is None else ', this may be old'}: {problem}"

    def _wanted(self, row: tuple[str, ...]) -> bool:
        return not self._filter or any(self._filter.lower() in cell.lower() for cell in row)

    def _counts(self) -> str:
        if self._places is None:
            return "looking"
        held = sum(len(place.holders) for place in self._places)
        return f"{held} held, {sum(len(place.waiters) for place in self._places)} waiting"

    def _bottom(self, found: int) -> str:
        if self._typing:
            return f"/{self._filter}_   Enter keeps the filter, Escape removes it"
        parts: list[str] = []
        if found > self._page:
            last = min(self._top + self._page, found)
            parts.append(f"rows {self._top + 1}-{last} of {found}, arrows scroll")
        if self._filter:
            parts.append(f"only {self._filter!r}, Escape shows all")
        return "   ".join((*parts, "/ filters", "q quits"))


class _Ages:
    """For how long each hold has been seen."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str, str], tuple[float, str]] = {}
        self._mark = "+"

    def see(self, rows: list[tuple[str, ...]], now: float) -> None:
        """Take notice of the holds that there are now."""
        held = [self._key(row) for row in rows if row[_FENCE]]
        self._since = {key: self._since.get(key, (now, self._mark)) for key in held}
        self._mark = ""

    def of(self, row: tuple[str, ...], now: float) -> str:
        """Return the age to be shown for a row; nothing for one without a holder."""
        since, mark = self._since.get(self._key(row), (None, ""))
        return "" if since is None else f"{_age(now - since)}{mark}"

    @staticmethod
    def _key(row: tuple[str, ...]) -> tuple[str, str, str]:
        return row[_KEY], row[_SESSION], row[_FENCE]


def _age(seconds: float) -> str:
    """Return a time in a few characters."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
