"""/v1/txn: several operations at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consul_coord.server import gojson
from consul_coord.server.endpoints.kv import describe, too_large
from consul_coord.server.failures import Refusal
from consul_coord.server.gotext import GoParseError, quote
from consul_coord.server.kv import WRITES, KvOp
from consul_coord.server.records import Entry
from consul_coord.server.wire import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.acl import Authorizer
    from consul_coord.server.call import Call

_META = (("X-Consul-Knownleader", "true"), ("X-Consul-Lastcontact", "0"))


_KV = {
    "Verb": gojson.named("api.KVOp", gojson.text),
    "Key": gojson.text,
    "Value": gojson.base64_bytes,
    "Flags": gojson.uint64,
    "Index": gojson.uint64,
    "Session": gojson.text,
    "Namespace": gojson.text,
}

_OP = gojson.object_of(
    {"KV": gojson.object_of(_KV, struct="KVTxnOp", type_name="api.KVTxnOp")},
    struct="TxnOp",
    type_name="api.TxnOp",
)

_FILTERED = frozenset({"get", "get-tree"})  # not refused: their results are filtered
_READING = frozenset({"check-index", "check-session"})


def apply(call: Call) -> Reply:
    """Apply a transaction; one that only reads goes past Raft."""
    ops = _ops(call)
    writing = any(op.verb in WRITES for op in ops)
    permitted = _permission(call.authorizer)
    if writing:
        outcome = call.state.write_txn(ops, call.now, permitted)
    else:
        outcome = call.state.read_txn(ops, call.store, permitted)
    results = [r for r in outcome.results if call.authorizer.may("key", r.entry.key, "read")]
    shown: dict[str, object] = {
        "Results": None
        if outcome.failures
        else [{"KV": describe(r.entry, with_value=r.with_value)} for r in results],
        "Errors": [{"OpIndex": f.op_index, "What": f.what} for f in outcome.failures] or None,
    }
    if not writing:
        shown |= {"Index": 0, "LastContact": 0, "KnownLeader": True, "ConsistencyLevel": ""}
    reply = call.json(shown, status=409 if outcome.failures else 200)
    return reply if writing else Reply(reply.status, reply.body, (*reply.headers, *_META))


def _permission(authorizer: Authorizer) -> Callable[[KvOp], bool]:
    def permitted(op: KvOp) -> bool:
        if op.verb in _FILTERED:
            return True
        if op.verb == "delete-tree":
            return authorizer.may_all("key", op.entry.key, "write")
        return authorizer.may("key", op.entry.key, "read" if op.verb in _READING else "write")

    return permitted


def _ops(call: Call) -> list[KvOp]:
    config = call.state.config
    limit = max(config.txn_max_req_len, config.kv_max_value_size)
    length = len(call.request.body) if call.request.content_length is None else call.request.content_length
    if length > limit:
        raise too_large(length, limit, "txn_max_req_len")
    try:
        items = _items(gojson.decode(call.request.body))
    except GoParseError as error:
        raise Refusal(400, f"Failed to parse body: {error}") from None
    if len(items) > config.txn_max_ops:
        raise Refusal(413, f"Transaction contains too many operations ({len(items)} > {config.txn_max_ops})")
    ops = [_kv_op(item["KV"]) for item in items if "KV" in item]
    for op in ops:
        if len(op.entry.value) > config.kv_max_value_size:
            size = f"({len(op.entry.value)} > {config.kv_max_value_size} bytes)"
            raise Refusal(413, f"Value for key {quote(op.entry.key)} is too large {size}")
    return ops


def _items(value: object) -> list[dict[str, Any]]:
    items = [] if value is None else gojson.items(value, "value", "api.TxnOps")
    return [_OP(item, "value") for item in items]


def _kv_op(fields: dict[str, Any]) -> KvOp:
    entry = Entry(
        fields.get("Key", ""), fields.get("Value", b""), fields.get("Flags", 0), fields.get("Session", "")
    )
    return KvOp(fields.get("Verb", ""), entry, fields.get("Index", 0))
