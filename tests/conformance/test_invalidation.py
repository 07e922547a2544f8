"""The end of sessions: the five ways, what happens to their keys, and lock-delays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.conformance.target import UNKNOWN, Target, until

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE = 30.0


def critical(target: Target, node: str) -> None:
    body = {"Node": node, "SkipNodeUpdate": True, "Check": {"CheckID": "c1", "Status": "critical"}}
    assert target.put("/v1/catalog/register", body).json


WAYS: dict[str, Callable[[Target, str, str], object]] = {
    "node deregistered": lambda target, node, _: target.put("/v1/catalog/deregister", {"Node": node}),
    "check deregistered": lambda target, node, _: target.put(
        "/v1/catalog/deregister", {"Node": node, "CheckID": "c1"}
    ),
    "check critical": lambda target, node, _: critical(target, node),
    "destroyed": lambda target, _, session: target.put(f"/v1/session/destroy/{session}"),
    "expired": lambda *_: None,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("behavior", ["release", "delete"])
def test_the_five_ways(target: Target, way: str, behavior: str) -> None:
    node = target.node_with_check("inv")
    session = target.session(
        Node=node, NodeChecks=["c1"], Behavior=behavior, TTL="300ms" if way == "expired" else "10s"
    )
    keys = [target.key("a"), target.key("b")]
    for key in keys:
        assert target.put(f"/v1/kv/{key}?acquire={session}&flags=7", b"v").json is True
    query = {"Name": f"q-{target.unique}", "Session": session, "Service": {"Service": "web"}}
    query_id = target.ask("POST", "/v1/query", query).json["ID"]
    WAYS[way](target, node, session)
    until(lambda: not target.info(session))
    entries = target.get(f"/v1/kv/{target.key('')}?recurse")
    if behavior == "delete":
        assert entries.status == 404
    else:
        a, b = entries.json
        assert "Session" not in a
        assert (a["Value"], a["Flags"], a["LockIndex"]) == ("dg==", 7, 1)
        assert a["ModifyIndex"] == b["ModifyIndex"] > b["CreateIndex"]
    assert target.get(f"/v1/query/{query_id}").status == 404
    other = target.session()
    for key in keys:
        assert target.put(f"/v1/kv/{key}?acquire={other}").json is False
    target.put("/v1/catalog/deregister", {"Node": node})


def test_a_session_ends_with_the_service_of_its_check(target: Target) -> None:
    node = f"svc-{target.unique}"
    check = {"CheckID": "c1", "Name": "c1", "Status": "passing", "ServiceID": "web"}
    body = {"Node": node, "Address": "10.0.0.2", "Service": {"Service": "web"}, "Check": check}
    assert target.put("/v1/catalog/register", body).json is True
    session = target.session(Node=node, ServiceChecks=[{"ID": "c1"}])
    target.put("/v1/catalog/deregister", {"Node": node, "ServiceID": "web"})
    assert target.info(session) == []
    target.put("/v1/catalog/deregister", {"Node": node})


@pytest.mark.parametrize(("behavior", "lock_index"), [("release", 2), ("delete", 1)])
def test_the_next_holder(target: Target, behavior: str, lock_index: int) -> None:
    key, first, second = target.key(), target.session(Behavior=behavior, LockDelay=0), target.session()
    target.put(f"/v1/kv/{key}?acquire={first}")
    before = target.entry(key)
    target.put(f"/v1/session/destroy/{first}")
    assert target.put(f"/v1/kv/{key}?acquire={second}").json is True
    after = target.entry(key)
    assert after["LockIndex"] == lock_index
    assert (after["CreateIndex"] == before["CreateIndex"]) is (behavior == "release")


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("lock_delay", ["90s", 999])
def test_a_lock_delay_is_a_minute_at_most(target: Target, lock_delay: object) -> None:
    key, first, second = target.key(), target.session(LockDelay=lock_delay), target.session()
    target.put(f"/v1/kv/{key}?acquire={first}")
    began = time.monotonic()
    target.put(f"/v1/session/destroy/{first}")
    while target.put(f"/v1/kv/{key}?acquire={second}").json is False:
        assert time.monotonic() - began < 75.0
        time.sleep(0.05)
    assert time.monotonic() - began >= 60.0


def test_a_warning_ends_nothing(target: Target) -> None:
    node = target.node_with_check("warn")
    session = target.session(Node=node, NodeChecks=["c1"])
    body = {"Node": node, "SkipNodeUpdate": True, "Check": {"CheckID": "c1", "Status": "warning"}}
    target.put("/v1/catalog/register", body)
    assert target.info(session)
    target.put("/v1/catalog/deregister", {"Node": node})
    assert target.info(session) == []


def test_a_lock_delay_ends_in_time_and_not_before(target: Target) -> None:
    key, first, second = target.key(), target.session(LockDelay="600ms"), target.session()
    target.put(f"/v1/kv/{key}?acquire={first}")
    target.put(f"/v1/session/destroy/{first}")
    ended = time.monotonic()
    assert target.put(f"/v1/kv/{key}?acquire={second}").json is False
    assert target.put(f"/v1/kv/{key}?acquire={UNKNOWN}").json is False
    answer = target.txn({"Verb": "lock", "Key": key, "Session": second})
    assert answer.status == 409
    assert answer.json["Errors"] == [{"OpIndex": 0, "What": f'failed to lock key "{key}" due to lock delay'}]
    assert target.put(f"/v1/kv/{key}", b"written").json is True
    assert target.delete(f"/v1/kv/{key}").json is True
    while target.put(f"/v1/kv/{key}?acquire={second}").json is False:
        assert time.monotonic() - ended < DEADLINE
        time.sleep(0.01)
    assert 0.5 < time.monotonic() - ended < 5.0
    assert target.entry(key)["LockIndex"] == 1


@pytest.mark.parametrize("lock_delay", ["0s", 0, -5])
def test_no_lock_delay(target: Target, lock_delay: object) -> None:
    key, first, second = target.key(), target.session(LockDelay=lock_delay), target.session()
    target.put(f"/v1/kv/{key}?acquire={first}")
    target.put(f"/v1/session/destroy/{first}")
    assert target.put(f"/v1/kv/{key}?acquire={second}").json is True


@pytest.mark.parametrize("then_destroy", [False, True])
def test_a_voluntary_release_imposes_no_delay(target: Target, *, then_destroy: bool) -> None:
    key, first, second = target.key(), target.session(), target.session()
    target.put(f"/v1/kv/{key}?acquire={first}")
    target.put(f"/v1/kv/{key}?release={first}")
    if then_destroy:
        target.put(f"/v1/session/destroy/{first}")
    assert target.put(f"/v1/kv/{key}?acquire={second}").json is True


def test_a_node_without_serf_health_has_no_default_session(target: Target) -> None:
    node = target.node_with_check("plain")
    refused = target.put("/v1/session/create", {"Node": node})
    assert refused.status == 500
    assert target.says(refused.text, "Missing check 'serfHealth' registration")
    critical(target, node)
    refused = target.put("/v1/session/create", {"Node": node, "NodeChecks": ["c1"]})
    assert refused.status == 500
    assert target.says(refused.text, "Check 'c1' is in critical state")
    target.put("/v1/catalog/deregister", {"Node": node})
