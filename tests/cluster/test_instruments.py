"""The instruments of a chaos run: the fenced register, the journal, the proxy, and links that can be cut."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from consul_coord.testing.history import Record
from proof.chaos import links
from proof.chaos.bed import Bed
from proof.chaos.journal import Journal, read_all
from proof.chaos.plan import Plan
from proof.chaos.proxy import Harm, Proxies, Proxy
from proof.chaos.register import Register
from proof.judge import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proof.cluster import RealCluster

PATIENCE = 30.0


def test_a_register_takes_no_fence_lower_than_the_last(tmp_path: Path) -> None:
    register = Register.of(tmp_path, "chaos/lock/a")
    assert register.log() == []
    assert [register.write(fence, f"w{fence}") for fence in (5, 5, 4, 7, 6)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert register.log() == [Entry(5, "w5"), Entry(5, "w5"), Entry(7, "w7")]


def test_a_register_in_use_is_waited_for_by_nobody(tmp_path: Path) -> None:
    register = Register(tmp_path / "register")
    register.write(1, "first")
    with (tmp_path / "register").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert register.write(2, "second") is None
    assert register.write(2, "second") is True


def test_journals_are_read_as_one_history_and_may_be_cut_off(tmp_path: Path) -> None:
    records = [Record(at=float(at), process=f"p{at % 2}", kind="note") for at in range(4)]
    for process in ("p0", "p1"):
        journal = Journal(tmp_path / f"history-{process}.jsonl")
        for record in records:
            if record.process == process:
                journal.add(record)
        journal.close()
    with (tmp_path / "history-p1.jsonl").open("a") as file:
        file.write('{"at": 4.0, "proc')
    assert read_all(tmp_path) == records


# -- the proxy


@contextmanager
def echo() -> Iterator[str]:
    """Serve, and send everything back, in capitals."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(sock: socket.socket) -> None:
        with sock:
            try:
                while data := sock.recv(100):
                    sock.sendall(data.upper())
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(sock,)))
            threads[-1].start()

    threads = [threading.Thread(target=accept)]
    threads[0].start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join(PATIENCE)


@pytest.fixture
def proxied() -> Iterator[tuple[Proxies, Proxy]]:
    with echo() as address, Proxies() as proxies:
        yield proxies, proxies.before(address)


def connect(proxy: Proxy, *, timeout: float = PATIENCE) -> socket.socket:
    host, _, port = proxy.address.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=timeout)


def asked(sock: socket.socket, text: bytes = b"word") -> bytes:
    sock.sendall(text)
    return sock.recv(100)


def answered(sock: socket.socket) -> bool:
    """Return whether there is an answer; a connection that ends has none, in whatever way it does."""
    try:
        return asked(sock) != b""
    except ConnectionError:
        return False


def test_a_proxy_without_harm_passes_everything(proxied: tuple[Proxies, Proxy]) -> None:
    with connect(proxied[1]) as sock:
        assert asked(sock) == b"WORD"


def test_what_is_held_arrives_late(proxied: tuple[Proxies, Proxy]) -> None:
    proxies, proxy = proxied
    with connect(proxy) as sock:
        assert asked(sock) == b"WORD"
        proxies.set(proxy, Harm.HOLD)
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            asked(sock, b"late")
        proxies.set(proxy, Harm.NONE)
        sock.settimeout(PATIENCE)
        assert sock.recv(100) == b"LATE"


def test_what_is_swallowed_never_arrives(proxied: tuple[Proxies, Proxy]) -> None:
    proxies, proxy = proxied
    with connect(proxy) as sock:
        assert asked(sock) == b"WORD"
        proxies.set(proxy, Harm.SWALLOW)
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            asked(sock, b"gone")
        sock.settimeout(PATIENCE)
        proxies.set(proxy, Harm.NONE)
        with pytest.raises(ConnectionResetError):
            sock.recv(100)


def test_a_reply_is_cut_in_the_middle(proxied: tuple[Proxies, Proxy]) -> None:
    proxies, proxy = proxied
    proxies.set(proxy, Harm.CUT)
    with connect(proxy) as sock:
        assert asked(sock) == b"WO"
        assert sock.recv(100) == b""


def test_connections_are_reset_old_and_new(proxied: tuple[Proxies, Proxy]) -> None:
    proxies, proxy = proxied
    with connect(proxy) as sock:
        assert asked(sock) == b"WORD"
        proxies.set(proxy, Harm.RESET)
        with pytest.raises(ConnectionResetError):
            sock.recv(100)
    with connect(proxy) as sock:
        assert not answered(sock)
    proxies.set(proxy, Harm.NONE)
    with connect(proxy) as sock:
        assert asked(sock) == b"WORD"


# -- links

PROBE = """
import socket
from proof.chaos.links import Links

listener = socket.create_server(("127.0.0.12", 0))
here = socket.create_connection(listener.getsockname(), source_address=("127.0.0.11", 0))
there, _ = listener.accept()
def passes(source, target):
    source.sendall(b"x")
    target.settimeout(0.3)
    try:
        return len(target.recv(100))
    except TimeoutError:
        return 0
links = Links()
seen = [passes(here, there), passes(there, here)]
links.cut("127.0.0.11", "127.0.0.12")
links.cut("127.0.0.11", "127.0.0.12")
seen += [passes(here, there)]
links.mend("127.0.0.11", "127.0.0.12")
seen += [passes(here, there)]
links.mend("127.0.0.11", "127.0.0.12")
there.settimeout(10)
seen += [len(there.recv(100)) > 0]
print(seen)
"""


@pytest.mark.skipif(not links.available(), reason="no network namespaces here, or no `unshare` and `ip`")
def test_a_cut_link_passes_nothing_until_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    starter = "import sys; from proof.chaos.links import enter_private; enter_private('probe', [])"
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    found = subprocess.run(
        [sys.executable, "-c", starter], env=environ, capture_output=True, text=True, timeout=40, check=False
    )
    assert (found.stdout, found.stderr) == ("[1, 1, 0, 0, True]\n", "")


class Agent:
    """Stands for an agent's process."""

    def __init__(self, name: str, *, is_running: bool) -> None:
        self.name = name
        self.is_running = is_running
        self.log = f"the log of {name}"

    def launch(self) -> None:
        self.is_running = True


def test_an_agent_that_ended_by_itself_is_started_again_and_its_log_kept(tmp_path: Path) -> None:
    bed = Bed(Plan(seed=1), tmp_path, links=None)
    fine, ended, killed = agents = [
        Agent(name, is_running=name == "server0") for name in ("server0", "client0", "client1")
    ]
    bed.cluster = cast("RealCluster", SimpleNamespace(agents=agents[:1], clients=agents[1:]))
    assert bed.revive(apart_from={killed.name}) == 1
    assert (fine.is_running, ended.is_running, killed.is_running) == (True, True, False)
    (log,) = tmp_path.glob("ended-*.log")
    assert log.read_text() == ended.log
    assert {(each.process, each.kind) for each in read_all(tmp_path)} == {
        ("client0", "fault"),
        ("client0", "healed"),
    }
    assert bed.revive(apart_from={killed.name}) == 0
    bed._journal.close()
    with bed.proxies:
        pass  # it closes their loop
