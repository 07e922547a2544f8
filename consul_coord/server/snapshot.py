"""A snapshot of what is replicated, as JSON; lock-delays and TTL timers are no part of it, as in Consul."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from consul_coord.server.records import (
    CheckRecord,
    Entry,
    NodeRecord,
    PolicyRecord,
    QueryRecord,
    ServiceCheck,
    ServiceRecord,
    SessionRecord,
    TokenRecord,
)
from consul_coord.server.store import TABLES, Store

if TYPE_CHECKING:
    from collections.abc import Callable

_RECORDS: dict[str, Callable[..., Any]] = {
    "kv": Entry,
    "sessions": SessionRecord,
    "nodes": NodeRecord,
    "services": ServiceRecord,
    "checks": CheckRecord,
    "queries": QueryRecord,
    "policies": PolicyRecord,
    "tokens": TokenRecord,
}


def save(store: Store) -> bytes:
    """Return the store as bytes."""
    tables = {name: {key: _plain(row) for key, row in getattr(store, name).rows.items()} for name in TABLES}
    return json.dumps({"index": store.raft_index, "indexes": store.indexes, "tables": tables}).encode()


def load(data: bytes) -> Store:
    """Return a store from ``save``'s bytes; raise ``ValueError`` for anything else."""
    try:
        document = json.loads(data)
        store = Store()
        store.raft_index = int(document["index"])
        store.indexes = {str(name): int(index) for name, index in document["indexes"].items()}
        for name in TABLES:
            table = getattr(store, name)
            for key, row in document["tables"][name].items():
                table.apply(key, None, _record(name, row))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        message = "not a snapshot of the reference server"
        raise ValueError(message) from error
    return store


def _plain(row: Any) -> Any:  # noqa: ANN401 - rows of any table
    if isinstance(row, int):
        return row
    plain = asdict(row)
    if isinstance(row, Entry):
        plain["value"] = base64.b64encode(row.value).decode("ascii")
    return plain


def _record(table: str, row: Any) -> Any:  # noqa: ANN401 - rows of any table
    if table == "tombstones":
        return int(row)
    kind = _RECORDS[table]
    values = {name: _frozen(value) for name, value in row.items()}
    if table == "kv":
        values["value"] = base64.b64decode(row["value"])
    if table == "sessions" and row["service_checks"] is not None:
        values["service_checks"] = tuple(ServiceCheck(**check) for check in row["service_checks"])
    return kind(**values)


def _frozen(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return tuple(map(_frozen, cast("list[object]", value))) if isinstance(value, list) else value
