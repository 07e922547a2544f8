"""What applications use beside locks: services, their checks, their health, filters, maintenance."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.conformance.target import Target, until


def instance(target: Target) -> dict[str, Any]:
    """Register a service with all that the catalog keeps, on a node of this test; return what was sent."""
    body: dict[str, Any] = {
        "Node": f"node-{target.unique}",
        "Address": "10.0.0.9",
        "NodeMeta": {"rack": "1"},
        "Service": {
            "ID": "api1",
            "Service": f"api-{target.unique}",
            "Port": 8080,
            "Tags": ["v1", "Blue"],
            "Meta": {"ver": "1"},
            "Weights": {"Passing": 5},
            "EnableTagOverride": True,
            "TaggedAddresses": {"lan": {"Address": "1.2.3.4", "Port": 5}},
            "Connect": {"Native": True},
        },
        "Checks": [
            {
                "CheckID": "h",
                "Name": "H",
                "Status": "passing",
                "ServiceID": "api1",
                "Definition": {"HTTP": "http://x", "Interval": "90s", "Header": {"a": ["b"]}},
            },
            {"CheckID": "n", "Name": "N", "Status": "warning"},
        ],
    }
    assert target.put("/v1/catalog/register", body).json is True
    return body


@pytest.fixture
def service(target: Target) -> Any:
    body = instance(target)
    yield body["Service"]["Service"]
    target.put("/v1/catalog/deregister", {"Node": body["Node"]})


def test_the_catalog_keeps_all_of_a_service(target: Target, service: str) -> None:
    (shown,) = target.get(f"/v1/catalog/service/{service}").json
    expected = {
        "Address": "10.0.0.9",
        "NodeMeta": {"rack": "1"},
        "ServiceKind": "",
        "ServiceID": "api1",
        "ServiceTags": ["v1", "Blue"],
        "ServiceTaggedAddresses": {"lan": {"Address": "1.2.3.4", "Port": 5}},
        "ServiceWeights": {"Passing": 5, "Warning": 0},
        "ServiceMeta": {"ver": "1"},
        "ServicePort": 8080,
        "ServiceEnableTagOverride": True,
        "ServiceConnect": {"Native": True},
    }
    assert target.shows({name: shown[name] for name in expected}, expected)
    assert target.get(f"/v1/catalog/connect/{service}").json == [shown]
    (listed,) = target.get(f"/v1/catalog/node-services/node-{target.unique}").json["Services"]
    assert target.shows(listed["TaggedAddresses"], expected["ServiceTaggedAddresses"])


def test_the_health_of_a_service(target: Target, service: str) -> None:
    (shown,) = target.get(f"/v1/health/service/{service}").json
    assert (shown["Node"]["Address"], shown["Service"]["Port"]) == ("10.0.0.9", 8080)
    node_check, own = shown["Checks"]
    assert (node_check["CheckID"], node_check["ServiceTags"]) == ("n", [])
    assert (own["Type"], own["ServiceName"], own["ServiceTags"]) == ("http", service, ["v1", "Blue"])
    assert target.shows(own["Definition"], {"Interval": "1m30s", "HTTP": "http://x", "Header": {"a": ["b"]}})
    assert target.get(f"/v1/health/connect/{service}").json == [shown]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", 1),
        ("?passing", 0),
        ("?passing=false", 1),
        ("?tag=v1&tag=BLUE", 1),
        ("?tag=v1&tag=red", 0),
        ("?tag=", 0),
        ("?node-meta=rack:1", 1),
        ("?node-meta=rack:2", 0),
        ("?node-meta=rack", 0),
        ("?near=_agent", 1),
        ("?filter=" + quote("Service.Meta.ver == 1 and Checks.Status == warning"), 1),
        ("?filter=" + quote('Service.Tags contains blue or Node.Node matches "^other"'), 0),
    ],
)
def test_a_read_has_what_was_asked_for(target: Target, service: str, query: str, found: int) -> None:
    assert len(target.get(f"/v1/health/service/{service}{query}").json) == found


FILTERS = [
    ("bogus", '1:6 (5): no match found, expected: "!=", ".", "==", "[", [ \\t\\r\\n] or [a-zA-Z0-9_]'),
    ("(Node.ID == x", '1:14 (13): rule "grouping": Unmatched parentheses'),
    ("Node.ID == 1a", '1:13 (12): rule "number": Invalid number literal'),
    ('Node.ID == "x', '1:14 (13): rule "string": Unterminated string literal'),
    ("Node.Meta[x] == 1", '1:11 (10): rule "index": Invalid index'),
    ("x in [", '1:6 (5): rule "match": Invalid selector'),
    ("Foo == 1", 'Selector "Foo" is not valid'),
    ("Service.CreateIndex == 1", 'Selector "Service.CreateIndex" is not valid'),
    ("Service.Tags == x", 'Invalid match operator "Equal" for selector "Service.Tags"'),
    (
        "Service.Port == x",
        (
            'Failed to coerce value "x" for selector "Service.Port": '
            'strconv.ParseInt: parsing "x": invalid syntax'
        ),
    ),
]


@pytest.mark.parametrize(("expression", "refusal"), FILTERS)
def test_a_bad_filter_is_refused(target: Target, expression: str, refusal: str) -> None:
    answer = target.get(f"/v1/health/service/none?filter={quote(expression)}")
    assert (answer.status, answer.text) == (
        500 if target.is_1_8 else answer.status,
        f"Failed to create boolean expression evaluator: {refusal}",
    )
    assert answer.status in (400, 500)


MATCHES = [
    "not Service.Port != 8080",
    "(Service.Port == 8080)",
    "Service.EnableTagOverride == t",
    "Service.TaggedAddresses.lan.Port == 5",
    "Service.Meta.none != x",
    "x not in Service.Meta",
    'Node.Meta["rack"] == `1`',
    'Service.ID matches "^a.i1$"',
    "api in Service.Service",
    'Service.Kind == "" and Checks is not empty',
    "Checks.Status != passing",
    "Service.Weights.Passing == 5 and Service.Connect.Native == true",
]


@pytest.mark.parametrize("expression", MATCHES)
def test_what_a_filter_means(target: Target, service: str, expression: str) -> None:
    assert len(target.get(f"/v1/health/service/{service}?filter={quote(expression)}").json) == 1
    negated = f"not ({expression})"
    assert target.get(f"/v1/health/service/{service}?filter={quote(negated)}").json == []


@pytest.mark.parametrize(
    ("path", "expression"),
    [
        ("/v1/catalog/nodes", "Node == none"),
        ("/v1/catalog/service/{}", "ServicePort == 1"),
        ("/v1/health/state/any", "CheckID == none"),
        ("/v1/health/checks/{}", "Name == none"),
        ("/v1/health/node/node-{unique}", "Name == none"),
        ("/v1/catalog/node-services/node-{unique}", "Service == none"),
        ("/v1/agent/services", "Service == none"),
        ("/v1/agent/checks", "Name == none"),
    ],
)
def test_every_list_takes_a_filter(target: Target, service: str, path: str, expression: str) -> None:
    shown = target.get(f"{path.format(service, unique=target.unique)}?filter={quote(expression)}").json
    assert (shown["Services"] if "node-services" in path else shown) in ([], {})


# The agent's own


@pytest.fixture
def own(target: Target) -> Any:
    """The name of a service of the agent, which goes with its checks when the test ends."""
    name = f"own-{target.unique}"
    yield name
    target.put(f"/v1/agent/service/deregister/{name}")


def checks_of(target: Target, own: str) -> dict[str, Any]:
    """Return the agent's checks of one of its services."""
    expression = quote(f'ServiceID == "{own}"')
    shown: dict[str, Any] = target.get(f"/v1/agent/checks?filter={expression}").json
    return shown


def register(target: Target, own: str, **fields: object) -> None:
    answer = target.put("/v1/agent/service/register", {"Name": own, **fields})
    assert (answer.status, answer.body) == (200, b"")


CHECK_FIELDS: dict[str, Any] = {
    "GRPCUseTLS": False,
    "TLSSkipVerify": True,
    "Body": "b",
    "Header": {"a": ["b"]},
    "Method": "PUT",
    "Shell": "sh",
    "OutputMaxSize": 10,
    "SuccessBeforePassing": 1,
    "FailuresBeforeCritical": 1,
    "DeregisterCriticalServiceAfter": "90m",
}


def test_a_service_of_the_agent(target: Target, own: str) -> None:
    register(
        target,
        own,
        Port=80,
        Address="10.0.0.1",
        tagged_addresses={"lan": {"address": "1.2.3.4", "port": 1}},
        enable_tag_override=True,
        Weights={"passing": 3, "warning": 2},
        Meta={"k": "v"},
        Check={"TTL": "30s", "Notes": "n", **CHECK_FIELDS},
    )
    answer = target.get(f"/v1/agent/service/{own}")
    expected = {
        "ID": own,
        "Service": own,
        "Tags": [],
        "Meta": {"k": "v"},
        "Port": 80,
        "Address": "10.0.0.1",
        "TaggedAddresses": {
            "lan": {"Address": "1.2.3.4", "Port": 1},
            "lan_ipv4": {"Address": "10.0.0.1", "Port": 80},
            "wan_ipv4": {"Address": "10.0.0.1", "Port": 80},
        },
        "Weights": {"Passing": 3, "Warning": 2},
        "EnableTagOverride": True,
        "ContentHash": answer.json["ContentHash"],
    }
    assert target.shows(answer.json, expected)
    assert answer.headers["X-Consul-ContentHash"] == answer.json["ContentHash"]
    target.put(f"/v1/agent/check/pass/service:{own}?note=0123456789abcdef")
    check = target.get("/v1/agent/checks").json[f"service:{own}"]
    assert (check["Status"], check["Notes"], check["Type"]) == ("passing", "n", "ttl")
    assert check["Output"] == "0123456789 ... (captured 10 of 16 bytes)"
    assert target.get("/v1/agent/service/none").text == "unknown service ID: none"


def test_a_check_bound_to_a_service_tells_its_name_and_tags(target: Target, own: str) -> None:
    register(target, own, Tags=["b", "a"])
    bound = {"Name": f"bound-{own}", "TTL": "30s", "service_id": own}
    assert target.put("/v1/agent/check/register", bound).status == 200
    check = target.get("/v1/agent/checks").json[f"bound-{own}"]
    assert (check["ServiceName"], check["ServiceTags"]) == (own, ["b", "a"])


def test_what_is_registered_again_keeps_its_status(target: Target, own: str) -> None:
    register(target, own, Check={"TTL": "60s"})
    target.put(f"/v1/agent/check/pass/service:{own}?note=hello")
    register(target, own, Check={"TTL": "60s", "Status": "critical"})
    check = target.get("/v1/agent/checks").json[f"service:{own}"]
    assert (check["Status"], check["Output"]) == ("passing", "hello")
    body = {"Name": own, "Checks": [{"TTL": "60s", "CheckID": f"other-{own}"}]}
    target.put("/v1/agent/service/register?replace-existing-checks", body)
    shown = checks_of(target, own)
    assert list(shown) == [f"other-{own}"]


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"Address": "0.0.0.0"}, 400, "Invalid service address"),
    ({"Address": "[::]"}, 400, "Invalid service address"),
    ({"Weights": {}}, 400, "Invalid Weights: Passing must be greater than 0"),
    (
        {"Meta": {"a b": "c"}},
        400,
        "Invalid Service Meta: Couldn't load metadata pair ('a b', 'c'): Key contains invalid characters",
    ),
    (
        {"Kind": "connect-proxy", "Proxy": {"DestinationServiceName": "web"}},
        400,
        "1 error occurred:\n\t* Port must be set for a Connect proxy",
    ),
    ({"Namespace": ""}, 400, 'Request decode failed: json: unknown field "Namespace"'),
    ({"Check": {"TTL": ""}}, 400, 'Request decode failed: time: invalid duration ""'),
    ({"Check": {"TTL": "9s", "Timeout": ""}}, 400, 'Request decode failed: time: invalid duration ""'),
    ({"Check": {"TTL": "9s", "ID": "x"}}, 400, 'Request decode failed: json: unknown field "ID"'),
    (
        {"Check": {"TTL": "9s", "Interval": "9s"}},
        400,
        "Invalid check: Interval and TTL cannot both be specified",
    ),
    (
        {"Check": {"HTTP": "http://127.0.0.1:1"}},
        400,
        "Invalid check: Interval must be > 0 for Script, HTTP, or TCP checks",
    ),
    ({"Checks": [{}]}, 400, "Invalid check: TTL must be > 0 for TTL checks"),
    (
        {"Check": {"TTL": "9s", "AliasService": "x"}},
        400,
        "Invalid check: TTL must be not be set for Alias checks",
    ),
    ({"Check": {"TTL": "9s", "OutputMaxSize": -1}}, 400, "Invalid check: MaxOutputMaxSize must be positive"),
    (
        {"Check": {"TTL": "9s", "Status": "bogus"}},
        400,
        "Status for checks must 'passing', 'warning', 'critical'",
    ),
    (
        {"Check": {"Args": ["true"], "Interval": "9s"}},
        500,
        (
            "Scripts are disabled on this agent from remote calls; "
            "to enable, configure 'enable_script_checks' to true"
        ),
    ),
]


@pytest.mark.parametrize(("fields", "status", "text"), REFUSED, ids=[str(row[0]) for row in REFUSED])
def test_a_service_that_is_refused(
    target: Target, own: str, fields: dict[str, Any], status: int, text: str
) -> None:
    answer = target.put("/v1/agent/service/register", {"Name": own, **fields})
    if target.is_1_8:
        assert (answer.status, answer.text.strip()) == (status, text)
    else:  # some are worded otherwise, and some fields are taken by now
        assert answer.status in (200, 400, 403, 500)


def test_maintenance_of_a_service(target: Target, own: str) -> None:
    register(target, own)
    path = f"/v1/agent/service/maintenance/{own}"
    assert (target.put(path).status, target.put(path).text) == (400, "Missing value for enable")
    assert target.put(f"{path}?enable=x").text == 'Invalid value for enable: "x"'
    assert target.put("/v1/agent/service/maintenance/?enable=true").text == "Missing service ID"
    unknown = target.put("/v1/agent/service/maintenance/none?enable=true")
    assert unknown.status == 404
    assert target.put(f"{path}?enable=true&reason=because").status == 200
    assert target.put(f"{path}?enable=true&reason=other").status == 200
    check = target.get("/v1/agent/checks").json[f"_service_maintenance:{own}"]
    shown = (check["Name"], check["Status"], check["Notes"], check["ServiceName"], check["Type"])
    assert shown == ("Service Maintenance Mode", "critical", "because", own, "maintenance")
    until(lambda: target.get(f"/v1/health/service/{own}").json)
    assert target.get(f"/v1/health/service/{own}?passing").json == []
    assert target.put(f"{path}?enable=0").status == 200
    until(lambda: target.get(f"/v1/health/service/{own}?passing").json)


def test_the_agent_tells_the_health_of_its_services(target: Target, own: str) -> None:
    register(target, own, Check={"TTL": "60s"})
    for call, status, code in (("pass", "passing", 200), ("warn", "warning", 429), ("fail", "critical", 503)):
        target.put(f"/v1/agent/check/{call}/service:{own}")
        answer = target.get(f"/v1/agent/health/service/id/{own}")
        assert (answer.status, answer.json["AggregatedStatus"]) == (code, status)
        assert answer.headers["X-Consul-Reason"] == status
        text = target.get(f"/v1/agent/health/service/name/{own}?format=text")
        assert (text.status, text.text) == (code, status)
        assert text.headers["Content-Type"].startswith("text/plain")
    assert target.get("/v1/agent/health/service/name/none").status == 404
    assert target.get("/v1/agent/health/service/id/none").json["Service"] is None


def test_the_agent_tells_its_members(target: Target) -> None:
    (member,) = target.get("/v1/agent/members").json
    assert (member["Name"], member["Status"], member["Tags"]["role"]) == (target.node, 1, "consul")
    (wide,) = target.get("/v1/agent/members?wan=1").json
    assert wide["Name"] == f"{target.node}.dc1"
    assert member["Tags"].keys() - wide["Tags"].keys() == {"wan_join_port"}
    assert {"build", "dc", "ft_fs", "id", "port", "raft_vsn", "vsn", "vsn_max", "vsn_min"} <= wide[
        "Tags"
    ].keys()


def test_a_check_that_is_carried_out(target: Target, own: str) -> None:
    """Of something that is there, the agent itself, and of something that is not."""
    place = target.address
    checks = [
        {"CheckID": f"http-{own}", "HTTP": f"http://{place}/v1/status/leader", "Interval": "1s"},
        {"CheckID": f"tcp-{own}", "TCP": place, "Interval": "1s", "Timeout": "1s"},
        {
            "CheckID": f"bad-{own}",
            "HTTP": f"http://{place}/v1/kv/none",
            "Interval": "1s",
            "Status": "passing",
        },
        {  # of several kinds that it could be, it is the first one
            "CheckID": f"both-{own}",
            "HTTP": f"http://{place}/v1/kv/none",
            "TCP": place,
            "Interval": "1s",
            "Status": "passing",
        },
    ]
    register(target, own, Checks=checks)

    def states() -> dict[str, str]:
        shown = checks_of(target, own)
        return {check["CheckID"].partition("-")[0]: check["Status"] for check in shown.values()}

    until(lambda: states() == {"http": "passing", "tcp": "passing", "bad": "critical", "both": "critical"})
    until(lambda: len(target.get(f"/v1/health/checks/{own}").json) == len(checks))
