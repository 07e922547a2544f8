"""Facts of the wire: methods, paths, headers, compression."""

from __future__ import annotations

import gzip
import socket
from contextlib import closing, suppress

import pytest

from tests.conformance.target import TIMEOUT, UNKNOWN, Target


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
    assert answer.status == 404
    assert answer.body == b"" if target.is_1_8 else answer.text.startswith("Invalid URL path: ")


@pytest.mark.parametrize("path", ["/v1/kv", "/v1/session/info", "/v1/session/node", "/v1/health/node"])
def test_a_missing_slash_is_redirected(target: Target, path: str) -> None:
    query = "a=1&b='%22\"<i>"
    answer = target.get(f"{path}?{query}")
    assert target.is_redirect(answer.status)
    assert answer.headers["Location"] == f"{path}/?{query}"
    assert answer.text.split('"')[1] == f"{path}/?a=1&amp;b=&#39;%22&#34;&lt;i&gt;"


def test_what_every_reply_says(target: Target) -> None:
    key = target.key()
    write = target.put(f"/v1/kv/{key}", b"v")
    assert write.headers["Vary"] == "Accept-Encoding"
    assert write.headers["Content-Type"] == "application/json"
    read = target.get(f"/v1/kv/{key}")
    assert read.headers["X-Consul-Index"] == str(target.entry(key)["ModifyIndex"])
    assert "Date" in read.headers
    assert "Server" not in read.headers


def test_writes_have_no_index_and_no_leader(target: Target) -> None:
    key, session = target.key(), target.session(TTL="10s")
    writes = [
        target.put(f"/v1/kv/{key}", b"v"),
        target.delete(f"/v1/kv/{key}"),
        target.put(f"/v1/session/renew/{session}"),
        target.put(f"/v1/session/destroy/{session}"),
        target.txn({"Verb": "set", "Key": key}),
    ]
    for write in writes:
        for name in ("X-Consul-Index", "X-Consul-KnownLeader", "X-Consul-LastContact"):
            assert name not in write.headers


def test_header_names_are_spelled_as_go_spells_them(target: Target) -> None:
    with closing(target.connect()) as connection:
        connection.connect()
        connection.sock.sendall(b"GET /v1/kv/none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        head = b"".join(iter(lambda: connection.sock.recv(4_096), b"")).partition(b"\r\n\r\n")[0]
    for name in (b"X-Consul-Index", b"X-Consul-Knownleader", b"X-Consul-Lastcontact", b"Vary"):
        assert b"\r\n" + name + b": " in head


@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 10\r\n\r\nshort", b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n5\r\nsh"],
    ids=["length", "chunked"],
)
def test_a_write_that_is_cut_short_is_not_done(target: Target, framing: bytes) -> None:
    key = target.key()
    with closing(target.connect()) as connection:
        connection.connect()
        connection.sock.sendall(f"PUT /v1/kv/{key} HTTP/1.1\r\nHost: x\r\n".encode() + framing)
        connection.sock.shutdown(socket.SHUT_WR)
        answered = b"".join(iter(lambda: connection.sock.recv(4_096), b""))
    assert not answered.startswith(b"HTTP/1.1 200")
    assert target.get(f"/v1/kv/{key}").status == 404


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /", b"a" * 64_000),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"A: b\r\n" * 10_000),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: ", b"a" * 64_000),
        (
            b"PUT /v1/kv/trailed HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
            b"A: b\r\n" * 10_000,
        ),
    ],
    ids=["target", "headers", "header", "trailers"],
)
def test_a_head_or_trailers_without_end_are_refused(target: Target, begin: bytes, more: bytes) -> None:
    with closing(target.connect()) as connection:
        connection.connect()
        connection.sock.sendall(begin)
        answered = b""
        try:
            for _ in range(200):
                connection.sock.sendall(more)
            pytest.fail("it takes a head of 12 MB")
        except ConnectionError:
            with suppress(ConnectionError):
                answered = connection.sock.recv(4_096)
    assert answered == b"" or answered.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 500 "))
    assert target.get("/v1/kv/trailed").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/v1/agent/checks",
        "/v1/agent/members",
        "/v1/agent/self",
        "/v1/agent/services",
        "/v1/catalog/datacenters",
        "/v1/coordinate/datacenters",
        "/v1/event/list",
    ],
)
def test_what_the_agent_answers_itself_it_answers_for_any_datacenter(target: Target, path: str) -> None:
    assert target.get(f"{path}?dc=mars").status == 200


@pytest.mark.parametrize("call", ["GET /v1/status/leader", "GET /v1/status/peers", "PUT /v1/event/fire/e"])
def test_what_servers_answer_needs_those_of_the_datacenter(target: Target, call: str) -> None:
    method, path = call.split()
    elsewhere = target.ask(method, f"{path}?dc=mars")
    assert (elsewhere.status, elsewhere.text) == (500, "No path to datacenter")


@pytest.mark.parametrize("call", ["GET /v1/kv/k", "GET /v1/session/list", "PUT /v1/session/create"])
def test_places_that_are_not_here(target: Target, call: str) -> None:
    method, path = call.split()
    elsewhere = target.ask(method, f"{path}?dc=mars")
    assert (elsewhere.status, elsewhere.text) == (500, "No path to datacenter")
    enterprise = target.ask(method, f"{path}?ns=default")
    assert enterprise.status == 400
    assert 'Invalid query parameter: "ns"' in enterprise.text


def test_a_partition_is_not_looked_at(target: Target) -> None:
    answer = target.put(f"/v1/kv/{target.key()}?partition=default", b"v")
    if target.is_1_8:
        assert answer.status == 200
    else:  # known, and refused as a namespace is
        refused = 'Invalid query parameter: "partition" - Partitions are a Consul Enterprise feature'
        assert (answer.status, answer.text) == (400, refused)


def test_posts_are_no_puts(target: Target) -> None:
    for path in ("/v1/session/create", f"/v1/session/destroy/{UNKNOWN}", f"/v1/session/renew/{UNKNOWN}"):
        answer = target.ask("POST", path)
        assert (answer.status, answer.text) == (405, "method POST not allowed")


def test_a_refused_write_takes_an_index_too(target: Target) -> None:
    key, first, second = target.key(), target.session(), target.session()
    target.put(f"/v1/kv/{key}?acquire={first}")
    before = target.entry(key)["ModifyIndex"]
    assert target.put(f"/v1/kv/{key}?acquire={second}").json is False
    assert target.put(f"/v1/kv/{key}?cas=1").json is False
    target.put(f"/v1/kv/{target.key('next')}")
    assert target.entry(target.key("next"))["ModifyIndex"] >= before + 3


@pytest.mark.parametrize("value", [b"v", b"v" * 10_000])
def test_gzip_for_those_who_take_it(target: Target, value: bytes) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", value)
    answer = target.ask("GET", f"/v1/kv/{key}?raw", headers={"Accept-Encoding": "gzip"})
    if len(value) > 1 or target.is_1_8:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(answer.body) == value
    else:  # 1.20.6 does not take the trouble for so little
        assert (answer.headers["Content-Encoding"], answer.body) == (None, value)


@pytest.mark.parametrize(
    ("encodings", "zipped"),
    [
        (["gzip;q=0.5"], True),
        (["deflate, GZIP ;q=1"], True),
        (["gzip;level=1"], True),
        (["gzip;q=0"], False),
        (["gzip;q=x"], False),
        (["x-gzip"], False),
        (["*"], False),
        (["gzip", "identity"], True),
        (["identity", "gzip"], False),  # of several headers of a name, the first counts
    ],
)
def test_who_takes_gzip(target: Target, encodings: list[str], *, zipped: bool) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v" * 10_000)
    with closing(target.connect()) as connection:
        connection.putrequest("GET", f"/v1/kv/{key}", skip_accept_encoding=True)
        for encoding in encodings:
            connection.putheader("Accept-Encoding", encoding)
        connection.endheaders()
        with connection.getresponse() as reply:
            assert (reply.headers["Content-Encoding"] == "gzip") is zipped


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


def test_raft_configuration(target: Target) -> None:
    shown = target.get("/v1/operator/raft/configuration").json
    (server,) = shown.pop("Servers")
    assert shown == {"Index": 0}
    expected = {
        "ID": target.get("/v1/agent/self").json["Config"]["NodeID"],
        "Node": target.get("/v1/agent/self").json["Config"]["NodeName"],
        "Address": target.get("/v1/status/leader").json,
        "Leader": True,
        "ProtocolVersion": "3",
        "Voter": True,
    }
    assert target.shows(server, expected)


def test_agent_self(target: Target) -> None:
    shown = target.get("/v1/agent/self").json
    assert {"Config", "DebugConfig", "Coord", "Member", "Stats", "Meta"} <= shown.keys()
    assert {"Datacenter", "NodeName", "NodeID", "Server", "Version"} <= shown["Config"].keys()
    assert shown["Config"]["Server"] is True


def test_the_settings_that_an_agent_shows(target: Target) -> None:
    """Those that clients look at, in Consul's names and units."""
    settings = target.get("/v1/agent/self").json["DebugConfig"]
    assert {name: settings[name] for name in SETTINGS} == SETTINGS
    of_acls = settings if target.is_1_8 else settings["ACLResolverSettings"]
    assert of_acls["ACLDefaultPolicy"] == "allow"
    assert settings["NodeID"] == target.get("/v1/agent/self").json["Config"]["NodeID"]


SETTINGS = {
    "ACLsEnabled": False,
    "AdvertiseAddrLAN": "127.0.0.1",
    "ClientAddrs": ["127.0.0.1"],
    "Datacenter": "dc1",
    "DefaultQueryTime": "5m0s",
    "KVMaxValueSize": 524_288,
    "MaxQueryTime": "10m0s",
    "RPCHoldTimeout": "7s",
    "ServerMode": True,
    "SessionTTLMin": "200ms",
    "TxnMaxReqLen": 524_288,
}


def asked(target: Target, request: bytes) -> bytes:
    """Send bytes as they are, and return all that comes until the server ends the connection."""
    host, _, port = target.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"", b"missing required Host header"),
        (b"Host: a\r\nHost: b\r\n", b"too many Host headers"),
        (b"Host: a b\r\n", b"malformed Host header"),
    ],
)
def test_whom_a_request_is_for(target: Target, head: bytes, why: bytes) -> None:
    reply = asked(target, b"GET /v1/status/leader HTTP/1.1\r\n" + head + b"\r\n")
    assert reply.startswith(b"HTTP/1.1 400 Bad Request")
    said = reply.partition(b"\r\n\r\n")[2]
    # The words are Go's. Go 1.26.8 does not say why, if there are too many.
    is_silent = target.kind == "agent" and not target.is_1_8 and said == b"400 Bad Request"
    assert said == b"400 Bad Request: " + why or (is_silent and why.startswith(b"too many"))


def test_http_1_0(target: Target) -> None:
    """It needs no host, knows no chunks, and keeps its connection if it says so."""
    key = target.key()
    target.put(f"/v1/kv/{key}", b"x" * 10_000)
    first = b"GET /v1/kv/" + key.encode() + b"?raw HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    replies = asked(target, first + b"GET /v1/status/leader HTTP/1.0\r\n\r\n")
    head, _, rest = replies.partition(b"\r\n\r\n")
    assert b"content-length: 10000" in head.lower()
    assert b"connection: keep-alive" in head.lower()
    assert rest.startswith(b"x" * 10_000 + b"HTTP/1.")
    assert b" 200 OK" in rest[10_000:]


def test_targets_that_are_no_endpoints(target: Target) -> None:
    root = target.get("/")
    assert (target.is_redirect(root.status), root.headers["Location"]) == (True, "/ui/")
    assert target.ask("OPTIONS", "*").status == 200
    assert target.get(f"http://elsewhere{'/v1/status/leader'}").status == 200
    assert target.get("/v1/").status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("HEAD", "/"), ("POST", "/"), ("GET", "/v1/kv"), ("GET", "/v1/nope"), ("GET", "//")],
)
def test_a_reply_that_no_endpoint_made_is_the_same_for_everybody(
    target: Target, method: str, path: str
) -> None:
    reply = target.ask(method, path, headers={"Accept-Encoding": "gzip"})
    assert (reply.headers["Vary"], reply.headers["Content-Encoding"]) == (None, None)
    if target.is_redirect(reply.status):
        assert reply.headers["Content-Type"] == (None if method == "POST" else "text/html; charset=utf-8")


def test_a_key_of_a_hundred_thousand_bytes(target: Target) -> None:
    key = target.key("k" * 100_000)
    assert target.put(f"/v1/kv/{key}", b"v").json is True
    assert target.get(f"/v1/kv/{key}?raw").body == b"v"
    assert target.delete(f"/v1/kv/{key}").json is True


@pytest.mark.parametrize(
    "path", ["/v1/health/service/{}?", "/v1/catalog/service/{}?", "/v1/catalog/services?near={}&"]
)
def test_a_cached_answer_says_so(target: Target, path: str) -> None:
    place = path.format(target.unique)
    first, second = target.get(f"{place}cached").headers, target.get(f"{place}cached").headers
    if "services" not in path:  # which others may have asked for, too
        assert (first["X-Cache"], first["Age"]) == ("MISS", None)
    assert (second["X-Cache"], second["Age"]) == ("HIT", "0")
    assert target.get(place).headers["X-Cache"] is None


NAMESPACES = 'Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature'
OF_NAMESPACES = (
    ("GET", "checks"),
    ("GET", "services"),
    ("GET", "service/none"),
    ("GET", "health/service/id/none"),
    ("GET", "health/service/name/none"),
    ("PUT", "service/maintenance/none?enable=true"),
    ("PUT", "service/register"),
    ("PUT", "service/deregister/none"),
    ("PUT", "check/register"),
    ("PUT", "check/deregister/none"),
    ("PUT", "check/pass/none"),
)


@pytest.mark.parametrize(("method", "path"), OF_NAMESPACES)
def test_the_agents_services_and_checks_have_no_namespace(target: Target, method: str, path: str) -> None:
    body = {"Name": target.unique, "TTL": "60s"} if path == "check/register" else {"Name": target.unique}
    answer = target.ask(method, f"/v1/agent/{path}{'&' if '?' in path else '?'}ns=x", body)
    assert (answer.status, answer.text.removeprefix("Bad request: ")) == (400, NAMESPACES)
    assert target.unique not in target.get("/v1/agent/services").text
    assert target.unique not in target.get("/v1/agent/checks").text


@pytest.mark.parametrize("bad", ["wait=x", "index=x", "max_stale=x", "stale&consistent", "cached&consistent"])
def test_whose_options_of_a_read_are_looked_at(target: Target, bad: str) -> None:
    """Those of reads and of calls for keys; other writes, and the agent's own calls, have no such options."""
    key, node = target.key(), {"Node": f"n-{target.unique}", "Address": "10.0.0.9"}
    for method in ("GET", "PUT", "DELETE"):
        assert target.ask(method, f"/v1/kv/{key}?{bad}", b"v" if method == "PUT" else None).status == 400
    assert target.get(f"/v1/catalog/nodes?{bad}").status == 400
    assert target.put(f"/v1/session/renew/{UNKNOWN}?{bad}").status == 400
    created = target.put(f"/v1/session/create?{bad}", {"NodeChecks": []})
    assert created.status == 200
    assert target.put(f"/v1/session/destroy/{created.json['ID']}?{bad}").status == 200
    assert target.put(f"/v1/catalog/register?{bad}", node).status == 200
    assert target.put(f"/v1/catalog/deregister?{bad}", node).status == 200
    for path in ("self", "checks", "services", "members"):
        assert target.get(f"/v1/agent/{path}?{bad}").status == 200
