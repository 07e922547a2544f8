"""The names of the sessions that this package makes: the user's own, with a mark that no other session has.

``billing`` becomes ``billing #5f0c1a2b3c4d-1``: the client's mark, and how many sessions it has asked for.

Rules
- A create whose reply is lost leaves a session whose id nobody knows. By its name, and by nothing else, it
  can be found, and told from those that others have made under the same name.
- A search for sessions by a user's name finds them with and without a mark.
"""

from __future__ import annotations

import fnmatch
import re
from itertools import count

UNNAMED = "consul-coord"
"""The name where the user gave none."""
_MARK = re.compile(r" #[0-9a-f]{12}-[0-9]+\Z")


class Names:
    """Gives each session that one client asks for a name of its own. ``random`` is in [0, 1)."""

    def __init__(self, random: float) -> None:
        self._client = f"{int(random * 16**12):012x}"
        self._numbers = count(1)

    def unique(self, name: str | None) -> str:
        """Return the name for the next session."""
        return f"{name or UNNAMED} #{self._client}-{next(self._numbers)}"


def without_mark(name: str) -> str:
    """Return a session's name as its user gave it."""
    return _MARK.sub("", name)


def means(wanted: str, name: str) -> bool:
    """Return whether a session of this name is meant.

    ``*``, ``?`` and ``[...]`` in ``wanted`` match as in a shell.
    """
    return any(fnmatch.fnmatchcase(form, wanted) for form in (name, without_mark(name)))
