"""The key-value store: ``/v1/kv``."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, TypeVar, cast

from consul_coord.errors import ValueTooLarge
from consul_coord.http.endpoints import _call, _json, _keys
from consul_coord.http.messages import Retry
from consul_coord.models import KVPair
from consul_coord.models._validate import UINT64_MAX, as_bytes, uint64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from consul_coord.http.endpoints._call import Params
    from consul_coord.http.messages import Call, Request, Response
    from consul_coord.models import ReadOptions, Result, WriteOptions

T = TypeVar("T")

_ROOT = "/v1/kv/"
_RECURSE = ("recurse", "")
_BOOLEAN = _call.answer(_json.boolean)


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


def _single(key: str) -> Callable[[Response], Result[KVPair | None]]:
    def read(response: Response) -> Result[KVPair | None]:
        if _call.absent(response):
            return _call.result(response, None)
        pairs = _pairs("the reply", _json.parse(response.body))
        if [each.key for each in pairs] != [key]:
            raise _json.ShapeError(f"the reply holds {len(pairs)} keys, not just {key!r}")
        return _call.result(response, pairs[0])

    return read


def get(key: str, *, options: ReadOptions | None = None) -> Call[Result[KVPair | None]]:
    """Read one key; None when it is absent."""
    needed = (f'key:read on "{key}"',)
    request = _call.read_request(_keys.path(_ROOT, _keys.check_key(key)), options, needed=needed)
    return _call.call(request, _single(key), accept=_call.OK_OR_ABSENT)


def get_raw(key: str, *, options: ReadOptions | None = None) -> Call[Result[bytes | None]]:
    """Read one key's value alone; None when the key is absent."""
    path = _keys.path(_ROOT, _keys.check_key(key))
    request = _call.read_request(path, options, params=(("raw", ""),), needed=(f'key:read on "{key}"',))
    return _call.call(request, _bytes, accept=_call.OK_OR_ABSENT)


def _bytes(response: Response) -> Result[bytes | None]:
    # Any body will do, so the headers have to tell that it is the key's value.
    return _call.result(response, None if _call.absent(response) else _call.with_index(response).body)


def list_pairs(prefix: str, *, options: ReadOptions | None = None) -> Call[Result[tuple[KVPair, ...]]]:
    """Read every key that starts with the prefix, sorted by its bytes."""
    path = _keys.path(_ROOT, _keys.check_prefix(prefix))
    request = _call.read_request(
        path, options, params=(_RECURSE,), needed=(f'key:read on the prefix "{prefix}"',)
    )
    return _call.call(
        request, lambda response: _call.result(response, _many(response, _pairs)), accept=_call.OK_OR_ABSENT
    )


def keys(
    prefix: str, *, separator: str | None = None, options: ReadOptions | None = None
) -> Call[Result[tuple[str, ...]]]:
    """Read the names of the keys that start with the prefix, folded after the first separator behind it."""
    path = _keys.path(_ROOT, _keys.check_prefix(prefix))
    params: Params = (("keys", ""), *((("separator", separator),) if separator else ()))
    request = _call.read_request(path, options, params=params, needed=(f'key:list on the prefix "{prefix}"',))
    return _call.call(
        request,
        lambda response: _call.result(response, _many(response, _json.texts)),
        accept=_call.OK_OR_ABSENT,
    )


def _many(response: Response, read: Callable[[str, object], tuple[T, ...]]) -> tuple[T, ...]:
    return () if _call.absent(response) else read("the reply", _json.parse(response.body))


def watch(
    key: str, *, index: int, wait: float, options: ReadOptions | None = None
) -> Call[Result[KVPair | None]]:
    """Read one key when it is newer than ``index``, or after ``wait`` seconds; at once for index 0."""
    return get(key, options=_call.blocking(options, index=index, wait=wait))


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
    return _call.call(
        _put(key, value, flags=flags, condition=_cas(cas), options=options, retry=retry), _BOOLEAN
    )


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
    return _call.call(_put(key, value, flags=flags, condition=condition, options=options), _BOOLEAN)


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
    return _call.call(_put(key, value, flags=flags, condition=condition, options=options), _BOOLEAN)


def _put(
    key: str,
    value: bytes | str,
    *,
    flags: int,
    condition: Params,
    options: WriteOptions | None,
    retry: Retry = Retry.IDEMPOTENT,
) -> Request:
    path = _keys.path(_ROOT, _keys.check_key(key))
    body = as_bytes(value)
    if len(body) > _call.BODY_LIMIT:
        raise ValueTooLarge(
            f"the value of {key!r} has {len(body)} bytes, and Consul takes {_call.BODY_LIMIT}",
            size=len(body),
            limit=_call.BODY_LIMIT,
        )
    marks: Params = (("flags", str(flags)),) if uint64("flags", flags) else ()
    needed = (f'key:write on "{key}"',)
    params = (*condition, *marks)
    return _call.write_request("PUT", path, options, params=params, body=body, retry=retry, needed=needed)


def _cas(index: int | None) -> Params:
    return () if index is None else (("cas", str(uint64("cas", index))),)


def delete(key: str, *, cas: int | None = None, options: WriteOptions | None = None) -> Call[bool]:
    """Delete a key, whoever holds it; with ``cas`` only at that ModifyIndex. True when it was absent."""
    request = _call.write_request(
        "DELETE",
        _keys.path(_ROOT, _keys.check_key(key)),
        options,
        params=_cas(cas),
        retry=Retry.IDEMPOTENT if cas is None else Retry.NEVER,
        needed=(f'key:write on "{key}"',),
    )
    return _call.call(request, _BOOLEAN)


def delete_tree(prefix: str, *, options: WriteOptions | None = None) -> Call[bool]:
    """Delete every key that starts with the prefix; the empty prefix means all keys."""
    request = _call.write_request(
        "DELETE",
        _keys.path(_ROOT, _keys.check_prefix(prefix)),
        options,
        params=(_RECURSE,),
        retry=Retry.IDEMPOTENT,
        needed=(f'key:write on the prefix "{prefix}"',),
    )
    return _call.call(request, _BOOLEAN)
