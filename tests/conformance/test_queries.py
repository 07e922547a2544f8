"""Prepared queries that are executed, events, coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.target import Target

INSTANCES: dict[str, dict[str, Any]] = {
    "a": {"Tags": ["v1"], "Meta": {"ver": "1"}},
    "b": {"Tags": ["v2", "X"], "rack": "2"},
    "c": {"Tags": [], "status": "warning"},
    "d": {"Tags": ["v1"], "status": "critical"},
}


@pytest.fixture
def service(target: Target) -> Iterator[str]:
    """The name of a service with an instance for each row of INSTANCES."""
    name = f"q-{target.unique}"
    for each, row in INSTANCES.items():
        node = f"{each}-{target.unique}"
        body = {
            "Node": node,
            "Address": "10.0.0.2",
            "NodeMeta": {"rack": row.get("rack", "1")},
            "Service": {"ID": each, "Service": name, "Tags": row["Tags"], "Meta": row.get("Meta", {})},
            "Check": {"CheckID": "h", "Status": row.get("status", "passing"), "ServiceID": each},
        }
        assert target.put("/v1/catalog/register", body).json
    yield name
    for each in INSTANCES:
        target.put("/v1/catalog/deregister", {"Node": f"{each}-{target.unique}"})


def create(target: Target, **fields: object) -> str:
    created: str = target.ask("POST", "/v1/query", {"Name": f"query-{target.unique}", **fields}).json["ID"]
    return created


def found(target: Target, query: str) -> str:
    """Execute a query and return the ids that it finds, in order."""
    return "".join(sorted(node["Service"]["ID"] for node in target.get(f"/v1/query/{query}").json["Nodes"]))


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({}, "abc"),
        ({"OnlyPassing": True}, "ab"),
        ({"IgnoreCheckIDs": ["h"]}, "abcd"),
        ({"Tags": ["V1"]}, "a"),
        ({"Tags": ["!v1", "x"]}, "b"),
        ({"NodeMeta": {"rack": "2"}}, "b"),
        ({"ServiceMeta": {"ver": "1"}}, "a"),
        ({"Connect": True}, ""),
        ({"Near": "_agent"}, "abc"),
    ],
    ids=str,
)
def test_a_query_is_executed(target: Target, service: str, wanted: dict[str, Any], ids: str) -> None:
    query = create(target, Service={"Service": service, **wanted}, DNS={"TTL": "10s"})
    assert found(target, f"{query}/execute") == ids
    assert found(target, f"query-{target.unique}/execute") == ids
    answer = target.get(f"/v1/query/{query}/execute?index=99999").json  # which waits for nothing
    head = {name: answer[name] for name in ("Service", "DNS", "Datacenter", "Failovers")}
    assert head == {"Service": service, "DNS": {"TTL": "10s"}, "Datacenter": "dc1", "Failovers": 0}
    assert len(target.get(f"/v1/query/{query}/execute?limit=1").json["Nodes"]) == min(1, len(ids))
    target.delete(f"/v1/query/{query}")
    assert target.get(f"/v1/query/{query}/execute").status == 404


def test_a_template_answers_for_names(target: Target, service: str) -> None:
    name = f"query-{target.unique}"
    template = {"Type": "name_prefix_match", "Regexp": "^query-.*?-to-(.*)$"}
    query = create(target, Template=template, Service={"Service": "${match(1)}", "Tags": ["${match(2)}v1"]})
    assert found(target, f"{name}-to-{service}/execute") == "a"
    explained = target.get(f"/v1/query/{name}-to-{service}/explain").json["Query"]
    assert (explained["ID"], explained["Service"]["Service"]) == (query, service)
    by_id = target.get(f"/v1/query/{query}/execute")
    told = "prepared query templates can only be resolved up by name, not by ID"
    assert (by_id.status, target.says(by_id.text, told)) == (500, True)
    target.delete(f"/v1/query/{query}")


def test_of_several_templates_the_one_of_the_longest_name_answers(target: Target) -> None:
    name = f"query-{target.unique}"
    queries = {
        prefix: create(
            target,
            Name=prefix,
            Template={"Type": "name_prefix_match"},
            Service={"Service": "${name.full}"},
        )
        for prefix in (f"{name}-to-", name, f"{name}-to")
    }
    asked = {f"{name}-to-web": f"{name}-to-", f"{name}-to": f"{name}-to", f"{name}-t": name}
    for asked_for, answers in asked.items():
        explained = target.get(f"/v1/query/{asked_for}/explain").json["Query"]
        assert (explained["ID"], explained["Service"]["Service"]) == (queries[answers], asked_for)
    for query in queries.values():
        target.delete(f"/v1/query/{query}")


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"DNS": {"TTL": "x"}}, 500, "Invalid prepared query: Bad DNS TTL 'x': time: invalid duration \"x\""),
        ({"DNS": {"TTL": "-1s"}}, 500, "Invalid prepared query: DNS TTL '-1000000000', must be >=0"),
        ({"Service": {"Service": "a", "Failover": {"NearestN": -1}}}, 500, "Bad NearestN '-1', must be >= 0"),
        ({"Service": {"Service": "a", "Namespace": "x"}}, 400, 'json: unknown field "Namespace"'),
        ({"Template": {"Type": "bogus"}}, 500, "failed compiling template: Bad Template.Type 'bogus'"),
        (
            {"Template": {"Type": "name_prefix_match", "Regexp": "("}},
            500,
            "failed compiling template: Bad Regexp: error parsing regexp: missing closing ): `(`",
        ),
        (
            {"Template": {"Type": "name_prefix_match"}, "Service": {"Service": "${name.bogus}"}},
            500,
            "'${name.bogus}' in Service.Service: 1:3: unknown variable accessed: name.bogus",
        ),
    ],
    ids=str,
)
def test_a_query_that_is_refused(target: Target, fields: dict[str, Any], status: int, text: str) -> None:
    body = {"Name": f"query-{target.unique}", "Service": {"Service": "web"}, **fields}
    answer = target.ask("POST", "/v1/query", body)
    if target.is_1_8:
        assert (answer.status, text in answer.text) == (status, True), answer.text
    else:
        assert answer.status in (status, 200)


def test_events_are_kept_by_the_nodes_that_they_concern(target: Target) -> None:
    name = f"event-{target.unique}"
    fired = target.put(f"/v1/event/fire/{name}", b"pay").json
    assert (fired["Name"], fired["Payload"], fired["Version"]) == (name, "cGF5", 1)
    target.put(f"/v1/event/fire/{name}?node=elsewhere", b"")
    target.put(f"/v1/event/fire/{name}?service=none", b"")
    answer = target.get(f"/v1/event/list?name={name}")
    while not answer.json:
        answer = target.get(f"/v1/event/list?name={name}&index={answer.index}&wait=5s")
    assert [event["ID"] for event in answer.json] == [fired["ID"]]
    half = fired["ID"].replace("-", "")
    assert answer.index == int(half[:16], 16) ^ int(half[16:], 16)
    refused = target.put("/v1/event/fire/x?tag=t")
    assert (refused.status, refused.text) == (500, "Cannot provide tag filter without service filter")
    assert target.put("/v1/event/fire/").status == 400


def test_coordinates(target: Target) -> None:
    (area,) = target.get("/v1/coordinate/datacenters").json
    assert (area["Datacenter"], area["AreaID"], len(area["Coordinates"])) == ("dc1", "wan", 1)
    assert target.get("/v1/coordinate/nodes").status == 200
    assert target.get("/v1/coordinate/node/none").status == 404
