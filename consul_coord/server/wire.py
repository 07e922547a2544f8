"""An HTTP request and its reply as values, with nothing of a connection in them.

Paths and query strings are kept as they stood on the wire (percent-encoded), because Consul's rules look at
them that way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request; header names are lower case, ``content_length`` is None for a chunked body."""

    method: str
    path: str
    query: str = field(default="", repr=False)  # may carry a token, as may the headers
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    content_length: int | None = None
    client: str = ""

    @classmethod
    def make(
        cls, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Request:
        """Build a request from a target (``/v1/kv/a?index=3``) with a body of known length."""
        path, _, query = target.partition("?")
        lower = {name.lower(): value for name, value in (headers or {}).items()}
        return cls(method, path, query, body, lower, content_length=len(body))


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to the client."""

    status: int = 200
    body: bytes = b""
    headers: Headers = ()
    varies: bool = True
    """Whether it is gzipped for a client that takes it."""

    def header(self, name: str) -> str | None:
        """Return a header's value whatever its case, or None."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Blocked:
    """No reply yet: it comes under this ticket when something changes, and at ``until`` at the latest."""

    ticket: int
    until: float


JSON: Headers = (("Content-Type", "application/json"),)
TEXT: Headers = (("Content-Type", "text/plain; charset=utf-8"),)


def text_reply(status: int, text: str, headers: Headers = ()) -> Reply:
    """Return a plain text reply, as all of Consul's errors are; an empty one has no content type."""
    return Reply(status, text.encode("utf-8", "replace"), (*(TEXT if text else ()), *headers))
