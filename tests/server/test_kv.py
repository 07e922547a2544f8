"""Keys and transactions on the pure service: who may write, and which indexes follow."""

from __future__ import annotations

import base64

import pytest

from consul_coord.server.wire import Request
from tests.server.driver import Driver

UNKNOWN = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def agent() -> Driver:
    return Driver()


def test_a_write_that_changes_nothing_keeps_the_index(agent: Driver) -> None:
    agent.ask("PUT", "/v1/kv/k?flags=3", b"v")
    before = agent.entry("k")
    assert agent.ask("PUT", "/v1/kv/k?flags=3", b"v").json is True
    assert agent.entry("k") == before
    agent.ask("PUT", "/v1/kv/k", b"v")
    after = agent.entry("k")
    assert after["Flags"] == 0
    assert after["ModifyIndex"] > before["ModifyIndex"]
    assert after["CreateIndex"] == before["CreateIndex"]


def test_every_write_that_reaches_raft_consumes_an_index(agent: Driver) -> None:
    session = agent.session()
    agent.ask("PUT", f"/v1/kv/k?acquire={session}", b"v")
    for target in (f"/v1/kv/k?acquire={agent.session()}", "/v1/kv/k?cas=1", f"/v1/kv/k?acquire={UNKNOWN}"):
        before = agent.state.store.raft_index
        agent.ask("PUT", target, b"x")
        assert agent.state.store.raft_index == before + 1
    assert agent.entry("k")["Value"] == "dg=="


def test_anyone_may_write_a_locked_key_and_that_resets_the_lock_index(agent: Driver) -> None:
    session = agent.session()
    agent.ask("PUT", f"/v1/kv/k?acquire={session}&flags=9", b"v")
    agent.ask("PUT", "/v1/kv/k", b"w")
    shown = agent.entry("k")
    assert (shown["Session"], shown["LockIndex"], shown["Flags"]) == (session, 0, 0)
    agent.ask("PUT", f"/v1/kv/k?release={session}", b"")
    assert agent.entry("k")["Value"] is None
    agent.ask("PUT", f"/v1/kv/k?acquire={session}", b"v")
    assert agent.entry("k")["LockIndex"] == 1


def test_lock_index_counts_acquisitions_by_new_holders(agent: Driver) -> None:
    first, second = agent.session(), agent.session()
    for session, lock_index in ((first, 1), (second, 2), (first, 3)):
        assert agent.ask("PUT", f"/v1/kv/k?acquire={session}", b"v").json is True
        assert agent.ask("PUT", f"/v1/kv/k?acquire={session}", b"w").json is True
        assert agent.entry("k")["LockIndex"] == lock_index
        agent.ask("PUT", f"/v1/kv/k?release={session}")


def test_the_holder_is_compared_as_text(agent: Driver) -> None:
    session = agent.session()
    letters = "abcdef00-0000-0000-0000-00000000000a"
    agent.state.store.sessions.rows[letters] = agent.state.store.sessions.rows[session]
    agent.ask("PUT", f"/v1/kv/k?acquire={letters}")
    assert agent.ask("PUT", f"/v1/kv/k?acquire={letters.upper()}").json is False
    assert agent.ask("PUT", f"/v1/kv/k?release={letters.upper()}").json is False
    assert agent.ask("PUT", f"/v1/kv/free?acquire={letters.upper()}").json is True
    assert agent.entry("free")["Session"] == letters.upper()


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/v1/kv/k?flags=abc", 500, 'strconv.ParseUint: parsing "abc": invalid syntax'),
        ("/v1/kv/k?flags=-1", 500, 'strconv.ParseUint: parsing "-1": invalid syntax'),
        ("/v1/kv/k?flags=", 500, 'strconv.ParseUint: parsing "": invalid syntax'),
        (
            f"/v1/kv/k?flags={2**64}",
            500,
            f'strconv.ParseUint: parsing "{2**64}": value out of range',
        ),
        ("/v1/kv/k?cas=x", 500, 'strconv.ParseUint: parsing "x": invalid syntax'),
        ("/v1/kv/k?acquire=", 500, "missing session"),
        ("/v1/kv/k?release", 500, "missing session"),
        (f"/v1/kv/k?acquire={UNKNOWN}", 500, f'invalid session "{UNKNOWN}"'),
        ("/v1/kv/k?acquire=x", 500, "failed session lookup: index error: UUID must be 36 characters"),
        ("/v1/kv/k?release=x", 200, "false"),
        ("/v1/kv/k?acquire=x&cas=0", 400, "Conflicting flags: acquire=x&cas=0"),
        ("/v1/kv/", 400, "Missing key name"),
        ("/v1/kv/k?ns=default", 400, None),
        ("/v1/kv/k?dc=mars", 500, "No path to datacenter"),
    ],
)
def test_refused_writes(agent: Driver, target: str, status: int, text: str | None) -> None:
    reply = agent.ask("PUT", target, b"v")
    assert reply.status == status
    assert text is None or reply.text == text


def test_a_large_body_is_refused_by_its_length(agent: Driver) -> None:
    limit = agent.state.config.kv_max_value_size
    assert agent.ask("PUT", "/v1/kv/k", b"x" * limit).json is True
    refused = agent.ask("PUT", "/v1/kv/k", b"x" * (limit + 1))
    assert refused.status == 413
    assert refused.text.startswith("Request body(524289 bytes) too large, max size: 524288 bytes. See ")
    chunked = Request("PUT", "/v1/kv/k", body=b"x" * (limit + 1), content_length=None)
    reply = agent.service.handle(chunked, agent.now)
    assert getattr(reply, "body", None) == b"true"


@pytest.mark.parametrize(
    ("cas", "present", "deleted"), [(0, True, False), (1, True, False), (0, False, True), (7, False, True)]
)
def test_delete_with_cas(agent: Driver, *, cas: int, present: bool, deleted: bool) -> None:
    if present:
        agent.ask("PUT", "/v1/kv/k", b"v")
    assert agent.ask("DELETE", f"/v1/kv/k?cas={cas}").json is deleted


def test_recursive_delete_takes_a_string_prefix_and_leaves_a_tombstone(agent: Driver) -> None:
    for key in ("t/a", "tz", "u"):
        agent.ask("PUT", f"/v1/kv/{key}", b"v")
    listed = agent.ask("GET", "/v1/kv/t?recurse")
    assert [entry["Key"] for entry in listed.json] == ["t/a", "tz"]
    agent.ask("DELETE", "/v1/kv/t?recurse")
    empty = agent.ask("GET", "/v1/kv/t?recurse")
    assert empty.status == 404
    assert empty.index is not None
    assert listed.index is not None
    assert empty.index > listed.index
    agent.ask("PUT", "/v1/kv/u", b"w")
    assert agent.ask("GET", "/v1/kv/t?recurse").index == empty.index


def test_tombstones_are_reaped_and_the_prefix_index_goes_back(agent: Driver) -> None:
    for key in ("p/a", "p/b"):
        agent.ask("PUT", f"/v1/kv/{key}", b"v")
    agent.ask("DELETE", "/v1/kv/p/b")
    table = agent.ask("GET", "/v1/kv/none").index
    assert agent.ask("GET", "/v1/kv/p/?recurse").index == table
    agent.advance(agent.state.config.tombstone_ttl + agent.state.config.tombstone_granularity)
    assert len(agent.state.store.tombstones) == 0
    assert agent.ask("GET", "/v1/kv/p/?recurse").index == agent.entry("p/a")["ModifyIndex"]
    assert agent.ask("GET", "/v1/kv/none").index == table  # a real agent's stayed, watched for 20 minutes


@pytest.mark.parametrize(
    ("prefix", "keys"), [("p/", ["p/", "p/x/", "p/y"]), ("p", ["p", "p/"]), ("", ["p", "p/", "q"])]
)
def test_keys_fold_after_the_prefix(agent: Driver, prefix: str, keys: list[str]) -> None:
    for key in ("p", "p/", "p/x/1", "p/x/2", "p/y", "q"):
        agent.ask("PUT", f"/v1/kv/{key}", b"v")
    for spelling in ("separator", "seperator"):
        assert agent.ask("GET", f"/v1/kv/{prefix}?keys&{spelling}=/").json == keys


def test_reads_of_nothing(agent: Driver) -> None:
    for target in ("/v1/kv/k", "/v1/kv/k?raw", "/v1/kv/k?recurse", "/v1/kv/k?keys", "/v1/kv/?recurse"):
        reply = agent.ask("GET", target)
        assert (reply.status, reply.body, reply.index) == (404, b"", 1)
    assert agent.ask("GET", "/v1/kv/?keys").json == []
    assert agent.ask("GET", "/v1/kv/").text == "Missing key name"


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("a%2Fb", "a/b"),
        ("a%252Fb", "a%2Fb"),
        ("a+b", "a+b"),
        ("%20x", " x"),
        ("%C3%A9", "é"),
        ("trail/", "trail/"),
        ("q%3F%23", "q?#"),
    ],
)
def test_key_names_are_the_decoded_path(agent: Driver, path: str, key: str) -> None:
    agent.ask("PUT", f"/v1/kv/{path}", b"v")
    assert [entry["Key"] for entry in agent.ask("GET", "/v1/kv/?recurse").json] == [key]


@pytest.mark.parametrize("path", ["/lead", "a//b", "a/./b", "a/../b", "..", "%2Flead", "a%2F..%2Fb"])
def test_unclean_key_names_are_redirected(agent: Driver, path: str) -> None:
    assert agent.ask("PUT", f"/v1/kv/{path}", b"v").status == 301
    assert agent.ask("GET", "/v1/kv/?recurse").status == 404


@pytest.mark.parametrize("path", ["a%09", "a%00", "a%0A", "a%E2%80%8B"])
def test_unprintable_key_names_are_refused(agent: Driver, path: str) -> None:
    reply = agent.ask("PUT", f"/v1/kv/{path}", b"v")
    assert (reply.status, reply.body) == (400, b"")


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def test_a_transaction_is_applied_at_one_index_and_sees_itself(agent: Driver) -> None:
    session = agent.session()
    reply = agent.txn(
        {"Verb": "lock", "Key": "t/k", "Session": session, "Value": b64(b"v")},
        {"Verb": "set", "Key": "t/l", "Value": b64(b"1")},
        {"Verb": "set", "Key": "t/l", "Value": b64(b"2")},
        {"Verb": "get-tree", "Key": "t/"},
        {"Verb": "delete", "Key": "none"},
        {"Verb": "check-session", "Key": "t/k", "Session": session},
    )
    results = [result["KV"] for result in reply.json["Results"]]
    assert [result["Key"] for result in results] == ["t/k", "t/l", "t/l", "t/k", "t/l", "t/k"]
    assert {result["ModifyIndex"] for result in results} == {agent.state.store.raft_index}
    assert results[0]["Value"] is None
    assert results[0]["Session"] == session
    assert results[4]["Value"] == b64(b"2")
    assert reply.json["Errors"] is None


FAILURES: list[tuple[dict[str, object], str]] = [
    ({"Verb": "cas", "Key": "k", "Index": 0}, 'failed to set key "k", index is stale'),
    ({"Verb": "lock", "Key": "k", "Session": "S"}, 'failed to lock key "k", lock is already held'),
    ({"Verb": "lock", "Key": "n"}, "missing session"),
    ({"Verb": "lock", "Key": "n", "Session": UNKNOWN}, f'invalid session "{UNKNOWN}"'),
    (
        {"Verb": "unlock", "Key": "k", "Session": "S"},
        'failed to unlock key "k", lock isn\'t held, or is held by another session',
    ),
    ({"Verb": "get", "Key": "n"}, 'key "n" doesn\'t exist'),
    ({"Verb": "check-index", "Key": "k", "Index": 1}, 'failed index check for key "k", current modify index'),
    ({"Verb": "check-index", "Key": "n", "Index": 0}, 'failed to check index, key "n" doesn\'t exist'),
    (
        {"Verb": "check-session", "Key": "k", "Session": "x"},
        'failed session check for key "k", current',
    ),
    ({"Verb": "check-session", "Key": "n", "Session": ""}, 'failed to check session, key "n" doesn\'t exist'),
    ({"Verb": "check-not-exists", "Key": "k"}, 'key "k" exists'),
    ({"Verb": "delete-cas", "Key": "k", "Index": 1}, 'failed to delete key "k", index is stale'),
    ({"Verb": "SET", "Key": "k"}, 'unknown KV verb "SET"'),
    ({"Verb": "get-or-empty", "Key": "k"}, 'unknown KV verb "get-or-empty"'),
]


@pytest.mark.parametrize(("op", "what"), FAILURES, ids=[f"{op['Verb']}-{op['Key']}" for op, _ in FAILURES])
def test_a_failing_operation_undoes_everything(agent: Driver, op: dict[str, object], what: str) -> None:
    holder, other = agent.session(), agent.session()
    agent.ask("PUT", f"/v1/kv/k?acquire={holder}", b"v")
    before = agent.ask("GET", "/v1/kv/?recurse")
    failing = {**op, "Session": other} if op.get("Session") == "S" else op
    reply = agent.txn(
        {"Verb": "set", "Key": "new", "Value": b64(b"1")}, failing, {"Verb": "delete-tree", "Key": ""}
    )
    assert reply.status == 409
    assert reply.json["Results"] is None
    (error,) = reply.json["Errors"]
    assert error["OpIndex"] == 1
    assert error["What"].startswith(what)
    after = agent.ask("GET", "/v1/kv/?recurse")
    assert (after.json, after.index) == (before.json, before.index)
    assert agent.state.store.kv.held_by(holder) == ["k"]


def test_a_transaction_that_only_reads_says_so(agent: Driver) -> None:
    agent.ask("PUT", "/v1/kv/k", b"v")
    before = agent.state.store.raft_index
    reply = agent.txn({"Verb": "get", "Key": "k"})
    extra = {key: reply.json[key] for key in ("Index", "LastContact", "KnownLeader", "ConsistencyLevel")}
    assert extra == {"Index": 0, "LastContact": 0, "KnownLeader": True, "ConsistencyLevel": ""}
    assert reply.index is None
    assert agent.state.store.raft_index == before


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "Failed to parse body: EOF"),
        (b'[{"KV":{"Foo":1}}]', 400, 'Failed to parse body: json: unknown field "Foo"'),
        (b'[{"Session":{}}]', 400, 'Failed to parse body: json: unknown field "Session"'),
        (b'[{"KV":{"Verb":"set","Key":"k","Value":"abc"}}]', 400, None),
        (b'[{"KV":{}}]', 409, None),
        (b"[]", 200, None),
        (b"null", 200, None),
        (b"[{}]", 200, None),
    ],
)
def test_bodies_of_transactions(agent: Driver, body: bytes, status: int, text: str | None) -> None:
    reply = agent.ask("PUT", "/v1/txn", body)
    assert reply.status == status
    assert text is None or reply.text == text


def test_a_transaction_takes_64_operations(agent: Driver) -> None:
    ops = [{"Verb": "set", "Key": f"k{number}"} for number in range(65)]
    assert agent.txn(*ops[:64]).status == 200
    refused = agent.txn(*ops)
    assert (refused.status, refused.text) == (413, "Transaction contains too many operations (65 > 64)")


@pytest.mark.parametrize("end", ["destroy", "expiry", "deregistration"])
def test_tombstones_of_keys_that_ended_with_their_session_are_reaped(agent: Driver, end: str) -> None:
    agent.ask("PUT", "/v1/catalog/register", {"Node": "n2", "Address": "10.0.0.2"})
    session = agent.session(Node="n2", NodeChecks=[], TTL="10s", Behavior="delete")
    agent.ask("PUT", f"/v1/kv/k?acquire={session}", b"v")
    if end == "destroy":
        agent.ask("PUT", f"/v1/session/destroy/{session}")
    elif end == "deregistration":
        agent.ask("PUT", "/v1/catalog/deregister", {"Node": "n2"})
    else:
        agent.advance(20.0)
    assert len(agent.state.store.tombstones) == 1
    agent.advance(agent.state.config.tombstone_ttl + agent.state.config.tombstone_granularity)
    assert len(agent.state.store.tombstones) == 0


def test_flags_that_conflict_are_named_whatever_bytes_they_hold(agent: Driver) -> None:
    answer = agent.ask("PUT", "/v1/kv/k?cas=%ff&acquire=a%20b")
    assert (answer.status, answer.text) == (400, "Conflicting flags: acquire=a+b&cas=%FF")
