"""Transactions on keys and on the catalog: all operations or none, at one index, in order.

Rules
- Pre-checks (key present, lock-delay, permission) run first for all operations; if any fails, only these are
  reported.
- Then the operations run in order, all of them, each seeing what the earlier ones did, so that every failing
  one is reported; any failure undoes everything.
- Results are not aligned with operations: deletions and ``check-not-exists`` give none, ``get-tree`` one per
  key. Only the reading verbs return values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.server import catalog_ops, kv
from consul_coord.server.acl import DENIED
from consul_coord.server.catalog_ops import CatalogOp
from consul_coord.server.dialects import CONSUL_1_8
from consul_coord.server.failures import StateError
from consul_coord.server.gotext import quote
from consul_coord.server.records import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consul_coord.server.catalog import Delay
    from consul_coord.server.catalog_ops import Record
    from consul_coord.server.dialects import Dialect
    from consul_coord.server.kv import KvOp
    from consul_coord.server.store import Store

    Op = KvOp | CatalogOp
    Permitted = Callable[[Op], bool]
    Refusal = Callable[[Op], str | None]


@dataclass(frozen=True, slots=True)
class OpFailure:
    """Why an operation failed."""

    op_index: int
    what: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a transaction: the rows that its operations found or left, or why it failed."""

    results: tuple[Result, ...] = ()
    failures: tuple[OpFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """One of a transaction's results."""

    row: Entry | Record
    with_value: bool = False
    """Whether a key's value is shown."""


class Undo(Exception):
    """Carries the failed outcome out of the store's command, so that it is undone."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def malformed(op: Op, dialect: Dialect) -> str | None:
    """Return why an operation can't be meant, or None."""
    if isinstance(op, CatalogOp):
        return catalog_ops.refusal(op, dialect)
    return "Must provide key" if not op.entry.key and op.verb != "delete-tree" else None


def refused(
    ops: Sequence[Op],
    permitted: Permitted,
    refusal: Refusal = lambda _: None,
    dialect: Dialect = CONSUL_1_8,
) -> tuple[OpFailure, ...]:
    """Return what the pre-checks find: an operation's form, then permission, then what else refuses it."""
    whys = (
        (number, malformed(op, dialect) or (None if permitted(op) else DENIED) or refusal(op))
        for number, op in enumerate(ops)
    )
    return tuple(OpFailure(number, why) for number, why in whys if why is not None)


def is_write(op: Op) -> bool:
    """Tell whether an operation has to go through Raft; one on the catalog does unless it is a ``get``."""
    return op.verb != catalog_ops.GET if isinstance(op, CatalogOp) else op.verb in kv.WRITES


def apply(store: Store, index: int, ops: Sequence[Op], delay: Delay) -> Outcome:
    """Run the operations at one index; the caller undoes the store when the outcome has failures.

    ``delay`` is called with each key that a session loses on the way, and its lock-delay.
    """
    results: list[Result] = []
    failures: list[OpFailure] = []
    for number, op in enumerate(ops):
        try:
            results.extend(_run(store, index, op, delay))
        except StateError as error:
            failures.append(OpFailure(number, str(error)))
    return Outcome(failures=tuple(failures)) if failures else Outcome(results=tuple(results))


def _run(store: Store, index: int, op: Op, delay: Delay) -> tuple[Result, ...]:
    if isinstance(op, CatalogOp):
        row = catalog_ops.run(store, index, op, delay)
        return () if row is None else (Result(row),)
    if op.verb in kv.WRITES:
        return _write(store, index, op)
    read = _READS.get(op.verb)
    if read is None or (read is _get_or_empty and not store.dialect.or_empty):
        message = f"unknown KV verb {quote(op.verb)}"
        raise StateError(message)
    return read(store, op)


def _write(store: Store, index: int, op: KvOp) -> tuple[Result, ...]:
    done = kv.WRITES[op.verb](store, index, op)
    if not done:
        raise StateError(_REFUSED[op.verb].format(key=quote(op.entry.key)))
    return () if done is True else (Result(done),)


def _get(store: Store, op: KvOp) -> tuple[Result, ...]:
    entry = store.kv.get(op.entry.key)
    if entry is None:
        message = f"key {quote(op.entry.key)} doesn't exist"
        raise StateError(message)
    return (Result(entry, with_value=True),)


def _get_or_empty(store: Store, op: KvOp) -> tuple[Result, ...]:
    return (Result(store.kv.get(op.entry.key) or Entry(op.entry.key), with_value=True),)


def _get_tree(store: Store, op: KvOp) -> tuple[Result, ...]:
    return tuple(Result(entry, with_value=True) for entry in store.kv.under(op.entry.key))


def _check_index(store: Store, op: KvOp) -> tuple[Result, ...]:
    key = quote(op.entry.key)
    entry = store.kv.get(op.entry.key)
    if entry is None:
        message = f"failed to check index, key {key} doesn't exist"
        raise StateError(message)
    if entry.modify_index != op.index:
        message = f"failed index check for key {key}, current modify index {entry.modify_index} != {op.index}"
        raise StateError(message)
    return (Result(entry),)


def _check_session(store: Store, op: KvOp) -> tuple[Result, ...]:
    key, wanted = quote(op.entry.key), op.entry.session
    entry = store.kv.get(op.entry.key)
    if entry is None:
        message = f"failed to check session, key {key} doesn't exist"
        raise StateError(message)
    if entry.session != wanted:
        message = (
            f"failed session check for key {key}, current session {quote(entry.session)} != {quote(wanted)}"
        )
        raise StateError(message)
    return (Result(entry),)


def _check_not_exists(store: Store, op: KvOp) -> tuple[Result, ...]:
    if store.kv.get(op.entry.key) is not None:
        message = f"key {quote(op.entry.key)} exists"
        raise StateError(message)
    return ()


_READS: dict[str, Callable[[Store, KvOp], tuple[Result, ...]]] = {
    "get": _get,
    "get-or-empty": _get_or_empty,
    "get-tree": _get_tree,
    "check-index": _check_index,
    "check-session": _check_session,
    "check-not-exists": _check_not_exists,
}

_REFUSED = {
    "cas": "failed to set key {key}, index is stale",
    "lock": "failed to lock key {key}, lock is already held",
    "unlock": "failed to unlock key {key}, lock isn't held, or is held by another session",
    "delete-cas": "failed to delete key {key}, index is stale",
}
