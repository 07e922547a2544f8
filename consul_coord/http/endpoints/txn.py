"""Transactions: ``/v1/txn``.

Rules
- All operations are applied at one index, or none is; later ones see what earlier ones did.
- The limits of 1.8.7 hold: 64 operations and 512 KiB of body, in which values are base64 (about 393 kB of
  value).
- A reply of status 409 is a TxnFailed whose failures are typed by what Consul's text contains, quoted names
  left aside.
- Who may write or check a key may read it, so every such operation has its result in a reply: its caller may
  rely on that. What the token may not read is left out of ``get`` and ``get-tree`` only.
- A refusal is told shortly, however much the agent says.
- A transaction that only reads and checks may be repeated at will; any other is not repeated unless the
  caller says that it may be.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

from consul_coord.errors import BODY_LIMIT, InvalidArgument, TxnFailed, ValueTooLarge
from consul_coord.http.endpoints import _call, _json, _keys, _txn_results, kv
from consul_coord.http.failures import printable
from consul_coord.http.messages import Retry
from consul_coord.models import ReadOptions, TxnFailure, TxnResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.http.messages import Call, Request, Response
    from consul_coord.models import FailureKind, KVPair, TxnOp, Verb, WriteOptions

_PATH = "/v1/txn"
OPS_LIMIT = 64
_CONFLICT = 409
_READS: frozenset[Verb] = frozenset({"get", "get-tree", "check-index", "check-session", "check-not-exists"})
_ON_PREFIX: frozenset[Verb] = frozenset({"get-tree", "delete-tree"})
_ANSWERED: frozenset[Verb] = frozenset({"set", "cas", "lock", "unlock", "check-index", "check-session"})
_SHOWN_FAILURES = 3
_SHOWN_TEXT = 200

# The first fragment found decides. Quoted keys and sessions are cut out before, as they may contain anything.
_KINDS: tuple[tuple[str, FailureKind], ...] = (
    ("due to lock delay", "lock_delay"),
    ("lock is already held", "held"),
    ("lock isn't held", "not_holder"),
    ("failed session check", "not_holder"),
    ("index is stale", "stale_index"),
    ("failed index check", "stale_index"),
    ("doesn't exist", "missing"),
    ("invalid session", "invalid_session"),
    ("failed session lookup", "invalid_session"),
    ("missing session", "invalid_session"),
    ("permission denied", "denied"),
    ("acl not found", "denied"),
    ("exists", "exists"),
)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def txn(
    *ops: TxnOp, options: ReadOptions | WriteOptions | None = None, retry: Retry | None = None
) -> Call[TxnResult]:
    """Apply the operations as one; TxnFailed when one of them refuses, and then nothing was changed.

    ``retry`` overrides what is assumed: READ for reads and checks only, else NEVER.
    """
    reads_only = _READS.issuperset([op.verb for op in ops])
    request = _request(ops, options, retry or (Retry.READ if reads_only else Retry.NEVER))
    return _call.call(request, lambda response: _read(ops, response, request), accept=(200, _CONFLICT))


def _request(ops: Sequence[TxnOp], options: ReadOptions | WriteOptions | None, retry: Retry) -> Request:
    if not ops:
        message = "a transaction needs at least one operation"
        raise InvalidArgument(message)
    _check_size("operations", len(ops), OPS_LIMIT)
    body = _json.dump([_encode(op) for op in ops])
    _check_size("bytes", len(body), _call.BODY_LIMIT)
    needed = tuple(dict.fromkeys(map(_needed, ops)))
    if not isinstance(options, ReadOptions):
        return _call.write_request("PUT", _PATH, options, body=body, retry=retry, needed=needed)
    if options.index or options.near is not None:
        message = "a transaction is no blocking query and no list: leave index and near unset"
        raise InvalidArgument(message)
    params = _call.read_request(_PATH, options).params
    return _call.write_request("PUT", _PATH, None, params=params, body=body, retry=retry, needed=needed)


def _check_size(what: str, size: int, limit: int) -> None:
    if size > limit:
        message = f"this transaction has {size} {what}, and Consul takes {limit}: split it"
        raise ValueTooLarge(message, size=size, limit=limit)


def _encode(op: TxnOp) -> dict[str, object]:
    check = _keys.check_prefix if op.verb in _ON_PREFIX else _keys.check_key
    fields: dict[str, object] = {"Verb": op.verb, "Key": check(op.key)}
    if op.value is not None:
        _check_size("bytes in one value", len(op.value), _call.BODY_LIMIT)
        fields["Value"] = base64.b64encode(op.value).decode()
    if op.flags:
        fields["Flags"] = op.flags
    if op.index is not None:
        fields["Index"] = op.index
    if op.session is not None:
        fields["Session"] = op.session
    return {"KV": fields}


def _needed(op: TxnOp) -> str:
    permission = "read" if op.verb in _READS else "write"
    where = "the prefix " if op.verb in _ON_PREFIX else ""
    return f'key:{permission} on {where}"{op.key}"'


def _read(ops: Sequence[TxnOp], response: Response, request: Request) -> TxnResult:
    fields = _json.Fields("the reply", _json.parse(response.body))
    failures = fields.get("Errors", lambda what, value: _failures(ops, what, value), ())
    if failures or response.status == _CONFLICT:
        raise TxnFailed(_message(request, failures), failures=failures)
    if "Results" not in fields.members:
        raise _json.ShapeError("the reply.Results is missing")
    pairs = fields.get("Results", lambda what, value: _json.items(what, value, _entry), ())
    found = _txn_results.assign(ops, pairs)
    for at, op in enumerate(ops):
        if op.verb in _ANSWERED and not found[at]:
            message = f"the reply has no result of operation {at} ({op.verb})"
            raise _json.ShapeError(message)
    return TxnResult(found)


def _entry(what: str, value: object) -> KVPair:
    return _json.Fields(what, value).get("KV", kv.pair)


def _failures(ops: Sequence[TxnOp], what: str, value: object) -> tuple[TxnFailure, ...]:
    def read(at: str, item: object) -> TxnFailure:
        fields = _json.Fields(at, item)
        index = fields.get("OpIndex", _json.integer, 0)
        text = fields.get("What", _json.text, "")
        op = ops[index] if index < len(ops) else None
        return TxnFailure(index, op, kind_of(text), text[:BODY_LIMIT])

    return _json.items(what, value, read)


def kind_of(text: str) -> FailureKind:
    """Return what a refusal's text means."""
    words = _QUOTED.sub("", text).lower()
    for fragment, kind in _KINDS:
        if fragment in words:
            return kind
    return "other"


def _message(request: Request, failures: Sequence[TxnFailure]) -> str:
    told = "; ".join(
        f"operation {each.op_index}: {printable(each.message[:_SHOWN_TEXT])}"
        for each in failures[:_SHOWN_FAILURES]
    )
    more = f"; and {len(failures) - _SHOWN_FAILURES} more" if len(failures) > _SHOWN_FAILURES else ""
    denied = any(each.kind == "denied" for each in failures)
    needed = f" (the token needs {', '.join(request.needed)})" if denied else ""
    return f"PUT {_PATH}: the transaction was rolled back: {told or 'Consul gave no reason'}{more}{needed}"
