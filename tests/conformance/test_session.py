"""Sessions: create and its refusals, destroy, renew, info, expiry."""

from __future__ import annotations

import json
import time

import pytest

from tests.conformance.target import UNKNOWN, Target
from tests.support.stalls import lasting

SECOND = 1_000_000_000
BODY_TYPE = "struct { LockDelay interface {}; *structs.Alias }"


def test_defaults(target: Target) -> None:
    session = target.put("/v1/session/create").json["ID"]
    (shown,) = target.info(session)
    assert list(shown) == [
        "ID",
        "Name",
        "Node",
        "LockDelay",
        "Behavior",
        "TTL",
        "NodeChecks",
        "ServiceChecks",
        "CreateIndex",
        "ModifyIndex",
    ]
    index = shown["CreateIndex"]
    assert shown == {
        "ID": session,
        "Name": "",
        "Node": target.node,
        "LockDelay": 15 * SECOND,
        "Behavior": "release",
        "TTL": "",
        "NodeChecks": ["serfHealth"],
        "ServiceChecks": None,
        "CreateIndex": index,
        "ModifyIndex": index,
    }


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b'{"ID":"x","CreateIndex":7,"Foo":1} junk'])
def test_bodies_that_say_nothing(target: Target, body: bytes) -> None:
    session = target.put("/v1/session/create", body).json["ID"]
    assert target.info(session)[0]["NodeChecks"] == ["serfHealth"]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"Name": "<&>é\u2028"}, {"Name": "<&>é\u2028"}),
        ({"Name": "n" * 70_000}, {"Name": "n" * 70_000}),
        ({"nAmE": "x", "tTL": "10s"}, {"Name": "x", "TTL": "10s"}),
        ({"Behavior": ""}, {"Behavior": "release"}),
        ({"Behavior": "delete"}, {"Behavior": "delete"}),
        ({"TTL": "1m30s"}, {"TTL": "1m30s"}),
        ({"TTL": "0s"}, {"TTL": "0s"}),
        ({"TTL": "200ms"}, {"TTL": "200ms"}),
        ({"TTL": "24h"}, {"TTL": "24h"}),
        ({"TTL": "86400s"}, {"TTL": "86400s"}),
        ({"TTL": None, "Name": None, "Node": None}, {"TTL": "", "Name": ""}),
        ({"ServiceChecks": []}, {"ServiceChecks": []}),
        ({"NodeChecks": None}, {"NodeChecks": None}),
        ({"NodeChecks": []}, {"NodeChecks": []}),
        ({"Checks": []}, {"NodeChecks": []}),
        ({"Checks": None, "NodeChecks": ["serfHealth"]}, {"NodeChecks": []}),
        ({"Checks": ["serfHealth"]}, {"NodeChecks": ["serfHealth"]}),
        ({"Checks": ["c1"], "NodeChecks": []}, {"NodeChecks": []}),
        ({"Checks": ["serfHealth", "serfHealth"]}, {"Checks": ["serfHealth", "serfHealth"]}),
    ],
)
def test_what_is_stored(target: Target, fields: dict[str, object], shown: dict[str, object]) -> None:
    session = target.put("/v1/session/create", fields).json["ID"]
    (stored,) = target.info(session)
    assert stored | shown == stored
    assert ("Checks" in stored) is ("Checks" in shown)


@pytest.mark.parametrize(
    ("sent", "nanoseconds"),
    [
        ("5s", 5 * SECOND),
        ("1500ms", 1_500_000_000),
        ("1.5h", 5400 * SECOND),
        (".5s", SECOND // 2),
        ("90s", 90 * SECOND),
        ("500ns", 500 * SECOND),
        ("0s", 0),
        (0, 0),
        (5, 5 * SECOND),
        (999, 999 * SECOND),
        (1000, 1000),
        (1e9, SECOND),
        (1.5, SECOND),
        (-5, -5 * SECOND),
        (9e18, 9 * 10**18),
        (-9e15, 412_866_226_847_481_856),  # that many seconds, in nanoseconds, as an int64
        ("-10s", 8_446_744_073_709_551_616),
        ("0" * 5_000 + "1s", SECOND),
        (None, 15 * SECOND),
        (True, 0),
        ([], 0),
        ({}, 0),
    ],
)
def test_lock_delays(target: Target, sent: object, nanoseconds: int) -> None:
    assert target.info(target.session(LockDelay=sent))[0]["LockDelay"] == nanoseconds


REFUSED = [
    ({"TTL": "100ms"}, 500, "Invalid Session TTL '100000000', must be between [200ms=24h0m0s]"),
    ({"TTL": "25h"}, 500, "Invalid Session TTL '90000000000000', must be between [200ms=24h0m0s]"),
    ({"TTL": "-5s"}, 500, "Invalid Session TTL '-5000000000', must be between [200ms=24h0m0s]"),
    ({"TTL": "10"}, 500, "Session TTL '10' invalid: time: missing unit in duration \"10\""),
    ({"TTL": "abc"}, 500, "Session TTL 'abc' invalid: time: invalid duration \"abc\""),
    ({"TTL": 10}, 400, "json: cannot unmarshal number into Go struct field .TTL of type string"),
    ({"Name": 1}, 400, "json: cannot unmarshal number into Go struct field .Name of type string"),
    (
        {"NodeChecks": "x"},
        400,
        "json: cannot unmarshal string into Go struct field .NodeChecks of type []string",
    ),
    ({"LockDelay": "5"}, 400, 'time: missing unit in duration "5"'),
    ({"LockDelay": "abc"}, 400, 'time: invalid duration "abc"'),
    ({"LockDelay": ""}, 400, 'time: invalid duration ""'),
    ({"LockDelay": "9" * 5_000 + "s"}, 400, f'time: invalid duration "{"9" * 5_000}s"'),
    ({"LockDelay": "1x"}, 400, 'time: unknown unit "x" in duration "1x"'),
    ({"Behavior": "DELETE"}, 500, "Invalid Behavior setting 'DELETE'"),
    ({"Node": ""}, 500, "Must provide Node"),
    ({"Node": "elsewhere"}, 500, "Missing node registration"),
    ({"NodeChecks": ["nope"]}, 500, "Missing check 'nope' registration"),
    ({"ServiceChecks": [{"ID": "nope"}]}, 500, "Missing check 'nope' registration"),
    ([], 400, f"json: cannot unmarshal array into Go value of type {BODY_TYPE}"),
    (1, 400, f"json: cannot unmarshal number into Go value of type {BODY_TYPE}"),
    (b"{", 400, "unexpected EOF"),
    (b'{"a"}', 400, "invalid character '}' after object key"),
    (b'{"a":1,}', 400, "invalid character '}' looking for beginning of object key string"),
    (b'{"Name":"\\q"}', 400, "invalid character 'q' in string escape code"),
    (b"nul", 400, "unexpected EOF"),
]


@pytest.mark.parametrize(("body", "status", "text"), REFUSED, ids=[str(body)[:40] for body, _, _ in REFUSED])
def test_refused_bodies(target: Target, body: object, status: int, text: str) -> None:
    answer = target.put("/v1/session/create", body)
    assert answer.status == status
    assert target.says(answer.text, f"Request decode failed: {text}" if status == 400 else text)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


def test_a_chunked_body_is_not_read(target: Target) -> None:
    connection = target.connect()
    connection.request("PUT", "/v1/session/create", iter([b'{"Name":"x"}']), encode_chunked=True)
    session = json.loads(connection.getresponse().read())["ID"]
    connection.close()
    assert target.info(session)[0]["Name"] == ""


def test_the_last_of_repeated_fields_counts(target: Target) -> None:
    session = target.put("/v1/session/create", b'{"Name":"a","LockDelay":"1s","Name":"b"}').json["ID"]
    assert target.info(session)[0]["Name"] == "b"


def test_service_checks_are_echoed_and_a_warning_is_fine(target: Target) -> None:
    node = target.node_with_check("sc")
    body = {"Node": node, "SkipNodeUpdate": True, "Check": {"CheckID": "c1", "Status": "warning"}}
    assert target.put("/v1/catalog/register", body).json is True
    session = target.session(Node=node, ServiceChecks=[{"ID": "c1"}])
    assert target.info(session)[0]["ServiceChecks"] == [{"ID": "c1", "Namespace": ""}]
    target.put("/v1/catalog/deregister", {"Node": node})


def test_the_old_checks_come_with_serf_health(target: Target) -> None:
    node = target.node_with_check("old")
    refused = target.put("/v1/session/create", {"Node": node, "Checks": ["c1"]})
    assert refused.status == 500
    assert target.says(refused.text, "Missing check 'serfHealth' registration")
    target.put("/v1/catalog/deregister", {"Node": node})


def test_sessions_of_a_node(target: Target) -> None:
    assert target.get(f"/v1/session/node/none-{target.unique}").json == []
    missing = target.get("/v1/session/node/")
    assert (missing.status, missing.text) == (400, "Missing node name")


@pytest.mark.slow
def test_a_late_renewal_starts_the_whole_time_again(target: Target) -> None:
    session = target.session(TTL="800ms")
    began = time.monotonic()
    while time.monotonic() - began < 1.0:  # past the TTL, before twice of it
        assert target.info(session)
        time.sleep(0.05)
    before = time.monotonic()
    assert target.put(f"/v1/session/renew/{session}").status == 200
    while target.info(session):
        assert time.monotonic() - before < 10.0, "the session is still there"
        time.sleep(0.02)
    assert time.monotonic() - before >= 1.6


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/session/create", b'{"NodeChecks":[],"LockDelay":1e400}'),
        ("/v1/agent/check/register", b'{"Name":"c","TTL":-1e400}'),
    ],
)
def test_numbers_beyond_all_floats(target: Target, path: str, body: bytes) -> None:
    answer = target.put(path, body)
    assert answer.status == 400
    number = body.rpartition(b":")[2][:-1].decode()
    words = f"Request decode failed: json: cannot unmarshal number {number} into Go struct field "
    assert answer.text.startswith(words)
    assert answer.text.endswith(" of type float64")


def test_node_names_are_looked_up_without_case_and_echoed(target: Target) -> None:
    session = target.session(Node=target.node.upper())
    (shown,) = target.info(session)
    assert shown["Node"] == target.node.upper()
    assert session in {shown["ID"] for shown in target.get(f"/v1/session/node/{target.node}").json}


IDS: list[tuple[str, tuple[int, str], tuple[int, str], tuple[int, str]]] = [
    (UNKNOWN, (200, "true"), (404, f"Session id '{UNKNOWN}' not found"), (200, "[]")),
    ("", (400, "Missing session"), (400, "Missing session"), (400, "Missing session")),
]


MALFORMED = {
    "abc": "UUID must be 36 characters",
    "g" * 36: "Invalid UUID: encoding/hex: invalid byte: U+0067 'g'",
    "-" * 36: 'UUID should have maximum of 4 "-"; got 36',
    "11111111-2222-3333-44441555555555555": "Input (without hyphens) must be even length",
}


@pytest.mark.parametrize(("session", "destroy", "renew", "info"), IDS, ids=[row[0] or "empty" for row in IDS])
def test_ids(
    target: Target, session: str, destroy: tuple[int, str], renew: tuple[int, str], info: tuple[int, str]
) -> None:
    for method, verb, expected in (
        ("PUT", "destroy", destroy),
        ("PUT", "renew", renew),
        ("GET", "info", info),
    ):
        answer = target.ask(method, f"/v1/session/{verb}/{session}")
        assert (answer.status, answer.text.strip()) == expected


@pytest.mark.parametrize("session", MALFORMED)
def test_malformed_ids(target: Target, session: str) -> None:
    why = MALFORMED[session]
    for method, verb, later in (
        ("PUT", "destroy", (200, "true")),
        ("PUT", "renew", (404, f"Session id '{session}' not found")),
        ("GET", "info", (200, "[]")),
    ):
        answer = target.ask(method, f"/v1/session/{verb}/{session}")
        refused = (500, f"failed session lookup: index error: {why}")
        # 1.20.6 looks for them, and does not find them, like any other.
        assert (answer.status, answer.text.strip()) == (refused if target.is_1_8 else later)


def test_ids_are_matched_without_case(target: Target) -> None:
    session = target.session()
    assert target.info(session.upper())[0]["ID"] == session
    assert target.put(f"/v1/session/renew/{session.upper()}").json[0]["ID"] == session
    assert target.put(f"/v1/session/destroy/{session.upper()}").json is True
    assert target.info(session) == []


def test_lists_are_ordered_by_id(target: Target) -> None:
    own = {target.session() for _ in range(3)}
    listed = [shown["ID"] for shown in target.get("/v1/session/list").json]
    assert listed == sorted(listed)
    assert own <= set(listed)


def test_a_renewal_changes_nothing_but_the_time(target: Target) -> None:
    session = target.session(TTL="10s")
    before = target.info(session)
    assert target.put(f"/v1/session/renew/{session}").json == before == target.info(session)
    assert target.put(f"/v1/session/renew/{target.session()}").status == 200


def test_a_session_lives_longer_than_its_ttl_and_not_past_twice(target: Target) -> None:
    with lasting(least=0.95, most=3.0):
        session = target.session(TTL="500ms")
        (shown,) = target.info(session)
        answer = target.get(f"/v1/session/info/{session}?index={shown['CreateIndex']}&wait=10s")
        while answer.json:
            answer = target.get(f"/v1/session/info/{session}?index={answer.index}&wait=10s")


def test_reading_a_malformed_id_still_has_headers(target: Target) -> None:
    answer = target.get("/v1/session/info/abc")
    if target.is_1_8:
        assert answer.headers["X-Consul-Index"] == "1"
        assert answer.headers["X-Consul-KnownLeader"] == "false"
    else:  # an answer like any other, that can be waited upon
        assert 1 < answer.index <= target.get("/v1/session/list").index
        assert answer.headers["X-Consul-KnownLeader"] == "true"
