"""What ``consul_coord`` offers: every name exists, is documented, and costs nothing before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import consul_coord
from tests.architecture import rules
from tests.architecture.test_imports import FOLDER, SOURCES

HEAVY = ("anyio", "asyncio", "email", "http.client", "httpcore", "httpx", "ssl", "tenacity", "trio")
PRINT_LOADED = f"import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
CASES = {
    "the package": "import consul_coord",
    "a client and a lock": "from consul_coord import Client, Lock; Lock(Client(), 'k')",
    "every blocking name": "import consul_coord as c; [getattr(c, n) for n in c.__all__ if 'sync' not in n]",
}


def test_every_public_name_exists_once_and_in_order() -> None:
    names = consul_coord.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(consul_coord, name)] == []
    assert list(names) == sorted(names, key=_as_ruff_sorts)


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    kind = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    return kind, name


def test_every_name_that_the_package_imports_is_offered() -> None:
    shown = {name for name, value in vars(consul_coord).items() if name[0] != "_" and _is_ours(value)}
    assert shown - set(consul_coord.__all__) == set()


def _is_ours(value: object) -> bool:
    return getattr(value, "__module__", "").startswith("consul_coord.")


@pytest.mark.parametrize("name", CASES)
def test_heavy_modules_wait_until_they_are_needed(name: str) -> None:
    script = f"{CASES[name]}; {PRINT_LOADED}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=110, check=True
    )
    assert done.stdout.strip() == ""


def test_everything_public_is_documented() -> None:
    assert rules.undocumented(SOURCES | rules.sources_of(FOLDER.parent / "proof")) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        '"""Module."""\ndef public(): ...',
        '"""Module."""\nclass Public:\n    """It."""\n    def method(self): ...',
        '"""Module."""\nasync def public():\n    """no sentence"""',
    ],
)
def test_a_missing_docstring_is_caught(text: str) -> None:
    assert len(rules.undocumented({"consul_coord.planted": text})) == 1


def test_private_names_and_overloads_need_none() -> None:
    text = '"""Module."""\ndef _f(): ...\nclass _C:\n    def m(self): ...\n@overload\ndef f(): ...'
    assert rules.undocumented({"consul_coord.planted": text}) == []


def test_dir_shows_what_is_loaded_later_and_the_endpoints() -> None:
    assert set(consul_coord.__all__) <= set(dir(consul_coord))
    for client in (consul_coord.Client, consul_coord.AsyncClient):
        endpoints = {"agent", "catalog", "health", "kv", "query", "session", "status"}
        shown = {name for name in dir(client) if name[0] != "_"}
        assert shown == endpoints | {
            "close",
            "healthy",
            "keep_session",
            "now",
            "pending_cleanup",
            "connected",
            "last_contact",
            "ready",
            "session_spec",
            "token",
            "stats",
            "txn",
        }
