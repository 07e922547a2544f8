"""A request on its way out: its bytes.

Rules
- Whatever has a character that could end a line or split a request is refused before anything is sent.
- A PUT or POST always says how long its body is: Consul silently ignores a chunked one.
- The settings' datacenter, namespace and partition are added unless the request names its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from consul_coord._version import __version__
from consul_coord.errors import InvalidArgument

if TYPE_CHECKING:
    from consul_coord.config import Settings
    from consul_coord.http.messages import Request

USER_AGENT = f"consul-coord/{__version__}"

_METHODS_WITH_BODY = frozenset({"PUT", "POST", "PATCH"})
_METHOD = re.compile(r"[A-Z]+")
_PATH = re.compile(r"/[!-\"$->@-~]*")
"""Visible ASCII without ``?`` and ``#``: a path brings no query of its own."""


def tls_name(settings: Settings) -> str:
    """Return the name that is sent to the agent and that its certificate must have."""
    return settings.tls.server_name or settings.host.partition("%")[0]


class Outgoing:
    """Writes requests for one agent. The headers that stay the same are made once."""

    def __init__(self, settings: Settings) -> None:
        self._credentials = settings.credentials
        self._prefix = settings.prefix
        self._defaults = settings.default_params
        self._fixed = {
            "Host": settings.authority,
            "User-Agent": USER_AGENT,
            "Accept-Encoding": "identity",
        }
        self._made: tuple[dict[str, str] | None, bytes] = (None, b"")
        """The headers of the credentials that were sent last, and all headers with them as bytes."""

    def target(self, request: Request) -> str:
        """Return path and query, percent-encoded. Raises ``InvalidArgument`` for a path that is not."""
        path, params = request.path, request.params
        if not (_PATH.fullmatch(path) and _METHOD.fullmatch(request.method)):
            raise InvalidArgument(f"not a request line: {request.method!r} {path!r}")
        if self._defaults:
            own = {name for name, _ in params}
            params = (*params, *(pair for pair in self._defaults if pair[0] not in own))
        if not params:
            return self._prefix + path
        # A flag such as ``recurse`` is a bare name.
        query = [quote(name, "") + (f"={quote(value, '')}" if value else "") for name, value in params]
        return f"{self._prefix}{path}?{'&'.join(query)}"

    def headers(self, now: float) -> dict[str, str]:
        """Return what every request carries. ``now``: monotonic seconds, for the token file."""
        return self._fixed | self._credentials.headers(now)

    def encode(self, request: Request, now: float) -> bytes:
        """Return the request as it goes over the wire."""
        line = f"{request.method} {self.target(request)} HTTP/1.1\r\n".encode("ascii")
        credentials = self._credentials
        own = credentials.latest if credentials.watched is None else credentials.headers(now)
        known, lines = self._made
        if own is not known:
            pairs = (self._fixed | own).items()
            lines = "".join([f"{name}: {value}\r\n" for name, value in pairs]).encode("ascii")
            self._made = (own, lines)
        body = request.body or b""
        if body or request.method in _METHODS_WITH_BODY:
            return b"%bContent-Length: %d\r\n%b\r\n%b" % (line, len(body), lines, body)
        return b"%b%b\r\n" % (line, lines)
