"""Transactions: every verb, its failures, rollback, limits and bodies."""

from __future__ import annotations

import base64

import pytest

from tests.conformance.target import UNKNOWN, Target


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def test_all_verbs_at_one_index(target: Target) -> None:
    key, tree, session = target.key(), target.key("t/"), target.session()
    answer = target.txn(
        {"Verb": "check-not-exists", "Key": key},
        {"Verb": "lock", "Key": key, "Session": session, "Value": b64(b"v"), "Flags": 7},
        {"Verb": "cas", "Key": f"{tree}1", "Index": 0, "Value": b64(b"1")},
        {"Verb": "set", "Key": f"{tree}2", "Value": b64(b"2")},
        {"Verb": "get", "Key": key},
        {"Verb": "get-tree", "Key": tree},
        {"Verb": "check-session", "Key": key, "Session": session},
        {"Verb": "check-session", "Key": f"{tree}1", "Session": ""},
        {"Verb": "delete", "Key": f"{tree}1"},
        {"Verb": "delete-cas", "Key": target.key("none"), "Index": 5},
        {"Verb": "delete-tree", "Key": tree},
        {"Verb": "unlock", "Key": key, "Session": session},
    )
    assert answer.status == 200
    assert answer.headers["X-Consul-Index"] is None
    assert list(answer.json) == ["Results", "Errors"]
    results = [result["KV"] for result in answer.json["Results"]]
    index = results[0]["ModifyIndex"]
    locked = {
        "LockIndex": 1,
        "Key": key,
        "Flags": 7,
        "Session": session,
        "CreateIndex": index,
        "ModifyIndex": index,
    }
    child = {"LockIndex": 0, "Key": f"{tree}1", "Flags": 0, "CreateIndex": index, "ModifyIndex": index}
    other = child | {"Key": f"{tree}2"}
    freed = {name: value for name, value in locked.items() if name != "Session"} | {"Flags": 0}
    assert results == [
        locked | {"Value": None},
        child | {"Value": None},
        other | {"Value": None},
        locked | {"Value": b64(b"v")},
        child | {"Value": b64(b"1")},
        other | {"Value": b64(b"2")},
        locked | {"Value": None},
        child | {"Value": None},
        freed | {"Value": None},
    ]


FAILURES: list[tuple[dict[str, object], str]] = [
    ({"Verb": "cas", "Key": "K", "Index": 0}, 'failed to set key "K", index is stale'),
    ({"Verb": "cas", "Key": "N", "Index": 9}, 'failed to set key "N", index is stale'),
    ({"Verb": "lock", "Key": "K", "Session": "T"}, 'failed to lock key "K", lock is already held'),
    ({"Verb": "lock", "Key": "N"}, "missing session"),
    ({"Verb": "lock", "Key": "N", "Session": UNKNOWN}, f'invalid session "{UNKNOWN}"'),
    (
        {"Verb": "lock", "Key": "N", "Session": "x"},
        "failed session lookup: index error: UUID must be 36 characters",
    ),
    (
        {"Verb": "unlock", "Key": "K", "Session": "T"},
        'failed to unlock key "K", lock isn\'t held, or is held by another session',
    ),
    ({"Verb": "get", "Key": "N"}, 'key "N" doesn\'t exist'),
    (
        {"Verb": "check-index", "Key": "K", "Index": 1},
        'failed index check for key "K", current modify index I != 1',
    ),
    ({"Verb": "check-index", "Key": "N", "Index": 0}, 'failed to check index, key "N" doesn\'t exist'),
    (
        {"Verb": "check-session", "Key": "K", "Session": "T"},
        'failed session check for key "K", current session "S" != "T"',
    ),
    ({"Verb": "check-session", "Key": "N", "Session": ""}, 'failed to check session, key "N" doesn\'t exist'),
    ({"Verb": "check-not-exists", "Key": "K"}, 'key "K" exists'),
    ({"Verb": "delete-cas", "Key": "K", "Index": 1}, 'failed to delete key "K", index is stale'),
    ({"Verb": "SET", "Key": "K"}, 'unknown KV verb "SET"'),
    ({"Verb": "set", "Key": ""}, "Must provide key"),
    ({"Verb": "get-tree", "Key": ""}, "Must provide key"),
    ({}, "Must provide key"),
]


@pytest.mark.parametrize(("op", "what"), FAILURES, ids=[str(list(op.values())) for op, _ in FAILURES])
@pytest.mark.parametrize("with_write", [True, False])
def test_failures(target: Target, op: dict[str, object], what: str, *, with_write: bool) -> None:
    key, session, other = target.key(), target.session(), target.session()
    target.put(f"/v1/kv/{key}?acquire={session}", b"v")
    before = target.entry(key)
    names = {"K": key, "N": target.key("n"), "S": session, "T": other, "I": str(before["ModifyIndex"])}
    sent = {name: names.get(value, value) if isinstance(value, str) else value for name, value in op.items()}
    for short, long in (
        ('"K"', f'"{key}"'),
        ('"N"', f'"{names["N"]}"'),
        ('"S"', f'"{session}"'),
        ('"T"', f'"{other}"'),
    ):
        what = what.replace(short, long)
    what = what.replace(" I ", f" {names['I']} ")
    first = {"Verb": "set", "Key": target.key("new")} if with_write else {"Verb": "get", "Key": key}
    answer = target.txn(first, sent)
    assert answer.status == 409
    assert answer.json["Results"] is None
    (error,) = answer.json["Errors"]
    assert error["OpIndex"] == 1
    assert target.says(error["What"], what)
    assert target.entry(key) == before
    assert target.get(f"/v1/kv/{target.key('new')}").status == 404


def test_prechecks_hide_later_failures(target: Target) -> None:
    key = target.key()
    answer = target.txn(
        {"Verb": "set", "Key": key}, {"Verb": "get", "Key": target.key("none")}, {"Verb": "set", "Key": ""}
    )
    assert answer.json["Errors"] == [{"OpIndex": 2, "What": "Must provide key"}]


def test_every_failure_of_the_second_stage_is_reported(target: Target) -> None:
    answer = target.txn(
        {"Verb": "get", "Key": target.key("a")},
        {"Verb": "set", "Key": target.key()},
        {"Verb": "get", "Key": target.key("b")},
    )
    assert [error["OpIndex"] for error in answer.json["Errors"]] == [0, 2]


@pytest.mark.parametrize("body", [b"[]", b"null", b"[{}]"])
def test_transactions_that_only_read(target: Target, body: bytes) -> None:
    answer = target.put("/v1/txn", body)
    assert answer.status == 200
    expected: dict[str, object] = {
        "Results": [],
        "Errors": None,
        "Index": 0 if target.is_1_8 else 1,
        "LastContact": 0,
        "KnownLeader": True,
        "ConsistencyLevel": "",
    }
    assert target.shows(answer.json, expected)
    assert answer.headers["X-Consul-Index"] is None
    assert answer.headers["X-Consul-KnownLeader"] == "true"
    assert target.put("/v1/txn?stale", body).status == target.put("/v1/txn?consistent", body).status == 200


PARSE = [
    (b"", "EOF"),
    (b"[", "unexpected EOF"),
    (b'[{"KV":{"Foo":1}}]', 'json: unknown field "Foo"'),
    (b'[{"Session":{}}]', 'json: unknown field "Session"'),
    (b'[{"KV":{"Value":"abc"}}]', "illegal base64 data at input byte 0"),
    (b'[{"KV":{"Value":"a b="}}]', "illegal base64 data at input byte 1"),
    (b'{"a":1}', "json: cannot unmarshal object into Go value of type api.TxnOps"),
    (b"[1]", "json: cannot unmarshal number into Go value of type api.TxnOp"),
    (b'[{"KV":1}]', "json: cannot unmarshal number into Go struct field TxnOp.KV of type api.KVTxnOp"),
    (
        b'[{"KV":{"Verb":1}}]',
        "json: cannot unmarshal number into Go struct field KVTxnOp.KV.Verb of type api.KVOp",
    ),
    (
        b'[{"KV":{"Flags":-1}}]',
        "json: cannot unmarshal number -1 into Go struct field KVTxnOp.KV.Flags of type uint64",
    ),
    (b"[1 2]", "invalid character '2' after array element"),
]


@pytest.mark.parametrize(("body", "text"), PARSE, ids=[body.decode() or "empty" for body, _ in PARSE])
def test_bodies_that_are_no_transaction(target: Target, body: bytes, text: str) -> None:
    answer = target.put("/v1/txn", body)
    assert answer.status == 400
    assert target.says(answer.text, f"Failed to parse body: {text}")


def test_limits(target: Target) -> None:
    limit = 64 if target.is_1_8 else 128  # later ones take more, whatever their documentation says
    ops = [{"Verb": "set", "Key": target.key(str(number))} for number in range(limit + 1)]
    assert target.txn(*ops[:limit]).status == 200
    refused = target.txn(*ops)
    text = f"Transaction contains too many operations ({limit + 1} > {limit})"
    assert (refused.status, refused.text) == (413, text)
    large = target.put("/v1/txn", b" " * 524_289)
    assert large.status == 413
    assert large.text.startswith("Request body(524289 bytes) too large, max size: 524288 bytes. See http")


def test_names_are_taken_as_they_are(target: Target) -> None:
    way_up = "../" if target.is_1_8 else ""  # which later ones refuse
    key = f"/lead//{target.unique}/{way_up}x"
    assert target.txn({"Verb": "set", "Key": key}).status == 200
    assert target.txn({"Verb": "get", "Key": key}).json["Results"][0]["KV"]["Key"] == key
    target.txn({"Verb": "delete", "Key": key})


def test_a_lock_and_a_record_in_one_step(target: Target) -> None:
    key, record, session = target.key(), target.key(".lock"), target.session()
    ops: list[dict[str, object]] = [
        {"Verb": "lock", "Key": key, "Session": session},
        {"Verb": "cas", "Key": record, "Index": 0, "Value": b64(b"{}")},
    ]
    assert target.txn(*ops).status == 200
    assert target.txn(*ops).status == 409
    fenced: list[dict[str, object]] = [
        {"Verb": "check-session", "Key": key, "Session": session},
        {"Verb": "set", "Key": record},
    ]
    assert target.txn(*fenced).status == 200
    target.put(f"/v1/kv/{key}?release={session}")
    assert target.txn(*fenced).status == 409


def test_a_failure_takes_a_lock_back(target: Target) -> None:
    key, session = target.key(), target.session()
    answer = target.txn(
        {"Verb": "lock", "Key": key, "Session": session}, {"Verb": "get", "Key": target.key("none")}
    )
    assert answer.status == 409
    assert target.get(f"/v1/kv/{key}").status == 404
    assert target.put(f"/v1/kv/{key}?acquire={target.session()}").json is True
    assert target.entry(key)["LockIndex"] == 1


def test_later_operations_see_earlier_ones(target: Target) -> None:
    key, session = target.key(), target.session()
    answer = target.txn(
        {"Verb": "set", "Key": key, "Value": b64(b"1")},
        {"Verb": "set", "Key": key, "Value": b64(b"2")},
        {"Verb": "get", "Key": key},
        {"Verb": "lock", "Key": key, "Session": session, "Value": b64(b"3")},
        {"Verb": "get-tree", "Key": key},
    )
    shown = [result["KV"] for result in answer.json["Results"]]
    assert [(each["Value"], each.get("Session")) for each in shown] == [
        (None, None),
        (None, None),
        (b64(b"2"), None),
        (None, session),
        (b64(b"3"), session),
    ]


@pytest.mark.parametrize("verb", ["set", "cas"])
def test_a_plain_write_of_a_locked_key_keeps_the_session_and_resets_the_lock_index(
    target: Target, verb: str
) -> None:
    key, session = target.key(), target.session()
    target.put(f"/v1/kv/{key}?acquire={session}&flags=3", b"v")
    index = target.entry(key)["ModifyIndex"]
    assert target.txn({"Verb": verb, "Key": key, "Index": index, "Value": b64(b"w")}).status == 200
    shown = target.entry(key)
    assert (shown["Session"], shown["LockIndex"], shown["Flags"]) == (session, 0, 0)


def test_a_read_only_transaction_does_not_block(target: Target) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"v")
    ops = [{"KV": {"Verb": "get", "Key": key}}]
    answer = target.put("/v1/txn?index=1000000&wait=60s", ops)
    assert answer.json["Results"][0]["KV"]["Value"] == b64(b"v")


def test_get_or_empty_came_later(target: Target) -> None:
    answer = target.txn({"Verb": "get-or-empty", "Key": target.key()})
    if target.is_1_8:
        assert answer.json["Errors"] == [{"OpIndex": 0, "What": 'unknown KV verb "get-or-empty"'}]
    else:
        assert answer.status in {200, 409}


def test_other_methods_are_refused(target: Target) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = target.ask(method, "/v1/txn")
        assert (answer.status, answer.text) == (405, f"method {method} not allowed")
        assert answer.headers["Allow"] == "OPTIONS,PUT"
