"""A reference server in a process of its own, so that what it has open is not taken for the client's."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.sites import Site

if TYPE_CHECKING:
    from collections.abc import Iterator

_SERVE = "from consul_coord.cli import main; main()"


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, "serve"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture
def site(address: str) -> Site:
    return Site.at("reference", address)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend
