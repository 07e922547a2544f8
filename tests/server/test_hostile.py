"""Hostile input: all of it has a reply that Consul could give, the state stays whole, nothing is left."""

from __future__ import annotations

import json
import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consul_coord.server import ServerConfig
from consul_coord.server.openapi import describe
from consul_coord.server.wire import Blocked, Reply, Request
from tests.server.driver import Driver
from tests.server.hostile import Attacker

REQUESTS = 100
"""By example; an example is a seed, so that making requests costs next to nothing."""

QUOTED = r'"(?:[^"\\]|\\.)*"'
LOOKUP = (
    "(?:(?:failed session|failed prepared query) lookup: |invalid session: |Prepared Query lookup failed: )"
)
CONSULS_OWN = re.compile(
    "|".join(
        (
            "Must provide (?:node|Node|address if SkipNodeUpdate is not set|service name with ID)",
            "Missing (?:node|check '.*') registration",
            "Failed to create boolean expression evaluator: .*",
            "(?:failed inserting service: )?Invalid Service Meta for node .* and serviceID .*: .*",
            "Invalid service address",
            r"\d errors? occurred:.*",
            "Scripts are disabled on this agent from remote calls; .*",
            "(?:Check|Service)ID missing",
            "Invalid (?:node|service|tag) filter: .*",
            "Cannot provide tag filter without service filter",
            "failed compiling template: .*",
            "prepared query templates can only be resolved up by name, not by ID",
            "a query template with an empty name already exists",
            "Bad limit: strconv.Atoi: .*",
            "incompatible coordinate",
            "Network segments are not supported in this version of Consul",
            "(?:failed inserting check: )?Missing service registration.*",
            "failed inserting (?:check|service): object missing primary index",
            f"check node {QUOTED} does not match node {QUOTED}",
            "Bad node ID: uuid string is wrong length",
            "Check '.*' is in critical state",
            "Invalid Behavior setting '.*'",
            "Session TTL '.*' invalid: time: .*",
            r"Invalid Session TTL '-?\d+', must be between \[10s=24h0m0s\]",
            f"{LOOKUP}*index error: .*",
            f"invalid session {QUOTED}",
            "missing session",
            "No path to datacenter",
            f"strconv.ParseUint: parsing {QUOTED}: (?:invalid syntax|value out of range)",
            f"CheckID {QUOTED} does not have associated TTL",
            f"ServiceID {QUOTED} does not exist",
            "ID must be empty when creating a new prepared query",
            "Invalid prepared query: Must (?:be bound to a session|provide a Service name to query)",
            "name '.*' aliases an existing query name",
            "Cannot modify non-existent prepared query: '.*'",
            "failed to (?:decompress snapshot|read snapshot file): .*",
        )
    ),
    re.DOTALL,
)
"""The bodies of the 500s that a real agent was seen to give."""
REFUSED = re.compile(
    "The reference server (?:does not have /|does not rename nodes: |runs no such checks: "
    "|does not compute |registers no sidecar|lets nobody wait for a service's hash)",
    re.DOTALL,
)


def answered(driver: Driver, request: Request) -> Reply | None:
    """Send a request; None when it waits, and is then withdrawn."""
    outcome = driver.service.handle(request, driver.now)
    if isinstance(outcome, Blocked):
        driver.service.cancel(outcome.ticket)
        return None
    return outcome


def check(request: Request, reply: Reply) -> None:
    told = f"{request!r} {request.query} gave {reply!r}"
    assert reply.status in {200, 301, 400, 401, 403, 404, 405, 409, 413, 500, 501}, told
    text = reply.body.decode("utf-8", "replace")
    if reply.status == 500:
        assert CONSULS_OWN.fullmatch(text), told
    if reply.status == 501:
        assert REFUSED.match(text), told
    if reply.header("Content-Type") == "application/json":
        json.loads(text)


def ids_in(reply: Reply) -> list[str]:
    return re.findall(r'"ID":"([0-9a-f-]{36})"', reply.body.decode("utf-8", "replace"))


def is_whole(driver: Driver) -> None:
    store = driver.state.store
    assert all(0 < each.create_index <= each.modify_index <= store.raft_index for each in store.kv)
    assert store.kv.keys_under("") == sorted(store.kv.rows)
    assert all(store.sessions.get(each.session) for each in store.kv if each.session)
    assert {each.id for each in store.sessions} == set(store.sessions.rows)


def is_empty(driver: Driver) -> None:
    """Take everything away, and find nothing left of it: no timer, no watcher, no index of holders."""
    driver.ask("DELETE", "/v1/kv/?recurse")
    for query in list(driver.state.store.queries.rows):
        driver.ask("DELETE", f"/v1/query/{query}")
    for session in list(driver.state.store.sessions.rows):
        driver.ask("PUT", f"/v1/session/destroy/{session}")
    for service in list(driver.state.local.services):
        driver.state.local.remove_service(service, driver.now)
    for check_id in list(driver.state.local.checks):
        driver.state.local.remove_check(check_id, driver.now)
    for node in list(driver.state.store.nodes):
        driver.state.deregister(node.name, driver.now)
    driver.advance(200_000.0)  # the longest TTL is over, as are waits and delays; tombstones are reaped
    store, waiting = driver.state.store, driver.service._waiting
    tables = (store.kv, store.tombstones, store.sessions, store.nodes, store.services, store.checks)
    assert [len(table) for table in (*tables, store.queries)] == [0] * 7
    assert (len(waiting), dict(waiting._by_mark), len(waiting._deadlines)) == (0, {}, 0)
    assert not waiting._lengths
    assert (len(driver.state._timers), dict(store.kv._held), store.kv._keys) == (0, {}, [])
    assert driver.state.delays.running(driver.now) == {}


def attack(seed: int) -> None:
    config = ServerConfig()
    driver = Driver(config)
    attacker = Attacker(describe(config), Random(seed))
    for _ in range(REQUESTS):
        request = attacker.request()
        reply = answered(driver, request)
        if reply is not None:
            check(request, reply)
            attacker.ids = [*attacker.ids[-8:], *ids_in(reply)][-12:]
        if attacker.moment():
            driver.advance(5.0)
    is_whole(driver)
    is_empty(driver)


SEEDS = st.integers(0, 2**63)


@pytest.mark.search
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_hostile_requests(seed: int) -> None:
    attack(seed)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@settings(max_examples=1_000, deadline=None)
@given(seed=SEEDS)
def test_a_hundred_thousand_hostile_requests(seed: int) -> None:
    attack(seed)


def test_a_wrong_500_is_caught() -> None:
    with pytest.raises(AssertionError):
        check(Request.make("GET", "/"), Reply(500, b"list index out of range"))


def test_what_is_left_is_caught() -> None:
    driver = Driver()
    driver.service._waiting._by_mark["left",] = {}
    with pytest.raises(AssertionError):
        is_empty(driver)
