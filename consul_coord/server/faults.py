"""Faults to order: which requests are hit, how often, and what happens to them.

Rules
- Pure matching: a fault hits a request when everything it names fits; of several the one added first counts.
- ``effect`` says what happens; ``delay`` comes first in any case. An effect is carried out by the transport.
- A fault with ``times`` is spent after as many hits; without, it stays until it is removed.
"""

from __future__ import annotations

import enum
import math
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.models import _validate

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.wire import Request


class Effect(enum.Enum):
    """The effect on a request that is hit."""

    NONE = "none"  # only the delay
    LOSE_REQUEST = "lose-request"  # the connection ends; nothing was applied
    LOSE_REPLY = "lose-reply"  # the connection ends; the request was applied
    RESPOND = "respond"  # an error instead of the reply; nothing was applied
    APPLY_AND_RESPOND = "apply-and-respond"  # an error instead of the reply; the request was applied
    RESET = "reset"  # half the reply, then a reset
    TRUNCATE = "truncate"  # half the reply, then an orderly end
    GARBAGE = "garbage"  # bytes that are not HTTP
    LOSE_LEADER = "lose-leader"  # the cluster loses its leader before the request is served
    INDEX_BACK = "index-back"  # the reply's index is 1


# Consul's own bodies: without a leader, over a rate limit, and when only a leader could have served it.
BODIES = {
    429: "",
    500: "No cluster leader",
    503: "request could not be handled by this server: it is not the leader, and it is over its rate limit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Say which requests are hit and what happens to them.

    ``path`` is a regular expression searched for in the path and query; ``client`` a peer address or a part
    of the User-Agent, so that one client can be cut off; ``matches`` any further condition. ``delay`` in
    seconds, by the server's clock. ``body`` replaces the usual body of ``status``. ``effect`` may also be
    the effect's name. Raises ``ValueError`` for a setting that can't be.
    """

    effect: Effect = Effect.NONE
    method: str | None = None
    path: str | None = None
    client: str | None = None
    matches: Callable[[Request], bool] | None = None
    delay: float = 0.0
    status: int = 500
    body: str | None = None
    times: int | None = None

    def __post_init__(self) -> None:
        """Refuse a fault that would never hit, or not as it says."""
        effects = {each.value: each for each in Effect} | {each: each for each in Effect}
        if self.effect not in effects:
            names = ", ".join(each.value for each in Effect)
            raise ValueError(f"effect must be one of {names}, not {self.effect!r}")
        object.__setattr__(self, "effect", effects[self.effect])
        for name in ("method", "path", "client", "body"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, str):
                raise ValueError(f"{name} must be a string, or None, not {type(given).__name__}")
        try:
            re.compile(self.path or "")
        except re.error as error:
            raise ValueError(f"path is no regular expression: {error}") from error
        if self.times is not None and self.times < 1:
            raise ValueError(f"times must be 1 or more, or None for any number, not {self.times!r}")
        if not 0 <= self.delay < math.inf:
            raise ValueError(f"delay must be a number of seconds, 0 or more, not {self.delay!r}")
        if not 200 <= self.status <= 599:  # noqa: PLR2004
            raise ValueError(f"status must be from 200 to 599, not {self.status!r}")

    def hits(self, request: Request) -> bool:
        """Tell whether the fault concerns a request."""
        return (
            self.method in (None, request.method)
            and (self.path is None or re.search(self.path, f"{request.path}?{request.query}") is not None)
            and (self.client is None or _is_client(self.client, request))
            and (self.matches is None or self.matches(request))
        )

    @property
    def text(self) -> str:
        """Return the body of the error reply."""
        return BODIES.get(self.status, "") if self.body is None else self.body


class FaultHandle:
    """A fault that was added: how often it has hit, and how to take it back."""

    __slots__ = ("_faults", "fault", "hits")

    def __init__(self, fault: Fault, faults: Faults) -> None:
        self.fault = fault
        self.hits = 0
        self._faults = faults

    def remove(self) -> None:
        """Take the fault back; harmless when it is spent."""
        self._faults.discard(self)

    @property
    def spent(self) -> bool:
        """Tell whether it has hit as often as it was to."""
        return self.fault.times is not None and self.hits >= self.fault.times


class Faults:
    """The faults of a server; safe to use from any thread."""

    def __init__(self) -> None:
        self._active: list[FaultHandle] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> FaultHandle:
        """Let a fault hit from now on."""
        _validate.instance("a fault", fault, Fault)
        handle = FaultHandle(fault, self)
        with self._lock:
            self._active.append(handle)
        return handle

    def discard(self, handle: FaultHandle) -> None:
        """Take one fault back."""
        with self._lock:
            self._active = [other for other in self._active if other is not handle]

    def clear(self) -> None:
        """Take all faults back."""
        with self._lock:
            self._active.clear()

    def strike(self, request: Request) -> Fault | None:
        """Return the fault that hits a request, counting the hit."""
        if not self._active:
            return None
        with self._lock:
            handle = next((handle for handle in self._active if handle.fault.hits(request)), None)
            if handle is None:
                return None
            handle.hits += 1
            if handle.spent:
                self._active.remove(handle)
            return handle.fault


def _is_client(client: str, request: Request) -> bool:
    return client == request.client or client in request.headers.get("user-agent", "")
