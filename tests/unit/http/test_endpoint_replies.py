"""Replies of a real agent and odd ones: what is read from them, and which error names the fault."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord.errors import DecodeError, NotFound
from consul_coord.http.endpoints import _json, agent, catalog, health, kv, query, session, status
from consul_coord.http.endpoints._json import ShapeError
from consul_coord.http.messages import Call, Response
from consul_coord.models import (
    AgentInfo,
    CatalogNode,
    HealthCheck,
    KVPair,
    Node,
    PreparedQuery,
    QueryResult,
    Result,
    Service,
    ServiceInstance,
    Session,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SID = "adf4238a-882b-9ddc-4a9d-5b6758e4159e"
HEADERS = {
    "x-consul-index": "18446744073709551615",
    "x-consul-knownleader": "true",
    "x-consul-lastcontact": "5017",
}
PAIR = {
    "LockIndex": 1,
    "Key": "k",
    "Flags": 2**64 - 1,
    "Value": "AP8=",
    "Session": SID,
    "CreateIndex": 9,
    "ModifyIndex": 2**63,
}


def ok(value: Any) -> Response:
    return Response(200, HEADERS, json.dumps(value).encode())


def read(call: Call[Any], value: Any) -> Any:
    return call.decode(ok(value))


def read_value(call: Call[Result[Any]], value: Any) -> Any:
    return call.decode(ok(value)).value


def test_key_with_everything() -> None:
    expected = KVPair("k", b"\x00\xff", 2**64 - 1, SID, create_index=9, modify_index=2**63, lock_index=1)
    assert read(kv.get("k"), [PAIR]) == Result(expected, 2**64 - 1, known_leader=True, last_contact=5.017)


ODD: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    1,
    2**64 - 1,
    2**64,
    -1,
    0.0,
    1e300,
    "",
    "AA==",
    "A",
    SID,
    [],
    {},
)
JSON = st.recursive(
    st.sampled_from(ODD) | st.integers(-(2**65), 2**65) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(sorted(PAIR)), inner),
    max_leaves=4,
)
PLAIN = {"Key": "k", "Flags": 0, "Value": None, "CreateIndex": 9, "ModifyIndex": 9, "LockIndex": 1}


def read_alike(*values: object) -> None:
    """Show that what is read at once is what is read field by field, exact types included."""
    plain = kv.plain_pairs(values)
    assert plain is None or repr(plain) == repr([kv.pair("it", value) for value in values])


@given(
    st.dictionaries(st.sampled_from(sorted(PAIR)), JSON, max_size=3),
    st.sets(st.sampled_from(sorted(PAIR)), max_size=2),
)
def test_a_plain_key_is_read_as_any_other(changes: dict[str, Any], missing: set[str]) -> None:
    read_alike({name: field for name, field in {**PLAIN, **changes}.items() if name not in missing})


@pytest.mark.parametrize("name", PAIR)
def test_a_plain_key_with_one_odd_field(name: str) -> None:
    for field in ODD:
        read_alike(PLAIN | {name: field})
        read_alike(PLAIN, PLAIN | {name: field}, PLAIN)


@given(JSON)
def test_what_may_be_no_key_at_all(value: object) -> None:
    read_alike(value)


@pytest.mark.parametrize(
    "change", [{}, {"Session": SID}, {"Value": ""}, {"Value": "AP8="}, {"Flags": 2**64 - 1}]
)
def test_what_agents_send_is_plain(change: dict[str, Any]) -> None:
    assert kv.plain_pairs([PLAIN | change]) == [kv.pair("it", PLAIN | change)]


def test_key_with_the_least() -> None:
    odd: dict[str, Any] = {
        "Key": "k",
        "Value": None,
        "CreateIndex": 1,
        "ModifyIndex": 2,
        "Session": "",
        "Unknown": [{}],
    }
    assert read_value(kv.get("k"), [odd]) == KVPair("k", create_index=1, modify_index=2)


@pytest.mark.parametrize("call", [kv.get("k"), kv.get_raw("k")])
def test_absent_key_has_an_index(call: Call[Result[Any]]) -> None:
    assert call.decode(Response(404, {"x-consul-index": "5"})) == Result(None, 5)


@pytest.mark.parametrize("call", [kv.list_pairs("p/"), kv.keys("p/")])
def test_absent_prefix_is_empty(call: Call[Result[Any]]) -> None:
    assert call.decode(Response(404, {"x-consul-index": "5"})) == Result((), 5)


@pytest.mark.parametrize("garbage", ["", "-1", "1.5", "٣", "abc", "18446744073709551616", "9" * 5000, " 7"])
def test_garbage_in_headers_says_nothing(garbage: str) -> None:
    names: tuple[str, ...] = ("x-consul-index", "x-consul-lastcontact", "x-consul-knownleader")
    headers: dict[str, str] = dict.fromkeys(names, garbage)
    assert kv.get("k").decode(Response(404, headers)) == Result(None, 0, known_leader=None, last_contact=None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"Key": None}, "[0].Key is missing"),
        ({"Value": "a"}, "[0].Value is not base64"),
        ({"Value": "YQ=\n="}, "[0].Value is not base64"),
        ({"Value": 1}, "[0].Value should be a string, not a number"),
        ({"Flags": -1}, "[0].Flags is out of range"),
        ({"Flags": 2**64}, "[0].Flags is out of range"),
        ({"ModifyIndex": 1.0}, "[0].ModifyIndex should be an integer, not a number"),
        ({"ModifyIndex": True}, "[0].ModifyIndex should be an integer, not a boolean"),
        ({"Session": []}, "[0].Session should be a string, not a list"),
        ({"Key": "other"}, "not just 'k'"),
    ],
)
def test_wrong_shape_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read(kv.get("k"), [{**PAIR, **change}])
    assert named in str(caught.value)
    assert (caught.value.method, caught.value.path) == ("GET", "/v1/kv/k")


@pytest.mark.parametrize("value", [None, [], {}, "x", [PAIR, PAIR], [None]])
def test_a_key_is_exactly_one(value: Any) -> None:
    with pytest.raises(DecodeError):
        read(kv.get("k"), value)


def test_raw_keys_and_trees() -> None:
    assert kv.get_raw("k").decode(Response(200, HEADERS, b"\x00[")).value == b"\x00["
    assert read_value(kv.keys("p/"), ["p/a", "p/b/"]) == ("p/a", "p/b/")
    assert [pair.key for pair in read_value(kv.list_pairs(""), [PAIR, {**PAIR, "Key": "l"}])] == ["k", "l"]


@pytest.mark.parametrize("body", [b"true", b"true\n", b" true "])
def test_booleans_whatever_their_layout(body: bytes) -> None:
    assert kv.put("k", b"").decode(Response(200, {}, body)) is True


@pytest.mark.parametrize("body", [b"", b"1", b'"true"', b"null", b"[true]"])
def test_no_boolean(body: bytes) -> None:
    with pytest.raises(DecodeError):
        kv.put("k", b"").decode(Response(200, {}, body))


SESSION = {
    "ID": SID,
    "Name": "n",
    "Node": "n1",
    "LockDelay": 1500000000,
    "Behavior": "delete",
    "TTL": "1m30s",
    "NodeChecks": ["serfHealth"],
    "ServiceChecks": [{"ID": "web", "Namespace": ""}],
    "CreateIndex": 7,
    "ModifyIndex": 7,
}


def test_session_with_everything() -> None:
    expected = Session(SID, "n", "n1", 90.0, 1.5, "delete", ("serfHealth",), ("web",), 7)
    assert read(session.renew(SID), [SESSION]) == expected
    assert read_value(session.list_sessions(), [SESSION]) == (expected,)


@pytest.mark.parametrize("ttl", ["", "0s", None])
def test_session_without_ttl(ttl: str | None) -> None:
    assert read(session.renew(SID), [{**SESSION, "TTL": ttl, "ServiceChecks": None}]).ttl is None


def test_session_of_an_old_release_lists_its_checks_otherwise() -> None:
    assert read(session.renew(SID), [{"ID": SID, "Checks": ["serfHealth"]}]).node_checks == ("serfHealth",)


@pytest.mark.parametrize("value", [[], None])
def test_no_session(value: Any) -> None:
    assert read_value(session.info(SID), value) is None
    with pytest.raises(DecodeError):
        read(session.renew(SID), value)


@pytest.mark.parametrize("ttl", ["15", "abc", "15 s", "s", "1h-2m", "9" * 60 + "s", "9" * 5000])
def test_session_with_an_odd_ttl(ttl: str) -> None:
    with pytest.raises(DecodeError, match="TTL"):
        read(session.renew(SID), [{**SESSION, "TTL": ttl}])


@pytest.mark.parametrize("value", [{}, {"ID": ""}, {"ID": 1}, [], None])
def test_create_without_an_id(value: Any) -> None:
    with pytest.raises(DecodeError):
        read(session.create(), value)


def test_create() -> None:
    assert read(session.create(), {"ID": SID}) == SID


def test_agent() -> None:
    config = {"Datacenter": "dc1", "NodeName": "n1", "NodeID": SID, "Server": True, "Version": "1.8.7"}
    reply = {"Config": config, "DebugConfig": {"x": 1}, "Stats": None}
    assert read_value(agent.info(), reply) == AgentInfo("n1", "dc1", SID, "1.8.7", server=True)
    checks = {"c1": {"CheckID": "c1", "Name": "c", "Node": "n1", "Status": "passing", "Type": "ttl"}}
    assert read_value(agent.checks(), checks) == {"c1": HealthCheck("c1", "c", "n1", "passing")}
    assert agent.pass_check("c1").decode(Response(200)) is None


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("10s", 10.0), ("1m30s", 90.0), ("0s", 10.0), ("soon", None), (15, None), (None, None)],
)
def test_the_shortest_ttl_of_sessions_is_told_if_it_can_be_read(told: object, seconds: float | None) -> None:
    """The node is returned in any case: the rest of the reply is as good."""
    reply = {"Config": {"NodeName": "n1"}, "DebugConfig": {"SessionTTLMin": told}}
    assert read_value(agent.info(), reply) == AgentInfo("n1", session_ttl_min=seconds)


def test_catalog_and_health() -> None:
    node = {
        "ID": SID,
        "Node": "n1",
        "Address": "a",
        "Datacenter": "dc1",
        "Meta": {"m": "1"},
        "TaggedAddresses": None,
    }
    service = {"ID": "web1", "Service": "web", "Tags": None, "Port": 80, "Address": "", "Meta": None}
    expected = Node("n1", "a", SID, "dc1", {"m": "1"})
    assert read_value(catalog.nodes(), [node]) == (expected,)
    both = read_value(catalog.node("n1"), {"Node": node, "Services": {"web1": service}})
    assert both == CatalogNode(expected, (Service("web", "web1", "", 80),))
    assert read_value(catalog.node("n1"), None) is None
    check = {"CheckID": "serfHealth", "Node": "n1", "Status": "critical", "CreateIndex": 3, "ModifyIndex": 4}
    expected_check = HealthCheck("serfHealth", node="n1", status="critical", create_index=3, modify_index=4)
    assert read_value(health.node("n1"), [check]) == (expected_check,)
    assert read_value(health.state("any"), []) == ()


def test_queries() -> None:
    reply = {
        "ID": "q1",
        "Name": "q",
        "Session": SID,
        "Token": "secret",
        "Service": {"Service": "web", "Tags": ["t"], "OnlyPassing": True, "Near": "_agent"},
    }
    expected = PreparedQuery(
        service="web", name="q", session=SID, id="q1", tags=("t",), only_passing=True, near="_agent"
    )
    assert read_value(query.get("q1"), [reply]) == expected
    assert read_value(query.list_queries(), [reply]) == (expected,)
    assert query.get("q1").decode(Response(404, {}, b"Query not found")).value is None
    with pytest.raises(NotFound):
        query.delete("q1").decode(Response(404, {}, b"Query not found"))


def test_an_empty_list_of_queries_is_not_taken_for_the_one_that_was_asked_for() -> None:
    assert read_value(query.list_queries(), []) == ()
    with pytest.raises(DecodeError, match="no query"):
        read(query.get("q1"), [])


# No two fields of a reply have the same value, and none has the one that a missing field is read as.
WHOLE_CHECK = {
    "CheckID": "check",
    "Name": "check's name",
    "Node": "check's node",
    "Status": "warning",
    "Notes": "notes",
    "Output": "output",
    "ServiceID": "check's service id",
    "ServiceName": "check's service name",
    "CreateIndex": 11,
    "ModifyIndex": 12,
}
CHECK = HealthCheck(
    "check",
    name="check's name",
    node="check's node",
    status="warning",
    notes="notes",
    output="output",
    service_id="check's service id",
    service_name="check's service name",
    create_index=11,
    modify_index=12,
)
WHOLE_NODE = {
    "Node": "node",
    "Address": "node's address",
    "ID": "node's id",
    "Datacenter": "node's dc",
    "TaggedAddresses": {"lan": "lan", "wan": "wan"},
    "Meta": {"of": "node"},
    "CreateIndex": 21,
    "ModifyIndex": 22,
}
NODE = Node(
    "node",
    address="node's address",
    id="node's id",
    datacenter="node's dc",
    meta={"of": "node"},
    create_index=21,
    modify_index=22,
)
WHOLE_SERVICE = {
    "Service": "service",
    "ID": "service's id",
    "Address": "service's address",
    "Port": 80,
    "Tags": ["service's tag"],
    "Meta": {"of": "service"},
}
SERVICE = Service(
    "service",
    id="service's id",
    address="service's address",
    port=80,
    tags=("service's tag",),
    meta={"of": "service"},
)
WHOLE_INSTANCE = {"Node": WHOLE_NODE, "Service": WHOLE_SERVICE, "Checks": [WHOLE_CHECK]}
INSTANCE = ServiceInstance(NODE, SERVICE, checks=(CHECK,))
WHOLE: dict[str, tuple[Call[Any], object, object]] = {
    "a key": (
        kv.get("k"),
        [PAIR],
        KVPair("k", b"\x00\xff", 2**64 - 1, SID, create_index=9, modify_index=2**63, lock_index=1),
    ),
    "a session": (
        session.info(SID),
        [SESSION],
        Session(
            SID,
            name="n",
            node="n1",
            ttl=90.0,
            lock_delay=1.5,
            behavior="delete",
            node_checks=("serfHealth",),
            service_checks=("web",),
            create_index=7,
        ),
    ),
    "an agent": (
        agent.info(),
        {
            "Config": {
                "NodeName": "agent",
                "Datacenter": "dc",
                "NodeID": "id",
                "Version": "1.2.3",
                "Server": True,
            },
            "DebugConfig": {"SessionTTLMin": "15s"},
        },
        AgentInfo("agent", datacenter="dc", node_id="id", version="1.2.3", server=True, session_ttl_min=15.0),
    ),
    "an agent's checks": (agent.checks(), {"check": WHOLE_CHECK}, {"check": CHECK}),
    "a node's checks": (health.node("node"), [WHOLE_CHECK], (CHECK,)),
    "checks in a state": (health.state("warning"), [WHOLE_CHECK], (CHECK,)),
    "nodes": (catalog.nodes(), [WHOLE_NODE], (NODE,)),
    "a node": (
        catalog.node("node"),
        {"Node": WHOLE_NODE, "Services": {"service's id": WHOLE_SERVICE}},
        CatalogNode(NODE, services=(SERVICE,)),
    ),
    "a service": (
        catalog.service("service"),
        [
            {name: WHOLE_NODE[name] for name in ("Node", "Address", "ID", "Datacenter")}
            | {"NodeMeta": WHOLE_NODE["Meta"], "ServiceName": WHOLE_SERVICE["Service"]}
            | {f"Service{name}": value for name, value in WHOLE_SERVICE.items() if name != "Service"}
            | {"CreateIndex": 31, "ModifyIndex": 32}
        ],
        (
            ServiceInstance(
                Node(
                    "node",
                    address="node's address",
                    id="node's id",
                    datacenter="node's dc",
                    meta={"of": "node"},
                ),
                SERVICE,
            ),
        ),
    ),
    "a service with its checks": (health.service("service"), [WHOLE_INSTANCE], (INSTANCE,)),
    "a query": (
        query.get("id"),
        [
            {
                "ID": "id",
                "Name": "name",
                "Session": "session",
                "Service": {"Service": "web", "Tags": ["tag"], "OnlyPassing": True, "Near": "near"},
            }
        ],
        PreparedQuery(
            service="web",
            name="name",
            session="session",
            id="id",
            tags=("tag",),
            only_passing=True,
            near="near",
        ),
    ),
    "a query that was carried out": (
        query.execute("q"),
        {"Service": "web", "Nodes": [WHOLE_INSTANCE], "Datacenter": "another dc", "Failovers": 2},
        QueryResult("web", instances=(INSTANCE,), datacenter="another dc", failovers=2),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_every_field_of_a_reply_is_read(name: str) -> None:
    call, body, expected = WHOLE[name]
    found = read(call, body)
    assert (found.value if isinstance(found, Result) else found) == expected


def told_apart(value: object) -> Iterator[tuple[type, str]]:
    """Give the fields that are not as they would be without a reply's own."""
    if isinstance(value, dict | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from told_apart(each)
    elif is_dataclass(value):
        for field in fields(value):
            own = getattr(value, field.name)
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if own != default:
                yield type(value), field.name
            yield from told_apart(own)


def test_no_field_is_left_out_of_these_replies() -> None:
    told = {one for _, _, expected in WHOLE.values() for one in told_apart(expected)}
    assert told == {(kind, field.name) for kind, _ in told for field in fields(kind)}


@pytest.mark.parametrize(("reply", "leader"), [("127.0.0.1:8300", "127.0.0.1:8300"), ("", None)])
def test_leader(reply: str, leader: str | None) -> None:
    assert read(status.leader(), reply) == leader


def test_peers() -> None:
    assert read(status.peers(), ["a:8300"]) == ("a:8300",)


@pytest.mark.parametrize(
    "body", ['"é"'.encode("utf-16"), '"é"'.encode("latin-1"), b'\xef\xbb\xbf""', b'"\xed\xa0\x80"']
)
def test_a_body_that_is_not_utf_8(body: bytes) -> None:
    with pytest.raises(ShapeError, match="not JSON"):
        _json.parse(body)
