"""HTTPS and client certificates: who gets an answer, who doesn't, and that our own clients manage both."""

from __future__ import annotations

import ssl
from contextlib import nullcontext
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest
import trustme

from consul_coord import AsyncClient, Client, Lock, TLSConfig, TransportError
from consul_coord.cli import main
from consul_coord.server import ReferenceServer, ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from consul_coord.clock import SystemClock


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the authority's certificate, and a client's with its key."""
    folder = tmp_path_factory.mktemp("tls")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("client@example.org")
    certificate.private_key_pem.write_to_path(folder / "client.key")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(folder / "client.pem", append=True)
    return folder


@pytest.fixture(scope="module")
def own_files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings that name the server's files."""
    folder = tmp_path_factory.mktemp("server")
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return {f"tls_{name}": str(folder / f"{name}.pem") for name in ("cert", "key")} | {
        "tls_client_ca": str(folder / "ca.pem")
    }


@pytest.fixture(params=["tls", "mtls", "tls by files", "mtls by files"])
def server(
    request: pytest.FixtureRequest, authority: trustme.CA, own_files: dict[str, str]
) -> Iterator[ReferenceServer[SystemClock]]:
    if request.param.endswith("files"):
        asked = own_files if request.param.startswith("mtls") else own_files | {"tls_client_ca": ""}
        with ReferenceServer(config=ServerConfig(**asked)) as running:  # type: ignore[arg-type]
            yield running
        return
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    if request.param == "mtls":
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    with ReferenceServer(tls=context) as running:
        yield running


def settings(files: Path) -> TLSConfig:
    return TLSConfig(
        ca_cert=files / "ca.pem", client_cert=files / "client.pem", client_key=files / "client.key"
    )


def test_a_client_that_trusts_and_is_trusted(server: ReferenceServer[SystemClock], files: Path) -> None:
    assert server.address.startswith("https://127.0.0.1:")
    with (
        Client(address=server.address, tls=settings(files)) as client,
        Lock(client, "k").hold(timeout=10) as hold,
    ):
        assert server.state.kv["k"].session == hold.session

    async def main() -> None:
        async with AsyncClient(address=server.address, tls=settings(files)) as client:
            await client.kv.put("async", b"v")

    anyio.run(main)
    assert server.state.kv["async"].value == b"v"


def test_a_client_that_does_not_trust_the_server(server: ReferenceServer[SystemClock]) -> None:
    with Client(address=server.address, timeout=1.0) as client, pytest.raises(TransportError):
        client.kv.put("k", b"v")
    assert not server.state.kv


def test_a_client_without_a_certificate(
    server: ReferenceServer[SystemClock], files: Path, request: pytest.FixtureRequest
) -> None:
    trust = ssl.create_default_context(cafile=files / "ca.pem")
    refused = "mtls" in request.node.name
    with pytest.raises(httpx.HTTPError) if refused else nullcontext():
        httpx.put(f"{server.address}/v1/kv/k", content=b"v", verify=trust)
    assert ("k" in server.state.kv) is not refused


def test_plain_http_gets_nothing(server: ReferenceServer[SystemClock]) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.put(f"{server.address.replace('https', 'http')}/v1/kv/k", content=b"v")
    assert not server.state.kv


def test_a_file_that_is_none_is_named(own_files: dict[str, str], files: Path, tmp_path: Path) -> None:
    for wrong in ("/nowhere/cert.pem", str(files / "client.key")):
        with pytest.raises(OSError, match=wrong):
            ReferenceServer(config=ServerConfig(tls_cert=wrong, tls_key=own_files["tls_key"])).start()


def test_the_command_takes_the_files_from_its_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "server.json"
    config.write_text('{"tls_cert": "/nowhere/cert.pem"}', encoding="utf-8")
    assert main(["serve", "--config", str(config)]) == 78
    assert "no TLS with /nowhere/cert.pem" in capsys.readouterr().err
