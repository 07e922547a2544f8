"""Tokens and permissions: where a token is looked for, what is refused, and what silently disappears."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord.server import AclConfig, ReferenceServer, Rule, ServerConfig, Token
from consul_coord.testing.agent import RealAgent
from tests.conformance.target import UNKNOWN, Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conformance.target import Answer

DEADLINE: Final = 30.0
SETTLE: Final = 0.3
ROOT: Final = "aaaaaaaa-0000-4000-8000-000000000000"
REVOKED: Final = "bbbbbbbb-0000-4000-8000-000000000000"
RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "writer": (Rule("key", "a/", "write", prefix=True), Rule("key", "a/secret", "deny")),
    "reader": (Rule("key", "a/", "read", prefix=True), Rule("session", "", "read", prefix=True)),
    "locker": (Rule("session", "node1", "write"), Rule("key", "a/", "write", prefix=True)),
    "other node's": (Rule("session", "node2", "write"),),
    "lister": (Rule("key", "a/", "list", prefix=True), Rule("key", "b/", "read", prefix=True)),
    "of web": (Rule("service", "web", "write"),),
    "raft reader": (Rule("operator", "", "read"),),
    "nobody": (),
}
SECRETS: Final = {
    "root": ROOT,
    "bogus": UNKNOWN,
    "anonymous": "",
    **{name: str(uuid.uuid5(uuid.NAMESPACE_DNS, name)) for name in RULES},
}
READER_TOO: Final = {REVOKED: RULES["reader"]}
TOKENS: Final = {SECRETS[name]: rules for name, rules in RULES.items()} | READER_TOO
GIVEN: Final = {secret: Token(rules) for secret, rules in TOKENS.items()} | {ROOT: Token(management=True)}


class Guarded(Target):
    """A server with ACLs, asked with the tokens above by name."""

    def by(self, who: str, method: str, target: str, body: object = b"") -> Answer:
        return self.ask(method, target, body, {"X-Consul-Token": SECRETS[who]})


def as_text(rule: Rule) -> str:
    if rule.resource == "operator":
        return f'operator = "{rule.policy}"'
    kind = f"{rule.resource}_prefix" if rule.prefix else rule.resource
    return f'{kind} "{rule.name}" {{ policy = "{rule.policy}" }}'


def give_tokens(root: Target) -> None:
    for number, (secret, rules) in enumerate(TOKENS.items()):
        policy = {"Name": f"policy{number}", "Rules": "\n".join(map(as_text, rules))}
        assert root.put("/v1/acl/policy", policy).status == 200
        token = {"SecretID": secret, "Policies": [{"Name": policy["Name"]}]}
        assert root.put("/v1/acl/token", token).status == 200


@pytest.fixture(scope="module")
def guarded_agent(consul_binary: Path) -> Iterator[RealAgent]:
    acl = {"enabled": True, "default_policy": "deny", "tokens": {"master": ROOT}}
    with RealAgent(binary=consul_binary, token=ROOT, config={"acl": acl}) as agent:
        give_tokens(Target("agent", agent.address, token=ROOT))
        yield agent


@pytest.fixture(params=["reference", pytest.param("agent", marks=pytest.mark.agent)])
def target(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    if request.param == "agent":
        agent: RealAgent = request.getfixturevalue("guarded_agent")
        yield with_keys(Guarded("agent", agent.address, token=ROOT))
        return
    with ReferenceServer(config=ServerConfig(acl=AclConfig(tokens=GIVEN))) as server:
        yield with_keys(Guarded("reference", server.address, token=ROOT))


def with_keys(target: Guarded) -> Guarded:
    for key in ("a/1", "a/secret", "b/1"):
        assert target.put(f"/v1/kv/{key}", b"v").json is True
    return target


@pytest.mark.parametrize(
    ("who", "call", "status"),
    [
        ("root", ("PUT", "/v1/kv/b/1", b"v"), 200),
        ("writer", ("PUT", "/v1/kv/a/1", b"v"), 200),
        ("writer", ("PUT", "/v1/kv/a/secret", b"v"), 403),
        ("writer", ("PUT", "/v1/kv/b/1", b"v"), 403),
        ("writer", ("DELETE", "/v1/kv/a/x/?recurse", b""), 200),
        ("writer", ("DELETE", "/v1/kv/a/?recurse", b""), 403),
        ("writer", ("DELETE", "/v1/kv/b/1", b""), 403),
        ("writer", ("PUT", "/v1/session/create", b'{"NodeChecks":[]}'), 403),
        ("reader", ("PUT", "/v1/kv/a/1", b"v"), 403),
        ("reader", ("GET", "/v1/kv/a/1", b""), 200),
        ("reader", ("GET", "/v1/kv/b/1", b""), 403),
        ("reader", ("GET", "/v1/kv/b/missing", b""), 403),
        ("reader", ("GET", "/v1/kv/b/missing?index=1000000&wait=60s", b""), 403),
        ("reader", ("PUT", "/v1/session/create", b'{"NodeChecks":[]}'), 403),
        ("locker", ("PUT", "/v1/session/create", b'{"NodeChecks":[]}'), 200),
        ("other node's", ("PUT", "/v1/session/create", b'{"NodeChecks":[]}'), 403),
        ("nobody", ("GET", "/v1/agent/self", b""), 403),
        ("nobody", ("PUT", "/v1/catalog/deregister", {"Node": "node1"}), 403),
        ("nobody", ("GET", "/v1/kv/?recurse", b""), 404),
        ("nobody", ("GET", "/v1/kv/a/?keys", b""), 404),
        ("reader", ("GET", "/v1/kv/b/?keys", b""), 404),
        ("nobody", ("GET", "/v1/status/leader", b""), 200),
        ("anonymous", ("GET", "/v1/kv/a/1", b""), 403),
        ("lister", ("GET", "/v1/kv/a/1", b""), 200),
        ("lister", ("GET", "/v1/kv/a/?keys", b""), 200),
        ("lister", ("PUT", "/v1/kv/a/1", b"v"), 403),
        ("bogus", ("GET", "/v1/catalog/datacenters", b""), 200),
        ("nobody", ("GET", "/v1/agent/members", b""), 200),
        ("nobody", ("GET", "/v1/health/service/consul", b""), 200),
        ("nobody", ("PUT", "/v1/event/fire/x", b""), 403),
        ("raft reader", ("GET", "/v1/operator/raft/configuration", b""), 200),
        ("nobody", ("GET", "/v1/operator/raft/configuration", b""), 403),
    ],
)
def test_who_may_do_what(target: Guarded, who: str, call: tuple[str, str, object], status: int) -> None:
    answer = target.by(who, *call)
    assert answer.status == status
    if status == 403:  # later versions go on and say what is missing
        assert answer.text.startswith("Permission denied")
        assert target.kind == "agent" or answer.text == "Permission denied"


@pytest.mark.parametrize(
    ("who", "call", "status", "text"),
    [
        (
            "nobody",
            ("service/register", {"Name": "web"}),
            403,
            "Permission denied: Missing service:write on web",
        ),
        ("of web", ("service/register", {"Name": "web", "Check": {"TTL": "60s"}}), 200, ""),
        (
            "of web",
            ("service/register", {"Name": "db"}),
            403,
            "Permission denied: Missing service:write on db",
        ),
        ("of web", ("check/pass/service:web", b""), 200, ""),
        ("nobody", ("check/pass/service:web", b""), 403, "Permission denied: Missing service:write on web"),
        ("of web", ("check/register", {"Name": "c", "TTL": "9s"}), 403, "Missing node:write on node1"),
        ("nobody", ("check/pass/none", b""), 500, 'Unknown check "none"'),
        ("root", ("check/deregister/none", b""), 500, 'Unknown check "none"'),
        ("nobody", ("service/deregister/none", b""), 500, 'Unknown service {"none" {}}'),
        ("nobody", ("maintenance?enable=true", b""), 403, "Permission denied"),
        ("bogus", ("check/pass/none", b""), 403, "ACL not found"),
    ],
)
def test_an_agent_says_what_is_missing(
    target: Guarded, who: str, call: tuple[str, object], status: int, text: str
) -> None:
    path, body = call
    if "service:web" in path:
        target.put("/v1/agent/service/register", {"Name": "web", "Check": {"TTL": "60s"}})
    answer = target.by(who, "PUT", f"/v1/agent/{path}", body)
    if target.is_1_8:
        assert (answer.status, text in answer.text) == (status, True), answer.text
    else:
        assert answer.status in (status, 404)


def test_whoever_may_write_a_service_registers_it_on_a_node_that_is_there(target: Guarded) -> None:
    node = {"Node": "n9", "Address": "10.0.0.9"}
    web = {**node, "Service": {"Service": "web"}}
    assert target.by("of web", "PUT", "/v1/catalog/register", web).status == 403
    assert target.by("root", "PUT", "/v1/catalog/register", node).status == 200
    assert target.by("of web", "PUT", "/v1/catalog/register", web).status == 200
    assert target.by("of web", "PUT", "/v1/catalog/register", {**web, "Address": "10.0.0.8"}).status == 403
    unknown = target.by("of web", "PUT", "/v1/catalog/deregister", {"Node": "n9", "ServiceID": "none"})
    assert (unknown.status, target.says(unknown.text, "Unknown service 'none'")) == (500, True)
    gone = target.by("of web", "PUT", "/v1/catalog/deregister", {"Node": "n9", "ServiceID": "web"})
    assert gone.status == 200
    assert target.by("of web", "PUT", "/v1/catalog/deregister", {"Node": "n9"}).status == 403
    target.by("root", "PUT", "/v1/catalog/deregister", {"Node": "n9"})


@pytest.mark.parametrize(
    "call",
    [
        ("GET", "/v1/kv/a/1"),
        ("PUT", "/v1/kv/a/1"),
        ("GET", "/v1/session/list"),
        ("PUT", "/v1/session/create"),
        ("PUT", f"/v1/session/renew/{UNKNOWN}"),
        ("PUT", "/v1/txn"),
        ("GET", "/v1/agent/self"),
        ("GET", "/v1/catalog/nodes"),
        ("GET", "/v1/health/node/node1"),
    ],
)
def test_an_unknown_token_is_refused_everywhere(target: Guarded, call: tuple[str, str]) -> None:
    body = b'[{"KV":{"Verb":"get","Key":"a/1"}}]' if call[1].endswith("txn") else b""
    answer = target.by("bogus", *call, body)
    assert (answer.status, answer.text[:13]) == (403, "ACL not found")


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"X-Consul-Token": "root", "Authorization": "Bearer nobody"}, True),
        ({"X-Consul-Token": "", "Authorization": "Bearer root"}, True),
        ({"X-Consul-Token": "", "Authorization": "bearer   root"}, True),
        ({"X-Consul-Token": "", "Authorization": "root"}, False),
        ({"X-Consul-Token": "", "Authorization": "Basic root"}, False),
        ({"X-Consul-Token": "nobody", "Authorization": "Bearer root"}, False),
    ],
)
def test_where_the_token_is_looked_for(target: Guarded, headers: dict[str, str], *, allowed: bool) -> None:
    sent = {name: secrets_in(value) for name, value in headers.items()}
    assert (target.ask("GET", "/v1/kv/b/1", b"", sent).status == 200) is allowed


@pytest.mark.parametrize(
    ("query", "header", "allowed"), [("root", "nobody", True), ("nobody", "root", False)]
)
def test_a_token_in_the_query_comes_first(target: Guarded, query: str, header: str, *, allowed: bool) -> None:
    sent = {"X-Consul-Token": SECRETS[header]}
    status = target.ask("GET", f"/v1/kv/b/1?token={SECRETS[query]}", b"", sent).status
    # Later versions are giving the parameter up; 1.20.6 still knows it.
    assert (status == 200) is allowed


@pytest.fixture
def with_default(target: Guarded) -> Iterator[Guarded]:
    """The same server with the reader's token as the agent's own for requests that bear none."""
    if target.kind == "reference":
        config = ServerConfig(acl=AclConfig(tokens=GIVEN, default_token=SECRETS["reader"]))
        with ReferenceServer(config=config) as server:
            yield with_keys(Guarded("reference", server.address, token=ROOT))
        return
    assert target.put("/v1/agent/token/default", {"Token": SECRETS["reader"]}).status == 200
    try:
        yield target
    finally:
        assert target.put("/v1/agent/token/default", {"Token": ""}).status == 200


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        ({"X-Consul-Token": ""}, (200, 403)),
        ({"X-Consul-Token": "", "Authorization": "Basic root"}, (200, 403)),
        ({"X-Consul-Token": "nobody"}, (403, 403)),
        ({"X-Consul-Token": "root"}, (200, 200)),
    ],
)
def test_who_bears_no_token_bears_the_agents(
    with_default: Guarded, headers: dict[str, str], statuses: tuple[int, int]
) -> None:
    sent = {name: secrets_in(value) for name, value in headers.items()}
    asked = (with_default.ask("GET", f"/v1/kv/{key}", b"", sent).status for key in ("a/1", "b/1"))
    assert tuple(asked) == statuses


def secrets_in(text: str) -> str:
    return text.replace("root", ROOT).replace("nobody", SECRETS["nobody"])


def test_lists_hide_what_may_not_be_read(target: Guarded) -> None:
    listed = target.by("reader", "GET", "/v1/kv/?recurse").json
    assert [entry["Key"] for entry in listed] == ["a/1", "a/secret"]
    assert target.by("writer", "GET", "/v1/kv/?keys").json == ["a/1"]
    assert target.by("nobody", "GET", "/v1/kv/?keys").json == []


def test_a_list_that_hides_everything_blocks(target: Guarded) -> None:
    index = target.by("nobody", "GET", "/v1/kv/b/?recurse").index
    with ThreadPoolExecutor() as pool:
        watch = pool.submit(target.by, "nobody", "GET", f"/v1/kv/b/?recurse&index={index}&wait=1s")
        with pytest.raises(TimeoutError):
            watch.result(SETTLE)
        assert watch.result(DEADLINE).status == 404


def test_a_session_that_may_not_be_read_looks_gone(target: Guarded) -> None:
    session = target.by("locker", "PUT", "/v1/session/create", b'{"NodeChecks":[]}').json["ID"]
    for path in (f"info/{session}", "list", "node/node1"):
        assert target.by("reader", "GET", f"/v1/session/{path}").json
        hidden = target.by("writer", "GET", f"/v1/session/{path}")
        assert (hidden.status, hidden.json) == (200, [])
    for verb in ("renew", "destroy"):
        assert target.by("reader", "PUT", f"/v1/session/{verb}/{session}").status == 403
        assert target.by("other node's", "PUT", f"/v1/session/{verb}/{session}").status == 403
    assert target.by("locker", "PUT", f"/v1/session/destroy/{session}").json is True


def test_ids_that_nobody_knows_need_no_permission(target: Guarded) -> None:
    assert target.by("nobody", "PUT", f"/v1/session/destroy/{UNKNOWN}").json is True
    assert target.by("nobody", "PUT", f"/v1/session/renew/{UNKNOWN}").status == 404


def test_a_key_token_may_lock_with_anybodys_session(target: Guarded) -> None:
    session = target.by("locker", "PUT", "/v1/session/create", b'{"NodeChecks":[]}').json["ID"]
    assert target.by("writer", "PUT", f"/v1/kv/a/lock?acquire={session}").json is True
    assert target.by("writer", "PUT", f"/v1/kv/a/lock?release={session}").json is True
    target.put(f"/v1/session/destroy/{session}")
    target.delete("/v1/kv/a/lock")


def test_a_denied_transaction_is_a_conflict_and_reads_are_filtered(target: Guarded) -> None:
    ops = [{"KV": {"Verb": "set", "Key": key}} for key in ("a/1", "b/1", "a/secret")]
    answer = target.by("writer", "PUT", "/v1/txn", ops)
    assert answer.status == 409
    assert [error["OpIndex"] for error in answer.json["Errors"]] == [1, 2]
    assert all(error["What"].startswith("Permission denied") for error in answer.json["Errors"])
    ops = [{"KV": {"Verb": "get-tree", "Key": "a"}}, {"KV": {"Verb": "get", "Key": "b/1"}}]
    answer = target.by("reader", "PUT", "/v1/txn", ops)
    assert [result["KV"]["Key"] for result in answer.json["Results"]] == ["a/1", "a/secret"]


def test_who_may_not_lock_is_not_told_of_a_lock_delay(target: Guarded) -> None:
    session = target.by("root", "PUT", "/v1/session/create", b'{"NodeChecks":[]}').json["ID"]
    assert target.put(f"/v1/kv/a/delayed?acquire={session}").json is True
    target.put(f"/v1/session/destroy/{session}")
    target.delete("/v1/kv/a/delayed")
    lock = [{"KV": {"Verb": "lock", "Key": "a/delayed", "Session": session}}]
    for who, what in (
        ("writer", 'failed to lock key "a/delayed" due to lock delay'),
        ("reader", "Permission denied"),
    ):
        answer = target.by(who, "PUT", "/v1/txn", lock)
        assert answer.status == 409
        (error,) = answer.json["Errors"]
        assert (error["OpIndex"], error["What"][: len(what)]) == (0, what)


def test_a_query_in_flight_outlives_its_token(target: Guarded) -> None:
    headers = {"X-Consul-Token": REVOKED}
    index = target.ask("GET", "/v1/kv/a/1", b"", headers).index
    with ThreadPoolExecutor() as pool:
        watch = pool.submit(target.ask, "GET", f"/v1/kv/a/1?index={index}&wait=1500ms", b"", headers)
        with pytest.raises(TimeoutError):
            watch.result(SETTLE)
        accessor = target.ask("GET", "/v1/acl/token/self", b"", headers).json["AccessorID"]
        assert target.delete(f"/v1/acl/token/{accessor}").status == 200
        answer = watch.result(DEADLINE)
    assert (answer.status, answer.json[0]["Key"]) == (200, "a/1")
    began = time.monotonic()
    while target.ask("GET", "/v1/kv/a/1", b"", headers).status != 403:
        assert time.monotonic() - began < DEADLINE
