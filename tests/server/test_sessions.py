"""Sessions on the pure service: what create makes of a body, when a session ends, and what its end does."""

from __future__ import annotations

import pytest

from consul_coord.server.config import ServerConfig
from tests.server.driver import Driver

SECOND = 1_000_000_000
UNKNOWN = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def agent() -> Driver:
    return Driver()


def test_a_session_shows_its_defaults(agent: Driver) -> None:
    created = agent.ask("PUT", "/v1/session/create")
    (shown,) = agent.ask("GET", f"/v1/session/info/{created.json['ID']}").json
    index = shown["CreateIndex"]
    assert shown == {
        "ID": created.json["ID"],
        "Name": "",
        "Node": "node1",
        "LockDelay": 15 * SECOND,
        "Behavior": "release",
        "TTL": "",
        "NodeChecks": ["serfHealth"],
        "ServiceChecks": None,
        "CreateIndex": index,
        "ModifyIndex": index,
    }


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("5s", 5 * SECOND),
        ("1500ms", 1_500_000_000),
        (5, 5 * SECOND),
        (999, 999 * SECOND),
        (1000, 1000),
        ("500ns", 500 * SECOND),
        (1.5, SECOND),
        (-5, -5 * SECOND),
        (0, 0),
        ("0s", 0),
        (None, 15 * SECOND),
        (True, 0),
        ([], 0),
        ({}, 0),
        ("90s", 90 * SECOND),
        (1e19, 0),  # as on amd64: what does not fit is the least int64, and that many seconds are none
        (-1e300, 0),
    ],
)
def test_lock_delay_is_read_as_consul_reads_it(agent: Driver, sent: object, stored: int) -> None:
    session = agent.session(LockDelay=sent)
    assert agent.ask("GET", f"/v1/session/info/{session}").json[0]["LockDelay"] == stored


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b'{"TTL":"5s"}', 500, "Invalid Session TTL '5000000000', must be between [10s=24h0m0s]"),
        (b'{"TTL":"25h"}', 500, "Invalid Session TTL '90000000000000', must be between [10s=24h0m0s]"),
        (b'{"TTL":"10"}', 500, "Session TTL '10' invalid: time: missing unit in duration \"10\""),
        (
            b'{"TTL":10}',
            400,
            "Request decode failed: json: cannot unmarshal number into Go struct field .TTL of type string",
        ),
        (b'{"LockDelay":"5"}', 400, 'Request decode failed: time: missing unit in duration "5"'),
        (b'{"LockDelay":"abc"}', 400, 'Request decode failed: time: invalid duration "abc"'),
        (b'{"Behavior":"DELETE"}', 500, "Invalid Behavior setting 'DELETE'"),
        (b'{"Node":""}', 500, "Must provide Node"),
        (b'{"Node":"elsewhere"}', 500, "Missing node registration"),
        (b'{"NodeChecks":["nope"]}', 500, "Missing check 'nope' registration"),
        (b"{", 400, "Request decode failed: unexpected EOF"),
    ],
)
def test_create_refuses_in_consuls_words(agent: Driver, body: bytes, status: int, text: str) -> None:
    reply = agent.ask("PUT", "/v1/session/create", body)
    assert (reply.status, reply.text) == (status, text)


@pytest.mark.parametrize(
    ("fields", "node_checks"),
    [
        ({}, ["serfHealth"]),
        ({"NodeChecks": []}, []),
        ({"Checks": []}, []),
        ({"Checks": ["serfHealth"]}, ["serfHealth"]),
        ({"Checks": ["serfHealth"], "NodeChecks": []}, []),
        ({"Checks": ["c1"], "NodeChecks": []}, []),
    ],
)
def test_checks_and_node_checks_together(
    agent: Driver, fields: dict[str, object], node_checks: list[str]
) -> None:
    session = agent.session(**fields)
    assert agent.ask("GET", f"/v1/session/info/{session}").json[0]["NodeChecks"] == node_checks


def test_field_names_ignore_case_and_the_last_of_several_counts(agent: Driver) -> None:
    body = b'{"name":"a","NAME":"b","Unknown":1} trailing'
    session = agent.ask("PUT", "/v1/session/create", body).json["ID"]
    assert agent.ask("GET", f"/v1/session/info/{session}").json[0]["Name"] == "b"


def test_a_session_expires_after_twice_its_ttl_and_not_before(agent: Driver) -> None:
    session = agent.session(TTL="10s")
    agent.advance(19.999)
    assert agent.ask("GET", f"/v1/session/info/{session}").json
    agent.advance(0.001)
    assert agent.ask("GET", f"/v1/session/info/{session}").json == []


def test_a_session_can_be_made_to_end_as_early_as_consul_promises() -> None:
    agent = Driver(ServerConfig(session_ttl_factor=1.0))
    session = agent.session(TTL="10s")
    agent.advance(9.999)
    assert agent.ask("PUT", f"/v1/session/renew/{session}").status == 200
    agent.advance(10.0)
    assert agent.ask("PUT", f"/v1/session/renew/{session}").status == 404


def test_a_renewal_starts_the_full_time_again_and_changes_nothing_else(agent: Driver) -> None:
    session = agent.session(TTL="10s")
    before = agent.ask("GET", "/v1/session/list")
    agent.advance(15.0)
    assert agent.ask("PUT", f"/v1/session/renew/{session}").json == before.json
    assert agent.ask("GET", "/v1/session/list").index == before.index
    agent.advance(19.999)
    assert agent.ask("GET", f"/v1/session/info/{session}").json
    agent.advance(0.001)
    gone = agent.ask("PUT", f"/v1/session/renew/{session}")
    assert (gone.status, gone.text) == (404, f"Session id '{session}' not found")


def test_a_new_leader_starts_every_ttl_afresh(agent: Driver) -> None:
    session = agent.session(TTL="10s")
    agent.advance(11.0)
    agent.state.lose_leader(agent.now)
    agent.advance(100.0)
    agent.state.elect_leader(agent.now)
    agent.advance(19.999)
    assert agent.ask("GET", f"/v1/session/info/{session}").json
    agent.advance(0.001)
    assert agent.ask("GET", f"/v1/session/info/{session}").json == []


def test_without_a_leader_no_session_ends_even_if_it_comes_from_a_snapshot(agent: Driver) -> None:
    session = agent.session(TTL="10s")
    data = agent.state.snapshot()
    agent.state.lose_leader(agent.now)
    agent.state.restore(data, agent.now)
    agent.advance(100.0)
    agent.state.elect_leader(agent.now)
    agent.advance(19.999)
    assert agent.ask("GET", f"/v1/session/info/{session}").json
    agent.advance(0.001)
    assert agent.ask("GET", f"/v1/session/info/{session}").json == []


def test_without_a_leader_requests_wait_and_are_refused(agent: Driver) -> None:
    agent.state.lose_leader(agent.now)
    blocked = agent.block("/v1/kv/k", "PUT")
    agent.advance(6.999)
    assert agent.late(blocked) is None
    agent.advance(0.001)
    refused = agent.late(blocked)
    assert refused is not None
    assert (refused.status, refused.text) == (500, "No cluster leader")


def test_a_request_that_waits_for_a_leader_is_served_by_the_new_one(agent: Driver) -> None:
    agent.state.lose_leader(agent.now)
    blocked = agent.block("/v1/kv/k", "PUT", b"v")
    agent.advance(1.0)
    agent.state.elect_leader(agent.now)
    agent.service.publish(agent.now)
    agent.advance(0.0)
    written = agent.late(blocked)
    assert written is not None
    assert written.json is True
    assert agent.entry("k")["Value"] == "dg=="


ENDS: dict[str, tuple[str, object]] = {
    "destroyed": ("/v1/session/destroy/{}", b""),
    "its node is gone": ("/v1/catalog/deregister", {"Node": "n2"}),
    "its check is gone": ("/v1/catalog/deregister", {"Node": "n2", "CheckID": "c"}),
    "its check is critical": (
        "/v1/catalog/register",
        {"Node": "n2", "Address": "a", "Check": {"CheckID": "c", "Name": "c", "Status": "critical"}},
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_session_that_has_ended_has_no_deadline_any_more(agent: Driver, how: str) -> None:
    check = {"CheckID": "c", "Name": "c", "Status": "passing"}
    agent.ask("PUT", "/v1/catalog/register", {"Node": "n2", "Address": "a", "Check": check})
    session = agent.session(TTL="10s", Node="n2", NodeChecks=["c"])
    assert agent.state.session_deadline(session.upper()) == agent.now + 20.0
    path, body = ENDS[how]
    agent.ask("PUT", path.format(session), body)
    assert session not in agent.state.store.sessions.rows
    assert agent.state.session_deadline(session) is None


@pytest.mark.parametrize("verb", ["destroy", "renew", "info"])
def test_ids_are_checked(agent: Driver, verb: str) -> None:
    method = "GET" if verb == "info" else "PUT"
    short = agent.ask(method, f"/v1/session/{verb}/abc")
    assert (short.status, short.text) == (
        500,
        "failed session lookup: index error: UUID must be 36 characters",
    )
    wrong = agent.ask(method, f"/v1/session/{verb}/g0000000-0000-0000-0000-000000000000")
    assert "Invalid UUID: encoding/hex: invalid byte: U+0067 'g'" in wrong.text
    empty = agent.ask(method, f"/v1/session/{verb}/")
    assert (empty.status, empty.text) == (400, "Missing session")


def test_unknown_sessions_are_treated_kindly(agent: Driver) -> None:
    assert agent.ask("PUT", f"/v1/session/destroy/{UNKNOWN}").json is True
    assert agent.ask("GET", f"/v1/session/info/{UNKNOWN}").json == []
    assert agent.ask("GET", "/v1/session/node/elsewhere").json == []


@pytest.mark.parametrize("end", ["destroy", "expiry"])
@pytest.mark.parametrize("behavior", ["release", "delete"])
def test_the_end_of_a_session_frees_or_deletes_its_keys_at_one_index(
    agent: Driver, end: str, behavior: str
) -> None:
    session = agent.session(TTL="10s", Behavior=behavior, LockDelay="5s")
    for key in ("a", "b"):
        assert agent.ask("PUT", f"/v1/kv/{key}?acquire={session}&flags=7", b"v").json is True
    if end == "destroy":
        agent.ask("PUT", f"/v1/session/destroy/{session}")
    else:
        agent.advance(20.0)
    if behavior == "delete":
        assert agent.ask("GET", "/v1/kv/a").status == agent.ask("GET", "/v1/kv/b").status == 404
    else:
        a, b = agent.entry("a"), agent.entry("b")
        assert "Session" not in a
        assert (a["Value"], a["Flags"], a["LockIndex"]) == ("dg==", 7, 1)
        assert a["ModifyIndex"] == b["ModifyIndex"] > a["CreateIndex"]
    assert agent.state.delays.running(agent.now) == {"a": agent.now + 5, "b": agent.now + 5}


def test_a_lock_delay_refuses_every_lock_until_it_ends(agent: Driver) -> None:
    first, second = agent.session(LockDelay="5s"), agent.session()
    agent.ask("PUT", f"/v1/kv/k?acquire={first}", b"v")
    agent.ask("PUT", f"/v1/session/destroy/{first}")
    before = agent.state.store.raft_index
    assert agent.ask("PUT", f"/v1/kv/k?acquire={second}").json is False
    assert agent.ask("PUT", f"/v1/kv/k?acquire={UNKNOWN}").json is False
    assert agent.state.store.raft_index == before
    failure = agent.txn({"Verb": "lock", "Key": "k", "Session": second})
    assert failure.status == 409
    assert failure.json["Errors"] == [{"OpIndex": 0, "What": 'failed to lock key "k" due to lock delay'}]
    assert agent.ask("DELETE", "/v1/kv/k").json is True
    agent.advance(4.999)
    assert agent.ask("PUT", f"/v1/kv/k?acquire={second}").json is False
    agent.advance(0.001)
    assert agent.ask("PUT", f"/v1/kv/k?acquire={second}").json is True


def test_lock_delay_is_capped_at_a_minute(agent: Driver) -> None:
    first, second = agent.session(LockDelay="90s"), agent.session()
    agent.ask("PUT", f"/v1/kv/k?acquire={first}")
    agent.ask("PUT", f"/v1/session/destroy/{first}")
    agent.advance(59.999)
    assert agent.ask("PUT", f"/v1/kv/k?acquire={second}").json is False
    agent.advance(0.001)
    assert agent.ask("PUT", f"/v1/kv/k?acquire={second}").json is True


def test_release_and_delete_impose_no_delay(agent: Driver) -> None:
    first, second = agent.session(), agent.session()
    agent.ask("PUT", f"/v1/kv/k?acquire={first}")
    agent.ask("PUT", f"/v1/kv/k?release={first}")
    assert agent.ask("PUT", f"/v1/kv/k?acquire={second}").json is True
    agent.ask("DELETE", "/v1/kv/k")
    assert agent.ask("PUT", f"/v1/kv/k?acquire={first}").json is True
    assert agent.entry("k")["LockIndex"] == 1
