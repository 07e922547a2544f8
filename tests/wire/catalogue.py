"""Every endpoint of the client: the call, the request that it must become, and what Consul 1.8.7 answers.

Bodies are the agent's own, as it was seen to send them, with made-up names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from consul_coord.http.messages import Retry
from consul_coord.models import (
    LOCK_FLAGS,
    AgentInfo,
    CatalogNode,
    CheckSpec,
    HealthCheck,
    KVPair,
    Node,
    PreparedQuery,
    QueryResult,
    Registration,
    Result,
    Service,
    ServiceInstance,
    Session,
    SessionSpec,
    TxnOp,
)
from tests.wire.agents import Reply, told

if TYPE_CHECKING:
    from collections.abc import Callable

SID: Final = "adf4238a-882b-9ddc-4a9d-5b6758e4159e"
META: Final = {
    "Vary": "Accept-Encoding",
    "X-Consul-Index": "12",
    "X-Consul-Knownleader": "true",
    "X-Consul-Lastcontact": "0",
}
NEWER_META: Final = META | {
    "X-Consul-Default-Acl-Policy": "allow",
    "X-Consul-Query-Backend": "blocking-query",
    "X-Consul-Results-Filtered-By-Acls": "true",
    "X-Future": "x" * 1000,
}

Body = Literal["json", "bytes", "nothing"]
"""What a success carries."""


@dataclass(frozen=True)
class Endpoint:
    call: Callable[[Any], Any]
    """Makes the call with a client."""
    line: str
    body: bytes | None
    """None for a request without a body."""
    reply: Reply
    value: object
    retry: Retry = Retry.READ
    needed: tuple[str, ...] = ()
    carries: Body = "json"
    absent: bool = False
    """Whether 404 is one of its answers."""

    @property
    def method(self) -> str:
        return self.line.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.line.partition(" ")[2].partition("?")[0]


def read(
    call: Callable[[Any], Any], target: str, answer: object, value: object, *needed: str, **rest: Any
) -> Endpoint:
    """Return a row for a GET whose reply has the index headers."""
    result = Result(value, 12, known_leader=True, last_contact=0.0)
    return Endpoint(call, f"GET {target}", None, told(answer, META), result, needed=needed, **rest)


def write(
    call: Callable[[Any], Any], line: str, body: bytes | None, answer: object, needed: str, **rest: Any
) -> Endpoint:
    """Return a row for a write, whose reply has none; its value is the answer unless told otherwise."""
    settings: dict[str, Any] = {"value": answer, "retry": Retry.IDEMPOTENT} | rest
    return Endpoint(call, line, body, told(answer), needed=(needed,), **settings)


def check(call: Callable[[Any], Any], target: str, body: bytes = b"") -> Endpoint:
    """Return a row for a write to the agent's checks, which is answered by an empty body."""
    needed = "node:write on the agent's own node, or service:write on the check's service"
    line = f"PUT /v1/agent/check/{target}"
    return Endpoint(call, line, body, Reply(), None, Retry.IDEMPOTENT, (needed,), "nothing")


KEY = {
    "LockIndex": 1,
    "Key": "jobs/a b",
    "Flags": LOCK_FLAGS,
    "Value": "AP8=",
    "Session": SID,
    "CreateIndex": 9,
    "ModifyIndex": 11,
}
PAIR = KVPair("jobs/a b", b"\x00\xff", LOCK_FLAGS, SID, create_index=9, modify_index=11, lock_index=1)
BARE_KEY = {"LockIndex": 0, "Key": "jobs/c", "Flags": 0, "Value": None, "CreateIndex": 12, "ModifyIndex": 12}
BARE_PAIR = KVPair("jobs/c", create_index=12, modify_index=12)
WRITES_KEY: Final = 'key:write on "jobs/a b"'

KV_ENDPOINTS = {
    "kv.get": read(
        lambda c: c.kv.get("jobs/a b"),
        "/v1/kv/jobs/a%20b",
        [KEY],
        PAIR,
        'key:read on "jobs/a b"',
        absent=True,
    ),
    "kv.get_raw": Endpoint(
        lambda c: c.kv.get_raw("jobs/a b"),
        "GET /v1/kv/jobs/a%20b?raw",
        None,
        Reply(200, b"\x00\xff", META | {"Content-Type": "text/plain", "Content-Security-Policy": "sandbox"}),
        Result(b"\x00\xff", 12, known_leader=True, last_contact=0.0),
        needed=('key:read on "jobs/a b"',),
        carries="bytes",
        absent=True,
    ),
    "kv.list": read(
        lambda c: c.kv.list("jobs/"),
        "/v1/kv/jobs/?recurse",
        [KEY, BARE_KEY],
        (PAIR, BARE_PAIR),
        'key:read on the prefix "jobs/"',
        absent=True,
    ),
    "kv.keys": read(
        lambda c: c.kv.keys("jobs/", separator="/"),
        "/v1/kv/jobs/?keys&separator=%2F",
        ["jobs/a b", "jobs/x/"],
        ("jobs/a b", "jobs/x/"),
        'key:list on the prefix "jobs/"',
        absent=True,
    ),
    "kv.put": write(
        lambda c: c.kv.put("jobs/a b", "é", flags=LOCK_FLAGS),
        f"PUT /v1/kv/jobs/a%20b?flags={LOCK_FLAGS}",
        b"\xc3\xa9",
        True,
        WRITES_KEY,
    ),
    "kv.put, cas": write(
        lambda c: c.kv.put("jobs/a b", b"", cas=0),
        "PUT /v1/kv/jobs/a%20b?cas=0",
        b"",
        False,
        WRITES_KEY,
        retry=Retry.NEVER,
    ),
    "kv.delete": write(lambda c: c.kv.delete("jobs/a b"), "DELETE /v1/kv/jobs/a%20b", None, True, WRITES_KEY),
    "kv.delete, cas": write(
        lambda c: c.kv.delete("jobs/a b", cas=11),
        "DELETE /v1/kv/jobs/a%20b?cas=11",
        None,
        False,
        WRITES_KEY,
        retry=Retry.NEVER,
    ),
    "kv.delete_tree": write(
        lambda c: c.kv.delete_tree("jobs/"),
        "DELETE /v1/kv/jobs/?recurse",
        None,
        True,
        'key:write on the prefix "jobs/"',
    ),
    "kv.acquire": write(
        lambda c: c.kv.acquire("jobs/a b", SID, value=b"me", flags=7),
        f"PUT /v1/kv/jobs/a%20b?acquire={SID}&flags=7",
        b"me",
        True,
        WRITES_KEY,
    ),
    "kv.release": write(
        lambda c: c.kv.release("jobs/a b", SID),
        f"PUT /v1/kv/jobs/a%20b?release={SID}",
        b"",
        False,
        WRITES_KEY,
    ),
}

SESSION_BODY = {
    "ID": SID,
    "Name": "jobs",
    "Node": "n1",
    "LockDelay": 15_000_000_000,
    "Behavior": "release",
    "TTL": "1m30s",
    "NodeChecks": ["serfHealth"],
    "ServiceChecks": None,
    "CreateIndex": 8,
    "ModifyIndex": 8,
}
SESSION = Session(SID, "jobs", "n1", ttl=90.0, node_checks=("serfHealth",), create_index=8)
READS_SESSION: Final = "session:read on the session's node"
WRITES_SESSION: Final = "session:write on the session's node"

SESSION_ENDPOINTS = {
    "session.create": write(
        lambda c: c.session.create(SessionSpec(ttl=90, lock_delay=0, name="jobs", allow_unbounded=True)),
        "PUT /v1/session/create",
        b'{"Name":"jobs","LockDelay":"0s","Behavior":"release","TTL":"90s","NodeChecks":[],"ServiceChecks":[]}',
        {"ID": SID},
        "session:write on the agent's own node",
        value=SID,
        retry=Retry.NEVER,
    ),
    "session.destroy": write(
        lambda c: c.session.destroy(SID), f"PUT /v1/session/destroy/{SID}", b"", True, WRITES_SESSION
    ),
    "session.renew": write(
        lambda c: c.session.renew(SID),
        f"PUT /v1/session/renew/{SID}",
        b"",
        [SESSION_BODY],
        WRITES_SESSION,
        value=SESSION,
    ),
    "session.info": read(
        lambda c: c.session.info(SID), f"/v1/session/info/{SID}", [SESSION_BODY], SESSION, READS_SESSION
    ),
    "session.list": read(
        lambda c: c.session.list(), "/v1/session/list", [SESSION_BODY], (SESSION,), READS_SESSION
    ),
    "session.node": read(
        lambda c: c.session.node("n1"), "/v1/session/node/n1", [], (), 'session:read on node "n1"'
    ),
}

CHECK_BODY = {
    "Node": "n1",
    "CheckID": "c1",
    "Name": "ready",
    "Status": "passing",
    "Notes": "",
    "Output": "fine",
    "ServiceID": "",
    "ServiceName": "",
    "ServiceTags": [],
    "Type": "ttl",
    "Definition": {},
    "CreateIndex": 5,
    "ModifyIndex": 6,
}
CHECK = HealthCheck("c1", "ready", "n1", "passing", output="fine", create_index=5, modify_index=6)
NODE_BODY = {
    "ID": SID,
    "Node": "n1",
    "Address": "127.0.0.1",
    "Datacenter": "dc1",
    "TaggedAddresses": {"lan": "127.0.0.1", "wan": "127.0.0.1"},
    "Meta": {"consul-network-segment": ""},
    "CreateIndex": 5,
    "ModifyIndex": 6,
}
NODE = Node("n1", "127.0.0.1", SID, "dc1", {"consul-network-segment": ""}, create_index=5, modify_index=6)
SERVICE_BODY = {
    "ID": "web1",
    "Service": "web",
    "Tags": ["a"],
    "Address": "",
    "Meta": None,
    "Port": 80,
    "Weights": {"Passing": 1, "Warning": 1},
    "EnableTagOverride": False,
    "CreateIndex": 7,
    "ModifyIndex": 7,
}
QUERY_BODY = {
    "ID": SID,
    "Name": "q",
    "Session": SID,
    "Token": "",
    "Template": {"Type": "", "Regexp": "", "RemoveEmptyTags": False},
    "Service": {"Service": "web", "Failover": {"NearestN": 0}, "OnlyPassing": True, "Near": "", "Tags": None},
    "DNS": {"TTL": ""},
    "CreateIndex": 13,
    "ModifyIndex": 13,
}
QUERY = PreparedQuery(service="web", name="q", session=SID, id=SID, only_passing=True)

AGENT_ENDPOINTS = {
    "agent.info": read(
        lambda c: c.agent.info(),
        "/v1/agent/self",
        {
            "Config": {
                "Datacenter": "dc1",
                "NodeName": "n1",
                "NodeID": SID,
                "Revision": "",
                "Server": True,
                "Version": "1.8.7",
            },
            "DebugConfig": {},
            "Coord": None,
            "Member": {"Name": "n1", "Port": 8301},
            "Stats": {},
            "Meta": {},
        },
        AgentInfo("n1", "dc1", SID, "1.8.7", server=True),
        "agent:read on the agent's own node",
    ),
    "agent.checks": read(
        lambda c: c.agent.checks(),
        "/v1/agent/checks",
        {"c1": CHECK_BODY},
        {"c1": CHECK},
        "node:read on the agent's own node",
    ),
    "agent.register_check": check(
        lambda c: c.agent.register_check(CheckSpec(name="ready", id="c1", ttl=30, status="passing")),
        "register",
        b'{"ID":"c1","Name":"ready","Status":"passing","TTL":"30s"}',
    ),
    "agent.deregister_check": check(
        lambda c: c.agent.deregister_check("service:web"), "deregister/service%3Aweb"
    ),
    "agent.pass_check": check(lambda c: c.agent.pass_check("c1"), "pass/c1"),
    "agent.warn_check": check(
        lambda c: c.agent.warn_check("c1", note="hot & wet"), "warn/c1?note=hot%20%26%20wet"
    ),
    "agent.fail_check": check(lambda c: c.agent.fail_check("c1"), "fail/c1"),
    "agent.update_check": check(
        lambda c: c.agent.update_check("c1", "warning", output="o"),
        "update/c1",
        b'{"Status":"warning","Output":"o"}',
    ),
}

SERVICE = Service("web", "web1", port=80, tags=("a",))
AGENT_SERVICES = {
    "agent.register_service": Endpoint(
        lambda c: c.agent.register_service(SERVICE, checks=[CheckSpec(name="up", ttl=10)]),
        "PUT /v1/agent/service/register?replace-existing-checks=true",
        b'{"ID":"web1","Name":"web","Port":80,"Tags":["a"],"Checks":[{"Name":"up","TTL":"10s"}]}',
        Reply(),
        None,
        Retry.IDEMPOTENT,
        ('service:write on "web"',),
        "nothing",
    ),
    "agent.deregister_service": Endpoint(
        lambda c: c.agent.deregister_service("web1"),
        "PUT /v1/agent/service/deregister/web1",
        b"",
        Reply(),
        None,
        Retry.IDEMPOTENT,
        ('service:write on "web1"',),
        "nothing",
    ),
}

OTHER_ENDPOINTS = {
    "catalog.nodes": read(
        lambda c: c.catalog.nodes(), "/v1/catalog/nodes", [NODE_BODY], (NODE,), "node:read on the nodes"
    ),
    "catalog.node": read(
        lambda c: c.catalog.node("n1"),
        "/v1/catalog/node/n1",
        {"Node": NODE_BODY, "Services": {"web1": SERVICE_BODY}},
        CatalogNode(NODE, (Service("web", "web1", port=80, tags=("a",)),)),
        'node:read on node "n1"',
    ),
    "catalog.service": read(
        lambda c: c.catalog.service("web"),
        "/v1/catalog/service/web",
        [
            {
                **{name: NODE_BODY[name] for name in ("ID", "Node", "Address", "Datacenter")},
                "NodeMeta": NODE_BODY["Meta"],
                **{f"Service{name}": value for name, value in SERVICE_BODY.items() if name != "Service"},
                "ServiceName": SERVICE_BODY["Service"],
            }
        ],
        (ServiceInstance(replace(NODE, create_index=0, modify_index=0), SERVICE),),
        'service:read on "web"',
        "node:read on the nodes",
    ),
    "catalog.register": write(
        lambda c: c.catalog.register(Registration(node="n2", address="10.0.0.2")),
        "PUT /v1/catalog/register",
        b'{"Node":"n2","Address":"10.0.0.2"}',
        True,
        'node:write on node "n2"',
    ),
    "catalog.deregister": write(
        lambda c: c.catalog.deregister("n2", check_id="c1"),
        "PUT /v1/catalog/deregister",
        b'{"Node":"n2","CheckID":"c1"}',
        True,
        'node:write on node "n2"',
    ),
    "health.node": read(
        lambda c: c.health.node("n1"), "/v1/health/node/n1", [CHECK_BODY], (CHECK,), 'node:read on node "n1"'
    ),
    "health.state": read(
        lambda c: c.health.state("any"),
        "/v1/health/state/any",
        [CHECK_BODY],
        (CHECK,),
        "node:read on the nodes",
    ),
    "health.service": read(
        lambda c: c.health.service("web", passing=True, tag="a b"),
        "/v1/health/service/web?passing&tag=a%20b",
        [{"Node": NODE_BODY, "Service": SERVICE_BODY, "Checks": [CHECK_BODY]}],
        (ServiceInstance(NODE, SERVICE, (CHECK,)),),
        'service:read on "web"',
        "node:read on the nodes",
    ),
    "query.execute": read(
        lambda c: c.query.execute("q", limit=2),
        "/v1/query/q/execute?limit=2",
        {
            "Service": "web",
            "Nodes": [{"Node": NODE_BODY, "Service": SERVICE_BODY, "Checks": None}],
            "DNS": {"TTL": ""},
            "Datacenter": "dc1",
            "Failovers": 0,
        },
        QueryResult("web", (ServiceInstance(NODE, SERVICE),), "dc1"),
        "service:read on its service",
        "node:read on the nodes",
        absent=True,
    ),
    "query.create": write(
        lambda c: c.query.create(PreparedQuery(service="web", name="q", session=SID)),
        "POST /v1/query",
        f'{{"Name":"q","Session":"{SID}","Service":{{"Service":"web"}}}}'.encode(),
        {"ID": SID},
        'query:write on "q"',
        value=SID,
        retry=Retry.NEVER,
    ),
    "query.get": read(
        lambda c: c.query.get(SID),
        f"/v1/query/{SID}",
        [QUERY_BODY],
        QUERY,
        "query:read on its name",
        absent=True,
    ),
    "query.list": read(
        lambda c: c.query.list(), "/v1/query", [QUERY_BODY], (QUERY,), "query:read on their names"
    ),
    "query.delete": Endpoint(
        lambda c: c.query.delete(SID),
        f"DELETE /v1/query/{SID}",
        None,
        Reply(),
        None,
        Retry.IDEMPOTENT,
        ("query:write on its name",),
        "nothing",
    ),
    "status.leader": Endpoint(
        lambda c: c.status.leader(),
        "GET /v1/status/leader",
        None,
        told("127.0.0.1:8300"),
        "127.0.0.1:8300",
    ),
    "status.peers": Endpoint(
        lambda c: c.status.peers(),
        "GET /v1/status/peers",
        None,
        told(["127.0.0.1:8300"]),
        ("127.0.0.1:8300",),
    ),
}


def results(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the call of a transaction, with its results by operation as its value."""
    return lambda client: tuple(call(client))


WRITTEN = KEY | {"Value": None}
TXN_ENDPOINTS = {
    "txn": write(
        results(lambda c: c.txn(TxnOp.lock("jobs/a b", SID, value=b"me"), TxnOp.delete("x"))),
        "PUT /v1/txn",
        f'[{{"KV":{{"Verb":"lock","Key":"jobs/a b","Value":"bWU=","Session":"{SID}"}}}},'.encode()
        + b'{"KV":{"Verb":"delete","Key":"x"}}]',
        {"Results": [{"KV": WRITTEN}], "Errors": None},
        WRITES_KEY,
        value=((KVPair("jobs/a b", b"", LOCK_FLAGS, SID, 9, 11, 1),), ()),
        retry=Retry.NEVER,
    ),
    "txn that reads": write(
        results(lambda c: c.txn(TxnOp.get("jobs/a b"), TxnOp.get_tree("jobs/"))),
        "PUT /v1/txn",
        b'[{"KV":{"Verb":"get","Key":"jobs/a b"}},{"KV":{"Verb":"get-tree","Key":"jobs/"}}]',
        {
            "Results": [{"KV": KEY}, {"KV": KEY}, {"KV": BARE_KEY}],
            "Errors": None,
            "Index": 0,
            "LastContact": 0,
            "KnownLeader": True,
            "ConsistencyLevel": "",
        },
        'key:read on "jobs/a b"',
        value=((PAIR,), (PAIR, BARE_PAIR)),
        retry=Retry.READ,
    ),
}

ENDPOINTS = (
    KV_ENDPOINTS | SESSION_ENDPOINTS | AGENT_ENDPOINTS | AGENT_SERVICES | OTHER_ENDPOINTS | TXN_ENDPOINTS
)

# An object with one of these fields has a shape of its own; any other maps names that are up to users.
_FIELDS = {"ID", "Key", "KV", "Node", "CheckID", "Service", "NodeName", "Config", "Results"}


def newer(reply: Reply) -> Reply:
    """Return a success as a later release may send it: with fields and headers nobody here knows."""
    headers = {**reply.headers, **NEWER_META} if "X-Consul-Index" in reply.headers else dict(reply.headers)
    if headers.get("Content-Type") != "application/json":
        return Reply(reply.status, reply.body, headers)
    return told(_with_more(json.loads(reply.body)), headers)


def _with_more(value: object) -> object:
    if isinstance(value, list):
        return [_with_more(each) for each in value]
    if not isinstance(value, dict):
        return value
    more = {"Future": {"A": [None, 1.5, {"B": "c"}]}} if _FIELDS & value.keys() else {}
    return {name: _with_more(each) for name, each in value.items()} | more
