"""The requests of one call of a client, and the result of each: the rules of repeating.

Rules
- A call that has its answer, or a refusal, ends with that. A failure to serve (no reply, a broken one, 429,
  5xx) is repeated until too little time is left for another pause, unless a write may have been applied that
  must not be applied twice.
- The error of a call is that of its last try. If that had too little time for an answer, it is that of the
  try before, and if a try may have been applied, it may be that try's. The error says that the outcome is
  unknown if one of the tries has left it open, and otherwise it does not.
- There is a pause between two tries.

Nothing here knows how a client repeats. A table tells the errors of each status.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, cast

from consul_coord.errors import ConsulCoordError, RequestTimeout, TransportError
from consul_coord.http.messages import Retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consul_coord.http.messages import Request, Response

LONGEST_PAUSE = 1.0
"""Seconds between two tries at most: with less left, a call may end before its time."""
SHORTEST_PAUSE = 0.02
TOO_LITTLE = 0.3
"""Seconds that may be too few for an answer."""
JUST = 0.01
_NOT_APPLIED = frozenset({"ConnectFailed", "TooManyConnections", "RateLimited"})
"""The failures after which a request has surely not been applied."""
_FAILURES = _NOT_APPLIED | {"BrokenReply", "RequestTimeout", "NoLeader", "ServerError"}
_OK, _CONFLICT, _TOO_MANY, _FAILS = 200, 409, 429, 500
_BY_STATUS: dict[int, tuple[str, ...]] = {
    400: ("InvalidRequest",),
    403: ("PermissionDenied",),
    404: ("NotFound", "SessionNotFound", "DecodeError", ""),
    _CONFLICT: ("TxnFailed", "InvalidRequest", "DecodeError"),
    413: ("PayloadTooLarge",),
    _TOO_MANY: ("RateLimited",),
    500: ("ServerError", "SessionNotFound", "SessionCheckFailed", "InvalidRequest", "NodeNotRegistered"),
}
"""The errors that a status may mean; "" for an answer."""


class Try(NamedTuple):
    """One request of a call, and what came of it."""

    request: Request
    began: float
    ended: float
    what: Response | TransportError

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the errors that it may be to its call; "" for an answer."""
        if isinstance(self.what, TransportError):
            return (type(self.what).__name__,)
        status, body = self.what.status, self.what.body
        if status >= _FAILS and b"cluster leader" in body:
            return ("NoLeader",)
        if status == _OK:
            return ("", "DecodeError") if ODD in self.what.headers else ("",)
        family = "ServerError" if status >= _FAILS else "InvalidRequest"
        return _BY_STATUS.get(status, (family,))

    @property
    def body(self) -> bytes:
        """The body of the reply; empty without one."""
        return b"" if isinstance(self.what, TransportError) else self.what.body

    @property
    def failed(self) -> bool:
        """Whether it was not served, and may be repeated for that reason."""
        return self.kinds[0] in _FAILURES and b"ession" not in self.body

    @property
    def doubtful(self) -> bool:
        """Whether it has failed, and may have been applied."""
        if self.request.retry is Retry.READ or not self.failed:
            return False
        if isinstance(self.what, TransportError):
            return self.what.outcome_unknown
        return self.kinds[0] not in _NOT_APPLIED


ODD = "x-simulated"
"""A header of replies that were changed on their way."""


class Diary:
    """The tries of one call, in order."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.began = now()
        self.tries: list[Try] = []

    async def keep(self, request: Request, sent: Awaitable[Response]) -> Response:
        """Wait for a reply, and take note of it."""
        began = self._now()
        try:
            reply = await sent
        except TransportError as error:
            self.tries.append(Try(request, began, self._now(), error))
            raise
        self.tries.append(Try(request, began, self._now(), reply))
        return reply

    def of(self, request: Request) -> list[Try]:
        """Return the tries of one request."""
        wanted = request.method, request.path
        return [one for one in self.tries if (one.request.method, one.request.path) == wanted]

    def flaw(self, request: Request, error: ConsulCoordError | None, *, timeout: float) -> str:
        """Return what is wrong with how a call of one request has ended; empty if nothing is."""
        tries = self.of(request)
        if not tries:
            return "has sent nothing" if error is None else ""
        if b"No path" in tries[-1].body and type(error).__name__ == "InvalidRequest":
            return ""  # the agent knows no such datacenter
        flaw = next(filter(None, (_flaw_of_repeat(one, other) for one, other in pairwise(tries))), "")
        last = tries[-1]
        if flaw or error is not None:
            return flaw or self._flaw_of(tries, cast("ConsulCoordError", error), self.began + timeout)
        return "" if "" in last.kinds else f"succeeds, and has got {last.kinds[0]}"

    def _flaw_of(self, tries: list[Try], error: ConsulCoordError, deadline: float) -> str:
        last, kind, request = tries[-1], type(error).__name__, tries[-1].request
        may_be = set(last.kinds)
        if len(tries) > 1 and deadline - last.began < TOO_LITTLE:
            may_be.update(tries[-2].kinds)
        if last.failed:
            may_be.update(name for one in tries if one.doubtful for name in one.kinds)
        if kind not in may_be:
            return f"raises {kind}, after {', '.join(one.kinds[0] or 'an answer' for one in tries)}"
        repeatable = last.failed and (request.retry is not Retry.NEVER or not last.doubtful)
        if repeatable and self._now() < deadline - LONGEST_PAUSE - JUST:
            return f"gives up with {kind}, {deadline - self._now():.2f} s before its time is over"
        if isinstance(error, TransportError) and request.retry is not Retry.READ:
            doubt = any(one.doubtful for one in tries)
            if error.outcome_unknown is not doubt:
                return f"says that its outcome is {'un' * error.outcome_unknown}known, and it is not so"
        elif kind in _NOT_APPLIED and any(one.doubtful for one in tries):
            return f"hides in a {kind} that it may have been applied"
        return ""

    @property
    def refusals(self) -> int:
        """How many transactions were refused."""
        return sum(one.kinds[0] == "TxnFailed" for one in self.tries)

    def saw(self, kind: str) -> bool:
        """Return whether a try may have failed with an error of a kind."""
        return any(kind in one.kinds for one in self.tries)

    def flaw_of_several(self, error: ConsulCoordError | None) -> str:
        """Return what is wrong with the error of a call that sends several requests; empty if nothing is."""
        kind = type(error).__name__
        if error is None or not self.tries or isinstance(error, RequestTimeout) or self.saw(kind):
            return ""
        return f"raises {kind}, after {', '.join(one.kinds[0] or 'an answer' for one in self.tries)}"


def _flaw_of_repeat(one: Try, other: Try) -> str:
    """Return what is wrong with sending another try after one; empty if nothing is."""
    if not one.failed:
        return f"goes on after {one.kinds[0] or 'an answer'}"
    if one.doubtful and one.request.retry is Retry.NEVER:
        return f"repeats what may have been applied, after {one.kinds[0]}"
    return "repeats what has failed at once" if other.began < one.ended + SHORTEST_PAUSE else ""
