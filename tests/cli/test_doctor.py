"""``doctor``: what it finds, with which rules, and that it leaves nothing behind."""

from __future__ import annotations

import json
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import LOCK_FLAGS, Client, Lock, Semaphore
from consul_coord.cli.doctor.checks import Examination, _connections
from consul_coord.server import Fault, ReferenceServer, ServerConfig
from consul_coord.server.acl import AclConfig, Rule, Token
from consul_coord.server.faults import Effect
from consul_coord.testing.agent import RealAgent
from tests.support.proxy import FaultProxy
from tests.support.sites import Operator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Call

AGENT = Rule("agent", "", "read", prefix=True)
NODE = Rule("node", "", "read", prefix=True)
SESSION = Rule("session", "", "write", prefix=True)
BASIS = (AGENT, NODE, SESSION)


def findings(call: Call, *arguments: str, code: int, address: str | None = None) -> dict[str, dict[str, Any]]:
    outcome = call("doctor", *arguments, "--json", address=address)
    assert outcome.code == code, outcome
    return {finding["what"]: finding for finding in map(json.loads, outcome.out.splitlines())}


def state(client: Client) -> object:
    sessions = [each.name for each in client.session.list().value if each.name == "consul-coord doctor"]
    return client.kv.list("").value, sessions


def test_all_is_well_and_nothing_is_left(call: Call, key: str, anywhere: str) -> None:
    found: dict[str, dict[str, Any]] = {}
    with Client(address=anywhere) as client, Lock(client, key), Semaphore(client, f"{key}/slots", 2):
        before = state(client)
        for name, kind in ((key, "may lock"), (f"{key}/slots", "semaphore"), (f"{key}/new", "may lock")):
            found = findings(call, name, code=0, address=anywhere)
            assert {finding["status"] for finding in found.values()} == {"ok"}
            assert kind in found["key"]["text"]
        assert state(client) == before
    assert list(found) == [
        *("agent", "leader", "token", "version", "session", "ttl", "checks"),
        *("key", "clock", "connections", "lease", "failover"),
    ]
    assert "200ms to 24h0m0s" in found["ttl"]["text"]
    assert "46 s" in found["failover"]["text"]
    assert "14.25 s" in found["lease"]["text"]
    assert "(ttl=60: 14.25 s, not 57 s); SessionSpec(ttl=60, lock_delay=60) does" in found["lease"]["text"]


def test_text_names_each_check(call: Call) -> None:
    outcome = call("doctor")
    assert outcome.code == 0
    assert outcome.out.split()[:2] == ["ok", "agent"]
    assert "\x1b" not in outcome.out


def test_the_limits_of_a_real_agent_are_seen(call: Call, agent_address: str) -> None:
    assert "200 connections" in findings(call, code=0, address=agent_address)["connections"]["text"]


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"RPCRateLimit": 1.7976931348623157e308}, ""),
        ({"RPCRateLimit": -1}, ""),
        ({"RPCRateLimit": 100}, "; it lets 100 requests a second through"),
        (
            {"RequestLimitsReadRate": 250.5, "RequestLimitsWriteRate": 1.7976931348623157e308},
            "; it lets 250.5 reads a second through",
        ),
    ],
    ids=str,
)
def test_rate_limits_are_told_where_there_are_any(limits: dict[str, float], told: str) -> None:
    with Client() as client:  # which is not asked anything
        case = Examination(client, limits={"HTTPMaxConnsPerClient": 200, **limits})
        (finding,) = _connections(case)
    assert finding.text.partition("each waiter needs one")[2] == told


@pytest.mark.slow
def test_no_agent_is_a_fault_and_the_end(call: Call) -> None:
    found = findings(call, code=1, address="127.0.0.1:1")
    assert [(name, finding["status"]) for name, finding in found.items()] == [("agent", "fault")]
    assert "CONSUL_HTTP_ADDR" in found["agent"]["text"], "the next step"


def test_no_leader_is_a_fault_and_the_end(call: Call) -> None:
    with ReferenceServer() as server:
        server.faults.add(Fault(effect=Effect.LOSE_LEADER, path="status/leader"))
        found = findings(call, code=1, address=server.address)
    assert found["leader"]["status"] == "fault"
    assert "session" not in found


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("Access is restricted", "takes writes from elsewhere only"),
        ("Endpoint is blocked by agent configuration", "blocks the call"),
    ],
)
def test_an_agent_that_blocks_a_call_is_no_missing_rule(call: Call, body: str, cause: str) -> None:
    with ReferenceServer() as server:
        server.faults.add(Fault(effect=Effect.RESPOND, path="session/create", status=403, body=body))
        session = findings(call, code=1, address=server.address)["session"]
    assert cause in session["text"]
    assert (session["status"], session["rules"]) == ("fault", [])


@pytest.mark.parametrize("body", ["[]", '{"DebugConfig": "x"}', "<html>"])
def test_settings_that_are_none_are_not_there(call: Call, body: str) -> None:
    first: list[object] = []

    def is_second(request: object) -> bool:
        first.append(request)
        return len(first) > 1

    with ReferenceServer() as server:
        server.faults.add(
            Fault(effect=Effect.RESPOND, path="agent/self", status=200, body=body, matches=is_second)
        )
        found = findings(call, code=0, address=server.address)
    assert "can't be seen" in found["connections"]["text"]


@pytest.mark.parametrize(
    ("status", "rank", "told"),
    [
        ("passing", "ok", "serfHealth of node1 is passing"),
        ("warning", "ok", "serfHealth of node1 is warning"),
        ("critical", "warning", "serfHealth of node1 is critical, which would end sessions with it"),
        (None, "warning", "serfHealth of node1 can't be seen"),
    ],
)
def test_the_health_of_the_node_is_told(call: Call, status: str | None, rank: str, told: str) -> None:
    with ReferenceServer() as server:
        check = {"CheckID": "serfHealth", "Name": "Serf Health Status", "Status": status}
        operator = Operator(server.address)
        if status is None:
            operator.done("PUT", "/v1/catalog/deregister", {"Node": "node1", "CheckID": "serfHealth"})
        else:
            node = {"Node": "node1", "Address": "127.0.0.1"}
            operator.done("PUT", "/v1/catalog/register", {**node, "Check": check})
        found = findings(call, code=0, address=server.address)["checks"]
    assert (found["status"], told in found["text"]) == (rank, True), found


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
@pytest.mark.parametrize("name", ["jobs/", "jobs/a%20b"])
def test_a_name_that_no_lock_may_have_is_refused_by_its_name(call: Call, name: str, kind: str) -> None:
    with ReferenceServer() as server:
        outcome = call("doctor", name, "--kind", kind, address=server.address)
    assert outcome.code == 2
    assert f"{name!r} can't be used" in outcome.err


def test_a_key_whose_deletion_got_lost_goes_with_the_session(call: Call) -> None:
    with ReferenceServer() as server, Client(address=server.address) as client:
        fault = Fault(
            effect=Effect.LOSE_REQUEST, path="/v1/txn", matches=lambda request: b'"delete"' in request.body
        )
        lost = server.faults.add(fault)
        call("doctor", "jobs/nightly", address=server.address)
        assert lost.hits
        assert state(client) == ((), [])


def test_a_key_used_for_something_else_is_a_fault(call: Call, key: str, client: Client) -> None:
    client.kv.put(key, b"a setting")
    client.kv.put(f"{key}/.lock", b"another")
    assert "something else" in findings(call, key, code=1)["key"]["text"]
    assert "something else" in findings(call, key, "--kind", "semaphore", code=1)["key"]["text"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["doctor", "/k"], 2), (["doctor", "k", "--token-file", "/nowhere"], 78)],
)
def test_what_is_no_fault_of_consul_has_its_own_code(call: Call, arguments: list[str], code: int) -> None:
    assert call(*arguments).code == code


# -- permissions


def limited(tmp_path: Path, *rules: Rule) -> Iterator[tuple[str, str]]:
    token = tmp_path / "token"
    token.write_text("limited", encoding="utf-8")
    acl = AclConfig(tokens={"limited": Token(rules), "root": Token(management=True)})
    with ReferenceServer(config=ServerConfig(acl=acl)) as server:
        yield server.address, str(token)


@pytest.mark.parametrize(
    ("rules", "arguments", "what", "status", "missing"),
    [
        ((AGENT, NODE), ["k"], "session", "fault", ['session "node1" { policy = "write" }']),
        ((NODE, SESSION), [], "version", "warning", ['agent_prefix "" { policy = "read" }']),
        (
            BASIS,
            ["k"],
            "key",
            "fault",
            ['key "k" { policy = "write" }', 'key_prefix "k/.wait/" { policy = "write" }'],
        ),
        (
            (*BASIS, Rule("key", "k", "read", prefix=True)),
            ["k"],
            "key",
            "fault",
            ['key "k" { policy = "write" }', 'key_prefix "k/.wait/" { policy = "write" }'],
        ),
        (
            (*BASIS, Rule("key", "k", "write")),
            ["k"],
            "key",
            "warning",
            ['key_prefix "k/.wait/" { policy = "write" }'],
        ),
        ((*BASIS, Rule("key", "k", "write", prefix=True)), ["k"], "key", "ok", []),
        (
            (*BASIS, Rule("key", "k", "write"), Rule("key", "k/.wait/", "write", prefix=True)),
            ["k"],
            "key",
            "ok",
            [],
        ),
        (
            (*BASIS, Rule("key", "k", "write"), Rule("key", "k/.wait/", "write", prefix=True)),
            ["k", "--kind", "semaphore"],
            "key",
            "fault",
            ['key_prefix "k/" { policy = "write" }'],
        ),
        (
            (*BASIS, Rule("key", "k/", "write", prefix=True)),
            ["k", "--kind", "semaphore"],
            "key",
            "ok",
            [],
        ),
    ],
)
def test_missing_rules_are_named(  # noqa: PLR0917 - the columns of a table
    call: Call,
    tmp_path: Path,
    rules: tuple[Rule, ...],
    arguments: list[str],
    what: str,
    status: str,
    missing: list[str],
) -> None:
    for address, token in limited(tmp_path, *rules):
        code = 1 if status == "fault" else 0
        found = findings(call, *arguments, "--token-file", token, code=code, address=address)
        assert (found[what]["status"], found[what]["rules"]) == (status, missing)
        with Client(address=address, token="root") as root:
            assert state(root) == ((), [])


def test_an_unknown_token_is_a_fault(call: Call, tmp_path: Path) -> None:
    for address, token in limited(tmp_path):
        (tmp_path / "token").write_text("unknown", encoding="utf-8")
        found = findings(call, "--token-file", token, code=1, address=address)
        assert found["token"]["status"] == "fault"
        assert "unknown" not in found["token"]["text"]


def make_token(address: str, rules: str) -> str:
    """Make a token of a real agent with an ACL policy."""

    def put(path: str, body: dict[str, object]) -> dict[str, str]:
        request = urllib.request.Request(f"{address}/v1/acl/{path}", json.dumps(body).encode(), method="PUT")
        request.add_header("X-Consul-Token", "root")
        with urllib.request.urlopen(request) as reply:
            made: dict[str, str] = json.load(reply)
        return made

    policy = put("policy", {"Name": f"p{uuid.uuid4().hex}", "Rules": rules})
    return put("token", {"Policies": [{"ID": policy["ID"]}]})["SecretID"]


def test_the_rules_that_it_names_are_enough_on_a_real_agent(
    call: Call, consul_binary: Path, tmp_path: Path
) -> None:
    acl = {"enabled": True, "default_policy": "deny", "tokens": {"master": "root"}}
    with (
        RealAgent(binary=consul_binary, config={"acl": acl}, token="root") as agent,
        Client(address=agent.address, token="root") as root,
    ):
        token = tmp_path / "token"
        granted = ""
        for status in ("fault", "fault", "ok"):
            token.write_text(make_token(agent.address, granted), encoding="utf-8")
            outcome = call("doctor", "k", "--json", "--token-file", str(token), address=agent.address)
            found = [json.loads(line) for line in outcome.out.splitlines()]
            assert outcome.code == (1 if status == "fault" else 0), outcome
            granted += "\n".join(rule for finding in found for rule in finding["rules"]) + "\n"
        with Client(address=agent.address, token_file=token) as client, Lock(client, "k").hold() as hold:
            assert hold.verify()
        assert all(pair.flags == LOCK_FLAGS for pair in root.kv.list("").value)


def test_further_agents_are_looked_at_and_one_of_another_cluster_is_named(call: Call, address: str) -> None:
    both = ("--address", address, "--address")
    with ReferenceServer() as foreign, FaultProxy(address) as second:
        good = findings(call, *both, second.address, code=0)
        assert f"the agent at {second.address} belongs to the same cluster" in good["agents"]["text"]
        bad = findings(call, *both, foreign.address, code=1)
        assert bad["agents"]["status"] == "fault"
        assert f"{foreign.address} belongs to another cluster" in bad["agents"]["text"]
    gone = findings(call, *both, second.address, code=1)
    assert second.address in gone["agents"]["text"]
