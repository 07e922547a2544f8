"""Nodes, checks and prepared queries on the pure service, and the sessions that fall with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from consul_coord.server import ReferenceServer, ServerConfig
from tests.server.driver import Driver
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

UNKNOWN = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def agent() -> Driver:
    driver = Driver()
    node = {"Node": "n2", "Address": "10.0.0.2"}
    driver.ask("PUT", "/v1/catalog/register", {**node, "Service": {"Service": "web"}})
    for check, service in (("c1", ""), ("c2", "web")):
        body = {**node, "Check": {"CheckID": check, "Name": check, "Status": "passing", "ServiceID": service}}
        assert driver.ask("PUT", "/v1/catalog/register", body).json is True
    driver.ask("PUT", "/v1/agent/check/register", {"Name": "own", "TTL": "5s", "Status": "passing"})
    return driver


def put(path: str, body: object) -> Callable[[Driver], None]:
    def send(agent: Driver) -> None:
        assert agent.ask("PUT", path, body).status == 200

    return send


def critical(check: str) -> dict[str, object]:
    return {"Node": "n2", "SkipNodeUpdate": True, "Check": {"CheckID": check, "Status": "critical"}}


INVALIDATIONS = {
    "node deregistered": put("/v1/catalog/deregister", {"Node": "n2"}),
    "check deregistered": put("/v1/catalog/deregister", {"Node": "n2", "CheckID": "c1"}),
    "service deregistered": put("/v1/catalog/deregister", {"Node": "n2", "ServiceID": "web"}),
    "node check critical": put("/v1/catalog/register", critical("c1")),
    "service check critical": put("/v1/catalog/register", critical("c2")),
}


@pytest.mark.parametrize("how", INVALIDATIONS)
@pytest.mark.parametrize("behavior", ["release", "delete"])
def test_a_session_falls_with_what_it_relies_on(agent: Driver, how: str, behavior: str) -> None:
    session = agent.session(Node="n2", NodeChecks=["c1"], ServiceChecks=[{"ID": "c2"}], Behavior=behavior)
    agent.ask("PUT", f"/v1/kv/k?acquire={session}", b"v")
    blocked = agent.block(f"/v1/kv/k?index={agent.entry('k')['ModifyIndex']}")
    INVALIDATIONS[how](agent)
    assert agent.ask("GET", "/v1/session/node/n2").json == []
    woken = agent.late(blocked)
    assert woken is not None
    assert woken.status == (404 if behavior == "delete" else 200)
    assert list(agent.state.delays.running(agent.now)) == ["k"]


def test_a_warning_is_no_reason(agent: Driver) -> None:
    session = agent.session(Node="n2", NodeChecks=["c1"])
    body = {"Node": "n2", "SkipNodeUpdate": True, "Check": {"CheckID": "c1", "Status": "warning"}}
    agent.ask("PUT", "/v1/catalog/register", body)
    assert agent.ask("GET", f"/v1/session/info/{session}").json


def test_a_ttl_check_that_is_not_told_anything_ends_its_sessions(agent: Driver) -> None:
    session = agent.session(NodeChecks=["own"])
    agent.advance(4.0)
    agent.ask("PUT", "/v1/agent/check/pass/own?note=fine")
    agent.advance(4.999)
    assert agent.ask("GET", f"/v1/session/info/{session}").json
    agent.advance(0.001)
    assert agent.ask("GET", f"/v1/session/info/{session}").json == []
    shown = agent.ask("GET", "/v1/agent/checks").json["own"]
    assert shown["Status"] == "critical"
    assert shown["Output"] == "TTL expired (last output before timeout follows): fine"


@pytest.mark.parametrize("verb", ["fail/own", "deregister/own"])
def test_the_agents_calls_end_sessions_at_once(agent: Driver, verb: str) -> None:
    session = agent.session(NodeChecks=["own"])
    agent.ask("PUT", f"/v1/agent/check/{verb}")
    assert agent.ask("GET", f"/v1/session/info/{session}").json == []


def test_a_check_is_critical_until_told_otherwise(agent: Driver) -> None:
    agent.ask("PUT", "/v1/agent/check/register", {"Name": "new", "TTL": "5s"})
    refused = agent.ask("PUT", "/v1/session/create", {"NodeChecks": ["new"]})
    assert (refused.status, refused.text) == (500, "Check 'new' is in critical state")
    agent.ask("PUT", "/v1/agent/check/update/new", {"Status": "passing"})
    assert agent.session(NodeChecks=["new"])


def test_services_bring_their_checks(agent: Driver) -> None:
    body = {"Name": "svc", "Check": {"TTL": "5s", "Status": "passing"}}
    agent.ask("PUT", "/v1/agent/service/register", body)
    session = agent.session(ServiceChecks=[{"ID": "service:svc"}])
    agent.ask("PUT", "/v1/agent/service/deregister/svc")
    assert agent.ask("GET", f"/v1/session/info/{session}").json == []
    assert "service:svc" not in agent.ask("GET", "/v1/agent/checks").json


def test_an_agent_that_leaves_takes_its_sessions_along(agent: Driver) -> None:
    session = agent.session(NodeChecks=[])
    agent.ask("PUT", "/v1/agent/leave")
    assert agent.ask("GET", f"/v1/session/info/{session}").json == []
    assert [node["Node"] for node in agent.ask("GET", "/v1/catalog/nodes").json] == ["n2"]


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (("PUT", "/v1/catalog/register", {}), 500, "Must provide node"),
        (
            ("PUT", "/v1/catalog/register", {"Node": "x"}),
            500,
            "Must provide address if SkipNodeUpdate is not set",
        ),
        (("PUT", "/v1/catalog/register", b""), 400, "Request decode failed: EOF"),
        (
            ("PUT", "/v1/catalog/register", {"Foo": 1}),
            400,
            'Request decode failed: json: unknown field "Foo"',
        ),
        (
            (
                "PUT",
                "/v1/catalog/register",
                {"Node": "n2", "Address": "1", "Check": {"CheckID": "c", "ServiceID": "none"}},
            ),
            500,
            'failed inserting check: Missing service registration on node "n2"',
        ),
        (("PUT", "/v1/catalog/deregister", {}), 500, "Must provide node"),
        (("PUT", "/v1/catalog/deregister", {"Node": "none"}), 200, "true"),
        (("GET", "/v1/catalog/node/none", b""), 200, "null"),
        (("GET", "/v1/catalog/node/", b""), 400, "Missing node name"),
        (("GET", "/v1/health/node/none", b""), 200, "[]"),
        (("GET", "/v1/health/state/bogus", b""), 200, "[]"),
        (("GET", "/v1/health/state/", b""), 400, "Missing check state"),
        (("PUT", "/v1/agent/check/register", {"TTL": "30s"}), 400, "Missing check name"),
        (
            ("PUT", "/v1/agent/check/register", {"Name": "t"}),
            400,
            "Invalid check: TTL must be > 0 for TTL checks",
        ),
        (
            ("PUT", "/v1/agent/check/register", {"Name": "t", "TTL": "3s", "Status": "x"}),
            400,
            "Bad check status",
        ),
        (("PUT", "/v1/agent/check/pass/none", b""), 500, 'CheckID "none" does not have associated TTL'),
        (("PUT", "/v1/agent/check/update/own", {"Status": "bogus"}), 400, "Invalid check status: 'bogus'"),
        (("PUT", "/v1/agent/check/deregister/none", b""), 200, ""),
    ],
)
def test_refusals_and_kindnesses(
    agent: Driver, request_: tuple[str, str, object], status: int, text: str
) -> None:
    reply = agent.ask(*request_)
    assert (reply.status, reply.text) == (status, text)


@pytest.mark.parametrize("kind", ["GRPC", "AliasService"])
def test_checks_of_other_kinds_are_refused_loudly(agent: Driver, kind: str) -> None:
    body = {"Name": "h", kind: "127.0.0.1:1", **({"Interval": "10s"} if kind == "GRPC" else {})}
    reply = agent.ask("PUT", "/v1/agent/check/register", body)
    assert reply.status == 501
    assert kind in reply.text


def test_sidecars_are_refused_loudly(agent: Driver) -> None:
    body = {"Name": "h", "Connect": {"sidecar_service": {}}}
    reply = agent.ask("PUT", "/v1/agent/service/register", body)
    assert (reply.status, "sidecar" in reply.text) == (501, True)


def test_scripts_run_where_that_is_permitted() -> None:
    body = {"Name": "s", "Args": ["sh", "-c", "echo said; exit 1"], "Interval": "60s"}
    with (
        ReferenceServer(config=ServerConfig(enable_script_checks=True)) as server,
        httpx.Client(base_url=server.address) as client,
    ):
        assert client.put("/v1/agent/check/register", json=body).status_code == 200
        eventually(lambda: client.get("/v1/agent/checks").json()["s"]["Status"] == "warning")
        assert client.get("/v1/agent/checks").json()["s"]["Output"] == "said\n"


@pytest.mark.parametrize("kind", ["HTTP", "TCP"])
def test_a_check_that_could_be_of_two_kinds_runs_no_script(kind: str) -> None:
    with (
        ReferenceServer(config=ServerConfig(enable_script_checks=True)) as server,
        httpx.Client(base_url=server.address) as client,
    ):
        target = {"HTTP": f"{server.address}/v1/kv/none", "TCP": "127.0.0.1:1"}[kind]
        check = {"Name": "s", "Args": ["true"], "Interval": "60s", "Status": "passing", kind: target}
        assert client.put("/v1/agent/check/register", json=check).status_code == 200
        eventually(lambda: client.get("/v1/agent/checks").json()["s"]["Status"] == "critical")


@pytest.mark.parametrize(("permitted", "lasts"), [("90s", 90), ("60s", 60), ("10s", 60)])
def test_a_service_goes_when_its_check_was_critical_for_too_long_and_a_minute(
    agent: Driver, permitted: str, lasts: int
) -> None:
    check = {"TTL": "10s", "DeregisterCriticalServiceAfter": permitted, "Status": "passing"}
    agent.ask("PUT", "/v1/agent/service/register", {"Name": "shop", "Check": check})
    agent.advance(8)
    agent.ask("PUT", "/v1/agent/check/pass/service:shop")
    agent.advance(10 + lasts - 1)
    assert list(agent.ask("GET", "/v1/agent/services").json) == ["shop"]
    agent.advance(2)
    assert agent.ask("GET", "/v1/agent/services").json == {}
    assert agent.ask("GET", "/v1/catalog/service/shop").json == []


def test_a_check_changes_after_as_many_results_as_it_wants(agent: Driver) -> None:
    body = {"Name": "t", "TCP": "127.0.0.1:1", "Interval": "1s"}
    wanted = {"SuccessBeforePassing": 1, "FailuresBeforeCritical": 2}
    agent.ask("PUT", "/v1/agent/check/register", {**body, **wanted})
    agent.advance(0)
    (probe,) = agent.state.local.take_due()
    seen = []
    for status in [
        "passing",
        "passing",
        "critical",
        "critical",
        "passing",
        "critical",
        "critical",
        "critical",
    ]:
        agent.state.local.probed(probe, status, "", agent.now)
        seen.append(agent.state.local.checks["t"].record.status)
    assert seen == ["critical", *["passing"] * 6, "critical"]


def test_a_query_is_deleted_with_its_session(agent: Driver) -> None:
    session = agent.session()
    query = {"Name": "q1", "Session": session, "Service": {"Service": "web"}}
    created = agent.ask("POST", "/v1/query", query).json["ID"]
    assert agent.ask("GET", f"/v1/query/{created}").json[0]["Session"] == session
    agent.ask("PUT", f"/v1/session/destroy/{session}")
    gone = agent.ask("GET", f"/v1/query/{created}")
    assert (gone.status, gone.text) == (404, "Query not found")


def test_a_query_is_replaced_and_deleted(agent: Driver) -> None:
    created = agent.ask("POST", "/v1/query", {"Name": "a", "Service": {"Service": "web"}}).json["ID"]
    agent.ask("PUT", f"/v1/query/{created}", {"Name": "b", "Service": {"Service": "db"}})
    (shown,) = agent.ask("GET", "/v1/query").json
    assert (shown["Name"], shown["Service"]["Service"]) == ("b", "db")
    assert agent.ask("DELETE", f"/v1/query/{created}").status == 200
    assert agent.ask("GET", "/v1/query").json == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"Service": {"Service": "web"}}, "Invalid prepared query: Must be bound to a session"),
        ({"Name": "q", "Service": {}}, "Invalid prepared query: Must provide a Service name to query"),
        ({"Session": UNKNOWN, "Service": {"Service": "web"}}, f'invalid session "{UNKNOWN}"'),
        (
            {"Session": "abc", "Service": {"Service": "web"}},
            "invalid session: index error: UUID must be 36 characters",
        ),
        ({"Name": "taken", "Service": {"Service": "web"}}, "name 'taken' aliases an existing query name"),
    ],
)
def test_refused_queries(agent: Driver, body: dict[str, object], text: str) -> None:
    agent.ask("POST", "/v1/query", {"Name": "taken", "Service": {"Service": "web"}})
    reply = agent.ask("POST", "/v1/query", body)
    assert (reply.status, reply.text) == (500, text)


def test_a_follower_that_lags_shows_the_past_to_stale_reads(agent: Driver) -> None:
    agent.state.lag()
    agent.ask("PUT", "/v1/kv/k", b"v")
    behind = agent.ask("GET", "/v1/kv/k?stale")
    assert (behind.status, behind.index) == (404, 1)
    assert agent.ask("GET", "/v1/kv/k").status == 200
    blocked = agent.block("/v1/kv/k?stale&index=1")
    agent.state.catch_up()
    agent.service.publish(agent.now)
    agent.advance(0.0)
    caught_up = agent.late(blocked)
    assert caught_up is not None
    assert caught_up.status == 200


def test_a_snapshot_brings_everything_back_but_delays_and_timers(agent: Driver) -> None:
    held, gone = agent.session(TTL="10s", ServiceChecks=[]), agent.session(Node="n2", NodeChecks=[])
    agent.ask("PUT", f"/v1/kv/k?acquire={held}&flags=7", b"\x00\xff")
    agent.ask("PUT", f"/v1/kv/l?acquire={gone}", b"v")
    agent.ask("PUT", f"/v1/session/destroy/{gone}")
    agent.ask("POST", "/v1/query", {"Name": "q", "Session": held, "Service": {"Service": "web"}})
    targets = (
        "/v1/kv/?recurse",
        "/v1/session/list",
        "/v1/catalog/node/n2",
        "/v1/health/state/any",
        "/v1/query",
    )
    before = [agent.ask("GET", target) for target in targets]
    data = agent.state.snapshot()
    agent.advance(5.0)
    assert agent.state.delays.running(agent.now)
    agent.ask("DELETE", "/v1/kv/?recurse")
    blocked = agent.block(f"/v1/kv/k?index={agent.state.store.raft_index}")
    agent.service.restore(data, agent.now)
    agent.advance(0.0)
    assert agent.late(blocked) is not None
    assert [agent.ask("GET", target) for target in targets] == before
    assert agent.state.store.kv.held_by(held) == ["k"]
    assert agent.state.delays.running(agent.now) == {}
    assert agent.state.session_deadline(held) == agent.now + 20


def test_what_is_no_snapshot_is_refused(agent: Driver) -> None:
    with pytest.raises(ValueError, match="not a snapshot"):
        agent.state.restore(b"{}", agent.now)


@pytest.mark.parametrize("near", ["_agent", "node1"])
def test_the_own_node_is_the_nearest_to_itself(agent: Driver, near: str) -> None:
    for node in ("a", "n2", "node1", "z"):
        registration = {"Node": node, "Address": "10.0.0.1", "Service": {"Service": "web"}}
        agent.ask("PUT", "/v1/catalog/register", registration)
    reads = {
        "/v1/catalog/nodes": lambda row: row["Node"],
        "/v1/catalog/service/web": lambda row: row["Node"],
        "/v1/health/service/web": lambda row: row["Node"]["Node"],
    }
    for path, name in reads.items():
        found = {
            query: list(map(name, agent.ask("GET", path + query).json)) for query in ("", f"?near={near}")
        }
        assert found == {"": ["a", "n2", "node1", "z"], f"?near={near}": ["node1", "a", "n2", "z"]}
