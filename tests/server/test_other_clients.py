"""Clients that others wrote, against the reference server: py-consul in both worlds, and ``consul lock``.

They know nothing of it; what they are told is looked at through the server's own state.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import time
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.server import ReferenceServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from consul_coord.clock import SystemClock

    Server = ReferenceServer[SystemClock]

DEADLINE = 20.0


@pytest.fixture
def server() -> Iterator[Server]:
    with ReferenceServer() as running:
        yield running


def place(server: Server) -> dict[str, Any]:
    host, _, port = server.address.removeprefix("http://").rpartition(":")
    return {"host": host, "port": int(port)}


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


@pytest.fixture
def theirs(server: Server) -> Iterator[Any]:
    """A py-consul client. Untyped: it comes without types."""
    client = import_module("consul").Consul(**place(server))
    try:
        yield client
    finally:
        client.http.session.close()


def test_py_consul_sessions(server: Server, theirs: Any) -> None:
    session = theirs.session.create(name="mine", ttl=15, lock_delay=3, behavior="delete")
    assert server.state.sessions[session].lock_delay == 3_000_000_000
    _, info = theirs.session.info(session)
    assert (info["ID"], info["Name"], info["TTL"], info["Behavior"]) == (session, "mine", "15s", "delete")
    assert [each["ID"] for each in theirs.session.list()[1]] == [session]
    assert [each["ID"] for each in theirs.session.node("node1")[1]] == [session]
    assert theirs.session.renew(session)["ID"] == session
    assert theirs.session.destroy(session) is True
    assert theirs.session.info(session)[1] is None
    with pytest.raises(import_module("consul").NotFound):
        theirs.session.renew(session)


def test_py_consul_keys(server: Server, theirs: Any) -> None:
    assert theirs.kv.get("none")[1] is None
    assert theirs.kv.put("a/1", "x", flags=7) is True
    index, entry = theirs.kv.get("a/1")
    assert (entry["Value"], entry["Flags"], int(index)) == (b"x", 7, entry["ModifyIndex"])
    assert theirs.kv.put("a/1", "y", cas=1) is False
    assert theirs.kv.put("a/1", "y", cas=entry["ModifyIndex"]) is True
    theirs.kv.put("a/b/2", "z")
    assert theirs.kv.get("a/", keys=True)[1] == ["a/1", "a/b/2"]
    assert theirs.kv.get("a/", keys=True, separator="/")[1] == ["a/1", "a/b/"]
    assert [each["Value"] for each in theirs.kv.get("a/", recurse=True)[1]] == [b"y", b"z"]
    assert theirs.kv.delete("a/", recurse=True) is True
    assert not server.state.kv


def test_py_consul_locks(server: Server, theirs: Any) -> None:
    first, second = theirs.session.create(lock_delay=0), theirs.session.create(lock_delay=0)
    assert theirs.kv.put("k", "1", acquire=first) is True
    assert theirs.kv.put("k", "2", acquire=second) is False
    assert theirs.kv.get("k")[1]["Session"] == first
    assert theirs.kv.put("k", "", release=second) is False
    assert theirs.kv.put("k", "", release=first) is True
    assert theirs.kv.put("k", "2", acquire=second) is True
    assert (server.state.kv["k"].session, server.state.kv["k"].lock_index) == (second, 2)


def test_py_consul_transactions(server: Server, theirs: Any) -> None:
    session = theirs.session.create()
    done = theirs.txn.put(
        [
            {"KV": {"Verb": "lock", "Key": "k", "Session": session, "Value": b64(b"v")}},
            {"KV": {"Verb": "get", "Key": "k"}},
        ]
    )
    assert [each["KV"]["Session"] for each in done["Results"]] == [session, session]
    assert server.state.kv["k"].value == b"v"
    with pytest.raises(import_module("consul").ConsulException, match="409"):
        theirs.txn.put([{"KV": {"Verb": "check-not-exists", "Key": "k"}}])


@pytest.mark.filterwarnings("ignore:.* is deprecated, use ssl=context instead:DeprecationWarning")
def test_py_consul_on_asyncio(server: Server) -> None:
    async def main() -> None:
        client: Any = import_module("consul.aio").Consul(**place(server))
        try:
            session = await client.session.create(ttl=15)
            assert await client.kv.put("k", "v", acquire=session) is True
            index, entry = await client.kv.get("k")
            assert (entry["Value"], entry["Session"]) == (b"v", session)
            watch = asyncio.ensure_future(client.kv.get("k", index=index, wait="60s"))
            await asyncio.to_thread(eventually, lambda: server.state.blocked == 1)
            assert await client.kv.put("k", "w", release=session) is True
            newer, entry = await watch
            assert (entry["Value"], int(newer) > int(index)) == (b"w", True)
            done = await client.txn.put([{"KV": {"Verb": "delete", "Key": "k"}}])
            assert done["Errors"] is None
            assert await client.session.destroy(session) is True
        finally:
            await client.close()

    asyncio.run(main())
    assert not server.state.kv


@contextmanager
def consul_lock(binary: Path, server: Server, folder: Path, limit: int, name: str) -> Iterator[Path]:
    """Run ``consul lock``; its child touches a file when it runs, and goes on until that file is gone."""
    mark = folder / name
    script = f'echo "$CONSUL_LOCK_HELD" >"{mark}"; while [ -e "{mark}" ]; do sleep 0.02; done'
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CONSUL_")}
    with subprocess.Popen(
        [binary, "lock", f"-http-addr={server.address}", f"-n={limit}", "jobs/it", script],
        stdout=subprocess.DEVNULL,
        env=environment,
    ) as process:
        try:
            yield mark
            mark.unlink(missing_ok=True)
            assert process.wait(DEADLINE) == 0
        finally:
            process.kill()


def test_consul_lock(consul_binary: Path, server: Server, tmp_path: Path) -> None:
    with consul_lock(consul_binary, server, tmp_path, 1, "first") as first:
        eventually(lambda: first.exists() and first.read_text() == "true\n")
        assert server.state.kv["jobs/it/.lock"].session
        with consul_lock(consul_binary, server, tmp_path, 1, "second") as second:
            eventually(lambda: len(server.state.sessions) == 2 and server.state.blocked == 2)
            assert not second.exists()
            first.unlink()
            eventually(second.exists)
    assert not server.state.sessions
    assert not server.state.kv


def test_consul_lock_as_a_semaphore(consul_binary: Path, server: Server, tmp_path: Path) -> None:
    with (
        consul_lock(consul_binary, server, tmp_path, 3, "a") as a,
        consul_lock(consul_binary, server, tmp_path, 3, "b") as b,
        consul_lock(consul_binary, server, tmp_path, 3, "c") as c,
    ):
        eventually(lambda: a.exists() and b.exists() and c.exists())
        with consul_lock(consul_binary, server, tmp_path, 3, "d") as d:
            eventually(lambda: len(server.state.sessions) == 4 and server.state.blocked == 4)
            assert not d.exists()
            a.unlink()
            eventually(d.exists)
    assert not server.state.sessions
