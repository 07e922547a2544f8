"""/v1/kv/: read, list, write, lock and delete keys."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, unquote

from consul_coord.server import kv
from consul_coord.server.acl import DENIED
from consul_coord.server.call import NOT_FOUND, Read, Seen
from consul_coord.server.failures import LeadersRefusal, Refusal
from consul_coord.server.gotext import GoParseError, parse_uint
from consul_coord.server.records import Entry
from consul_coord.server.store import KV
from consul_coord.server.wire import Reply

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.server.call import Call
    from consul_coord.server.params import Params
    from consul_coord.server.store import Store
    from consul_coord.server.tables import Mark

UNDER = "kvs-under"
ABSENT = "kvs-absent"

_RAW = (
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "sandbox"),
)


def describe(entry: Entry, *, with_value: bool = True) -> dict[str, object]:
    """Return an entry as the API shows it."""
    shown: dict[str, object] = {
        "LockIndex": entry.lock_index,
        "Key": entry.key,
        "Flags": entry.flags,
        "Value": base64.b64encode(entry.value).decode("ascii") if with_value and entry.value else None,
    }
    if entry.session:
        shown["Session"] = entry.session
    shown["CreateIndex"] = entry.create_index
    shown["ModifyIndex"] = entry.modify_index
    return shown


def read(call: Call) -> Read:
    """Read a key, a tree or the keys of a tree."""
    if "keys" in call.params:
        return _keys(call)
    if "recurse" in call.params:
        return _tree(call)
    key = _required_key(call)
    call.authorizer.require("key", key, "read")

    def look(store: Store) -> Seen:
        index, entry = kv.get(store, key)
        if entry is None:
            return Seen(index, NOT_FOUND, ((KV, key), (ABSENT,)))
        raw = (("Content-Type", call.state.config.dialect.raw), *_RAW)
        reply = Reply(200, entry.value, raw) if "raw" in call.params else call.json([describe(entry)])
        return Seen(index, reply, ((KV, key),))

    return Read(look)


def _tree(call: Call) -> Read:
    prefix = _listable(call)

    def look(store: Store) -> Seen:
        index, entries = _readable(call, *kv.list_under(store, prefix))
        reply = call.json([describe(entry) for entry in entries]) if entries else NOT_FOUND
        return Seen(index, reply, _marks_under(prefix, present=bool(entries)))

    return Read(look)


def _keys(call: Call) -> Read:
    prefix = _listable(call)
    separator = call.params.get("separator") or call.params.get("seperator")

    def look(store: Store) -> Seen:
        index, entries = _readable(call, *kv.list_under(store, prefix))
        names = [entry.key for entry in entries]
        folded = list(_fold(names, len(prefix), separator)) if separator else names
        reply = call.json(folded) if folded or not prefix else NOT_FOUND
        return Seen(index, reply, _marks_under(prefix, present=bool(entries)))

    return Read(look)


def _listable(call: Call) -> str:
    """Return the prefix that is to be listed."""
    acl = call.state.config.acl
    if (
        acl is not None
        and acl.enable_key_list_policy
        and not call.authorizer.may_all("key", call.tail, "list")
    ):
        raise LeadersRefusal(403, DENIED)
    return call.tail


def _readable(call: Call, index: int, entries: list[Entry]) -> tuple[int, list[Entry]]:
    return index, [entry for entry in entries if call.authorizer.may("key", entry.key, "read")]


def _marks_under(prefix: str, *, present: bool) -> tuple[Mark, ...]:
    return ((UNDER, prefix),) if present else ((UNDER, prefix), (ABSENT,))


def _fold(keys: Iterable[str], start: int, separator: str) -> Iterable[str]:
    last = None
    for key in keys:
        found = key.find(separator, start)
        name = key if found < 0 else key[: found + len(separator)]
        if name != last:
            yield name
        last = name


def write(call: Call) -> Reply:
    """Write a key: plainly, if unchanged, or with taking or giving up its lock."""
    key = _required_key(call)
    params = call.params
    _refuse_conflict(params, "cas", "acquire", "release")
    flags = _uint(params, "flags")
    expected = _uint(params, "cas")
    verb, session = "set", ""
    for name, named_verb in (("cas", "cas"), ("acquire", "lock"), ("release", "unlock")):
        if name in params:
            verb, session = named_verb, "" if name == "cas" else params.get(name)
    _refuse_large(call)
    call.authorizer.require("key", key, "write")
    entry = Entry(key, call.request.body, flags, session)
    return call.json(call.state.write_kv(kv.KvOp(verb, entry, expected), call.now))


def delete(call: Call) -> Reply:
    """Delete a key, if unchanged, or a whole tree."""
    _refuse_conflict(call.params, "recurse", "cas")
    if "recurse" in call.params:
        if not call.authorizer.may_all("key", call.tail, "write"):
            raise LeadersRefusal(403, DENIED)
        op = kv.KvOp("delete-tree", Entry(call.tail))
    else:
        key = _required_key(call)
        call.authorizer.require("key", key, "write")
        op = kv.KvOp(
            "delete-cas" if "cas" in call.params else "delete", Entry(key), _uint(call.params, "cas")
        )
    return call.json(call.state.write_kv(op, call.now))


def _required_key(call: Call) -> str:
    if not call.tail:
        raise Refusal(400, "Missing key name")
    if call.state.config.dialect.checks_keys and _is_unsafe(call.tail):
        raise Refusal(
            500, f"invalid key name, keys should not have a way up or spaces at an end: {call.tail}"
        )
    return call.tail


def _is_unsafe(key: str) -> bool:
    """Tell whether newer versions refuse a key: for a way up, or a space at an end, also percent-encoded."""
    decoded = unquote(key)
    ways_up = any(part == ".." for name in (key, decoded) for part in name.split("/"))
    return ways_up or key.strip(" ") != key or ("%" in key and decoded.strip(" ") != decoded)


def _refuse_conflict(params: Params, *names: str) -> None:
    if sum(name in params for name in names) > 1:
        shown = "&".join(
            f"{_encoded(name)}={_encoded(value)}"
            for name, value in sorted(params.pairs, key=lambda pair: pair[0])
        )
        raise Refusal(400, f"Conflicting flags: {shown}")


def _encoded(text: str) -> str:
    return quote_plus(text, errors="surrogateescape")


def _uint(params: Params, name: str) -> int:
    if name not in params:
        return 0
    try:
        return parse_uint(params.get(name))
    except GoParseError as error:
        raise Refusal(500, str(error)) from None


def _refuse_large(call: Call) -> None:
    config, length = call.state.config, call.request.content_length or 0
    if config.dialect.limits_chunks:
        length = max(length, len(call.request.body))
    if length > config.kv_max_value_size:
        raise too_large(length, config.kv_max_value_size, "kv_max_value_size", config.dialect.manual)


def too_large(length: int, limit: int, setting: str, manual: str) -> Refusal:
    """Return the refusal of a body of ``length`` bytes by the limit that ``setting`` names."""
    see = manual.format(setting)
    text = f"Request body({length} bytes) too large, max size: {limit} bytes. See {see}."
    return Refusal(413, text, (("Connection", "close"),))
