"""Transactions on nodes, services and checks: every verb, its failures, what sessions suffer, rollback."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conformance.target import Answer, Target

Op = dict[str, Any]

SERVICE_REST: dict[str, object] = {
    "Address": "",
    "Meta": None,
    "Weights": {"Passing": 1, "Warning": 1},
    "EnableTagOverride": False,
    "Proxy": {"MeshGateway": {}, "Expose": {}},
    "Connect": {},
}
CHECK_REST = {"Notes": "", "Output": "", "ServiceID": "", "ServiceName": "", "ServiceTags": None, "Type": ""}


def node(verb: str, name: str, **fields: object) -> Op:
    return {"Node": {"Verb": verb, "Node": {"Node": name, **fields}}}


def service(verb: str, on: str, **fields: object) -> Op:
    return {"Service": {"Verb": verb, "Node": on, "Service": fields}}


def check(verb: str, on: str, **fields: object) -> Op:
    return {"Check": {"Verb": verb, "Check": {"Node": on, **fields}}}


def send(target: Target, *ops: Op) -> Answer:
    return target.put("/v1/txn", list(ops))


def one(target: Target, op: Op) -> dict[str, Any]:
    """Send one operation that must succeed, and return what it shows."""
    answer = send(target, op)
    assert answer.status == 200, answer.text
    ((shown,),) = (result.values() for result in answer.json["Results"])
    found: dict[str, Any] = shown
    return found


def why(target: Target, *ops: Op) -> list[tuple[int, str]]:
    answer = send(target, *ops)
    assert (answer.status, answer.json["Results"]) == (409, None)
    return [(error["OpIndex"], error["What"]) for error in answer.json["Errors"]]


@pytest.fixture
def home(target: Target) -> str:
    """A node of this test."""
    name = f"home-{target.unique}"
    assert send(target, node("set", name, Address="10.0.0.9")).status == 200
    return name


def test_a_node(target: Target) -> None:
    name = f"N-{target.unique}"
    made = one(target, node("cas", name, Address="10.0.0.9", Meta={"a": "b"}, ModifyIndex=0))
    index = made["ModifyIndex"]
    expected = {
        "ID": "",
        "Node": name,
        "Address": "10.0.0.9",
        "Datacenter": "dc1",
        "TaggedAddresses": None,
        "Meta": {"a": "b"},
        "CreateIndex": index,
        "ModifyIndex": index,
    }
    assert target.shows(made, expected)
    assert one(target, node("set", name, Address="10.0.0.9", Meta={"a": "b"})) == made
    assert one(target, node("get", name.lower())) == made
    moved = one(target, node("cas", name, Address="10.0.0.8", ModifyIndex=index))
    assert (moved["CreateIndex"], moved["Address"], moved["Meta"]) == (index, "10.0.0.8", None)
    assert moved["ModifyIndex"] > index
    gone = send(target, node("delete-cas", name, ModifyIndex=moved["ModifyIndex"]), node("delete", name))
    assert gone.json == {"Results": [], "Errors": None}
    assert target.get(f"/v1/catalog/node/{name}").json is None


def test_a_service(target: Target, home: str) -> None:
    made = one(target, service("cas", home, ID="w1", Service="web", Port=80, Tags=["a"]))
    index = made["ModifyIndex"]
    indexes = {"CreateIndex": index, "ModifyIndex": index}
    named = {"ID": "w1", "Service": "web", "Port": 80, "Tags": ["a"]}
    assert target.shows(made, {**named, **SERVICE_REST, **indexes})
    assert one(target, service("set", home, ID="w1", Service="web", Port=80, Tags=["a"])) == made
    assert one(target, service("get", home, ID="w1")) == made
    unnamed = one(target, service("set", home, Service="unnamed"))
    assert (unnamed["ID"], unnamed["Tags"]) == ("unnamed", None)
    gone = send(
        target,
        service("delete-cas", home, ID="w1", Service="web", ModifyIndex=index),
        service("delete", home, ID="w1", Service="web"),
    )
    assert gone.json == {"Results": [], "Errors": None}
    assert list(target.get(f"/v1/catalog/node/{home}").json["Services"]) == ["unnamed"]


def test_a_check(target: Target, home: str) -> None:
    made = one(target, check("cas", home, CheckID="c1", Name="c", Status="passing"))
    index = made["ModifyIndex"]
    indexes = {"CreateIndex": index, "ModifyIndex": index}
    named = {"Node": home, "CheckID": "c1", "Name": "c", "Status": "passing", "Definition": {}}
    assert target.shows(made, {**named, **CHECK_REST, **indexes})
    assert one(target, check("set", home, CheckID="c1", Name="c", Status="passing")) == made
    assert one(target, check("get", home, CheckID="c1")) == made
    bare = one(target, check("set", home, Name="bare"))
    assert (bare["CheckID"], bare["Status"]) == ("bare", "critical")
    one(target, service("set", home, ID="w1", Service="web", Tags=["a"]))
    tied = one(target, check("set", home, CheckID="c2", ServiceID="w1", Status="odd"))
    assert (tied["ServiceName"], tied["ServiceTags"], tied["Status"]) == ("web", ["a"], "odd")
    gone = send(
        target,
        check("delete-cas", home, CheckID="c1", ModifyIndex=index),
        check("delete", home, CheckID="c1"),
    )
    assert gone.json == {"Results": [], "Errors": None}


NAMELESS = "failed inserting service: object missing primary index"
FAILURES: list[tuple[Op, str]] = [
    (node("get", "NONE"), 'node "NONE" doesn\'t exist'),
    (node("get", ""), 'node "" doesn\'t exist'),
    (node("set", ""), "Must provide node"),
    (node("bogus", "HOME"), 'unknown Node verb "bogus"'),
    (node("SET", "HOME"), 'unknown Node verb "SET"'),
    (node("set", "HOME", ID="abc"), "Bad node ID: uuid string is wrong length"),
    (node("cas", "HOME"), 'failed to set node "HOME", index is stale'),
    (node("cas", "NONE", ModifyIndex=7), 'failed to set node "NONE", index is stale'),
    (node("delete-cas", "HOME", ModifyIndex=1), 'failed to delete node "HOME", index is stale'),
    (node("delete-cas", "NONE", ModifyIndex=0), 'failed to delete node "NONE", index is stale'),
    (service("get", "HOME", ID="no"), 'service "no" on node "HOME" doesn\'t exist'),
    (service("get", "HOME"), 'service "" on node "HOME" doesn\'t exist'),
    (service("set", "NONE", ID="s", Service="s"), "Missing node registration"),
    (service("set", "HOME", ID="s"), "Must provide service name with ID"),
    (service("delete", "HOME", ID="s"), "Must provide service name with ID"),
    (service("set", "HOME"), NAMELESS),
    (service("cas", "HOME", ID="s", Service="s"), 'failed to set service "s" on node "HOME", index is stale'),
    (
        service("delete-cas", "HOME", ID="no", Service="s", ModifyIndex=0),
        'failed to delete service "no" on node "HOME", index is stale',
    ),
    (service("bogus", "HOME", ID="s", Service="s"), 'unknown Service verb "bogus"'),
    ({"Service": {}}, 'unknown Service verb ""'),
    (check("get", "HOME", CheckID="no"), 'check "no" on node "HOME" doesn\'t exist'),
    (check("set", "NONE", CheckID="c"), "Missing node registration"),
    (check("set", "HOME", CheckID="c", ServiceID="no"), "Missing service registration"),
    (check("set", "HOME"), "failed inserting check: object missing primary index"),
    (check("cas", "HOME", CheckID="c"), 'failed to set check "c" on node "HOME", index is stale'),
    (check("delete-cas", "HOME", CheckID="no"), 'failed to delete check "no" on node "HOME", index is stale'),
    (check("bogus", "HOME"), 'unknown Check verb "bogus"'),
    ({"Check": {}}, 'unknown Check verb ""'),
]


@pytest.mark.parametrize(("op", "what"), FAILURES, ids=[what for _, what in FAILURES])
def test_failures(target: Target, home: str, op: Op, what: str) -> None:
    def here(text: str) -> str:
        return text.replace("HOME", home).replace("NONE", f"none-{target.unique}")

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: moved(member) for name, member in value.items()}
        return here(value) if isinstance(value, str) else value

    send(target, service("set", home, ID="s", Service="s"), check("set", home, CheckID="c"))
    key = target.key()
    ops = ({"KV": {"Verb": "set", "Key": key}}, moved(op))
    if what == NAMELESS and not target.is_1_8 and send(target, *ops).status == 200:
        assert "" in target.get(f"/v1/catalog/node/{home}").json["Services"]  # 1.20.6 takes it
        return
    ((number, said),) = why(target, *ops)
    assert number == 1
    assert target.says(said, here(what))
    assert target.get(f"/v1/kv/{key}").status == 404


@pytest.mark.parametrize(
    ("on", "fields"),
    [("NONE", {"CheckID": "c"}), ("HOME", {"CheckID": "c", "ServiceID": "no"}), ("HOME", {})],
    ids=["no node", "no service", "no id"],
)
def test_a_compared_check_that_can_not_be_made_passes_without_a_result(
    target: Target, home: str, on: str, fields: dict[str, object]
) -> None:
    name = home if on == "HOME" else f"none-{target.unique}"
    key = target.key()
    ops = (check("cas", name, ModifyIndex=0, **fields), {"KV": {"Verb": "set", "Key": key}})
    if "CheckID" not in fields and not target.is_1_8:
        ((number, said),) = why(target, *ops)
        assert number == 0
        assert target.says(said, "failed inserting check: object missing primary index")
        return
    answer = send(target, *ops)
    assert [list(result) for result in answer.json["Results"]] == [["KV"]]
    assert target.get(f"/v1/health/node/{name}").json == []


def test_a_node_is_got_by_its_id_and_compared_by_its_name(target: Target) -> None:
    name, id = f"id-{target.unique}", str(uuid.uuid4())
    made = one(target, node("set", name, ID=id, Address="10.0.0.7"))
    assert one(target, node("get", "whatever", ID=id)) == made
    again = node("cas", name, ID=str(uuid.uuid4()), Address="10.0.0.7", ModifyIndex=0)
    assert why(target, again) == [(0, f'failed to set node "{name}", index is stale')]
    assert send(target, node("delete", name)).status == 200


def test_prechecks_hide_later_failures(target: Target, home: str) -> None:
    first, second = why(target, node("get", "none"), service("set", home, ID="s"), node("set", ""))
    assert (first[0], second) == (1, (2, "Must provide node"))
    assert target.says(first[1], "Must provide service name with ID")


def test_an_unknown_verb_of_a_node_without_a_name(target: Target) -> None:
    ((number, said),) = why(target, node("bogus", ""))
    assert number == 0
    # 1.8.7 and 1.14.11 look at the name first, 1.20.6 at the verb.
    name_first = said == "Must provide node"
    verb_first = target.says(said, 'unknown Node verb "bogus"') and not target.is_1_8
    assert name_first if target.is_1_8 else verb_first or (name_first and target.kind == "agent")


PARSE = [
    (b'[{"Node":{"X":1}}]', 'json: unknown field "X"'),
    (b'[{"Node":{"Node":{"Y":1}}}]', 'json: unknown field "Y"'),
    (b'[{"Node":{"Node":{"Node":1}}}]', "number into Go struct field Node.Node.Node.Node of type string"),
    (b'[{"Service":{"Node":1}}]', "number into Go struct field ServiceTxnOp.Service.Node of type string"),
    (
        b'[{"Service":{"Service":{"Port":"x"}}}]',
        "string into Go struct field AgentService.Service.Service.Port of type int",
    ),
    (b'[{"Check":{"Verb":1}}]', "number into Go struct field CheckTxnOp.Check.Verb of type api.CheckOp"),
    (b'[{"Check":{"Check":{"Node":1}}}]', "Go struct field HealthCheck.Check.Check.Node of type string"),
]


@pytest.mark.parametrize(("body", "text"), PARSE, ids=[body.decode() for body, _ in PARSE])
def test_bodies_that_are_no_transaction(target: Target, body: bytes, text: str) -> None:
    answer = target.put("/v1/txn", body)
    assert (answer.status, answer.text.startswith("Failed to parse body: ")) == (400, True)
    assert answer.text.endswith(text) or not target.is_1_8  # they are Go's words


def test_of_several_kinds_in_one_operation_the_first_counts(target: Target, home: str) -> None:
    key = target.key()
    kv = {"KV": {"Verb": "set", "Key": key}}
    (shown,) = send(target, {**node("set", home), **kv}).json["Results"]
    assert list(shown) == ["KV"]
    (shown,) = send(target, {**service("get", home), **node("get", home)}).json["Results"]
    assert list(shown) == ["Node"]
    assert send(target, {"Node": None, "KV": None}).json["Results"] == []


def test_only_gets_are_reads(target: Target, home: str) -> None:
    assert "ConsistencyLevel" in send(target, node("get", home), {"KV": None}).json
    assert "ConsistencyLevel" in send(target, node("get", "none")).json
    assert "ConsistencyLevel" not in send(target, node("get", home), node("bogus", home)).json


@pytest.mark.parametrize("end", ["critical", "delete check", "delete node"])
def test_a_session_ends_within_the_transaction(target: Target, home: str, end: str) -> None:
    one(target, check("set", home, CheckID="c", Status="passing"))
    key, session = target.key(), target.session(Node=home, NodeChecks=["c"])
    assert target.put(f"/v1/kv/{key}?acquire={session}", b"v").json is True
    last = {
        "critical": check("set", home, CheckID="c", Status="critical"),
        "delete check": check("delete", home, CheckID="c"),
        "delete node": node("delete", home),
    }[end]
    answer = send(target, last, {"KV": {"Verb": "get", "Key": key}})
    shown = answer.json["Results"][-1]["KV"]
    assert "Session" not in shown
    assert shown["ModifyIndex"] > shown["CreateIndex"]
    assert target.info(session) == []
    other = target.session()
    assert target.txn({"Verb": "lock", "Key": key, "Session": other}).json["Errors"] == [
        {"OpIndex": 0, "What": f'failed to lock key "{key}" due to lock delay'}
    ]


def test_a_failure_brings_a_session_back_but_not_without_a_lock_delay(target: Target, home: str) -> None:
    one(target, check("set", home, CheckID="c", Status="passing"))
    key, session = target.key(), target.session(Node=home, NodeChecks=["c"])
    assert target.put(f"/v1/kv/{key}?acquire={session}", b"v").json is True
    failing = {"KV": {"Verb": "check-not-exists", "Key": key}}
    assert why(target, node("delete", home), failing) == [(1, f'key "{key}" exists')]
    assert target.entry(key)["Session"] == session
    assert target.info(session)[0]["Node"] == home
    assert target.put(f"/v1/kv/{key}?release={session}").json is True
    (error,) = target.txn({"Verb": "lock", "Key": key, "Session": target.session()}).json["Errors"]
    assert error["What"] == f'failed to lock key "{key}" due to lock delay'
