"""The key-value store: ``/v1/kv``."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, cast

from consul_coord.errors import ValueTooLarge
from consul_coord.http.endpoints import _call, _json, _keys
from consul_coord.http.messages import Retry
from consul_coord.models import KVPair
from consul_coord.models._validate import UINT64_MAX, as_bytes, uint64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.http.endpoints._call import Params
    from consul_coord.http.messages import Call, Response
    from consul_coord.models import ReadOptions, Result, WriteOptions

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
