"""A plugin: a test fails if a client sends a request that may take for ever, whatever else it looks at.

A caller that waits for an answer that never comes shows it only where one does not come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.aio.driver import AsyncIO
from consul_coord.sync.driver import BlockingIO
from tests.support.fake_io import LONGEST

if TYPE_CHECKING:
    from collections.abc import Generator

    from consul_coord.http.messages import Request, Response

_endless: list[str] = []


def _watch(kind: type[AsyncIO | BlockingIO], patch: pytest.MonkeyPatch) -> None:
    send = kind.send

    async def send_and_look(self: Any, request: Request, *, deadline: float) -> Response:
        if deadline > self.now() + LONGEST:
            _endless.append(f"{request.method} {request.path}")
        return await send(self, request, deadline=deadline)

    patch.setattr(kind, "send", send_and_look)


@pytest.fixture(scope="session", autouse=True)
def _watched() -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for kind in (AsyncIO, BlockingIO):
            _watch(kind, patch)
        yield


@pytest.fixture
def without_an_end() -> None:
    """Let a test send requests that may take for ever: it asks for that."""


@pytest.fixture(autouse=True)
def each_request_has_an_end(request: pytest.FixtureRequest) -> Generator[None]:
    """Look at the requests of one test."""
    _endless.clear()
    yield
    assert not _endless or "without_an_end" in request.fixturenames
