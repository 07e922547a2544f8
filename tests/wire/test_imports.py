"""What importing and using a transport brings into a process, and what it waits with."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("anyio", "asyncio", "email", "http.client", "httpcore", "httpx", "ssl", "trio")
PRINT_LOADED = f"import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
SETTINGS = "from consul_coord.config import Settings; settings = Settings.resolve(environ={})"
CASES = {
    "the package": ("import consul_coord.http.transport.build", ""),
    "a sync transport": ("build.sync_transport(settings)", ""),
    "an async transport": ("build.async_transport(settings)", "anyio"),
}


@pytest.mark.parametrize("name", CASES)
def test_heavy_modules_wait_until_they_are_needed(name: str) -> None:
    action, expected = CASES[name]
    script = f"{SETTINGS}; import consul_coord.http.transport.build as build; {action}; {PRINT_LOADED}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == expected
