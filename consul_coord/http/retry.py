"""Performing a call: send, decode and, where the call allows it, again.

Rules
- The request's ``Retry`` class decides: reads and idempotent writes are repeated until the deadline; anything
  else only when the failure shows that it was never applied.
- A failure to serve is repeated (5xx, 429, a broken or missing reply), and a refusal never (403, 400, a
  failed CAS).
- The error that comes out never claims less doubt than any try has left: when an earlier one may have been
  applied, a last one that could not even connect says so too. An error that can't say so, such as a 429, is
  replaced by the one that left the doubt.
- If the last try had too little time for an answer, the error of the try before it is raised, unless the last
  one may have been applied.
- A request may wait in vain because the servers have no leader: newer versions of Consul refuse it only after
  7 to 17 s. So the last moment of a long try is kept for asking the agent for the leader, and the error names
  the missing leader.
- A datacenter that the agent does not list is a mistake, and refused at once. If it is the client's own and
  has answered before, it is out of reach: a server that has just restarted lists none but its own.
- The first try runs without tenacity, which would cost more than the try itself; the repeats use its loop
  with this package's clock, randomness and sleep. This is the only module that imports it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from consul_coord.errors import (
    ConsulCoordError,
    DecodeError,
    NoLeader,
    RequestTimeout,
    ResponseError,
    SessionCheckFailed,
    TransportError,
    TxnFailed,
)
from consul_coord.events import Retried
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import status
from consul_coord.http.failures import (
    NO_LEADER,
    again,
    bare,
    is_no_path,
    outcome_unknown,
    retryable,
    unknown_datacenter,
)
from consul_coord.http.messages import Retry

if TYPE_CHECKING:
    from consul_coord.http.messages import Call, Request
    from consul_coord.io import IO, Signal

T = TypeVar("T")

LONG_TRY: Final = 5.0
"""Seconds from which on a try that is not answered asks for the reason. Consul 1.8 names it after 7 s."""
LAST_MOMENT: Final = 0.25
"""Seconds of such a try that are kept for asking."""

TOO_LITTLE: Final = 0.25
"""Seconds that may be too few for an answer, where a machine is busy."""

_LEADER: Final = status.leader()


def may_repeat(request: Request, error: object) -> bool:
    """Return whether a request that failed with ``error`` may be sent again."""
    if not isinstance(error, ConsulCoordError) or not retryable(error):
        return False
    return request.retry is not Retry.NEVER or not outcome_unknown(error)


async def perform(io: IO, call: Call[T], *, deadline: float, attempt: float = math.inf) -> T:
    """Send a call until it is answered, or ``deadline`` comes; each try takes ``attempt`` seconds at most.

    Raises the last try's error; its ``outcome_unknown`` covers all tries.
    """
    try:
        return await send_once(io, call, deadline=min(deadline, io.now() + attempt))
    except ConsulCoordError as error:
        if not may_repeat(call.request, error):
            raise
        first_pause = delay(1, io.random())
        if io.now() + first_pause >= deadline:
            raise
        _report(io, call.request, error)
        first = bare(error)
    await io.sleep(first_pause)
    return await _repeat(io, call, deadline, attempt, first)


async def ask(io: IO, call: Call[T], *, timeout: float) -> T:
    """Send a call that nothing follows, for ``timeout`` seconds at most. Raises what ``perform`` raises."""
    return await perform(io, call, deadline=io.now() + timeout)


async def send_once(io: IO, call: Call[T], *, deadline: float) -> T:
    """Send a call once and decode its reply. Raises whatever comes of it."""
    io.count("requests")
    io.contact.asked()
    kept = LAST_MOMENT if deadline - io.now() >= LONG_TRY else 0.0
    try:
        answer = call.decode(await io.send(call.request, deadline=deadline - kept))
    except ConsulCoordError as error:
        if isinstance(error, RequestTimeout) and deadline - io.now() < 2 * kept:
            await _name_missing_leader(io, error, deadline)
        _note(io, error)
        await _refuse_unknown_datacenter(io, call.request, error, deadline)
        raise
    io.contact.heard()
    return answer


async def wait_once(
    io: IO, call: Call[T], *, until: Signal | None = None, deadline: float | None = None
) -> T | None:
    """Send a blocking query once; None when ``until`` was raised or ``deadline`` came before its answer."""
    io.count("requests")
    try:
        response = await io.changed(call.request, until=until, deadline=deadline)
        answer = None if response is None else call.decode(response)
    except ConsulCoordError as error:
        _note(io, error)
        await _refuse_unknown_datacenter(io, call.request, error, deadline or math.inf)
        raise
    if answer is not None:
        io.count("wakeups")
        io.contact.heard()
    return answer


async def _name_missing_leader(io: IO, error: RequestTimeout, deadline: float) -> None:
    """Say in an error that there is no leader, if the agent says so before ``deadline``. Returns then."""
    request = replace(_LEADER.request, urgent=True, keep=0.0)
    io.count("requests")
    try:
        leader = _LEADER.decode(await io.send(request, deadline=deadline))
    except ConsulCoordError:
        pass
    else:
        if leader is None:
            _say_no_leader(error)
    await io.sleep(deadline - io.now())  # another try in what is left would tell less


def _say_no_leader(error: RequestTimeout) -> None:
    if NO_LEADER not in str(error):
        error.args = (f"{error}. {NO_LEADER}: it passes when they have elected one",)


async def _refuse_unknown_datacenter(
    io: IO, request: Request, error: ConsulCoordError, deadline: float
) -> None:
    """Raise InvalidRequest, from an error, if its cause is a datacenter that the agent does not list."""
    if not is_no_path(error):
        return
    wanted = dict(request.params).get("dc", io.contact.datacenter)
    has_answered = wanted == io.contact.datacenter and io.contact.heard_at > -math.inf
    if wanted is None or has_answered:
        return
    from consul_coord.http.endpoints import catalog

    known = catalog.datacenters()
    io.count("requests")
    try:
        names = known.decode(await io.send(known.request, deadline=min(deadline, io.now() + LONG_TRY)))
    except ConsulCoordError:
        return
    if wanted not in names:
        raise unknown_datacenter(request, error, wanted, names) from error


def _note(io: IO, error: ConsulCoordError) -> None:
    """Count a failure to serve. A refusal is an answer as well."""
    if retryable(error):
        io.count("failures")
    if retryable(error) or isinstance(error, TransportError | DecodeError):
        io.contact.failed(error)
    elif isinstance(error, ResponseError | TxnFailed | SessionCheckFailed):
        io.contact.heard()


async def _repeat(io: IO, call: Call[T], deadline: float, attempt: float, last: ConsulCoordError) -> T:
    # Imported here: it costs more than most programs' whole use of this package, and is needed after a
    # failure only.
    from tenacity import AsyncRetrying, retry_if_result

    doubt = last if _leaves_doubt(call.request, last) else None

    async def once() -> T | ConsulCoordError:
        """Return the answer or the error: one that is raised would stay in a frame of tenacity's."""
        nonlocal last, doubt
        began = io.now()
        if began >= deadline:
            # The pause took longer than asked for. What went wrong before it says more than that.
            return last
        try:
            return await send_once(io, call, deadline=min(deadline, began + attempt))
        except ConsulCoordError as error:
            if not _had_no_time(error, began, deadline, io.now()):
                if isinstance(last, NoLeader) and isinstance(error, RequestTimeout):
                    _say_no_leader(error)
                last = bare(error)
                if doubt is None and _leaves_doubt(call.request, error):
                    doubt = last
            return last

    retrying = AsyncRetrying(
        sleep=io.sleep,
        wait=lambda state: delay(state.attempt_number + 1, io.random()),
        stop=lambda state: io.now() + state.upcoming_sleep >= deadline,
        retry=retry_if_result(lambda answer: may_repeat(call.request, answer)),
        before_sleep=lambda _: _report(io, call.request, last),
        retry_error_callback=lambda _: last,
    )
    try:
        answer: T | ConsulCoordError = await retrying(once)
    finally:
        vars(retrying).clear()  # it refers to itself: ``io`` would live until the garbage collector comes
    if isinstance(answer, ConsulCoordError):
        raise again(_with_doubt(answer, doubt))
    return answer


def _with_doubt(error: ConsulCoordError, doubt: ConsulCoordError | None) -> ConsulCoordError:
    """Return the error to raise for a call that ends with ``error``, after ``doubt`` left its outcome open.

    A clear refusal stays as it is.
    """
    if doubt is not None and isinstance(error, TransportError):
        error.outcome_unknown = True
    if doubt is None or outcome_unknown(error) or not retryable(error):
        return error
    doubt = again(doubt)
    doubt.add_note(f"It was tried again, and ended with {type(error).__name__}: {error}")
    return doubt


def _had_no_time(error: ConsulCoordError, began: float, deadline: float, now: float) -> bool:
    """Return whether a try failed because its time was short, and was not applied.

    With several agents, the time may end while one of them is checked: then no agent serves.
    """
    if deadline - began >= TOO_LITTLE or not isinstance(error, TransportError) or error.outcome_unknown:
        return False
    return now >= deadline or isinstance(error, RequestTimeout)


def _leaves_doubt(request: Request, error: ConsulCoordError) -> bool:
    return request.retry is not Retry.READ and outcome_unknown(error)


def _report(io: IO, request: Request, error: BaseException) -> None:
    io.emit(Retried(request.method, request.path, f"{type(error).__name__}: {error}"))


class Failures:
    """The failures of something that is repeated by hand: what is sent next depends on what was seen."""

    def __init__(self, io: IO, deadline: float) -> None:
        self._io = io
        self._deadline = deadline
        self._failed = self._moved = 0
        self._last: ConsulCoordError | None = None
        self._resumed_at = -math.inf
        """When the pause after it was over."""
        self._doubt: ConsulCoordError | None = None
        """The first error of a try that may have been applied, or may be later."""

    @property
    def doubt(self) -> bool:
        """Whether a try that failed may have been applied, or may be later."""
        return self._doubt is not None

    def with_doubt(self, error: ConsulCoordError) -> ConsulCoordError:
        """Return the error to raise: one that says so, if a try before ``error`` may have been applied."""
        return _with_doubt(error, self._doubt)

    async def pause(self, error: ConsulCoordError) -> None:
        """Wait after a failure, longer each time.

        Raises it when it is a refusal or no time is left, or the failure before it when this one had no time.
        """
        bare(error)
        if self._last is not None and _had_no_time(error, self._resumed_at, self._deadline, self._io.now()):
            raise again(self.with_doubt(self._last))
        self._failed += 1
        if self._doubt is None and outcome_unknown(error):
            self._doubt = error
        pause = delay(self._failed, self._io.random())
        if not retryable(error) or self._io.now() + pause >= self._deadline:
            raise again(self.with_doubt(error))
        self._last = error
        await self._io.sleep(pause)
        self._resumed_at = self._io.now()

    async def moved(self) -> None:
        """Wait after finding that somebody else has written: not for the first time, longer for each more."""
        self._moved += 1
        if self._moved > 1:
            await self._io.sleep(delay(self._moved, self._io.random()))
