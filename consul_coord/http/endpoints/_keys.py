"""Which keys and identifiers are sent, and how they are put in a path.

Rules, from what Consul does with the path of a request
- A leading ``/``, ``//`` and the segments ``.`` and ``..`` are cleaned away by a redirect: the request would
  reach another key, or none. A transaction could store such a key, but no other request could then reach it.
- Characters that do not print are refused with an empty reply of status 400.
- ``trail/`` and ``trail`` are two keys; a prefix is a prefix of the string, not of a path.
- Releases from 1.21.5 refuse some more in the path of a request, and not in a transaction: later ones a space
  at either end, and a literal ``%XX`` that decodes to a space or ``..``. A lock with such a name could be
  taken there and never be watched, so nothing new gets it (``check_name``). A caller can still ask for old
  keys by their names (``check_key``). 1.21.5 itself refuses everything but letters, digits and ``,_./-?&=``;
  letters, digits and ``,-_./`` are safe everywhere. An attempt reads a name with any other character first
  (``is_safe``).
- Everything is percent-encoded but the unreserved characters and ``/``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from consul_coord.errors import InvalidArgument, InvalidKey

if TYPE_CHECKING:
    from collections.abc import Callable


# A fault is told in two halves: what is wrong, and what to do about it.
_FAULTS: tuple[tuple[Callable[[str], bool], str, str], ...] = (
    (
        lambda text: text.startswith("/"),
        "it starts with '/', which Consul would clean away",
        "leave the first '/' out",
    ),
    (lambda text: "//" in text, "it has '//', which Consul would make one '/'", "write one '/'"),
    (
        lambda text: not {".", ".."}.isdisjoint(text.split("/")),
        "it has a segment '.' or '..', which Consul would clean away",
        "name the segment otherwise",
    ),
)


_SAFE = re.compile(r"[A-Za-z0-9,_./?&=-]+")


def _decoded(text: str) -> str:
    """Return what the literal ``%XX`` in a text stand for; empty if there are none."""
    decoded = unquote(text)
    return "" if decoded == text else decoded


_FAULTS_OF_NAMES: tuple[tuple[Callable[[str], bool], str, str], ...] = (
    (
        lambda text: text != text.strip(),
        "it begins or ends with a space, which newer releases of Consul refuse",
        "leave the space out",
    ),
    (
        lambda text: " " in _decoded(text) or ".." in _decoded(text),
        "it has a '%XX' that stands for a space or '..', which newer releases of Consul refuse",
        "name it without '%'",
    ),
)


@lru_cache(maxsize=4096)
def flaw(text: str) -> str | None:
    """Return why Consul would not take this in a path, and the way out; None when it would."""
    if not text.isprintable():
        char = next(char for char in text if not char.isprintable())
        return f"it has the unprintable character {char!r}, which Consul refuses: leave it out"
    return next((f"{what}: {advice}" for applies, what, advice in _FAULTS if applies(text)), None)


def _flaw(what: str, value: object) -> str | None:
    if isinstance(value, str):
        return flaw(value)
    raise InvalidArgument(f"{what} must be a string, not {type(value).__name__}")


def check_prefix(prefix: str) -> str:
    """Return a prefix of keys, perhaps empty; raise InvalidKey when Consul would change or refuse it."""
    if found := _flaw("a prefix", prefix):
        raise InvalidKey(f"prefix {prefix!r} can't be used: {found}", key=prefix)
    return prefix


def check_key(key: str) -> str:
    """Return a key; raise InvalidKey when Consul would change or refuse it."""
    if found := _flaw("a key", key):
        raise InvalidKey(f"key {key!r} can't be used: {found}", key=key)
    if not key:
        raise InvalidKey("a key can't be empty: name one, such as 'jobs/nightly'", key=key)
    return key


def check_name(key: str) -> str:
    """Return a key for something new; raise InvalidKey when a release of Consul would not read it."""
    check_key(key)
    for applies, what, advice in _FAULTS_OF_NAMES:
        if applies(key):
            message = f"key {key!r} can't be used: {what}: {advice}"
            raise InvalidKey(message, key=key)
    return key


def check_parent(key: str) -> str:
    """Return a name below which more keys are made; raise InvalidKey for a '/' at its end, too."""
    if check_name(key).endswith("/"):
        message = f"{key!r} can't be used: leave out the '/' at its end, because the keys below it get one"
        raise InvalidKey(message, key=key)
    return key


@lru_cache(maxsize=4096)
def is_safe(key: str) -> bool:
    """Return whether every release of Consul takes this name, in whatever request."""
    return _SAFE.fullmatch(key) is not None


def check_id(what: str, value: str) -> str:
    """Return an id or name for a path; raise InvalidArgument when Consul would change or refuse it."""
    if found := _flaw(what, value) or ("" if value else "it is empty"):
        raise InvalidArgument(f"{what} {value!r} can't be used: {found}")
    return value


def path(root: str, name: str) -> str:
    """Return ``root`` (which ends with a slash) and the percent-encoded name."""
    return root + quote(name, safe="/")
