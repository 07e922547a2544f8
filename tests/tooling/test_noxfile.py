"""The checks run with the interpreter that is meant: without an environment of their own, with nox's."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.blocks import ROOT

if TYPE_CHECKING:
    from types import ModuleType

SESSIONS = ("lint", "types", "tests", "search", "long", "mutants", "fuzz", "integrations", "docs", "bench")


class Session:
    """Takes down what a session runs."""

    posargs: tuple[str, ...] = ()

    def __init__(self, backend: str) -> None:
        self.venv_backend = backend
        self.bin = "/environment/bin"
        self.programs: list[str] = []

    def install(self, *what: str) -> None:
        """Install nothing."""

    def run(self, program: str, *_arguments: str, **_options: Any) -> None:
        """Run nothing."""
        self.programs.append(program)


@pytest.fixture(scope="session")  # nox warns of a session that is registered again
def noxfile() -> ModuleType:
    pytest.importorskip("nox", reason="needs nox, of the group dev")
    spec = importlib.util.spec_from_file_location("noxfile_under_test", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("backend", "python"), [("none", sys.executable), ("venv", "/environment/bin/python")]
)
@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_looks_for_no_program_on_path(
    noxfile: ModuleType, name: str, backend: str, python: str
) -> None:
    session = Session(backend)
    getattr(noxfile, name).func(session)
    assert set(session.programs) == {python}
