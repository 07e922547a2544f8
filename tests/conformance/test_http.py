"""Facts of the wire: methods, paths, headers, compression."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conformance.target import Target


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/v1/kv/k", "OPTIONS,GET,PUT,DELETE"),
        ("/v1/session/create", "OPTIONS,PUT"),
        ("/v1/session/list", "OPTIONS,GET"),
        ("/v1/status/leader", "OPTIONS,GET"),
        ("/v1/query", "OPTIONS,GET,POST"),
        ("/v1/agent/check/pass/x", "OPTIONS,PUT"),
    ],
)
def test_methods(target: Target, path: str, allow: str) -> None:
    options = target.ask("OPTIONS", path)
    assert (options.status, options.body, options.headers["Allow"]) == (200, b"", allow)
    patch = target.ask("PATCH", path)
    assert (patch.status, patch.text, patch.headers["Allow"]) == (405, "method PATCH not allowed", allow)
    assert target.ask("HEAD", path).status == 405


@pytest.mark.parametrize("path", ["/v1/nonsense", "/v1/session/create/", "/v2/kv/k", "/v1/txn/"])
def test_unknown_paths(target: Target, path: str) -> None:
    answer = target.get(path)
    assert (answer.status, answer.body) == (404, b"")


@pytest.mark.parametrize("path", ["/v1/kv", "/v1/session/info", "/v1/session/node", "/v1/health/node"])
def test_a_missing_slash_is_redirected(target: Target, path: str) -> None:
    answer = target.get(f"{path}?a=1")
    assert (answer.status, answer.headers["Location"]) == (301, f"{path}/?a=1")


def test_what_every_reply_says(target: Target) -> None:
    key = target.key()
    write = target.put(f"/v1/kv/{key}", b"v")
    assert write.headers["Vary"] == "Accept-Encoding"
    assert write.headers["Content-Type"] == "application/json"
    assert not any(name.startswith("X-Consul") for name in write.headers)
    read = target.get(f"/v1/kv/{key}")
    assert read.headers["X-Consul-Index"] == str(target.entry(key)["ModifyIndex"])
    assert "Date" in read.headers
    assert "Server" not in read.headers


def test_gzip_for_those_who_take_it(target: Target) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v")
    answer = target.ask("GET", f"/v1/kv/{key}?raw", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(answer.body) == b"v"


def test_large_replies_come_in_chunks(target: Target) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"x" * 10_000)
    answer = target.get(f"/v1/kv/{key}")
    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert answer.headers["Content-Length"] is None


def test_pretty(target: Target) -> None:
    key = target.key()
    assert target.put(f"/v1/kv/{key}?pretty", b"<&>").body == b"true\n"
    body = target.get(f"/v1/kv/{key}?pretty").body
    assert body.startswith(b'[\n    {\n        "LockIndex": 0,\n')
    assert body.endswith(b"    }\n]\n")


def test_status(target: Target) -> None:
    leader = target.get("/v1/status/leader?index=1000000&wait=5s").json
    assert leader.startswith("127.0.0.1:")
    assert target.get("/v1/status/peers").json == [leader]
    assert target.get("/v1/status/leader").headers["X-Consul-Index"] is None


def test_agent_self(target: Target) -> None:
    shown = target.get("/v1/agent/self").json
    assert {"Config", "DebugConfig", "Coord", "Member", "Stats", "Meta"} <= shown.keys()
    assert {"Datacenter", "NodeName", "NodeID", "Server", "Version"} <= shown["Config"].keys()
    assert shown["Config"]["Version"] == "1.8.7"
