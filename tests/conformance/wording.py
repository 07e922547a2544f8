"""How versions after 1.8 word what 1.8 is known to say word for word.

Rules
- Measured on 1.20.6, built with Go 1.26; what lies between says the one or the other.
- Each row is what 1.8 says, as a pattern, and what a later one may say for it, as a pattern in which ``\\1``
  stands for what the first one's group has found.
- What the state machine refuses may come with a word on who refused it in front.
- What Go's libraries say after a colon is theirs, and differs by the version of Go.
"""

from __future__ import annotations

import re
from typing import Final

IN_FRONT: Final = re.compile(r"^(raft )?apply failed: ")
GO_WORDS: Final = ("Request decode failed: ", "Failed to parse body: ")
LATER: Final[tuple[tuple[str, str], ...]] = (
    # An id that is none is looked for, and not found, like any other.
    ("(?:failed session lookup|invalid session): index error: .+", 'invalid session "[^"]*"'),
    ('unknown (?:KV|Node|Service|Check) verb "(.*)"', r"unknown (?:KV|node|service|check) operation: \1"),
    (
        "Must provide service name with ID",
        r"Must provide service name \(Service\.Service\) when service ID is provided",
    ),
    (
        'check node "(.+)" does not match node "(.+)"',
        r"Node '\1' for check '.+' doesn't match register request node '\2'",
    ),
    (
        "failed inserting check: Missing service registration on node .+",
        r"Unknown service ID '.+' for check ID '.+'",
    ),
    (
        "failed inserting check: object missing primary index",
        "failed (?:health )?check lookup: index error: object is missing a value for this index",
    ),
    ("Bad request: (Invalid query parameter.+)", r"\1"),
    ("Unknown service '(.+)'", r"Unknown service ID '\1'"),
)


def same(text: str, known: str) -> bool:
    """Tell whether a later version says with a text what 1.8 is known to say."""
    said = IN_FRONT.sub("", text)
    go = next((words for words in GO_WORDS if known.startswith(words)), "")
    return said == known or bool(go and said.startswith(go)) or any(_fits(said, known, row) for row in LATER)


def _fits(said: str, known: str, row: tuple[str, str]) -> bool:
    found = re.fullmatch(row[0], known)
    if not found:
        return False
    later = re.sub(r"\\(\d)", lambda group: re.escape(found[int(group[1])]), row[1])
    return re.fullmatch(later, said) is not None
