"""Keys and values: ``/v1/kv``, and transactions on them: ``/v1/txn``.

Rules of a transaction
- All operations are applied at one index, or none is; later ones see what earlier ones did.
- The limits of 1.8.7 hold: 64 operations and 512 KiB of body, in which values are base64 (about 393 kB of
  value).
- A reply of status 409 is a TxnFailed whose failures are typed by what Consul's text contains, quoted names
  left aside.
- A token that may write or check a key may read it, so every such operation has its result in a reply: its
  caller may rely on that. Only ``get`` and ``get-tree`` leave out keys that the token may not read.
- The error of a refusal is short, however much the agent says.
- A reply in which every part is just as agents send it is read in one pass. Any other is read part by part,
  which finds the same, or what is wrong.
- A transaction that only reads and checks may be repeated at will; any other is not repeated unless the
  caller says that it may be.
"""

from __future__ import annotations

import base64
import re
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from consul_coord.errors import BODY_LIMIT, InvalidArgument, TxnFailed, ValueTooLarge
from consul_coord.http.endpoints import _call, _json, _keys, _txn_results
from consul_coord.http.failures import printable
from consul_coord.http.messages import Call, Request, Retry
from consul_coord.models import KVPair, ReadOptions, TxnFailure, TxnOp, TxnResult, WriteOptions
from consul_coord.models._validate import UINT64_MAX, as_bytes, instance, refuse_kind, texts_or_none, uint64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from consul_coord.http.endpoints._call import Params
    from consul_coord.http.messages import Response
    from consul_coord.models import FailureKind, Result, Verb

_ROOT = "/v1/kv/"
_RECURSE = ("recurse", "")


def pair(what: str, value: object) -> KVPair:
    """Read one key field by field."""
    fields = _json.Fields(what, value)
    return KVPair(
        fields.get("Key", _json.text),
        value=fields.get("Value", _json.base64_bytes, b""),
        flags=fields.get("Flags", _json.integer, 0),
        session=fields.get("Session", _json.text, "") or None,
        create_index=fields.get("CreateIndex", _json.integer),
        modify_index=fields.get("ModifyIndex", _json.integer),
        lock_index=fields.get("LockIndex", _json.integer, 0),
    )


def plain_pairs(values: Iterable[object]) -> list[KVPair] | None:
    """Read keys whose every field is just as agents send it; None when one is not."""
    pairs: list[KVPair] = []
    for value in values:
        if type(value) is not dict:
            return None
        get = cast("dict[str, object]", value).get
        key, flags, session, created = get("Key"), get("Flags"), get("Session", ""), get("CreateIndex")
        modified, locked, content = get("ModifyIndex"), get("LockIndex"), get("Value")
        if not (
            type(key) is str
            and type(session) is str
            and (content is None or type(content) is str)
            and key.isascii()
            and session.isascii()
            and type(flags) is int
            and type(created) is int
            and type(modified) is int
            and type(locked) is int
            and min(flags, created, modified, locked) >= 0
            and max(flags, created, modified, locked) <= UINT64_MAX
        ):
            return None
        try:
            data = base64.b64decode(content, validate=True) if content else b""
        except ValueError:
            return None
        pairs.append(KVPair(key, data, flags, session or None, created, modified, locked))
    return pairs


def _pairs(what: str, value: object) -> tuple[KVPair, ...]:
    values = _json.array(what, value)
    plain = plain_pairs(values)
    return _json.items(what, values, pair) if plain is None else tuple(plain)


def get(key: str, *, options: ReadOptions | None = None) -> Call[Result[KVPair | None]]:
    """Read one key; None when it is absent."""

    def read(response: Response) -> KVPair | None:
        pairs = _pairs("the reply", _json.parse(response.body))
        if len(pairs) != 1 or pairs[0].key != key:
            raise _json.ShapeError(f"the reply holds {len(pairs)} keys, not just {key!r}")
        return pairs[0]

    return _call.find(_path(key), options, read, None, needed=(f'key:read on "{key}"',))


def get_raw(key: str, *, options: ReadOptions | None = None) -> Call[Result[bytes | None]]:
    """Read one key's value alone; None when the key is absent."""
    params, needed = (("raw", ""),), (f'key:read on "{key}"',)
    return _call.find(_path(key), options, _bytes, None, params=params, needed=needed)


def _bytes(response: Response) -> bytes | None:
    # Any body will do, so the headers have to tell that it is the key's value.
    return _call.with_index(response).body


def list_pairs(prefix: str, *, options: ReadOptions | None = None) -> Call[Result[tuple[KVPair, ...]]]:
    """Read every key that starts with the prefix, sorted by its bytes."""
    needed = (f'key:read on the prefix "{prefix}"',)
    return _call.find(_tree(prefix), options, _call.answer(_pairs), (), params=(_RECURSE,), needed=needed)


def keys(
    prefix: str, *, separator: str | None = None, options: ReadOptions | None = None
) -> Call[Result[tuple[str, ...]]]:
    """Read the names of the keys that start with the prefix, folded after the first separator behind it."""
    texts_or_none(separator=separator)
    params: Params = (("keys", ""), *((("separator", separator),) if separator else ()))
    needed = (f'key:list on the prefix "{prefix}"',)
    return _call.find(_tree(prefix), options, _call.answer(_json.texts), (), params=params, needed=needed)


def watch(
    key: str, *, index: int, wait: float, options: ReadOptions | None = None
) -> Call[Result[KVPair | None]]:
    """Read one key when it is newer than ``index``, or after ``wait`` seconds; at once for index 0."""
    return get(key, options=_call.blocking(options, index=index, wait=wait))


def watch_to_the_end(
    key: str, *, index: int, wait: float, options: ReadOptions | None = None
) -> Call[Result[KVPair | None]]:
    """Watch one key as ``watch`` does; once it is deleted, the result's index is that of the deletion.

    Read as a prefix, whose index its tombstone tells; an absent key alone has the index of the whole table.
    For a key that is no other key's prefix.
    """

    def read(response: Response) -> KVPair | None:
        return next((pair for pair in _call.answer(_pairs)(response) if pair.key == key), None)

    blocking = _call.blocking(options, index=index, wait=wait)
    needed = (f'key:read on the prefix "{key}"',)
    return _call.find(_tree(key), blocking, read, None, params=(_RECURSE,), needed=needed)


def watch_tree(
    prefix: str, *, index: int, wait: float, options: ReadOptions | None = None
) -> Call[Result[tuple[KVPair, ...]]]:
    """Read a prefix when it is newer than ``index``, or after ``wait`` seconds; at once for index 0."""
    return list_pairs(prefix, options=_call.blocking(options, index=index, wait=wait))


def put(
    key: str,
    value: bytes | str,
    *,
    flags: int = 0,
    cas: int | None = None,
    options: WriteOptions | None = None,
) -> Call[bool]:
    """Write a key; with ``cas`` only if its ModifyIndex is that, or if it is absent for 0.

    Without ``cas`` it may be repeated after a lost reply, perhaps over what another client wrote in between.
    """
    retry = Retry.IDEMPOTENT if cas is None else Retry.NEVER
    return _put(key, value, flags=flags, condition=_cas(cas), options=options, retry=retry)


def acquire(
    key: str,
    session: str,
    *,
    value: bytes | str = b"",
    flags: int = 0,
    options: WriteOptions | None = None,
) -> Call[bool]:
    """Write a key and have the session hold it; false when another does, or during the lock-delay."""
    condition = (("acquire", _keys.check_id("session", session)),)
    return _put(key, value, flags=flags, condition=condition, options=options)


def release(
    key: str,
    session: str,
    *,
    value: bytes | str = b"",
    flags: int = 0,
    options: WriteOptions | None = None,
) -> Call[bool]:
    """Write a key and end the session's hold on it; false when the session does not hold it (any more)."""
    condition = (("release", _keys.check_id("session", session)),)
    return _put(key, value, flags=flags, condition=condition, options=options)


def _put(
    key: str,
    value: bytes | str,
    *,
    flags: int,
    condition: Params,
    options: WriteOptions | None,
    retry: Retry = Retry.IDEMPOTENT,
) -> Call[bool]:
    body, path, limit = as_bytes(value), _path(key), _call.BODY_LIMIT
    if len(body) > limit:
        message = f"the value of {key!r} has {len(body)} bytes, and Consul takes {limit}"
        raise ValueTooLarge(message, size=len(body), limit=limit)
    params = (*condition, ("flags", str(flags))) if uint64("flags", flags) else condition
    needed = (f'key:write on "{key}"',)
    return _call.write(
        "PUT", path, options, _call.boolean, params=params, body=body, retry=retry, needed=needed
    )


def _cas(index: int | None) -> Params:
    return () if index is None else (("cas", str(uint64("cas", index))),)


def delete(key: str, *, cas: int | None = None, options: WriteOptions | None = None) -> Call[bool]:
    """Delete a key, whoever holds it; with ``cas`` only at that ModifyIndex. True when it was absent."""
    retry = Retry.IDEMPOTENT if cas is None else Retry.NEVER
    needed = (f'key:write on "{key}"',)
    return _call.write(
        "DELETE", _path(key), options, _call.boolean, params=_cas(cas), retry=retry, needed=needed
    )


def delete_tree(prefix: str, *, options: WriteOptions | None = None) -> Call[bool]:
    """Delete every key that starts with the prefix; the empty prefix means all keys."""
    path, needed = _tree(prefix), (f'key:write on the prefix "{prefix}"',)
    return _call.write(
        "DELETE", path, options, _call.boolean, params=(_RECURSE,), retry=Retry.IDEMPOTENT, needed=needed
    )


def _path(key: str) -> str:
    return _keys.path(_ROOT, _keys.check_key(key))


def _tree(prefix: str) -> str:
    return _keys.path(_ROOT, _keys.check_prefix(prefix))


# -- transactions

_TXN = "/v1/txn"
OPS_LIMIT = 64
_OK = 200
_CONFLICT = 409
_KV = itemgetter("KV")
_READS: frozenset[Verb] = frozenset({"get", "get-tree", "check-index", "check-session", "check-not-exists"})
_ON_PREFIX: frozenset[Verb] = frozenset({"get-tree", "delete-tree"})
_NEEDED: dict[Verb, str] = {
    **dict.fromkeys(_READS, "key:read on"),
    "get-tree": "key:read on the prefix",
    "delete-tree": "key:write on the prefix",
}
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
    *ops: TxnOp,
    options: ReadOptions | WriteOptions | None = None,
    retry: Retry | None = None,
    begins: Callable[[], bool] | None = None,
) -> Call[TxnResult]:
    """Apply the operations as one; TxnFailed when one of them refuses, and then nothing was changed.

    ``retry`` overrides what is assumed: READ for reads and checks only, else NEVER. ``begins`` is
    ``Request.begins``.
    """
    _check_ops(ops)
    sent: list[object] = []
    needed: dict[str, None] = {}
    assumed = Retry.READ
    for op in ops:
        key, verb = op.key, op.verb
        if not key or _keys.flaw(key):
            (_keys.check_prefix if verb in _ON_PREFIX else _keys.check_key)(key)
        fields: dict[str, object] = {"Verb": verb, "Key": key}
        if op.value is not None:
            fields["Value"] = base64.b64encode(op.value).decode()
        if op.flags:
            fields["Flags"] = op.flags
        if op.index is not None:
            fields["Index"] = op.index
        if op.session is not None:
            fields["Session"] = op.session
        sent.append({"KV": fields})
        needed[f'{_NEEDED.get(verb, "key:write on")} "{key}"'] = None
        if verb not in _READS:
            assumed = Retry.NEVER
    body = _json.encode(sent).encode()
    if len(ops) > OPS_LIMIT or len(body) > _call.BODY_LIMIT:
        raise _too_large(len(ops), len(body))
    params = () if options is None else _params(options)
    request = Request("PUT", _TXN, params, body, retry or assumed, tuple(needed), begins=begins)
    return Call(request, partial(_decode_txn, ops, request))


def _too_large(ops: int, size: int) -> ValueTooLarge:
    if ops > OPS_LIMIT:
        what, size, limit = "operations", ops, OPS_LIMIT
    else:
        what, limit = "bytes, with values in base64", _call.BODY_LIMIT
    message = f"this transaction has {size} {what}, and Consul takes {limit}: split it"
    return ValueTooLarge(message, size=size, limit=limit)


def _params(options: ReadOptions | WriteOptions) -> Params:
    if not isinstance(options, ReadOptions):
        instance("options", options, WriteOptions)
        return _call.where(options)
    if options.index or options.near is not None:
        raise InvalidArgument("a transaction is no blocking query and no list: leave index and near unset")
    return (*_call.where(options), *_call.how(options))


def _check_ops(ops: tuple[object, ...]) -> None:
    if not ops:
        raise InvalidArgument("a transaction needs at least one operation")
    for place, op in enumerate(ops, 1):
        if not isinstance(op, TxnOp):
            refuse_kind(
                f"operation {place} of a transaction",
                op,
                "a TxnOp, such as TxnOp.get(key) or *hold.guard()",
            )


def _decode_txn(ops: Sequence[TxnOp], request: Request, response: Response) -> TxnResult:
    found = _plain_entries(ops, response.body) if response.status == _OK else None
    if found is not None:
        return TxnResult(found)
    read = partial(_read_txn, ops, request)
    return _call.call(request, read, accept=(_OK, _CONFLICT)).decode(response)


def _plain_entries(ops: Sequence[TxnOp], body: bytes) -> tuple[tuple[KVPair, ...], ...] | None:
    """Read a reply in which all is just as agents send it, in the usual order; None for any other."""
    try:
        reply: Any = _json.decode(body.decode())
        results: list[Any] = reply["Results"]
        if reply["Errors"] is not None or type(results) is not list:
            return None
        pairs = plain_pairs(map(_KV, results))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return None if pairs is None else _in_turn(ops, pairs)


def _in_turn(ops: Sequence[TxnOp], pairs: Sequence[KVPair]) -> tuple[tuple[KVPair, ...], ...] | None:
    """Return the entries if each operation takes the next one, and a tree all that are left; else None.

    The search of ``_txn_results`` would find the same: with its key among the entries no single-key operation
    may go without, and a tree leaves none but to later ones.
    """
    found: list[tuple[KVPair, ...]] = []
    rest = tuple(pairs)
    for op in ops:
        taken = 0
        if op.verb == "get-tree":
            before = ""
            for pair in rest:
                if pair.key <= before or not pair.key.startswith(op.key):
                    return None
                before = pair.key
            taken = len(rest)
        elif op.verb not in _txn_results.SILENT:
            if not rest or rest[0].key != op.key:
                return None
            taken = 1
        found.append(rest[:taken])
        rest = rest[taken:]
    return None if rest else tuple(found)


def _read_txn(ops: Sequence[TxnOp], request: Request, response: Response) -> TxnResult:
    fields = _json.Fields("the reply", _json.parse(response.body))
    failures = fields.get("Errors", lambda what, value: _failures(ops, what, value), ())
    if failures or response.status == _CONFLICT:
        raise TxnFailed(_refusal(request, failures), failures=failures)
    if "Results" not in fields.members:
        raise _json.ShapeError("the reply.Results is missing")
    pairs = fields.get("Results", _json.list_of(_entry), ())
    found = _txn_results.assign(ops, pairs)
    for at, op in enumerate(ops):
        if op.verb in _ANSWERED and not found[at]:
            raise _json.ShapeError(f"the reply has no result of operation {at} ({op.verb})")
    return TxnResult(found)


def _entry(what: str, value: object) -> KVPair:
    return _json.Fields(what, value).get("KV", pair)


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


def _refusal(request: Request, failures: Sequence[TxnFailure]) -> str:
    told = "; ".join(
        f"operation {each.op_index}: {printable(each.message[:_SHOWN_TEXT])}"
        for each in failures[:_SHOWN_FAILURES]
    )
    more = f"; and {len(failures) - _SHOWN_FAILURES} more" if len(failures) > _SHOWN_FAILURES else ""
    denied = any(each.kind == "denied" for each in failures)
    needed = f" (the token needs {', '.join(request.needed)})" if denied else ""
    return f"PUT {_TXN}: the transaction was rolled back: {told or 'Consul gave no reason'}{more}{needed}"
