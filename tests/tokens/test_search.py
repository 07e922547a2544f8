"""The search for tokens finds each kind of leak, and nothing where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest

pytest_plugins = ["pytester"]

_ROOT: Final = Path(__file__).parents[2]
_MODULE: Final = """
import base64, logging, subprocess, sys
import pytest
from consul_coord import Client
from consul_coord.config import Credentials
from consul_coord.errors import ConfigError, ServerError

# No other test has these: each process searches this test's output for all secrets that it has ever seen.
TOKEN = "plant3d-" + "token"
PASSWORD = "plant3d-" + "password"

@pytest.fixture(autouse=True)
def client():
    return Client(address="http://127.0.0.1:9", token=TOKEN, http_auth=("ann", PASSWORD))

def test_clean(client):
    logging.getLogger("any").warning("%r", client)
    print(repr(client), len(TOKEN))
    ServerError("no", method="GET", path="/", status=500, body="no")
"""
UNSEARCHED: Final = """
@pytest.mark.arbitrary_secrets
def test_with_any_text_as_a_secret():
    Credentials(token="127.0.0.1:8500", http_auth=None, token_file=None)
    ConfigError("no agent at 127.0.0.1:8500")
"""
LEAKS: Final = {
    "log": 'logging.getLogger("any").warning("sent %s", {"X-Consul-Token": TOKEN})',
    "log_that_propagates_nothing": 'log = logging.getLogger("q"); log.propagate = False; log.error(TOKEN)',
    "logged_traceback": "try: raise ValueError(TOKEN)\n    except ValueError: logging.exception('failed')",
    "output": "print('token', TOKEN)",
    "error_output": "print(PASSWORD, file=sys.stderr)",
    "output_of_a_process": 'subprocess.run([sys.executable, "-c", f"print({TOKEN!r})"])',
    "message": "ConfigError(f'bad token {TOKEN}')",
    "field": 'ServerError("no", method="GET", path="/", status=500, body=TOKEN)',
    "encoded_password": "print(base64.b64encode(f'ann:{PASSWORD}'.encode()).decode())",
    "failure": "raise RuntimeError(TOKEN)",
    "representation": "Credentials.__repr__ = lambda self: str(self.latest)",
}


def test_each_planted_leak_fails_its_test_and_nothing_else_does(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    planted = (f"def test_{name}(client):\n    {body}\n" for name, body in LEAKS.items())
    pytester.makepyfile("\n".join((_MODULE, UNSEARCHED, *planted)))
    pytester.makeini("[pytest]\nmarkers = arbitrary_secrets")
    result = pytester.runpytest_subprocess(
        *("-p", "tests.tokens.search", "-p", "no:cacheprovider", "--capture=fd", "-rA"), timeout=50
    )
    result.assert_outcomes(passed=2, failed=len(LEAKS))
    result.stdout.fnmatch_lines(["PASSED *::test_clean", "PASSED *::test_with_any_text_as_a_secret"])
    assert str(result.stdout).count("a token of ") >= len(LEAKS)
