"""What is sent: request line, headers and body as bytes. Pure.

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
    from collections.abc import Mapping

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
        self._made: tuple[Mapping[str, str], bytes] = ({}, b"")

    def target(self, request: Request) -> str:
        """Return path and query, percent-encoded. Raises ``InvalidArgument`` for a path that is not."""
        if not (_PATH.fullmatch(request.path) and _METHOD.fullmatch(request.method)):
            raise InvalidArgument(f"not a request line: {request.method!r} {request.path!r}")
        if not (request.params or self._defaults):
            return self._prefix + request.path
        return f"{self._prefix}{request.path}?{self._query(request.params)}"

    def headers(self, now: float) -> dict[str, str]:
        """Return what every request carries. ``now``: monotonic seconds, for the token file."""
        return self._fixed | self._credentials.headers(now)

    def encode(self, request: Request, now: float) -> bytes:
        """Return the request as it goes over the wire."""
        line = f"{request.method} {self.target(request)} HTTP/1.1\r\n".encode("ascii")
        body = request.body or b""
        if body or request.method in _METHODS_WITH_BODY:
            return b"%bContent-Length: %d\r\n%b\r\n%b" % (line, len(body), self._common(now), body)
        return b"%b%b\r\n" % (line, self._common(now))

    def _common(self, now: float) -> bytes:
        credentials = self._credentials.headers(now)
        known, lines = self._made
        if credentials is not known:
            pairs = (self._fixed | credentials).items()
            lines = "".join(f"{name}: {value}\r\n" for name, value in pairs).encode("ascii")
            self._made = (credentials, lines)
        return lines

    def _query(self, params: tuple[tuple[str, str], ...]) -> str:
        own = {name for name, _ in params}
        merged = (*params, *(pair for pair in self._defaults if pair[0] not in own))
        return "&".join(_parameter(name, value) for name, value in merged)


def _parameter(name: str, value: str) -> str:
    """Return ``name=value``, or the bare name of a flag such as ``recurse``."""
    return f"{quote(name, safe='')}={quote(value, safe='')}" if value else quote(name, safe="")
