"""The plugin that looks for requests without an end."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from consul_coord.aio.driver import AsyncIO
from consul_coord.http.endpoints import status
from consul_coord.sync.driver import BlockingIO
from tests.support import ends
from tests.support.fake_io import LONGEST, FakeIO, run_at_once


@pytest.mark.usefixtures("without_an_end")
@pytest.mark.parametrize("kind", [BlockingIO, AsyncIO])
@pytest.mark.parametrize(("seconds", "noted"), [(LONGEST, []), (math.inf, ["GET /v1/status/leader"])])
def test_a_request_that_may_take_for_ever_is_noted(
    kind: type[BlockingIO | AsyncIO], seconds: float, noted: list[str]
) -> None:
    host: Any = FakeIO(start=1000.0)

    async def answer(*_: object, **__: object) -> None:
        return None

    transport: Any = SimpleNamespace(send=(lambda *_, **__: None) if kind is BlockingIO else answer)
    sending = kind(host, transport).send(status.leader().request, deadline=1000.0 + seconds)
    if kind is BlockingIO:
        run_at_once(sending)
    else:
        asyncio.run(sending)
    assert ends._endless == noted
