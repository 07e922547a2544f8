"""Transactions: bodies, limits, failures by kind, and results matched to their operations."""

from __future__ import annotations

import base64
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord.errors import (
    DecodeError,
    InvalidArgument,
    InvalidKey,
    PermissionDenied,
    TxnFailed,
    ValueTooLarge,
)
from consul_coord.http.endpoints import _txn_results, kv
from consul_coord.http.endpoints.kv import _in_turn, kind_of, txn
from consul_coord.http.messages import Response, Retry
from consul_coord.models import KVPair, ReadOptions, TxnOp, TxnResult, WriteOptions

if TYPE_CHECKING:
    from collections.abc import Callable

SID = "adf4238a-882b-9ddc-4a9d-5b6758e4159e"

ENCODED = {
    '{"Verb":"set","Key":"k","Value":"dg==","Flags":7}': TxnOp.set("k", "v", flags=7),
    '{"Verb":"set","Key":"k","Value":""}': TxnOp.set("k", b""),
    '{"Verb":"cas","Key":"k","Value":"dg==","Index":0}': TxnOp.cas("k", "v", 0),
    '{"Verb":"lock","Key":"k","Value":"","Flags":3304740253564472344,"Session":"s"}': TxnOp.lock(
        "k", "s", flags=3304740253564472344
    ),
    '{"Verb":"unlock","Key":"k","Value":"dg==","Session":"s"}': TxnOp.unlock("k", "s", value=b"v"),
    '{"Verb":"get","Key":"k"}': TxnOp.get("k"),
    '{"Verb":"get-tree","Key":"k/"}': TxnOp.get_tree("k/"),
    '{"Verb":"check-index","Key":"k","Index":18446744073709551615}': TxnOp.check_index("k", 2**64 - 1),
    '{"Verb":"check-session","Key":"k","Session":""}': TxnOp.check_session("k", ""),
    '{"Verb":"check-not-exists","Key":"k"}': TxnOp.check_not_exists("k"),
    '{"Verb":"delete","Key":"k"}': TxnOp.delete("k"),
    '{"Verb":"delete-tree","Key":""}': TxnOp.delete_tree(""),
    '{"Verb":"delete-cas","Key":"k","Index":3}': TxnOp.delete_cas("k", 3),
}
READ_VERBS = {"get", "get-tree", "check-index", "check-session", "check-not-exists"}


@pytest.mark.parametrize(("body", "op"), ENCODED.items(), ids=[op.verb for op in ENCODED.values()])
def test_each_verb(body: str, op: TxnOp) -> None:
    request = txn(op).request
    assert request.body == f'[{{"KV":{body}}}]'.encode()
    assert request.retry is (Retry.READ if op.verb in READ_VERBS else Retry.NEVER)


def test_only_what_writes_nothing_anywhere_is_taken_to_be_repeatable() -> None:
    for ops in itertools.product(ENCODED.values(), repeat=2):
        reads = all(op.verb in READ_VERBS for op in ops)
        assert txn(*ops).request.retry is (Retry.READ if reads else Retry.NEVER), ops


def test_options_and_retry() -> None:
    consistent = ReadOptions(consistency="consistent", datacenter="dc2")
    assert txn(TxnOp.get("k"), options=consistent).request.params == (("dc", "dc2"), ("consistent", ""))
    assert txn(TxnOp.delete("k"), options=WriteOptions(datacenter="dc2")).request.params == (("dc", "dc2"),)
    assert txn(TxnOp.lock("k", SID), retry=Retry.IDEMPOTENT).request.retry is Retry.IDEMPOTENT


def test_needed_rules_are_named_once_each() -> None:
    ops = (
        TxnOp.lock("k", SID),
        TxnOp.set("k", b""),
        TxnOp.delete_tree("p/"),
        TxnOp.get_tree("p/"),
        TxnOp.get("k"),
    )
    assert txn(*ops).request.needed == (
        'key:write on "k"',
        'key:write on the prefix "p/"',
        'key:read on the prefix "p/"',
        'key:read on "k"',
    )


REFUSED: dict[str, tuple[Callable[[], Any], type[InvalidArgument]]] = {
    "no operation": (txn, InvalidArgument),
    "65 operations": (lambda: txn(*[TxnOp.get("k")] * 65), ValueTooLarge),
    "value": (lambda: txn(TxnOp.set("k", b"x" * (512 * 1024 + 1))), ValueTooLarge),
    "body": (lambda: txn(TxnOp.set("k", b"x" * 400_000)), ValueTooLarge),
    "key": (lambda: txn(TxnOp.get("/k")), InvalidKey),
    "empty key": (lambda: txn(TxnOp.get("")), InvalidKey),
    "prefix": (lambda: txn(TxnOp.get_tree("a//")), InvalidKey),
    "index": (lambda: txn(TxnOp.cas("k", b"", -1)), InvalidArgument),
    "flags": (lambda: txn(TxnOp.set("k", b"", flags=2**64)), InvalidArgument),
    "blocking": (lambda: txn(TxnOp.get("k"), options=ReadOptions(index=1)), InvalidArgument),
    "near": (lambda: txn(TxnOp.get("k"), options=ReadOptions(near="n")), InvalidArgument),
}


@pytest.mark.parametrize(("make", "kind"), REFUSED.values(), ids=REFUSED)
def test_refused_before_anything_is_sent(make: Callable[[], Any], kind: type[InvalidArgument]) -> None:
    with pytest.raises(kind):
        make()


def test_as_much_as_fits() -> None:
    assert len(json.loads(txn(*[TxnOp.get("k")] * 64).request.body or b"")) == 64
    overhead = len(txn(TxnOp.set("k", b"")).request.body or b"")
    largest = b"x" * ((512 * 1024 - overhead) // 4 * 3)
    assert len(txn(TxnOp.set("k", largest)).request.body or b"") <= 512 * 1024
    with pytest.raises(ValueTooLarge) as caught:
        txn(TxnOp.set("k", largest + b"x"))
    assert caught.value.limit == 512 * 1024 < caught.value.size


KINDS = {
    'failed to set key "k", index is stale': "stale_index",
    'failed to lock key "k", lock is already held': "held",
    'failed to lock key "k" due to lock delay': "lock_delay",
    'failed to unlock key "k", lock isn\'t held, or is held by another session': "not_holder",
    f'invalid session "{SID}"': "invalid_session",
    "missing session": "invalid_session",
    "failed session lookup: index error: UUID must be 36 characters": "invalid_session",
    'key "k" doesn\'t exist': "missing",
    'failed index check for key "k", current modify index 9 != 1': "stale_index",
    'failed to check index, key "k" doesn\'t exist': "missing",
    'failed session check for key "k", current session "a" != "b"': "not_holder",
    'failed to check session, key "k" doesn\'t exist': "missing",
    'key "k" exists': "exists",
    'failed to delete key "k", index is stale': "stale_index",
    "Permission denied": "denied",
    "Permission denied: token with AccessorID 'x' lacks permission 'key:write' on \"k\"": "denied",
    "Permission denied: anonymous token lacks permission 'key:write' on \"k exists\".": "denied",
    'invalid session "abc"': "invalid_session",
    "unknown KV operation: SET": "other",
    "Must provide key": "other",
    "": "other",
    'key "lock is already held" doesn\'t exist': "missing",
    'key "a \\" due to lock delay" exists': "exists",
    'failed to lock key "key exists", lock is already held': "held",
}


@pytest.mark.parametrize(("text", "kind"), KINDS.items())
@pytest.mark.parametrize(
    "prefix", ["", "rpc error making call: ", "rpc error making call: rpc error making call: "]
)
def test_failure_kinds(text: str, kind: str, prefix: str) -> None:
    assert kind_of(prefix + text) == kind


def conflict(*errors: Any) -> Response:
    return Response(409, {}, json.dumps({"Results": None, "Errors": list(errors)}).encode())


def test_failures() -> None:
    ops = (TxnOp.check_index("c", 3), TxnOp.lock("k", SID))
    held = {"OpIndex": 1, "What": 'failed to lock key "k", lock is already held'}
    stray = {"OpIndex": 9, "What": "Permission denied"}
    with pytest.raises(TxnFailed) as caught:
        txn(*ops).decode(conflict(held, stray))
    assert [(each.op_index, each.op, each.kind) for each in caught.value.failures] == [
        (1, ops[1], "held"),
        (9, None, "denied"),
    ]
    for part in ("PUT /v1/txn", "operation 1", "lock is already held", 'key:write on "k"'):
        assert part in str(caught.value)


@pytest.mark.parametrize(("number", "told"), [(10, "w2; and 7 more$"), (4, "w2; and 1 more$"), (3, "w2$")])
def test_many_failures_are_told_shortly(number: int, told: str) -> None:
    failed = [{"OpIndex": at, "What": f"w{at}"} for at in range(number)]
    with pytest.raises(TxnFailed, match=told):
        txn(*[TxnOp.get("k")] * 10).decode(conflict(*failed))


def test_other_refusals() -> None:
    with pytest.raises(PermissionDenied):
        txn(TxnOp.get("k")).decode(Response(403, {}, b"ACL not found"))
    with pytest.raises(DecodeError):
        txn(TxnOp.get("k")).decode(Response(409, {}, b"proxy error"))
    with pytest.raises(TxnFailed, match="no reason"):
        txn(TxnOp.get("k")).decode(conflict())


def entry(
    key: str, value: str | None = None, *, session: str | None = None, index: int = 5
) -> dict[str, Any]:
    fields = {"LockIndex": 1, "Key": key, "Flags": 0, "Value": value, "CreateIndex": 5, "ModifyIndex": index}
    return {"KV": fields if session is None else {**fields, "Session": session}}


def reply(*entries: dict[str, Any]) -> Response:
    return Response(200, {}, json.dumps({"Results": list(entries), "Errors": None}).encode())


def test_results_of_a_join() -> None:
    value = base64.b64encode(b"v").decode()
    ops = (TxnOp.lock("k/.wait/s", "s"), TxnOp.get("k"), TxnOp.get_tree("k/.wait/"))
    answer = txn(*ops).decode(
        reply(
            entry("k/.wait/s", session="s", index=9),
            entry("k", value, session="r"),
            entry("k/.wait/r", session="r"),
            entry("k/.wait/s", session="s", index=9),
        )
    )
    assert [[pair.key for pair in pairs] for pairs in answer] == [
        ["k/.wait/s"],
        ["k"],
        ["k/.wait/r", "k/.wait/s"],
    ]
    assert answer[1][0] == KVPair("k", b"v", 0, "r", create_index=5, modify_index=5, lock_index=1)
    assert (answer.index, len(answer)) == (9, 3)


def test_no_results() -> None:
    assert txn(TxnOp.delete("k")).decode(Response(200, {}, b'{"Results":null,"Errors":null}')) == TxnResult(
        ((),)
    )
    assert TxnResult().index == 0


def test_results_that_are_not_ours() -> None:
    for ops in ((TxnOp.get("a"),), (TxnOp.delete("b"),), (TxnOp.get_tree("a/"),)):
        with pytest.raises(DecodeError, match="do not belong"):
            txn(*ops).decode(reply(entry("b")))


def keys(ops: list[TxnOp], *names: str) -> list[list[str]]:
    return [
        [pair.key for pair in pairs] for pairs in _txn_results.assign(ops, [KVPair(name) for name in names])
    ]


def test_what_may_not_be_read_is_left_out() -> None:
    ops = [TxnOp.lock("c", "s"), TxnOp.get("k"), TxnOp.get_tree("c")]
    assert keys(ops) == [[], [], []]
    assert keys(ops, "c", "c") == [["c"], [], ["c"]]
    assert keys(ops, "k") == [[], ["k"], []]


def test_a_write_with_its_entry_but_a_tree_without() -> None:
    assert keys([TxnOp.lock("c/1", "s"), TxnOp.get_tree("c/")], "c/1") == [["c/1"], []]


def test_a_tree_before_the_key_is_made() -> None:
    assert keys([TxnOp.get_tree("a/"), TxnOp.set("a/z", b"")], "a/b", "a/z") == [["a/b"], ["a/z"]]
    ops = [TxnOp.get_tree("a/"), TxnOp.delete_tree("a/"), TxnOp.set("a/z", b""), TxnOp.get_tree("a/")]
    assert keys(ops, "a/b", "a/z", "a/z") == [["a/b"], [], ["a/z"], ["a/z"]]


def test_a_tree_between_writes() -> None:
    assert keys([TxnOp.get_tree("a/"), TxnOp.cas("a/z", b"", 0)], "a/z") == [[], ["a/z"]]
    assert keys([TxnOp.get_tree("a/"), TxnOp.cas("a/z", b"", 7)], "a/z", "a/z") == [["a/z"], ["a/z"]]
    ops = [TxnOp.set("a/x", b""), TxnOp.delete_tree("a/"), TxnOp.get_tree("a/"), TxnOp.set("a/x", b"")]
    assert keys(ops, "a/x", "a/x") == [["a/x"], [], [], ["a/x"]]


def test_a_tree_is_not_blamed_for_keys_of_other_places() -> None:
    """What was written elsewhere says nothing about what a tree has to show."""
    ops = [TxnOp.set("b", b""), TxnOp.get_tree("a/"), TxnOp.set("a/2", b""), TxnOp.get_tree("a/")]
    assert keys(ops, "b", "a/1", "a/2", "a/1", "a/2") == [["b"], ["a/1"], ["a/2"], ["a/1", "a/2"]]


def test_many_trees_take_no_time() -> None:
    names = [f"a/{number:04}" for number in range(1000)]
    assert keys([TxnOp.get_tree("a/")] * 64, *names * 64) == [names] * 64
    with pytest.raises(ValueError, match="do not belong"):
        keys([TxnOp.get_tree("a/")] * 64, *names, "b")


def test_no_place_of_a_reply_is_tried_twice_for_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a reply that does not belong to 64 operations would take for ever."""
    tried: set[tuple[Any, int, int]] = set()
    choices = _txn_results._Matcher._choices

    def note(matcher: Any, op: int, start: int) -> Any:
        assert (matcher, op, start) not in tried
        tried.add((matcher, op, start))
        return choices(matcher, op, start)

    monkeypatch.setattr(_txn_results._Matcher, "_choices", note)
    with pytest.raises(ValueError, match="do not belong"):
        keys([TxnOp.get("a")] * 64, *["a"] * 32, "b")
    assert len(tried) > 64, "it was searched for"


def as_pairs(*names: str) -> tuple[KVPair, ...]:
    return tuple(KVPair(name, create_index=at) for at, name in enumerate(names))


REPLIES_IN_TURN: dict[str, tuple[tuple[TxnOp, ...], tuple[str, ...]]] = {
    "barge": ((TxnOp.check_not_exists("k/.wait/s"), TxnOp.lock("k", "s")), ("k",)),
    "unlock": (
        (TxnOp.check_index("k", 7), TxnOp.unlock("k", "s"), TxnOp.get_tree("k/.wait/")),
        ("k", "k", "k/.wait/r", "k/.wait/s"),
    ),
    "unlock without a queue": ((TxnOp.unlock("k", "s"), TxnOp.get_tree("k/.wait/")), ("k",)),
    "take": (
        (TxnOp.check_index("k/.wait/s", 7), TxnOp.lock("k", "s"), TxnOp.delete("w")),
        ("k/.wait/s", "k"),
    ),
}


@pytest.mark.parametrize(("ops", "names"), REPLIES_IN_TURN.values(), ids=REPLIES_IN_TURN)
def test_the_usual_replies_need_no_search(ops: tuple[TxnOp, ...], names: tuple[str, ...]) -> None:
    pairs = as_pairs(*names)
    found = _in_turn(ops, pairs)
    assert found is not None
    assert found == _txn_results.assign(ops, pairs)


PLAIN_REPLY = reply(entry("k", session="s"), entry("k/.wait/r", "AP8="))
ODD: tuple[object, ...] = (None, True, 0, 1, 2**64, "", "A", "AA==", [], [{}], {}, {"KV": {}}, {"KV": None})


def changed(value: Any, at: int, to: object) -> tuple[Any, int]:
    """Return a JSON value with its ``at``-th part, outermost first, replaced; and how many parts are left."""
    if at <= 0:
        return (to if at == 0 else value), at - 1
    at -= 1
    if isinstance(value, dict):
        made = dict(value)
    elif isinstance(value, list):
        made = dict(enumerate(value))
    else:
        return value, at
    for name in made:
        made[name], at = changed(made[name], at, to)
    return (made if isinstance(value, dict) else list(made.values())), at


def outcome(read: Callable[[], object]) -> str:
    try:
        return repr(read())
    except (DecodeError, TxnFailed) as error:
        return repr(error)


@pytest.mark.parametrize("at", range(20))
@pytest.mark.parametrize("to", ODD, ids=repr)
def test_a_reply_with_one_odd_part_is_read_field_by_field(
    at: int, to: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = (TxnOp.lock("k", "s"), TxnOp.get_tree("k/.wait/"))
    odd = Response(200, {}, json.dumps(changed(json.loads(PLAIN_REPLY.body), at, to)[0]).encode())
    at_once = outcome(lambda: txn(*ops).decode(odd))
    monkeypatch.setattr(kv, "_plain_entries", lambda *_: None)
    assert at_once == outcome(lambda: txn(*ops).decode(odd))


def test_what_agents_send_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(kv, "_read_txn")
    answer = txn(TxnOp.lock("k", "s"), TxnOp.get_tree("k/.wait/")).decode(PLAIN_REPLY)
    assert [[pair.key for pair in pairs] for pairs in answer] == [["k"], ["k/.wait/r"]]


@pytest.mark.parametrize(
    "body", [b"NaN", b"\xff", b'"\xff"', b'{"Results":[],"Errors":null}'.decode().encode("utf-16")]
)
def test_a_body_that_is_no_json(body: bytes) -> None:
    with pytest.raises(DecodeError, match="not JSON"):
        txn(TxnOp.delete("k")).decode(Response(200, {}, body))


KEYS = st.sampled_from(["a", "a/", "a/b", "a/c", "b", "é"])
PREFIXES = st.sampled_from(["", "a", "a/", "b", "c"])
OPS = st.one_of(
    KEYS.map(lambda key: TxnOp.set(key, b"")),
    KEYS.map(lambda key: TxnOp.lock(key, "s")),
    KEYS.map(TxnOp.get),
    KEYS.map(lambda key: TxnOp.check_index(key, 1)),
    KEYS.map(TxnOp.check_not_exists),
    KEYS.map(TxnOp.delete),
    KEYS.map(lambda key: TxnOp.delete_cas(key, 1)),
    KEYS.map(lambda key: TxnOp.cas(key, b"", 0)),
    KEYS.map(lambda key: TxnOp.cas(key, b"", 1)),
    PREFIXES.map(TxnOp.get_tree),
    PREFIXES.map(TxnOp.delete_tree),
)


def run(ops: list[TxnOp], store: set[str]) -> list[list[str]] | None:
    """Apply the operations as Consul does; None when one of them refuses."""
    entries: list[list[str]] = []
    for op in ops:
        exists = op.key in store
        wanted = {"get": True, "check-index": True, "check-not-exists": False, "cas": op.index != 0}.get(
            op.verb
        )
        if wanted is not None and wanted != exists:
            return None
        if op.verb in {"set", "lock", "cas"}:
            store.add(op.key)
        below = {key for key in store if key.startswith(op.key)}
        if op.verb in {"delete", "delete-cas", "delete-tree"}:
            store -= below if op.verb == "delete-tree" else {op.key}
        silent = op.verb.startswith("delete") or op.verb == "check-not-exists"
        found = sorted(below, key=str.encode) if op.verb == "get-tree" else [op.key]
        entries.append([] if silent else found)
    return entries


@given(st.lists(OPS, min_size=1, max_size=5), st.lists(KEYS, max_size=3), st.integers(0, 5))
def test_what_is_taken_in_turn_is_what_the_search_finds(ops: list[TxnOp], more: list[str], at: int) -> None:
    alone = [op.key for op in ops if op.verb in {"set", "lock", "get", "check-index", "cas"}]
    for names in (alone, [*alone, *more], [*alone, *sorted({*more})], [*alone[:at], *more, *alone[at:]]):
        pairs = as_pairs(*names)
        in_turn = _in_turn(ops, pairs)
        assert in_turn is None or in_turn == _txn_results.assign(ops, pairs)


@given(st.text(), st.text(), st.text())
def test_strings_are_in_consuls_order(one: str, other: str, prefix: str) -> None:
    bytes_of = [text.encode(errors="surrogatepass") for text in (one, other, prefix)]
    assert (one < other) == (bytes_of[0] < bytes_of[1])
    assert one.startswith(prefix) == bytes_of[0].startswith(bytes_of[2])


@given(st.lists(OPS, min_size=1, max_size=8), st.sets(KEYS), st.sets(KEYS))
def test_results_are_given_back_to_their_operations(
    ops: list[TxnOp], store: set[str], hidden: set[str]
) -> None:
    entries = run(ops, store)
    if entries is None:
        return
    visible = [[key for key in found if key not in hidden] for found in entries]
    assert keys(ops, *(key for found in visible for key in found)) == visible
