"""/v1/txn: several operations at once, on keys and on the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consul_coord.server import gojson, txn
from consul_coord.server.catalog_ops import CatalogOp
from consul_coord.server.endpoints import txn_catalog
from consul_coord.server.endpoints.kv import describe, too_large
from consul_coord.server.failures import Refusal
from consul_coord.server.gotext import GoParseError, quote
from consul_coord.server.kv import KvOp
from consul_coord.server.records import Entry
from consul_coord.server.wire import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.acl import Authorizer
    from consul_coord.server.call import Call
    from consul_coord.server.txn import Op, Result

_META = (("X-Consul-Knownleader", "true"), ("X-Consul-Lastcontact", "0"))


_KV: dict[str, gojson.Reader] = {
    "Verb": gojson.named("api.KVOp", gojson.text),
    "Key": gojson.text,
    "Value": gojson.base64_bytes,
    "Flags": gojson.uint64,
    "Index": gojson.uint64,
    "Session": gojson.text,
    "Namespace": gojson.text,
}

OPERATION = gojson.object_of(
    {"KV": gojson.object_of(_KV, struct="KVTxnOp", type_name="api.KVTxnOp"), **txn_catalog.FIELDS},
    struct="TxnOp",
    type_name="api.TxnOp",
)

_FILTERED = frozenset({"get", "get-or-empty", "get-tree"})  # not refused: their results are filtered
_READING = frozenset({"check-index", "check-session"})


def apply(call: Call) -> Reply:
    """Apply a transaction; one that only reads goes past Raft."""
    ops = _ops(call)
    dialect = call.state.config.dialect
    writing = any(map(txn.is_write, ops))
    permitted = _permission(call.authorizer)
    if writing:
        outcome = call.state.write_txn(ops, call.now, permitted)
    else:
        outcome = call.state.read_txn(ops, call.store, permitted)
    results = [_shown(result) for result in outcome.results if _readable(call.authorizer, result)]
    shown: dict[str, object] = {
        "Results": None if outcome.failures else results,
        "Errors": [{"OpIndex": f.op_index, "What": dialect.said(f.what)} for f in outcome.failures] or None,
    }
    if not writing:
        shown |= {"Index": dialect.empty_read, "LastContact": 0, "KnownLeader": True, "ConsistencyLevel": ""}
    reply = call.json(shown, status=409 if outcome.failures else 200)
    return reply if writing else Reply(reply.status, reply.body, (*reply.headers, *_META))


def _shown(result: Result) -> dict[str, object]:
    if isinstance(result.row, Entry):
        return {"KV": describe(result.row, with_value=result.with_value)}
    return txn_catalog.describe(result.row)


def _readable(authorizer: Authorizer, result: Result) -> bool:
    if isinstance(result.row, Entry):
        return authorizer.may("key", result.row.key, "read")
    return txn_catalog.may(authorizer, result.row, "read")


def _permission(authorizer: Authorizer) -> Callable[[Op], bool]:
    def permitted(op: Op) -> bool:
        if op.verb in _FILTERED:
            return True
        if isinstance(op, CatalogOp):
            return txn_catalog.may(authorizer, op.record, "write")
        if op.verb == "delete-tree":
            return authorizer.may_all("key", op.entry.key, "write")
        return authorizer.may("key", op.entry.key, "read" if op.verb in _READING else "write")

    return permitted


def _ops(call: Call) -> list[Op]:
    config = call.state.config
    limit = max(config.txn_max_req_len, config.kv_max_value_size)
    length = len(call.request.body) if call.request.content_length is None else call.request.content_length
    if length > limit:
        raise too_large(length, limit, "txn_max_req_len", config.dialect.manual)
    try:
        items = _items(gojson.decode(call.request.body))
    except GoParseError as error:
        raise Refusal(400, f"Failed to parse body: {error}") from None
    if len(items) > config.most_txn_ops:
        raise Refusal(413, f"Transaction contains too many operations ({len(items)} > {config.most_txn_ops})")
    return [_op(call, item) for item in items if item]


def _items(value: object) -> list[dict[str, Any]]:
    items = [] if value is None else gojson.items(value, "value", "api.TxnOps")
    return [OPERATION(item, "value") for item in items]


def _op(call: Call, item: dict[str, Any]) -> Op:
    if "KV" not in item:  # of several kinds in one operation, this one counts
        return txn_catalog.op(call.state, item)
    fields = item["KV"]
    value: bytes = fields.get("Value", b"")
    if len(value) > (limit := call.state.config.kv_max_value_size):
        size = f"({len(value)} > {limit} bytes)"
        raise Refusal(413, f"Value for key {quote(fields.get('Key', ''))} is too large {size}")
    entry = Entry(fields.get("Key", ""), value, fields.get("Flags", 0), fields.get("Session", ""))
    return KvOp(fields.get("Verb", ""), entry, fields.get("Index", 0))
