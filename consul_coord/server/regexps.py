"""Regular expressions: Python's, with Go's words for those that are malformed."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from consul_coord.server.gotext import GoParseError

_PROBLEMS: Final = {
    "nothing to repeat": ("missing argument to repetition operator", False),
    "missing ), unterminated subpattern": ("missing closing )", True),
    "unbalanced parenthesis": ("unexpected )", True),
    "unterminated character set": ("missing closing ]", True),
}
"""Go's message for each of Python's, and whether it shows all of the pattern with it."""


@lru_cache(maxsize=64)
def compiled(text: str) -> re.Pattern[str]:
    """Return a pattern; raise ``GoParseError`` for an invalid one."""
    try:
        return re.compile(text)
    except re.error as error:
        problem, of_all = _PROBLEMS.get(error.msg, (error.msg, False))
        at = text if of_all or error.pos is None else text[error.pos : error.pos + 1]
        message = f"error parsing regexp: {problem}: `{at}`"
        raise GoParseError(message) from None
