"""TLS: what is verified, by which name, with which authorities and certificates. All are made at run time."""

from __future__ import annotations

import ssl
import threading
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trustme

from consul_coord import Client, Lock
from consul_coord.config import Settings, TLSConfig
from consul_coord.errors import (
    BrokenReply,
    CertificateRefused,
    ConfigError,
    ConnectFailed,
    RequestTimeout,
    TooManyConnections,
)
from consul_coord.http.failures import NO_TLS, next_step
from consul_coord.http.messages import Request, Retry
from consul_coord.http.transport.exchange import DirectTransport
from tests.support.stalls import lasting
from tests.wire.servers import OK, PATIENCE, always
from tests.wire.test_connections import cancelled_send, closing_after_a_reply, hang_up_on_the_second

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from tests.wire.conftest import MakeEngine, Serve
    from tests.wire.servers import Peer, RawServer

CAS = Request("PUT", "/v1/kv/a", body=b"v", retry=Retry.NEVER)
RENEW = Request("PUT", "/v1/session/renew/x", retry=Retry.IDEMPOTENT, urgent=True)
NAME = "server.dc1.consul"


class Authority:
    """A certificate authority, with its file, a server's context and a client's certificate."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.folder = folder
        self.file = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.file))

    def server(self, *names: str, asks_for: Authority | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(*names).configure_cert(context)
        if asks_for is not None:
            asks_for._authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client(self, folder: Path) -> TLSConfig:
        """Return a client's settings with a certificate, trusting this authority."""
        issued = self._authority.issue_cert("client.dc1.consul")
        certificate, key = folder / "client.pem", folder / "client.key"
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))
        return TLSConfig(ca_cert=self.file, client_cert=certificate, client_key=key)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    folder = tmp_path / "authority"
    folder.mkdir()
    return Authority(folder)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    folder = tmp_path / "stranger"
    folder.mkdir()
    return Authority(folder)


def test_a_trusted_agent(own_engine: MakeEngine, serve: Serve, authority: Authority) -> None:
    server = serve(always(OK), tls=authority.server("127.0.0.1"))
    sender = own_engine(server, tls=TLSConfig(ca_cert=authority.file))
    assert [sender.send(CAS).body for _ in range(3)] == [b"true"] * 3
    assert server.connections == 1


def test_a_directory_of_authorities(
    own_engine: MakeEngine, serve: Serve, authority: Authority, stranger: Authority
) -> None:
    (authority.folder / "another.pem").write_bytes(stranger.file.read_bytes())
    server = serve(always(OK), tls=authority.server("127.0.0.1"))
    assert own_engine(server, tls=TLSConfig(ca_path=authority.folder)).send(CAS).body == b"true"


def test_an_unknown_authority_is_refused(
    own_engine: MakeEngine, serve: Serve, authority: Authority, stranger: Authority
) -> None:
    server = serve(always(OK), tls=stranger.server("127.0.0.1"))
    with pytest.raises(CertificateRefused) as raised:
        own_engine(server, tls=TLSConfig(ca_cert=authority.file), token="s3cret").send(CAS)
    assert raised.value.outcome_unknown is False
    assert "certificate verify failed" in str(raised.value)
    assert not server.requests


def test_another_name_is_refused(own_engine: MakeEngine, serve: Serve, authority: Authority) -> None:
    server = serve(always(OK), tls=authority.server(NAME))
    with pytest.raises(CertificateRefused):
        own_engine(server, tls=TLSConfig(ca_cert=authority.file)).send(CAS)
    assert not server.requests


def test_a_server_name_is_sent_and_verified(
    own_engine: MakeEngine, serve: Serve, authority: Authority
) -> None:
    context = authority.server(NAME)
    asked_for: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked_for.append(name)
    server = serve(always(OK), tls=context)
    tls = TLSConfig(ca_cert=authority.file, server_name=NAME)
    assert own_engine(server, tls=tls).send(CAS).body == b"true"
    assert asked_for == [NAME]


def test_a_wrong_server_name_is_refused(own_engine: MakeEngine, serve: Serve, authority: Authority) -> None:
    server = serve(always(OK), tls=authority.server("127.0.0.1"))
    tls = TLSConfig(ca_cert=authority.file, server_name="other.dc1.consul")
    with pytest.raises(CertificateRefused):
        own_engine(server, tls=tls).send(CAS)


def test_verification_can_be_switched_off(own_engine: MakeEngine, serve: Serve, stranger: Authority) -> None:
    server = serve(always(OK), tls=stranger.server(NAME))
    assert own_engine(server, tls=TLSConfig(verify=False)).send(CAS).body == b"true"


def test_the_systems_authorities_do_not_know_ours(
    own_engine: MakeEngine, serve: Serve, authority: Authority
) -> None:
    server = serve(always(OK), tls=authority.server("127.0.0.1"))
    with pytest.raises(CertificateRefused):
        own_engine(server, tls=TLSConfig()).send(CAS)


def test_a_client_certificate_is_shown(
    own_engine: MakeEngine, serve: Serve, authority: Authority, tmp_path: Path
) -> None:
    server = serve(always(OK), tls=authority.server("127.0.0.1", asks_for=authority))
    assert own_engine(server, tls=authority.client(tmp_path)).send(CAS).body == b"true"


def test_an_agent_that_asks_for_a_certificate_refuses_without(
    own_engine: MakeEngine, serve: Serve, authority: Authority
) -> None:
    server = serve(always(OK), tls=authority.server("127.0.0.1", asks_for=authority))
    with pytest.raises((ConnectFailed, BrokenReply)):
        own_engine(server, tls=TLSConfig(ca_cert=authority.file)).send(CAS)
    assert not server.requests


def test_tls_over_a_unix_socket(
    own_engine: MakeEngine, serve: Serve, authority: Authority, tmp_path: Path
) -> None:
    server = serve(always(OK), tls=authority.server(NAME), uds=tmp_path / "agent.sock")
    tls = TLSConfig(ca_cert=authority.file, server_name=NAME)
    assert own_engine(server, tls=tls).send(CAS).body == b"true"


def test_plain_http_where_tls_was_due(own_engine: MakeEngine, serve: Serve, authority: Authority) -> None:
    def answer_in_plain(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        peer.wait_for_hang_up()

    server = serve(answer_in_plain)
    tls = TLSConfig(ca_cert=authority.file)
    with pytest.raises(ConnectFailed, match=NO_TLS) as caught:
        own_engine(f"https://127.0.0.1:{server.port}", tls=tls).send(CAS)
    assert not next_step(caught.value)  # an agent is running there


def test_a_handshake_that_hangs_ends_at_the_limit(
    own_engine: MakeEngine, serve: Serve, authority: Authority
) -> None:
    server = serve(lambda peer: peer.wait_for_hang_up())
    sender = own_engine(f"https://127.0.0.1:{server.port}", tls=TLSConfig(ca_cert=authority.file))
    with lasting(most=0.6), pytest.raises(RequestTimeout) as raised:
        sender.send(CAS, timeout=0.3)
    assert raised.value.outcome_unknown is False


def test_where_another_agent_may_be_asked_it_ends_earlier(
    own_engine: MakeEngine, serve: Serve, authority: Authority
) -> None:
    server = serve(lambda peer: peer.wait_for_hang_up())
    sender: Any = own_engine(f"https://127.0.0.1:{server.port}", tls=TLSConfig(ca_cert=authority.file))
    sender.transport.connect_within = 0.3
    with lasting(most=PATIENCE / 4), pytest.raises(ConnectFailed) as raised:
        sender.send(CAS, timeout=PATIENCE / 2)
    assert raised.value.outcome_unknown is False


@pytest.mark.parametrize("hangs_in", ["handshake", "reply"])
def test_cancelling_within_tls(serve: Serve, authority: Authority, hangs_in: str) -> None:
    arrived = threading.Event()

    def hang(peer: Peer) -> None:
        if hangs_in == "reply":
            peer.request()
        arrived.set()
        peer.wait_for_hang_up()

    server = serve(hang, tls=authority.server("127.0.0.1") if hangs_in == "reply" else None)
    settings = Settings.resolve(
        address=f"https://127.0.0.1:{server.port}", tls=TLSConfig(ca_cert=authority.file), environ={}
    )
    cancelled = cancelled_send(DirectTransport(settings), CAS, when=arrived)
    assert cancelled.error.outcome_unknown is (hangs_in == "reply")


@pytest.mark.parametrize("closed_first", [True, False])
def test_a_lost_race_with_the_agents_close_is_repeated_over_tls(
    own_engine: MakeEngine, serve: Serve, authority: Authority, closed_first: bool
) -> None:
    server = serve(
        closing_after_a_reply if closed_first else hang_up_on_the_second, tls=authority.server("127.0.0.1")
    )
    sender = own_engine(server, tls=TLSConfig(ca_cert=authority.file))
    for _ in range(3):
        assert sender.send(RENEW).body == b"true"
        if closed_first:
            server.wait_until_idle()
    assert server.connections == 3


def test_a_large_body_over_tls(own_engine: MakeEngine, serve: Serve, authority: Authority) -> None:
    large = bytes(range(256)) * 4096
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(large), large)
    server = serve(always(reply), tls=authority.server("127.0.0.1"))
    sender = own_engine(server, tls=TLSConfig(ca_cert=authority.file))
    assert sender.send(Request("PUT", "/v1/kv/a", body=large), timeout=PATIENCE).body == large
    assert server.requests[0].endswith(large)


@pytest.mark.parametrize("field", ["ca_cert", "ca_path", "client_cert", "client_key"])
@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_files_that_can_not_be_loaded(
    own_engine: MakeEngine, authority: Authority, tmp_path: Path, field: str, content: str | None
) -> None:
    broken = tmp_path / "broken"
    if content is not None and field == "ca_path":
        broken.mkdir()
        (broken / "file").write_text(content)
    elif content is not None:
        broken.write_text(content)
    changes: dict[str, Any] = {field: broken}
    tls = replace(authority.client(tmp_path), **changes)
    with pytest.raises(ConfigError, match="broken"):
        own_engine("https://127.0.0.1:1", tls=tls).send(CAS)


def test_an_empty_directory_of_authorities(own_engine: MakeEngine, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no files"):
        own_engine("https://127.0.0.1:1", tls=TLSConfig(ca_path=tmp_path)).send(CAS)


@pytest.mark.parametrize("transport", ["own", "httpx"])
def test_a_refused_certificate_is_told_at_once(
    serve: Serve, authority: Authority, stranger: Authority, transport: str
) -> None:
    server = serve(always(OK), tls=stranger.server("127.0.0.1"))
    address = f"https://127.0.0.1:{server.port}"
    with ExitStack() as open_clients:
        carriers: dict[str, Any] = {}
        if transport == "httpx":
            context = ssl.create_default_context(cafile=str(authority.file))
            carriers["http_client"] = open_clients.enter_context(httpx.Client(verify=context))
            carriers["background_http_client"] = httpx.AsyncClient(verify=context)
        tls = TLSConfig(ca_cert=authority.file)
        client = open_clients.enter_context(Client(address=address, tls=tls, timeout=60, **carriers))
        with lasting(most=PATIENCE):
            with pytest.raises(CertificateRefused):
                client.kv.get("k")
            with pytest.raises(CertificateRefused):
                Lock(client, "k").acquire()
    assert not server.requests


def test_what_can_not_even_begin_its_handshake_leaves_no_socket(own_engine: MakeEngine, serve: Serve) -> None:
    """As where the other side has said something before it, and has hung up."""
    server = serve(lambda peer: peer.wait_for_hang_up())
    sender: Any = own_engine(f"https://127.0.0.1:{server.port}")
    opened: list[socket.socket] = []

    def wrap_socket(sock: socket.socket, **_: object) -> None:
        opened.append(sock)
        raise ssl.SSLError("Closed before TLS handshake with data in recv buffer.")

    sender.transport._context = SimpleNamespace(wrap_socket=wrap_socket)
    with pytest.raises(ConnectFailed, match="before TLS handshake") as raised:
        sender.send(CAS)
    assert raised.value.outcome_unknown is False
    assert [sock.fileno() for sock in opened] == [-1]


class Crowded:
    """The TLS side of an agent at its limit, or in trouble: at first it hangs up instead of a handshake."""

    def __init__(self, context: ssl.SSLContext, *, refusals: int, says: bytes | None = None) -> None:
        """``says``: what it answers before it hangs up; None to hang up at once."""
        self._context = context
        self._refusals = refusals
        self._says = says

    def wrap_socket(self, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        if self._refusals:
            self._refusals -= 1
            if self._says is not None:
                sock.recv(65536)
                sock.sendall(self._says)
            raise ConnectionAbortedError
        return self._context.wrap_socket(sock, **options)


@pytest.mark.parametrize("transport", ["own", "httpx"])
@pytest.mark.parametrize(
    "says",
    [
        None,
        b"",
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x28",  # the alert handshake_failure
        b"\x15\x03\x03\x00\x02\x02\x50",  # the alert internal_error
        b"\x16\x03\x03\x00\x40\x02",
        b"\x00" * 64,
    ],
    ids=["nothing", "an end", "plain HTTP", "a failure", "its own error", "half a record", "garbage"],
)
def test_a_handshake_that_fails_for_a_moment_is_tried_again(
    serve: Serve, authority: Authority, says: bytes | None, transport: str
) -> None:
    """As behind a proxy that just starts: only the agent's certificate is a reason to give up at once."""
    server = serve(always(OK), tls=Crowded(authority.server("127.0.0.1"), refusals=2, says=says))
    with ExitStack() as open_clients:
        carriers: dict[str, Any] = {}
        if transport == "httpx":
            context = ssl.create_default_context(cafile=str(authority.file))
            carriers["http_client"] = open_clients.enter_context(httpx.Client(verify=context))
            carriers["background_http_client"] = httpx.AsyncClient(verify=context)
        tls = TLSConfig(ca_cert=authority.file)
        client = Client(address=server.address, tls=tls, timeout=PATIENCE, **carriers)
        assert open_clients.enter_context(client).kv.put("k", "v")
    assert server.connections >= 3


def crowded(serve: Serve, authority: Authority, *, refusals: int) -> RawServer:
    return serve(always(OK), tls=Crowded(authority.server("127.0.0.1"), refusals=refusals))


def test_a_hang_up_before_the_handshake_is_put_down_to_the_limit(
    own_engine: MakeEngine, serve: Serve, authority: Authority
) -> None:
    server = crowded(serve, authority, refusals=1)
    sender = own_engine(server, tls=TLSConfig(ca_cert=authority.file))
    with pytest.raises(TooManyConnections, match="http_max_conns_per_client") as raised:
        sender.send(CAS)
    assert raised.value.outcome_unknown is False
    assert sender.send(CAS).body == b"true"
    assert server.connections == 2


def test_near_the_limit_a_hang_up_before_the_handshake_is_waited_out(
    own_engine: MakeEngine, serve: Serve, authority: Authority
) -> None:
    server = crowded(serve, authority, refusals=3)
    sender: Any = own_engine(server, tls=TLSConfig(ca_cert=authority.file))
    sender.transport.pool.limit.refused(sender.transport.pool.now())
    assert sender.send(CAS, timeout=PATIENCE).body == b"true"
    assert server.connections == 4
    assert [request.split(b" ")[0] for request in server.requests] == [b"GET", b"PUT"], "tried out, sent once"


def test_near_the_limit_a_renewal_that_is_hung_up_on_before_the_handshake_tells_so_at_once(
    own_engine: MakeEngine, serve: Serve, authority: Authority
) -> None:
    server = crowded(serve, authority, refusals=2)
    sender: Any = own_engine(server, tls=TLSConfig(ca_cert=authority.file))
    sender.transport.pool.limit.refused(sender.transport.pool.now())
    with pytest.raises(TooManyConnections):
        sender.send(RENEW, timeout=PATIENCE)
    assert server.connections == 1
