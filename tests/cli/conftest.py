"""A server for this folder's tests, and commands against it."""

from __future__ import annotations

import io
import itertools
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest

from consul_coord import Client
from consul_coord.cli import main
from consul_coord.server import ReferenceServer, ServerConfig
from tests.cli.processes import Cli, environ

if TYPE_CHECKING:
    from collections.abc import Iterator

    class Start(Protocol):
        """Starts a process that ends with the test."""

        def __call__(self, *arguments: str, address: str | None = None) -> Cli: ...

    class Call(Protocol):
        """Runs ``consul-coord`` in this process; ``typed`` is what its user types at a terminal."""

        def __call__(
            self, *arguments: str, address: str | None = None, typed: str | None = None
        ) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a command."""

    code: int
    out: str
    err: str


class Keyboard(io.StringIO):
    """A terminal's input."""

    def isatty(self) -> bool:
        return True


_numbers = itertools.count()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yield the address of a reference server that permits sessions to end soon."""
    with ReferenceServer(config=ServerConfig(session_ttl_min=0.2)) as server:
        yield server.address


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address=address) as client:
        yield client


@pytest.fixture
def key() -> str:
    """Return a key that no other test uses."""
    return f"tests/cli/{next(_numbers)}"


@pytest.fixture
def start(address: str) -> Iterator[Start]:
    """Return how to start ``consul-coord``, by default against the server of ``address``."""
    place = address
    with ExitStack() as running:

        def begin(*arguments: str, address: str | None = None) -> Cli:
            return running.enter_context(Cli(*arguments, env=environ(CONSUL_HTTP_ADDR=address or place)))

        yield begin


@pytest.fixture(params=["reference server", "real agent"])
def anywhere(request: pytest.FixtureRequest) -> str:
    """Return the address of each kind of server in turn."""
    name = {"reference server": "address", "real agent": "agent_address"}[request.param]
    address: str = request.getfixturevalue(name)
    return address


@pytest.fixture
def call(address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return how to run a command that needs no process of its own."""
    place = address

    def run(*arguments: str, address: str | None = None, typed: str | None = None) -> Outcome:
        monkeypatch.setenv("CONSUL_HTTP_ADDR", address or place)
        monkeypatch.setattr(sys, "stdin", io.StringIO() if typed is None else Keyboard(typed))
        code = main(list(arguments))
        told = capsys.readouterr()
        return Outcome(code, told.out, told.err)

    return run
