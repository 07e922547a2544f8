"""The KV store's rules: permitted writes, their indexes, and the answers to readers.

Rules
- A write that changes nothing (value, flags, session, LockIndex) keeps the ModifyIndex and is no news to
  watchers.
- Only ``lock`` and ``unlock`` touch the Session; any other write keeps it, replaces the flags and resets the
  LockIndex to 0.
- ``lock`` on a free key raises the LockIndex by one (1 on a new key); on a key of the same session it keeps
  it.
- A deletion leaves a tombstone, so that a prefix's index does not fall back; a recursive one leaves one for
  the whole prefix, none for the root.
- An absent key, and a prefix with neither keys nor tombstones, report the index of the whole table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consul_coord.server.failures import StateError
from consul_coord.server.gotext import quote
from consul_coord.server.ids import lookup_key
from consul_coord.server.store import KV, TOMBSTONES

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.records import Entry
    from consul_coord.server.store import Store


@dataclass(frozen=True, slots=True)
class KvOp:
    """One operation on a key; ``entry`` carries what the client sent, ``index`` the index it names."""

    verb: str
    entry: Entry
    index: int = 0


def get(store: Store, key: str) -> tuple[int, Entry | None]:
    """Return the index and the entry of one key."""
    entry = store.kv.get(key)
    return (entry.modify_index if entry else store.index_of(KV, TOMBSTONES)), entry


def list_under(store: Store, prefix: str) -> tuple[int, list[Entry]]:
    """Return the index and the entries whose keys begin with ``prefix``."""
    entries = store.kv.under(prefix)
    table = store.index_of(KV, TOMBSTONES)
    if not prefix:
        return table, entries
    newest = max((entry.modify_index for entry in entries), default=0)
    return max(newest, max(store.tombstones.under(prefix), default=0)) or table, entries


def put(store: Store, index: int, entry: Entry) -> Entry:
    """Write value and flags, keeping whoever holds the key; return the entry as stored."""
    existing = store.kv.get(entry.key)
    return _store(
        store, index, existing, replace(entry, session=existing.session if existing else "", lock_index=0)
    )


def put_cas(store: Store, index: int, entry: Entry, expected: int) -> Entry | None:
    """Write if the key is at ModifyIndex ``expected`` (0: absent); None when it is not."""
    existing = store.kv.get(entry.key)
    if (existing.modify_index if existing else 0) != expected:
        return None
    return put(store, index, entry)


def lock(store: Store, index: int, entry: Entry) -> Entry | None:
    """Write and take the key for ``entry.session``; None when another session holds it."""
    if not entry.session:
        raise StateError("missing session")
    if store.sessions.get(session_key(store, entry.session)) is None:
        message = f"invalid session {quote(entry.session)}"
        raise StateError(message)
    existing = store.kv.get(entry.key)
    if existing is None:
        return _store(store, index, None, replace(entry, lock_index=1))
    if existing.session == entry.session:
        return _store(store, index, existing, replace(entry, lock_index=existing.lock_index))
    if existing.session:
        return None
    return _store(store, index, existing, replace(entry, lock_index=existing.lock_index + 1))


def unlock(store: Store, index: int, entry: Entry) -> Entry | None:
    """Write and give the key up; None when ``entry.session`` does not hold it."""
    if not entry.session:
        raise StateError("missing session")
    existing = store.kv.get(entry.key)
    if existing is None or existing.session != entry.session:
        return None
    return _store(store, index, existing, replace(entry, session="", lock_index=existing.lock_index))


def free(store: Store, index: int, key: str) -> None:
    """Take the session off a key, leaving all else as it is."""
    existing = store.kv.rows[key]
    _store(store, index, existing, replace(existing, session=""))


def delete(store: Store, index: int, key: str) -> bool:
    """Delete one key; absent is fine."""
    if store.kv.get(key) is None:
        return True
    store.kv.remove(key)
    store.tombstones.put(key, index)
    store.changed(KV, index)
    store.changed(TOMBSTONES, index)
    return True


def delete_cas(store: Store, index: int, key: str, expected: int) -> bool:
    """Delete if the key is at ModifyIndex ``expected``; True as well when it is absent."""
    existing = store.kv.get(key)
    if existing is None:
        return True
    if existing.modify_index != expected:
        return False
    return delete(store, index, key)


def delete_under(store: Store, index: int, prefix: str) -> bool:
    """Delete every key that begins with ``prefix``; none is fine."""
    keys = store.kv.keys_under(prefix)
    if not keys:
        return True
    for key in keys:
        store.kv.remove(key)
    store.changed(KV, index)
    if prefix:
        store.tombstones.put(prefix, index)
        store.changed(TOMBSTONES, index)
    return True


def reap_tombstones(store: Store, up_to: int) -> None:
    """Drop the tombstones of deletions at or before index ``up_to``; no table's index moves by that."""
    for key in [key for key, when in store.tombstones.rows.items() if when <= up_to]:
        store.tombstones.remove(key)


def session_key(store: Store, session: str) -> str:
    """Return the stored form of a session id; raise ``StateError`` when it is malformed, and that matters."""
    try:
        return lookup_key(session)
    except StateError as error:
        if not store.dialect.malformed_ids:
            return session
        message = f"failed session lookup: {error}"
        raise StateError(message) from None


def _store(store: Store, index: int, existing: Entry | None, entry: Entry) -> Entry:
    created = existing.create_index if existing else index
    if existing is not None and existing.same_content(entry):
        return existing
    stored = replace(entry, create_index=created, modify_index=index)
    store.kv.put(entry.key, stored)
    store.changed(KV, index)
    return stored


# What each writing verb does: the entry as stored, True when done without one, False or None when refused.
WRITES: dict[str, Callable[[Store, int, KvOp], Entry | bool | None]] = {
    "set": lambda store, index, op: put(store, index, op.entry),
    "cas": lambda store, index, op: put_cas(store, index, op.entry, op.index),
    "lock": lambda store, index, op: lock(store, index, op.entry),
    "unlock": lambda store, index, op: unlock(store, index, op.entry),
    "delete": lambda store, index, op: delete(store, index, op.entry.key),
    "delete-cas": lambda store, index, op: delete_cas(store, index, op.entry.key, op.index),
    "delete-tree": lambda store, index, op: delete_under(store, index, op.entry.key),
}
