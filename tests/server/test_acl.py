"""ACLs on the pure service: what is refused, and what silently disappears."""

from __future__ import annotations

import pytest

from consul_coord.server.acl import AclConfig, Authorizer, Rule, Token
from consul_coord.server.config import ServerConfig
from tests.server.driver import Driver

TOKENS = {
    "root": Token(management=True),
    "writer": Token((Rule("key", "a/", "write", prefix=True), Rule("key", "a/secret", "deny"))),
    "reader": Token((Rule("key", "a/", "read", prefix=True), Rule("session", "", "read", prefix=True))),
    "locker": Token((Rule("session", "node1", "write"), Rule("key", "a/", "write", prefix=True))),
    "nobody": Token(),
}


@pytest.fixture
def agent() -> Driver:
    driver = Driver(ServerConfig(acl=AclConfig(tokens=TOKENS)))
    for key in ("a/1", "a/secret", "b/1"):
        driver.ask("PUT", f"/v1/kv/{key}?token=root", b"v")
    return driver


@pytest.mark.parametrize(
    ("token", "request_", "status"),
    [
        ("root", ("PUT", "/v1/kv/b/1", b"v"), 200),
        ("writer", ("PUT", "/v1/kv/a/1", b"v"), 200),
        ("writer", ("PUT", "/v1/kv/a/secret", b"v"), 403),
        ("writer", ("PUT", "/v1/kv/b/1", b"v"), 403),
        ("writer", ("DELETE", "/v1/kv/a/x/?recurse", b""), 200),
        ("writer", ("DELETE", "/v1/kv/a/?recurse", b""), 403),
        ("writer", ("DELETE", "/v1/kv/b/1", b""), 403),
        ("reader", ("PUT", "/v1/kv/a/1", b"v"), 403),
        ("reader", ("GET", "/v1/kv/a/1", b""), 200),
        ("reader", ("GET", "/v1/kv/b/1", b""), 403),
        ("reader", ("GET", "/v1/kv/b/missing?index=1000", b""), 403),
        ("reader", ("PUT", "/v1/session/create", b""), 403),
        ("locker", ("PUT", "/v1/session/create", b""), 200),
        ("nobody", ("GET", "/v1/agent/self", b""), 403),
        ("nobody", ("PUT", "/v1/catalog/deregister", {"Node": "node1"}), 403),
        ("nobody", ("GET", "/v1/kv/?recurse", b""), 404),
        ("nobody", ("GET", "/v1/status/leader", b""), 200),
        ("", ("GET", "/v1/kv/a/1", b""), 403),
        ("bogus", ("GET", "/v1/kv/a/1", b""), 403),
        ("bogus", ("PUT", "/v1/txn", []), 403),
    ],
)
def test_who_may_do_what(agent: Driver, token: str, request_: tuple[str, str, object], status: int) -> None:
    reply = agent.ask(*request_, {"X-Consul-Token": token})
    assert reply.status == status
    if status == 403:
        assert reply.text == ("ACL not found" if token == "bogus" else "Permission denied")


def test_lists_hide_what_may_not_be_read(agent: Driver) -> None:
    assert [e["Key"] for e in agent.ask("GET", "/v1/kv/?recurse&token=reader").json] == ["a/1", "a/secret"]
    assert agent.ask("GET", "/v1/kv/b/?keys&token=reader").status == 404
    assert agent.ask("GET", "/v1/kv/?keys&token=nobody").json == []


def test_a_session_that_may_not_be_read_looks_gone(agent: Driver) -> None:
    session = agent.ask("PUT", "/v1/session/create?token=locker").json["ID"]
    for target in (f"info/{session}", "list", "node/node1"):
        assert agent.ask("GET", f"/v1/session/{target}?token=reader").json
        assert agent.ask("GET", f"/v1/session/{target}?token=writer").json == []
    for verb in ("renew", "destroy"):
        assert agent.ask("PUT", f"/v1/session/{verb}/{session}?token=reader").status == 403
    unknown = "11111111-2222-3333-4444-555555555555"
    assert agent.ask("PUT", f"/v1/session/destroy/{unknown}?token=nobody").json is True
    assert agent.ask("PUT", f"/v1/session/renew/{unknown}?token=nobody").status == 404


def test_a_key_token_may_lock_with_anybodys_session(agent: Driver) -> None:
    session = agent.ask("PUT", "/v1/session/create?token=locker").json["ID"]
    assert agent.ask("PUT", f"/v1/kv/a/1?acquire={session}&token=writer").json is True


def test_a_denied_transaction_is_a_conflict_and_reads_are_filtered(agent: Driver) -> None:
    ops = [{"KV": {"Verb": "set", "Key": key}} for key in ("a/1", "b/1", "a/secret")]
    reply = agent.ask("PUT", "/v1/txn?token=writer", ops)
    assert reply.status == 409
    assert reply.json["Errors"] == [{"OpIndex": n, "What": "Permission denied"} for n in (1, 2)]
    ops = [{"KV": {"Verb": "get-tree", "Key": "a"}}, {"KV": {"Verb": "get", "Key": "b/1"}}]
    reply = agent.ask("PUT", "/v1/txn?token=reader", ops)
    assert [result["KV"]["Key"] for result in reply.json["Results"]] == ["a/1", "a/secret"]


def test_who_may_not_lock_is_not_told_of_a_lock_delay(agent: Driver) -> None:
    session = agent.ask("PUT", "/v1/session/create?token=root").json["ID"]
    agent.ask("PUT", f"/v1/kv/a/1?acquire={session}&token=root")
    agent.ask("PUT", f"/v1/session/destroy/{session}?token=root")
    lock = [{"KV": {"Verb": "lock", "Key": "a/1", "Session": session}}]
    for token, what in (
        ("root", 'failed to lock key "a/1" due to lock delay'),
        ("reader", "Permission denied"),
    ):
        reply = agent.ask("PUT", f"/v1/txn?token={token}", lock)
        assert (reply.status, reply.json["Errors"]) == (409, [{"OpIndex": 0, "What": what}])


@pytest.mark.parametrize(
    ("query", "headers", "allowed"),
    [
        ("token=root", {"X-Consul-Token": "nobody"}, True),
        ("", {"X-Consul-Token": "root", "Authorization": "Bearer nobody"}, True),
        ("", {"X-Consul-Token": "", "Authorization": "bearer   root"}, True),
        ("", {"Authorization": "root"}, False),
        ("", {"Authorization": "Basic root"}, False),
    ],
)
def test_where_the_token_is_looked_for(
    agent: Driver, query: str, headers: dict[str, str], *, allowed: bool
) -> None:
    assert (agent.ask("GET", f"/v1/kv/b/1?{query}", headers=headers).status == 200) is allowed


def test_the_longest_rule_decides() -> None:
    rules = (
        Rule("key", "a/", "write", prefix=True),
        Rule("key", "a/b", "read", prefix=True),
        Rule("key", "a/bc", "deny"),
    )
    authorizer = Authorizer(Token(rules), "deny")
    may = {key: authorizer.may("key", key, "write") for key in ("a/", "a/b", "a/bc", "a/c", "b")}
    assert may == {"a/": True, "a/b": False, "a/bc": False, "a/c": True, "b": False}
    assert authorizer.may("key", "a/bcd", "read")
    assert not authorizer.may("key", "a/bc", "read")


def test_tokens_do_not_show() -> None:
    assert "root" not in repr(AclConfig(tokens=TOKENS))
    assert "root" not in repr(ServerConfig(acl=AclConfig(tokens=TOKENS)))
