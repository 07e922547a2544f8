"""KV transactions: all operations or none, at one index, later ones seeing what earlier ones did.

Rules
- Pre-checks (key present, lock-delay, permission) run first for all operations; if any fails, only these are
  reported.
- Then the operations run in order, all of them, so that every failing one is reported; any failure undoes
  everything.
- Results are not aligned with operations: deletions and ``check-not-exists`` give none, ``get-tree`` one per
  key. Only the reading verbs return values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.server import kv
from consul_coord.server.failures import StateError
from consul_coord.server.gotext import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consul_coord.server.kv import KvOp
    from consul_coord.server.records import Entry
    from consul_coord.server.store import Store


@dataclass(frozen=True, slots=True)
class OpFailure:
    """Why an operation failed."""

    op_index: int
    what: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a transaction gave: entries for the operations that have any, or why it failed."""

    results: tuple[Result, ...] = ()
    failures: tuple[OpFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """One entry of a transaction's results."""

    entry: Entry
    with_value: bool


class Undo(Exception):
    """Carries the failed outcome out of the store's command, so that it is undone."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def apply(store: Store, index: int, ops: Sequence[KvOp]) -> Outcome:
    """Run the operations at one index; the caller undoes the store when the outcome has failures."""
    results: list[Result] = []
    failures: list[OpFailure] = []
    for number, op in enumerate(ops):
        try:
            results.extend(_run(store, index, op))
        except StateError as error:
            failures.append(OpFailure(number, str(error)))
    return Outcome(failures=tuple(failures)) if failures else Outcome(results=tuple(results))


def _run(store: Store, index: int, op: KvOp) -> tuple[Result, ...]:
    if op.verb in kv.WRITES:
        return _write(store, index, op)
    read = _READS.get(op.verb)
    if read is None:
        message = f"unknown KV verb {quote(op.verb)}"
        raise StateError(message)
    return read(store, op)


def _write(store: Store, index: int, op: KvOp) -> tuple[Result, ...]:
    done = kv.WRITES[op.verb](store, index, op)
    if not done:
        raise StateError(_REFUSED[op.verb].format(key=quote(op.entry.key)))
    return () if done is True else (Result(done, with_value=False),)


def _get(store: Store, op: KvOp) -> tuple[Result, ...]:
    entry = store.kv.get(op.entry.key)
    if entry is None:
        message = f"key {quote(op.entry.key)} doesn't exist"
        raise StateError(message)
    return (Result(entry, with_value=True),)


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
    return (Result(entry, with_value=False),)


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
    return (Result(entry, with_value=False),)


def _check_not_exists(store: Store, op: KvOp) -> tuple[Result, ...]:
    if store.kv.get(op.entry.key) is not None:
        message = f"key {quote(op.entry.key)} exists"
        raise StateError(message)
    return ()


_READS: dict[str, Callable[[Store, KvOp], tuple[Result, ...]]] = {
    "get": _get,
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
