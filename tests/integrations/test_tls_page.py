"""The page on TLS: its commands make certificates, its settings start an agent, its program takes a lock."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import trustme

import consul_coord
from consul_coord import Client, ConsulCoordError, TLSConfig
from consul_coord.server import ReferenceServer
from consul_coord.testing.agent import RealAgent
from tests.integrations import pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = "tls"
SHOWN = "https://127.0.0.1:8501"
NAMES = {
    "ca_cert": "consul-agent-ca.pem",
    "client_cert": "dc1-client-consul-0.pem",
    "client_key": "dc1-client-consul-0-key.pem",
}


@dataclass(frozen=True)
class Secured:
    """A Consul that asks for certificates, and the folder with those that the page names."""

    address: str
    plain: str | None
    folder: Path

    def settings(self, **changes: Any) -> TLSConfig:
        files = {name: self.folder / file for name, file in NAMES.items()}
        return TLSConfig(**{**files, "server_name": "server.dc1.consul", **changes})


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("made")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / NAMES["ca_cert"])
    issued = authority.issue_cert("client.dc1.consul")
    issued.private_key_pem.write_to_path(folder / NAMES["client_key"])
    issued.cert_chain_pems[0].write_to_path(folder / NAMES["client_cert"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    authority.issue_cert("server.dc1.consul").configure_cert(context)
    with ReferenceServer(tls=context) as server:
        yield Secured(server.address, None, folder)


@pytest.fixture(scope="module")
def agent(consul_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("made-by-consul")
    for line in pages.blocks(PAGE, "sh")[0].splitlines():
        command = [str(consul_binary), *line.split()[1:]]
        subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=30)
    (shown,) = pages.blocks(PAGE, "json")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    settings = json.loads(shown)
    settings |= {name: str(folder / settings[name]) for name in settings if name.endswith("_file")}
    settings["ports"] = {"https": port}
    with RealAgent(binary=consul_binary, config=settings) as running:
        yield Secured(f"https://127.0.0.1:{port}", running.address, folder)


@pytest.fixture(params=["reference server", "real agent"])
def secured(request: pytest.FixtureRequest) -> Secured:
    name = {"reference server": "reference", "real agent": "agent"}[request.param]
    found: Secured = request.getfixturevalue(name)
    return found


def test_the_program_takes_a_lock(secured: Secured) -> None:
    code = pages.blocks(PAGE, "python")[0].replace(SHOWN, secured.address)
    assert pages.run(code, folder=secured.folder, address="127.0.0.1:1") == "held over TLS\n"


def test_the_environment_says_the_same(secured: Secured) -> None:
    exports, _, _ = (
        pages.blocks(PAGE, "sh")[1].replace(SHOWN, secured.address).rpartition("consul-coord doctor")
    )
    given = dict(re.findall(r"export (\w+)=(\S+)", exports))
    done = subprocess.run(
        [sys.executable, "-m", "consul_coord", "doctor"],
        cwd=secured.folder,
        env=pages.environment(secured.address, given),
        capture_output=True,
        text=True,
        timeout=pages.PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def causes() -> list[tuple[set[str], set[str]]]:
    """Return what the page's table says of errors, row by row: which classes, and which words are in them."""
    rows = re.findall(r"^\| (`.*?) \| .*? \| .*? \|$", pages.text_of(PAGE), re.MULTILINE)
    quoted = [set(re.findall(r"`(.*?)`", row)) for row in rows]
    classes = [{word for word in words if hasattr(consul_coord, word)} for words in quoted]
    return [(some, words - some) for some, words in zip(classes, quoted, strict=True)]


def the_error(tls: TLSConfig | None, address: str) -> ConsulCoordError:
    with (
        Client(address=address, tls=tls, timeout=4) as client,
        pytest.raises(ConsulCoordError) as failed,
    ):
        client.status.leader()
    return failed.value


def right(row: int, raised: ConsulCoordError) -> None:
    classes, words = causes()[row]
    assert {cls.__name__ for cls in type(raised).__mro__} & classes, repr(raised)
    assert any(word in str(raised) for word in words), str(raised)


def test_the_table_has_the_mistakes_that_are_made_here() -> None:
    assert len(causes()) == 5


def test_an_authority_that_is_not_known(secured: Secured, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(stranger)
    right(0, the_error(secured.settings(ca_cert=stranger), secured.address))


def test_another_name_in_the_certificate(secured: Secured) -> None:
    right(1, the_error(secured.settings(server_name="other.example"), secured.address))


@pytest.mark.slow
def test_no_certificate_of_the_client(secured: Secured) -> None:
    right(2, the_error(secured.settings(client_cert=None, client_key=None), secured.address))


def test_http_to_the_port_for_tls(agent: Secured) -> None:
    right(3, the_error(None, agent.address.replace("https", "http")))


@pytest.mark.slow
def test_tls_to_the_plain_port(agent: Secured) -> None:
    assert agent.plain is not None
    right(4, the_error(agent.settings(), agent.plain.replace("http", "https")))
