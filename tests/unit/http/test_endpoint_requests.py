"""Every endpoint's request, byte for byte, and its behaviour on any reply whatsoever."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord.errors import ConsulCoordError, DecodeError, InvalidArgument, InvalidKey, ValueTooLarge
from consul_coord.http.endpoints import agent, catalog, health, kv, query, session, status
from consul_coord.http.messages import Call, Request, Response, Retry
from consul_coord.models import (
    LOCK_FLAGS,
    CheckSpec,
    HealthCheck,
    PreparedQuery,
    ReadOptions,
    Registration,
    Service,
    SessionSpec,
    TxnOp,
    WriteOptions,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SID = "adf4238a-882b-9ddc-4a9d-5b6758e4159e"
EVERYTHING = ReadOptions(
    index=7,
    wait=0.5,
    consistency="stale",
    max_stale=2.5,
    datacenter="dc2",
    namespace="n",
    partition="p",
    near="_agent",
)
OWN_NODE = "the agent's own node"
ON_SESSION = "the session's node"
CHECK_RULES = ("node:write on the agent's own node, or service:write on the check's service",)


@dataclass(frozen=True)
class Case:
    call: Callable[[], Call[Any]]
    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    retry: Retry = Retry.READ
    needed: tuple[str, ...] = ()
    hold_open: float = field(default=0.0)
    urgent: bool = False

    def request(self) -> Request:
        return Request(
            self.method,
            self.path,
            params=self.params,
            body=self.body,
            retry=self.retry,
            needed=self.needed,
            hold_open=self.hold_open,
            urgent=self.urgent,
        )


def kv_case(call: Callable[[], Call[Any]], method: str, path: str, needed: str, **rest: Any) -> Case:
    return Case(call, method, "/v1/kv/" + path, needed=(needed,), **rest)


def check_case(call: Callable[[], Call[Any]], path: str, **rest: Any) -> Case:
    return Case(call, "PUT", "/v1/agent/check/" + path, retry=Retry.IDEMPOTENT, needed=CHECK_RULES, **rest)


KV_CASES = {
    "get": kv_case(lambda: kv.get("jobs/nightly"), "GET", "jobs/nightly", 'key:read on "jobs/nightly"'),
    "get_encoded": kv_case(
        lambda: kv.get("a b?c#%é+"), "GET", "a%20b%3Fc%23%25%C3%A9%2B", 'key:read on "a b?c#%é+"'
    ),
    "get_options": kv_case(
        lambda: kv.get("k", options=EVERYTHING),
        "GET",
        "k",
        'key:read on "k"',
        params=(
            ("dc", "dc2"),
            ("ns", "n"),
            ("partition", "p"),
            ("near", "_agent"),
            ("stale", ""),
            ("max_stale", "2500ms"),
            ("index", "7"),
            ("wait", "500ms"),
        ),
        hold_open=0.5,
    ),
    "get_consistent": kv_case(
        lambda: kv.get("k", options=ReadOptions(consistency="consistent", wait=5)),
        "GET",
        "k",
        'key:read on "k"',
        params=(("consistent", ""),),
    ),
    "get_default_wait": kv_case(
        lambda: kv.get("k", options=ReadOptions(index=1)),
        "GET",
        "k",
        'key:read on "k"',
        params=(("index", "1"), ("wait", "30s")),
        hold_open=30.0,
    ),
    "get_raw": kv_case(lambda: kv.get_raw("k"), "GET", "k", 'key:read on "k"', params=(("raw", ""),)),
    "list": kv_case(
        lambda: kv.list_pairs(""), "GET", "", 'key:read on the prefix ""', params=(("recurse", ""),)
    ),
    "keys": kv_case(
        lambda: kv.keys("p/"), "GET", "p/", 'key:list on the prefix "p/"', params=(("keys", ""),)
    ),
    "keys_folded": kv_case(
        lambda: kv.keys("p/", separator="/"),
        "GET",
        "p/",
        'key:list on the prefix "p/"',
        params=(("keys", ""), ("separator", "/")),
    ),
    "watch": kv_case(
        lambda: kv.watch("k", index=9, wait=1.5, options=ReadOptions(datacenter="dc2")),
        "GET",
        "k",
        'key:read on "k"',
        params=(("dc", "dc2"), ("index", "9"), ("wait", "1500ms")),
        hold_open=1.5,
    ),
    "watch_first": kv_case(lambda: kv.watch("k", index=0, wait=30), "GET", "k", 'key:read on "k"'),
    "watch_tree": kv_case(
        lambda: kv.watch_tree("p/", index=9, wait=30),
        "GET",
        "p/",
        'key:read on the prefix "p/"',
        params=(("recurse", ""), ("index", "9"), ("wait", "30s")),
        hold_open=30,
    ),
    "put": kv_case(
        lambda: kv.put("k", "é"), "PUT", "k", 'key:write on "k"', body=b"\xc3\xa9", retry=Retry.IDEMPOTENT
    ),
    "put_cas": kv_case(
        lambda: kv.put("k", b"v", flags=LOCK_FLAGS, cas=0, options=WriteOptions(datacenter="dc2")),
        "PUT",
        "k",
        'key:write on "k"',
        params=(("cas", "0"), ("flags", "3304740253564472344"), ("dc", "dc2")),
        body=b"v",
        retry=Retry.NEVER,
    ),
    "acquire": kv_case(
        lambda: kv.acquire("k", SID, value="v", flags=2),
        "PUT",
        "k",
        'key:write on "k"',
        params=(("acquire", SID), ("flags", "2")),
        body=b"v",
        retry=Retry.IDEMPOTENT,
    ),
    "release": kv_case(
        lambda: kv.release("k", SID),
        "PUT",
        "k",
        'key:write on "k"',
        params=(("release", SID),),
        body=b"",
        retry=Retry.IDEMPOTENT,
    ),
    "delete": kv_case(lambda: kv.delete("k"), "DELETE", "k", 'key:write on "k"', retry=Retry.IDEMPOTENT),
    "delete_cas": kv_case(
        lambda: kv.delete("k", cas=5),
        "DELETE",
        "k",
        'key:write on "k"',
        params=(("cas", "5"),),
        retry=Retry.NEVER,
    ),
    "delete_tree": kv_case(
        lambda: kv.delete_tree("p/"),
        "DELETE",
        "p/",
        'key:write on the prefix "p/"',
        params=(("recurse", ""),),
        retry=Retry.IDEMPOTENT,
    ),
}

SESSION_CASES = {
    "create": Case(
        session.create,
        "PUT",
        "/v1/session/create",
        body=b'{"Behavior":"release","TTL":"15s","NodeChecks":[],"ServiceChecks":[]}',
        retry=Retry.NEVER,
        needed=(f"session:write on {OWN_NODE}",),
    ),
    "create_full": Case(
        lambda: session.create(
            SessionSpec.liveness(
                name="n", node="n1", ttl=90.5, lock_delay=1.5, behavior="delete", service_checks=["web"]
            )
        ),
        "PUT",
        "/v1/session/create",
        body=b'{"Name":"n","Node":"n1","LockDelay":"1500ms","Behavior":"delete","TTL":"90500ms",'
        b'"NodeChecks":["serfHealth"],"ServiceChecks":[{"ID":"web"}]}',
        retry=Retry.NEVER,
        needed=('session:write on node "n1"',),
    ),
    "create_unbounded": Case(
        lambda: session.create(SessionSpec(ttl=None, lock_delay=0, allow_unbounded=True)),
        "PUT",
        "/v1/session/create",
        body=b'{"LockDelay":"0s","Behavior":"release","NodeChecks":[],"ServiceChecks":[]}',
        retry=Retry.NEVER,
        needed=(f"session:write on {OWN_NODE}",),
    ),
    "destroy": Case(
        lambda: session.destroy(SID),
        "PUT",
        f"/v1/session/destroy/{SID}",
        retry=Retry.IDEMPOTENT,
        needed=(f"session:write on {ON_SESSION}",),
    ),
    "renew": Case(
        lambda: session.renew(SID),
        "PUT",
        f"/v1/session/renew/{SID}",
        retry=Retry.IDEMPOTENT,
        needed=(f"session:write on {ON_SESSION}",),
        urgent=True,
    ),
    "info": Case(
        lambda: session.info(SID), "GET", f"/v1/session/info/{SID}", needed=(f"session:read on {ON_SESSION}",)
    ),
    "session_watch": Case(
        lambda: session.watch(SID, index=4, wait=10),
        "GET",
        f"/v1/session/info/{SID}",
        params=(("index", "4"), ("wait", "10s")),
        needed=(f"session:read on {ON_SESSION}",),
        hold_open=10,
    ),
    "sessions": Case(
        session.list_sessions, "GET", "/v1/session/list", needed=(f"session:read on {ON_SESSION}",)
    ),
    "node_sessions": Case(
        lambda: session.node("n 1"), "GET", "/v1/session/node/n%201", needed=('session:read on node "n 1"',)
    ),
}

OTHER_CASES = {
    "agent_info": Case(agent.info, "GET", "/v1/agent/self", needed=(f"agent:read on {OWN_NODE}",)),
    "agent_checks": Case(agent.checks, "GET", "/v1/agent/checks", needed=(f"node:read on {OWN_NODE}",)),
    "register_ttl": check_case(
        lambda: agent.register_check(CheckSpec(name="c", id="c1", ttl=30, status="passing", notes="x")),
        "register",
        body=b'{"ID":"c1","Name":"c","Notes":"x","Status":"passing","TTL":"30s"}',
    ),
    "register_http": check_case(
        lambda: agent.register_check(
            CheckSpec(
                name="c",
                http="http://127.0.0.1/",
                interval=10,
                timeout=0.5,
                service_id="web",
                deregister_after=90,
            )
        ),
        "register",
        body=b'{"Name":"c","ServiceID":"web","HTTP":"http://127.0.0.1/","Interval":"10s","Timeout":"500ms",'
        b'"DeregisterCriticalServiceAfter":"90s"}',
    ),
    "deregister_check": check_case(lambda: agent.deregister_check("service:web"), "deregister/service%3Aweb"),
    "pass": check_case(lambda: agent.pass_check("c1"), "pass/c1"),
    "warn": check_case(
        lambda: agent.warn_check("c1", note="hot & wet"), "warn/c1", params=(("note", "hot & wet"),)
    ),
    "fail": check_case(lambda: agent.fail_check("c1"), "fail/c1"),
    "update": check_case(
        lambda: agent.update_check("c1", "warning", output="é"),
        "update/c1",
        body=b'{"Status":"warning","Output":"\\u00e9"}',
    ),
    "nodes": Case(catalog.nodes, "GET", "/v1/catalog/nodes", needed=("node:read on the nodes",)),
    "node": Case(
        lambda: catalog.node("n1"), "GET", "/v1/catalog/node/n1", needed=('node:read on node "n1"',)
    ),
    "register": Case(
        lambda: catalog.register(Registration(node="n2", address="10.0.0.2")),
        "PUT",
        "/v1/catalog/register",
        body=b'{"Node":"n2","Address":"10.0.0.2"}',
        retry=Retry.IDEMPOTENT,
        needed=('node:write on node "n2"',),
    ),
    "register_full": Case(
        lambda: catalog.register(
            Registration(
                node="n2",
                address="a",
                node_id=SID,
                node_meta={"k": "v"},
                service=Service("web", id="web1", port=80, tags=["t"], meta={"m": "1"}),
                checks=[HealthCheck("c1", status="passing", service_id="web1")],
                skip_node_update=True,
            )
        ),
        "PUT",
        "/v1/catalog/register",
        body=b'{"Node":"n2","Address":"a","ID":"adf4238a-882b-9ddc-4a9d-5b6758e4159e","NodeMeta":{"k":"v"},'
        b'"Service":{"ID":"web1","Service":"web","Port":80,"Tags":["t"],"Meta":{"m":"1"}},'
        b'"Checks":[{"Node":"n2","CheckID":"c1","Name":"c1","Status":"passing","ServiceID":"web1"}],'
        b'"SkipNodeUpdate":true}',
        retry=Retry.IDEMPOTENT,
        needed=('node:write on node "n2"', 'service:write on "web"'),
    ),
    "deregister": Case(
        lambda: catalog.deregister("n2", check_id="c1"),
        "PUT",
        "/v1/catalog/deregister",
        body=b'{"Node":"n2","CheckID":"c1"}',
        retry=Retry.IDEMPOTENT,
        needed=('node:write on node "n2"',),
    ),
    "health_node": Case(
        lambda: health.node("n1"), "GET", "/v1/health/node/n1", needed=('node:read on node "n1"',)
    ),
    "health_state": Case(
        lambda: health.state("critical"),
        "GET",
        "/v1/health/state/critical",
        needed=("node:read on the nodes",),
    ),
    "query_create": Case(
        lambda: query.create(
            PreparedQuery(service="web", name="q", session=SID, tags=["a"], only_passing=True)
        ),
        "POST",
        "/v1/query",
        body=f'{{"Name":"q","Session":"{SID}",'.encode()
        + b'"Service":{"Service":"web","Tags":["a"],"OnlyPassing":true}}',
        retry=Retry.NEVER,
        needed=('query:write on "q"',),
    ),
    "query_get": Case(lambda: query.get(SID), "GET", f"/v1/query/{SID}", needed=("query:read on its name",)),
    "query_list": Case(query.list_queries, "GET", "/v1/query", needed=("query:read on their names",)),
    "query_delete": Case(
        lambda: query.delete(SID),
        "DELETE",
        f"/v1/query/{SID}",
        retry=Retry.IDEMPOTENT,
        needed=("query:write on its name",),
    ),
    "leader": Case(status.leader, "GET", "/v1/status/leader"),
    "peers": Case(status.peers, "GET", "/v1/status/peers"),
    "txn": Case(
        lambda: kv.txn(TxnOp.get("k"), TxnOp.get_tree("p/")),
        "PUT",
        "/v1/txn",
        body=b'[{"KV":{"Verb":"get","Key":"k"}},{"KV":{"Verb":"get-tree","Key":"p/"}}]',
        needed=('key:read on "k"', 'key:read on the prefix "p/"'),
    ),
}

CASES = {**KV_CASES, **SESSION_CASES, **OTHER_CASES}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_request_is_exact(case: Case) -> None:
    assert case.call().request == case.request()


Made = tuple[type[Any], dict[str, Any], "Callable[[Any], Call[Any]]"]
DESCRIBED: dict[str, Made] = {
    # what is described, with the least that it needs, and the request whose body carries it
    "check": (CheckSpec, {"name": "c", "http": "http://h/", "interval": 10}, agent.register_check),
    "check by ttl": (CheckSpec, {"name": "c", "ttl": 30}, agent.register_check),
    "service": (Service, {"name": "web"}, agent.register_service),
    "session": (SessionSpec, {}, session.create),
    "registration": (Registration, {"node": "n2", "address": "a"}, catalog.register),
    "query": (PreparedQuery, {"service": "web"}, query.create),
}
ALONE: list[tuple[str, str, Any, dict[str, Any]]] = [
    # by what is described: a setting, its value, and what that alone adds to the body
    ("check", "id", "c1", {"ID": "c1"}),
    ("check", "timeout", 0.5, {"Timeout": "500ms"}),
    ("check", "interval", 20, {"Interval": "20s"}),
    ("check", "status", "passing", {"Status": "passing"}),
    ("check", "notes", "x", {"Notes": "x"}),
    ("check", "service_id", "web", {"ServiceID": "web"}),
    ("check", "deregister_after", 90, {"DeregisterCriticalServiceAfter": "90s"}),
    ("check by ttl", "timeout", 0.5, {"Timeout": "500ms"}),
    ("check by ttl", "interval", 20, {"Interval": "20s"}),
    ("check by ttl", "ttl", 40, {"TTL": "40s"}),
    ("check by ttl", "deregister_after", 90, {"DeregisterCriticalServiceAfter": "90s"}),
    ("service", "id", "web1", {"ID": "web1"}),
    ("service", "address", "a", {"Address": "a"}),
    ("service", "port", 80, {"Port": 80}),
    ("service", "tags", ["t"], {"Tags": ["t"]}),
    ("service", "meta", {"k": "v"}, {"Meta": {"k": "v"}}),
    ("session", "ttl", 20, {"TTL": "20s"}),
    ("session", "lock_delay", 5, {"LockDelay": "5s"}),
    ("session", "behavior", "delete", {"Behavior": "delete"}),
    ("session", "node", "n2", {"Node": "n2"}),
    ("session", "name", "x", {"Name": "x"}),
    ("session", "node_checks", ["c1"], {"NodeChecks": ["c1"]}),
    ("session", "service_checks", ["c1"], {"ServiceChecks": [{"ID": "c1"}]}),
    ("registration", "node_id", SID, {"ID": SID}),
    ("registration", "node_meta", {"k": "v"}, {"NodeMeta": {"k": "v"}}),
    ("registration", "skip_node_update", True, {"SkipNodeUpdate": True}),
    ("query", "name", "x", {"Name": "x"}),
    ("query", "session", SID, {"Session": SID}),
    ("query", "tags", ["t"], {"Service": {"Service": "web", "Tags": ["t"]}}),
    ("query", "only_passing", True, {"Service": {"Service": "web", "OnlyPassing": True}}),
    ("query", "near", "_agent", {"Service": {"Service": "web", "Near": "_agent"}}),
]


@pytest.mark.parametrize(("name", "setting", "value", "adds"), ALONE)
def test_a_setting_says_one_thing_and_what_is_left_out_is_left_to_consul(
    name: str, setting: str, value: Any, adds: dict[str, Any]
) -> None:
    kind, least, call = DESCRIBED[name]
    without, with_it = (
        json.loads(call(kind(**given)).request.body or b"{}") for given in (least, least | {setting: value})
    )
    assert with_it == without | adds
    assert all(without.get(member) != added for member, added in adds.items())


def test_the_least_has_no_more_than_what_was_given() -> None:
    bodies = {
        name: json.loads(call(kind(**least)).request.body or b"{}")
        for name, (kind, least, call) in DESCRIBED.items()
    }
    assert bodies == {
        "check": {"Name": "c", "HTTP": "http://h/", "Interval": "10s"},
        "check by ttl": {"Name": "c", "TTL": "30s"},
        "service": {"Name": "web"},
        "session": {"TTL": "15s", "Behavior": "release", "NodeChecks": [], "ServiceChecks": []},
        "registration": {"Node": "n2", "Address": "a"},
        "query": {"Service": {"Service": "web"}},
    }


OVERSIZED = b"x" * (512 * 1024 + 1)

REFUSED = {
    "empty_key": (lambda: kv.get(""), InvalidKey),
    "bytes_as_key": (lambda: kv.get(b"k"), InvalidArgument),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "number_as_prefix": (lambda: kv.keys(1), InvalidArgument),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "no_session": (lambda: session.info(None), InvalidArgument),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "prefix_cleaned": (lambda: kv.delete_tree("a/../"), InvalidKey),
    "value_too_large": (lambda: kv.put("k", OVERSIZED), ValueTooLarge),
    "negative_cas": (lambda: kv.put("k", b"", cas=-1), InvalidArgument),
    "wide_flags": (lambda: kv.put("k", b"", flags=2**64), InvalidArgument),
    "boolean_flags": (lambda: kv.put("k", b"", flags=True), InvalidArgument),
    "number_as_value": (lambda: kv.put("k", 1), InvalidArgument),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "surrogate_value": (lambda: kv.put("k", "\ud800"), InvalidArgument),
    "empty_session": (lambda: kv.acquire("k", ""), InvalidArgument),
    "empty_session_id": (lambda: session.renew(""), InvalidArgument),
    "path_in_session_id": (lambda: session.renew("../kv/x"), InvalidArgument),
    "bad_status": (lambda: agent.update_check("c", "bogus"), InvalidArgument),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "bad_state": (lambda: health.state(""), InvalidArgument),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "watch_wait": (lambda: kv.watch("k", index=1, wait=0), InvalidArgument),
}


@pytest.mark.parametrize(("make", "kind"), REFUSED.values(), ids=REFUSED)
def test_refused_before_anything_is_sent(make: Any, kind: type[InvalidArgument]) -> None:
    with pytest.raises(kind):
        make()


def test_the_largest_value_is_taken() -> None:
    assert kv.put("k", OVERSIZED[1:]).request.body == OVERSIZED[1:]


NAMES = [
    *("ID", "Name", "Node", "TTL", "LockDelay", "Behavior"),
    *("NodeChecks", "ServiceChecks", "Checks", "CreateIndex", "ModifyIndex", "LockIndex"),
    *("Key", "Value", "Flags", "Session", "KV", "Results"),
    *("Errors", "OpIndex", "What", "Config", "NodeName", "Server"),
    *("Service", "Services", "Tags", "Meta", "CheckID"),
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 2**64 + 1)
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(["15s", "1h2m", "YQ==", "k", "p/a", SID, "release", "\ud800"])
)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=8)
    ),
    max_leaves=30,
)
BODIES = st.binary(max_size=60) | JSON_VALUES.map(lambda value: json.dumps(value).encode())
HEADERS = st.dictionaries(
    st.sampled_from(["x-consul-index", "x-consul-lastcontact", "x-consul-knownleader", "content-type"]),
    st.text(max_size=25) | st.integers().map(str),
    max_size=4,
)
STATUSES = st.sampled_from([200, 200, 200, 404, 409, 403, 500]) | st.integers(0, 999)


def refusal(call: Call[Any], response: Response) -> ConsulCoordError | None:
    """Return the error that a reply becomes, or None for an answer; any other exception is let through."""
    try:
        call.decode(response)
    except ConsulCoordError as error:
        return error
    return None


@given(case=st.sampled_from(list(CASES.values())), status=STATUSES, headers=HEADERS, body=BODIES)
def test_any_reply_gives_a_value_or_an_error_of_this_package(
    case: Case, status: int, headers: dict[str, str], body: bytes
) -> None:
    error = refusal(case.call(), Response(status, headers, body))
    assert error is None or str(error)


@pytest.mark.parametrize("field", ["ServiceName", "ServiceAddress", "ServiceTags", "ServiceMeta"])
def test_half_a_surrogate_pair_in_a_reply_is_a_fault_of_the_reply(field: str) -> None:
    half = "\ud800"
    values: dict[str, object] = {"ServiceTags": [half], "ServiceMeta": {"a": half}}
    reply = {"Node": "n", "ServiceName": "web", "ServiceID": "web", field: values.get(field, half)}
    error = refusal(catalog.service("web"), Response(200, {}, json.dumps([reply]).encode()))
    assert isinstance(error, DecodeError)
    assert "is not UTF-8" in str(error)


@pytest.mark.parametrize("field", ["Key", "Session"])
@pytest.mark.parametrize("is_txn", [False, True])
def test_half_a_surrogate_pair_in_a_key_is_a_fault_of_the_reply(field: str, *, is_txn: bool) -> None:
    pair = {"LockIndex": 0, "Key": "p/a", "Flags": 0, "Value": None, "CreateIndex": 5, "ModifyIndex": 5}
    pair[field] = "p/\ud800"
    call: Call[Any] = kv.txn(TxnOp.get_tree("p/")) if is_txn else kv.list_pairs("p/")
    reply = {"Results": [{"KV": pair}], "Errors": None} if is_txn else [pair]
    error = refusal(call, Response(200, {}, json.dumps(reply).encode()))
    assert isinstance(error, DecodeError)
    assert "is not UTF-8" in str(error)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize(
    "body",
    [b"", b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b"NaN", b"1e999", b"9" * 5000, b"\xff", b'"'],
)
def test_hostile_bodies(case: Case, body: bytes) -> None:
    for code in (200, 404, 409, 500):
        error = refusal(case.call(), Response(code, {}, body))
        assert error is None or case.path in str(error)
