"""Engines for all tests of this folder, and the check that none of them leaks a socket."""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consul_coord.config import Settings
from tests.wire.engines import OWN_ENGINES, USER_ENGINES, Engine
from tests.wire.servers import PATIENCE, RawServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.wire.servers import Peer

    MakeEngine = Callable[..., Engine]
    Serve = Callable[..., RawServer]

_DESCRIPTORS = Path("/proc/self/fd")


def open_sockets() -> list[str]:
    """Return the sockets that this process has open."""
    found = []
    for entry in _DESCRIPTORS.iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            found.append(target)
    return sorted(found)


@pytest.fixture(autouse=True)
def no_leaked_sockets() -> Iterator[None]:
    before = open_sockets()
    yield
    deadline = time.monotonic() + PATIENCE
    while (left := set(open_sockets()) - set(before)) and time.monotonic() < deadline:
        gc.collect()  # a circle may still have one; without any there is nothing to look for
        time.sleep(0.01)
    assert not left


@pytest.fixture
def serve(no_leaked_sockets: None) -> Iterator[Serve]:
    """Return a function that starts a server for a handler; all end with the test."""
    with ExitStack() as stack:

        def start(handler: Callable[[Peer], object], **options: object) -> RawServer:
            return stack.enter_context(RawServer(handler, **options))  # type: ignore[arg-type]

        yield start


def _engines(table: dict[str, Callable[[Settings], Engine]], name: str) -> Iterator[MakeEngine]:
    with ExitStack() as stack:

        def make(address: str | RawServer, **settings: object) -> Engine:
            text = address if isinstance(address, str) else address.address
            resolved = Settings.resolve(address=text, environ={}, **settings)  # type: ignore[arg-type]
            made = table[name](resolved)
            stack.callback(made.end)
            return made

        yield make


@pytest.fixture(params=[*OWN_ENGINES, *USER_ENGINES])
def engine(request: pytest.FixtureRequest, serve: Serve) -> Iterator[MakeEngine]:
    """Return a function that makes a transport, of each kind in turn, for an address or server."""
    yield from _engines(OWN_ENGINES | USER_ENGINES, request.param)


@pytest.fixture(params=list(OWN_ENGINES))
def own_engine(request: pytest.FixtureRequest, serve: Serve) -> Iterator[MakeEngine]:
    """Return the same, of our own transports only."""
    yield from _engines(OWN_ENGINES, request.param)
