"""The options of a query string, checked in the order in which Consul checks it.

Rules
- ``consistent`` and ``stale`` exclude each other; a bad ``max_stale``, ``wait`` or ``index`` is a 400.
- ``index`` absent, empty or 0 means: answer at once. ``wait`` needs a unit; zero or less means the default;
  there is a cap.
- ``ns`` is refused unless empty; another datacenter than our own has no path to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from consul_coord.server.failures import LeadersRefusal, Refusal
from consul_coord.server.gotext import SECOND, GoParseError, parse_duration, parse_uint, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.server.config import ServerConfig
    from consul_coord.server.dialects import Dialect

_NAMESPACES = 'Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature'
_PARTITIONS = 'Invalid query parameter: "partition" - Partitions are a Consul Enterprise feature'
_CONFLICT = "Cannot specify ?{} with ?consistent, conflicting semantics."


class Params:
    """The parameters of a query string; of several with one name the first counts."""

    __slots__ = ("_first", "pairs")

    def __init__(self, query: str) -> None:
        self.pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape") if query else []
        self._first = dict(reversed(self.pairs))

    def __contains__(self, name: str) -> bool:
        return name in self._first

    def get(self, name: str) -> str:
        """Return the value of a parameter, empty when it is absent."""
        return self._first.get(name, "")

    def all(self, name: str) -> list[str]:
        """Return every value of a parameter, in order."""
        return [value for each, value in self.pairs if each == name]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a read is to be done; ``wait`` is in seconds."""

    index: int = 0
    wait: float = 0.0
    stale: bool = False
    consistent: bool = False


def read_options(params: Params, config: ServerConfig) -> ReadOptions:
    """Return the options of a read; raise ``Refusal`` for bad ones."""
    if not params.pairs:
        return ReadOptions()
    stale, consistent = "stale" in params, "consistent" in params
    if max_stale := params.get("max_stale"):
        stale = _duration(max_stale, f"Invalid max_stale value {quote(max_stale)}") > 0 or stale
    if stale and consistent:
        raise Refusal(400, _CONFLICT.format("stale"))
    if "cached" in params and consistent:
        raise Refusal(400, _CONFLICT.format("cached"))
    wait = _duration(text, "Invalid wait time") / SECOND if (text := params.get("wait")) else 0.0
    return ReadOptions(
        _index(params), min(wait, config.max_wait) if wait > 0 else config.default_wait, stale, consistent
    )


def is_here(params: Params, datacenter: str) -> bool:
    """Tell whether our own datacenter is asked."""
    return params.get("dc") in ("", datacenter)


def check_target(params: Params, datacenter: str) -> None:
    """Refuse a datacenter that is not ours."""
    if not is_here(params, datacenter):
        raise LeadersRefusal(500, "No path to datacenter")


def check_enterprise(params: Params, dialect: Dialect) -> None:
    """Refuse a namespace, and a partition where that is known."""
    if params.get("ns"):
        raise Refusal(400, f"{dialect.enterprise}{_NAMESPACES}")
    if dialect.partitions and params.get("partition"):
        raise Refusal(400, f"{dialect.enterprise}{_PARTITIONS}")


def token_of(params: Params, headers: Mapping[str, str]) -> str:
    """Return the ACL token of a request: query, then header, then bearer."""
    if token := params.get("token"):
        return token
    if token := headers.get("x-consul-token", ""):
        return token
    scheme, _, rest = headers.get("authorization", "").strip().partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else ""


def _duration(text: str, message: str) -> int:
    try:
        return parse_duration(text)
    except GoParseError:
        raise Refusal(400, message) from None


def _index(params: Params) -> int:
    if not (text := params.get("index")):
        return 0
    try:
        return parse_uint(text)
    except GoParseError:
        raise Refusal(400, "Invalid index") from None
