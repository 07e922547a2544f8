"""Snapshots over the API: what comes back, what ends, and what is refused."""

from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.testing.agent import RealAgent
from tests.conformance.conftest import NEWEST
from tests.conformance.target import DEADLINE, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTLE = 0.3


SIDES = ["reference", "newest", pytest.param("agent", marks=pytest.mark.agent)]


@pytest.fixture(scope="module", params=SIDES)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """A server of its own, whose state may be turned back."""
    server: RealAgent | ReferenceServer[Any]
    if request.param == "agent":
        server = RealAgent(binary=request.getfixturevalue("consul_binary"))
    else:
        version = NEWEST if request.param == "newest" else ServerConfig().version
        server = ReferenceServer(config=ServerConfig(version=version))
    with server:
        yield Target(request.param, server.address)


def test_a_snapshot_brings_back_what_there_was(target: Target) -> None:
    key, node = target.key(), {"Node": "n2", "Address": "10.0.0.2"}
    session = target.session(TTL="60s", Behavior="delete")
    assert target.put(f"/v1/kv/{key}?acquire={session}&flags=7", b"v").json is True
    assert target.put("/v1/catalog/register", {**node, "Service": {"Service": "s"}}).status == 200
    before = target.get(f"/v1/kv/{key}").json
    saved = target.get("/v1/snapshot")
    assert (saved.status, saved.headers["Content-Type"]) == (200, "application/x-gzip")
    assert saved.headers["X-Consul-Knownleader"] == "true"
    assert saved.index > 0

    target.put(f"/v1/session/destroy/{session}")
    target.put("/v1/catalog/deregister", node)
    assert target.get(f"/v1/kv/{key}").status == 404
    restored = target.put("/v1/snapshot", saved.body)
    assert (restored.status, restored.body) == (200, b"")
    assert target.get(f"/v1/kv/{key}").json == before
    assert [each["ServiceName"] for each in target.get("/v1/catalog/service/s").json] == ["s"]
    assert target.info(session)[0]["ID"] == session
    assert target.put(f"/v1/kv/{key}?release={session}", b"w").json is True


def test_a_watch_ends_when_a_snapshot_is_restored(target: Target) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v")
    saved = target.get("/v1/snapshot").body
    index = target.get(f"/v1/kv/{key}").index
    with ThreadPoolExecutor() as pool:
        watch = pool.submit(target.get, f"/v1/kv/{key}?index={index}&wait=60s")
        with pytest.raises(TimeoutError):
            watch.result(SETTLE)
        assert target.put("/v1/snapshot", saved).status == 200
        assert watch.result(DEADLINE).json[0]["Key"] == key


@pytest.mark.parametrize(
    ("call", "status", "text"),
    [
        (("PUT", "/v1/snapshot", b""), 500, "failed to decompress snapshot: EOF"),
        (("PUT", "/v1/snapshot", b"junk"), 500, "failed to decompress snapshot: unexpected EOF"),
        (
            ("PUT", "/v1/snapshot", b"longer than a header"),
            500,
            "failed to decompress snapshot: gzip: invalid header",
        ),
        (("PUT", "/v1/snapshot?stale", b""), 500, "stale not allowed for restore"),
        (("GET", "/v1/snapshot?dc=none", b""), 500, "No path to datacenter"),
        (("POST", "/v1/snapshot", b""), 405, "method POST not allowed"),
    ],
)
def test_what_is_refused(target: Target, call: tuple[str, str, bytes], status: int, text: str) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v")
    answer = target.ask(*call)
    assert (answer.status, answer.text) == (status, text)
    assert target.entry(key)["Value"] == "dg=="


def test_a_file_that_is_no_snapshot_is_refused(target: Target) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v")
    answer = target.put("/v1/snapshot", gzip.compress(b'{"index": 1}'))
    assert (answer.status, answer.text.startswith("failed to read snapshot file: ")) == (500, True)
    assert target.entry(key)["Value"] == "dg=="
