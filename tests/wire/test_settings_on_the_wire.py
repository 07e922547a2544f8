"""Settings as they show in what is sent: where to, with which credentials, and for which place."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import config
from consul_coord.errors import ConfigError, PermissionDenied
from consul_coord.models import ReadOptions
from tests.wire.agents import said, told
from tests.wire.catalogue import ENDPOINTS, META
from tests.wire.servers import OK, PATIENCE, always

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.wire.agents import ScriptedAgent
    from tests.wire.clients import Make
    from tests.wire.conftest import Serve

pytest_plugins = ["tests.wire.scripted"]
pytestmark = pytest.mark.timeout(20)

TOKEN = "b1gs3cret"
LEADER = told("10.0.0.1:8300")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(" from-file \n")
    return path


# --- where to


FORMS: dict[str, tuple[Callable[[str], str], str]] = {
    "host and port": (lambda place: place, "/v1/status/leader"),
    "http": (lambda place: f"http://{place}", "/v1/status/leader"),
    "capitals": (lambda place: f"HTTP://{place}", "/v1/status/leader"),
    "slash": (lambda place: f"http://{place}/", "/v1/status/leader"),
    "prefix": (lambda place: f"http://{place}/gw/consul", "/gw/consul/v1/status/leader"),
    "prefix and slash": (lambda place: f"{place}/gw/a b/", "/gw/a%20b/v1/status/leader"),
}


@pytest.mark.parametrize("name", FORMS)
def test_an_address_by_argument_and_by_environment(
    make: Make, scripted: ScriptedAgent, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    form, target = FORMS[name]
    place = scripted.address.removeprefix("http://")
    scripted.always(LEADER)
    assert make.client(address=form(place)).status.leader() == "10.0.0.1:8300"
    monkeypatch.setenv("CONSUL_HTTP_ADDR", form(place))
    assert make.client(address=None).status.leader() == "10.0.0.1:8300"
    assert scripted.lines == [f"GET {target}"] * 2
    assert scripted.requests[0].headers["host"] == place


def test_a_unix_socket(make: Make, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(always(OK), uds=tmp_path / "agent.sock")
    assert make.client(address=server.address, token=TOKEN).kv.put("a b", b"v") is True
    monkeypatch.setenv("CONSUL_HTTP_ADDR", server.address)
    assert make.client(address=None, token=TOKEN).kv.put("a b", b"v") is True
    for request in server.requests:
        head, _, body = request.partition(b"\r\n\r\n")
        assert head.startswith(b"PUT /v1/kv/a%20b HTTP/1.1\r\n")
        assert b"\r\nHost: localhost\r\n" in head
        assert b"\r\nX-Consul-Token: b1gs3cret" in head
        assert body == b"v"
    assert len(server.requests) == 2


def test_an_explicit_address_beats_the_environment(
    make: Make, scripted: ScriptedAgent, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = serve(always(OK))
    monkeypatch.setenv("CONSUL_HTTP_ADDR", other.address)
    monkeypatch.setenv("CONSUL_HTTP_SSL", "true")
    scripted.always(LEADER)
    make.client().status.leader()
    assert len(scripted.requests) == 1
    assert other.connections == 0


# --- who asks


def credentials(scripted: ScriptedAgent) -> tuple[str | None, str | None]:
    headers = scripted.requests[-1].headers
    return headers.get("x-consul-token"), headers.get("authorization")


def test_credentials_by_the_environment(
    make: Make, scripted: ScriptedAgent, monkeypatch: pytest.MonkeyPatch, token_file: Path
) -> None:
    scripted.always(LEADER)

    def sent(**settings: Any) -> tuple[str | None, str | None]:
        make.client(**settings).status.leader()
        return credentials(scripted)

    assert sent() == (None, None)
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", "from-env")
    monkeypatch.setenv("CONSUL_HTTP_AUTH", "ann:p:w")
    assert sent() == ("from-env", "Basic YW5uOnA6dw==")
    monkeypatch.setenv("CONSUL_HTTP_TOKEN_FILE", str(token_file))
    assert sent() == ("from-file", "Basic YW5uOnA6dw==")
    assert sent(token=TOKEN, http_auth=("bob", "")) == (TOKEN, "Basic Ym9iOg==")
    assert sent(token="") == (None, "Basic YW5uOnA6dw==")
    other = token_file.with_name("other")
    other.write_text("from-other")
    assert sent(token_file=other)[0] == "from-other"
    for name in ("CONSUL_HTTP_TOKEN", "CONSUL_HTTP_TOKEN_FILE", "CONSUL_HTTP_AUTH"):
        monkeypatch.setenv(name, "")
    assert sent() == (None, None)


def test_a_token_file_is_read_again(
    make: Make, scripted: ScriptedAgent, monkeypatch: pytest.MonkeyPatch, token_file: Path
) -> None:
    """By calls, by what runs in the background, and not given up when the file is away for a moment."""
    interval = 0.02
    monkeypatch.setattr(config, "TOKEN_FILE_INTERVAL", interval)
    scripted.always(told([], META))
    client = make.client(token_file=token_file)

    def token() -> str | None:
        client.kv.keys("p/")
        return credentials(scripted)[0]

    def comes(wanted: str, ask: Callable[[], str | None]) -> bool:
        deadline = time.monotonic() + PATIENCE
        while (seen := ask()) != wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        return seen == wanted

    def token_of_a_watch() -> str | None:
        next(client.kv.watch_tree("p/"))
        return credentials(scripted)[0]

    assert token() == "from-file"
    assert token_of_a_watch() == "from-file"
    renewed = token_file.with_name("renewed")
    renewed.write_text("renewed")
    renewed.replace(token_file)
    assert comes("renewed", token)
    assert comes("renewed", token_of_a_watch)
    token_file.unlink()
    time.sleep(1.5 * interval)  # so that it is looked for again, and missed
    assert token() == "renewed"
    token_file.write_text("again")
    assert comes("again", token)


def test_secrets_show_nowhere(
    make: Make, scripted: ScriptedAgent, caplog: pytest.LogCaptureFixture, token_file: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    scripted.always(said(403, "Permission denied"))
    for settings in ({"token": TOKEN}, {"token_file": token_file}):
        client = make.client(http_auth=("ann", "pa55word"), **settings)
        with pytest.raises(PermissionDenied) as raised:
            client.kv.put("k", b"v")
        shown = caplog.text + repr(client) + str(client) + repr(raised.value) + repr(vars(raised.value))
        for secret in (TOKEN, "from-file", "pa55word", "YW5uOnBhNTV3b3Jk"):
            assert secret not in shown


# --- for which place


def test_the_place_is_on_every_request(make: Make, scripted: ScriptedAgent) -> None:
    client = make.client(datacenter="dc2", namespace="team a", partition="p")
    for name, endpoint in ENDPOINTS.items():
        scripted.always(endpoint.reply)
        assert endpoint.call(client) == endpoint.value, name
        mark = "&" if "?" in endpoint.line else "?"
        assert scripted.lines[-1] == f"{endpoint.line}{mark}dc=dc2&ns=team%20a&partition=p"
    scripted.always(ENDPOINTS["kv.get"].reply)
    next(client.kv.watch("jobs/a b"))
    assert scripted.lines[-1].endswith("?dc=dc2&ns=team%20a&partition=p")


def test_the_place_of_a_lock(make: Make, scripted: ScriptedAgent) -> None:
    scripted.always(said(403, "Permission denied"))
    client = make.client(datacenter="dc2", namespace="n")
    with pytest.raises(PermissionDenied):
        make.lock(client, "k").acquire(timeout=1)
    assert scripted.lines == ["PUT /v1/session/create?dc=dc2&ns=n"]


def test_the_place_by_environment_argument_and_call(
    make: Make, scripted: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSUL_NAMESPACE", "env-n")
    monkeypatch.setenv("CONSUL_PARTITION", "env-p")
    scripted.always(told([], META))
    make.client().kv.keys("p")
    make.client(namespace="n", partition="").kv.keys("p")
    client = make.client(datacenter="dc2")
    client.kv.keys("p", options=ReadOptions(datacenter="dc3", namespace="call-n"))
    assert scripted.lines == [
        "GET /v1/kv/p?keys&ns=env-n&partition=env-p",
        "GET /v1/kv/p?keys&ns=n",
        "GET /v1/kv/p?keys&dc=dc3&ns=call-n&partition=env-p",
    ]


# --- what can't be used


BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "scheme": {"address": "ftp://127.0.0.1"},
    "port": {"address": "127.0.0.1:eighty"},
    "credentials in the address": {"address": "http://ann:pw@127.0.0.1:8500"},
    "query in the address": {"address": "http://127.0.0.1:8500?token=x"},
    "relative socket": {"address": "unix://agent.sock"},
    "line end in a token": {"token": "a\r\nX-Evil: 1"},
    "missing token file": {"token_file": "/nonexistent/token"},
    "two tokens": {"token": "a", "token_file": "/nonexistent/token"},
    "colon in a user": {"http_auth": ("a:b", "c")},
    "line end in a namespace": {"namespace": "a\nb"},
    "no time": {"timeout": 0.0},
    "endless time": {"timeout": float("nan")},
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_a_setting_that_can_not_be_used(make: Make, scripted: ScriptedAgent, name: str) -> None:
    with pytest.raises(ConfigError):
        make.client(**BAD_SETTINGS[name])
    assert scripted.requests == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CONSUL_HTTP_SSL", "yes please"),
        ("CONSUL_HTTP_SSL_VERIFY", "flase"),
        ("CONSUL_HTTP_TOKEN_FILE", "/nonexistent/token"),
        ("CONSUL_CLIENT_CERT", "/nonexistent/cert.pem"),
    ],
)
def test_a_variable_that_can_not_be_used(
    make: Make, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=variable if "FILE" not in variable else "token file"):
        make.client(address=None)


def test_constructing_sends_nothing(make: Make, scripted: ScriptedAgent) -> None:
    client = make.client(token=TOKEN, datacenter="dc2")
    make.lock(client, "k")
    client.kv.watch("k")
    assert scripted.requests == []
