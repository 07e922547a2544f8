"""Failures leave nothing to the garbage collector.

A traceback refers to frames, and so to the caller's: to the locks that it has just dropped, for instance.
Those are to be given back at once, not when the collector happens to come.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import ConsulCoordError
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import Failures, perform, send_once
from tests.support.circles import no_error_in_a_circle
from tests.support.fake_io import FakeIO
from tests.support.replies import lost, pairs, refusal, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.http.messages import Response
    from consul_coord.io import IO

ENDS: dict[str, Callable[[], Response | ConsulCoordError]] = {
    "an answer": pairs,
    "a refusal": lambda: refusal(403, "Permission denied"),
    "overload": lambda: refusal(429),
    "no leader": lambda: refusal(500, "No cluster leader"),
    "a failure": lambda: refusal(500, "something odd"),
    "a cut": lost,
}


async def by_hand(io: IO) -> None:
    failures, deadline = Failures(io, io.now() + 0.7), io.now() + 0.7
    while True:
        try:
            await send_once(io, kv.get("k"), deadline=deadline)
        except ConsulCoordError as error:
            await failures.pause(error)
        else:
            return


async def performed(io: IO) -> None:
    await perform(io, kv.get("k"), deadline=io.now() + 0.7)


@pytest.mark.parametrize("program", [performed, by_hand])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.usefixtures("more_than_asked")
def test_a_call_that_is_sent_again(program: Callable[[IO], Any], end: str) -> None:
    with no_error_in_a_circle():
        io = FakeIO()
        io.expect("GET", "/v1/kv/k", unreachable(), lost(), ENDS[end](), *[ENDS[end]() for _ in range(20)])
        with suppress(ConsulCoordError):
            io.run(program(io))
        del io
