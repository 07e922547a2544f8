"""Around sessions: catalog, health, the agent's checks, prepared queries."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.target import UNKNOWN, Target, until

DEADLINE = 30.0
CHECK_FIELDS = [
    "Node",
    "CheckID",
    "Name",
    "Status",
    "Notes",
    "Output",
    "ServiceID",
    "ServiceName",
    "ServiceTags",
    "Type",
    "Definition",
    "CreateIndex",
    "ModifyIndex",
]


def fields(shown: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: shown[name] for name in names}


def test_a_node_its_service_and_its_check(target: Target) -> None:
    node = f"n-{target.unique}"
    body = {
        "Node": node,
        "Address": "10.0.0.2",
        "NodeMeta": {"a": "b"},
        "TaggedAddresses": {"wan": "10.0.0.3"},
        "Service": {"Service": "web", "Port": 80, "Tags": ["x"]},
        "Checks": [{"Name": "c1"}, {"CheckID": "c2", "Name": "two", "Status": "passing", "ServiceID": "web"}],
    }
    assert target.put("/v1/catalog/register", body).json is True
    shown = target.get(f"/v1/catalog/node/{node}").json
    index = shown["Node"].pop("ModifyIndex")
    expected_node = {
        "ID": "",
        "Node": node,
        "Address": "10.0.0.2",
        "Datacenter": "dc1",
        "TaggedAddresses": {"wan": "10.0.0.3"},
        "Meta": {"a": "b"},
        "CreateIndex": index,
    }
    assert target.shows(shown["Node"], expected_node)
    expected_service = {
        "ID": "web",
        "Service": "web",
        "Tags": ["x"],
        "Address": "",
        "Meta": None,
        "Port": 80,
        "Weights": {"Passing": 1, "Warning": 1},
        "EnableTagOverride": False,
        "Proxy": {"MeshGateway": {}, "Expose": {}},
        "Connect": {},
        "CreateIndex": index,
        "ModifyIndex": index,
    }
    assert target.shows(shown["Services"]["web"], expected_service)
    checks = target.get(f"/v1/health/node/{node}").json
    for check in checks:
        known = [name for name in check if name in CHECK_FIELDS]
        assert (list(check) if target.is_1_8 else known) == CHECK_FIELDS
    assert [fields(c, "CheckID", "Name", "Status", "ServiceName", "ServiceTags") for c in checks] == [
        {"CheckID": "c1", "Name": "c1", "Status": "critical", "ServiceName": "", "ServiceTags": []},
        {"CheckID": "c2", "Name": "two", "Status": "passing", "ServiceName": "web", "ServiceTags": ["x"]},
    ]
    assert target.put("/v1/catalog/register", body).json is True
    assert target.get(f"/v1/health/node/{node}").json == checks
    target.put("/v1/catalog/deregister", {"Node": node, "ServiceID": "web"})
    assert [check["CheckID"] for check in target.get(f"/v1/health/node/{node}").json] == ["c1"]
    target.put("/v1/catalog/deregister", {"Node": node})
    assert target.get(f"/v1/catalog/node/{node}").json is None


REFUSED: list[tuple[tuple[str, str, object], int, str]] = [
    (("PUT", "/v1/catalog/register", {}), 500, "Must provide node"),
    (
        ("PUT", "/v1/catalog/register", {"Node": "x"}),
        500,
        "Must provide address if SkipNodeUpdate is not set",
    ),
    (("PUT", "/v1/catalog/register", b""), 400, "Request decode failed: EOF"),
    (
        ("PUT", "/v1/catalog/register", {"Node": "x", "Foo": 1}),
        400,
        'Request decode failed: json: unknown field "Foo"',
    ),
    (
        ("PUT", "/v1/catalog/register", {"Node": "x", "Address": "1", "Service": {"ID": "x"}}),
        500,
        "Must provide service name with ID",
    ),
    (
        ("PUT", "/v1/catalog/register", {"Node": "x", "Address": "1", "Datacenter": "dc9"}),
        500,
        "No path to datacenter",
    ),
    (
        ("PUT", "/v1/catalog/register", {"Node": "x", "Address": "1", "ID": "bad"}),
        500,
        "Bad node ID: uuid string is wrong length",
    ),
    (
        ("PUT", "/v1/catalog/register", {"Node": "x", "Address": "1", "Check": {"Node": "y", "Name": "c"}}),
        500,
        'check node "y" does not match node "x"',
    ),
    (("PUT", "/v1/catalog/deregister", {}), 500, "Must provide node"),
    (("PUT", "/v1/catalog/deregister", {"Node": "none"}), 200, "true"),
    (("GET", "/v1/catalog/node/none", b""), 200, "null"),
    (("GET", "/v1/catalog/node/", b""), 400, "Missing node name"),
    (("GET", "/v1/catalog/datacenters?pretty", b""), 200, '[\n    "dc1"\n]'),
    (("GET", "/v1/health/node/none", b""), 200, "[]"),
    (("GET", "/v1/health/node/", b""), 400, "Missing node name"),
    (("GET", "/v1/health/state/bogus", b""), 200, "[]"),
    (("GET", "/v1/health/state/", b""), 400, "Missing check state"),
    (("PUT", "/v1/agent/check/register", {"TTL": "30s"}), 400, "Missing check name"),
    (
        ("PUT", "/v1/agent/check/register", {"Name": "t"}),
        400,
        "Invalid check: TTL must be > 0 for TTL checks",
    ),
    (("PUT", "/v1/agent/check/register", {"Name": "t", "TTL": "3s", "Status": "x"}), 400, "Bad check status"),
    (
        ("PUT", "/v1/agent/check/register", {"Name": "t", "TTL": "3s", "CheckID": "x"}),
        400,
        'Request decode failed: json: unknown field "CheckID"',
    ),
    (
        ("PUT", "/v1/agent/check/register", {"Name": "t", "TTL": "abc"}),
        400,
        'Request decode failed: time: invalid duration "abc"',
    ),
    (
        ("PUT", "/v1/agent/check/register", {"Name": "t", "TTL": "3s", "ServiceID": "nope"}),
        500,
        'ServiceID "nope" does not exist',
    ),
    (("PUT", "/v1/agent/check/update/none", {"Status": "bogus"}), 400, "Invalid check status: 'bogus'"),
    (("PUT", "/v1/agent/service/register", {}), 400, "Missing service name"),
    (("POST", "/v1/query", b""), 400, "Request decode failed: EOF"),
    (
        ("POST", "/v1/query", {"Service": {"Service": "web"}}),
        500,
        "Invalid prepared query: Must be bound to a session",
    ),
    (
        ("POST", "/v1/query", {"Name": "q", "Service": {}}),
        500,
        "Invalid prepared query: Must provide a Service name to query",
    ),
    (
        ("POST", "/v1/query", {"Session": UNKNOWN, "Service": {"Service": "web"}}),
        500,
        f'invalid session "{UNKNOWN}"',
    ),
    (
        ("POST", "/v1/query", {"Session": "abc", "Service": {"Service": "web"}}),
        500,
        "invalid session: index error: UUID must be 36 characters",
    ),
    (("GET", f"/v1/query/{UNKNOWN}", b""), 404, "Query not found"),
    (
        ("GET", "/v1/query/abc", b""),
        500,
        "failed prepared query lookup: index error: UUID must be 36 characters",
    ),
    (
        ("DELETE", f"/v1/query/{UNKNOWN}", b""),
        500,
        f"Cannot modify non-existent prepared query: '{UNKNOWN}'",
    ),
]


OTHER_STATUS = {'ServiceID "nope" does not exist': 404}
"""The status that 1.20.6 gives where it is another."""


@pytest.mark.parametrize(("call", "status", "text"), REFUSED, ids=[" ".join(map(str, r[0])) for r in REFUSED])
def test_refusals_and_kindnesses(
    target: Target, call: tuple[str, str, object], status: int, text: str
) -> None:
    answer = target.ask(*call)
    assert answer.status == status or (not target.is_1_8 and answer.status == OTHER_STATUS.get(text))
    assert target.says(answer.text.strip(), text)


@pytest.mark.parametrize(
    ("call", "status", "text"),
    [
        ("pass/none", 500, 'CheckID "none" does not have associated TTL'),
        ("warn/none", 500, 'CheckID "none" does not have associated TTL'),
        ("fail/none", 500, 'CheckID "none" does not have associated TTL'),
        ("deregister/none", 200, ""),
    ],
)
def test_an_unknown_check_of_the_agent(target: Target, call: str, status: int, text: str) -> None:
    answer = target.put(f"/v1/agent/check/{call}")
    if target.is_1_8:
        assert (answer.status, answer.text) == (status, text)
    else:  # sooner or later, all of them became this
        assert answer.status == status or (answer.status == 404 and "Unknown check ID" in answer.text)


def test_a_missing_service_is_named(target: Target) -> None:
    node = target.node_with_check("svc")
    body = {"Node": node, "SkipNodeUpdate": True, "Check": {"CheckID": "c9", "ServiceID": "nope"}}
    answer = target.put("/v1/catalog/register", body)
    what = f'failed inserting check: Missing service registration on node "{node}"'
    assert answer.status == 500
    assert target.says(answer.text, what)
    target.put("/v1/catalog/deregister", {"Node": node})


def until_status(target: Target, check: str, status: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while True:
        shown = target.get(f"/v1/health/node/{target.node}").json
        if any(c["CheckID"] == check and c["Status"] == status for c in shown):
            return
        assert time.monotonic() < deadline, f"{check} is not {status}"
        time.sleep(0.01)


@pytest.mark.parametrize("end", ["fail", "deregister", "timeout"])
def test_the_agents_ttl_checks(target: Target, end: str) -> None:
    check = f"c-{target.unique}"
    ttl = "700ms" if end == "timeout" else "30s"
    assert target.put("/v1/agent/check/register", {"Name": check, "TTL": ttl}).body == b""
    until_status(target, check, "critical")
    refused = target.put("/v1/session/create", {"NodeChecks": [check]})
    assert refused.status == 500
    assert target.says(refused.text, f"Check '{check}' is in critical state")
    target.put(f"/v1/agent/check/pass/{check}?note=fine")
    until_status(target, check, "passing")
    shown = target.get("/v1/agent/checks").json[check]
    assert fields(shown, "Status", "Output", "Type", "CreateIndex") == {
        "Status": "passing",
        "Output": "fine",
        "Type": "ttl",
        "CreateIndex": 0,
    }
    session = target.session(NodeChecks=[check])
    if end != "timeout":
        target.put(f"/v1/agent/check/warn/{check}")
        until_status(target, check, "warning")
        assert target.info(session)
        target.put(f"/v1/agent/check/{end}/{check}")
    until(lambda: not target.info(session))
    if end == "timeout":
        output = target.get("/v1/agent/checks").json[check]["Output"]
        assert output == "TTL expired (last output before timeout follows): fine"
    target.put(f"/v1/agent/check/deregister/{check}")


def test_a_service_with_its_check(target: Target) -> None:
    name = f"s-{target.unique}"
    body = {"Name": name, "Port": 81, "Check": {"TTL": "30s", "Status": "passing"}}
    assert target.put("/v1/agent/service/register", body).status == 200
    shown = target.get("/v1/agent/checks").json[f"service:{name}"]
    assert fields(shown, "Name", "ServiceID", "ServiceName", "Type", "Status") == {
        "Name": f"Service '{name}' check",
        "ServiceID": name,
        "ServiceName": name,
        "Type": "ttl",
        "Status": "passing",
    }
    shown = target.get("/v1/agent/services").json[name]
    expected = {
        "ID": name,
        "Service": name,
        "Tags": [],
        "Meta": {},
        "Port": 81,
        "Address": "",
        "Weights": {"Passing": 1, "Warning": 1},
        "EnableTagOverride": False,
    }
    assert target.shows(shown, expected)
    assert target.put(f"/v1/agent/service/deregister/{name}").status == 200
    assert f"service:{name}" not in target.get("/v1/agent/checks").json


def test_prepared_queries(target: Target) -> None:
    name = f"q-{target.unique}"
    body = {"Name": name, "Service": {"Service": "web", "Tags": ["a"]}, "DNS": {"TTL": "10s"}}
    created = target.ask("POST", "/v1/query", body).json["ID"]
    (shown,) = target.get(f"/v1/query/{created}").json
    index = shown["ModifyIndex"]
    expected = {
        "ID": created,
        "Name": name,
        "Session": "",
        "Token": "",
        "Template": {"Type": "", "Regexp": "", "RemoveEmptyTags": False},
        "Service": {
            "Service": "web",
            "Failover": {"NearestN": 0, "Datacenters": None},
            "OnlyPassing": False,
            "IgnoreCheckIDs": None,
            "Near": "",
            "Tags": ["a"],
            "NodeMeta": None,
            "ServiceMeta": None,
            "Connect": False,
        },
        "DNS": {"TTL": "10s"},
        "CreateIndex": index,
        "ModifyIndex": index,
    }
    assert target.shows(shown, expected)
    again = target.ask("POST", "/v1/query", body)
    assert again.status == 500
    assert target.says(again.text, f"name '{name}' aliases an existing query name")
    assert target.put(f"/v1/query/{created}", {"Name": f"{name}2", "Service": {"Service": "x"}}).body == b""
    assert target.get(f"/v1/query/{created}").json[0]["ModifyIndex"] > index
    assert target.delete(f"/v1/query/{created}").body == b""
    assert target.get(f"/v1/query/{created}").status == 404


def test_which_indexes_a_registration_moves(target: Target) -> None:
    node = target.node_with_check("idx")
    body = {"Node": node, "SkipNodeUpdate": True, "Service": {"Service": "web"}}
    target.put("/v1/catalog/register", body)
    health, catalog = f"/v1/health/node/{node}", f"/v1/catalog/node/{node}"
    before = target.get(health)
    check = {"CheckID": "c1", "Name": "c1", "Status": "passing"}
    target.put("/v1/catalog/register", {"Node": node, "SkipNodeUpdate": True, "Check": check})
    again = target.get(health)
    assert again.json == before.json
    # What says nothing new is no longer written in 1.20.6.
    assert again.index > before.index if target.is_1_8 else again.index >= before.index
    before = target.get(catalog)
    target.put("/v1/catalog/register", body)
    assert target.get(catalog).index == before.index
    target.put("/v1/catalog/deregister", {"Node": node, "ServiceID": "web"})
    assert target.get(health).index > again.index
    before = target.get(catalog)
    target.put("/v1/catalog/deregister", {"Node": node, "CheckID": "c1"})
    # In 1.20.6, a check moves no list of services.
    assert (
        target.get(catalog).index > before.index
        if target.is_1_8
        else target.get(catalog).index >= before.index
    )
    target.put("/v1/catalog/deregister", {"Node": node})
